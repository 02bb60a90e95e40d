"""einops inside of a captured function: its own words, on symbolic values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.own_library import assert_as_in

pytestmark = pytest.mark.needs("einops")
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8 - 1
Y = np.cos(np.arange(12, dtype=np.float32)).reshape(3, 4)


def patterns() -> dict[str, Any]:
    from einops import einsum, pack, rearrange, reduce, repeat, unpack

    return {
        "rearrange": lambda x: rearrange(x, "a b (c d) -> (b c) a d", d=2),
        "a list": lambda x: rearrange([x, 2 * x], "list a b c -> a (b list) c"),
        "ellipsis": lambda x: rearrange(x, "... c -> c (...)"),
        "sum": lambda x: reduce(x, "a b c -> b", "sum"),
        "max": lambda x: reduce(x, "a b c -> a b", "max"),
        "min": lambda x: reduce(x, "a b c -> a c", "min"),
        "prod": lambda x: reduce(x, "a b c -> a b", "prod"),
        "mean, its axes kept": lambda x: x - reduce(x, "a b c -> a () c", "mean"),
        "a reduction of one's own": lambda x: reduce(x, "a b c -> c", add_up),
        "repeat": lambda x: repeat(x, "a b c -> (a r) k b c", r=2, k=3),
        "einsum": lambda x: einsum(x, Y, "a b c, b c -> a"),
        "pack": lambda x: pack([x, x[:, 0]], "a *")[0],
        "unpack": lambda x: unpack(x, [(1,), (2,)], "a * c")[1],
    }


def add_up(x: Any, axes: tuple[int, ...]) -> Any:
    return x.sum(axis=axes)


CASES = (
    "rearrange", "a list", "ellipsis", "sum", "max", "min", "prod", "mean, its axes kept",
    "a reduction of one's own", "repeat", "einsum", "pack", "unpack",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_pattern_means_what_it_means_on_arrays_with_its_gradient(case: str) -> None:
    assert_as_in("numpy", patterns()[case], X.astype(np.float64))


def test_a_function_is_captured_for_each_length_that_a_pattern_is_told_of() -> None:
    from einops import rearrange

    function = xg.function(lambda x: rearrange(x, "(h w) -> w h", h=2) * 2, native=False)
    for length in (4, 6, 4):
        x = np.arange(length, dtype=np.float32)
        np.testing.assert_array_equal(function(x), 2 * x.reshape(2, -1).T)


def test_a_pattern_that_does_not_fit_says_so_as_einops_does() -> None:
    import einops

    function = xg.function(lambda x: einops.rearrange(x, "(h w) -> h w", h=5))
    with pytest.raises(Exception, match=r"can't divide axis of length 24"):
        function(np.ones(24, np.float32))


def test_arrays_are_computed_by_einops_itself_after_a_capture() -> None:
    from einops import rearrange

    xg.function(lambda x: rearrange(x, "a b -> b a"))(Y)
    assert isinstance(rearrange(Y, "a b -> (b a)"), np.ndarray)


@pytest.mark.needs("torch", "jax")
def test_torchs_code_around_a_pattern_is_the_same_on_jax(jax: Any, jnp: Any, torch: Any) -> None:
    from einops import rearrange, reduce

    def energy(x: Any) -> Any:
        heads = rearrange(x, "a b (h c) -> a h b c", h=2)
        return torch.tanh(reduce(heads, "a h b c -> a h c", "max")).sum(dim=-1)

    x = torch.from_numpy(X).requires_grad_()
    energy(x).sum().backward()
    function = xg.function(energy, native=False)
    found = jax.jit(jax.grad(lambda x: function(x).sum()))(jnp.asarray(X))
    assert x.grad is not None
    np.testing.assert_allclose(np.asarray(found), x.grad.numpy(), rtol=1e-5, atol=1e-7)
