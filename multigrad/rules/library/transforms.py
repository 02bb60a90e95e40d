"""Gradient transforms: they look at the gradient alone, so `tin` may be None."""

from __future__ import annotations

from typing import Any

from ...trace.xp import all as xp
from ..registry import register

Tensor = Any


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
