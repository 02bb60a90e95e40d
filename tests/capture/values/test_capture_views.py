"""Two names for one memory: an update of one reaches the other where it does in the library, or is
refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

A = np.array([[1.0, -2.0, 3.0], [-1.0, 0.5, 4.0], [0.25, 2.0, -3.0]], np.float32)
SHARED: dict[str, Any] = {
    "itself": lambda a: a,
    "plus": lambda a: +a,
    "to the power 1": lambda a: a**1,
    "times 1": lambda a: a * 1,
    "transposed": lambda a: a.T,
    "transposed twice": lambda a: a.T.T,
    "a row": lambda a: a[0],
    "a row of rows": lambda a: a[0:2][1],
    "a row of a transposed": lambda a: a.T[0],
    "all": lambda a: a[...],
    "a new axis": lambda a: a[None],
    "a list": lambda a: a[[0, 1]],
    "flat": lambda a: a.reshape(-1),
    "a transposed flat": lambda a: a.T.reshape(-1),
    "reshaped to its own": lambda a: a.reshape(a.shape),
    "flattened": lambda a: a.flatten(),
    "a transposed flattened": lambda a: a.T.flatten(),
    "axes swapped": lambda a: a.swapaxes(0, 1),
    "squeezed": lambda a: a.squeeze(),
}
NUMPY: dict[str, Any] = {
    "view": lambda a: a.view(),
    "asarray": lambda a: np.asarray(a),
    "asarray in a dtype": lambda a: np.asarray(a, dtype=np.float32),
    "array": lambda a: np.array(a),
    "array without a copy": lambda a: np.array(a, copy=None),
    "copy": lambda a: a.copy(),
    "np.copy": lambda a: np.copy(a),
    "astype": lambda a: a.astype(a.dtype),
    "astype without a copy": lambda a: a.astype(a.dtype, copy=False),
    "astype of a name without a copy": lambda a: a.astype(np.float32, copy=False),
    "positive": lambda a: np.positive(a),
    "conj": lambda a: a.conj(),
    "np.conj": lambda a: np.conj(a),
    "real": lambda a: a.real,
    "imag of a copy": lambda a: a.imag.copy(),
    "real_if_close": lambda a: np.real_if_close(a),
    "clip to nothing": lambda a: np.clip(a, None, None),
    "ravel": lambda a: np.ravel(a),
    "flattened by NumPy": lambda a: np.asarray(a).flatten(),
    "flip": lambda a: np.flip(a, 0),
    "backwards": lambda a: a[::-1],
    "moveaxis": lambda a: np.moveaxis(a, 0, 1),
    "take": lambda a: np.take(a, [0, 1], axis=0),
    "nan_to_num": lambda a: np.nan_to_num(a),
    "expand_dims": lambda a: np.expand_dims(a, 0),
}


def in_format(method: Any, name: str) -> Any:
    """Call a method with one of torch's memory formats."""
    return method(memory_format=getattr(sys.modules["torch"], name))


TORCH: dict[str, Any] = {
    "conj in torch": lambda a: a.conj(),
    "resolve_conj": lambda a: a.resolve_conj(),
    "real in torch": lambda a: a.real,
    "mH": lambda a: a.mH,
    "H": lambda a: a.H,
    "clone": lambda a: a.clone(),
    "contiguous": lambda a: a.contiguous(),
    "a transposed contiguous": lambda a: a.mT.contiguous(),
    "a transposed flat by flatten": lambda a: a.mT.flatten(),
    "detach": lambda a: a.detach(),
    "data": lambda a: a.data,
    "to": lambda a: a.to(a.dtype),
    "to with a copy": lambda a: a.to(a.dtype, copy=True),
    "to with a copy by position": lambda a: a.to(a.dtype, False, True),
    "in channels last": lambda a: in_format(a[None, None].contiguous, "channels_last")[0, 0],
    "to a memory format": lambda a: in_format(a[None, None].to, "channels_last")[0, 0],
    "float in a memory format": lambda a: in_format(a.float, "contiguous_format"),
    "double in a memory format": lambda a: in_format(a.double, "preserve_format"),
    "float": lambda a: a.float(),
    "double": lambda a: a.double(),
    "type_as": lambda a: a.type_as(a),
    "select": lambda a: a.select(0, 0),
    "select at the end": lambda a: a.select(-1, 0),
    "narrow": lambda a: a.narrow(0, 0, 1),
    "view": lambda a: a.view(-1),
    "view_as": lambda a: a.view_as(a),
    "expand": lambda a: a.expand(a.shape),
    "unsqueeze": lambda a: a.unsqueeze(0).squeeze(0),
    "sum_to_size": lambda a: a.sum_to_size(a.shape),
    "permute": lambda a: a.permute(1, 0),
    "flip of a row": lambda a: a[0].flip(0),
    "index_select": lambda a: a.index_select(0, a.new_tensor([0]).int()),
}


