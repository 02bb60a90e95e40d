"""torch.compile: the code that Dynamo traces instead of activations.

    in traced code      call_activation
                          ask: describes the input; tells more if `prepare` asks
    outside the trace         prepare: finds or makes a call, keeps it in CALLS, returns its name
    in traced code        run: calls its code with the tensors

Dynamo takes the name as a constant and guards on all that `prepare` is told, so it is told little
at first. `calls.py` has what a name may stand for.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch

from multigrad.core.functions.function import FunctionBase
from multigrad.core.functions.recipe import NotCaptured
from multigrad.core.rules.activation import Activation, by_key
from multigrad.core.rules.activation_function import forward_by_key, put_under
from multigrad.core.rules.context import RuleInForce
from multigrad.core.support.lazy_modules import of_engine, provided

from .. import dynamo
from ..attach import host
from ..state import without_modes
from .calls import (
    CALLS,
    NAMES,
    Answered,
    CompiledCall,
    More,
    Refused,
    call_of_activation,
    keep,
    make_concrete,
)
from .dynamo_guards import EPOCH, MIRROR, Cell, check_mirror, is_under_jit
from .readers import apply_activation

Tensor: TypeAlias = torch.Tensor
# NOTE: one call, followed with its values.
#
#     act = xg.Activation("Heaviside")
#     with xg.use("my_window", params={"width": 1.5}):
#         torch.compile(act)(torch.linspace(-2, 2, 3, requires_grad=True))
#
# Dynamo traces `call_activation(act, x)`, which asks for
#
#     subject     ("Heaviside", "Heaviside")  the keys of the activation and of its forward
#     x           (torch.float32, 1, True, "cpu")     by its rank
#     count       0                           how many values are passed
#     token       "my_window#3(1.5)"          read from MIRROR,
#     epoch       "0"                         and from EPOCH: Dynamo guards on both
#
# Dynamo calls `prepare` with these while it traces. No call is kept for them, so the rule is
# captured and lowered under the forward, and is kept as CALLS.CompiledCall_2:
#
#     CompiledCall(plain=my_window_under_Heaviside_0, in_graph=my_window_under_Heaviside_1)
#
# `prepare` returns "CompiledCall_2", and `run` traces what its `plain` does:
# `y0 = Native.apply(tin, 1.5)`.
#
# A rule that needs a length as a number, as `range(tin.shape[0])` does, is first answered "More_3",
# More(lengths=(True,)). Described again, x has (3,) for 1, and Dynamo guards on that length.
#
# With another width the token differs: the guards fail, and Dynamo traces again. Coming back, they
# hold, and none of this runs.
#
# Under `xg.jit` the token is "xg.jit(*) my_window#3" for all widths, and the width is an input:
# `params` of the call returns the one number in MIRROR.jit.numbers, and `plain` does
# `y0 = Native.apply(tin, inputs[0])`. A rule that reads its width is first answered "More_4",
# More(rules=True), and asked for again with the token "xg.jit my_window#3(1.5)".

# Dynamo (torch 2.15) would give the tangent of the forward itself; eager code does not.
DUALS_REFUSED = Refused("dual numbers in compiled code")


# --- what Dynamo traces --------------------------------------------------------------------------
def call_activation(activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
    """Apply an activation in traced code, instead of `Activation.__call__` or `call_with`."""
    if not isinstance(activation, Activation):  # `WithNumbers`, which traced code has made
        return activation(x)
    own_rule = find_own(activation) if values else None
    # Dynamo guards on comparisons of numbers among the values; it cannot read how parts are found.
    if own_rule is not None and not own_rule.specialization.rule.parts:
        own_rule.specialization.check_anew(values)
    if is_partial(x):
        torch._dynamo.graph_break(msg="a partial DTensor")
        return apply_activation(activation, x, values)
    x = keep_placements(x)
    call = ask((activation.key, activation.forward.key), x, len(values))
    if isinstance(call, Refused):
        torch._dynamo.graph_break(msg=call.reason)
        return apply_activation(activation, x, values)
    if call.params is not None:
        values = call.params()
    inputs = ()
    for value in map(as_passed, values):
        # x may be one example under vmap; float64 tensors of numbers would promote a 0-d x.
        if x.ndim == 0 and isinstance(value, torch.Tensor):
            value = value.to(x.dtype)
        inputs = (*inputs, value)
    # Each draw under xg.jit takes the next application's number, as an input of the graph.
    if call.counts_applications:
        jit = MIRROR.jit
        application = jit.applications.number
        jit.applications.number = application + 1
        inputs = (*inputs, *jit.key, application)
    return run(call, x, *inputs)


def ask(subject: tuple[str, str], x: Tensor, count: int) -> Any:
    """Return the answer of `prepare` for an input and so many values."""
    if is_dual():
        return DUALS_REFUSED
    shape, token, watched = x.ndim, MIRROR.token, ()
    while True:
        described = (facts_of(x, shape), count)
        answer = getattr(CALLS, prepare(subject, described, token, EPOCH.text, watched))
        if not isinstance(answer, More):
            return answer
        # Dynamo guards on what is read here, so only what `prepare` asks for is read.
        if answer.lengths:
            shape = tuple([make_concrete(n) for n in x.shape])
        elif answer.rules:
            token = exact_token()
        elif answer.watch is not None:
            watched = answer.watch()


def exact_token() -> str:
    """Return the token of the active rules with their numbers, also under `xg.jit`."""
    jit = MIRROR.jit
    return MIRROR.token if jit is None or MIRROR.token != jit.token else jit.exact_token


def is_dual() -> bool:
    """Return whether forward mode is on, and not within a transform of torch.func."""
    is_on = torch.autograd.forward_ad._current_level >= 0
    return is_on and not torch._C._are_functorch_transforms_active()


def facts_of(x: Tensor, shape: Any) -> tuple[Any, ...]:
    """Return what `prepare` is told of a tensor, as constants.

    Args:
        shape: its rank, as the size of a batch may change; its lengths where a call is for these.
    """
    # Under a transform, and in forward mode, tensors that are differentiated do not say so.
    return (x.dtype, shape, host.requires_grad(x), x.device.type)


def is_partial(x: Tensor) -> bool:
    """Return whether the parts of a DTensor are not added up yet, which eager code refuses."""
    return hasattr(x, "placements") and any(each.is_partial() for each in x.placements)


def keep_placements(x: Tensor) -> Tensor:
    """Return a DTensor whose gradient gets the same placements; any other tensor unchanged."""
    return x.redistribute(placements=x.placements) if hasattr(x, "placements") else x


def as_passed(value: Any) -> Any:
    if isinstance(value, Cell):
        return value.tensor[0]
    is_open = isinstance(value, float) and not is_fixed(value)
    return as_input(value) if is_open else value


def as_input(number: float) -> Tensor:
    # By a product: for torch.tensor(number) and its like Dynamo makes a graph per number (2.13).
    return torch.ones((), dtype=torch.float64, device="cpu") * number


def is_fixed(n: Any) -> bool:
    """Return whether a number is not left open, by Dynamo or by an exporter."""
    return torch.fx.experimental.symbolic_shapes.has_static_value(n)


def run(call: CompiledCall, *inputs: Any) -> Any:
    if torch._C._are_functorch_transforms_active():
        # Under torch.func transforms Dynamo (torch 2.13) would differentiate the forward instead.
        return call.in_graph(*inputs)
    return call.plain(*inputs)


def find_own(activation: Activation) -> RuleInForce | None:
    """Return an activation's own rule in traced code, which cannot look it up anew."""
    name = own_name(activation.key, EPOCH.text)
    return getattr(CALLS, name) if name else activation.own_in_force()


