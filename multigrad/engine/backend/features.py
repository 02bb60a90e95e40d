"""The groups of a `Backend` that the core does not need: other frameworks, models, files.

A backend may give each by its place (`late`), so that its file loads when somebody reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, NamedTuple, TypeAlias

from ...core.backend.emitted import Emitted, Function, Source, Vjp
from ...core.support.records import record
from .guest import Guest, SharedBuffer

Tensor: TypeAlias = Any  # the contract names no framework's classes
# How an object is taken apart, into the rest and its parts, and made from such a rest and parts.
Parts: TypeAlias = tuple[Callable[[Any], tuple[Any, Any]], Callable[[Any, Any], Any]]


@record()
class Interop:
    """The framework together with others: as a guest in their programs, and as their host."""

    lend: Callable[[Tensor], SharedBuffer] | None = None
    """A tensor as others may read it; without it they get NumPy's copy."""

    borrow: Callable[[SharedBuffer, bool], Tensor] | None = None
    """(lent, own) -> a tensor of what was lent, in place if it can be; `own`: in its own memory."""

    outside: Callable[[Function], Function] | None = None
    """Wraps emitted functions that run outside the framework's autodiff, for another framework."""

    bridge: Callable[[Guest, tuple[Tensor, ...]], tuple[Tensor, ...]] | None = None
    """(foreign, tensors) -> the outputs of what runs in another framework, with its gradient in
    this one's autodiff; without it no other framework can run in this one."""


@record()
class Imports:
    """What users of the framework already have: its custom gradients, modules with parameters."""

    import_function: Callable[[Any], Any] | None = None
    """The recipe of the framework's own custom gradient."""

    operators: Callable[[], Iterable[str]] | None = None
    """The operators with a gradient that packages have registered, as namespace::name."""

    find_operator: Callable[[Any], Callable[..., Any] | None] | None = None
    """(its name, or an object for it) -> the operator as a function with a signature, or None."""

    container: Callable[[Any], Parts | None] | None = None
    """How an object of a class registered as a container is taken apart; None: it is none."""

    hook_params: Callable[[], AbstractContextManager[Any]] | None = None
    """A context within which rules act on parameters' gradients, for the scope "params"."""

    dialect: Callable[[], Any] | None = None
    """Gives the `Dialect` of its names where code needs it; else the backend registers one."""


@record()
class Models:
    """Existing models with layers, and functions that call the framework's operations."""

    is_model: Callable[[Any], bool] | None = None
    """Whether an object is a model of the framework, for `attach`."""

    attach: Callable[[Any, Any], Any] | None = None
    """(model, {selector: rule} or a composite) -> the handle of the model, changed in place."""

    override: Callable[[Function, Any], Function] | None = None
    """(function, {operation: rule} or a composite) -> the function with those rules."""

    is_operation: Callable[[Any], bool] | None = None
    """Whether a selector of `override` is an operation of the framework (a function of it)."""

    quantize: Callable[..., Any] | None = None
    """(model, weights, activations, bits=, axis=, sample=) -> the quantized model."""

    kept: Callable[..., list[Any]] | None = None
    """(model, shapes, dtypes) -> the `models.layer_memory.Residual` of each tensor kept."""

    kept_by_call: Callable[..., list[Any]] | None = None
    """The same of a Keras model, (call, weights, others, shapes, dtypes), where
    `call(weights, others, inputs, within)` calls layers by `models.kept.Within`."""

    leaves: Callable[[Any], list[Any]] | None = None
    """The leaves of a tree by the framework's own registry of containers; None: optree's."""


@record()
class Ejection:
    """How emitted code becomes a file that runs without multigrad."""

    render: Callable[[Emitted], Source]
    """The source of the native object, of plain ops; `Emitted.identifier` is what people call."""

    modules: Mapping[str, Any]
    """The framework's modules by the names under which a file has them, preferred names first."""

    calls: tuple[str, ...] = ("y = {}({})",)
    """How people call it, for the head of the file: of the name and the arguments."""

    namespace: Mapping[str, Any] = field(default_factory=dict)
    """Names that `render` uses in addition to `Autodiff.namespace`."""

    words: tuple[str, ...] = ()
    """Names that `render` uses within functions: no param can have one of them."""

    forms: Mapping[Any, Any] = field(default_factory=dict)
    """What a file holds instead of the backend's own functions that need multigrad."""

    operator: Callable[[str], Callable[[Emitted], Source]] | None = None
    """(name) -> what renders an operator that programs call by this name; None: they call none."""


