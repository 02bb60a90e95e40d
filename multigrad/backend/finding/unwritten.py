"""What a backend that is being written still lacks: fields marked as unwritten, ops without a row.

`multigrad new-backend` writes a package in which the needed fields are marked; the conformance
suite ends with this list until they are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from ...graph import ops
from ...graph.ir.op import Op
from ..contract import Autodiff, Backend, Kernels, Tensors

Part = TypeVar("Part", bound=Callable[..., Any])
MARK = "__unwritten__"
NEEDED = {"tensors": Tensors, "kernels": Kernels, "autodiff": Autodiff}


def unwritten(part: Part) -> Part:
    """Mark a function, or a class of tensors, as still to be written."""
    setattr(part, MARK, True)
    return part


def fields_to_write(backend: Backend) -> dict[str, str]:
    """Return the marked fields of a backend, each with what its docstring asks for."""
    found = {}
    for group, kind in NEEDED.items():
        for each in fields(kind):
            value = getattr(getattr(backend, group), each.name)
            parts = value if isinstance(value, tuple) else (value,)
            for part in parts:
                if getattr(part, MARK, False):
                    found[f"{group}.{each.name}"] = " ".join((part.__doc__ or "").split())
    return found


def ops_to_write(backend: Backend) -> dict[str, list[Op]]:
    """Return the ops that a backend neither has nor lists as unsupported, by family."""
    known = {*backend.kernels.rows, *backend.kernels.unsupported}
    found = {}
    for family in ops.FAMILIES:
        own = [op for op in vars(family).values() if isinstance(op, Op) and op in ops.CALLABLE_OPS]
        missing = [op for op in own if op.symbol is None and op not in known]
        if missing:
            found[family.__name__.rpartition(".")[2]] = missing
    return found
