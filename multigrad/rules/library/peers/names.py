"""Names that people know from other packages for rules that they find here under our own, one row
each, with the package's defaults.

What depends on `tin` is 1 without it.
"""

from __future__ import annotations

from typing import Any

from ...registry import register
from .. import curves
from ..attribution import beta_smooth, deconvnet, guided
from ..binary import absolute_binary_sign, approx_sign, magnitude_aware_sign, swish_sign
from ..limits import clip_value, stop
from ..straight_through import straight_through
from ..transforms import gradient_reversal

Tensor = Any
named = curves.table(__name__)
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
for called, rule in (
    (STRAIGHT_THROUGH, straight_through),
    (GUIDED, guided),
    (DECONVNET, deconvnet),
    (STOP, stop),
):
    for name, source in called.items():
        named(name, rule, f"{source}; our `{rule.name}`")
named(
    "torch.clip_grad_value_",
    clip_value,
    "`clip_grad_value_` of torch.nn.utils; our `clip_value`",
    limit=("clip_value", 1.0),
)
named(
    "brevitas.abs_binary_sign_grad",
    absolute_binary_sign,
    "`abs_binary_sign_grad` and `AbsBinarySignGradFn` of brevitas; our `absolute_binary_sign`",
)
named(
    "zennit.ReLUBetaSmooth",
    beta_smooth,
    "`ReLUBetaSmooth` of zennit; our `beta_smooth`",
    beta=("beta_smooth", 10.0),
)
named(
    "pytorch_revgrad.RevGrad",
    gradient_reversal,
    "`RevGrad` of pytorch-revgrad; our `gradient_reversal`",
    alpha=1.0,
)
named("larq.approx_sign", approx_sign, "`approx_sign` of larq; the same as ours")
named(
    "larq.swish_sign",
    swish_sign,
    "`swish_sign` of larq, which gives NaN at infinity; the same as ours",
    beta=5.0,
)
named(
    "larq.MagnitudeAwareSign",
    magnitude_aware_sign,
    "`MagnitudeAwareSign` of larq; our `magnitude_aware_sign`",
    clip=("clip_value", 1.0),
)
named(
    "norse.Logistic",
    curves.tanh,
    "",
    "Its forward draws spikes with the probability of a logistic curve.",
    slope=("k", 100.0),
)
named("norse.CircDist", curves.circle, "", "Its forward draws spikes.", alpha=100.0)


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
