"""`xg.linear_transpose`: the transpose of a linear function, as a Function for every framework.

The function is captured, and its pullback is read from the graph: for a linear function that is the
transpose, whatever the inputs are. `Transpose` runs that graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.functions.recipe import NotCaptured, Options, Recipe, Recorded
from ...core.ir.graph import Graph, freeze
from ...core.ir.op import T
from ...core.lowering.derivatives import find_nonlinear, pullbacks, replay
from ...core.rules.vjp import as_function, open_inputs
from ...core.support.trees import optree
from ...core.trace.coercion import array_node
from ...core.trace.trace import Trace, Value
from ...core.trace.xp import all as xp
from ...errors import RuleTypeError, RuleValueError, UnsupportedOp
from ..functions.decision import TRANSPOSED, decide_call
from ..functions.function import Function

Shape = tuple[int, ...]
SIGNATURE = inspect.Signature(
    [inspect.Parameter("cotangent", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
)


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
    example_count = len(leaves)
    function, layout, arguments, _ = as_function(f, leaves, tree, backend)
    for leaf in layout.leaves[:example_count]:
        if not leaf.is_float:
            raise RuleTypeError(
                f"linear_transpose got an example for {leaf.path!r} that is no float tensor; let "
                "the function close over what it is not linear in"
            )
    try:
        variant = decide_call(function.entries, TRANSPOSED, layout, arguments, backend).variant
    except NotCaptured as error:
        raise error.error from error.error.__cause__
    graphs, names = variant.graphs, [leaf.name for leaf in layout.leaves[:example_count]]
    subject = function.recipe.subject
    if graphs.is_random:
        raise UnsupportedOp(f"{subject} draws random numbers, so it has no transpose")
    node = find_nonlinear(graphs.forward, names)
    if node is not None:
        place = graphs.forward.locations.get(node)
        location = "" if place is None else f" ({place})"
        raise UnsupportedOp(
            f"{subject} is not linear in its arguments, so it has no transpose: {node.op.name}"
            f"{location}; xg.vjp gives the transpose of its derivative at a point"
        )
    outputs, outputs_tree = optree.tree_flatten(f(*examples), none_is_leaf=True)
    # Outputs that are fixed values, or that no gradient passes, have no cotangent.
    places = [i for i in range(len(outputs)) if i not in variant.fixed]
    pairs = zip(places, graphs.seeds, strict=True)
    seeded_outputs = [(i, seed, tuple(outputs[i].shape)) for i, seed in pairs if seed is not None]
    transpose = Transpose(
        name=f"transpose of {function.name}",
        graph=pullbacks(graphs.forward, names, graphs.seeds),
        input_shapes={name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)},
        numbers={layout.leaves[i].name: float(arguments[i]) for i in layout.indices("number")},
        inputs_tree=tree,
        outputs=seeded_outputs,
        outputs_tree=outputs_tree,
    )
    recipe = Recipe(
        transpose.name,
        transpose.run,
        transpose.record,
        signature=SIGNATURE,
        options=Options(native=False),
    )
    return Function(recipe)


@dataclass(frozen=True, slots=True)
class Transpose:
    """The transpose of a captured linear function.

    Attributes:
        graph: `*seeds, *inputs, *params -> cotangents of the inputs`; a seed is the cotangent of an
            output, and of the inputs only the shapes are read.
        input_shapes: by the names of the inputs.
        numbers: the values of the function's params, by name.
        inputs_tree: the nesting of the function's (args, kwargs).
        outputs: of each output with a seed the position among all, the seed's name and the shape.
        outputs_tree: the nesting of all outputs, and so of the cotangent.
    """

    name: str
    graph: Graph
    input_shapes: Mapping[str, Shape]
    numbers: Mapping[str, float]
    inputs_tree: Any
    outputs: Sequence[tuple[int, str, Shape]]
    outputs_tree: Any

    @property
    def subject(self) -> str:
        return f"function {self.name!r}"

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        (cotangent,) = inspect.Signature.bind(SIGNATURE, *args, **kwargs).args
        seeds = self.read_seeds(trace, cotangent)
        # Only the shapes of the inputs are read, because the function is linear in them.
        zeros = {name: _zeros(trace, shape) for name, shape in self.input_shapes.items()}
        cotangents = replay(trace, self.graph, {**zeros, **self.numbers, **seeds})
        args, _ = optree.tree_unflatten(self.inputs_tree, cotangents)
        return Recorded(tuple(args), None)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        raise UnsupportedOp(f"{self.subject} is a graph, so it cannot run as written")

    def read_seeds(self, trace: Trace, cotangent: Any) -> dict[str, Value]:
        """Return the parts of a cotangent by the names of their seeds."""
        flat, tree = optree.tree_flatten(cotangent, none_is_leaf=True)
        if tree != self.outputs_tree:
            raise RuleTypeError(
                f"{self.subject} takes one cotangent nested like the function's outputs, "
                f"{self.outputs_tree}, None for zero; got {tree}"
            )
        return {seed: self._read_seed(trace, flat[i], shape) for i, seed, shape in self.outputs}

    def _read_seed(self, trace: Trace, value: Any, shape: Shape) -> Value:
        node = getattr(value, "node", None)
        # None and plain numbers become tensors of the output's shape.
        if node is None or node.type.kind == "scalar":
            zeros = _zeros(trace, shape)
            return zeros if value is None else zeros + value
        actual = tuple(map(int, value.shape))
        if actual != shape:
            raise RuleValueError(
                f"{self.subject} got a cotangent of shape {actual} for an output of shape "
                f"{shape}; expected the same shape"
            )
        return value


def _zeros(trace: Trace, shape: Shape) -> Value:
    zero = trace.value(array_node(trace.like(), freeze(np.zeros(())), T))
    return xp.broadcast_to(zero, shape) if shape else zero
