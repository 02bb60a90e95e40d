"""A rule over a forward that stays as it is: a layer, a call of a library, anything."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import GradientError
from ..functions.calls.arguments import BoundFunction
from ..functions.custom_gradient import custom_gradient
from ..functions.function import Function
from ..lowering.input_checks import shapes_agree
from ..rules.model.names import epoch
from ..rules.model.rule import Rule, resolve
from ..trace.scope.moving import is_of_then

Tensor = Any
Over: TypeAlias = Function | BoundFunction
_over: weakref.WeakKeyDictionary[Rule, Over] = weakref.WeakKeyDictionary()


def over(rule: str | Rule | Callable[..., Any]) -> Over:
    """Return a Function `(tin, out) -> out` that puts a rule's gradient in the place of a forward's
    own.

    `out` is what the forward computed of `tin` as a constant (detached, `stop_gradient`): so what
    else the forward reads, its weights among it, keeps its gradient, and `tin` gets the rule's.

    Examples:
        >>> from multigrad.models.over import over
        >>> y, pull = xg.vjp(over("guided"), np.array([-1.0, 2.0]), np.array([-2.0, 4.0]))
        >>> y, pull(np.ones(2))[0]
        (array([-2.,  4.]), array([0., 1.]))

    Args:
        rule: a name, a Rule (`rule.with_params(...)` binds numbers) or a function.

    Raises:
        RuleError: the rule is unknown, or needs a param (also a TypeError).
        GradientError: at backward; the rule gives another shape than tin's, as it does where the
            forward changes the shape and the rule works element by element.
    """
    found = resolve(rule)
    known = _over.get(found)
    if known is None:
        bound_rule = found.bound_rule()  # a param that is missing is said here
        held = weakref.ref(found)
        names, values = bound_rule.specialization.runtime, bound_rule.values
        # Numbers that may change are given at each call: others are part of the graph.
        changes = any(type(value) is not float for value in values)

        def acting() -> Any:
            return held() or resolve(rule)

        def forward(tin: Tensor, out: Tensor, *numbers: Any) -> Any:
            def grad(upstream: Tensor) -> Any:
                return (
                    pull(acting(), names, numbers, upstream, tin),
                    upstream,
                    *(None,) * len(numbers),
                )

            return out, grad

        forward.__name__ = found.name
        given = ("tin", "out", *names) if changes else ("tin", "out")
        forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in given]
        )
        made: Any = custom_gradient(forward, native=found.native)
        if changes:
            made = made.bind(dict(zip(names, values, strict=True)))
        known = _over.setdefault(found, made)
    return known


def pull(
    rule: Rule, names: Sequence[str], numbers: Sequence[Any], grad_out: Tensor, tin: Tensor
) -> Tensor:
    """Return a rule's gradient, with these values of its run-time params, if they are given."""
    if not numbers:
        return rule(None, grad_out, tin)
    specialization = rule.bound_rule().specialization
    values = {**specialization.static, **dict(zip(names, numbers, strict=True))}
    opened: Any
    opened, params = specialization.open(values)
    return opened(None, grad_out, tin, **params)


def misfit(rule: str, where: str, tin: Any, out: Any) -> str:
    """Return that a rule does not fit, and what would."""
    return (
        f"{where} makes shape {out} of {tin}, and rule {rule!r} needs a gradient of its input's "
        "shape: it goes on layers and operations that keep the shape. What fits a layer with "
        "weights is xg.attribution.epsilon() and its like; this rule fits the activation after it"
    )


def check_fit(rule: str, where: str, tin: Any, out: Any) -> None:
    """Check that a rule fits a forward, by the shapes of its input and output; lengths that are not
    known yet fit all others.

    Raises:
        GradientError: the forward changes the shape.
    """
    if not shapes_agree(out, tin):
        raise GradientError(misfit(rule, where, tuple(tin), tuple(out)))


class RuleOver:
    """A rule over forwards, for compilers that read code and follow no lookup of a name: it is
    looked up again only where a name means another rule than before.
    """

    __slots__ = ("_known", "rule")

    def __init__(self, rule: str | Rule | Callable[..., Any]) -> None:
        self.rule = rule
        self._known = epoch(), over(rule)

    def now(self) -> Over:
        """Return `over` of the rule as it is now."""
        looked_up, function = self._known
        if looked_up != epoch():
            self._known = epoch(), over(self.rule)
            function = self._known[1]
        return function

    def here(self) -> Over:
        """Return the same in eager code, which may be a region that runs again."""
        return over(self.rule) if is_of_then() else self.now()
