"""`xg.linear_transpose`: the transpose of a linear function, as a Function for every framework."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import RuleTypeError, RuleValueError, UnsupportedOp
from ..functions.calls.decision import TRANSPOSED
from ..functions.calls.recipe import NotCaptured, Options, Recipe, Recorded, Variant
from ..functions.function import Function
from ..graph.ir.graph import Graph, freeze
from ..graph.ir.types import T
from ..graph.support.trees import optree
from ..lowering.function_graph import FunctionGraph
from ..trace.coercion import array_node
from ..trace.derived.derivatives import find_nonlinear, pullbacks, replay
from ..trace.trace import Trace, Value
from ..trace.xp import all as xp
from .vjp import as_function, open_inputs

Tensor = Any
Shape = tuple[int, ...]


def linear_transpose(f: Callable[..., Any], *examples: Any) -> Function[..., tuple[Any, ...]]:
    """Return the transpose of a linear function: from cotangents of its outputs to those of its
    arguments, for arrays and tensors of every framework.

    f is captured, and never differentiated by the framework: `sum(ct * f(x))` is
    `sum(linear_transpose(f, x)(ct)[0] * x)` for every x and ct. The result can be differentiated
    too; its backward is f.

    Examples:
        >>> def differences(x):
        ...     return x[1:] - x[:-1]
        >>> transposed = xg.linear_transpose(differences, np.zeros(4))
        >>> transposed(np.array([1.0, 10.0, 100.0]))
        (array([ -1.,  -9., -90., 100.]),)

    Args:
        f: a linear function of tensors, written for any framework.
        *examples: arguments of f, of which the shapes are read: float tensors of any framework, or
            arrays; also nested.

    Returns:
        A Function that takes one argument, nested like f's outputs (None: zero), and returns a
        tuple with one cotangent for each example, nested like it, in the cotangents' dtype.

    Raises:
        UnsupportedOp: f is not linear in its arguments, or draws random numbers.
        RuleTypeError: an example is not a float tensor.
        TraceError: f cannot be captured.
        RuleValueError, RuleTypeError: at a call; the cotangents are not those of f's outputs.
    """
    leaves, tree, backend = open_inputs("linear_transpose", f, examples)
    count = len(leaves)
    function, whole, whole_tree, _ = as_function(f, leaves, tree, backend)
    layout = function.recipe.lay_out(function.parameters, whole, whole_tree)
    for leaf in layout.leaves[:count]:
        if not leaf.is_float:
            raise RuleTypeError(
                f"linear_transpose got an example for {leaf.path!r} that is no float tensor; let "
                "the function close over what it is not linear in"
            )
    try:
        variant = function.entries.decide(TRANSPOSED, layout, whole, backend).variant
    except NotCaptured as error:
        raise error.error from error.error.__cause__
    subject = function.recipe.subject
    graphs = variant.graphs
    names = [leaf.name for leaf in layout.leaves[:count]]
    _check_linear(subject, graphs, names)
    recipe = _recipe_of_transpose(
        f"transpose of {function.name}",
        graph=pullbacks(graphs.forward, names, graphs.seeds),
        shapes={name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)},
        numbers={layout.leaves[i].name: float(whole[i]) for i in layout.indices("number")},
        examples=tree,
        match=partial(_match, variant, _shapes_of(f(*examples))),
    )
    return Function(recipe)


def _check_linear(subject: str, graphs: FunctionGraph, names: Sequence[str]) -> None:
    if graphs.is_random:
        raise UnsupportedOp(f"{subject} draws random numbers, so it has no transpose")
    node = find_nonlinear(graphs.forward, names)
    if node is not None:
        place = graphs.forward.locations.get(node)
        where = "" if place is None else f" ({place})"
        raise UnsupportedOp(
            f"{subject} is not linear in its arguments, so it has no transpose: {node.op.name}"
            f"{where}; xg.vjp gives the transpose of its derivative at a point"
        )


def _shapes_of(outputs: Any) -> tuple[list[Shape | None], Any]:
    flat, nesting = optree.tree_flatten(outputs, none_is_leaf=True)
    return [None if not hasattr(y, "shape") else tuple(y.shape) for y in flat], nesting


def _recipe_of_transpose(
    name: str,
    *,
    graph: Graph,
    shapes: Mapping[str, Shape],
    numbers: Mapping[str, float],
    examples: Any,
    match: Callable[[str, Trace, Any], dict[str, Value]],
) -> Recipe:
    """Return the recipe of the transpose of a function that was captured.

    Args:
        graph: `*seeds, *inputs, *params -> cotangents of the inputs`, of which shapes are read.
        shapes: of the inputs, by name.
        numbers: the function's, by name.
        examples: the nesting of (args, kwargs).
        match: gives a cotangent's parts by the names of the seeds.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter("cotangent", kind)])

    def record(trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        (cotangent,) = inspect.Signature.bind(signature, *args, **kwargs).args
        seeds = match(recipe.subject, trace, cotangent)
        # Only the shapes of the inputs are read, because the function is linear in them.
        zeros = {name: _zeros(trace, shape) for name, shape in shapes.items()}
        cotangents = replay(trace, graph, {**zeros, **numbers, **seeds})
        args, _ = optree.tree_unflatten(examples, cotangents)
        return Recorded(tuple(args), None)

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        raise UnsupportedOp(f"{recipe.subject} is a graph, so it cannot run as written")

    recipe = Recipe(name, run, record, signature=signature, options=Options(native=False))
    return recipe


def _match(
    variant: Variant,
    outputs: tuple[list[Shape | None], Any],
    subject: str,
    trace: Trace,
    cotangent: Any,
) -> dict[str, Value]:
    # `outputs`: the shapes of the function's outputs as a flat list, and their nesting.
    shapes, nesting = outputs
    flat, nested = optree.tree_flatten(cotangent, none_is_leaf=True)
    if nested != nesting:
        raise RuleTypeError(
            f"{subject} takes one cotangent nested like the function's outputs, {nesting},"
            f" None for zero; got {nested}"
        )
    # Outputs that are fixed values have no cotangent.
    places = [i for i in range(len(shapes)) if i not in variant.fixed]
    seeds: dict[str, Value] = {}
    for i, seed in zip(places, variant.graphs.seeds, strict=True):
        if seed is None:
            continue
        shape: Any = shapes[i]
        value: Any = flat[i]
        node = getattr(value, "node", None)
        # None and plain numbers become tensors of the output's shape.
        if node is None or node.type.kind == "scalar":
            zeros = _zeros(trace, shape)
            seeds[seed] = zeros if value is None else zeros + value
            continue
        actual = tuple(map(int, value.shape))
        if actual != shape:
            raise RuleValueError(
                f"{subject} got a cotangent of shape {actual} for an output of shape "
                f"{shape}; expected the same shape"
            )
        seeds[seed] = value
    return seeds


def _zeros(trace: Trace, shape: Shape) -> Value:
    zero = trace.value(array_node(trace.like(), freeze(np.zeros(())), T))
    return xp.broadcast_to(zero, shape) if shape else zero
