"""What a rule does to a gradient, found out by trying: known of any rule, captured or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...rules.model.rule import Rule

Array = Any
SEED = 15


@dataclass(frozen=True, slots=True)
class Behavior:
    """What a rule does.

    Attributes:
        reads_tin: another input gives another gradient.
        is_linear: twice the gradient gives twice the result, its negative the negative one.
        is_elementwise: the other elements change nothing.
        is_random: another key gives another result.
    """

    reads_tin: bool
    is_linear: bool
    is_elementwise: bool
    is_random: bool

    @property
    def is_factor(self) -> bool:
        """Whether it multiplies each element of the gradient by a number of its own."""
        return self.is_linear and self.is_elementwise


def apply(
    rule: Rule, grad_out: Array, tin: Array | None, params: Mapping[str, Any], key: int = 0
) -> Array:
    """Return the gradient that a rule gives, its draws by a key."""
    keys = {} if rule.signature.takes("key") else {"key": key}
    return np.asarray(rule(None, grad_out, tin, **params, **keys))


def observe(rule: Rule, params: Mapping[str, Any]) -> Behavior:
    """Return what a rule does with these params.

    Raises:
        MultigradError: it does not take them, or fails.
    """
    sizes = np.geomspace(1e-3, 12.0, 40)
    tin = by_size(np.concatenate([-sizes, [0.0], sizes]))
    grad_out = by_size(np.random.default_rng(SEED).standard_normal(tin.shape))
    result = apply(rule, grad_out, tin, params)
    # Zeros among them, for rules that look for signs; a few, for those that look at all.
    others = (tin + 0.37, np.zeros_like(tin), -tin)
    few = len(tin) // 3
    return Behavior(
        reads_tin=not all(same(result, apply(rule, grad_out, x, params)) for x in others),
        is_linear=same(2.0 * result, apply(rule, 2.0 * grad_out, tin, params))
        and same(-result, apply(rule, -grad_out, tin, params)),
        is_elementwise=same(result[:few], apply(rule, grad_out[:few], tin[:few], params)),
        is_random=not same(result, apply(rule, grad_out, tin, params, key=1)),
    )


def by_size(x: Array) -> Array:
    """Return numbers with the smallest first: what a part of them lacks are the extremes."""
    return x[np.argsort(np.abs(x), kind="stable")]


def same(one: Array, other: Array) -> bool:
    return one.shape == other.shape and np.allclose(one, other, 1e-9, 1e-12, equal_nan=True)
