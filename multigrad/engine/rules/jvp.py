"""`xg.jvp`: outputs with their tangents, on every framework; and `xg.vjp` where the framework takes
it, and of code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.values import is_float_tensor, owner_of
from ...core.functions.arguments import Layout, flatten
from ...core.functions.function import Entry, FunctionBase, Run
from ...core.functions.recipe import NotCaptured, Variant, assemble
from ...core.passes.facts import LIBRARY
from ...core.rules.vjp import (
    COTANGENT,
    as_function,
    as_that_of,
    checked_values,
    open_inputs,
    zeros_if_none,
)
from ...core.support.params import R
from ...core.support.trees import Tensor, optree
from ...core.trace.active_rules import KeySource
from ...core.trace.lookups import look_up
from ...errors import RuleTypeError, RuleValueError, TraceError, UnsupportedOp
from ..capture.user_code.reads import Reads, run_while
from ..functions.calls.arguments import replace_at, unwrap
from ..functions.calls.as_written import check_native, run_recipe
from ..functions.calls.facts import open_indices
from ..functions.calls.gradient_matching import match_gradients
from ..functions.calls.parameters import BoundFunction
from ..functions.code_recipes import recipe_of_pair
from ..functions.decision import PUSHED, decide_call
from ..functions.function import Function
from ..functions.known_forms import CALLS

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
        tangents: a tuple nested like the inputs, each of its input's shape; None for zero, and for
            an input that is not a float tensor.

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
    input_tangents = _match(leaves, tree, tangents, backend)
    push = backend.modes.jvp
    if push is None:
        outputs, flat = _jvp_by_capture(f, leaves, tree, input_tangents, backend)
    else:
        places, run, nesting = on_tensors(f, leaves, tree, backend)
        tensors, moves = [leaves[i] for i in places], [input_tangents[i] for i in places]
        # Without any tangent a plain call is enough.
        is_still = all(move is None for move in moves)
        try:
            flat_outputs, flat = (run(tensors), None) if is_still else push(run, tensors, moves)
        except NotImplementedError as error:
            raise UnsupportedOp(f"xg.jvp has no way through what it was given: {error}") from error
        outputs = optree.tree_unflatten(nesting[-1], flat_outputs)
    results, outputs_tree = optree.tree_flatten(outputs, none_is_leaf=True)
    flat = [None] * len(results) if flat is None else flat
    changes = [
        zeros_if_none(tangent, y, True, backend) if is_float_tensor(y) else None
        for tangent, y in zip(flat, results, strict=True)
    ]
    return outputs, optree.tree_unflatten(outputs_tree, changes)


def _match(
    leaves: Sequence[Any], tree: Any, tangents: Sequence[Any], backend: Backend
) -> list[Any]:
    args, _ = optree.tree_unflatten(tree, list(leaves))
    flat_tangents: list[Any] = []
    is_alike = len(tangents) == len(args)
    for arg, tangent in zip(args, tangents, strict=False):
        arg_leaves, nesting = flatten((arg,), {})
        tangent_leaves, tangent_nesting = flatten((tangent,), {})
        if tangent is None:
            tangent_leaves, tangent_nesting = [None] * len(arg_leaves), nesting
        is_alike = is_alike and tangent_nesting == nesting
        flat_tangents += map(unwrap, tangent_leaves)
    if not is_alike:
        raise RuleTypeError(ALIKE)
    for i, (x, tangent) in enumerate(zip(leaves, flat_tangents, strict=True)):
        if tangent is None:
            continue
        if not is_float_tensor(x):
            raise RuleTypeError(f"jvp got a tangent for input {i}, which is no float tensor: None")
        if tuple(np.shape(tangent)) != tuple(x.shape):
            raise RuleValueError(
                f"jvp got a tangent of shape {tuple(np.shape(tangent))} for input {i} of shape "
                f"{tuple(x.shape)}; expected the same shape"
            )
        flat_tangents[i] = as_that_of(x, tangent, backend, f"jvp got for input {i} a tangent")
    return flat_tangents


def _jvp_by_capture(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any, moves: Sequence[Any], backend: Backend
) -> tuple[Any, list[Any]]:
    function, layout, leaves, draws = as_function(f, leaves, tree, backend)
    if function.native is True:
        raise UnsupportedOp(f"{function.recipe.subject} runs as written, so it has no forward mode")
    try:
        variant = decide_call(function.entries, PUSHED, layout, leaves, backend).variant
    except NotCaptured as error:
        raise error.error from error.error.__cause__
    arguments = checked_values(function, variant, layout, leaves, draws=draws, backend=backend)
    emitted = function.entries.lowered(variant, backend).emitted
    dual = None if emitted is None else emitted.derivative.dual
    if dual is None:
        lack = backend.modes.lacks.get("jvp", f"{backend.name} has no forward mode")
        raise UnsupportedOp(f"{function.recipe.subject}: {lack}")
    # `moves` covers the caller's leaves only: defaults and a rule's numbers do not move.
    tensor_tangents = [moves[i] if i < len(moves) else None for i in layout.indices("tensor")]
    output, pushed = dual().native.jvp(arguments, tensor_tangents)
    is_single = len(variant.graphs.cotangents) == 1
    changes = iter((pushed,) if is_single else pushed)
    positions = range(variant.outputs.num_leaves)
    flat = [None if i in variant.fixed else next(changes) for i in positions]
    return assemble(variant, (output,) if is_single else output), flat


def vjp_by_framework(
    vjp: Callable[..., Any],
    f: Callable[..., Any],
    leaves: Sequence[Any],
    tree: Any,
    backend: Backend,
) -> tuple[list[Any], Any, Callable[[list[Any]], list[Any]]]:
    """Act as `vjp_leaves`, by this vjp of functions of flat lists of tensors."""
    places, run, nesting = on_tensors(f, leaves, tree, backend)
    flat, pull_tensors = vjp(run, [leaves[i] for i in places])

    def pull(cotangents: list[Any]) -> list[Any]:
        pairs = zip(cotangents, flat, strict=True)
        cast_cotangents = [as_that_of(y, c, backend, COTANGENT) for c, y in pairs]
        return replace_at([None] * len(leaves), places, pull_tensors(cast_cotangents))

    return flat, nesting[-1], pull


def on_tensors(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any, backend: Backend
) -> tuple[list[int], Callable[[Sequence[Tensor]], list[Any]], list[Any]]:
    """Return the positions of the tensors among the leaves; f as a function of such tensors, with
    flat outputs; and a list to which that function appends the nesting of its outputs.
    """
    # A scalar of NumPy's is a tensor to NumPy alone: audits hand one on as it is.
    numbers = () if issubclass(np.generic, backend.tensors.types) else np.generic
    is_tensor = [owner_of(leaf) is not None and not isinstance(leaf, numbers) for leaf in leaves]
    places = [i for i, whether in enumerate(is_tensor) if whether]
    nesting: list[Any] = []

    def run(tensors: Sequence[Tensor]) -> list[Any]:
        args, kwargs = optree.tree_unflatten(tree, replace_at(leaves, places, tensors))
        flat, outputs_tree = optree.tree_flatten(f(*args, **kwargs), none_is_leaf=True)
        nesting.append(outputs_tree)
        return flat

    return places, run, nesting


# --- `xg.vjp` of code: derived on NumPy, reads more than its arguments, or runs as written --------
def as_derived(
    f: Callable[..., Any], leaves: Sequence[Any], tree: Any
) -> tuple[Function, Layout, Sequence[Any]]:
    """Return a Function, or a function as one with its true derivative; the layout of its
    arguments, and these.
    """
    if isinstance(f, BoundFunction):
        args, kwargs = optree.tree_unflatten(tree, leaves)
        leaves, tree = flatten(*f.complete(args, kwargs))
        f = f.function
    function = f if isinstance(f, Function) else Function(recipe_of_pair(f), f)
    return function, *function.entries.lay_out(leaves, tree)


def entry_of(function: FunctionBase, variant: Variant, run: Run) -> Entry | None:
    """Return an entry that runs while the code reads the same values, after which it gives None;
    None where anything else decides.
    """
    others = function.captures.facts - {"dtype", LIBRARY}
    if not all(isinstance(fact, Reads) for fact in others):
        return None
    if open_indices(function.recipe, variant):
        return None
    read = {fact: number for fact, number in variant.facts.items() if isinstance(fact, Reads)}
    if not read:
        return Entry(run)
    calls = 0

    def compare(leaves: Sequence[Any], draws: KeySource) -> Any:
        nonlocal calls
        if any(look_up(fact) != number for fact, number in read.items()):
            return None
        calls += 1
        if calls == CALLS and (known := find_entry()) is not None:
            known.run = run_while(read, {}, run, compare)
        return run(leaves, draws)

    entry = Entry(compare)
    find_entry = weakref.ref(entry)
    return entry


def vjp_as_written(
    function: Function,
    layout: Layout,
    leaves: Sequence[Any],
    backend: Backend,
    error: TraceError | None,
) -> tuple[Any, Callable[[list[Any]], list[Any]]]:
    """Run a Function as its author wrote it; return its outputs and the map from cotangents."""
    recorded = run_recipe(function.recipe, backend, *layout.rebuild(leaves), error)
    flat, nesting = optree.tree_flatten(recorded.outputs, none_is_leaf=True)
    pull_own = recorded.pull
    if pull_own is None:
        raise UnsupportedOp(
            f"{function.recipe.subject} runs as it is, and {backend.name} has no derivative of "
            "that: give it a backward, or let it be captured"
        )

    def pull(cotangents: list[Any]) -> list[Any]:
        upstream = [
            None
            if owner_of(y) is None
            else zeros_if_none(as_that_of(y, c, backend, COTANGENT), y, True, backend)
            for c, y in zip(cotangents, flat, strict=True)
        ]
        raw_gradients = pull_own(optree.tree_unflatten(nesting, upstream))
        gradients = match_gradients(function.name, raw_gradients, layout)
        for i in layout.indices("tensor"):
            leaf = layout.leaves[i]
            gradient = check_native(
                function.recipe.subject, leaf.path, leaves[i], gradients[i], backend
            )
            gradients[i] = zeros_if_none(gradient, leaves[i], leaf.is_float, backend)
        return [
            g if leaf.is_float else None for g, leaf in zip(gradients, layout.leaves, strict=True)
        ]

    return recorded.outputs, pull
