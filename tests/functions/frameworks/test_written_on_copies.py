"""`xg.Capture(copies=True)`: code that writes into its arguments does so on copies of its own, in
every framework, its own too.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError
from multigrad.look.convert import convert

from ...harness.own_library import assert_as_in
from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
COPIES = xg.Capture(copies=True)
X = np.array([[0.3, -1.25, 0.6, 0.1], [2.0, -0.5, -3.5, 1.0]], np.float32)
ANGLES = np.array([0.1, 0.7, -0.4, 2.0], np.float32)
LABELS = np.array([2, 0])


def make_classes() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return classes that write into their arguments, with what they are called with."""

    class Rotates(torch.autograd.Function):
        """Turns pairs of numbers in place, and their cotangents too."""

        @staticmethod
        def forward(ctx: Any, x: Any, angles: Any) -> Any:
            cos, sin = angles.cos(), angles.sin()
            turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
            x *= cos
            x.addcmul_(turned, sin)
            ctx.save_for_backward(cos, sin)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            cos, sin = ctx.saved_tensors
            turned = torch.cat((grad[..., 2:], -grad[..., :2]), dim=-1)
            grad *= cos
            grad.addcmul_(turned, sin)
            return grad, None

    class CrossEntropy(torch.autograd.Function):
        """Makes probabilities of its logits, and a gradient of the probabilities."""

        @staticmethod
        def forward(ctx: Any, logits: Any, labels: Any) -> Any:
            logits = logits.float()
            logits -= logits.max(-1)[0].unsqueeze(-1)
            flat = logits.view(-1, logits.size(-1))
            rows = torch.arange(start=0, end=flat.size(0), device=flat.device)
            chosen = flat[rows, labels].clone()
            torch.exp(logits, out=logits)
            total = logits.sum(-1)
            logits.div_(total.unsqueeze(-1))
            ctx.save_for_backward(logits, labels, rows)
            return total.log() - chosen

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            softmax, labels, rows = ctx.saved_tensors
            softmax.view(-1, softmax.size(-1))[rows, labels] -= 1.0
            softmax.mul_(grad.unsqueeze(-1))
            return softmax, None

    @torch_class(lambda ctx, grad: grad.masked_fill(ctx.saved_tensors[0] == 0, 0))
    def Says(ctx: Any, x: Any) -> Any:
        """Says that it has written."""
        ctx.mark_dirty(x)
        x.clamp_(min=0)
        ctx.save_for_backward(x)
        return x

    return {
        "rotates": (Rotates, (X, ANGLES)),
        "cross entropy": (CrossEntropy, (X, LABELS)),
        "says": (Says, (X,)),
    }


CASES = ("rotates", "cross entropy", "says")


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_the_class_s_and_nothing_is_written(backend: Any, case: str) -> None:
    used, arrays = make_classes()[case]
    converted = xg.convert(used, capture=COPIES)

    def own(x: Any, *rest: Any) -> Any:
        return used.apply(x * 1, *rest)

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* in place")
        assert_as_in("torch", own, *arrays, of=converted, backend=backend)
        given = [backend.array(each.copy()) for each in arrays]
        y, pull = xg.vjp(converted, *given)
    cotangent = backend.array(backend.numpy(y).copy())
    first, again = (backend.numpy(pull(cotangent)[0]) for _ in range(2))  # through what is kept
    np.testing.assert_array_equal(first, again)
    for tensor, array in zip([cotangent, *given], [backend.numpy(y), *arrays], strict=True):
        np.testing.assert_array_equal(backend.numpy(tensor), array)


def test_without_it_a_backward_that_writes_is_refused_by_name(backend: Any) -> None:
    if backend.name == "torch":  # which runs the class itself
        return
    used, arrays = make_classes()["cross entropy"]
    with pytest.raises(xg.TraceError, match=r"xg\.convert\(CrossEntropy, capture=.*copies=True"):
        xg.convert(used)(*map(backend.array, arrays))


def test_the_command_converts_it_on_copies(backend: Any) -> None:
    used, arrays = make_classes()["cross entropy"]
    without, converted = (
        convert(used, *arrays, backends=[backend.name], copies=copies) for copies in (False, True)
    )
    assert [each.state for each in converted.verdicts] == ["converted, equal"]
    assert [each.state for each in without.verdicts] in (["refused"], ["as it is"])


def test_a_function_of_one_s_own_writes_on_a_copy(backend: Any) -> None:
    def halves(x: Any) -> Any:
        return x.mul_(0.5)

    def straight(grad: Any, x: Any) -> Any:
        return grad * x.sign_()

    own = xg.Capture(copies=True, dialect="torch", native=False)
    x = backend.array(X.copy())
    y, pull = xg.vjp(xg.function(halves, straight, capture=own), x)
    np.testing.assert_array_equal(backend.numpy(y), X / 2)
    np.testing.assert_array_equal(backend.numpy(pull(y)[0]), X / 2 * np.sign(X))
    np.testing.assert_array_equal(backend.numpy(x), X)
    refused = xg.function(halves, straight, native=False, dialect="torch")
    with pytest.raises(xg.TraceError, match=r"capture=xg\.Capture\(copies=True\)"):
        refused(x)


