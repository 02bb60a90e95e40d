"""`xg.schedule`: numbers that move from step to step, for a rule's params.

A Schedule is a formula and a count. `step()` moves the count on; a rule that has the schedule for a
param reads its value at forward, so a backward uses the value of its forward. It becomes a number
in one place, `engine/trace/moving_numbers.py`: in eager code a float; in code that `xg.jit`,
torch.compile or tf.function keeps a tensor that follows it; under a plain jax.jit a constant, of
whose end jax is told. The formulas are written once, in the neutral dialect: `schedule(step)` takes
numbers and tensors of every framework, those of a trace among them.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from numbers import Integral, Real
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .core.backend.compiler_events import is_tracing
from .core.backend.values import concrete_number, owner_of
from .core.ir.op import FLOATS, dtype_name
from .core.support.pickles import pickled
from .core.support.threads import make_lock
from .core.support.trees import Tensor
from .core.trace.xp import all as xp
from .engine.functions.calls.parameters import told_arguments
from .engine.support.public_modules import module_hooks, name_in_module
from .engine.trace.moving_numbers import (
    MovingNumber,
    check_move,
    note_moved,
    refuse_step,
    tell_moved,
)
from .errors import BackendNotFound, FormatError, RuleTypeError, RuleValueError, suggest

__all__ = ["Schedule", "cosine", "exponential", "from_dict", "linear", "of", "piecewise"]


# --- what schedules are given: numbers, whole numbers, functions by name --------------------------
def read_number(what: str, value: Any) -> float:
    number = None if isinstance(value, MovingNumber) else number_in(value)
    if number is None:
        raise RuleTypeError(f"{what} is a number, got {type(value).__name__} {value!r:.40}")
    if not math.isfinite(number):
        raise RuleValueError(f"{what} is finite, got {number!r}")
    return number


def read_whole(what: str, value: Any, least: int) -> int:
    number = read_number(what, value)
    if number != int(number):
        raise RuleTypeError(f"{what} is a whole number, got {value!r:.40}")
    if number < least:
        raise RuleValueError(f"{what} is >= {least}, got {value!r:.40}")
    return int(number)


def number_in(value: Any) -> float | None:
    """Return a number, also that in a tensor without axes; None for anything else."""
    if isinstance(value, bool | str | bytes):
        return None
    if isinstance(value, Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    if getattr(value, "shape", None) != () or "bool" in str(getattr(value, "dtype", "bool")):
        return None
    try:
        return concrete_number(value)
    except (BackendNotFound, TypeError, ValueError):
        return None


def name_of(fn: Callable[..., Any]) -> str:
    if name := name_in_module(fn):
        return f"{fn.__module__}:{name}"
    raise FormatError(
        f"schedule of({fn!r:.60}) cannot be saved: no name of a module stands for the function. "
        "Define it by def at the top of a module"
    )


def find_function(fn: str) -> Callable[..., Any]:
    module, _, name = str(fn).partition(":")
    function: Any = sys.modules.get(module)
    for part in name.split("."):
        function = getattr(function, part, None)
    if callable(function):
        return function
    raise FormatError(f"a saved schedule needs the function {fn!r:.60}: import {module!r} first")


# Guards `Schedule.state`, a pair that is replaced as a whole.
_stepping = make_lock()


class Schedule(MovingNumber):
    """A number that changes from step to step: `xg.use(rule, params={"width": schedule})`.

    Made by `linear`, `cosine`, `exponential`, `piecewise` and `of`. A copy (`copy.deepcopy`, also
    of a model that contains it) counts separately from there.

    Examples:
        >>> width = xg.schedule.linear(2.0, 0.5, steps=2)
        >>> act, x = xg.activation("Heaviside"), np.array([0.25])
        >>> with xg.use("triangular", params={"width": width}):
        ...     for _ in range(2):
        ...         y, pull = xg.vjp(act, x)
        ...         print(width.value, pull(np.ones(1))[0])
        ...         width.step()
        2.0 [0.875]
        1.25 [0.8]
    """

    def __init__(self, kind: str, numbers: Mapping[str, Any], count: int = 0) -> None:
        super().__init__()
        self._kind = kind
        self._numbers = dict(numbers)
        self.state = (count, self._check(count))
        self._takers: set[str] = set()

    @property
    def value(self) -> float:
        """The current value.

        Examples:
            >>> xg.schedule.piecewise({0: 1.0, 100: 0.5}).value
            1.0
        """
        return self.state[1]

    @property
    def count(self) -> int:
        """The number of steps so far.

        Examples:
            >>> xg.schedule.linear(1.0, 0.0, steps=10).count
            0
        """
        self.meet_followers()
        return self.state[0]

    def __repr__(self) -> str:
        self.meet_followers()
        count, value = self.state
        return f"{self.formula} at step {count}: {value:.6g}"

    @property
    def formula(self) -> str:
        """The call that makes it.

        Examples:
            >>> xg.schedule.linear(1.0, 0.0, steps=10).formula
            'linear(start=1.0, end=0.0, steps=10, begin=0)'
        """
        words = ", ".join(f"{name}={_write(each)}" for name, each in self._numbers.items())
        return f"{self._kind}({words})"

    def where(self) -> str:
        """Return the current state as text, for messages.

        Examples:
            >>> xg.schedule.linear(1.0, 0.0, steps=10).where()
            'schedule linear(start=1.0, end=0.0, steps=10, begin=0) at step 0'
        """
        return f"schedule {self.formula} at step {self.state[0]}"

    def meet_followers(self) -> None:
        """Move to where a checkpoint has brought the followers, which tell nobody."""
        if self._followers and not is_tracing():
            for follower in self.all_following():
                follower.before_step(self)

    def step(self, n: int = 1) -> None:
        """Advance by n steps; rules applied from now on use the new value.

        Examples:
            >>> width = xg.schedule.linear(1.0, 0.0, steps=10)
            >>> width.step()
            >>> width.step(4)
            >>> width.count, width.value
            (5, 0.5)

        Raises:
            RuleTypeError: n is not a whole number, or the schedule gives no number there.
            RuleValueError: n is negative, or the schedule gives NaN or infinity there; it stays
                where it is.
            TraceError: code is being traced or captured, and would step only once.
        """
        is_plain = type(n) is int and n >= 0
        self.meet_followers()
        self._move(n if is_plain else read_whole("step: n", n, 0), is_set=False)

    def _move(self, number: int, is_set: bool) -> None:
        # A trace would step once, when it is made, and not when it runs.
        refuse_step(self)
        while True:
            old_state = self.state
            count = number if is_set else old_state[0] + number
            value = self._check(count)  # outside the lock: it may run a user's code
            try:
                check_move(self, value)
            except RuleValueError as error:
                raise RuleValueError(f"{error} (schedule {self.formula} at step {count})") from None
            new_state = (count, value)
            # Another thread may have stepped meanwhile: then the value is computed again.
            with _stepping:
                if self.state is old_state:
                    note_moved(self, old_state[1])
                    self.state = new_state
                    break
        try:
            tell_moved(self)
        except BaseException:
            # A move that somebody refuses is undone, unless another one came after it.
            with _stepping:
                self.state = old_state if self.state is new_state else self.state
            with suppress(Exception):  # those that were told before the one that raised
                tell_moved(self)
            raise

    def __call__(self, step: Any) -> Any:
        """Return the number at a step, whatever step this schedule stands at.

        Args:
            step: a number, which gives a float; or a tensor of any framework, of a trace too, which
                gives a tensor of its shape, float32 where the steps are integers.

        Raises:
            RuleTypeError, RuleValueError: the step is not a number, or there is none at it.
        """
        if isinstance(step, Real) and not isinstance(step, bool):
            return self._check(step)
        # A Keras Variable holds its tensor.
        tensor: Any = step if owner_of(step) else getattr(step, "value", None)
        if owner_of(tensor) is None:
            raise RuleTypeError(
                f"schedule {self.formula} takes a step, a number or a tensor, got "
                f"{type(step).__name__} {step!r:.40}"
            )
        if self._kind == "of":
            return self._numbers["fn"](tensor)
        if dtype_name(tensor.dtype) not in FLOATS:
            tensor = xp.astype(tensor, "float32")
        return FORMULAS[self._kind](xp, tensor, **self._numbers)

    def _check(self, step: Any) -> float:
        try:
            if self._kind == "of":
                result = self._numbers["fn"](int(step) if isinstance(step, Integral) else step)
            else:
                result = FORMULAS[self._kind](NUMBERS, float(step), **self._numbers)
        except OverflowError:
            result = math.inf
        value = result if type(result) is float else number_in(result)
        if value is None:
            raise RuleTypeError(f"{self._at(step)} gives {result!r:.60}; expected a number")
        if not math.isfinite(value):
            raise RuleValueError(f"{self._at(step)} gives {value!r}; expected a finite number")
        return value

    def _at(self, step: Any) -> str:
        takers = sorted(getattr(self, "_takers", ()))
        suffix = f" for {' and '.join(takers[:3])}" if takers else ""
        return f"schedule {self.formula}{suffix}, at step {step},"

    def take(self, taker: str) -> None:
        self._takers.add(taker)

    def state_dict(self) -> dict[str, Any]:
        """Return where it stands: `{"count": ...}`, to be saved with a checkpoint.

        Only a schedule in a torch module, a Keras layer or optimizer, or optax's state is saved
        automatically; `torch.distributed.checkpoint` takes a schedule itself as an entry.

        Examples:
            >>> width = xg.schedule.linear(1.0, 0.0, steps=10)
            >>> width.step(3)
            >>> width.state_dict()
            {'count': 3}
        """
        return {"count": self.count}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the count that `state_dict` returned.

        Examples:
            >>> width = xg.schedule.linear(1.0, 0.0, steps=10)
            >>> width.load_state_dict({"count": 5})
            >>> width.value
            0.5

        Raises:
            FormatError: it is not a state of a schedule.
        """
        if not isinstance(state, Mapping) or set(state) != {"count"}:
            raise FormatError(f"a schedule's state is {{'count': ...}}, got {state!r:.60}")
        count = number_in(state["count"])
        if count is None or count < 0 or count != int(count):
            raise FormatError(f"a schedule's count is a whole number, got {state['count']!r:.60}")
        self._move(int(count), is_set=True)

    def to_dict(self) -> dict[str, Any]:
        """Return this schedule and its count as plain data, which `from_dict` reads.

        Examples:
            >>> data = xg.schedule.linear(1.0, 0.0, steps=10).to_dict()
            >>> data
            {'schedule': 'linear', 'start': 1.0, 'end': 0.0, 'steps': 10, 'begin': 0, 'count': 0}
            >>> xg.schedule.from_dict(data).value
            1.0

        Raises:
            FormatError: it is one of a function that cannot be imported by name.
        """
        numbers = dict(self._numbers)
        if self._kind == "of":
            numbers["fn"] = name_of(numbers["fn"])
        if self._kind == "piecewise":
            numbers = {name: list(each) for name, each in numbers.items()}
        return {"schedule": self._kind, **numbers, "count": self.count}

    def __reduce__(self) -> Any:
        return pickled(Schedule, self._kind, dict(self._numbers), self.count)


