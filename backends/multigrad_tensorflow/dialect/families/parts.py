"""TensorFlow's dialect, diagonals, grids, borders and losses; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py`
fills in its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import tensorflow as tf

from multigrad.capture.code.table import find_dialect
from multigrad.capture.meanings import diagonals, neighbors, parts, products
from multigrad.capture.meanings.networks import losses
from multigrad.trace.xp import all as xp

from .shapes import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


def only(k: Any, *defaults: tuple[str, Any, Any]) -> int:
    """Return a diagonal's number.

    Raises:
        TypeError: it is a band, or one of the options has another value than its default.
    """
    given = static(k)
    if isinstance(given, list | tuple):
        raise TypeError(f"a band of diagonals {given}; give one")
    for name, value, default in defaults:
        if static(value) != default:
            raise TypeError(f"{name}={value!r}; only its default is known")
    return index(given)


def diag(
    diagonal: Tensor, k: Any, num_rows: Any, num_cols: Any, padding_value: Any, align: Any
) -> Tensor:
    size = (("num_rows", num_rows, -1), ("num_cols", num_cols, -1))
    return diagonals.embedded(diagonal, only(k, *size, ("padding_value", padding_value, 0)))


def diag_part(input: Tensor, k: Any, padding_value: Any, align: Any) -> Tensor:
    return diagonals.matrix_diagonal(input, only(k))


def set_diag(input: Tensor, diagonal: Tensor, k: Any, align: Any) -> Tensor:
    return diagonals.with_diagonal(input, diagonal) if only(k) == 0 else _refuse_k(k)


def _refuse_k(k: Any) -> Tensor:
    raise TypeError(f"set_diag of the diagonal {k}; the main one is known")


def tensor_diag(diagonal: Tensor) -> Tensor:
    if parts.rank(diagonal) != 1:
        raise TypeError(f"tensor_diag of {parts.rank(diagonal)} axes; 1 is known")
    return diagonals.embedded(diagonal)


def tensor_diag_part(input: Tensor) -> Tensor:
    if parts.rank(input) != 2:
        raise TypeError(f"tensor_diag_part of {parts.rank(input)} axes; 2 are known")
    return diagonals.diagonal(input)


def meshgrid(*args: Tensor, indexing: str = "xy", name: Any = None) -> list[Tensor]:
    return [*parts.meshgrid(*args, indexing=indexing)]


MODES = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}


def pad(tensor: Tensor, paddings: Any, mode: str, constant_values: Any) -> Tensor:
    if mode.upper() not in MODES:
        raise TypeError(f"pad in mode {mode!r}; {', '.join(MODES)} are known")
    return neighbors.padded(tensor, static(paddings), MODES[mode.upper()], constant_values)


def weighted_moments(x: Tensor, axes: Any, frequency_weights: Any, keepdims: bool) -> Any:
    """The mean and the variance, by weight."""
    weights = xp.broadcast_to(frequency_weights, x)
    total = xp.sum(weights, axes, keepdims=True)
    mean = xp.sum(xp.multiply(x, weights), axes, keepdims=True) / total
    off = xp.square(xp.subtract(x, mean))
    variance = xp.sum(xp.multiply(off, weights), axes, keepdims) / xp.sum(weights, axes, keepdims)
    return mean if keepdims else xp.squeeze(mean, axes), variance


def log_poisson_loss(targets: Any, log_input: Tensor, compute_full_loss: bool) -> Tensor:
    loss = losses.poisson(log_input, targets)
    if not compute_full_loss:
        return loss
    small = xp.greater_equal(targets, 0.0) & xp.less_equal(targets, 1.0)
    return loss + xp.where(small, 0.0, losses.stirling(targets))


# Which takes any number of operands: it is called as it is.
SPREAD: dict[Any, Handler] = {tf.meshgrid: meshgrid}
WEIGHTED = "nn.weighted_cross_entropy_with_logits(labels=target)"
NAMED = TENSORFLOW.called(
    {
        products: "tensordot; cross: linalg.cross",
        losses: f"binary_cross_entropy_with_logits: {WEIGHTED}",
    }
)
ALIASES: dict[Any, Handler] = {
    **TENSORFLOW.taking_the_same(
        {
            __name__: """
                linalg.diag; linalg.diag_part; linalg.set_diag; linalg.tensor_diag;
                linalg.tensor_diag_part; pad; nn.weighted_moments; nn.log_poisson_loss
            """,
        }
    ),
}


def of_keras(function: Any) -> Handler:
    """Return what a function of Keras records, where it is imported: `tf.keras.losses` are its own.

    Raises:
        KeyError: it is none of them.
    """
    keras = find_dialect("keras")
    if keras is None:
        raise KeyError(function)
    return keras.aliases[function]
