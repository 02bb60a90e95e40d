"""The source of `tf.custom_gradient` functions from an emitted lowering.

The params are closed over: `tf.custom_gradient` would make tensors of them, and takes no keywords
in graphs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from multigrad.graph.ir.types import is_float

from .guards import (
    custom_gradient,
    hold,
    localize,
    run_forward,
    run_forward_in_reverse_mode,
    stop,
)

if TYPE_CHECKING:
    from multigrad.backend import Emitted


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
    lines = "".join(f"    {line}\n" for line in emitted.refuse_gradients)
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

        return {_returned(emitted)}, backward
"""


def _return_statement(emitted: Emitted) -> str:
    call = f"function({', '.join(f'localize({each})' for each in emitted.names.inputs)})"
    if not _kept_outputs(emitted):
        return f"    return {_stop_gradients(call, emitted)}\n"
    # Backward reads kept outputs from the result: their derivative must be this function's own.
    rebind_outputs = f"    {', '.join(emitted.names.outputs)} = {call}\n"
    residuals = _keep(emitted, 4) if _reads_outputs(emitted) else ""
    result = _stop_gradients(_returned(emitted), emitted)
    return f"{rebind_outputs}{residuals}    return {result}\n"


def _kept_outputs(emitted: Emitted) -> list[str]:
    # The outputs that the author keeps for backward, and that backward or `keep` reads.
    if not emitted.derivative.keeps_output:
        return []
    read = (*emitted.residuals.names, *emitted.keep.reads)
    return [each for each in emitted.names.outputs if each in read]


def _reads_outputs(emitted: Emitted) -> bool:
    # Whether the residuals are computed from outputs.
    return not emitted.keep.reads.isdisjoint(emitted.names.outputs)


def _returned(emitted: Emitted) -> str:
    # The only output, or a tuple of all.
    outputs = ", ".join(emitted.names.outputs)
    return outputs if emitted.single else f"({outputs})"


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