def _write(each: Any) -> str:
    if isinstance(each, tuple):
        return f"[{', '.join(map(repr, each))}]"
    if callable(each):
        return getattr(each, "__qualname__", None) or type(each).__name__
    return repr(each)


def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def _where(condition: bool, x: float, y: float) -> float:
    return x if condition else y


# The functions of the dialect that formulas need, on Python's numbers: each step calls them.
NUMBERS = SimpleNamespace(
    clip=_clip,
    cos=math.cos,
    floor=math.floor,
    maximum=max,
    minimum=min,
    pi=math.pi,
    pow=pow,
    where=_where,
)


def _linear(xp: Any, step: Tensor, start: float, end: float, steps: float, begin: float) -> Tensor:
    progress = xp.clip((step - begin) / steps, 0.0, 1.0)
    return start * (1.0 - progress) + end * progress


def _cosine(xp: Any, step: Tensor, start: float, end: float, steps: float, begin: float) -> Tensor:
    progress = xp.clip((step - begin) / steps, 0.0, 1.0)
    start_share = 0.5 * (1.0 + xp.cos(xp.pi * progress))
    return start * start_share + end * (1.0 - start_share)


def _exponential(
    xp: Any,
    step: Tensor,
    start: float,
    rate: float,
    every: float,
    staircase: bool,
    end: float | None,
    begin: float,
) -> Tensor:
    times = xp.maximum((step - begin) / every, 0.0)
    value = start * xp.pow(rate, xp.floor(times) if staircase else times)
    if end is None:
        return value
    return xp.maximum(value, end) if start > end else xp.minimum(value, end)