# --- outside the trace ---------------------------------------------------------------------------
@dynamo.assume_constant_result
def prepare(
    subject: tuple[str, str], described: Any, token: str, epoch: str, watched: tuple[Any, ...]
) -> str:
    """Return the name in CALLS of the call for an input like this, or of another answer.

    Args:
        subject: the keys of an activation and its forward.
        described: the facts of its input, and how many values the call passes.
        token: that of the active rules.
        epoch: the registry's.
        watched: what else the rule reads, on which Dynamo guards now; () while nothing is known.
    """
    find = partial(find_activation, subject, described, token, epoch, is_watched=bool(watched))
    return answer_of(find, token)


def answer_of(find: Callable[[], str], token: str | None) -> str:
    """Return the name that `find` returns, or that of the answer or the error that it raises.

    Args:
        token: that of the active rules; None as long as they are taken not to be read.
    """
    # In an export with strict=False the ops of a capture would be recorded.
    with without_modes() if torch.compiler.is_exporting() else nullcontext():
        try:
            if token is not None and not is_under_jit(token):
                check_mirror(token)
            return find()
        except Answered as early:
            return keep(early.answer)
        except NotCaptured as error:
            note_refused(error.error)
            return keep(Refused(str(error.error)))
        except Exception as error:  # noqa: BLE001
            note_refused(error)
            # Dynamo would wrap it; eager code raises it again after the graph break.
            return keep(refusal_of(error))


