"""torch.compile and xg.jit: the code that Dynamo traces instead of activations and Functions.

The arguments are described to `prepare`, which runs outside the trace. It stores a call in CALLS
and returns its name, or asks for more: the lengths of tensors, what is in force, its numbers.
Whatever it is told becomes part of the graph. `xg.jit` is at the end.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeAlias

import torch

from multigrad.backend import Reader
from multigrad.backend.discovery import load_backend
from multigrad.backend.values import key_for
from multigrad.functions.function import Function, by_identifier
from multigrad.functions.record import NotCaptured
from multigrad.graph.support.trees import optree
from multigrad.rules.activation import Activation, by_key
from multigrad.rules.context import CURRENT, ActiveRules, RuleInForce
from multigrad.rules.model.activation_function import forward_by_key
from multigrad.trace.active_rules import KeySource
from multigrad.trace.assertions import MISSING, TWICE
from multigrad.trace.lookups import all_at_present
from multigrad.trace.trace import Value

from .. import dynamo, versions
from ..export import asks_for_operators, note_refused
from ..kernels import random
from ..state import without_modes
from .calls import (
    DRAWS,
    FRAMED,
    LENGTHS,
    NUMBERS,
    OPERATOR,
    OWN,
    READS,
    CompiledCall,
    Question,
    call_of_activation,
    call_of_function,
    has_static_numbers,
    number_application,
    reads,
    serial,
)
from .dynamo_guards import (
    EPOCH,
    JIT,
    JIT_NUMBERS_AS_INPUTS,
    MIRROR,
    ApplicationCount,
    Cell,
    check_mirror,
)

Tensor: TypeAlias = Any
# Prefixes of the answers of `prepare`: compiled code calls the Function's own class, which Dynamo
# reads; or the call cannot be compiled.
OWN_CLASS = "?"
REFUSED = "!"
# Types that Dynamo takes as constants, or that this file takes apart.
PLAIN = (
    *(torch.Tensor, tuple, list, dict, str, bytes, int, float, complex, type(None), slice, range),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, Enum),
)
MOST_NAMES = 4096  # then all names and calls are forgotten
# In a user's class Dynamo (torch 2.13) makes zeros of missing cotangents, and fails if a tensor is
# returned twice.
MISREAD = frozenset((MISSING, TWICE))
# Names of calls, by everything that a call depends on: what it leaves out is silently shared.
NAMES: dict[Any, str] = {}


class CallNamespace:
    """A namespace of calls. Dynamo guards each attribute, but of a dict only the first keys."""


CALLS = CallNamespace()


def is_exporting() -> bool:
    """Return whether torch.export traces, or ONNX's older exporter, which runs the code eagerly."""
    if torch.jit.is_tracing():
        return torch.onnx.is_in_onnx_export()
    return versions.is_exporting()


# --- what Dynamo traces --------------------------------------------------------------------------


def call_activation(activation: Activation, x: Tensor, values: tuple[Tensor, ...] = ()) -> Tensor:
    """Apply an activation in traced code, instead of `Activation.__call__` or `call_with`."""
    subject = (activation.key, activation.forward.key)
    if is_partial(x):
        torch._dynamo.graph_break(msg="a partial DTensor")
        return apply_activation(activation, x, values)
    x = keep_placements(x)
    name = ask(subject, (x, len(values)), True)[0]
    if name.startswith(REFUSED):
        torch._dynamo.graph_break(msg=name)
        return apply_activation(activation, x, values)
    hidden, n, kind = MIRROR.moving_inputs, 0, name.partition("_")[0]
    # Each draw under xg.jit takes the next application's number, as an input of the graph.
    if hidden and DRAWS in kind:
        n = MIRROR.applied.number
        MIRROR.applied.number = n + 1
    # x may be one example under vmap; float64 tensors of numbers would promote a 0-d x.
    if hidden and x.ndim == 0:
        hidden = (hidden[0].to(x.dtype), *hidden[1:])
    if OWN in kind:
        values = getattr(CALLS, name + "_tensors")
    elif FRAMED in kind:
        values = MIRROR.tensors
    for value in values:
        if isinstance(value, Cell):
            value = value.tensor[0]
        hidden = (*hidden, value.to(x.dtype) if x.ndim == 0 else value)
    return run(name, x, n, *hidden)


