"""`xg.activation`: an activation whose backward is the rule in force, on any framework's tensors.

The hot path of a call is one context read, one dictionary hit and the framework's own autodiff entry.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from . import registry
from .capture.signature import read_params
from .context import CURRENT, Application, apply_now
from .forwards import Forward, find_forward
from .ir.calls import Called, mark
from .ir.record import Value, constant
from .ir.replay import replay
from .lowering.backend import Backend, backend_of, in_use
from .lowering.entries import bind_entry, check_float, checking_dtype, find_entry
from .lowering.input_checks import find_lacking
from .lowering.lower import lower_derivative, lower_forward
from .rule import Rule, Spec

Tensor = Any


# (of which tensors, is tracing, what to call then): a compiler that reads Python code cannot read a ContextVar, so its
# backend adds a row here that follows the mirrored frame instead.
# That gets the values of the own rule's params after the tensor, where the caller holds them.
tracers: list[tuple[type | tuple[type, ...], Callable[[], bool], Callable[..., Any]]] = []
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
        self._own: tuple[int, Application | None] = (-1, None)  # one tuple, as `_latest`
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
        return dict(self._params)

    def __reduce__(self) -> Any:
        # What was looked up here stays here: a copy, in this process or another, looks it up itself.
        return Activation, (self.forward.name, self._rule, self._params)

    def application(self) -> Application | None:
        """Return the own rule, looked up by today's registry; None where `use` decides."""
        if self._rule is None:
            if self._params:
                raise registry.RuleError(f"params {sorted(self.params)} need a rule to take them")
            return None
        looked_up, application = self._own
        epoch = registry.epoch()  # first: a name that changes meanwhile is looked up again
        if looked_up != epoch:
            application = apply_now(self._rule, self._params)
            self._own = epoch, application
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
            if is_tracing() and isinstance(x, types):
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
            if is_tracing() and isinstance(x, types):
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
        if backend.guard is not None:
            backend.guard(x, self)
        check_float(x, application.spec.family.rule)
        return find_entry(application.spec.family, backend, self.forward)(x, application)

    def _look_up(self, x: Tensor, application: Application | None) -> Tensor:
        """Apply by what is looked up, and remembered where a backend asks nothing at each call."""
        if isinstance(x, Value):
            return self._record(x, application)
        backend = backend_of(x)
        if backend.guard is not None:
            backend.guard(x, self)
        if application is None:
            function = plain(self.forward, backend)
        else:
            check_float(x, application.spec.family.rule)
            entry = application.spec.family.entries.get((backend.name, self.forward.name))
            if entry is None:
                entry = find_entry(application.spec.family, backend, self.forward)
            if backend.guard is not None:
                return entry(x, application)
            function = bind_entry(entry, x, application)
        if backend.guard is None:
            self._latest = (application, type(x), x.dtype, function)
        return function(x)

    def _record(self, x: Value, application: Application | None) -> Value:
        """Record the activation inside of a capture; derivatives pass by the rule in force now."""
        trace, graph = x.trace, self.forward.graph()
        (output,) = replay(trace, graph, {"tin": x})
        if application is None:
            backward, numbers = self.forward.derivative(), {}
        else:
            spec = application.spec
            backward = spec.graph()
            numbers = dict(zip(spec.family.runtime, spec.values, strict=True))
        given = {"tin": x, **{name: trace.value(constant(v)) for name, v in numbers.items()}}
        if backward.input("key") is not None:
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
