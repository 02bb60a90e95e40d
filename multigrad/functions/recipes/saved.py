"""Functions from documents: what a document says, and the recipe, of graphs instead of code.

A call is matched with what was saved by the names of its arguments, so that an argument may come by
keyword or by position.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Any

from ...errors import TraceError
from ...graph import ops
from ...graph.ir.types import INTEGERS
from ...graph.support.class_bases import dataclass
from ...graph.support.trees import optree
from ...trace.derived.calls import replay
from ...trace.trace import Trace, Value
from ..calls.arguments import Layout, Leaf, flatten, read_layout
from ..calls.binding import assemble
from ..calls.recipe import NotCaptured, Recipe, Recorded, Variant
from ..documents.format import Form, choose


@dataclass(frozen=True, slots=True, eq=False)
class SavedFunction:
    """What a document says of a Function; `text` is the document.

    Attributes:
        defaults: what a call may leave out, the last of the parameters, by name.
        key: of its draws.
    """

    name: str
    parameters: tuple[str, ...]
    forms: tuple[Form, ...]
    text: str
    doc: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[int, int] | None = None


def recipe_of_document(saved: SavedFunction) -> Recipe:
    """Return the recipe of a Function from a document."""
    signature = _signature_of(saved)

    def refused(layout: Layout) -> Mapping[str, str]:
        names = {leaf.name for leaf in layout.tensors}
        said = [row for form in saved.forms for row in form.layout.graphs.refused.items()]
        return {name: message for name, message in said if name in names}

    return Recipe(
        saved.name,
        partial(_refuse_run, saved.name),
        partial(_record, saved, signature),
        signature=signature,
        native=False,
        refused=refused,
        origin=saved,
    )


def _signature_of(saved: SavedFunction) -> inspect.Signature:
    # The names of the arguments; of those that are given by name alone, the saved ones.
    kind, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    given, empty = saved.defaults, inspect.Parameter.empty
    rows = [inspect.Parameter(n, kind, default=given.get(n, empty)) for n in saved.parameters]
    named = dict.fromkeys(name for form in saved.forms for name in _named(form.layout))
    rest = [name for name in named if name not in saved.parameters and name.isidentifier()]
    rows += [inspect.Parameter(name, by_name, default=None) for name in rest]
    return inspect.Signature(rows)


def _refuse_run(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    # There is nothing to run but graphs.
    raise TraceError(f"function {name!r} comes from a document, so it cannot run as written")


def _record(
    saved: SavedFunction,
    signature: inspect.Signature,
    trace: Trace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    leaves, tree = flatten(args, kwargs)
    layout = read_layout(saved.name, signature, leaves, tree)
    given = {leaf.name: value for leaf, value in zip(layout.leaves, leaves, strict=True)}
    form = _choose(saved, trace, layout, given)
    variant, graphs = form.layout, form.layout.graphs
    values = {name: value for name, value in given.items() if isinstance(value, Value)}
    # The keys of its draws are those of this capture.
    values.update(form.enter(trace))
    forward, backward = form.graphs
    outputs = replay(trace, forward, values)

    def pull(upstream: Any) -> Any:
        flat = optree.tree_leaves(upstream, none_is_leaf=True)
        flat = [each for i, each in enumerate(flat) if i not in variant.fixed]
        cotangents = dict(zip(graphs.cotangents, flat, strict=True))
        found = replay(trace, backward, {**values, **cotangents})
        gradients = dict(zip(graphs.wrt, found, strict=True))
        rows = [gradients.get(leaf.name) for leaf in layout.leaves]
        own, named = optree.tree_unflatten(tree, rows)
        return (*own, named) if named else own

    marked = tuple(outputs[i] for i in graphs.undifferentiable)
    nested = assemble(variant, outputs)
    return Recorded(
        nested,
        pull,
        graphs.first_order,
        keeps_output=graphs.keeps_output,
        undifferentiable=marked,
        second_order=graphs.second_order,
    )


def _choose(saved: SavedFunction, trace: Trace, layout: Layout, given: Mapping[str, Any]) -> Form:
    of_layout = [form for form in saved.forms if _takes(form.layout, layout, given)]
    # It asks for more facts if they decide which form fits.
    form = choose(of_layout, {**trace.facts, **_numbers_of(given)})
    if form is None:
        known = dict.fromkeys(_describe(form.layout) for form in of_layout or saved.forms)
        raise NotCaptured(
            trace.error(
                f"was not saved for ({layout.describe()}), but for {'; '.join(known)}. Where "
                f"its source is, call it like this too and save it again"
            )
        )
    return form


def _named(variant: Variant) -> list[str]:
    tree = variant.layout.tree
    return sorted(optree.tree_unflatten(tree, range(tree.num_leaves))[1])


def _takes(variant: Variant, layout: Layout, given: Mapping[str, Any]) -> bool:
    own = {leaf.name: leaf for leaf in variant.layout.leaves}
    return own.keys() == {leaf.name for leaf in layout.leaves} and all(
        _takes_leaf(variant, own[leaf.name], leaf, given[leaf.name]) for leaf in layout.leaves
    )


def _takes_leaf(variant: Variant, own: Leaf, leaf: Leaf, value: Any) -> bool:
    if own.kind != leaf.kind:
        return False
    if own.kind == "static":
        return type(own.value) is type(value) and repr(own.value) == repr(value)
    if own.kind == "number":
        return True
    node = variant.graphs.forward.input(own.name)
    assert node is not None
    mine, other = node.type, value.node.type
    both_integers = mine.dtype in INTEGERS and other.dtype in INTEGERS
    # Which tensor comes first, to whose shape the others relate, is of interest to facts alone.
    alike = mine.shape == other.shape or variant.facts.keys().isdisjoint(("ndim", "shape"))
    return alike and (mine.dtype == other.dtype or both_integers)


def _numbers_of(given: Mapping[str, Any]) -> dict[str, Any]:
    nodes = {name: value.node for name, value in given.items() if isinstance(value, Value)}
    return {f"param:{n}": node.attr("value") for n, node in nodes.items() if node.op is ops.CONST}


def _describe(variant: Variant) -> str:
    leaves = variant.layout.leaves
    words = [
        f"{leaf.path} = {leaf.value!r:.60}"
        if leaf.kind == "static"
        else f"{leaf.path}: {leaf.dtype or leaf.kind}"
        for leaf in leaves
    ]
    facts = [f"{name} {value}" for name, value in variant.facts.items()]
    return f"({', '.join([*words, *facts])})"
