"""The everyday expressions of each library, each captured once in three dtypes; values aside."""

from __future__ import annotations

import sys
from contextlib import suppress

import numpy as np

import multigrad as xg
from multigrad.core.backend.discovery import load_backend
from pages import captured
from tests.dtypes import everyday

DTYPES = ("float32", "int32", "bool")


def main(library: str) -> None:
    names, dialect = everyday.namespace(library), captured.load(library)
    runs_on = library if dialect.state.runs_on is None else dialect.state.runs_on()
    tensors = load_backend(runs_on).tensors
    for expression in everyday.EXPRESSIONS[library].strip().splitlines():
        function = everyday.function_of(expression, names)
        for dtype in DTYPES:
            x = tensors.from_numpy(np.array([3, 1, 2], dtype))
            converted = xg.function(function, lambda g, x: None, native=False)
            with np.errstate(all="ignore"), suppress(Exception):
                converted(x)


if __name__ == "__main__":
    main(sys.argv[1])
