"""What a rule is: its code or its parts, what is bound, and what may still be set, within which
ranges. `rule.py` has what a rule does.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...capture.code.signature import Signature, check_value, read_signature, unknown_param
from ...errors import RuleTypeError
from ...graph.support.data import InNotebooks
from ...graph.support.params import FixedParams, Fused, Range, Shards, both, is_address, read_fused
from . import names
from .parts import bind_addressed, words_of
from .specialization import Specialization

if TYPE_CHECKING:
    from typing_extensions import Self

ATTRIBUTES = (
    "name",
    "function",
    "parts",
    "native",
    "bound",
    "first_order",
    "library",
    "prove",
    "shards",
    "fused",
    "residuals",
)
NO_RANGES: Mapping[str, Range] = types.MappingProxyType({})


class RuleDefinition(InNotebooks):
    """What a rule is, apart from what it does."""

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
        ranges: Mapping[str, Range] | None = None,
        shards: Shards | None = None,
        fused: Fused = "auto",
        residuals: str = "auto",
    ) -> None:
        self.shards = shards
        self.fused = read_fused(fused)
        self.residuals = residuals
        self.own_ranges = NO_RANGES if not ranges else types.MappingProxyType(dict(ranges))
        self.first_order = first_order
        self.library = library
        self.prove = prove
        self.name = name
        self.function = function
        self.parts = parts
        self.native = native
        self.bound = types.MappingProxyType(dict(bound or {}))
        # By what it does now, as parts are names.
        self._specializations: dict[Any, dict[Any, Specialization]] = {}
        self._over: dict[Shards, dict[Any, dict[Any, Specialization]]] = {}  # the same, of `over`
        self.signature_of_function = None if parts else read_signature(name, function)
        own = None if function is None else function.__doc__  # that of None is a text from 3.13 on
        self.__doc__ = own or f"{name} applied in series."
        self.__name__ = getattr(function, "__name__", name)
        # None where it was executed.
        self.__module__ = getattr(function, "__module__", None) or type(self).__module__
        if function is not None:
            self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Rule {words_of(self, with_params=True)}>"

    @property
    def _words(self) -> str:
        """What messages call it: its name or its parts, with what is bound.

        Examples:
            >>> xg.get("triangular").with_params(width=2.0)._words
            'triangular with width=2.0'
        """
        return words_of(self)

    @property
    def signature(self) -> Signature:
        """What may be set from outside: own or the parts' params, without the bound ones.

        Examples:
            >>> xg.get("rectangular").signature.takes("a")
            True
            >>> xg.get("rectangular").with_params(a=-0.5).signature.takes("a")
            False
        """
        if self.signature_of_function is not None:
            known = dict(self.signature_of_function.params)
            takes_any = self.signature_of_function.takes_any
        else:
            known, takes_any = {}, False
            for part in self._resolved_parts():
                inner = part.signature
                takes_any = takes_any or inner.takes_any
                for param in inner.params.values():
                    known.setdefault(param.name, param)
        free = {name: param for name, param in known.items() if name not in self.bound}
        return Signature(free, takes_any)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that may be set, with their defaults (`inspect.Parameter.empty`:
        required).

        Examples:
            >>> xg.get("rectangular").params
            {'a': -0.5, 'b': 0.5}
            >>> xg.get("rectangular").with_params(a=-0.5).params
            {'b': 0.5}
        """
        defaults = {name: param.default for name, param in self.signature.params.items()}
        return FixedParams(defaults, "write rule.with_params(name=value)")

    @property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of the parameters that may be set, for those that have one.

        Examples:
            >>> {name: allowed.text for name, allowed in xg.get("triangular").ranges.items()}
            {'width': '>= 0'}
        """
        found = dict(self.own_ranges)
        for part in self._resolved_parts():
            for name, allowed in part.ranges.items():
                found[name] = both(found.get(name), allowed)
        for name in self.bound:
            found.pop(name, None)
        return types.MappingProxyType(found)

    def _check_param(self, name: str, value: Any) -> None:
        """Check a number against the range of a param, as `use` and a call do; for a number that
        changes.

        Examples:
            >>> xg.get("triangular")._check_param("width", 2.0)
            >>> xg.get("triangular")._check_param("width", -2.0)
            Traceback (most recent call last):
                ...
            multigrad.errors.RuleValueError: rule 'triangular': param 'width' is >= 0, got -2.0

        Raises:
            RuleTypeError: the rule takes no such param, or not that kind of value.
            RuleValueError: it is out of its range.
        """
        signature = self.signature
        self._check_names({name: value}, signature)
        self._check_ranges({name: check_value(self.name, signature.param(name), value)[1]})

    def _check_ranges(self, values: Mapping[str, Any], *, whole: bool = False) -> None:
        """Check the values of params, as far as they are numbers and known.

        Examples:
            >>> xg.get("rectangular")._check_ranges({"a": 0.0, "b": 1.0})
            >>> xg.get("rectangular")._check_ranges({"a": 2.0, "b": 1.0})
            Traceback (most recent call last):
                ...
            multigrad.errors.RuleValueError: rule 'rectangular': param 'a' is <= b, got 2.0 ...

        Args:
            whole: they are all that is given: the others have their defaults.

        Raises:
            RuleValueError: one is out of its range.
        """
        if whole and self.own_ranges:
            values = {**self.params, **values}
        for name, allowed in self.own_ranges.items():
            if name in values and not allowed.holds(values[name], values):
                allowed.check(f"rule {self.name!r}", name, values[name], values)
        for part in self._resolved_parts():
            part._check_ranges({**part.signature.select(values), **part.bound}, whole=whole)

    def _resolved_parts(self) -> tuple[Self, ...]:
        """Return the parts of a composed rule, names looked up now.

        Examples:
            >>> xg.compose("clip_norm", "noise")._resolved_parts()
            (<Rule clip_norm(max_norm=1.0, eps=1e-12)>, <Rule noise(sigma=0.1)>)
        """
        return tuple(names.get(part) for part in self.parts)

    def with_params(self, /, **params: Any) -> Self:
        """Return this rule with some params bound; a bound param is no longer settable from
        outside.

        Examples:
            >>> chain = xg.compose("clip_norm", "noise", "noise")
            >>> chain = chain.with_params(max_norm=1.0, **{"noise[1].sigma": 0.01})
            >>> chain
            <Rule (clip_norm → noise → noise(sigma=0.01))(max_norm=1.0)>

        A param of a composed rule reaches every part that declares it; "noise.sigma" is that of
        one part alone, "noise[1].sigma" where several have the name. The part is then the rule
        that has the name now.

        Raises:
            RuleTypeError: the rule takes no such param, or not that kind of value.
            RuleValueError: a value is out of its range.
        """
        if any(map(is_address, params)) and self.parts:
            rule, params = bind_addressed(self, params)
            return rule.with_params(**params)
        signature = self.signature
        self._check_names(params, signature)
        bound = dict(self.bound)
        for name, value in params.items():
            bound[name] = check_value(self.name, signature.param(name), value)[1]
        self._check_ranges(bound)
        return self.copy(bound=bound)

    def copy(self, **changes: Any) -> Self:
        """Return this rule with other attributes.

        Examples:
            >>> renamed = xg.get("triangular").copy(name="hat")
            >>> renamed
            <Rule hat(width=1.0)>
        """
        own = {name: getattr(self, name) for name in ATTRIBUTES}
        other = type(self)(**{"ranges": self.own_ranges, **own, **changes})
        if changes.keys() <= {"bound"}:  # its values run as params do, by the same code
            other._specializations, other._over = self._specializations, self._over
        return other

    def _frozen(self) -> Self:
        """Return this rule with the names inside looked up now, and `native` decided by its parts.

        Parts that run as they are make the whole do so; a part that must be captured makes the
        whole.

        Examples:
            >>> rule = xg.compose("clip_norm", "noise")._frozen()
            >>> rule.parts  # the rules that have the names now
            (<Rule clip_norm(max_norm=1.0, eps=1e-12)>, <Rule noise(sigma=0.1)>)
        """
        if self.function is not None:
            return self
        parts = tuple(part._frozen() for part in self._resolved_parts())
        native = self.native
        for wish in (True, False):
            if native is None and any(part.native is wish for part in parts):
                native = wish
        first_order = all(part.first_order for part in parts)
        return self.copy(parts=parts, native=native, first_order=first_order)

    def _check_names(self, params: Mapping[str, Any], signature: Signature) -> None:
        for name in params:
            if name in self.bound or (not signature.takes(name) and self._binds(name)):
                raise RuleTypeError(
                    f"rule {self.name!r}: param {name!r} is bound by with_params, so it "
                    "can no longer be set"
                )
            if not signature.takes(name):
                raise unknown_param(self.name, name, sorted(signature.params))

    def _binds(self, name: str) -> bool:
        """Return whether this rule, or a part of it, has that param bound."""
        return name in self.bound or any(part._binds(name) for part in self._resolved_parts())
