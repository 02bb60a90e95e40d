"""Transformations of optax as rules, by its names and with its defaults; 1 where it has none.

A rule sees one leaf of the gradients at a time, so a norm is that of one leaf. `tin` may be None.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import norms
from ..limits import parameter

Tensor = Any


@register("optax.scale", ranges={"step_size": "finite"})
def scale(ctx: Any, grad_out: Tensor, tin: Tensor | None, step_size: float = 1.0) -> Tensor:
    """grad_out * step_size.

    Source: `scale` of optax.
    """
    return grad_out * step_size


@register("optax.set_to_zero")
def set_to_zero(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """0, whatever grad_out is, also where it is infinite or NaN.

    Source: `set_to_zero` of optax.
    """
    return xp.zeros_like(grad_out)


@register("optax.clip", ranges={"max_delta": ">= 0"})
def clip(ctx: Any, grad_out: Tensor, tin: Tensor | None, max_delta: float = 1.0) -> Tensor:
    """grad_out limited to [-max_delta, max_delta], each element by itself; NaN stays NaN.

    Source: `clip` of optax.
    """
    return xp.clip(grad_out, -max_delta, max_delta)


@register("optax.clip_by_block_rms", ranges={"threshold": "> 0"})
def clip_by_block_rms(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, threshold: float = 1.0
) -> Tensor:
    """grad_out / max(1, rms / threshold), with the root mean square of the whole tensor; grad_out
    itself where an element is infinite or NaN.

    Source: `clip_by_block_rms` of optax, whose squares overflow where ours do not.
    """
    return norms.clip_rms(grad_out, threshold)


@register(
    "optax.adaptive_grad_clip", ranges={"clipping": "> 0 and finite", "eps": "> 0 and finite"}
)
def adaptive_grad_clip(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clipping: float = 0.01, eps: float = 1e-3
) -> Tensor:
    """grad_out * min(1, clipping * max(norm of tin, eps) / max(norm of grad_out, 1e-6)), norms by
    unit, where tin is the parameter itself; without tin: an error.

    Source: `adaptive_grad_clip` of optax; the same as our `adaptive_clip`.
    """
    return norms.clip_units(grad_out, parameter("optax.adaptive_grad_clip", tin), clipping, eps)


@register(
    "optax.normalize_by_update_norm",
    ranges={"scale_factor": "finite", "eps": ">= 0 and finite"},
)
def normalize_by_update_norm(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, scale_factor: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """grad_out * scale_factor / (norm + eps), with the Euclidean norm of the whole tensor; 0 where
    all of it is 0, NaN where an element is infinite or NaN.

    Source: `normalize_by_update_norm` of optax, whose norm is that of all leaves together.
    """
    return norms.normalize(grad_out, scale_factor, eps)


@register("optax.scale_by_sign")
def scale_by_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """-1, 0 or 1, as grad_out is below, at or above zero; NaN where it is NaN.

    Source: `scale_by_sign` of optax.
    """
    return xp.sign(grad_out)


@register("optax.centralize")
def centralize(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out minus its mean over all axes but the first; unchanged with one axis or none.

    Source: `centralize` of optax; our `centralize` takes the mean along one dimension.
    """
    if grad_out.ndim < 2:
        return grad_out
    return grad_out - norms.mean(grad_out, tuple(range(1, grad_out.ndim)))


@register(
    "optax.add_noise",
    ranges={"eta": ">= 0 and finite", "gamma": "finite", "count": ">= 0 and finite"},
)
def add_noise(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    eta: float = 0.01,
    gamma: float = 0.55,
    count: float = 0.0,
) -> Tensor:
    """grad_out + sqrt(eta / (1 + count)^gamma) * N(0, 1), drawn anew for each element; count is the
    number of updates before this one.

    Source: `add_noise` of optax, with the eta and gamma of its `noisy_sgd`; after Neelakantan et
    al., 2015 (arXiv 1511.06807).
    """
    deviation = (eta / (1.0 + count) ** gamma) ** 0.5
    return grad_out + deviation * xp.randn_like(grad_out)
