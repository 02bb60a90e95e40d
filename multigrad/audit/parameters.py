"""Parameters of modules and layers as inputs of what is audited, after its own."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

from ..core import ops
from ..core.backend.discovery import backend_of
from ..core.functions.arguments import owner_of, positional_names, unwrap
from ..core.functions.function import Function
from ..core.functions.parameters import signature_of
from ..core.ir.op import FLOATS, dtype_name
from ..core.rules.signature import called_method, name_of
from ..core.support.trees import Tensor, optree
from ..engine.capture.user_code.object_state import FilledCopy, ObjectState, held_by, read_state
from ..engine.functions.object_function import owner_of_method
from ..look.subject import find_original, made_of_pair


def open_up(fn: Any, inputs: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    """Return the object to call and its inputs, which the parameters follow.

    A forward and a backward, as `xg.function` takes them, run as they are; the parameters of a
    module or a layer are added to its inputs.
    """
    fn = made_of_pair(fn)
    if isinstance(fn, type):
        original = find_original(fn)
        fn = fn if original.is_custom else original.call
    if not _is_model(fn):
        return fn, inputs
    if not getattr(fn, "built", True):
        fn(*inputs)  # its parameters are made by the first call
    state = read_state(fn)
    tensors, names = _trained(state)
    if not tensors:
        return fn, inputs
    shown_names = tuple(names[name] for name in sorted(tensors))
    return Opened(fn, state, len(inputs), shown_names), (*inputs, tensors)


def opened_model(parameters: Any) -> tuple[Callable[[Any], Any], Any, dict[str, str]]:
    """Return how to put tensors into a model, its trained tensors by name, and the names that its
    framework gives them, in its order. Tensors that are no model's are returned as they are.
    """
    if not _is_model(parameters):
        return lambda tensors: tensors, parameters, {}
    state = read_state(parameters)
    tensors, names = _trained(state)
    return Opened(parameters, state, 0).filled, tensors, names


def _trained(state: ObjectState) -> tuple[dict[str, Tensor], dict[str, str]]:
    owners = {name: owner for name, owner in state.tensors.items() if _is_trained(owner)}
    # A variable and the tensor inside it may both be listed: each number is audited once.
    ids = {id(held_by(owner)) for owner in owners.values() if held_by(owner) is not owner}
    tensors = {name: held_by(owner) for name, owner in owners.items() if id(owner) not in ids}
    paths = {name: getattr(owners[name], "path", name) for name in tensors}  # Keras's own names
    return tensors, paths


@contextmanager
def keeping_dtypes(fn: Any) -> Iterator[None]:
    """Switch Keras's autocast off, so that layers compute in the dtype of their inputs."""
    flatten = getattr(fn.owner, "_flatten_layers", None) if isinstance(fn, Opened) else None
    layers = [each for each in (flatten() if flatten else ()) if each.autocast]
    try:
        for layer in layers:
            layer.autocast = False
        yield
    finally:
        for layer in layers:
            layer.autocast = True


def _is_model(fn: Any) -> TypeGuard[Callable[..., Any]]:
    is_object = callable(fn) and not isinstance(fn, Function | type | types.FunctionType)
    return is_object and owner_of_method(fn) is fn


def _is_trained(tensor: Any) -> bool:
    is_float = dtype_name(held_by(tensor).dtype) in FLOATS
    # torch says `requires_grad`, Keras `trainable`; a tensor with neither counts as trained.
    flags = (getattr(tensor, name, True) for name in ("requires_grad", "trainable"))
    return is_float and all(flag is not False for flag in flags)


class Opened:
    """A module or a layer as a function of its inputs and of its trained tensors, by name.

    Its other tensors, such as running means, are cast to the dtype of the trained ones.
    """

    def __init__(
        self, owner: Any, state: ObjectState, input_count: int, names: tuple[str, ...] = ()
    ) -> None:
        self.owner, self.state, self.home_of_tensors = owner, state, state.home
        self.input_count, self.parameter_names = input_count, names
        signature = signature_of(called_method(owner))
        self.input_names = positional_names(signature)[:input_count]
        self.__name__ = name_of(owner)
        self.rest = {name: x for name, x in state.tensors.items() if not _is_trained(x)}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        inputs, tensors = args[: self.input_count], args[self.input_count]
        return self.filled(tensors)(*inputs, **kwargs)

    def filled(self, held: dict[str, Tensor]) -> Any:
        dtype = next(x.dtype for x in optree.tree_leaves(held) if owner_of(x) is not None)
        buffers = {name: _with_dtype(held_by(x), dtype) for name, x in self.rest.items()}
        return FilledCopy(self.owner, self.state, {**buffers, **held}).object


def _with_dtype(tensor: Tensor, dtype: Any) -> Tensor:
    if dtype_name(tensor.dtype) not in FLOATS:
        return tensor
    backend = backend_of(unwrap(tensor))
    return backend.kernels.rows[ops.CAST](tensor, dtype=dtype)
