"""Recipes of `jax.custom_vjp` and `jax.custom_jvp` functions, with rules run on symbolic values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

from multigrad.core import ops
from multigrad.core.functions.arguments import Layout
from multigrad.core.functions.recipe import ArgumentRules, Recipe, Recorded, no_refusals
from multigrad.core.ir import questions
from multigrad.core.ir.graph import Graph, Node
from multigrad.core.ir.op import is_float
from multigrad.core.lowering.derivatives import accumulate_all
from multigrad.core.passes.simplify import substitute
from multigrad.core.support.trees import optree
from multigrad.core.trace.source import UNDIFFERENTIATED
from multigrad.core.trace.trace import Value, known_shape
from multigrad.engine.capture.copies.run_or_import import run_written_in
from multigrad.engine.capture.user_code.inspection import contents, plain_function
from multigrad.engine.functions.calls.arguments import positional_names, replace_at
from multigrad.engine.functions.calls.explained_errors import kind_name
from multigrad.engine.functions.calls.imported_gradients import (
    RECORDED,
    ImportedGradient,
    Pushed,
    WithinOwnRules,
    as_outputs,
    make_tangent,
    recording,
)
from multigrad.engine.functions.calls.parameters import bind_call, signature_of
from multigrad.engine.functions.recording.recapture import are_close
from multigrad.engine.passes.residuals import by_value, unmarked
from multigrad.engine.trace.code_trace import CodeTrace
from multigrad.errors import GradientError, TraceError

from .core.versions import primal_of, static_of, takes_symbolic_zeros

Tensor: TypeAlias = jax.Array
Call: TypeAlias = Callable[..., Any]  # runs one of the user's functions: (function, *args)


def recipe_of_custom(
    function: Any,
    original: Any,
    *,
    run: Any,
    record: Any,
    rules: tuple[Any, ...],
    gives_tangents: bool = False,
    refused: Callable[[Layout], Mapping[str, str]] = no_refusals,
) -> Recipe:
    """Return the recipe of a custom function of jax; `original` is the same, maybe under `jax.jit`.

    `run` and `record` (see `Recipe`) run its `rules`, the user's functions that say its gradient.
    `gives_tangents`: see `ImportedGradient`; `refused`: see `ArgumentRules`.
    """

    def run_primal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return primal_of(function)(*args, **kwargs)

    def apply_within(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        stand_in = within_own_rules(function)
        if stand_in is None or given_to(function) is None:
            return None
        compute = functools.partial(run_written_in, "jax", primal_of(function), trace)
        return (stand_in.around(compute)(*args, **kwargs),)

    return Recipe(
        name_of(function),
        run,
        record,
        rules,
        written_in=jax.__name__,
        signature=signature_of(primal_of(function)),
        arguments=ArgumentRules(refused=refused),
        imported=ImportedGradient(
            original,
            run_primal,
            apply_within,
            gives_tangents=gives_tangents,
            is_checked=True,
            fixed_names=fixed_names(function),
            makes_arrays_of_numbers=True,
            parts_of=function,
        ),
    )


def fixed_names(function: Any) -> tuple[str, ...]:
    names = positional_names(signature_of(primal_of(function)))
    return tuple(names[i] for i in static_of(function) if -len(names) <= i < len(names))


@dataclass(frozen=True, slots=True)
class PositionalArguments:
    """The arguments of one call as jax sees them: all positional.

    Attributes:
        values: one for each parameter up to the last given, defaults filled in.
        static: the positions in `nondiff_argnums`.
        spread: how many were given positionally.
        named: the position of each one given by keyword.
    """

    values: tuple[Any, ...]
    static: tuple[int, ...]
    spread: int
    named: Mapping[str, int]

    @property
    def fixed(self) -> tuple[Any, ...]:
        """The arguments in `nondiff_argnums`, which come first in the rules."""
        return tuple(self.values[i] for i in self.static)

    @property
    def positions(self) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.values)) if i not in self.static)

    @property
    def primals(self) -> tuple[Any, ...]:
        return tuple(self.values[i] for i in self.positions)

    def merge(self, primals: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace_at(self.values, self.positions, primals))

    def arrange(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Return gradients of the primals nested like (*args, kwargs)."""
        all_gradients = replace_at([None] * len(self.values), self.positions, gradients)
        positional = tuple(all_gradients[: self.spread])
        by_name = {name: all_gradients[i] for name, i in self.named.items()}
        return (*positional, by_name) if by_name else positional


