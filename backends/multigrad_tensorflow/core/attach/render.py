"""The source of `tf.custom_gradient` functions from an emitted lowering, and the guards it calls.

The params are closed over: `tf.custom_gradient` would make tensors of them, and takes no keywords
in graphs.

TensorFlow drops a custom gradient in two places, where it would silently differentiate the forward:
`ForwardAccumulator` in eager code, and a tape around `tf.vectorized_map`. `custom_gradient` guards
the first, `run_forward` the second and what the first does in a graph.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf
from tensorflow.python.eager.forwardprop_util import pack_tangents
from tensorflow.python.ops.parallel_for import control_flow_ops, pfor

from multigrad.core.ir.op import is_float
from multigrad.errors import GradientError

if TYPE_CHECKING:
    from multigrad.core.backend.emitted import Emitted

Tensor: TypeAlias = tf.Tensor
VECTORIZED = (
    "tf.vectorized_map (TensorFlow 2.21) drops custom gradients, so a gradient through it would "
    "not be the rule's. Take the gradient inside the mapped function, or use tf.map_fn"
)


# --- the source -----------------------------------------------------------------------------------
def render_file(emitted: Emitted) -> str:
    """Return the source for a file without multigrad, in which keys are read as users give them."""
    name = emitted.names.identifier
    undecorated = f"\n\n# AutoGraph has nothing to convert.\n{name} = do_not_convert({name})\n"
    return render(emitted, "    else:\n        key = read_key(key)\n") + undecorated


def render(emitted: Emitted, read_key: str = "") -> str:
    """Return the source of a function of the tensors and the params.

    Args:
        read_key: lines for a key that the caller gives; they follow those for a missing key.
    """
    # A rule with a param, for example:
    #
    #     def forward(tin):
    #         return tin
    #
    #     def window_under_Linear(tin, width):
    #         width = width if type(width) is float else hold(width)       # prologue
    #
    #         @custom_gradient
    #         def function(tin):
    #             output = run_forward(forward, tin)                       # inner function
    #
    #             def backward(grad_out):
    #                 return grad_out * cast(abs(tin) < width, grad_out.dtype)
    #
    #             return output, backward
    #
    #         return function(localize(tin))                               # return statement
    names, whole = emitted.names, emitted.code.whole
    inputs = ", ".join(names.inputs)
    forward = emitted.forward if whole is None else whole
    # `whole` returns a tuple even of one result.
    comma = "" if whole is None else ","
    return f"""\
def forward({", ".join((*names.inputs, *emitted.forward_params))}):
{forward.indented(4)}    return {forward.result}{comma}


def {names.identifier}({inputs}{emitted.signature}):
{_prologue(emitted, read_key)}
    @custom_gradient
    def function({inputs}):
{_inner_function(emitted)}
{_return_statement(emitted)}"""


def _prologue(emitted: Emitted, read_key: str) -> str:
    lines = "".join(f"    {line}\n" for line in emitted.check_arguments)
    lines += "".join(
        f"    {each} = {each} if type({each}) is float else hold({each})\n"
        for each in emitted.names.params
        if each != "key"
    )
    if emitted.draws:
        lines += f"    if key is None:\n        key = draw_key()\n{read_key}"
    return lines


def _inner_function(emitted: Emitted) -> str:
    # The body of the function that `tf.custom_gradient` decorates.
    outputs, backward = ", ".join(emitted.names.outputs), emitted.backward
    kept_outputs = _kept_outputs(emitted)
    nonlocals = ""
    if kept_outputs:
        computed = emitted.residuals.computed if _reads_outputs(emitted) else ()
        nonlocals = f"        nonlocal {', '.join((*kept_outputs, *computed))}\n"
    if emitted.code.whole is None:
        results, residuals = f"{outputs} =", _keep(emitted, 8)
    else:
        results, residuals = f"{', '.join((outputs, *emitted.residuals.computed))}, =", ""
    shapes = "".join(
        f"        shape_of_{each} = {each}.shape\n" for each in emitted.residuals.shapes
    )
    return f"""\
{nonlocals}        {results} {_forward_call(emitted)}
{residuals}{shapes}
        def backward({", ".join(emitted.names.cotangents)}):
{backward.indented(12)}            return {", ".join(emitted.gradients(backward))}

        return {emitted.returned(emitted.names.outputs)}, backward
