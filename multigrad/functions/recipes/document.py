"""Documents of Functions: from data to Functions, and from Functions to data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...backend.values import concrete_key, concrete_number
from ...errors import FormatError, TraceError
from ...graph import ops
from ...graph.ir.graph import ArrayValue, Graph, Node, make_node
from ...graph.ir.types import DTYPES, FLOAT_SCALAR, FLOATS, KEY, UNKNOWN, T, Type, is_float
from ...graph.passes.facts import GIVEN, LIBRARY, ON_NUMBERS
from ...graph.passes.residuals import drop_marks, mark_everywhere, marks
from ...graph.passes.serialize import (
    LARGEST_INDEX,
    MOST_INPUTS,
    MOST_PLACES,
    decode_graph,
    decode_value,
    describe,
    encode_array,
    encode_graph,
    encode_value,
    fail,
    read_bool,
    read_fields,
    read_list,
    read_name,
    read_text,
)
from ...graph.passes.simplify import rename_inputs
from ...graph.support.trees import optree
from ...lowering.function_graph import OWN_NAMES, FunctionGraph, numbered
from ...trace.lookups import is_read
from ...trace.moving_numbers import Moving
from ...trace.trace import NeedsConcrete
from ..calls.arguments import Forgotten, Layout, Leaf, lay_out, positional_names, type_of
from ..calls.decision import SAVED, decide
from ..calls.recipe import Variant
from ..documents.format import MOST_DOC, Form, clean, decode_arrays, seal
from .examples import find_variant, renewed_variants
from .record import NotCaptured, capture
from .saved import SavedFunction

Data = Any
Function = Any  # of function.py, which imports this module
MOST_FORMS = 256
FIELDS = ("name", "doc", "parameters", "arrays", "forms")
HELD_FIELDS = ("defaults", "key")  # of those that have some
FORM_FIELDS = (
    "arguments", "nesting", "facts", "outputs", "fixed", "first_order", "keeps_output", "twice",
    "undifferentiable", "wrt", "forward", "backward",
)  # fmt: skip
REFUSED = "refused"  # of those that have inputs without a derivative
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
    return SavedFunction(
        name,
        parameters,
        forms,
        # As text: the data are the caller's, who may change them.
        json.dumps({field: data[field] for field in FIELDS}),
        doc,
        defaults=_decode_defaults(data.get("defaults", []), parameters),
        key=_decode_key(data["key"]) if "key" in data else None,
    )


def _decode_defaults(data: Data, parameters: Sequence[str]) -> dict[str, Any]:
    items = read_list(data, "defaults", MOST_INPUTS)
    if len(items) > len(parameters):
        fail("defaults", f"there are {len(items)} for {len(parameters)} parameters")
    values = [decode_value(item, f"defaults[{i}]") for i, item in enumerate(items)]
    return dict(zip(parameters[len(parameters) - len(items) :], values, strict=True))


def _decode_key(data: Data) -> tuple[int, int]:
    words = read_list(data, "key", 2)
    if len(words) != 2 or any(type(word) is not int or not 0 <= word < 2**32 for word in words):
        fail("key", "it is no pair of uint32")
    return (words[0], words[1])


def _decode_form(data: Data, where: str, name: str, arrays: Sequence[ArrayValue]) -> Form:
    read_fields(data, where, FORM_FIELDS, (REFUSED,))
    # Each part is checked against those before it: a document may be hostile.
    layout = _decode_layout(data, where)
    outputs = _decode_tree(data["outputs"], f"{where}.outputs")
    fixed = _decode_fixed(data["fixed"], f"{where}.fixed", outputs.num_leaves)
    types = {leaf.name: type_of(layout, leaf) for leaf in layout.tensors}
    types.update({leaf.name: FLOAT_SCALAR for leaf in layout.numbers})
    forward = _decode_graph(data["forward"], f"{where}.forward", name, arrays, types)
    if len(forward.outputs) + len(fixed) != outputs.num_leaves or not forward.outputs:
        fail(
            f"{where}.outputs",
            f"the graph has {len(forward.outputs)} of {outputs.num_leaves} outputs",
        )
    if any(output.type.kind != "tensor" for output in forward.outputs):
        fail(f"{where}.outputs", "an output is a tensor")
    without = _decode_positions(data, where, forward)
    cotangents = numbered("grad_out", len(forward.outputs))
    heads = {
        own: output.type
        for i, (own, output) in enumerate(zip(cotangents, forward.outputs, strict=True))
        if is_float(output.type) and i not in without
    }
    facts = _decode_facts(data["facts"], f"{where}.facts", types)
    results = [output.type for output in forward.outputs]
    given = {**heads, **types}
    backward = _decode_graph(
        data["backward"], f"{where}.backward", name, arrays, given, outputs=results
    )
    wrt = _decode_wrt(data["wrt"], f"{where}.wrt", backward, types, facts)
    forward, backward = _declare(forward, backward, heads, types)
    keeps_output = read_bool(data["keeps_output"], f"{where}.keeps_output")
    # One word for all marks: backward reads each output as forward gave it.
    if keeps_output and not marks(backward):
        backward = mark_everywhere(backward, forward.outputs)
    graphs = FunctionGraph(
        name,
        forward,
        backward,
        first_order=read_bool(data["first_order"], f"{where}.first_order"),
        inputs=tuple(leaf.name for leaf in layout.tensors),
        cotangents=cotangents,
        wrt=wrt,
        keeps_output=keeps_output,
        undifferentiable=without,
        second_order=read_bool(data["twice"], f"{where}.twice"),
        refused=_decode_refused(data.get(REFUSED, {}), f"{where}.{REFUSED}", layout),
    ).without_needless_marks()
    return Form.of(Variant(graphs, layout, outputs, fixed, facts), facts, forward, backward)


def _decode_refused(data: Data, where: str, layout: Layout) -> dict[str, str]:
    read_fields(data, where, (), [leaf.name for leaf in layout.tensors])
    return {name: read_text(data[name], f"{where}.{name}", MOST_DOC) for name in data}


def _decode_graph(
    data: Data,
    where: str,
    name: str,
    arrays: Sequence[ArrayValue],
    types: Mapping[str, Type],
    outputs: Sequence[Type] = (),
) -> Graph:
    read_fields(data, where, ("inputs", "nodes", "outputs"))
    return decode_graph(data, where, name, arrays, {**types, "key": KEY}, outputs=outputs)


def _declare(
    forward: Graph, backward: Graph, heads: Mapping[str, Type], types: Mapping[str, Type]
) -> tuple[Graph, Graph]:
    # A graph declares all inputs that it may read, in their order.

    def inputs(named: Mapping[str, Type]) -> tuple[Node, ...]:
        return tuple(make_node(ops.INPUT, (), {"name": n}, t) for n, t in named.items())

    is_random = any(graph.input("key") is not None for graph in (forward, backward))
    own = inputs({**types, "key": KEY} if is_random else types)
    return (
        Graph(forward.name, own, forward.outputs, forward.locations),
        Graph(backward.name, (*inputs(heads), *own), backward.outputs, backward.locations),
    )


def _decode_layout(data: Data, where: str) -> Layout:
    items = read_list(data["arguments"], f"{where}.arguments", MOST_INPUTS)
    leaves = [_decode_leaf(item, f"{where}.arguments[{i}]") for i, item in enumerate(items)]
    if len({leaf.name for leaf in leaves}) < len(leaves):
        fail(f"{where}.arguments", "two have the same name")
    if not any(leaf.kind == "tensor" for leaf in leaves):
        fail(f"{where}.arguments", "none is a tensor")
    tree = _decode_tree(data["nesting"], f"{where}.nesting")
    whole = optree.tree_unflatten(tree, range(tree.num_leaves))
    if tree.num_leaves != len(leaves) or not (
        type(whole) is tuple and [type(each) for each in whole] == [tuple, dict]
    ):
        fail(f"{where}.nesting", f"it is no pair of args and kwargs with {len(leaves)} leaves")
    return lay_out(tree, leaves)


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
    found, tree = optree.tree_flatten(nesting, none_is_leaf=True)
    if found != list(range(len(leaves))):
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
        made = [_decode_nesting(item, where, leaves) for item in items]
        return tuple(made) if kind == "tuple" else made
    named: dict[str, Any] = {}
    for item in items:
        pair = read_list(item, where, 2)
        if len(pair) != 2:
            fail(where, "an item of a dict is a pair of name and value")
        named[read_text(pair[0], where)] = _decode_nesting(pair[1], where, leaves)
    if len(named) < len(items):
        fail(where, "two items have the same name")
    return named


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
        whose = match and (match[3] or match[5])
        if match is None or (whose is not None and whose not in types):
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
            lengths = value if isinstance(value, tuple) else (None,)
            return all(type(n) is int and 0 <= n < LARGEST_INDEX for n in lengths)
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


# --- Functions to data: every form in which one was captured -------------------------------------


GENERAL = ("gradient:", "strided:")


def encode_function(function: Function, is_bare: bool = False) -> dict[str, Data]:
    """Return a Function's document: the forms in which it has been captured until now.

    Args:
        is_bare: without the values and the key that it was given, which a pickle holds itself.

    Raises:
        TraceError: it has not been captured.
        FormatError: an argument is neither a tensor nor a number, bool, str or None.
    """
    if function.recipe.modes:
        raise FormatError(
            f"function {function.name!r} has accumulate=, which no document holds: keep its code, "
            "or write a file of what it was lowered to, xg.source(..., standalone=True)"
        )
    fields = _encode(function)
    if not (is_bare and function.defaults) and function.completion.named():
        fields["defaults"] = [
            _encode_default(function.name, *i) for i in function.completion.named().items()
        ]
    if not is_bare and function.is_keyed:
        fields["key"] = _encode_key(function)
    return seal("function", fields, decode_function)


def encode_variant(function: Function, variant: Variant) -> dict[str, Data]:
    """Return the document of a Function in one of its captured forms alone, without a docstring.

    Raises:
        TraceError: the form holds for the gradients that one call asked for, and not for all.
        FormatError: it has an argument that no document holds.
    """
    decide(SAVED, function.recipe, variant, None, function.native)
    general = _for_all(function, variant)
    if general is None:
        raise TraceError(
            f"function {function.name!r} was called for some gradients only, and for all it needs "
            "to know more: call it with tensors that require them"
        )
    arrays: list[ArrayValue] = []
    form = _encode_form(_related(function, general), arrays)
    fields = {
        "name": function.name,
        "doc": "",
        "parameters": positional_names(function.parameters),
        "arrays": [encode_array(array) for array in arrays],
        "forms": [form],
    }
    return seal("function", fields, decode_function)


def _encode_default(function: str, name: str, value: Any) -> Data:
    if isinstance(value, Moving):
        raise FormatError(
            f"function {function!r} has a number that moves for argument {name!r}, which no "
            "document holds: save it with schedule.value, and the schedule by its to_dict()"
        )
    if getattr(value, "shape", None) == ():
        value = concrete_number(value)
    if isinstance(value, (*STATIC, tuple)):
        return encode_value(value)
    raise FormatError(
        f"function {function!r} cannot be saved with a {type(value).__name__} for argument "
        f"{name!r}: expected a number, bool, str or None"
    )


def _encode_key(function: Function) -> Data:
    key = concrete_key(function.draws.key)
    if key is None:
        raise FormatError(
            f"function {function.name!r} has a key that is not known yet, which no document holds: "
            "give it an int, or save it without the key"
        )
    return list(key)


def _encode(function: Function) -> dict[str, Data]:
    if isinstance(function.recipe.origin, SavedFunction):
        return json.loads(function.recipe.origin.text)
    if function.native is True:
        raise TraceError(
            f"function {function.name!r} runs as written (native=True), so it has no graph to save"
        )
    try:
        find_variant(function, SAVED)  # of what its signature tells, where it has not been called
    except NotCaptured as error:
        raise error.error from error.__cause__
    arrays: list[ArrayValue] = []
    forms: dict[str, Data] = {}
    for variant in (_for_all(function, each) for each in renewed_variants(function, SAVED)):
        if variant is not None:
            form = _encode_form(_related(function, variant), arrays)
            # Forms of equal meaning are saved once.
            forms.setdefault(_meaning(form), form)
    if not forms:
        raise TraceError(
            f"function {function.name!r} was called for some gradients only, and for all it needs "
            "to know more: call it with tensors that require them, and save it again"
        )
    return {
        "name": function.name,
        "doc": clean(function.__doc__ if function.__doc__ != type(function).__doc__ else ""),
        "parameters": positional_names(function.parameters),
        "arrays": [encode_array(array) for array in arrays],
        "forms": list(forms.values()),
    }


def _for_all(function: Function, variant: Variant) -> Variant | None:
    # The general form serves on any device, and whether or not tensors ask for a gradient. None if
    # that would need more facts about the arguments.
    facts = {
        fact: value if (own := _general(fact)) is None else own
        for fact, value in variant.facts.items()
    }
    if ON_NUMBERS in facts:  # a document is read beside any library: floats keep their dtype
        facts[LIBRARY] = ""
    # Without the call's own facts the capture may ask for others.
    while facts != variant.facts:
        try:
            return function.captures.for_facts(variant.layout, facts)
        except NotCaptured:
            return None
        except NeedsConcrete:
            needed = function.captures.facts - facts.keys()
            missing = {fact: _general(fact) for fact in needed}
            if not missing or None in missing.values():
                return None
            facts = {**facts, **missing}
    return variant


def _related(function: Function, variant: Variant) -> Variant:
    # Arrays within a capture do not relate to the first tensor: such a form is captured anew.
    layout = variant.layout
    types = {leaf.name: type_of(layout, leaf) for leaf in layout.tensors}
    inputs = variant.graphs.forward.inputs
    if variant.graphs.is_rule or all(
        types.get(node.attr("name"), node.type) == node.type for node in inputs
    ):
        return variant
    return capture(function.recipe, layout, variant.facts)


def _general(fact: str) -> Any:
    # None for a fact that tells arguments apart.
    if fact == "device_type":
        return "cpu"
    return True if fact in GIVEN or fact.startswith(GENERAL) else None


def _meaning(form: Data) -> str:
    # Equal for forms of equal arguments; the first float's dtype may be any.
    dtypes = [leaf.get("dtype") for leaf in form["arguments"]]
    first = next((dtype for dtype in dtypes if dtype in (*FLOATS, T)), None)
    rest = {name: form[name] for name in form if name != "arguments"}
    names = [(leaf["name"], leaf["kind"], leaf.get("value")) for leaf in form["arguments"]]
    return json.dumps([rest, names, [T if dtype == first else dtype for dtype in dtypes]])


def in_first_dtype(variant: Variant) -> Layout:
    """Return a form's arguments in the dtype that was met first, not in the latest."""
    layout = variant.layout
    first = next((dtype for dtype in variant.proofs if dtype), layout.dtype)
    if "dtype" in variant.facts or first is None:
        return layout
    leaves = (
        replace(leaf, dtype=first) if leaf.dtype == layout.dtype else leaf for leaf in layout.leaves
    )
    return replace(layout, leaves=tuple(leaves))


