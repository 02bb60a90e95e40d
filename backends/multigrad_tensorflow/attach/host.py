"""What runs in another framework, inside of TensorFlow: a custom gradient around it.

Eager code lends its memory at once and keeps the guest's pullback. A graph calls back by
`tf.py_function`, on threads of TensorFlow's that see no ContextVar, so all that is needed is closed
over; XLA has no such callback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from multigrad.backend import Guest, Kind, SharedBuffer, make_zeros

from . import bridge as transfer
from .attach import custom_gradient, localize, run_forward

Tensor: TypeAlias = Any
Call: TypeAlias = Callable[[Sequence[SharedBuffer]], list[SharedBuffer]]


def bridge(guest: Guest, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Apply what runs in another framework; its gradient flows back in TensorFlow's autodiff.

    Raises:
        UnsupportedOp: it is being compiled by XLA.
        GradientError: a ForwardAccumulator asks for a tangent.
    """
    tensors = tuple(map(localize, tensors))
    if not tf.executing_eagerly():
        refuse_xla(guest)
    elif not record.could_possibly_record() and not pack_tangents(tensors).tangents:
        return tuple(
            transfer.borrow(y, guest.owns) for y in guest.run([transfer.lend(x) for x in tensors])
        )

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        if pack_tangents(inputs).tangents:
            raise guest.refusal("has no forward mode")
        if tf.executing_eagerly():
            lent, pull = guest.record([transfer.lend(x) for x in inputs])
            outputs = tuple(transfer.borrow(y, guest.owns) for y in lent)
            return outputs, pull_eagerly(guest, pull, inputs, outputs)
        outputs = run_forward(stage_forward(guest), *inputs)
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
        given = receive(guest, cotangents, outputs)
        found = pull([None if c is None else transfer.lend(c) for c in given])
        once = refuse_derivative(guest)
        held = (*inputs, *(c for c in given if c is not None))
        return [None if g is None else once(transfer.borrow(g, guest.owns), *held) for g in found]

    return backward


def pull_staged(
    guest: Guest, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]
) -> Callable[..., Any]:
    """Return the backward of a graph: it begins from the inputs again."""

    def backward(*cotangents: Any) -> list[Tensor | None]:
        given = receive(guest, cotangents, outputs)
        carried = [c for c in given if c is not None]
        carries = [c is not None for c in given]
        once = refuse_derivative(guest)

        def call(lent: Sequence[SharedBuffer]) -> list[SharedBuffer]:
            rest = iter(lent[len(inputs) :])
            upstream = [next(rest) if each else None for each in carries]
            found = guest.gradients(lent[: len(inputs)], upstream)
            return [found[i] or make_zeros(lent[i].shape, lent[i].dtype) for i in guest.wrt]

        wrt = [inputs[i] for i in guest.wrt]
        results = call_back(
            call, (*inputs, *carried), [(x.shape, x.dtype) for x in wrt], guest.owns
        )
        held = (*inputs, *carried)
        found = {i: once(g, *held) for i, g in zip(guest.wrt, results, strict=True)}
        return [found.get(i) for i in range(len(inputs))]

    return backward


def receive(
    guest: Guest, cotangents: Sequence[Any], outputs: Sequence[Tensor]
) -> list[Tensor | None]:
    """Return the cotangents of the outputs that carry a gradient."""
    return [
        (tf.zeros_like(y) if c is None else tf.convert_to_tensor(c))
        if guest.carries(i, y.dtype.name)
        else None
        for i, (c, y) in enumerate(zip(cotangents, outputs, strict=True))
    ]


def stage_forward(guest: Guest) -> Callable[..., tuple[Tensor, ...]]:
    """Return forward as an op of the graph that is being built."""

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        if guest.like is not None:
            types = [(inputs[i].shape, inputs[i].dtype) for i in guest.like]
        else:
            found = guest.infer([kind_of(guest, x) for x in inputs])
            types = [(tf.TensorShape(shape), tf.as_dtype(dtype)) for shape, dtype in found]
        return call_back(guest.run, inputs, types, guest.owns)

    return forward


def call_back(
    function: Call, tensors: tuple[Tensor, ...], types: Sequence[tuple[Any, Any]], owns: bool
) -> tuple[Tensor, ...]:
    """Stage a call of a function of what is lent."""

    def call(*given: Tensor) -> list[Tensor]:
        return [transfer.borrow(y, owns) for y in function([transfer.lend(x) for x in given])]

    outputs = tf.py_function(call, tensors, [dtype for _, dtype in types])
    for output, (shape, _) in zip(outputs, types, strict=True):
        output.set_shape(shape)
    return tuple(outputs)


def kind_of(guest: Guest, x: Tensor) -> Kind:
    """Return a tensor's shape and dtype, as far as the graph knows them.

    Raises:
        UnsupportedOp: it has any number of axes.
    """
    if x.shape.rank is None:
        raise guest.unsupported(
            "a graph", "the number of axes of its input is unknown; use tf.ensure_shape"
        )
    return tuple(x.shape), x.dtype.name


def refuse_derivative(guest: Guest) -> Callable[..., Tensor]:
    """Return the identity on its first argument, which raises where a derivative of it is taken."""

    @tf.custom_gradient
    def once(gradient: Tensor, *others: Tensor) -> tuple[Tensor, Callable[..., Any]]:
        def refuse(upstream: Tensor) -> Any:
            raise guest.refusal()

        return tf.identity(gradient), refuse

    return once


def refuse_xla(guest: Guest) -> None:
    """Raise where a function that is being traced is one for XLA, before XLA says so in its own
    words.

    Raises:
        UnsupportedOp: XLA is to compile it.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner: Any = frame.f_locals.get("self")
        if isinstance(owner, polymorphic_function.Function) and getattr(
            owner, "_jit_compile", None
        ):
            raise guest.unsupported(
                "TensorFlow's XLA",
                "compile with jit_compile=False (a Keras model: model.compile(..., "
                "jit_compile=False)), or run it in TensorFlow (backend=None)",
            )
        frame = frame.f_back
