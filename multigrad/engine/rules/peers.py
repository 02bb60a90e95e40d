"""The rules of other packages, by their names and with their defaults; importing it registers them.

The names begin with the package's. Where there is no `tin`, a rule that multiplies by a function of
it multiplies by 1. Tests: `tests/rules/library/test_catalogue.py`.
"""

from __future__ import annotations

import math
from typing import Any

from ...core.rules.library import curves, spiking, transforms
from ...core.rules.library.curves import FINITE, NOT_NEGATIVE, POSITIVE
from ...core.rules.library.quantization import (
    absolute_binary_sign,
    approx_sign,
    dorefa_of_weights,
    magnitude_aware_sign,
    straight_through,
    swish_sign,
)
from ...core.rules.library.surrogate import beta_smooth, deconvnet, guided, rectangular
from ...core.rules.library.transforms import clip_value, gradient_reversal, stop
from ...core.rules.registry import register
from ...core.support.trees import Tensor
from ...core.trace.xp import all as xp
from ...errors import RuleValueError
from . import peer_rows
from .peer_rows import rule_of_curve


def load_peers() -> None:
    """Do nothing more: to import this file is enough. Its rules' own registration comes here."""


# register_row("package.name", curve or rule, source, note, our_param=default or
# our_param=("their_param", default)); see `peer_rows.table`.
register_row = peer_rows.table(__name__)


# --- snnTorch 1.0.0: the forward is `Heaviside`, 0 at exactly 0 -----------------------------------
register_row("snntorch.straight_through_estimator", straight_through, "StraightThroughEstimator")
register_row("snntorch.fast_sigmoid", peer_rows.fast_sigmoid, "; the same as ours", slope=25.0)
register_row(
    "snntorch.atan",
    peer_rows.arctan,
    ", as its code has it; its documentation says 1 / pi for alpha / 2",
    alpha=2.0,
)
register_row(
    "snntorch.sigmoid",
    peer_rows.sigmoid,
    ", which gives NaN where exp(-slope tin) overflows: in float32 below -88 / slope, with its "
    "default below -3.5",
    alpha=("slope", 25.0),
)
register_row(
    "snntorch.spike_rate_escape",
    spiking.spike_rate_escape,
    "; the same as ours",
    beta=1.0,
    slope=25.0,
)
register_row(
    "snntorch.SFS",
    spiking.sparse_fast_sigmoid,
    ", the sparse fast sigmoid",
    slope=25.0,
    threshold=("B", 1.0),
)
register_row(
    "snntorch.SSO",
    spiking.stochastic_spike,
    ", the stochastic spike operator",
    mean=0.0,
    variance=0.2,
)
register_row(
    "snntorch.LSO",
    spiking.leaky_spike,
    "`LSO` of snnTorch as it is documented, the leaky spike operator; in 1.0.0 it raises a "
    "TypeError",
    slope=0.1,
)


@rule_of_curve("snntorch.triangular", threshold=FINITE)
def snntorch_triangular(tin: Tensor, threshold: float = 1.0) -> Tensor:
    """grad_out * threshold where tin < 0, else -threshold * grad_out (-threshold at zero).

    This is no triangle, and gradients above the threshold have the wrong sign; `triangular` is the
    triangle. Source: `triangular` of snnTorch 1.0.0, whose curve this is.
    """
    return xp.where(tin >= 0.0, -threshold, threshold)


@rule_of_curve("snntorch.heaviside")
def snntorch_heaviside(tin: Tensor) -> Tensor:
    """grad_out where tin > 0, else 0 (0 at tin = 0).

    Source: `Heaviside` of snnTorch, its default.
    """
    return tin > 0.0


