"""`xg.activation`: an activation whose backward is the rule in force, on any framework's tensors.

The hot path of a call is one context read, one dictionary hit and the framework's own autodiff
entry.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeVar

from ...errors import RuleError, RuleTypeError, TraceError, suggest
from ..backend.contract import Backend
from ..backend.discovery import EVERY_READER, READERS, backend_of, in_use, load_awaited
from ..backend.values import in_one_framework
from ..lowering.checks import find_lacking, refuse_lacking
from ..lowering.forwards import ActivationName, Forward, find_forward
from ..support.lazy_modules import late_function, of_engine
from ..support.params import Axes, FixedParams, Fused, Over, Residuals, read_params
from ..support.pickles import pickled
from ..support.threads import SERIALS
from ..support.tracebacks import shorten
from ..trace.active_rules import CHECKED, CURRENT, FREE, is_of_then, note_for_ranks
from ..trace.lookups import (
    Lookup,
    Telling,
    at_present,
    hand_along,
    is_handed_along,
    names_in,
    reading,
)
from ..trace.trace import Value, dtype_name
from .registry import unknown_keyword_error, with_choices
from .resolution import apply_now
from .rule_names import Epoch

if TYPE_CHECKING:
    from ..functions.function import Entry
    from .rule import Rule
    from .rule_in_force import RuleInForce

Tensor = Any
T = TypeVar("T")
# An activation is made before anything that captures rules is loaded.
as_forward = late_function("multigrad.core.rules.activation_function:as_forward")
forward_on = late_function("multigrad.core.rules.activation_function:forward_on")
put_under = late_function("multigrad.core.rules.activation_function:put_under")


# Weak: the table keeps no activation alive. Of equal ones it has the first, which the others hold.
by_key: weakref.WeakValueDictionary[str, Activation] = weakref.WeakValueDictionary()


class Activation:
    """A callable activation; see `activation`. Fixed, as compiled code would not see a change."""

    autograph_info__: ClassVar[dict[str, Any]] = {}  # AutoGraph converts nothing here
    __slots__ = (
        "__weakref__", "_first", "_latest", "_met", "_own", "_params", "_rule", "forward", "key",
        "runtime",
    )  # fmt: skip

    def __init__(
        self,
        forward: str | Callable[..., Any] | Forward = "ReLU",
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, Any] | None = None,
        at_zero: float | None = None,
        threshold: float | None = None,
    ) -> None:
        self.forward: Forward = (
            find_forward(forward, at_zero, threshold)
            if isinstance(forward, str)
            else as_forward(forward, at_zero, threshold)
        )
        self._rule = rule
        self._params = read_params(params)
        # Equal keys mean the same backward under the same active rules, and one compiled graph.
        self.key = self.forward.key
        if rule is not None:
            given = (rule, *self._params.values())
            is_plain = all(type(each) in (str, bool, int, float) for each in given)
            self.key += f":{rule}:{self._params!r}" if is_plain else f":{next(SERIALS)}"
        first = by_key.setdefault(self.key, self)
        self._first = None if first is self else first
        self._own = OwnRule()
        self._latest = RememberedCall()
        # The rule that `_latest.call` ran last; met a second time, its numbers are bound.
        self._met: RuleInForce | None = None
        in_use()  # done now: a compiler that traces a call cannot load a backend
        # A wrong rule or param is an error here, not in the first forward.
        in_force = self.own_in_force()
        self.runtime = () if in_force is None else in_force.specialization.runtime

    def __repr__(self) -> str:
        rule = f", rule={self.rule!r}" if self.rule is not None else ""
        params = f", params={self.params!r}" if self.params else ""
        return f"activation({self.forward.words}{rule}{params})"

    @property
    def rule(self) -> str | Rule | Callable[..., Any] | None:
        """The own rule as it was given; None where `use` decides."""
        return self._rule

    @property
    def params(self) -> dict[str, Any]:
        """The values given for the own rule's params."""
        return FixedParams(self._params, "make another: xg.activation(forward, rule, params={...})")

    def __reduce__(self) -> Any:
        return pickled(type(self), *self._arguments())

    def _arguments(self) -> tuple[Any, ...]:
        # Not the rule that was found: a copy or a pickle looks it up again.
        forward = self.forward
        forward_or_name = forward.name if type(forward) is Forward else forward
        return forward_or_name, self._rule, self._params

    def looked_up_again(self) -> Activation:
        """Return itself, or a copy that looks its rule up again after names have changed."""
        if self._rule is None or not is_of_then():
            return self
        return type(self)(*self._arguments())

    def own_in_force(self) -> RuleInForce | None:
        """Return the own rule, looked up by today's registry; None where `use` decides."""
        if self._rule is None:
            if self._params:
                raise RuleError(f"params {sorted(self.params)} need a rule to take them")
            return None
        epoch = Epoch.number  # first: a name that changes meanwhile is looked up again
        if self._own.epoch != epoch:
            with reading() as meanings:
                in_force = apply_now(self._rule, self._params)
            self._own = OwnRule(epoch, in_force, names_in(meanings))
        return self._own.in_force

    def in_force(self) -> RuleInForce | None:
        """Return the rule that acts now: the own one, else that of the innermost `use`."""
        active = CURRENT.get().activations
        if self._rule is None:
            return active
        own_rule = self.own_in_force()
        assert own_rule is not None
        if active is not None and active.counter is not None:
            # A key given to `use` seeds the layer's own random rule too.
            return own_rule.with_draws(active.draws)
        return own_rule

    def __call__(self, x: T, **params: Any) -> T:
        """Return the activation of x; gradients flow back by the rule in force now.

        Args:
            **params: run-time params of the own rule for this call: numbers, or 0-d tensors of x's
                framework, traced ones too. No gradient flows to them.

        Raises:
            RuleTypeError: the own rule has no such param, or there is none.
        """
        if params:
            return self.call_with(x, self._values_by_name(params))
        readers = READERS.get(type(x))
        if readers is None:
            load_awaited()
            readers = READERS.get(type(x), EVERY_READER)
        for types, is_reading, call_read in readers:
            if isinstance(x, types) and is_reading():
                return call_read(self, x)
        return self.apply(x)

    def apply(self, x: Tensor) -> Tensor:
        # No calls but that of the function, as every forward comes here.
        try:
            in_force = CURRENT.get().activations
            if self._rule is not None:
                own = self._own
                is_keyed = in_force is not None and in_force.draws.counter is not None
                in_force = (
                    self.in_force() if is_keyed or own.epoch != Epoch.number else own.in_force
                )
            # One object holds class, dtype and function, so that threads never mix two calls.
            latest = self._latest
            if latest.in_force is in_force and latest.kind is type(x) and latest.dtype is x.dtype:
                return latest.function(x)
            return self._look_up(x, in_force)
        except Exception as error:
            shorten(error)
            raise

    def call_with(self, x: Tensor, values: tuple[Any, ...]) -> Tensor:
        """Return the activation of x under the own rule with these values of its run-time params.

        Args:
            values: numbers, or 0-d tensors of x's framework, in the order of the rule's
                `specialization.runtime`.
        """
        if not are_numbers(values):
            x, *tensors = in_one_framework((x, *values))
            values = tuple(tensors)
        for types, is_reading, call_read in READERS.get(type(x), EVERY_READER):
            if isinstance(x, types) and is_reading():
                return call_read(self, x, values)
        in_force, latest = self.with_values(values), self._latest
        if latest.in_force is in_force and latest.kind is type(x) and latest.dtype is x.dtype:
            return latest.function(x)
        return self._look_up(x, in_force)

    def _values_by_name(self, params: Mapping[str, Any]) -> tuple[Any, ...]:
        word = next(iter(params))
        in_force = own_rule_of(self)
        if in_force is None:
            raise RuleTypeError(
                f"{self!r} got {word!r} and has no rule of its own to take it: write "
                "xg.activation(forward, rule), or xg.use(rule, params={...}) around the call"
            )
        numbers = in_force.numbers
        unknown = [name for name in params if name not in numbers]
        if unknown:
            rule = in_force.specialization.rule.name
            raise RuleTypeError(
                f"{self!r} takes no {unknown[0]!r}{suggest(unknown[0], numbers)} (run-time params "
                f"of rule {rule!r}: {', '.join(numbers) or 'none'}). As a function of its params "
                f"it is xg.get({rule!r}).under({self.forward.name!r})"
            )
        return tuple({**numbers, **params}.values())

    def with_values(self, values: tuple[Any, ...]) -> RuleInForce:
        in_force, met = self.in_force(), self._met
        assert in_force is not None
        is_fixed = are_numbers(values)
        # Equal numbers give the same object, by which `_look_up` knows a rule again.
        if (
            is_fixed
            and met is not None
            and met.values == values
            and met.specialization is in_force.specialization
            and met.draws is in_force.draws
        ):
            return met
        self.check_values(in_force)
        if is_fixed:
            in_force.specialization.check_numbers(values)
        return in_force.with_values(values, in_force.own_token)

    def check_values(self, in_force: RuleInForce) -> None:
        runtime = in_force.specialization.runtime
        if runtime != self.runtime:
            raise RuleError(
                f"rule {in_force.specialization.rule.name!r} took the params {list(self.runtime)} "
                f"and was registered anew with {list(runtime)}: assign it to the layer again"
            )

    def apply_as(self, x: Tensor, in_force: RuleInForce) -> Tensor:
        """Return the activation of x under this rule, which the next call does not remember."""
        return self._look_up_anew(x, in_force, remembers=False)

    def _look_up(self, x: Tensor, in_force: RuleInForce | None) -> Tensor:
        latest = self._latest
        call, previous = latest.call, latest.in_force
        if (
            in_force is None
            or previous is None
            or call is None
            or previous.specialization is not in_force.specialization
            or previous.draws is not in_force.draws
            or latest.kind is not type(x)
            or latest.dtype is not x.dtype
        ):
            # The remembered call is of another rule, class or dtype.
            return self._look_up_anew(x, in_force)
        # New numbers are arguments of the call; numbers met again are bound into a function.
        if not in_force.has_tensors and in_force is not self._met:  # a new number
            self._met = in_force
            return call(x, *in_force.values)
        entry, draws = latest.entry, in_force.draws
        if in_force.moves:
            function = hand_along(in_force, call, self._look_up_anew)
        elif in_force.has_tensors:
            return entry.run((x, *in_force.values), draws)
        else:  # one that is met again
            function = entry.bound(x, in_force.values, draws)
        self._latest = RememberedCall(in_force, type(x), x.dtype, function, entry=entry, call=call)
        return function(x)

    def _look_up_anew(
        self, x: Tensor, in_force: RuleInForce | None, remembers: bool = True
    ) -> Tensor:
        if isinstance(x, Value):
            return record_activation(self, x, in_force)
        backend = backend_of(x)
        self.tell_compiler(backend, x)
        if CHECKED and not backend.tensors.is_traced(x):  # a trace may run any number of times
            note_for_ranks(f"{self.forward.name} under", in_force)
        # A compiler that wants to hear of each call must not be bypassed by `_latest`.
        remembers = remembers and backend.compiler.on_read is None and not CHECKED
        if in_force is None:
            function = without_rule(self.forward, backend, x)
            if remembers:
                self._latest = RememberedCall(None, type(x), x.dtype, function)
            return function(x)
        leaves = (x, *at_present(in_force, backend).values)
        entry = put_under(in_force.specialization, self.forward).entries.on(backend, leaves)
        latest = self._remember(x, in_force, backend, entry) if remembers else None
        if latest is not None and not in_force.moves:
            return latest.function(x)
        y = entry.run(leaves, in_force.draws)
        self.tell_compiler_drawn(backend, in_force, x)
        return y

    def _remember(
        self, x: Tensor, in_force: RuleInForce, backend: Backend, entry: Entry
    ) -> RememberedCall | None:
        """Remember how the next calls like this run, and return that; None: each is looked up.

        the rule has            and its code reads         the next calls run
        numbers                 nothing besides            the entry, bound to them
        numbers                 values of the user's code  the entry, which compares these
        schedules               nothing besides            `hand_along`, if the backend can
        any                     anything else              nothing: each is looked up
        """
        draws, values, call = in_force.draws, in_force.values, None
        reads = in_force.specialization.code.reads
        if in_force.moves:
            if reads or not is_handed_along(backend):
                return None
            call = entry.open(draws)
            function = hand_along(in_force, call, self._look_up_anew)
        elif not reads:
            call = entry.open(draws)
            function = entry.bound(x, values, draws)
        elif all(isinstance(each, Telling) and each.is_of_code for each in reads):

            def run(x: Tensor) -> Tensor:
                return entry.run((x, *values), draws)

            function = run
        else:
            return None
        latest = RememberedCall(in_force, type(x), x.dtype, function, entry=entry, call=call)
        self._latest = latest
        return latest

    def tell_compiler(self, backend: Backend, x: Tensor = None) -> None:
        # A compiler's trace contains the rule, so it is told which rule, or that `use` decides.
        if self._rule is None:
            if backend.compiler.on_read is not None:
                backend.compiler.on_read(x, self)
        elif backend.compiler.on_depend is not None:
            for lookup in self._own.lookups:
                backend.compiler.on_depend(lookup)

    def tell_compiler_drawn(self, backend: Backend, in_force: Any, x: Tensor = None) -> None:
        # An own rule draws from the key of the rule in force, so that a trace depends on that too.
        if (
            self._rule is not None
            and in_force.specialization.code.draws
            and backend.compiler.on_read is not None
        ):
            backend.compiler.on_read(x, self)


