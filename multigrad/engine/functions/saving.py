"""Functions to data: documents of the forms in which they were captured, and operators."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...core.backend.values import concrete_number
from ...core.functions.arguments import Layout, Leaf
from ...core.functions.facts import first_tensor, leaf_of_each
from ...core.functions.function import FunctionBase
from ...core.functions.recipe import NotCaptured, Variant
from ...core.ir.graph import ArrayValue, Graph, format_graph
from ...core.ir.op import FLOATS, FLOATS_OF_16_BITS, T
from ...core.lowering.function_graph import FunctionGraph
from ...core.lowering.lower import identifier
from ...core.passes.facts import GIVEN, LIBRARY, ON_NUMBERS
from ...core.passes.simplify import rename_inputs
from ...core.support.params import Fused
from ...core.support.trees import optree
from ...core.trace.active_rules import FREE, Moving, keyed
from ...core.trace.lookups import is_read
from ...errors import FormatError, TraceError, UnsupportedOp
from ..passes.memory import without_kept
from ..passes.residuals import drop_marks, mark_everywhere, with_dtype
from ..passes.serialize import encode_array, encode_graph, encode_value, fail, read_fields
from ..trace.random_keys import concrete_key
from .calls.arguments import Forgotten, lay_out, mixes_floats, positional_names, type_of
from .calls.parameters import Completion
from .decision import SAVED, decide
from .documents.format import Data, clean, format_document, hash_of, seal, unseal
from .documents.functions import STATIC, SavedFunction, decode_function, recipe_of_document
from .function import Function, as_function, uncaptured
from .known_forms import find_variant, generalized, renewed_variants, some_gradients

GENERAL = ("gradient:", "strided:")
# Lengths at which a form is captured again, to see whether its graphs depend on those of the call.
OTHER_LENGTHS = (1, 2, 3, 5, 8, 33, 1025, 65_537, 1_000_003)
Asked = dict[str, dict[str, Any]]


def encode_function(function: Function, is_bare: bool = False) -> dict[str, Data]:
    """Return a Function's document: the forms in which it has been captured until now.

    `is_bare`: without the values and the key that it was given, which a pickle holds itself.
    `TraceError` if it has not been captured.
    """
    fields, defaults = _encode(function), function.completion.named()
    if not (is_bare and function.defaults) and defaults:
        fields["defaults"] = [_encode_default(function.name, *item) for item in defaults.items()]
    if not is_bare and function.is_keyed:
        key = concrete_key(function.draws.key)
        if key is None:
            raise FormatError(
                f"function {function.name!r} has a key that is not known yet, which no document "
                "holds: give it an int, or save it without the key"
            )
        fields["key"] = list(key)
    return seal("function", fields, decode_function)


def refuse_guess(function: Function) -> None:
    """Raise if a Function that was never called could only be captured for a guess of which
    arguments are tensors.
    """
    parameters = () if function.parameters is None else function.parameters.parameters.values()
    names = [p.name for p in parameters if p.default is p.empty]
    is_made_of_code = isinstance(function.recipe.origin, type | None)
    is_known = function.captures.variants or function.examples is not None or len(names) < 2
    if is_made_of_code and not is_known:
        raise TraceError(
            f"function {function.name!r} was never called, so it is not known which of "
            f"{', '.join(names)} are tensors: call it once, with NumPy arrays for instance, then "
            "save it"
        )


def encode_variant(function: FunctionBase, variant: Variant) -> dict[str, Data]:
    """Return the document of a Function in one of its captured forms alone, without a docstring."""
    decide(SAVED, function.recipe, variant, None, function.native)
    general = _for_all(function, variant)
    if general is None:
        raise TraceError(
            f"function {function.name!r} was called for some gradients only, and for all it needs "
            "to know more: call it with tensors that require them"
        )
    arrays: list[ArrayValue] = []
    form = _encode_form(function, general, arrays)
    return seal("function", _fields(function, [form], arrays), decode_function)


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


def _encode(function: Function) -> dict[str, Data]:
    if function.document is not None:
        return json.loads(function.document.text)
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
    by_arguments: dict[str, Data] = {}
    for variant in (_for_all(function, each) for each in renewed_variants(function, SAVED)):
        if variant is not None:
            form = _encode_form(function, variant, arrays)
            forms.setdefault(_meaning(form), form)
            arguments = json.dumps([form["arguments"], form["facts"]])
            if LIBRARY in variant.facts and by_arguments.setdefault(arguments, form) != form:
                raise TraceError(
                    f"function {function.name!r} was called with tensors of several libraries, to "
                    "which its methods mean different things: say which one it is written in, "
                    "dialect='numpy' for instance, and save it again"
                )
    if not forms:
        raise TraceError(f"{some_gradients(function)}, and save it again")
    doc = clean(function.__doc__ if function.__doc__ != type(function).__doc__ else "")
    return _fields(function, list(forms.values()), arrays, doc)


def _fields(
    function: FunctionBase, forms: list[Data], arrays: Sequence[ArrayValue], doc: str = ""
) -> dict[str, Data]:
    return {
        "name": function.name,
        "doc": doc,
        "parameters": positional_names(function.parameters),
        "arrays": [encode_array(array) for array in arrays],
        "forms": forms,
    }


def _for_all(function: FunctionBase, variant: Variant) -> Variant | None:
    # The general form serves on any device, and whether or not tensors ask for a gradient. None if
    # that would need more facts about the arguments.
    # A document is read beside any library: floats keep their dtype.
    facts = {LIBRARY: ""} if ON_NUMBERS in variant.facts else {}
    return generalized(function, variant, _general, facts)


def _related(function: FunctionBase, variant: Variant) -> Variant:
    # Arrays within a capture do not relate to the first tensor: such a form is captured anew.
    layout = variant.layout
    types = {leaf.name: type_of(layout, leaf) for leaf in layout.tensors}
    inputs = variant.graphs.forward.inputs
    if variant.graphs.is_rule or all(
        types.get(node.attr("name"), node.type) == node.type for node in inputs
    ):
        return variant
    return uncaptured(as_function(function)).captures.for_facts(layout, variant.facts)


def _general(fact: str) -> Any:
    # None for a fact that tells arguments apart.
    if fact == "device_type":
        return "cpu"
    return True if fact in GIVEN or fact.startswith(GENERAL) else None


def _meaning(form: Data) -> str:
    # Equal for forms of equal arguments; the first float's dtype may be any.
    dtypes = [leaf.get("dtype") for leaf in form["arguments"]]
    first_dtype = next((dtype for dtype in dtypes if dtype in (*FLOATS, T)), None)
    fields = {name: form[name] for name in form if name != "arguments"}
    names = [(leaf["name"], leaf["kind"], leaf.get("value")) for leaf in form["arguments"]]
    return json.dumps([fields, names, [T if dtype == first_dtype else dtype for dtype in dtypes]])


def in_first_dtype(variant: Variant) -> Layout:
    """Return a form's arguments in the dtype that was met first, not in the latest."""
    layout = variant.layout
    first_dtype = next((dtype for dtype in variant.proofs if dtype), layout.dtype)
    if "dtype" in variant.facts or first_dtype is None:
        return layout
    leaves = (
        replace(leaf, dtype=first_dtype) if leaf.dtype == layout.dtype else leaf
        for leaf in layout.leaves
    )
    return replace(layout, leaves=tuple(leaves))


