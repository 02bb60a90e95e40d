"""From a lowering to a `paddle.autograd.PyLayer`, and how it is called.

A PyLayer's backward returns a gradient for each tensor that forward was given, and must return None
where none is asked for; it does not see where one that was saved is written to later: the versions
are compared here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import paddle
from paddle.autograd import PyLayer

from multigrad.backend import Emitted, GradientError, MultigradError, is_float

from ..kernels.widening import Tensor, is_tensor

Run = Callable[..., tuple[tuple[Any, ...], Callable[..., tuple[Any, ...]], tuple[int, ...]]]


def render(emitted: Emitted) -> str:
    """Return the source of the class."""
    forward, keep = emitted.forward, emitted.keep
    draw = ["if key is None:", "    key = draw_key()"] if emitted.draws else []
    own = own_tensors(emitted)
    lines = [*draw, *forward.lines]
    lines += [f"{name} = {result}" for name, result in zip(emitted.outputs, own, strict=True)]
    lines += [*keep.lines, *note(emitted)]
    result = emitted.outputs[0] if emitted.single else f"({', '.join(emitted.outputs)},)"
    return f"""\
class {emitted.identifier}(PyLayer):
    @staticmethod
    def forward(ctx, {", ".join(emitted.inputs)}{emitted.signature}):
{indented(lines)}        return {result}

    @staticmethod
    def backward(ctx, {", ".join(emitted.cotangents)}):
{indented([*load(emitted), *give(emitted)])}{refuse(emitted)}"""


def refuse(emitted: Emitted) -> str:
    """Return the method that looks at what people give for the numbers, where that is refused."""
    if not emitted.refusals:
        return ""
    given = ", ".join([*emitted.inputs, *emitted.params])
    return f"""
    @classmethod
    def apply(cls, {", ".join(emitted.inputs)}{emitted.signature}):
{indented([*emitted.refuse_gradients, f"return super().apply({given})"])}"""


def indented(lines: Iterable[str]) -> str:
    return "".join([f"        {line}\n" for line in lines])


def own_tensors(emitted: Emitted) -> list[str]:
    """Return expressions of the outputs, each a tensor of its own."""
    words: list[str] = []
    for result in emitted.forward.results:
        seen = result in emitted.inputs or result in words
        words.append(f"{result}.clone()" if seen else result)
    return words


def note(emitted: Emitted) -> list[str]:
    """Note on ctx what backward needs."""
    kept = dict(zip(emitted.computed, emitted.keep.results, strict=True))
    lines = [f"ctx.shape_of_{name} = {name}.shape" for name in emitted.shapes]
    lines += [f"ctx.{name} = {name}" for name in emitted.read_params]
    if emitted.residuals:
        saved = ", ".join(kept.get(name, name) for name in emitted.residuals)
        lines += [f"saved = ({saved},)", "ctx.save_for_backward(*saved)"]
        lines.append("ctx.versions = versions(saved)")
    lines.append(f"ctx.asked = asked({', '.join(emitted.inputs)})")
    if emitted.params:
        lines.append(f"ctx.extra = count_tensors({', '.join(emitted.params)})")
    types = emitted.output_types
    marked = [emitted.outputs[i] for i in emitted.undifferentiable if is_float(types[i])]
    if marked:
        lines.append(f"ctx.mark_non_differentiable({', '.join(marked)})")
    return lines


def load(emitted: Emitted) -> list[str]:
    """Take from ctx what backward reads."""
    lines = []
    if emitted.residuals:
        lines += [
            "saved = ctx.saved_tensor()",
            f"check_versions(saved, ctx.versions, {emitted.name!r})",
        ]
        lines.append(f"({', '.join(emitted.residuals)},) = saved")
    lines += [f"{name} = ctx.{name}" for name in emitted.read_params]
    lines += [f"shape_of_{name} = ctx.shape_of_{name}" for name in emitted.shapes]
    if emitted.refuse:
        lines += ["if is_grad_enabled():", f"    {emitted.refuse}()"]
    return lines


def give(emitted: Emitted) -> list[str]:
    """Return the gradients that are asked for, and none for params that are tensors."""
    gradients = [
        gradient if gradient == "None" else f"{gradient} if ctx.asked[{i}] else None"
        for i, gradient in enumerate(emitted.gradients(emitted.backward))
    ]
    if emitted.params:
        return [*emitted.backward.lines, f"return given(({', '.join(gradients)},), ctx.extra)"]
    return [*emitted.backward.lines, f"return {', '.join(gradients)}"]


def asked(*inputs: Tensor) -> tuple[bool, ...]:
    return tuple([not x.stop_gradient for x in inputs])


def count_tensors(*values: Any) -> int:
    return sum(map(is_tensor, values))


def given(gradients: tuple[Any, ...], extra: int) -> Any:
    """Return gradients as Paddle wants them: one alone, or a tuple."""
    whole = [*gradients, *[None] * extra]
    return tuple(whole) if len(whole) > 1 else whole[0]


def versions(saved: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple([x.inplace_version if isinstance(x, paddle.Tensor) else 0 for x in saved])


def check_versions(saved: Iterable[Tensor], before: tuple[int, ...], name: str) -> None:
    """See that nothing was written to what backward reads.

    Raises:
        GradientError: something was.
    """
    for x, version in zip(saved, before, strict=True):
        if isinstance(x, paddle.Tensor) and x.inplace_version != version:
            raise GradientError(
                f"{name}: a tensor of shape {tuple(x.shape)} that backward reads was written to "
                "after forward. Write to a copy: x.clone()"
            )


def finish(namespace: dict[str, Any], emitted: Emitted) -> type[PyLayer]:
    """Return the class; its docstring says what it is."""
    native = namespace[emitted.identifier]
    native.__doc__ = f"{emitted.name}, as emitted by multigrad."
    native.backward = staticmethod(noting_errors(native.backward))
    return native


class Raised(threading.local):
    """The error of ours that a backward of this thread raised: Paddle makes an OSError of it."""

    error: MultigradError | None = None


RAISED = Raised()


def noting_errors(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Keep what a backward raises for who can raise it again."""

    @functools.wraps(backward)
    def call(*args: Any) -> Any:
        try:
            return backward(*args)
        except MultigradError as error:
            RAISED.error = error
            raise

    return call