record_activation = of_engine(
    __name__, "record_activation", "an activation within a capture", TraceError
)


def own_rule_of(activation: Activation) -> RuleInForce | None:
    """Return the own rule of an activation: a function, which a compiler may read another way."""
    return activation.own_in_force()


# Plain classes: each call reads them, and dataclasses take long to make.
class OwnRule:
    """The own rule as it was looked up in an epoch of the registry, by these names."""

    __slots__ = ("epoch", "in_force", "lookups")

    def __init__(
        self,
        epoch: int = -1,
        in_force: RuleInForce | None = None,
        lookups: tuple[Lookup, ...] = (),
    ) -> None:
        self.epoch, self.in_force, self.lookups = epoch, in_force, lookups


class RememberedCall:
    """How tensors of one class and dtype run, in one object: threads see all of it or none.

    Attributes:
        in_force: the rule in force that `function` is for.
        function: `f(x)`.
        entry, call: what runs that rule, and `call(x, *numbers)`, whatever its numbers are; None:
            it is looked up again for other numbers.
    """

    __slots__ = ("call", "dtype", "entry", "function", "in_force", "kind")

    def __init__(
        self,
        in_force: RuleInForce | None = None,
        kind: type | None = None,
        dtype: Any = None,
        function: Any = None,
        entry: Entry | Any = None,
        call: Any = None,
    ) -> None:
        self.in_force, self.kind, self.dtype, self.function = in_force, kind, dtype, function
        self.entry, self.call = entry, call


