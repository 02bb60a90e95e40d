"""`Schedule`: a formula and a count."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from numbers import Integral, Real
from types import SimpleNamespace
from typing import Any

from ...backend.finding.discovery import backend_of
from ...backend.finding.events import is_tracing, tell_moved
from ...errors import BackendNotFound, FormatError, RuleTypeError, RuleValueError
from ...graph.ir.types import FLOATS, dtype_name
from ...graph.support.data import InNotebooks
from ...graph.support.threads import make_lock
from ...trace.scope.moving import Moving, note_moved
from ...trace.scope.present import check_move, refuse_step
from ...trace.xp import all as xp
from .arguments import name_of, number_in, read_whole

Tensor = Any
_stepping = make_lock()


class Schedule(Moving, InNotebooks):
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
        """Stand where a checkpoint has brought what follows, of which nothing has told."""
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
        refuse_step(self)
        while True:
            before = self.state
            count = number if is_set else before[0] + number
            value = self._check(count)  # outside of the lock: it may run a user's code
            try:
                check_move(self, value)
            except RuleValueError as error:
                raise RuleValueError(f"{error} (schedule {self.formula} at step {count})") from None
            after = (count, value)
            with _stepping:
                if self.state is before:
                    note_moved(self, before[1])
                    self.state = after
                    break
        try:
            tell_moved(self)
        except BaseException:
            with _stepping:
                self.state = before if self.state is after else self.state
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
        # A Variable of Keras's has its tensor.
        tensor: Any = step if _is_tensor(step) else getattr(step, "value", None)
        if not _is_tensor(tensor):
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
        """Return the number at a step, which must be one."""
        try:
            if self._kind == "of":
                found = self._numbers["fn"](int(step) if isinstance(step, Integral) else step)
            else:
                found = FORMULAS[self._kind](NUMBERS, float(step), **self._numbers)
        except OverflowError:
            found = math.inf
        value = found if type(found) is float else number_in(found)
        if value is None:
            raise RuleTypeError(f"{self._at(step)} gives {found!r:.60}; expected a number")
        if not math.isfinite(value):
            raise RuleValueError(f"{self._at(step)} gives {value!r}; expected a finite number")
        return value

    def _at(self, step: Any) -> str:
        takers = sorted(getattr(self, "_takers", ()))
        whose = f" for {' and '.join(takers[:3])}" if takers else ""
        return f"schedule {self.formula}{whose}, at step {step},"

    def take(self, taker: str) -> None:
        """Note whose param it is, for messages."""
        self._takers.add(taker)

    # --- saving -----------------------------------------------------------------------------------

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
        return Schedule, (self._kind, dict(self._numbers), self.count)


def _is_tensor(value: Any) -> bool:
    try:
        backend_of(value)
    except BackendNotFound:
        return False
    return True


def _write(each: Any) -> str:
    if isinstance(each, tuple):
        return f"[{', '.join(map(repr, each))}]"
    if callable(each):
        return getattr(each, "__qualname__", None) or type(each).__name__
    return repr(each)


# --- the formulas of schedules --------------------------------------------------------------------
def _clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def _where(condition: bool, x: float, y: float) -> float:
    return x if condition else y


# The few functions of the dialect that formulas need, for numbers: a step asks each time.
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
    done = xp.clip((step - begin) / steps, 0.0, 1.0)
    return start * (1.0 - done) + end * done


def _cosine(xp: Any, step: Tensor, start: float, end: float, steps: float, begin: float) -> Tensor:
    done = xp.clip((step - begin) / steps, 0.0, 1.0)
    left = 0.5 * (1.0 + xp.cos(xp.pi * done))
    return start * left + end * (1.0 - left)


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
