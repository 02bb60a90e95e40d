"""What Keras's names become is as the digests have it; see `tests/lowering/test_golden.py`."""

from __future__ import annotations

import pytest

from ...golden import digests
from ...golden.graphs import captured_texts

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the digests are of Keras on torch")
def test_every_name_of_keras_becomes_the_graph_that_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    known = digests.read("graphs", "keras")
    assert not digests.differing(known, captured_texts("keras", list(known)))
