"""Rules written in a library: captured as they stand, they give its numbers on every backend.

They stand in the folder `written`; run on the library's own tensors, each is its own oracle.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS
from ...harness.capturing import find_rule, inputs, rules_in
from ...written.unseen import Unseen

# jax says that without its 64-bit mode float64 is float32.
pytestmark = pytest.mark.filterwarnings("ignore:Explicitly requested dtype float64")
# Each file of rules, and the library that they are written in.
FILES = {
    "rules_in_numpy": "numpy",
    "rules_in_torch": "torch",
    "rules_in_jax": "jax",
    "rules_by_jaxpr": "jax",
    "rules_in_tensorflow": "tensorflow",
}
# These are written for single precision: they name float32, or a constant in it.
SINGLE = {
    *("clip_by_value", "constants", "helpers", "made_from_a_shape"),
    *("number_of_elements", "quantized_to_four_bits", "rectangular_in_single"),
}
# They call a function of jax's that is captured by its jaxpr.
BY_JAXPR = "activations along_axes log_tailed loops partial_of_a_function running_sums"


def cases_of(file: str) -> list[Any]:
    marks = [] if FILES[file] == "numpy" else [pytest.mark.needs(FILES[file])]
    return [pytest.param(file, name, marks=marks) for name in rules_in(file)]


CASES = {file: cases_of(file) for file in FILES}
EVERY = [case for cases in CASES.values() for case in cases]
WIDE = [
    case for case in EVERY if not (case.values[0].endswith("flow") and case.values[1] in SINGLE)
]
SOME = [case for cases in CASES.values() for case in cases[::5]]


def as_written(file: str, name: str, grad_out: Any, tin: Any) -> Any:
    """Run the user's function in its library, without us."""
    library = BACKENDS[FILES[file]]
    function = find_rule(file, name)
    with library.precision(tin.dtype):
        return library.numpy(function(None, library.array(grad_out), library.array(tin)))


@pytest.mark.parametrize(("file", "name"), EVERY)
def test_rule_gives_its_librarys_numbers(file: str, name: str, backend: Any, captured: Any) -> None:
    tin, grad_out = inputs(np.float32)
    wanted = as_written(file, name, grad_out, tin)
    rule = captured(find_rule(file, name))
    if name == "branch_on_dtype" and FILES[file] == "numpy" and backend.name == "torch":
        # No dtype of torch equals NumPy's.
        with pytest.raises(xg.TraceError, match=r"(?i)its names are read as numpy's"):
            rule(None, backend.array(grad_out), backend.array(tin))
        return
    given = backend.numpy(rule(None, backend.array(grad_out), backend.array(tin)))
    assert given.dtype == np.float32 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=4e-6, atol=4e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(("file", "name"), WIDE)
def test_rule_gives_its_librarys_numbers_in_float64(file: str, name: str, captured: Any) -> None:
    rule = captured(find_rule(file, name))
    if file == "rules_by_jaxpr":  # what is captured for float32 serves, or is captured anew
        rule(None, *reversed(inputs(np.float32)))
    tin, grad_out = inputs(np.float64)
    wanted = as_written(file, name, grad_out, tin)
    given = rule(None, grad_out, tin)  # on NumPy
    assert wanted.dtype == given.dtype == np.float64 and given.shape == tin.shape
    np.testing.assert_allclose(given, wanted, rtol=1e-13, atol=1e-13 * np.abs(wanted).max())


@pytest.mark.parametrize(("file", "name"), CASES["rules_in_jax"])
def test_rule_is_captured_by_the_way_meant(file: str, name: str, captured: Any) -> None:
    tin, grad_out = inputs(np.float32)
    rule = captured(find_rule(file, name))
    rule(None, grad_out, tin)
    try:
        shown = xg.show(rule)
    except xg.MultigradError as error:
        assert "one graph per" in str(error)
    else:
        # Code that names no library has the methods of the arrays that it gets.
        library = "numpy" if name == "update_of_a_copy" else "jax.numpy"
        assert re.search(f"written in .*\\b{library}\\b", shown.splitlines()[0])
        assert ("jaxpr" in shown) is (name in BY_JAXPR.split())


@pytest.mark.backends("torch", "jax", "tensorflow")
@pytest.mark.parametrize(("file", "name"), SOME)
def test_rule_acts_under_an_activation(file: str, name: str, backend: Any, captured: Any) -> None:
    tin, grad_out = inputs(np.float32)
    wanted = as_written(file, name, grad_out, tin)
    act = xg.activation("Heaviside", captured(find_rule(file, name)))
    y, grad_in = backend.vjp(act, tin, grad_out)
    np.testing.assert_array_equal(y, tin > 0)
    np.testing.assert_allclose(grad_in, wanted, rtol=4e-6, atol=4e-6 * np.abs(wanted).max())


