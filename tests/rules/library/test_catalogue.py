"""Every row of the catalogue of gradient rules is covered, by a rule or by what has a forward too.

A row is what papers and packages have as one formula; beside it stand its names here, ours first.
"""

from __future__ import annotations

import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.expected.curves import CURVES
from multigrad_conformance.expected.transforms import RANDOM_TRANSFORMS, TRANSFORMS
from multigrad_conformance.oracles import LIBRARY

ROWS: dict[int, str] = {
    1: "straight_through pass d(Linear) snntorch.straight_through_estimator zennit.Pass "
    "spikingjelly.deterministic_pass spikingjelly.poisson_pass brevitas.round_ste "
    "brevitas.ceil_ste brevitas.floor_ste brevitas.round_to_zero_ste brevitas.dpu_round_ste "
    "brevitas.binary_sign_ste brevitas.ternary_sign_ste brevitas.tensor_clamp_ste "
    "brevitas.scalar_clamp_ste brevitas.scalar_clamp_min_ste",
    2: "d(ReLU) snntorch.heaviside",
    3: "clipped_straight_through larq.ste_sign larq.ste_tern larq.ste_heaviside",
    4: "rectangular",
    5: "unit_rectangular spikingjelly.rect",
    6: "spyx.boxcar",
    7: "snnax.piecewise",
    8: "sinabs.Heaviside rockpool.step_pwl rockpool.threshold_subtract",
    9: "triangular",
    10: "norse.triangle braintools.relu_grad",
    11: "spyx.triangular",
    12: "piecewise_quadratic spikingjelly.piecewise_quadratic braintools.piecewise_quadratic",
    13: "snntorch.triangular",
    14: "fast_sigmoid snntorch.fast_sigmoid norse.super spyx.superspike braintools.inv_square_grad",
    15: "spikingjelly.super_spike",
    16: "snnax.superspike",
    17: "sparse_fast_sigmoid snntorch.SFS",
    18: "soft_sign_surrogate spikingjelly.soft_sign braintools.soft_sign",
    19: "sigmoid_surrogate spikingjelly.sigmoid braintools.sigmoid snntorch.sigmoid",
    20: "snnax.sigmoid",
    21: "arctan spikingjelly.atan snntorch.atan braintools.arctan",
    22: "spyx.arctan",
    23: "tanh_surrogate norse.tanh norse.Logistic spyx.tanh qkeras.binary qkeras.ternary",
    24: "erf_surrogate spikingjelly.erf braintools.erf",
    25: "norse.heavi_erfc",
    26: "circle norse.circ norse.CircDist",
    27: "gaussian sinabs.Gaussian braintools.gaussian_grad",
    28: "multi_gaussian sinabs.MultiGaussian braintools.multi_gaussian_grad",
    29: "sinabs.SingleExponential",
    30: "exponential braintools.slayer_grad",
    31: "periodic_exponential sinabs.PeriodicExponential",
    32: "spikingjelly.piecewise_exp braintools.piecewise_exp",
    33: "nonzero_sign_log spikingjelly.nonzero_sign_log_abs braintools.nonzero_sign_log",
    34: "piecewise_leaky_relu spikingjelly.piecewise_leaky_relu braintools.piecewise_leaky_relu",
    35: "squarewave_fourier braintools.squarewave_fourier_series "
    "spikingjelly.squarewave_fourier_series",
    36: "s2nn spikingjelly.s2nn braintools.s2nn",
    37: "q_pseudo_spike spikingjelly.q_pseudo_spike braintools.q_pseudo_spike",
    38: "leaky_k_relu spikingjelly.leaky_k_relu braintools.leaky_relu",
    39: "leaky_spike snntorch.LSO",
    40: "log_tailed_relu spikingjelly.log_tailed_relu braintools.log_tailed_relu",
    41: "fake_numerical_gradient spikingjelly.fake_numerical_gradient",
    42: "spike_rate_escape snntorch.spike_rate_escape",
    43: "stochastic_spike snntorch.SSO",
    44: "spikingjelly.multi_level_spike_count",
    45: "approx_sign larq.approx_sign",
    46: "swish_sign larq.swish_sign",
    47: "magnitude_aware_sign larq.MagnitudeAwareSign",
    48: "dorefa_activations dorefa_weights larq.DoReFa",
    49: "estimators.fake_quantize",
    50: "quantization_noise qkeras.quantized_bits",
    51: "absolute_binary_sign brevitas.abs_binary_sign_grad",
    52: "guided zennit.ReLUGuidedBackprop captum.GuidedBackprop innvestigate.guided_backprop",
    53: "deconvnet zennit.ReLUDeconvNet captum.Deconvolution innvestigate.deconvnet",
    54: "beta_smooth zennit.ReLUBetaSmooth",
    55: "attribution.epsilon attribution.zplus attribution.gamma attribution.alpha_beta "
    "attribution.flat attribution.wsquare attribution.zbox attribution.norm",
    56: "gradient_reversal pytorch_revgrad.RevGrad",
    57: "clamp_with_grad",
    58: "estimators.replace_grad",
    59: "estimators.gumbel_softmax",
    60: "scale optax.scale",
    61: "stop jax.stop_gradient tensorflow.stop_gradient optax.set_to_zero",
    62: "clip_value optax.clip torch.clip_grad_value_",
    63: "clip_norm",
    64: "clip_rms optax.clip_by_block_rms",
    65: "adaptive_clip optax.adaptive_grad_clip",
    66: "normalize optax.normalize_by_update_norm",
    67: "sign optax.scale_by_sign",
    68: "centralize optax.centralize",
    69: "noise optax.add_noise",
    70: "full_jam",
    71: "positive_jam",
    72: "rectangular_jam",
    73: "sign_jam",
    74: "noisy_threshold",
}
NAMES = {row: names.split() for row, names in ROWS.items()}
# Of other rooms than the library of rules: what reads weights, and what has a forward of its own.
ROOMS = ("attribution.", "estimators.")


