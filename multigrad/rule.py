"""Rules: a Python function (or a chain of rules) and its parameters.

Three objects, from the author's to the machine's: a `Rule` is what people hold; a `Family` is a rule with its static
params fixed, and owns graphs and lowered code; a `Spec` is a family with values for its run-time params.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .capture import capture as capturing
from .capture.signature import (
    REQUIRED,
    Signature,
    check_value,
    read_params,
    read_signature,
    unknown_param,
)
from .errors import RuleTypeError, TraceError
from .family import Family, Spec, value_token
from .ir.record import Trace, Value
from .saved import SavedRule

__all__ = ["Family", "Rule", "Spec", "as_rule", "make_spec", "value_token"]
Tensor = Any
MOST_RULES = 4096
ATTRIBUTES = ("name", "function", "parts", "native", "bound", "first_order")
_lock = threading.RLock()


class Rule:
    """A gradient rule: `rule(None, grad_out, tin, **params)` on NumPy arrays and any framework's tensors.

    Attributes:
        name: the name it was registered under, or the function's.
        params: the parameters that may be set, with their defaults.
        native: see `register`.
        first_order: see `register`.
    """

    autograph_info__: ClassVar[
        dict[str, Any]
    ] = {}  # tells AutoGraph that nothing is to be converted

    def __init__(
        self,
        *,
        name: str,
        function: Callable[..., Any] | None = None,
        parts: tuple[Any, ...] = (),
        native: bool | None = None,
        bound: Mapping[str, Any] | None = None,
        first_order: bool = False,
    ) -> None:
        self.first_order = first_order
        self.name = name
        self.function = function
        self.parts = parts
        self.native = native
        self.bound = types.MappingProxyType(dict(bound or {}))
        self._signature = None if parts else read_signature(name, function)
        source = function if function is not None else None
        self.__doc__ = getattr(source, "__doc__", None) or f"{name} applied in series."
        self.__name__ = getattr(source, "__name__", name)
        self.__module__ = (
            getattr(source, "__module__", None) or __name__
        )  # none where it was executed
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

    def with_params(self, /, **params: Any) -> Rule:
        """Return this rule with some params bound; a bound param is no longer settable from outside.

        Raises:
            RuleTypeError: the rule takes no such param, or not that kind of value.
        """
        signature = self.signature
        self._check_names(params, signature)
        bound = dict(self.bound)
        for name, value in params.items():
            bound[name] = check_value(self.name, signature.param(name), value)[1]
        return self.copy(bound=bound)

    def copy(self, **changes: Any) -> Rule:
        """Return this rule with other attributes."""
        own = {name: getattr(self, name) for name in ATTRIBUTES}
        return Rule(**{**own, **changes})

    def spec(self, params: Mapping[str, Any] | None = None) -> Spec:
        """Return this rule with values for its params, checked.

        Raises:
            RuleTypeError: an unknown param, a missing one or a wrong kind of value.
        """
        return make_spec(self, params)

    def run(self, trace: Trace, grad_out: Any, tin: Any, params: Mapping[str, Any]) -> Any:
        """Apply the rule inside a capture."""
        values = {**params, **self.bound}
        if self.function is not None and self._signature is not None:
            if self.native is True:
                raise TraceError(f"rule {self.name!r} runs as it is (native=True)")
            given = self._signature.select(values)
            if isinstance(self.function, SavedRule):  # no source to prepare
                return self.function.record(trace, grad_out, tin, given)
            return capturing.run_function(self.function, trace, None, grad_out, tin, **given)
        for part in self.resolved_parts():
            grad_out = part.run(trace, grad_out, tin, part.signature.select(values))
        return grad_out

    def run_native(
        self, ctx: Any, grad_out: Tensor, tin: Tensor | None, params: Mapping[str, Any]
    ) -> Tensor:
        """Apply the rule as it is, on a framework's tensors."""
        values = {**params, **self.bound}
        if self.function is not None and self._signature is not None:
            return self.function(ctx, grad_out, tin, **self._signature.select(values))
        for part in self.resolved_parts():
            grad_out = part(ctx, grad_out, tin, **part.signature.select(values))
        return grad_out

    def __call__(
        self, /, ctx: Any, grad_out: Tensor, tin: Tensor | None, *args: Any, **params: Any
    ) -> Tensor:
        """Apply the rule: return the gradient for `tin` (shape and dtype of tin, or of grad_out).

        `args` are params in the order of the rule's signature; `key=` seeds a random rule.
        """
        if args:
            names = list(self.signature.params)
            if len(args) > len(names):
                raise RuleTypeError(
                    f"rule {self.name!r} takes {len(names)} params, got {len(args)} more arguments"
                )
            params = {**dict(zip(names, args, strict=False)), **params}
        if isinstance(grad_out, Value):
            self._check_names(params, self.signature)
            return self.run(grad_out.trace, grad_out, tin, params)
        from .lowering.entries import call_rule

        return call_rule(self, ctx, grad_out, tin, params)

    def _check_names(self, params: Mapping[str, Any], signature: Signature) -> None:
        for name in params:
            if name in self.bound or (not signature.takes(name) and self._binds(name)):
                raise RuleTypeError(
                    f"rule {self.name!r}: param {name!r} is bound by with_params, "
                    f"so it is not settable any more"
                )
            if not signature.takes(name):
                raise unknown_param(self.name, name, sorted(signature.params))

    def _binds(self, name: str) -> bool:
        """Return whether this rule, or a part of it, has that param bound."""
        return name in self.bound or any(part._binds(name) for part in self.resolved_parts())

    def frozen(self) -> Rule:
        """Return this rule with the names inside looked up now, and `native` decided by its parts.

        Parts that run as they are make the whole do so; a part that must be captured makes the whole.
        """
        if self.function is not None:
            return self
        parts = tuple(part.frozen() for part in self.resolved_parts())
        native = self.native
        for wish in (True, False):
            if native is None and any(part.native is wish for part in parts):
                native = wish
        first_order = all(part.first_order for part in parts)
        return self.copy(parts=parts, native=native, first_order=first_order)

    def to_dict(self) -> dict[str, Any]:
        """Return this rule as plain data, which `xg.from_dict` reads and `xg.save` writes as JSON.

        Raises:
            TraceError: it cannot be captured, so there is no graph to save.
            FormatError: it has more than a document holds.
        """
        from .saving import document_of

        return document_of(self)

    def __reduce__(self) -> Any:
        # A registered rule pickles by name, so that functions made by a decorator pickle too.
        from .registry import registered

        known = registered(self.name)
        if known is self:
            return _by_name, (self.name, {})
        if known is not None and known.function is self.function is not None and not known.bound:
            return _by_name, (self.name, dict(self.bound))
        own = {name: getattr(self, name) for name in ATTRIBUTES}
        return _rebuild, ({**own, "bound": dict(self.bound)},)


