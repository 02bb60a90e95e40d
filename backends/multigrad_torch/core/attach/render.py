"""Source text of the `torch.autograd.Function` classes that a lowering becomes.

    def f_prepare(wrap, width): ...   # what depends on params alone, computed once for equal calls
    class f_eager(Function): ...      # fast code; forward gets ctx: 13 to 17 us less per call
    class f(Function): ...            # plain code, with `setup_context`: for torch.func and vmap
        def apply(cls, x, width): ... # picks one by asking whether a transform is active

`render` returns these; a file without multigrad and an exported program have one class or operator.
The functions `_..._lines` return the lines of a method, or some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from multigrad.core.backend.emitted import tuple_of
from multigrad.core.ir.op import is_float
from multigrad.core.support.lazy_modules import NEEDS_ENGINE, provided
from multigrad.errors import UnsupportedOp

if TYPE_CHECKING:
    from multigrad.backend import Body, Code, Emitted

# If one of these holds, a call takes the class with `setup_context`.
AROUND = "transforms_active() or count_modes() or forward_ad._current_level >= 0"
DRAW = ("if key is None:", "    key = draw_key()")
# If one of these holds in backward, fast code may not run.
ANYWHERE = ("is_grad_enabled()", "transforms_active()", "is_included(BATCHED)", "count_modes()")


def render(emitted: Emitted) -> str:
    """Return the source of both classes, the public one last."""
    if emitted.derivative.tangent is not None:
        return render_forward_mode(emitted)
    name, inputs = emitted.names.identifier, ", ".join(emitted.names.inputs)
    arguments = f"{inputs}{emitted.arguments}"
    names = _prepared_names(emitted)
    eager_arguments = arguments
    if names:
        eager_arguments = f"{inputs}, {name}_prepare(as_number{emitted.arguments})"
    if len(emitted.names.inputs) == 1:
        is_other_kind = f"type({inputs}) not in KINDS"
    else:
        is_other_kind = f"not KINDS.issuperset(map(type, ({inputs})))"
    draw = DRAW if emitted.draws else []
    # A key that only backward reads is drawn only where a gradient is asked for.
    draw_first, draw_later = (draw, []) if "key" in emitted.forward_params else ([], draw)
    apply = [
        *emitted.check_arguments,
        *draw_first,
        f"if {AROUND} or {is_other_kind}:",
        f"    return entry(cls)({arguments})",
        *draw_later,
        f"return {name}_eager.apply({eager_arguments})",
    ]
    setup, backward = setup_lines(emitted, draw_later), plain_backward_lines(emitted)
    public = render_class(emitted, name, as_own_tensors(emitted), setup, backward)
    return f"{_render_eager(emitted, names)}\n\n{public}{render_apply(emitted, apply)}"


# --- classes --------------------------------------------------------------------------------------
def render_class(
    emitted: Emitted, name: str, results: tuple[str, ...], setup: list[str], backward: list[str]
) -> str:
    # In a file without multigrad, which draws before it applies the class, params have no defaults.
    defaults = emitted.arguments if name != emitted.names.identifier else emitted.signature
    return f"""\
class {name}(Function):
    generate_vmap_rule = True

    @staticmethod{autocast_mark(emitted)}
    def forward({", ".join(emitted.names.inputs)}{defaults}):
{emitted.code.forward.indented(8)}        return {emitted.returned(results)}

    @staticmethod{autocast_mark(emitted)}
    def setup_context(ctx, inputs, output):
{indented(setup)}
    @staticmethod{autocast_mark(emitted)}
    def backward(ctx, {", ".join(emitted.names.cotangents)}):
{indented(backward)}"""


def autocast_mark(emitted: Emitted) -> str:
    return "\n    @outside_autocast" if emitted.origin.casts else ""


def render_apply(emitted: Emitted, lines: list[str]) -> str:
    if not lines:
        return ""
    return f"""
    @classmethod
    def apply(cls, {", ".join(emitted.names.inputs)}{emitted.signature}):
{indented(lines)}"""


def _render_eager(emitted: Emitted, names: dict[str, str]) -> str:
    name, inputs, fast = emitted.names.identifier, ", ".join(emitted.names.inputs), emitted.fast
    cotangents = ", ".join(emitted.names.cotangents)
    prepare, arguments, count = "", emitted.arguments, len(emitted.names.params)
    unpack: list[str] = []
    read = emitted.read_params
    store, load = store_lines(read), _eager_load_lines(emitted, read)
    if names:
        assert fast.prepared is not None
        prepare = f"""\
def {name}_prepare(wrap{emitted.arguments}):
{indented([*fast.prepared.lines, f"return {tuple_of(names.values())}"], 4)}

