"""The guards around emitted code at run time, and calls of functions that run unchanged.

TensorFlow drops a custom gradient in two places, where it would silently differentiate the forward:
`ForwardAccumulator` in eager code, and a tape around `tf.vectorized_map`. `custom_gradient` and
`run_forward` guard both. Emitted source names the functions of `NAMESPACE` in `render.py`.
"""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from multigrad.errors import GradientError
from multigrad.functions.calls.variable_gradients import pull_delivering

from ..distributed import ALONE

Tensor: TypeAlias = Any


def localize(tin: Tensor) -> Tensor:
    # a variable is read first
    if not isinstance(tin, tf.Tensor):
        tin = tf.convert_to_tensor(tin)
    if tf.executing_eagerly() or getattr(tin, "graph", None) is tf.compat.v1.get_default_graph():
        return tin
    # a tensor of an outer graph is brought into the branch's, or TensorFlow (2.21) fails
    return tf.identity(tin)


def hold(number: Any) -> Any:
    # backward must see the forward's value, whatever is assigned since
    return tf.convert_to_tensor(number) if isinstance(number, tf.Variable) else number


def stop(outputs: Any, positions: Sequence[int]) -> Any:
    """Return outputs of which some stop the gradient."""
    if not isinstance(outputs, tuple):
        return tf.stop_gradient(outputs)
    return tuple(tf.stop_gradient(y) if i in positions else y for i, y in enumerate(outputs))


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


# Decorated once: to decorate each function takes 25 us a call, of 170.
PENDING = threading.local()


@tf.custom_gradient
def call_pending(*inputs: Tensor) -> Any:
    """Call the function that waits on this thread."""
    function = PENDING.function
    # at once, as the function may call another one
    del PENDING.function
    return function(*inputs)


def without_tangents(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function and its gradient, with outputs without tangents."""

    def stopped(*inputs: Tensor) -> Any:
        outputs, backward = function(*inputs)
        return tf.nest.map_structure(tf.stop_gradient, outputs), backward

    return stopped


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
            return refuse_gradient(forward(*inputs, *params), inputs)
    return forward(*inputs, *params)


def run_forward_in_reverse_mode(
    forward: Callable[..., Any], *inputs_and_name: Any, params: Sequence[Any] = ()
) -> Any:
    """Run the forward of a rule without forward mode.

    Emitted source passes the rule's name last, after the inputs.
    """
    *inputs, name = inputs_and_name
    if pack_tangents(inputs).tangents:
        raise GradientError(
            f"{name}: tf.autodiff.ForwardAccumulator needs a rule that is linear in grad_out, "
            "which this one is not; use a GradientTape"
        )
    return run_forward(forward, *inputs, params=params)


def refuse_gradient(outputs: Any, inputs: Sequence[Tensor]) -> Any:
    """Return the outputs with an extra path for gradients, which raises when one is taken."""
    if "PreventGradient" not in pfor._pfor_converter_registry:
        pfor.RegisterPFor("PreventGradient")(convert_prevent_gradient)
    floats = [x for x in inputs if x.dtype.is_floating]

    def guard(output: Tensor) -> Tensor:
        if not output.dtype.is_floating:
            return output
        for x in floats:
            refused = tf.reduce_sum(tf.raw_ops.PreventGradient(input=x, message=VECTORIZED))
            never = tf.zeros_like(output) + tf.cast(refused, output.dtype)
            # the values are unchanged, but autodiff visits both branches
            output = tf.where(tf.ones_like(output, tf.bool), output, never)
        return output

    return tf.nest.map_structure(guard, outputs)


def is_vectorized() -> bool:
    """Return whether the body of a `tf.vectorized_map` is being traced."""
    caller = sys._getframe()
    while caller is not None:
        if caller.f_code is control_flow_ops._pfor_impl.__code__:
            return True
        caller = caller.f_back
    return False


VECTORIZED = (
    "tf.vectorized_map (TensorFlow 2.21) drops custom gradients, so a gradient through it would "
    "not be the rule's. Take the gradient inside the mapped function, or use tf.map_fn"
)


def convert_prevent_gradient(converted: Any) -> Any:
    """Return the vectorized form of the op that refuses a gradient."""
    stacked = converted.inputs[0]
    message = converted.op.get_attr("message").decode()
    output = tf.raw_ops.PreventGradient(input=stacked.t, message=message)
    return pfor.wrap(output, stacked.is_stacked)


def attach_function(
    run: Callable[..., Any], tensors: tuple[Tensor, ...], name: str
) -> tuple[Tensor, ...]:
    """Apply the user's own forward and backward to tensors.

    A variable that the function reads, besides its arguments, gets the gradient that its own
    gradient function delivers, or none.
    """
    marked: tuple[int, ...] = ()

    @custom_gradient
    def function(*inputs: Tensor) -> tuple[tuple[Tensor, ...], Callable[..., Any]]:
        pull: Any = None

        def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
            # `run_forward` takes a function of the outputs only, so the pullback leaves by a
            # variable
            nonlocal pull, marked
            outputs, pull, marked = run(*inputs)
            return outputs

        outputs = run_forward(forward, *inputs)

        def backward(*cotangents: Any, variables: Sequence[Any] | None = None) -> Any:
            upstream = [
                tf.zeros_like(output) if cotangent is None else cotangent
                for cotangent, output in zip(cotangents, outputs, strict=True)
            ]
            pulled, of_variables = pull_delivering(pull, upstream, variables or ())
            return pulled if variables is None else (pulled, of_variables)

        return outputs, backward

    outputs = function(*map(localize, tensors))
    return stop(outputs, marked) if marked else outputs


def isolate(run: Callable[[], Any], is_random: bool) -> Any:
    """Run a function eagerly and return its result.

    While a graph is built it runs on its own thread, because `tf.init_scope` would also stop tapes
    that begin inside it. So it does within a strategy, which that thread does not see: the other
    replicas have nothing to prove and would be waited for. And so it does where tapes are stopped
    on this thread, as in the forward of `tf.recompute_grad`.
    """
    ALONE.set(True)  # never reset: the context is a copy for this proof
    if (
        tf.executing_eagerly()
        and not tf.distribute.has_strategy()
        and not pywrap_tfe.TFE_Py_TapeSetIsStopped()
    ):
        return run()
    results: list[Any] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            results.append(run())
        except BaseException as failure:  # noqa: BLE001 (raised again in the caller's thread)
            failures.append(failure)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
