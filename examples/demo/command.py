"""The command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multigrad.command.options import report_errors, split

from . import experiment
from .results import Options
from .task import EPOCHS, LEARNING_RATE, QUICK_EPOCHS, QUICK_LEARNING_RATE

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog="Example: python examples/demo --frameworks numpy,torch --rules true --quick")
def demo(
    frameworks: Annotated[
        str, typer.Option(help="Comma-separated frameworks; all installed ones if not given.")
    ] = "",
    rules: Annotated[
        str,
        typer.Option(
            help="Comma-separated rules, none of them random; 'true' is the true derivative."
        ),
    ] = "",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs per run: 100, or 10 with --quick.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights and batches.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the PNG files and results.json.")] = Path(
        "multigrad-demo"
    ),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="10 epochs at six times the learning rate.",
        ),
    ] = False,
) -> None:
    """Train FreeGrad's DIGITS experiment in every installed framework and compare the numbers."""
    usual = (QUICK_EPOCHS, QUICK_LEARNING_RATE) if quick else (EPOCHS, LEARNING_RATE)
    with report_errors():
        experiment.check_packages()
        options = Options(
            frameworks=split(frameworks),
            rules=split(rules),
            epochs=epochs or usual[0],
            seed=seed,
            out=out,
            learning_rate=usual[1],
        )
        code = experiment.run(options)
    raise typer.Exit(code)
