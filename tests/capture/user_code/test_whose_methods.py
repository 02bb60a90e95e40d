"""Code without a library's functions has the methods and operators of what it is called with,
whatever its file imports.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

X = np.array([[0.5, -1.25, 2.0], [3.5, 0.25, -0.75]])
IMPORTS = {"numpy": "", "torch": "import torch\n", "jax": "import jax\nimport jax.numpy as jnp\n"}
IMPORTS["tensorflow"] = "import tensorflow as tf\n"
# Some mean something else in another library, some exist in few: there the code itself fails.
EXPRESSIONS = """
    (x - x.mean()) / x.std(); x / x.var(); x - x.var(0); x.repeat(2); x.max(0); x.min(0); x.sum(0)
    x - x.mean(); x * x.argmax(); x.astype("float32") * 2; x.copy() * 3; x / x.size; x.round(1)
    x.clip(-0.5, 0.5); x.cumsum(); x.cumsum(0); x.prod(); x * (x > 0).any(); x * (x > -9).all()
    x.transpose(1, 0); x.reshape(3, 2, 1).transpose(2, 0, 1); x.T @ x; x.swapaxes(0, 1)
    x.reshape(-1, order="F"); x[x.nonzero()]; x.take([0, 2]); x.T.dot(x); x.flatten() * 2
    x * x[0, 0].item(); x.argmax() // 2 * x; x ** 2; x / x.shape[0]; x * (x.shape[0] / x.shape[1])
    x.repeat(2, 0); x.repeat(2, axis=1)
    x * 2 if hasattr(x, "numpy") else x * 3; x * (2 if type(x).__module__ == "numpy" else 3)
"""
EXPRESSIONS = [each for each in EXPRESSIONS.replace("\n", ";").split(";") if each.strip()]
STANDARD = "def f(x):\n    return x / x.std()\n"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a module of a user's, a file that imports NumPy and other libraries."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str, *libraries: str, name: str = "users_own") -> Any:
        imports = "import numpy as np\n" + "".join(IMPORTS[each] for each in libraries)
        (tmp_path / f"{name}.py").write_text(imports + source)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return make


def torch_tensor(array: Any) -> Any:
    return importlib.import_module("torch").tensor(array)


def as_arrays(result: Any) -> list[Any]:
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(each) for each in results]


def assert_as_written(code: Callable[..., Any], x: Any, function: Any = None) -> None:
    try:
        expected = as_arrays(code(x))
    except Exception:  # noqa: BLE001  # no library of x has such a method: nothing is meant
        return
    given = as_arrays((function or xg.function(code))(x))
    for ours, its_own in zip(given, expected, strict=True):
        assert ours.dtype == its_own.dtype
        np.testing.assert_allclose(ours, its_own, rtol=1e-5)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_methods_are_those_of_the_arguments(
    backend: Any, users: Callable[..., Any], expression: str
) -> None:
    module = users(f"def f(x):\n    return {expression.strip()}\n", backend.name)
    function = xg.function(module.f)
    with backend.precision("float64"):
        for x in (X, backend.array(X), X):  # the one's graph is none for the other
            assert_as_written(module.f, x, function)


@pytest.mark.needs("torch")
@pytest.mark.filterwarnings("ignore:__array_wrap__")
@pytest.mark.parametrize(
    "expression", ["np.exp(x).std() * x", "np.abs(x).var() * x", "np.square(x).repeat(2, 1)"]
)
@pytest.mark.parametrize("array", [np.asarray, torch_tensor])
def test_what_a_function_of_numpy_gives_has_the_methods_of_the_arguments(
    users: Any, expression: str, array: Callable[[Any], Any]
) -> None:
    module = users(f"def f(x):\n    return {expression}\n", "torch")
    assert_as_written(module.f, array(X))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("array", [np.asarray, torch_tensor])
def test_gradients_and_rules_have_the_methods_of_the_arguments(
    users: Callable[..., Any], array: Callable[..., Any]
) -> None:
    module = users(
        """
def f(x):
    def grad(upstream):
        return upstream * x.std()
    return x * 1.0, grad

def rule(ctx, grad_out, tin):
    return grad_out * tin.std()

def forward(x):
    return x / x.std()
""",
        "torch",
    )
    x, act = array(X), xg.activation("Heaviside")
    expected = x * x.std()

    def pulled(function: Any) -> Any:
        return xg.vjp(function, x)[1](x)[0]

    np.testing.assert_allclose(pulled(xg.custom_gradient(module.f)), expected)
    np.testing.assert_allclose(pulled(xg.activation("Heaviside", module.rule)), expected)
    with xg.use(module.rule):
        np.testing.assert_allclose(pulled(act), expected)
    np.testing.assert_allclose(xg.activation(module.forward, "sign")(x), x / x.std())


@pytest.mark.needs("torch")
def test_a_rule_is_captured_for_each_library_whose_methods_it_has(users: Any) -> None:
    rule = users("def rule(ctx, grad_out, tin):\n    return grad_out * tin.std()\n", "torch").rule
    act = xg.activation("Heaviside", rule)
    for array in (torch_tensor, np.asarray, torch_tensor):
        x = array(X)
        np.testing.assert_allclose(xg.vjp(act, x)[1](x)[0], x * x.std())


@pytest.mark.needs("torch")
def test_a_method_that_the_arguments_lack_is_that_of_what_the_file_imports(users: Any) -> None:
    rule = users("def rule(ctx, grad_out, tin):\n    return grad_out * tin.clamp(0, 1)\n", "torch")
    x, act = X, xg.activation("Heaviside", rule.rule)
    np.testing.assert_allclose(xg.vjp(act, x)[1](x)[0], x * np.clip(x, 0, 1))


PROBING = """
def caught(x):
    try:
        return x.clamp(-1, 1) * 3
    except AttributeError:
        return x.clip(-1, 1) * 2

