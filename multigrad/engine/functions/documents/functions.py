"""Functions from documents: their data, checked and decoded, and recipes of graphs instead of code.

    SavedFunction             the document
      forms: Variant          one capture
        layout: Layout        the arguments of the call: names, kinds, dtypes
        facts                 what else has to hold of them
        graphs                forward and backward, which draw from one key; the names of inputs,
                              of cotangents, and of the arguments that get a gradient (`wrt`)

A call is matched with what was saved by the names of its arguments, given by keyword or position.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ....core import ops
from ....core.functions.arguments import Layout, Leaf, flatten
from ....core.functions.recipe import (
    ArgumentRules,
    NotCaptured,
    Options,
    Recipe,
    Recorded,
    Variant,
    assemble,
)
from ....core.ir.graph import ArrayValue, Graph, Node, make_node
from ....core.ir.op import DTYPES, FLOAT_SCALAR, FLOATS, INTEGERS, KEY, UNKNOWN, T, Type, is_float
from ....core.lowering.derivatives import replay
from ....core.lowering.function_graph import OWN_NAMES, FunctionGraph, numbered
from ....core.support.trees import optree
from ....core.trace.trace import NeedsConcrete, Value
from ....errors import TraceError
from ...lowering.calls import draw_in
from ...lowering.checks import format_lengths
from ...lowering.cuts import without_needless_marks
from ...passes.residuals import mark_everywhere, marks
from ...passes.serialize import (
    LARGEST_INDEX,
    MOST_INPUTS,
    MOST_PLACES,
    decode_graph,
    decode_value,
    describe,
    fail,
    read_bool,
    read_fields,
    read_list,
    read_name,
    read_text,
)
from ...trace.code_trace import CodeTrace
from ..calls.arguments import describe_layout, lay_out, read_layout, type_of
from .format import MOST_DOC, Data, decode_arrays


@dataclass(frozen=True, slots=True, eq=False)
class SavedFunction:
    """What a document says of a Function.

    Attributes:
        text: the document, to be saved again, without the defaults and the key: the Function may
            have been given others since, and its own are added.
        defaults: what a call may leave out, the last of the parameters, by name.
        key: of its draws.
    """

    name: str
    parameters: tuple[str, ...]
    forms: tuple[Variant, ...]
    text: str
    doc: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    key: tuple[int, int] | None = None


def recipe_of_document(saved: SavedFunction) -> Recipe:
    """Return the recipe of a Function from a document."""
    # The names of the arguments; of those that are given by name alone, the saved ones.
    kind, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    defaults, empty = saved.defaults, inspect.Parameter.empty
    params = [inspect.Parameter(n, kind, default=defaults.get(n, empty)) for n in saved.parameters]
    trees = [form.layout.tree for form in saved.forms]
    keywords = [optree.tree_unflatten(tree, range(tree.num_leaves))[1] for tree in trees]
    names = dict.fromkeys(name for each in keywords for name in sorted(each))
    by_keyword = [name for name in names if name not in saved.parameters and name.isidentifier()]
    params += [inspect.Parameter(name, by_name, default=None) for name in by_keyword]
    signature = inspect.Signature(params)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        raise TraceError(
            f"function {saved.name!r} comes from a document, so it cannot run as written"
        )

    def refused(layout: Layout) -> Mapping[str, str]:
        names = {leaf.name for leaf in layout.tensors}
        messages = [item for form in saved.forms for item in form.graphs.refused.items()]
        return {name: message for name, message in messages if name in names}

    return Recipe(
        saved.name,
        run,
        partial(_record, saved, signature),
        signature=signature,
        origin=saved,
        is_document=True,
        options=Options(native=False),
        arguments=ArgumentRules(refused=refused),
    )


def _record(
    saved: SavedFunction,
    signature: inspect.Signature,
    trace: CodeTrace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Recorded:
    leaves, tree = flatten(args, kwargs)
    layout = read_layout(saved.name, signature, leaves, tree)
    arguments = {leaf.name: value for leaf, value in zip(layout.leaves, leaves, strict=True)}
    form = _choose(saved, trace, layout, arguments)
    graphs = form.graphs
    values = {name: value for name, value in arguments.items() if isinstance(value, Value)}
    trace.source.routes.setdefault("a saved document", "")
    (forward, backward), keys = draw_in(trace, graphs.forward, graphs.backward)
    values.update(keys)
    outputs = replay(trace, forward, values)

    def pull(upstream: Any) -> Any:
        flat = optree.tree_leaves(upstream, none_is_leaf=True)
        flat = [each for i, each in enumerate(flat) if i not in form.fixed]
        cotangents = dict(zip(graphs.cotangents, flat, strict=True))
        results = replay(trace, backward, {**values, **cotangents})
        gradients = dict(zip(graphs.wrt, results, strict=True))
        leaf_gradients = [gradients.get(leaf.name) for leaf in layout.leaves]
        positional, keywords = optree.tree_unflatten(tree, leaf_gradients)
        return (*positional, keywords) if keywords else positional

    return Recorded(
        assemble(form, outputs),
        pull,
        graphs.first_order,
        keeps_output=graphs.keeps_output,
        undifferentiable=tuple(outputs[i] for i in graphs.undifferentiable),
        second_order=graphs.second_order,
    )


def _choose(
    saved: SavedFunction, trace: CodeTrace, layout: Layout, arguments: Mapping[str, Any]
) -> Variant:
    candidates = [form for form in saved.forms if _takes(form, layout, arguments)]
    nodes = {name: value.node for name, value in arguments.items() if isinstance(value, Value)}
    constants = {n: node.attr("value") for n, node in nodes.items() if node.op is ops.CONST}
    numbers = {f"param:{name}": value for name, value in constants.items()}
    # It asks for more facts if they decide which form fits.
    place = find_fitting([form.facts for form in candidates], {**trace.facts, **numbers})
    if place is None:
        forms = dict.fromkeys(map(_describe, candidates or saved.forms))
        raise NotCaptured(
            trace.error(
                f"was not saved for ({describe_layout(layout)}), but for {'; '.join(forms)}. Where "
                "its source is, call it like this too and save it again (of a pickle: give it a "
                "name in its module, by which it is then pickled)"
            )
        )
    return candidates[place]


def find_fitting(
    facts_of_forms: Sequence[Mapping[str, Any]], known: Mapping[str, Any]
) -> int | None:
    """Return the place of the form that holds for what is known of the arguments, None if none.

    `NeedsConcrete` if more has to be known.
    """
    candidates = [
        (i, facts)
        for i, facts in enumerate(facts_of_forms)
        if all(_is_as(known.get(name, value), value) for name, value in facts.items())
    ]
    for i, facts in candidates:
        if facts.keys() <= known.keys():
            return i
    if candidates:
        raise NeedsConcrete(*(name for name in candidates[0][1] if name not in known))
    return None


def _is_as(value: Any, wanted: Any) -> bool:
    if isinstance(value, tuple) and isinstance(wanted, tuple):  # None: a length that may be any
        return len(value) == len(wanted) and all(
            n in (m, None) for m, n in zip(value, wanted, strict=True)
        )
    return value == wanted


def _takes(variant: Variant, layout: Layout, arguments: Mapping[str, Any]) -> bool:
    saved = {leaf.name: leaf for leaf in variant.layout.leaves}
    return saved.keys() == {leaf.name for leaf in layout.leaves} and all(
        _takes_leaf(variant, saved[leaf.name], leaf, arguments[leaf.name]) for leaf in layout.leaves
    )


def _takes_leaf(variant: Variant, saved: Leaf, leaf: Leaf, value: Any) -> bool:
    if saved.kind != leaf.kind:
        return False
    if saved.kind == "static":
        return type(saved.value) is type(value) and repr(saved.value) == repr(value)
    if saved.kind == "number":
        return True
    node = variant.graphs.forward.input(saved.name)
    assert node is not None
    expected, actual = node.type, value.node.type
    are_integers = expected.dtype in INTEGERS and actual.dtype in INTEGERS
    # Which tensor comes first, to whose shape the others relate, is of interest to facts alone.
    fits = expected.shape == actual.shape or variant.facts.keys().isdisjoint(("ndim", "shape"))
    return fits and (expected.dtype == actual.dtype or are_integers)


def _describe(variant: Variant) -> str:
    leaves = variant.layout.leaves
    words = [
        f"{leaf.path} = {leaf.value!r:.60}"
        if leaf.kind == "static"
        else f"{leaf.path}: {leaf.dtype or leaf.kind}"
        for leaf in leaves
    ]
    facts = [
        f"{name} {format_lengths(value) if isinstance(value, tuple) else value}"
        for name, value in variant.facts.items()
    ]
    return f"({', '.join([*words, *facts])})"


# --- decoding: a document may be hostile ----------------------------------------------------------
MOST_FORMS = 256
FIELDS = ("name", "doc", "parameters", "arrays", "forms")
HELD_FIELDS = ("defaults", "key")  # of Functions that have some; not in `SavedFunction.text`
FORM_FIELDS = (
    "arguments", "nesting", "facts", "outputs", "fixed", "first_order", "keeps_output", "twice",
    "undifferentiable", "wrt", "forward", "backward",
)  # fmt: skip
REFUSED = "refused"  # a field of forms that have inputs without a derivative
LEAF_FIELDS = {
    "tensor": ("name", "path", "kind", "dtype"),
    "number": ("name", "path", "kind"),
    "static": ("name", "path", "kind", "value"),
}
FACT = re.compile(r"(dtype)|(ndim|shape)(?::(\w+))?|(param):(\w+)")
STATIC = (bool, int, str, float, type(None))


def decode_function(data: Data) -> SavedFunction:
    read_fields(data, "", FIELDS, HELD_FIELDS)
    name = read_text(data["name"], "name")
    doc = read_text(data["doc"], "doc", MOST_DOC, "\n\t")
    items = read_list(data["parameters"], "parameters", MOST_INPUTS)
    parameters = tuple(read_name(item, "parameters") for item in items)
    if len(set(parameters)) < len(parameters):
        fail("parameters", "two of them have the same name")
    arrays = decode_arrays(data["arrays"], "arrays")
    items = read_list(data["forms"], "forms", MOST_FORMS)
    if not items:
        fail("forms", "there is none")
    forms = tuple(_decode_form(item, f"forms[{i}]", name, arrays) for i, item in enumerate(items))
    key = None
    if "key" in data:
        words = read_list(data["key"], "key", 2)
        if len(words) != 2 or any(type(n) is not int or not 0 <= n < 2**32 for n in words):
            fail("key", "it is no pair of uint32")
        key = (words[0], words[1])
    return SavedFunction(
        name,
        parameters,
        forms,
        # As text: the data are the caller's, who may change them.
        json.dumps({field: data[field] for field in FIELDS}),
        doc,
        defaults=_decode_defaults(data.get("defaults", []), parameters),
        key=key,
    )


def _decode_defaults(data: Data, parameters: Sequence[str]) -> dict[str, Any]:
    items = read_list(data, "defaults", MOST_INPUTS)
    if len(items) > len(parameters):
        fail("defaults", f"there are {len(items)} for {len(parameters)} parameters")
    values = [decode_value(item, f"defaults[{i}]") for i, item in enumerate(items)]
    return dict(zip(parameters[len(parameters) - len(items) :], values, strict=True))


def _decode_form(data: Data, where: str, name: str, arrays: Sequence[ArrayValue]) -> Variant:
    read_fields(data, where, FORM_FIELDS, (REFUSED,))
    # Each part is checked against those before it: a document may be hostile.
    layout = _decode_layout(data, where)
    outputs = _decode_tree(data["outputs"], f"{where}.outputs")
    fixed = _decode_fixed(data["fixed"], f"{where}.fixed", outputs.num_leaves)
    types = {leaf.name: type_of(layout, leaf) for leaf in layout.tensors}
    types.update({leaf.name: FLOAT_SCALAR for leaf in layout.numbers})
    forward = decode_graph(data["forward"], f"{where}.forward", name, arrays, types)
    if len(forward.outputs) + len(fixed) != outputs.num_leaves or not forward.outputs:
        fail(
            f"{where}.outputs",
            f"the graph has {len(forward.outputs)} of {outputs.num_leaves} outputs",
        )
    if any(output.type.kind != "tensor" for output in forward.outputs):
        fail(f"{where}.outputs", "an output is a tensor")
    undifferentiable = _decode_positions(data, where, forward)
    cotangents = numbered("grad_out", len(forward.outputs))
    cotangent_types = {
        cotangent: output.type
        for i, (cotangent, output) in enumerate(zip(cotangents, forward.outputs, strict=True))
        if is_float(output.type) and i not in undifferentiable
    }
    facts = _decode_facts(data["facts"], f"{where}.facts", types)
    results = [output.type for output in forward.outputs]
    inputs = {**cotangent_types, **types}
    backward = decode_graph(
        data["backward"], f"{where}.backward", name, arrays, inputs, outputs=results
    )
    wrt = _decode_wrt(data["wrt"], f"{where}.wrt", backward, types, facts)
    forward, backward = _declare(forward, backward, cotangent_types, types)
    keeps_output = read_bool(data["keeps_output"], f"{where}.keeps_output")
    # A mark is a node by which backward reads an output as forward gave it, instead of its formula.
    # A document may have one word, `keeps_output`, for a mark at every output.
    if keeps_output and not marks(backward):
        backward = mark_everywhere(backward, forward.outputs)
    refused = data.get(REFUSED, {})
    read_fields(refused, f"{where}.{REFUSED}", (), [leaf.name for leaf in layout.tensors])
    graphs = FunctionGraph(
        name,
        forward,
        backward,
        first_order=read_bool(data["first_order"], f"{where}.first_order"),
        inputs=tuple(leaf.name for leaf in layout.tensors),
        cotangents=cotangents,
        wrt=wrt,
        keeps_output=keeps_output,
        undifferentiable=undifferentiable,
        second_order=read_bool(data["twice"], f"{where}.twice"),
        refused={
            n: read_text(word, f"{where}.{REFUSED}.{n}", MOST_DOC) for n, word in refused.items()
        },
    )
    return Variant(without_needless_marks(graphs), layout, outputs, fixed, facts)


def _declare(
    forward: Graph, backward: Graph, cotangents: Mapping[str, Type], types: Mapping[str, Type]
) -> tuple[Graph, Graph]:
    # A graph declares all inputs that it may read, in their order.
    def inputs(named: Mapping[str, Type]) -> tuple[Node, ...]:
        return tuple(make_node(ops.INPUT, (), {"name": n}, t) for n, t in named.items())

    is_random = any(graph.input("key") is not None for graph in (forward, backward))
    declared = inputs({**types, "key": KEY} if is_random else types)
    return (
        replace(forward, inputs=declared),
        replace(backward, inputs=(*inputs(cotangents), *declared)),
    )


def _decode_layout(data: Data, where: str) -> Layout:
    leaves = read_leaves(data["arguments"], f"{where}.arguments")
    if len({leaf.name for leaf in leaves}) < len(leaves):
        fail(f"{where}.arguments", "two have the same name")
    if not any(leaf.kind == "tensor" for leaf in leaves):
        fail(f"{where}.arguments", "none is a tensor")
    tree = _decode_tree(data["nesting"], f"{where}.nesting")
    args_and_kwargs = optree.tree_unflatten(tree, range(tree.num_leaves))
    if tree.num_leaves != len(leaves) or not (
        type(args_and_kwargs) is tuple and [type(each) for each in args_and_kwargs] == [tuple, dict]
    ):
        fail(f"{where}.nesting", f"it is no pair of args and kwargs with {len(leaves)} leaves")
    return lay_out(tree, leaves)


def read_leaves(data: Data, where: str) -> list[Leaf]:
    items = read_list(data, where, MOST_INPUTS)
    return [_decode_leaf(item, f"{where}[{i}]") for i, item in enumerate(items)]


def _decode_leaf(data: Data, where: str) -> Leaf:
    kind = data.get("kind") if type(data) is dict else None
    if type(kind) is not str or kind not in LEAF_FIELDS:
        fail(where, f"its kind is one of {', '.join(LEAF_FIELDS)}, not {describe(kind)}")
    fields = read_fields(data, where, LEAF_FIELDS[kind])
    name, path = read_name(fields["name"], where), read_text(fields["path"], where)
    if name in ("key", "tin") or OWN_NAMES.fullmatch(name):
        fail(where, f"no argument can be called {name!r}")
    if kind == "static":
        value = decode_value(fields["value"], where)
        if type(value) not in STATIC:
            fail(where, "its value is a number, bool, string or null")
        return Leaf(kind, path, name, value=value)
    dtype = fields.get("dtype", "")
    if kind == "tensor" and (type(dtype) is not str or dtype not in (T, *DTYPES)):
        fail(where, f"{describe(dtype)} is no dtype of a tensor")
    return Leaf(kind, path, name, dtype)


def _decode_tree(data: Data, where: str) -> Any:
    leaves: list[int] = []
    nesting = _decode_nesting(data, where, leaves)
    numbers, tree = optree.tree_flatten(nesting, none_is_leaf=True)
    if numbers != list(range(len(leaves))):
        fail(where, "its leaves are not numbered in their order")
    return tree


def _decode_nesting(data: Data, where: str, leaves: list[int]) -> Any:
    if type(data) is int:
        leaves.append(data)
        if len(leaves) > MOST_INPUTS:
            fail(where, f"it has more than {MOST_INPUTS} leaves")
        return data
    fields = read_fields(data, where, (), ("tuple", "list", "dict"))
    if len(fields) != 1:
        fail(where, "it is one of tuple, list and dict")
    ((kind, inner),) = fields.items()
    items = read_list(inner, where, MOST_INPUTS)
    if kind != "dict":
        elements = [_decode_nesting(item, where, leaves) for item in items]
        return tuple(elements) if kind == "tuple" else elements
    by_name: dict[str, Any] = {}
    for item in items:
        pair = read_list(item, where, 2)
        if len(pair) != 2:
            fail(where, "an item of a dict is a pair of name and value")
        by_name[read_text(pair[0], where)] = _decode_nesting(pair[1], where, leaves)
    if len(by_name) < len(items):
        fail(where, "two items have the same name")
    return by_name


def _decode_fixed(data: Data, where: str, count: int) -> dict[int, Any]:
    fixed: dict[int, Any] = {}
    for item in read_list(data, where, MOST_INPUTS):
        pair = read_list(item, where, 2)
        if len(pair) != 2 or type(pair[0]) is not int or not 0 <= pair[0] < count:
            fail(where, "an item is a pair of position and value")
        value = decode_value(pair[1], where)
        if type(value) not in STATIC or pair[0] in fixed:
            fail(where, "a fixed output is one number, bool, string or null")
        fixed[pair[0]] = value
    return fixed


def _decode_positions(data: Data, where: str, forward: Graph) -> tuple[int, ...]:
    where = f"{where}.undifferentiable"
    positions = read_list(data["undifferentiable"], where, MOST_INPUTS)
    for i in positions:
        if type(i) is not int or not 0 <= i < len(forward.outputs):
            fail(where, f"{describe(i)} is no position of an output")
    if len(set(positions)) < len(positions):
        fail(where, "a position stands twice")
    return tuple(positions)


def _decode_facts(data: Data, where: str, types: Mapping[str, Type]) -> dict[str, Any]:
    if type(data) is not dict or len(data) > MOST_INPUTS:
        fail(where, f"expected an object of facts, got {describe(data)}")
    facts: dict[str, Any] = {}
    for fact in sorted(data):
        match = FACT.fullmatch(fact)
        argument = match and (match[3] or match[5])
        if match is None or (argument is not None and argument not in types):
            fail(where, f"{fact!r:.60} is no fact about an argument")
        value = decode_value(data[fact], where)
        if not _is_legal(fact.partition(":")[0], value):
            fail(where, f"{describe(data[fact])} is no value of {fact!r}")
        facts[fact] = value
    return facts


def _is_legal(what: str, value: Any) -> bool:
    match what:
        case "dtype":
            return value in FLOATS
        case "ndim":
            return type(value) is int and 0 <= value <= MOST_PLACES
        case "shape":
            return isinstance(value, tuple) and all(
                n is None or (type(n) is int and 0 <= n < LARGEST_INDEX) for n in value
            )
        case _:
            return type(value) is float


def _decode_wrt(
    data: Data, where: str, backward: Graph, types: Mapping[str, Type], facts: Mapping[str, Any]
) -> tuple[str, ...]:
    names = tuple(read_name(item, where) for item in read_list(data, where, MOST_INPUTS))
    if len(names) != len(backward.outputs) or len(set(names)) < len(names):
        fail(where, f"expected {len(backward.outputs)} names of arguments, one for each gradient")
    for name, gradient in zip(names, backward.outputs, strict=True):
        type_ = types.get(name)
        if type_ is None or type_.kind != "tensor" or not is_float(type_):
            fail(where, f"{name!r} is no float tensor among the arguments")
        # T is the dtype of the first float, which a fact may fix.
        dtypes = [
            facts.get("dtype", T) if t.dtype == T else t.dtype for t in (gradient.type, type_)
        ]
        shapes = {gradient.type.shape, type_.shape}
        if gradient.type.kind != "tensor" or dtypes[0] != dtypes[1]:
            fail(where, f"the gradient of {name!r} is {gradient.type}, not {type_}")
        if UNKNOWN not in shapes and len(shapes) > 1:
            fail(where, f"the gradient of {name!r} has another shape than {name!r}")
    return names
