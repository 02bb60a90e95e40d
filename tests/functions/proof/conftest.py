"""Faults in what is captured, for proofs to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from multigrad.core.functions import captures
from multigrad.core.ir.graph import Graph
from multigrad.engine.functions import code_proof

Edit = Callable[[Graph], Graph]


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change every graph that is captured from now on; that of a rule is a backward."""

    def start(forward: Edit | None = None, backward: Edit | None = None) -> None:
        def changing(capture: Callable[..., Any]) -> Callable[..., Any]:
            def changed(*args: Any, **kwargs: Any) -> Any:
                variant = capture(*args, **kwargs)
                graphs, edits = variant.graphs, {"forward": forward, "backward": backward}
                done = {k: edit(getattr(graphs, k)) for k, edit in edits.items() if edit}
                return replace(variant, graphs=replace(graphs, **done))

            return changed

        for home, name in ((code_proof, "capture_function"), (captures, "capture_plain")):
            monkeypatch.setattr(home, name, changing(getattr(home, name)))

    return start
