"""TensorFlow's dialect, diagonals, grids, borders and losses; see `table.py`.

A handler takes TensorFlow's own parameters in TensorFlow's order, without `name`; `table.py`
fills in its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

from multigrad.capture.code.table import find_dialect
from multigrad.capture.meanings import parts, products

from .shapes import TENSORFLOW, static

Tensor = Any
Handler = Callable[..., Any]


def only(k: Any) -> int:
    """Return a diagonal's number.

    Raises:
        TypeError: it is a band.
    """
    given = static(k)
    if isinstance(given, list | tuple):
        raise TypeError(f"a band of diagonals {given}; give one")
    return index(given)


def diag_part(input: Tensor, k: Any, padding_value: Any, align: Any) -> Tensor:
    return products.matrix_diagonal(input, only(k))


# --- operations of graphs -------------------------------------------------------------------------
def diag(
    diagonal: Tensor, k: Any, rows: Any, columns: Any, padding: Any, align: str = ""
) -> Tensor:
    if (rows, columns, padding) != (-1, -1, 0):
        raise TypeError("diag of another size than its diagonal's, or with a padding")
    return products.embedded(diagonal, only(k))


def set_diag(input: Tensor, diagonal: Tensor, k: Any, align: str = "") -> Tensor:
    if only(k):
        raise TypeError(f"set_diag of the diagonal {k}; the main one is known")
    return products.with_diagonal(input, diagonal)


def of_rank(axes: int, record: Handler) -> Handler:
    """Return a recorder that takes tensors of this many axes alone."""

    def operation(x: Tensor) -> Tensor:
        if parts.rank(x) != axes:
            raise TypeError(f"{parts.rank(x)} axes; {axes} are known")
        return record(x)

    return operation


def pad(x: Tensor, pairs: Any, fill: Any = 0.0, *, mode: str = "constant") -> Tensor:
    return parts.padded(x, static(pairs), mode.lower(), fill)


NAMED = TENSORFLOW.called({products: "tensordot; cross: linalg.cross"})
ALIASES: dict[Any, Handler] = TENSORFLOW.taking_the_same({__name__: "linalg.diag_part"})
OPERATIONS: dict[str, Handler] = {
    "Diag": of_rank(1, products.embedded),
    "DiagPart": of_rank(2, products.diagonal),
    "MatrixDiag": products.embedded,
    "MatrixDiagV3": diag,
    "MatrixSetDiag": products.with_diagonal,
    "MatrixSetDiagV3": set_diag,
    **dict.fromkeys(("MirrorPad", "Pad", "PadV2"), pad),
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