def call_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Function in traced code, instead of `Function.__call__`."""
    if not torch.compiler.is_dynamo_compiling() and any(
        isinstance(leaf, Value) for leaf in optree.tree_leaves((args, kwargs))
    ):
        # Called in a capture that `prepare` began: its values are symbols of ours.
        return function._apply(args, kwargs)
    if any(map(is_object, args)) and not kwargs:
        name, tensors = class_for_objects(function.identifier), []
    else:
        name, tensors = ask(function.identifier, (args, kwargs), False)
    if name.startswith(OWN_CLASS):
        return getattr(CALLS, name).apply(*args)
    if name.startswith(REFUSED):
        torch._dynamo.graph_break(msg=name)
        return apply_function(function, args, kwargs)
    if torch.compiler.is_exporting() and not name.startswith(OPERATOR):
        # An exported program has only ATen ops. No gradient is better than silently the forward's
        # own.
        tensors = [tensor.detach() for tensor in tensors]
    if any(map(is_partial, tensors)):
        torch._dynamo.graph_break(msg="a partial DTensor")
        return apply_function(function, args, kwargs)
    tensors = [keep_placements(x) for x in tensors]
    return getattr(CALLS, name + "_assemble")(run(name, *tensors))


def ask(subject: Any, arguments: Any, is_read: bool) -> tuple[str, list[Tensor]]:
    """Return the name of a call in CALLS, and the tensors among the arguments.

    `is_read`: whether the call depends on the rules in force. More is sent only if `prepare` asks.
    """
    has_lengths = has_numbers = False
    while True:
        tensors: list[Tensor] = []
        described, token, epoch = describe(arguments, tensors, has_lengths), "", ""
        # Dynamo guards on each string that is read here, so only what `prepare` asks for is read.
        if is_read:
            token, epoch = MIRROR.exact if has_numbers else MIRROR.token, EPOCH.text
        name = prepare(subject, described, token, epoch)
        if name == LENGTHS:
            has_lengths = True
        elif name == NUMBERS:
            has_numbers = True
        elif name == READS:
            is_read = True
        else:
            return name, tensors


def is_partial(x: Tensor) -> bool:
    """Return whether the parts of a DTensor are not added up yet, which eager code refuses."""
    return hasattr(x, "placements") and any(each.is_partial() for each in x.placements)


def keep_placements(x: Tensor) -> Tensor:
    """Return a DTensor whose gradient gets the same placements; any other tensor unchanged."""
    return x.redistribute(placements=x.placements) if hasattr(x, "placements") else x


def run(name: str, *inputs: Any) -> Any:
    if torch._C._are_functorch_transforms_active():
        # Under torch.func transforms Dynamo (torch 2.13) would differentiate the forward instead.
        return getattr(CALLS, name + "_in_graph")(*inputs)
    return getattr(CALLS, name)(*inputs)


def guard(n: Any) -> Any:
    """Return a number, concrete where Dynamo may have a symbol for it."""
    return torch.fx.experimental.symbolic_shapes.guard_scalar(n)


def describe(value: Any, tensors: list[Tensor], has_lengths: bool) -> Any:
    """Return arguments as constants, and append their tensors to `tensors` in order."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        shape = tuple([guard(n) for n in value.shape]) if has_lengths else value.ndim
        asks = value.requires_grad or (
            value.is_floating_point() and torch._C._are_functorch_transforms_active()
        )
        return ("tensor", value.dtype, shape, asks, value.device.type)
    if isinstance(value, tuple | list):
        inner = [describe(each, tensors, has_lengths) for each in value]
        return (type(value).__name__, tuple(inner))
    if isinstance(value, dict):
        names = sorted(value)
        inner = [describe(value[name], tensors, has_lengths) for name in names]
        return ("dict", tuple(names), tuple(inner))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        # Dynamo makes a symbol of a number that has changed between calls.
        return ("value", guard(value))
    return ("value", value)


