"""The commands of `multigrad` and their options: each calls the public functions and prints."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from enum import StrEnum
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

import multigrad as xg
from multigrad.engine.support.extras import import_conformance
from multigrad.engine.support.files import write_whole
from multigrad.errors import MultigradError

from . import STOPPED
from .options import (
    ALL,
    FAILED,
    FIRST_ORDER,
    MISUSED,
    Backends,
    Forward,
    Inputs,
    InputsOfTwo,
    Progress,
    Python,
    Target,
    Targets,
    app,
    command,
    complete_target,
    split,
    working,
)

# Commands import what they need when they run, so that --help starts fast.
if TYPE_CHECKING:
    from multigrad.look.rule_description import Described

INDENT, WIDEST = 4, 100  # of lists of rules


class Float(StrEnum):
    """The values of --dtype."""

    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"
    float64 = "float64"


@command("backends --load")
def backends(
    load: Annotated[bool, typer.Option("--load", help="Import each one, to be certain.")] = False,
) -> None:
    """List the frameworks that multigrad knows, and why one cannot be used."""
    table = Table("name", "installed", "version", "why not", box=SIMPLE_HEAD)
    with working("importing the frameworks"):
        rows = xg.backends(load=load)
    for row in rows:
        is_there = "yes" if row.installed else "no"
        table.add_row(row.name, is_there, row.version or "-", escape(row.reason or ""))
    Console().print(table)


@command("rules atan")
def rules(
    word: Annotated[
        str,
        typer.Argument(
            metavar="[WORD]", help="Only those with this word in name, formula or source."
        ),
    ] = "",
    family: Annotated[str, typer.Option(help="Only those of one family, such as spiking.")] = "",
    like: Annotated[str, typer.Option(help="The same as WORD.", hidden=True)] = "",
    estimators: Annotated[
        bool, typer.Option("--estimators", help="List the Functions of xg.estimators instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of JSON objects.")] = False,
) -> None:
    """List the registered rules by family, with their params, ranges and formulas."""
    from multigrad.look.rule_description import list_rules

    rows = list_rules(family, word or like, estimators)
    if as_json:
        typer.echo(json.dumps([row.to_dict() for row in rows], indent=1))
    else:
        print_rules(rows, Console())


def print_rules(rows: Sequence[Described], console: Console) -> None:
    """Print rules under the headings of their families, in lines of the console's width."""
    width = min(console.width, WIDEST)
    for (kind, family, heading), group in groupby(rows, attrgetter("kind", "family", "heading")):
        place = f"xg.estimators, {family}" if kind == "estimator" else family
        # Wrapped here: rich would break at the console's width, not at WIDEST.
        lines = textwrap.wrap(f"{place}: {heading}" if place else heading, width)
        console.print(Text("\n".join(lines), style="bold underline"), soft_wrap=True)
        for row in group:
            console.print(format_rule(row, width), soft_wrap=True)
        console.print()


def format_rule(row: Described, width: int) -> Text:
    """Return a rule as lines: name and params, then its formula."""
    params, indent = ", ".join(map(str, row.params)), " " * INDENT
    wrapped = textwrap.TextWrapper(width, subsequent_indent=indent, break_on_hyphens=False)
    name = f"  {row.name}"
    first, *lines = wrapped.wrap(f"{name}  {params}".rstrip())
    # Only the name is bold, so that it is cut from the wrapped line.
    text = Text("\n").append(name, style="bold").append("\n".join([first[len(name) :], *lines]))
    wrapped.initial_indent = indent
    paragraphs = [row.formula, f"Gradients: {row.gradients}" if row.gradients else ""]
    formula = "".join(f"\n{wrapped.fill(each)}" for each in paragraphs if each)
    return text.append(formula, style="dim")


