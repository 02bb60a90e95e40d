"""`xg.activation`: an activation whose backward is the rule in force, on any framework's tensors.

The hot path of a call is one context read, one dictionary hit and the framework's own autodiff entry.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from . import registry
from .capture.signature import read_params
from .context import CURRENT, Application, apply_now
from .errors import TraceError
from .fixed import FixedParams
from .forwards import Forward, find_forward
from .ir.calls import Called, mark
from .ir.questions import crossing
from .ir.record import NeedFact, Value, constant
from .ir.replay import replay
from .lowering.backend import Backend, backend_of, in_use
from .lowering.entries import bind_entry, check_float, checking_dtype, find_entry
from .lowering.input_checks import find_lacking
from .lowering.lower import lower_derivative, lower_forward
from .proof.samples import calling
from .reads import RULE_IN_FORCE, Lookup, look_up, names_in, note_name, reading
from .rule import Rule, Spec, read_number

Tensor = Any


class CallTraced(Protocol):
    """What acts in the place of an activation's call: `values` are those of the own rule's params, if the caller holds them."""

    def __call__(self, activation: Activation, x: Tensor, values: tuple[Any, ...] = ()) -> Tensor:
        """Return the activation of x."""
        ...


class Tracer(NamedTuple):
    """A row for what cannot read a ContextVar where an activation is called, or must note what it read there.

    Attributes:
        types: the tensors that it is about.
        is_tracing: whether it reads along now.
        call: what to call then.
    """

    types: type | tuple[type, ...]
    is_tracing: Callable[[], bool]
    call: CallTraced


tracers: list[Tracer] = []
_keys = itertools.count()
by_key: weakref.WeakValueDictionary[str, Activation] = weakref.WeakValueDictionary()


class Activation:
    """A callable activation; see `activation`. It is fixed: compiled code would not see it change."""

    autograph_info__: ClassVar[dict[str, Any]] = {}  # AutoGraph converts nothing here
    __slots__ = (
        "__weakref__", "_latest", "_own", "_params", "_rule", "_valued", "forward", "key", "runtime",
        "superseded",
    )  # fmt: skip

    def __init__(
        self,
        forward: str = "ReLU",
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> None:
        self.forward: Forward = find_forward(forward)
        self._rule = rule
        self._params = read_params(params)
        # Equal keys mean the same backward under the same frame.
        self.key = self.forward.name if rule is None else f"{self.forward.name}:{next(_keys)}"
        by_key[self.key] = self
        self.superseded = (
            False  # set by who held it and holds another now: traces of this one are stale
        )
        # The epoch, what was looked up in it, and the names read: one tuple, as `_latest`.
        self._own: tuple[int, Application | None, tuple[Lookup, ...]] = (-1, None, ())
        self._latest: tuple[Any, ...] = (None, None, None, None)
        self._valued: tuple[Any, ...] = (
            None,
            None,
            None,
        )  # likewise: what acts, the values, it with them
        in_use()  # compilers can neither read the discovery of backends nor load one
        own = self.application()  # a wrong rule or param is said here, not in the first forward
        self.runtime = own.spec.family.runtime if own is not None else ()

    def __repr__(self) -> str:
        rule = f", rule={self.rule!r}" if self.rule is not None else ""
        params = f", params={self.params!r}" if self.params else ""
        return f"activation({self.forward.name!r}{rule}{params})"

    @property
    def rule(self) -> str | Rule | Callable[..., Any] | None:
        """The own rule as it was given; None where `use` decides."""
        return self._rule

    @property
    def params(self) -> dict[str, Any]:
        """The values given for the own rule's params."""
        return FixedParams(self._params, "make another: xg.activation(forward, rule, params={...})")

    def __reduce__(self) -> Any:
        # What was looked up here stays here: a copy, in this process or another, looks it up itself.
        return Activation, (self.forward.name, self._rule, self._params)

    def application(self) -> Application | None:
        """Return the own rule, looked up by today's registry; None where `use` decides."""
        if self._rule is None:
            if self._params:
                raise registry.RuleError(f"params {sorted(self.params)} need a rule to take them")
            return None
        looked_up, application, _ = self._own
        epoch = registry.epoch()  # first: a name that changes meanwhile is looked up again
        if looked_up != epoch:
            with reading() as found:
                application = apply_now(self._rule, self._params)
            self._own = epoch, application, names_in(found)
        return application

    def in_force(self) -> Application | None:
        """Return the rule that acts now: the own one, else that of the innermost `use`."""
        framed = CURRENT.get().activations
        if self._rule is None:
            return framed
        own = self.application()
        assert own is not None
        if framed is not None and framed.counter is not None:
            # A key given to `use` seeds the layer's own random rule too.
            return Application(own.spec, framed.key, framed.counter)
        return own

    def __call__(self, x: Tensor) -> Tensor:
        """Return the activation of x; gradients flow back by the rule in force now."""
        for types, is_tracing, call_traced in tracers:
            if isinstance(x, types) and is_tracing():
                return call_traced(self, x)
        return self.apply(x)

    def apply(self, x: Tensor) -> Tensor:
        """Return the activation of x, where no compiler reads along."""
        return self._apply(x, CURRENT.get().activations if self._rule is None else self.in_force())

    def _apply(self, x: Tensor, application: Application | None) -> Tensor:
        # One tuple, so that other threads see all of it or none.
        latest, kind, dtype, function = self._latest
        if latest is application and kind is type(x) and dtype is x.dtype:
            return function(x)
        return self._look_up(x, application)

    def call_with(self, x: Tensor, values: tuple[Any, ...]) -> Tensor:
        """Return the activation of x under the own rule with these values of its run-time params.

        Args:
            values: numbers, or 0-d tensors of x's framework, in the order of the rule's `spec.family.runtime`.
        """
        for types, is_tracing, call_traced in tracers:
            if isinstance(x, types) and is_tracing():
                return call_traced(self, x, values)
        application = self.with_values(values)
        if application is self._valued[2]:  # the same object at the next call: it may be remembered
            return self._apply(x, application)
        return self.apply_as(x, application)

    def with_values(self, values: tuple[Any, ...]) -> Application:
        """Return the own rule as it acts now, with other values of its run-time params."""
        application = self.in_force()
        assert application is not None
        then, known, applied = self._valued
        is_fixed = are_numbers(values)
        if then is application and is_fixed and known == values:
            return applied
        self.check_values(application)
        spec = Spec(application.spec.family, values, application.spec.token)
        applied = Application(spec, application.key, application.counter)
        if is_fixed and application.counter is None:
            self._valued = application, values, applied
        return applied

    def check_values(self, application: Application) -> None:
        """Check that a rule takes the values that `call_with` is given."""
        now = application.spec.family.runtime
        if now != self.runtime:
            raise registry.RuleError(
                f"rule {application.spec.family.rule.name!r} took the params {list(self.runtime)} and was "
                f"registered anew with {list(now)}: assign it to the layer again"
            )

    def apply_as(self, x: Tensor, application: Any) -> Tensor:
        """Return the activation of x under a rule that the caller gives."""
        backend = backend_of(x)
        self.tell(backend)
        check_float(x, application.spec.family.rule)
        with calling(x, application.spec.params):
            entry = find_entry(application.spec.family, backend, self.forward)
        y = entry(x, application)
        self.tell_drawn(backend, application)
        return y

    def _look_up(self, x: Tensor, application: Application | None) -> Tensor:
        """Apply by what is looked up, and remembered where a backend asks nothing at each call."""
        if isinstance(x, Value):
            return self._record(x, application)
        backend = backend_of(x)
        self.tell(backend)
        if application is None:
            function = plain(self.forward, backend)
        else:
            family = application.spec.family
            check_float(x, family.rule)
            entry = family.entries.get((backend.name, self.forward.name))
            if entry is None:
                with calling(x, application.spec.params):
                    entry = find_entry(family, backend, self.forward)
            if backend.guard is not None or family.reads:
                y = entry(x, application)
                self.tell_drawn(backend, application)
                return y
            function = bind_entry(entry, x, application)
        if backend.guard is None:
            self._latest = (application, type(x), x.dtype, function)
        return function(x)

    def tell(self, backend: Backend) -> None:
        """Tell a backend's compiler what a trace of this activation depends on: the rule in force, or its own one."""
        if self._rule is None:
            if backend.guard is not None:
                backend.guard(None, self)
        elif backend.watch is not None:
            backend.watch(self)
            for lookup in self._own[2]:
                backend.watch(lookup)

    def tell_drawn(self, backend: Backend, application: Any) -> None:
        """Tell a compiler that an own rule drew: from the key of the rule in force, if that has one."""
        if self._rule is not None and application.spec.family.draws and backend.guard is not None:
            backend.guard(None, self)

    def _record(self, x: Value, application: Application | None) -> Value:
        """Record the activation inside of a capture; derivatives pass by the rule in force now."""
        trace, graph = x.trace, self.forward.graph()
        (output,) = replay(trace, graph, {"tin": x})
        if self._rule is None:
            look_up(RULE_IN_FORCE)
        for lookup in self._own[2]:
            note_name(lookup.name, lookup.number)
        if application is None:
            backward, numbers = self.forward.derivative(), {}
        else:
            spec = application.spec
            with crossing(NeedFact, TraceError):
                backward = spec.graph()
            values = map(read_number, spec.values)
            numbers = dict(zip(spec.family.runtime, values, strict=True))
        if None in numbers.values():
            raise trace.error(
                "applies a rule under a param that is known at run time only. Give the param to the function as "
                "an argument, or register the rule with native=True"
            )
        given = {"tin": x, **{name: trace.value(constant(v)) for name, v in numbers.items()}}
        if backward.input("key") is not None:
            look_up(RULE_IN_FORCE)  # its key seeds an own rule too
            if application is not None and application.counter is not None:
                raise trace.error(
                    "applies a random rule under a key, which counts applications one by one. Take the vjp of "
                    "the activation itself, or leave key= out"
                )
            given["key"] = trace.next_key()
        called = Called(backward, ("grad_out",), tuple(given), ("tin",), (output.node,))
        return mark(trace, called, [value.node for value in given.values()])[0]


