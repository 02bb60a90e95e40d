"""jax's own custom gradients as recipes: `jax.custom_vjp` and `jax.custom_jvp` functions, unchanged.

Their rules run on symbolic values. A `custom_jvp` rule is linear in its tangents, so that its transpose is its VJP with
respect to them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optree
from jax.custom_derivatives import CustomVJPPrimal

from multigrad.capture.capture import run_function
from multigrad.capture.dialect import contents, mentioned
from multigrad.capture.substitute import plain_function
from multigrad.errors import GradientError, RuleTypeError
from multigrad.functions.arguments import positional_names, signature_of
from multigrad.functions.custom_gradient import library_of
from multigrad.functions.function import Function
from multigrad.functions.record import Recorded
from multigrad.ir import ops
from multigrad.ir.derivatives import accumulate_all
from multigrad.ir.graph import Graph, Node, make_node, walk
from multigrad.ir.passes import substitute
from multigrad.ir.record import Trace, Value
from multigrad.ir.types import ROW, Type, is_float

Tensor: TypeAlias = Any
Call: TypeAlias = Callable[..., Any]  # runs one of the user's functions: (function, *args)
JITTED = type(jax.jit(len))
PER_ARGUMENT = ("jvps", "self")  # what the rule closes over that jax makes of `defjvps(...)`


def import_function(function: Any) -> VjpRecipe | JvpRecipe:
    """Return the recipe of a `jax.custom_vjp` or `jax.custom_jvp` function.

    Raises:
        RuleTypeError: it is neither, or its rules are not defined yet.
    """
    inner = function
    while isinstance(inner, JITTED):
        inner = inner.__wrapped__
    if isinstance(inner, jax.custom_vjp):
        if inner.fwd is None or inner.bwd is None:
            raise _undefined(inner, "f.defvjp(fwd, bwd)")
        return VjpRecipe(inner, _name_of(inner))
    if isinstance(inner, jax.custom_jvp):
        if inner.jvp is None:
            raise _undefined(inner, "f.defjvp(jvp)")
        return JvpRecipe(inner, _name_of(inner))
    raise RuleTypeError(
        f"expected a jax.custom_vjp or jax.custom_jvp function, got a {type(inner).__name__}: "
        f"{inner!r:.60}. What jax.custom_gradient makes cannot be told from a plain function: decorate the "
        f"function with xg.custom_gradient instead"
    )


def _undefined(function: Any, definition: str) -> RuleTypeError:
    kind = type(function).__name__
    return RuleTypeError(f"jax.{kind} function {_name_of(function)!r} has no rule yet: call {definition} first")


def _name_of(function: Any) -> str:
    plain = plain_function(function)
    return getattr(function, "__name__", None) or (plain.__name__ if plain else type(function).__name__)


# --- what both kinds share ---------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of one call as jax sees them: all of them positional.

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
        """The arguments without a derivative, which come first in the rules."""
        return tuple(self.values[i] for i in self.static)

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions of the others."""
        return tuple(i for i in range(len(self.values)) if i not in self.static)

    @property
    def primals(self) -> tuple[Any, ...]:
        """The others."""
        return tuple(self.values[i] for i in self.positions)

    def merge(self, primals: Sequence[Any]) -> tuple[Any, ...]:
        """Return all arguments with other primals."""
        values = list(self.values)
        for i, primal in zip(self.positions, primals, strict=True):
            values[i] = primal
        return tuple(values)

    def arrange(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Return gradients of the primals nested like (*args, kwargs)."""
        whole: list[Any] = [None] * len(self.values)
        for i, gradient in zip(self.positions, gradients, strict=True):
            whole[i] = gradient
        given = tuple(whole[: self.spread])
        named = {name: whole[i] for name, i in self.named.items()}
        return (*given, named) if named else given


def resolve(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """Return a call's arguments, resolved to positions as jax does.

    Raises:
        TypeError: they do not fit the function's parameters, or one of them has no position.
    """
    signature = inspect.signature(function.fun)
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    odd = [name for name in bound.kwargs if name in kwargs]
    if odd:
        raise TypeError(
            f"{_name_of(function)}() got keyword-only arguments, which have no position: {', '.join(odd)}"
        )
    names = positional_names(signature)
    count = len(bound.args)
    static = tuple(sorted(i % count for i in function.nondiff_argnums if -count <= i < count))
    return Arguments(bound.args, static, len(args), {name: names.index(name) for name in kwargs})


# Functions whose rules this thread is recording: there, such a function is what it computes.
_recording = threading.local()


def with_own_gradient(function: Any) -> Function | None:
    """Return what stands in for a custom function where another is captured; None inside of its own rules."""
    if any(function is each for each in getattr(_recording, "functions", ())):
        return None
    try:
        return Function(import_function(function))
    except RuleTypeError:  # it has no rule yet
        return None


def _call(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _call_in(trace: Trace, own: Any) -> Call:
    """Return what runs the rules of a function in a capture."""

    def call(function: Callable[..., Any], *args: Any) -> Any:
        before = getattr(_recording, "functions", ())
        _recording.functions = (*before, own)
        try:
            return run_function(function, trace, *args)
        finally:
            _recording.functions = before

    return call


def uses(rule: Any, function: Any) -> bool:
    """Return whether a rule refers to the function that it is a rule of."""
    plain = plain_function(rule)
    if plain is None:
        return False
    referred = [value for _, value in mentioned(plain)]
    referred += [contents(cell) for cell in plain.__closure__ or ()]
    return any(value is function for value in referred)


def _leaves(tree: Any) -> list[Any]:
    return optree.tree_leaves(tree, none_is_leaf=True)


def _pair(name: str, what: str, result: Any) -> tuple[Any, Any]:
    """Return a rule's result where it is a pair.

    Raises:
        GradientError: it is not.
    """
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise GradientError(
            f"function {name!r}: its rule returned a {type(result).__name__}; expected a pair of {what}"
        )
    return result[0], result[1]


# --- jax.custom_vjp ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class VjpRecipe:
    """A `jax.custom_vjp` function."""

    function: Any
    name: str
    native: bool | None = None

    @property
    def signature(self) -> inspect.Signature | None:
        """The function's own signature."""
        return signature_of(self.function.fun)

    def dialect(self) -> str:
        """Return the library that its rules are written in, "" where they are written for all."""
        return library_of(self.function.fwd) or library_of(self.function.bwd)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self._run(_call_in(trace, self.function), args, kwargs)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        return self._run(_call, args, kwargs)

    def _run(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        function, name = self.function, self.name
        arguments = resolve(function, args, kwargs)
        given = arguments.primals
        if function.symbolic_zeros:
            given = tuple(optree.tree_map(_as_primal, each, none_is_leaf=True) for each in given)
        result = call(function.fwd, *arguments.merge(given))
        outputs, residuals = _pair(name, "the outputs and the residuals", result)

        def pull(upstream: Any) -> tuple[Any, ...]:
            found = call(function.bwd, *arguments.fixed, residuals, upstream)
            count = len(arguments.positions)
            if not isinstance(found, tuple | list) or len(found) != count:
                shown = f"{len(found)}" if isinstance(found, tuple | list) else f"a {type(found).__name__}"
                raise GradientError(
                    f"function {name!r}: its backward returned {shown} for {count} arguments; expected a "
                    f"tuple with one cotangent for each, None where there is none"
                )
            return arguments.arrange(found)

        return Recorded(outputs, pull, keeps_output=uses(function.fwd, function))


def _as_primal(value: Any) -> CustomVJPPrimal:
    """Return an argument as a forward gets it that asks for symbolic zeros; each float counts as perturbed."""
    return CustomVJPPrimal(value, _has_tangent(value))


def _has_tangent(value: Any) -> bool:
    if isinstance(value, Value):
        return value.node.type.kind == "tensor" and is_float(value.node.type)
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jnp.inexact))


