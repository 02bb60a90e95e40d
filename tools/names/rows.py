"""The rows of the dialects' tables by kind and name, and which of them the recorded lines use."""

from __future__ import annotations

import json
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pages import captured

from .record import BINDING, fingerprint

DATA = Path(__file__).parents[2] / "tests" / "project" / "names_used.toml"
LIBRARIES = ("numpy", "torch", "jax", "tensorflow", "keras")
SHARED = "shared"  # the methods and numbers that all libraries share
KINDS = ("function", "hidden", "private", "refused", "tree", "method", "attribute")
Rows = dict[str, dict[str, Any]]  # by kind and name: what the row gives
HEADING = """\
# Written by `python tools/names`: the rows of the dialects' tables that programs use, with the
# corpora that meet each; the rows that none meets; and names that were asked for and have no row.
"""


def rows_of(library: str) -> Rows:
    if library == SHARED:
        return shared_rows()
    table = captured.load(library)
    hidden = {**captured.stand_ins_of([library]), **table.names.hidden}
    for make in table.names.companions.values():
        hidden.update(made(make))
    functions = dict(table.names.aliases)
    if library == "numpy":
        functions.update(scipy_rows())
    private = {}
    if library == "torch":
        from multigrad_torch.dialect import table as torch_table

        private = torch_table.PRIVATE
    names = shown_names(library)
    tables = {"function": functions, "hidden": hidden, "private": private}
    tables |= {"refused": table.names.refused, "tree": dict.fromkeys(table.names.trees)}
    found = {
        kind: {name_in(names, key): value for key, value in rows.items()}
        for kind, rows in tables.items()
    }
    return {**found, "method": dict(table.names.methods), "attribute": dict(table.names.attributes)}


def made(make: Any) -> Mapping[Any, Any]:
    """Return the rows of a companion; none where it is not installed."""
    try:
        return make()
    except (ImportError, KeyError, AttributeError):
        return {}


def shared_rows() -> Rows:
    """Return the methods that all libraries share, and the functions of `math`."""
    from multigrad.engine.capture.copies.stand_ins import MATH
    from multigrad.engine.capture.values import methods

    return {
        "method": {**methods.METHODS, **methods.IN_PLACE},
        "hidden": {fingerprint(key): value for key, value in MATH.items()},
    }


def scipy_rows() -> dict[Any, Any]:
    import scipy.linalg
    import scipy.special

    from multigrad.engine.capture.dialects.scipy import SPECIAL, functions

    special = {getattr(scipy.special, name): value for name, value in SPECIAL.items()}
    return {**special, **functions()}


def shown_names(library: str) -> dict[int, str]:
    """Return the first public name of each of a library's functions, by `id`."""
    return {id(value): name for name, value in reversed(list(public(library)))}


def public(library: str) -> Iterator[tuple[str, Any]]:
    for shown, place in captured.PLACES[library].items():
        holder = captured.find_place(place)
        for name in sorted(dir(holder)):
            value = None if name.startswith("_") else getattr(holder, name, None)
            if callable(value):
                yield f"{shown}.{name}", value


# Torch puts another function in its place once it compiles.
WRAPPED = {"torch.random:manual_seed": "torch.manual_seed"}


def name_in(names: Mapping[int, str], key: Any) -> str:
    """Return how people write a row's function, or where it stands."""
    found = names.get(id(key)) or fingerprint(key)
    return WRAPPED.get(found, found)


# --- what was recorded ----------------------------------------------------------------------------


def read_lines(folder: Path) -> Iterator[list[str]]:
    """Yield what was recorded: corpus, library, kind, name, line of the program."""
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            if line.endswith("]"):  # else its process was killed
                words = json.loads(line)
                yield [*words[:3], BINDING.sub("", words[3]), words[4]]


Used = dict[tuple[str, str, str], dict[str, set[str]]]  # by corpus the lines that meet a row


def gather(folder: Path) -> Used:
    """Return by library, kind and name which lines of which corpora met it."""
    used: Used = defaultdict(lambda: defaultdict(set))
    canonical = {name: dict(canonical_names(name)) for name in LIBRARIES}
    for corpus, library, kind, name, place in read_lines(folder):
        known = canonical.get(library, {})
        used[library, kind, known.get(name, name)][corpus].add(place)
    return used


