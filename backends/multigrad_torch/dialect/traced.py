"""Functions of torch that no row knows: torch traces the call itself, for its shapes and dtypes,
into operators of ATen, which are recorded one by one.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from multigrad.capture.code.table import OwnTrace, record_call
from multigrad.capture.types.traced_calls import TracedCall, dtype_in, giving_reasons
from multigrad.errors import TraceError
from multigrad.graph.ir import questions
from multigrad.graph.support.trees import optree
from multigrad.trace.trace import Trace, Value, mark_view

from .gradients import without_autocast, without_dispatch_modes

# Where those of torch's functions stand that compute, in Python; and what those in C are.
WRITTEN = ("torch.functional", "torch.nn.functional", "torch._tensor", "torch._jit_internal")
IN_C = (BuiltinFunctionType, MethodDescriptorType)
# Of where a result lies, and how, which is no part of a graph.
OF_MEMORY = frozenset({"device", "layout", "memory_format", "non_blocking", "pin_memory"})
Find = Callable[[Any], Callable[..., Any] | None]


def find_traced(function: Any, find: Find) -> Callable[..., Any] | None:
    """Return what records a function of torch's own by torch's trace; None for another's.

    Args:
        find: gives what records an operator of ATen, None for one that has to be taken apart.
    """
    if isinstance(getattr(function, "__self__", None), torch.Tensor):
        return None  # it would be kept
    is_torchs = getattr(function, "__module__", None) in WRITTEN or isinstance(function, IN_C)
    is_known = is_torchs or any(each in decompositions(find) for each in overloads_of(function))
    return OwnTrace(record, function, find) if is_known else None


def overloads_of(function: Any) -> list[Any]:
    """Return the overloads of an operator, none of what is no operator."""
    if isinstance(function, torch._ops.OpOverloadPacket):
        return [getattr(function, name) for name in function.overloads()]
    return [function] if isinstance(function, torch._ops.OpOverload) else []


def record(function: Callable[..., Any], find: Find, /, *args: Any, **kwargs: Any) -> Any:
    """Record a call by what torch computes it with.

    Raises:
        NeedsConcrete: a shape or dtype is not known in this capture.
        TypeError: torch cannot trace it, it draws, it gives what is no tensor, or its dtype is
            torch's default one.
    """
    call = TracedCall(function, torch.Tensor, args, kwargs)
    trace, given = call.trace, call.given
    with giving_reasons("torch"):
        traced = trace_call(call, [described(x, trace) for x in given], find)
    if any(node.target is function for node in traced.module.graph.nodes):
        raise TypeError("torch does not take it apart")
    with call.read_by("torch"):
        outputs = run(traced.module, given, trace)
    for output, base in zip(outputs, traced.bases, strict=True):
        if base is not None and isinstance(given[base], Value) and output is not given[base]:
            mark_view(output, given[base], False)
    return optree.tree_unflatten(traced.structure, outputs)


def described(x: Any, trace: Trace) -> tuple[tuple[int, ...], torch.dtype]:
    """Return the shape and dtype of a tensor."""
    if isinstance(x, torch.Tensor):
        return tuple(x.shape), x.dtype
    return tuple(x.shape), getattr(torch, dtype_in(trace, x.node.type.dtype))


class Traced(NamedTuple):
    """Torch's trace of a call.

    Attributes:
        module: its nodes.
        structure: the tree of its result.
        bases: the argument whose memory each output shares, by position; None: it shares none.
    """

    module: Any
    structure: Any
    bases: list[int | None]


def trace_call(
    called: Callable[..., Any], given: Sequence[tuple[tuple[int, ...], torch.dtype]], find: Find
) -> Traced:
    """Return torch's trace of a call on tensors without numbers."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def flat(*tensors: Any) -> list[Any]:
        return optree.tree_leaves(called(*tensors), none_is_leaf=True)

    with (
        warnings.catch_warnings(),
        without_dispatch_modes(),
        torch._C._DisableFuncTorch(),
        torch.no_grad(),
        without_autocast(),
    ):
        warnings.simplefilter("ignore")  # torch gives them when it runs the call itself
        with FakeTensorMode(allow_non_fake_inputs=True):
            inputs = [torch.empty(shape, dtype=dtype) for shape, dtype in given]
            outputs, structure = optree.tree_flatten(called(*inputs), none_is_leaf=True)
        check_outputs(inputs, outputs)
        pure = torch.func.functionalize(flat, remove="mutations")
        module = make_fx(pure, decompositions(find), tracing_mode="fake")(*inputs)
    module.graph.eliminate_dead_code()
    return Traced(module, structure, [base_of(output, inputs) for output in outputs])


