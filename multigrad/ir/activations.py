"""The op table, activations: what networks apply to each element. See `elementwise.py` for the rest."""

from __future__ import annotations

from typing import Any

from . import activation_meaning as meaning
from . import activation_pullbacks as pullbacks
from .op import Op, float_elementwise, op


def activation(name: str, numpy: Any, vjp: Any, doc: str, *attrs: str) -> Op:
    """Declare an elementwise op of one operand, with numbers that shape it."""
    return op(
        name, "x", attrs=attrs, numpy=numpy, vjp=vjp, doc=doc, result=float_elementwise
    )  # fmt: skip


SIGMOID = activation("sigmoid", meaning.sigmoid, pullbacks.sigmoid, "1 / (1 + exp(-x)).")
LOG_SIGMOID = activation(
    "log_sigmoid", meaning.log_sigmoid, pullbacks.log_sigmoid, "log(sigmoid(x))."
)
LOGIT = activation("logit", meaning.logit, pullbacks.logit, "log(x / (1 - x)).")
RELU = activation("relu", meaning.relu, pullbacks.relu, "max(x, 0).")
RELU6 = activation("relu6", meaning.relu6, pullbacks.relu6, "min(max(x, 0), 6).")
LEAKY_RELU = activation(
    "leaky_relu", meaning.leaky_relu, pullbacks.leaky_relu, "x above zero, else slope x.", "slope"
)
ELU = activation(
    "elu", meaning.elu, pullbacks.elu, "x above zero, else alpha (exp(x) - 1).", "alpha"
)
CELU = activation(
    "celu", meaning.celu, pullbacks.celu, "x above zero, else alpha (exp(x / alpha) - 1).", "alpha"
)
SELU = activation(
    "selu", meaning.selu, pullbacks.selu, "1.0507 times elu with alpha = 1.67326."
)  # fmt: skip
GELU = activation(
    "gelu", meaning.gelu, pullbacks.gelu, "x Phi(x); approximate: the tanh form.", "approximate"
)
SILU = activation("silu", meaning.silu, pullbacks.silu, "x sigmoid(x).")
MISH = activation("mish", meaning.mish, pullbacks.mish, "x tanh(softplus(x)).")
SOFTPLUS = activation("softplus", meaning.softplus, pullbacks.softplus, "log(1 + exp(x)).")
SQUAREPLUS = activation(
    "squareplus", meaning.squareplus, pullbacks.squareplus, "(x + sqrt(x^2 + b)) / 2.", "b"
)
SPARSE_PLUS = activation(
    "sparse_plus", meaning.sparse_plus, pullbacks.sparse_plus,
    "0 below -1, (x + 1)^2 / 4 up to 1, then x.",
)  # fmt: skip
SPARSE_SIGMOID = activation(
    "sparse_sigmoid", meaning.sparse_sigmoid, pullbacks.sparse_sigmoid,
    "(x + 1) / 2 limited to [0, 1].",
)  # fmt: skip
SOFT_SIGN = activation("soft_sign", meaning.soft_sign, pullbacks.soft_sign, "x / (1 + |x|).")
TANH_SHRINK = activation(
    "tanh_shrink", meaning.tanh_shrink, pullbacks.tanh_shrink, "x - tanh(x)."
)  # fmt: skip
SOFT_SHRINK = activation(
    "soft_shrink", meaning.soft_shrink, pullbacks.soft_shrink,
    "x moved by lambd towards zero, zero within lambd of it.", "lambd",
)  # fmt: skip
HARD_SHRINK = activation(
    "hard_shrink", meaning.hard_shrink, pullbacks.hard_shrink,
    "x, but zero within lambd of zero.", "lambd",
)  # fmt: skip
THRESHOLD = activation(
    "threshold", meaning.threshold, pullbacks.threshold,
    "x above the threshold, else the default; NaN stays.", "threshold", "default",
)  # fmt: skip
HARD_TANH = activation(
    "hard_tanh", meaning.hard_tanh, pullbacks.hard_tanh,
    "x limited to [min, max], with slope zero at both.", "min", "max",
)  # fmt: skip
HARD_SIGMOID = activation(
    "hard_sigmoid", meaning.hard_sigmoid, pullbacks.hard_sigmoid, "relu6(x + 3) / 6."
)
HARD_SILU = activation(
    "hard_silu", meaning.hard_silu, pullbacks.hard_silu, "x hard_sigmoid(x)."
)  # fmt: skip
HEAVISIDE = activation("heaviside", meaning.heaviside, pullbacks.zero, "1 above zero, else 0.")