def call(native: type[PyLayer], emitted: Emitted) -> Callable[..., Any]:
    return native.apply


def attach(run: Run, tensors: tuple[Tensor, ...], name: str) -> tuple[Tensor, ...]:
    """Apply a function whose backward is the user's own code on tensors."""
    asked_for = asked(*tensors)
    if not (paddle.is_grad_enabled() and any(asked_for)):
        with paddle.no_grad():
            return run(*tensors)[0]
    with paddle.enable_grad():
        outputs, pull, undifferentiable = run(*tensors)

    ran = Ran(outputs, pull, undifferentiable, asked_for, name)
    return tuple(UsersOwn.apply(ran, *tensors))


@dataclass(slots=True)
class Ran:
    """What has run forward: its outputs, and what its backward is."""

    outputs: tuple[Any, ...]
    pull: Callable[..., tuple[Any, ...]]
    undifferentiable: tuple[int, ...]
    asked_for: tuple[bool, ...]
    name: str


class UsersOwn(PyLayer):
    """One class for all: Paddle never lets go of a class that was applied, nor of what it holds."""

    @staticmethod
    def forward(ctx: Any, ran: Ran, *given: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*given)
        ctx.versions, ctx.ran = versions(given), ran
        detached = tuple(output.detach().clone() for output in ran.outputs)
        ran.outputs = ()
        ctx.mark_non_differentiable(*(detached[i] for i in ran.undifferentiable))
        return detached

    @staticmethod
    @noting_errors
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        ran = ctx.ran
        check_versions(ctx.saved_tensor(), ctx.versions, ran.name)
        gradients = ran.pull(*cotangents, ctx=ctx)
        wanted = zip(gradients, ran.asked_for, strict=True)
        return given(tuple(g if is_asked else None for g, is_asked in wanted), 0)


NAMESPACE = {
    "PyLayer": PyLayer,
    "asked": asked,
    "check_versions": check_versions,
    "count_tensors": count_tensors,
    "given": given,
    "is_grad_enabled": paddle.is_grad_enabled,
    "versions": versions,
}
