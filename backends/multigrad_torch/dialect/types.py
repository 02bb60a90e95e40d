"""What torch tells about its functions: their signatures, and the dtypes of their results."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture.name_tables import NOT_GIVEN, Library
from multigrad.capture.types.oracle import (
    Answer,
    Mark,
    StandInCall,
    TypeOracle,
    names_dtype,
    run_each,
)
from multigrad.graph import ops
from multigrad.graph.ir.op import Op
from multigrad.graph.ir.types import FLOATS, T

from ..kernels.ops import OPS
from ..state import without_autocast, without_dispatch_modes

# --- signatures; of functions written in C, from the schemas of their overloads -------------------
Parameter = inspect.Parameter


def signature_of(function: Any) -> inspect.Signature:
    """Return a function's signature, merged from its overloads: that of the one with the most
    positional parameters, with those of the others as keywords. Parameters that an overload lacks
    are optional.

    Raises:
        ValueError: torch knows no signature.
    """
    try:
        return inspect.signature(function)
    except ValueError:
        overloads = find_overloads(function.__name__)
        if not overloads:
            raise
    overloads.sort(key=lambda rows: sum(not each.kwarg_only for each in rows), reverse=True)
    params: dict[str, Parameter] = {}
    for rows in overloads:
        for each in rows:
            is_keyword = each.kwarg_only or rows is not overloads[0]
            name = "input" if each.name == "self" else each.name
            if name not in params:
                kind = Parameter.KEYWORD_ONLY if is_keyword else Parameter.POSITIONAL_OR_KEYWORD
                params[name] = Parameter(name, kind)
            if each.has_default_value():
                params[name] = params[name].replace(default=each.default_value)
    for name, each in params.items():
        is_needed = all(
            name in (row.name.replace("self", "input") for row in rows) for rows in overloads
        )
        if each.default is Parameter.empty and not is_needed:
            params[name] = each.replace(default=NOT_GIVEN)
    if "pin_memory" in params:  # a function that makes a tensor
        params["requires_grad"] = Parameter("requires_grad", Parameter.KEYWORD_ONLY, default=False)
    return inspect.Signature(sorted(params.values(), key=lambda each: each.kind))


def find_overloads(name: str) -> list[Any]:
    """Return the parameters of an operator's overloads that take tensors and return a new one."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [
        rows
        for rows in (schema.arguments for schema in schemas)
        if any(str(each.type) in ("Tensor", "List[Tensor]") for each in rows)
        and not any(each.is_out or "Dimname" in str(each.type) for each in rows)
        and not any(each.alias_info and each.alias_info.is_write for each in rows)
    ]


# NumPy's names of parameters, which torch accepts in all its functions that are written in C.
NUMPYS = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
TORCH = Library(torch, {"F": F}, signature_of, also=NUMPYS)
TENSOR = Library(torch.Tensor, signature_of=signature_of, also=NUMPYS)


# --- dtypes of results, found by running a call on tensors of one element -------------------------
def tiny(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> torch.Tensor:
    return torch.full(shape, number, dtype=getattr(torch, dtype))


def run(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    """Run calls outside every mode, transform, recording and autocast."""
    with (
        without_dispatch_modes(),
        torch._C._DisableFuncTorch(),
        torch.no_grad(),
        without_autocast(),
    ):
        return run_each(calls, tiny)


def read(x: Any) -> tuple[str, bool] | None:
    return (str(x.dtype).removeprefix("torch."), False) if isinstance(x, torch.Tensor) else None


def casts_first(function: Any) -> bool:
    """Return whether a function is one kernel that reads no integer exponents."""
    return is_wide(function) and getattr(function, "__name__", "") not in ("ldexp", "ldexp_")


@functools.cache
def is_wide(function: Any) -> bool:
    """Return whether a function is one torch kernel: such kernels round once."""
    name = str(getattr(function, "__name__", "")).rstrip("_")
    if name in KERNELS or name in COMPARES:
        return name in KERNELS
    if isinstance(function, FunctionType) and function.__module__.startswith("torch."):
        return False  # written in Python, of other functions
    of_tensors = [x for x in forms(name) if str(x._schema.arguments[0].type) == "Tensor"]
    return bool(of_tensors) and not any(map(is_made_of_others, of_tensors))


@functools.cache
def is_cast(function: Any) -> bool:
    """Return whether autocast may change the dtype of a function's result."""
    name = str(getattr(function, "__name__", ""))
    if name in UNCAST or (name.startswith("__") and name.strip("_") not in CAST_OPERATORS):
        return False
    overloads = forms(name.strip("_"))
    if function in OPERATORS or (overloads and not any(map(is_made_of_others, overloads))):
        return name in CAST_OPERATORS or any(
            torch._C._dispatch_has_kernel_for_dispatch_key(form.name(), f"Autocast{device}")
            for form in overloads
            for device in ("CPU", "CUDA")
        )
    return True


def casts_op(op: Op) -> bool:
    """Return whether autocast may change the dtype of an op's result."""
    if op.view or op in UNCAST_OPS:
        return False
    kernel = OPS.get(op)
    return op in (ops.MATMUL, ops.POW) if kernel is None else is_cast(kernel)


OPERATORS = frozenset(filter(callable, vars(operator).values()))
CAST_OPERATORS = frozenset({"matmul", "pow", "rmatmul", "rpow"})
UNCAST_OPS = {ops.ARRAY, ops.CAST, ops.HOLD, ops.SIZE, ops.STOP_GRADIENT, ops.SUM_TO, ops.UNHOLD}
# Functions made of others, none of which autocast knows.
UNCAST = frozenset(
    """
    absolute adjoint asarray atleast_1d atleast_2d atleast_3d bfloat16 bool broadcast_tensors
    broadcast_to byte char chunk clip contiguous diag dim divide double dropout empty expand_as
    flatten flip fliplr flipud float greater greater_equal half int is_floating_point isfinite item
    less less_equal long max min moveaxis movedim multiply narrow negative new_tensor not_equal
    numel one_hot pad positive ravel relu6 reshape reshape_as selu short split square subtract
    swapaxes swapdims tensor_split tile to tolist true_divide type type_as view_as where
    """.split()  # noqa: SIM905
)


def forms(name: str) -> list[Any]:
    """Return an operator's dispatched overloads; a few are TorchScript's only (`element_size`)."""
    packet = getattr(torch.ops.aten, name, None)
    every = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return [form for form in every if torch._C._dispatch_has_kernel(form.name())]


def is_made_of_others(form: Any) -> bool:
    """Return whether an operator calls other ones, each of which rounds."""
    return form.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


def states_dtype(name: str, marks: Sequence[Mark], answer: Answer) -> bool:
    """Return whether a call determines its result's dtype, which is else the default dtype."""
    floats = (T, *FLOATS)
    says = any(mark.is_tensor and mark.dtype in floats for mark in marks)
    says = says or name in CASTS or any(map(names_dtype, marks))
    return says or not any(dtype in floats for dtype, _ in answer)


CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type", "type_as"})

# Functions that only call a kernel of another name.
KERNELS = frozenset(
    """
    batch_norm floordiv group_norm instance_norm layer_norm prelu rms_norm
    std truediv var
    """.split()  # noqa: SIM905
)

# Functions that round nothing: their threshold is rounded as the kernel rounds it.
COMPARES = frozenset({"hardshrink"})

TYPES = TypeOracle(
    tiny,
    run,
    read,
    torch.get_default_dtype,
    ranks_count=True,
    is_wide=is_wide,
    casts_first=casts_first,
    casts=is_cast,
    states=states_dtype,
)
