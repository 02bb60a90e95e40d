"""Rules and Functions in a lock: the evidence of their documents, held against them as they are
now, on every backend that is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ...backend.finding.discovery import backends, load_backend
from ...errors import MultigradError, UnsupportedOp
from ...functions.function import Function
from ...graph.ops.properties import OP_SET
from ...rules.model.rule import Rule
from ...rules.registry import resolve
from ...rules.saving.evidence import conventions_of, make_evidence, read_evidence
from ...rules.saving.files import from_dict, read_file
from ...rules.saving.vectors import decode, run_vector
from .lockfile import LockFile
from .verify import Change, Verification, say

Data = Any
BACKENDS = ("numpy", "torch", "jax", "tensorflow")  # they have float64
# By dtype, beside 1: what kernels' roundings may differ by. docs/format.md has the same.
CLOSE = {"float64": 2.0**-40, "float32": 2.0**-16, "bfloat16": 2.0**-5, "float16": 2.0**-7}


def make_entry(word: str, found: Any) -> Data:
    """Return the entry of a file, or of the object that a word names.

    Raises:
        MultigradError: it has no graph to save, or is damaged.
        OSError: the file cannot be read.
    """
    if is_file(word):
        document = read_file(word)
        obj = from_dict(document)
        evidence = document.get("evidence")
    else:
        found = getattr(found, "captured_form", found)
        document = (found if isinstance(found, Function) else resolve(found)).to_dict()
        obj, evidence = from_dict(document), None
    return {"kind": document["kind"], **(evidence or make_evidence(obj, document))}


def is_file(word: str) -> bool:
    """Whether a word names a saved file, as commands take it."""
    return Path(word).suffix == ".json" or (":" not in word and Path(word).is_file())


def check_entries(lock: LockFile) -> None:
    """Check the entries of a lock.

    Raises:
        FormatError: one is damaged.
    """
    for word, entry in lock.objects.items():
        read_evidence({name: entry[name] for name in entry if name != "kind"}, f"objects.{word}")


def verify_objects(lock: LockFile, find: Callable[[str], Any], result: Verification) -> None:
    """Add to a result what became of the rules and Functions of a lock."""
    installed = {row.name: row.version for row in backends() if row.installed}
    for word, locked in lock.objects.items():
        try:
            found = None if is_file(word) else find(word)
            now = make_entry(word, found)
            obj = _object(word, found)
        except (MultigradError, OSError) as error:
            result.changes.append(Change(word, "", f"{word} was locked, and now: {error}"))
            continue
        sentences = [*_differences(word, locked, now)]
        for name in BACKENDS:
            if name in installed:
                on = f"{name} {installed[name]}"
                sentences += _run(word, obj, locked["vectors"], on, result.remarks)
        result.changes += [Change(word, "", each) for each in sentences]
        said = "compared with what was locked" if sentences else "as locked"
        count = len(locked["vectors"])
        why = f": {locked['without']}" if "without" in locked else ""
        result.remarks.append(f"{word}: {count} vectors, {said}{why}")


def _object(word: str, found: Any) -> Rule | Function[..., Any]:
    if is_file(word):
        return from_dict(read_file(word))
    found = getattr(found, "captured_form", found)
    return from_dict((found if isinstance(found, Function) else resolve(found)).to_dict())


def _differences(word: str, locked: Data, now: Data) -> Iterator[str]:
    if locked["hash"] != now["hash"]:
        yield (
            f"{word} is not what was locked: its content is {_short(now['hash'])}, "
            f"and was {_short(locked['hash'])}"
        )
    if locked["op_set"] != OP_SET:
        yield f"{word} was locked with op set {locked['op_set']}, and this multigrad has {OP_SET}"
    ops = {"nodes": [{"op": op} for op in locked["conventions"]]}
    for op, places in conventions_of(ops).items():
        for at, row in places.items():
            before = locked["conventions"][op].get(at)
            if before is not None and before != row:
                yield (
                    f"{op}'s derivative {at} is {_say(before)} in the lock of {word} "
                    f"and {_say(row)} in this multigrad"
                )


def _short(digest: str) -> str:
    return digest[: len("sha256:") + 12]


def _say(row: Data) -> str:
    return say(list(_leaves([row["value"], row["derivative"]])))


def _leaves(data: Data) -> Iterator[str]:
    if isinstance(data, list):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


# --- vectors -------------------------------------------------------------------------------------


def _run(word: str, obj: Any, vectors: Data, on: str, remarks: list[str]) -> Iterator[str]:
    """Yield what a backend, named with its version, gives else than was locked: of each array of
    a vector the first number.
    """
    backend = load_backend(on.partition(" ")[0])
    for vector in vectors:
        try:
            found = run_vector(obj, vector, backend)
        except UnsupportedOp as error:
            remarks.append(f"{word} is not compared on {on}: {error}")
            return
        except (MultigradError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            yield f"{word} does not run on {on}: {type(error).__name__}: {error}"
            return
        for what, before, now in _pairs(vector, found):
            place = _first_difference(before, now)
            if place is not None:
                yield (
                    f"{word}: {what} is {_at(before, place)} in the lock and {_at(now, place)} "
                    f"on {on}{_where(vector['inputs'], place)}"
                )


def _pairs(vector: Data, found: Mapping[str, Data]) -> Iterator[tuple[str, Data, Data]]:
    is_rule = "graph" in vector
    for i, pair in enumerate(zip_longest(vector["outputs"], found["outputs"])):
        yield ("the gradient" if is_rule else f"output {i}"), *pair
    for name, before in vector.get("gradients", {}).items():
        yield f"the gradient of {name}", before, found["gradients"].get(name)


def _first_difference(before: Data, now: Data) -> int | None:
    """Return the place of the first number that differs; -1 where it is something else."""
    if before is None or now is None:
        return None if before is now else -1
    if before["shape"] != now["shape"] or before["dtype"] != now["dtype"]:
        return -1
    a, b = (np.asarray(decode(each), np.float64).ravel() for each in (before, now))
    with np.errstate(invalid="ignore"):
        near = np.abs(a - b) <= CLOSE.get(before["dtype"], 0.0) * np.maximum(1.0, np.abs(a))
    off = ~(near | (a == b) | (np.isnan(a) & np.isnan(b)))
    return int(np.argmax(off)) if off.any() else None


def _at(array: Data, place: int) -> str:
    if array is None:
        return "none"
    if place < 0:
        return f"{array['dtype']} of shape {tuple(array['shape'])}"
    value = array["values"][place]
    return say([value]) if isinstance(value, str) else str(value)


def _where(inputs: Mapping[str, Data], place: int) -> str:
    words = []
    for name, data in inputs.items():
        if isinstance(data, str):
            words.append(f"{name}={say([data])}")
        elif 0 <= place < len(data["values"]):
            words.append(f"{name}={_at(data, place)}")
    return f", at {', '.join(words)}" if words else ""