# --- jax.custom_jvp ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class JvpRecipe:
    """A `jax.custom_jvp` function."""

    function: Any
    name: str
    native: bool | None = None

    @property
    def signature(self) -> inspect.Signature | None:
        """The function's own signature."""
        return signature_of(self.function.fun)

    def dialect(self) -> str:
        """Return the library that its rule is written in, "" where it is written for all."""
        return library_of(self.function.fun) or library_of(self.function.jvp)

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        function = self.function
        arguments = resolve(function, args, kwargs)
        leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
        tangents = [_make_tangent(trace, i, leaf) for i, leaf in enumerate(leaves)]
        call = _call_in(trace, function)
        nested = optree.tree_unflatten(tree, [0.0 if t is None else t for t in tangents])
        jvps = _per_argument(function.jvp)
        if jvps is None:
            result = call(function.jvp, *arguments.fixed, arguments.primals, nested)
            outputs, changes = _pair(self.name, "the outputs and their tangents", result)
            found = _leaves(changes)
        else:
            outputs = call(function.fun, *arguments.primals)
            found = _add_up(call, jvps, outputs, arguments.primals, nested)
        keeps = jvps is not None or uses(function.jvp, function)

        def pull(upstream: Any) -> tuple[Any, ...]:
            seeds = [
                (change.node, cotangent)
                for change, cotangent in zip(found, _leaves(upstream), strict=True)
                if isinstance(change, Value) and is_float(change.node.type)
            ]
            gradients = self._transpose(trace, seeds, leaves, tangents)
            return arguments.arrange(optree.tree_unflatten(tree, gradients))

        return Recorded(outputs, pull, keeps_output=keeps)

    def _transpose(
        self,
        trace: Trace,
        seeds: Sequence[tuple[Node, Value]],
        leaves: Sequence[Any],
        tangents: Sequence[Value | None],
    ) -> list[Value | None]:
        """Return the gradient of each primal: the cotangent of its tangent.

        Raises:
            GradientError: the rule is not linear in the tangents.
        """
        primals = {
            tangent.node: leaf.node
            for tangent, leaf in zip(tangents, leaves, strict=True)
            if tangent is not None
        }
        cotangents = accumulate_all(trace, seeds, tuple(primals))
        gradients = dict(zip(primals, cotangents, strict=True))
        nodes = tuple(value.node for value in cotangents if value is not None)
        if any(depends(node, set(primals)) for node in nodes):
            raise GradientError(
                f"function {self.name!r}: its rule is not linear in the tangents, so that it has no gradient; "
                f"only sums of tangents and products with what does not depend on them are"
            )
        # Their shapes alone are read, which are those of the primals.
        graph = substitute(Graph(self.name, (), nodes, {}), primals)
        plain = dict(zip(nodes, graph.outputs, strict=True))
        return [
            None
            if tangent is None or (gradient := gradients[tangent.node]) is None
            else trace.value(plain[gradient.node])
            for tangent in tangents
        ]

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        arguments = resolve(self.function, args, kwargs)
        leaves, tree = optree.tree_flatten(arguments.primals, none_is_leaf=True)
        floats = [i for i, leaf in enumerate(leaves) if _has_tangent(leaf)]

        def call(*given: Tensor) -> Any:
            whole = list(leaves)
            for i, value in zip(floats, given, strict=True):
                whole[i] = value
            return self.function(*arguments.merge(optree.tree_unflatten(tree, whole)))

        outputs, pullback = jax.vjp(call, *(leaves[i] for i in floats))

        def pull(upstream: Any) -> tuple[Any, ...]:
            gradients: list[Any] = [None] * len(leaves)
            for i, gradient in zip(floats, pullback(upstream), strict=True):
                gradients[i] = gradient
            return arguments.arrange(optree.tree_unflatten(tree, gradients))

        return Recorded(outputs, pull)


