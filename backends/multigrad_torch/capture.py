"""Torch's dialect: which torch function means which op. Reached by `__torch_function__`."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F

from multigrad.capture import composites, methods
from multigrad.capture.classes import is_instance
from multigrad.capture.dialect import Dialect, Habits, register_dialect
from multigrad.capture.extremes import extremes
from multigrad.capture.outside import CHANGES, SWITCHES
from multigrad.capture.symbols import SymbolicShape
from multigrad.ir import neutral
from multigrad.ir.facts import needed_shapes
from multigrad.ir.record import NeedFact, Value, known_shape, mark_view

from . import attributes, capture_arrays, capture_elementwise, importer

Tensor = Any


def rsub(a: Tensor, b: Any) -> Tensor:
    return neutral.subtract(b, a)


def rdiv(a: Tensor, b: Any) -> Tensor:
    return neutral.divide(b, a)


def rpow(a: Tensor, b: Any) -> Tensor:
    return neutral.pow(b, a)


def clamp(input: Tensor, min: Any = None, max: Any = None) -> Tensor:
    return neutral.clip(input, min, max)


def where(condition: Tensor, input: Any, other: Any) -> Tensor:
    return neutral.where(condition, input, other)


def max_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.max(x), torch.max(a, b); torch.max(x, dim) gives values and indices."""
    return extremes(neutral.max, neutral.maximum, input, *args, **kwargs)


def min_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """torch.min(x), torch.min(a, b); torch.min(x, dim) gives values and indices."""
    return extremes(neutral.min, neutral.minimum, input, *args, **kwargs)


def std(input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: Any = None) -> Tensor:  # fmt: skip
    n = (1 if unbiased else 0) if correction is None else correction
    return neutral.std(input, dim, n, keepdim)


def var(input: Tensor, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *,
        correction: Any = None) -> Tensor:  # fmt: skip
    n = (1 if unbiased else 0) if correction is None else correction
    return neutral.var(input, dim, n, keepdim)


def norm(input: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, out: Any = None,
         dtype: Any = None) -> Tensor:  # fmt: skip
    if out is not None or dtype is not None:
        raise TypeError("norm with out or dtype")
    return methods.norm(input, p, dim, keepdim)


def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    return methods.norm(x, ord, dim, keepdim)


def zeros_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return neutral.zeros_like(input, dtype)


def ones_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return neutral.ones_like(input, dtype)


def full_like(input: Tensor, fill_value: Any, *, dtype: Any = None, **ignored: Any) -> Tensor:
    return neutral.full_like(input, fill_value, dtype)


def rand_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return neutral.rand_like(input)


def randn_like(input: Tensor, *, dtype: Any = None, device: Any = None, **ignored: Any) -> Tensor:
    return neutral.randn_like(input)


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.relu(input)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.relu6(input)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    return neutral.leaky_relu(input, negative_slope)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    return neutral.elu(input, alpha)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    return neutral.gelu(input, approximate == "tanh")


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    return neutral.silu(input)


