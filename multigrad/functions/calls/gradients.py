"""Gradients as a gradient function returns them, matched to the leaves of the arguments.

They may come flat (one for each tensor, or for each argument) or structured like the arguments.
Below: where gradients meet, in variables that nobody passed and in an input that is used several
times (`accumulate=`).
"""

from __future__ import annotations

import contextvars
import itertools
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import Signature
from typing import Any

import numpy as np

from ...capture.dialect import habits_of
from ...errors import GradientError, RuleTypeError, RuleValueError
from ...graph import ops
from ...graph.ir.graph import Graph, Node, make_node
from ...graph.ir.types import BOOL, INPUT_SHAPE, SCALAR_SHAPE, UNKNOWN, T, Type, is_float
from ...graph.passes.facts import shape_fact
from ...graph.passes.residuals import mark_output
from ...graph.passes.simplify import substitute, without_stops
from ...graph.support.class_bases import dataclass
from ...graph.support.threads import set_within
from ...graph.support.trees import optree, with_own_classes
from ...lowering.function_graph import tangent_name
from ...trace.assertions import ORDERS
from ...trace.axes import known_shape
from ...trace.coercion import cast_node, lift_array
from ...trace.trace import NeedsConcrete, Trace, Value
from ...trace.xp import all as xp
from .arguments import PLAIN, Forgotten, Layout, Leaf, owner_of

Tensor = Any
CONTAINERS = (tuple, list, dict)


def match_gradients(function: str, returned: Any, layout: Layout) -> list[Any]:
    """Return a gradient (or None) for each leaf of the arguments.

    Raises:
        GradientError: their number or nesting fits neither the arguments nor their leaves.
    """
    leaves = layout.leaves
    returned = with_own_classes(returned)
    args, kwargs = layout.rebuild(range(len(leaves)))
    # Keywords that hold floats wait for gradients too.
    floats = [i for i, leaf in enumerate(leaves) if leaf.is_float or leaf.dtype == T]
    named = any(i >= layout.positional for i in floats)
    structured = _match_structure(returned, args, kwargs, len(leaves), named)
    if structured is not None:
        return refuse_objects(function, structured, layout)
    flat = optree.tree_leaves(returned, none_is_leaf=True)
    everything = list(range(len(leaves)))
    positional = everything if named else everything[: layout.positional]
    # The first count that fits wins, from all leaves to the floats alone.
    for targets in (everything, positional, list(layout.indices("tensor")), floats):
        if len(flat) == len(targets):
            if len(flat) > 1:
                _refuse_unordered(function, args, kwargs)
            gradients: list[Any] = [None] * len(leaves)
            for i, gradient in zip(targets, flat, strict=True):
                gradients[i] = gradient
            return refuse_objects(function, gradients, layout)
    count = "1 gradient" if len(flat) == 1 else f"{len(flat)} gradients"
    paths = ", ".join(leaf.path for leaf in leaves)
    raise GradientError(
        f"function {function!r} returned {count} for {len(leaves)} arguments ({paths}); expected "
        "one for each, None where there is none"
    )


def refuse_objects(function: str, gradients: list[Any], layout: Layout) -> list[Any]:
    """Return the gradients; raise if one is for an object whose tensors are not seen."""
    for leaf, gradient in zip(layout.leaves, gradients, strict=True):
        if gradient is None or leaf.kind != "static" or isinstance(leaf.value, PLAIN):
            continue
        value = leaf.value
        kind = value.kind if isinstance(value, Forgotten) else type(value).__name__
        raise GradientError(
            f"function {function!r} returned a gradient for argument {leaf.path!r}, a {kind}, "
            "whose tensors are not seen. Register its class with optree.register_pytree_node (a "
            "dataclass: decorate it with optree.dataclasses.dataclass), or pass its tensors as "
            "arguments"
        )
    return gradients


