"""Where a library's derivative at a kink is a matter of its release, a capture has that of the
installed one, and `xg.show` says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from multigrad.engine.capture.dialect import registered_dialects

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
X = np.array([-2.0, -1.0, 0.0, 1.0, 2.0, np.nan], np.float32)


def slope(f: Any) -> Any:
    return xg.vjp(f, X)[1](np.ones_like(X))[0]


def test_the_gradient_at_the_limits_of_clamp_is_that_of_the_installed_torch() -> None:
    x = torch.tensor(X, requires_grad=True)
    (expected,) = torch.autograd.grad(x.clamp(-1, 1).nan_to_num().sum(), x)
    f = xg.function(lambda x: torch.clamp(x, -1, 1).nan_to_num())
    np.testing.assert_array_equal(slope(f), expected.numpy())


def pretend(monkeypatch: pytest.MonkeyPatch, version: str, passes: bool) -> None:
    """Let another release of torch be installed, and let it do so."""
    load_backend("torch")
    conventions = registered_dialects()["torch"].gradients.conventions
    for name in ("clamp", "fmax"):
        pretended = replace(conventions[name], version=version, ask_library=lambda: passes)
        monkeypatch.setitem(conventions, name, pretended)


@pytest.mark.parametrize(("version", "at_limits"), [("2.13.0", 1.0), ("2.14.0+cpu", 0.0)])
def test_each_release_has_its_own(
    version: str, at_limits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the torch that runs is another
    pretend(monkeypatch, version, bool(at_limits))
    f = xg.function(lambda x: torch.clamp(x, -1, 1), prove=False)
    np.testing.assert_array_equal(f(X), np.clip(X, -1, 1))
    np.testing.assert_array_equal(slope(f), [0, at_limits, 1, at_limits, 0, 0])
    low = xg.function(lambda x: x.clamp(min=-1), prove=False, dialect="torch")
    np.testing.assert_array_equal(slope(low)[:-1], [0, at_limits, 1, 1, 1])
    graph = next(iter(f.captures.variants.values())).graphs.forward
    assert f"at the kink of clamp as torch {version} has it" in graph.origin


NAN = np.nan
# x, its limits, and the derivatives for the three in torch 2.14.1 and 2.15.0.
BETWEEN = np.array([
    (2, 2, 2, 1, 0, 0), (1, 2, 2, 0, 1, 0), (3, 2, 2, 0, 0, 1), (2, 2, 4, 0.5, 0.5, 0),
    (4, 2, 4, 0.5, 0, 0.5), (3, 2, 4, 1, 0, 0), (1, 3, 2, 0, 0, 1), (4, 3, 2, 0, 0, 1),
    (NAN, 1, 2, 1, 0, 0), (1, NAN, 2, 1, 0, 0), (1, 1, NAN, 1, 0, 0),
], np.float32)  # fmt: skip
OF_TWO = np.array([(1, 1, 0.5, 0.5), (2, 1, 1, 0), (NAN, 1, 0, 1), (NAN, NAN, 1, 0)], np.float32)


@pytest.mark.parametrize(
    ("call", "table"),
    [
        (lambda x, low, high: torch.clamp(x, low, high), BETWEEN),
        (lambda x, y: torch.fmax(x, y), OF_TWO),
        (lambda x, y: -torch.fmin(-x, -y), OF_TWO),
    ],
)
def test_tensors_that_are_equal_share_the_gradient_after_2_13(
    call: Any, table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    pretend(monkeypatch, "2.14.0", False)
    columns = [*table.T.copy()]
    arrays, expected = columns[: len(columns) // 2], columns[len(columns) // 2 :]
    outputs, pull = xg.vjp(xg.function(call, prove=False), *arrays)
    np.testing.assert_array_equal(pull(np.ones_like(outputs)), expected)
    given = [torch.tensor(a) for a in arrays]
    np.testing.assert_array_equal(outputs, call(*given))


@pytest.mark.parametrize(("version", "passes"), [("2.13.0", False), ("2.14.0", True)])
def test_a_torch_that_is_not_as_its_release_counts_and_is_named(
    version: str, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    pretend(monkeypatch, version, passes)
    f = xg.function(lambda x: torch.clamp(x, -1, 1), prove=False)
    with pytest.warns(xg.errors.NotProvenWarning, match=rf"torch {version} has it.* differs"):
        np.testing.assert_array_equal(slope(f)[:-1], [0, passes, 1, passes, 0])
    assert "this torch differs" in next(iter(f.captures.variants.values())).graphs.forward.origin


def test_show_tells_it() -> None:
    f = xg.function(lambda x: torch.clamp(x, -1, 1))
    f(X)
    assert f"at the kink of clamp as torch {torch.__version__} has it: " in str(xg.show(f))