def _encode_form(variant: Variant, arrays: list[ArrayValue]) -> Data:
    pair, layout = variant.graphs, in_first_dtype(variant)
    if pair.is_rule:  # a document tells a rule's input from an argument by its name
        first, *rest = layout.leaves
        leaves = (replace(first, name=INPUT_AS_ARGUMENT), *rest)
        pair, layout = _with_argument(pair), replace(layout, leaves=leaves)
    # Where it reads each output as forward gave it, one word says so.
    unmarked = drop_marks(pair.backward)
    is_told = mark_everywhere(unmarked, pair.forward.outputs).outputs == pair.backward.outputs
    backward = unmarked if pair.keeps_output and is_told else pair.backward
    read = {name for name in variant.facts if is_read(name) or name == LIBRARY}
    own = {name: value for name, value in variant.facts.items() if name not in read}
    facts = {name: encode_value(value) for name, value in own.items() if _general(name) is None}
    return {
        "arguments": [_encode_leaf(pair.name, leaf) for leaf in layout.leaves],
        "nesting": _encode_tree(pair.name, layout.tree),
        "facts": facts,
        "outputs": _encode_tree(pair.name, variant.outputs),
        "fixed": [[i, encode_value(value)] for i, value in variant.fixed.items()],
        "first_order": pair.first_order,
        "keeps_output": pair.keeps_output,
        "twice": pair.second_order,
        "undifferentiable": list(pair.undifferentiable),
        **({"refused": dict(pair.refused)} if pair.refused else {}),
        "wrt": list(pair.wrt),
        "forward": encode_graph(pair.forward, arrays),
        "backward": encode_graph(backward, arrays),
    }


