"""Functions of `xg.xp` that draw random numbers, and the key that each takes."""

from __future__ import annotations

from typing import Any

from ....core.backend.discovery import backend_of
from ....core.trace.trace import Value, apply
from ....errors import RuleError
from ...ops import draws as ops
from ...random import REPLAYED, key_from_int
from ..random_keys import key_for, key_pair

Tensor = Any

__all__ = [
    "bernoulli_like", "exponential_like", "gumbel_like", "rademacher_like", "rand_like",
    "randn_like",
]  # fmt: skip


def rand_like(x: Tensor, key: Any = None) -> Tensor:
    """Uniform on [0, 1), of x's shape and dtype; in a rule each draw takes the next key.

    Examples:
        >>> @xg.register("dropped")
        ... def dropped(ctx, grad_out, tin, p=0.5):
        ...     return xp.where(xp.rand_like(grad_out) < p, 0.0, grad_out)
        >>> drawn = dropped(None, np.ones(100), None, key=7)
        >>> bool((dropped(None, np.ones(100), None, key=7) == drawn).all())
        True
    """
    return apply(ops.UNIFORM_LIKE, _draw_key("rand_like", x, key), x)


def randn_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard normal, of x's shape and dtype; in a rule each draw takes the next key.

    Examples:
        >>> xp.randn_like(np.zeros(3), key=np.array([0, 7], np.uint32)).shape
        (3,)
    """
    return apply(ops.NORMAL_LIKE, _draw_key("randn_like", x, key), x)


def bernoulli_like(x: Tensor, p: Any = 0.5, key: Any = None) -> Tensor:
    """1 with probability p (a number or a tensor), else 0, of x's shape and dtype.

    Examples:
        >>> xp.bernoulli_like(np.zeros(2), np.array([0.0, 1.0]), key=np.array([0, 7], np.uint32))
        array([0., 1.])
    """
    return apply(ops.BERNOULLI_LIKE, _draw_key("bernoulli_like", x, key), x, p)


def rademacher_like(x: Tensor, key: Any = None) -> Tensor:
    """1 or -1, equally likely, of x's shape and dtype.

    Examples:
        >>> xp.abs(xp.rademacher_like(np.zeros(3), key=np.array([0, 7], np.uint32)))
        array([1., 1., 1.])
    """
    return apply(ops.RADEMACHER_LIKE, _draw_key("rademacher_like", x, key), x)


def exponential_like(x: Tensor, key: Any = None) -> Tensor:
    """Exponential with mean 1, of x's shape and dtype.

    Examples:
        >>> bool((xp.exponential_like(np.zeros(3), key=np.array([0, 7], np.uint32)) >= 0).all())
        True
    """
    return apply(ops.EXPONENTIAL_LIKE, _draw_key("exponential_like", x, key), x)


def gumbel_like(x: Tensor, key: Any = None) -> Tensor:
    """Standard Gumbel, of x's shape and dtype.

    Examples:
        >>> xp.gumbel_like(np.zeros(3), key=np.array([0, 7], np.uint32)).shape
        (3,)
    """
    return apply(ops.GUMBEL_LIKE, _draw_key("gumbel_like", x, key), x)


def _draw_key(name: str, x: Tensor, key: Any) -> Any:
    """Return the key of a draw: in a rule or a Function the next, for a tensor the given key."""
    if isinstance(key, Value):
        return key
    if isinstance(x, Value):
        if key is None:
            return x.trace.next_key()
        raise x.trace.error(
            f"draws by xp.{name} with a fixed key, so that each call would draw the same. Leave "
            "key= out and give the key to the call: xg.use(rule, key=...), function.keyed(...)"
        )
    if key is None:
        keys = REPLAYED.get()
        if keys is None:
            raise RuleError(
                f"xp.{name} of a tensor needs a key: give key=..., an int, a jax key or two "
                "uint32. In a rule and in a Function each draw takes the next key by itself"
            )
        return next(keys)
    if isinstance(key, int) and not isinstance(key, bool):
        return key_from_int(key)
    return key_for(backend_of(x), key_pair(key))