def update_b(a: Any, b: Any) -> None:
    b += 1


def update_a(a: Any, b: Any) -> None:
    a += 1


def assign_to_b(a: Any, b: Any) -> None:
    b[0] = 5


def assign_to_a(a: Any, b: Any) -> None:
    a[0] = 5


def update_both(a: Any, b: Any) -> None:
    a *= 2
    b -= 1


UPDATES = (update_b, update_a, assign_to_b, assign_to_a, update_both)
# What is known of strides is too little for the others, which are refused.
CAPTURED = {
    "itself", "plus", "to the power 1", "times 1", "a row", "a row of rows", "all", "a list",
    "reshaped to its own", "asarray", "asarray in a dtype", "array", "array without a copy", "copy",
    "np.copy", "astype", "astype without a copy", "astype of a name without a copy", "positive",
    "clip to nothing", "take", "nan_to_num", "clone", "contiguous", "to", "to with a copy",
    "to with a copy by position", "float", "double", "type_as", "select", "select at the end",
    "narrow", "view_as", "backwards", "transposed", "transposed twice", "a row of a transposed",
    "a new axis", "axes swapped", "flattened by NumPy", "squeezed", "moveaxis", "expand_dims",
    "view", "unsqueeze", "permute", "conj", "np.conj", "real", "imag of a copy", "real_if_close",
    "conj in torch", "resolve_conj", "real in torch", "mH", "H",
}  # fmt: skip


def both(make: Callable[[Any], Any], update: Callable[[Any, Any], None]) -> Callable[[Any], Any]:
    """Return a function that makes b of a, updates one of both and returns both."""

    def f(given: Any) -> Any:
        a = given * 1
        b = make(a)
        update(a, b)
        return a, b

    return f


def check(name: str, make: Callable[[Any], Any], tensor: Callable[[], Any]) -> None:
    for update in UPDATES:
        f = both(make, update)
        expected = f(tensor())
        try:
            actual = xg.function(f, native=False)(tensor())
        except xg.TraceError:
            assert name not in CAPTURED, update.__name__
            continue
        for given, wanted in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(given), np.asarray(wanted), update.__name__)


@pytest.mark.parametrize("name", {**SHARED, **NUMPY})
def test_an_update_reaches_whom_it_reaches_in_numpy(name: str) -> None:
    check(name, {**SHARED, **NUMPY}[name], lambda: A.copy())


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", {**SHARED, **TORCH})
def test_an_update_reaches_whom_it_reaches_in_torch(name: str, torch: Any) -> None:
    make = {**SHARED, **TORCH}[name]

    def by_torch(a: Any) -> Any:  # a function that mentions torch, whose methods these are
        return make(torch.as_tensor(a))

    check(name, by_torch, lambda: torch.from_numpy(A.copy()))


def fills(a: Any) -> Any:
    m = np.empty_like(a)
    given = m.fill(0.5)
    a = a * m
    row = a[0]
    row.fill(7)
    return a if given is None else -a


def test_fill_of_an_array_is_in_place() -> None:
    np.testing.assert_array_equal(xg.function(fills, native=False)(A), fills(A))


# Methods and functions of NumPy that work in place and return nothing.
IN_PLACE: dict[str, Any] = {
    "sort": lambda a: a.sort(),
    "partition": lambda a: a.partition(1),
    "put": lambda a: a.put([0], 5),
    "resize": lambda a: a.resize((3, 3)),
    "setfield": lambda a: a.setfield(1.0, np.float32),
    "byteswap": lambda a: a.byteswap(inplace=True),
    "np.copyto": lambda a: np.copyto(a, 0),
    "np.put": lambda a: np.put(a, [0], 5),
    "np.place": lambda a: np.place(a, a > 0, 5),
    "np.putmask": lambda a: np.putmask(a, a > 0, 5),
    "np.fill_diagonal": lambda a: np.fill_diagonal(a, 5),
    "np.put_along_axis": lambda a: np.put_along_axis(a, np.zeros((1, 3), int), 5, 0),
    "np.add.at": lambda a: np.add.at(a, 0, 5),
    "clip out": lambda a: a.clip(0, 1, out=a),
    "np.sum out": lambda a: np.sum(a, axis=0, out=a[0]),
    "np.cumsum out": lambda a: np.cumsum(a, axis=0, out=a),
    "np.nan_to_num": lambda a: np.nan_to_num(a, copy=False),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_function_of_numpy_that_works_in_place_does_or_is_refused(name: str) -> None:
    def f(given: Any) -> Any:
        a = given * 1
        IN_PLACE[name](a)
        return a

    try:
        expected = f(A.copy())
    except (AttributeError, ValueError) as error:
        pytest.skip(f"NumPy itself: {error}")
    try:
        actual = xg.function(f, native=False)(A.copy())
    except (xg.TraceError, TypeError):
        return
    np.testing.assert_array_equal(actual, expected)
