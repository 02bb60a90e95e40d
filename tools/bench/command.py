"""The command and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from multigrad.command.options import Backends, report_errors, split

from . import benchmark, cases
from .rivals import read_source

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(epilog="Example: python tools/bench --rules arctan --sizes 1e3,1e6 --backend torch")
def bench(
    rules: Annotated[
        str, typer.Option(help="Comma-separated rules; all that have rivals if not given.")
    ] = "",
    sizes: Annotated[
        str, typer.Option(help="Comma-separated numbers of elements: 1e2 to 1e7 if not given.")
    ] = "",
    backends: Backends = "",
    only: Annotated[
        str,
        typer.Option(
            help="Comma-separated parts: rules (against code by hand), bridges (one framework in "
            "another), keras (epochs of fit), packages (snnTorch and others, where they are "
            "installed); all of these if not given; or gpu (rules on torch's GPU, alone)."
        ),
    ] = "",
    threads: Annotated[str, typer.Option(help="one, all or both.")] = "one",
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            help="Compare with a file that --json wrote; or with another checkout, a folder: both "
            "are measured five times, in turns."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the figures into this PNG file.")] = None,
    overheads: Annotated[
        bool, typer.Option("--overheads/--no-overheads", help="Measure fixed costs as well.")
    ] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two sizes, few rounds: takes a minute.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the hand-written rivals and run nothing.")
    ] = False,
) -> None:
    """Measure what a rule costs, in time and memory, against hand-written code and FreeGrad."""
    with report_errors():
        if show:
            for name in split(backends) or cases.WITH_RIVALS:
                cases.check_backend_name(name, cases.WITH_RIVALS)
                typer.echo(f"# {name}\n{read_source(name)}")
            return
        chosen = cases.choose_cases(split(rules))
        parts = cases.choose_parts(split(only), chosen)
        options = cases.Options(
            chosen,
            cases.choose_sizes(split(sizes), cases.QUICK_SIZES if quick else cases.SIZES),
            cases.choose_backends(split(backends)),
            threads=cases.check_threads(threads),
            quick=quick,
            overheads=overheads,
            numbers=json,
            earlier=compare,
            picture=plot,
            parts=parts,
            bridge_sizes=cases.choose_sizes(split(sizes), cases.BRIDGE_SIZES),
            gpu_sizes=cases.choose_sizes(split(sizes), cases.GPU_SIZES),
            package_sizes=cases.choose_sizes(split(sizes), cases.PACKAGE_SIZES),
            absences=cases.list_absences(split(backends), parts),
        )
        code = benchmark.run(options)
    raise typer.Exit(code)