def _encode_form(function: FunctionBase, variant: Variant, arrays: list[ArrayValue]) -> Data:
    variant = _related(function, variant)
    pair, layout = variant.graphs, in_first_dtype(variant)
    if pair.is_rule:  # a document tells a rule's input from an argument by its name
        input_leaf, *number_leaves = layout.leaves
        leaves = (replace(input_leaf, name=INPUT_AS_ARGUMENT), *number_leaves)
        names, graphs = (INPUT_AS_ARGUMENT,), (pair.forward, pair.backward)
        forward, backward = (rename_inputs(each, {"tin": INPUT_AS_ARGUMENT}) for each in graphs)
        renamed = {"forward": forward, "backward": backward, "inputs": names, "wrt": names}
        pair, layout = replace(pair, **renamed, is_rule=False), replace(layout, leaves=leaves)
    # Where it reads each output as forward gave it, one word says so.
    backward = without_kept(pair.backward)
    unmarked = drop_marks(backward)
    is_told = mark_everywhere(unmarked, pair.forward.outputs).outputs == backward.outputs
    backward = unmarked if pair.keeps_output and is_told else backward
    facts = {
        name: encode_value(value)
        for name, value in {**variant.facts, **asked_shapes(function, variant)}.items()
        # None: of a tensor that these arguments lack.
        if not (value is None or is_read(name) or name == LIBRARY or _general(name) is not None)
    }

    def numbered(tree: Any) -> Any:
        return optree.tree_unflatten(tree, range(tree.num_leaves))

    return {
        "arguments": [_encode_leaf(pair.name, leaf) for leaf in layout.leaves],
        "nesting": _encode_nesting(pair.name, numbered(layout.tree)),
        "facts": facts,
        "outputs": _encode_nesting(pair.name, numbered(variant.outputs)),
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


# Operators of frameworks, whose names hold a hash: so no program meets another gradient.
OPERATORS_FILE = "multigrad.json"  # among the files of a program
DIGITS = 12  # of the hash, in a name


class Operator(NamedTuple):
    """What a framework registers.

    Attributes:
        name: of the operator, the same wherever its graphs are.
        document: the Function in this form, as data.
        graphs: what the document holds, named as the operator is.
    """

    name: str
    document: Data
    graphs: FunctionGraph


def as_operator(function: FunctionBase, variant: Variant) -> Operator:
    if variant.graphs.is_random:
        raise UnsupportedOp(
            f"{function.recipe.subject} draws random numbers, which an exported operator does not: "
            "export one that draws none, or train it where multigrad is"
        )
    return read_operator(encode_variant(function, variant))


def read_operator(document: Data) -> Operator:
    _, fields = unseal(document, ("function",))
    (form, *_) = decode_function(fields).forms
    graphs = form.graphs
    # Docstrings and places in sources are no part of the meaning.
    digest = hash_of(document).partition(":")[2][:DIGITS]
    return Operator(f"{identifier(graphs.name)}_{digest}", document, graphs)


def write_operators(operators: Iterable[Operator]) -> str:
    documents = {operator.name: operator.document for operator in operators}
    return format_document(seal("operators", {"operators": documents}, dict))


def read_operators(data: Data) -> list[Operator]:
    """Return the operators of a file's data; `FormatError` if they are damaged."""
    _, fields = unseal(data, ("operators",))
    read_fields(fields, "", ("operators",))
    documents = fields["operators"]
    if type(documents) is not dict:
        fail("operators", "expected an object")
    operators = []
    for name, document in documents.items():
        operator = read_operator(document)
        if operator.name != name:
            fail(
                f"operators.{name}",
                f"its graphs are those of {operator.name!r}: the file was changed since, or is of "
                "another version. Export the model again",
            )
        operators.append(operator)
    return operators


# --- what of a call a captured form depends on: shapes, dtypes and numbers, or none of them -------
def asked_of_arguments(function: FunctionBase, variant: Variant) -> Asked:
    """Return, by argument, the facts about it on which a captured form's graphs depend."""
    layout, facts = variant.layout, {**variant.facts, **asked_shapes(function, variant)}
    asked: Asked = {}
    for fact, kind, index in leaf_of_each(facts, layout, first_tensor(layout)):
        is_asked = kind in ("dtype", "ndim", "param", "shape") and facts[fact] is not None
        if is_asked and index is not None:
            asked.setdefault(layout.leaves[index].name, {})[kind] = facts[fact]
    return asked


def asked_shapes(function: FunctionBase, variant: Variant) -> dict[str, tuple[int | None, ...]]:
    """Return the facts of shapes, with None for a length that leaves the graphs as they are."""
    facts = variant.facts.items()
    shapes = {f: v for f, v in facts if f.partition(":")[0] == "shape" and v is not None}
    lengths = {n for shape in shapes.values() for n in shape}
    # Those of a rule under an activation stay as they are.
    called = function if isinstance(function, Function) else None
    free = {n for n in lengths if called is not None and _is_free(called, variant, n)}
    return {f: tuple(None if n in free else n for n in v) for f, v in shapes.items()}


def over_dtypes(function: Function, variant: Variant) -> Variant:
    """Return a captured form for floats of every dtype, where its code only asks whether they have
    16 bits to compute in float32; else the form itself.
    """
    layout, facts = variant.layout, dict(variant.facts)
    if facts.pop("dtype", None) is None or mixes_floats(layout):
        return variant

    def at(dtype: str) -> Variant:
        rows = [replace(leaf, dtype=dtype) if leaf.is_float else leaf for leaf in layout.leaves]
        of_dtype = lay_out(layout.tree, rows, is_apart=dtype in FLOATS_OF_16_BITS)
        return uncaptured(function).captures.for_facts(of_dtype, {**facts, "dtype": dtype})

    try:
        half, *others = map(at, FLOATS)
    except Exception:  # noqa: BLE001  # of the author's code, which takes no such dtype
        return variant
    bfloat, single, double = map(_text, others)
    if _text(half) != bfloat or single != double:
        return variant
    graphs = half.graphs
    widens = _text(half) != single
    if widens:
        try:
            forward, backward = (
                with_dtype(graph, "float32", T) for graph in (graphs.forward, graphs.backward)
            )
        except TypeError:  # a loop in float32, whose body keeps its dtype
            return variant
        widened = replace(half, graphs=replace(graphs, forward=forward, backward=backward))
        if _text(widened) != single:
            return variant
    graphs = replace(graphs, widens=widens, residuals=variant.graphs.residuals)
    return replace(half, graphs=graphs, layout=layout, facts=facts)


def _text(form: Variant) -> tuple[Any, ...]:
    graphs = form.graphs
    # What is kept of an argument in float32 is there the argument itself.
    pair = without_kept(graphs.forward), without_kept(graphs.backward)
    bare = (Graph("", each.inputs, each.outputs) for each in pair)
    return *map(format_graph, bare), graphs.wrt, form.fixed


def _is_free(function: Function, variant: Variant, length: int) -> bool:
    def at(other: int) -> Variant:
        facts = {
            fact: tuple(other if n == length else n for n in value)
            if fact.partition(":")[0] == "shape" and value is not None
            else value
            for fact, value in variant.facts.items()
        }
        return uncaptured(function).captures.for_facts(variant.layout, facts)

    try:
        own = _text(variant)
        return all(_text(at(n)) == own for n in OTHER_LENGTHS if n != length)
    except Exception:  # noqa: BLE001  # of the author's code, which takes no such length
        return False


# --- read again -----------------------------------------------------------------------------------
def _rebuild(
    data: dict[str, Any],
    key: Any,
    defaults: tuple[Any, ...] = (),
    residuals: str | None = None,
    fused: Fused | None = None,
) -> Function:
    function = restore(decode_function(unseal(data, ("function",))[1]))
    function = function.keeping(residuals, fused=fused)
    function = function.with_defaults(defaults) if defaults else function
    return function if key is None else function.keyed(key)


def restore(saved: SavedFunction) -> Function:
    """Return the Function of a document, captured in all the forms that were saved."""
    function = Function(recipe_of_document(saved))
    completion = Completion(function.parameters, tuple(saved.defaults.values()))
    draws = FREE if saved.key is None else keyed(saved.key)
    function = function.replace(completion=completion, draws=draws)
    function.__doc__ = saved.doc
    captures = function.captures
    # The facts of all variants: a call that lacks one finds none of them.
    captures.findings.facts = frozenset(fact for form in saved.forms for fact in form.facts)
    for form in saved.forms:
        key = (form.layout.key, tuple(sorted(form.facts.items())))
        captures.variants.setdefault(key, form)
    return function
