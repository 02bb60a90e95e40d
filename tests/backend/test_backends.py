"""Backends: what is listed, what a missing one says, and a stranger's backend found by its entry
point.
"""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.lowering.reference import backend as reference

from ..harness.hidden import python

pytestmark = pytest.mark.anywhere

FRAMEWORKS = ["numpy", "torch", "jax", "tensorflow"]
X = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)


def run_python(code: str, folder: Path) -> str:
    """Run `code` in a fresh interpreter and give what it printed."""
    return python("-c", textwrap.dedent(code), cwd=folder)


# --- ours -----------------------------------------------------------------------------------------


def test_rows_are_ours_numpy_first() -> None:
    rows = xg.backends()
    assert rows[0].name == "numpy" and {row.name for row in rows} >= set(FRAMEWORKS)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_row_says_what_is_installed(name: str) -> None:
    (row,) = [row for row in xg.backends() if row.name == name]
    assert row.installed == (find_spec(name) is not None)
    if row.installed:
        assert row.version and row.version[0].isdigit() and row.reason is None
    else:
        assert row.version is None and f"pip install '{name}" in (row.reason or "")


@pytest.mark.parametrize("release", ["1.26.4", "2.0.2", "2.1.3", "2.2.0", np.__version__])
def test_numpy_before_2_2_says_once_for_a_class_what_its_own_arrays_need(
    monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    class Own(np.ndarray):
        pass

    numbers = tuple(map(int, release.split(".")[:2]))
    monkeypatch.setattr(reference, "RELEASE", numbers)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            given = xg.get("straight_through")(None, G.view(Own), X.view(Own))
            np.testing.assert_array_equal(np.asarray(given), G)
    texts = [str(each.message) for each in said if "gives another dtype" in str(each.message)]
    assert len(texts) == (numbers < (2, 2))
    assert all("NumPy's own arrays need numpy>=2.2" in text for text in texts)


def test_version_is_the_frameworks_own(backend: Any) -> None:
    module = __import__(backend.name)
    (row,) = [row for row in xg.backends() if row.name == backend.name]
    own = getattr(module, "__version__", None)  # a namespace has none
    assert row.version == (own or version(backend.name))


def test_framework_that_is_not_installed_names_its_install_line(tmp_path: Path) -> None:
    output = run_python(
        """
        import sys
        for name in ("torch", "jax", "tensorflow"):
            sys.modules[name] = None  # how Python marks what cannot be imported
        import numpy as np
        import multigrad as xg
        for row in xg.backends():
            print(row.name, row.installed, row.reason)
        for name in ("torch", "jax", "tensorflow"):
            for ask in (lambda: xg.lower("triangular", name), lambda: xg.source("scale", name)):
                try:
                    ask()
                except xg.BackendNotFound as error:
                    assert isinstance(error, ImportError)
                    print(error)
        try:
            xg.Activation
        except xg.BackendNotFound as error:
            print(error)
        x = np.ones(3, np.float32)
        with xg.use("triangular"):
            print(xg.activation("ReLU")(x).tolist(), xg.get("scale")(None, x, x, s=2.0).tolist())
        """,
        tmp_path,
    )
    for name in ("torch", "jax", "tensorflow"):
        assert f"{name} False pip install '{name}" in output
        assert output.count(f"backend '{name}' needs {name}, which is not installed: pip") >= 2
    assert output.count("backend 'torch' needs torch") == 3
    assert "numpy True None" in output
    assert "[1.0, 1.0, 1.0] [2.0, 2.0, 2.0]" in output


def test_a_backend_that_is_a_distribution_of_its_own_names_its_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = "multigrad-rules-elsewhere; extra == 'elsewhere'"
    monkeypatch.setattr("multigrad.graph.support.installed.required_by", lambda _: [line])
    with pytest.raises(xg.BackendNotFound, match="pip install 'multigrad-rules-elsewhere'"):
        xg.source("triangular", "elsewhere")


def test_framework_that_is_broken_shows_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import a_library_that_is_missing\n")
    output = run_python(
        """
        import sys
        sys.path.insert(0, "")
        import multigrad as xg
        try:
            xg.lower("triangular", "torch")
        except xg.BackendNotFound as error:
            print(type(error.__cause__).__name__, error)
        """,
        tmp_path,
    )
    assert output.startswith("ModuleNotFoundError backend 'torch' cannot be loaded: ")
    assert "raises ModuleNotFoundError: No module named 'a_library_that_is_missing'" in output


# --- a stranger's ---------------------------------------------------------------------------------

FRAMEWORK = '''
"""A framework as small as one can be: an array, and the function that pulls a gradient back
through it.
"""

__version__ = "3.1"


class Array:
    def __init__(self, values, pull=None):
        self.values = values
        self.pull = pull

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
'''
BACKEND = """
import numpy as np
import toyarray
from toyarray import Array

from multigrad.backend import Autodiff, Backend, Kernels, Tensors, as_numpy_dtype, ops


def unwrap(value):
    return value.values if isinstance(value, Array) else value


def lift(function):
    def call(*args, **attrs):
        return Array(np.asarray(function(*map(unwrap, args), **attrs)))

    return call


def measure(function):
    def call(x, **attrs):
        return function(unwrap(x), **attrs)

    return call


def render(lowering):
    f, k, b = lowering.forward, lowering.keep, lowering.backward
    kept = "".join(f"{expression}, " for expression in lowering.kept)
    residuals = "".join(f", {name}" for name in lowering.residuals.names)
    return (
        f"def forward(tin):\\n{f.indented(4)}    return {f.result}\\n\\n\\n"
        f"def keep(tin, output{lowering.arguments}):\\n{k.indented(4)}    return ({kept})\\n\\n\\n"
        f"def backward(grad_out{residuals}{lowering.arguments}):\\n"
        f"{b.indented(4)}    return {lowering.grad_in}\\n"
    )


def finish(namespace, lowering):
    def function(tin, *values):
        output = namespace["forward"](tin)
        residuals = namespace["keep"](tin, output, *values)
        pull = lambda grad_out: namespace["backward"](grad_out, *residuals, *values)
        return Array(output.values, pull)

    return function


def attach(run, tensors, name):
    (output,), pull, _ = run(*tensors)
    return (Array(output.values, lambda grad_out: pull(grad_out)[0]),)


def call(native, lowering):
    return native


backend = Backend(
    "toyarray",
    Tensors((Array,), as_numpy_dtype, unwrap, Array),
    Kernels(
        {op: (measure if op in (ops.SIZE, ops.DIM) else lift)(op.numpy)
         for op in ops.CALLABLE_OPS if op is not ops.ERF},
        {ops.ERF: "toyarray has no special functions"},
    ),
    Autodiff(render, finish, call, attach),
)
"""


class Point:
    """What `importlib.metadata` gives for an installed backend."""

    name = "toyarray"

    def load(self) -> Any:
        import multigrad_toyarray  # type: ignore[import-not-found]

        return multigrad_toyarray.backend


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stranger's framework, installed beside its backend."""
    from multigrad.backend import discovery

    (tmp_path / "toyarray.py").write_text(FRAMEWORK)
    (tmp_path / "multigrad_toyarray.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(tmp_path)
    discovery.entry_points()
    monkeypatch.setitem(discovery._registry.points, "toyarray", Point())
    import toyarray  # type: ignore[import-not-found]

    yield toyarray
    discovery._registry.loaded.pop("toyarray", None)
    discovery._owners.pop(toyarray.Array, None)
    discovery.READERS.pop(toyarray.Array, None)
    for name in ("toyarray", "multigrad_toyarray"):
        sys.modules.pop(name, None)


def test_strangers_backend_is_listed(toy: Any) -> None:
    (row,) = [row for row in xg.backends() if row.name == "toyarray"]
    assert row.installed and row.version == "3.1"


@pytest.mark.parametrize("name", xg.rules())
def test_strangers_backend_runs_every_rule(name: str, toy: Any) -> None:
    key = 5
    with xg.use(name, scope="activations", key=key):
        y = xg.activation("Heaviside")(toy.Array(X))
    np.testing.assert_array_equal(y.values, X > 0)
    reference = xg.get(name)(None, G, X, key=key)
    np.testing.assert_allclose(y.pull(toy.Array(G)).values, reference, rtol=1e-6)
    bare = xg.get(name)(None, toy.Array(G), toy.Array(X), key=key)
    np.testing.assert_allclose(bare.values, reference, rtol=1e-6)


def test_strangers_backend_draws_the_same_numbers(toy: Any) -> None:
    given = xg.get("full_jam")(None, toy.Array(G), None, key=7)
    np.testing.assert_array_equal(given.values, xg.get("full_jam")(None, G, None, key=7))


def test_strangers_backend_runs_a_native_rule(toy: Any) -> None:
    rule = xg.register("toy_native", native=True)(lambda ctx, g, x: toy.Array(g.values * x.values))
    y = xg.activation("ReLU", rule)(toy.Array(X))
    np.testing.assert_array_equal(y.pull(toy.Array(G)).values, G * X)


def test_op_that_a_strangers_backend_lacks_is_named_with_its_reason(toy: Any) -> None:
    from multigrad import xp

    rule = xg.register("windowed")(lambda ctx, g, x: g * xp.erf(x))
    with pytest.raises(xg.UnsupportedOp) as raised:
        xg.activation("ReLU", rule)(toy.Array(X))
    for words in ("'windowed'", "test_backends.py:", "uses erf", "toyarray has no special"):
        assert words in str(raised.value)
    with pytest.raises(xg.UnsupportedOp, match="erf is not available on toyarray"):
        xp.erf(toy.Array(X))


def test_strangers_source_can_be_read(toy: Any) -> None:
    assert "def backward(grad_out, tin, width):" in xg.source("triangular", "toyarray")


def test_numpys_arrays_beside_a_strangers_tensors_are_constants_of_his(toy: Any) -> None:
    rule = xg.register("toy_beside_numpy")(lambda ctx, g, x: g * abs(x))
    given = rule(None, G, toy.Array(X))
    assert type(given) is toy.Array
    np.testing.assert_array_equal(given.values, G * abs(X))
