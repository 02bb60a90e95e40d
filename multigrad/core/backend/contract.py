"""`Backend`: what one framework offers, in groups by concern.

Required are `Tensors`, `Kernels` and `Autodiff`; other groups, and fields with a default, may be
left out; None: the framework has none. The core reads fields when it builds what is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..ir.op import Op
from ..support.lazy_modules import late_function
from ..support.records import record
from ..support.threads import load_module
from .emitted import Emitted, Function, Source, Vjp
from .rows import FastKernels

if TYPE_CHECKING:
    from ...engine.backend.differences import Differences
    from ...engine.backend.features import (
        Ejection,
        Exports,
        Imports,
        Interop,
        Models,
        Modes,
        Ranks,
    )


class Casts(NamedTuple):
    """How a framework chooses the dtypes of calls by itself."""

    is_on: Callable[[], bool]
    """Whether the framework does so now; it is asked at each call."""

    without: Callable[[], AbstractContextManager[Any]]
    """A context in which it does not."""

    of: Callable[[Op], bool]
    """Whether it may do so for the kernel of an op."""


class WeakTypes(NamedTuple):
    """Tensors whose dtype gives way to others', such as those made of Python numbers."""

    is_weak: Callable[[Any], bool]
    """Whether a tensor is one."""

    weaken: Callable[[Any], Any]
    """A tensor as one."""

    find: Callable[[Callable[..., Any], Sequence[Any]], Sequence[bool]]
    """(run, tensors) -> for each result of `run(*tensors)`, whether it is one; none if unknown."""


Tensor: TypeAlias = Any  # the contract names no framework's classes
Key: TypeAlias = Any
# `run(*tensors) -> (outputs, pull, undifferentiable)`: `pull(*cotangents)` gives a gradient or None
# for each tensor; the last are positions of outputs without one.
Run: TypeAlias = Callable[..., tuple[tuple[Tensor, ...], Function, tuple[int, ...]]]


def never(value: Any) -> bool:
    # Of a framework without tracing each value is known now.
    return False


@record()
class Tensors:
    """Which tensors belong to the framework, and how values get in and out of them."""

    types: tuple[type, ...]
    """The classes of its tensors, tracers and parameters included."""

    dtype: Callable[[str], Any]
    """The framework's dtype object for an IR name."""

    to_numpy: Callable[[Tensor], Any]
    """A concrete tensor as a NumPy array."""

    from_numpy: Callable[[Any], Tensor]
    """A NumPy array as a tensor of the same dtype, on the framework's default device."""

    constant: Callable[[Any, Sequence[Tensor]], Tensor] | None = None
    """(array, tensors) -> a NumPy array as a constant next to these; None: by `from_numpy`."""

    is_traced: Callable[[Any], bool] = never
    """Whether a value is known at run time only."""

    weak: Callable[[Any, Any], Any] | None = None
    """(scalar, dtype) -> the scalar in that dtype, where a tensor would be promoted by it."""

    numbers_widen: bool = False
    """Whether a NumPy number keeps its dtype next to tensors, as an array does."""

    weak_literals: bool = False
    """Whether `weak` is needed for literals too; -0.0 always goes through it."""

    weak_types: WeakTypes | None = None
    """Tensors whose dtype gives way to others', where the framework has such."""

    precision: Callable[[str], AbstractContextManager[Any]] | None = None
    """The mode that keeps a dtype, by its name (jax needs one for 64 bits)."""

    read_number: Callable[[Tensor], Any] | None = None
    """The number in a 0-d tensor or variable where reading it is faster, else the tensor."""

    write_number: Callable[[Tensor, float], bool] | None = None
    """Write a number into a 0-d variable, faster than an assignment; whether it could."""

    write: Callable[[Tensor, Tensor], Any] | None = None
    """(tensor, value): write a value over a tensor; None: its tensors are never written to."""

    unwritable: Callable[[Tensor], str] | None = None
    """Why a tensor cannot be written to ("it is read-only"); "" if it can. Without it each can."""

    keep: Callable[[Tensor, bool], Callable[[], str] | None] | None = None
    """(tensor, whether to copy it) -> what restores it and says what had changed, or None."""

    device_type: Callable[[Tensor], str] | None = None
    """The type of a tensor's device, as code asks for it ("cpu", "cuda"); without it "cpu"."""

    is_strided: Callable[[Tensor], bool] | None = None
    """Whether a tensor holds all its elements; without it each does."""

    is_contiguous: Callable[[Tensor], bool] | None = None
    """Whether a tensor lies in memory in order: reshapes are views; without it each does."""

    address: Callable[[Tensor], Any] | None = field(default=None, kw_only=True)
    """What tensors that share memory have in common; without it each owns its memory."""

    requires_grad: Callable[[Tensor], bool] | None = None
    """Whether a tensor asks for a gradient, if that is known at a call; without it a float may."""

    refuse: Callable[[type], str | None] | None = None
    """Why a class among `types` is not taken, and what to write; None: it is."""

    in_code: tuple[str, str] = ("", "")
    """How code makes a tensor: an import, and a form with the numbers and the dtype's name."""


