"""What each rule of the library means, as text for the witness: from the papers and the packages,
and not from the rules' code.

A rule's text is what `grad_out` is multiplied by, unless it names `grad_out`. `x` is `tin`,
`uniform` and `normal` are draws, `s(v)` is the logistic sigmoid. What is computed of a whole tensor
is in `WHOLE`, as NumPy would write it.
"""

from __future__ import annotations

TANH = "4 * s(2 * {k} * x) * s(-2 * {k} * x)"  # 1 - tanh(k x)^2
NORMAL = "exp(-((x - {m}) / {s})**2 / 2) / ({s} * sqrt(2 * pi))"
SIDES = " - h * ({} + {})".format(
    NORMAL.format(m="sigma", s="(s_ * sigma)"), NORMAL.format(m="(-sigma)", s="(s_ * sigma)")
)
TEETH = "exp(-where(x < 0, -x, 2 * abs(x - {t} * floor(x / {t} + 1/2))) / {w})"


def _waves(n: int) -> str:
    return " + ".join(f"cos({2 * i - 1} * 2 * pi * x / period)" for i in range(1, n + 1))


FACTORS: dict[str, str] = {
    "straight_through": "1",
    "stop": "where(grad_out == 0, 0, 0)",
    "d(ReLU)": "where(x > 0, 1, 0)",
    "rectangular": "where(x >= a, where(x <= b, 1, 0), 0)",
    "clipped_straight_through": "where(abs(x) <= clip, 1, 0)",
    "triangular": "Max(0, 1 - abs(x) / Max(width, 1/1000000))",
    "arctan": "alpha / 2 / (1 + (pi / 2 * alpha * x)**2)",
    "fast_sigmoid": "1 / (1 + slope * abs(x))**2",
    "sigmoid_surrogate": "alpha * s(alpha * x) * s(-alpha * x)",
    "unit_rectangular": "where(abs(x) < 1 / (2 * alpha), alpha, 0)",
    "piecewise_quadratic": "alpha * Max(0, 1 - alpha * abs(x))",
    "sparse_fast_sigmoid": "where(x > threshold, 1, 0) / (1 + slope * abs(x))**2",
    "soft_sign_surrogate": "alpha / 2 / (1 + alpha * abs(x))**2",
    "tanh_surrogate": TANH.format(k="slope"),
    "erf_surrogate": "alpha / sqrt(pi) * exp(-(alpha * x)**2)",
    "circle": "alpha**3 / (alpha**2 + x**2)**(3/2)",
    "gaussian": f"scale * {NORMAL.format(m='mean', s='sigma')}",
    "multi_gaussian": f"scale * ((1 + h) * {NORMAL.format(m='mean', s='sigma')}{SIDES})",
    "exponential": "scale * exp(-alpha * abs(x))",
    "periodic_exponential": f"scale * {TEETH.format(t='threshold', w='width')}",
    "nonzero_sign_log": "1 / (1 / alpha + abs(x))",
    "piecewise_leaky_relu": "where(abs(x) < w, 1 / (2 * w), c)",
    "squarewave_fourier": f"4 / period * ({_waves(2)})",
    "s2nn": "where(x < 0, alpha * s(alpha * x) * s(-alpha * x), beta / (x + 1))",
    "q_pseudo_spike": "(1 + 2 * abs(x) / (alpha - 1))**(-alpha)",
    "leaky_k_relu": "where(x >= 0, k, leak)",
    "leaky_spike": "where(x > 0, 1, slope)",
    "log_tailed_relu": "where(x > 1, 1 / x, where(x > 0, 1, alpha))",
    "fake_numerical_gradient": "where(abs(x) * alpha <= 1, alpha, 1 / abs(x))",
    "spike_rate_escape": "slope * exp(-beta * abs(x - 1))",
    "stochastic_spike": "where(x > 0, 1, (uniform - 1/2 + mean) * variance)",
    "approx_sign": "2 * Max(0, 1 - abs(x))",
    "swish_sign": "beta * (2 - beta * x * tanh(beta * x / 2)) / (1 + cosh(beta * x))",
    "absolute_binary_sign": "where(x >= 0, 1, -1)",
    "dorefa_activations": "where(x >= 0, where(x <= 1, 1, 0), 0)",
    "quantization_noise": "1 - factor",
    "beta_smooth": "s(beta * x)",
    "scale": "s_",
    "gradient_reversal": "-alpha",
    "guided": "where(x > 0, 1, 0) * where(grad_out < 0, 0, grad_out)",
    "deconvnet": "where(grad_out < 0, 0, grad_out)",
    "sign": "where(grad_out > 0, 1, where(grad_out < 0, -1, grad_out))",
    "clip_value": "where(grad_out > limit, limit, where(grad_out < -limit, -limit, grad_out))",
    "clamp_with_grad": (
        "grad_out * where(x < low, where(grad_out <= 0, 1, 0), "
        "where(x > high, where(grad_out >= 0, 1, 0), where(x <= high, 1, 0)))"
    ),
    "full_jam": "uniform",
    "positive_jam": "where(x >= 0, uniform, 0)",
    "rectangular_jam": "where(x >= a, where(x <= b, uniform, 0), 0)",
    "sign_jam": "uniform * where(grad_out > 0, 1, where(grad_out < 0, -1, grad_out))",
    "noise": "grad_out + sigma * normal",
    "noisy_threshold": "grad_out * where(x >= t, 1, 0) + sigma * normal",
    "optax.add_noise": "grad_out + sqrt(eta / (1 + count)**gamma_) * normal",
    "norse.triangle": "alpha * Max(0, 1 - abs(x))",
    "norse.heavi_erfc": "2 / sqrt(pi) * exp(-(alpha * x)**2)",
    "sinabs.Heaviside": "where(x >= -window, 1, 0) / threshold",
    "sinabs.SingleExponential": (
        "grad_scale / (grad_width * threshold) * exp(-abs(x) / (grad_width * threshold))"
    ),
    "spyx.boxcar": "where(abs(x) < width / 2, height, 0)",
    "spyx.triangular": "Max(0, 1 - abs(k * x))",
    "spyx.arctan": "1 / (pi * (1 + (pi * k * x)**2))",
    "snnax.superspike": "1 / (1 + beta * abs(x))",
    "snnax.piecewise": "where(abs(x) < beta, 1, 0)",
    "snntorch.triangular": "where(x >= 0, -threshold, threshold)",
    "spikingjelly.super_spike": "alpha / (1 + abs(x))**2",
    "spikingjelly.squarewave_fourier_series": f"4 / T_period * ({_waves(1)})".replace(
        "period", "T_period"
    ).replace("T_T_", "T_"),
    "braintools.piecewise_leaky_relu": "where(abs(x) <= w, 1 / (2 * w), c)",
    "braintools.q_pseudo_spike": "(1 + 2 * abs(x) / (alpha + 1))**(-alpha)",
    "braintools.leaky_relu": "where(x < 0, alpha, beta)",
    "braintools.relu_grad": "alpha * Max(0, width - abs(x))",
    "braintools.slayer_grad": "exp(-alpha * abs(x))",
    "piecewise_exp": "alpha / 2 * exp(-alpha * abs(x))",
    "rockpool.step_pwl": "where(x > -window, 1, 0)",
    "rockpool.threshold_subtract": "where(x >= -window, 1, 0)",
}
# Rules that are another under a second name, and what they call its params.
SAME: dict[str, tuple[str, dict[str, str]]] = {
    **{
        name: ("straight_through", {})
        for name in (
            "d(Linear)",
            "pass",
            "snntorch.straight_through_estimator",
            "spikingjelly.deterministic_pass",
            "spikingjelly.poisson_pass",
            "zennit.Pass",
            "qkeras.quantized_bits",
            "brevitas.round_ste",
            "brevitas.ceil_ste",
            "brevitas.floor_ste",
            "brevitas.round_to_zero_ste",
            "brevitas.dpu_round_ste",
            "brevitas.binary_sign_ste",
            "brevitas.ternary_sign_ste",
            "brevitas.tensor_clamp_ste",
            "brevitas.scalar_clamp_ste",
            "brevitas.scalar_clamp_min_ste",
        )
    },
    **dict.fromkeys(
        ("captum.GuidedBackprop", "innvestigate.guided_backprop", "zennit.ReLUGuidedBackprop"),
        ("guided", {}),
    ),
    **dict.fromkeys(
        ("captum.Deconvolution", "innvestigate.deconvnet", "zennit.ReLUDeconvNet"),
        ("deconvnet", {}),
    ),
    **dict.fromkeys(
        ("jax.stop_gradient", "tensorflow.stop_gradient", "optax.set_to_zero"), ("stop", {})
    ),
    **dict.fromkeys(("qkeras.binary", "qkeras.ternary"), ("tanh_surrogate", {"slope": "1"})),
    **dict.fromkeys(
        ("larq.ste_sign", "larq.ste_tern", "larq.ste_heaviside"),
        ("clipped_straight_through", {"clip": "clip_value"}),
    ),
    "larq.DoReFa": ("dorefa_activations", {}),
    "larq.approx_sign": ("approx_sign", {}),
    "larq.swish_sign": ("swish_sign", {}),
    "larq.MagnitudeAwareSign": ("magnitude_aware_sign", {"clip": "clip_value"}),
    "brevitas.abs_binary_sign_grad": ("absolute_binary_sign", {}),
    "zennit.ReLUBetaSmooth": ("beta_smooth", {"beta": "beta_smooth"}),
    "pytorch_revgrad.RevGrad": ("gradient_reversal", {}),
    "torch.clip_grad_value_": ("clip_value", {"limit": "clip_value"}),
    "optax.clip": ("clip_value", {"limit": "max_delta"}),
    "optax.scale": ("scale", {"s": "step_size"}),
    "optax.scale_by_sign": ("sign", {}),
    "optax.clip_by_block_rms": ("clip_rms", {}),
    "optax.normalize_by_update_norm": ("normalize", {"scale": "scale_factor"}),
    "optax.adaptive_grad_clip": ("adaptive_clip", {}),
    "snntorch.heaviside": ("d(ReLU)", {}),
    "snntorch.fast_sigmoid": ("fast_sigmoid", {}),
    "snntorch.atan": ("arctan", {}),
    "snntorch.sigmoid": ("sigmoid_surrogate", {"alpha": "slope"}),
    "snntorch.spike_rate_escape": ("spike_rate_escape", {}),
    "snntorch.SFS": ("sparse_fast_sigmoid", {"threshold": "B"}),
    "snntorch.SSO": ("stochastic_spike", {}),
    "snntorch.LSO": ("leaky_spike", {}),
    "spikingjelly.piecewise_quadratic": ("piecewise_quadratic", {}),
    "spikingjelly.piecewise_exp": ("piecewise_exp", {}),
    "spikingjelly.sigmoid": ("sigmoid_surrogate", {}),
    "spikingjelly.soft_sign": ("soft_sign_surrogate", {}),
    "spikingjelly.atan": ("arctan", {}),
    "spikingjelly.nonzero_sign_log_abs": ("nonzero_sign_log", {}),
    "spikingjelly.erf": ("erf_surrogate", {}),
    "spikingjelly.piecewise_leaky_relu": ("piecewise_leaky_relu", {}),
    "spikingjelly.s2nn": ("s2nn", {}),
    "spikingjelly.q_pseudo_spike": ("q_pseudo_spike", {}),
    "spikingjelly.leaky_k_relu": ("leaky_k_relu", {}),
    "spikingjelly.fake_numerical_gradient": ("fake_numerical_gradient", {}),
    "spikingjelly.log_tailed_relu": ("log_tailed_relu", {}),
    "spikingjelly.rect": ("unit_rectangular", {}),
    "spikingjelly.multi_level_spike_count": ("rectangular", {"a": "grad_min", "b": "grad_max"}),
    "norse.super": ("fast_sigmoid", {"slope": "alpha"}),
    "norse.tanh": ("tanh_surrogate", {"slope": "alpha"}),
    "norse.circ": ("circle", {}),
    "norse.CircDist": ("circle", {}),
    "norse.Logistic": ("tanh_surrogate", {"slope": "k"}),
    "sinabs.Gaussian": ("gaussian", {"mean": "mu", "scale": "grad_scale"}),
    "sinabs.MultiGaussian": ("multi_gaussian", {"mean": "mu", "scale": "grad_scale"}),
    "sinabs.PeriodicExponential": (
        "periodic_exponential",
        {"width": "grad_width", "scale": "grad_scale"},
    ),
    "spyx.superspike": ("fast_sigmoid", {"slope": "k"}),
    "spyx.tanh": ("tanh_surrogate", {"slope": "k"}),
    "snnax.sigmoid": ("sigmoid_surrogate", {"alpha": "beta"}),
    "braintools.sigmoid": ("sigmoid_surrogate", {}),
    "braintools.piecewise_quadratic": ("piecewise_quadratic", {}),
    "braintools.piecewise_exp": ("piecewise_exp", {}),
    "braintools.soft_sign": ("soft_sign_surrogate", {}),
    "braintools.arctan": ("arctan", {}),
    "braintools.nonzero_sign_log": ("nonzero_sign_log", {}),
    "braintools.erf": ("erf_surrogate", {}),
    "braintools.squarewave_fourier_series": ("squarewave_fourier", {"period": "t_period"}),
    "braintools.s2nn": ("s2nn", {}),
    "braintools.log_tailed_relu": ("log_tailed_relu", {}),
    "braintools.gaussian_grad": ("gaussian", {"scale": "alpha", "mean": "0"}),
    "braintools.multi_gaussian_grad": ("multi_gaussian", {"mean": "0"}),
    "braintools.inv_square_grad": ("fast_sigmoid", {"slope": "alpha"}),
}
# Of a whole tensor: (grad_out, x) are lists of rows, and what is between is mpmath's.
WHOLE: dict[str, str] = {
    "clip_norm": "grad_out * min(1, max_norm / max(norm(grad_out), eps))",
    "centralize": "grad_out - mean(grad_out, axis=-1)",
    "optax.centralize": "grad_out - mean(grad_out, axis=1)",
    "clip_rms": "grad_out * min(1, threshold / rms(grad_out))",
    "normalize": "grad_out * scale / (norm(grad_out) + eps)",
    "adaptive_clip": (
        "grad_out * min(1, clipping * max(norm(x, axis=0), eps) / max(norm(grad_out, axis=0), "
        "1e-6))"
    ),
    "dorefa_weights": "grad_out * (1 - tanh(x)**2) / max(abs(tanh(x)))",
    "magnitude_aware_sign": "grad_out * mean(abs(x), axis=0) * (abs(x) <= clip)",
}