@command("plot triangular --forward Heaviside --param width=0.5,1,2")
def plot(
    targets: Targets = (),  # type: ignore[assignment]
    forward: Annotated[
        str | None, typer.Option(help="An activation, drawn with its true derivative.")
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--param", help="A param with its values, such as width=0.5,1,2."),
    ] = None,
    gallery: Annotated[bool, typer.Option("--gallery", "--all", hidden=True)] = False,
    out: Annotated[Path | None, typer.Option(help="The file: .png, .svg or .pdf.")] = None,
) -> int:
    """Draw what rules do to gradients."""
    from multigrad.look import figure
    from multigrad.look.pictures import make_picture

    from .guessed_inputs import read_params
    from .targets import find, find_forward, names_of

    if gallery:
        raise MultigradError(
            "a page with all rules is written by a clone of multigrad's repository; type there: "
            "python tools/write_gallery.py --out gallery.html"
        )
    if not targets:
        raise MultigradError("name a rule, such as: multigrad plot triangular")
    names = [name for target in targets for name in names_of(target)]
    # Without the folder or module in front of the name.
    path = out or Path(f"{Path(targets[0].rpartition(':')[2]).stem}.png")
    activation = None if forward is None else find_forward(forward)
    numbers, ruled, pictures, status = read_params(params or ()), list[xg.Rule](), [], 0
    for name in names:
        try:
            if isinstance(found := find(name), xg.Rule):
                ruled.append(found)
            else:
                pictures.append(make_picture(found, activation, numbers))
        except MultigradError as error:
            if len(names) == 1:
                raise
            typer.echo(f"{name} is not drawn: {error}", err=True)
            status = FAILED
    # Rules share axes, and each Function has its own.
    pictures = [make_picture(ruled, activation, numbers), *pictures] if ruled else pictures
    if pictures:
        figure.save(pictures, path)
        typer.echo(path)
    return status


@command("show triangular --forward Heaviside")
def show(
    target: Target,
    forward: Annotated[
        str | None, typer.Option(help="Show the rule under this activation, forward included.")
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also say what forward keeps for backward.")
    ] = False,
    inputs: Inputs = None,
) -> None:
    """Print the graph captured from a rule, a Function or a custom gradient."""
    from .targets import find

    typer.echo(xg.show(find(target, forward, inputs or ()), memory=memory))


@command("source triangular --backend torch --forward Heaviside")
def source(
    target: Target,
    named: Annotated[str, typer.Argument(metavar="[BACKEND]", help="The same, by position.")] = "",
    backend: Annotated[str, typer.Option(help="See: multigrad backends.")] = "numpy",
    forward: Annotated[str, typer.Option(help="The activation that a rule sits under.")] = "Linear",
    inputs: Inputs = None,
) -> None:
    """Print the code that runs for a target on one backend; NumPy's if none is named."""
    from .targets import find, find_forward

    backend, known = named or backend, [row.name for row in xg.backends()]
    # People name the rule and the backend in either order.
    if target in known and backend not in known:
        target, backend = backend, target
    found = find(target, words=inputs or ())
    typer.echo(xg.source(found, backend, forward=find_forward(forward)))


