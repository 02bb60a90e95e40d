"""Rules: a Python function (or a chain of rules) and its parameters.

Three objects, from the author's to the machine's: a `Rule` is what people hold; a `Family` is a rule with its static
params fixed, and owns graphs and lowered code; a `Spec` is a family with values for its run-time params.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from .capture import capture as capturing
from .capture.signature import (
    REQUIRED,
    STATIC_TYPES,
    Signature,
    called_method,
    check_value,
    read_params,
    read_signature,
    unknown_param,
)
from .codes import code_of
from .errors import RuleTypeError, TraceError
from .family import Family, Slot, Spec, read_number, value_token
from .fixed import FixedParams
from .identity import function_key, items_key, owners_of
from .ir.record import Trace, Value
from .saved import SavedRule

__all__ = ["Family", "Rule", "Spec", "as_rule", "make_spec", "read_number", "value_token"]
Tensor = Any
MOST_FAMILIES = 256  # of one rule: by params that are part of its code
ATTRIBUTES = (
    "name", "function", "parts", "native", "bound", "first_order", "library", "prove",
)  # fmt: skip


class Rule:
    """A gradient rule: `rule(None, grad_out, tin, **params)` on NumPy arrays and any framework's tensors.

    Attributes:
        name: the name it was registered under, or the function's.
        params: the parameters that may be set, with their defaults.
        native: see `register`.
        first_order: see `register`.
        library: the one whose methods the function means, "" where the code tells.
        prove: see `register`.
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
        library: str = "",
        prove: bool = True,
    ) -> None:
        self.first_order = first_order
        self.library = library
        self.prove = prove
        self.name = name
        self.function = function
        self.parts = parts
        self.native = native
        self.bound = types.MappingProxyType(dict(bound or {}))
        self._families: dict[Any, dict[Any, Family]] = {}  # by what it does now, as parts are names
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
        defaults = {name: param.default for name, param in self.signature.params.items()}
        return FixedParams(defaults, "write rule.with_params(name=value)")

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
        other = Rule(**{**own, **changes})
        if changes.keys() <= {"bound"}:  # its values run as params do, by the same code
            other._families = self._families
        return other

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
            run = capturing.run_written_in
            return run(self.library, self.function, trace, None, grad_out, tin, **given)
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


# A rule lives as long as someone holds it; what was made of it, as long as the functions it is made of (codes.py).
_wrapped: weakref.WeakValueDictionary[Any, Rule] = weakref.WeakValueDictionary()


def as_rule(
    function: Any,
    name: str | None = None,
    native: bool | None = None,
    first_order: bool = False,
    library: str = "",
) -> Rule:
    """Wrap a function as a Rule; a Rule is renamed. Without a name, one function gives one Rule."""
    if isinstance(function, Rule):
        return function.copy(
            name=name or function.name,
            native=function.native if native is None else native,
            first_order=function.first_order or first_order,
            library=library or function.library,
        )
    own_name, function = name_of(function), called_method(function)
    if name is not None:
        return Rule(
            name=name, function=function, native=native, first_order=first_order, library=library
        )
    key = function_key(function)
    known = _wrapped.get(key)
    if known is None:
        known = _wrapped.setdefault(key, Rule(name=own_name, function=function))
    return known


def name_of(function: Any) -> str:
    """Return a callable's name, for messages."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


# --- specs -------------------------------------------------------------------------------------------


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
    families = rule._families
    rule, hidden = _hide_bound(rule.frozen(), {*signature.params, *values})
    runtime.update(hidden)
    names = tuple(sorted(runtime))
    family = _family(rule, names, static, frozenset(hidden), families)
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


def _hide_bound(rule: Rule, taken: set[str], path: str = "") -> tuple[Rule, dict[str, Any]]:
    """Return a rule in which slots stand for the run-time values that its parts have bound, and those by name."""
    hidden: dict[str, Any] = {}
    bound = dict(rule.bound)
    for name, value in rule.bound.items():
        if not isinstance(value, STATIC_TYPES):
            own = f"{name}_of_part{path}"
            while own in taken:
                own += "_"
            hidden[own], bound[name] = value, Slot(own)
    parts = []
    for i, part in enumerate(rule.parts, 1):
        part, inner = _hide_bound(part, taken, f"{path}_{i}")
        parts.append(part)
        hidden.update(inner)
    return (rule.copy(bound=bound, parts=tuple(parts)), hidden) if hidden else (rule, hidden)


def _family(
    rule: Rule,
    runtime: tuple[str, ...],
    static: Mapping[str, Any],
    hidden: frozenset[str],
    families: dict[Any, dict[Any, Family]],
) -> Family:
    identity = _identity(rule)
    own = families.get(identity)
    if own is None:  # those of parts that have their names no more go
        families.clear()
        own = families.setdefault(identity, {})
    key = (runtime, items_key(static))
    family = own.get(key)
    if family is None:
        code = code_of(rule.name, (identity, *key), _owners(rule))
        if len(own) >= MOST_FAMILIES:
            own.clear()
        family = own.setdefault(key, Family(rule, runtime, static, hidden, code))
    return family


def _identity(rule: Rule) -> Any:
    """Return what a rule does, as a key."""
    made_of = (
        function_key(rule.function)
        if rule.function is not None
        else tuple(map(_identity, rule.parts))
    )
    return (
        rule.name, made_of, rule.native, rule.first_order, rule.library, rule.prove,
        items_key(rule.bound),
    )  # fmt: skip


def _owners(rule: Rule) -> Iterator[Any]:
    if rule.function is not None:
        yield from owners_of(rule.function)
    for part in rule.parts:
        yield from _owners(part)
