"""A Function as an operation of a Keras model under construction, and its form in a config.

A call on symbolic tensors becomes an operation of the model that holds the Function as data, so
that a saved model loads without its source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

# Keras (3.15) has no public name for it.
from keras.src.backend import compute_output_spec

from ..backend.guest import Kind, kind_of
from ..errors import FormatError, MultigradError, RuleError, TraceError
from ..functions.calls.arguments import flatten, owner_of, replace_at, unwrap
from ..functions.function import Function, take_placeholders
from ..functions.recipes.examples import capture_example
from ..functions.recipes.record import NotCaptured
from ..graph.ir.types import dtype_name
from ..graph.ops.numerics import as_numpy_dtype
from ..graph.support.trees import optree
from ..lowering.forwards import Forward
from ..rules.bridging import call_function
from ..rules.bridging.functions import infer_kinds
from ..rules.model.forwards_of_code import ForwardOfCode
from ..rules.saving.files import from_dict
from .tracing import BACKEND

# --- the outputs of a Function for symbolic tensors -----------------------------------------------
# Keras traces a Function as it does its own operations. One that only another framework can run is
# tried there on zeros.
Tensor = Any
FOUND = object()


def infer_outputs(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return symbolic outputs by Keras's trace of a call; numbers and words stay."""
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    seen: list[Any] = []

    def run_tensors(*tensors: Tensor) -> list[Tensor]:
        args, kwargs = optree.tree_unflatten(tree, replace_at(leaves, places, tensors))
        flat, nesting = optree.tree_flatten(run(*args, **kwargs), none_is_leaf=True)
        outputs = [leaf for leaf in flat if owner_of(leaf) is not None]
        seen[:] = nesting, [leaf if owner_of(leaf) is None else FOUND for leaf in flat]
        return outputs

    specs: Any = compute_output_spec(run_tensors, *[leaves[i] for i in places])
    found, (nesting, flat) = iter(specs), seen
    return optree.tree_unflatten(nesting, [next(found) if leaf is FOUND else leaf for leaf in flat])


def run_captured(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a Function's outputs by its captured graphs, on the tensors' own framework.

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
    """Return symbolic outputs by a run on zeros in another framework."""
    leaves, tree = flatten(args, kwargs)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, keras.KerasTensor)]
    dtypes = [as_numpy_dtype(leaves[i].dtype) for i in places]
    known = [keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x for x in leaves]
    seen: list[Any] = []

    def attempt(shapes: Sequence[Sequence[int]]) -> list[Kind]:
        zeros = list(map(np.zeros, shapes, dtypes))
        args, kwargs = optree.tree_unflatten(tree, replace_at(known, places, zeros))
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
    """Return zeros like the outputs in jax's trace with symbolic lengths."""
    leaves, tree = flatten(args, kwargs)
    leaves = [unwrap(leaf) for leaf in leaves]
    shapes = [tuple(leaf.shape) for leaf in leaves if owner_of(leaf) is not None]
    # every open length of the outputs gets the first symbolic one
    named = next(n for shape in shapes for n in shape if not isinstance(n, int))
    args, kwargs = optree.tree_unflatten(tree, [_forget_names(leaf) for leaf in leaves])
    flat, nesting = optree.tree_flatten(
        probe_outputs(function, args, kwargs, guest), none_is_leaf=True
    )

    def make(y: Any) -> Any:
        if not isinstance(y, keras.KerasTensor):
            return y
        return keras.ops.zeros([named if n is None else n for n in y.shape], y.dtype)

    return optree.tree_unflatten(nesting, list(map(make, flat)))


def knows_lengths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether every length is a number or None, and none is symbolic."""
    tensors = [unwrap(leaf) for leaf in flatten(args, kwargs)[0]]
    shapes = [tuple(x.shape) for x in tensors if owner_of(x) is not None]
    return all(n is None or isinstance(n, int) for shape in shapes for n in shape)


def _forget_names(leaf: Any) -> Any:
    if owner_of(leaf) is None:
        return leaf
    shape = [n if isinstance(n, int) else None for n in leaf.shape]
    return keras.KerasTensor(shape, dtype=dtype_name(leaf.dtype))


@keras.saving.register_keras_serializable(package="multigrad")
class FunctionOperation(keras.Operation):
    """A Function as an operation of a Keras model.

    Examples:
        >>> import keras, multigrad.keras
        >>> x = keras.Input((2,))
        >>> y = xg.estimators.ste_round(x)  # of a symbolic tensor: an operation in the model
        >>> model = keras.Model(x, y)
        >>> any(isinstance(each, multigrad.keras.FunctionOperation) for each in model.operations)
        True

    Args:
        function: what to call.
    """

    def __init__(self, function: Function, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function
        keyed = function.is_keyed or BACKEND != "jax"
        self._run = function if keyed else function._drawing(self._refuse_draw)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return infer_outputs(self._run, args, kwargs)

    def _refuse_draw(self) -> Any:
        raise RuleError(
            f"operation {self.name!r} draws random numbers, for which jax has no generator: make "
            f"it a layer, which holds one, multigrad.keras.CustomGradient({self.function.name}), "
            f"or use {self.function.name}.keyed(0)"
        )

    def get_config(self) -> dict[str, Any]:
        """Return the operation as data.

        Raises:
            MultigradError: the Function runs as it is, so there is nothing to be saved.
        """
        return {
            "name": self.name,
            "function": describe_function(f"operation {self.name!r}", self.function),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FunctionOperation:
        """Return the operation that a config describes.

        Raises:
            FormatError: its Function is malformed.
        """
        name = config.get("name")
        return cls(read_function(f"operation {name!r}", config.get("function")), name=name)


# --- as data --------------------------------------------------------------------------------------
def describe_function(owner: str, function: Function) -> dict[str, Any]:
    """Return the Function of a layer or operation as data: its captured graphs."""
    try:
        return function.to_dict()
    except MultigradError as error:
        raise type(error)(f"{owner} cannot be saved: {error}") from error


def read_function(owner: str, data: Any) -> Function:
    """Return the Function from the data of `describe_function`."""
    try:
        function = from_dict(data)
    except FormatError as error:
        raise FormatError(f"{owner}: {error}") from error
    if not isinstance(function, Function):
        raise FormatError(
            f"{owner}: it needs a function, and this document is a {type(function).__name__}"
        )
    return function


def describe_forward(owner: str, forward: Forward) -> Any:
    """Return a layer's forward as data: a name, or the Function of the user's code."""
    if isinstance(forward, ForwardOfCode):
        try:
            function = forward.saved()
        except MultigradError as error:
            raise type(error)(f"{owner} cannot be saved: {error}") from error
        return describe_function(owner, function)
    return forward.name


def call_symbolic(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return FunctionOperation(function)(*args, **kwargs)


take_placeholders(keras.KerasTensor, call_symbolic)
