"""Names that people know from other packages for rules that they find here under our own, one
declaration each, with the package's defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....trace.xp import all as xp
from ...registry import register
from .. import curves, norms

Tensor = Any
# What packages call the straight-through estimator, by the forward that it stands under.
STRAIGHT_THROUGH = {
    "brevitas.round_ste": "`round_ste` and `RoundSteFn` of brevitas",
    "brevitas.ceil_ste": "`ceil_ste` and `CeilSteFn` of brevitas",
    "brevitas.floor_ste": "`floor_ste` and `FloorSteFn` of brevitas",
    "brevitas.round_to_zero_ste": "`round_to_zero_ste` and `RoundToZeroSteFn` of brevitas",
    "brevitas.dpu_round_ste": "`dpu_round_ste` and `DPURoundSteFn` of brevitas",
    "brevitas.binary_sign_ste": "`binary_sign_ste` and `BinarySignSteFn` of brevitas",
    "brevitas.ternary_sign_ste": "`ternary_sign_ste` and `TernarySignSteFn` of brevitas",
    "brevitas.tensor_clamp_ste": "`tensor_clamp_ste` and `TensorClampSteFn` of brevitas",
    "brevitas.scalar_clamp_ste": "`scalar_clamp_ste` and `ScalarClampSteFn` of brevitas",
    "brevitas.scalar_clamp_min_ste": "`scalar_clamp_min_ste` of brevitas",
    "zennit.Pass": "`Pass` of zennit",
}
GUIDED = {
    "zennit.ReLUGuidedBackprop": "`ReLUGuidedBackprop` of zennit",
    "captum.GuidedBackprop": "`GuidedBackprop` of captum",
    "innvestigate.guided_backprop": 'the analyzer "guided_backprop" of innvestigate',
}
DECONVNET = {
    "zennit.ReLUDeconvNet": "`ReLUDeconvNet` of zennit",
    "captum.Deconvolution": "`Deconvolution` of captum",
    "innvestigate.deconvnet": 'the analyzer "deconvnet" of innvestigate',
}


STOP = {
    "jax.stop_gradient": "`stop_gradient` of jax.lax",
    "tensorflow.stop_gradient": "`stop_gradient` of TensorFlow",
}


def straight_through(source: str) -> Callable[..., Tensor]:
    """Return the straight-through estimator as one package has it."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        return grad_out

    rule.__doc__ = f"grad_out, unchanged.\n\nSource: {source}; our `straight_through`."
    return rule


def guided(source: str) -> Callable[..., Tensor]:
    """Return guided backpropagation as one package has it."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        positive = xp.maximum(grad_out, 0.0)
        return positive if tin is None else positive * (tin > 0)

    rule.__doc__ = (
        f"max(grad_out, 0) where tin > 0, else 0 (0 at tin = 0).\n\nSource: {source}; our `guided`."
    )
    return rule


def deconvnet(source: str) -> Callable[..., Tensor]:
    """Return the rule of a deconvolutional network as one package has it."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        return xp.maximum(grad_out, 0.0)

    rule.__doc__ = f"max(grad_out, 0), whatever tin is.\n\nSource: {source}; our `deconvnet`."
    return rule


