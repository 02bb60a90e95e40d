"""What torch tells of its functions: the dtype of a call's result (`TYPES`), and signatures.

The call runs on tensors of one element, and torch says (`run_untraced`, `dtype_of_leaf`). What one
run does not tell has a section each: whether a function is one kernel, which rounds once; whether
autocast may change the dtype; whether the default dtype does.
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch._ops import _len_torch_dispatch_stack_pre_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from multigrad.core import ops
from multigrad.core.ir.op import FLOATS, Op, T
from multigrad.engine.capture.name_tables import NOT_GIVEN, Library
from multigrad.engine.capture.values.oracle import (
    Answer,
    Mark,
    StandInCall,
    TypeOracle,
    names_dtype,
    run_each,
)

from ..core.kernels.ops import OPS
from ..core.state import without_autocast


# --- running a call on stand-ins ------------------------------------------------------------------
def stand_in_tensor(dtype: str, shape: tuple[int, ...], number: int, is_weak: bool) -> torch.Tensor:
    return torch.full(shape, number, dtype=getattr(torch, dtype))


def without_dispatch_modes() -> AbstractContextManager[Any]:
    """Leave all dispatch modes. Mostly there are none, and leaving takes long, so it asks first."""
    is_any = torch._C._len_torch_dispatch_stack() or _len_torch_dispatch_stack_pre_dispatch()
    return _disable_current_modes() if is_any else nullcontext()


def run_untraced(calls: Sequence[StandInCall], mode: Any) -> list[Any]:
    """Run calls outside every mode, transform, recording and autocast."""
    with (
        without_dispatch_modes(),
        torch._C._DisableFuncTorch(),
        torch.no_grad(),
        without_autocast(),
    ):
        return run_each(calls, stand_in_tensor)


def dtype_of_leaf(x: Any) -> tuple[str, bool] | None:
    """Return a tensor's dtype, and that it is not weak; None for any other value."""
    return (str(x.dtype).removeprefix("torch."), False) if isinstance(x, torch.Tensor) else None


# --- kernels, which round once, and functions made of others --------------------------------------
def dispatched_overloads(name: str) -> list[Any]:
    """Return an operator's dispatched overloads; a few are TorchScript's only (`element_size`)."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = [] if packet is None else [getattr(packet, each) for each in packet.overloads()]
    return [each for each in overloads if torch._C._dispatch_has_kernel(each.name())]


def is_composite(overload: Any) -> bool:
    return overload.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)


# Functions that only call one kernel: of another name (`truediv`: div), or by another overload.
CALLS_ONE_KERNEL = frozenset(
    """
    batch_norm floordiv group_norm instance_norm layer_norm prelu rms_norm
    std truediv var
    """.split()  # noqa: SIM905
)
# Kernels that compare and choose. In float32 the threshold would not be rounded, but the kernel
# rounds it to 16 bits before it compares (2.13).
ROUNDS_NOTHING = frozenset({"hardshrink"})


def casts_operands_first(function: Any) -> bool:
    """Return whether all operands are cast first; not by `ldexp`, which reads integer exponents."""
    return rounds_once(function) and getattr(function, "__name__", "") not in ("ldexp", "ldexp_")


@functools.cache
def rounds_once(function: Any) -> bool:
    """Return whether torch computes it in one kernel, which rounds once: in float32 for 16 bits."""
    name = str(getattr(function, "__name__", "")).rstrip("_")
    if name in CALLS_ONE_KERNEL or name in ROUNDS_NOTHING:
        return name in CALLS_ONE_KERNEL
    if isinstance(function, FunctionType) and function.__module__.startswith("torch."):
        return False  # written in Python, of other functions
    tensor_overloads = [
        each
        for each in dispatched_overloads(name)
        if str(each._schema.arguments[0].type) == "Tensor"
    ]
    return bool(tensor_overloads) and not any(map(is_composite, tensor_overloads))


# --- autocast -------------------------------------------------------------------------------------
# Python's operators, and the names of those that autocast casts.
OPERATORS = frozenset(filter(callable, vars(operator).values()))
CAST_OPERATORS = frozenset({"matmul", "pow", "rmatmul", "rpow"})
# Functions made of others, none of which autocast knows.
COMPOSITES_WITHOUT_AUTOCAST = frozenset(
    """
    absolute adjoint asarray atleast_1d atleast_2d atleast_3d bfloat16 bool broadcast_tensors
    broadcast_to byte char chunk clip contiguous diag dim divide double dropout empty expand_as
    flatten flip fliplr flipud float greater greater_equal half int is_floating_point isfinite item
    less less_equal long max min moveaxis movedim multiply narrow negative new_tensor not_equal
    numel one_hot pad positive ravel relu6 reshape reshape_as selu short split square subtract
    swapaxes swapdims tensor_split tile to tolist true_divide type type_as view_as where
    """.split()  # noqa: SIM905
)
# Ops that keep their operand's dtype under autocast, whatever computes them.
UNCAST_OPS = {
    *(ops.ARRAY, ops.CAST, ops.HOLD, ops.MEMORY),
    *(ops.SIZE, ops.STOP_GRADIENT, ops.SUM_TO, ops.UNHOLD),
}


@functools.cache
def is_cast(function: Any) -> bool:
    """Return whether autocast may change the dtype of a function's result."""
    name = str(getattr(function, "__name__", ""))
    bare_name = name.strip("_")
    if name in COMPOSITES_WITHOUT_AUTOCAST:
        return False
    if name.startswith("__") and bare_name not in CAST_OPERATORS:
        return False
    overloads = dispatched_overloads(bare_name)
    is_kernel = bool(overloads) and not any(map(is_composite, overloads))
    if not is_kernel and function not in OPERATORS:
        return True  # autocast may know a function that it calls
    return name in CAST_OPERATORS or any(
        torch._C._dispatch_has_kernel_for_dispatch_key(each.name(), f"Autocast{device}")
        for each in overloads
        for device in ("CPU", "CUDA")
    )