def test_the_catalogue_has_74_rows_and_each_is_covered() -> None:
    assert sorted(NAMES) == list(range(1, 75))
    assert [row for row, names in NAMES.items() if not names] == []


@pytest.mark.parametrize("row", NAMES)
def test_every_name_of_a_row_is_there(row: int) -> None:
    for name in NAMES[row]:
        if name.startswith(ROOMS):
            room, _, what = name.partition(".")
            assert callable(getattr(getattr(xg, room), what))
        else:
            assert xg.get(name).name == name


def test_a_name_stands_in_one_row_and_has_an_oracle() -> None:
    names = [name for own in NAMES.values() for name in own if not name.startswith(ROOMS)]
    assert len(names) == len(set(names))
    assert set(names) <= {*LIBRARY, *CURVES, *TRANSFORMS}
    assert sum("." in name for name in names) >= 110


@pytest.mark.parametrize("name", sorted(TRANSFORMS))
def test_a_rule_that_is_no_factor_is_saved_for_every_shape(name: str) -> None:
    saved, x = xg.from_dict(xg.get(name).to_dict()), np.linspace(-2, 2, 24)
    key = {"key": 3} if name in RANDOM_TRANSFORMS else {}
    for shape in ((24,), (4, 6), (1, 24), (2, 3, 4)):
        g = x[::-1].reshape(shape)
        again = saved(None, g, x.reshape(shape), **key)
        np.testing.assert_array_equal(again, xg.get(name)(None, g, x.reshape(shape), **key))


def test_what_compares_a_gradient_with_its_parameter_says_so_without_one() -> None:
    for apply in (
        lambda: xg.get("adaptive_clip")(None, np.ones(3), None),
        lambda: xg.apply_to_gradients([np.ones(3)], "optax.adaptive_grad_clip"),
    ):
        with pytest.raises(xg.RuleError, match="with its parameter, and got none for tin: call"):
            apply()


def test_a_mode_that_there_is_not_is_named() -> None:
    with pytest.raises(ValueError, match="mode is 'activations' or 'weights', got 'weight'"):
        xg.get("larq.DoReFa")(None, np.ones(3), np.ones(3), mode="weight")
