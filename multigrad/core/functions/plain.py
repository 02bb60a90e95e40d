"""Plain code: what a capture records by calling it, with nothing to guard.

Rules of the library are plain: they are written with `xg.xp` and operators, and their graphs were
proven before the release. So is a rule that does arithmetic alone, as its bytecode says: it reads
nothing besides its arguments and functions of `xg.xp`, changes nothing, branches on nothing, and
calls no method of a tensor, whose name may mean other things in other libraries.

    def w(ctx, grad_out, tin, width=1.0): return grad_out * (abs(tin) < width)     plain
    def w(ctx, grad_out, tin): return grad_out * xp.exp(-tin)                      plain
    def w(ctx, grad_out, tin, width=1.0): return grad_out * (tin.abs() < WIDTH)    not: .abs, WIDTH

All other code is the engine's (`record.py`), which guards what it reads and does.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from ...errors import GradientError, TraceError
from .. import xp
from ..ir import questions
from ..ir.graph import Graph, Node
from ..ir.op import (
    BOOL,
    FLOAT_SCALAR,
    INPUT,
    INPUT_SHAPE,
    SCALAR_SHAPE,
    UNKNOWN,
    T,
    Type,
    is_float,
)
from ..lowering.function_graph import FunctionGraph
from ..passes.facts import shape_fact
from ..passes.simplify import simplify
from ..support.trees import optree
from ..trace.coercion import cast_node, lift_array
from ..trace.lookups import NAME, Telling, names_in, reading
from ..trace.source import CODE, OWN, TENSORS, Reading
from ..trace.trace import NeedsConcrete, Trace, Value, constant, known_shape, setting
from ..trace.xp.all import CORE_NAMES
from ..trace.xp.symbol import Symbol
from .arguments import Layout, Leaf
from .proof import is_of_library, own_code
from .recipe import NotCaptured, Recipe, Recorded, Variant, defined_at

ONE_OUTPUT = optree.tree_structure(0)
MOST_CODES = 4096  # of rules, whose bytecode was looked at
# What arithmetic on arguments compiles to, on the versions of Python that are supported.
ARITHMETIC = re.compile(
    "BINARY_OP|CACHE|CALL(_KW)?|COMPARE_OP|COPY|EXTENDED_ARG|KW_NAMES|LOAD_CONST"
    "|(LOAD|STORE)_FAST.*|LOAD_GLOBAL|LOAD_SMALL_INT|NOP|NOT_TAKEN|POP_TOP|PRECALL|PUSH_NULL|RESUME"
    "|RETURN_(CONST|VALUE)|SWAP|UNARY_(INVERT|NEGATIVE)"
)


def is_plain(recipe: Recipe) -> bool:
    """Return whether a recipe is a plain rule; a rule made of graphs counts as plain."""
    if recipe.noun != "rule":
        return False
    return not recipe.functions or own_code(recipe) is not None or _is_arithmetic(recipe.functions)


def _is_arithmetic(functions: tuple[Any, ...]) -> bool:
    function = functions[0]
    if len(functions) > 1 or type(function) is not FunctionType or "abs" in function.__globals__:
        return False
    asked = _names_asked(function.__code__)
    values = function.__globals__
    return not vars(function) and asked is not None and all(values.get(n) is xp for n in asked)


@lru_cache(MOST_CODES)
def _names_asked(code: CodeType) -> frozenset[str] | None:
    """Return the globals whose functions arithmetic calls by names of `xg.xp`; None if the code
    does anything else.
    """
    if code.co_freevars or code.co_cellvars:
        return None
    asked, last = set(), None
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if last is None or each.argval not in CORE_NAMES:
                return None
            asked.add(last)
        elif not ARITHMETIC.fullmatch(each.opname) or last is not None:
            return None
        elif each.opname == "BINARY_OP" and each.argrepr.endswith("="):
            return None  # `g += 1`: in place on some libraries' tensors
        is_name = each.opname == "LOAD_GLOBAL" and each.argval != "abs"
        last = each.argval if is_name else None
    return frozenset(asked)


def capture_plain(recipe: Recipe, layout: Layout, facts: Mapping[str, Any]) -> Variant:
    """Run a rule on symbols and return its graphs, those of a function that returns its input.

    Raises:
        NeedsConcrete: Python needed something concrete that is not among the facts.
        NotCaptured: it does what symbols of the core do not.
        GradientError: its gradient does not fit its argument.
    """
    trace = Trace(recipe.name, facts, Symbol, recipe.noun)
    trace.source.defined = defined_at(recipe.functions)
    trace.source.is_plain = True
    try:
        with reading() as reads, questions.asking():
            variant = _record(recipe, layout, trace)
    except NeedsConcrete as need:
        need.place = trace.source.location(need)
        raise
    except TraceError as error:
        raise NotCaptured(error) from error.__cause__
    return with_reads(variant, facts, reads)


def _record(recipe: Recipe, layout: Layout, trace: Trace) -> Variant:
    (tensor,) = layout.tensors  # as a rule's has
    is_relative = tensor.is_float or tensor.dtype == T
    type_ = INPUT if is_relative else Type("tensor", tensor.dtype, UNKNOWN)
    symbols = {tensor.name: trace.input(tensor.name, type_)}
    symbols |= {leaf.name: trace.input(leaf.name, FLOAT_SCALAR) for leaf in layout.numbers}
    inputs = {name: symbol.node for name, symbol in symbols.items()}
    for leaf in layout.numbers:
        if f"param:{leaf.name}" in trace.facts:  # recorded as this value, which it has to keep
            symbols[leaf.name] = trace.value(constant(trace.facts[f"param:{leaf.name}"]))
    record: Callable[..., Recorded] | None = recipe.record  # a rule's takes any trace
    assert record is not None
    recorded = record(trace, *layout.rebuild(tuple(symbols.values())))
    pull = recorded.pull
    assert pull is not None
    argument = inputs[tensor.name]
    grad_out = trace.input("grad_out", argument.type)
    gradient = check_gradient(trace, tensor, argument, pull(grad_out)[0])
    if gradient is None:
        raise GradientError(
            f"{recipe.subject} returned None; for zero write xp.zeros_like(grad_out)"
        )
    key = () if trace.key is None else (trace.key,)
    nodes, locations = (*inputs.values(), *key), trace.source.locations
    forward = Graph(trace.name, nodes, (argument,), locations, _origin(trace))
    backward = Graph(trace.name, (grad_out.node, *nodes), (gradient.node,), locations)
    graphs = FunctionGraph(
        trace.name,
        forward,
        simplify(backward),
        first_order=recorded.first_order,
        inputs=(tensor.name,),
        wrt=(tensor.name,),
    )
    return Variant(
        graphs,
        layout,
        ONE_OUTPUT,
        facts=dict(sorted(trace.facts.items())),
        reads_names=trace.source.reads_names,
    )


def _origin(trace: Trace) -> str:
    return f"written in {'xg.xp' if OWN in trace.source.routes else 'plain operators'}"


def with_reads(variant: Variant, facts: Mapping[str, Any], reads: dict[str, Any]) -> Variant:
    """Return a variant with what its code read besides its arguments among its facts.

    Raises:
        NeedsConcrete: that may have changed meanwhile, so that the capture is repeated.
    """
    new_facts = {fact for fact, meaning in reads.items() if facts.get(fact, reads) != meaning}
    if not new_facts:
        return variant
    # A fact that still has the meaning that was read holds for this variant; any other means that
    # we capture again.
    kept = {NAME + rule.name for rule in names_in(reads) if not rule.superseded}
    kept |= {fact for fact in reads if isinstance(fact, Telling) and fact.meaning() == reads[fact]}
    if not new_facts <= kept:
        raise NeedsConcrete(*reads, noted=False)
    return replace(variant, facts={**variant.facts, **{fact: reads[fact] for fact in new_facts}})


def call_plainly(function: Callable[..., Any], trace: Trace, /, *args: Any, **kwargs: Any) -> Any:
    """Call a plain function in a trace."""
    code = function.__code__
    is_own = is_of_library(code)
    in_xp = is_own or set(code.co_names) - {"abs"}
    reading = Reading((OWN,), CODE) if in_xp else Reading((), TENSORS, is_open=True)
    trace.source.codes |= _codes_of(function) if is_own else {code}
    if set(code.co_names) - {"abs"}:
        trace.source.routes.setdefault(OWN, "")
    with setting(trace, reading=reading):
        return function(*args, **kwargs)


def _codes_of(function: FunctionType) -> set[CodeType]:
    """Return the code of a function of the library, and of those of its functions that it calls."""
    found: set[CodeType] = set()
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        code = getattr(each, "__code__", None)
        if code is None or code in found or not is_of_library(code):
            continue
        found.add(code)
        cells = [cell.cell_contents for cell in each.__closure__ or ()]
        values = [each.__globals__.get(name) for name in code.co_names]
        modules = [value for value in values if isinstance(value, ModuleType)]
        waiting += [*cells, *values]
        # Not by getattr, which would load all of `xg.xp`.
        waiting += [vars(module).get(name) for module in modules for name in code.co_names]
    return found


# --- the gradient that code returns ---------------------------------------------------------------
def check_gradient(
    trace: Trace, leaf: Leaf, argument: Node, gradient: Any, *, casts: bool = False
) -> Value | None:
    """Return a gradient as a symbolic value of its argument's type; None where there is none.

    `casts`: a gradient that is no float becomes one, as in the library of imported code.
    """
    if gradient is None:
        return None
    type_ = argument.type
    start = f"{'rule' if trace.kind == 'rule' else 'function'} {trace.name!r} returned"
    # Libraries take a number for a tensor without axes.
    if is_one_number(gradient) and has_no_axes(trace, argument):
        return trace.value(xp.full_like(trace.value(argument), gradient).node)
    if not isinstance(gradient, Value):
        if isinstance(gradient, bool | int | float | str | bytes) or callable(gradient):
            or_none = "" if trace.kind == "rule" else ", or None"
            raise GradientError(
                f"{start} {gradient!r:.60} as the gradient of argument {leaf.path!r}; expected a "
                f"tensor of its shape, such as xp.zeros_like({leaf.path}){or_none}"
            )
        gradient = trace.value(lift_array(trace, gradient))
    actual_type = gradient.node.type
    if actual_type.kind == "scalar":
        raise GradientError(
            f"{start} a number as the gradient of argument {leaf.path!r}; expected a tensor of its "
            f"shape: xp.full_like({leaf.path}, number)"
        )
    if not _may_agree(trace, gradient, type_):
        raise GradientError(
            f"{start} a gradient of {describe(actual_type)} for argument {leaf.path!r}, whose "
            f"shape is {describe(type_)}; expected the same shape"
        )
    # As the frameworks' engines do; some of them cast what is no float, too.
    is_cast = is_float(actual_type) or (casts and is_float(type_))
    if actual_type.dtype != type_.dtype and is_cast:
        return trace.value(cast_node(gradient.node, type_.dtype))
    if actual_type.dtype == BOOL:
        raise GradientError(
            f"{start} bools as the gradient of argument {leaf.path!r}; multiply by the upstream "
            "gradient"
        )
    if actual_type.dtype != type_.dtype:
        # They may differ for some dtypes of the first tensor, so the dtype becomes a fact.
        facts = trace.facts
        if "dtype" not in facts:
            raise NeedsConcrete("dtype")
        actual = [facts["dtype"] if t.dtype == "T" else t.dtype for t in (actual_type, type_)]
        if actual[0] != actual[1]:
            raise GradientError(
                f"{start} a {actual[0]} gradient for argument {leaf.path!r} of {actual[1]}; cast "
                "it back"
            )
    return gradient


def is_one_number(gradient: Any) -> bool:
    """Return whether a gradient is a number, which libraries take for a tensor without axes."""
    if isinstance(gradient, Value):
        return gradient.node.type.kind == "scalar" and gradient.node.type.dtype != BOOL
    if isinstance(gradient, np.ndarray | np.generic):
        return gradient.ndim == 0 and gradient.dtype.kind in "iuf"
    return isinstance(gradient, int | float) and not isinstance(gradient, bool)


def has_no_axes(trace: Trace, argument: Node) -> bool:
    """Return whether an argument has no axes; where that is not fixed, it becomes a fact."""
    if argument.type.shape == SCALAR_SHAPE:
        return True
    ndim, shape = (shape_fact(argument, name) for name in ("ndim", "shape"))
    if shape is not None and shape in trace.facts:
        return trace.facts[shape] == ()
    if ndim is not None and ndim not in trace.facts:
        raise NeedsConcrete(ndim)
    return ndim is not None and trace.facts[ndim] == 0


def _may_agree(trace: Trace, gradient: Value, type_: Type) -> bool:
    # UNKNOWN is decided when the backward runs.
    actual, expected = gradient.node.type.shape, type_.shape
    if actual == expected or UNKNOWN in (actual, expected):
        return True
    if INPUT_SHAPE not in (actual, expected):
        return False
    # The first tensor may have no axes, or one of length 1: a fact decides.
    fact = "ndim" if SCALAR_SHAPE in (actual, expected) else "shape"
    if fact not in trace.facts and "shape" not in trace.facts:
        raise NeedsConcrete(fact)
    shape = trace.facts.get("shape")
    if fact == "ndim":
        return (trace.facts["ndim"] if shape is None else len(shape)) == 0
    gradient_shape = known_shape(gradient)
    return gradient_shape is None or gradient_shape == shape


def describe(type_: Type) -> str:
    shape = type_.shape
    if shape == INPUT_SHAPE:
        return "the first tensor's shape"
    if isinstance(shape, tuple) and shape and shape[0] == "reduced":
        _, axis, keepdims = shape
        words = "with 1 for" if keepdims else "without"
        return f"the first tensor's shape {words} {'all axes' if axis is None else f'axis {axis}'}"
    return "one number" if shape == () else f"[{type_}]"