@command("eject triangular --backend torch --forward Heaviside")
def eject(
    target: Target,
    backend: Annotated[str, typer.Option(help="See: multigrad backends")],
    forward: Annotated[str, typer.Option(help="The activation that a rule sits under.")] = "Linear",
    params: Annotated[
        list[str] | None,
        typer.Option("--param", help="A default of a rule, such as width=2.0; may be repeated."),
    ] = None,
    inputs: Inputs = None,
    out: Annotated[Path | None, typer.Option(help="The file; printed if not given.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a rule, a Function or a custom gradient as one file that runs without multigrad."""
    from multigrad.look.source import with_note

    from .guessed_inputs import with_params
    from .targets import find, find_forward

    with working(f"writing {target} for {backend}"):
        rule = with_params(find(target, words=inputs or ()), params or ())
        text, note = with_note(rule, backend, find_forward(forward))
    if note:
        typer.echo(f"note: {note} For others, give --input.", err=True)
    if out is None:
        typer.echo(text, nl=False)
    elif out.exists() and not force:
        raise MultigradError(f"{out} exists; name another file, or add --force")
    else:
        write_whole(out, text)


@command("check my_functions.py:clipped_relu --input 2x3 --input 2.0")
def check(
    target: Target,
    forward: Forward = None,
    backend: Annotated[
        str | None, typer.Option(help="Where to run it; NumPy if not given.")
    ] = None,
    inputs: Inputs = None,
) -> int:
    """Compare a gradient with finite differences, or a surrogate with the true derivative."""
    from .targets import find_with_inputs

    with working(f"checking {target}"):
        found, arrays, _ = find_with_inputs(target, forward, inputs or (), "float64")
        report = xg.check(found, *arrays, backend=backend)
    typer.echo(report)
    # A wrong gradient is a result, not an error: it has its own exit status.
    return 0 if report.ok else FAILED


@command("parity triangular --forward Heaviside --backend numpy,torch")
def parity(
    target: Target,
    forward: Forward = None,
    backends: Backends = "",
    dtype: Annotated[
        Float | None,
        typer.Option(
            help="float16, bfloat16, float32 or float64, of inputs that name none; if not given: "
            "float32, or that of GRADIENT_INPUTS.",
        ),
    ] = None,
    inputs: Inputs = None,
) -> int:
    """Run forward and backward on every backend and compare the numbers with float64."""
    from multigrad.look.parity import ParityReport, find_names
    from multigrad.look.subject import in_dtype, make_inputs, subject_of

    from .targets import find_with_inputs

    reports: list[ParityReport] = []
    kind = dtype.value if dtype else "float32"
    found, arrays, _ = find_with_inputs(target, forward, inputs or (), kind)
    is_made = not arrays
    arrays = arrays or [*make_inputs(subject_of(found))]
    if is_made or (dtype and not inputs):
        arrays = in_dtype(arrays, kind)
    with Progress() as progress:  # one after the other, so that Ctrl-C leaves the rows of some
        progress.begin("importing the frameworks")
        # A backend at a time: the comparison itself is with float64, not between them.
        for name in progress.each(find_names(split(backends) or None)):
            reports.append(xg.parity(found, *arrays, backends=name))
    if reports:
        rows = tuple(row for report in reports for row in report.rows)
        typer.echo(ParityReport(reports[0].name, rows))
    return STOPPED if progress.stopped else 0 if all(reports) else FAILED


@command("convert my_layers.py:Spike --input 4x6 --input 0.5")
def convert(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help=ALL, autocompletion=complete_target)
    ],
    inputs: Inputs = None,
    backends: Backends = "",
    compiled: Annotated[
        str, typer.Option(help="Those on which it also runs compiled.")
    ] = "jax,tensorflow",
    copies: Annotated[
        bool, typer.Option("--copies", help="Let it write to copies of its arguments.")
    ] = False,
    limit: Annotated[
        float, typer.Option(min=1.0, help="Seconds for each custom gradient of a package.")
    ] = 120.0,
    transforms: Annotated[
        bool,
        typer.Option(
            "--transforms/--no-transforms", help="Try vmap and its compiler: seconds each."
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object per line.")] = False,
) -> int:
    """Convert a custom gradient to each backend and compare, or name the line not captured."""
    from .convert import ConvertRequest, convert_named

    names, compiled_on = tuple(split(backends)), tuple(split(compiled))
    options = {"copies": copies, "limit": limit, "transforms": transforms}
    request = ConvertRequest(tuple(inputs or ()), names, compiled_on, **options)
    return convert_named(target, request, as_json=as_json, echo=typer.echo)


@command("audit my_kernels.py --html audit.html")
def audit(
    targets: Targets,
    inputs: Inputs = None,
    laws: Annotated[
        list[str] | None, typer.Option("--law", help="Only this law; may be repeated.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Not this law; may be repeated.")
    ] = None,
    surrogate: Annotated[
        bool | None,
        typer.Option(
            "--surrogate/--derivative",
            help="Whether the gradient is meant to differ from the derivative; else detected.",
        ),
    ] = None,
    # Accepted, as scripts have them; no docstrings and tests are run for their inputs.
    examples: Annotated[bool, typer.Option("--examples/--no-examples", hidden=True)] = False,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds for each target.")] = 120.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object on a line for each target.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write the report as JUnit XML.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one page.")] = None,
) -> int:
    """Test custom gradients, converted or not, against the laws of gradients."""
    from multigrad.audit.audit import choose_laws

    from .audit import AuditRequest, audit_targets

    # Names of laws are checked before any target is imported.
    law_names = tuple(law.name for law in choose_laws(laws or None, without or ()))
    request = AuditRequest(tuple(inputs or ()), law_names, surrogate, limit)
    return audit_targets(targets, request, as_json=as_json, junit=junit, html=html, echo=typer.echo)


@command("same losses.py:plain fused --parameters model --batch batch")
def same(
    path_a: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A function of parameters and a batch: losses.py:plain, my.losses:plain.",
        ),
    ],
    path_b: Annotated[
        str,
        typer.Argument(
            metavar="OTHER",
            help="The other, in the same file unless it names one; or a law of batches: order, "
            "accumulation, padding, packing.",
        ),
    ],
    parameters: Annotated[
        str, typer.Option(help="A model, or tensors; or a function that makes them.")
    ] = "parameters",
    batch: Annotated[str, typer.Option(help="The batch, or a function that makes it.")] = "batch",
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON.")] = False,
) -> int:
    """Compare two ways to compute a loss, parameter by parameter, and explain the difference."""
    from multigrad.audit.same import LAWS_OF_BATCHES

    from .targets import find_beside

    second_path = path_b if path_b in LAWS_OF_BATCHES else find_beside(path_a, path_b)
    objects = [find_beside(path_a, word) for word in (parameters, batch)]
    made = [obj() if callable(obj) and hasattr(obj, "__code__") else obj for obj in objects]
    report = xg.same(find_beside(path_a, path_a), second_path, *made)
    typer.echo(report.to_json() if as_json else report)
    return 0 if report.ok else FAILED