# --- SpikingJelly 2.0.0: the forward is `Heaviside` with `at_zero=1.0` ---------------------------
# These are its functions' names; its classes' names are accepted too: "spikingjelly.ATan".
register_row(
    "spikingjelly.piecewise_quadratic", spiking.piecewise_quadratic, "PiecewiseQuadratic", alpha=1.0
)
register_row("spikingjelly.piecewise_exp", peer_rows.piecewise_exp, "PiecewiseExp", alpha=1.0)
register_row(
    "spikingjelly.sigmoid", peer_rows.sigmoid, "Sigmoid, the default of its neurons", alpha=4.0
)
register_row("spikingjelly.soft_sign", spiking.soft_sign_surrogate, "SoftSign", alpha=2.0)
register_row("spikingjelly.atan", peer_rows.arctan, "ATan; the same as our `arctan`", alpha=2.0)
register_row(
    "spikingjelly.nonzero_sign_log_abs", spiking.nonzero_sign_log, "NonzeroSignLogAbs", alpha=1.0
)
register_row("spikingjelly.erf", spiking.erf_surrogate, "Erf", alpha=2.0)
register_row(
    "spikingjelly.piecewise_leaky_relu",
    spiking.piecewise_leaky_relu,
    "PiecewiseLeakyReLU",
    w=1.0,
    c=0.01,
)
register_row("spikingjelly.s2nn", spiking.s2nn, "S2NN", alpha=4.0, beta=1.0)
register_row("spikingjelly.q_pseudo_spike", spiking.q_pseudo_spike, "QPseudoSpike", alpha=2.0)
register_row("spikingjelly.leaky_k_relu", spiking.leaky_k_relu, "LeakyKReLU", leak=0.0, k=1.0)
register_row(
    "spikingjelly.fake_numerical_gradient",
    spiking.fake_numerical_gradient,
    "FakeNumericalGradient, which gives -inf at -0.0",
    alpha=0.3,
)
register_row("spikingjelly.log_tailed_relu", spiking.log_tailed_relu, "LogTailedReLU", alpha=0.0)
register_row("spikingjelly.rect", spiking.unit_rectangular, "Rect", alpha=1.0)
register_row("spikingjelly.deterministic_pass", straight_through, "DeterministicPass")
register_row(
    "spikingjelly.poisson_pass",
    straight_through,
    "PoissonPass",
    "Its forward draws spikes with probability tin.",
)
register_row(
    "spikingjelly.multi_level_spike_count",
    rectangular,
    "MultiLevelSpikeCount; grad_max is there the largest count",
    "Its forward is tin rounded to a count of spikes.",
    a=("grad_min", 0.0),
    b=("grad_max", 1.0),
)


@rule_of_curve("spikingjelly.super_spike", alpha=FINITE)
def spikingjelly_super_spike(tin: Tensor, alpha: float = 1.0) -> Tensor:
    """grad_out * alpha / (1 + |tin|)^2: alpha at zero.

    Here alpha is the height, in the paper and elsewhere the slope. Source: `SuperSpike` of
    spikingjelly.
    """
    return alpha * curves.fast_sigmoid(tin, 1.0)


@rule_of_curve("spikingjelly.squarewave_fourier_series", n=">= 1", T_period=POSITIVE)
def spikingjelly_squarewave_fourier_series(
    tin: Tensor, n: int = 2, T_period: float = 8.0
) -> Tensor:
    """grad_out * (4 / T_period) * sum of cos((2i - 1) 2 pi tin / T_period) for i = 1..n - 1. NaN at
    infinity.

    One term less than n says, as in spikingjelly's code; `squarewave_fourier` has all n. Source:
    `SquarewaveFourierSeries` of spikingjelly.
    """
    return curves.squarewave_fourier(tin, n - 1, T_period)


