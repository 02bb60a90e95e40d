"""Plain code: what a capture records by calling it, with nothing to guard.

Rules of the library are plain: they are written with `xg.xp` and operators, and their graphs were
proven before the release. So is a rule that does arithmetic alone, as its bytecode says: it reads
nothing besides its arguments and functions of `xg.xp`, changes nothing, branches on nothing, and no
operator is known by a name that a library could take for something else.

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

from ...errors import GradientError, TraceError
from .. import xp
from ..ir import questions
from ..ir.graph import Graph
from ..ir.op import FLOAT_SCALAR
from ..lowering.function_graph import FunctionGraph
from ..passes.simplify import simplify
from ..support.trees import optree
from ..trace.lookups import NAME, Telling, names_in, reading
from ..trace.source import CODE, OWN, TENSORS, Reading
from ..trace.trace import NeedsConcrete, Trace, constant, setting
from ..trace.xp.all import CORE_NAMES
from ..trace.xp.symbol import Symbol
from .arguments import Layout, type_of
from .capture_errors import NotCaptured, defined_at
from .gradients import check_gradient, match_gradients
from .proof import is_of_library, own_code
from .recipe import Recipe, Recorded, Variant

ONE_OUTPUT = optree.tree_structure(0)
MOST_CODES = 4096  # of rules, whose bytecode was looked at
# What arithmetic on arguments compiles to, on the versions of Python that are supported.
ARITHMETIC = re.compile(
    "BINARY_OP|CACHE|CALL(_KW)?|COMPARE_OP|COPY|EXTENDED_ARG|KW_NAMES|LOAD_CONST"
    "|(LOAD|STORE)_FAST.*|LOAD_GLOBAL|LOAD_SMALL_INT|NOP|NOT_TAKEN|POP_TOP|PRECALL|PUSH_NULL|RESUME"
    "|RETURN_(CONST|VALUE)|SWAP|UNARY_(INVERT|NEGATIVE)"
)


def is_plain(recipe: Recipe) -> bool:
    """Return whether the code of a recipe is a rule's, and plain; one that is made of graphs is."""
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
    symbols = {leaf.name: _symbol_of(trace, layout, leaf) for leaf in layout.leaves}
    inputs = {leaf.name: symbols[leaf.name].node for leaf in (*layout.tensors, *layout.numbers)}
    for leaf in layout.numbers:
        if f"param:{leaf.name}" in trace.facts:  # recorded as this value, which it has to keep
            symbols[leaf.name] = trace.value(constant(trace.facts[f"param:{leaf.name}"]))
    record: Callable[..., Recorded] | None = recipe.record  # a rule's takes any trace
    assert record is not None and len(layout.tensors) == 1  # as a rule's has
    recorded = record(trace, *layout.rebuild(tuple(symbols.values())))
    (tensor,), pull = layout.tensors, recorded.pull
    assert pull is not None
    argument = inputs[tensor.name]
    grad_out = trace.input("grad_out", argument.type)
    returned = match_gradients(recipe.name, pull(grad_out), layout)
    index = layout.indices("tensor")[0]
    gradient = check_gradient(trace, tensor, argument, returned[index])
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


def _symbol_of(trace: Trace, layout: Layout, leaf: Any) -> Any:
    if leaf.kind == "static":
        return leaf.value
    type_ = FLOAT_SCALAR if leaf.kind == "number" else type_of(layout, leaf)
    return trace.input(leaf.name, type_)


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
    # Names of rules, and what says its meaning itself, hold for the variant where they kept it.
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
