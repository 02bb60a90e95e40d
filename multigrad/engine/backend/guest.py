"""`Guest`: a function that runs in one framework for another, its host.

A host lends its inputs and borrows the results, and attaches the gradient to its own autodiff. It
either keeps what `record` gives, so that residuals stay in the guest, or calls `gradients`, which
begins from the inputs again. A lender gives contiguous memory of the host's processor, outside any
autodiff, and does not write to it as long as the borrower may read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np

from ...core.ir.op import dtype_name
from ...core.ops.numerics import as_numpy_dtype
from ...core.support.records import record
from ...errors import GradientError, UnsupportedOp

Array = np.ndarray[Any, Any]


@record()
class SharedBuffer:
    """A tensor that another framework may read.

    Attributes:
        dtype: its IR name.
        shape: its shape.
        array: gives the memory as a NumPy array, without a copy where NumPy can see it (bfloat16 by
            ml_dtypes).
        exporter: an object with `__dlpack__`; None if there is only the array.
    """

    dtype: str
    shape: tuple[int, ...]
    array: Callable[[], Array]
    exporter: Any = None


def lend_array(x: Any) -> SharedBuffer:
    """Return a NumPy array, or one of its numbers, for others to read."""
    x = np.asarray(x)
    # A lender gives contiguous memory.
    if not x.flags.c_contiguous:
        x = x.copy(order="C")
    return SharedBuffer(x.dtype.name, x.shape, x.view)


def borrow_array(lent: SharedBuffer, own: bool = False) -> Array:
    """Return a lent buffer as a NumPy array: read-only, or a writable copy if `own` is set."""
    if own:
        return np.array(lent.array())
    x = lent.array().view()
    # The memory is the lender's.
    x.flags.writeable = False
    return x


Shape: TypeAlias = tuple[int | None, ...]
# A shape, None where a length is not known yet, and the IR name of a dtype.
Kind: TypeAlias = tuple[Shape, str]
Pull: TypeAlias = Callable[[Sequence[SharedBuffer | None]], list[SharedBuffer | None]]


class Guest(Protocol):
    """A function of tensors with its gradient, which runs in a guest."""

    @property
    def wrt(self) -> tuple[int, ...]:
        """The positions of inputs that may get a gradient."""
        ...

    @property
    def like(self) -> tuple[int, ...] | None:
        """For each output, the input whose shape and dtype it has; None: `infer` tries."""
        ...

    @property
    def owns(self) -> bool:
        """Whether each side needs memory of its own, because the code may write to its inputs."""
        ...

    @property
    def keeps_outputs(self) -> bool:
        """Whether the guest keeps outputs for backward, which therefore must not be written to."""
        ...

    @property
    def is_batched(self) -> bool:
        """Whether it takes arrays with more axes in front."""
        ...

    def run(self, inputs: Sequence[SharedBuffer]) -> list[SharedBuffer]:
        """Return the outputs."""
        ...

    def record(self, inputs: Sequence[SharedBuffer]) -> tuple[list[SharedBuffer], Pull]:
        """Return the outputs, and the map from cotangents to a gradient, or None, per input."""
        ...

    def gradients(
        self, inputs: Sequence[SharedBuffer], cotangents: Sequence[SharedBuffer | None]
    ) -> list[SharedBuffer | None]:
        """Return a gradient, or None, for each input."""
        ...

    def carries(self, position: int, dtype: str) -> bool:
        """Return whether an output carries a gradient."""
        ...

    def infer(self, inputs: Sequence[Kind]) -> list[Kind]:
        """Return the outputs' shapes and dtypes for inputs that are not there yet."""
        ...

    def refusal(self, what: str = ...) -> GradientError:
        """Return the error for a derivative that a bridge does not carry."""
        ...

    def unsupported(self, where: str, advice: str) -> UnsupportedOp:
        """Return the error for a place where a host cannot call a guest."""
        ...


def kind_of(x: Any) -> Kind:
    """Return the shape and dtype of a host's tensor."""
    return tuple(x.shape), dtype_name(x.dtype)


def make_zeros(shape: tuple[int, ...], dtype: str) -> SharedBuffer:
    """Return zeros for any framework."""
    return SharedBuffer(dtype, shape, partial(np.zeros, shape, as_numpy_dtype(dtype)))