@command("gate kernel.py --reference model.py")
def gate(
    kernel: Annotated[
        str, typer.Argument(metavar="[KERNEL.py]", help="The file to be judged, or FILE.py:name.")
    ] = "",
    reference: Annotated[
        str, typer.Option(help="A file, or FILE.py:name, that computes the same; it may be slow.")
    ] = "",
    name: Annotated[
        str, typer.Option(help="Of what both files have, if they have more than one in common.")
    ] = "",
    inputs: InputsOfTwo = None,
    laws: Annotated[
        list[str] | None, typer.Option("--law", help="Only this law; may be repeated.")
    ] = None,
    dtypes: Annotated[
        str, typer.Option(help="Comma-separated dtypes to compare in.")
    ] = "float32,float16,bfloat16",
    seed: Annotated[int, typer.Option(help="Of the inputs that are drawn.")] = 0,
    limit: Annotated[float, typer.Option(min=1.0, help="Seconds for each of the two.")] = 60.0,
    memory: Annotated[float, typer.Option(help="GiB of memory for each of the two.")] = 4.0,
    serve: Annotated[
        bool, typer.Option("--serve", help="Answer lines of JSON until standard input ends.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON.")] = False,
) -> int:
    """Tell whether a custom gradient is right, beside a reference, each in a walled process."""
    from .gate import GateRequest, gate_files, serve_requests

    law_names = tuple(laws) if laws else None
    request = GateRequest(
        kernel, reference, name=name, words=tuple(inputs or ()), seed=seed, laws=law_names,
        dtypes=tuple(split(dtypes)), limit=limit, memory=memory,
    )  # fmt: skip
    if serve:
        serve_requests(request)
        return 0
    verdict = gate_files(request)
    typer.echo(verdict.to_json() if as_json else verdict)
    if verdict.first_order:
        return FIRST_ORDER
    return 0 if verdict.ok else FAILED if verdict.judged else MISUSED


