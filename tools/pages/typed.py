"""What type checkers are told that stands elsewhere already, as source made from there: the names
of activations, and the functions of `xg.xp`. The examples of those are written beside them.

`python tools/write_sources.py` writes the files; a test compares them with what it
would write.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import multigrad
from multigrad.core import ops, xp
from multigrad.core.ir import op as results
from multigrad.core.lowering.forwards import ACTIVATIONS, ALIASES, plainly
from multigrad.core.trace.xp import ops as recorded
from multigrad.engine.capture.symbols import SymbolicDType

from .xp_examples import render_examples

ROOM = Path(multigrad.__file__).parent
FORWARDS = "core/lowering/forwards.py"
NAMES = """\
ActivationName: TypeAlias = Literal[
{names}
]  # fmt: skip
"""
HEAD = """# fmt: off
# ruff: noqa: E501, F401, RUF022, RUF100
# {title}
# Written from the functions themselves by `python tools/write_sources.py`.

import builtins
{imports}
"""
RECORDED = """from typing import Any, TypeAlias, TypeVar, overload

from ..trace import Axis

T = TypeVar("T")  # noqa: PYI001
Tensor: TypeAlias = Any

def __getattr__(name: str) -> Any: ...  # what makes the functions
"""
NAMESPACE = """from collections.abc import Callable, Sequence
from typing import Any

from ..engine.capture.symbols import SymbolicDType
from ..engine.trace.xp.shapes import Pairs
from ..engine.trace.xp.signals import Axes, Parts, Steps
from .trace.trace import Axis
from .trace.xp.ops import *
from .trace.xp.ops import T, Tensor
"""
LIMITS = """__array_api_version__: str

class FloatInfo:
{limits}
"""
LIKE = "Tensor"  # what the functions call a tensor
# Bools and places: arrays of NumPy have another type for each dtype.
PLACES = (ops.indices.index_reduced, ops.indices.counted)
OTHER_DTYPES = (results.compared, results.integer, *PLACES)
OF_OTHERS = {row.in_xp for row in ops.CALLABLE_OPS if row.result in OTHER_DTYPES} | {
    "all", "any", "argmax_mask", "argmin_mask", "astype", "count_nonzero", "top_k_mask",
}  # fmt: skip
NO_OPERANDS = {"condition", "indices"}


def render_names() -> str:
    """Return the file of activations with the names that its tables have."""
    rows = [(name, row.op.name if row.op is not None else "") for name, row in ACTIVATIONS.items()]
    # binary_step for BinaryStep
    rows += [(name, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()) for name in ALIASES]
    names: dict[str, None] = {}
    for name, other in rows:
        usual = other if plainly(other) == plainly(name) else name.lower()
        names.update(dict.fromkeys([name, name.lower(), usual]))
    steps = [row for row in ACTIVATIONS.values() if row.setting and row.setting[0] == "at_zero"]
    names.update(dict.fromkeys(f"{row.name}(at_zero=1.0)" for row in steps))
    source = (ROOM / FORWARDS).read_text(encoding="utf-8")
    before, rest = source.split(NAMES.partition("{")[0])
    after = rest.partition(NAMES.rpartition("}")[2])[2]
    return f"{before}{NAMES.format(names=fill(names))}{after}"


def fill(names: Any) -> str:
    quoted = ", ".join(f'"{name}"' for name in names)
    return textwrap.fill(f"{quoted},", 100, initial_indent="    ", subsequent_indent="    ")


def render_stub() -> str:
    """Return what checkers read in the place of `core/xp.py`."""
    limits_of: Any = type(xp.finfo(xp.float32))
    limits = "\n".join(f"    {each.name}: {each.type}" for each in fields(limits_of))
    title = (
        "`xg.xp` as type checkers see it: a result is of the tensors' type, where it has their "
        "dtype too; a\n# number may stand for one of several tensors."
    )
    own = [name for name in dir(xp) if name not in recorded.__all__]
    head = HEAD.format(title=title, imports=NAMESPACE) + LIMITS.format(limits=limits)
    return "".join([head, *(declare(name, getattr(xp, name)) for name in own)])


def render_recorded() -> str:
    """Return what checkers read in the place of the module of functions that are made from rows."""
    head = HEAD.format(title="What is made in the module of this name.", imports=RECORDED)
    names = recorded.__all__  # in the order of the rows
    return "".join([head, *(declare(name, getattr(recorded, name)) for name in names)])


def declare(name: str, value: Any) -> str:
    if inspect.isfunction(value):
        return declare_function(name, value)
    known = {float: "float", type(None): "None", SymbolicDType: "SymbolicDType"}
    return f"{name}: {known.get(type(value), 'Any')}\n"


def declare_function(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    operands = [
        each.name
        for each in signature.parameters.values()
        if each.annotation == LIKE and each.default is each.empty and each.name not in NO_OPERANDS
    ]
    if signature.return_annotation != LIKE or not operands or name in OF_OTHERS:
        result = LIKE if name in OF_OTHERS else written(signature.return_annotation)
        return f"def {name}{write(signature, {})} -> {result}: ...\n"
    like = "T" if len(operands) == 1 else "T | float"
    whole = f"def {name}{write(signature, dict.fromkeys(operands, like))} -> T: ...\n"
    if like == "T" or "condition" not in signature.parameters:
        return whole
    # two numbers, as in where(x > 0, 1.0, 0.0), say nothing of the tensors' type
    numbers = write(signature, dict.fromkeys(operands, "float"))
    return f"@overload\ndef {name}{numbers} -> Tensor: ...\n@overload\n{whole}"


def write(signature: inspect.Signature, types: dict[str, str]) -> str:
    """Return parameters as source, some of them of another type."""
    rows = [
        each.replace(annotation=types.get(each.name, written(each.annotation)))
        for each in signature.parameters.values()
    ]
    text = str(signature.replace(parameters=rows, return_annotation=inspect.Signature.empty))
    return re.sub(r": '([^']*)'", r": \1", text)


def written(annotation: Any) -> str:
    """Return an annotation as source; `bool` is a dtype there."""
    is_said = annotation is not inspect.Parameter.empty
    return re.sub(r"\bbool\b", "builtins.bool", str(annotation)) if is_said else "Any"


MODULES: dict[str, Callable[[], str]] = {
    FORWARDS: render_names,
    "core/trace/xp/examples.txt": render_examples,
    "core/trace/xp/ops.pyi": render_recorded,
    "core/xp.pyi": render_stub,
}


def write_files() -> None:
    for file, render in MODULES.items():
        (ROOM / file).write_text(render(), encoding="utf-8")
