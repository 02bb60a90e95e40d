"""The guards around emitted code at run time.

TensorFlow drops a custom gradient in two places, where it would silently differentiate the forward:
`ForwardAccumulator` in eager code, and a tape around `tf.vectorized_map`. `custom_gradient` guards
the first, `run_forward` the second and what the first does in a graph. Emitted source names these
functions, `NAMESPACE` in `render.py`: which call what is shown there.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from multigrad.errors import GradientError

Tensor: TypeAlias = Any
VECTORIZED = (
    "tf.vectorized_map (TensorFlow 2.21) drops custom gradients, so a gradient through it would "
    "not be the rule's. Take the gradient inside the mapped function, or use tf.map_fn"
)


# --- the function with its own gradient -----------------------------------------------------------


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.custom_gradient(function)` that a ForwardAccumulator uses too.

    An accumulator uses tangents that it already knows, so the outputs must have none, while the
    residuals keep theirs.
    """

    def call(*inputs: Tensor) -> Any:
        forgets = pack_tangents(inputs).tangents
        PENDING.function = without_tangents(function) if forgets else function
        return call_pending(*inputs)

    return call


# `PENDING.function` is what `call_pending` calls next on this thread. So one function is decorated
# once: to decorate each takes 25 us a call, of 170.
PENDING = threading.local()


@tf.custom_gradient
def call_pending(*inputs: Tensor) -> Any:
    """Call the function that waits on this thread; it is taken away before it runs."""
    function = PENDING.function
    # At once, as the function may call another one.
    del PENDING.function
    return function(*inputs)


def without_tangents(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, which gives outputs and backward, with outputs that have no tangents."""

    def stopped(*inputs: Tensor) -> Any:
        outputs, backward = function(*inputs)
        return tf.nest.map_structure(tf.stop_gradient, outputs), backward

    return stopped


# --- its forward ----------------------------------------------------------------------------------


def run_forward(forward: Callable[..., Any], *inputs: Tensor, params: Sequence[Any] = ()) -> Any:
    """Run the forward so that its own derivative is never taken instead of the rule's.

    Raises:
        GradientError: a ForwardAccumulator asks for a tangent in a graph.
    """
    if not tf.executing_eagerly():
        if pack_tangents(inputs).tangents:
            raise GradientError(
                "tf.autodiff.ForwardAccumulator (TensorFlow 2.21) ignores custom gradients where "
                "it is inside a tf.function: put it around the tf.function, or use a "
                "GradientTape"
            )
        if is_vectorized():
            return prevent_gradient(forward(*inputs, *params), inputs)
    return forward(*inputs, *params)


def run_forward_in_reverse_mode(
    forward: Callable[..., Any], *inputs_and_name: Any, params: Sequence[Any] = ()
) -> Any:
    """Run the forward of a rule that is not linear in grad_out, so has no forward mode.

    Args:
        inputs_and_name: the inputs, and last the name of the rule.

    Raises:
        GradientError: a ForwardAccumulator asks for a tangent.
    """
    *inputs, name = inputs_and_name
    if pack_tangents(inputs).tangents:
        raise GradientError(
            f"{name}: tf.autodiff.ForwardAccumulator needs a rule that is linear in grad_out, "
            "which this one is not; use a GradientTape"
        )
    return run_forward(forward, *inputs, params=params)


def is_vectorized() -> bool:
    """Return whether the body of a `tf.vectorized_map` is being traced."""
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is control_flow_ops._pfor_impl.__code__:
            return True
        caller = caller.f_back
    return False


def prevent_gradient(outputs: Any, inputs: Sequence[Tensor]) -> Any:
    """Return the outputs with another path from the inputs, which raises when a gradient is taken.

    Where `tf.vectorized_map` drops the custom gradient, TensorFlow differentiates that path.
    """
    if "PreventGradient" not in pfor._pfor_converter_registry:
        pfor.RegisterPFor("PreventGradient")(convert_prevent_gradient)
    floats = [x for x in inputs if x.dtype.is_floating]

    def guard(output: Tensor) -> Tensor:
        if not output.dtype.is_floating:
            return output
        for x in floats:
            refused = tf.reduce_sum(tf.raw_ops.PreventGradient(input=x, message=VECTORIZED))
            never = tf.zeros_like(output) + tf.cast(refused, output.dtype)
            # The values are unchanged, but autodiff visits both branches.
            output = tf.where(tf.ones_like(output, tf.bool), output, never)
        return output

    return tf.nest.map_structure(guard, outputs)


def convert_prevent_gradient(converted: Any) -> Any:
    """Return the vectorized form of the op that refuses a gradient."""
    stacked = converted.inputs[0]
    message = converted.op.get_attr("message").decode()
    output = tf.raw_ops.PreventGradient(input=stacked.t, message=message)
    return pfor.wrap(output, stacked.is_stacked)


# --- its inputs and outputs -----------------------------------------------------------------------


def localize(tin: Tensor) -> Tensor:
    """Return an input as a tensor of the graph that is being built; a variable is read."""
    if not isinstance(tin, tf.Tensor):
        tin = tf.convert_to_tensor(tin)
    if tf.executing_eagerly() or getattr(tin, "graph", None) is tf.compat.v1.get_default_graph():
        return tin
    # A tensor of an outer graph is brought into the branch's, or TensorFlow (2.21) fails.
    return tf.identity(tin)


def hold(number: Any) -> Any:
    """Return a param as backward must see it: with forward's value, whatever is assigned since."""
    return tf.convert_to_tensor(number) if isinstance(number, tf.Variable) else number


def stop(outputs: Any, positions: Sequence[int]) -> Any:
    """Return outputs, of which those at the positions let no gradient pass."""
    if not isinstance(outputs, tuple):
        return tf.stop_gradient(outputs)
    return tuple(tf.stop_gradient(y) if i in positions else y for i, y in enumerate(outputs))