def test_code_around_it_sees_no_update(backend: Any) -> None:
    used, _ = make_classes()["says"]
    clamped = xg.convert(used, capture=COPIES)

    def around(x: Any) -> Any:
        u = x * 2
        return clamped(u) + u

    y = xg.function(around, native=False)(backend.array(X))
    np.testing.assert_allclose(backend.numpy(y), np.maximum(2 * X, 0) + 2 * X, rtol=1e-6)


@pytest.mark.parametrize("capture", [COPIES, None])
def test_one_tensor_given_twice_is_refused(backend: Any, capture: Any) -> None:
    if capture is None and backend.name == "torch":  # which runs the class itself
        return

    @torch_class(lambda ctx, grad: (grad, grad))
    def AddsInto(ctx: Any, x: Any, y: Any) -> Any:
        return x.add_(1) * y

    function, x = xg.convert(AddsInto, capture=capture), backend.array(X)
    with (
        nullcontext() if capture else pytest.warns(UserWarning, match="'x' in place"),
        pytest.raises(xg.TraceError, match=r"'AddsInto' updates its argument 'x' .* twice"),
    ):
        function(x, x)
    np.testing.assert_allclose(backend.numpy(function(x, backend.array(X))), (X + 1) * X)


def test_what_runs_as_it_is_gets_copies_too() -> None:
    @torch_class(lambda ctx, grad: grad.expand(2, 4) * 3)
    def Asks(ctx: Any, x: Any) -> Any:
        x.mul_(2)
        return x[: len(x.unique()) // 100 + 1]

    asks = xg.convert(Asks, capture=COPIES)
    compiled = torch.compile(lambda x: asks(x) * 1, backend="eager")
    for function in (asks, compiled):
        x = torch.tensor(X, requires_grad=True)
        y = function(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
        np.testing.assert_array_equal(y.detach().numpy(), 2 * X[:1])
        np.testing.assert_array_equal(slope.numpy(), np.full_like(X, 3))
        np.testing.assert_array_equal(x.detach().numpy(), X)


@pytest.mark.needs("jax")
def test_it_is_for_code_that_writes() -> None:
    import jax

    @jax.custom_vjp
    def same(x: Any) -> Any:
        return x

    same.defvjp(lambda x: (x, None), lambda kept, grad: (grad,))
    with pytest.raises(RuleTypeError, match="leave copies=True out"):
        xg.convert(same, capture=COPIES)
    layer = __import__("torch").nn.Linear(2, 2)
    with pytest.raises(RuleTypeError, match="copies=True is for functions and classes"):
        xg.convert(layer, capture=COPIES)


def written_cotangent(is_captured: bool) -> Any:
    """Return a class that writes into its cotangent; what asks for a number is not captured."""

    def mark(ctx: Any, grad: Any) -> Any:
        grad[1] = 5.0
        return grad

    @torch_class(mark)
    def Marks(ctx: Any, x: Any) -> Any:
        if not is_captured:
            x.sum().item()
        return x * 1.0

    return Marks


@pytest.mark.parametrize("is_captured", [True, False])
def test_a_cotangent_that_lies_in_memory_once_is_written_as_one_of_its_own(
    is_captured: bool,
) -> None:
    function = xg.convert(written_cotangent(is_captured), capture=COPIES)
    overlapping = torch.arange(4.0).as_strided((3, 2), (1, 1))
    for cotangent in (torch.ones(1).expand(3, 2), torch.ones(3, 1).expand(3, 2), overlapping):
        expected = cotangent.clone()
        expected[1] = 5.0
        x = torch.ones(3, 2, requires_grad=True)
        before = cotangent.clone()
        (slope,) = torch.autograd.grad(function(x), x, cotangent)
        torch.testing.assert_close(slope, expected)
        torch.testing.assert_close(cotangent, before)
    x = torch.ones(3, requires_grad=True)
    function(x).sum().backward()
    np.testing.assert_array_equal(x.grad, [1.0, 5.0, 1.0])


@pytest.mark.parametrize("native", [True, None])
def test_a_function_that_writes_into_what_it_is_given_writes_into_copies(
    native: bool | None,
) -> None:
    def forward(x: Any) -> Any:
        x[0] = 2.0
        return x * 1.0

    def backward(grad_out: Any, x: Any) -> Any:
        grad_out[1] = 5.0
        return grad_out

    capture = xg.Capture(copies=True, native=native)
    function, x = xg.function(forward, backward, capture=capture), np.ones(3)
    y, pull = xg.vjp(function, x)
    np.testing.assert_array_equal(y, [2.0, 1.0, 1.0])
    np.testing.assert_array_equal(x, 1.0)
    for cotangent in (np.ones(3), np.broadcast_to(1.0, 3), np.ones((3, 2))[:, 0]):
        np.testing.assert_array_equal(pull(cotangent)[0], [1.0, 5.0, 1.0])
        np.testing.assert_array_equal(cotangent, 1.0)