# --- braintools 0.3: the forward is `Heaviside` with `at_zero=1.0` --------------------------------
register_row("braintools.sigmoid", peer_rows.sigmoid, alpha=4.0)
register_row("braintools.piecewise_quadratic", spiking.piecewise_quadratic, alpha=1.0)
register_row("braintools.piecewise_exp", peer_rows.piecewise_exp, alpha=1.0)
register_row("braintools.soft_sign", spiking.soft_sign_surrogate, alpha=1.0)
register_row("braintools.arctan", peer_rows.arctan, alpha=1.0)
register_row("braintools.nonzero_sign_log", spiking.nonzero_sign_log, alpha=1.0)
register_row("braintools.erf", spiking.erf_surrogate, alpha=1.0)
register_row(
    "braintools.squarewave_fourier_series",
    spiking.squarewave_fourier,
    n=2,
    period=("t_period", 8.0),
)
register_row("braintools.s2nn", spiking.s2nn, alpha=4.0, beta=1.0)
register_row("braintools.log_tailed_relu", spiking.log_tailed_relu, alpha=0.0)
register_row("braintools.gaussian_grad", spiking.gaussian, sigma=0.5, scale=("alpha", 0.5))
register_row(
    "braintools.multi_gaussian_grad", spiking.multi_gaussian, h=0.15, s=6.0, sigma=0.5, scale=0.5
)
register_row("braintools.inv_square_grad", peer_rows.fast_sigmoid, slope=("alpha", 100.0))
register_row("braintools.slayer_grad", peer_rows.slayer, alpha=1.0)


@rule_of_curve("braintools.piecewise_leaky_relu", c=FINITE, w=POSITIVE)
def braintools_piecewise_leaky_relu(tin: Tensor, c: float = 0.01, w: float = 1.0) -> Tensor:
    """grad_out / (2 w) where |tin| <= w, else c * grad_out (1 / (2 w) at both edges)."""
    return xp.where(abs(tin) <= w, 0.5 / w, c)


@rule_of_curve("braintools.q_pseudo_spike", alpha=POSITIVE)
def braintools_q_pseudo_spike(tin: Tensor, alpha: float = 2.0) -> Tensor:
    """grad_out * (1 + 2 |tin| / (alpha + 1))^-alpha: 1 at zero.

    The paper's curve, and ours of this name, has alpha - 1."""
    return curves.pseudo_spike(tin, alpha, alpha + 1.0)


@rule_of_curve("braintools.leaky_relu", alpha=FINITE, beta=FINITE)
def braintools_leaky_relu(tin: Tensor, alpha: float = 0.1, beta: float = 1.0) -> Tensor:
    """grad_out * alpha where tin < 0, else grad_out * beta (beta at zero)."""
    return xp.where(tin < 0.0, alpha, beta)


@rule_of_curve("braintools.relu_grad", alpha=FINITE, width=NOT_NEGATIVE)
def braintools_relu_grad(tin: Tensor, alpha: float = 0.3, width: float = 1.0) -> Tensor:
    """grad_out * alpha * max(0, width - |tin|): 0 from |tin| = width on."""
    return alpha * xp.maximum(width - abs(tin), 0.0)


# --- norse, sinabs, spyx and snnax ----------------------------------------------------------------
# norse's alpha is that of its neurons' parameters, but for the triangle. Where a curve of sinabs
# depends on the spike threshold, that is a param.
register_row(
    "norse.super",
    peer_rows.fast_sigmoid,
    "; `fast_sigmoid` with another default. norse 1.1.0 takes 1 for alpha, whatever is given",
    slope=("alpha", 100.0),
)
register_row("norse.tanh", spiking.tanh_surrogate, slope=("alpha", 100.0))
register_row("norse.circ", spiking.circle, alpha=100.0)
register_row(
    "norse.Logistic",
    spiking.tanh_surrogate,
    "",
    "Its forward draws spikes with the probability of a logistic curve.",
    slope=("k", 100.0),
)
register_row("norse.CircDist", spiking.circle, "", "Its forward draws spikes.", alpha=100.0)
register_row(
    "sinabs.Gaussian", spiking.gaussian, mean=("mu", 0.0), sigma=0.5, scale=("grad_scale", 1.0)
)
register_row(
    "sinabs.MultiGaussian",
    spiking.multi_gaussian,
    mean=("mu", 0.0),
    sigma=0.5,
    h=0.15,
    s=6.0,
    scale=("grad_scale", 1.0),
)
register_row(
    "sinabs.PeriodicExponential",
    spiking.periodic_exponential,
    width=("grad_width", 0.5),
    scale=("grad_scale", 1.0),
    threshold=1.0,
)
register_row(
    "spyx.superspike",
    peer_rows.fast_sigmoid,
    "; `fast_sigmoid` under another name",
    slope=("k", 25.0),
)
register_row("spyx.tanh", spiking.tanh_surrogate, slope=("k", 1.0))
register_row(
    "snnax.sigmoid",
    peer_rows.sigmoid,
    "`sigmoid_surrogate` of snnax as it is documented; its code raises a TypeError",
    alpha=("beta", 1.0),
)


