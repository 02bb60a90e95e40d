"""A function whose operations get rules while it is captured: `xg.override` on NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..capture.code.signature import name_of
from ..capture.code.table import record_call
from ..capture.values.tracer import V
from ..errors import GradientError, MultigradError, RuleValueError, suggest
from ..functions.calls.recipe import Recorded
from ..functions.function import Function
from ..functions.plain import PairRecipe
from ..graph.ir.op import Op
from ..graph.ir.types import INPUT, format_shape, is_float
from ..trace.trace import Trace, Value
from ..trace.xp import all as xp
from .interpose import Meant, no_operation, unmet
from .over import misfit
from .selectors import shown


@dataclass(frozen=True, slots=True)
class Recording(Meant):
    """What a selector means where a function is captured.

    Attributes:
        op: what the function records, where that is one op: so it is recognized as an operator or a
            method too.
        function: the function itself, where it records several.
        rule: what takes the place of its gradient.
    """

    op: Op | None
    function: Any
    rule: Function


@dataclass(frozen=True, slots=True, eq=False)
class OverrideRecipe(PairRecipe):
    """A function without a backward of its own, and the rules on what it calls."""

    rows: tuple[Recording, ...] = ()

    def record(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recorded:
        acting = Acting(self.name, self.rows)
        with acting.on(trace):
            recorded = PairRecipe.record(self, trace, args, kwargs)
        acting.check()
        return recorded


class Acting:
    """Rules on what a capture records; lives while one function is recorded."""

    def __init__(self, name: str, rows: tuple[Recording, ...]) -> None:
        self.name = name
        self.rows = rows
        self.met: set[Recording] = set()
        self.names: set[str] = set()

    @contextmanager
    def on(self, trace: Trace) -> Iterator[None]:
        """Let the rules act on what a trace records."""
        before, trace.overriding = trace.overriding, self
        try:
            yield
        finally:
            trace.overriding = before

    def record(self, trace: Trace, op: Op, operands: tuple[Any, ...], again: Any) -> Any:
        """Return an op's result, whose gradient is the rule's; None: no rule is on it."""
        self.names.add(op.name)
        row = next((row for row in self.rows if row.op is op), None)
        return None if row is None else self._replaced(trace, row, operands, again)

    def call(
        self, trace: Trace, library: str, function: Any, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Do the same for a function of a library that records several ops."""

        def again(*given: Any) -> Any:
            return record_call(library, function, given, kwargs, trace=trace)

        row = next((row for row in self.rows if row.function is function), None)
        return None if row is None else self._replaced(trace, row, args, again)

    def _replaced(
        self, trace: Trace, row: Recording, operands: tuple[Any, ...], again: Callable[..., Any]
    ) -> Any:
        tensors = [i for i, each in enumerate(operands) if is_tensor(each)]
        if not tensors:
            return None
        if len(tensors) > 1:
            raise RuleValueError(
                f"operation {row.said} of {self.name!r} has {len(tensors)} inputs; a "
                "rule acts on one"
            )
        at = tensors[0]
        tin = operands[at]
        trace.overriding = None
        try:
            out = again(*operands[:at], xp.stop_gradient(tin), *operands[at + 1 :])
            if not is_tensor(out):
                return out
            self.met.add(row)
            made, given = out.node.type.shape, tin.node.type.shape
            if isinstance(made, tuple) and made != given:  # a reduction
                where = f"operation {row.said!r} of {self.name!r}"
                shapes = format_shape(given), format_shape(made)
                raise GradientError(misfit(row.rule.name, where, *shapes))
            return row.rule(tin, out)
        finally:
            trace.overriding = self

    def check(self) -> None:
        """Check that the function calls what each selector means.

        Raises:
            RuleValueError: it does not.
        """
        for row in self.rows:
            if row not in self.met:
                near = suggest(row.said, self.names)
                raise RuleValueError(unmet(f"function {self.name!r}", row.said, near, self.names))


def is_tensor(value: Any) -> bool:
    """Return whether a value is a symbolic tensor of floats."""
    return (
        isinstance(value, Value) and value.node.type.kind == "tensor" and is_float(value.node.type)
    )


def find(selector: Any, rule: Function) -> Recording:
    """Return what a selector means.

    Raises:
        RuleTypeError: it is no operation.
        RuleValueError: NumPy has none of that name.
    """
    function = selector
    if isinstance(selector, str):
        function = getattr(np, selector, None) or getattr(xp, selector, None)
        if function is None:
            near = suggest(selector, [*dir(np), *xp.__all__])
            raise RuleValueError(f"NumPy has no operation {selector!r}{near}")
    if not callable(function):
        raise no_operation(selector)
    return Recording(selector, shown(selector), op_of(function), function, rule)


def op_of(function: Callable[..., Any]) -> Op | None:
    """Return the one op that a function of an array records: of several forms the one of its name,
    else the first. None: it records others too.
    """
    trace = Trace(name_of(function), {"ndim": 1}, V, "function", xp)
    x = trace.input("x", INPUT)
    found: list[Op] = []
    most = getattr(function, "nin", 3)  # a ufunc takes what it writes into after its inputs
    for given in ((x,), (x, 0), (x, x), (x, 0, 1)):
        if len(given) > most:
            continue
        with suppress(MultigradError, TypeError, ValueError):
            result = function(*given)
            if isinstance(result, Value) and is_direct(result, x):
                found.append(result.node.op)
    named = [op for op in found if op.name == name_of(function)]
    return next(iter((*named, *found)), None)


def is_direct(result: Value, x: Value) -> bool:
    """Return whether a result is one op of what a function was given."""
    operands = result.node.operands
    return x.node in operands and all(each is x.node or not each.operands for each in operands)


def captured(
    function: Callable[..., Any], selectors: Sequence[Any], acting: Sequence[Any]
) -> Function:
    """Return the captured form of a function with rules on its operations, for every backend.

    Args:
        selectors: of its operations.
        acting: what takes the place of the gradient of each.
    """
    rows = tuple(map(find, selectors, acting))
    recipe = OverrideRecipe(function, None, None, name_of(function), native=False, rows=rows)
    return Function(recipe, function, True)