def _by_name(name: str, bound: Mapping[str, Any]) -> Rule:
    from .registry import get

    return get(name).with_params(**bound) if bound else get(name)


def _rebuild(attributes: dict[str, Any]) -> Rule:
    return Rule(**attributes)


_wrapped: dict[Any, Rule] = {}


def as_rule(
    function: Any, name: str | None = None, native: bool | None = None, first_order: bool = False
) -> Rule:
    """Wrap a function as a Rule; a Rule is renamed. Without a name, one function gives one Rule."""
    if isinstance(function, Rule):
        return function.copy(
            name=name or function.name,
            native=function.native if native is None else native,
            first_order=function.first_order or first_order,
        )
    if name is not None:
        return Rule(name=name, function=function, native=native, first_order=first_order)
    key = hashable(function)
    known = _wrapped.get(key)
    if known is None:
        if len(_wrapped) >= MOST_RULES:  # lambdas made in a loop must not pile up
            _wrapped.clear()
        known = _wrapped[key] = Rule(name=name_of(function), function=function)
    return known


def name_of(function: Any) -> str:
    """Return a callable's name, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


def hashable(function: Any) -> Any:
    """Return a callable as a key: itself, or its identity where it has no hash."""
    try:
        hash(function)
    except TypeError:
        return _Same(function)
    return function


class _Same:
    """A key that is equal for the same object only, and keeps it alive."""

    def __init__(self, item: Any) -> None:
        self.item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.item is other.item

    def __hash__(self) -> int:
        return id(self.item)


# --- specs -------------------------------------------------------------------------------------------

_families: dict[Any, Family] = {}


def make_spec(rule: Rule, params: Mapping[str, Any] | None = None) -> Spec:
    """Check params against the rule's signature and return the Spec."""
    given = read_params(params)
    signature = rule.signature
    rule._check_names(given, signature)
    values = {**_values(rule, signature, given), **rule.bound}
    if rule.bound:
        # Bound values run as params do, so that the code of a rule is shared by all its bindings.
        rule = rule.copy(bound={})
        signature = rule.signature
    runtime: dict[str, Any] = {}
    static: dict[str, Any] = {}
    for name, value in values.items():
        is_runtime, value = check_value(rule.name, signature.param(name), value)
        (runtime if is_runtime else static)[name] = value
    names = tuple(sorted(runtime))
    family = _family(rule, names, static)
    ordered = tuple(runtime[name] for name in names)
    return Spec(family, ordered, f"{family.id}({','.join(map(value_token, ordered))})")


def _values(rule: Rule, signature: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to pass on: given values, and the defaults of a single function."""
    values = dict(given)
    for param in signature.params.values():
        if param.name in given:
            continue
        if param.default is REQUIRED:
            raise RuleTypeError(
                f"rule {rule.name!r} needs a value for param {param.name!r}: "
                f"params={{{param.name!r}: ...}}"
            )
        if rule.function is not None:
            # The parts of a composed rule may have different defaults: they keep their own.
            values[param.name] = param.default
    return values


def _family(rule: Rule, runtime: tuple[str, ...], static: Mapping[str, Any]) -> Family:
    rule = rule.frozen()
    key = (_identity(rule), runtime, repr(sorted(static.items())))
    with _lock:
        family = _families.get(key)
        if family is None:
            if len(_families) >= MOST_RULES:
                _families.clear()
            family = _families[key] = Family(rule, runtime, static)
        return family


def _identity(rule: Rule) -> Any:
    """Return what a rule does, as a key."""
    bound = repr(sorted(rule.bound.items()))
    if rule.function is not None:
        return (hashable(rule.function), rule.native, rule.first_order, bound)
    return (tuple(map(_identity, rule.parts)), rule.native, bound)