def casts_op(op: Op) -> bool:
    """Return whether autocast may change the dtype of an op's result."""
    if op.view or op in UNCAST_OPS:
        return False
    kernel = OPS.get(op)
    return op in (ops.MATMUL, ops.POW) if kernel is None else is_cast(kernel)


# --- the default dtype ----------------------------------------------------------------------------
# Calls whose name tells the dtype of their result, or whose argument does.
DTYPE_CASTS = frozenset({"bfloat16", "double", "float", "half", "to", "type", "type_as"})


def fixes_dtype(name: str, marks: Sequence[Mark], answer: Answer) -> bool:
    """Return whether a call determines its result's dtype, which is else the default dtype."""
    floats = (T, *FLOATS)
    if any(mark.is_tensor and mark.dtype in floats for mark in marks):
        return True
    if name in DTYPE_CASTS or any(map(names_dtype, marks)):
        return True
    return not any(dtype in floats for dtype, _ in answer)


TYPES = TypeOracle(
    tiny=stand_in_tensor,
    run=run_untraced,
    read=dtype_of_leaf,
    mode=torch.get_default_dtype,
    ranks_count=True,
    is_wide=rounds_once,
    casts_first=casts_operands_first,
    casts=is_cast,
    states=fixes_dtype,
)


# --- signatures, and the libraries of names that read them ----------------------------------------
# Functions that are written in C have none of their own: theirs come from their overloads' schemas.
Parameter = inspect.Parameter


def signature_of(function: Any) -> inspect.Signature:
    """Return a function's signature; of one written in C, merged from its overloads.

    The overload with the most positional parameters gives these; the other overloads' own become
    keywords. A parameter that any overload lacks is optional.

    Raises:
        ValueError: torch knows no signature.
    """
    try:
        return inspect.signature(function)
    except ValueError:
        arg_lists = find_overloads(function.__name__)
        if not arg_lists:
            raise
    arg_lists.sort(key=lambda arguments: sum(not a.kwarg_only for a in arguments), reverse=True)
    longest = arg_lists[0]
    params: dict[str, Parameter] = {}
    for arguments in arg_lists:
        for argument in arguments:
            name = _python_name(argument)
            if name not in params:
                is_keyword = argument.kwarg_only or arguments is not longest
                kind = Parameter.KEYWORD_ONLY if is_keyword else Parameter.POSITIONAL_OR_KEYWORD
                params[name] = Parameter(name, kind)
            if argument.has_default_value():
                params[name] = params[name].replace(default=argument.default_value)
    for name, param in params.items():
        is_needed = all(name in map(_python_name, arguments) for arguments in arg_lists)
        if param.default is Parameter.empty and not is_needed:
            params[name] = param.replace(default=NOT_GIVEN)
    if "pin_memory" in params:  # a function that makes a tensor
        params["requires_grad"] = Parameter("requires_grad", Parameter.KEYWORD_ONLY, default=False)
    return inspect.Signature(sorted(params.values(), key=lambda param: param.kind))


def _python_name(argument: Any) -> str:
    return "input" if argument.name == "self" else argument.name


def find_overloads(name: str) -> list[Any]:
    """Return the schema's arguments of each overload that takes tensors and returns a new one."""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name}")
    return [
        arguments
        for arguments in (schema.arguments for schema in schemas)
        if any(str(each.type) in ("Tensor", "List[Tensor]") for each in arguments)
        and not any(each.is_out or "Dimname" in str(each.type) for each in arguments)
        and not any(each.alias_info and each.alias_info.is_write for each in arguments)
    ]


# NumPy's names of parameters -> torch's: its functions that are written in C take both.
NUMPY_NAMES = {
    "axis": "dim",
    "keepdims": "keepdim",
    "x": "input",
    "a": "input",
    "x1": "input",
    "x2": "other",
}
# The names that handlers are registered by: of functions (`torch.`, `F.`), and of tensors' methods.
TORCH = Library(torch, {"F": F}, signature_of, also=NUMPY_NAMES)
TENSOR = Library(torch.Tensor, signature_of=signature_of, also=NUMPY_NAMES)
