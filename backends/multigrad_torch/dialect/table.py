"""torch's functions by op: a capture looks calls up here, by `__torch_function__`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch._higher_order_ops.associative_scan import associative_scan as torch_associative_scan
from torch._higher_order_ops.while_loop import while_loop as torch_while_loop

from multigrad.core.support.trees import optree
from multigrad.core.trace.trace import Value, mark_view
from multigrad.core.trace.xp import all as xp
from multigrad.engine.capture.copies.stand_ins import is_instance
from multigrad.engine.capture.dialect import (
    CHANGES,
    SWITCHES,
    Calls,
    Classes,
    Convention,
    Dialect,
    FunctionConventions,
    Gradients,
    Habits,
    Names,
    OwnTrace,
    State,
    Tensors,
    passes_at,
)
from multigrad.engine.capture.meanings import (
    composites,
    control_flow,
    creation,
    loops,
    matrices,
    places,
    reductions,
)
from multigrad.engine.capture.meanings.parts import shape_of
from multigrad.engine.capture.meanings.places import first_of, is_differentiated
from multigrad.engine.capture.name_tables import common, named, reflected
from multigrad.engine.capture.symbols import SymbolicShape
from multigrad.engine.capture.values import memory, methods

from ..core.attach import host
from ..core.state import untraced, without_autocast
from ..importers.custom_gradients import find_custom_op
from ..releases import SCANS, force_eager
from . import arrays, collectives, gradients, interceptions, introspection, layers, traced
from .types import TENSOR, TORCH, TYPES, without_dispatch_modes

Tensor = Any
Handler = Callable[..., Any]
_T = torch.Tensor


def has_slope(function: Callable[..., Tensor], *limits: float) -> bool:
    """Return whether torch's own function gives its first argument, at 1, the whole gradient."""
    # Asked of torch itself, whatever mode or transform is around.
    modes = torch.utils._python_dispatch._disable_current_modes()
    with modes, torch._C._DisableFuncTorch(), torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        y = function(x, *(torch.tensor(limit) for limit in limits))
        return torch.autograd.grad(y, x)[0].item() == 1


CLAMP = FunctionConventions(
    rows=(
        Convention("", True, "the gradient passes at the limits (after 2.13 it does not)"),
        Convention("2.14", False, "no gradient passes at the limits (up to 2.13 it does)"),
    ),
    version=torch.__version__,
    ask_library=functools.cache(functools.partial(has_slope, lambda x: torch.clamp(x, 0, 1))),
)
FMAX = FunctionConventions(
    rows=(
        Convention("", True, "the first of equal operands gets all (after 2.13 a half)"),
        Convention("2.14", False, "each of equal operands gets a half (up to 2.13 the first all)"),
    ),
    version=torch.__version__,
    ask_library=functools.cache(functools.partial(has_slope, torch.fmax, 1.0)),
)


def fmax(input: Tensor, other: Any) -> Tensor:
    """Return the larger; what becomes of the gradient of two equal ones depends on the release."""
    if not first_gets_all(input, other):
        return xp.fmax(input, other)
    return first_of(xp.fmax, xp.less, input, other, missing=input)


def fmin(input: Tensor, other: Any) -> Tensor:
    """Return the smaller, as `fmax` the larger."""
    if not first_gets_all(input, other):
        return xp.fmin(input, other)
    return first_of(xp.fmin, xp.greater, input, other, missing=input)


def first_gets_all(*operands: Any) -> bool:
    symbol = next(each for each in operands if isinstance(each, Value))
    return is_differentiated(*operands) and passes_at(symbol.trace, "fmax")


def hardtanh(
    input: Tensor, min_val: Any = -1.0, max_val: Any = 1.0, inplace: bool = False
) -> Tensor:
    if isinstance(min_val, Value) or isinstance(max_val, Value):
        return xp.clip(input, min_val, max_val)
    return xp.hard_tanh(input, min_val, max_val)


def getitem(input: Tensor, index: Any) -> Tensor:
    """Index a constant by symbolic values."""
    items = index if isinstance(index, tuple) else (index,)
    symbol = next(item for item in items if isinstance(item, Value))
    return places.as_tensor(input, symbol)[index]


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return xp.gelu(input, approximate == "tanh")


