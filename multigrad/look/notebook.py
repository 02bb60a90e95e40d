"""What notebooks show of each kind of object: a table of kinds, and a page for each.

A page never raises: where something cannot be captured or read, it says why.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter
from typing import Any

from ..backend.finding.discovery import Statuses
from ..errors import MultigradError
from ..functions.calls.bound import BoundFunction
from ..functions.calls.decision import SHOWN
from ..functions.chain import Chain
from ..functions.function import Function
from ..functions.recipes.examples import find_variant
from ..graph.ir.graph import Graph
from ..graph.support import html
from ..lowering.function_graph import FunctionGraph
from ..models.attribution.composites import Composite
from ..models.handle import HEADER, Attachment
from ..rules.estimators.declared import Estimator
from ..rules.in_force.activation import Activation
from ..rules.model.forwards_of_code import ForwardOfCode
from ..rules.model.rule import Rule
from ..rules.registry import RuleNames, get
from ..rules.schedule.schedule import Schedule
from ..trace.trace import NeedsConcrete
from .check import CheckReport
from .convert import BAD, Conversion
from .described import describe_estimator, describe_params, split_docstring
from .drawn import draw_graph
from .parity import ParityReport
from .show import captured_graph, describe_kept


def html_of(obj: Any) -> str:
    """Return the page of an object."""
    for kind, draw in PAGES:
        if isinstance(obj, kind):
            try:
                return draw(obj)
            except Exception as error:
                return html.page(repr(obj), html.quiet(f"{type(error).__name__}: {error}"))
    return html.page(repr(obj))


# --- graphs ---------------------------------------------------------------------------------------


def picture(graph: Graph, title: str = "") -> str:
    """Return a graph as a picture, or as text where it is large."""
    drawn = draw_graph(graph) or html.pre(graph)
    origin = html.quiet(graph.origin)
    return f"{html.heading(title) if title else ''}{drawn}{origin}"


def both(graphs: FunctionGraph) -> str:
    """Return forward and backward beside each other, and what is kept between them."""
    shown = html.beside(picture(graphs.forward, "forward"), picture(graphs.backward, "backward"))
    return shown + html.pre(describe_kept(graphs))


def attempt(draw: Callable[..., str], *args: Any) -> str:
    """Return a part of a page, or why there is none."""
    try:
        return draw(*args)
    except (MultigradError, NeedsConcrete) as error:
        return html.quiet(error)


# --- rules and Functions --------------------------------------------------------------------------


def draw_rule(rule: Rule) -> str:
    params = describe_params(rule)
    formula, source = split_docstring(rule.__doc__)
    rows = [(each.name, default_of(each), each.range or "any") for each in params]
    bound = [(name, repr(value), "bound") for name, value in rule.bound.items()]
    return html.page(
        words_of(rule),
        html.line(formula),
        html.table(("param", "default", "range"), rows + bound) if rows or bound else "",
        attempt(draw_backward, rule),
        html.quiet(f"Source: {source}" if source else ""),
    )


def text_of_param(param: Any) -> str:
    return param.name if param.default is Parameter.empty else f"{param.name}={param.default!r}"


def default_of(param: Any) -> str:
    return "required" if param.default is Parameter.empty else repr(param.default)


def draw_backward(rule: Rule) -> str:
    if rule.native is True:
        return html.quiet("It runs as written (native=True), so it has no graph.")
    return picture(captured_graph(rule.bound_rule()))


def draw_function(function: Function) -> str:
    return html.page(
        words_of(function), html.line(first_line(function)), attempt(of_variant, function)
    )


def words_of(obj: Rule | Function | BoundFunction) -> str:
    """Return its repr without brackets."""
    return repr(obj).removeprefix("<").removesuffix(">")


def first_line(function: Function) -> str:
    return (getattr(function, "__doc__", "") or "").strip().partition("\n\n")[0]


def of_variant(function: Function) -> str:
    return both(find_variant(function, SHOWN).graphs)


def draw_chain(chain: Chain) -> str:
    return html.page(words_of(chain), attempt(of_variant, chain))


def draw_bound(bound: BoundFunction) -> str:
    rows = [(name, repr(value)) for name, value in bound.params.items()]
    function: Any = bound.function
    return html.page(
        words_of(bound),
        html.table(("argument", "value"), rows),
        attempt(of_variant, function),
    )


def draw_estimator(function: Estimator) -> str:
    said = describe_estimator(function)
    rows = [(each.name, default_of(each), each.range or "any") for each in said.params]
    return html.page(
        words_of(function),
        html.line(said.formula),
        html.line(f"Gradients: {said.gradients}"),
        html.table(("argument", "default", "range"), rows) if rows else "",
        attempt(of_variant, function),
        html.quiet(f"Source: {said.source}"),
    )


def draw_activation(activation: Activation) -> str:
    forward = activation.forward
    if activation.rule is None and isinstance(forward, ForwardOfCode):
        return html.page(repr(activation), attempt(of_variant, forward.function))
    return html.page(repr(activation), attempt(under, activation))


def under(activation: Activation) -> str:
    own, forward = activation.own_in_force(), activation.forward
    if own is None:
        backward, note = (
            forward.derivative(),
            "The rule that `use` puts in force acts in its place.",
        )
    else:
        backward, note = captured_graph(own.bound_rule), ""
    first = picture(forward.graph_for({}), "forward")
    return html.beside(first, picture(backward, "backward")) + html.quiet(note)


def draw_bare_graph(graph: Graph) -> str:
    return html.page(graph.name, picture(graph))


def draw_graphs(graphs: FunctionGraph) -> str:
    return html.page(graphs.name, both(graphs))


# --- reports, handles and lists -------------------------------------------------------------------


def draw_check(report: CheckReport) -> str:
    title, *lines = str(report).split("\n")[: -1 - len(report.shown) if report.rows else None]
    heads = (
        "argument",
        "at",
        "surrogate" if report.is_surrogate else "given",
        "true",
        "difference",
    )
    rows = [
        (
            row.argument + "".join(f"[{i}]" for i in row.index),
            *map(short, (row.at, row.given)),
            *map(short, (row.expected, row.error)),
        )
        for row in report.shown
    ]
    said = "".join(html.line(each.strip()) for each in lines)
    return html.page(title, said, html.table(heads, rows) if rows else "")


def short(value: float) -> Any:
    return float(f"{value:.6g}")


def draw_parity(report: ParityReport) -> str:
    heads = ("backend", "what", "dtype", "max ulp", "max abs", "allowed", "")
    rows = [
        (
            row.backend,
            row.what,
            row.dtype,
            short(row.max_ulp),
            short(row.max_abs),
            short(row.allowed),
            "same" if row.ok else row.problem,
        )
        for row in report.rows
    ]
    bad = [i for i, row in enumerate(report.rows) if not row.ok]
    return html.page(str(report).partition("\n")[0], html.table(heads, rows, bad))


def draw_conversion(report: Conversion) -> str:
    title = str(report).partition("\n")[0]
    rows = [
        (
            each.backend,
            each.state,
            each.reason,
            f"{each.place[0]}:{each.place[1]}" if each.place else "",
        )
        for each in report.verdicts
    ]
    bad = [i for i, each in enumerate(report.verdicts) if each.state in BAD]
    return html.page(
        title, html.table(("backend", "state", "reason", "place"), rows, bad) if rows else ""
    )


def draw_attachment(handle: Attachment) -> str:
    count = len(handle)
    title = f"{count} place{'' if count == 1 else 's'} under a rule"
    rows = [(row.name, row.kind, row.rule, row.selector) for row in handle.rows]
    return html.page(
        title if handle.is_attached else f"{title} (detached)", html.table(HEADER, rows)
    )


def draw_schedule(schedule: Schedule) -> str:
    rows = [(schedule.count, short(schedule.value))]
    return html.page(schedule.formula, html.table(("step", "value now"), rows))


def draw_composite(composite: Composite) -> str:
    kinds = (("name", composite.names), ("first", composite.first), ("kind", composite.layers))
    rows = [(by, key, str(rule)) for by, each in kinds for key, rule in each.items()]
    title = f"{composite.name}{' (canonized)' if composite.canonize else ''}"
    return html.page(title, html.table(("by", "layers", "rule"), rows))


def draw_backends(rows: Statuses) -> str:
    cells = [
        (row.name, "yes" if row.installed else "no", row.version or "-", row.reason or "")
        for row in rows
    ]
    return html.page("backends", html.table(("name", "installed", "version", "why not"), cells))


def draw_names(names: RuleNames) -> str:
    rows = [row_of(name) for name in names[: html.MOST_ROWS]]
    return html.page(f"{len(names)} rules", html.table(("rule", "params", "formula"), rows))


def row_of(name: str) -> tuple[str, str, str]:
    try:
        rule = get(name)
    except MultigradError:  # it has been removed since
        return name, "", ""
    return (
        name,
        ", ".join(map(text_of_param, describe_params(rule))),
        split_docstring(rule.__doc__)[0],
    )


PAGES: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Rule, draw_rule),
    (Chain, draw_chain),
    (Estimator, draw_estimator),
    (Function, draw_function),
    (BoundFunction, draw_bound),
    (Activation, draw_activation),
    (Graph, draw_bare_graph),
    (FunctionGraph, draw_graphs),
    (CheckReport, draw_check),
    (ParityReport, draw_parity),
    (Conversion, draw_conversion),
    (Attachment, draw_attachment),
    (Schedule, draw_schedule),
    (Composite, draw_composite),
    (Statuses, draw_backends),
    (RuleNames, draw_names),
)
