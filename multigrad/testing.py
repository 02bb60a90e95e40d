"""Assertions about gradients, for the test suites of people who use multigrad; a failure prints the
whole report.

    from multigrad.testing import assert_gradient, assert_gradients, assert_parity

Nothing here needs pytest. `multigrad_conformance`, a distribution of its own, is the suite of a
backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .audit.audit import AuditReport, audit
from .audit.vectors import vectors_of as vectors
from .graph.support.lazy_modules import module_hooks
from .look.check import CheckReport, check
from .look.parity import ParityReport, parity
from .look.subject import as_array, is_float_array

__all__ = ["assert_gradient", "assert_gradients", "assert_parity", "vectors"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)


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
    # A report on no numbers is no proof.
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
        # Bound as a default: the loop changes `finding`.
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


# --- the smallest inputs that still break a law ---------------------------------------------------


MOST_TRIES = 60  # audits of one law


def smallest(inputs: Sequence[Any], breaks: Callable[[Sequence[Any]], bool]) -> list[Any]:
    """Return inputs with fewer elements and rounder numbers that break what these do.

    Args:
        breaks: whether a law is broken with inputs.
    """
    best = [as_array(each) for each in inputs]
    tries = MOST_TRIES
    is_smaller = True
    while is_smaller and tries:
        is_smaller = False
        # From the largest step again after each success.
        for candidate in _simpler(best):
            if not tries:
                break
            tries -= 1
            if breaks(candidate):
                best, is_smaller = candidate, True
                break
    return best


def _simpler(inputs: list[Any]) -> Iterator[list[Any]]:
    for axis in (0, -1):
        # Arrays of one length are cut together, as batches and their weights are.
        lengths = {x.shape[axis] for x in inputs if isinstance(x, np.ndarray) and x.ndim}
        if len(lengths) == 1 and max(lengths) > 1:
            length = max(lengths)
            for kept in (1, length // 2):
                if kept < length:
                    yield [_cut(x, axis, kept) for x in inputs]
    # Fewer elements did not break it: rounder numbers, in one array at a time.
    for place, x in enumerate(inputs):
        for simpler in _rounder(x) if isinstance(x, np.ndarray) and is_float_array(x) else ():
            if simpler.tobytes() != x.tobytes():
                yield [simpler if n == place else each for n, each in enumerate(inputs)]


def _cut(x: Any, axis: int, kept: int) -> Any:
    has_axes = isinstance(x, np.ndarray) and x.ndim
    return np.take(x, range(kept), axis=axis) if has_axes else x


def _rounder(x: Any) -> Iterator[Any]:
    # Ones are simplest, then whole numbers, then numbers with one digit.
    if np.all(x == 1):
        return
    yield np.ones_like(x)
    wide = x.astype(np.float64)
    for digits in (0, 1):
        yield np.round(wide, digits).astype(x.dtype)
