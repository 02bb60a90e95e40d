"""`einsum` with `...`, also where it is summed away or broadcast: values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg

# As written, spelled out by letters, and the shapes; a length of 1 is dropped from the spelled out.
CASES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "...i,io->...o": ("abi,io->abo", [(2, 3, 4), (4, 5)]),
    "...i,io->o": ("abi,io->o", [(2, 3, 4), (4, 5)]),
    "...i,io->oi": ("abi,io->oi", [(2, 3, 4), (4, 5)]),
    "...->": ("ab->", [(2, 3)]),
    "i...j->ij": ("iaj->ij", [(3, 2, 4)]),
    "...i,i->...": ("ai,i->a", [(2, 3), (3,)]),
    "...i,...i->": ("ai,ai->", [(2, 3), (2, 3)]),
    "...i,...->i": ("ai,a->i", [(2, 3), (2,)]),
    "i,...->...i": ("i,ab->abi", [(2,), (3, 4)]),
    "ij,...->i": ("ij,a->i", [(2, 3), (4,)]),
    "ij...,jk...->ik": ("ija,jka->ik", [(2, 3, 4), (3, 5, 4)]),
    "...a,...b,ab->...": ("xa,xb,ab->x", [(2, 3), (2, 4), (3, 4)]),
    "...i,...j->ij": ("bi,abj->ij", [(2, 3), (5, 2, 4)]),
    "...i,...k->ik": ("i,ak->ik", [(1, 3), (2, 4)]),
    "...i,...k->...ik": ("i,ak->aik", [(1, 3), (2, 4)]),
    "...i,io->...": ("i,io->", [(4,), (4, 5)]),
}


@pytest.mark.parametrize("subscripts", CASES)
def test_an_ellipsis_is_summed_away_and_broadcast(subscripts: str, backend: Any) -> None:
    letters, shapes = CASES[subscripts]
    terms, _, result = letters.partition("->")
    generator = np.random.default_rng(0)
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    spelled = [
        array.reshape([n for n in array.shape if len(term) == array.ndim or n != 1])
        for array, term in zip(arrays, terms.split(","), strict=True)
    ]
    expected = np.einsum(letters, *spelled)
    upstream = generator.normal(size=expected.shape).astype(np.float32)
    function = xg.function(lambda *given: xg.xp.einsum(subscripts, *given), native=False)
    lengths = {
        letter: n
        for term, array in zip(terms.split(","), spelled, strict=True)
        for letter, n in zip(term, array.shape, strict=True)
    }

    def check(y: Any, gradients: Any) -> None:
        np.testing.assert_allclose(backend.numpy(y), expected, 2e-5, 1e-5)
        for i, term in enumerate(terms.split(",")):
            rest = [(t, a) for n, (t, a) in enumerate(pairs) if n != i]
            ones = np.ones([lengths[letter] for letter in term], np.float32)
            own = [result, *(t for t, _ in rest), term]
            slope = np.einsum(f"{','.join(own)}->{term}", upstream, *(a for _, a in rest), ones)
            found = backend.numpy(gradients[i])
            np.testing.assert_allclose(found, slope.reshape(found.shape), 2e-5, 1e-5)

    pairs = list(zip(terms.split(","), spelled, strict=True))
    given = [backend.array(array) for array in arrays]
    y, pull = xg.vjp(function, *given)
    check(y, pull(backend.array(upstream)))


@pytest.mark.backends("tensorflow")
def test_lengths_may_be_open_in_a_graph_of_tensorflow(backend: Any) -> None:
    import tensorflow as tf

    function = xg.function(lambda x, w: xg.xp.einsum("...i,io->...o", x, w), native=False)
    x, w = np.ones((2, 3, 4), np.float32), np.arange(20, dtype=np.float32).reshape(4, 5)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4)), tf.TensorSpec((4, 5))])
    def run(x: Any, w: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, w])
            y = function(x, w)
        return y, tape.gradient(y, [x, w])

    y, (_, of_w) = run(x, w)
    np.testing.assert_allclose(y, x @ w)
    np.testing.assert_allclose(of_w, np.full_like(w, 6.0))
