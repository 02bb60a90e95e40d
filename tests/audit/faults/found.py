"""How many planted faults an audit finds, and how many the frameworks' own checkers do.

`python -m tests.audit.faults.found` prints both, each fault that is missed, and each law that
a sound gradient is said to break.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy

import multigrad as xg
from multigrad.audit.laws import LAWS

from .edits import EDITS, PLANTED, SHARED
from .sound import SOUND

NAMESPACES = {"torch": "torch", "jax": "jax.numpy", "tensorflow": "tensorflow.experimental.numpy"}
# The one takes seconds each; for the other, here all arguments are kept.
WITHOUT = ("compiled", "bytes")


def inputs_of(base: str) -> list[Any]:
    generator = numpy.random.default_rng(8)
    shapes = SOUND[base].shapes
    return [generator.standard_normal(shape).astype(numpy.float32) for shape in shapes]


def made(framework: str, base: str, edit: str | None) -> Any:
    """Return a custom gradient of a framework, with a fault."""
    SHARED.clear()
    np: Any = import_module(NAMESPACES[framework])
    sound = SOUND[base]
    planted = None if edit is None else EDITS[edit][1]

    def backward(g: Any, *x: Any) -> tuple[Any, ...]:
        if planted is None:
            return sound.backward(np, g, *x)
        return planted(np, sound.backward, g, *x)

    return MAKERS[framework](lambda *x: sound.forward(np, *x), backward)


def torch_class(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    torch: Any = import_module("torch")

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *x: Any) -> Any:
            ctx.x = [a.detach() for a in x]
            ctx.save_for_backward(*x)
            SHARED["last"] = x
            return forward(*x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            is_kept = torch.is_grad_enabled()
            return backward(g, *(ctx.saved_tensors if is_kept else ctx.x))

    return Planted


def jax_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    jax: Any = import_module("jax")
    planted = jax.custom_vjp(forward)
    planted.defvjp(lambda *x: (forward(*x), x), lambda x, g: backward(g, *x))
    return planted


def tensorflow_function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    tf: Any = import_module("tensorflow")

    @tf.custom_gradient
    def planted(*x: Any) -> Any:
        return forward(*x), lambda g: backward(g, *x)

    return planted


MAKERS = {"torch": torch_class, "jax": jax_function, "tensorflow": tensorflow_function}


def broken(framework: str, base: str, edit: str | None) -> list[str]:
    """Return the laws that an audit says are broken."""
    laws = [law.name for law in LAWS if law.name not in WITHOUT]
    tensors = inputs_of(base)
    if framework == "tensorflow":
        tensors = [import_module("tensorflow").constant(x) for x in tensors]
    report = xg.audit(made(framework, base, edit), *tensors, laws=laws, surrogate=False)
    assert not report.problem, report.problem
    return [finding.law for finding in report.findings]


# --- the frameworks' own checkers, as they are usually called -------------------------------------
def is_seen(framework: str, base: str, edit: str | None) -> bool:
    """Return whether the framework's own checker finds a fault."""
    return not CHECKERS[framework](made(framework, base, edit), inputs_of(base))


def gradcheck(planted: Any, arrays: list[Any]) -> bool:
    torch: Any = import_module("torch")
    wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    try:
        return bool(torch.autograd.gradcheck(planted.apply, wide))
    except Exception:  # noqa: BLE001, as whatever it raises is a finding
        return False


def check_grads(planted: Any, arrays: list[Any]) -> bool:
    try:
        import_module("jax.test_util").check_grads(planted, arrays, order=1, modes=["rev"])
    except Exception:  # noqa: BLE001, as whatever it raises is a finding
        return False
    return True


def compute_gradient(planted: Any, arrays: list[Any]) -> bool:
    tf: Any = import_module("tensorflow")
    wide = [tf.constant(x, tf.float64) for x in arrays]
    try:
        theory, numeric = tf.test.compute_gradient(planted, wide)
    except Exception:  # noqa: BLE001, as whatever it raises is a finding
        return False
    return all(numpy.allclose(a, b, 1e-3, 1e-5) for a, b in zip(theory, numeric, strict=True))


CHECKERS = {"torch": gradcheck, "jax": check_grads, "tensorflow": compute_gradient}


def main() -> None:
    warnings.simplefilter("ignore")
    found, seen, every = Counter[str](), Counter[str](), Counter[str]()
    for framework, base, edit in PLANTED:
        kind = EDITS[edit][0]
        laws, is_checked = broken(framework, base, edit), is_seen(framework, base, edit)
        every[kind] += 1
        found[kind] += bool(laws)
        seen[kind] += is_checked
        if not laws:
            print(f"missed: {framework} {base}, {edit}", flush=True)
    bases = dict.fromkeys((framework, base) for framework, base, _ in PLANTED)
    accused = {base: laws for base in bases if (laws := broken(*base, None))}
    for base, laws in accused.items():
        print("accused:", *base, laws)
    print("| kind | planted | the audit finds | gradcheck finds |\n| --- | --- | --- | --- |")
    for kind in every:
        print(f"| {kind} | {every[kind]} | {found[kind]} | {seen[kind]} |")
    print(f"| all | {every.total()} | {found.total()} | {seen.total()} |")
    print(f"{len(bases)} sound ones, {len(accused)} accused")
    sys.exit(int(bool(accused)))


if __name__ == "__main__":
    main()
