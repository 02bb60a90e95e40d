"""The rules of this folder, from their formulas: `gradient(g, x)` in float64 that knows what
rounding may do.

`in_torch.py`, `in_numpy.py` and the others write the same rules, by the same names, in their own
dialects; `shared.py` those whose words several libraries share.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

import numpy as np
from scipy import special

from multigrad_conformance.oracles import Exact, exact, maximum, minimum, sigmoid, square, where


def exp(x: Exact) -> Exact:
    return x.apply(np.exp)


def tanh(x: Exact) -> Exact:
    return x.apply(np.tanh)


def sqrt(x: Exact) -> Exact:
    return x.apply(np.sqrt, 1)


def normal(x: Exact, center: float, sigma: float) -> Exact:
    return exp(-0.5 * square((x - center) / sigma)) / (sigma * (2 * pi) ** 0.5)


def largest(x: Exact, axis: Any = None) -> Exact:
    """The maximum, which rounds nothing; near ties the larger error counts."""
    top, error, met = (np.max(a, axis=axis, keepdims=True) for a in (x.value, x.error, x.largest))
    return Exact(top, error, met, x.dtype)


def norm(g: Exact) -> Exact:
    return sqrt(square(g).sum())


def logistic_slope(x: Exact, alpha: float) -> Exact:
    s = sigmoid(alpha * x)
    return alpha * (s * (1.0 - s))


def clamp_with_grad(g: Exact, x: Exact) -> Exact:
    """g where it does not push further out of [-1, 1]."""
    outward = ((x > 1.0) & (g < 0.0)) | ((x < -1.0) & (g > 0.0))
    return where(outward, 0.0, g)


def gelu_slope(g: Exact, x: Exact) -> Exact:
    inside = 0.5 * (1.0 + (x * 0.5**0.5).apply(special.erf))
    return g * (inside + x * (exp(-0.5 * square(x)) / (2 * pi) ** 0.5))


def gumbel_softmax(g: Exact, x: Exact) -> Exact:
    """The softmax's own gradient."""
    powers = exp(x - largest(x, -1))
    y = powers / powers.sum(-1, keepdims=True)
    return y * (g - (g * y).sum(-1, keepdims=True))


def dorefa(g: Exact, x: Exact) -> Exact:
    t = tanh(x)
    return g * ((1.0 - square(t)) / largest(abs(t)))


def mean_of(x: Exact, axis: Any = None) -> Exact:
    count = x.value.size if axis is None else x.value.shape[axis]
    return x.sum(axis, keepdims=True) / count


def q_pseudo_spike(g: Exact, x: Exact) -> Exact:
    def cube_below(r: Any) -> Any:
        return r**-3.0

    return g * (1.0 + abs(x)).apply(cube_below)


# The result at an element depends on the input and the gradient there alone.
ELEMENTWISE: dict[str, Callable[[Exact, Exact], Exact]] = {
    "straight_through": lambda g, x: g,
    "gradient_reversal": lambda g, x: -g,
    "gradient_scale": lambda g, x: 0.25 * g,
    "clip_value": lambda g, x: minimum(maximum(g, -0.5), 0.5),
    "deconvnet": lambda g, x: maximum(g, 0.0),
    "guided_backprop": lambda g, x: maximum(g, 0.0) * (x > 0),
    "relu_mask": lambda g, x: g * (x > 0),
    "threshold_mask": lambda g, x: where(x >= 0.5, g, 0.0),
    "clipped_straight_through": lambda g, x: g * (abs(x) <= 1.0),
    "rectangular": lambda g, x: g * ((x >= -0.5) & (x <= 0.5)),
    "boxcar": lambda g, x: g * where(abs(x) < 1.0, 0.5, 0.0),
    "half_open_window": lambda g, x: where((x > -0.5) & (x <= 2.0), g, 0.0),
    "triangular": lambda g, x: g * maximum(1.0 - abs(x), 0.0),
    "scaled_triangle": lambda g, x: g * (0.3 * maximum(1.0 - abs(x), 0.0)),
    "fast_sigmoid": lambda g, x: g / square(1.0 + 25.0 * abs(x)),
    "superspike": lambda g, x: g / square(1.0 + 100.0 * abs(x)),
    "soft_sign": lambda g, x: g * (1.5 / square(1.0 + abs(3.0 * x))),
    "arctan": lambda g, x: g / (1.0 + square(pi * x)),
    "sigmoid_slope": lambda g, x: g * logistic_slope(x, 4.0),
    "tanh_slope": lambda g, x: g * (1.0 - square(tanh(x))),
    "erf_slope": lambda g, x: g * (2 / pi**0.5 * exp(-square(x))),
    "gaussian": lambda g, x: g * normal(x, 0.0, 0.5),
    "multi_gaussian": lambda g, x: (
        g * (1.15 * normal(x, 0.0, 0.5) - 0.15 * normal(x, 0.5, 3.0) - 0.15 * normal(x, -0.5, 3.0))
    ),
    "exponential": lambda g, x: g * (2.0 * exp(-2.0 * abs(x))),
    "slayer": lambda g, x: g * exp(-abs(x)),
    "circle": lambda g, x: g * (8.0 / ((4.0 + square(x)) * sqrt(4.0 + square(x)))),
    "s2nn": lambda g, x: g * where(x < 0, logistic_slope(x, 4.0), 1.0 / (x + 1.0)),
    "log_tailed": lambda g, x: g * where(x > 1, 1.0 / x, where(x > 0, 1.0, x - x)),
    "sign_log_abs": lambda g, x: g / (1.0 + abs(x)),
    "piecewise_leaky_relu": lambda g, x: g * where(abs(x) < 1.0, 0.5, 0.01),
    "q_pseudo_spike": q_pseudo_spike,
    "leaky_k_relu": lambda g, x: g * where(x >= 0, 1.0, 0.1),
    "approx_sign": lambda g, x: g * where(abs(x) <= 1.0, 2.0 - 2.0 * abs(x), 0.0),
    "fake_numerical": lambda g, x: g * minimum(1.0 / abs(x), 0.3),
    "beta_smooth_relu": lambda g, x: g * sigmoid(10.0 * x),
    "gelu_slope": gelu_slope,
    "clamp_with_grad": clamp_with_grad,
    # Rounding to steps of a half, limited to [-4, 3] steps; half-way cases go to the even step.
    "learned_step": lambda g, x: where((x >= -2.25) & (x < 1.75), g, 0.0),
}
# The result depends on the whole tensor, or on a row of it.
REDUCING: dict[str, Callable[[Exact, Exact], Exact]] = {
    "clip_norm": lambda g, x: g * minimum(1.0 / maximum(norm(g), 1e-6), 1.0),
    "normalize": lambda g, x: g / (norm(g) + 1e-3),
    "clip_rms": lambda g, x: g / maximum(sqrt(square(g).sum() / g.value.size) / 0.5, 1.0),
    "centralize": lambda g, x: g - mean_of(g, -1),
    "magnitude_aware_sign": lambda g, x: g * mean_of(abs(x), 0) * (abs(x) <= 1.0),
    "dorefa": dorefa,
    "gumbel_softmax": gumbel_softmax,
}
FORMULAS = {**ELEMENTWISE, **REDUCING}


def expected(name: str, grad_out: Any, tin: Any) -> Exact:
    """What a rule gives for arrays of some float dtype."""
    with np.errstate(all="ignore"):
        return FORMULAS[name](exact(grad_out), exact(tin))
