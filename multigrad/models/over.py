"""A rule over a forward that stays as it is: a layer, a call of a library, anything."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..active.regions import is_of_then
from ..errors import GradientError
from ..functions.custom_gradient import custom_gradient
from ..functions.function import Function
from ..lowering.input_checks import shapes_agree
from ..rulebook.names import epoch
from ..rulebook.rule import Rule, resolve

Tensor = Any
_over: weakref.WeakKeyDictionary[Rule, Function] = weakref.WeakKeyDictionary()


def over(rule: str | Rule | Callable[..., Any]) -> Function:
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
        found.bound_rule()  # a param that is missing is said here
        held = weakref.ref(found)

        def forward(tin: Tensor, out: Tensor) -> Any:
            acting = held() or resolve(rule)

            def grad(upstream: Tensor) -> Any:
                return acting(None, upstream, tin), upstream

            return out, grad

        forward.__name__ = found.name
        known = _over.setdefault(found, custom_gradient(forward, native=found.native))
    return known


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

    def now(self) -> Function:
        """Return `over` of the rule as it is now."""
        looked_up, function = self._known
        if looked_up != epoch():
            self._known = epoch(), over(self.rule)
            function = self._known[1]
        return function

    def here(self) -> Function:
        """Return the same in eager code, which may be a region that runs again."""
        return over(self.rule) if is_of_then() else self.now()
