"""What several commands have in common: their arguments, and how an error ends one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

import multigrad as xg
from multigrad.errors import MultigradError

FAILED, MISUSED = 1, 2

RuleName = Annotated[
    str,
    typer.Argument(metavar="RULE", help="A rule's name, see: multigrad rules; or estimators.NAME."),
]

Named = Annotated[
    str,
    typer.Argument(
        metavar="WHAT",
        help="module:name of a Function, a rule or an activation; a saved file; estimators.NAME; "
        "or a rule's name.",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--input", help="The shape of a tensor, such as 3x4; once per tensor."),
]
Numbers = Annotated[
    list[float] | None,
    typer.Option("--number", help="A number after the tensors; once per number."),
]

# Whether one backend can be named or several, the option is the same.
Backends = Annotated[
    str,
    typer.Option(
        "--backend", "--backends", help="Comma-separated backends; all installed if not given."
    ),
]


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn an error that the user can mend into its text and exit code 2."""
    try:
        yield
    except BrokenPipeError:  # the reader has gone, as `head` does: click ends quietly
        raise
    except (MultigradError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(MISUSED) from error


def prepare_environment() -> None:
    """Set what frameworks read when they are imported; `multigrad rules` needs nothing of it."""
    from multigrad.demo.frameworks import prepare_environment as prepare

    prepare()


def split(text: str) -> list[str]:
    """Return the words of a comma-separated option."""
    return [word.strip() for word in text.split(",") if word.strip()]


def show_version(asked: bool) -> None:
    """Print the version and end, where it is asked for."""
    if asked:
        typer.echo(f"multigrad {xg.__version__}")
        raise typer.Exit()
