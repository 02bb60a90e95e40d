"""The library's own rules and estimators are proven before a release; nobody else's code is."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.functions import proof as shipped
from multigrad.core.rules.library import surrogate

X = np.array([-0.5, 0.25, 2.0])
TRIANGULAR: Any = surrogate.triangular.function
SOURCE = Path(surrogate.__file__).read_text("utf-8")


@pytest.fixture(autouse=True)
def proves_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "1")


def runs_of(function: Any, call: Callable[[], Any]) -> int:
    """Return how often Python enters a function's code during a call."""
    count = 0

    def note(frame: types.FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code is function.__code__

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def runs_of_rule(function: Any, name: str = "registered") -> int:
    """Return how often a rule's code runs, from its first call on."""
    rule = xg.get("triangular").copy(function=function, name=name)
    return runs_of(function, lambda: rule(None, np.ones(3), X))


def edited(source: str) -> Any:
    """Return `triangular` of an edited file of the library."""
    scope = {"__name__": "edited", "__package__": surrogate.__package__, "register": unregistered}
    text = source.replace("from ..registry import register", "")
    exec(compile(text, surrogate.__file__, "exec"), scope)  # noqa: S102 (our own source)
    return scope["triangular"]


def unregistered(name: str, **choices: Any) -> Callable[[Any], Any]:
    return lambda function: function


def test_a_rule_of_the_library_is_recorded_and_no_more() -> None:
    assert runs_of_rule(TRIANGULAR) == 1


def test_an_estimator_of_the_library_is_recorded_and_no_more() -> None:
    twin = xg.estimators.swish_sign.with_defaults((4.0,))
    assert runs_of(twin.recipe.functions[0], lambda: twin(X)) == 1


def test_ones_own_copy_of_a_rule_is_proven() -> None:
    def triangular(ctx: Any, grad_out: Any, tin: Any, width: float = 1.0) -> Any:
        xp = xg.xp
        return grad_out * xp.maximum(1.0 - abs(tin) / xp.maximum(width, 1e-6), 0.0)

    assert runs_of_rule(triangular) > 1


def test_an_edited_rule_is_proven_and_runs_as_it_is_written_now() -> None:
    function = edited(SOURCE.replace("maximum(width, 1e-6), 0.0)", "maximum(width, 1e-6), 0.125)"))
    assert runs_of_rule(function, "edited") > 1
    rule = xg.get("triangular").copy(function=function, name="edited")
    np.testing.assert_allclose(rule(None, np.ones(3), X), [0.5, 0.75, 0.125])


def test_a_file_that_was_edited_elsewhere_is_proven(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "shipped.txt"
    digest = shipped.digest_of_file(Path(surrogate.__file__))
    other.write_text(shipped.FILE.read_text("utf-8").replace(digest, "0" * len(digest)), "utf-8")
    monkeypatch.setattr(shipped, "FILE", other)
    shipped._proven_in.cache_clear()
    try:
        assert runs_of_rule(TRIANGULAR, "of an edited file") > 1
    finally:
        shipped._proven_in.cache_clear()


def test_a_rule_with_a_replaced_helper_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    xp = types.SimpleNamespace(maximum=xg.xp.minimum)
    monkeypatch.setitem(TRIANGULAR.__globals__, "xp", xp)
    assert runs_of_rule(TRIANGULAR, "with minimum") > 1


def test_all_is_proven_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "all")
    assert runs_of_rule(TRIANGULAR, "proven again") > 1


def test_what_is_shipped_is_what_is_proven_now(tmp_path: Path) -> None:
    """Each rule and estimator is captured and proven in every dtype, in a process of its own, as
    other tests call them in other ways.
    """
    write_proofs = pytest.importorskip("write_proofs", reason="the tools are not installed")
    found = tmp_path / "shipped.txt"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, write_proofs.__file__, "--out", str(found)]
    subprocess.run(command, env=environment, check=True)
    assert found.read_text("utf-8") == shipped.FILE.read_text("utf-8"), (
        "the digests are stale; type: python tools/write_proofs.py"
    )
