"""Code that calls NumPy's functions on numbers alone has the dtypes that its tensors give; where
they meet a tensor, it is NumPy's code.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.functions import captures as module_of_captures

Tensor = Any
ROOT = np.sqrt(2.0)


def halved(n: int) -> Any:
    return np.sqrt(n) * 0.5


WRITTEN = {
    "a root": lambda x: x * np.sqrt(2.0),
    "at the left": lambda x: np.sqrt(2.0) * x,
    "divided by": lambda x: np.float64(1.0) / x,
    "subtracted from": lambda x: np.float32(1.0) - x,
    "a power": lambda x: x ** np.float64(2.0),
    "to a power": lambda x: np.float64(2.0) ** x,
    "compared": lambda x: (np.sqrt(2.0) < x) == (x > np.float32(1.5)),
    "a length": lambda x: x / np.sqrt(x.shape[-1]),
    "a size": lambda x: x / np.prod(x.shape),
    "of the module": lambda x: x * ROOT,
    "pi": lambda x: x * np.pi,
    "an integer": lambda x: x / np.int64(3),
    "the larger": lambda x: x * np.maximum(2, 3),
    "a default": lambda x, d=3: x * np.log(d),
    "of a helper": lambda x: x - halved(3),
    "several": lambda x: (x * np.float32(2.0) + np.log(3.0)) ** 2 / np.int64(7),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_number_of_numpys_is_taken_as_the_tensors_library_takes_it(
    name: str, backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, function = WRITTEN[name], xg.function(WRITTEN[name], native=False)
    for dtype, prove in ((np.float16, "0"), (np.float32, "all")):
        monkeypatch.setenv("MULTIGRAD_PROVE", prove)
        x = backend.array(np.array([1.0, 2.0, 3.0], dtype))
        expected = written(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = function(x)
        assert found.dtype == expected.dtype
        near = 3e-3 if "16" in str(expected.dtype) else 1e-6
        found, expected = backend.numpy(found), backend.numpy(expected)
        np.testing.assert_allclose(found, expected, near, near)


def scaled(x: Tensor) -> Any:
    return x * np.sqrt(3.0), lambda g: g * np.sqrt(2.0)


def test_so_are_those_of_a_backward(backend: Any) -> None:
    x = np.ones(3, np.float32)
    expected = backend.numpy(backend.array(x) * np.sqrt(3))
    found, gradient = backend.vjp(xg.custom_gradient(scaled), x, np.ones_like(expected))
    assert (found.dtype, gradient.dtype) == (expected.dtype, np.float32)
    np.testing.assert_allclose(gradient, x * math.sqrt(2), rtol=1e-6)


def test_in_a_document_floats_keep_their_dtype_beside_them(backend: Any) -> None:
    f, x = xg.custom_gradient(scaled), np.ones(3, np.float32)
    for _ in range(2):  # before it is called, and then
        loaded = xg.from_dict(f.to_dict())
        found, gradient = backend.vjp(loaded, x, x)
        assert found.dtype == gradient.dtype == np.float32
        f(backend.array(x))


def test_two_tensors_are_promoted_as_their_library_does(backend: Any) -> None:
    def weighted(x: Tensor, n: Tensor) -> Tensor:
        return x * n * np.sqrt(2.0)

    given = np.ones(3, np.float32), np.array([1, 2, 3], np.int32)
    x, n = map(backend.array, given)
    if backend.name == "tensorflow":  # it promotes nothing
        n = backend.array(given[1].astype(np.float32))
    assert xg.function(weighted)(x, n).dtype == weighted(x, n).dtype


def captures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that grows by a fact's names at each capture."""
    found, own = [], module_of_captures.capture

    def capture(recipe: Any, layout: Any, facts: Any, leaves: Any) -> Any:
        found.append(sorted(facts))
        return own(recipe, layout, facts, leaves)

    monkeypatch.setattr(module_of_captures, "capture", capture)
    return found


def test_code_whose_numpy_meets_a_tensor_is_captured_once_as_numpys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def written(x: Tensor) -> Tensor:
        return np.sqrt(2.0) * x * np.float64(3.0) + np.exp(x)

    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    found, x = captures(monkeypatch), np.ones(3, np.float32)
    function = xg.function(written)
    assert function(x).dtype == written(x).dtype == np.float64
    assert found == [[]]


def test_a_backward_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def written(x: Tensor) -> Any:
        return x * np.sqrt(2.0), lambda g: np.float32(2.0) * np.exp(g)

    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    found, x = captures(monkeypatch), np.ones(3, np.float32)
    function = xg.custom_gradient(written)
    assert function(x).dtype == np.float64
    assert found == [[]]


def test_a_branch_in_which_numpy_meets_a_tensor_is_numpys() -> None:
    def written(x: Tensor) -> Tensor:
        y = x * np.sqrt(2.0)
        return np.exp(y) if x.ndim == 2 else y

    function = xg.function(written)
    for shape in ((3,), (2, 2), (3,)):
        x = np.ones(shape, np.float32)
        assert function(x).dtype == written(x).dtype == np.float64


def test_a_rule_has_the_dtype_of_its_input(backend: Any) -> None:
    @xg.register("scaled by a root", override=True)
    def scaled(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return np.sqrt(2.0) * grad_out * np.float32(2.0)

    x = backend.array(np.ones(3, np.float32))
    assert backend.numpy(xg.get("scaled by a root")(None, x, x)).dtype == np.float32


@pytest.mark.parametrize("exponent", [-1, -2])
def test_an_integer_to_a_negative_power_is_refused_as_in_numpy(exponent: int) -> None:
    def written(x: Tensor, i: Tensor) -> Tensor:
        return x * np.power(i, exponent)

    x, i = np.ones(3), np.array([1, 2, -4])
    with pytest.raises((ValueError, xg.TraceError), match=r"negative integer power|to the power -"):
        xg.function(written)(x, i)
    np.testing.assert_allclose(xg.function(written)(x, i * 1.0), written(x, i * 1.0))
