"""The functions of `xg.xp` that record one op each, made from the rows of the op table as each is
first asked for; see `all.py`. `python tools/write_sources.py` writes `ops.pyi` for type checkers.

A template is the code of all functions with as many operands and attributes. Each function gets
that code with its own names, as if it were written out: a call costs the same, and Python's
messages about wrong arguments name the function and its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from ... import ops as op_table
from ...ir.op import ANYTHING as AS_GIVEN
from ...ir.op import REQUIRED, Op
from ..trace import Axis, apply, axes_of, one_axis

Tensor = Any
ops: Any = op_table


# Placeholders, which each function's code replaces by its own names: OP is the row, P, Q and R
# read its attributes, the small letters are its parameters.
P: Any = one_axis
Q: Any = one_axis
R: Any = one_axis
# By the number of operands and the way that each attribute is read; "axis?" may be None.
TEMPLATES: dict[tuple[int, str], Any] = {
    (1, ""): lambda a: apply(ops.OP, a),
    (2, ""): lambda a, b: apply(ops.OP, a, b),
    (3, ""): lambda a, b, c: apply(ops.OP, a, b, c),
    (1, "given"): lambda a, p: apply(ops.OP, a, p=p),
    (1, "value"): lambda a, p: apply(ops.OP, a, p=P(p)),
    (1, "axis"): lambda a, p: apply(ops.OP, a, p=P(a, p)),
    (1, "axis?"): lambda a, p: apply(ops.OP, a, p=None if p is None else P(a, p)),
    (1, "given given"): lambda a, p, q: apply(ops.OP, a, p=p, q=q),
    (1, "value value"): lambda a, p, q: apply(ops.OP, a, p=P(p), q=Q(q)),
    (1, "axis axis"): lambda a, p, q: apply(ops.OP, a, p=P(a, p), q=Q(a, q)),
    (1, "axis value"): lambda a, p, q: apply(ops.OP, a, p=P(a, p), q=Q(q)),
    (1, "axis? value"): lambda a, p, q: apply(ops.OP, a, p=None if p is None else P(a, p), q=Q(q)),
    (1, "axis given value"): lambda a, p, q, r: apply(ops.OP, a, p=P(a, p), q=q, r=R(r)),
    (2, "given"): lambda a, b, p: apply(ops.OP, a, b, p=p),
    (2, "given given"): lambda a, b, p, q: apply(ops.OP, a, b, p=p, q=q),
    (2, "given given given"): lambda a, b, p, q, r: apply(ops.OP, a, b, p=p, q=q, r=r),
    (3, "given"): lambda a, b, c, p: apply(ops.OP, a, b, c, p=p),
    (3, "given given given"): lambda a, b, c, p, q, r: apply(ops.OP, a, b, c, p=p, q=q, r=r),
}
READ_OF = {
    "": "given",
    "bool": "value",
    "float": "value",
    "axes_of": "axis",
    "one_axis": "axis",
    "axis_or_none": "axis?",
}
# The globals of a function's code, and the names in its annotations.
GLOBALS = {
    "Any": Any,
    "Axis": Axis,
    "Tensor": Tensor,
    "apply": apply,
    "ops": ops,
    "axes_of": axes_of,
    "one_axis": one_axis,
    "axis_or_none": one_axis,
}
# An array in a line of `examples.txt`, of one axis or two.
ARRAY = r"\[(?:[^][]|\[[^][]*\])*\]"
MOST_CHARACTERS = 88  # of a line of code in an example


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
    rules = [AS_GIVEN] * len(attrs) if row.in_vjps else attrs.values()
    kind = len(operands), " ".join([READ_OF[rule.taken] for rule in rules])
    if kind not in TEMPLATES:
        raise TypeError(f"{row} needs a template for {kind} in {__name__}")
    template = TEMPLATES[kind].__code__
    code = template.replace(
        co_name=name,
        co_qualname=name,
        co_varnames=(*operands, *attrs),
        # `apply` and `ops` come first, then what the capitals stand for.
        co_names=(*template.co_names[:2], row.name.upper(), *[r.taken for r in rules if r.taken]),
        # The only tuple holds the names by which `apply` is given the attributes.
        co_consts=tuple([tuple(attrs) if type(c) is tuple else c for c in template.co_consts]),
    )
    defaults = tuple([rule.default for rule in rules if rule.default is not REQUIRED])
    function = FunctionType(code, namespace, name, defaults or None)
    types = dict.fromkeys(operands, "Tensor")
    types.update(zip(attrs, [rule.annotation for rule in rules], strict=True))
    function.__annotations__ = {**types, "return": "Tensor"}
    function.__doc__ = row.doc
    example = next((each for each in examples() if each.startswith(f"{name}(")), "")
    if example:
        doctest = as_doctest(example).replace("\n", "\n        ")
        function.__doc__ += f"\n\n    Examples:\n        {doctest}\n    "
    return function


@cache
def examples() -> list[str]:
    return Path(__file__).with_name("examples.txt").read_text("utf-8").splitlines()


def as_doctest(example: str) -> str:
    """Return a line of `examples.txt` as code and what it prints."""
    call, sign, result = re.split(" ([=~]) ", example)
    code = "xp." + re.sub(ARRAY, r"np.array(\g<0>)", call)
    code = f"np.round({code}, 4)" if sign == "~" else code
    if len(code) > MOST_CHARACTERS:
        array = f"np.array({re.findall(ARRAY, call)[0]})"
        code = f"x = {array}\n>>> {code.replace(array, 'x', 1)}"
    if result.startswith("["):
        result = f"array({result})".replace("], [", "],\n       [")
    return f">>> {code}\n{result}"


def is_recorded(row: Op) -> bool:
    return not row.composed and not row.in_vjps


__getattr__ = define(globals(), is_recorded)
