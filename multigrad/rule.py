"""Rules: a Python function (or a chain of rules), its parameters, and the graphs captured from it.

Three objects, from the author's to the machine's: a `Rule` is what people hold; a `Family` is a rule with its static
params fixed, and owns graphs and lowered code; a `Spec` is a family with values for its run-time params.
"""

from __future__ import annotations

import itertools
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .capture import capture as capturing
from .capture.signature import REQUIRED, Param, Signature, check_value, read_signature, unknown_param
from .errors import RuleTypeError, TraceError
from .ir.graph import Graph
from .ir.record import NeedFact, Trace, Value

Tensor = Any
_serial = itertools.count()
_lock = threading.RLock()


class Rule:
    """A gradient rule: `rule(None, grad_out, tin, **params)` on NumPy arrays and any framework's tensors.

    Attributes:
        name: the name it was registered under, or the function's.
        params: the parameters that may be set, with their defaults.
        native: see `register`.
    """

    def __init__(
        self,
        *,
        name: str,
        function: Callable[..., Any] | None = None,
        parts: tuple[Any, ...] = (),
        native: bool | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.parts = parts
        self.native = native
        self.bound = types.MappingProxyType(dict(bound or {}))
        self._signature = read_signature(name, function) if function is not None else None
        source = function if function is not None else None
        self.__doc__ = getattr(source, "__doc__", None) or f"{name} applied in series."
        self.__name__ = getattr(source, "__name__", name)
        self.__module__ = getattr(source, "__module__", __name__)
        if source is not None:
            self.__wrapped__ = source

    def __repr__(self) -> str:
        bound = ", ".join(f"{k}={v!r}" for k, v in self.bound.items())
        return f"<Rule {self.name}{f' with {bound}' if bound else ''}>"

    @property
    def signature(self) -> Signature:
        """What may be set from outside: own or the parts' params, without the bound ones."""
        if self._signature is not None:
            known = dict(self._signature.params)
            takes_any = self._signature.takes_any
        else:
            known, takes_any = {}, False
            for part in self.resolved_parts():
                inner = part.signature
                takes_any = takes_any or inner.takes_any
                for param in inner.params.values():
                    known.setdefault(param.name, param)
        free = {name: param for name, param in known.items() if name not in self.bound}
        return Signature(free, takes_any)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that may be set, with their defaults (`inspect.Parameter.empty`: required)."""
        return {name: param.default for name, param in self.signature.params.items()}

    def resolved_parts(self) -> tuple[Rule, ...]:
        """Return the parts of a composed rule, names looked up now."""
        from .registry import resolve

        return tuple(resolve(part) for part in self.parts)

    def with_params(self, **params: Any) -> Rule:
        """Return this rule with some params bound; a bound param is no longer settable from outside.

        Raises:
            RuleTypeError: the rule takes no such param, or not that kind of value.
        """
        signature = self.signature
        bound = dict(self.bound)
        for name, value in params.items():
            if not signature.takes(name):
                raise unknown_param(self.name, name, sorted(signature.params))
            param = signature.params.get(name) or Param(name, REQUIRED, None)
            bound[name] = check_value(self.name, param, value)[1]
        return Rule(
            name=self.name, function=self.function, parts=self.parts, native=self.native, bound=bound
        )

    def spec(self, params: Mapping[str, Any] | None = None) -> Spec:
        """Return this rule with values for its params, checked.

        Raises:
            RuleTypeError: an unknown param, a missing one or a wrong kind of value.
        """
        return make_spec(self, params or {})

    def run(
        self, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]
    ) -> Any:
        """Apply the rule inside a capture."""
        values = {**params, **self.bound}
        if self.function is not None:
            assert self._signature is not None
            given = {k: v for k, v in values.items() if self._signature.takes(k)}
            return capturing.run_function(self.function, trace, None, grad_out, tin, **given)
        for part in self.resolved_parts():
            inner = part.signature
            own = {k: v for k, v in values.items() if inner.takes(k)}
            grad_out = part.run(trace, grad_out, tin, own)
        return grad_out

    def run_native(
        self, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
    ) -> Tensor:
        """Apply the rule as it is, on a framework's tensors."""
        values = {**params, **self.bound}
        if self.function is not None:
            assert self._signature is not None
            given = {k: v for k, v in values.items() if self._signature.takes(k)}
            return self.function(ctx, grad_out, tin, **given)
        for part in self.resolved_parts():
            inner = part.signature
            own = {k: v for k, v in values.items() if inner.takes(k)}
            grad_out = part(ctx, grad_out, tin, **own)
        return grad_out

    def __call__(self, ctx: Any, grad_out: Tensor, tin: Tensor | None, /, **params: Any) -> Tensor:
        """Apply the rule: return the gradient for `tin` (shape and dtype of tin, or of grad_out)."""
        if isinstance(grad_out, Value):
            return self.run(grad_out.trace, grad_out, tin, self._checked(params))
        from .lowering.entries import call_rule

        return call_rule(self, ctx, grad_out, tin, params)

    def _checked(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        signature = self.signature
        for name in params:
            if not signature.takes(name):
                raise unknown_param(self.name, name, sorted(signature.params))
        return params

    def __reduce__(self) -> Any:
        # A registered rule pickles by name, so that functions made by a decorator pickle too.
        from .registry import _rules

        if _rules.get(self.name) is self:
            return _by_name, (self.name,)
        return _rebuild, (self.name, self.function, self.parts, self.native, dict(self.bound))


def _by_name(name: str) -> Rule:
    from .registry import get

    return get(name)


def _rebuild(
    name: str, function: Any, parts: tuple[Any, ...], native: bool | None, bound: dict[str, Any]
) -> Rule:
    return Rule(name=name, function=function, parts=parts, native=native, bound=bound)


_wrapped: dict[Any, Rule] = {}


def as_rule(function: Any, name: str | None = None, native: bool | None = None) -> Rule:
    """Wrap a function as a Rule; a Rule is renamed. Without a name, one function gives one Rule."""
    if isinstance(function, Rule):
        return Rule(
            name=name or function.name,
            function=function.function,
            parts=function.parts,
            native=function.native if native is None else native,
            bound=function.bound,
        )
    if name is not None:
        return Rule(name=name, function=function, native=native)
    try:
        known = _wrapped.get(function)
    except TypeError:  # an unhashable callable object
        return Rule(name=type(function).__name__, function=function)
    if known is None:
        if len(_wrapped) >= 4096:  # lambdas made in a loop must not pile up
            _wrapped.clear()
        known = Rule(name=getattr(function, "__name__", repr(function)), function=function)
        _wrapped[function] = known
    return known


# --- families and specs ----------------------------------------------------------------------------


class Family:
    """A rule with its static params fixed: owns its graphs and its lowered code.

    Attributes:
        runtime: names of the run-time params, in the order of a Spec's values.
        facts: what Python needed to know while the rule was captured ("ndim", "dtype", ...); grows.
        entries: lowered code by (backend, forward).
    """

    def __init__(self, rule: Rule, runtime: tuple[str, ...], static: Mapping[str, Any]) -> None:
        self.rule = rule
        self.runtime = runtime
        self.static = dict(static)
        self.id = f"{rule.name}#{next(_serial)}"
        self.facts: frozenset[str] = frozenset()
        self.entries: dict[Any, Any] = {}
        self.uncapturable: TraceError | None = None
        self._graphs: dict[Any, Graph] = {}

    def graph(self, has_tin: bool, facts: Mapping[str, Any]) -> Graph:
        """Return the rule's graph under these facts, captured once.

        Raises:
            NeedFact: more facts are needed; `self.facts` has been extended.
            TraceError: it cannot be captured.
        """
        key = (has_tin, tuple(sorted(facts.items(), key=str)))
        with _lock:
            graph = self._graphs.get(key)
            if graph is None:
                try:
                    graph = capturing.capture(
                        self.rule.name, self.rule.run, has_tin=has_tin, runtime=self.runtime,
                        static=self.static, facts=facts,
                    )  # fmt: skip
                except NeedFact as need:
                    if facts.keys() >= set(need.facts):  # asked again: no capture would end
                        raise TraceError(
                            f"rule {self.rule.name!r} needs {', '.join(need.facts)} in a way not captured"
                        ) from need
                    self.facts = self.facts | set(need.facts)
                    raise
                if len(self._graphs) >= 256:  # many shapes or values: keep memory bounded
                    self._graphs.clear()
                self._graphs[key] = graph
            return graph


@dataclass(frozen=True, slots=True)
class Spec:
    """A family with values for its run-time params; `token` is equal for equal meaning."""

    family: Family
    values: tuple[Any, ...]
    token: str

    @property
    def params(self) -> dict[str, Any]:
        """All params with their values."""
        return {**self.family.static, **dict(zip(self.family.runtime, self.values, strict=True))}


_families: dict[Any, Family] = {}


def make_spec(rule: Rule, given: Mapping[str, Any]) -> Spec:
    """Check params against the rule's signature and return the Spec."""
    signature = rule.signature
    for name in given:
        if not signature.takes(name):
            if name in rule.bound:
                raise RuleTypeError(f"rule {rule.name!r}: param {name!r} is bound by with_params")
            raise unknown_param(rule.name, name, sorted(signature.params))
    runtime: dict[str, Any] = {}
    static: dict[str, Any] = {}
    values = _values(rule, signature, given)
    if rule.function is not None and rule.bound:
        # Bound values of a single function run as params do, so that its lowered code is shared.
        values = {**values, **rule.bound}
        rule = Rule(name=rule.name, function=rule.function, native=rule.native)
        signature = rule.signature
    for name, value in values.items():
        param = signature.params.get(name) or Param(name, REQUIRED, None)
        is_runtime, value = check_value(rule.name, param, value)
        (runtime if is_runtime else static)[name] = value
    names = tuple(sorted(runtime))
    family = _family(rule, names, static)
    ordered = tuple(runtime[name] for name in names)
    return Spec(family, ordered, f"{family.id}({','.join(map(value_token, ordered))})")


def _values(rule: Rule, signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to pass on: given values, and the defaults of a single function."""
    values: dict[str, Any] = {}
    for param in signature.params.values():
        if param.name in given:
            values[param.name] = given[param.name]
        elif param.default is REQUIRED:
            raise RuleTypeError(
                f"rule {rule.name!r} needs a value for param {param.name!r}: "
                f"params={{{param.name!r}: ...}}"
            )
        elif rule.function is not None:
            # The parts of a composed rule may have different defaults: they keep their own.
            values[param.name] = param.default
    return {**values, **{name: given[name] for name in given if name not in values}}


def _family(rule: Rule, runtime: tuple[str, ...], static: Mapping[str, Any]) -> Family:
    key = (_identity(rule), runtime, repr(sorted(static.items())))
    with _lock:
        family = _families.get(key)
        if family is None:
            if len(_families) >= 65536:
                _families.clear()
            family = _families[key] = Family(rule, runtime, static)
        return family


def _identity(rule: Rule) -> Any:
    """Return what a rule does, as a key; names inside a composed rule are looked up now."""
    bound = repr(sorted(rule.bound.items()))
    if rule.function is not None:
        return (rule.function, rule.native, bound)
    return (tuple(_identity(part) for part in rule.resolved_parts()), rule.native, bound)


def value_token(value: Any) -> str:
    """Return text that is equal for equal numbers; a traced value equals nothing else."""
    if isinstance(value, float | int):
        return repr(value)
    from .lowering.backend import concrete_number

    number = concrete_number(value)
    return f"<traced {next(_serial)}>" if number is None else repr(number)