def bell_of(library: str, captures: Unseen) -> Callable[..., Any]:
    """Return a rule that counts how often it is captured."""
    if library == "tensorflow":
        tf = importlib.import_module("tensorflow")

        def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
            captures.append(1)
            inside = tf.cast(tf.abs(tin) <= 1.0, grad_out.dtype)
            count = tf.cast(tf.size(tin), tin.dtype)
            return grad_out * inside * tf.exp(-tf.square(tin) / width) / count
    else:
        lib = importlib.import_module("jax.numpy" if library == "jax" else library)

        def rule(ctx: Any, grad_out: Any, tin: Any, width: float = 2.0) -> Any:
            captures.append(1)
            return grad_out * lib.exp(-lib.square(tin) / width) / lib.size(tin)

    return rule


LIBRARIES = [
    "numpy",
    *(pytest.param(name, marks=pytest.mark.needs(name)) for name in ("jax", "tensorflow")),
]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.usefixtures("unproven")
def test_one_capture_serves_every_rank_and_dtype(
    library: str, shape: tuple[int, ...], dtype: Any, captured: Any
) -> None:
    captures = Unseen()
    made = captured(bell_of(library, captures))
    made(None, np.ones(3, np.float32), np.ones(3, np.float32))
    x = np.full(shape, 0.5, dtype)
    given = made(None, x, x)
    assert given.dtype == dtype and given.shape == shape
    if x.size:
        np.testing.assert_allclose(given, 0.5 * np.exp(-0.125) / x.size, rtol=1e-3)
    assert len(captures) == 1


# --- draws ----------------------------------------------------------------------------------------


def draws_of_torch() -> dict[str, Callable[..., Any]]:
    import torch

    def several(ctx: Any, grad_out: Any, tin: Any) -> Any:
        kept = torch.bernoulli(torch.sigmoid(tin))
        dropped = torch.nn.functional.dropout(grad_out, p=0.25)
        noise = torch.empty_like(grad_out).normal_(0.0, 0.1) + torch.rand_like(tin).mul_(0.5)
        return grad_out * kept + dropped + noise + torch.randn_like(tin, dtype=tin.dtype)

    return {
        "several": several,
        "kept": lambda ctx, g, x: torch.bernoulli(0.3 * x) * g,
        "dropped": lambda ctx, g, x: torch.nn.functional.dropout(g, p=0.25),
        "shifted": lambda ctx, g, x: g.clone().uniform_(2.0, 4.0),
    }


def draws_of_tensorflow() -> dict[str, Callable[..., Any]]:
    import tensorflow as tf

    def several(ctx: Any, grad_out: Any, tin: Any) -> Any:
        noise = tf.random.normal(tf.shape(tin), 0.0, 0.1, dtype=tin.dtype)
        jam = tf.random.uniform(tin.shape, minval=-1.0, maxval=1.0)
        return tf.nn.dropout(grad_out, rate=0.25) * jam + noise

    return {
        "several": several,
        "dropped": lambda ctx, g, x: tf.nn.dropout(g, 0.25),
        "shifted": lambda ctx, g, x: tf.random.uniform(tf.shape(g), 2.0, 4.0),
        "spread": lambda ctx, g, x: tf.random.normal(tf.shape(g), mean=1.0, stddev=0.5),
    }


each_that_draws = pytest.mark.parametrize(
    "draws",
    [
        pytest.param(draws_of_torch, marks=pytest.mark.needs("torch")),
        pytest.param(draws_of_tensorflow, marks=pytest.mark.needs("tensorflow")),
    ],
)


@each_that_draws
def test_draws_of_a_library_become_draws_by_key(
    draws: Callable[[], Any], backend: Any, captured: Any
) -> None:
    tin, grad_out = inputs(np.float32)
    rule = captured(draws()["several"])
    first, again, other = (
        backend.numpy(rule(None, backend.array(grad_out), backend.array(tin), key=key))
        for key in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    reference = rule(None, grad_out, tin, key=3)  # on NumPy
    np.testing.assert_allclose(first, reference, rtol=1e-6, atol=1e-6)


@each_that_draws
def test_draws_of_a_library_have_its_distributions(draws: Callable[[], Any], captured: Any) -> None:
    ones = np.ones(20_000, np.float32)
    for name, function in draws().items():
        given = captured(function)(None, ones, ones, key=1)
        if name == "kept":
            assert set(np.unique(given)) == {0.0, 1.0}
            assert given.mean() == pytest.approx(0.3, abs=0.02)
        if name == "dropped":
            assert np.unique(given) == pytest.approx([0.0, 4 / 3])
            assert (given > 0).mean() == pytest.approx(0.75, abs=0.02)
        if name == "shifted":
            assert 2 <= given.min() < 2.01 and 3.99 < given.max() < 4
        if name == "spread":
            assert given.mean() == pytest.approx(1.0, abs=0.02)
            assert given.std() == pytest.approx(0.5, abs=0.02)
