"""A branch that does nothing but raise is an assertion, wherever it stands; one whose exception
somebody catches is a branch.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in
from ..values.test_asked_of_a_tensor import X, make

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")


def refuse_large(x: Any) -> None:
    """Raise in a helper."""
    if not bool((x < 10).all()):
        raise ValueError(f"too large: {x.max()}")


def raises_itself(ctx: Any, x: Any) -> Any:
    if (x > 10).any():
        raise ValueError(f"too large: {'alas' if x is None else x.max()}")
    return x * 3


def raises_in_a_helper(ctx: Any, x: Any) -> Any:
    with torch.no_grad():
        refuse_large(x)
    return x * 3


def is_large(x: Any) -> bool:
    return not bool((x < 10).all())


def raises_what_a_helper_finds(ctx: Any, x: Any) -> Any:
    if is_large(x):
        raise ValueError("too large")
    return x * 3


class Limits:
    def is_passed(self, x: Any, bound: float) -> bool:
        return not bool((x < bound).all())


def raises_what_a_method_finds(ctx: Any, x: Any) -> Any:
    def is_inside(x: Any) -> bool:
        return bool((x > -9).all())

    if Limits().is_passed(x, 10) or not is_inside(-x):
        raise ValueError("too large")
    return x * 3


def raises_after_a_call_of_a_call(ctx: Any, x: Any) -> Any:
    for each in (x, None):
        if each is not None and not bool(torch.le(each, 10.0).all()):
            raise ValueError("too large")
    return x * 3


def raises_at_the_end(ctx: Any, x: Any) -> Any:
    if x.max().item() <= 10:
        return x * 3
    message = "too large"
    raise ValueError(message)


def raises_where_numbers_differ(ctx: Any, x: Any) -> Any:
    if not -30 < x.min().item() <= x.max().item() < 10.0:
        raise ValueError("too large")
    return x * 3


def raises_in_a_library(ctx: Any, x: Any) -> Any:
    return torch.distributions.Normal(3 * x, 10 - x, validate_args=True).mean


@pytest.mark.parametrize(
    "forward",
    [
        raises_itself,
        raises_in_a_helper,
        raises_what_a_helper_finds,
        raises_what_a_method_finds,
        raises_after_a_call_of_a_call,
        raises_at_the_end,
        raises_where_numbers_differ,
        raises_in_a_library,
    ],
)
def test_a_branch_that_only_raises_is_an_assertion(forward: Any, backend: Any) -> None:
    function, cls = make(forward)
    assert_as_in("torch", cls.apply, X, of=function, backend=backend)
    with pytest.raises((ValueError, AssertionError)):
        function(backend.array(20 * X))


def test_an_assertion_of_a_class_inside_is_one_of_the_function_around_it(backend: Any) -> None:
    _, cls = make(raises_itself)

    def around(x: Any) -> Any:
        return cls.apply(2 * x) + x

    function = xg.function(around)
    np.testing.assert_allclose(backend.numpy(function(backend.array(X))), 7 * X, rtol=1e-6)
    with pytest.raises(ValueError, match=r"large|asserts what does not hold"):
        function(backend.array(10 * X))


def catches_it(ctx: Any, x: Any) -> Any:
    try:
        refuse_large(x)
    except ValueError:
        return x * 5
    return x * 3


def lets_it_end(ctx: Any, x: Any) -> Any:
    with contextlib.suppress(ValueError):
        refuse_large(x)
        return x * 3
    return x * 5


def returns_at_last(ctx: Any, x: Any) -> Any:
    try:
        refuse_large(x)
    finally:
        return x * 5  # noqa: B012


def asks_of_any(ctx: Any, x: Any) -> Any:
    if any([(x > 10).any(), (x > 0).any()]):
        raise ValueError
    return x


def asks_a_helper_of_any(ctx: Any, x: Any) -> Any:
    if all(map(is_large, [x, x])):
        raise ValueError
    return x


def keeps_what_a_helper_finds(ctx: Any, x: Any) -> Any:
    found = [is_large(x)]
    if found == [True]:
        raise ValueError
    return x


def does_more_than_raise(ctx: Any, x: Any) -> Any:
    for row in (0, 1):
        if (x[row] > 10).any():
            if row:
                raise ValueError
            x = x + 1
    return x * 3


@pytest.mark.parametrize(
    "forward",
    [
        catches_it,
        lets_it_end,
        returns_at_last,
        asks_of_any,
        asks_a_helper_of_any,
        keeps_what_a_helper_finds,
        does_more_than_raise,
    ],
)
def test_a_branch_whose_exception_ends_nothing_is_refused(forward: Any) -> None:
    with pytest.raises(xg.TraceError, match=r"py:\d+\) branches on a tensor value.*torch alone"):
        make(forward)[0](X)


def test_an_exception_of_a_class_inside_may_be_caught_around_it() -> None:
    _, cls = make(raises_itself)

    def around(x: Any) -> Any:
        try:
            return cls.apply(x)
        except ValueError:
            return 5 * x

    for _ in range(2):  # captured by itself meanwhile, too
        with pytest.raises(xg.TraceError, match=r"branches on a tensor value|catches what"):
            xg.function(around, native=False)(X)
        xg.from_autograd_function(cls)(X)
    np.testing.assert_allclose(
        xg.function(around)(100 * X), 500 * X, rtol=1e-6
    )  # as it is, on arrays


def raises_beyond_all_samples(ctx: Any, x: Any) -> Any:
    if not (x < 1e30).all():
        raise ValueError("too large")
    return x * 3


def catches_a_call_that_asserts(ctx: Any, x: Any) -> Any:
    try:
        torch._assert((x < 1e30).all(), "too large")
    except AssertionError:
        return x * 0
    return x * 3


def test_what_is_caught_beyond_all_samples_is_no_assertion(monkeypatch: pytest.MonkeyPatch) -> None:
    """No proof on samples finds these: they end before."""
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")
    inner, _ = make(raises_beyond_all_samples)
    inner(X)  # captured by itself before

    def around(x: Any) -> Any:
        try:
            return inner(x)
        except ValueError:
            return x * 0

    with pytest.raises(xg.TraceError, match=r"catches what '\w+' raises"):
        xg.function(around, native=False)(X)
    with pytest.raises(xg.TraceError, match="catches what is raised"):
        make(catches_a_call_that_asserts)[0](X)


def test_what_a_backward_asserts_is_no_matter_of_forward(backend: Any) -> None:
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        if (x > 1).any():
            raise RuntimeError("no gradient there")
        return grad

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 3

    function, _ = make(forward, backward)
    np.testing.assert_allclose(backend.numpy(function(backend.array(2 * X))), 6 * X, rtol=1e-6)


def test_a_key_acts_where_the_original_would_draw_from_none(backend: Any) -> None:
    def sampled(ctx: Any, x: Any) -> Any:
        return torch.distributions.Bernoulli(torch.sigmoid(x)).sample()

    function, _ = make(sampled)
    if backend.name != "jax":  # which has no generator of its own
        function(backend.array(X))
    expected = make(sampled)[0].keyed(3)(X)
    np.testing.assert_array_equal(backend.numpy(function.keyed(3)(backend.array(X))), expected)


class SafeFactor:
    """A second try, with more on the diagonal, where the first one fails."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        factor, info = torch.linalg.cholesky_ex(x)
        if not torch.any(info):
            return factor * 1.0
        return torch.linalg.cholesky_ex(x + 2 * torch.eye(2))[0] * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


def test_what_a_factor_says_of_its_success_is_an_assertion(backend: Any) -> None:
    own = type("Safe", (SafeFactor, torch.autograd.Function), {})
    safe = xg.from_autograd_function(own)
    good, bad = (np.array([[n, 0.5], [0.5, n]], np.float32) for n in (2.0, 0.25))
    np.testing.assert_allclose(
        backend.numpy(safe(backend.array(good))), np.linalg.cholesky(good), rtol=1e-6
    )
    if backend.name == "torch":
        expected = np.linalg.cholesky(bad + 2 * np.eye(2, dtype=np.float32))
        np.testing.assert_allclose(safe(torch.tensor(bad)), expected, rtol=1e-6)
    else:
        with pytest.raises(Exception, match=r"positive definite|asserts what does not hold"):
            safe(backend.array(bad))
