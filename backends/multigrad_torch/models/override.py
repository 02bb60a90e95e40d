"""`xg.override` for functions of torch: calls within the mode that also serves `attach`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from multigrad.errors import RuleTypeError, RuleValueError, suggest
from multigrad.functions.custom_gradient import name_of
from multigrad.models.attribution.composites import Composite
from multigrad.models.interpose import Following, parts_of, unmet

from .. import dynamo
from .layer_rules import rule_of_operation
from .operation_mode import OperationMode, is_entered
from .operations import find_operation, operation_names
from .rule_over import is_compiling, refuse

Function = Callable[..., Any]


def override_calls(function: Function, rules: Any) -> Function:
    """Return a function with rules on the operations that it calls."""
    if isinstance(rules, Composite):
        raise RuleTypeError(
            f"composite {rules.name!r} reads the layers of a model: xg.attach(model, composite)"
        )
    acting = Within(function, {find(part): rule for part, rule in parts_of(rules)})

    @functools.wraps(function)
    def overridden(*args: Any, **kwargs: Any) -> Any:
        mode = acting.mode if is_compiling() else acting.following.now()
        if is_entered(mode):
            return function(*args, **kwargs)
        with mode:
            outputs = function(*args, **kwargs)
        message = say_unmet(mode.key) if is_compiling() else acting.say_unmet()
        if message:
            if is_compiling():
                torch._dynamo.graph_break(msg=message)
            refuse(message)
        return outputs

    return dynamo.apart(overridden)


class Within:
    """The mode that a function is called in, made anew where a name means another rule."""

    def __init__(self, function: Function, rows: Mapping[str, Any]) -> None:
        self.name = name_of(function)
        self.rows = rows
        self.following = Following(rows.values(), self.make_mode)
        self.mode = self.following.now()

    def make_mode(self, found: Any) -> OperationMode:
        """Return the mode for what the rules' names mean now."""
        self.mode = OperationMode({n: rule_of_operation(n, r) for n, r in self.rows.items()})
        ACTING[self.mode.key] = self
        return self.mode

    def say_unmet(self) -> str:
        """Return what is wrong after a call; "" where every rule has acted."""
        missing = next((name for name, count in self.mode.hits.items() if not count), None)
        if missing is None:
            if self.mode.seen is None:
                return ""
            return self.mode.say_unrecorded(f"function {self.name!r}")
        called = (self.mode.seen or set()) - {"", "get", "set"}
        near = suggest(missing, called)
        return unmet(f"function {self.name!r}", repr(missing), near, called)


ACTING: weakref.WeakValueDictionary[str, Within] = weakref.WeakValueDictionary()


@dynamo.assume_constant_result
def say_unmet(key: str) -> str:
    """Return what is wrong after a function was traced."""
    return ACTING[key].say_unmet()


def find(selector: Any) -> str:
    """Return the operation that a selector means.

    Raises:
        RuleTypeError: it is none of torch's functions.
        RuleValueError: torch has no operation of that name.
    """
    operation = find_operation(selector)
    if operation is not None:
        return operation
    if isinstance(selector, str):
        near = suggest(selector, operation_names())
        raise RuleValueError(f"torch has no operation {selector!r}{near}")
    raise RuleTypeError(
        f"{selector!r:.60} is no operation of torch: expected a name or a function of torch"
    )
