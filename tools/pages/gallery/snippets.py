"""Code to copy: a rule in each framework, in a few lines that run."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).with_name("snippets")


@dataclass(frozen=True, slots=True)
class Snippets:
    """The code of one framework, as its file has it; the file says what the words in it mean."""

    title: str
    place: int
    array: str
    under: str
    on_gradients: str
    function: str


@functools.cache
def read_snippets() -> dict[str, Snippets]:
    """Return the code of each framework by its name, in the order of the page."""
    files = sorted(FOLDER.glob("*.toml"))
    rows = {file.stem: Snippets(**tomllib.loads(file.read_text("utf-8"))) for file in files}
    return dict(sorted(rows.items(), key=lambda row: row[1].place))


def write_snippets(
    name: str, params: Mapping[str, Any], *, on_gradients: bool, is_random: bool
) -> dict[str, str]:
    """Return the code for each framework; the params are written where there are some."""
    given = ", ".join(f'"{key}": {value!r}' for key, value in params.items())
    words = {
        "$rule": f'"{name}"',
        "$params": f", {{{given}}}" if given else "",
        "$key": ", key=0" if is_random else "",
    }
    found = {}
    for framework, snippets in read_snippets().items():
        text = snippets.on_gradients if on_gradients else snippets.under
        # jax has no generator of its own: draws need a key there.
        seeded = f"with xg.use({words['$rule']}, key=0):\n"
        text = text.replace("$with    ", f"{seeded}    " if is_random else "")
        for word, meant in words.items():
            text = text.replace(word, meant)
        found[framework] = text
    return found


def write_function_snippets(
    function: Any, params: Mapping[str, Any], *, is_random: bool
) -> dict[str, str]:
    """Return the code for each framework: arguments that differ from the defaults are written."""
    written, arrays = {}, {}
    for argument in function.arguments[1:]:
        value = params[argument.name]
        if hasattr(value, "shape"):
            arrays[argument.name] = value
            written[argument.name] = argument.name
        elif argument.default is inspect.Parameter.empty or type(value) in (int, float):
            written[argument.name] = repr(value)
    given = "".join(f", {name}={text}" for name, text in written.items())
    key = ".keyed(0)" if is_random else ""
    found = {}
    for framework, snippets in read_snippets().items():
        lines = [
            f"{name} = {snippets.array}({np.round(value, 2).tolist()})"
            for name, value in arrays.items()
        ]
        first = f"xg.estimators.{function.name}{key}("
        inner = f"{first}\n    x{given}\n)"
        text = snippets.function.replace("$arrays", "".join(f"{line}\n" for line in lines))
        text = text.replace("$local", "".join(f"{line}\n        " for line in lines))
        text = text.replace("$call", inner)
        text = text.replace("$inner", f"{first}\n        x{given}\n    )")
        found[framework] = text.replace("$deep", f"{first}\n            x{given}\n        )")
    return found