def are_numbers(values: tuple[Any, ...]) -> bool:
    """Return whether equal values are the same: no tensors, and no 0.0, which equals -0.0."""
    return all((type(value) is float and value) or type(value) is int for value in values)


# By backend and forward, the dtypes for which the backend lacks an op.
_lacking: dict[tuple[str, str], dict[str, str]] = {}


def without_rule(forward: Forward, backend: Backend, x: Tensor) -> Callable[..., Any]:
    # A forward of code is a Function, which has a derivative of its own.
    if forward.function is not None:
        return forward.function
    if not forward.differentiable:
        return put_under(None, forward).entries.on(backend, (x,)).bound(x, (), FREE)
    key = (backend.name, forward.name)
    if key not in _lacking:
        subject = f"activation {forward.name!r}"
        _lacking[key] = find_lacking(subject, backend, forward.graph())
    if _lacking[key]:
        refuse_lacking(_lacking[key], dtype_name(x.dtype))
    return forward_on(backend, forward)


def activation(
    forward: ActivationName | Callable[..., Any],
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, object] | None = None,
    *,
    at_zero: float | None = None,
    threshold: float | None = None,
    over: Over | None = None,
    axis_name: Axes | None = None,
    fused: Fused = "auto",
    residuals: Residuals | None = None,
    **others: Never,
) -> Activation:
    """Return an activation for tensors of any framework, whose backward is the rule in force.

    Examples:
        >>> spike = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})
        >>> y, pull = xg.vjp(spike, np.array([-1.0, 0.5, 3.0]))
        >>> y
        array([0., 1., 1.])
        >>> pull(np.ones(3))[0]
        array([0.5 , 0.75, 0.  ])
        >>> rounded = xg.activation(np.round, rule="clipped_straight_through")  # any function of x
        >>> rounded(np.array([0.4, 0.6]))
        array([0., 1.])

    Args:
        forward: a name that `xg.activations()` lists, in any case, with or without underscores, or
            another usual name of it ("sigmoid", "step", "swish"); or a function of one tensor,
            written with any library: a Function, `torch.sign`, `jax.nn.mish`, one of your own. It
            is captured at its first call, and the rule is that of its input, whose shape and dtype
            the output must have. An object that holds no tensors is copied.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside it
            the true derivative acts (zero for the steps: Heaviside, Sign, Round, Floor, Ternary),
            or a Function's own backward.
        params: values for the rule's params.
        at_zero: for Heaviside and Sign, the value at exactly 0, by default 0: that of snnTorch,
            norse and spyx. SpikingJelly, snnax and braintools have 1 for Heaviside, larq has 1 for
            Sign. It is part of the activation's name: "Heaviside(at_zero=1.0)" means the same.
        threshold: of Ternary, which is the sign where abs(x) is above it and 0 elsewhere; 0.05 by
            default, as in larq. It is part of the name too: "Ternary(threshold=0.1)".
        over: what the rule's reductions and draws are taken over, where the tensor is a part of an
            array that is split over devices; see `Rule.over`.
        axis_name: the mesh axes or the group that its first axis is split over.
        fused: whether forward, what it keeps, and backward run as one compiled kernel each: in
            PyTorch on processors, with a C compiler, and on GPUs, with Triton. "auto": once
            `xg.enable("kernels")` was called, from a size on that pays, after a few calls, where
            the bits stay the same. True: from the first call on, which waits for the compiler; a
            warning says why where there is none, or none for these ops. False: never. JAX and
            TensorFlow fuse what they compile; NumPy runs plain code.
        residuals: what forward keeps for the rule: "auto", "input", "mask", "packed",
            "recompute" or "time"; see `Function.keeping`.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
        TraceError: at the first call under a rule; the function cannot be captured.
        GradientError: there; its output has not the input's shape and dtype.
    """
    if others:
        raise unknown_keyword_error(activation, "activation", rule, others)
    if over is not None or axis_name is not None or residuals is not None or fused != "auto":
        rule = with_choices(rule, over, axis_name, residuals, fused)
    return Activation(forward, rule, params, at_zero, threshold)
