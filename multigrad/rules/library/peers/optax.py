"""Transformations of optax as rules, by its names and with its defaults; 1 where it has none.

A rule sees one leaf of the gradients at a time, so a norm is that of one leaf. `tin` may be None.
"""

from __future__ import annotations

from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves, limits, norms, transforms

Tensor = Any
named = curves.table(__name__)
named("optax.scale", transforms.scale, s=("step_size", 1.0))
named("optax.set_to_zero", limits.stop)
named("optax.clip", limits.clip_value, limit=("max_delta", 1.0))
named(
    "optax.clip_by_block_rms",
    limits.clip_rms,
    "`clip_by_block_rms` of optax, whose squares overflow where ours do not",
    threshold=1.0,
)
named(
    "optax.normalize_by_update_norm",
    limits.normalize,
    "`normalize_by_update_norm` of optax, whose norm is that of all leaves together",
    scale=("scale_factor", 1.0),
    eps=1e-6,
)
named("optax.scale_by_sign", limits.sign)


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
    return norms.clip_units(
        grad_out, limits.parameter("optax.adaptive_grad_clip", tin), clipping, eps
    )


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
