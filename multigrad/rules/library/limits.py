"""Gradient transforms that stop, limit or rescale a whole gradient; `tin` may be None.

None of them overflows where the gradient is finite: norms are of what is scaled by its peak. Under
`vmap` a norm is per example, as for `clip_norm`.
"""

from __future__ import annotations

from typing import Any

from ...errors import RuleValueError
from ...trace.xp import all as xp
from ..registry import register
from . import norms

Tensor = Any


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


@register("clip_rms", ranges={"threshold": "> 0"})
def clip_rms(ctx: Any, grad_out: Tensor, tin: Tensor | None, threshold: float = 1.0) -> Tensor:
    """grad_out * min(1, threshold / rms), with the root mean square of the whole tensor; grad_out
    itself up to the threshold, and where an element is infinite or NaN.

    Source: update clipping of Adafactor, Shazeer and Stern, 2018 (arXiv 1804.04235), section 6.
    """
    return norms.clip_rms(grad_out, threshold)


@register("normalize", ranges={"scale": "finite", "eps": ">= 0 and finite"})
def normalize(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, scale: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """grad_out * scale / (norm + eps), with the Euclidean norm of the whole tensor; 0 where all of
    it is 0, NaN where an element is infinite or NaN.

    Source: normalized gradient descent, Nesterov, 1984; Hazan et al., 2015 (arXiv 1507.02030).
    """
    return norms.normalize(grad_out, scale, eps)


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

    A unit is all of a scalar or vector (of any tensor with one axis longer than 1), what lies along
    axis 0 of a tensor with two or three axes, along all axes but the last of one with four or five.
    Without tin: an error. Source: Brock et al., 2021 (arXiv 2102.06171), eq. 3.
    """
    return norms.clip_units(grad_out, parameter("adaptive_clip", tin), clipping, eps)


def parameter(name: str, tin: Tensor | None) -> Tensor:
    """Return the parameter that a rule compares its gradient with."""
    if tin is None:
        raise RuleValueError(
            f"rule {name!r} compares a gradient with its parameter, and got none for tin: call "
            f"xg.get({name!r})(None, gradient, parameter) for each of them"
        )
    return tin
