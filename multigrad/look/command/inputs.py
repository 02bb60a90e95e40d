"""What a command line gives to a function: tensors by their shapes, numbers, other plain values."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from multigrad.errors import MultigradError
from multigrad.graph.ops.numerics import as_numpy_dtype

SEED = 20
FORMS = (
    "4x6 (a float32 tensor), 4x6:int64, 6:float32 (one axis), scalar (none), 4x6:uniform (within 0 "
    "and 1), 0.5, 3, True, None, 'text', or a tuple of plain values"
)
SHAPE = re.compile(r"(?P<shape>\d+(x\d+)+|\d+(?=:)|scalar)(:(?P<kind>\w+))?")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")
MOST = 3  # integers are below: small enough to be indices


def read_inputs(words: Sequence[str]) -> list[Any]:
    """Return the values of words, tensors as arrays that are the same each time.

    Raises:
        MultigradError: a word is no value.
    """
    generator = np.random.default_rng(SEED)
    return [read_input(word, generator) for word in words]


def read_input(word: str, generator: np.random.Generator) -> Any:
    """Return the value of a word: one of FORMS."""
    found = SHAPE.fullmatch(word.strip())
    if found is None:
        try:
            return ast.literal_eval(word.strip())
        except (SyntaxError, ValueError) as error:
            raise MultigradError(f"--input {word!r} is not a value; write {FORMS}") from error
    shape = () if found["shape"] == "scalar" else tuple(map(int, found["shape"].split("x")))
    return draw(shape, found["kind"] or "float32", generator)


def draw(shape: tuple[int, ...], kind: str, generator: np.random.Generator) -> Any:
    """Return an array: of normal numbers, of numbers within 0 and 1, of small integers, of bools.

    Raises:
        MultigradError: the kind is no dtype.
    """
    if kind == "uniform":
        return np.asarray(generator.uniform(0.05, 0.95, shape), np.float32)
    if kind in FLOATS:
        return np.asarray(generator.standard_normal(shape)).astype(as_numpy_dtype(kind))
    if kind in INTEGERS:
        return np.asarray(generator.integers(0, MOST, shape), kind)
    if kind == "bool":
        return np.asarray(generator.integers(0, 2, shape), bool)
    known = ", ".join((*FLOATS, *INTEGERS, "bool", "uniform"))
    raise MultigradError(f"--input: {kind!r} is not a dtype; expected one of {known}")
