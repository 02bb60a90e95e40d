"""Signatures of rules: the parameters, which of them are run-time scalars, and legal values."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ...errors import RuleTypeError, suggest
from ..trace.active_rules import Moving

REQUIRED = inspect.Parameter.empty
STATIC_TYPES = (bool, int, str, type(None), tuple)
# The names of the graph's own inputs, which no param can have.
TAKEN = ("ctx", "grad_out", "key", "tin")
# Names that say which of a rule's first three arguments one is.
ROLES = {"ctx": "ctx", "grad_out": "grad_(out|output|input)", "tin": "tin|input_?"}


class RuleParam(NamedTuple):
    """One parameter of a rule.

    Attributes:
        kind: float: known when the rule runs; int, bool, str: fixed in a capture; None: the value
            decides.
        optional: a float param that also takes None, a bool, str or tuple, unchanged.
    """

    name: str
    default: Any = REQUIRED
    kind: type | None = None
    optional: bool = False


class Signature(NamedTuple):
    """The parameters of a rule after `(ctx, grad_out, tin)`."""

    params: Mapping[str, RuleParam]
    takes_any: bool  # has **params, so receives everything

    def takes(self, name: str) -> bool:
        """Return whether a param of that name is accepted; `**params` never gets one of `TAKEN`."""
        return name in self.params or (self.takes_any and name not in TAKEN)

    def param(self, name: str) -> RuleParam:
        """Return the parameter of that name; one for `**params` may be anything."""
        return self.params.get(name) or RuleParam(name)

    def select(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if self.takes(name)}


def read_signature(name: str, function: Callable[..., Any] | None) -> Signature:
    """Read and check `fn(ctx, grad_out, tin, **params)`; other defaults are its own."""
    if not callable(function):
        raise RuleTypeError(
            f"rule {name!r} must be a function fn(ctx, grad_out, tin, **params), got "
            f"{type(function).__name__}"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RuleTypeError(f"rule {name!r} has no readable signature: {error}") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    advice = _advise_on_order(positional)
    if len(positional) < 3 or advice:
        is_meant = any("grad" in p.name or p.name in ("ctx", "tin") for p in positional)
        if not is_meant:
            advice = "; xg.convert takes functions of tensors and autograd.Function classes"
        raise RuleTypeError(
            f"rule {name!r} takes {inspect.signature(function)}, expected (ctx, grad_out, tin, "
            f"**params){advice}"
        )
    params = {}
    for p in parameters[3:]:
        if p.kind is p.POSITIONAL_ONLY and p.default is REQUIRED:
            raise RuleTypeError(f"rule {name!r}: param {p.name!r} must be settable by name")
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            if p.name in TAKEN:
                raise RuleTypeError(
                    f"rule {name!r}: no param can be called {p.name!r}, which means something else "
                    "to multigrad; choose another name"
                )
            # A default of another type, such as a list, is not a param: the function keeps it.
            is_settable = isinstance(p.default, (*STATIC_TYPES, float, np.generic))
            if p.default is REQUIRED or is_settable or hasattr(p.default, "shape"):
                params[p.name] = _read_param(p)
    return Signature(params, any(p.kind is p.VAR_KEYWORD for p in parameters))


def _advise_on_order(positional: list[inspect.Parameter]) -> str:
    """Return advice if one of the first three is named like another, or is a param; else ""."""
    for place, p in zip(ROLES, positional, strict=False):
        meant = next((own for own, names in ROLES.items() if re.fullmatch(names, p.name)), place)
        # `tin=None` is a rule that also runs without an input.
        is_param = place == "tin" and p.default is not REQUIRED and p.default is not None
        if meant != place or is_param:
            return f"; they are passed by position, so {p.name!r} would get {place}"
    return ""


def name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, str):
        return function
    return getattr(function, "__name__", None) or type(function).__name__


def called_method(function: Any) -> Any:
    """Return an object's `forward` if its call takes any arguments; else the object."""
    method = getattr(function, "forward", None)
    if isinstance(function, type) or not inspect.ismethod(method):
        return function
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return function
    variadic = all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
    return method if variadic else function


