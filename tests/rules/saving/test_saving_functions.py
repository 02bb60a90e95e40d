"""Functions saved and loaded: every form in which they were captured, on every framework, without
their source.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS, find_backend
from ...harness import fresh

xp = xg.xp
Tensor = Any
ROOT = Path(__file__).parents[3]
X = np.linspace(-2.0, 2.5, 6, dtype=np.float32).reshape(2, 3)
W = np.cos(X)

SOURCE = '''
import numpy as np
import multigrad as xg

xp = xg.xp

@xg.custom_gradient
def log1pexp(x):
    """log(1 + exp(x)), whose gradient does not overflow."""
    e = xp.exp(x)
    def grad(upstream):
        return upstream * (1 - 1 / (1 + e))
    return xp.log(1 + e), grad

def forward(x, w, limit):
    return xp.clip(x * w, 0.0, limit), xp.sum(x, axis=0)

def backward(grad_out, x, w, limit):
    inside = (x * w > 0) & (x * w < limit)
    return grad_out[0] * w * inside + grad_out[1], grad_out[0] * x * inside, None

clipped = xg.function(forward, backward)

@xg.custom_gradient
def nested(x, options, mode="mean", *, power=2):
    def grad(upstream):
        a, b = upstream["y"], upstream["rest"][0]
        return a * options["w"] + b, {"w": a * x, "n": None}, {"power": None}
    y = x * options["w"] if mode == "mean" else x
    return {"y": y, "rest": [x**power, "word", options["n"] > 1]}, grad

@xg.custom_gradient
def dropped(x):
    keep = xp.rand_like(x) > 0.5
    def grad(upstream):
        return upstream * keep + xp.randn_like(x)
    return x * keep, grad

derived = xg.function(lambda x, w: xp.tanh(x @ w) + np.arange(3.0), None)
'''
N = np.arange(6, dtype=np.int32).reshape(2, 3)
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "log1pexp": ((X * 30,), {}),
    "clipped": ((X, W, 1.5), {}),
    "nested": ((X, {"w": W, "n": N}), {"power": 3}),
    "dropped": ((X,), {}),
    "derived": ((X, np.ascontiguousarray(W.T) @ X), {}),
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Functions of a module that no other process can import, each called once."""
    file = tmp_path_factory.mktemp("source") / "functions_of_mine.py"
    file.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("functions_of_mine", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, (args, kwargs) in CALLS.items():
        getattr(module, name)(*args, **kwargs)
    return {name: getattr(module, name) for name in CALLS}


def convert(backend: Any, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: convert(backend, each) for name, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(convert(backend, each) for each in value)
    return backend.array(value) if isinstance(value, np.ndarray) else value


def arrays_of(backend: Any, value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [array for name in sorted(value) for array in arrays_of(backend, value[name])]
    if isinstance(value, tuple | list):
        return [array for each in value for array in arrays_of(backend, each)]
    return [] if value is None or isinstance(value, str) else [backend.numpy(value)]


def cotangent_of(outputs: Any) -> Any:
    """A number in the places of tensors of floats, nested like the outputs."""
    if isinstance(outputs, dict):
        return {name: cotangent_of(each) for name, each in outputs.items()}
    if isinstance(outputs, tuple | list):
        return type(outputs)(map(cotangent_of, outputs))
    return outputs if "float" in str(getattr(outputs, "dtype", "")) else None


def compute(backend: Any, function: Any, name: str) -> list[Any]:
    """The outputs of a Function and its gradients, as NumPy arrays."""
    args, kwargs = (convert(backend, given) for given in CALLS[name])
    keyed = function.keyed(5)
    outputs, pullback = xg.vjp(functools.partial(keyed, **kwargs) if kwargs else keyed, *args)
    return arrays_of(backend, (outputs, pullback(cotangent_of(outputs))))


def compute_in_folder(folder: str, name: str) -> None:
    """Load every document of a folder and print what each gives; runs in a process of its own."""
    for file in sorted(Path(folder).glob("*.json")):
        found = compute(find_backend(name), xg.load(file), file.stem)
        print(file.stem, "/".join(array.tobytes().hex() for array in found))
    assert "functions_of_mine" not in sys.modules


@pytest.mark.filterwarnings("ignore")
def test_functions_give_the_same_in_another_process_without_their_source(
    backend: Any, mine: dict[str, Any], tmp_path: Path
) -> None:
    for name, function in mine.items():
        xg.save(function, tmp_path / f"{name}.json")
    code = (
        f"import sys; sys.path.append('tests/conformance'); "
        f"from tests.rules.saving.test_saving_functions import *; "
        f"compute_in_folder({str(tmp_path)!r}, {backend.name!r})"
    )
    done = fresh.run(["-c", code], [backend.name], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = dict(line.split() for line in done.stdout.splitlines())
    for name, function in mine.items():
        expected = compute(backend, function, name)
        assert found[name] == "/".join(array.tobytes().hex() for array in expected), name
        assert np.isfinite(expected[-1]).all()


def test_a_saved_gradient_is_the_own_one_and_not_the_derivative(backend: Any) -> None:
    reverse = xg.function(lambda x: x * 2, lambda grad_out, x: -grad_out)
    loaded = xg.from_dict(reverse.to_dict())
    y, gradient = compute_one(backend, loaded, X)
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(gradient, -np.ones_like(X))


def test_a_gradient_of_another_dtype_than_its_argument_is_refused() -> None:
    document = xg.function(lambda x: x * 2, lambda grad_out, x: grad_out).to_dict()
    wide = {"op": "cast", "of": [0], "attrs": {"dtype": "float64"}}
    wide["type"] = ["tensor", "float64", "x"]
    document["forms"][0]["backward"] |= {"nodes": [wide], "outputs": [2]}
    with pytest.raises(xg.FormatError, match=r"the gradient of 'x' is float64\[\.\.\.\], not T"):
        xg.from_dict(document)


def compute_one(backend: Any, function: Any, x: Any) -> tuple[Any, Any]:
    y, pullback = xg.vjp(function, backend.array(x))
    (gradient,) = pullback(backend.array(np.ones_like(x)))
    return backend.numpy(y), backend.numpy(gradient)


def test_every_function_comes_back_as_the_same_document(mine: dict[str, Any]) -> None:
    for function in mine.values():
        document = json.loads(json.dumps(function.to_dict(), allow_nan=False))
        assert list(document)[:3] == ["format", "version", "kind"]
        assert xg.from_dict(document).to_dict() == document


def test_a_loaded_function_has_its_name_and_doc(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["log1pexp"].to_dict())
    assert (loaded.name, loaded.__name__) == ("log1pexp", "log1pexp")
    assert loaded.__doc__ == "log(1 + exp(x)), whose gradient does not overflow."
    assert "exp(x)" in xg.show(loaded)


def test_arguments_may_be_given_by_name_as_well(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["clipped"].to_dict())
    for args, kwargs in (((X,), {"w": W, "limit": 0.5}), ((), {"limit": 0.5, "w": W, "x": X})):
        for found, expected in zip(
            loaded(*args, **kwargs), mine["clipped"](X, W, 0.5), strict=True
        ):
            np.testing.assert_array_equal(found, expected)


def test_floats_of_any_dtype_and_rank_are_taken(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["log1pexp"].to_dict())
    for x in (np.float16([1.0]), np.linspace(-1, 1, 24).reshape(2, 3, 4), np.float32(0.5)):
        assert loaded(x).tobytes() == mine["log1pexp"](x).tobytes()


def test_integers_of_another_width_are_taken(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["nested"].to_dict())
    wide = loaded(X, {"w": W, "n": N.astype(np.int64)}, power=3)
    np.testing.assert_array_equal(wide["rest"][2], N > 1)


def test_other_kinds_of_arguments_than_saved_are_named(mine: dict[str, Any]) -> None:
    loaded = xg.from_dict(mine["nested"].to_dict())
    with pytest.raises(
        xg.TraceError, match=r"not saved for .*power.*but for .*power = 3.*call it like this too"
    ):
        loaded(X, {"w": W, "n": N}, power=4)
    with pytest.raises(xg.TraceError, match="not saved for"):
        loaded(X, {"w": W})


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
    for mine, other in zip(
        compute_one(backend, function.keyed(7) if function.is_keyed else function, X),
        compute_one(backend, loaded, X),
        strict=True,
    ):
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
    loaded = xg.from_dict(mine["log1pexp"].to_dict())

    def softly(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * loaded(tin)

    again = xg.from_dict(xg.compose(softly).to_dict())
    np.testing.assert_array_equal(again(None, W, X), W * mine["log1pexp"](X))
    outer = xg.function(lambda x: loaded(x) * 2)
    y, gradient = compute_one(BACKENDS["numpy"], xg.from_dict(outer.to_dict()), np.float32([100.0]))
    assert (y, gradient) == (np.inf, 2)


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
