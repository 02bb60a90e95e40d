"""Good documents with something changed at random: each is read, or refused with FormatError, and
quickly.

A failure prints the seed, which is all that a change depends on.
"""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.engine.functions.documents.versions import as_version_1

from ...graph.test_hostile_strings import holds_strings, use
from ...graph.test_serialize import make_rule
from .test_hostile_documents import X

xp = xg.xp
Document = Any
COUNT, PER_TEST = 10_000, 1_000
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 64, 10**6, 2**31, 2**32, -(2**62), 2**64, 10**40, 0.0, -0.0,
    0.5, 1e-320, 1e308,
    "", "x", "?", "T", "tin", "grad_out", "key", "float32", "bool", "tensor", "scalar", "reduced",
    "nan", "...", "\x00",
    "\ud800", "a b", "__class__", [], {}, [[]], [0], [0, 1], [None], [0, 0, 0], ["..."], [[0, 1]],
    {"float": "nan"},
    {"float": "-0.0"}, {"float": "1"}, {"array": 0}, {"array": 9}, {"": None}, [10**6] * 3,
    [2] * 70, "9" * 300,
)  # fmt: skip


def weighted(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * np.array([0.5, -1.0, 2.0]) + np.array([True, False, True])


def by_rank(ctx: Any, grad_out: Any, tin: Any, slope: float = 2.0) -> Any:
    return grad_out * (slope if tin.ndim > 1 and slope > 1 else 0.5)


def scaled(x: Any, options: Any, mode: str, *, limit: float) -> Any:
    return {
        "y": xp.minimum(x * options["w"], limit),
        "rest": [xp.rand_like(x) * x, mode, options["n"] > 1],
    }


def scaled_back(upstream: Any, x: Any, options: Any, mode: str, *, limit: float) -> Any:
    return upstream["y"] * options["w"], {"w": upstream["rest"][0] * x, "n": None}, None


def functions() -> list[Any]:
    made = (
        xg.function(scaled, scaled_back),
        xg.function(lambda x, w: xp.tanh(x * w) + np.arange(3.0)),
    )
    made[0](X, {"w": X, "n": np.arange(3)}, "mean", limit=0.25)
    made[1](X, X)
    return list(made)


def good_documents() -> list[Document]:
    rules = [weighted, by_rank, xg.get("noise").with_params(sigma=0.2), xg.get("rectangular")]
    drawn = [make_rule(seed, 6) for seed in range(12)]
    every = [xg.compose(rule).to_dict() for rule in (*rules, *drawn)]
    every += [as_version_1(document) for document in every]
    every += [function.to_dict() for function in functions()] * 8
    return [
        holds_strings(),
        xg.compose("clip_norm", xg.compose("centralize", "scale")).to_dict(),
        *every,
    ]


# --- changes of data -----------------------------------------------------------------------------


def pick_place(data: Document, rng: random.Random) -> tuple[Any, Any]:
    """A list or object in the data, and an index in it; anywhere, and deep inside as often as
    not.
    """
    holder, index = data, rng.choice(list(data))
    while True:
        inner = holder[index]
        if not isinstance(inner, list | dict) or not inner or rng.random() < 0.1:
            return holder, index
        holder, index = (
            inner,
            rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner))),
        )


def replace(data: Document, rng: random.Random) -> None:
    holder, index = pick_place(data, rng)
    holder[index] = copy.deepcopy(rng.choice(VALUES))


def drop(data: Document, rng: random.Random) -> None:
    holder, index = pick_place(data, rng)
    del holder[index]


def repeat(data: Document, rng: random.Random) -> None:
    holder, index = pick_place(data, rng)
    if isinstance(holder, list):
        holder[index:index] = [copy.deepcopy(holder[index])] * rng.choice((1, 2, 300))
    else:
        holder[f"{index}_2"] = holder[index]


def exchange(data: Document, rng: random.Random) -> None:
    """Two parts change places, or one stands in both, unless one is inside of the other."""
    (holder, index), (other, place) = pick_place(data, rng), pick_place(data, rng)
    a, b = copy.deepcopy(holder[index]), copy.deepcopy(other[place])
    holder[index] = b
    if rng.random() < 0.5:
        other[place] = a


def nudge(data: Document, rng: random.Random) -> None:
    """A number becomes another one of its kind, a string another string."""
    holder, index = pick_place(data, rng)
    value = holder[index]
    if type(value) is int:
        holder[index] = value + rng.choice((-2, -1, 1, 2, 10, 10**9, 10**18))
    elif type(value) is float:
        holder[index] = value * rng.choice((-1, 0, 1e9, 1e-9, 1e300))
    elif type(value) is str:
        cut = rng.randrange(len(value) + 1)
        holder[index] = (
            value[:cut]
            + rng.choice(("", "x", "'", "\n", "\\", "\u00e9", "\u2028"))
            + value[cut + 1 :]
        )


def rename(data: Document, rng: random.Random) -> None:
    holder, index = pick_place(data, rng)
    if isinstance(holder, dict):
        holder[rng.choice((*data, "attrs", "of", "op", "", "value"))] = holder.pop(index)


def nest(data: Document, rng: random.Random) -> None:
    holder, index = pick_place(data, rng)
    for _ in range(rng.choice((1, 2, 60))):
        holder[index] = [holder[index]] if rng.random() < 0.5 else {"op": holder[index]}


CHANGES: tuple[Callable[[Document, random.Random], None], ...] = (
    replace, replace, drop, repeat, exchange, nudge, nudge, rename, nest,
)  # fmt: skip


def change_data(document: Document, rng: random.Random) -> Document:
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        if changed:
            rng.choice(CHANGES)(changed, rng)
    return changed


# --- changes of text -----------------------------------------------------------------------------


def change_text(document: Document, rng: random.Random) -> bytes:
    """Bytes flipped, left out, moved or repeated."""
    text = bytearray(json.dumps(document).encode())
    for _ in range(rng.choice((1, 1, 2, 10))):
        at, length = rng.randrange(len(text)), rng.choice((1, 1, 2, 20))
        other = rng.randrange(len(text))
        kind = rng.randrange(5)
        if kind == 0:
            text[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del text[at : at + length]
        elif kind == 2:
            text[at:at] = text[other : other + length] * rng.choice((1, 3, 200))
        elif kind == 3:
            text[at : at + length] = text[other : other + length]
        else:
            text[at : at + 1] = rng.choice(
                (b'"', b"[", b"]", b"{", b"}", b",", b":", b"9", b"-", b"e", b"\\")
            )
        if not text:
            return b""
    return bytes(text)


# --- what becomes of them ------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, COUNT, PER_TEST))
def test_changed_documents_are_read_or_refused(tmp_path: Any, first: int) -> None:
    documents = good_documents()
    file = tmp_path / "changed.json"
    read = refused = 0
    slowest = 0.0
    for seed in range(first, first + PER_TEST):
        rng = random.Random(seed)
        document = rng.choice(documents)
        start = time.perf_counter()
        try:
            if seed % 4 == 0:
                file.write_bytes(change_text(document, rng))
                loaded = xg.load(file)
            else:
                loaded = xg.from_dict(change_data(document, rng))
            read += 1
            if seed % 5 == 0:
                use(loaded)
                loaded.to_dict()
        except xg.FormatError:
            refused += 1
        except xg.TraceError:
            pass  # of to_dict: its graph runs, but gives no gradient
        except BaseException as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.perf_counter() - start)
    assert refused > PER_TEST / 2
    assert read > PER_TEST / 50
    assert slowest < 5
