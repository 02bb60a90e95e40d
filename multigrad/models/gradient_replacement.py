"""A rule's gradient instead of a forward's own: of a layer, a call of a library, anything.

The forward runs unchanged on a constant; then a Function of the input and the output, which returns
the output, gives the input the rule's gradient. For a rule on a layer:

    replacement = replacement_for("guided")                    # once for each rule
    out = layer(stop_gradient(tin))                            # by the framework
    y = replace_gradient(replacement, "guided", "layer 'gate'", tin, out)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..core.lowering.checks import shapes_agree
from ..core.rules.registry import resolve
from ..core.rules.rule import Rule
from ..core.rules.rule_names import epoch
from ..core.support.trees import Tensor
from ..core.trace.active_rules import is_of_then
from ..engine.functions.calls.parameters import BoundFunction
from ..engine.functions.custom_gradient import custom_gradient
from ..engine.functions.function import Function as AnyFunction
from ..errors import GradientError

Replacement: TypeAlias = AnyFunction | BoundFunction


def replacement_for(rule: str | Rule | Callable[..., Any]) -> Replacement:
    """Return a Function `(tin, out) -> out` with a rule's gradient instead of the forward's own.

    `out` is what the forward computed of `tin` as a constant (detached, `stop_gradient`): so what
    else the forward reads, its weights among it, keeps its gradient, and `tin` gets the rule's.

    Raises:
        RuleError: the rule is unknown, or needs a param (also a TypeError).
        GradientError: at backward; the rule gives another shape than tin's, as it does where the
            forward changes the shape and the rule works element by element.
    """
    rule_object = resolve(rule)
    # The rule holds its replacement, which holds the rule: no table keeps them alive.
    attributes: dict[str, Any] = vars(rule_object)
    replacement = attributes.get("_replacement")
    return replacement or attributes.setdefault("_replacement", _make_replacement(rule_object))


def _make_replacement(rule: Rule) -> Replacement:
    bound_rule = rule.bound_rule()  # raises for a missing param
    names, values = bound_rule.specialization.runtime, bound_rule.values
    # Numbers that may change (tensors, schedules) are arguments: others are part of the graph.
    numbers_may_change = any(type(value) is not float for value in values)

    def forward(tin: Tensor, out: Tensor, *numbers: Any) -> Any:
        def grad(upstream: Tensor) -> Any:
            gradient = pull(rule, names, numbers, upstream, tin)
            return gradient, upstream, *(None,) * len(numbers)

        return out, grad

    forward.__name__ = rule.name
    params = ("tin", "out", *names) if numbers_may_change else ("tin", "out")
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in params]
    )
    replacement: Any = custom_gradient(forward, native=rule.native)
    if numbers_may_change:
        replacement = replacement.bind(dict(zip(names, values, strict=True)))
    return replacement


def pull(
    rule: Rule, names: Sequence[str], numbers: Sequence[Any], grad_out: Tensor, tin: Tensor
) -> Tensor:
    """Return a rule's gradient, with these values of its run-time params, if they are given."""
    if not numbers:
        return rule(None, grad_out, tin)
    specialization = rule.bound_rule().specialization
    values = {**specialization.static, **dict(zip(names, numbers, strict=True))}
    filled: Any
    filled, params = specialization.fill_bound(values)
    return filled(None, grad_out, tin, **params)


def misfit_message(rule: str, where: str, tin: Any, out: Any) -> str:
    """Return the error message for a rule that does not fit, with what would."""
    return (
        f"{where} makes shape {out} of {tin}, and rule {rule!r} needs a gradient of its input's "
        "shape: it goes on layers and operations that keep the shape. What fits a layer with "
        "weights is xg.attribution.epsilon() and its like; this rule fits the activation after it"
    )


def check_fit(rule: str, where: str, tin: Any, out: Any) -> None:
    """Check that a rule fits a forward, by the shapes of its input and output where known."""
    if not shapes_agree(out, tin):
        raise GradientError(misfit_message(rule, where, tuple(tin), tuple(out)))


class CurrentReplacement:
    """The replacement for a rule, looked up again only when some name means another rule now."""

    # Compilers that read code can follow a comparison of epochs, but no look-up of a name.
    __slots__ = ("_found", "rule")

    def __init__(self, rule: str | Rule | Callable[..., Any]) -> None:
        self.rule = rule
        self._found = epoch(), replacement_for(rule)  # replaced as a whole

    def now(self) -> Replacement:
        found_epoch, replacement = self._found
        if found_epoch != epoch():
            self._found = epoch(), replacement_for(self.rule)
            replacement = self._found[1]
        return replacement

    def here(self) -> Replacement:
        """Return it for eager code, which may be a region that runs again."""
        return replacement_for(self.rule) if is_of_then() else self.now()


def replace_gradient(
    replacement: Replacement, name: str, where: str, tin: Tensor, out: Tensor
) -> Tensor:
    """Return the output of a forward on a constant, with a rule's gradient for its input."""
    check_fit(name, where, tin.shape, out.shape)
    return replacement(tin, out)


def named(rule: Any) -> str:
    """Return a rule's name for a table, with its bound numbers."""
    if rule is None:
        return "(plain gradient)"
    if isinstance(rule, str):
        return rule
    if isinstance(rule, Rule):
        return rule._words
    name = getattr(rule, "name", None)
    text = repr(rule)  # the repr of a layer's rule has its numbers
    return text if name is None or text.startswith(f"{name}(") else name
