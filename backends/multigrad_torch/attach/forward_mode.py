"""Source text of the one class of a Function that has a jvp beside its backward."""

from __future__ import annotations

from multigrad.core.backend.emitted import Emitted

from ..core.attach.render import (
    DRAW,
    autocast_mark,
    gradients_returned,
    indented,
    note_lines,
    render_apply,
    render_class,
    store_lines,
    targets,
)


def render_forward_mode(emitted: Emitted) -> str:
    tangent, code, params = emitted.derivative.tangent, emitted.code, emitted.names.params
    assert tangent is not None
    inputs, saved_names = ", ".join(emitted.names.inputs), ", ".join(emitted.saved)
    draw = DRAW if emitted.draws else []
    # A key that forward reads is drawn before it, one that only backward reads in setup_context.
    draw_first, draw_later = (draw, []) if "key" in emitted.forward_params else ([], draw)
    apply = [*emitted.check_arguments, *draw_first]
    apply = apply and [*apply, f"return super().apply({inputs}{emitted.arguments})"]
    setup = [f"{targets((*emitted.names.inputs, *params))} = inputs", *draw_later]
    if not emitted.single:
        setup.append(f"{targets(emitted.names.outputs)} = output")
    elif emitted.names.outputs[0] in emitted.saved:
        setup.append(f"{emitted.names.outputs[0]} = output")
    if saved_names:
        setup += [f"ctx.save_for_backward({saved_names})", f"ctx.save_for_forward({saved_names})"]
    # Forward mode has no fast code: each param is kept, as both backward and jvp may read it.
    setup += [*store_lines(params), *note_lines(emitted)]
    load = [f"{name} = ctx.{name}" for name in params]
    shapes = [f"shape_of_{name} = ctx.shape_of_{name}" for name in emitted.residuals.shapes]
    unpack = [f"({saved_names},) = ctx.saved_tensors"] if saved_names else []
    backward = [*unpack, *load, *shapes, *gradients_returned(emitted, code.backward, len(params))]
    primals = [f"({saved_names},) = (unpack_dual(each).primal for each in ctx.saved_tensors)"]
    result = emitted.returned(emitted.pushed())
    # torch (2.13) refuses a tangent in memory of its own for an output that is a view.
    aliases = {*emitted.aliasing.views, *emitted.aliasing.shared}
    results = enumerate(code.forward.results)
    copies = [f"{word}.clone()" if i in aliases else word for i, word in results]
    # torch calls jvp with forward mode off: an outer forward mode would silently get zeros.
    name = emitted.names.identifier
    return f"""\
{render_class(emitted, name, tuple(copies), setup or ["pass"], backward)}
    @staticmethod{autocast_mark(emitted)}
    def jvp(ctx, {", ".join(emitted.names.tangents)}, *params):
        with enable_forward_mode(True):
{indented([*(primals if saved_names else []), *load, *tangent.lines, f"return {result}"], 12)}\
{render_apply(emitted, apply)}"""
