"""Functions saved and loaded: every form in which they were captured, on every framework, without
their source.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

from ...conftest import BACKENDS, find_backend
from ...data.releases import write as releases
from ...harness.commands import invoke
from .test_saving import read_elsewhere

xp = xg.xp
Tensor = Any
X = np.linspace(-2.0, 2.5, 6, dtype=np.float32).reshape(2, 3)
W = np.cos(X)

NAMES = ("squared", "clipped", "nested", "dropped", "derived")
CALLS = {name: releases.CALLS[name][0] for name in NAMES}
OPTIONS = {"w": releases.G, "n": releases.N}


@pytest.fixture(scope="module")
def mine() -> dict[str, Any]:
    """Functions of a user's own, in a module that no other process can import, each called once."""
    functions = {name: getattr(releases.load_mine(), name) for name in NAMES}
    functions["derived"] = xg.function(lambda x, w: xp.tanh(x @ w) + np.arange(3.0), None)
    for name, (args, kwargs) in CALLS.items():
        functions[name](*args, **kwargs)
    return functions


def compute(backend: Any, function: Any, name: str) -> list[Any]:
    """The outputs of a Function and its gradients, as NumPy arrays."""
    args, kwargs = CALLS[name]
    keyed = function.keyed(5)
    found = pull(backend, functools.partial(keyed, **kwargs) if kwargs else keyed, args)
    return [leaf for leaf in optree.tree_leaves(found) if isinstance(leaf, np.ndarray)]


def compute_in_folder(folder: str, name: str) -> None:
    """Load every document of a folder and print what each gives; runs in a process of its own."""
    for file in sorted(Path(folder).glob("*.json")):
        found = compute(find_backend(name), xg.load(file), file.stem)
        print(file.stem, "/".join(array.tobytes().hex() for array in found))
    assert "written_by_users" not in sys.modules


@pytest.mark.filterwarnings("ignore")
def test_functions_give_the_same_in_another_process_without_their_source(
    backend: Any, mine: dict[str, Any], tmp_path: Path
) -> None:
    for name, function in mine.items():
        xg.save(function, tmp_path / f"{name}.json")
    found = read_elsewhere("test_saving_functions", tmp_path, backend)
    for name, function in mine.items():
        expected = compute(backend, function, name)
        assert found[name] == "/".join(array.tobytes().hex() for array in expected), name
        assert np.isfinite(expected[-1]).all()


def test_a_saved_gradient_is_the_own_one_and_not_the_derivative(backend: Any) -> None:
    reverse = xg.function(lambda x: x * 2, lambda grad_out, x: -grad_out)
    loaded = xg.from_dict(reverse.to_dict())
    y, (gradient,) = pull(backend, loaded, (X,))
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(gradient, -np.ones_like(X))


def test_a_gradient_of_another_dtype_than_its_argument_is_refused() -> None:
    document = xg.function(lambda x: x * 2, lambda grad_out, x: grad_out).to_dict()
    wide = {"op": "cast", "of": [0], "attrs": {"dtype": "float64"}}
    wide["type"] = ["tensor", "float64", "x"]
    document["forms"][0]["backward"] |= {"nodes": [wide], "outputs": [2]}
    with pytest.raises(xg.FormatError, match=r"the gradient of 'x' is float64\[\.\.\.\], not T"):
        xg.from_dict(document)


def test_every_function_comes_back_as_the_same_document(mine: dict[str, Any]) -> None:
    for function in mine.values():
        document = json.loads(json.dumps(function.to_dict(), allow_nan=False))
        assert list(document)[:3] == ["format", "version", "kind"]
        assert xg.from_dict(document).to_dict() == document


def test_a_loaded_function_has_its_name_and_doc(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["squared"].to_dict())
    assert (loaded.name, loaded.__name__) == ("squared", "squared")
    assert loaded.__doc__ == "A square with half its gradient."
    assert "mul(x, x)" in xg.show(loaded)


