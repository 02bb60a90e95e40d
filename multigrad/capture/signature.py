"""Signatures of rules: which parameters, which of them are run-time scalars, which values are legal."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import RuleTypeError, suggest

REQUIRED = inspect.Parameter.empty
STATIC_TYPES = (bool, int, str, type(None), tuple)


@dataclass(frozen=True, slots=True)
class Param:
    """One parameter of a rule; `runtime` params are floats known when the rule runs."""

    name: str
    default: Any
    runtime: bool | None  # None: the given value decides


@dataclass(frozen=True, slots=True)
class Signature:
    """What a rule takes after `(ctx, grad_out, tin)`."""

    params: Mapping[str, Param]
    takes_any: bool  # has **params, so receives everything

    def takes(self, name: str) -> bool:
        """Return whether a parameter of that name is accepted."""
        return self.takes_any or name in self.params


def read_signature(name: str, function: Callable[..., Any]) -> Signature:
    """Read and check `fn(ctx, grad_out, tin, **params)`.

    Raises:
        RuleTypeError: the function does not take three leading positional arguments.
    """
    if not callable(function):
        raise RuleTypeError(
            f"rule {name!r} must be a function fn(ctx, grad_out, tin, **params), "
            f"got {type(function).__name__}"
        )
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise RuleTypeError(f"rule {name!r} has no readable signature: {error}") from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(positional) < 3:
        raise RuleTypeError(
            f"rule {name!r} takes {inspect.signature(function)}, "
            f"expected (ctx, grad_out, tin, **params)"
        )
    params = {}
    for p in parameters[3:]:
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            params[p.name] = Param(p.name, p.default, _is_runtime(p))
    return Signature(params, any(p.kind is p.VAR_KEYWORD for p in parameters))


def _is_runtime(parameter: inspect.Parameter) -> bool | None:
    annotation, default = parameter.annotation, parameter.default
    if annotation in (float, "float"):
        return True
    if annotation in (int, bool, str, "int", "bool", "str"):
        return False
    if isinstance(default, float):
        return True
    return None if default is REQUIRED else False


def check_value(rule: str, param: Param, value: Any) -> tuple[bool, Any]:
    """Return (is run-time, value) after coercion.

    Raises:
        RuleTypeError: the value is of a kind that the parameter does not take.
    """
    runtime = param.runtime
    if runtime is None:
        runtime = not isinstance(value, STATIC_TYPES)
    if not runtime:
        if not isinstance(value, (*STATIC_TYPES, float)):
            raise RuleTypeError(
                f"rule {rule!r}: param {param.name!r} is static (bool, int, str, None or tuple), "
                f"got {type(value).__name__}"
            )
        return False, value
    if isinstance(value, bool | str | bytes | tuple | list | dict | type(None)):
        raise RuleTypeError(
            f"rule {rule!r}: param {param.name!r} is a float, got {type(value).__name__} {value!r}"
        )
    if isinstance(value, int):
        return True, float(value)
    if isinstance(value, float):
        return True, value
    if getattr(value, "shape", None) is None:
        raise RuleTypeError(
            f"rule {rule!r}: param {param.name!r} is a float, got {type(value).__name__}"
        )
    if len(value.shape) != 0:
        raise RuleTypeError(
            f"rule {rule!r}: param {param.name!r} is a scalar, got shape {tuple(value.shape)}"
        )
    # NumPy scalars and 0-d arrays are plain numbers; tensors and tracers stay what they are.
    return True, float(value) if type(value).__module__ == "numpy" else value


def unknown_param(rule: str, name: str, known: list[str]) -> RuleTypeError:
    """Return the error for a parameter that the rule does not take."""
    listing = f"it takes {', '.join(known)}" if known else "it takes no params"
    return RuleTypeError(f"rule {rule!r} has no param {name!r}{suggest(name, known)} ({listing})")
