"""Variables that a function reads besides its arguments, where a framework asks its gradient
function for theirs too.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import GradientError

Tensor = Any


@dataclass(slots=True)
class Delivery:
    """The variables that a function has read, and the gradients that it delivers to them."""

    variables: Sequence[Any]
    gradients: Sequence[Tensor | None]


# Set by a backend while a function's own pull runs; None: nobody asks.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_delivery", default=None
)


def pull_delivering(
    pull: Callable[..., Any], cotangents: Sequence[Tensor], variables: Sequence[Any]
) -> tuple[Any, list[Tensor | None]]:
    """Return the gradients that a pull gives, and those that it delivers to variables, None where
    it does not.
    """
    delivery = Delivery(variables, [None] * len(variables))
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
    delivery.gradients = gradients