@rule_of_curve("norse.triangle", alpha=FINITE)
def norse_triangle(tin: Tensor, alpha: float = 0.3) -> Tensor:
    """grad_out * alpha * max(0, 1 - |tin|): alpha at zero, 0 from |tin| = 1 on."""
    return curves.triangle(tin, alpha, 1.0)


@rule_of_curve("norse.heavi_erfc", alpha=NOT_NEGATIVE)
def norse_heavi_erfc(tin: Tensor, alpha: float = 100.0) -> Tensor:
    """grad_out * 2 / sqrt(pi) * exp(-(alpha * tin)^2).

    Its area is 2 / alpha; `erf_surrogate` has area 1. Source: `heavi_erfc` of norse.
    """
    return curves.bell(tin, 2.0 * math.pi**-0.5, alpha)


@rule_of_curve("sinabs.Heaviside", window=FINITE, threshold=POSITIVE)
def sinabs_heaviside(tin: Tensor, window: float = 1.0, threshold: float = 1.0) -> Tensor:
    """grad_out / threshold where tin >= -window, else 0; the edge belongs to it.

    Source: `Heaviside` of sinabs, where tin is the membrane minus the threshold.
    """
    return (tin >= -window) / threshold


@rule_of_curve(
    "sinabs.SingleExponential", grad_width=POSITIVE, grad_scale=FINITE, threshold=POSITIVE
)
def sinabs_single_exponential(
    tin: Tensor, grad_width: float = 0.5, grad_scale: float = 1.0, threshold: float = 1.0
) -> Tensor:
    """grad_out * grad_scale / w * exp(-|tin| / w), with w = grad_width * threshold.

    Source: `SingleExponential` of sinabs, its default.
    """
    return curves.exponential(
        tin, 1.0 / (grad_width * threshold), grad_scale / (grad_width * threshold)
    )


@rule_of_curve("spyx.boxcar", width=">= 0", height=FINITE)
def spyx_boxcar(tin: Tensor, width: float = 2.0, height: float = 0.5) -> Tensor:
    """grad_out * height where |tin| < width / 2, else 0; the edges are outside the window;
    spyx's documentation says they are inside."""
    return height * (abs(tin) < 0.5 * width)


@rule_of_curve("spyx.triangular", k=FINITE)
def spyx_triangular(tin: Tensor, k: float = 2.0) -> Tensor:
    """grad_out * max(0, 1 - |k tin|): 1 at zero, 0 from |tin| = 1 / k on.

    Here k is the slope; `triangular` takes the width. Source: `triangular` of spyx.
    """
    return curves.triangle(tin, 1.0, abs(k))


@rule_of_curve("spyx.arctan", k=NOT_NEGATIVE)
def spyx_arctan(tin: Tensor, k: float = 2.0) -> Tensor:
    """grad_out / (pi * (1 + (pi k tin)^2)): 1 / pi at zero.

    Source: `arctan` of spyx; `arctan` is another curve.
    """
    return peer_rows.cauchy(tin, 1.0 / math.pi, math.pi * k)


@register("snnax.superspike", ranges={"beta": ">= 0 and finite"})
def snnax_superspike(ctx: Any, grad_out: Tensor, tin: Tensor | None, beta: float = 10.0) -> Tensor:
    """grad_out / (1 + beta * |tin|): 1 at zero.

    The paper's curve is squared, as `fast_sigmoid` is. Source: `superspike_surrogate` of snnax,
    whose curve this is.
    """
    return grad_out if tin is None else grad_out / (1.0 + beta * abs(tin))