def is_object(value: Any) -> bool:
    """Return whether an argument is not one of the constants that Dynamo knows."""
    return not (isinstance(value, PLAIN) or callable(value))


# The next two run outside compiled code, after a graph break.
@dynamo.disable
def apply_activation(activation: Activation, x: Tensor, values: tuple[Tensor, ...] = ()) -> Tensor:
    return activation.call_with(x, values) if values else activation.apply(x)


@dynamo.disable
def apply_function(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if versions.COMPILES and torch.compiler.is_exporting():
        # Not on detached arguments: the code may write to them.
        with torch.no_grad():
            return function._apply(args, kwargs)
    return function._apply(args, kwargs)


# --- outside the trace ---------------------------------------------------------------------------


@dynamo.assume_constant_result
def prepare(subject: Any, described: Any, token: str, epoch: str) -> str:
    """Make the call for arguments like these; return its name in CALLS, or a question.

    Args:
        subject: a Function's identifier, or the keys of an activation and its forward.
        described: its arguments, as `describe` returns them.
        token: that of the active rules.
        epoch: the registry's; "" as long as the Function is taken to read only its arguments.
    """
    # In an export that Dynamo does not trace (strict=False), the ops of a capture would be
    # recorded.
    is_recorded = torch.compiler.is_exporting() and torch._guards.CompileContext.try_get() is None
    with without_modes() if is_recorded else nullcontext():
        return find_or_ask(subject, described, token, epoch)


def find_or_ask(subject: Any, described: Any, token: str, epoch: str) -> str:
    """Return the name of a call, a question, or REFUSED and the reason why there is no call."""
    is_hidden = token.startswith((JIT, JIT_NUMBERS_AS_INPUTS))
    try:
        if epoch and not is_hidden:
            check_mirror(token)
        if isinstance(subject, str):
            return find_function(by_identifier[subject], described, token, epoch)
        activation = by_key.get(subject[0]) or Activation(forward_by_key(subject[1]))
        return find_activation(activation, subject, described, token, epoch, is_hidden=is_hidden)
    except Question as question:
        return str(question)
    except NotCaptured as error:
        if (
            isinstance(subject, str)
            and MISREAD.isdisjoint(error.kinds)
            and (name := store_class(by_identifier[subject], bool(described[1][1][1])))
        ):
            return name
        note_refused(error.error)
        return f"{REFUSED}{error.error}"
    except Exception as error:  # noqa: BLE001
        note_refused(error)
        # Raised within Dynamo it would be wrapped; eager code raises it again after the graph
        # break.
        return f"{REFUSED}{type(error).__name__}: {error}"


def find_activation(
    activation: Activation, subject: Any, described: Any, token: str, epoch: str, is_hidden: bool
) -> str:
    """Return the name of an activation's call.

    Raises:
        Question: if `prepare` has to be told more.
    """
    in_force = activation.in_force()
    exporting = (torch.compiler.is_exporting(), asks_for_operators())
    key = (subject, described, token, epoch, exporting)
    if not is_hidden and in_force is not None and in_force.counter is not None:
        # Each application draws its own numbers, so it gets a call of its own.
        key = (*key, number_application(in_force.counter))
    if key in NAMES:
        return NAMES[key]
    if not is_hidden and in_force is not None:
        warn_of_graphs(in_force)
    return store(key, call_of_activation(activation, in_force, described, token))


def find_function(function: Function, described: Any, token: str, epoch: str) -> str:
    """Return the name of a Function's call.

    Raises:
        Question: if `prepare` has to be told more.
    """
    if not epoch and reads(function):
        raise Question(READS)
    if token.startswith(JIT_NUMBERS_AS_INPUTS):
        raise Question(NUMBERS)
    modes = (torch.get_default_dtype(), torch._C._is_any_autocast_enabled())
    arguments = (described, repr(described), modes)  # 1, 1.0, True are equal
    key = (function.identifier, arguments, token, epoch, asks_for_operators())
    if function.is_keyed:
        key = (*key, number_application(function._counter))
    if key in NAMES:
        return NAMES[key]
    call = call_of_function(function, described)
    # Again: the capture may have found that the code reads more than its arguments.
    if not epoch and reads(function):
        raise Question(READS)
    return store(key, call)


def store(key: Any, call: CompiledCall) -> str:
    """Store a call under what it depends on, and return its name."""
    if len(NAMES) >= MOST_NAMES:
        # Both together: a name without its call would be an AttributeError in traced code.
        NAMES.clear()
        vars(CALLS).clear()
    NAMES[key] = name = f"{call.kind}_{next(serial)}"
    setattr(CALLS, name, call.plain)
    setattr(CALLS, f"{name}_in_graph", dynamo.allow_in_graph(call.in_graph))
    setattr(CALLS, f"{name}_assemble", call.assemble)
    if OWN in call.kind:  # inputs of the graph, so that writes in place are seen
        setattr(CALLS, f"{name}_tensors", call.tensors)
    return name


@dynamo.assume_constant_result
def class_for_objects(identifier: str) -> str:
    function = by_identifier[identifier]
    refusal = f"{REFUSED}{function.recipe.subject} is given an object, which no compiled call is"
    return store_class(function) or refusal


def store_class(function: Function, has_keywords: bool = False) -> str:
    """Return the name of a Function's own class, "" if Dynamo may not read it.

    A Function that is not captured runs unchanged in eager code, and so it may in compiled code,
    except under torch.func transforms: there Dynamo (torch 2.13) differentiates the forward
    instead.
    """
    if torch._C._are_functorch_transforms_active():
        return ""
    cls, copies = function.recipe.origin, function.recipe.options.copies
    is_plain = function.native is not False and not function.is_keyed and not has_keywords
    is_class = isinstance(cls, type) and issubclass(cls, torch.autograd.Function)
    if not (is_class and is_plain) or copies or torch.compiler.is_exporting():
        return ""
    name = f"{OWN_CLASS}{function.identifier}"
    setattr(CALLS, name, cls)
    return name


def warn_of_graphs(in_force: RuleInForce) -> None:
    """Warn at the last graph that Dynamo keeps of one code, if numbers or keys may be why."""
    context = torch._guards.CompileContext.try_get()
    count = getattr(getattr(context, "compile_id", None), "frame_compile_id", None)
    limit = getattr(torch._dynamo.config, "recompile_limit", 0)
    if count == limit - 1 and (in_force.values or in_force.counter is not None):
        warnings.warn(
            f"torch.compile has made {limit} graphs of one function, perhaps for as many numbers "
            f"or keys of rule {in_force.specialization.rule.name!r}, and at the next one it runs "
            f"eagerly or, with fullgraph=True, raises FailOnRecompileLimitHit. xg.jit makes one "
            f"graph for all",
            UserWarning,
            stacklevel=2,
        )


# --- where Dynamo reads none of our code ----------------------------------------------------------


def between_graphs(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `apply` for an old Dynamo, which calls it between its graphs, with a warning."""

    def call(*args: Any) -> Any:
        dynamo.warn_apart()
        return apply(*args)

    return call


if versions.COMPILES:
    ACTIVATIONS = Reader(torch.compiler.is_compiling, call_activation, reads_code=True)
    FUNCTIONS = Reader(torch.compiler.is_compiling, call_function, reads_code=True)
else:
    ACTIVATIONS = Reader(dynamo.is_around, between_graphs(apply_activation), reads_code=True)
    FUNCTIONS = Reader(dynamo.is_around, between_graphs(apply_function), reads_code=True)


# --- xg.jit: numbers and keys of the rule in force are inputs of compiled code --------------------
def jit(fn: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return torch.compile(fn), with the numbers and keys of the rule in force as inputs.

    Raises:
        UnsupportedOp: torch is too old.
    """
    if not versions.has("xg.jit"):
        raise versions.refuse("xg.jit", "call the function itself")
    compiled: dict[str, Callable[..., Any]] = {}

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return fn(*args, **kwargs)
        active = all_at_present(CURRENT.get(), load_backend("torch"))
        hidden = hide(active.activations)
        # One compiled function per rule and epoch, so that changes of rules do not use up
        # recompile_limit.
        structure = f"{hidden.token}~{EPOCH.text}"
        if structure not in compiled:
            compiled[structure] = torch.compile(copy_code(fn), **options)
        with mirroring(active, hidden):
            return compiled[structure](*args, **kwargs)

    return call


def copy_code(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return fn within a code object of its own: Dynamo limits the graphs of each."""

    def run(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    run.__code__ = run.__code__.replace(co_name=getattr(fn, "__name__", "run"))
    return run


@dataclass(frozen=True, slots=True)
class HiddenRule:
    """A rule in force as compiled code sees it: two tokens, and the tensors that they leave out."""

    token: str
    exact: str
    # The numbers, the key's words, the next application's number.
    tensors: tuple[Tensor, Tensor, Tensor]


def hide(in_force: RuleInForce | None) -> HiddenRule:
    """Return the rule in force with its numbers and key as tensors."""
    numbers: tuple[Any, ...] = ()
    words, start, keyed = torch.zeros(2, dtype=torch.int64, device="cpu"), 0, ""
    token = exact = f"{JIT}-"
    if in_force is not None:
        if in_force.counter is not None:
            key = key_for(load_backend("torch"), in_force.key)
            words, start, keyed = random.key_words(key), in_force.counter.count, "@"
        token = exact = f"{JIT}{in_force.own_token}{keyed}"
        if not has_static_numbers(in_force):
            numbers = in_force.values
            token = f"{JIT_NUMBERS_AS_INPUTS}{in_force.specialization.id}{keyed}"
    # All in one tensor: Dynamo (torch 2.13) turns 0-d float64 inputs into scalars when it retraces.
    packed = torch.tensor([float(number) for number in numbers], dtype=torch.float64, device="cpu")
    return HiddenRule(token, exact, (packed, words, torch.tensor(start, device="cpu")))


@contextmanager
def mirroring(active: ActiveRules, hidden: HiddenRule) -> Iterator[None]:
    """Mirror a rule with hidden numbers; its counter ends where eager code would leave it."""
    in_force, applied = active.activations, ApplicationCount()
    before = MIRROR.token, MIRROR.exact, MIRROR.moving_inputs, MIRROR.applied
    with ExitStack() as stack:
        # Eager code after a graph break reads the same rules.
        if active is not CURRENT.get():
            stack.callback(CURRENT.reset, CURRENT.set(active))
        if in_force is not None and in_force.counter is not None:
            # Eager code after a graph break continues the count of compiled code.
            counter = SharedCounter(in_force.counter.count, applied)
            inner = in_force.with_draws(KeySource(in_force.key, counter))
            stack.callback(CURRENT.reset, CURRENT.set(replace(active, activations=inner)))
        MIRROR.token, MIRROR.exact = hidden.token, hidden.exact
        MIRROR.moving_inputs, MIRROR.applied = hidden.tensors, applied
        try:
            yield
        finally:
            MIRROR.token, MIRROR.exact, MIRROR.moving_inputs, MIRROR.applied = before
            if in_force is not None and in_force.counter is not None:
                in_force.counter.advance(applied.number)


class SharedCounter:
    """Counts applications in eager code and compiled code together."""

    def __init__(self, start: int, applied: ApplicationCount) -> None:
        self.start = start
        self.applied = applied

    @property
    def count(self) -> int:
        return self.start + self.applied.number

    def __next__(self) -> int:
        n = self.count
        self.applied.number += 1
        return n

    def advance(self, number: int) -> None:
        self.applied.number += number
