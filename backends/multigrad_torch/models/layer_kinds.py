"""Which kind of layer a module or a call of an operation is, as rules that read weights take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from multigrad.errors import RuleValueError

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True)
class CallOfLayer:
    """A call as `multigrad.models.attribution.kinds` has it.

    Attributes:
        kind: of the layer.
        inputs: what relevance is for.
        params: weight and bias, where the kind has them.
        attributes: what is fixed.
        is_single: whether the call is of one example, without an axis for a batch.
        shape: of the output where the kind has it with other axes.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    params: tuple[Tensor | None, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_single: bool = False
    shape: tuple[int, ...] | None = None


def spread(value: Any, count: int) -> tuple[int, ...]:
    """Return a number for each axis."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * (count if len(value) == 1 else 1)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> CallOfLayer:
    return CallOfLayer("linear", (input,), (weight.T, bias))


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> CallOfLayer:
    count = weight.ndim - 2
    dilations = spread(dilation, count)
    if padding == "same":
        whole = [d * (size - 1) for d, size in zip(dilations, weight.shape[2:], strict=True)]
        borders = tuple((each // 2, each - each // 2) for each in whole)
    else:
        one = spread(0 if padding == "valid" else padding, count)
        borders = tuple((each, each) for each in one)
    attributes = {
        "strides": spread(stride, count),
        "padding": borders,
        "dilations": dilations,
        "groups": groups,
    }
    single = input.ndim == count + 1
    return CallOfLayer("convolution", (input,), (weight, bias), attributes, is_single=single)


def convolution_transpose(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> CallOfLayer:
    count = weight.ndim - 2
    attributes = {
        "strides": spread(stride, count),
        "padding": tuple((each, each) for each in spread(padding, count)),
        "dilations": spread(dilation, count),
        "groups": groups,
    }
    single = input.ndim == count + 1
    kind = "convolution_transpose"
    return CallOfLayer(kind, (input,), (weight, bias), attributes, is_single=single)


def pooling(axes: int) -> Callable[..., CallOfLayer]:
    """Return what reads a call of average pooling over as many axes."""

    def average_pooling(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> CallOfLayer:
        if ceil_mode or divisor_override is not None:
            raise RuleValueError(
                "average pooling with ceil_mode or divisor_override has no rule that reads layers: "
                "give the composite None for it by name, or pool without them"
            )
        sizes = spread(kernel_size, axes)
        attributes = {
            "sizes": sizes,
            "strides": spread(stride, axes) if stride else sizes,
            "padding": tuple((each, each) for each in spread(padding, axes)),
            "counts_padding": count_include_pad,
        }
        single = input.ndim == axes + 1
        return CallOfLayer("average_pooling", (input,), (), attributes, is_single=single)

    return average_pooling


def adaptive_pooling(axes: int) -> Callable[..., CallOfLayer]:
    """Return what reads a call of adaptive average pooling over as many axes."""

    def adaptive_average_pooling(input: Tensor, output_size: Any) -> CallOfLayer:
        lengths = input.shape[-axes:]
        counts = spread(output_size, axes) if output_size is not None else (None,) * axes
        chosen = tuple(c if c is not None else n for c, n in zip(counts, lengths, strict=True))
        return CallOfLayer("adaptive_average_pooling", (input,), (), {"counts": chosen})

    return adaptive_average_pooling


def mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, **others: Any
) -> CallOfLayer | None:
    """Read a mean over all axes after the channels, which is a pooling."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    axes = input.ndim - 2
    if axes < 1 or {each % input.ndim for each in dims} != set(range(2, input.ndim)):
        return None
    attributes = {"counts": (1,) * axes}
    shape = (*input.shape[:2], *(1,) * axes)
    return CallOfLayer("adaptive_average_pooling", (input,), (), attributes, shape=shape)


def addition(input: Any, other: Any, alpha: Any = 1) -> CallOfLayer | None:
    """Read the sum of two activations."""
    both = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor)
    if not both or isinstance(input, nn.Parameter) or isinstance(other, nn.Parameter):
        return None
    if alpha != 1 or not (input.is_floating_point() and other.is_floating_point()):
        return None
    return CallOfLayer("addition", (input, other))


# The kind of each operation, and what reads a call of it for rules that take its tensors.
OPERATIONS: Mapping[str, tuple[str, Callable[..., CallOfLayer | None] | None]] = {
    "linear": ("linear", linear),
    **{f"conv{n}d": ("convolution", convolution) for n in (1, 2, 3)},
    **{
        f"conv_transpose{n}d": ("convolution_transpose", convolution_transpose) for n in (1, 2, 3)
    },
    **{f"avg_pool{n}d": ("average_pooling", pooling(n)) for n in (1, 2, 3)},
    **{
        f"adaptive_avg_pool{n}d": ("adaptive_average_pooling", adaptive_pooling(n))
        for n in (1, 2, 3)
    },
    "mean": ("adaptive_average_pooling", mean),
    "add": ("addition", addition),
    **{f"max_pool{n}d": ("max_pooling", None) for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": ("max_pooling", None) for n in (1, 2, 3)},
    "batch_norm": ("batch_normalization", None),
    "relu": ("relu", None),
    **dict.fromkeys(
        (
            "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
            "leaky_relu", "logsigmoid", "mish", "prelu", "relu6", "rrelu", "selu", "sigmoid",
            "silu", "softplus", "softshrink", "softsign", "tanh", "tanhshrink", "threshold",
        ),
        ("activation", None),
    ),
}  # fmt: skip

_STEPS = {"strides": (1,), "padding": ((0, 0),), "dilations": (1,), "groups": 1}
# Attributes as a layer of a kind may have them.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "convolution": _STEPS,
    "convolution_transpose": _STEPS,
    "average_pooling": {
        "sizes": (1,), "strides": (1,), "padding": ((0, 0),), "counts_padding": True,
    },
    "adaptive_average_pooling": {"counts": (1,)},
}  # fmt: skip

MODULES: Mapping[str, tuple[type[nn.Module], ...]] = {
    "linear": (nn.Linear,),
    "convolution": (nn.Conv1d, nn.Conv2d, nn.Conv3d),
    "convolution_transpose": (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    "average_pooling": (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    "adaptive_average_pooling": (
        nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d,
    ),
    "max_pooling": (
        nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d,
        nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
    ),
    "batch_normalization": (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d),
    "relu": (nn.ReLU,),
    "activation": (
        nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh,
        nn.LeakyReLU, nn.LogSigmoid, nn.Mish, nn.PReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.Sigmoid,
        nn.SiLU, nn.Softplus, nn.Softshrink, nn.Softsign, nn.Tanh, nn.Tanhshrink, nn.Threshold,
    ),
}  # fmt: skip


def kind_of(module: nn.Module) -> str | None:
    """Return the kind of a module, None for one of no name."""
    for kind, types in MODULES.items():
        if isinstance(module, types):
            return kind
    return None
