"""Elementwise functions of other libraries with options, and in rules. Each by itself, with its
gradient: `tests/project/test_names_of_tables.py`, and `tests/lowering/test_lowered_code.py` for
the graph that it becomes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg

Tensor = Any
X = np.array([[0.31, 0.82, 0.55], [0.93, 0.12, 0.47]])
G = np.array([[1.7, 0.4, 2.6], [0.3, 1.2, 0.9]])
SCIPY = (
    special.erf, special.erfc, special.erfinv, special.expit, special.log_expit, special.logit,
    special.ndtr, special.ndtri, special.log_ndtr, special.gammaln, special.psi, special.digamma,
    special.xlogy, special.xlog1py, special.exp2, special.cbrt, special.expm1, special.log1p,
)  # fmt: skip


def captured(function: Callable[..., Any], **options: Any) -> Any:
    """The rule of a function, which must be captured."""
    options = {"native": False, "override": True, **options}
    return xg.register("elementwise under test", **options)(function)


@pytest.mark.parametrize("ufunc", SCIPY, ids=lambda ufunc: ufunc.__name__)
def test_ufuncs_of_scipy_mean_what_they_mean_on_arrays(ufunc: Any) -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return ufunc(grad_out, tin) if ufunc.nin == 2 else grad_out * ufunc(tin)

    expected = rule(None, G, X)
    np.testing.assert_allclose(captured(rule)(None, G, X), expected, rtol=1e-14)


def test_signs_bits_and_replacements_in_numpy() -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        code = (tin * 100).astype(np.int32)
        low = np.bitwise_and(code, 12) | np.left_shift(code, 2) ^ np.right_shift(code, 1)
        signs = np.where(np.signbit(-tin), -1.0, 1.0) + np.invert(tin > 0.5)
        return np.nan_to_num(grad_out / (tin > 0.5), posinf=9.0) + low + np.invert(code) * signs

    with np.errstate(all="ignore"):
        expected = rule(None, G, X)
    np.testing.assert_allclose(captured(rule)(None, G, X), expected)


def test_scipy_is_not_imported_by_capture() -> None:
    code = (
        "import sys, numpy as np, multigrad as xg\n"
        "def rule(ctx, grad_out, tin): return grad_out * np.hypot(tin, 2.0) + tin % 2\n"
        "xg.get(rule)(None, np.ones(3), np.ones(3))\n"
        "assert 'scipy' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_ufunc_of_scipy_is_named() -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        return grad_out * special.erfcx(tin)

    with pytest.raises(xg.TraceError, match="erfcx, which is not captured"):
        captured(rule)(None, G, X)


# --- torch ----------------------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_a_threshold_may_be_a_param(torch: Any, F: Any) -> None:
    def rule(ctx: Any, grad_out: Tensor, tin: Tensor, low: float = 0.5) -> Tensor:
        return grad_out * (F.hardtanh(tin, -low, low) + torch.nan_to_num(tin, nan=low))

    x, g = torch.tensor(X), torch.tensor(G)
    for low in (0.5, 0.2):
        expected = g * (F.hardtanh(x, -low, low) + x)
        torch.testing.assert_close(captured(rule)(None, g, x, low=low), expected)
