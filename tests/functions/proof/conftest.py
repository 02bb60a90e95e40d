"""Faults in what is captured, for proofs to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from multigrad.functions import code_proof
from multigrad.graph.ir.graph import Graph

Edit = Callable[[Graph], Graph]


@pytest.fixture
def capturing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Change every graph that is captured from now on; that of a rule is a backward."""

    def start(forward: Edit | None = None, backward: Edit | None = None) -> None:
        capture = code_proof.capture_function

        def changed(*args: Any, **kwargs: Any) -> Any:
            variant = capture(*args, **kwargs)
            graphs = variant.graphs
            edits = {"forward": forward, "backward": backward}
            done = {k: edit(getattr(graphs, k)) for k, edit in edits.items() if edit is not None}
            return replace(variant, graphs=replace(graphs, **done))

        monkeypatch.setattr(code_proof, "capture_function", changed)

    return start
