"""Torch's dialect: which torch function means which op. Reached by `__torch_function__`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture import composites, creation, elementwise, methods, places
from multigrad.capture.classes import is_instance
from multigrad.capture.conventions import Convention, register_conventions
from multigrad.capture.dialect import Dialect, Habits, register_dialect
from multigrad.capture.extremes import extremes
from multigrad.capture.names import named
from multigrad.capture.outside import CHANGES, SWITCHES
from multigrad.capture.symbols import SymbolicShape
from multigrad.passes.facts import needed_shapes
from multigrad.tracing import xp_all as xp
from multigrad.tracing.axes import known_shape
from multigrad.tracing.trace import NeedsConcrete, Value, mark_view

from . import (
    asked,
    attributes,
    capture_arrays,
    capture_asserted,
    capture_collectives,
    capture_convolutions,
    capture_elementwise,
    capture_gradients,
    capture_layers,
    capture_linalg,
    capture_losses,
    capture_parts,
    capture_pooling,
    capture_selected,
    capture_views,
    custom_ops,
    importer,
    module_states,
    ops,
)
from .library_types import TYPES

Tensor = Any


def rsub(a: Tensor, b: Any) -> Tensor:
    return xp.subtract(b, a)


def rdiv(a: Tensor, b: Any) -> Tensor:
    return xp.divide(b, a)


def rpow(a: Tensor, b: Any) -> Tensor:
    return xp.pow(b, a)


def passes_at_limits() -> bool:
    """Return whether torch's own derivative of clamp passes where its input is a limit."""
    modes = torch.utils._python_dispatch._disable_current_modes()
    with modes, torch._C._DisableFuncTorch(), torch.enable_grad():
        x = torch.ones(1, requires_grad=True)
        return bool(torch.autograd.grad(torch.clamp(x, 0, 1), x)[0].item())


register_conventions(
    "torch",
    torch.__version__,
    {
        "clamp": (
            passes_at_limits,
            (
                Convention("", True, "the gradient passes at the limits (after 2.13 it does not)"),
                Convention("2.14", False, "no gradient passes at the limits (up to 2.13 it does)"),
            ),
        )
    },
)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return methods.clamp(input, min, max)


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    return xp.where(condition, input, other)


def max_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.max(x), torch.max(a, b); torch.max(x, dim) gives values and indices."""
    return extremes(xp.max, xp.maximum, input, *args, **kwargs)


def min_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.min(x), torch.min(a, b); torch.min(x, dim) gives values and indices."""
    return extremes(xp.min, xp.minimum, input, *args, **kwargs)


