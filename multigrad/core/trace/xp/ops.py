"""The functions of `xg.xp` that record one op each, made from the rows of the op table as each is
first asked for; see `all.py`. `python tools/write_sources.py` writes `ops.pyi` for type checkers.

    softmax(x, axis=-1)    def softmax(x, axis): return apply(ops.SOFTMAX, x, axis=axes_of(x, axis))

Each is compiled as if it were written out, so that Python's messages about wrong arguments name the
function and its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from textwrap import indent
from types import FunctionType
from typing import Any

from ... import ops as op_table
from ...ir.op import REQUIRED, Op
from ..trace import Axis, apply, axes_of, one_axis

Tensor = Any
ops: Any = op_table

# How a function reads an attribute, by `Attr.taken`; x is its first operand.
READ = {
    "": "{name}",
    "bool": "bool({name})",
    "float": "float({name})",
    "axes_of": "axes_of({x}, {name})",
    "one_axis": "one_axis({x}, {name})",
    "axis_or_none": "None if {name} is None else one_axis({x}, {name})",
}
LIST = re.compile(r"\[\[.*?\]\]|\[.*?\]")
# The globals of the functions, and the names in their annotations.
GLOBALS = {
    "Any": Any,
    "Axis": Axis,
    "Tensor": Tensor,
    "apply": apply,
    "ops": ops,
    "axes_of": axes_of,
    "one_axis": one_axis,
}


def define(namespace: dict[str, Any], fits: Callable[[Op], bool]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module, which makes the function of a row that fits."""
    namespace.update(GLOBALS)

    def get_name(name: str) -> Any:
        rows = op_table.CORE_OPS
        if name == "__all__":
            namespace[name] = [row.in_xp for row in op_table.CALLABLE_OPS if fits(row)]
            return namespace[name]
        while (row := {each.in_xp: each for each in rows if fits(each)}.get(name)) is None:
            # The other ops are loaded only for the name of one.
            if name.startswith("_") or rows is op_table.CALLABLE_OPS:
                raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
            rows = op_table.CALLABLE_OPS
        namespace[name] = make(row, namespace)
        return namespace[name]

    return get_name


def make(row: Op, namespace: dict[str, Any]) -> FunctionType:
    """Return the function that records an op; one for VJPs takes the graph's attributes."""
    name, operands, attrs = row.in_xp, row.operands, row.attrs
    reads = {key: READ["" if row.in_vjps else attr.taken] for key, attr in attrs.items()}
    named = [f"{key}={text.format(x=operands[0], name=key)}" for key, text in reads.items()]
    recorded = ", ".join([f"ops.{row.name.upper()}", *operands, *named])
    source = f"def {name}({', '.join([*operands, *attrs])}): return apply({recorded})"
    made: dict[str, FunctionType] = {}
    exec(compile(source, __file__, "exec"), namespace, made)  # noqa: S102
    function = made[name]
    if not row.in_vjps:
        defaults = [attr.default for attr in attrs.values() if attr.default is not REQUIRED]
        function.__defaults__ = tuple(defaults) or None
    types = {key: "Any" if row.in_vjps else attr.annotation for key, attr in attrs.items()}
    function.__annotations__ = {**dict.fromkeys(operands, "Tensor"), **types, "return": "Tensor"}
    function.__doc__ = row.doc
    if name in examples():
        example = indent(write_example(examples()[name]), " " * 8)
        function.__doc__ += f"\n\n    Examples:\n{example}\n    "
    return function


@cache
def examples() -> dict[str, str]:
    """Return the line of each function in `examples.txt`, by its name."""
    lines = Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()
    return {line.partition("(")[0]: line for line in lines}


def write_example(line: str) -> str:
    """Return an example as Python shows it, of a line `sqrt([2.0, 4.0]) ~ [1.4142, 2.    ]`: lists
    are arrays, and `~` says that the result is rounded to four digits.
    """
    code, equals, printed = re.split(" ([=~]) ", line)
    code = LIST.sub(r"np.array(\g<0>)", f"xp.{code}")
    if equals == "~":
        code = f"np.round({code}, 4)"
    if printed.startswith("["):
        printed = f"array({printed})".replace("], [", "],\n       [")
    return f">>> {code}\n{printed}"


def is_recorded(row: Op) -> bool:
    return not row.composed and not row.in_vjps


__getattr__ = define(globals(), is_recorded)
