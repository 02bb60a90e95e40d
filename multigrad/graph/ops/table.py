"""How an op is declared.

A VJP is a named function `(xp, cotangent, result, *operands, **attrs)` that returns one cotangent
per operand, None for zero. It is written with the functions `xp` that it is given, which record: so
it is itself a graph that can be lowered, shown and differentiated again. Broadcasting is undone for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ir.op import Attr, Op, ResultRule
from .result_shapes import BY_RESULT
from .results import float_elementwise

Cotangents = tuple[Any, ...]
Number = bool | int | float
DECLARED: dict[str, Op] = {}  # all rows so far, by their names


def op(
    name: str,
    args: str,
    /,
    *,
    numpy: Callable[..., Any],
    vjp: Callable[..., Cotangents] | None,
    doc: str,
    result: ResultRule,
    coerce: str = "float",
    **more: Any,
) -> Op:
    """Declare an op and return its row.

    Args:
        name: the name in graphs and documents.
        args: the operands' names; a last one called `*arrays` stands for one or more.
        numpy: the meaning, on arrays and numbers.
        vjp: see above.
        doc: one line.
        result: the result's type, of the operands' types and the attributes.
        more: static attributes, an `Attr` each, in the order in which `xg.xp` takes them; and
            further fields of `Op`.
    """
    attrs = {key: value for key, value in more.items() if isinstance(value, Attr)}
    properties = {key: value for key, value in more.items() if key not in attrs}
    properties.setdefault("shape_of", BY_RESULT.get(result))
    meaning = {"coerce": coerce, "result": result, "numpy": numpy, "vjp": vjp}
    row = Op(name, tuple(args.split()), attrs, doc=doc, **meaning, **properties)
    DECLARED[name] = row
    return row


def function(name: str, numpy: Any, vjp: Any, doc: str, args: str = "x", /, **more: Any) -> Op:
    """Declare an elementwise op with a float result."""
    return op(name, args, numpy=numpy, vjp=vjp, doc=doc, result=float_elementwise, **more)


def zero(xp: Any, ct: Any, y: Any, *operands: Any, **attrs: Any) -> Cotangents:
    """Piecewise constant: the derivative is zero wherever it exists."""
    return (None,) * len(operands)