def stop(source: str) -> Callable[..., Tensor]:
    """Return the gradient that one package stops."""

    def rule(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
        return xp.zeros_like(grad_out)

    rule.__doc__ = (
        "0, whatever grad_out and tin are, also where they are infinite or NaN.\n\n"
        f"Source: {source}; our `stop`."
    )
    return rule


FAMILIES = (
    (STRAIGHT_THROUGH, straight_through),
    (GUIDED, guided),
    (DECONVNET, deconvnet),
    (STOP, stop),
)
for table, make in FAMILIES:
    for name, source in table.items():
        register(name)(make(source))


@register("torch.clip_grad_value_", ranges={"clip_value": ">= 0"})
def torch_clip_grad_value(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clip_value: float = 1.0
) -> Tensor:
    """grad_out limited to [-clip_value, clip_value], each element by itself; NaN stays NaN.

    Source: `clip_grad_value_` of torch.nn.utils; our `clip_value`.
    """
    return xp.clip(grad_out, -clip_value, clip_value)


@register("brevitas.abs_binary_sign_grad")
def brevitas_abs_binary_sign_grad(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out where tin >= 0, else -grad_out (grad_out at both zeros, and without tin).

    Source: `abs_binary_sign_grad` and `AbsBinarySignGradFn` of brevitas; our
    `absolute_binary_sign`.
    """
    return grad_out if tin is None else grad_out * xp.where(tin >= 0.0, 1.0, -1.0)


@register("zennit.ReLUBetaSmooth", ranges={"beta_smooth": "finite"})
def zennit_relu_beta_smooth(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, beta_smooth: float = 10.0
) -> Tensor:
    """grad_out * s(beta_smooth tin), s the logistic sigmoid: 1 / 2 at zero; without tin the factor
    is 1.

    Source: `ReLUBetaSmooth` of zennit; our `beta_smooth`.
    """
    return grad_out if tin is None else grad_out * xp.sigmoid(beta_smooth * tin)


@register("pytorch_revgrad.RevGrad", ranges={"alpha": "finite"})
def revgrad(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 1.0) -> Tensor:
    """-alpha * grad_out, whatever tin is.

    Source: `RevGrad` of pytorch-revgrad; our `gradient_reversal`.
    """
    return -alpha * grad_out


@register("larq.approx_sign")
def larq_approx_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * 2 * (1 - |tin|) where |tin| <= 1, else 0; without tin the factor is 1.

    Source: `approx_sign` of larq; the same as ours.
    """
    return grad_out if tin is None else grad_out * curves.triangle(tin, 2.0, 1.0)


@register("larq.swish_sign", ranges={"beta": "> 0 and finite"})
def larq_swish_sign(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 5.0) -> Tensor:
    """grad_out * beta * (2 - u * tanh(u / 2)) / (1 + cosh(u)), with u = beta * tin: beta at zero;
    without tin the factor is 1.

    Source: `swish_sign` of larq, which gives NaN at infinity; the same as ours.
    """
    return grad_out if tin is None else grad_out * curves.swish_sign(tin, beta)


@register("larq.MagnitudeAwareSign", ranges={"clip_value": ">= 0"})
def larq_magnitude_aware_sign(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clip_value: float = 1.0
) -> Tensor:
    """grad_out * m where |tin| <= clip_value, else 0, with m the mean of |tin| over all axes but
    the last, which counts as a constant; without tin the factor is 1.

    Source: `MagnitudeAwareSign` of larq; our `magnitude_aware_sign`.
    """
    if tin is None:
        return grad_out
    return grad_out * (xp.stop_gradient(norms.mean_magnitude(tin)) * (abs(tin) <= clip_value))


@register("norse.Logistic", ranges={"k": ">= 0 and finite"})
def norse_logistic(ctx: Any, grad_out: Tensor, tin: Tensor | None, k: float = 100.0) -> Tensor:
    """grad_out * (1 - tanh(k * tin)^2): 1 at zero, and without tin.

    Its forward draws spikes with the probability of a logistic curve. Source: `Logistic` of norse.
    """
    return grad_out if tin is None else grad_out * curves.tanh(tin, k)


@register("norse.CircDist", ranges={"alpha": "> 0 and finite"})
def norse_circ_dist(ctx: Any, grad_out: Tensor, tin: Tensor | None, alpha: float = 100.0) -> Tensor:
    """grad_out * alpha^3 / (alpha^2 + tin^2)^(3/2): 1 at zero, and without tin.

    Its forward draws spikes. Source: `CircDist` of norse.
    """
    return grad_out if tin is None else grad_out * curves.circle(tin, alpha)


@register("rockpool.step_pwl", ranges={"window": ">= 0"})
def rockpool_step_pwl(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, window: float = 0.5
) -> Tensor:
    """grad_out where tin > -window, else 0 (0 at the edge), with tin the membrane minus the
    threshold; without it the factor is 1.

    Source: `step_pwl` of rockpool on jax.
    """
    return grad_out if tin is None else grad_out * (tin > -window)


@register("rockpool.threshold_subtract", ranges={"window": ">= 0"})
def rockpool_threshold_subtract(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, window: float = 0.5
) -> Tensor:
    """grad_out where tin >= -window, else 0 (the edge belongs to it), with tin the membrane minus
    the threshold; without it the factor is 1.

    Source: `ThresholdSubtract` of rockpool on torch, whose input is the membrane.
    """
    return grad_out if tin is None else grad_out * (tin >= -window)