@record()
class Kernels:
    """The framework's callables for the ops of the IR."""

    rows: Mapping[Op, Function]
    """By op: operands by position, attributes by name. One with a symbol may be left out."""

    unsupported: Mapping[Op, str | Mapping[str, str]]
    """Why an op is missing; of one in `rows`, by dtype: {"float16": "no CPU kernel"}."""

    while_loop: Function | None = None
    """(carry, constants, condition, body) -> the carry after a loop that values end. The two
    functions take all values by position; the body returns the next carry, alike, in a tuple."""

    scan: Function | None = None
    """(carry, rows, constants, body, reverse) -> the carry after a turn for each row, and what the
    turns gave, stacked, in a tuple. The body takes a row of each by position, and gives both."""

    scalar_left: Mapping[Op, Function] = field(default_factory=dict)
    """Faster callables `f(tensor, scalar)` for `op(scalar, tensor)`."""

    scalar_right: Mapping[Op, Function] = field(default_factory=dict)
    """The same for `op(tensor, scalar)`."""

    exact: Mapping[Op, Function] = field(default_factory=dict, kw_only=True)
    """By exact op (`passes/decisions.py`): what has IEEE 754's bits, whatever compiles it."""

    selects: bool = field(default=False, kw_only=True)
    """Whether the framework's product of a float and a bool tensor is 0 where the bool is False."""

    bits: tuple[Function, Function] | None = None
    """`pack(mask) -> bytes`, eight to each, `unpack(bytes, like) -> mask` of a tensor's shape."""

    open_number: Callable[[Any], Any] | None = None
    """(number) -> a 0-d tensor for a symbol, for which rows are not made; any other unchanged."""

    fast: FastKernels = field(default_factory=FastKernels)
    """Kernels for code of which no derivative is taken."""