def test_arguments_may_be_given_by_name_as_well(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["clipped"].to_dict())
    for args, kwargs in (((X,), {"w": W, "limit": 0.5}), ((), {"limit": 0.5, "w": W, "x": X})):
        for found, expected in zip(
            loaded(*args, **kwargs), mine["clipped"](X, W, 0.5), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_floats_of_any_dtype_and_rank_are_taken(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["squared"].to_dict())
    for x in (np.float16([1.0]), np.linspace(-1, 1, 24).reshape(2, 3, 4), np.float32(0.5)):
        assert loaded(x).tobytes() == mine["squared"](x).tobytes()


def test_integers_of_another_width_are_taken(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["nested"].to_dict())
    options = {**OPTIONS, "n": releases.N.astype(np.int64)}
    wide = loaded(releases.X, options, power=3, mode="mean")
    np.testing.assert_array_equal(wide["rest"][2], releases.N > 1)


def test_other_kinds_of_arguments_than_saved_are_named(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["nested"].to_dict())
    with pytest.raises(
        xg.TraceError, match=r"not saved for .*power.*but for .*power = 3.*call it like this too"
    ):
        loaded(releases.X, OPTIONS, power=4, mode="mean")
    with pytest.raises(xg.TraceError, match="not saved for"):
        loaded(releases.X, {"w": releases.G}, power=3, mode="mean")


def test_each_form_that_was_captured_is_saved() -> None:
    raised = xg.function(
        lambda x, n: x**n, lambda grad_out, x, n: (grad_out * n * x ** (n - 1), None)
    )
    for n in (2, 3):
        raised(X, n)
    loaded = xg.from_dict(raised.to_dict())
    for n in (2, 3):
        np.testing.assert_array_equal(loaded(X, n), raised(X, n))
    with pytest.raises(xg.TraceError):
        loaded(X, 4)


def test_a_form_holds_for_what_was_known_of_its_arguments() -> None:
    def summed(x: Tensor) -> Tensor:
        return sum(xp.sum(x, axis=i, keepdims=True) for i in range(x.ndim)) + x

    function = xg.function(summed)
    flat = X.reshape(-1)
    function(X), function(flat)
    loaded = xg.from_dict(function.to_dict())
    for x in (X, flat):
        np.testing.assert_array_equal(loaded(x), function(x))
    with pytest.raises(
        xg.TraceError, match=r"not saved for.*ndim 1.*ndim 2|not saved for.*ndim 2.*ndim 1"
    ):
        loaded(X[None])


@pytest.mark.parametrize(
    "function",
    [
        xg.estimators.ste_sign,
        xg.estimators.ste_sign.with_defaults((0.5,)),
        xg.get("triangular").with_params(width=2.0).under("Heaviside"),
        xg.get("noise").with_params(sigma=0.5).under("Linear").keyed(7),
    ],
    ids=["estimator", "estimator with another value", "rule under an activation", "keyed"],
)
def test_what_a_call_may_leave_out_and_the_key_are_saved(backend: Any, function: Any) -> None:
    document = json.loads(json.dumps(function.to_dict(), allow_nan=False))
    loaded = xg.from_dict(document)
    assert loaded.to_dict() == document
    called = function.keyed(7) if function.is_keyed else function
    found, expected = (optree.tree_leaves(pull(backend, f, (X,))) for f in (loaded, called))
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, other)
    other = xg.from_dict(loaded.with_defaults((0.25,)).to_dict())
    assert list(other.parameters.parameters.values())[1].default == 0.25


def test_what_was_called_within_another_function_with_a_constant_is_saved() -> None:
    product = xg.function(lambda x, w: x * w, lambda grad_out, x, w: (grad_out * w, grad_out * x))
    xg.function(lambda x: product(x, W))(X)  # W is a constant there
    loaded = xg.from_dict(product.to_dict())
    for dtype in (np.float32, np.float64):
        x, w = X.astype(dtype), W.astype(dtype)
        np.testing.assert_array_equal(loaded(x, w), x * w)


def test_a_value_that_no_document_holds_is_named() -> None:
    moving = xg.get("triangular").with_params(width=xg.schedule.linear(3.0, 1.0, steps=2))
    with pytest.raises(xg.FormatError, match=r"number that moves for argument 'width'.*\.value"):
        moving.under("Heaviside").to_dict()
    scaled = xg.function(lambda x, w: x * w, lambda grad_out, x, w: (grad_out * w, None))
    scaled(X, 2.0)
    with pytest.raises(xg.FormatError, match="a ndarray for argument 'w': expected a number"):
        scaled.with_defaults((W,)).to_dict()


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"defaults": 1.0}, "defaults: expected a list"),
        ({"defaults": [1.0, 2.0, 3.0]}, "defaults: there are 3 for 2 parameters"),
        ({"defaults": [{"float": "big"}]}, r"defaults\[0\]: expected one of nan"),
        ({"key": [1]}, "key: it is no pair of uint32"),
        ({"key": [0, -1]}, "key: it is no pair of uint32"),
        ({"key": "7"}, "key: expected a list"),
        ({"default": [1.0]}, "no field 'default'; did you mean 'defaults'"),
    ],
)
def test_malformed_values_and_keys_are_refused(fields: dict[str, Any], match: str) -> None:
    document = xg.estimators.ste_sign.to_dict()
    with pytest.raises(xg.FormatError, match=match):
        xg.from_dict({**document, **fields})


