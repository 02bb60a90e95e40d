"""JAX's dialect, convolutions and windows of `jax.lax`; see `table.py`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from multigrad.capture.meanings.networks import convolutions, sampling
from multigrad.capture.meanings.parts import length, rank, shape_of
from multigrad.trace.xp import all as xp

from .arrays import JAX, converted

Tensor = Any
Handler = Callable[..., Any]


def conv_general_dilated(
    lhs: Tensor,
    rhs: Tensor,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Any = None,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Tensor:
    if out_sharding is not None:
        raise TypeError("conv_general_dilated with out_sharding")
    if batch_group_count != 1:
        raise TypeError("conv_general_dilated with batch_group_count")
    axes = rank(lhs) - 2
    numbers = lax.conv_dimension_numbers(shape_of(lhs), shape_of(rhs), dimension_numbers)
    x = convolutions.spread(
        xp.permute_dims(lhs, numbers.lhs_spec), tuple(lhs_dilation or (1,) * axes)
    )
    kernels = xp.permute_dims(rhs, numbers.rhs_spec)
    strides, spacing = tuple(window_strides), tuple(rhs_dilation or (1,) * axes)
    border = padding
    if isinstance(padding, str):
        sizes = tuple(convolutions.lengths(kernels, axes))
        border = tuple(
            lax.padtype_to_pads(
                convolutions.lengths(x, axes), convolutions.reach(sizes, spacing), strides, padding
            )
        )
    result = convolutions.convolution(
        x,
        kernels,
        strides=strides,
        border=tuple(map(tuple, border)),
        dilations=spacing,
        groups=feature_group_count,
    )
    order = [numbers.out_spec.index(i) for i in range(axes + 2)]
    return converted(xp.permute_dims(result, order), preferred_element_type)


def conv_transpose(
    lhs: Tensor,
    rhs: Tensor,
    strides: Sequence[int],
    padding: Any,
    rhs_dilation: Any = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> Tensor:
    """JAX's borders: those with which a convolution by strides would have its input back."""
    if transpose_kernel or use_consistent_padding:
        raise TypeError("conv_transpose with transpose_kernel or use_consistent_padding")
    axes = rank(lhs) - 2
    letters = "HWD"[:axes]
    default = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
    layout = default if dimension_numbers is None else dimension_numbers
    numbers = lax.conv_dimension_numbers(shape_of(lhs), shape_of(rhs), layout)
    spacing = tuple(rhs_dilation or (1,) * axes)
    pads = padding
    if isinstance(padding, str):
        sizes = tuple(length(rhs, axis) for axis in numbers.rhs_spec[2:])
        spans = convolutions.reach(sizes, spacing)
        pads = [turned(span, step, padding) for span, step in zip(spans, strides, strict=True)]
    return conv_general_dilated(
        lhs,
        rhs,
        (1,) * axes,
        pads,
        lhs_dilation=strides,
        rhs_dilation=spacing,
        dimension_numbers=layout,
        preferred_element_type=preferred_element_type,
    )


def turned(span: int, step: int, padding: str) -> tuple[int, int]:
    """The border of one axis, of `lax.conv_transpose` ("SAME" or "VALID")."""
    if padding == "VALID":
        return span - 1, step - 1 + max(span - step, 0)
    total = span + step - 2
    before = span - 1 if step > span - 1 else math.ceil(total / 2)
    return before, total - before


def reduce_window(
    operand: Tensor,
    init_value: Any,
    computation: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Any,
    base_dilation: Any = None,
    window_dilation: Any = None,
) -> Tensor:
    n = rank(operand)
    strides, spacing = tuple(window_strides or (1,) * n), tuple(window_dilation or (1,) * n)
    sizes = tuple(window_dimensions)
    if base_dilation is not None and set(base_dilation) != {1}:
        raise TypeError("reduce_window with base_dilation")
    border = padding
    if isinstance(padding, str):
        reach = convolutions.reach(sizes, spacing)
        border = lax.padtype_to_pads(shape_of(operand), reach, strides, padding)
    border = tuple(map(tuple, border))
    start, reduce = float(init_value), getattr(computation, "function", computation)
    if reduce is lax.max and start == -math.inf:
        return convolutions.max_pool(operand, sizes, strides, border, spacing)
    if reduce is lax.min and start == math.inf:
        most = convolutions.max_pool(xp.negative(operand), sizes, strides, border, spacing)
        return xp.negative(most)
    if reduce is lax.add and start == 0.0:
        seen = xp.windows(convolutions.bordered(operand, border), sizes, strides, spacing)
        return xp.sum(seen, tuple(range(-n, 0)))
    raise TypeError("reduce_window by another function than lax.max, lax.min or lax.add")


def convolve(
    a: Tensor,
    v: Tensor,
    mode: str = "full",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Tensor:
    return converted(convolutions.convolve(a, v, mode), preferred_element_type)


def resize(
    image: Tensor, shape: Any, method: Any, antialias: bool = True, precision: Any = None
) -> Tensor:
    """Along one axis after another, by the weights that jax's own function has."""
    if str(method).lower().rpartition(".")[2] in ("cubic", "bicubic", "tricubic"):
        # In float32 jax's weights are off by 3 eps, more than a proof lets pass.
        raise TypeError(f"image.resize by {method!r}; 'nearest', 'linear', 'lanczos3' are known")
    result = image
    for axis, (old, new) in enumerate(zip(shape_of(image), shape, strict=True)):

        def along_last(unit: Any, new: int = operator.index(new)) -> Any:
            with jax.ensure_compile_time_eval(), jax.enable_x64(True):
                return jax.image.resize(unit, (len(unit), new), method, antialias)

        if old != new:
            result = sampling.resized(result, axis - rank(image), old, along_last)
    return result


ALIASES: dict[Any, Handler] = {
    jax.image.resize: resize,
    **JAX.called({__name__: "conv_general_dilated: lax.conv lax.conv_with_general_padding"}),
    **JAX.taking_the_same(
        {
            __name__: """
                lax.conv_general_dilated; lax.conv_transpose; lax.reduce_window; convolve
            """,
        }
    ),
}