def resolve(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PositionalArguments:
    """Return a call's arguments, resolved to positions as jax does."""
    signature = inspect.signature(primal_of(function))
    bound = bind_call(f"function {name_of(function)!r}", signature, args, kwargs)
    bound.apply_defaults()
    keyword_only = [name for name in bound.kwargs if name in kwargs]
    if keyword_only:
        raise TypeError(
            f"{name_of(function)}() got keyword-only arguments, which have no "
            f"position: {', '.join(keyword_only)}"
        )
    names = positional_names(signature)
    count = len(bound.args)
    static_positions = tuple(sorted(i % count for i in static_of(function) if -count <= i < count))
    return PositionalArguments(
        bound.args, static_positions, len(args), {name: names.index(name) for name in kwargs}
    )


def call_in(trace: CodeTrace, recorded_function: Any, arguments: PositionalArguments) -> Call:
    def call(function: Callable[..., Any], *args: Any) -> Any:
        with recording(recorded_function, arguments.values):
            return run_written_in("jax", function, trace, *args)

    return call


def within_own_rules(function: Any) -> WithinOwnRules | None:
    """Return the stand-in for a function while its rules are recorded, else None."""

    def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return resolve(function, args, kwargs).values, given_to(function)

    is_recorded = any(function is other for other, _ in RECORDED.get())
    return WithinOwnRules(name_of(function), arguments) if is_recorded else None


def given_to(function: Any) -> tuple[Any, ...] | None:
    """Return the arguments for which a function's rules are recorded; None if unknown."""
    return next((args for other, args in reversed(RECORDED.get()) if other is function), None)


def check_forward(call: Call, function: Any, arguments: PositionalArguments, outputs: Any) -> None:
    """Compare the primal outputs of a function's rule with those of the function itself."""
    values = [each for each in flatten(outputs) if isinstance(each, Value)]
    # all outputs, where the rule calls the function
    if all(each.node.op is ops.OUTPUT for each in values):
        return
    trace = values[0].trace
    # The function draws the same numbers as its rule: the count of draws starts again.
    draw_count, trace.draws, question_count = trace.draws, 0, questions.count()
    try:
        leaves = flatten(call(primal_of(function), *arguments.values))
        plain_values = [each for each in leaves if isinstance(each, Value)]
    except TraceError:  # jax computes the primal itself, and the proof compares it
        questions.forget(question_count)
        trace.omit(UNDIFFERENTIATED)
        return
    finally:
        trace.draws = max(draw_count, trace.draws)
    is_same = len(plain_values) == len(values)
    for a, b in zip(values, plain_values, strict=False):
        a_node, b_node = unmarked(a.node), unmarked(b.node)
        is_alike = a_node is b_node or are_close(trace, a_node, b_node)  # None: undecided
        if is_alike is None:
            trace.omit(UNDIFFERENTIATED)
        is_same = is_same and is_alike is not False
    if not is_same:
        raise trace.error(
            "computes something else where it is differentiated than where it is not, which no "
            f"graph does{trace.words.advise('let its rule call it for its outputs')}"
        )


def flatten(tree: Any) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


def split_pair(name: str, what: str, result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise GradientError(
            f"function {name!r}: its rule returned a {kind_name(result)}; expected a pair of {what}"
        )
    return result[0], result[1]


def name_of(function: Any) -> str:
    plain = plain_function(function)
    return getattr(function, "__name__", None) or (
        plain.__name__ if plain else type(function).__name__
    )


def closed_over(rule: Any, names: tuple[str, ...]) -> Any:
    """Return the first closed-over value of a rule that jax made; None for a user's rule."""
    plain = plain_function(rule)
    if plain is None or plain.__module__ != jax.custom_vjp.__module__:
        return None
    cells = plain.__closure__
    return contents(cells[0]) if cells and plain.__code__.co_freevars == names else None


def has_tangent(value: Any) -> bool:
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jnp.inexact))