def test_a_loaded_function_can_be_used_in_a_rule_and_in_another_function(
    mine: dict[str, Any],
) -> None:
    loaded = xg.from_dict(mine["squared"].to_dict())

    def softly(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * loaded(tin)

    again = xg.from_dict(xg.compose(softly).to_dict())
    np.testing.assert_array_equal(again(None, W, X), W * mine["squared"](X))
    outer = xg.function(lambda x: loaded(x) * 2)
    y, (gradient,) = pull(BACKENDS["numpy"], xg.from_dict(outer.to_dict()), (np.float32([3.0]),))
    assert (y, gradient) == (18, 6)


def test_what_runs_as_it_is_cannot_be_saved(tmp_path: Path) -> None:
    native = xg.function(lambda x: x, lambda grad_out, x: grad_out, native=True)
    with pytest.raises(xg.TraceError, match=r"native=True.*no graph to save"):
        xg.save(native, tmp_path / "function.json")
    shown = xg.function(lambda x, show: show(x), lambda grad_out, x, show: (grad_out, None))
    shown(X, xp.negative)
    with pytest.raises(xg.FormatError, match="a function as argument 'show'"):
        xg.save(shown, tmp_path / "function.json")
    assert list(tmp_path.iterdir()) == []


def test_what_was_never_called_and_does_not_tell_is_captured_first() -> None:
    spread = xg.function(lambda *args: args[0], lambda grad_out, *args: grad_out)
    with pytest.raises(xg.TraceError, match="Call it once"):
        spread.to_dict()


def test_what_was_never_called_is_not_saved_by_a_guess_of_its_tensors(tmp_path: Path) -> None:
    scaled = xg.function(lambda x, alpha: x * alpha, lambda grad_out, x, alpha: (grad_out, None))
    with pytest.raises(xg.TraceError, match=r"never called, .* which of x, alpha are tensors"):
        xg.save(scaled, tmp_path / "scaled.json")
    assert not list(tmp_path.iterdir())
    scaled(X, 0.5)
    xg.save(scaled, tmp_path / "scaled.json")
    np.testing.assert_array_equal(xg.load(tmp_path / "scaled.json")(X, 2.0), 2 * X)


@pytest.mark.needs("typer", "rich")
def test_commands_take_a_file_in_the_form_that_it_is_saved_in(tmp_path: Path) -> None:
    scaled = xg.function(lambda x, alpha: x * alpha, lambda grad_out, x, alpha: (grad_out, None))
    scaled(X, 0.5)
    by_rank = xg.function(lambda x, y: x * y.ndim, lambda g, x, y: (g * y.ndim, 0.0 * y))
    by_rank(X, X[0])
    for name, function in {"scaled": scaled, "by_rank": by_rank}.items():
        xg.save(function, tmp_path / f"{name}.json")
        for command in ("show", "source", "check", "parity --backend numpy"):
            result = invoke(*command.split(), tmp_path / f"{name}.json")
            assert result.exit_code == 0, result.output


def test_a_file_for_some_shapes_alone_is_told_and_has_vectors_of_these(tmp_path: Path) -> None:
    rows = xg.function(lambda x: xp.stack([x[i] * i for i in range(x.shape[0])]), None)
    rows(X)
    with pytest.warns(UserWarning, match=r"the file is for x of shape \(2, any\) alone: call it"):
        xg.save(rows, tmp_path / "rows.json")
    (vector,) = json.loads((tmp_path / "rows.json").read_text())["evidence"]["vectors"]
    assert vector["inputs"]["x"]["shape"] == [2, 3]
    loaded, wide = xg.load(tmp_path / "rows.json"), np.arange(10.0).reshape(2, 5)
    np.testing.assert_array_equal(loaded(wide), [wide[0] * 0, wide[1]])
    with pytest.raises(xg.TraceError, match=r"but for \(x: float32, shape \(2, any\)\)"):
        loaded(wide.T)
    note = "For x of shape (2, any): its code asks for that. Others are refused."
    assert note in xg.source(rows, "numpy", standalone=True)
    assert "of shape (" not in xg.source(xg.get("triangular"), "numpy", standalone=True)


def test_a_file_for_a_large_shape_has_no_vectors_and_is_read(tmp_path: Path) -> None:
    rows = xg.function(lambda x: x * float(range(x.shape[0])[-1]), None)
    x = np.ones(5000, np.float32)
    rows(x)
    with pytest.warns(UserWarning, match=r"shape \(5000\) alone"):
        xg.save(rows, tmp_path / "rows.json")
    np.testing.assert_array_equal(xg.load(tmp_path / "rows.json")(x), 4999.0)
    evidence = json.loads((tmp_path / "rows.json").read_text())["evidence"]
    assert not evidence["vectors"] and "at most 4096 items" in evidence["without"]
