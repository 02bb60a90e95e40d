"""What Keras's names become is as the digests have it, and means what Keras computes; see
`tests/lowering/test_golden.py` and `tests/lowering/test_names_of_tables.py`.
"""

from __future__ import annotations

import pytest

from ...dtypes.names import compare, ways_of
from ...golden import digests
from ...golden.graphs import captured_texts

keras = pytest.importorskip("keras")
pytestmark = pytest.mark.needs("keras")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the digests are of Keras on torch")
def test_every_name_of_keras_becomes_the_graph_that_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")
    known = digests.read("graphs", "keras")
    assert not digests.differing(known, captured_texts("keras", list(known)))


def test_a_name_of_keras_means_what_keras_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIGRAD_PROVE", "0")  # the comparison with Keras is here
    ways = list(ways_of("keras", 8))
    outcome = compare("keras", ways)
    assert not outcome.differing
    assert outcome.counts["equal"] > 5 * len(outcome.refused), outcome.refused