def softplus(input: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Linear above the threshold, which makes a difference below the default alone."""
    scaled = input if type(beta) in (int, float) and beta == 1 else input * beta
    smooth = neutral.softplus(scaled)
    smooth = smooth if scaled is input else smooth / beta
    if type(threshold) in (int, float) and threshold >= 20:
        return smooth
    return neutral.where(scaled > threshold, input, smooth)


def heaviside(input: Tensor, values: Any) -> Tensor:
    """`values` at zero, else 0 or 1; NaN gives 0."""
    return neutral.where(neutral.equal(input, 0), values, neutral.heaviside(input))


def numel(input: Tensor) -> Any:
    return neutral.size(input)


def is_tensor(obj: Any) -> bool:
    return is_instance(obj, _T)


def sign(input: Tensor) -> Tensor:
    """torch.sign gives 0 for NaN."""
    return neutral.where(neutral.isnan(input), 0.0, neutral.sign(input))


def normalize(
    input: Tensor, p: Any = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Tensor:
    return input / neutral.maximum(methods.norm(input, p, dim, True), eps)


def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    if not training:
        return input
    return input * (neutral.rand_like(input) >= p) * (1.0 / (1.0 - p))


_T = torch.Tensor


def sum_to_size(input: Tensor, *size: Any) -> Tensor:
    """The sum over what broadcasting from a shape has repeated."""
    target = size[0] if len(size) == 1 and not isinstance(size[0], int | Value) else size
    if isinstance(target, SymbolicShape):
        result = neutral.sum_to(input, target.value)
        mark_view(result, input, False)  # the tensor itself, where there is nothing to sum
        return result
    lengths = [operator.index(n) for n in target]
    shape = known_shape(input)
    if shape is None:
        raise NeedFact(*needed_shapes(input.node))
    extra = len(shape) - len(lengths)
    repeated = [i + extra for i, n in enumerate(lengths) if n == 1 != shape[i + extra]]
    kept = neutral.sum(input, repeated, True) if repeated else input
    return neutral.sum(kept, list(range(extra))) if extra else kept


# The methods reach us as functions of the class, where the first operand is a real tensor.
METHODS = {
    method: handler
    for name, handler in methods.METHODS.items()
    if (method := getattr(_T, name, None)) is not None
}
ALIASES: dict[Any, Any] = {
    **METHODS, **capture_elementwise.ALIASES, **capture_arrays.ALIASES,
    _T.max: max_, _T.min: min_, _T.add: methods.add, _T.__radd__: methods.add, _T.__rsub__: rsub, _T.__rmul__: neutral.multiply,
    _T.__rtruediv__: rdiv, _T.__rdiv__: rdiv, _T.__pow__: neutral.pow, _T.__rpow__: rpow,
    _T.sign: sign, _T.sum_to_size: sum_to_size,
    torch.add: methods.add, torch.sub: methods.sub, torch.subtract: methods.sub, torch.rsub: rsub,
    torch.mul: neutral.multiply, torch.multiply: neutral.multiply, torch.div: methods.div,
    torch.divide: methods.div, torch.true_divide: methods.div, torch.neg: neutral.negative,
    torch.negative: neutral.negative, torch.positive: methods.identity,
    torch.pow: neutral.pow, torch.square: neutral.square,
    torch.sqrt: neutral.sqrt, torch.rsqrt: neutral.rsqrt, torch.reciprocal: neutral.reciprocal,
    torch.abs: neutral.abs, torch.absolute: neutral.abs, torch.sign: sign, torch.sgn: sign,
    torch.floor: neutral.floor, torch.ceil: neutral.ceil, torch.round: neutral.round,
    torch.trunc: neutral.trunc, torch.exp: neutral.exp, torch.expm1: neutral.expm1,
    torch.log: neutral.log, torch.log1p: neutral.log1p, torch.sin: neutral.sin,
    torch.cos: neutral.cos, torch.atan: neutral.atan, torch.arctan: neutral.atan,
    torch.tanh: neutral.tanh, F.tanh: neutral.tanh, torch.erf: neutral.erf,
    torch.special.erf: neutral.erf, torch.sigmoid: neutral.sigmoid, F.sigmoid: neutral.sigmoid,
    torch.special.expit: neutral.sigmoid, torch.lt: neutral.less, torch.less: neutral.less,
    torch.le: neutral.less_equal, torch.less_equal: neutral.less_equal, torch.gt: neutral.greater,
    torch.greater: neutral.greater, torch.ge: neutral.greater_equal,
    torch.greater_equal: neutral.greater_equal, torch.eq: neutral.equal,
    torch.ne: neutral.not_equal, torch.not_equal: neutral.not_equal,
    torch.logical_and: neutral.logical_and, torch.logical_or: neutral.logical_or,
    torch.logical_xor: neutral.logical_xor, torch.logical_not: neutral.logical_not,
    torch.isnan: neutral.isnan, torch.isinf: neutral.isinf, torch.isfinite: neutral.isfinite,
    torch.clamp: clamp, torch.clip: clamp, torch.clamp_min: methods.clamp_min,
    torch.clamp_max: methods.clamp_max, torch.maximum: neutral.maximum,
    torch.minimum: neutral.minimum, torch.max: max_, torch.min: min_, torch.amax: methods.amax,
    torch.amin: methods.amin, torch.where: where, torch.masked_fill: methods.masked_fill,
    torch.sum: methods.sum, torch.mean: methods.mean, torch.any: methods.any,
    torch.all: methods.all, torch.std: std, torch.var: var, torch.norm: norm,
    torch.linalg.vector_norm: vector_norm,
    torch.zeros_like: zeros_like, torch.ones_like: ones_like, torch.full_like: full_like,
    torch.rand_like: rand_like, torch.randn_like: randn_like, torch.relu: relu, F.relu: relu,
    F.relu6: relu6, F.leaky_relu: leaky_relu, F.elu: elu, F.gelu: gelu, F.silu: silu,
    F.softplus: softplus, torch.heaviside: heaviside, torch.numel: numel,
    torch.is_floating_point: methods.is_floating_point,
    torch.clone: methods.clone, torch.unsqueeze: methods.unsqueeze, torch.detach: methods.detach,
    torch.addcmul: composites.addcmul, torch.addcdiv: composites.addcdiv,
    F.normalize: normalize,
    torch.bernoulli: composites.bernoulli, F.dropout: dropout, torch.empty_like: zeros_like,
}  # fmt: skip


def as_torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of that name."""
    return getattr(torch, name)


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
REFUSED = {
    **dict.fromkeys(
        (
            torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.is_autocast_enabled,
            torch.get_default_dtype, torch.get_default_device, torch.get_rng_state,
            torch.initial_seed, torch.are_deterministic_algorithms_enabled,
        ),
        CHANGES,
    ),
    **dict.fromkeys(
        (
            torch.manual_seed, torch.seed, torch.set_default_dtype, torch.set_default_device,
            torch.set_rng_state, torch.set_printoptions, torch.use_deterministic_algorithms,
            torch.set_num_threads, torch.cuda.manual_seed, torch.cuda.manual_seed_all,
        ),
        SWITCHES,
    ),
}  # fmt: skip

register_dialect(
    "torch",
    Dialect(
        ALIASES,
        _T,
        as_torch_dtype,
        torch.device("cpu"),
        correction=1,
        methods={"max": max_, "min": min_, "sgn": sign, "sign": sign, "sum_to_size": sum_to_size},
        hidden={torch.is_tensor: is_tensor},
        keeps=importer.is_custom_gradient,
        interceptions=importer.INTERCEPTIONS,
        one_class=True,
        refusals=attributes.REFUSALS,
        generators=generators,
        refused=REFUSED,
        habits=Habits(
            exchanges_two=True,
            repeats_whole=True,
            sorts_anew=True,
            integers_first=True,
            bytes_are_masks=True,
            nested_lists=False,
            plus_copies=False,
        ),
    ),
)
