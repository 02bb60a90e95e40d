"""`multigrad.optax.apply_rule`: a rule on gradients as a transformation of optax."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..core.support.trees import Tensor
from . import served_by

__all__ = ["RuleState", "apply_rule"]


class RuleState(NamedTuple):
    """The state of the transformation: the number of updates, and the key of random rules as two
    uint32.

    Examples:
        >>> import jax.numpy as jnp, multigrad.optax, optax
        >>> transform = multigrad.optax.apply_rule("noise", {"sigma": 0.1}, key=7)
        >>> state = transform.init(jnp.zeros(2))
        >>> int(state.count), state.key.shape
        (0, (2,))
    """

    count: Tensor
    key: Tensor | None = None


if TYPE_CHECKING:
    from multigrad_jax.compat import apply_rule
else:
    __getattr__, __dir__ = served_by("jax", "compat", __name__, __all__)