LINEAR = 40  # above, log(1 + exp(x)) equals x in every dtype


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Record softplus, linear above the threshold; that matters only below 37 or with a beta."""
    scaled_input = input if type(beta) in (int, float) and beta == 1 else input * beta
    result = xp.softplus(scaled_input)
    result = result if scaled_input is input else result / beta
    if scaled_input is input and type(threshold) in (int, float) and threshold >= LINEAR:
        return result
    return xp.where(composites.is_above(scaled_input, threshold), input, result)


def heaviside(input: Tensor, values: Any) -> Tensor:
    """Return `values` at zero, else 0 or 1; 0 for NaN."""
    return xp.where(xp.equal(input, 0), values, xp.heaviside(input))


def is_tensor(obj: Any) -> bool:
    return is_instance(obj, _T)


def sign(input: Tensor) -> Tensor:
    """Return the sign, 0 for NaN as torch.sign does."""
    if composites.is_whole(input):
        return xp.sign(input)
    return xp.where(xp.isnan(input), 0.0, xp.sign(input))


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training or (isinstance(p, int | float) and p == 0):
        return input
    return input * (xp.rand_like(input) >= p) * (1.0 / (1.0 - p))


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """Sum over the axes that broadcasting from a shape has repeated."""
    target = size[0] if len(size) == 1 and not isinstance(size[0], int | Value) else size
    if isinstance(target, SymbolicShape):
        result = xp.sum_to(input, target.value)
        mark_view(result, input, False)  # the tensor itself, where there is nothing to sum
        return result
    lengths, shape = [operator.index(n) for n in target], shape_of(input)
    extra_axes = len(shape) - len(lengths)
    axes = [i + extra_axes for i, n in enumerate(lengths) if n == 1 != shape[i + extra_axes]]
    sums = xp.sum(input, axes, True) if axes else input
    return xp.sum(sums, list(range(extra_axes))) if extra_axes else sums


@contextmanager
def passing() -> Iterator[None]:
    """Let autograd record, and compute in the dtypes that are given."""
    with without_autocast(), torch.enable_grad():
        yield


def pauses() -> bool:
    if torch._C._is_any_autocast_enabled():
        raise TypeError("it computes under torch.autocast, whose dtypes a graph does not follow")
    return not torch.is_grad_enabled()


# Methods are also called as functions of the class, if the first operand is a real tensor.
METHODS = {
    method: handler
    for name, handler in methods.METHODS.items()
    if (method := getattr(_T, name, None)) is not None
}
OPERATORS = {
    "__radd__": methods.add,
    "__rfloordiv__": reflected(xp.floor_divide),
    "__rmod__": reflected(xp.remainder),
    "__rdiv__": reflected(xp.divide),
    "__rpow__": reflected(xp.pow),
    "__rsub__": reflected(xp.subtract),
    "__rtruediv__": reflected(xp.divide),
}
# Names of torch's own for ops.
NAMES = """
    mul: Tensor.__rmul__; pow: Tensor.__pow__; round: round special.round;
    floor_divide: Tensor.__floordiv__; remainder: Tensor.__mod__; bitwise_and: Tensor.__and__;
    bitwise_or: Tensor.__or__; bitwise_xor: Tensor.__xor__; bitwise_left_shift: Tensor.__lshift__;
    bitwise_right_shift: Tensor.__rshift__; log_sigmoid: F.logsigmoid;
    matmul: bmm dot linalg.matmul matmul mm mv Tensor.dot Tensor.__matmul__; moveaxis: movedim
