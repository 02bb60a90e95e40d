"""Prove the library's own rules and estimators, and write the digests of what was proven.

python tools/write_proofs.py

A rule is captured with its input and without, for arrays of up to four axes, with the defaults of
its params. An estimator is captured for its examples, with each choice of its flags and widths.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import multigrad as xg
from multigrad.core.functions import proof as shipped
from multigrad.core.functions.captures import Captures
from multigrad.core.functions.proof import ALL, VARIABLE
from multigrad.core.functions.recipe import Recipe, Variant
from multigrad.errors import MultigradError
from multigrad.estimators.declared import Argument

DTYPES: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(each) for each in ("float32", "float64", "float16", ml_dtypes.bfloat16)
)
MOST_AXES = 4
WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8)  # in bits, of quantizers
Rows = dict[str, tuple[str, dict[str, list[str]]]]


def captured() -> Iterator[tuple[Recipe, Variant]]:
    """Yield all that is proven of the library, with its proofs, for each dtype."""
    for captures in itertools.chain(captures_of_rules(), captures_of_estimators()):
        for variant in captures.variants.values():
            yield captures.recipe, variant


def captures_of_rules() -> Iterator[Captures]:
    for name in xg.rules():
        rule = xg.get(name)
        if rule.function is None:
            continue
        required = [key for key, each in rule.params.items() if each is inspect.Parameter.empty]
        params = dict.fromkeys(required, 1.0)
        specialization = rule.bound_rule(params).specialization
        if shipped.own_code(specialization.captures[True].recipe) is None:
            continue
        for rank, dtype, has_tin in itertools.product(range(MOST_AXES + 1), DTYPES, (True, False)):
            x = np.linspace(-1.0, 1.0, 2**rank).reshape((2,) * rank).astype(dtype)
            with suppress(MultigradError):  # a rule may need its input, or an axis
                rule(None, np.ones_like(x), x if has_tin else None, **params)
        yield from specialization.captures.values()


def captures_of_estimators() -> Iterator[Captures]:
    for function in xg.estimators.catalogue().values():
        arrays = [each for each in function.examples or () if isinstance(each, np.ndarray)]
        options = function.arguments[len(arrays) :]
        choices = [choices_of(each) for each in options]
        ranks = range(MOST_AXES + 1) if len(arrays) == 1 else (arrays[0].ndim,)
        for dtype, rank, values in itertools.product(DTYPES, ranks, itertools.product(*choices)):
            first = np.resize(arrays[0], arrays[0].shape if rank == arrays[0].ndim else (2,) * rank)
            given = [each.astype(dtype) for each in (first, *arrays[1:])]
            with suppress(Exception):  # not each is one of its widths, or axes
                function(*given, *values)
        yield function.captures


def choices_of(argument: Argument) -> Iterable[Any]:
    if argument.plain_type is bool:
        return (False, True)
    return WIDTHS if argument.name == "bits" else (argument.default,)


def rows() -> Rows:
    """Return what `shipped.txt` says: what was proven in every dtype in which it was captured."""
    found: Rows = {}
    for recipe, variant in captured():
        code = shipped.own_code(recipe)
        if (
            code is None
            or not variant.proofs
            or any(proof != "" for proof in variant.proofs.values())
        ):
            continue
        path = Path(code.co_filename)
        name = path.relative_to(shipped.PACKAGE).as_posix()
        _, proven = found.setdefault(name, (shipped.digest_of_file(path), {}))
        digests = proven.setdefault(code.co_name, [])
        if (digest := shipped.digest_of(variant)) not in digests:
            digests.append(digest)
    return found


def lines_of(rows: Rows) -> Iterator[str]:
    """Yield the lines from which `shipped.read_rows` reads these."""
    for name, (source, proven) in sorted(rows.items()):
        yield f"{name} {source}\n"
        for function, digests in sorted(proven.items()):
            yield f"  {function} {' '.join(sorted(digests))}\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(".")[0])
    parser.add_argument("--out", type=Path, default=shipped.FILE, help="the file of the digests")
    options = parser.parse_args()
    os.environ[VARIABLE] = ALL
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options.out.write_text("".join(lines_of(rows())), "utf-8")
