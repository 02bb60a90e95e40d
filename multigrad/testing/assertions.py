"""Assertions on gradients, which print the whole report where they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..audit.audit import AuditReport, audit
from ..audit.minimize import smallest
from ..look.check import CheckReport, check
from ..look.parity import ParityReport, parity


def assert_gradients(obj: Any, *inputs: Any, backend: str | None = None) -> CheckReport:
    """Assert that a Function's gradient is the true one, by finite differences in float64.

    Examples:
        >>> from multigrad.testing import assert_gradients
        >>> def test_tanh():
        ...     assert_gradients(xg.activation("Tanh"), np.linspace(-1.0, 1.0, 5))
        >>> test_tanh()
        >>> wrong = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * x)
        >>> assert_gradients(wrong, np.array([1.0]))
        Traceback (most recent call last):
            ...
        AssertionError: <lambda> on numpy, float64
          THE GRADIENT IS WRONG: largest error 0.78 (1 elements)
          worst at x[0] = 1: gradient 0.780076, expected 1.56015
                    at        given         true   difference
                     1     0.780076      1.56015         0.78

    Args:
        obj: as for `xg.check`. A surrogate passes where it is finite.
        *inputs: as for `xg.check`.
        backend: as for `xg.check`.

    Raises:
        AssertionError: it is not; the message names the place and the size of the worst error.
    """
    report = check(obj, *inputs, backend=backend)
    if not report.ok:
        raise AssertionError(str(report))
    if report.compared == 0:
        raise AssertionError(f"{report}\n  nothing was compared: give inputs away from the kinks")
    return report


def assert_gradient(
    fn: Any,
    *inputs: Any,
    laws: Iterable[str] | None = None,
    surrogate: bool | Callable[..., Any] | None = None,
) -> AuditReport:
    """Assert that a custom gradient, converted or not, keeps every law of `xg.audit`.

    Examples:
        >>> from multigrad.testing import assert_gradient
        >>> def test_sine():
        ...     assert_gradient(xg.activation("Tanh"), np.linspace(-1.0, 1.0, 5))
        >>> test_sine()
        >>> halved = xg.function(lambda x: x * x, lambda grad_out, x: grad_out * x)
        >>> assert_gradient(halved, np.array([1.0, 0.3]), laws=["derivative"])
        Traceback (most recent call last):
            ...
        AssertionError: <lambda> on numpy with float64[2]: 0 laws kept, 1 broken
          derivative: broken: argument 0[0] = 1: -0.359668456, expected -0.719336911 by differences
            The gradient is the derivative of the forward. Otherwise training goes wrong.
          derivative is broken by inputs as small as these: array([1.])

    Args:
        fn: as for `xg.audit`.
        *inputs: as for `xg.audit`.
        laws: the names of the laws to test; None: all.
        surrogate: as for `xg.audit`.

    Raises:
        AssertionError: one is broken, or it does not run; the message is the report, with the
            smallest inputs that were found to break each law. They are the same in every run: what
            is drawn for them has a fixed seed.
        RuleTypeError: as for `xg.audit`.
    """
    report = audit(fn, *inputs, laws=laws, surrogate=surrogate)
    if report.ok:
        return report
    lines = []
    for finding in report.findings:

        def breaks(tried: Sequence[Any], law: str = finding.law) -> bool:
            return bool(audit(fn, *tried, laws=[law], surrogate=surrogate).findings)

        shown = ", ".join(map(repr, smallest(inputs, breaks)))
        lines.append(f"  {finding.law} is broken by inputs as small as these: {shown}")
    raise AssertionError("\n".join([str(report), *lines]))


def assert_parity(obj: Any, *inputs: Any, backends: Sequence[str] | None = None) -> ParityReport:
    """Assert that outputs and gradients are the same numbers on every backend.

    Examples:
        >>> from multigrad.testing import assert_parity
        >>> def test_my_rule():
        ...     assert_parity("triangular", np.array([0.3, -0.4]), backends=["numpy"])
        >>> test_my_rule()

    Args:
        obj: as for `xg.parity`.
        *inputs: as for `xg.parity`.
        backends: as for `xg.parity`.

    Raises:
        AssertionError: they are not; the message is the table.
    """
    report = parity(obj, *inputs, backends=backends)
    if not report.ok:
        raise AssertionError(str(report))
    return report