@record()
class Autodiff:
    """How emitted code becomes the framework's own custom gradient, and what autodiff can do."""

    render: Callable[[Emitted], Source]
    """The source of the native custom-gradient object for a lowering."""

    finish: Callable[[dict[str, Any], Emitted], Any]
    """That object, from the namespace in which the source was executed."""

    call: Callable[[Any, Emitted], Function]
    """(object, lowering) -> `f(*inputs, *values)`."""

    attach: Callable[[Run, tuple[Tensor, ...], str], tuple[Tensor, ...]]
    """(run, tensors, name) -> the outputs of a function that runs as written, applied at once."""

    bind: Callable[[Any, Tensor, tuple[Any, ...]], Callable[[Tensor], Tensor]] | None = None
    """(object, x, values) -> `f(tin)` for tensors like x, faster than `call`."""

    vjp: Vjp | None = None
    """(run, inputs) -> (outputs, pullback), on flat lists; without it `xg.vjp` captures."""

    vmap: Callable[[Function], Function] | None = None
    """(function) -> the function of a batch along first axes, with its custom gradients."""

    forbid_derivative: Callable[[str], Callable[[Any], Any]] | None = None
    """(message) -> the identity on tensors, any derivative of which raises GradientError."""

    refuse_gradient: Callable[[str], Callable[[Any], Any]] | None = None
    """(message) -> the identity on a number, which raises GradientError if it has a gradient."""

    transform: Callable[[], frozenset[str] | None] | None = None
    """The kinds of `Trace.omissions` that show in the transform around a call; None: in none."""

    explain_refusal: Callable[[Exception], str] | None = None
    """(error) -> why a transform refuses what runs as written, and what to write; else ""."""

    note_use: Callable[[Tensor, Sequence[Tensor]], Callable[[], bool] | None] | None = None
    """Not read since 1.1."""

    namespace: Mapping[str, Any] = field(default_factory=dict)
    """Names that `render` uses."""

    wrap: Callable[[Function], Function] | None = None
    """Wraps emitted functions that no native object holds."""

    around_bare: Callable[[Function, bool], Function] | None = None
    """Wraps emitted bare rules; it is told whether they work element by element."""

    many: Callable[[Any, Function, bool], Function | None] | None = None
    """(graph of a bare rule, emit, in_place) -> `f(gradients, values)` for a list of tensors; None
    from either: one after another. `emit(graph)` is a graph as a function. In place there is also
    `f(gradients, values, True)`, which writes nothing and gives None where the call would."""

    forward_mode: bool = False
    """Whether `render` makes use of a lowering's tangent map."""

    transposes: bool = False
    """Whether the framework itself transposes what `render` makes of a tangent map."""

    keeps_float_derivatives: bool = False
    """Whether a float kept by forward keeps its derivative in backward."""

    casts: Casts | None = None
    """How the framework chooses the dtypes of calls by itself; else it does not."""

    watches_outputs: bool = True
    """Whether a write into an output that forward keeps raises an error in backward."""

    notes_shapes: bool = False
    """Whether nothing is kept of a tensor of which backward reads the shape and dtype alone."""

    joins_loops: bool = False
    """Whether `render` makes use of `Code.whole`; of fast code where kept floats are cut off."""

    only_fast: bool = False
    """Whether emitted code is never differentiated or transformed, so that fast code serves."""

    isolate: Callable[[Callable[[], Any], bool], Any] | None = None
    """(run, is_random) -> what `run()` returns, computed at once, whatever is traced, transformed,
    recorded or put in force around the call; the framework's generator is not changed."""

    rehearse: Callable[[Function, Sequence[Any]], Function] | None = None
    """(run, arrays) -> what gives `run(*tensors)` for NumPy arrays of these shapes and dtypes, if
    to trace it once costs less than a run. Raises what tracing raises."""


@record()
class Draws:
    """Where keys of random draws come from; the defaults are the engine's Threefry."""

    draw_key: Callable[[], Key] = late_function("multigrad.engine.random:draw_key")
    """Two uint32 (or a tensor of them) from the framework's own generator."""

    fold_in: Callable[[Key, Any], Key] = late_function("multigrad.engine.random:fold_in")
    """(key, n) -> key."""

    key_pair: Callable[[Any], Key] | None = None
    """The key in a user's key object; None: the two words in a tensor."""

    replays: bool = False
    """Whether the framework's draws within `Autodiff.isolate` take the keys of `REPLAYED`."""


class Reader(NamedTuple):
    """What replaces a call, for a compiler that reads code and for code that will run again."""

    is_reading: Callable[[], bool]
    """Whether it does so now."""

    call: Function
    """What to call then: `(activation, x, values=())`, with values of its own rule's params that
    the caller holds, or `(function, args, kwargs)`."""

    reads_code: bool = False
    """Whether it reads the line that asks, too: it is asked before all others."""


