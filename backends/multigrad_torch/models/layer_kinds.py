"""The table of layers: the operation and kind of each torch module or call, for rules on models.

It says how rules that read weights take a call, and which operations are our activations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import nn

from multigrad.errors import RuleValueError
from multigrad.models.attribution.kinds import KINDS, LayerCall, kind_of_function

Tensor: TypeAlias = torch.Tensor


@dataclass(frozen=True, slots=True)
class CallOfLayer(LayerCall):
    """A call of a layer of torch; `is_single`: it is for one example, without a batch axis."""

    is_single: bool = False


def spread(value: Any, count: int) -> tuple[int, ...]:
    """Return one number for each axis, as torch reads such an argument."""
    if isinstance(value, int):
        return (value,) * count
    return tuple(value) * (count if len(value) == 1 else 1)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> CallOfLayer:
    return CallOfLayer("linear", (input,), (weight.T, bias), {"layout": "in_out"})


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
    # torch puts the odd element of "same" at the end.
    if padding == "same":
        totals = [d * (size - 1) for d, size in zip(dilations, weight.shape[2:], strict=True)]
        borders = tuple((each // 2, each - each // 2) for each in totals)
    else:
        widths = spread(0 if padding == "valid" else padding, count)
        borders = tuple((each, each) for each in widths)
    attributes = {
        "strides": spread(stride, count),
        "padding": borders,
        "dilations": dilations,
        "groups": groups,
    }
    is_single = input.ndim == count + 1
    return CallOfLayer("convolution", (input,), (weight, bias), attributes, is_single=is_single)


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
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    call = convolution(input, weight, bias, **options)
    return replace(call, kind="convolution_transpose")


def average_pooling(
    axes: int,
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
    is_single = input.ndim == axes + 1
    return CallOfLayer("average_pooling", (input,), (), attributes, is_single=is_single)


def adaptive_average_pooling(axes: int, input: Tensor, output_size: Any) -> CallOfLayer:
    lengths = input.shape[-axes:]
    counts = spread(output_size, axes) if output_size is not None else (None,) * axes
    sizes = tuple(c if c is not None else n for c, n in zip(counts, lengths, strict=True))
    return CallOfLayer("adaptive_average_pooling", (input,), (), {"counts": sizes})


def mean(
    input: Tensor, dim: Any = None, keepdim: bool = False, **others: Any
) -> CallOfLayer | None:
    """Return a mean over all axes after the channels as a pooling; None for any other mean."""
    dims = (dim,) if isinstance(dim, int) else tuple(dim or ())
    axes = input.ndim - 2
    if axes < 1 or {each % input.ndim for each in dims} != set(range(2, input.ndim)):
        return None
    attributes = {"counts": (1,) * axes}
    shape = (*input.shape[:2], *(1,) * axes)
    return CallOfLayer("adaptive_average_pooling", (input,), (), attributes, shape=shape)


def addition(input: Any, other: Any, alpha: Any = 1) -> CallOfLayer | None:
    """Return the sum of two activations as a call of a layer; None for any other sum."""
    are_tensors = isinstance(input, torch.Tensor) and isinstance(other, torch.Tensor)
    if not are_tensors or isinstance(input, nn.Parameter) or isinstance(other, nn.Parameter):
        return None
    # A parameter, as in x + bias, gets no relevance, and integers have no gradient.
    if alpha != 1 or not (input.is_floating_point() and other.is_floating_point()):
        return None
    return CallOfLayer("addition", (input, other))


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that layers compute.

    Attributes:
        kind: the kind of these layers, as `multigrad.models.attribution.kinds` names it.
        modules: their classes.
        read: reads a call of it for rules that need its tensors; None: those rules do not apply.
        settings: the numbers, by position and name, also as attributes of the modules, with which
            it is our activation of this name; None: it is not one of ours.
    """

    kind: str
    modules: tuple[type[nn.Module], ...] = ()
    read: Callable[..., CallOfLayer | None] | None = None
    settings: Mapping[str, Any] | None = None


def over_axes(
    modules: str, kind: str, read: Callable[[int], Any] | None = None
) -> dict[str, Operation]:
    """Return the rows of modules over one, two and three axes; `read` gets that number."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", modules).lower()
    return {
        f"{name}{n}d": Operation(kind, (getattr(nn, f"{modules}{n}d"),), read and read(n))
        for n in (1, 2, 3)
    }


# The operation that an activation's module computes has its name in lower case, except of these.
NAMES = {nn.LeakyReLU: "leaky_relu"}
# The activations that are ours, with the numbers that make them so.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in ("relu", "relu6", "sigmoid", "silu", "tanh")},
    "elu": {"alpha": 1.0},
    "gelu": {"approximate": "none"},
    "leaky_relu": {"negative_slope": 0.01},
}
# One row for each operation, and one for each activation that `kind_of_function` knows. To support
# another layer, add a row here; nothing else is needed.
OPERATIONS: Mapping[str, Operation] = {
    "linear": Operation("linear", (nn.Linear,), linear),
    **over_axes("Conv", "convolution", lambda n: convolution),
    **over_axes("ConvTranspose", "convolution_transpose", lambda n: convolution_transpose),
    **over_axes("AvgPool", "average_pooling", lambda n: partial(average_pooling, n)),
    **over_axes(
        "AdaptiveAvgPool",
        "adaptive_average_pooling",
        lambda n: partial(adaptive_average_pooling, n),
    ),
    "mean": Operation("adaptive_average_pooling", read=mean),
    "add": Operation("addition", read=addition),
    **over_axes("MaxPool", "max_pooling"),
    **over_axes("AdaptiveMaxPool", "max_pooling"),
    "batch_norm": Operation(
        "batch_normalization", (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    ),
    **{
        (name := NAMES.get(module, module.__name__.lower())): Operation(
            kind, (module,), settings=SETTINGS.get(name)
        )
        for module in vars(nn).values()
        if isinstance(module, type) and (kind := kind_of_function(module.__name__)) is not None
    },
}
# Our activations, and the modules that are exactly one: a subclass may compute something else.
ACTIVATIONS = {name: row.settings for name, row in OPERATIONS.items() if row.settings is not None}
ACTIVATION_OF = {module: name for name in ACTIVATIONS for module in OPERATIONS[name].modules}
# Operations of which only the first tensor is an activation; the others are weights.
WITH_WEIGHTS = frozenset(
    {
        *(n for n, row in OPERATIONS.items() if row.kind and KINDS[row.kind].has_weight),
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
    rows = OPERATIONS.values()
    return next((row.kind for row in rows if isinstance(module, row.modules)), None)
