"""TensorFlow's dialect, diagonals, grids, borders and losses; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py`
fills in its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from multigrad.capture.code.table import find_dialect
from multigrad.capture.meanings import diagonals, neighbors, parts, products

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


MODES = {"CONSTANT": "constant", "REFLECT": "reflect", "SYMMETRIC": "symmetric"}


def pad(tensor: Tensor, paddings: Any, mode: str, constant_values: Any) -> Tensor:
    if mode.upper() not in MODES:
        raise TypeError(f"pad in mode {mode!r}; {', '.join(MODES)} are known")
    return neighbors.padded(tensor, static(paddings), MODES[mode.upper()], constant_values)


NAMED = TENSORFLOW.called({products: "tensordot; cross: linalg.cross"})
ALIASES: dict[Any, Handler] = {
    **TENSORFLOW.taking_the_same(
        {
            __name__: """
                linalg.diag; linalg.diag_part; linalg.set_diag; linalg.tensor_diag;
                linalg.tensor_diag_part; pad
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
