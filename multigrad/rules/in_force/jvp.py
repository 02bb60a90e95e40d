"""`xg.jvp`: outputs and their tangents by one call, on every framework and on NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...backend.contract import Backend
from ...errors import RuleTypeError, RuleValueError, UnsupportedOp
from ...functions.calls.arguments import flatten, owner_of, unwrap
from ...functions.calls.binding import assemble
from ...functions.calls.decision import PUSHED
from ...functions.recipes.record import NotCaptured
from ...graph.ir.types import FLOATS, dtype_name
from ...graph.support.trees import optree
from ...graph.support.typed import R
from .vjp import as_function, as_that_of, checked_values, on_tensors, open_inputs

Tensor = Any
ALIKE = (
    "jvp takes tuples of inputs and of tangents, nested alike: jvp(f, (x, w), (dx, None)); None is "
    "zero"
)


def jvp(f: Callable[..., R], inputs: Sequence[Any], tangents: Sequence[Any]) -> tuple[R, Any]:
    """Return `f(*inputs)` and its change when the inputs change by the tangents.

    The tangent map of a Function, or of a rule under an activation, is the transpose of its
    backward: `sum(u * tangent)` equals the sum of its gradient for the cotangent `u` times
    `tangents`.

    Examples:
        >>> spike = xg.activation("Heaviside", "triangular")
        >>> xg.jvp(spike, (np.array([-0.5, 0.25]),), (np.array([1.0, 2.0]),))
        (array([0., 1.]), array([0.5, 1.5]))

    Args:
        f: a Function, an activation, or any function of tensors. On NumPy it is captured.
        inputs: a tuple of its arguments: tensors of one framework, or NumPy arrays; also nested.
            Numbers and other values are passed along.
        tangents: a tuple nested like the inputs, each of its input's shape; None is zero, and what
            stands beside what is not a float tensor.

    Returns:
        The outputs, and their tangents, nested like them: zeros where an output does not depend on
        a tangent, None for what is not a float tensor.

    Raises:
        UnsupportedOp, GradientError: a backward is not linear in its cotangents, runs as it is, or
            the framework has no forward mode there.
        TraceError: on NumPy; f cannot be captured.
        RuleTypeError, RuleValueError: the tangents do not fit the inputs.
    """
    if not all(isinstance(each, tuple | list) for each in (inputs, tangents)):
        raise RuleTypeError(ALIKE)
    leaves, tree, backend = open_inputs("jvp", f, tuple(inputs))
    moves = _match(leaves, tree, tangents, backend)
    push = backend.modes.jvp
    if push is None:
        outputs, flat = _by_capture(f, leaves, tree, moves, backend)
    else:
        places, run, nesting = on_tensors(f, leaves, tree)
        tensors, own = [leaves[i] for i in places], [moves[i] for i in places]
        is_still = all(move is None for move in own)
        try:
            found, flat = (run(tensors), None) if is_still else push(run, tensors, own)
        except NotImplementedError as error:
            raise UnsupportedOp(f"xg.jvp has no way through what it was given: {error}") from error
        outputs = optree.tree_unflatten(nesting[-1], found)
    results, own = optree.tree_flatten(outputs, none_is_leaf=True)
    flat = [None] * len(results) if flat is None else flat
    changes = [_or_zeros(t, y, backend) for t, y in zip(flat, results, strict=True)]
    return outputs, optree.tree_unflatten(own, changes)


def _match(
    leaves: Sequence[Any], tree: Any, tangents: Sequence[Any], backend: Backend
) -> list[Any]:
    """Return the tangent of each leaf, None for zero.

    Raises:
        RuleTypeError, RuleValueError: they do not fit.
    """
    args, _ = optree.tree_unflatten(tree, list(leaves))
    moves: list[Any] = []
    fits = len(tangents) == len(args)
    for arg, tangent in zip(args, tangents, strict=False):
        own, nesting = flatten((arg,), {})
        given, nested = flatten((tangent,), {})
        if tangent is None:
            given, nested = [None] * len(own), nesting
        fits = fits and nested == nesting
        moves += map(unwrap, given)
    if not fits:
        raise RuleTypeError(ALIKE)
    for i, (x, tangent) in enumerate(zip(leaves, moves, strict=True)):
        if tangent is None:
            continue
        if owner_of(x) is None or not _is_float(x):
            raise RuleTypeError(f"jvp got a tangent for input {i}, which is no float tensor: None")
        if tuple(np.shape(tangent)) != tuple(x.shape):
            raise RuleValueError(
                f"jvp got a tangent of shape {tuple(np.shape(tangent))} for input {i} of shape "
                f"{tuple(x.shape)}; expected the same shape"
            )
        moves[i] = as_that_of(x, tangent, backend, f"jvp got for input {i} a tangent")
    return moves


def _by_capture(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any, moves: Sequence[Any], backend: Backend
) -> tuple[Any, list[Any]]:
    """Return outputs and tangents, as a flat list, by the transposed backward of what is
    captured.
    """
    function, leaves, tree, draws = as_function(f, leaves, tree, backend)
    layout = function.recipe.lay_out(function.parameters, leaves, tree)
    if function.native is True:
        raise UnsupportedOp(f"{function.recipe.subject} runs as written, so it has no forward mode")
    try:
        variant = function._decide(PUSHED, layout, leaves, backend).variant
    except NotCaptured as error:
        raise error.error from error.error.__cause__
    given = checked_values(function, variant, layout, leaves, draws=draws, backend=backend)
    emitted = function._lowered(variant, backend).emitted
    dual = None if emitted is None else emitted.dual
    if dual is None:
        lack = backend.modes.lacks.get("jvp", f"{backend.name} has no forward mode")
        raise UnsupportedOp(f"{function.recipe.subject}: {lack}")
    moved = [moves[i] if i < len(moves) else None for i in layout.indices("tensor")]
    output, pushed = dual().native.jvp(given, moved)
    single = len(variant.graphs.cotangents) == 1
    changes = iter((pushed,) if single else pushed)
    fixed = range(variant.outputs.num_leaves)
    flat = [None if i in variant.fixed else next(changes) for i in fixed]
    return assemble(variant, (output,) if single else output), flat


def _or_zeros(tangent: Any, output: Any, backend: Backend) -> Any:
    """Return a tangent: zeros for a float output without one, None if it is not a float tensor."""
    if owner_of(output) is None or not _is_float(output):
        return None
    if tangent is not None:
        return tangent
    return backend.tensors.from_numpy(np.zeros_like(backend.tensors.to_numpy(output)))


def _is_float(x: Tensor) -> bool:
    return dtype_name(x.dtype) in FLOATS
