"""Backends: what is listed, and what a missing one says; `test_toy_backend.py` has a stranger's."""

from __future__ import annotations

import textwrap
import warnings
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.lowering.reference import backend as reference

from ..harness.hidden import python

pytestmark = pytest.mark.anywhere

FRAMEWORKS = ["numpy", "torch", "jax", "tensorflow"]
X = np.array([-1.0, 0.25, 0.75, 2.0], np.float32)
G = np.array([1.0, -2.0, 3.0, 4.0], np.float32)


def run_python(code: str, folder: Path) -> str:
    """Run `code` in a fresh interpreter and give what it printed."""
    return python("-c", textwrap.dedent(code), cwd=folder)


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
    monkeypatch.setattr("multigrad.core.support.installed.required_by", lambda _: [line])
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
