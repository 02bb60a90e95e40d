"""What `multigrad plot` writes: pictures of rules."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multigrad.errors import MultigradError
from multigrad.graph.support.files import replacing
from multigrad.look.plotting.figure import make_figure, plot

from .named import find, find_forward

KINDS = (".png", ".svg", ".pdf")


def write_picture(
    names: Sequence[str], forward: str | None, words: Sequence[str], out: Path | None
) -> Path:
    """Draw rules into a file and return its path.

    Raises:
        MultigradError: no rule is named, or one cannot be drawn, or the file is of another kind.
        OSError: it cannot be written.
    """
    if not names:
        raise MultigradError("name a rule, such as: multigrad plot triangular")
    path = out or Path(f"{names[0].rpartition(':')[2]}.png")
    if path.suffix.lower() not in KINDS:
        raise MultigradError(
            f"{path} is not a picture file; its name must end with {', '.join(KINDS)}"
        )
    what = [find(name) for name in names]
    axes = make_figure().subplots()
    plot(
        what if len(what) > 1 else what[0],
        None if forward is None else find_forward(forward),
        read_params(words),
        ax=axes,
    )
    with replacing(path) as temporary:
        axes.figure.savefig(temporary, dpi=150)
    return path


def read_params(words: Sequence[str]) -> dict[str, Any]:
    """Return params from words: width=0.5,1,2.

    Raises:
        MultigradError: a word is no param.
    """
    params = {}
    for word in words:
        name, sign, values = word.partition("=")
        if not sign or not name.isidentifier() or not values:
            raise MultigradError(f"{word!r} is not a param; write it as width=0.5,1,2")
        found = [read_value(value.strip()) for value in values.split(",")]
        params[name] = found if len(found) > 1 else found[0]
    return params


def read_value(word: str) -> Any:
    """Return a value as Python writes it, or the word."""
    try:
        return ast.literal_eval(word)
    except (SyntaxError, ValueError):
        return word