def _read_param(p: inspect.Parameter) -> RuleParam:
    # The annotation decides the kind, else the default.
    names = {p.annotation.__name__} if isinstance(p.annotation, type) else set()
    names = names or set(re.findall(r"\w+", str(p.annotation)))
    if p.annotation is not REQUIRED:
        for kind in (int, bool, str):
            if names == {kind.__name__} and p.default is not None:
                return RuleParam(p.name, p.default, kind)
        if "float" in names and "int" not in names:
            return RuleParam(p.name, p.default, float, names != {"float"} or p.default is None)
    return RuleParam(p.name, p.default, float if isinstance(p.default, float) else None)


def check_value(rule: str, param: RuleParam, value: Any) -> tuple[bool, Any]:
    """Return (whether it is known at run time only, the coerced value)."""
    if isinstance(value, np.generic | np.ndarray) and value.shape == ():
        value = value.item()
    kind = param.kind
    if kind is None and isinstance(value, STATIC_TYPES):
        return False, value
    if param.optional and isinstance(value, STATIC_TYPES) and type(value) is not int:
        return False, value
    if kind is None or kind is float:
        return True, _run_time_value(rule, param, value)
    if kind is bool and isinstance(value, int) and value in (0, 1):
        return False, bool(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(rule, param, value)
    return False, value


def _run_time_value(rule: str, param: RuleParam, value: Any) -> Any:
    # A float; a scalar tensor or a moving number is unchanged.
    if isinstance(value, Moving):
        value.take(f"param {param.name!r} of rule {rule!r}")
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong(rule, param, value) from None
    shape = getattr(value, "shape", None)
    if shape is None:
        if callable(value):
            raise RuleTypeError(
                f"{_wrong(rule, param, value)}; a function of the step is xg.schedule.of(f)"
            )
        raise _wrong(rule, param, value)
    if len(shape) != 0:
        raise RuleTypeError(
            f"rule {rule!r}: param {param.name!r} is one number, got shape {tuple(shape)}"
        )
    if getattr(value, "requires_grad", False) is True:  # it would silently get no gradient
        raise RuleTypeError(
            f"rule {rule!r}: param {param.name!r} waits for a gradient, which a rule does not give "
            f"to its params; pass {param.name}.detach()"
        )
    return value


NOUNS = {
    None: "a number, bool, str, None or tuple",
    float: "a float",
    int: "an int",
    bool: "a bool",
    str: "a str",
}


def _wrong(rule: str, param: RuleParam, value: Any) -> RuleTypeError:
    shown = "None" if value is None else f"{type(value).__name__} {value!r:.40}"
    if inspect.isfunction(value):
        shown = f"the function {value.__name__}"
    return RuleTypeError(f"rule {rule!r}: param {param.name!r} is {NOUNS[param.kind]}, got {shown}")


def unknown_param(rule: str, name: str, known: list[str]) -> RuleTypeError:
    listing = f"it takes {', '.join(known)}" if known else "it takes no params"
    return RuleTypeError(f"rule {rule!r} has no param {name!r}{suggest(name, known)} ({listing})")


def refuse_class(function: Any) -> None:
    """Raise if this is not callable, or is a class, whose call makes an object."""
    if not callable(function):
        is_name = isinstance(function, str)
        advice = "; import what it names, or write xg.activation(name)" if is_name else ""
        raise RuleTypeError(
            f"expected a function, got {type(function).__name__} {function!r:.40}{advice}"
        )
    if isinstance(function, type):
        advice = call_of_class(function)
        raise TypeError(f"expected a function, got the class {function.__name__!r}: give {advice}")


def call_of_class(cls: type) -> str:
    """Return, as code, what a caller who gave a class should give instead."""
    # A custom gradient of torch's is a class of which nobody makes an object.
    is_gradient = hasattr(cls, "forward") and hasattr(cls, "backward")
    name = cls.__name__
    return f"xg.convert({name})" if is_gradient else f"an object of it, {name}()"