def are_numbers(values: tuple[Any, ...]) -> bool:
    """Return whether values are equal only where they are the same: no tensors, no 0.0, which equals -0.0."""
    return all((type(value) is float and value) or type(value) is int for value in values)


_plain: dict[tuple[str, str], Callable[..., Any]] = {}


def plain(forward: Forward, backend: Backend) -> Callable[..., Any]:
    """Return the activation without a rule: the framework's own, with its own derivative."""
    function = _plain.get((backend.name, forward.name))
    if function is None:
        graphs = [forward.graph()]
        if forward.differentiable:
            function = lower_forward(forward, backend)
        else:
            function = lower_derivative(forward, backend).call
            graphs.append(forward.derivative())
        lacking = find_lacking(f"activation {forward.name!r}", backend, *graphs)
        function = checking_dtype(function, lacking)
        _plain[backend.name, forward.name] = function
    return function


def activation(
    forward: str,
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Activation:
    """Return an activation for tensors of any framework, whose backward is the rule in force.

    Example:
        >>> act = xg.activation("Heaviside", rule="triangular", params={"width": 2.0})

    Args:
        forward: Linear, ReLU, ReLU6, LeakyReLU, ELU, Tanh, Logistic, SiLU, GELU, Softplus or Heaviside, in
            any case.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside of it the
            true derivative acts (zero for Heaviside).
        params: values for the rule's params.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
    """
    return Activation(forward, rule, params)