@record()
class Compiler:
    """All that keeps code beyond a call: caches, graphs, and regions that run again in backward.

    The events tell it what such code depends on: the rule in force, and which rule a name means.
    """

    jit: Callable[[Function, dict[str, Any]], Function] | None = None
    """(fn, options) -> `xg.jit` for this framework."""

    is_exporting: Callable[[], bool] | None = None
    """Whether the framework's own exporter traces now."""

    opaque: Callable[[Function], Function] | None = None
    """Keeps a compiler that reads Python code out of a function."""

    read_activation: tuple[Reader, ...] = ()
    """Readers that replace an activation's call on its tensors, in order of precedence."""

    read_function: tuple[Reader, ...] = ()
    """Readers that replace a Function's call."""

    begin_again: Callable[[], None] | None = None
    """The backend was loaded for a call: a compiler that reads the call starts again."""

    on_enter: Callable[[str], Callable[[], None]] | None = None
    """A `use` is entered, with this token; returns what to call where it is left."""

    on_tensors: Callable[[Any], None] | None = None
    """Rules are in force that have tensors for params; where they end, `on_enter` tells."""

    on_read: Callable[..., None] | None = None
    """(x, activation, scope="activations"): the rule in force is read, for x and an activation
    where there are any, or that of the scope "params". Raises StaleTraceError."""

    on_depend: Callable[[Any], None] | None = None
    """(held): code depends on what a layer holds, or on a name that is looked up; it is stale, or
    compiled again, once `held.superseded` is true."""

    on_register: Callable[[int], None] | None = None
    """(epoch): a name changed its meaning."""

    on_replace: Callable[[], None] | None = None
    """A layer holds something else: what `on_read` does not guard may not run again."""

    is_tracing: Callable[[], bool] | None = None
    """Whether what runs now is traced, so that a change made by it would be made once."""

    follow: Callable[[Any], Tensor | None] | None = None
    """(moving) -> where code is traced, a 0-d tensor that has the number at each run of it; None
    where it is not, or has none such: then `on_depend` is told of the number."""

    on_move: Callable[[Any], None] | None = None
    """(moving): a number has moved, of which `on_depend` may have been told."""

    forget_traces: Callable[[Iterable[Tensor]], None] | None = None
    """(variables): a model that holds these has other rules: unguarded code is compiled again."""

    on_call: Callable[[], AbstractContextManager[Any]] | None = None
    """A Function reads the rule in force: where a region runs again, that of its first run, with
    the numbers and names of then (`active_rules.Noted`)."""

    on_draw: Callable[[Callable[[], Key]], Key] | None = None
    """(draw) -> a Function's key: where a region runs again, that of its first run. Without
    `on_call` it is given numbers that move too."""

    recall: Callable[[Any, Any], Any] | None = None
    """(key, value) -> the value: where a region runs again, that of its first run by the key."""


class Late(str):
    """Where a group is, as module:name, or its class, of which an empty one serves."""

    __slots__ = ()


def late(place: str) -> Any:
    """Return a group by its place, "module:name": it loads when it is first read.

    The storeys above the core read it: the groups of `features.py`, and `Backend.differences`.
    """
    return Late(place)


def load_group(place: str) -> Any:
    module, _, name = place.partition(":")
    group = getattr(load_module(module), name)
    return group() if isinstance(group, type) else group


# The groups that a backend may leave out, and whose classes load with them.
EMPTY: dict[str, Any] = {
    **{
        name: Late(f"multigrad.engine.backend.features:{name}")
        for name in ("Exports", "Imports", "Interop", "Models", "Modes", "Ranks")
    },
    "Differences": Late("multigrad.engine.backend.differences:Differences"),
}


@record()
class Backend:
    """One framework."""

    name: str
    """As users write it ("torch"): the framework's import name, and that of the entry point."""

    tensors: Tensors
    kernels: Kernels
    autodiff: Autodiff
    draws: Draws = Draws()
    compiler: Compiler = Compiler()
    interop: Interop = EMPTY["Interop"]
    imports: Imports = EMPTY["Imports"]
    models: Models = EMPTY["Models"]
    modes: Modes = EMPTY["Modes"]
    ranks: Ranks = EMPTY["Ranks"]
    differences: Differences = EMPTY["Differences"]
    """Where its numbers are not those of the formulas; `known_faults.py` of its package has the
    framework's own faults, which no import of the framework is needed to read."""

    ejection: Ejection | None = None
    """How to write standalone files; without it nothing can be ejected."""

    exports: Exports = EMPTY["Exports"]
    """What `xg.export` writes by the framework."""

    places: dict[str, str] = field(init=False, default_factory=dict)
    """By name, where the groups are that were given by their place."""

    def __post_init__(self) -> None:
        for each in fields(self):
            group = getattr(self, each.name)
            if isinstance(group, Late):
                self.places[each.name] = group
                object.__delattr__(self, each.name)  # `__getattr__` is asked for it, once

    # Type checkers would take every name for one that it gives.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            places = object.__getattribute__(self, "places")
            if name not in places:
                raise AttributeError(f"a backend has no {name!r}")
            object.__setattr__(self, name, load_group(places[name]))
            return object.__getattribute__(self, name)

    def with_groups(self, **groups: Any) -> Backend:
        """Return the backend with other groups; none of those that stay is loaded for it."""
        names = [each.name for each in fields(self) if each.init and each.name not in groups]
        own: dict[str, Any] = {n: self.places.get(n) or getattr(self, n) for n in names}
        return Backend(**own, **groups)

    def __repr__(self) -> str:
        return f"<backend {self.name}>"