"""
ALIASES: dict[Any, Any] = {
    **common(torch, F, torch.special),
    **named(NAMES, torch, F=F),
    **METHODS,
    # Functions with the names of methods.
    **{
        getattr(torch, name): handler
        for name, handler in methods.ELEMENTWISE.items()
        if hasattr(torch, name) and name != "int"
    },
    **arrays.ALIASES,
    **layers.ALIASES,
    F.conv2d: layers.conv2d,
    **introspection.ALIASES,
    **gradients.ALIASES,
    **collectives.ALIASES,
    **creation.stand_ins_of(("torch",)),
    **TORCH.called(
        {
            creation: "rand: rand_like; randn: randn_like",
            reductions: "sum; prod; mean; any; all; std; var",
            composites: """
                hard_shrink: hardshrink; nan_to_num; polygamma: polygamma special.polygamma
            """,
            methods: "clamp: clamp clip clamp_min clamp_max; norm",
            matrices: "normalize: F.normalize",
            xp: """
                expand_dims: unsqueeze; where: where masked_fill(mask=condition, value=a, input=b);
                zeros_like: zeros_like empty_like; ones_like; full_like; size: numel; relu: relu
                F.relu; relu6: F.relu6; leaky_relu: F.leaky_relu(negative_slope=slope); elu: F.elu;
                silu: F.silu; celu: celu F.celu; selu: selu F.selu; mish: F.mish; hard_sigmoid:
                F.hardsigmoid; hard_silu: F.hardswish; soft_shrink: F.softshrink
            """,
        }
    ),
    **TENSOR.taking_the_same(
        {
            places: "max; min",
            methods: "add; clamp: clip",
            __name__: "fmax; fmin; getitem: __getitem__; sign; sum_to_size",
        }
    ),
    **{getattr(_T, name): handler for name, handler in OPERATORS.items()},
    **{getattr(torch, name): METHODS[getattr(_T, name)] for name in ("amax", "amin")},
    **TORCH.taking_the_same(
        {
            composites: "addcmul; addcdiv; bernoulli; entr: special.entr; logit: special.logit",
            places: "max; min",
            memory: "clone",
            xp: "stop_gradient: detach",
            methods: """
                add; div: div divide true_divide; identity: positive; is_floating_point; sub:
                sub subtract
            """,
            __name__: """
                fmax; fmin; F.hardtanh; F.dropout; F.gelu; F.softplus; heaviside; sign: sign sgn
            """,
        }
    ),
    torch.rsub: reflected(xp.subtract, "rsub"),
}


# --- loops and branches that are functions --------------------------------------------------------
def cond(pred: Any, true_fn: Handler, false_fn: Handler, operands: Any = ()) -> Any:
    """Record both branches and a choice, unless a fact decides."""
    return control_flow.cond(pred, true_fn, false_fn, *operands)


def while_loop(cond_fn: Handler, body_fn: Handler, carried_inputs: Any) -> Any:
    """Unroll the loop, or record it if values end it."""
    step: Handler = lambda *values: [*body_fn(*values)]
    return tuple(loops.run_loop([*carried_inputs], cond_fn, step))


def scan(combine_fn: Handler, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    """Record a loop over the rows along an axis; results are stacked along the first."""
    rows = optree.tree_map(lambda x: xp.moveaxis(x, dim, 0), xs) if dim else xs
    return control_flow.scan(combine_fn, init, rows, reverse=reverse)


def associative_scan(
    combine_fn: Handler,
    xs: Any,
    dim: int,
    reverse: bool = False,
    combine_mode: str = "pointwise",
) -> Any:
    """Record all partial results of an operation; `combine_mode` only tells how it is compiled."""
    return control_flow.associative_scan(combine_fn, xs, reverse, dim)


CONTROL: dict[Any, Handler] = {
    torch.cond: cond,
    torch_while_loop: while_loop,
    torch_associative_scan: associative_scan,
    **dict.fromkeys(SCANS, scan),
}

# `traced` cannot import this module, which imports it.
traced.ALIASES.update(ALIASES)

OWN_METHODS: dict[str, Any] = {
    **introspection.METHODS,
    **gradients.METHODS,
    **places.EXTREMES,
    "clip": methods.clamp,
    "fmax": fmax,
    "fmin": fmin,
    "sgn": sign,
    "sign": sign,
    "sum_to_size": sum_to_size,
    **arrays.METHODS,
}


PRIVATE = {**introspection.PRIVATE, **collectives.PRIVATE}


def find_other(function: Any) -> Callable[..., Any] | None:
    """Return the handler of a function of torch's own code or of a package's operator, or None."""
    handler = PRIVATE.get(function) or find_custom_op(function)
    return handler or traced.find_aten(function) or traced.find_traced(function)


class Generator:
    """The state of a generator, read and set whatever mode or trace is active."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def get_state(self) -> Any:
        with without_dispatch_modes(), untraced(), torch._C._DisableFuncTorch():
            return self.generator.get_state().numpy().tobytes()

    def set_state(self, state: bytes) -> None:
        with torch.utils._python_dispatch._disable_current_modes(), torch._C._DisableFuncTorch():
            self.generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def generators() -> list[Generator]:
    torch_generators = [torch.default_generator]
    if torch.cuda.is_initialized():
        torch_generators += torch.cuda.default_generators
    return [Generator(each) for each in torch_generators]


