"""torch functions without a row, recorded as the ATen operators into which torch traces a call."""

from __future__ import annotations

import contextlib
import functools
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, log

from multigrad.core.ir import questions
from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, cast, copy_of, mark_view
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.dialect import OwnTrace
from multigrad.engine.capture.foreign_calls import TracedCall, dtype_in, giving_reasons, record_call
from multigrad.engine.capture.meanings import parts, reductions
from multigrad.engine.capture.meanings.places import as_tensor, index_select
from multigrad.engine.capture.values import indexing, methods
from multigrad.engine.trace.code_trace import CodeTrace
from multigrad.errors import TraceError

from ..core.state import without_autocast
from . import arrays, layers
from .types import without_dispatch_modes

# Modules with torch's functions in Python, and the types of those in C.
WRITTEN = ("torch.functional", "torch.nn.functional", "torch._tensor", "torch._jit_internal")
IN_C = (BuiltinFunctionType, MethodDescriptorType)
# Arguments about a result's memory, which is not part of a graph.
OF_MEMORY = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})
Tensor = Any
ALIASES: dict[Any, Callable[..., Any]] = {}  # the dialect's rows; filled by `table.py`


def find_traced(function: Any) -> Callable[..., Any] | None:
    """Return a handler that records a function of torch by torch's trace; None for others."""
    if isinstance(getattr(function, "__self__", None), torch.Tensor):
        return None  # a bound method: the handler would keep its tensor
    is_torchs = getattr(function, "__module__", None) in WRITTEN or isinstance(function, IN_C)
    is_known = is_torchs or any(each in decompositions() for each in overloads_of(function))
    return OwnTrace(record, function) if is_known else None


def overloads_of(function: Any) -> list[Any]:
    if isinstance(function, torch._ops.OpOverloadPacket):
        return [getattr(function, name) for name in function.overloads()]
    return [function] if isinstance(function, torch._ops.OpOverload) else []


