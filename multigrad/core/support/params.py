"""What rules and Functions are given besides tensors, read and checked. The sections:

params    by name, {"width": 2.0}
ranges    the values that a param takes: Range.read("> 0 and <= b")
shards    `over=` and `axis_name=`, over which parts of an array a rule sums
fused     `fused=`, whether parts run as one kernel
types     of these options, in public signatures
"""

from __future__ import annotations

import math
import operator
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np

from ...errors import RuleTypeError, RuleValueError, UnsupportedOp, suggest
from .lazy_modules import NEEDS_ENGINE, provided
from .pickles import pickled

# `P` and `R` are the parameters and result of a user's function. A bare `Function` in an annotation
# means one of any parameters; the typing module of Python 3.11 has no such defaults, and only
# checkers read them.
if TYPE_CHECKING:
    from typing_extensions import ParamSpec, TypeVar

    from ...engine.support.shards import Shards

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P, R = ParamSpec("P"), TypeVar("R")


# --- params ---------------------------------------------------------------------------------------
_WORDS = {str}


class FixedParams(dict[str, Any]):
    """A copy of params by name; changing one raises TypeError with this advice."""

    __slots__ = ("_advice",)

    def __init__(self, params: Any, advice: str) -> None:
        super().__init__(params)
        self._advice = advice

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"these params are a copy, so changing them changes nothing; {self._advice}"
        )

    __setitem__ = __delitem__ = __ior__ = _refuse
    pop = popitem = clear = _refuse
    update: Any = _refuse
    setdefault: Any = _refuse

    # A copy or a pickle is a plain dict.
    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def read_params(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the params given to a rule, in a new dict."""
    if params is None:
        return {}
    if type(params) is dict and _WORDS.issuperset(map(type, params)):  # each `use` asks
        return params.copy()
    if not isinstance(params, Mapping) or any(not isinstance(name, str) for name in params):
        raise RuleTypeError(
            f"params are a dict, such as {{'width': 1.0}}, got {type(params).__name__} "
            f"{params!r:.40}"
        )
    return dict(params)


def is_address(name: str) -> bool:
    """Return whether a param's name begins with the name of a part."""
    return "." in name


# --- ranges ---------------------------------------------------------------------------------------
Number = float | int
Compare = Callable[[Any, Any], bool]
FORM = '"> 0", ">= 1 and <= 16", "!= 0", "finite", or "<= b" for another param b'
COMPARISONS: Mapping[str, Compare] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
# Not by infinity: of a symbol that is never infinite, Dynamo (torch 2.13) takes that for true.
FINITE = ((operator.ge, -sys.float_info.max), (operator.le, sys.float_info.max))
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
CONDITION = rf"(>=|<=|!=|>|<)\s*({NUMBER}|[^\W\d]\w*)"  # compiled when it is first used
NOTHING: Mapping[str, Any] = MappingProxyType({})
MOST_CONDITIONS = 16
# Tuples: Dynamo (torch 2.13) reads no union of types.
ARRAYS: tuple[type, ...] = (np.generic, np.ndarray)
NUMBERS: tuple[type, ...] = (float, int)


@dataclass(frozen=True, slots=True, repr=False)
class Range:
    """The values that a param takes: all that meet every condition.

    Infinity is compared as any number is; "finite" excludes it. NaN is in no range.

    Attributes:
        text: the conditions, as they are shown.
        low, high: the ends, which may be -inf and inf, and need not belong to the range.
        conditions: comparisons with a number, or with the value of the param of a name.
    """

    text: str
    low: float
    high: float
    conditions: tuple[tuple[Compare, Number | str], ...]

    @classmethod
    def read(cls, text: Any) -> Range:
        """Return the range that a text such as "> 0 and <= b" describes."""
        words, low, high = [], -math.inf, math.inf
        conditions: list[tuple[Compare, Number | str]] = []
        parts = text.split(" and ") if isinstance(text, str) else []
        for part in map(str.strip, parts):
            if part == "finite":
                words.append(part)
                conditions += FINITE
                continue
            match = re.fullmatch(CONDITION, part)
            if match is None:
                break
            sign, bound = match.groups()
            words.append(f"{sign} {bound}")
            compare = COMPARISONS[sign]
            if bound.isidentifier():
                conditions.append((compare, bound))
                continue
            number = float(bound)
            conditions.append((compare, number))
            low = max(low, number) if sign in (">", ">=") else low
            high = min(high, number) if sign in ("<", "<=") else high
        # A part that is no condition has ended the loop.
        if not words or len(words) != len(parts) or len(words) > MOST_CONDITIONS:
            raise RuleValueError(f"{text!r:.80} is not a range; write {FORM}")
        return cls(" and ".join(words), low, high, tuple(conditions))

    @property
    def others(self) -> frozenset[str]:
        """The names of the params that a value is compared with."""
        return frozenset(bound for _, bound in self.conditions if isinstance(bound, str))

    @property
    def inner(self) -> tuple[float, float]:
        """Two numbers; all between them is in the range. NaN if conditions say more than that."""
        says_more = self.others or any(compare is operator.ne for compare, _ in self.conditions)
        return (math.nan, math.nan) if says_more else (self.low, self.high)

    def holds(self, value: Any, others: Mapping[str, Any] = NOTHING) -> bool:
        """Return whether a number is in the range; True if it is no number, or not known."""
        if type(value) is not float:
            value = as_number(value)
            if value is None:
                return True
        # NaN; not by math.isnan, of which Dynamo makes no guard (torch 2.13).
        if not -math.inf <= value <= math.inf:
            return False
        for compare, bound in self.conditions:
            if type(bound) is str:
                bound = as_number(others.get(bound))
                if bound is None:
                    continue
            if not compare(value, bound):
                return False
        return True

    def check(
        self, subject: str, name: str, value: Any, others: Mapping[str, Any] = NOTHING
    ) -> None:
        """Check the value of a param of `subject`, such as "rule 'triangular'"; no tensor is read.

        `others` are the values of the other params, as far as they are known.
        """
        if not self.holds(value, others):
            fixed = {other: others[other] for other in sorted(self.others) if other in others}
            context = "".join(f" with {other} = {show(fixed[other])}" for other in fixed)
            raise RuleValueError(
                f"{subject}: param {name!r} is {self.text}, got {show(value):.40}{context}"
            )

    def __repr__(self) -> str:
        return f"Range({self.text!r})"

    def __reduce__(self) -> Any:
        return pickled(Range.read, self.text)


def show(value: Any) -> str:
    """Return its repr; a compiler whose symbols have none puts a function in place of this one."""
    return repr(value)


def as_number(value: Any) -> Number | None:
    """Return a number that is known without a look into a framework's tensor, else None."""
    number: Any = value
    if isinstance(number, ARRAYS) and number.shape == ():
        number = number.item()
    if isinstance(number, bool) or not isinstance(number, NUMBERS):
        return None
    return number


def read_ranges(ranges: Any, subject: str) -> dict[str, Range]:
    """Return the ranges of params, from texts or ranges by name."""
    if ranges is None:
        return {}
    if not isinstance(ranges, Mapping):
        raise RuleValueError(
            f'{subject}: ranges are a dict, such as {{"width": "> 0"}}, got {ranges!r:.40}'
        )
    by_name = {}
    for name, text in ranges.items():
        try:
            by_name[name] = text if isinstance(text, Range) else Range.read(text)
        except RuleValueError as error:
            raise RuleValueError(f"{subject}: ranges[{name!r}]: {error}") from None
    return by_name


def both(one: Range | None, other: Range) -> Range:
    """Return the range of the values that are in both; None is any value."""
    if one is None or one.text == other.text:
        return other
    parts = (*one.text.split(" and "), *other.text.split(" and "))
    return Range.read(" and ".join(dict.fromkeys(parts)))


# --- shards: how a local tensor is a part of an array ---------------------------------------------
@provided
def read_shards(over: Any = None, axis_name: Any = None) -> Shards | None:
    """Return the meaning of `over` and `axis_name`; None if neither is given."""
    if over is None and axis_name is None:
        return None
    raise UnsupportedOp(f"an array that is split over devices {NEEDS_ENGINE}")


# --- fused: whether parts of a Function run as one kernel each ------------------------------------
Fused: TypeAlias = Literal["auto"] | bool
VARIABLE = "MULTIGRAD_FUSED"
SETTINGS: dict[str, Fused] = {"": "auto", "auto": "auto", "on": True, "off": False}


def read_fused(fused: Any) -> Fused:
    """Return an option `fused` as it was given, or raise RuleTypeError."""
    if fused == "auto" or isinstance(fused, bool):
        return fused
    raise RuleTypeError(f'fused is "auto", True or False, got {fused!r}')


def in_process(fused: Fused) -> Fused:
    """Return the option with "auto" resolved by this process's environment variable."""
    setting = os.environ.get(VARIABLE, "")
    if setting not in SETTINGS:
        raise RuleValueError(f"{VARIABLE} is on, off or auto, got {setting!r}")
    return SETTINGS[setting] if fused == "auto" else fused


def agreed(choices: Iterable[Any]) -> Any:
    """Return the choice common to all that are not "auto"; "auto" if there is none."""
    explicit = {choice for choice in choices if choice != "auto"}
    return explicit.pop() if len(explicit) == 1 else "auto"


# --- types in public signatures -------------------------------------------------------------------
# Values of frameworks that may not be installed.
Key: TypeAlias = Any  # an int, a jax key, or two uint32
Over: TypeAlias = Any  # "global", "shard" or a partition spec
Axes: TypeAlias = Any  # the name of a mesh axis or group, a tuple of them, or torch's group or mesh
Residuals: TypeAlias = Literal["auto", "input", "mask", "packed", "recompute", "time"]


def read_way(way: Any, subject: str) -> str:
    """Return a way of keeping residuals, or raise RuleValueError."""
    words = get_args(Residuals)
    if way not in words:
        raise RuleValueError(
            f"{subject} got residuals={way!r:.40}; expected one of {', '.join(map(repr, words))}"
            f"{suggest(str(way), words)}"
        )
    return way
