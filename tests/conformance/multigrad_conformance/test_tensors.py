"""What a backend says of its tensors: to and from NumPy, who owns them, params, errors, and its
compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import backend_of
from multigrad.core.lowering.forwards import find_forward
from multigrad.core.lowering.lower import lower_graphs
from multigrad.core.rules.activation_function import graphs_under
from multigrad.core.rules.registry import resolve
from multigrad.errors import BackendNotFound, GradientError, UnsupportedOp

from .oracles import DTYPES, FLOAT32, LIBRARY, spread
from .under_test import pull

Tensor = Any
X = np.array([-2.0, -0.5, -0.25, 0.0, 0.5, 0.75, 3.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0], np.float32)
WHOLE = (np.dtype(np.int32), np.dtype(np.int64), np.dtype(bool))


def layouts(dtype: Any) -> dict[str, Any]:
    """Arrays that lie in memory in different ways."""
    base = spread((4, 6), FLOAT32, width=20.0).astype(dtype)
    return {
        "a scalar": np.array(base[0, 0]),
        "nothing": base[:0],
        "rows": base,
        "columns": np.asfortranarray(base),
        "transposed": base.T,
        "strided": base[::2, 1::3],
        "reversed": base[::-1],
        "broadcast": np.broadcast_to(base[0], (3, 6)),
    }


@pytest.mark.parametrize("dtype", [*DTYPES, *WHOLE], ids=str)
def test_arrays_come_back_as_they_were_in_every_dtype_and_layout(backend: Any, dtype: Any) -> None:
    for name, array in layouts(dtype).items():
        with backend.precision(dtype):
            tensor = backend.row.tensors.from_numpy(array)
            back = backend.row.tensors.to_numpy(tensor)
        assert isinstance(tensor, backend.row.tensors.types), name
        assert tuple(tensor.shape) == array.shape, name
        assert dtype.name in str(tensor.dtype), name
        assert isinstance(back, np.ndarray), name
        assert (back.dtype, back.shape) == (dtype, array.shape), name
        assert back.tobytes() == array.tobytes(), name


def test_a_tensor_belongs_to_its_backend_and_its_values_are_known(backend: Any) -> None:
    tensor = backend.array(X)
    assert backend_of(tensor) is backend.row
    assert not backend.row.tensors.is_traced(tensor)
    assert (backend.row.name, len(tensor.shape), tensor.ndim) == (backend.name, 1, 1)


def test_the_backend_is_listed_as_installed(backend: Any) -> None:
    (status,) = [row for row in xg.backends() if row.name == backend.name]
    assert status.installed and status.version and status.reason is None


# --- params ---------------------------------------------------------------------------------------


def test_a_changed_number_is_an_argument_of_one_lowering(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = import_module("multigrad.core.functions.function")
    lowered = []

    def counting(*args: Any, **kwargs: Any) -> Any:
        lowered.append(args)
        return lower_graphs(*args, **kwargs)

    def window(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
        return grad_out * (abs(tin) < width)

    monkeypatch.setattr(functions, "lower_graphs", counting)
    rule = xg.register("conformance_window")(window)
    try:
        act = xg.activation("ReLU")
        for width in (0.3, 0.6, 5.0):
            with xg.use(rule, params={"width": width}):
                assert tuple(act(backend.array(X)).shape) == X.shape
                y, (gradient,) = pull(backend, act, (X,), G)
            np.testing.assert_array_equal(y, np.maximum(X, 0))
            np.testing.assert_array_equal(gradient, G * (np.abs(X) < width))
        assert len(lowered) == 1
    finally:
        xg.unregister("conformance_window")


def test_a_param_may_be_a_tensor_of_the_backend(backend: Any) -> None:
    with xg.use("triangular", params={"width": backend.array(np.float32(2.0))}):
        _, (gradient,) = pull(backend, xg.activation("Heaviside"), (X,), G)
    np.testing.assert_allclose(gradient, G * np.maximum(1 - np.abs(X) / 2, 0), rtol=1e-6)


# --- residuals ------------------------------------------------------------------------------------


def residuals(backend: Any, rule: str | None, forward: str) -> tuple[tuple[str, ...], list[str]]:
    """The names that forward keeps, and the dtypes of those that it computes."""
    specialization = None if rule is None else resolve(rule).bound_rule().specialization
    graphs = graphs_under(specialization, find_forward(forward), {})
    lowered = lower_graphs(graphs, backend.row)
    assert lowered.emitted is not None
    autodiff = backend.row.autodiff
    cut = graphs.cut(autodiff.keeps_float_derivatives, watched=autodiff.watches_outputs)
    assert lowered.emitted.residuals.names == cut.residuals
    return cut.residuals, [cut.type(name).dtype for name in cut.computed]


def test_of_a_window_a_mask_is_kept_in_place_of_the_input(backend: Any) -> None:
    for rule in ("rectangular", "d(ReLU)", "clipped_straight_through"):
        names, dtypes = residuals(backend, rule, "Tanh")
        assert len(names) == 1 and dtypes == ["bool"], rule


def test_of_a_rectifier_its_output_is_kept_where_nobody_overwrites_it_unnoticed(
    backend: Any,
) -> None:
    names, dtypes = residuals(backend, "d(ReLU)", "ReLU")
    if backend.row.autodiff.watches_outputs:
        assert names == ("output",) and not dtypes
    else:
        assert len(names) == 1 and dtypes == ["bool"]


@pytest.mark.parametrize(
    ("rule", "forward", "names"),
    [("d(Linear)", "Tanh", ()), ("scale", "Tanh", ()), (None, "Logistic", ("output",))],
)
def test_nothing_or_the_output_is_kept_where_that_tells_the_gradient(
    backend: Any, rule: str | None, forward: str, names: tuple[str, ...]
) -> None:
    assert residuals(backend, rule, forward) == (names, [])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
def test_a_rule_refuses_what_is_no_float(backend: Any, dtype: Any) -> None:
    with backend.precision(dtype):
        x = backend.array(np.ones(3, dtype))
        with pytest.raises(GradientError, match=dtype.name), xg.use("triangular"):
            xg.activation("ReLU")(x)


@pytest.mark.beside_numpy
def test_numpys_gradient_beside_an_input_is_a_constant_of_its_framework(backend: Any) -> None:
    found = xg.get("triangular")(None, G, backend.array(X))
    given = xg.get("triangular")(None, backend.array(G), backend.array(X))
    assert type(found) is type(given)
    np.testing.assert_array_equal(backend.numpy(found), backend.numpy(given))


def test_a_gradient_of_another_shape_is_refused(backend: Any) -> None:
    with pytest.raises(GradientError, match=r"shape \(7,\).*shape \(3,\)"):
        xg.get("triangular")(None, backend.array(G), backend.array(X[:3]))


def test_forward_mode_is_there_or_refused_by_name(backend: Any) -> None:
    if backend.row.autodiff.forward_mode:
        assert xg.lower("triangular", backend.name, forward="Heaviside", forward_mode=True)
        return
    with pytest.raises(UnsupportedOp, match=rf"'{backend.name}' has no custom forward mode"):
        xg.lower("triangular", backend.name, forward_mode=True)


# --- the emitted source, and the compiler ---------------------------------------------------------


def test_the_source_of_a_lowered_rule_can_be_read(backend: Any) -> None:
    source = xg.source("triangular", backend.name, forward="Heaviside")
    compile(source, "source", "exec")
    assert "def " in source and "width" in source


def test_compiled_code_gives_the_same_and_follows_the_rule_in_force(backend: Any) -> None:
    act = xg.activation("Heaviside")

    def both(x: Tensor, g: Tensor) -> Any:
        y, pullback = xg.vjp(act, x)
        return y, pullback(g)[0]

    if backend.row.compiler.jit is None:
        with pytest.raises(BackendNotFound, match=rf"'{backend.name}' has no compiler"):
            xg.jit(both, backend.name)
        return
    try:
        compiled = xg.jit(act, backend.name)
    except UnsupportedOp as error:  # the framework is too old for it, and everything else works
        assert f"xg.jit needs {backend.name}>=" in str(error)
        return
    for width in (0.6, 2.0):
        with xg.use("triangular", params={"width": width}):
            y, (gradient,) = pull(backend, compiled, (X,), G)
        np.testing.assert_array_equal(y, (X > 0).astype(np.float32))
        expected = G * np.maximum(1 - np.abs(X) / width, 0)
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


# --- everything at once ---------------------------------------------------------------------------


@pytest.mark.parametrize("rule", LIBRARY)
def test_every_rule_has_parity_with_float64(backend: Any, rule: str) -> None:
    report = xg.parity(rule, backends=[backend.name])
    assert report.ok, str(report)