@command("doctor torch")
def doctor(
    frameworks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FRAMEWORK]...", help="torch, jax, tensorflow; all if none."),
    ] = None,
    python: Python = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> int:
    """Ask the installed frameworks for known silent faults of gradients, by running them."""
    report = xg.doctor(*frameworks or (), python=python)
    typer.echo(report.to_json() if as_json else report)
    return 0 if report.ok else FAILED


@command("lock triangular.json torch:clamp")
def lock(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help=f"{ALL} Also functions of frameworks, as torch:clamp or jax:numpy.clip; without "
            "TARGET every function that has a probe.",
            autocompletion=complete_target,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file.")] = Path("gradients.lock"),
    frameworks: Annotated[
        str,
        typer.Option(
            help="Comma-separated frameworks, whose probes are locked besides TARGET; without "
            "both, those of all installed ones."
        ),
    ] = "",
    python: Python = None,
) -> int:
    """Record what rules, Functions and frameworks give, at kinks too, in gradients.lock."""
    from .lock import write_lock

    summary, is_whole = write_lock(targets or (), out, split(frameworks), python)
    typer.echo(summary)
    # An unfinished lock exits like Ctrl-C, also if a part of it was written.
    return 0 if is_whole else STOPPED


@command("verify gradients.lock")
def verify(
    file: Annotated[
        Path, typer.Argument(metavar="[FILE]", help="What multigrad lock wrote.")
    ] = Path("gradients.lock"),
    frameworks: Annotated[
        str, typer.Option(help="Comma-separated frameworks; all that were locked if not given.")
    ] = "",
    python: Python = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
) -> int:
    """Compare with a lock file, and name what has changed."""
    from .lock import verify_lock

    return verify_lock(file, split(frameworks), python, as_json=as_json, echo=typer.echo)


@command("vectors triangular xp.softplus --dtype float32 --out -")
def vectors(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            help="Rules, ops as xp.softplus, Functions as estimators.ste_round; all if none.",
        ),
    ] = None,
    out: Annotated[str, typer.Option(help="The file; - prints.")] = "-",
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="float16, bfloat16, float32, float64; may be repeated."),
    ] = None,
) -> None:
    """Write inputs, cotangents and exact results as JSON, as mpmath and sympy computed them."""
    from .targets import find

    reader = import_conformance("vectors", "the test vectors")

    # Rules and ops go by name; Functions are objects of a module, or saved files.
    subjects = [find(n) if ":" in n or n.endswith((".json", ".py")) else n for n in targets or ()]
    text = reader.write(reader.vectors_of(*subjects, dtypes=dtype or ()))
    if out == "-":
        typer.echo(text.rstrip("\n"))
    else:
        write_whole(Path(out), text)
        typer.echo(f"{out}: {len(text):,} bytes")


# These commands need a clone of the repository.
MOVED = {"demo": "examples/demo", "bench": "tools/bench"}


def say_where(context: typer.Context) -> None:
    name = context.info_name or ""
    typer.echo(
        f"error: multigrad {name} is {MOVED[name]} in the repository; in a clone of it, type:"
        f" python -m tox run -e {name}",
        err=True,
    )
    raise typer.Exit(MISUSED)


# Any arguments are accepted: they are for the command that has moved.
for _name in MOVED:
    _any = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(_name, hidden=True, context_settings=_any)(say_where)


@command("cache --clear")
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Delete what is kept.")] = False,
) -> None:
    """Show what is kept across processes, compiled libraries, and where."""
    from multigrad.engine.support.files import clear_kept, describe_kept

    typer.echo(clear_kept() if clear else describe_kept())


@command("new-backend mylib")
def new_backend(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The name for importing the framework.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="The new folder; multigrad-NAME if not given.")
    ] = None,
) -> None:
    """Create a package for a new backend; the conformance suite lists what remains to be done."""
    writer = import_conformance("new_backend", "the templates of a backend")
    for path in writer.write_package(name, out):
        typer.echo(path)
    typer.echo(f"next: python -m pip install -e {out or f'multigrad-{name}'} multigrad-conformance")
    typer.echo(f"      python -m pytest --pyargs multigrad_conformance --backends={name}")
