"""The operations of torch that layers are: one table for all that puts rules on them.

It says which kind of layer a module or a call is, how rules that read weights take it, and which
are our activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from multigrad.errors import RuleValueError
from multigrad.models.attribution.kinds import has_weight

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


@dataclass(frozen=True, slots=True)
class Operation:
    """What is known of an operation that layers are.

    Attributes:
        kind: of these layers, as `multigrad.models.attribution.kinds` names it.
        modules: their classes.
        read: what reads a call of it for rules that take its tensors; None: they have no meaning
            there.
        settings: it is our activation of its name where its numbers, by position and by name, also
            as attributes of the modules, are these; None: it is none of ours.
    """

    kind: str
    modules: tuple[type[nn.Module], ...] = ()
    read: Callable[..., CallOfLayer | None] | None = None
    settings: Mapping[str, Any] | None = None


AXES = (1, 2, 3)
# One row for each operation: a layer is added here, and nowhere else.
OPERATIONS: Mapping[str, Operation] = {
    "linear": Operation("linear", (nn.Linear,), linear),
    **{
        f"conv{n}d": Operation("convolution", (getattr(nn, f"Conv{n}d"),), convolution)
        for n in AXES
    },
    **{
        f"conv_transpose{n}d": Operation(
            "convolution_transpose", (getattr(nn, f"ConvTranspose{n}d"),), convolution_transpose
        )
        for n in AXES
    },
    **{
        f"avg_pool{n}d": Operation("average_pooling", (getattr(nn, f"AvgPool{n}d"),), pooling(n))
        for n in AXES
    },
    **{
        f"adaptive_avg_pool{n}d": Operation(
            "adaptive_average_pooling", (getattr(nn, f"AdaptiveAvgPool{n}d"),), adaptive_pooling(n)
        )
        for n in AXES
    },
    "mean": Operation("adaptive_average_pooling", read=mean),
    "add": Operation("addition", read=addition),
    **{f"max_pool{n}d": Operation("max_pooling", (getattr(nn, f"MaxPool{n}d"),)) for n in AXES},
    **{
        f"adaptive_max_pool{n}d": Operation("max_pooling", (getattr(nn, f"AdaptiveMaxPool{n}d"),))
        for n in AXES
    },
    "batch_norm": Operation(
        "batch_normalization", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    ),
    "relu": Operation("relu", (nn.ReLU,), settings={}),
    "celu": Operation("activation", (nn.CELU,)),
    "elu": Operation("activation", (nn.ELU,), settings={"alpha": 1.0}),
    "gelu": Operation("activation", (nn.GELU,), settings={"approximate": "none"}),
    "hardshrink": Operation("activation", (nn.Hardshrink,)),
    "hardsigmoid": Operation("activation", (nn.Hardsigmoid,)),
    "hardswish": Operation("activation", (nn.Hardswish,)),
    "hardtanh": Operation("activation", (nn.Hardtanh,)),
    "leaky_relu": Operation("activation", (nn.LeakyReLU,), settings={"negative_slope": 0.01}),
    "logsigmoid": Operation("activation", (nn.LogSigmoid,)),
    "mish": Operation("activation", (nn.Mish,)),
    "prelu": Operation("activation", (nn.PReLU,)),
    "relu6": Operation("activation", (nn.ReLU6,), settings={}),
    "rrelu": Operation("activation", (nn.RReLU,)),
    "selu": Operation("activation", (nn.SELU,)),
    "sigmoid": Operation("activation", (nn.Sigmoid,), settings={}),
    "silu": Operation("activation", (nn.SiLU,), settings={}),
    "softplus": Operation("activation", (nn.Softplus,)),
    "softshrink": Operation("activation", (nn.Softshrink,)),
    "softsign": Operation("activation", (nn.Softsign,)),
    "tanh": Operation("activation", (nn.Tanh,), settings={}),
    "tanhshrink": Operation("activation", (nn.Tanhshrink,)),
    "threshold": Operation("activation", (nn.Threshold,)),
}
# Those that are our activations, and the modules that are one: a subclass may compute another.
ACTIVATIONS = {name: row.settings for name, row in OPERATIONS.items() if row.settings is not None}
ACTIVATION_OF = {module: name for name in ACTIVATIONS for module in OPERATIONS[name].modules}
# Only the first of their tensors is an activation.
WITH_WEIGHTS = frozenset(
    {
        *(name for name, row in OPERATIONS.items() if has_weight(row.kind)),
        "batch_norm",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "rms_norm",
        "prelu",
        "embedding",
    }
)


def kind_of(module: nn.Module) -> str | None:
    """Return the kind of a module, None for one of no name."""
    rows = OPERATIONS.values()
    return next((row.kind for row in rows if isinstance(module, row.modules)), None)