@record()
class Exports:
    """Files in the framework's own formats, and in formats that it writes for others."""

    programs: Mapping[str, Function] = field(default_factory=dict)
    """By the suffix of the file (".pt2"), (model, path, inputs, dynamic_shapes, strict) -> the
    program that was written, and the operators that it calls, whose documents it holds."""

    functions: Mapping[str, Function] = field(default_factory=dict)
    """The same for a Function, (graphs, path, tensors, numbers, dynamic_shapes) -> two paths."""

    register: Function | None = None
    """(operator) -> the framework's operator for its graphs, registered where it is not yet."""


@record(eq=True)
class Kept:
    """A tensor that a custom gradient keeps for its backward."""

    where: str
    """What it is called there: "saved tensor 0", "ctx.x"."""
    size: int
    """In bytes."""
    is_read: bool
    """Whether the backward makes use of its numbers."""
    apart: str = ""
    """What it is ("input" or "output") where the framework does not know that it is kept."""


@record()
class Modes:
    """The other ways in which the framework runs a custom gradient, which an audit tries.

    Each takes what `Autodiff.vjp` does, a function of a list of tensors and the tensors, and raises
    NotImplementedError if the code does not support it.
    """

    jvp: Callable[[Function, Any, Any], tuple[list[Any], list[Any]]] | None = None
    """(run, inputs, tangents) -> outputs and their tangents, by forward mode; None is zero."""

    checkpoints: Mapping[str, Vjp] = field(default_factory=dict)
    """By name, an `Autodiff.vjp` that keeps the inputs alone: its pullback runs `run` again."""

    mapped: Vjp | None = None
    """An `Autodiff.vjp` of `run` for examples, which lie along the first axis of each tensor."""

    whole: Callable[[Function], Function] | None = None
    """(function) -> the same as one program of the compiler's, which says why it is none."""

    once: Vjp | None = None
    """An `Autodiff.vjp` with a pullback for one call; None: `Autodiff.vjp` serves for that."""

    autocast: Vjp | None = None
    """An `Autodiff.vjp` with bfloat16 by the framework's choice in `run` alone; the pullback raises
    GradientError where it fails in code that is written for it."""

    kept: Callable[[Function, Any, Function], list[Kept]] | None = None
    """(run, inputs, make cotangents of outputs) -> what custom gradients in `run(inputs)` keep."""

    transforms: Mapping[str, Function] = field(default_factory=dict)
    """By name, (run, inputs, cotangents) -> gradients by a transform that is compiled."""
    drops: Callable[[str], str] | None = None
    """Why the transform of that name loses any custom gradient, else ""."""
    seed: Callable[[int | None], int | None] | None = None
    """(new global seed) -> the old one, where generators have no state to read."""
    compiles_each_shape: bool = False
    """Whether a shape that was not met before takes time."""
    lacks: Mapping[str, str] = field(default_factory=dict)
    """Why the framework has none of these, by the name of the field."""


def run_on_tensors_alone(
    transform: Callable[[Callable[..., Any]], Callable[..., Any]],
    run: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    is_tensor: Callable[[Any], Any],
) -> list[Any]:
    """Return a function's outputs under a transform of its tensors; other outputs bypass it."""
    # Outputs that are no tensors, by position: the transform may return tensors only.
    others: dict[int, Any] = {}

    def tensors_only(*given: Any) -> list[Any]:
        outputs = run(given)
        others.update((i, y) for i, y in enumerate(outputs) if not is_tensor(y))
        return [y for y in outputs if is_tensor(y)]

    tensors = transform(tensors_only)(*inputs)
    results = iter(tensors)
    return [others[i] if i in others else next(results) for i in range(len(tensors) + len(others))]


class Group(NamedTuple):
    """The ranks of a program, as this process sees them; the same object as long as they last."""

    rank: int
    """Which one this is, from 0."""

    size: int
    """How many there are, at least two."""

    put: Callable[[str, str], None]
    """(key, text): leaves text for all, under a key that holds none."""

    look: Callable[[str], str | None]
    """(key) -> the text under it, or None where there is none yet; it does not wait long."""

    drop: Callable[[str], None]
    """(key): its text is no longer needed."""

    timeout: Callable[[], float]
    """How many seconds the framework itself waits for a rank that does not come."""

    waits: bool = True
    """Whether a rank may wait here for the others; not where they run one after another."""

    lane: str = ""
    """The name of this thread among those that every rank has; "" for the main one."""


@record()
class Ranks:
    """A framework's knowledge of the processes of one program."""

    group: Callable[[], Group | None] | None = None
    """The ranks of which this thread is one; None: it is alone, or the others need not have it."""