# torch's settings, and functions that change them: outside a graph.
READ = """
    is_inference_mode_enabled get_default_dtype get_default_device initial_seed
    are_deterministic_algorithms_enabled get_num_threads get_num_interop_threads is_anomaly_enabled
    load
"""
# Once torch compiles, torch.manual_seed and torch.random.manual_seed are two functions.
SET = """
    manual_seed random.manual_seed seed set_default_dtype set_default_device set_printoptions
    use_deterministic_algorithms set_num_threads cuda.manual_seed
    cuda.manual_seed_all
"""
REFUSED = {
    **{operator.attrgetter(name)(torch): CHANGES for name in READ.split()},
    **{operator.attrgetter(name)(torch): SWITCHES for name in SET.split()},
    **dict.fromkeys(collectives.OUTSIDE, CHANGES),
}

DIALECT = Dialect(
    names=Names(
        aliases=ALIASES,
        methods=OWN_METHODS,
        attributes=introspection.ATTRIBUTES,
        hidden={
            **introspection.HIDDEN,
            **CONTROL,
            **gradients.HIDDEN,
            torch.is_tensor: is_tensor,
            torch.is_grad_enabled: creation.TraceBound(introspection.is_grad_enabled),
            torch.is_autocast_enabled: creation.TraceBound(introspection.is_autocast_enabled),
            torch.get_rng_state: creation.TraceBound(introspection.get_rng_state),
            torch.set_rng_state: creation.TraceBound(introspection.set_rng_state),
            **dict.fromkeys(introspection.TRANSFORMED, introspection.is_transformed),
        },
        companions=collectives.COMPANIONS,
        refused=REFUSED,
    ),
    tensors=Tensors(
        tensor=_T,
        dtype=host.dtype,
        device=torch.device("cpu"),
        correction=1,
        device_of=torch.device,
    ),
    classes=Classes(
        one_class=True,
        asking=("torch.distributions.", "torch._dynamo.decorators"),
        hints=("_dynamo_", "_has_dynamo_", "_specialize_on"),  # `torch._dynamo.mark_dynamic`
        refusals=introspection.REFUSALS,
    ),
    calls=Calls(
        at_once=force_eager,  # Dynamo cannot read symbols
        keeps=interceptions.is_custom_gradient,
        finds=find_other,
        other_way=traced.find_traced,
        own_trace=functools.partial(OwnTrace, traced.record),
    ),
    gradients=Gradients(
        wrappers={torch.jit.ScriptFunction: "_torchdynamo_inline"},
        pauses=pauses,
        passes=passing,
        interceptions=interceptions.INTERCEPTIONS,
        conventions={"clamp": CLAMP, "fmax": FMAX},
    ),
    state=State(
        generators=generators,
    ),
    types=TYPES,
    habits=Habits(
        objects_change=True,
        exchanges_two=True,
        repeats_whole=True,
        sorts_anew=True,
        integers_first=True,
        bytes_are_masks=True,
        nested_lists=False,
        plus_copies=False,
        none_is_other=True,
        small_integers_wrap=True,
        float8_is_limited=True,
        casts_gradients=True,
        unordered=frozenset({"kthvalue", "median", "topk"}),
        overwritten_too=True,
    ),
)