def deviation(name: str, reduce: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a measure of spread."""

    def record(
        input: Tensor,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        *,
        correction: Any = None,
    ) -> Tensor:
        n = (1 if unbiased else 0) if correction is None else correction
        return reduce(input, dim, n, keepdim)

    record.__name__ = record.__qualname__ = name
    return record


std, var = deviation("std", xp.std), deviation("var", xp.var)


def getitem(input: Tensor, index: Any) -> Tensor:
    """Of a constant, indexed by what is symbolic."""
    items = index if isinstance(index, tuple) else (index,)
    symbol = next(item for item in items if isinstance(item, Value))
    return places.as_tensor(input, symbol)[index]


def norm(
    input: Tensor,
    p: Any = "fro",
    dim: Any = None,
    keepdim: bool = False,
    out: Any = None,
    dtype: Any = None,
) -> Tensor:
    if out is not None or dtype is not None:
        raise TypeError("norm with out or dtype")
    return methods.norm(input, p, dim, keepdim)


def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return xp.zeros_like(input, dtype)


def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return xp.ones_like(input, dtype)


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, **ignored: Any) -> Tensor:
    return xp.full_like(input, fill_value, dtype)


def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return xp.rand_like(input)


def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return xp.randn_like(input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.relu(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return xp.leaky_relu(input, negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return xp.elu(input, alpha)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return xp.gelu(input, approximate == "tanh")


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    return xp.silu(input)


LINEAR = 40  # from where on log(1 + exp(x)) is x in every dtype


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Linear above the threshold, which makes a difference below 37 alone, or beside a beta."""
    scaled = input if type(beta) in (int, float) and beta == 1 else input * beta
    smooth = xp.softplus(scaled)
    smooth = smooth if scaled is input else smooth / beta
    if scaled is input and type(threshold) in (int, float) and threshold >= LINEAR:
        return smooth
    return xp.where(elementwise.is_above(scaled, threshold), input, smooth)


def heaviside(input: Tensor, values: Any) -> Tensor:
    """`values` at zero, else 0 or 1; NaN gives 0."""
    return xp.where(xp.equal(input, 0), values, xp.heaviside(input))


def numel(input: Tensor) -> Any:
    return xp.size(input)


def is_tensor(obj: Any) -> bool:
    return is_instance(obj, _T)


def sign(input: Tensor) -> Tensor:
    """torch.sign gives 0 for NaN."""
    if elementwise.is_whole(input):
        return xp.sign(input)
    return xp.where(xp.isnan(input), 0.0, xp.sign(input))


def normalize(
    input: Tensor, p: Any = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    return input / xp.maximum(methods.norm(input, p, dim, True), eps)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training:
        return input
    return input * (xp.rand_like(input) >= p) * (1.0 / (1.0 - p))


_T = torch.Tensor


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum over what broadcasting from a shape has repeated."""
    target = size[0] if len(size) == 1 and not isinstance(size[0], int | Value) else size
    if isinstance(target, SymbolicShape):
        result = xp.sum_to(input, target.value)
        mark_view(result, input, False)  # the tensor itself, where there is nothing to sum
        return result
    lengths = [operator.index(n) for n in target]
    shape = known_shape(input)
    if shape is None:
        raise NeedsConcrete(*needed_shapes(input.node))
    extra = len(shape) - len(lengths)
    repeated = [i + extra for i, n in enumerate(lengths) if n == 1 != shape[i + extra]]
    kept = xp.sum(input, repeated, True) if repeated else input
    return xp.sum(kept, list(range(extra))) if extra else kept


# The methods reach us as functions of the class, where the first operand is a real tensor.
METHODS = {
    method: handler
    for name, handler in methods.METHODS.items()
    if (method := getattr(_T, name, None)) is not None
}
ALIASES: dict[Any, Any] = {
    **named(ops.NAMES, torch, F=F), **METHODS, **capture_elementwise.ALIASES,
    **capture_arrays.ALIASES, **capture_parts.ALIASES, **capture_linalg.ALIASES,
    **capture_layers.ALIASES, **capture_convolutions.ALIASES, **asked.ALIASES,
    **capture_gradients.ALIASES,
    **capture_losses.ALIASES, **capture_pooling.ALIASES, **capture_views.ALIASES,
    **capture_selected.ALIASES, **capture_collectives.ALIASES, **creation.creators(("torch",)),
    _T.__getitem__: getitem,
    _T.max: max_, _T.min: min_, _T.add: methods.add,
    _T.__radd__: methods.add, _T.__rsub__: rsub, _T.__rtruediv__: rdiv, _T.__rdiv__: rdiv,
    _T.__rpow__: rpow, _T.sign: sign, _T.sum_to_size: sum_to_size, torch.add: methods.add,
    torch.sub: methods.sub, torch.subtract: methods.sub, torch.rsub: rsub, torch.div: methods.div,
    torch.divide: methods.div, torch.true_divide: methods.div, torch.positive: methods.identity,
    torch.sign: sign, torch.sgn: sign, torch.clamp: clamp, torch.clip: clamp,
    torch.clamp_min: methods.clamp_min, torch.clamp_max: methods.clamp_max, torch.max: max_,
    torch.min: min_, torch.amax: methods.amax, torch.amin: methods.amin, torch.where: where,
    torch.masked_fill: methods.masked_fill, torch.sum: methods.sum, torch.mean: methods.mean,
    torch.any: methods.any, torch.all: methods.all, torch.std: std, torch.var: var,
    torch.norm: norm, torch.zeros_like: zeros_like,
    torch.ones_like: ones_like, torch.full_like: full_like, torch.rand_like: rand_like,
    torch.randn_like: randn_like, torch.relu: relu, F.relu: relu, F.relu6: relu6,
    F.leaky_relu: leaky_relu, F.elu: elu, F.gelu: gelu, F.silu: silu, F.softplus: softplus,
    torch.heaviside: heaviside, torch.numel: numel,
    torch.is_floating_point: methods.is_floating_point, torch.clone: methods.clone,
    torch.unsqueeze: methods.unsqueeze, torch.detach: methods.detach,
    torch.addcmul: composites.addcmul, torch.addcdiv: composites.addcdiv, F.normalize: normalize,
    torch.bernoulli: composites.bernoulli, F.dropout: dropout, torch.empty_like: zeros_like,
}  # fmt: skip

OWN_METHODS = {
    **asked.METHODS, **capture_asserted.METHODS, **capture_gradients.METHODS,
    "max": max_, "min": min_, "sgn": sign, "sign": sign, "sum_to_size": sum_to_size,
    **capture_parts.METHODS, **capture_linalg.SHARED, **capture_layers.METHODS,
    **capture_views.METHODS, **capture_selected.METHODS,
    "logcumsumexp": capture_arrays.logcumsumexp,
}  # fmt: skip


def as_torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name."""
    return getattr(torch, name)


def eagerly() -> AbstractContextManager[Any]:
    """Let functions that torch.compile has made run as they are written: it cannot read symbols."""
    return torch.compiler.set_stance("force_eager")


def find_other(function: Any) -> Callable[..., Any] | None:
    """Return what records a function of torch's own code, or an operator of a package."""
    private = capture_asserted.PRIVATE.get(function) or capture_collectives.PRIVATE.get(function)
    return private or custom_ops.find_custom_op(function)


class Generator:
    """The state of a generator, whatever mode of dispatch or trace is on."""

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator

    def get_state(self) -> Any:
        """Return the state's bytes."""
        with torch.utils._python_dispatch._disable_current_modes(), torch._C._DisableFuncTorch():
            return self.generator.get_state().numpy().tobytes()

    def set_state(self, state: bytes) -> None:
        """Go on from a state."""
        with torch.utils._python_dispatch._disable_current_modes(), torch._C._DisableFuncTorch():
            self.generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def generators() -> list[Generator]:
    """Return torch's global generators."""
    found = [torch.default_generator]
    if torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    return [Generator(each) for each in found]


# What torch is set to, and what sets it: outside of a graph.
READ = """
    is_inference_mode_enabled is_autocast_enabled get_default_dtype
    get_default_device get_rng_state initial_seed are_deterministic_algorithms_enabled
"""
# torch.manual_seed and torch.random's are two functions, once torch compiles.
SET = """
    manual_seed random.manual_seed seed set_default_dtype set_default_device set_rng_state
    set_printoptions use_deterministic_algorithms set_num_threads cuda.manual_seed
    cuda.manual_seed_all
"""
REFUSED = {
    **{operator.attrgetter(name)(torch): CHANGES for name in READ.split()},
    **{operator.attrgetter(name)(torch): SWITCHES for name in SET.split()},
    **dict.fromkeys(capture_collectives.OUTSIDE, CHANGES),
}

register_dialect(
    "torch",
    Dialect(
        ALIASES,
        _T,
        as_torch_dtype,
        torch.device("cpu"),
        correction=1,
        methods=OWN_METHODS,
        attributes=asked.ATTRIBUTES,
        device_of=torch.device,
        wrappers={torch.jit.ScriptFunction: "_torchdynamo_inline"},
        hidden={
            **capture_asserted.HIDDEN,
            **capture_collectives.HIDDEN,
            **capture_convolutions.HIDDEN,
            **capture_gradients.HIDDEN,
            torch.is_tensor: is_tensor,
            torch.is_grad_enabled: creation.Told(asked.is_grad_enabled),
            **dict.fromkeys(asked.TRANSFORMED, asked.is_transformed),
        },
        at_once=eagerly,
        pauses=capture_gradients.pauses,
        passes=capture_gradients.passing,
        keeps=importer.is_custom_gradient,
        finds=find_other,
        interceptions=(*importer.INTERCEPTIONS, module_states.INTERCEPTION),
        one_class=True,
        asking=("torch.distributions.",),
        refusals=attributes.REFUSALS,
        generators=generators,
        refused=REFUSED,
        types=TYPES,
        habits=Habits(
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
        ),
    ),
)
