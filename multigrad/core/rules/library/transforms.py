"""Gradient transforms: rules that scale, limit or stop a gradient, or add noise to it.

All but `adaptive_clip` take None for `tin`. Norms are those of one gradient tensor, under `vmap` of
each example's. They are computed without overflow where the gradient is finite (the last section),
but for those of `clip_norm`, as it has FreeGrad's numbers.
"""

from __future__ import annotations

import math
from typing import Any

from ....errors import RuleValueError
from ...trace.xp import all as xp
from ..registry import register

Tensor = Any
Axes = tuple[int, ...] | None


# --- scaled, shifted, replaced or stopped ---------------------------------------------------------
@register("scale", ranges={"s": "finite"})
def scale(ctx: Any, grad_out: Tensor, tin: Tensor | None, s: float = 1.0) -> Tensor:
    """grad_out * s.

    Source: "scale" of FreeGrad.
    """
    return grad_out * s


@register("gradient_reversal", ranges={"alpha": "finite"})
def gradient_reversal(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """-alpha * grad_out.

    Source: Ganin and Lempitsky, 2015 (arXiv 1409.7495), eq. 9.
    """
    return -alpha * grad_out


@register("centralize")
def centralize(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, dim: int = -1, keepdim: bool = True
) -> Tensor:
    """grad_out minus its mean along `dim`.

    `keepdim` is taken for FreeGrad's sake; either value gives the same result. Source: "centralize"
    of FreeGrad, after Yong et al., 2020 (arXiv 2004.01461).
    """
    return grad_out - xp.mean(grad_out, axis=dim, keepdims=True)


@register("noise", ranges={"sigma": ">= 0 and finite"})
def noise(ctx: Any, grad_out: Tensor, tin: Tensor | None, sigma: float = 0.1) -> Tensor:
    """grad_out + sigma * N(0, 1), drawn anew for each element.

    Source: "noise" of FreeGrad, after Neelakantan et al., 2015 (arXiv 1511.06807).
    """
    return grad_out + sigma * xp.randn_like(grad_out)


@register("stop")
def stop(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """0, whatever grad_out and tin are, also where they are infinite or NaN.

    Source: `stop_gradient` of jax and TensorFlow, `detach` of torch.
    """
    return xp.zeros_like(grad_out)


@register("sign")
def sign(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """-1, 0 or 1, as grad_out is below, at or above zero; NaN where it is NaN.

    Source: signSGD, Bernstein et al., 2018 (arXiv 1802.04434).
    """
    return xp.sign(grad_out)


@register("clip_value", ranges={"limit": ">= 0"})
def clip_value(ctx: Any, grad_out: Tensor, tin: Tensor | None, limit: float = 1.0) -> Tensor:
    """grad_out limited to [-limit, limit], element by element; NaN stays NaN.

    Source: `clip_grad_value_` of torch.nn.utils.
    """
    return xp.clip(grad_out, -limit, limit)


@register("clip_norm", ranges={"max_norm": ">= 0", "eps": ">= 0 and finite"})
def clip_norm(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, max_norm: float = 1.0, eps: float = 1e-12
) -> Tensor:
    """grad_out * min(1, max_norm / max(norm, eps)), with the Euclidean norm of the whole tensor.

    Where the norm is above the range (65504 in float16, squares above 3e38 in float32), the result
    is zero. Under `vmap` the norm is per example; on a sharded axis it is what the framework says
    (global under jax's automatic sharding, per shard in `shard_map` and data-parallel torch).
    Source: "clip_norm" of FreeGrad.
    """
    return grad_out * xp.minimum(max_norm / xp.maximum(xp.norm(grad_out), eps), 1.0)


@register("clip_rms", ranges={"threshold": "> 0"})
def clip_rms(ctx: Any, grad_out: Tensor, tin: Tensor | None, threshold: float = 1.0) -> Tensor:
    """grad_out * min(1, threshold / rms), with the root mean square of the whole tensor; grad_out
    itself up to the threshold, and where an element is infinite or NaN.

    Source: update clipping of Adafactor, Shazeer and Stern, 2018 (arXiv 1804.04235), section 6.
    """
    top, factor = norm(grad_out)
    rms = factor / xp.sqrt(1.0 * grad_out.size)
    clipped = over(grad_out, top) * (threshold / one_for_zero(rms))
    return xp.where(top * rms > threshold, clipped, grad_out)


@register("normalize", ranges={"scale": "finite", "eps": ">= 0 and finite"})
def normalize(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, scale: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """grad_out * scale / (norm + eps), with the Euclidean norm of the whole tensor; 0 where all of
    it is 0, NaN where an element is infinite or NaN.

    Source: normalized gradient descent, Nesterov, 1984; Hazan et al., 2015 (arXiv 1507.02030).
    """
    top, factor = norm(grad_out)
    unit = xp.maximum(top, eps)  # beside which neither the norm nor eps overflows
    total = factor * over(top, unit) + eps / unit
    scaled = over(grad_out, unit) * scale / one_for_zero(total)
    # Beside a norm of 0 the total is eps, which XLA divides by as 0 where it is subnormal.
    return xp.where(factor == 0.0, 0.0, scaled)


@register("adaptive_clip", ranges={"clipping": "> 0 and finite", "eps": "> 0 and finite"})
def adaptive_clip(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    clipping: float = 0.01,
    eps: float = 1e-3,
) -> Tensor:
    """grad_out * min(1, clipping * max(norm of tin, eps) / max(norm of grad_out, 1e-6)), norms by
    unit, where tin is the parameter itself; grad_out where its norm is at the limit or infinite.

    With one axis longer than 1, or none, a unit is the whole tensor. Else it is a slice along axis
    0 (2 or 3 axes), or along all axes but the last (4 or 5). Without tin: an error. Source: Brock
    et al., 2021 (arXiv 2102.06171), eq. 3.
    """
    return clip_units(grad_out, parameter("adaptive_clip", tin), clipping, eps)


def parameter(name: str, tin: Tensor | None) -> Tensor:
    """Return the parameter that a rule compares its gradient with."""
    if tin is None:
        raise RuleValueError(
            f"rule {name!r} compares a gradient with its parameter, and got none for tin: call "
            f"xg.get({name!r})(None, gradient, parameter) for each of them"
        )
    return tin


# --- jamming: noise instead of a gradient's size, or with it (arXiv 2509.07236, section 5) --------
@register("full_jam")
def full_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * U, with U uniform on [0, 1) for each element.

    Source: "full_jam" of FreeGrad.
    """
    return grad_out * xp.rand_like(grad_out)


@register("positive_jam")
def positive_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * U where tin >= 0, else 0; without tin, everywhere.

    Source: "positive_jam" of FreeGrad.
    """
    jam = xp.rand_like(grad_out)
    return grad_out * (jam if tin is None else xp.where(tin >= 0, jam, 0.0))


@register("rectangular_jam", ranges={"a": "<= b", "b": ">= a"})
def rectangular_jam(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, a: float = -5.0, b: float = 5.0
) -> Tensor:
    """grad_out * U where a <= tin <= b, else 0; both edges belong to the window; without tin,
    everywhere.

    Source: "rectangular_jam" of FreeGrad.
    """
    jam = xp.rand_like(grad_out)
    return grad_out * (jam if tin is None else xp.where((tin >= a) & (tin <= b), jam, 0.0))


@register("sign_jam")
def sign_jam(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """sign(grad_out) * U, with U uniform on [0, 1) for each element: 0 where grad_out is 0, NaN
    where it is NaN.

    Source: the text of arXiv 2509.07236, section 5, which keeps the sign and replaces the size;
    FreeGrad's code does what `full_jam` does.
    """
    return xp.sign(grad_out) * xp.rand_like(grad_out)


@register("noisy_threshold", ranges={"t": "finite", "sigma": ">= 0 and finite"})
def noisy_threshold(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, t: float = 0.0, sigma: float = 0.1
) -> Tensor:
    """grad_out where tin >= t, else 0 (grad_out at t), plus sigma * N(0, 1), drawn anew for each
    element; without tin, grad_out plus noise everywhere.

    Source: "noisy_threshold", the example of FreeGrad's documentation of own rules.
    """
    gradient = grad_out if tin is None else grad_out * (tin >= t)
    return gradient + sigma * xp.randn_like(grad_out)


# --- norms and means, which divide by the largest magnitude first ---------------------------------
# So no square and no sum of finite numbers overflows, and none underflows beside its peers.
def peak(x: Tensor, axes: Axes = None) -> Tensor:
    """The largest |x| along axes, kept as ones; 1 if all are zero, NaN where an element is."""
    return one_for_zero(xp.norm(x, axis=axes, keepdims=True, ord=math.inf))


def one_for_zero(x: Tensor) -> Tensor:
    """1 where x is 0, to divide by."""
    return xp.where(x == 0.0, 1.0, x)


def over(x: Tensor, top: Tensor) -> Tensor:
    """x / top, also where the compiler multiplies by a 1 / top that is flushed to zero."""
    # A power of two, so that scaling both by it is exact.
    step = xp.where(top > 1.0, 0.125, 1.0)
    return (x * step) / (top * step)


def norm(x: Tensor, axes: Axes = None) -> tuple[Tensor, Tensor]:
    """The Euclidean norm as a product: the peak, and a factor, at least 1, or 0 if all are zero."""
    top = peak(x, axes)
    return top, xp.norm(over(x, top), axis=axes, keepdims=True)


def mean(x: Tensor, axes: Axes) -> Tensor:
    """The mean along axes, which stay as ones."""
    top = peak(x, axes)
    return top * xp.mean(over(x, top), axis=axes, keepdims=True)


def mean_magnitude(x: Tensor) -> Tensor:
    """The mean of |x| over all axes but the last; |x| itself where there is none other."""
    axes = tuple(range(x.ndim - 1))
    return mean(abs(x), axes) if axes else abs(x)


def clip_units(x: Tensor, tensor: Tensor, clipping: float, eps: float) -> Tensor:
    """x with the norm of each unit at most clipping * max(norm of the tensor's unit, eps).

    With one axis longer than 1, or none, a unit is the whole tensor. Else it is what one output of
    a layer is made of: a slice along axis 0 (2 or 3 axes), or along all but the last (4 or 5).
    """
    clipped = _clip_along(x, tensor, None, clipping, eps)
    if tensor.ndim < 2:
        return clipped
    axes = (0,) if tensor.ndim < 4 else tuple(range(tensor.ndim - 1))
    # In arithmetic alone, so that one graph serves all lengths.
    long_axes = sum(xp.minimum(1.0 * tensor.shape[i] - 1.0, 1.0) for i in range(tensor.ndim))
    return xp.where(long_axes > 1.5, _clip_along(x, tensor, axes, clipping, eps), clipped)


def _clip_along(x: Tensor, tensor: Tensor, axes: Axes, clipping: float, eps: float) -> Tensor:
    top, factor = norm(x, axes)
    largest, length = norm(tensor, axes)
    # Brock et al., 2021 (arXiv 2102.06171), eq. 3.
    limit = xp.maximum((clipping * largest) * length, clipping * eps)
    clipped = over(x, top) * (limit / xp.maximum(one_for_zero(factor), 1e-6 / top))
    return xp.where(top * factor > limit, clipped, x)
