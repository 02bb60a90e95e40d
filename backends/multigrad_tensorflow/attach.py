"""From a lowering to `tf.custom_gradient`.

The params are closed over: `tf.custom_gradient` would make tensors of them, and takes no keywords in graphs.
TensorFlow forgets a custom gradient in two places, where the forward's own derivative would be taken in silence:
`ForwardAccumulator` in eager code, and a tape around `tf.vectorized_map`. `run_forward` stands against both.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from multigrad.errors import GradientError

if TYPE_CHECKING:
    from multigrad.lowering.code import Lowering

Tensor: TypeAlias = Any


def render(lowering: Lowering) -> str:
    """Return the source of a function of the tensor and the params."""
    f, b, name = lowering.forward, lowering.backward, lowering.identifier
    draw = "    if key is None:\n        key = draw_key()\n" if lowering.draws else ""
    keep = "".join(
        f"        {name} = {result}\n"
        for name, result in zip(lowering.computed, lowering.keep.results, strict=True)
    )
    run = "run_forward(forward, tin)"
    if not lowering.is_linear:
        run = f"run_forward_in_reverse_mode(forward, tin, {lowering.name!r})"
    return f"""\
def forward(tin):
{f.indented(4)}    return {f.result}


def {name}(tin{lowering.signature}):
{draw}
    @custom_gradient
    def function(tin):
        output = {run}
{lowering.keep.indented(8)}{keep}
        def backward(grad_out):
{b.indented(12)}            return {lowering.grad_in}

        return output, backward

    return function(localize(tin))
"""


def localize(tin: Tensor) -> Tensor:
    """Read a variable, and bring a tensor into the graph of its branch, else TensorFlow (2.21) fails."""
    if not isinstance(tin, tf.Tensor):
        tin = tf.convert_to_tensor(tin)
    if tf.executing_eagerly() or getattr(tin, "graph", None) is tf.compat.v1.get_default_graph():
        return tin
    return tf.identity(tin)


def run_forward(forward: Callable[[Tensor], Tensor], tin: Tensor) -> Tensor:
    """Run forward so that its own derivative is never taken for that of the rule.

    Raises:
        GradientError: a ForwardAccumulator asks for a tangent in a graph.
    """
    if pack_tangents([tin]).tangents:
        if not tf.executing_eagerly():
            raise GradientError(
                "tf.autodiff.ForwardAccumulator (TensorFlow 2.21) ignores custom gradients where it is "
                "inside of a tf.function: put it around the tf.function, or use a GradientTape"
            )
        tin = tf.stop_gradient(tin)  # the accumulator then asks the custom gradient
    output = forward(tin)
    if not tf.executing_eagerly() and is_vectorized():
        # Never chosen, but a path along which a gradient would go.
        refusing = tf.raw_ops.PreventGradient(input=tin, message=VECTORIZED)
        return tf.where(tf.ones_like(output, tf.bool), output, refusing)
    return output


def run_forward_in_reverse_mode(
    forward: Callable[[Tensor], Tensor], tin: Tensor, name: str
) -> Tensor:
    """Run forward under a rule that has no forward mode.

    Raises:
        GradientError: a ForwardAccumulator asks for a tangent.
    """
    if pack_tangents([tin]).tangents:
        raise GradientError(
            f"{name}: tf.autodiff.ForwardAccumulator needs a rule that is linear in grad_out, which this "
            f"one is not; use a GradientTape"
        )
    return run_forward(forward, tin)


def is_vectorized() -> bool:
    """Return whether the body of a `tf.vectorized_map` is being traced."""
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is control_flow_ops._pfor_impl.__code__:
            return True
        caller = caller.f_back
    return False


VECTORIZED = (
    "multigrad: tf.vectorized_map (TensorFlow 2.21) drops custom gradients, so a gradient through it would "
    "not be the rule's. Take the gradient inside of the mapped function, or use tf.map_fn"
)


def convert_prevent_gradient(converted: Any) -> Any:
    """Vectorize the op that refuses a gradient."""
    stacked = converted.inputs[0]
    message = converted.op.get_attr("message").decode()
    output = tf.raw_ops.PreventGradient(input=stacked.t, message=message)
    return pfor.wrap(output, stacked.is_stacked)


if "PreventGradient" not in pfor._pfor_converter_registry:
    pfor.RegisterPFor("PreventGradient")(convert_prevent_gradient)


NAMESPACE = {
    "custom_gradient": tf.custom_gradient,
    "localize": localize,
    "run_forward": run_forward,
    "run_forward_in_reverse_mode": run_forward_in_reverse_mode,
}


def finish(namespace: dict[str, Any], lowering: Lowering) -> Callable[..., Any]:
    """Return the function."""
    native = namespace[lowering.identifier]
    native.__doc__ = f"{lowering.name}, as emitted by multigrad."
    # AutoGraph has nothing to convert in straight-line code, and cannot find its source.
    return tf.autograph.experimental.do_not_convert(native)


def call(native: Any, lowering: Lowering) -> Callable[..., Any]:
    """Return how the hot path calls the function: without the wrapper, whose work AutoGraph alone needs."""
    return native.__wrapped__


def attach_native(
    forward: Callable[[Tensor], Tensor],
    backward: Callable[[Any, Tensor, Tensor, tuple[Any, ...]], Tensor],
    name: str,
) -> Callable[..., Any]:
    """Return `f(tin, values)` whose backward calls the user's own function on tensors."""

    def native_rule(tin: Tensor, values: tuple[Any, ...]) -> Tensor:
        @tf.custom_gradient
        def function(tin: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
            def pull(grad_out: Tensor) -> Tensor:
                return backward(None, grad_out, tin, values)

            return run_forward(forward, tin), pull

        return function(localize(tin))

    return native_rule
