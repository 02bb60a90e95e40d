"""A custom gradient around another framework's code, which is not emitted.

Eager code lends its memory directly and keeps the guest's pullback. A graph calls back by
`tf.py_function` on threads of TensorFlow that see no ContextVar, so the callback closes over all
that it needs; XLA has no such callback.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from traceback import walk_stack
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from multigrad.engine.backend.guest import Guest, Kind, SharedBuffer, make_zeros

from ..core.attach.render import custom_gradient, localize, run_forward
from .vjp import forbid_derivative

Tensor: TypeAlias = tf.Tensor
Call: TypeAlias = Callable[[Sequence[SharedBuffer]], list[SharedBuffer]]
ALIGNMENT = 64  # of borrowed memory; TensorFlow aborts the process at any other


def lend(x: Any) -> SharedBuffer:
    """Return an eager tensor for other frameworks to read, without a copy if it is on the CPU."""
    if "CPU" not in x.device:
        with tf.device("CPU:0"):
            x = tf.identity(x)
    return SharedBuffer(x.dtype.name, tuple(x.shape), partial(as_array, x), x)


def as_array(x: Any) -> np.ndarray[Any, Any]:
    # NumPy has no DLPack for bfloat16, and TensorFlow 2.16 no `__dlpack__`
    is_copied = x.dtype == tf.bfloat16 or not hasattr(x, "__dlpack__")
    return np.asarray(x.numpy()) if is_copied else np.from_dlpack(x)


def borrow(lent: SharedBuffer, own: bool = False) -> Any:
    """Return an eager tensor of a lent buffer, copied if `own` is set."""
    if own:
        return tf.convert_to_tensor(np.array(lent.array()))
    if lent.exporter is not None:
        capsule = lent.exporter.__dlpack__()
        if address(capsule) % ALIGNMENT == 0:
            return tf.experimental.dlpack.from_dlpack(capsule)
    return tf.convert_to_tensor(lent.array())


class DLTensor(ctypes.Structure):
    """The first fields of the struct behind a DLPack capsule (dlpack.h, version 0)."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def address(capsule: Any) -> int:
    tensor = DLTensor.from_address(_get_pointer(capsule, b"dltensor"))
    return (tensor.data or 0) + tensor.byte_offset


# --- another framework's code ---------------------------------------------------------------------
def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Apply code of another framework whose gradient flows back in TensorFlow's autodiff."""
    tensors = tuple(map(localize, tensors))
    if not tf.executing_eagerly():
        refuse_xla(guest)
    elif not record.could_possibly_record() and not pack_tangents(tensors).tangents:
        return tuple(borrow(y, guest.owns) for y in guest.run([lend(x) for x in tensors]))

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        # asked again here: an accumulator may start within the custom gradient
        if pack_tangents(inputs).tangents:
            raise guest.refusal("has no forward mode")
        if tf.executing_eagerly():
            buffers, pull = guest.record([lend(x) for x in inputs])
            outputs = tuple(borrow(y, guest.owns) for y in buffers)
            return outputs, pull_eagerly(guest, pull, inputs, outputs)
        outputs = run_forward(partial(call_in_graph, guest), *inputs)
        return outputs, pull_staged(guest, inputs, outputs)

    return function(*tensors)


def pull_eagerly(
    guest: Guest, pull: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Callable[..., Any]:
    """Return the backward that the guest has kept, for values or for a graph around the tape."""
    recompute = pull_staged(guest, inputs, outputs)

    def backward(*cotangents: Any) -> list[Tensor | None]:
        if not tf.executing_eagerly():
            return recompute(*cotangents)
        upstream = receive(guest, cotangents, outputs)
        gradients = pull([None if c is None else lend(c) for c in upstream])
        guard = forbid_derivative(str(guest.refusal()))
        sources = (*inputs, *(c for c in upstream if c is not None))
        return [None if g is None else guard(borrow(g, guest.owns), *sources) for g in gradients]

    return backward


def pull_staged(
    guest: Guest, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Callable[..., Any]:
    """Return the backward of a graph, which runs the guest's forward again."""

    def backward(*cotangents: Any) -> list[Tensor | None]:
        cotangents_in = receive(guest, cotangents, outputs)
        tensors = [c for c in cotangents_in if c is not None]
        are_carried = [c is not None for c in cotangents_in]
        guard = forbid_derivative(str(guest.refusal()))

        def call(buffers: Sequence[SharedBuffer]) -> list[SharedBuffer]:
            cotangent_buffers = iter(buffers[len(inputs) :])
            upstream = [next(cotangent_buffers) if each else None for each in are_carried]
            answer = guest.gradients(buffers[: len(inputs)], upstream)
            return [answer[i] or make_zeros(buffers[i].shape, buffers[i].dtype) for i in guest.wrt]

        wrt = [inputs[i] for i in guest.wrt]
        results = call_back(
            call, (*inputs, *tensors), [(x.shape, x.dtype) for x in wrt], guest.owns
        )
        sources = (*inputs, *tensors)
        gradients = {i: guard(g, *sources) for i, g in zip(guest.wrt, results, strict=True)}
        return [gradients.get(i) for i in range(len(inputs))]

    return backward


def receive(
    guest: Guest, cotangents: Sequence[Any], outputs: Sequence[Tensor]
) -> list[Tensor | None]:
    return [
        (tf.zeros_like(y) if c is None else tf.convert_to_tensor(c))
        if guest.carries(i, y.dtype.name)
        else None
        for i, (c, y) in enumerate(zip(cotangents, outputs, strict=True))
    ]


def call_in_graph(guest: Guest, *inputs: Tensor) -> tuple[Tensor, ...]:
    if guest.like is not None:
        types = [(inputs[i].shape, inputs[i].dtype) for i in guest.like]
    else:
        kinds = guest.infer([kind_of(guest, x) for x in inputs])
        types = [(tf.TensorShape(shape), tf.as_dtype(dtype)) for shape, dtype in kinds]
    return call_back(guest.run, inputs, types, guest.owns)


def call_back(
    function: Call, tensors: tuple[Tensor, ...], types: Sequence[tuple[Any, Any]], owns: bool
) -> tuple[Tensor, ...]:
    def call(*arguments: Tensor) -> list[Tensor]:
        return [borrow(y, owns) for y in function([lend(x) for x in arguments])]

    outputs = tf.py_function(call, tensors, [dtype for _, dtype in types])
    for output, (shape, _) in zip(outputs, types, strict=True):
        # py_function forgets shapes
        output.set_shape(shape)
    return tuple(outputs)


def kind_of(guest: Guest, x: Tensor) -> Kind:
    """Return a tensor's shape and dtype, as far as the graph knows them."""
    if x.shape.rank is None:
        raise guest.unsupported(
            "a graph", "the number of axes of its input is unknown; use tf.ensure_shape"
        )
    return tuple(x.shape), x.dtype.name


def refuse_xla(guest: Guest) -> None:
    """Raise if the function being traced is for XLA, before XLA fails with an error of its own."""
    # nothing but the object on the stack says for which compiler a graph is traced
    for frame, _ in walk_stack(sys._getframe()):
        owner: Any = frame.f_locals.get("self")
        if isinstance(owner, polymorphic_function.Function) and getattr(
            owner, "_jit_compile", None
        ):
            raise guest.unsupported(
                "TensorFlow's XLA",
                "compile with jit_compile=False (a Keras model: model.compile(..., "
                "jit_compile=False)), or run it in TensorFlow (backend=None)",
            )
