"""A torch class that updates its argument in place has the same numbers elsewhere, where the
caller's array stays as it was; a warning says so.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.own_library import assert_as_in
from ..harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.25, 0.6], [2.0, -0.0, -3.5]], np.float32)


def make_classes() -> dict[str, Any]:
    @torch_class(lambda ctx, grad: grad * ctx.saved_tensors[0])
    def MarksIt(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        x.mul_(2).clamp_(max=3)
        ctx.save_for_backward(x)
        return x

    def of_both(ctx: Any, grad: Any) -> Any:
        x, y = ctx.saved_tensors
        return grad * y + x * x

    @torch_class(of_both)
    def DoesNotSay(ctx: Any, x: Any) -> Any:
        x -= x.max(-1, keepdim=True)[0]
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y

    @torch_class(lambda ctx, grad: grad * 3)
    def ByAMask(ctx: Any, x: Any) -> Any:
        x[x < 0] = 0
        return x * 3

    return {"marks it": MarksIt, "does not say": DoesNotSay, "by a mask": ByAMask}


CASES = ("marks it", "does not say", "by a mask")


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_torchs_and_the_argument_is_kept(backend: Any, case: str) -> None:
    if backend.name == "torch":  # which runs it as it is, see below
        return

    used = make_classes()[case]
    function = xg.from_autograd_function(used)
    with pytest.warns(UserWarning, match=r"'x' in place; captured for .*leaves the caller's"):
        assert_as_in(
            "torch",
            lambda x: used.apply(x * 1),
            X,
            of=function,
            backend=backend,
            rtol=1e-6,
            atol=1e-6,
        )
    x = backend.array(X.copy())
    function(x)
    np.testing.assert_array_equal(backend.numpy(x), X)


@pytest.mark.parametrize("case", CASES)
def test_on_torch_it_runs_as_it_is(case: str) -> None:
    used = make_classes()[case]
    ours, theirs = torch.tensor(X), torch.tensor(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = xg.from_autograd_function(used)(ours)
    assert torch.equal(y, used.apply(theirs))
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("case", CASES)
def test_code_around_it_reads_the_update(backend: Any, case: str) -> None:
    used = make_classes()[case]

    def around(x: Any) -> Any:
        u = x * 3
        y = used.apply(u)
        return y + u * u * x

    assert_as_in("torch", around, X, backend=backend, rtol=1e-6, atol=1e-6)


@pytest.mark.needs("jax")
@pytest.mark.parametrize("case", CASES)
def test_second_derivatives_are_torchs(case: str) -> None:
    import jax

    used = make_classes()[case]
    function = xg.from_autograd_function(used)

    def find() -> Any:
        first = jax.grad(lambda x: (function(x) ** 2).sum())
        second = jax.grad(lambda x: (first(x) ** 2).sum())
        with pytest.warns(UserWarning, match="in place"):
            return second(jax.numpy.asarray(X))

    if case == "does not say":  # and reads in backward what autodiff took for the argument
        with pytest.raises(xg.GradientError, match="cannot be differentiated again"):
            find()
        return
    given = torch.tensor(X, requires_grad=True)
    (slope,) = torch.autograd.grad((used.apply(given * 1) ** 2).sum(), given, create_graph=True)
    (expected,) = torch.autograd.grad((slope**2).sum(), given)
    found = find()
    np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-5)


def test_ones_own_code_is_told_to_copy(backend: Any) -> None:
    def clamps(x: Any) -> Any:
        return x.clamp_(0, 1)

    with pytest.raises(xg.TraceError, match=r"updates its argument 'x' in place.*x\.clone\(\)"):
        xg.function(clamps, None, native=False, dialect="torch")(backend.array(X))
