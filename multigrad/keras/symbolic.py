"""What a Function gives for tensors that are not there yet: the symbolic ones of a Keras model
under construction.

It is traced by Keras, as Keras's own operations are; where only another framework can run it, it is
tried there.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

# Keras (3.15) has no public name for it.
from keras.src.backend import compute_output_spec

from ..backend.guest import Kind, kind_of
from ..errors import TraceError
from ..functions.calls.arguments import flatten, owner_of, unwrap
from ..functions.function import Function
from ..functions.recipes.examples import capture_example
from ..functions.recipes.record import NotCaptured
from ..graph.ir.types import dtype_name
from ..graph.ops.numerics import as_numpy_dtype
from ..graph.support.trees import optree
from ..rules.bridging import call_function
from ..rules.bridging.foreign import infer_kinds

Tensor = Any
FOUND = object()


def is_symbolic(leaf: Any) -> bool:
    """Return whether an argument stands for a tensor of a model under construction."""
    return isinstance(leaf, keras.KerasTensor)


def infer_outputs(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return symbolic outputs by calling a function in a trace of Keras's; numbers and words stay
    what they are.
    """
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if is_symbolic(leaf)]
    seen: list[Any] = []

    def run_tensors(*tensors: Tensor) -> list[Tensor]:
        given = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        args, kwargs = optree.tree_unflatten(tree, given)
        flat, nesting = optree.tree_flatten(run(*args, **kwargs), none_is_leaf=True)
        outputs = [leaf for leaf in flat if owner_of(leaf) is not None]
        seen[:] = nesting, [leaf if owner_of(leaf) is None else FOUND for leaf in flat]
        return outputs

    specs: Any = compute_output_spec(run_tensors, *[leaves[i] for i in places])
    found, (nesting, flat) = iter(specs), seen
    return optree.tree_unflatten(nesting, [next(found) if leaf is FOUND else leaf for leaf in flat])


def run_captured(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a Function's outputs on the tensors' own framework, by what was captured of it.

    Raises:
        NotCaptured: it cannot be captured, or must not be.
    """
    if function.native is True:
        raise NotCaptured(TraceError(f"function {function.name!r} runs as written (native=True)"))
    capture_example(function, *args, **kwargs)
    return function(*args, **kwargs)


def probe_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return symbolic outputs of what only another framework can run, by a run on zeros."""
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if is_symbolic(leaf)]
    dtypes = [as_numpy_dtype(leaves[i].dtype) for i in places]
    known = [keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x for x in leaves]
    seen: list[Any] = []

    def attempt(shapes: Sequence[Sequence[int]]) -> list[Kind]:
        given = list(known)
        for i, shape, dtype in zip(places, shapes, dtypes, strict=True):
            given[i] = np.zeros(shape, dtype)
        args, kwargs = optree.tree_unflatten(tree, given)
        outputs = call_function(function, args, kwargs, guest)
        flat, nesting = optree.tree_flatten(outputs, none_is_leaf=True)
        seen[:] = nesting, flat
        return [kind_of(y) for y in flat if owner_of(y) is not None]

    kinds = iter(infer_kinds([tuple(leaves[i].shape) for i in places], attempt))
    nesting, flat = seen

    def make(y: Any) -> Any:
        if owner_of(y) is None:
            return y
        shape, dtype = next(kinds)
        return keras.KerasTensor(shape, dtype=dtype)

    return optree.tree_unflatten(nesting, list(map(make, flat)))


def imitate_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return zeros like the outputs of what only another framework can run, in a trace that knows
    lengths by name (jax).
    """
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    shapes = [tuple(leaf.shape) for leaf in leaves if owner_of(leaf) is not None]
    named = next(n for shape in shapes for n in shape if not isinstance(n, int))
    args, kwargs = optree.tree_unflatten(tree, [_forget_names(leaf) for leaf in leaves])
    flat, nesting = optree.tree_flatten(
        probe_outputs(function, args, kwargs, guest), none_is_leaf=True
    )

    def make(y: Any) -> Any:
        if not is_symbolic(y):
            return y
        return keras.ops.zeros([named if n is None else n for n in y.shape], y.dtype)

    return optree.tree_unflatten(nesting, list(map(make, flat)))


def knows_lengths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether each length of each tensor is a number, or nothing."""
    tensors = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
    shapes = [tuple(x.shape) for x in tensors if owner_of(x) is not None]
    return all(n is None or isinstance(n, int) for shape in shapes for n in shape)


def _forget_names(leaf: Any) -> Any:
    if owner_of(leaf) is None:
        return leaf
    shape = [n if isinstance(n, int) else None for n in leaf.shape]
    return keras.KerasTensor(shape, dtype=dtype_name(leaf.dtype))
