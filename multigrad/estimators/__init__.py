"""Functions with a forward of their own: quantizers, signs and steps, codebooks, discrete draws.

    y = xg.estimators.lsq(weight, step, bits=4)

Each is a `Function` for every framework; `catalogue()` has them by name.
"""

from typing import TYPE_CHECKING

from ..engine.support.public_modules import module_hooks
from .binary import (
    approx_sign,
    learnable_step,
    magnitude_aware_sign,
    ste_heaviside,
    ste_sign,
    ste_ternary,
    swish_sign,
)
from .declared import Estimator, catalogue, describe
from .quantizers import (
    dorefa_activations,
    dorefa_weights,
    fake_quantize,
    lsq,
    lsq_plus,
    n2uq,
    pact,
    quantization_noise,
)
from .rounding import (
    clamp_with_grad,
    clipped_relu,
    gradient_reversal,
    ste_ceil,
    ste_floor,
    ste_round,
    ste_trunc,
)
from .sampling import bernoulli_st, bernoulli_straight_through, gumbel_softmax
from .vectors import replace_grad, rotation_trick, straight_through, vq

__all__ = [
    "Estimator", "approx_sign", "bernoulli_st", "bernoulli_straight_through", "catalogue",
    "clamp_with_grad", "clipped_relu", "describe", "dorefa_activations", "dorefa_weights",
    "fake_quantize", "gradient_reversal", "gumbel_softmax", "learnable_step", "lsq", "lsq_plus",
    "magnitude_aware_sign", "n2uq", "pact", "quantization_noise", "replace_grad", "rotation_trick",
    "ste_ceil", "ste_floor", "ste_heaviside", "ste_round", "ste_sign", "ste_ternary", "ste_trunc",
    "straight_through", "swish_sign", "vq",
]  # fmt: skip


def estimator_hint(name: str) -> str:
    plain = name.lower().replace("-", "_").rpartition(".")[2]
    if plain not in catalogue():
        return ""
    return f", but a Function with a forward of its own: xg.estimators.{plain}(x, ...)"


if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
