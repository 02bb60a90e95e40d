"""Assertions about gradients, for the test suites of people who use multigrad; a failure prints the
whole report.

    from multigrad.testing import assert_gradient, assert_gradients, assert_parity

Nothing here needs pytest. `multigrad_conformance`, a distribution of its own, is the suite of a
backend, and brings the test vectors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .audit.audit import AuditReport, audit, check
from .engine.support.extras import import_conformance
from .engine.support.public_modules import module_hooks
from .look.check import CheckReport
from .look.parity import ParityReport, parity

__all__ = ["assert_gradient", "assert_gradients", "assert_parity", "vectors"]

MOST_LINES = 26  # of a message: pytest adds the test, and all fits on a screen

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
          THE GRADIENT IS WRONG: largest error 1 (1 elements)
          worst at x[0] = 1: gradient 1, expected 2
                    at        given         true   difference
                     1            1            2            1

    Args:
        obj: as for `xg.check`. A surrogate passes where it is finite.
        *inputs: as for `xg.check`.
        backend: as for `xg.check`.

    Raises:
        AssertionError: it is not; the message names the place and the size of the worst error.
    """
    report = check(obj, *inputs, backend=backend)
    # One that is only recognized as meant to differ is not the true one.
    if not report.ok or report.intention:
        raise AssertionError(str(report))
    # A report on no numbers is no proof.
    if report.compared == 0:
        raise AssertionError(f"{report}\n  nothing was compared: give inputs away from the kinks")
    return report


def assert_gradient(
    fn: Any,
    *inputs: Any,
    laws: Iterable[str] | None = None,
    surrogate: bool | str | Callable[..., Any] | None = None,
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
          derivative: broken: x[0] = 1: -0.359668456, expected -0.719336911 by differences; it is \
0.5 times that everywhere
            The gradient is the derivative of the forward. Otherwise training goes wrong; \
if it is meant to differ, say so: surrogate=True in code, --surrogate on the command line, or \
SURROGATE = True in the module.
          derivative is broken by inputs as small as these: array([1.])
          to see that derivative is broken:
        import multigrad as xg
        import numpy as np
        fn = ...  # put your own here: <Function <lambda>(x)>
        print(xg.audit(fn, np.array([1.0], "float64"), laws=["derivative"]))

    Args:
        fn: as for `xg.audit`.
        *inputs: as for `xg.audit`.
        laws: the names of the laws to test; None: all.
        surrogate: as for `xg.audit`.

    Raises:
        AssertionError: one is broken, or it does not run; the message is the report, cut
            to 26 lines. Nothing is logged meanwhile.
        RuleTypeError: as for `xg.audit`.
    """
    __tracebackhide__ = True
    with _unlogged():
        report = audit(fn, *inputs, laws=laws, surrogate=surrogate)
    if report.ok:
        return report
    lines = str(report).splitlines()
    if len(lines) > MOST_LINES:
        names = ", ".join(finding.law for finding in report.findings)
        end = -1 - len(report.reproducer)  # of the findings: the lines to copy follow
        lines[MOST_LINES - 1 + end : end] = [f"  and more; broken are: {names}"]
    raise AssertionError("\n".join(lines))


@contextmanager
def _unlogged() -> Iterator[None]:
    # pytest prints all records of a failed test, and torch's compiler makes a thousand that
    # `logging.disable` lets through (torch 2.13). A filter holds wherever pytest puts its handler.
    level, handlers = logging.root.manager.disable, [*logging.root.handlers]
    logging.disable(logging.CRITICAL)
    for handler in handlers:
        handler.addFilter(_drop)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_drop)
        logging.disable(level)


def _drop(_: logging.LogRecord) -> bool:
    return False


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


def vectors(*objects: Any, dtypes: Sequence[str] | None = None) -> dict[str, Any]:
    """Return exact results of rules, ops and Functions as plain data, computed by mpmath and sympy.

    Examples:
        >>> from multigrad.testing import vectors
        >>> document = vectors("triangular", "xp.softplus", dtypes=["float32"])
        >>> [subject["name"] for subject in document["subjects"]]
        ['triangular', 'softplus']

    Args:
        *objects: rules of the library, by name or as they are, ops, as `xp.softplus`, and
            Functions of one number among `xg.estimators`; all of them, if none is given.
        dtypes: of float16, bfloat16, float32 and float64; all, if none is given.

    Raises:
        NoVectors: there are none of it; also a ValueError.
        BackendNotFound: `multigrad-conformance` is not installed; also an ImportError.
    """
    reader = import_conformance("vectors", "the test vectors")
    return reader.vectors_of(*objects, dtypes=dtypes)
