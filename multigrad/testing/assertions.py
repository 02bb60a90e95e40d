"""Assertions on gradients, which print the whole report where they fail."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..inspection.check import CheckReport, check
from ..inspection.parity import ParityReport, parity


def assert_gradients(obj: Any, *inputs: Any, backend: str | None = None) -> CheckReport:
    """Assert that a Function's gradient is the true one, by finite differences in float64.

    Example:
        >>> def test_clipped_relu():
        ...     assert_gradients(clipped_relu, np.linspace(-1.0, 3.0, 20), 2.0)

    Args:
        obj, *inputs, backend: as for `xg.check`. A surrogate passes where it is finite.

    Raises:
        AssertionError: it is not; the message names the place and the size of the worst error.
    """
    report = check(obj, *inputs, backend=backend)
    if not report.ok:
        raise AssertionError(str(report))
    if report.compared == 0:
        raise AssertionError(f"{report}\n  nothing was compared: give inputs away from the kinks")
    return report


def assert_parity(obj: Any, *inputs: Any, backends: Sequence[str] | None = None) -> ParityReport:
    """Assert that outputs and gradients are the same numbers on every backend.

    Example:
        >>> def test_my_rule():
        ...     assert_parity(my_rule, backends=["torch", "jax"])

    Args:
        obj, *inputs, backends: as for `xg.parity`.

    Raises:
        AssertionError: they are not; the message is the table.
    """
    report = parity(obj, *inputs, backends=backends)
    if not report.ok:
        raise AssertionError(str(report))
    return report
