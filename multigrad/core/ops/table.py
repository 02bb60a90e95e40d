"""Declaration of ops: `op` and its short forms, shared VJPs, and ops that are made of others.

`made_of` is a function `(xp, *operands, **attrs)` of other ops and Python's operators; a backend
without a row for the op computes it with its rows for `xp`. A VJP is a named function `(xp,
cotangent, result, *operands, **attrs)` that returns one cotangent per operand, None for zero; or,
if it is one expression, the text of that: "ct * b, ct * a", of the cotangent `ct`, the result `y`,
and the operands and attributes by their names. The functions of its `xp` record, so it is itself a
graph that can be lowered, shown and differentiated again. Broadcasting is undone for it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from ...errors import suggest
from ..ir.op import REQUIRED, Attr, Op, ResultRule, float_elementwise
from ..support.records import cached_property
from .numerics import Array, widened

Cotangents = tuple[Any, ...]
Number = bool | int | float
# Written by `op` while the modules of ops are imported; nothing removes a row.
DECLARED: dict[str, Op] = {}  # all rows so far, by their names


def op(
    name: str,
    args: str,
    /,
    *,
    numpy: Callable[..., Any],
    vjp: Callable[..., Cotangents] | str | None,
    doc: str,
    result: ResultRule,
    coerce: str = "float",
    **fields: Any,
) -> Op:
    """Declare an op and return its row.

    Args:
        name: the name in graphs and documents.
        args: the operands' names; a last one called `*arrays` means one or more.
        numpy: the meaning, on arrays and numbers; `Composed` where it is only made of others.
        doc: one line.
        result: the result's type, of the operands' types and the attributes.
        fields: static attributes, an `Attr` each, in the order in which `xg.xp` takes them; and
            further fields of `Op`.
    """
    attrs = {key: value for key, value in fields.items() if isinstance(value, Attr)}
    if isinstance(vjp, str):
        vjp = by_formula(f"{name}_vjp", (*args.split(), *(f"{each}=None" for each in attrs)), vjp)
    properties = {key: value for key, value in fields.items() if key not in attrs}
    if isinstance(numpy, Composed):
        properties |= {"made_of": numpy.made_of, "rounds": numpy.rounds}
    meaning: dict[str, Any] = {"coerce": coerce, "result": result, "numpy": numpy, "vjp": vjp}
    row = Op(name, tuple(args.split()), attrs, doc=doc, **meaning, **properties)
    if isinstance(numpy, Composed):
        numpy.row = row
    DECLARED[name] = row
    return row


def function(name: str, numpy: Any, vjp: Any, doc: str, args: str = "x", /, **fields: Any) -> Op:
    """Declare an elementwise op with a float result."""
    return op(name, args, numpy=numpy, vjp=vjp, doc=doc, result=float_elementwise, **fields)


def ufunc(numpy: Any, vjp: Any, doc: str, args: str = "x", /, **fields: Any) -> Op:
    """Declare an elementwise op with a float result: a function of NumPy or SciPy, by its name."""
    return function(numpy.__name__, numpy, vjp, doc, args, **fields)


def by_formula(name: str, parameters: Iterable[str], formula: str) -> Callable[..., Cotangents]:
    """Return the VJP of this name whose cotangents are those of a formula."""
    parameters = tuple(parameters)
    if taken := {"xp", "ct", "y"} & {each.partition("=")[0] for each in parameters}:
        raise ValueError(
            f"{name}: {sorted(taken)} stands for xg.xp, the cotangent or the result in the text of "
            "a VJP: rename the operand, or give the VJP as a function (xp, cotangent, result, "
            "*operands, **attrs)"
        )

    @functools.cache
    def compiled() -> Callable[..., Cotangents]:
        source = f"lambda xp, ct, y, {', '.join(parameters)}: ({formula},)"
        return eval(compile(source, f"<{name}>", "eval"), {"math": math})

    def vjp(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
        return compiled()(xp, ct, y, *operands, **attrs)

    vjp.__name__ = vjp.__qualname__ = name
    return vjp


def zero(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
    """Return no cotangents: where a piecewise constant has a derivative, it is zero."""
    return (None,) * len(operands)


def moved_by(name: str, *positions: int) -> Callable[..., Cotangents]:
    """Return the VJP of an op that moves the elements of its first operand.

    The function of this name in `xp` moves the cotangent back, given the operands at these
    positions and the same attributes.
    """

    def vjp(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
        cotangent = getattr(xp, name)(ct, *[operands[i] for i in positions], **attrs)
        return (cotangent, *(None for _ in operands[1:]))

    vjp.__name__ = vjp.__qualname__ = f"moved_by_{name}"
    return vjp


Row = Callable[..., Any]


class Composed:
    """The NumPy function of an op that is only made of others, by `made_of`."""

    row: Op  # set by `op`

    def __init__(self, made_of: Row, rounds: bool = True) -> None:
        self.made_of, self.rounds = made_of, rounds

    def __call__(self, *operands: Array, **attrs: Any) -> Array:
        return self.function(*operands, **attrs)

    @cached_property
    def function(self) -> Row:
        """The composition of the NumPy functions of its parts."""
        row = self.row
        run = compose(row, {part: part.numpy for part in parts_of(row)})
        return run if row.coerce == "indices" else widened(run)  # places are not widened


def composite(
    made_of: Any, vjp: Any, doc: str, args: str = "x", /, rounds: bool = True, **fields: Any
) -> Op:
    """Declare an elementwise op with a float result and the name of the function it is made of.

    Without a VJP its derivative is that of the composition.
    """
    return function(made_of.__name__, Composed(made_of, rounds), vjp, doc, args, **fields)


def compose(row: Op, rows: Mapping[Op, Row]) -> Row:
    """Return an op's composition as a function, built from a backend's rows for its parts."""
    parts = {part.in_xp: rows.get(part, part.on_numbers) for part in parts_of(row)}
    assert row.made_of is not None
    return functools.partial(row.made_of, SimpleNamespace(**parts))


@functools.cache
def parts_of(row: Op) -> tuple[Op, ...]:
    """Return the ops that a composition calls, for all samples of its attributes."""
    recorder = _Asked(row.name)
    samples = [
        attr.samples or (((),) if attr.default is REQUIRED else (attr.default,))
        for attr in row.attrs.values()
    ]
    assert row.made_of is not None
    lengths = (1, 0) if row.coerce == "indices" else (1,)  # whether there is a place to take from
    for length, *values in itertools.product(lengths, *samples):
        operands = [ListedValue((length,))] * len(row.operands)
        row.made_of(recorder, *operands, **dict(zip(row.attrs, values, strict=True)))
    return tuple(recorder.parts)


class ListedValue:
    """An operand, or the result of a function, while the ops of a composition are listed.

    It has no values: no value of a tensor decides which ops a composition calls.
    """

    ndim, dtype = 1, np.dtype("float32")

    def __init__(self, shape: tuple[int] = (1,)) -> None:
        self.shape = shape

    def itself(self, *others: Any) -> ListedValue:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = itself
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __neg__ = __getitem__ = itself
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __invert__ = itself
    __eq__ = __ne__ = itself  # type: ignore[assignment]
    __hash__ = object.__hash__


ANSWER = ListedValue()


class _Asked:
    """An `xp` that records which ops a composition calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parts: dict[Op, None] = {}

    def __getattr__(self, name: str) -> Row:
        known = _by_name(len(DECLARED))
        if name not in known:  # of a family that is not loaded yet
            _ = import_module(__name__.rpartition(".")[0]).OPS
            known = _by_name(len(DECLARED))
        row = known.get(name)
        if row is None:
            raise AttributeError(
                f"op {self.name!r} is made of xp.{name}, and no op is called that"
                f"{suggest(name, known)}"
            )
        self.parts[row] = None
        return lambda *operands, **attrs: ANSWER


# The number of rows is the key: an op that is declared later rebuilds the table.
@functools.lru_cache(maxsize=1)
def _by_name(count: int) -> dict[str, Op]:
    return {row.in_xp: row for row in DECLARED.values()}
