"""Fused execution gives what plain code gives, errors too, whatever tensors it gets, whatever
happens to them between forward and backward, and in whichever mode, thread or process it runs.
"""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import pytest

import multigrad as xg
from multigrad import xp

from ...harness.torch_class import torch_class
from ...support.threads import on_threads

torch: Any = pytest.importorskip("torch")

Tensor: TypeAlias = Any
pytestmark = [
    pytest.mark.needs("torch"),
    pytest.mark.skipif(
        not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler is on the PATH"
    ),
]
# The first keeps a mask, the second its input, the third its output.
RULES: Any = (("Heaviside", "rectangular"), ("Heaviside", "triangular"), ("ReLU", "d(ReLU)"))


@pytest.fixture(autouse=True)
def of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that was said of the process, and no warning of plain code."""
    monkeypatch.delenv("MULTIGRAD_FUSED", raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gradient(act: Any, x: Tensor, grad: Tensor | None = None) -> list[Tensor]:
    y = act(x.requires_grad_())
    grad = drawn(*y.shape, seed=1).to(y.dtype) if grad is None else grad
    return [y.detach(), *torch.autograd.grad(y, x, grad)]


def bits(found: Any) -> Any:
    """Return what is equal where tensors are the same bit for bit, NaN aside, or errors alike."""
    if isinstance(found, Exception):
        return type(found), str(found)[:60]
    if isinstance(found, list | tuple):
        return [bits(each) for each in found]
    if not isinstance(found, torch.Tensor):
        return found
    zeros = torch.signbit(found) & (found == 0)
    return str(found.dtype), found.shape, str(found.nan_to_num(12.5).tolist()), zeros.tolist()


def attempt(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except (RuntimeError, NotImplementedError) as error:
        return error


def assert_alike(call: Callable[[Any], Any]) -> None:
    for forward, rule in RULES:
        fused, plain = (xg.activation(forward, rule, fused=each) for each in (True, False))
        assert bits(attempt(call, fused)) == bits(attempt(call, plain)), rule


def tensors() -> dict[str, Callable[[], tuple[Tensor, Tensor | None]]]:
    """Return inputs and cotangents of every make; None: of ordinary make."""

    def flat() -> Tensor:
        return drawn(300)

    return {
        "expanded": lambda: (flat()[:8].expand(5, 8).detach(), None),
        "overlapping": lambda: (flat().as_strided((40, 10), (2, 1)), None),
        "channels last": lambda: (
            drawn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
            None,
        ),
        "odd strides of one row": lambda: (flat().as_strided((1, 8), (77, 1)), None),
        "from the third element on": lambda: (flat()[3:], None),
        "negated by note": lambda: (torch._neg_view(flat()), None),
        "the imaginary part of a conjugate": lambda: (
            torch.view_as_complex(drawn(33, 2)).conj().imag.detach(),
            None,
        ),
        "zeros by note": lambda: (torch._efficientzerotensor((300,)), None),
        "a cotangent expanded": lambda: (flat(), torch.ones(1).expand(300)),
        "a cotangent reversed": lambda: (flat(), drawn(2, 300, seed=2).t()[:, 1]),
        "a cotangent negated by note": lambda: (flat(), torch._neg_view(drawn(300, seed=2))),
        "a cotangent of zeros by note": lambda: (flat(), torch._efficientzerotensor((300,))),
        "a sparse cotangent": lambda: (flat(), drawn(300, seed=2).to_sparse()),
        "a cotangent of another dtype": lambda: (flat(), drawn(300, seed=2).double()),
        "a cotangent of another shape": lambda: (flat(), drawn(1, seed=2)),
        "not aligned": lambda: (
            torch.frombuffer(bytearray(1201), dtype=torch.float32, offset=1).copy_(flat()),
            None,
        ),
        "sparse": lambda: (flat().to_sparse(), None),
        "without elements": lambda: (torch.zeros(0, 3), None),
        "without dimensions": lambda: (torch.tensor(0.25), None),
        "without values": lambda: (torch.empty(3, device="meta"), torch.empty(3, device="meta")),
    }


def test_tensors_of_every_make_get_the_results_of_plain_code(subtests: pytest.Subtests) -> None:
    def run(act: Any, make: Any) -> Any:
        x, grad = make()
        found = gradient(act, x, grad)
        dense = [each.to_dense() if each.is_sparse else each for each in found]
        return [each if each.device.type == "cpu" else each.shape for each in dense]

    for name, make in tensors().items():
        with subtests.test(name):
            assert_alike(partial(run, make=make))


def changes() -> dict[str, Callable[[Tensor, Tensor], Any]]:
    """Return what may be done to an input and its output before backward."""

    def swap_for_fewer(x: Tensor, y: Tensor) -> None:
        x.data = torch.zeros(3)

    def swap_for_strided(x: Tensor, y: Tensor) -> None:
        x.data = drawn(7, 300, seed=5).t()[:, 2]

    def swap_for_doubles(x: Tensor, y: Tensor) -> None:
        x.data = drawn(300, seed=5).double()

    return {
        "nothing": lambda x, y: None,
        "written into the input": lambda x, y: x.detach().add_(1),
        "written into the output": lambda x, y: y.detach().add_(1),
        "the input's data changed": lambda x, y: x.data.add_(5),
        "other data of fewer elements": swap_for_fewer,
        "other data, strided": swap_for_strided,
        "other data of another dtype": swap_for_doubles,
        "backward before": lambda x, y: y.sum().backward(),
    }


def test_what_changes_between_forward_and_backward_is_seen_as_in_plain_code(
    subtests: pytest.Subtests,
) -> None:
    def run(act: Any, change: Any) -> Any:
        x = drawn(300).requires_grad_()
        y = act(x)
        change(x, y)
        return torch.autograd.grad(y, x, drawn(300, seed=1))

    for name, change in changes().items():
        with subtests.test(name):
            assert_alike(partial(run, change=change))


def modes() -> dict[str, Callable[[Any], Any]]:
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    x = drawn(6, 50)

    def hooked(act: Any) -> Any:
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.detach().numpy().copy(), torch.from_numpy
        )
        with hooks:
            return gradient(act, x.clone())

    def offloaded(act: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return gradient(act, x.clone())

    def hooked_one_by_one(act: Any) -> Any:
        own = x.clone().requires_grad_()
        y = act(own)
        for each in y.grad_fn._raw_saved_tensors:
            each.register_hooks(lambda t: t.clone(), lambda t: t)
        return torch.autograd.grad(y.sum(), own)

    def deterministic(act: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        try:
            return gradient(act, x.clone())
        finally:
            torch.use_deterministic_algorithms(False)

    def subnormals_flushed(act: Any) -> Any:
        torch.set_flush_denormal(True)
        try:
            small = 0.5e-38 * drawn(400, seed=4)
            return [*gradient(act, drawn(400), small), *gradient(act, small.clone())]
        finally:
            torch.set_flush_denormal(False)

    def counted(act: Any) -> Any:
        own = x.clone().requires_grad_()
        y = act(own)
        with FlopCounterMode(display=False):
            return torch.autograd.grad(y.sum(), own)

    def of_a_batch(act: Any) -> Any:
        own = x[0].clone().requires_grad_()
        return torch.autograd.grad(act(own), own, torch.eye(50), is_grads_batched=True)

    def under_autocast(act: Any) -> Any:
        own = x.clone().requires_grad_()
        found = [act(own)]
        with torch.autocast("cpu", torch.bfloat16):
            found += act(own), act(own[:2])  # a shape that kernels have run on, and another
        kept = [str(each.dtype) for y in found[1:] for each in y.grad_fn.saved_tensors]
        return [y.detach() for y in found], kept

    def inferred(act: Any) -> Any:
        with torch.inference_mode():
            return act(x.clone()).clone()

    def of_doubles(act: Any) -> Any:
        torch.set_default_dtype(torch.float64)
        try:
            with torch.device("meta"):
                return gradient(act, x.clone(), x)
        finally:
            torch.set_default_dtype(torch.float32)

    def in_threads(act: Any) -> Any:
        found: list[Any] = [None] * 8

        def run(i: int) -> None:
            found[i] = gradient(act, x + i, x)

        on_threads(run, *range(8))
        return found

    def pulled_back(act: Any) -> Any:
        y, pull, *_ = torch.func.vjp(act, x)
        return y, pull(x), torch.func.vmap(pull)(torch.stack([x, 2 * x]))

    def twice(act: Any) -> Any:
        own, grad = x.clone().requires_grad_(), drawn(6, 50, seed=3).requires_grad_()
        (first,) = torch.autograd.grad(act(own) * own, own, grad, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (own, grad))

    row = x[0]
    return {
        "hooks on what is saved": hooked,
        "saved elsewhere": offloaded,
        "hooks on each": hooked_one_by_one,
        "a checkpoint": lambda act: gradient(
            lambda own: checkpoint(act, own, use_reentrant=False), x.clone()
        ),
        "a checkpoint that enters again": lambda act: gradient(
            lambda own: checkpoint(act, own, use_reentrant=True), x.clone()
        ),
        "deterministic": deterministic,
        "subnormals flushed": subnormals_flushed,
        "counted in backward": counted,
        "gradients of a batch": of_a_batch,
        "autocast": under_autocast,
        "inference": inferred,
        "other defaults": of_doubles,
        "threads": in_threads,
        "vjp": pulled_back,
        "jvp": lambda act: torch.func.jvp(act, (x,), (drawn(6, 50, seed=3),)),
        "jacobians": lambda act: [torch.func.jacrev(act)(row), torch.func.jacfwd(act)(row)],
        "differentiated twice": twice,
        "traced": lambda act: make_fx(lambda own: gradient(act, own, x))(x.clone())(2 * x),
    }


@pytest.mark.always
def test_modes_transforms_and_threads_get_the_results_of_plain_code(
    subtests: pytest.Subtests,
) -> None:
    for name, run in modes().items():
        with subtests.test(name):
            assert_alike(run)


@pytest.mark.parametrize("asked", [(True, False), (False, True), (True, True), (False, False)])
def test_only_the_inputs_that_are_asked_for_get_gradients(asked: tuple[bool, bool]) -> None:
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return xp.maximum(x, y) * y, xp.abs(x - y)

    def backward(grads: Any, x: Tensor, y: Tensor) -> Any:
        a, b = grads
        return a * (x > y) + b * (x < y), a * x - b * 0.5

    found = []
    for fused in (True, False):
        f = xg.function(forward, backward, fused=fused)
        whole = drawn(301)
        for x, y in ((whole[:-1], whole[1:]), (whole, whole)):  # whose memory overlaps
            own = [t.detach().requires_grad_(flag) for t, flag in zip((x, y), asked, strict=True)]
            outputs = f(*own)
            needed = [each for each in own if each.requires_grad]
            total = outputs[0].sum() * 2 + outputs[1].sum()
            found.append([*outputs, *(torch.autograd.grad(total, needed) if needed else ())])
    assert bits(found[:2]) == bits(found[2:])


@pytest.mark.parametrize("way", ["auto", "input", "mask", "packed", "recompute"])
def test_kernels_keep_what_is_asked_for_with_masks_as_bits(way: Any) -> None:
    kept = {}
    for forward, rule in RULES:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # that plain code runs
            act = xg.activation(forward, rule, fused=True, residuals=way)
            y = act(drawn(800).requires_grad_())
        kept[rule] = [(str(each.dtype)[6:], each.nbytes) for each in y.grad_fn.saved_tensors]
        plain = xg.activation(forward, rule, fused=False, residuals=way)
        assert bits(gradient(act, drawn(801))) == bits(gradient(plain, drawn(801)))
        assert sum(size for _, size in kept[rule]) <= xg.memory(act, (800,)).total
    assert kept["triangular"] == kept["d(ReLU)"] == [("float32", 3200)]
    assert kept["rectangular"] == [("float32", 3200) if way == "input" else ("uint8", 100)]


def test_estimators_and_converted_classes_are_told_to_be_fused_and_stay_so() -> None:
    @torch_class(lambda ctx, grad: grad * (ctx.saved_tensors[0].abs() < 0.5))
    def Windowed(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(-0.5, 0.5)

    def kept(f: Any) -> list[str]:
        y = f(drawn(100).requires_grad_())
        return [str(each.dtype) for each in y.grad_fn.saved_tensors]

    for plain in (xg.estimators.clipped_relu, xg.convert(Windowed)):
        before = kept(plain)
        fused = plain.keeping(fused=True)
        assert before == kept(plain) == kept(fused.keeping(fused=False)) == ["torch.bool"]
        copies = (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), fused.keeping("packed"))
        assert [kept(each) for each in (fused, *copies)] == [["torch.uint8"]] * 4
        assert bits(gradient(fused, drawn(99))) == bits(gradient(plain, drawn(99)))
        packed = pickle.loads(pickle.dumps(plain.keeping("packed")))
        assert kept(packed) == ["torch.uint8"]
    with pytest.raises(TypeError, match='fused is "auto", True or False'):
        xg.estimators.clipped_relu.keeping(fused="never")  # type: ignore[arg-type]


IN_A_CHILD = """
import os, sys, time, torch, multigrad as xg
torch.set_num_threads(2)
act = xg.activation("Heaviside", "triangular", fused=True)
x, grad = torch.randn(2, 1 << 20)
y = act(x.requires_grad_())
found = [y.detach(), *torch.autograd.grad(y, x, grad)]  # on two threads
child = os.fork()
if child == 0:
    y = act(x)
    again = [y.detach(), *torch.autograd.grad(y, x, grad)]
    same = [a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(found, again)]
    os._exit(0 if same == [True, True] else 3)
end = time.monotonic() + 30
while time.monotonic() < end:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.02)
os.kill(child, 9)
sys.exit("the child waits for ever")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_does_not_wait_for_threads_that_its_parent_has() -> None:
    command = [sys.executable, "-W", "ignore", "-c", IN_A_CHILD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
