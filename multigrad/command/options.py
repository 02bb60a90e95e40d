"""The app, and what its commands share: arguments, a progress line, and how an error or Ctrl-C ends
one.
"""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Self, TypeVar

import typer
import typer.core
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Bar

import multigrad as xg
from multigrad.command import STOPPED
from multigrad.errors import MultigradError, closest

FAILED, MISUSED, FIRST_ORDER = 1, 2, 3  # of `gate` alone: no second derivative
Item = TypeVar("Item")
Body = TypeVar("Body", bound=Callable[..., int | None])


def complete_target(incomplete: str) -> list[str]:
    """Return the rules, estimators and files whose names begin so."""
    from multigrad.estimators import catalogue

    names = [*xg.rules(), *(f"estimators.{name}" for name in catalogue())]
    folder = "".join(incomplete.rpartition("/")[:2])  # as it is typed: Path drops "./"
    for path in Path(folder).iterdir() if Path(folder).is_dir() else ():
        if path.is_dir() or path.suffix in (".py", ".json"):
            names.append(f"{folder}{path.name}{'/' if path.is_dir() else ''}")
    return [name for name in sorted(names) if name.startswith(incomplete)]


NAMES = (
    "A rule's name, see: multigrad rules; FILE.py:name or module:name of a rule, a Function or a "
    "custom gradient of a framework; estimators.NAME; or a saved .json. "
)
ALL = f"{NAMES}A file, a module or a package without a name is all that it defines."
Target = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help=f"{NAMES}A file or a module without a name is the only one in it.",
        autocompletion=complete_target,
    ),
]
Targets = Annotated[
    list[str],
    typer.Argument(metavar="TARGET...", help=ALL, autocompletion=complete_target),
]
INPUT = (
    "An argument, once for each in order: 4x6 (a tensor), 4x6:int64, 4x6:bool, 4x6:1..5 (within 1 "
    "and 5), 6:float32 (one axis), scalar, scalar:1..2 or scalar:uniform (within 0 and 1), 0.5 (a "
    "number, of which no gradient is compared), 3, True, None, 'text'. If not given: what "
)
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help=f"{INPUT}GRADIENT_INPUTS of the module says, else guessed."),
]
InputsOfTwo = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help=f"{INPUT}get_inputs() or GRADIENT_INPUTS of the reference says, else GRADIENT_INPUTS "
        "of the kernel, else guessed.",
    ),
]
Forward = Annotated[str | None, typer.Option(help="Put a rule under this activation.")]
Python = Annotated[
    str | None,
    typer.Option(help="Use the frameworks of this Python, which does not need multigrad."),
]
# The same option, whether a command takes one backend or several.
Backends = Annotated[
    str,
    typer.Option(
        "--backend", "--backends", help="Comma-separated backends; all installed if not given."
    ),
]


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn an error that the user can fix into its text and exit code 2."""
    if not gc.isenabled():  # by `main`, while the command is imported
        # What is imported by now lives on: frozen, no collection has to visit it.
        gc.freeze()
        gc.enable()
    try:
        yield
    except BrokenPipeError:  # the reader has gone, as `head` does: click ends quietly
        raise
    except (MultigradError, OSError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        typer.echo(f"error: {text}", err=True)
        raise typer.Exit(MISUSED) from error


def prepare_environment() -> None:
    """Set the environment variables that frameworks read once, at import, unless the user has."""
    # oneDNN sums in another order, and TensorFlow says so on the screen; numbers are compared here.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # On a busy machine threads cost torch ten times the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # TensorFlow takes a new model for retracing by mistake and warns about it.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)


def make_bar(console: Console, *columns: ProgressColumn) -> Bar:
    """Return a progress bar that only a terminal shows, and that disappears when it ends."""
    # Colors may be forced into a file, which a bar would fill.
    is_shown = console.is_interactive and console.file.isatty()
    return Bar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        redirect_stdout=not console.stderr,  # what is printed into a file stays out of the terminal
        disable=not is_shown,
    )


class Interruption:
    """A handler of Ctrl-C that remembers it, even if a framework swallows or converts the error.

    It ends the `with`, and no error leaves it.
    """

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> Self:
        self.previous = signal.signal(signal.SIGINT, self.interrupt)
        self.hook, sys.unraisablehook = sys.unraisablehook, self.report
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> bool:
        signal.signal(signal.SIGINT, self.previous)
        sys.unraisablehook = self.hook
        return self.requested

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        raise KeyboardInterrupt

    def report(self, lost: Any) -> None:
        # JAX's callback of the garbage collector cannot raise: an interrupt in it ends up here.
        if lost.exc_type is not KeyboardInterrupt:
            self.hook(lost)


class Progress(ExitStack):
    """A line of standard error that names the current work, if a person watches it.

    Ctrl-C ends the `with`, after which a command shows what it has. `stopped` says so.
    """

    def __init__(self, echo: Callable[[str], object] = typer.echo) -> None:
        super().__init__()
        self._echo = echo
        self._interruption = Interruption()
        self._bar = make_bar(Console(stderr=True))
        self._task = self._bar.add_task("starting", total=None)

    @property
    def stopped(self) -> bool:
        return self._interruption.requested

    def __enter__(self) -> Self:
        self.enter_context(self._interruption)
        self.enter_context(self._bar)
        return self

    def begin(self, what: str, total: int | None = None) -> None:
        # Names of targets may have brackets, which rich reads as markup.
        self._bar.reset(self._task, description=escape(what), total=total)

    def advance(self, what: str = "") -> None:
        """Count a finished part, and rename the work if a name is given."""
        changes: dict[str, Any] = {"description": escape(what)} if what else {}
        self._bar.update(self._task, advance=1, **changes)

    def each(self, items: Collection[Item]) -> Iterator[Item]:
        """Yield items, and show the name of each while it is in progress."""
        self.begin("", len(items))
        for item in items:
            self._bar.update(self._task, description=escape(str(item)))
            yield item
            self.advance()

    def echo(self, text: str) -> None:
        # The line is live: a print below it would tear it apart.
        self._bar.stop()
        self._echo(text)
        self._bar.start()


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show what is in progress, and exit if Ctrl-C ends it."""
    with Progress() as progress:
        progress.begin(what)
        yield
    if progress.stopped:
        raise typer.Exit(STOPPED)


def split(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"multigrad {xg.__version__}")
        raise typer.Exit()


class Commands(typer.core.TyperGroup):
    """The commands; the error about an unknown one names a rule that is like it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if closest(name, self.list_commands(ctx)) is None and (rule := closest(name, xg.rules())):
            ctx.fail(f"No such command {name!r}. Did you mean: multigrad show {rule}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    name="multigrad",
    cls=Commands,
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


def command(example: str) -> Callable[[Body], Body]:
    """Add a command to the app; what it returns is the exit status.

    An error that the user can fix becomes its text and exit status 2, Ctrl-C exit status 130.
    """

    def add(body: Body) -> Body:
        @functools.wraps(body)
        def run(**options: Any) -> None:
            status = None
            prepare_environment()
            # Inside: what Ctrl-C makes of an import is no error of the user's.
            with report_errors(), Interruption() as interruption:
                status = body(**options)
            raise typer.Exit(STOPPED if interruption.requested else status or 0)

        app.command(epilog=f"Example: multigrad {example}")(run)
        return body

    return add