def _refuse_unordered(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    dicts = [kwargs]
    optree.tree_map(lambda _: None, args, is_leaf=lambda node: _note_dict(node, dicts))
    for each in dicts:
        names = [name for name, value in each.items() if optree.tree_leaves(value)]
        # Leaves come by sorted keys; keywords in the order of a call, which its function does not
        # know.
        if len(names) > 1 and (each is kwargs or names != sorted(names, key=str)):
            shown = ", ".join(f"{name!r}: ..." for name in names[:4])
            raise GradientError(
                f"function {function!r} returned flat gradients for arguments by name, which have "
                f"no order. Nest them like the arguments: {{{shown}}}"
            )


def _note_dict(node: Any, dicts: list[dict[Any, Any]]) -> bool:
    if isinstance(node, dict) and not isinstance(node, OrderedDict):
        dicts.append(node)
    return False


def _match_structure(
    returned: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: int, named: bool
) -> list[Any] | None:
    if isinstance(returned, list):
        returned = tuple(returned)
    candidates: list[tuple[Any, Any]] = []
    if isinstance(returned, tuple):
        if kwargs and len(returned) == len(args) + 1 and isinstance(returned[-1], dict):
            candidates.append(((*args, kwargs), returned))
        # Keywords that wait for gradients rule out a tuple for those by position.
        if len(returned) == len(args) and not named:
            candidates.append((args, returned))
        is_pair = len(returned) == 2 and isinstance(returned[0], tuple | list)
        if kwargs and is_pair and isinstance(returned[1], dict):
            candidates.append(((args, kwargs), returned))
    if len(args) == 1 and not kwargs:
        candidates.append(((args[0],), (returned,)))
    for shape, nesting in candidates:
        gradients: list[Any] = [None] * count
        if _assign(shape, nesting, gradients):
            return gradients
    return None


def _assign(shape: Any, nesting: Any, gradients: list[Any]) -> bool:
    if isinstance(shape, int):
        if not isinstance(nesting, Value) and isinstance(nesting, CONTAINERS):
            return False
        gradients[shape] = nesting
        return True
    # No gradient for an argument is none for all its leaves.
    if nesting is None:
        return True
    if isinstance(shape, dict):
        if not isinstance(nesting, dict) or not nesting.keys() <= shape.keys():
            return False
        return all(_assign(shape[name], nesting[name], gradients) for name in nesting)
    if isinstance(shape, list | tuple):
        if not isinstance(nesting, list | tuple) or len(nesting) != len(shape):
            return False
        return all(_assign(a, b, gradients) for a, b in zip(shape, nesting, strict=True))
    if type(shape) is not type(nesting):  # a registered node: as a whole
        return False
    inner, other = (optree.tree_leaves(tree, none_is_leaf=True) for tree in (shape, nesting))
    return len(inner) == len(other) and all(
        _assign(a, b, gradients) for a, b in zip(inner, other, strict=True)
    )


def check_gradient(trace: Trace, leaf: Leaf, argument: Node, gradient: Any) -> Value | None:
    """Return a gradient as a symbolic value of its argument's type; None where there is none.

    Raises:
        GradientError: it has another dtype, or surely another shape.
    """
    if gradient is None:
        return None
    type_ = argument.type
    whose = f"function {trace.name!r} returned"
    # Libraries take a number for a tensor without axes.
    if is_one_number(gradient) and has_no_axes(trace, argument):
        return trace.value(xp.full_like(trace.value(argument), gradient).node)
    if not isinstance(gradient, Value):
        if isinstance(gradient, bool | int | float | str | bytes) or callable(gradient):
            raise GradientError(
                f"{whose} {gradient!r:.60} as the gradient of argument {leaf.path!r}; expected a "
                f"tensor of its shape, such as xp.zeros_like({leaf.path}), or None"
            )
        gradient = trace.value(lift_array(trace, gradient))
    given = gradient.node.type
    if given.kind == "scalar":
        raise GradientError(
            f"{whose} a number as the gradient of argument {leaf.path!r}; expected a tensor of its "
            f"shape: xp.full_like({leaf.path}, number)"
        )
    if not _may_agree(trace, gradient, type_):
        raise GradientError(
            f"{whose} a gradient of {describe(given)} for argument {leaf.path!r}, whose shape is "
            f"{describe(type_)}; expected the same shape"
        )
    is_cast = is_float(given)  # as the frameworks' engines do; some of them cast what is no float
    if trace.kind == "imported function" and is_float(type_):
        is_cast |= habits_of(trace).casts_gradients
    if given.dtype != type_.dtype and is_cast:
        return trace.value(cast_node(gradient.node, type_.dtype))
    if given.dtype == BOOL:
        raise GradientError(
            f"{whose} bools as the gradient of argument {leaf.path!r}; multiply by the upstream "
            "gradient"
        )
    if given.dtype != type_.dtype:
        # They may differ for some dtypes of the first tensor, so the dtype becomes a fact.
        facts = trace.facts
        if "dtype" not in facts:
            raise NeedsConcrete("dtype")
        actual = [facts["dtype"] if t.dtype == "T" else t.dtype for t in (given, type_)]
        if actual[0] != actual[1]:
            raise GradientError(
                f"{whose} a {actual[0]} gradient for argument {leaf.path!r} of {actual[1]}; cast "
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
    ndim, shape = (shape_fact(argument, what) for what in ("ndim", "shape"))
    if shape is not None and shape in trace.facts:
        return trace.facts[shape] == ()
    if ndim is not None and ndim not in trace.facts:
        raise NeedsConcrete(ndim)
    return ndim is not None and trace.facts[ndim] == 0


def _may_agree(trace: Trace, gradient: Value, type_: Type) -> bool:
    # UNKNOWN is decided when the backward runs.
    actual, other = gradient.node.type.shape, type_.shape
    if actual == other or UNKNOWN in (actual, other):
        return True
    if INPUT_SHAPE not in (actual, other):
        return False
    # The first tensor may have no axes, or one of length 1: a fact decides.
    fact = "ndim" if SCALAR_SHAPE in (actual, other) else "shape"
    if fact not in trace.facts and "shape" not in trace.facts:
        raise NeedsConcrete(fact)
    shape = trace.facts.get("shape")
    if fact == "ndim":
        return (trace.facts["ndim"] if shape is None else len(shape)) == 0
    gradient_shape = known_shape(gradient)
    return gradient_shape is None or gradient_shape == shape


def describe(type_: Type) -> str:
    if type_.shape == INPUT_SHAPE:
        return "the first tensor's shape"
    return "one number" if type_.shape == () else f"[{type_}]"


# --- of variables that a function reads besides its arguments ------------------------------------


@dataclass(slots=True)
class Delivery:
    """The variables that a function has read, and the gradients that it delivers to them.

    Attributes:
        is_added: whether its backward has added to one's gradient by itself.
        is_done: whether it has delivered.
    """

    variables: Sequence[Any]
    gradients: Sequence[Tensor | None]
    is_added: Callable[[Any], bool]
    is_done: bool = False


# Set by a backend while a function's own pull runs; None: no variables are asked for.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_delivery", default=None
)


def never_added(variable: Any) -> bool:
    return False


def pull_delivering(
    pull: Callable[..., Any],
    cotangents: Sequence[Tensor],
    variables: Sequence[Any],
    is_added: Callable[[Any], bool] = never_added,
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


# --- of an input that is used several times: `accumulate=` ---------------------------------------


MODES = ("sum", "max", "overwrite")
Modes = tuple[tuple[str, str], ...]  # by the name of an argument; a sum is not among them
ROOT = re.compile(r"\w+")
# The tensors given to such an argument, by id, each with a test whether a derivative may pass
# through the call; an entry goes with its tensor.
_used: dict[int, tuple[weakref.ref[Any], Callable[[], bool]]] = {}


def read_modes(name: str, signature: Signature | None, accumulate: Any) -> Modes:
    """Return the modes that `accumulate` sets, as (argument, mode) pairs without "sum".

    Raises:
        RuleTypeError: it names an unknown argument, or is neither a string nor a mapping.
        RuleValueError: a mode is unknown.
    """
    if accumulate is None or accumulate == "sum":
        return ()
    if not isinstance(accumulate, str | Mapping):
        raise RuleTypeError(
            f"accumulate= of {name!r} is 'sum', 'max' or 'overwrite', or one of these for each "
            f"argument, as {{'scale': 'max'}}; got {accumulate!r:.60}"
        )
    known = () if signature is None else tuple(signature.parameters)
    by_name = dict.fromkeys(known, accumulate) if isinstance(accumulate, str) else accumulate
    for argument, mode in by_name.items():
        if argument not in known:
            raise RuleTypeError(
                f"accumulate= of {name!r} names {argument!r}, which is no argument of it; its "
                f"arguments are {', '.join(known) or 'not known'}"
            )
        if mode not in MODES:
            raise RuleValueError(
                f"accumulate= of {name!r} says {mode!r} for {argument!r}; it is 'sum', 'max' or "
                "'overwrite'"
            )
    return tuple((argument, mode) for argument, mode in by_name.items() if mode != "sum")


def modes_of(modes: Modes, layout: Layout) -> dict[str, str]:
    """Return how the cotangents of each leaf become one, by its name, where it is no sum."""
    if not modes:
        return {}
    declared = dict(modes)
    roots = {leaf.name: ROOT.match(leaf.path) for leaf in layout.leaves}
    return {name: declared[r[0]] for name, r in roots.items() if r and r[0] in declared}


def refuse_second_call(name: str, tensors: Sequence[tuple[str, str, Tensor]]) -> None:
    """Raise if another call got one of these tensors and a derivative may pass through both.

    A framework adds up the cotangents of several calls, and knows no other way.

    Args:
        tensors: each with its argument and its mode.
    """
    for argument, mode, tensor in tensors:
        known = _used.get(id(tensor))
        # Ids are used again, so the weak reference tells whether it is this tensor.
        if known is not None and known[0]() is tensor and known[1]():
            owner = owner_of(tensor)
            raise GradientError(
                f"{name!r} says accumulate={mode!r} for {argument!r}, and another call was given "
                f"this tensor already: {owner.name if owner else 'autodiff'} adds up what calls "
                f"give. Make them in one function, xg.function(..., accumulate={{{argument!r}: "
                f"{mode!r}}}), or take the one's derivative before the other is made"
            )


def tensors_with_modes(
    modes: Modes, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, str, Tensor]]:
    """Return the tensors that a call is given for arguments with a mode."""
    bound = signature.bind(*args, **kwargs).arguments
    return [
        (argument, mode, leaf)
        for argument, mode in modes
        for leaf in optree.tree_leaves(bound.get(argument))  # pyright: ignore[reportArgumentType]
        if owner_of(leaf) is not None
    ]


def note_uses(tensors: Sequence[tuple[str, str, Tensor]], outputs: Any) -> None:
    """Note the tensors that a call was given, for `refuse_second_call`."""
    flat = optree.tree_leaves(outputs)  # pyright: ignore[reportArgumentType]
    for _, _, tensor in tensors:
        owner = owner_of(tensor)
        note = None if owner is None else owner.autodiff.note_use
        is_open = None if note is None else note(tensor, flat)
        if is_open is not None:
            number = id(tensor)
            _used[number] = weakref.ref(tensor, partial(_forget, number)), is_open


def _forget(number: int, ref: weakref.ref[Any]) -> None:
    if number in _used and _used[number][0] is ref:
        del _used[number]


# --- rules of authors' own: tangent rules as graphs, and rules that call their own function -------


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


def make_tangent(trace: Trace, position: int, argument: Any) -> Value | None:
    """Return a symbol for an argument's tangent, of its shape; None where it has no tangent."""
    if not (isinstance(argument, Value) and has_tangent(argument.node)):
        return None
    type_ = argument.node.type
    name = f"seed {position}"  # no argument has a space in its name
    seed = trace.input(name, Type("tensor", type_.dtype, SCALAR_SHAPE)).node
    return trace.value(make_node(ops.BROADCAST_TO, (seed, argument.node), {}, type_))


def has_tangent(node: Node) -> bool:
    return node.type.kind == "tensor" and is_float(node.type)


def tangent_graph(
    trace: Trace,
    rule: Pushed,
    inputs: Sequence[Node],
    tensors: Sequence[str],
    outputs: Sequence[Any],
    carried: Sequence[tuple[int, Value]],
) -> Graph | None:
    """Return the graph of a tangent rule, see `FunctionGraph.pushed`; None: it moves no inputs.

    Args:
        inputs: those of forward.
        tensors: the names of the tensors among them, in order.
        outputs: what forward returned, as a flat list.
        carried: the outputs that carry a gradient as tensors, each with its place in that list.
    """
    tangents: dict[Node, Node] = {}
    for argument, tangent in rule.tangents:
        name = argument.attr("name") if argument.op is ops.INPUT else None
        if name not in tensors:
            return None
        attrs = {"name": tangent_name(tensors.index(name))}
        tangents[tangent] = make_node(ops.INPUT, (), attrs, argument.type)
    changes = optree.tree_leaves(rule.changes, none_is_leaf=True)
    if len(changes) != len(outputs):
        return None
    results = tuple([_fit(changes[place], output).node for place, output in carried])
    name = f"tangent of {trace.name}"
    inner = substitute(Graph(name, tuple(inputs), results, trace.source.locations), tangents)
    whole = Graph(name, (*tangents.values(), *inner.inputs), inner.outputs, inner.locations)
    # No framework transposes a stop, and a tangent has no slope that it could take away.
    return without_stops(whole, [node.attr("name") for node in tangents.values()])


def _fit(change: Any, output: Value) -> Value:
    if not isinstance(change, Value) or change.node.type.kind == "scalar":
        return xp.full_like(output, 0.0 if change is None else change)
    dtype = output.node.type.dtype
    if change.node.type.dtype == dtype:
        return change
    return output.trace.value(cast_node(change.node, dtype))


# --- a function that its own rules call ----------------------------------------------------------


def outputs_of(name: str, outputs: Any, asked: Any, recorded: Any) -> Any:
    """Return outputs to a rule that calls its own function.

    No derivative may be taken of them if the arguments are not those of the rule.

    Args:
        asked: the arguments of this call, nested.
        recorded: those that the rule is recorded for, nested alike; None if they are not known.
    """
    symbols = [each for each in _flatten(asked) if isinstance(each, Value)]
    if recorded is not None and are_same(_flatten(asked), _flatten(recorded)):
        return as_outputs(outputs)
    if symbols:
        trace = symbols[0].trace
        trace.backward.lost_gradient = name
        trace.omit(ORDERS, f"the derivatives of {name!r} of any order")
    return outputs


def as_outputs(outputs: Any) -> Any:
    """Return the outputs of a function as its backward has them."""
    leaves, tree = optree.tree_flatten(outputs, none_is_leaf=True)
    places = itertools.count()
    marked = [
        each.trace.value(mark_output(each.node, next(places))) if isinstance(each, Value) else each
        for each in leaves
    ]
    return optree.tree_unflatten(tree, marked)


def are_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(itertools.starmap(is_same, zip(a, b, strict=True)))


def is_same(a: Any, b: Any) -> bool:
    if isinstance(a, Value) and isinstance(b, Value):
        return a.trace is b.trace and a.node is b.node
    # Plain values may be made anew for each call, so their texts decide.
    return a is b or (type(a) is type(b) and repr(a) == repr(b))


def _flatten(arguments: Any) -> list[Any]:
    return optree.tree_leaves(arguments, none_is_leaf=True)