def refusal_of(error: Exception) -> Refused:
    return Refused(f"{type(error).__name__}: {error}")


@dynamo.assume_constant_result
def own_name(key: str, epoch: str) -> str:
    """Return the name in CALLS of an activation's own rule; "" if there is none."""
    try:
        in_force = by_key[key].own_in_force()
    except Exception:  # noqa: BLE001
        return ""  # Dynamo would wrap it: it is raised again where the rule is used
    return "" if in_force is None else keep(in_force, (own_name, key))


def find_activation(
    subject: tuple[str, str], described: Any, token: str, epoch: str, is_watched: bool
) -> str:
    """Return the name of an activation's call; raise Answered to be told more."""
    activation = by_key.get(subject[0]) or Activation(forward_by_key(subject[1]))
    in_force = activation.in_force()
    function = in_force and put_under(in_force.specialization, activation.forward)
    watched = require_watch(function, is_watched)
    key = (subject, described, token, epoch, kind_of_export(), watched)
    # The rule whose numbers and keys are literals of the call.
    literal_rule = None if is_under_jit(token) else in_force
    if literal_rule is not None and literal_rule.counter is not None:
        # Each application draws its own numbers, so it gets a call of its own.
        key = (*key, number_application(literal_rule.counter))
    if key in NAMES:
        return NAMES[key]
    if literal_rule is not None and (literal_rule.values or literal_rule.counter is not None):
        cause = f"or keys of rule {literal_rule.specialization.rule.name!r}"
        warn_of_graphs(cause, ". xg.jit makes one graph for all")
    facts, count = described
    call = call_of_activation(activation, in_force, facts, count, token)
    require_watch(function, is_watched)  # the capture may have found what it reads
    return keep(call, key)


def warn_of_graphs(cause: str, advice: str) -> None:
    """Warn at the last graph that Dynamo keeps of one code, for which numbers may be the cause."""
    context = torch._guards.CompileContext.try_get()
    count = getattr(getattr(context, "compile_id", None), "frame_compile_id", None)
    limit = getattr(torch._dynamo.config, "recompile_limit", 0)
    if count == limit - 1:
        warnings.warn(
            f"torch.compile has made {limit} graphs of one function, perhaps for as many numbers "
            f"{cause}, and at the next one it runs eagerly or, with fullgraph=True, raises "
            f"FailOnRecompileLimitHit{advice}",
            UserWarning,
            stacklevel=2,
        )


# --- what the engine does besides ----------------------------------------------------------------
@provided
def require_watch(function: FunctionBase | None, is_watched: bool, described: Any = None) -> Any:
    """Return a key of what a Function reads besides its arguments: nothing."""
    return ()


# The number of an application under a key, which a call with a literal key is for.
number_application = of_engine(__name__, "number_application", "random rules in compiled code")


@provided
def kind_of_export() -> Any:
    """Return what distinguishes the calls of an export from others."""
    return torch.compiler.is_exporting()


@provided
def note_refused(error: Exception) -> None:
    """Note the error of a call for an export that asks for operators, and traces on."""