def _piecewise(
    xp: Any, step: Tensor, boundaries: tuple[float, ...], values: tuple[float, ...]
) -> Tensor:
    # 0.0 * step gives the step's shape and dtype.
    value = values[0] + 0.0 * step
    for boundary, later in zip(boundaries, values[1:], strict=True):
        value = xp.where(step >= boundary, later, value)
    return value


FORMULAS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "cosine": _cosine,
    "exponential": _exponential,
    "piecewise": _piecewise,
}


# --- what people call to make a schedule, and the way back from saved ones ------------------------
@told_arguments
def linear(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """start + (end - start) * min((step - begin) / steps, 1), and start before begin.

    Examples:
        >>> width = xg.schedule.linear(2.0, 0.5, steps=100)
        >>> [width(step) for step in (0, 50, 100, 200)]
        [2.0, 1.25, 0.5, 0.5]

    Raises:
        RuleTypeError: an argument is not a number.
        RuleValueError: one is NaN or infinite, steps is not above 0, or begin is negative.
    """
    return _ramp("linear", start, end, steps, begin)


@told_arguments
def cosine(start: float, end: float, steps: int, begin: int = 0) -> Schedule:
    """end + (start - end) * (1 + cos(pi * min((step - begin) / steps, 1))) / 2: half a cosine.

    Args, errors: as for `linear`.

    Examples:
        >>> width = xg.schedule.cosine(2.0, 0.0, steps=100)
        >>> [round(width(step), 3) for step in (0, 25, 50, 100)]
        [2.0, 1.707, 1.0, 0.0]
    """
    return _ramp("cosine", start, end, steps, begin)


def _ramp(kind: str, start: float, end: float, steps: int, begin: int) -> Schedule:
    numbers = {
        "start": read_number(f"{kind}: start", start),
        "end": read_number(f"{kind}: end", end),
        "steps": read_whole(f"{kind}: steps", steps, 1),
        "begin": read_whole(f"{kind}: begin", begin, 0),
    }
    return Schedule(kind, numbers)


@told_arguments
def exponential(
    start: float,
    rate: float,
    every: int = 1,
    staircase: bool = False,
    end: float | None = None,
    begin: int = 0,
) -> Schedule:
    """start * rate ** ((step - begin) / every), and start before begin; `optax.exponential_decay`.

    Examples:
        >>> width = xg.schedule.exponential(1.0, 0.5, every=10, staircase=True)
        >>> [width(step) for step in (0, 9, 10, 25)]
        [1.0, 1.0, 0.5, 0.25]

    Args:
        start: the first value.
        rate: what the value is multiplied by after each `every` steps; above 0.
        every: how many steps that takes.
        staircase: whether the value stays the same in between.
        end: where it stops.
        begin: the step at which it begins.

    Raises:
        RuleTypeError: an argument is not a number.
        RuleValueError: one is NaN or infinite, or below its range.
    """
    if not isinstance(staircase, bool):
        raise RuleTypeError(f"exponential: staircase is a bool, got {staircase!r:.40}")
    numbers = {
        "start": read_number("exponential: start", start),
        "rate": read_number("exponential: rate", rate),
        "every": read_whole("exponential: every", every, 1),
        "staircase": staircase,
        "end": None if end is None else read_number("exponential: end", end),
        "begin": read_whole("exponential: begin", begin, 0),
    }
    if numbers["rate"] <= 0.0:
        raise RuleValueError(f"exponential: rate is > 0, got {rate!r}")
    return Schedule("exponential", numbers)


@told_arguments
def piecewise(
    boundaries: Mapping[int, float] | Iterable[int], values: Iterable[float] | None = None
) -> Schedule:
    """Values that hold until the next one's first step: `piecewise({0: 1.0, 100: 0.5})`.

    Examples:
        >>> width = xg.schedule.piecewise([100, 200], [1.0, 0.5, 0.25])
        >>> [width(step) for step in (0, 99, 100, 200)]
        [1.0, 1.0, 0.5, 0.25]

    Args:
        boundaries: values by their first step, one of which is 0; or the first steps of all values
            but the first.
        values: then the values, one more than the boundaries.

    Raises:
        RuleTypeError: there is not a number in a place of one.
        RuleValueError: the steps do not ascend from 0, or the lengths do not fit.
    """
    if isinstance(boundaries, Mapping):
        if values is not None:
            raise RuleTypeError("piecewise takes values by first step, or boundaries and values")
        pairs = sorted((read_whole("piecewise: a step", k, 0), v) for k, v in boundaries.items())
        if not pairs or pairs[0][0] != 0:
            raise RuleValueError(f"piecewise needs the value at step 0, got {boundaries!r:.60}")
        steps, levels = [step for step, _ in pairs[1:]], [value for _, value in pairs]
    elif values is None or any(
        not isinstance(x, Iterable) or isinstance(x, str | Mapping) for x in (boundaries, values)
    ):
        raise RuleTypeError(
            "piecewise takes values by first step, {0: 1.0, 100: 0.5}, or boundaries and values, "
            f"[100], [1.0, 0.5]; got {boundaries!r:.40}, {values!r:.40}"
        )
    else:
        steps = [read_whole("piecewise: a boundary", step, 1) for step in boundaries]
        levels = list(values)
    if len(levels) != len(steps) + 1:
        raise RuleValueError(
            f"piecewise takes one value more than boundaries, got {len(levels)} and {len(steps)}"
        )
    if any(b <= a for a, b in itertools.pairwise(steps)):
        raise RuleValueError(f"piecewise: the boundaries ascend, got {steps}")
    numbers = tuple(read_number("piecewise: a value", value) for value in levels)
    return Schedule("piecewise", {"boundaries": tuple(steps), "values": numbers})


def of(fn: Callable[[Any], Any]) -> Schedule:
    """fn(step), for any function of the step: an int gives a number; asked for a tensor, a tensor.

    Schedules of optax are such functions. `step()` calls it, once per step.

    Examples:
        >>> width = xg.schedule.of(lambda step: 1.0 / (1 + step))
        >>> width.step(3)
        >>> width.value
        0.25

    Raises:
        RuleTypeError: it is not a function, or gives no number at step 0.
        RuleValueError: it gives NaN or infinity there.
    """
    if isinstance(fn, Schedule) or not callable(fn):
        raise RuleTypeError(f"of: fn is a function of the step, got {fn!r:.60}")
    return Schedule("of", {"fn": fn})


MAKERS = {make.__name__: make for make in (linear, cosine, exponential, piecewise)}


def from_dict(data: Mapping[str, Any]) -> Schedule:
    """Return the schedule that `to_dict` described, with its count.

    Nothing is imported: the function of an `of` must be in a module that is imported already.

    Examples:
        >>> data = {"schedule": "linear", "start": 1.0, "end": 0.0, "steps": 4}
        >>> width = xg.schedule.from_dict(data)
        >>> width.step()
        >>> width
        linear(start=1.0, end=0.0, steps=4, begin=0) at step 1: 0.75

    Raises:
        FormatError: it does not describe a schedule.
    """
    kind = data.get("schedule") if isinstance(data, Mapping) else None
    if kind not in (*MAKERS, "of"):
        hint = suggest(str(kind), [*MAKERS, "of"])
        raise FormatError(f"no schedule {kind!r:.60}{hint} (schedules: {', '.join(MAKERS)}, of)")
    numbers = {name: each for name, each in data.items() if name not in ("schedule", "count")}
    try:
        schedule = of(find_function(**numbers)) if kind == "of" else MAKERS[kind](**numbers)
        count = read_whole("count", data.get("count", 0), 0)
        return Schedule(kind, schedule._numbers, count)
    except (TypeError, ValueError) as error:
        raise FormatError(f"a saved schedule is malformed: {error}") from error


if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