INPUT_AS_ARGUMENT = "argument_tin"  # as of a function whose argument is called "tin"


def _with_argument(pair: FunctionGraph) -> FunctionGraph:
    renamed = {"tin": INPUT_AS_ARGUMENT}
    return replace(
        pair,
        forward=rename_inputs(pair.forward, renamed),
        backward=rename_inputs(pair.backward, renamed),
        inputs=(INPUT_AS_ARGUMENT,),
        wrt=(INPUT_AS_ARGUMENT,),
        is_rule=False,
    )


def _encode_leaf(function: str, leaf: Leaf) -> Data:
    data: dict[str, Data] = {"name": leaf.name, "path": leaf.path, "kind": leaf.kind}
    if leaf.kind == "tensor":
        data["dtype"] = leaf.dtype
    if leaf.kind == "static":
        if type(leaf.value) not in STATIC:
            forgotten = isinstance(leaf.value, Forgotten)
            kind = leaf.value.kind if forgotten else type(leaf.value).__name__
            raise FormatError(
                f"function {function!r} cannot be saved with a {kind} as argument "
                f"{leaf.path!r}: expected a tensor, a number, bool, str or None"
            )
        data["value"] = encode_value(leaf.value)
    return data


def _encode_tree(function: str, tree: Any) -> Data:
    return _encode_nesting(function, optree.tree_unflatten(tree, range(tree.num_leaves)))


def _encode_nesting(function: str, nesting: Any) -> Data:
    # A leaf is written as its index.
    if type(nesting) is int:
        return nesting
    if type(nesting) in (tuple, list):
        return {type(nesting).__name__: [_encode_nesting(function, each) for each in nesting]}
    if type(nesting) is dict and all(type(name) is str for name in nesting):
        return {
            "dict": [[name, _encode_nesting(function, nesting[name])] for name in sorted(nesting)]
        }
    raise FormatError(
        f"function {function!r} cannot be saved with arguments or outputs in a "
        f"{type(nesting).__name__}: expected tuples, lists and dicts with strings as keys"
    )
