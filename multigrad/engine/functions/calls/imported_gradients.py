"""What imported gradient functions do besides: tangent rules, variables, calls of themselves."""

from __future__ import annotations

import contextvars
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....core import ops
from ....core.backend.contract import Backend
from ....core.functions.arguments import Layout
from ....core.functions.recipe import Recipe
from ....core.ir.graph import Graph, Node, make_node
from ....core.ir.op import SCALAR_SHAPE, Type, is_float
from ....core.passes.simplify import substitute
from ....core.support.records import record
from ....core.support.threads import set_within
from ....core.support.trees import Tensor, optree
from ....core.trace.coercion import cast_node
from ....core.trace.source import ORDERS
from ....core.trace.trace import Value
from ....core.trace.xp import all as xp
from ....errors import GradientError
from ...lowering.tangents import tangent_name
from ...passes.residuals import mark_output, without_stops
from ...trace.code_trace import CodeTrace


# --- what a recipe says of them -------------------------------------------------------------------
@record(eq=True)
class OpaqueCalls:
    """How code of which nothing is captured runs for other frameworks than its own.

    Attributes:
        call_across: `call_across(host, layout, leaves)` calls it in another framework.
        guest_for: `guest_for(layout, leaves)` makes the guest that runs for another framework.
    """

    call_across: Callable[[Backend, Layout, Sequence[Any]], Any]
    guest_for: Callable[[Layout, Sequence[Any]], Any]


@record(eq=True)
class ImportedGradient:
    """What a framework's own custom gradient has besides its code.

    Attributes:
        apply: `apply(*args, **kwargs)`, the original, unchanged.
        run_primal: gives forward's outputs alone, for autodiff to see; None: as `Recipe.run` does.
        apply_within: `apply_within(trace, args, kwargs)` gives the result, in a tuple, of a call
            within its own rules while these are recorded; None elsewhere.
        on_copies: makes the recipe that has `copies`; None: there is none.
        bound_to: binds it to an instance, as its library does with methods, and returns None where
            that binds nothing; None: as functions do.
        gives_tangents: whether its author gives its tangents, too.
        is_checked: whether its framework refuses gradients that do not fit.
        fixed_names: the arguments that its library takes for constants.
        makes_arrays_of_numbers: whether its library makes arrays of its own of Python numbers.
        holds, gather: how it takes objects with tensors as arguments; see `object_function.py`.
        parts_of: an object that its author may give other rules; None: there is none.
    """

    apply: Callable[..., Any]
    run_primal: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
    apply_within: Callable[[CodeTrace, tuple[Any, ...], dict[str, Any]], Any] | None = None
    on_copies: Callable[[], Recipe] | None = None
    bound_to: Callable[[Any], Recipe | None] | None = None
    gives_tangents: bool = False
    is_checked: bool = False
    fixed_names: tuple[str, ...] = ()
    makes_arrays_of_numbers: bool = False
    holds: Callable[[Any], bool] | None = None
    gather: Callable[..., Any] | None = None
    parts_of: Any = None


def is_original_on(recipe: Recipe, backend: Backend) -> bool:
    """Return whether a recipe is a framework's own custom gradient, and this is its home."""
    return recipe.imported is not None and backend.name == recipe.dialect()


# --- tangent rules of authors' own (`jax.custom_jvp`, a torch class's `jvp`), as graphs -----------
@dataclass(frozen=True, slots=True)
class Pushed:
    """A tangent rule of the author's own, as it ran on symbolic values.

    Attributes:
        tangents: the node of an argument with that of its tangent, for each that has one.
        changes: the tangents of the outputs, nested like them; None is zero.
        is_first: whether `Recorded.pull` is the transpose of it.
    """

    tangents: Sequence[tuple[Node, Node]]
    changes: Any
    is_first: bool = False


def make_tangent(trace: CodeTrace, position: int, argument: Any) -> Value | None:
    """Return a symbol for an argument's tangent, of its shape; None where it has no tangent."""
    type_ = argument.node.type if isinstance(argument, Value) else None
    if type_ is None or type_.kind != "tensor" or not is_float(type_):
        return None
    name = f"seed {position}"  # no argument has a space in its name
    seed = trace.input(name, Type("tensor", type_.dtype, SCALAR_SHAPE)).node
    return trace.value(make_node(ops.BROADCAST_TO, (seed, argument.node), {}, type_))


def tangent_graph(
    trace: CodeTrace,
    rule: Pushed,
    inputs: Sequence[Node],
    tensors: Sequence[str],
    outputs: Sequence[Any],
    carried: Sequence[tuple[int, Value]],
) -> tuple[Graph | None, bool]:
    """Return the graph of a tangent rule, see `FunctionGraph.pushed`, None if it moves no inputs;
    and whether the rule's pull is the transpose of that graph.

    Args:
        inputs: those of forward; `tensors` are the names of the tensors among them, in order.
        outputs: what forward returned, as a flat list.
        carried: the outputs that carry a gradient as tensors, each with its place in that list.
    """
    tangents: dict[Node, Node] = {}
    for argument, tangent in rule.tangents:
        name = argument.attr("name") if argument.op is ops.INPUT else None
        if name not in tensors:
            return None, False
        attrs = {"name": tangent_name(tensors.index(name))}
        tangents[tangent] = make_node(ops.INPUT, (), attrs, argument.type)
    changes = optree.tree_leaves(rule.changes, none_is_leaf=True)
    if len(changes) != len(outputs):
        return None, False
    results = tuple([_fit(changes[place], output).node for place, output in carried])
    name = f"tangent of {trace.name}"
    inner = substitute(Graph(name, tuple(inputs), results, trace.source.locations), tangents)
    graph = Graph(name, (*tangents.values(), *inner.inputs), inner.outputs, inner.locations)
    # No framework transposes a stop, and a tangent has no slope that it could take away. But the
    # transpose has: of an index out of range, whose nearest element gets no gradient.
    bare = without_stops(graph, [node.attr("name") for node in tangents.values()])
    return bare, rule.is_first and bare is graph


