"""Functions in a Keras model under construction: what they give for symbolic tensors, and how a config holds them.

A call on symbolic tensors becomes an operation of the model, which holds the Function as data, so that a model that was
saved loads without its source. On such tensors a Function is traced by Keras, as Keras's own operations are.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

# Keras (3.15) has no public name for it.
from keras.src.backend import compute_output_spec

from ..errors import FormatError, MultigradError, RuleError, TraceError
from ..functions.arguments import flatten, owner_of, unwrap
from ..functions.examples import capture_example
from ..functions.function import Function, symbolic
from ..functions.record import NotCaptured
from ..ir.types import dtype_name
from ..trees import optree
from .tracing import BACKEND

Tensor = Any
FILLS = (24, 36)  # stand for a length that is not known yet: what depends on it differs


@keras.saving.register_keras_serializable(package="multigrad")
class FunctionOperation(keras.Operation):
    """A Function as an operation of a Keras model.

    Args:
        function: what to call.
    """

    def __init__(self, function: Function, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function = function
        keyed = function.is_keyed or BACKEND != "jax"
        self._run = function if keyed else function.drawing(self._refuse_draw)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return the Function's outputs."""
        return self._run(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs' shapes and dtypes."""
        return infer_outputs(self._run, args, kwargs)

    def _refuse_draw(self) -> Any:
        raise RuleError(
            f"operation {self.name!r} draws random numbers, for which jax has no generator: make it a layer, which "
            f"holds one, multigrad.keras.CustomGradient({self.function.name}), or use {self.function.name}.keyed(0)"
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


# --- as data -----------------------------------------------------------------------------------------


def describe_function(owner: str, function: Function) -> dict[str, Any]:
    """Return the Function of a layer or an operation as data: the forms in which it was captured.

    Raises:
        MultigradError: it cannot be captured, or a document cannot hold it.
    """
    try:
        return function.to_dict()
    except MultigradError as error:
        raise type(error)(f"{owner} cannot be saved: {error}") from error


def read_function(owner: str, data: Any) -> Function:
    """Return the Function that `describe_function` described.

    Raises:
        FormatError: the data are malformed.
    """
    from ..saving import from_dict

    try:
        function = from_dict(data)
    except FormatError as error:
        raise FormatError(f"{owner}: {error}") from error
    if not isinstance(function, Function):
        raise FormatError(
            f"{owner}: it needs a function, and this document is a {type(function).__name__}"
        )
    return function


# --- on symbolic tensors -----------------------------------------------------------------------------


def is_symbolic(leaf: Any) -> bool:
    """Return whether an argument stands for a tensor of a model under construction."""
    return isinstance(leaf, keras.KerasTensor)


def call_symbolic(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Add a call of a Function to the model under construction."""
    return FunctionOperation(function)(*args, **kwargs)


symbolic.append((is_symbolic, call_symbolic))


def infer_outputs(run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return symbolic outputs by calling a function in a trace of Keras's; numbers and words stay what they are."""
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


FOUND = object()


def run_captured(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a Function's outputs on the tensors' own framework, by what was captured of it.

    Raises:
        NotCaptured: it cannot be captured, or must not be.
    """
    if function.native is True:
        raise NotCaptured(TraceError(f"function {function.name!r} runs as it is (native=True)"))
    capture_example(function, *args, **kwargs)
    return function(*args, **kwargs)


def probe_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return symbolic outputs of what only another framework can run, by running it there on zeros."""
    leaves, tree = flatten(args, kwargs)
    shapes = [tuple(leaf.shape) for leaf in leaves if is_symbolic(leaf)]
    fills = FILLS if any(n is None for shape in shapes for n in shape) else FILLS[:1]
    found = [_probe(function, leaves, tree, guest, fill) for fill in fills]
    nesting = found[0][1]
    outputs = [_agree(each) for each in zip(*[flat for flat, _ in found], strict=True)]
    return optree.tree_unflatten(nesting, outputs)


def imitate_outputs(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], guest: str
) -> Any:
    """Return zeros like the outputs of what only another framework can run, in a trace that knows lengths by name (jax)."""
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


def _probe(
    function: Function, leaves: Sequence[Any], tree: Any, guest: str, fill: int
) -> tuple[list[Any], Any]:
    from .. import bridging

    given = [_make_zeros(leaf, fill) if is_symbolic(leaf) else leaf for leaf in leaves]
    given = [keras.ops.convert_to_numpy(x) if keras.ops.is_tensor(x) else x for x in given]
    args, kwargs = optree.tree_unflatten(tree, given)
    outputs = bridging.call_function(function, args, kwargs, guest)
    return optree.tree_flatten(outputs, none_is_leaf=True)


def _make_zeros(x: Any, fill: int) -> Any:
    from ..ir.meaning import as_numpy_dtype

    return np.zeros([fill if n is None else n for n in x.shape], as_numpy_dtype(x.dtype))


def _agree(outputs: Sequence[Any]) -> Any:
    """Return one output as a symbolic tensor, whose length is None where it follows one that is not known."""
    if owner_of(outputs[0]) is None:
        return outputs[0]
    shape = [
        n[0] if len(set(n)) == 1 else None for n in zip(*[y.shape for y in outputs], strict=True)
    ]
    return keras.KerasTensor(shape, dtype=dtype_name(outputs[0].dtype))