@rule_of_curve("snnax.piecewise", beta=">= 0")
def snnax_piecewise(tin: Tensor, beta: float = 0.5) -> Tensor:
    """grad_out where -beta < tin < beta, else 0; the edges do not belong to it.

    Source: `piecewise_surrogate` of snnax.
    """
    return abs(tin) < beta


# --- other packages' names for rules that have a name of our own, one row each --------------------
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
}
for name, source in STRAIGHT_THROUGH.items():
    register_row(name, straight_through, f"{source}; our `straight_through`")
register_row("zennit.Pass", straight_through, "; our `straight_through`")
register_row("zennit.ReLUGuidedBackprop", guided, "; our `guided`")
register_row("captum.GuidedBackprop", guided, "; our `guided`")
register_row(
    "innvestigate.guided_backprop",
    guided,
    'the analyzer "guided_backprop" of innvestigate; our `guided`',
)
register_row("zennit.ReLUDeconvNet", deconvnet, "; our `deconvnet`")
register_row("captum.Deconvolution", deconvnet, "; our `deconvnet`")
register_row(
    "innvestigate.deconvnet", deconvnet, 'the analyzer "deconvnet" of innvestigate; our `deconvnet`'
)
register_row("jax.stop_gradient", stop, "`stop_gradient` of jax.lax; our `stop`")
register_row("tensorflow.stop_gradient", stop, "`stop_gradient` of TensorFlow; our `stop`")
register_row(
    "torch.clip_grad_value_",
    clip_value,
    "`clip_grad_value_` of torch.nn.utils; our `clip_value`",
    limit=("clip_value", 1.0),
)
register_row(
    "brevitas.abs_binary_sign_grad",
    absolute_binary_sign,
    "`abs_binary_sign_grad` and `AbsBinarySignGradFn` of brevitas; our `absolute_binary_sign`",
)
register_row(
    "zennit.ReLUBetaSmooth", beta_smooth, "; our `beta_smooth`", beta=("beta_smooth", 10.0)
)
register_row("pytorch_revgrad.RevGrad", gradient_reversal, "; our `gradient_reversal`", alpha=1.0)
register_row("larq.approx_sign", approx_sign, "; the same as ours")
register_row(
    "larq.swish_sign", swish_sign, ", which gives NaN at infinity; the same as ours", beta=5.0
)
register_row(
    "larq.MagnitudeAwareSign",
    magnitude_aware_sign,
    "; our `magnitude_aware_sign`",
    clip=("clip_value", 1.0),
)


# --- rockpool -------------------------------------------------------------------------------------
@rule_of_curve("rockpool.step_pwl", window=">= 0")
def rockpool_step_pwl(tin: Tensor, window: float = 0.5) -> Tensor:
    """grad_out where tin > -window, else 0 (0 at the edge), with tin the membrane minus the
    threshold; without tin the factor is 1.

    Source: `step_pwl` of rockpool on jax.
    """
    return tin > -window


@rule_of_curve("rockpool.threshold_subtract", window=">= 0")
def rockpool_threshold_subtract(tin: Tensor, window: float = 0.5) -> Tensor:
    """grad_out where tin >= -window, else 0 (the edge belongs to it), with tin the membrane minus
    the threshold; without tin the factor is 1.

    Source: `ThresholdSubtract` of rockpool on torch, whose input is the membrane.
    """
    return tin >= -window


# --- transformations of optax; 1 where it has no default ------------------------------------------
# A rule sees one leaf of the gradients at a time, so a norm is that of one leaf.
register_row("optax.scale", transforms.scale, s=("step_size", 1.0))
register_row("optax.set_to_zero", transforms.stop)
register_row("optax.clip", transforms.clip_value, limit=("max_delta", 1.0))
register_row(
    "optax.clip_by_block_rms",
    transforms.clip_rms,
    ", whose squares overflow where ours do not",
    threshold=1.0,
)
register_row(
    "optax.normalize_by_update_norm",
    transforms.normalize,
    ", whose norm is that of all leaves together",
    scale=("scale_factor", 1.0),
    eps=1e-6,
)
register_row("optax.scale_by_sign", transforms.sign)


