"""Lists, arrays and masks in an index: what they pick and where they assign is what the library
does on real arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp

from ...harness.torch_class import torch_class

A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 8
MASK = np.array([True, False, True])


def puts(index: Any) -> Callable[[Any], Any]:
    """Return a function that swaps and assigns at an index, of a copy."""

    def assign(a: Any) -> Any:
        a = a.copy()
        a[index] = -a[index] * 2 + 1
        return a

    return assign


def adds(index: Any) -> Callable[[Any], Any]:
    def update(a: Any) -> Any:
        a = a.copy()
        a[index] += 5
        return a

    return update


PICKED: dict[str, Any] = {
    "a list first": lambda a: a[[1, 0]],
    "a list after the first axis": lambda a: a[:, [0, 2]],
    "a list of one": lambda a: a[:, [0]],
    "a list at the end": lambda a: a[..., [0, -1]],
    "a tuple": lambda a: a[:, (0, 1)],
    "a tuple of three": lambda a: a[:, (0, 1, 2)],
    "an empty list": lambda a: a[:, []],
    "an array": lambda a: a[:, np.array([2, 0, 0])],
    "an array before dots": lambda a: a[np.array([1]), ..., 0:2],
    "an array without axes": lambda a: a[np.array(1)],
    "an array of two axes": lambda a: a[:, np.array([[0, 1], [2, 0]])],
    "two lists": lambda a: a[[1, 0], [2, 0]],
    "two lists that broadcast": lambda a: a[[[1], [0]], [2, 0]],
    "two lists apart": lambda a: a[[1, 0], :, [3, 1]],
    "a grid": lambda a: a[np.ix_([0, 1], [0, 2], [1])],
    "a list beside an integer": lambda a: a[0, [0, 2]],
    "a list before an integer": lambda a: a[[1, 0], 0],
    "a list apart from an integer": lambda a: a[0, :, [3, 1]],
    "a list beside a slice": lambda a: a[[0, 1], ::2],
    "a list beside new axes": lambda a: a[:, None, [0, 1], None],
    "a list of bools": lambda a: a[[True, False]],
    "bools after the first axis": lambda a: a[:, [True, False, True]],
    "an array of bools": lambda a: a[:, MASK],
    "bools for two axes": lambda a: a[:, np.ones((3, 4), bool)],
}
PLACED: dict[str, Any] = {
    "a swap": lambda a: _swap(a),
    "of two at one place the last": lambda a: _twice(a),
    "a list": puts([1]),
    "a list at the end": puts((..., [0, -1])),
    "a list in the middle": puts((slice(None), [2, 0])),
    "a list beside a slice": puts((slice(1, None), [2, 0])),
    "a list beside an integer": puts((0, [0, 2])),
    "two lists": puts(([1, 0], [2, 0])),
    "two lists apart": puts(([1, 0], slice(None), [3, 1])),
    "an array of two axes": puts(np.array([[0, 1]])),
    "bools": puts((slice(None), MASK)),
    "an empty list": puts((slice(None), [])),
    "added": adds((slice(None), [0, 2])),
    "added once to what is named twice": adds([0, 0]),
}


def _swap(a: Any) -> Any:
    a = a.copy()
    a[..., [0, -1]] = a[..., [-1, 0]]
    return a


def _twice(a: Any) -> Any:
    b = a.copy()
    b[[0, 0]] = a[[0, 1]]
    b[:, [0, -3]] = a[:, [1, 2]]
    return b


@pytest.mark.backends("numpy", "torch")
@pytest.mark.parametrize(
    "function", [*PICKED.values(), *PLACED.values()], ids=[*PICKED, *(f"put {x}" for x in PLACED)]
)
def test_an_index_with_several_numbers_means_what_it_does_of_an_array(
    function: Any, backend: Any
) -> None:
    actual = backend.numpy(xg.function(function, native=False)(backend.array(A)))
    if backend.name == "torch" and function is PICKED["a list apart from an integer"]:
        np.testing.assert_array_equal(actual, function(A).T)  # as torch has the axes then
    else:
        np.testing.assert_array_equal(actual, function(A))


@pytest.mark.parametrize(
    "function",
    [
        lambda v: xp.abs(v[: v.shape[0] - 1]),
        lambda v: xp.abs(v[v.shape[0] // 2 :]),
        lambda v: xp.abs(v[:: v.shape[0] // 3]),
        lambda v: v[: v.shape[0] - 1] * 2,
    ],
)
def test_a_slice_with_an_open_end_has_a_bound_from_the_shape(function: Any, backend: Any) -> None:
    actual = backend.numpy(xg.function(function, native=False)(backend.array(A[0, 0])))
    np.testing.assert_array_equal(actual, function(A[0, 0]))


def test_what_an_index_picks_has_its_gradient_and_is_a_copy(backend: Any) -> None:
    def f(a: Any) -> Any:
        picked = a[:, [0, 0]]
        picked += 1
        return a.sum() + (picked * np.array([[1.0], [2.0]])).sum()

    given = backend.array(A)
    (gradient,) = xg.vjp(xg.function(f, native=False), given)[1](backend.array(np.float32(1)))
    expected = np.ones_like(A)
    expected[:, 0] += 3
    np.testing.assert_array_equal(backend.numpy(gradient), expected)


def mask_of_rows(a: Any) -> Any:
    a = a.copy()
    a[(a > 0)[:, :, 0].all(axis=1)] = 0
    a[(a < -5)[:, :, 1]] *= 3
    return a


def test_a_mask_of_the_first_axes_is_not_broadcast_to_the_last(backend: Any) -> None:
    square = np.concatenate([A, A + 9, A - 9])[:4, :, :3] * np.float32(1)
    square = square[:3]  # each axis as long as the others, so that a wrong one would pass
    actual = backend.numpy(xg.function(mask_of_rows, native=False)(backend.array(square)))
    np.testing.assert_array_equal(actual, mask_of_rows(square))


REFUSED: dict[str, Any] = {
    "bools of another length": (lambda a: a[[True, False, True]], "boolean index did not match"),
    "floats": (lambda a: a[np.array([0.0, 1.0])], "float64"),
    "places outside of two lists": (lambda a: a[[0, 5], [0, 0]], "out of bounds"),
    "one bool": (lambda a: a[True], "bool|mask"),
    "a mask beside a number": (lambda a: a[0, a[0] > 0], "by a tensor"),
    "a mask as long as no axis": (lambda a: puts((a > 0)[0, 0])(a), "that of its first axes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_that_means_something_else_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises((xg.TraceError, IndexError), match=message):
        xg.function(function, native=False)(A)


# What torch does otherwise than NumPy: an integer comes before the lists.
def torch_takes_integers_first(t: Any) -> Any:
    import torch

    return t[0, :, torch.tensor([3, 1])]


def torch_assigns(t: Any) -> Any:
    import torch

    t = t.clone()
    t[0, :, torch.tensor([3, 1])] = t[1, :, [0, 0]]
    t[:, torch.tensor([True, False, True])] *= 2
    t[..., torch.tensor([0])] = torch.tensor([[1.0], [2.0], [3.0]])
    return t


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "function", [torch_takes_integers_first, torch_assigns], ids=lambda f: f.__name__
)
def test_torch_reads_an_index_in_its_own_way(function: Any, backend: Any) -> None:
    expected = function(backend.array(A))
    actual = xg.function(function, native=False)(backend.array(A))
    np.testing.assert_array_equal(backend.numpy(actual), backend.numpy(expected))


def jax_adds_to_rows(x: Any) -> Any:
    import jax.numpy as jnp

    rows = x.at[jnp.array([0, 0])].add(1.0)
    return rows.at[:, jnp.array([2, 0])].set(rows[:, jnp.array([0, 1])])


def jax_adds_twice(x: Any) -> Any:
    import jax.numpy as jnp

    return x.at[:, jnp.array([0, -3])].add(1.0)


@pytest.mark.backends("jax")
def test_jax_updates_at_several_places(backend: Any) -> None:
    for function in (jax_adds_to_rows, jax_adds_twice):
        expected = function(backend.array(A))
        actual = xg.function(function, native=False)(backend.array(A))
        np.testing.assert_array_equal(backend.numpy(actual), backend.numpy(expected))
        np.testing.assert_array_equal(xg.function(function)(A), backend.numpy(expected))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("call", ["narrow(0, 1, 4)", "narrow(0, -4, 2)", "kthvalue(5)[0]"])
def test_a_range_outside_a_tensor_is_torchs_error(call: str, backend: Any) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        return eval(f"x.{call}", {"x": x})

    original = torch_class(lambda ctx, grad: None)(forward)
    converted = xg.convert(original)
    x = backend.array(np.array([3.0, 1.0, 2.0, 5.0, 4.0], np.float32))
    np.testing.assert_array_equal(converted(x), original.apply(x))
    messages = []
    for function in (original.apply, converted):
        with pytest.raises((RuntimeError, IndexError)) as caught:
            function(x[:3])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