# --- `jax.custom_jvp` -----------------------------------------------------------------------------
# The rule is linear in the tangents, so its VJP with respect to them is its transpose.
PER_ARGUMENT = ("jvps", "self")  # the closure of the rule that jax (0.10) makes of `defjvps(...)`


def recipe_of_jvp(function: Any, original: Any) -> Recipe:
    name, jvps = name_of(function), jvps_of(function)
    rules = (function.jvp,)
    if jvps is not None:
        rules = (primal_of(function), *(each for each in jvps if each is not None))
    return recipe_of_custom(
        function,
        original,
        run=functools.partial(_run_jvp, function),
        record=functools.partial(_record_jvp, function, name),
        rules=rules,
        gives_tangents=True,
    )


def jvps_of(function: Any) -> tuple[Any, ...] | None:
    """Return the rules given to `defjvps`, one for each argument; None: it has one for all."""
    return closed_over(function.jvp, PER_ARGUMENT)


def _record_jvp(
    function: Any, name: str, trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    arguments = resolve(function, args, kwargs)
    leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
    tangents = [make_tangent(trace, i, leaf) for i, leaf in enumerate(leaves)]
    call = call_in(trace, function, arguments)
    nested_tangents = optree.tree_unflatten(tree, [0.0 if t is None else t for t in tangents])
    # jax's own rule would compute the primal again with unknown tangents: each argument's is
    # run
    jvps = jvps_of(function)
    if jvps is None:
        result = call(function.jvp, *arguments.fixed, arguments.primals, nested_tangents)
        outputs, changes = split_pair(name, "the outputs and their tangents", result)
        check_forward(call, function, arguments, outputs)
        out_tangents = flatten(changes)
    else:
        outputs = call(primal_of(function), *arguments.primals)
        flat_outputs = as_outputs(outputs)
        out_tangents = _add_up(call, jvps, flat_outputs, arguments.primals, nested_tangents)

    def pull(upstream: Any) -> tuple[Any, ...]:
        seeds = [
            (change.node, cotangent)
            for change, cotangent in zip(out_tangents, flatten(upstream), strict=True)
            if isinstance(change, Value) and is_float(change.node.type)
        ]
        gradients = _transpose(name, trace, seeds, leaves, tangents)
        return arguments.arrange(optree.tree_unflatten(tree, gradients))

    pairs = zip(leaves, tangents, strict=True)
    moves = [(leaf.node, tangent.node) for leaf, tangent in pairs if tangent is not None]
    return Recorded(outputs, pull, push=lambda: Pushed(moves, out_tangents, is_first=True))


def _transpose(
    name: str,
    trace: CodeTrace,
    seeds: Sequence[tuple[Node, Value]],
    leaves: Sequence[Any],
    tangents: Sequence[Value | None],
) -> list[Value | None]:
    """Return the gradient of each primal: the cotangent of its tangent."""
    primals = {
        tangent.node: leaf.node
        for tangent, leaf in zip(tangents, leaves, strict=True)
        if tangent is not None
    }
    cotangents = accumulate_all(trace, seeds, tuple(primals))
    gradients = dict(zip(primals, cotangents, strict=True))
    nodes = tuple(value.node for value in cotangents if value is not None)
    if not by_value(nodes).isdisjoint(primals):
        raise GradientError(
            f"function {name!r}: its rule is not linear in the tangents, so that it has "
            "no gradient; only sums of tangents and products with what does not depend on "
            "them are"
        )
    # Only shapes of tangents are left in the graph, and they are those of the primals.
    graph = substitute(Graph(name, (), nodes, {}), primals)
    replacements = dict(zip(nodes, graph.outputs, strict=True))
    return [
        None
        if tangent is None or (gradient := gradients[tangent.node]) is None
        else trace.value(replacements[gradient.node])
        for tangent in tangents
    ]


def _run_jvp(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
    arguments = resolve(function, args, kwargs)
    leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
    float_positions = [i for i, leaf in enumerate(leaves) if has_tangent(leaf)]

    def call(*primals: Tensor) -> Any:
        values = replace_at(leaves, float_positions, primals)
        return function(*arguments.merge(optree.tree_unflatten(tree, values)))

    outputs, pullback = jax.vjp(call, *(leaves[i] for i in float_positions))

    def pull(upstream: Any) -> tuple[Any, ...]:
        gradients = replace_at([None] * len(leaves), float_positions, pullback(upstream))
        return arguments.arrange(optree.tree_unflatten(tree, gradients))

    return Recorded(outputs, pull)


def _add_up(
    call: Call, jvps: Sequence[Any], outputs: Any, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    totals: list[Any] = [None] * len(flatten(outputs))
    for jvp, tangent in zip(jvps, tangents, strict=False):
        # an argument without a rule moves nothing
        if jvp is None:
            continue
        shares = flatten(call(jvp, tangent, outputs, *primals))
        totals = [
            share if total is None else total + share
            for total, share in zip(totals, shares, strict=True)
        ]
    return totals


# --- `jax.custom_vjp` -----------------------------------------------------------------------------
REFUSAL = (
    "{} has no gradient for its argument {!r}, which is in nondiff_argnums. Take it from there and "
    "let the backward return a gradient for it, or stop the gradient of what is given for it"
)


def recipe_of_vjp(function: Any, original: Any) -> Recipe:
    name = name_of(function)
    subject = f"function {name!r}"

    def refused(layout: Layout) -> Mapping[str, str]:
        # Derivatives by arguments in `nondiff_argnums`: jax refuses each tracer there.
        names = fixed_names(function)
        fixed_leaves = [leaf for leaf in layout.tensors if leaf.path.partition("[")[0] in names]
        return {leaf.name: REFUSAL.format(subject, leaf.path) for leaf in fixed_leaves}

    def record(trace: CodeTrace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        arguments = resolve(function, args, kwargs)
        call = call_in(trace, function, arguments)
        recorded = _run_vjp(function, name, call, args, kwargs)
        check_forward(call, function, arguments, recorded.outputs)
        return recorded

    return recipe_of_custom(
        function,
        original,
        run=functools.partial(_run_vjp, function, name, lambda rule, *args: rule(*args)),
        record=record,
        rules=(function.fwd, function.bwd),
        refused=refused,
    )


def _run_vjp(
    function: Any, name: str, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Recorded:
    arguments = resolve(function, args, kwargs)
    primals = arguments.primals
    if takes_symbolic_zeros(function):
        primals = tuple(optree.tree_map(_as_primal, each, none_is_leaf=True) for each in primals)
    result = call(function.fwd, *arguments.merge(primals))
    outputs, residuals = split_pair(name, "the outputs and the residuals", result)

    def pull(upstream: Any) -> tuple[Any, ...]:
        cotangents = call(function.bwd, *arguments.fixed, residuals, upstream)
        count = len(arguments.positions)
        if not isinstance(cotangents, tuple | list) or len(cotangents) != count:
            is_list = isinstance(cotangents, tuple | list)
            description = len(cotangents) if is_list else f"a {kind_name(cotangents)}"
            raise GradientError(
                f"function {name!r}: its backward returned {description} for {count} arguments; "
                "expected a tuple with one cotangent for each, None where there is none"
            )
        return arguments.arrange(cotangents)

    return Recorded(outputs, pull, missing=_zero_of if takes_symbolic_zeros(function) else None)


def _as_primal(value: Any) -> CustomVJPPrimal:
    # each float counts as perturbed: a graph has a gradient for all of them
    return CustomVJPPrimal(value, has_tangent(value))


def _zero_of(output: Value) -> SymbolicZero:
    # rules test the type; an open shape is written as ()
    return SymbolicZero(jax.core.ShapedArray(known_shape(output) or (), jnp.float32))