"""
        arguments, count = ", values", 1
        # Params arrive within the tuple of prepared values, and are kept as that tuple.
        store, load = [], _eager_load_lines(emitted, ())
        bodies = (
            fast.keep,
            *(() if emitted.origin.is_rule else (fast.forward, fast.whole or fast.keep)),
        )
        if any(mentions(body, names) for body in bodies):
            unpack = [f"{tuple_of(names)} = values"]
        if read or mentions(fast.backward, names):
            store = ["ctx.values = values"]
            load.append(f"{tuple_of(names)} = ctx.values")
    forward = [
        *unpack,
        *_forward_lines(emitted),
        *store,
        *note_lines(emitted),
        f"return {emitted.returned(emitted.names.outputs)}",
    ]
    return f"""\
{prepare}class {name}_eager(Function):
    @staticmethod{autocast_mark(emitted)}
    def forward(ctx, {inputs}{arguments}):
{indented(forward)}
    @staticmethod{autocast_mark(emitted)}
    def backward(ctx, {cotangents}):
{indented([*load, *backward_lines(emitted, count, emitted.residuals.late)])}"""


@provided
def render_forward_mode(emitted: Emitted) -> str:
    """Return the source of one class, which has a jvp as well."""
    raise UnsupportedOp(f"forward mode of {emitted.origin.name} {NEEDS_ENGINE}")


# --- lines of methods -----------------------------------------------------------------------------
def setup_lines(emitted: Emitted, draw: Sequence[str] = ()) -> list[str]:
    unpack = [f"{targets((*emitted.names.inputs, *emitted.names.params))} = inputs"]
    if not emitted.single:
        unpack.append(f"{targets(emitted.names.outputs)} = output")
    notes = [*_keep_lines(emitted, emitted.code), *store_lines(emitted.read_params)]
    notes += note_lines(emitted)
    return [*unpack, *draw, *notes] if notes else ["pass"]


def _prepared_names(emitted: Emitted) -> dict[str, str]:
    prepared = emitted.fast.prepared
    if prepared is None:
        return {}
    return {**{name: name for name in emitted.read_params}, **prepared.names}


def mentions(body: Body, names: Iterable[str]) -> bool:
    words = set(re.findall(r"\w+", " ".join((*body.lines, *body.results))))
    return not words.isdisjoint(names)


def as_own_tensors(emitted: Emitted) -> tuple[str, ...]:
    # setup_context may save a view of an input, but not an input that is returned unchanged. Of a
    # tensor that is returned twice torch forgets the first position.
    words: list[str] = []
    for i, result in enumerate(emitted.code.forward.results):
        if i in emitted.aliasing.shared:
            words.append(f"{result}.clone()")
        elif result in emitted.names.inputs:
            words.append(f"{result}.view_as({result})")
        else:
            words.append(f"{result}.detach()" if i in emitted.aliasing.passed else result)
    return tuple(words)


def _forward_lines(emitted: Emitted) -> list[str]:
    # In the eager class's forward grad mode is off, and no transform is active.
    if emitted.fast.whole is not None:
        return lines_of_loop(emitted, emitted.fast.whole)
    code, lines = emitted.fast, [*emitted.fast.forward.lines]
    keep_lines = _keep_lines(emitted, code, emitted.residuals.likes, copied_outputs(emitted))
    # Without a gradient, computing residuals would be wasted.
    if emitted.residuals.computed:
        condition = "True in ctx.needs_input_grad"
        if len(emitted.names.wrt) == 1:
            condition = f"ctx.needs_input_grad[{emitted.names.inputs.index(emitted.names.wrt[0])}]"
        keep_lines = [f"if {condition}:", *(f"    {line}" for line in keep_lines)]
    for i, (name, result) in enumerate(
        zip(emitted.names.outputs, code.forward.results, strict=True)
    ):
        # torch replaces an input that is returned unchanged by a tensor of its own, but only later.
        is_passed = i in emitted.aliasing.passed
        suffix = ".clone()" if i in emitted.aliasing.shared else ""
        if is_passed and name in emitted.residuals.names and not suffix:
            suffix = ".detach()"
        lines.append(f"{name} = {result}{suffix}")
    reads_outputs = not {*emitted.residuals.names, *code.keep.reads}.isdisjoint(
        emitted.names.outputs
    )
    # Residuals first: the memory of their temporaries is then free for the outputs.
    return [*lines, *keep_lines] if reads_outputs else [*keep_lines, *lines]


def copied_outputs(emitted: Emitted) -> set[str]:
    """Return the outputs of which the eager class keeps a copy: others may write to them.

    A compiler does not notice (torch 2.13) what is written to an output that a Function has kept.
    """
    if not emitted.origin.compiled or emitted.derivative.tangent is not None:
        return set()
    aliases = {*emitted.aliasing.passed, *emitted.aliasing.shared, *emitted.aliasing.views}
    own = [name for i, name in enumerate(emitted.names.outputs) if i not in aliases]
    return {*own}.intersection(emitted.residuals.names)


@provided
def lines_of_loop(emitted: Emitted, whole: Body) -> list[str]:
    """Return the lines of a forward whose loop gives outputs and residuals."""
    raise UnsupportedOp(f"a loop in {emitted.origin.name} {NEEDS_ENGINE}")


def _keep_lines(
    emitted: Emitted, code: Code, likes: tuple[str, ...] = (), copied: Collection[str] = ()
) -> list[str]:
    # Of `likes` only shape, dtype and device are kept, no tensor.
    results = iter(code.keep.results)
    words = {
        r: next(results) if r in emitted.residuals.computed else r for r in emitted.residuals.names
    }
    residuals = [
        f"{word}.clone()" if r in copied else word for r, word in words.items() if r not in likes
    ]
    lines = [*code.keep.lines, *(f"ctx.like_{name} = Like({words[name]})" for name in likes)]
    return [*lines, f"ctx.save_for_backward({', '.join(residuals)})"] if residuals else lines


def store_lines(params: tuple[str, ...]) -> list[str]:
    return [f"ctx.{name} = {name}" for name in params]


def note_lines(emitted: Emitted) -> list[str]:
    lines = [f"ctx.shape_of_{name} = {name}.shape" for name in emitted.residuals.shapes]
    types = emitted.origin.output_types
    undifferentiable = [
        emitted.names.outputs[i] for i in emitted.derivative.undifferentiable if is_float(types[i])
    ]
    if undifferentiable:
        lines.append(f"ctx.mark_non_differentiable({', '.join(undifferentiable)})")
    return lines


def load_lines(
    emitted: Emitted,
    params: tuple[str, ...],
    likes: tuple[str, ...] = (),
    histories: tuple[str, ...] = (),
) -> list[str]:
    names = (*emitted.residuals.names, *histories)
    residuals = "".join(f"{name}, " for name in names if name not in likes).strip()
    lines = [f"({residuals}) = ctx.saved_tensors"] if residuals else []
    lines += [f"{name} = ctx.like_{name}" for name in likes]
    lines += [f"{name} = ctx.{name}" for name in params]
    lines += [f"shape_of_{name} = ctx.shape_of_{name}" for name in emitted.residuals.shapes]
    return lines


def likes_in_eager(emitted: Emitted) -> tuple[str, ...]:
    late = [name for name in emitted.residuals.late if name in emitted.fast.backward.reads]
    return (*emitted.residuals.likes, *late)


def _eager_load_lines(emitted: Emitted, params: tuple[str, ...]) -> list[str]:
    # Residuals that come late are read where they are needed.
    residuals = emitted.residuals
    names = tuple([name for name in residuals.names if name not in residuals.late])
    early = replace(emitted, residuals=replace(residuals, names=names))
    return load_lines(early, params, likes_in_eager(emitted), residuals.histories)


def _refuse_lines(emitted: Emitted) -> list[str]:
    return (
        ["if is_grad_enabled():", f"    {emitted.checks.derivative}()"]
        if emitted.checks.derivative
        else []
    )


def gradients_returned(
    emitted: Emitted, backward: Body, count: int, chosen: bool = False
) -> list[str]:
    # Params get None; with `chosen`, so do gradients that `ctx.needs_input_grad` excludes.
    gradients = list(emitted.gradients(backward))
    if chosen and len(emitted.names.wrt) > 1:
        for i, gradient in enumerate(gradients):
            if gradient != "None":
                gradients[i] = f"({gradient} if ctx.needs_input_grad[{i}] else None)"
    return [*backward.lines, f"return {', '.join([*gradients, *['None'] * count])}"]


def plain_backward_lines(emitted: Emitted) -> list[str]:
    return_lines = gradients_returned(emitted, emitted.code.backward, len(emitted.names.params))
    return [*load_lines(emitted, emitted.read_params), *_refuse_lines(emitted), *return_lines]


def backward_lines(emitted: Emitted, count: int, late: tuple[str, ...] = ()) -> list[str]:
    plain, fast = emitted.code.backward, emitted.fast.backward
    # Fast code runs unless this backward is itself differentiated or transformed.
    plain_lines = [f"{name} = read_late(ctx.late_{name})" for name in late]
    plain_lines += gradients_returned(emitted, plain, count, chosen=True)
    if (plain.lines, plain.results) == (fast.lines, fast.results):
        return [*_refuse_lines(emitted), *plain_lines]
    pairs = zip(emitted.names.cotangents, emitted.carries, strict=True)
    type_tests = [f"type({name}) is not Tensor" for name, carries in pairs if carries]
    # Code that a compiler traces can ask only the first; a compiler overwrites no cotangent.
    tests = ANYWHERE[:1] if emitted.origin.compiled else [*ANYWHERE, *type_tests]
    return [
        *_refuse_lines(emitted),
        f"if {' or '.join(tests)}:",
        *(f"    {line}" for line in plain_lines),
        *(["if not keeps_graph():"] if late else []),
        *(f"    ctx.late_{name} = None" for name in late),
        *gradients_returned(emitted, fast, count, chosen=True),
    ]


# --- words ----------------------------------------------------------------------------------------
def indented(lines: Iterable[str], spaces: int = 8) -> str:
    return "".join([f"{' ' * spaces}{line}\n" for line in lines])


def targets(words: Iterable[str]) -> str:
    # The left side of an assignment of a tuple.
    *firsts, last = words
    return ", ".join([*firsts, last]) if firsts else f"({last},)"
