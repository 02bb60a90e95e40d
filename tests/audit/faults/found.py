"""How many planted faults an audit finds, and how many the frameworks' own checkers do.

    python -m tests.audit.faults.found --set first second --framework torch

prints both by set and by law, each fault that its laws do not find, and each law that a sound
gradient is said to break. Without words it runs all of them.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any

import numpy

import multigrad as xg
from multigrad.audit.audit import LAWS

from .edits import EDITS, PLANTED
from .modes import MODES, Gradient
from .sound import SHARED, inputs_of, make

# The one takes seconds each; for the other, here all arguments are kept.
WITHOUT = ("compiled", "bytes")
OF_SETS = {"modes": ("forward mode", "checkpoint", "autocast", "bytes", "saved")}
MOST = tuple(law.name for law in LAWS if law.name not in WITHOUT)


def gradients() -> Iterator[Gradient]:
    """Yield what is planted, set by set, and the sound gradients that it is planted in."""
    for group, framework, base, edits in PLANTED:
        for edit in ("as it is", *edits.split(", ")):
            laws, change = EDITS[edit]
            made = partial(make, framework, base, change)
            yield Gradient(group, laws, f"{base}, {edit}", inputs_of(base), made, framework)
    yield from MODES


def broken(gradient: Gradient, laws: tuple[str, ...] = ()) -> list[str]:
    """Return the laws that an audit says are broken: of these, or of those that its set asks."""
    SHARED.clear()
    tensors = gradient.inputs
    if gradient.framework == "tensorflow":
        tensors = tuple(import_module("tensorflow").constant(x) for x in tensors)
    asked = laws or OF_SETS.get(gradient.group, MOST)
    report = xg.audit(gradient.make(), *tensors, laws=asked, surrogate=False)
    assert not report.problem, report.problem
    return [finding.law for finding in report.findings]


# --- the frameworks' own checkers, as they are usually called -------------------------------------
def is_seen(gradient: Gradient) -> bool:
    """Return whether the framework's own checker finds a fault: whatever it raises is a finding."""
    made = gradient.make()
    SHARED.clear()
    try:
        return not CHECKERS[gradient.framework](made, gradient.inputs)
    except Exception:  # noqa: BLE001
        return True


def gradcheck(made: Any, arrays: tuple[Any, ...]) -> bool:
    torch: Any = import_module("torch")
    wide = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in arrays]
    return torch.autograd.gradcheck(getattr(made, "apply", made), wide)


def check_grads(made: Any, arrays: tuple[Any, ...]) -> bool:
    with import_module("jax").enable_x64(True):
        wide = [x.astype(numpy.float64) for x in arrays]
        import_module("jax.test_util").check_grads(made, wide, order=1, modes=["rev"])
    return True


def compute_gradient(made: Any, arrays: tuple[Any, ...]) -> bool:
    tf: Any = import_module("tensorflow")
    theory, numeric = tf.test.compute_gradient(made, [tf.constant(x, tf.float64) for x in arrays])
    return all(numpy.allclose(a, b, 1e-3, 1e-5) for a, b in zip(theory, numeric, strict=True))


CHECKERS = {"torch": gradcheck, "jax": check_grads, "tensorflow": compute_gradient}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    groups = [*dict.fromkeys(row[0] for row in PLANTED)]
    parser.add_argument("--set", nargs="+", default=groups, choices=groups)
    parser.add_argument("--framework", nargs="+", default=[*CHECKERS], choices=[*CHECKERS])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [g for g in gradients() if g.group in given.set and g.framework in given.framework]
    rows = ["all", *given.set, *(gradient.laws for gradient in chosen if gradient.laws)]
    counts = {row: numpy.zeros(3, int) for row in rows}
    is_right = True
    for gradient in chosen:
        laws = broken(gradient)
        is_found = {*gradient.laws.split(", ")} <= {*laws}
        if gradient.laws:
            figures = 1, is_found, is_seen(gradient)
            for row in ("all", gradient.group, gradient.laws):
                counts[row] += figures
        if not is_found if gradient.laws else laws:
            is_right = False
            said = f"missed by {gradient.laws}" if gradient.laws else "accused"
            print(f"{said}: {gradient.framework} {gradient.name} {laws}", flush=True)
    print("| by set and law | planted | the audit finds | gradcheck finds |")
    print("| --- | --- | --- | --- |")
    for row, numbers in counts.items():
        print("|", row, "|", *(f"{n} |" for n in numbers))
    sys.exit(not is_right)


if __name__ == "__main__":
    main()