def _fit(change: Any, output: Value) -> Value:
    if not isinstance(change, Value) or change.node.type.kind == "scalar":
        return xp.full_like(output, 0.0 if change is None else change)
    dtype = output.node.type.dtype
    if change.node.type.dtype == dtype:
        return change
    return output.trace.value(cast_node(change.node, dtype))


# --- gradients of variables that a function reads, as TensorFlow's functions do -------------------
# A backend calls `pull_delivering` around the function's own pull; the pull asks for the variables
# (`asked_variables`) and gives their gradients (`deliver`).
@dataclass(slots=True)
class Delivery:
    """The variables that a function has read, and the gradients that it delivers to them.

    `is_added` tells whether its backward has added to a variable's gradient by itself.
    """

    variables: Sequence[Any]
    gradients: Sequence[Tensor | None]
    is_added: Callable[[Any], bool]
    is_done: bool = False


# Set by a backend while a function's own pull runs; None: no variables are asked for.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_delivery", default=None
)


def pull_delivering(
    pull: Callable[..., Any],
    cotangents: Sequence[Tensor],
    variables: Sequence[Any],
    is_added: Callable[[Any], bool] = lambda variable: False,
) -> tuple[Any, list[Tensor | None]]:
    """Return a pull's gradients, and those that it delivers to variables, None for none."""
    delivery = Delivery(variables, [None] * len(variables), is_added)
    with set_within(DELIVERY, delivery):
        gradients = pull(*cotangents)
    return gradients, list(delivery.gradients)


def asked_variables() -> list[Any]:
    delivery = DELIVERY.get()
    return [] if delivery is None else list(delivery.variables)


def lost_variables() -> list[Any]:
    """Return the variables whose gradients are asked for and were not delivered."""
    delivery = DELIVERY.get()
    if delivery is None or delivery.is_done:
        return []
    return [each for each in delivery.variables if not delivery.is_added(each)]


def deliver(gradients: Sequence[Tensor | None]) -> None:
    delivery = DELIVERY.get()
    if delivery is None:
        return
    if len(gradients) != len(delivery.variables):
        raise GradientError(
            f"a gradient function returned {len(gradients)} gradients for "
            f"{len(delivery.variables)} variables; expected one for each, None where there is none"
        )
    delivery.gradients, delivery.is_done = gradients, True


# --- a function that its own rules call -----------------------------------------------------------
# The functions whose rules are being recorded, the innermost last, each with its arguments then, or
# None if they are not known. Within its own rules a function is only its primal.
RECORDED: contextvars.ContextVar[tuple[tuple[Any, Any], ...]] = contextvars.ContextVar(
    "multigrad_recorded", default=()
)


@contextmanager
def recording(function: Any, arguments: Any = None) -> Iterator[None]:
    """Mark a function's rules as being recorded, for arguments nested somehow."""
    with set_within(RECORDED, (*RECORDED.get(), (function, arguments))):
        yield


@dataclass(frozen=True, slots=True)
class WithinOwnRules:
    """A stand-in for a function within its own rules.

    Attributes:
        name: the function's.
        arguments: (args, kwargs) -> those of a call, nested somehow, and alike those for which the
            rules are being recorded now; see `outputs_of`.
    """

    name: str
    arguments: Callable[[Any, Any], tuple[Any, Any]]

    def around(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function to run in its place, given one that computes the primal."""
        return partial(self._call, compute)

    def _call(self, compute: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        outputs = compute(*args, **kwargs)
        return outputs_of(self.name, outputs, *self.arguments(args, kwargs))


def outputs_of(name: str, outputs: Any, asked: Any, recorded: Any) -> Any:
    """Return outputs to a rule that calls its own function.

    No derivative may be taken of them if the arguments of this call (`asked`) are not those that
    the rule is recorded for (`recorded`, nested alike; None if they are not known).
    """
    arguments = optree.tree_leaves(asked, none_is_leaf=True)
    if recorded is not None:
        expected = optree.tree_leaves(recorded, none_is_leaf=True)
        if len(arguments) == len(expected) and all(map(is_same, arguments, expected)):
            return as_outputs(outputs)
    symbols = [each for each in arguments if isinstance(each, Value)]
    if symbols:
        trace = symbols[0].trace
        trace.backward.lost_gradient = name
        trace.omit(ORDERS, f"the derivatives of {name!r} of any order")
    return outputs


def as_outputs(outputs: Any) -> Any:
    """Return the outputs of a function as its backward has them."""
    leaves, tree = optree.tree_flatten(outputs, none_is_leaf=True)
    serials = itertools.count()
    marked_leaves = [
        each.trace.value(mark_output(each.node, next(serials))) if isinstance(each, Value) else each
        for each in leaves
    ]
    return optree.tree_unflatten(tree, marked_leaves)


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Value) and isinstance(b, Value):
        return a.trace is b.trace and a.node is b.node
    # Plain values may be made anew for each call, so their texts decide.
    return a is b or (type(a) is type(b) and repr(a) == repr(b))