def asked(x):
    return round(x, 1) * 3 if hasattr(x, "__round__") else x * 2

def got(x):
    return x * 2 if getattr(x, "__round__", None) is None else x * 3
"""


@pytest.mark.needs("torch")
@pytest.mark.parametrize("name", ["caught", "asked", "got"])
def test_code_that_looks_for_an_attribute_gets_the_answer_of_the_arguments(
    backend: Any, users: Any, name: str
) -> None:
    code = getattr(users(PROBING, "torch"), name)
    for x in (X, backend.array(X), X):
        assert_as_written(code, x, xg.function(code, native=False))
        assert_as_written(code, x, lambda x: xg.vjp(code, x)[0])


@pytest.mark.needs("torch")
@pytest.mark.parametrize("judge", [xg.check, xg.audit])
@pytest.mark.parametrize("make", [lambda f: f, xg.function])
def test_a_judgment_is_of_the_code_on_what_it_is_given(
    users: Any, judge: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")  # an audit makes hundreds of calls
    code = users(STANDARD, "torch").f
    report = judge(make(code), X)
    assert report.ok and " on numpy" in str(report).splitlines()[0]
    assert " on torch" in str(xg.check(make(code), torch_tensor(X))).splitlines()[0]


@pytest.mark.needs("torch")
def test_a_check_runs_the_code_as_written(users: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    code = users("def f(x: torch.Tensor):\n    return x / x.std()\n", "torch").f
    with pytest.raises(xg.errors.DisprovedError, match="read as torch's"):
        xg.check(xg.function(code), X)


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    "source",
    [
        "import other\ndef f(x):\n    return other.helper(x) * x.var()\n",  # of another file
        "f = lambda x: (lambda y: y.std() * x.max())(x)\n",
        "def f(x):\n    return np.exp(x) / x.std()\n",
        "def f(x):\n    return np.pi * x.std() * (x.argmax() + 1)\n",
        "def f(x):\n    return x.clip(0, 1) if isinstance(x, np.ndarray) else x.clamp(0, 2)\n",
        "def f(x):\n    return x.std() * (torch.pi if isinstance(x, torch.Tensor) else np.pi)\n",
        "def f(x):\n    return x.repeat(2, 0 if isinstance(x, np.ndarray) else 1)\n",
        "def f(x):\n    return x.std(0) * (2.0 if torch.is_tensor(x) else 3.0)\n",
        "def f(x):\n    return x.std(0) * (2.0 if isinstance(x, torch.Tensor) else 3.0)\n",
        "class F:\n    def __call__(self, x):\n        return x / x.std()\nf = F()\n",
        "exec('def f(x):\\n    return x - x.max(0)[0]')\n",  # without a file
    ],
)
def test_wherever_code_stands_its_methods_are_those_of_the_arguments(
    users: Any, source: str
) -> None:
    users("def helper(x):\n    return x / x.std()\n", "torch", name="other")
    code = users(source, "torch").f
    function = xg.function(code)
    for x in (X, torch_tensor(X)):
        assert_as_written(code, x, function)


@pytest.mark.needs("torch")
def test_a_pair_of_which_one_names_a_library_is_written_in_it(users: Any) -> None:
    pair = users(f"{STANDARD}def backward(g, x):\n    return g / torch.std(x)\n", "torch")
    y = xg.function(pair.f, pair.backward)(X)
    np.testing.assert_allclose(y, X / X.std(ddof=1))


@pytest.mark.needs("torch")
def test_dtypes_in_a_pair_are_those_of_the_library_that_it_names(users: Any) -> None:
    forward = "def f(x):\n    return (x > 0) * 1.0\n"
    backward = "def backward(g, x):\n    return g * torch.clamp(x, -1, 1)\n"
    pair = users(forward + backward, "torch")
    y = xg.function(pair.f, pair.backward)(X.astype(np.float32))
    assert y.dtype == np.float32  # as of torch.Tensor, where NumPy makes it float64


@pytest.mark.needs("torch")
def test_lowered_code_has_the_methods_of_the_backend_it_is_for(users: Any) -> None:
    code = users(STANDARD, "torch").f
    for name, ddof in (("numpy", 0), ("torch", 1)):
        assert f"correction={ddof}" in str(xg.source(xg.function(code), name))


@pytest.mark.needs("torch")
def test_a_document_has_one_meaning(users: Any, tmp_path: Path) -> None:
    function = xg.function(users(STANDARD, "torch").f)
    function(X)
    xg.save(function, tmp_path / "f.json")
    np.testing.assert_allclose(xg.load(tmp_path / "f.json")(torch_tensor(X)), X / X.std())
    function(torch_tensor(X))
    with pytest.raises(xg.TraceError, match=r"tensors of several libraries.*dialect="):
        xg.save(function, tmp_path / "f.json")
