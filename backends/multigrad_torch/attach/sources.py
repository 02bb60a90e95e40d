"""Source text of what no rule needs: one class with a jvp beside its backward; a loop that gives
outputs and residuals.
"""

from __future__ import annotations

from multigrad.core.backend.emitted import Body, Emitted

from ..core.attach.render import (
    DRAW,
    autocast_mark,
    copied_outputs,
    gradients_returned,
    indented,
    likes_in_eager,
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


def lines_of_loop(emitted: Emitted, whole: Body) -> list[str]:
    """Return the lines of a forward whose loop gives outputs and residuals, and which runs only
    where a gradient is asked for.
    """
    plain, words = emitted.fast.forward, iter(whole.results[len(emitted.names.outputs) :])
    residuals = dict.fromkeys((*emitted.residuals.names, *emitted.residuals.histories))
    names_before = (*emitted.names.inputs, *emitted.names.outputs)
    names = {name: name if name in names_before else next(words) for name in residuals}
    likes, late = likes_in_eager(emitted), emitted.residuals.late
    like_lines = [f"ctx.like_{name} = Like({names[name]})" for name in likes]
    # Without hooks, which are rare, a tuple: a call of Python's would take longer.
    like_lines += [
        f"ctx.late_{x} = ({x}, {x}._version) if top_hooks(True) is None else pack_late({x})"
        for x in late
    ]
    names = {name: word for name, word in names.items() if name not in (*likes, *late)}
    names |= {name: f"{name}.clone()" for name in copied_outputs(emitted) if name in names}
    shared = emitted.aliasing.shared
    aliases = (*shared, *emitted.aliasing.passed)
    output_lines = [
        f"{name} = {result}{'.clone()' if i in aliases else ''}"
        for i, (name, result) in enumerate(zip(emitted.names.outputs, whole.results, strict=False))
    ]
    plain_output_lines = [
        f"{name} = {result}{'.clone()' if i in shared else ''}"
        for i, (name, result) in enumerate(zip(emitted.names.outputs, plain.results, strict=True))
    ]
    save_lines = [f"ctx.save_for_backward({', '.join(names.values())})"] if names else []
    gradient_lines = [*whole.lines, *output_lines, *like_lines, *save_lines]
    return [
        "if True in ctx.needs_input_grad:",
        *(f"    {line}" for line in gradient_lines),
        "else:",
        *(f"    {line}" for line in (*plain.lines, *plain_output_lines)),
    ]