def record(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by the operators with which torch computes it.

    Raises:
        NeedsConcrete: a shape or dtype is not known in this capture.
        TypeError: torch cannot trace it, it draws, it returns something other than a tensor, or its
            dtype is torch's default one.
    """
    call = TracedCall(function, torch.Tensor, args, kwargs)
    trace, tensors = call.trace, call.given
    with giving_reasons("torch"):
        module, structure, bases = trace_call(call, [described(x, trace) for x in tensors])
    if any(node.target is function for node in module.graph.nodes):
        raise TypeError("torch does not take it apart")
    with call.read_by("torch"):
        outputs = run(module, tensors, trace)
    for output, base in zip(outputs, bases, strict=True):
        if base is not None and isinstance(tensors[base], Value) and output is not tensors[base]:
            mark_view(output, tensors[base], False)
    return optree.tree_unflatten(structure, outputs)


def described(x: Any, trace: CodeTrace) -> tuple[tuple[int, ...], torch.dtype]:
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype
    return tuple(x.shape), getattr(torch, dtype_in(trace, x.node.type.dtype))


def trace_call(
    called: Callable[..., Any], kinds: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> tuple[Any, Any, list[int | None]]:
    """Return torch's trace of a call on tensors without values, the tree of its result, and for
    each output the position of the argument whose memory it shares, if any.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*tensors: Any) -> list[Any]:
        return optree.tree_leaves(called(*tensors), none_is_leaf=True)

    with (
        warnings.catch_warnings(),
        without_dispatch_modes(),
        torch._C._DisableFuncTorch(),
        torch.no_grad(),
        without_autocast(),
        _without_log(),
    ):
        warnings.simplefilter("ignore")  # the user gets them when the call itself runs
        # First without functionalization, which would hide what shares memory with what.
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = [torch.empty(shape, dtype=dtype) for shape, dtype in kinds]
            outputs, structure = optree.tree_flatten(called(*inputs), none_is_leaf=True)
        check_outputs(inputs, outputs)
        pure_call = torch.func.functionalize(flat, remove="mutations")
        module = make_fx(pure_call, decompositions(), tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return module, structure, [base_of(output, inputs) for output in outputs]


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Keep a call that torch refuses out of its log: the caller gets the error."""
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def check_outputs(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    non_tensor = next((x for x in outputs if not isinstance(x, torch.Tensor)), None)
    if non_tensor is not None:
        raise TypeError(f"it gives {non_tensor!r}, which is no tensor")
    floats_out, floats_in = (any(x.is_floating_point() for x in each) for each in (outputs, inputs))
    if floats_out and not floats_in:
        raise TypeError("it gives floats of integers; cast them to a float dtype first")


def base_of(output: Any, inputs: Sequence[Any]) -> int | None:
    owners = (output, output._base if output._is_view() else None)
    return next((i for i, x in enumerate(inputs) if any(x is each for each in owners)), None)


@functools.cache
def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's decompositions of operators without a row, except for `prims` references."""
    from torch._decomp import core_aten_decompositions, decomposition_table
    from torch._decomp import decompositions as torchs

    table = {op: f for op, f in decomposition_table.items() if f.__module__ == torchs.__name__}
    table |= core_aten_decompositions()
    return {op: body for op, body in table.items() if find_aten(op) is None}


def run(module: Any, tensors: Sequence[Any], trace: CodeTrace) -> list[Any]:
    """Record the nodes of torch's trace, and return the results."""
    values: dict[Any, Any] = {}
    inputs = iter(tensors)
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = constant(getattr(module, node.target))
        elif node.op == "output":
            return [values[x] for x in node.args[0]]
        else:
            own_args, own_kwargs = filled((node.args, dict(node.kwargs)), values)
            values[node] = compute(node.target, own_args, own_kwargs, trace)
            check_result(node, values[node])
    raise TypeError("torch's trace gives nothing")


def check_result(node: Any, result: Any) -> None:
    """Check that an operator's result has the type that torch's trace says."""
    expected = node.meta.get("val")
    is_tensor = isinstance(expected, torch.Tensor)
    fits = isinstance(result, Value | torch.Tensor) == is_tensor
    if fits and is_tensor and isinstance(result, Value) and result.node.type.kind != "scalar":
        shape, dtype = described(result, result.trace)
        fits = shape == tuple(expected.shape) and dtype == expected.dtype
    elif fits and isinstance(result, Value):
        fits = not expected.ndim
    if not fits:
        raise TypeError(f"torch computes it with {node.target}, of which another result is known")
    if isinstance(result, Value) and result.trace.types is not None:
        result.trace.types.unconfirmed.pop(str(node.target), None)  # torch has confirmed it


def filled(value: Any, values: Mapping[Any, Any]) -> Any:
    """Return a node's arguments with values instead of nodes, and torch's lists as plain lists."""
    if isinstance(value, torch.fx.Node):
        return values[value]
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(filled(x, values) for x in value)
    if isinstance(value, dict):
        return {name: filled(x, values) for name, x in value.items()}
    return value


def constant(attribute: Any) -> Any:
    if isinstance(attribute, FakeTensor):
        raise TypeError("torch's trace holds a tensor whose numbers it does not know")
    return attribute


def compute(target: Any, args: Any, kwargs: Mapping[str, Any], trace: CodeTrace) -> Any:
    """Record one operator; without symbols, compute it."""
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise TypeError(
            f"it draws random numbers by {target}; draw with xp.rand_like or randn_like"
        )
    # A functionalized trace writes to its inputs only by copies at its end.
    if target is torch.ops.aten.copy_.default:
        raise TypeError("it updates a tensor that it is given, as running statistics; use eval()")
    leaves = optree.tree_leaves((args, dict(kwargs)), none_is_leaf=True)
    if not any(isinstance(x, Value) for x in leaves):
        with torch._C._DisableFuncTorch(), torch.no_grad():
            return target(*args, **kwargs)
    if target is operator.getitem:
        return args[0][args[1]]
    graph_kwargs = {name: value for name, value in kwargs.items() if name not in OF_MEMORY}
    question_count = questions.count()
    try:
        return record_call("torch", target, args, graph_kwargs, trace=trace, shown=str(target))
    except TraceError as error:  # reported for the function that was called
        questions.forget(question_count)
        reason = f": {error.__cause__}" if find_aten(target) and error.__cause__ else ""
        raise TypeError(
            f"torch computes it with {target}, which is not captured{reason}"
        ) from error


# --- operators of ATen that no function of torch has under its name -------------------------------
LIBRARIES = (torch, torch._C._nn, F, torch.Tensor, torch.linalg, torch.special)
LOSSES = frozenset(layers.LOSSES.values())  # operators take the reduction as a number
PREFIXES = ("_", "linalg_", "special_")


def names_of(name: str) -> list[str]:
    """Return the names under which torch may have an operator as a function."""
    names = [name, bare_name := name.removesuffix("_copy")]
    for prefix in PREFIXES:
        names.append(bare_name := bare_name.removeprefix(prefix))
    return names


def sliced(start: Any, end: Any, step: int) -> slice:
    return slice(start, None if end is None or end > MOST else end, step)


MOST = 2**62  # a larger end means none


def along(dim: int, index: Any, x: Tensor) -> tuple[Any, ...]:
    axis = operator.index(dim) % x.ndim
    return (*(slice(None),) * axis, index)


def slice_(
    input: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    return input[along(dim, sliced(start, end, step), input)]


def slice_scatter(
    input: Tensor, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    position = along(dim, sliced(start, end, step), as_tensor(input, src))
    return indexing.assigned(as_tensor(input, src), position, src)


def select_scatter(input: Tensor, src: Any, dim: int, index: int) -> Tensor:
    return indexing.assigned(as_tensor(input, src), along(dim, index, as_tensor(input, src)), src)


def index(input: Tensor, indices: Sequence[Any]) -> Tensor:
    symbol = next(x for x in (input, *indices) if isinstance(x, Value))
    return as_tensor(input, symbol)[whole_if_none(indices)]


def whole_if_none(indices: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(slice(None) if each is None else each for each in indices)


def index_put(
    input: Tensor, indices: Sequence[Any], values: Any, accumulate: bool = False
) -> Tensor:
    symbol = next(x for x in (input, values, *indices) if isinstance(x, Value))
    x = as_tensor(input, symbol)
    items: Any = whole_if_none(indices)
    if accumulate:
        items = tuple(
            each if isinstance(each, slice) else as_tensor(each, symbol) for each in items
        )
        items, values = indexing.add_at(x, items, values)
    return indexing.assigned(x, items, values)


def put(input: Tensor, index: Tensor, source: Any, accumulate: bool = False) -> Tensor:
    flat = xp.reshape(as_tensor(input, source), -1)
    positions = xp.reshape(as_tensor(index, flat), -1)
    values = xp.reshape(as_tensor(source, flat), -1)
    return xp.reshape(index_put(flat, [positions], values, accumulate), parts.shape_of(input))


def to_copy(input: Tensor, *, dtype: Any = None) -> Tensor:
    return copy_of(methods.to(input, dtype))


def copy(input: Tensor, src: Any) -> Tensor:
    values = as_tensor(src, input)
    x = as_tensor(input, values)
    return xp.broadcast_to(cast(values, x.dtype), x)


def diagonal_scatter(
    input: Tensor, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    result = copy_of(as_tensor(input, src))
    result.diagonal(offset, dim1, dim2)[...] = src
    return result


def constant_pad_nd(input: Tensor, pad: Sequence[int], value: float = 0.0) -> Tensor:
    """Record padding; `pad` lists (before, after) from the last axis on; negative numbers cut."""
    if not pad:
        return copy_of(input)
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    return parts.padded(input, tuple(reversed(pairs)), fill=value)


def native_layer_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Any, bias: Any, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    axes = tuple(range(-len(normalized_shape), 0))
    return (
        F.layer_norm(input, list(normalized_shape), weight, bias, eps),
        xp.mean(input, axes, True),
        xp.rsqrt(xp.var(input, axes, keepdims=True) + eps),
    )


def with_mean(measure: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return a handler that pairs a measure of spread with the mean, as `var_mean` does."""

    def record(
        input: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> tuple[Tensor, Tensor]:
        spread = measure(input, dim, keepdim, correction=correction)
        return spread, xp.mean(input, dim, keepdim)

    return record


def embedding(
    weight: Tensor,
    indices: Any,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    if padding_idx >= 0 or scale_grad_by_freq:
        raise TypeError("embedding with padding_idx or scale_grad_by_freq, of another gradient")
    return index_select(weight, 0, indices)


def svd(A: Tensor, full_matrices: bool = False, compute_uv: bool = True, **how: Any) -> Any:
    return arrays.linalg_svd(A, full_matrices)


def solve_ex(A: Tensor, B: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    """Return the solution and whether it succeeded, with None for the factors."""
    solution, info = arrays.solve_ex(A, B, left=left)
    return solution, None, None, info


OWN: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("alias", "lift_fresh", "lift_fresh_copy", "detach_copy"), copy_of),
    "_unsafe_view": lambda input, size: input.reshape(size),
    "view": lambda input, size: input.reshape(size),
    "expand": lambda input, size, implicit=False: input.expand(*size),
    "slice": slice_,
    "slice_scatter": slice_scatter,
    "select_scatter": select_scatter,
    "index": index,
    "i0": lambda input: xp.i0e(input) * xp.exp(xp.abs(input)),
    "i1": lambda input: xp.i1e(input) * xp.exp(xp.abs(input)),
    "index_put": index_put,
    "put": put,
    "_to_copy": to_copy,
    "copy": copy,
    "diagonal_scatter": diagonal_scatter,
    "_linalg_solve_ex": solve_ex,
    "_linalg_svd": svd,
    "embedding": embedding,
    "std_mean": with_mean(reductions.std),
    "var_mean": with_mean(reductions.var),
    **layers.ATEN,
    "constant_pad_nd": constant_pad_nd,
    "native_layer_norm": native_layer_norm,
}


def find_aten(function: Any) -> Callable[..., Any] | None:
    """Return the handler of an ATen operator, None for one that has to be decomposed."""
    packet = getattr(function, "overloadpacket", function)
    namespace, _, name = getattr(packet, "_qualified_op_name", "").partition("::")
    if namespace != "aten" or name.endswith("_") or getattr(function, "_overloadname", "") == "out":
        return None
    for each in names_of(name):
        if each in OWN:
            return OWN[each]
        for library in LIBRARIES:
            handler = ALIASES.get(getattr(library, each, None))
            if handler is not None and handler not in LOSSES:
                return handler
    return None
