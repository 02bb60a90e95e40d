"""The names of activations, for type checkers: also usual others and lower case.

Written from the table in `forwards.py` by `python tools/write_sources.py`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

ActivationName: TypeAlias = Literal[
    "Linear", "linear", "ReLU", "relu", "ReLU6", "relu6", "LeakyReLU", "leakyrelu", "leaky_relu",
    "ELU", "elu", "Tanh", "tanh", "Logistic", "logistic", "SiLU", "silu", "GELU", "gelu",
    "Softplus", "softplus", "Heaviside", "heaviside", "Sign", "sign", "Round", "round", "Floor",
    "floor", "Ternary", "ternary", "Identity", "identity", "None", "none", "Sigmoid", "sigmoid",
    "Swish", "swish", "Step", "step", "BinaryStep", "binarystep", "binary_step", "Signum", "signum",
    "Heaviside(at_zero=1.0)", "Sign(at_zero=1.0)",
]  # fmt: skip
