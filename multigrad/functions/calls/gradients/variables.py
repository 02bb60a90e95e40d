"""Gradients of variables that a function reads besides its arguments, as TensorFlow's functions do.

A backend calls `pull_delivering` around the function's own pull; the pull asks for the variables
(`asked_variables`) and gives their gradients (`deliver`).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from ....errors import GradientError
from ....graph.support.class_bases import dataclass
from ....graph.support.threads import set_within

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


# Set by a backend while a function's own pull runs; None: no variables are asked for.
DELIVERY: contextvars.ContextVar[Delivery | None] = contextvars.ContextVar(
    "multigrad_delivery", default=None
)


def never_added(variable: Any) -> bool:
    return False


def pull_delivering(
    pull: Callable[..., Any],
    cotangents: Sequence[Tensor],
    variables: Sequence[Any],
    is_added: Callable[[Any], bool] = never_added,
) -> tuple[Any, list[Tensor | None]]:
    """Return a pull's gradients, and those that it delivers to variables, None for none."""
    delivery = Delivery(variables, [None] * len(variables), is_added)
    with set_within(DELIVERY, delivery):
        gradients = pull(*cotangents)
    return gradients, list(delivery.gradients)


def asked_variables() -> list[Any]:
    delivery = DELIVERY.get()
    return [] if delivery is None else list(delivery.variables)


def lost_variables() -> list[Any]:
    """Return the variables whose gradients are asked for and were not delivered."""
    delivery = DELIVERY.get()
    if delivery is None or delivery.is_done:
        return []
    return [each for each in delivery.variables if not delivery.is_added(each)]


def deliver(gradients: Sequence[Tensor | None]) -> None:
    delivery = DELIVERY.get()
    if delivery is None:
        return
    if len(gradients) != len(delivery.variables):
        raise GradientError(
            f"a gradient function returned {len(gradients)} gradients for "
            f"{len(delivery.variables)} variables; expected one for each, None where there is none"
        )
    delivery.gradients, delivery.is_done = gradients, True
