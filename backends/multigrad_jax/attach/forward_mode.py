"""Forward mode on JAX: the source of a `custom_jvp`, and the form of a function that it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multigrad.core.backend.emitted import Body, Emitted, tuple_of
from multigrad.errors import UnsupportedOp

from ..core.attach.render import held_names, run_lines
from ..core.kernels.elementwise import is_tensor
from .vjp import forbid_derivative


def render_forward_mode(emitted: Emitted, tangent: Body) -> str:
    f, name = emitted.forward, emitted.names.identifier
    arguments = ", ".join([*emitted.names.inputs, *emitted.names.params])
    # jax transposes the tangent map of a `custom_jvp` for reverse mode
    unpack_primals = f"({arguments},) = primals"
    unpack_tangents = f"({', '.join(emitted.names.tangents)}, *_) = tangents"
    outputs, results = emitted.returned(emitted.names.outputs), emitted.returned(f.results)
    pairs = zip(emitted.names.outputs, emitted.pushed(""), strict=True)
    changes = emitted.returned([word or f"no_tangent({output})" for output, word in pairs])
    rows = zip(emitted.residuals.names, emitted.kept, strict=True)
    keep = "".join(f"    {r} = {result}\n" for r, result in rows if r in emitted.residuals.computed)
    run = run_lines(emitted, outputs, f"{name}({arguments})")
    return f"""\
{_render_push(emitted, tangent)}@custom_jvp
def {name}({", ".join(emitted.names.inputs)}{emitted.signature}):
{f.indented(4)}    return {results}


@{name}.defjvp
def tangent_rule(primals, tangents):
    {unpack_primals}
    {unpack_tangents}
{run}{emitted.keep.indented(4)}{keep}{tangent.indented(4)}    return {outputs}, {changes}
"""


def _render_push(emitted: Emitted, tangent: Body) -> str:
    residuals, tangent_names = held_names(emitted), tuple_of(emitted.names.tangents)
    # "" where the tangent map reads more than the residuals
    if not tangent.reads <= {*residuals, *emitted.names.tangents, *emitted.names.outputs}:
        return ""
    # Of outputs that are not kept, shapes alone are read.
    output_names = [
        each if each in tangent.reads and each not in residuals else "_"
        for each in emitted.names.outputs
    ]
    unpack = f"    {tuple_of(residuals)} = residuals\n" if residuals else ""
    return f"""\
def push(residuals, tangents, outputs):
    {tuple_of(output_names)} = outputs
{unpack}    {tangent_names} = tangents
{tangent.indented(4)}    return {tuple_of(tangent.results)}


"""


def with_forward_mode(native: Callable[..., Any], emitted: Emitted) -> Callable[..., Any]:
    """Return the form of a function to call in forward mode, or one that raises if it has none."""
    assert emitted.derivative.dual is not None
    try:
        return emitted.derivative.dual().call
    except UnsupportedOp as error:
        guard = forbid_derivative(str(error))

    def refusing(*values: Any) -> Any:
        return native(*[guard(x) if is_tensor(x) else x for x in values])

    return refusing