def check_outputs(inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Refuse what a graph cannot give.

    Raises:
        TypeError: a result is no tensor, or has torch's default dtype, which may change.
    """
    other = next((x for x in outputs if not isinstance(x, torch.Tensor)), None)
    if other is not None:
        raise TypeError(f"it gives {other!r}, which is no tensor")
    made, given = (any(x.is_floating_point() for x in each) for each in (outputs, inputs))
    if made and not given:
        raise TypeError("it gives floats of integers; cast them to a float dtype first")


def base_of(output: Any, inputs: Sequence[Any]) -> int | None:
    shared = (output, output._base if output._is_view() else None)
    return next((i for i, x in enumerate(inputs) if any(x is each for each in shared)), None)


@functools.lru_cache(maxsize=1)
def decompositions(find: Find) -> Mapping[Any, Callable[..., Any]]:
    """Return how torch takes apart what has no row, but for its references in `prims`."""
    from torch._decomp import core_aten_decompositions, decomposition_table, decompositions

    own = decompositions.__name__
    known = {op: made for op, made in decomposition_table.items() if made.__module__ == own}
    known |= core_aten_decompositions()
    return {op: made_of for op, made_of in known.items() if find(op) is None}


def run(module: Any, given: Sequence[Any], trace: Trace) -> list[Any]:
    """Record the nodes of torch's trace, and return the results."""
    values: dict[Any, Any] = {}
    inputs = iter(given)
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


def is_number(x: Value) -> bool:
    return x.node.type.kind == "scalar"


def check_result(node: Any, found: Any) -> None:
    """Check that an operator gave what it gives in torch's trace.

    Raises:
        TypeError: its row means another number of results, shape or dtype.
    """
    expected = node.meta.get("val")
    is_tensor = isinstance(expected, torch.Tensor)
    fits = isinstance(found, Value | torch.Tensor) == is_tensor
    if fits and is_tensor and isinstance(found, Value) and not is_number(found):
        shape, dtype = described(found, found.trace)
        fits = shape == tuple(expected.shape) and dtype == expected.dtype
    elif fits and isinstance(found, Value):
        fits = not expected.ndim
    if not fits:
        raise TypeError(f"torch computes it with {node.target}, of which another result is known")
    if isinstance(found, Value) and found.trace.types is not None:
        found.trace.types.unconfirmed.pop(str(node.target), None)  # it is what torch says


def filled(given: Any, values: Mapping[Any, Any]) -> Any:
    """Return arguments of a node with values in place of nodes; torch's lists are of a class that
    no other code knows.
    """
    if isinstance(given, torch.fx.Node):
        return values[given]
    if isinstance(given, list | tuple):
        return (list if isinstance(given, list) else tuple)(filled(x, values) for x in given)
    if isinstance(given, dict):
        return {name: filled(x, values) for name, x in given.items()}
    return given


def constant(found: Any) -> Any:
    if isinstance(found, FakeTensor):
        raise TypeError("torch's trace holds a tensor whose numbers it does not know")
    return found


def compute(target: Any, args: Any, kwargs: Mapping[str, Any], trace: Trace) -> Any:
    """Record one operator; of what is known alone, compute it."""
    if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
        raise TypeError(
            f"it draws random numbers by {target}; draw with xp.rand_like or randn_like"
        )
    leaves = optree.tree_leaves((args, dict(kwargs)), none_is_leaf=True)
    if not any(isinstance(x, Value) for x in leaves):
        with torch._C._DisableFuncTorch(), torch.no_grad():
            return target(*args, **kwargs)
    if target is operator.getitem:
        return args[0][args[1]]
    plain = {name: given for name, given in kwargs.items() if name not in OF_MEMORY}
    asked = questions.count()
    try:
        return record_call("torch", target, args, plain, trace=trace, shown=str(target))
    except TraceError as error:  # said of the function that was called
        questions.forget(asked)
        raise TypeError(f"torch computes it with {target}, which is not captured") from error
