"""Paddle's dialect: which function of `paddle` means which op.

Paddle has no protocol for symbolic values: a rule gets stand-ins for its modules and functions.
They are called by Paddle's own parameter names and defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import paddle
import paddle.nn.functional as F

from multigrad.backend import dialects

from ..importers import pylayer
from .functions import HANDLERS, NAMED, PADDLE, identity

Handler = Callable[..., Any]
NAMES = """
    add; sub: subtract; mul: multiply; div: divide; neg; pow; square; sqrt; rsqrt; reciprocal;
    maximum; minimum; fmax; fmin; abs; sign; floor; ceil; trunc; frac; floor_divide;
    remainder: remainder mod floor_mod; atan2; hypot; lerp; exp; expm1; log; log1p; log2; log10;
    logaddexp; sin; cos; tan; asin; acos; atan; sinh; cosh; tanh: tanh F.tanh; asinh; acosh; atanh;
    erf; erfinv; lgamma; digamma; i0e; i1e; sinc; copysign; nextafter; deg2rad; rad2deg;
    lt: less_than; le: less_equal; gt: greater_than; ge: greater_equal; eq: equal; ne: not_equal;
    and: logical_and; or: logical_or; xor: logical_xor; not: logical_not; isnan; isinf; isfinite;
    sigmoid: F.sigmoid; log_sigmoid: F.log_sigmoid; soft_sign: F.softsign; signbit;
    tanh_shrink: F.tanhshrink; relu: F.relu; relu6: F.relu6
"""
ALIASES: dict[Any, Handler] = {
    function: PADDLE.bound(function, handler)
    for function, handler in {**dialects.named(NAMES, paddle, F=F), **HANDLERS}.items()
}
ALIASES |= NAMED
ALIASES |= dialects.creation.creators(("paddle",))
RECORDED = {
    name: handler
    for name in dir(paddle.Tensor)
    if not name.startswith("_")
    and (handler := ALIASES.get(getattr(paddle, name, None))) is not None
    and name not in dialects.methods.METHODS
}

OWN_METHODS = """
    add cast clip cumsum matmul max mean min mm norm numel reshape scale std subtract sum transpose
    unsqueeze var
"""
METHODS = {name: ALIASES[getattr(paddle, name)] for name in OWN_METHODS.split()}


def undecorated(function: Handler | None = None, *args: Any, **options: Any) -> Any:
    """`paddle.jit.to_static` in a rule: the Python function itself."""
    return undecorated if function is None else function


def is_tensor(x: Any) -> bool:
    return isinstance(x, dialects.Value | paddle.Tensor)


class State:
    """A state of Paddle's generators, which knows its like; Paddle's own is equal to none."""

    __slots__ = ("states", "text")

    def __init__(self, states: list[Any]) -> None:
        self.states = states
        # Without the addresses that stand among the words.
        self.text = [word for state in states for word in str(state).split() if word[:2] != "0x"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]


class Generator:
    """Paddle's global generators as one."""

    def get_state(self) -> State:
        """Return the states."""
        return State(paddle.get_rng_state())

    def set_state(self, state: State) -> None:
        """Go on from them."""
        paddle.set_rng_state(state.states)


GENERATORS = [Generator()]


def generators() -> list[Generator]:
    return GENERATORS


def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> Any:
    return paddle.full(shape, number, dtype=dtype)


def run(calls: Sequence[dialects.StandInCall], mode: Any) -> list[Any]:
    """Run calls at once, outside of records."""
    with paddle.no_grad():
        return dialects.run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (x.dtype.name.lower(), False) if isinstance(x, paddle.Tensor) else None


# Which dtype Paddle gives a call: the call itself, on tensors of one element.
TYPES = dialects.TypeOracle(tiny, run, read, paddle.get_default_dtype, ranks_count=True)

SEEDS = "but the draws of a rule follow the key of xg.use(..., key=...)"
SWITCHES = "which sets Paddle itself, outside of a graph. Call it outside of the rule"
dialects.register_dialect(
    "paddle",
    dialects.Dialect(
        ALIASES,
        paddle.Tensor,
        functools.partial(getattr, paddle),
        "cpu",
        correction=1,
        methods={**RECORDED, **METHODS},
        hidden={
            paddle.jit.to_static: undecorated,
            paddle.is_tensor: is_tensor,
            paddle.assign: identity,
        },
        protocol=False,
        refused={
            paddle.seed: SEEDS,
            paddle.set_default_dtype: SWITCHES,
            paddle.set_rng_state: SWITCHES,
        },
        shown="paddle",
        keeps=pylayer.is_custom_gradient,
        interceptions=pylayer.INTERCEPTIONS,
        generators=generators,
        types=TYPES,
        habits=dialects.Habits(plus_copies=False, small_integers_wrap=True, sorts_anew=True),
    ),
)