def canonical_names(library: str) -> Iterator[tuple[str, str]]:
    """Yield every public name of a library's functions, and the one that rows have."""
    names = shown_names(library)
    for name, value in public(library):
        yield name, names[id(value)]
        yield fingerprint(value), names[id(value)]


def use_of(used: Used, library: str, kind: str, name: str) -> Counter[str]:
    """Return how many lines of each corpus meet a row.

    A row of a tensor class is met where the method is called: its functions reach us where the
    first operand is a real tensor.
    """
    keys = [(library, kind, name)]
    if kind in ("function", "private") and name.startswith("Tensor."):
        method = name.partition(".")[2]
        keys += [(library, "called", method), (library, "called", f"{method}_")]
    if kind == "function":
        keys.append((library, "private", name))
    if kind in ("function", "hidden"):
        keys.append((library, "hidden" if kind == "function" else "function", name))
    if library == SHARED and kind == "method":
        keys.append(("torch", "function", f"Tensor.{name}"))
    found: Counter[str] = Counter()
    for key in keys:
        for corpus, places in used.get(key, {}).items():
            found[corpus] += len(places)
    return found


Met = Callable[[str, str, str], Iterable[str]]  # by which corpora a row is met
Missing = Mapping[str, Mapping[str, str]]  # by library and name: corpora, each with its lines


def describe(used: Used) -> str:
    missing: dict[str, dict[str, str]] = defaultdict(dict)
    for (library, kind, name), found in used.items():
        if kind == "missing":
            counts = (f"{corpus} {len(places)}" for corpus, places in sorted(found.items()))
            missing[library or SHARED][name] = ", ".join(counts)
    return described(lambda *row: sorted(use_of(used, *row)), missing)


def describe_again() -> str:
    """Return the committed data without rows that have gone, with new ones as unused."""
    data = read_data()

    def met(library: str, kind: str, name: str) -> list[str]:
        corpora = data["used"].get(library, {}).get(kind, {}).get(name, "")
        return corpora.split(", ") if corpora else []

    return described(met, data["missing"])


def listed(library: str) -> Rows:
    data, rows = read_data(), {kind: {} for kind in KINDS}
    for kind, names in data["used"].get(library, {}).items():
        rows[kind] |= names
    for kind, names in data["unused"].get(library, {}).items():
        rows[kind] |= dict.fromkeys(names["names"].split())
    return rows


def described(met: Met, missing: Missing) -> str:
    lines = [HEADING]
    for library in (*LIBRARIES, SHARED):
        try:
            tables = rows_of(library)
        except ImportError:  # the library is not installed
            tables = listed(library)
        for kind, rows in tables.items():
            found = {name: ", ".join(met(library, kind, name)) for name in rows}
            lines += section(f"used.{library}.{kind}", {n: m for n, m in found.items() if m})
            lines += unused_section(library, kind, [name for name, m in found.items() if not m])
        lines += section(f"missing.{library}", missing.get(library, {}))
    return "\n".join(lines)


def unlisted(library: str) -> dict[str, list[str]]:
    """Return what the data and a library's tables do not agree on, by what is wrong with it.

    An older release lacks functions, and a companion may not be installed: of listed functions
    those are rows no more that the library still shows.
    """
    rows_in_data = listed(library)
    shown = {name for name, _ in public(library)} if library != SHARED else set()
    problems: dict[str, list[str]] = defaultdict(list)
    for kind, found in rows_of(library).items():
        known = rows_in_data[kind].keys()
        gone = known - found.keys()
        if kind not in ("method", "attribute"):
            gone &= shown
        problems["in the data and no row"] += gone
        problems["a row and not in the data"] += found.keys() - known
    return {problem: sorted(names) for problem, names in problems.items() if names}


def section(heading: str, rows: Mapping[str, str]) -> list[str]:
    body = [f"{json.dumps(name)} = {json.dumps(words)}" for name, words in sorted(rows.items())]
    return [f"[{heading}]", *body, ""] if rows else []


def unused_section(library: str, kind: str, names: list[str]) -> list[str]:
    if not names:
        return []
    lines = textwrap.wrap(" ".join(sorted(names)), 98, break_on_hyphens=False)
    return [f"[unused.{library}.{kind}]", 'names = """', *lines, '"""', ""]


def read_data() -> dict[str, Any]:
    return tomllib.loads(DATA.read_text(encoding="utf-8"))