@register(
    "optax.adaptive_grad_clip", ranges={"clipping": "> 0 and finite", "eps": "> 0 and finite"}
)
def optax_adaptive_grad_clip(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, clipping: float = 0.01, eps: float = 1e-3
) -> Tensor:
    """grad_out * min(1, clipping * max(norm of tin, eps) / max(norm of grad_out, 1e-6)), norms by
    unit, where tin is the parameter itself; without tin: an error.

    Source: `adaptive_grad_clip` of optax; the same as our `adaptive_clip`.
    """
    return transforms.clip_units(
        grad_out, transforms.parameter("optax.adaptive_grad_clip", tin), clipping, eps
    )


@register("optax.centralize")
def optax_centralize(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out minus its mean over all axes but the first; unchanged with one axis or none.

    Source: `centralize` of optax; our `centralize` takes the mean along one dimension.
    """
    if grad_out.ndim < 2:
        return grad_out
    return grad_out - transforms.mean(grad_out, tuple(range(1, grad_out.ndim)))


@register(
    "optax.add_noise",
    ranges={"eta": ">= 0 and finite", "gamma": "finite", "count": ">= 0 and finite"},
)
def optax_add_noise(
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


# --- qkeras and larq, with their params -----------------------------------------------------------
@register("qkeras.quantized_bits", ranges={"qnoise_factor": ">= 0 and <= 1"})
def qkeras_quantized_bits(
    ctx: Any,
    grad_out: Tensor,
    tin: Tensor | None,
    qnoise_factor: float = 1.0,
    use_ste: bool = True,
) -> Tensor:
    """grad_out with use_ste, else grad_out * (1 - qnoise_factor), whatever tin is.

    Source: `quantized_bits` of qkeras, which does not clip the gradient.
    """
    return grad_out if use_ste else grad_out * (1.0 - qnoise_factor)


@register("qkeras.binary")
@register("qkeras.ternary")
def qkeras_ternary(ctx: Any, grad_out: Tensor, tin: Tensor | None) -> Tensor:
    """grad_out * (1 - tanh(tin)^2): 1 at zero, and without tin.

    With a scale given for their alpha it is grad_out, unchanged: `straight_through`. Source:
    `binary` and `ternary` of qkeras with their default, alpha=None.
    """
    return grad_out if tin is None else grad_out * curves.tanh_slope(tin, 1.0)


@register("larq.ste_sign", ranges={"clip_value": ">= 0"})
@register("larq.ste_tern", ranges={"clip_value": ">= 0"})
@register("larq.ste_heaviside", ranges={"clip_value": ">= 0"})
def larq_ste(ctx: Any, grad_out: Tensor, tin: Tensor | None, clip_value: float = 1.0) -> Tensor:
    """grad_out where |tin| <= clip_value, else 0; the edge belongs to the window; without tin,
    grad_out everywhere. Pass clip_value=inf for larq's None.

    Source: `ste_sign`, `ste_tern` and `ste_heaviside` of larq.
    """
    return grad_out if tin is None else grad_out * (abs(tin) <= clip_value)


@register("larq.DoReFa", ranges={"k_bit": ">= 1"})
def larq_dorefa(
    ctx: Any, grad_out: Tensor, tin: Tensor | None, k_bit: int = 2, mode: str = "activations"
) -> Tensor:
    """grad_out where 0 <= tin <= 1, else 0, as `dorefa_activations`; with mode="weights" the
    gradient of `dorefa_weights`.

    `k_bit` is taken for larq's sake: the gradient does not depend on it. Source: `DoReFa` of larq.
    """
    if mode not in ("activations", "weights"):
        raise RuleValueError(
            f"rule 'larq.DoReFa': mode is 'activations' or 'weights', got {mode!r}"
        )
    if tin is None:
        return grad_out
    if mode == "weights":
        return dorefa_of_weights(grad_out, tin)
    return grad_out * ((tin >= 0.0) & (tin <= 1.0))
