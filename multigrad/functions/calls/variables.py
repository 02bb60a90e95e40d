"""Variables that a function reads besides its arguments, where a framework asks its gradient
function for theirs too.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from ...errors import GradientError
from ...graph.support.data import dataclass

Tensor = Any


@dataclass(slots=True)
class Delivery:
    """The variables that a function has read, and the gradients that it delivers to them.

    Attributes:
        is_added: whether its backward has added to one's gradient by itself.
        is_done: whether it has delivered.
    """

    variables: Sequence[Any]
    gradients: Sequence[Tensor | None]
    is_added: Callable[[Any], bool]
    is_done: bool = False


# Set by a backend while a function's own pull runs; None: nobody asks.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_delivery", default=None
)


def never_added(variable: Any) -> bool:
    """Return that nothing was added to a variable's gradient."""
    return False


def pull_delivering(
    pull: Callable[..., Any],
    cotangents: Sequence[Tensor],
    variables: Sequence[Any],
    is_added: Callable[[Any], bool] = never_added,
) -> tuple[Any, list[Tensor | None]]:
    """Return the gradients that a pull gives, and those that it delivers to variables, None where
    it does not.
    """
    delivery = Delivery(variables, [None] * len(variables), is_added)
    reset = DELIVERY.set(delivery)
    try:
        gradients = pull(*cotangents)
    finally:
        DELIVERY.reset(reset)
    return gradients, list(delivery.gradients)


def asked_variables() -> list[Any]:
    """Return the variables whose gradients are asked for."""
    delivery = DELIVERY.get()
    return [] if delivery is None else list(delivery.variables)


def lost_variables() -> list[Any]:
    """Return the variables whose gradients are asked for and were not delivered."""
    delivery = DELIVERY.get()
    if delivery is None or delivery.is_done:
        return []
    return [each for each in delivery.variables if not delivery.is_added(each)]


def deliver(gradients: Sequence[Tensor | None]) -> None:
    """Hand over the gradients of the variables that were asked for.

    Raises:
        GradientError: there is not one for each.
    """
    delivery = DELIVERY.get()
    if delivery is None:
        return
    if len(gradients) != len(delivery.variables):
        raise GradientError(
            f"a gradient function returned {len(gradients)} gradients for "
            f"{len(delivery.variables)} variables; expected one for each, None where there is none"
        )
    delivery.gradients, delivery.is_done = gradients, True
