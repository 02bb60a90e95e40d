"""What NumPy's backend offers above the core: for other frameworks, models, audits and pages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ....core.lowering.reference.function import copy_context
from ...backend.differences import SIGN_OF_ZERO, Difference, Differences, Mended, zeros
from ...backend.features import Interop, Models, Modes
from ...backend.guest import Guest
from ...backend.guest import borrow_array as borrow
from ...backend.guest import lend_array as lend

Array = Any
# NumPy's, which this backend calls, and SciPy's, which code for NumPy calls.
MEASURED = "NumPy 2.4 and SciPy 1.17"
KEPT: tuple[Difference, ...] = (
    SIGN_OF_ZERO,
    zeros("cumsum, logcumsumexp, log_sigmoid, elu, celu, selu, i1e"),
)
MENDED: tuple[Mended, ...] = (
    Mended("scipy.special.psi", "float64", "38 % one float above -1: -5.5e15, where it is -9.0e15"),
    Mended("scipy.special.gammaln", "all", "-inf at -inf; torch, jax and TensorFlow have inf"),
    Mended("scipy.linalg.expm", "float64", "1,300 of the norm at a norm of 8"),
    Mended("numpy.cumsum", "float16, bfloat16", "602 and 191 over 3,000 terms"),
    Mended("numpy.prod", "bfloat16", "37 over 1,001 factors"),
    Mended("numpy.cbrt", "float64", "2.5 eps on processors without AVX-512"),
    Mended("numpy.quantile", "all", "NaN where the neighbors are infinite: [1, inf, inf]"),
)
DIFFERENCES = Differences(KEPT, MENDED, MEASURED)


def silent(function: Callable[..., Any]) -> Callable[..., Any]:

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return copy_context().run(function, *args)

    return call


def is_operation(selector: Any) -> bool:
    module = getattr(selector, "__module__", None) or type(selector).__module__
    return callable(selector) and str(module).partition(".")[0] == "numpy"


def bridge(foreign: Guest, tensors: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return the outputs of what runs in another framework; NumPy takes no gradients."""
    return tuple(borrow(y, own=True) for y in foreign.run([lend(x) for x in tensors]))


INTEROP = Interop(lend=lend, borrow=borrow, outside=silent, bridge=bridge)
MODELS = Models(is_operation=is_operation)
MODES = Modes(
    lacks={
        "jvp": "NumPy has no forward mode; xg.jvp captures what it is given",
        "checkpoints": "NumPy has no checkpoints",
        "autocast": "NumPy has no autocast",
        "kept": "what is kept on NumPy multigrad itself has chosen",
    }
)
