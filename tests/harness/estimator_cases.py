"""What the tests of `xg.estimators` are run on: arguments of each function, on its edges too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad_conformance.under_test import pull

E = xg.estimators
CATALOGUE = E.catalogue()
RANDOM = {"gumbel_softmax", "bernoulli_straight_through", "bernoulli_st"}
FLOAT16, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
INF, NAN = np.inf, np.nan

generator = np.random.default_rng(20)
X = generator.standard_normal((5, 8)) * 1.5
# On ties, on clips, on both zeros.
X.flat[:9] = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.5, -2.5, 1e-3]
G = generator.standard_normal((5, 8))
STEPS = np.array([0.25, 0.5, 1.0, 0.125, 0.3, 0.7, 2.0, 0.1])
TABLE = generator.standard_normal((6, 8))
WIDTHS = np.array([1.0, 0.5, 0.25])
Q = np.round(X)
Q[2], Q[3] = 0.0, -X[3]

CASES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    *((name, ()) for name in sorted(CATALOGUE) if len(CATALOGUE[name].arguments) == 1),
    ("ste_sign", ()),
    ("ste_sign", (0.5,)),
    ("ste_sign", (None,)),
    ("ste_heaviside", ()),
    ("ste_ternary", (0.5, 1.0)),
    ("swish_sign", (2.0,)),
    ("magnitude_aware_sign", ()),
    ("dorefa_activations", (3,)),
    ("dorefa_weights", (3,)),
    ("pact", (STEPS, 4)),
    ("pact", (np.array(1.0), 2)),
    ("lsq", (STEPS, 3)),
    ("lsq", (np.array(0.25), 4, False)),
    ("lsq", (np.array([0.25]), 2, True, False)),
    ("lsq", (STEPS[:5, None], 4)),
    ("lsq_plus", (STEPS, STEPS - 0.5, 3)),
    ("lsq_plus", (np.array(0.2), np.array([-1.0]), 4, True)),
    ("n2uq", (WIDTHS, np.array(-0.5))),
    ("fake_quantize", (-STEPS, STEPS * 1.1, 8)),
    ("fake_quantize", (np.array(-1.3), np.array(2.1), 4)),
    ("fake_quantize", (np.array(0.1), STEPS + 0.2, 3, True)),
    ("quantization_noise", (Q, 0.3)),
    ("learnable_step", (STEPS,)),
    ("learnable_step", (np.array([0.5]), "arctan")),
    ("vq", (TABLE, True, True)),
    ("straight_through", (Q,)),
    ("replace_grad", (STEPS,)),
    ("replace_grad", (STEPS[:5, None],)),
    ("rotation_trick", (Q,)),
    ("clamp_with_grad", (-0.5, 0.5)),
    ("clipped_relu", (1.0,)),
    ("gradient_reversal", (0.5,)),
)
CASES = tuple(case for case in CASES if case[0] not in RANDOM)
each_case = pytest.mark.parametrize(
    ("name", "rest"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)]
)
each_function = pytest.mark.parametrize("name", sorted(CATALOGUE))
# The first case of each, which has arguments enough.
ARGUMENTS = {
    "gumbel_softmax": (), "bernoulli_straight_through": (), "bernoulli_st": (),
    **{name: rest for name, rest in reversed(CASES)},
}  # fmt: skip


def arguments_of(name: str) -> tuple[Any, ...]:
    x = np.abs(np.tanh(X)) if name == "bernoulli_straight_through" else X
    return (x, *ARGUMENTS[name])


def pulled(backend: Any, function: Any, *args: Any, g: Any = G) -> tuple[Any, Any]:
    """Outputs and gradients for a cotangent of the first output, as arrays."""
    dtype = next(value.dtype for value in args if isinstance(value, np.ndarray))
    return pull(backend, function, args, np.asarray(g, dtype))


def slope(name: str, x: Any, *rest: Any, dtype: Any = np.float64) -> Any:
    """The gradient of x for a cotangent of ones, on NumPy."""
    x = np.asarray(x, dtype)
    return xg.vjp(CATALOGUE[name], x, *rest)[1](np.ones_like(x))[0]