def _make_tangent(trace: Trace, position: int, primal: Any) -> Value | None:
    """Return a symbol for the tangent of an argument, of its shape; None where it has no tangent."""
    if not _has_tangent(primal):
        return None
    type_ = primal.node.type
    name = f"tangent {position}"  # no argument has a space in its name
    seed = trace.input(name, Type("tensor", type_.dtype, ROW)).node
    return trace.value(make_node(ops.BROADCAST_TO, (seed, primal.node), {}, type_))


def _per_argument(jvp: Any) -> tuple[Any, ...] | None:
    """Return the rules that were given to `defjvps`, one (or None) for each argument; None: it was `defjvp`."""
    plain = plain_function(jvp)
    if plain is None or plain.__code__.co_freevars != PER_ARGUMENT:
        return None
    return contents((plain.__closure__ or ())[0])


def _add_up(
    call: Call, jvps: Sequence[Any], outputs: Any, primals: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Return the tangents of the outputs: the sum over the arguments that have a rule."""
    total: list[Any] = [None] * len(_leaves(outputs))
    for jvp, tangent in zip(jvps, tangents, strict=False):
        if jvp is None:
            continue
        shares = _leaves(call(jvp, tangent, outputs, *primals))
        total = [
            share if known is None else known + share
            for known, share in zip(total, shares, strict=True)
        ]
    return total


def depends(node: Node, sources: set[Node]) -> bool:
    """Return whether a node depends on one of the sources by more than its shape."""
    found = set(sources)
    for each in walk((node,)):
        shape_only = ops.SHAPE_ONLY.get(each.op, ())
        if any(o in found for i, o in enumerate(each.operands) if i not in shape_only):
            found.add(each)
    return node in found