"""


def _return_statement(emitted: Emitted) -> str:
    call = f"function({', '.join(f'localize({each})' for each in emitted.names.inputs)})"
    if not _kept_outputs(emitted):
        return f"    return {_stop_gradients(call, emitted)}\n"
    # Backward reads kept outputs from the result: their derivative must be this function's own.
    rebind_outputs = f"    {', '.join(emitted.names.outputs)} = {call}\n"
    residuals = _keep(emitted, 4) if _reads_outputs(emitted) else ""
    result = _stop_gradients(emitted.returned(emitted.names.outputs), emitted)
    return f"{rebind_outputs}{residuals}    return {result}\n"


def _kept_outputs(emitted: Emitted) -> list[str]:
    # The outputs that the author keeps for backward, and that backward or `keep` reads.
    if not emitted.derivative.keeps_output:
        return []
    names = (*emitted.residuals.names, *emitted.keep.reads)
    return [each for each in emitted.names.outputs if each in names]


def _reads_outputs(emitted: Emitted) -> bool:
    # Whether the residuals are computed from outputs.
    return not emitted.keep.reads.isdisjoint(emitted.names.outputs)


def _forward_call(emitted: Emitted) -> str:
    inputs = ", ".join(emitted.names.inputs)
    params = "".join(f"{each}, " for each in emitted.forward_params)
    keyword = f", params=({params.strip()})" if params else ""
    if emitted.derivative.linear:
        return f"run_forward(forward, {inputs}{keyword})"
    return f"run_forward_in_reverse_mode(forward, {inputs}, {emitted.origin.name!r}{keyword})"


def _keep(emitted: Emitted, spaces: int) -> str:
    # The lines that compute the residuals.
    pairs = zip(emitted.residuals.computed, emitted.keep.results, strict=True)
    lines = "".join(f"{' ' * spaces}{name} = {result}\n" for name, result in pairs)
    return emitted.keep.indented(spaces) + lines


def _stop_gradients(result: str, emitted: Emitted) -> str:
    # The result, whose undifferentiable outputs let no gradient pass.
    types = emitted.origin.output_types
    positions = tuple(i for i in emitted.derivative.undifferentiable if is_float(types[i]))
    return f"stop({result}, {positions})" if positions else result


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `tf.custom_gradient(function)` that a ForwardAccumulator uses too.

    An accumulator uses tangents that it already knows, so the outputs must have none, while the
    residuals keep theirs.
    """

    def call(*inputs: Tensor) -> Any:
        tangents = pack_tangents(inputs).tangents
        PENDING.function = without_tangents(function) if tangents else function
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


def run_forward(forward: Callable[..., Any], *inputs: Tensor, params: Sequence[Any] = ()) -> Any:
    """Run the forward so that its own derivative is never taken instead of the rule's."""
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

    The last of `inputs_and_name` is the name of the rule.
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
    body = control_flow_ops._pfor_impl.__code__
    return any(caller.f_code is body for caller, _ in walk_stack(sys._getframe()))


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
            barrier = tf.reduce_sum(tf.raw_ops.PreventGradient(input=x, message=VECTORIZED))
            other_branch = tf.zeros_like(output) + tf.cast(barrier, output.dtype)
            # The values are unchanged, but autodiff visits both branches.
            output = tf.where(tf.ones_like(output, tf.bool), output, other_branch)
        return output

    return tf.nest.map_structure(guard, outputs)


def convert_prevent_gradient(converted: Any) -> Any:
    """Return the vectorized form of the op that refuses a gradient."""
    stacked = converted.inputs[0]
    message = converted.op.get_attr("message").decode()
    output = tf.raw_ops.PreventGradient(input=stacked.t, message=message)
    return pfor.wrap(output, stacked.is_stacked)


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


NAMESPACE = {
    "custom_gradient": custom_gradient,
    "hold": hold,
    "localize": localize,
    "run_forward": run_forward,
    "run_forward_in_reverse_mode": run_forward_in_reverse_mode,
    "stop": stop,
}


def finish(namespace: dict[str, Any], emitted: Emitted) -> Callable[..., Any]:
    native = namespace[emitted.names.identifier]
    native.__doc__ = f"{emitted.origin.name}, as emitted by multigrad."
    # AutoGraph has nothing to convert in straight-line code, and cannot find its source.
    return tf.autograph.experimental.do_not_convert(native)


def call(native: Any, emitted: Emitted) -> Callable[..., Any]:
    """Return the function as the hot path calls it, without the wrapper for AutoGraph."""
    return native.__wrapped__
