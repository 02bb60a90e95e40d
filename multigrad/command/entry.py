"""The app of `multigrad`, and the decorator by which `app.py` adds commands to it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from .options import report_errors, show_version

app = typer.Typer(
    name="multigrad",
    no_args_is_help=True,
    # typer's own tracebacks show locals, which may be whole tensors.
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Write a gradient rule once; train with it in PyTorch, JAX, TensorFlow and Keras."""


Body = TypeVar("Body", bound=Callable[..., int | None])


def command(example: str) -> Callable[[Body], Body]:
    """Add a command to the app; what it returns is the exit status.

    An error that the user can fix becomes its text and exit status 2.
    """

    def add(body: Body) -> Body:
        @functools.wraps(body)
        def run(**options: Any) -> None:
            with report_errors():
                status = body(**options)
            raise typer.Exit(status or 0)

        app.command(epilog=f"Example: multigrad {example}")(run)
        return body

    return add
