"""`xg.check`: gradients against finite differences, surrogates against the true derivative."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..backend.discovery import load_backend
from ..look.check import CheckReport, compare
from ..look.subject import make_inputs, read_inputs, subject_of
from .audit import trial_as_intended


def check(obj: str | Callable[..., Any], *inputs: Any, backend: str | None = None) -> CheckReport:
    """Compare a gradient with finite differences, or a surrogate with the true derivative.

    Examples:
        >>> report = xg.check(xg.activation("Tanh"), np.array([-1.0, 0.5]))
        >>> report.ok, report.max_error < 1e-9
        (True, True)
        >>> print(xg.check(xg.activation("Heaviside", rule="triangular"), np.array([-0.5, 0.25])))
        activation('Heaviside', rule='triangular') on numpy, float64
          the surrogate differs from the true derivative by at most 0.75 (2 elements)
          worst at x[1] = 0.25: gradient 0.75, expected 0
                    at    surrogate         true   difference
                  -0.5          0.5            0          0.5
                  0.25         0.75            0         0.75

    A Function is run in float64, and each element of its inputs moved by small steps to both sides.
    Where the differences do not settle, the function has a kink or a jump there: such elements are
    left out of the verdict, and counted. Whatever `xg.audit` takes for meant to differ passes where
    it is finite, and the report says why. An activation with a rule, or a rule (under Linear), is
    compared with the activation's true derivative: its gradient is meant to differ, so the report
    says by how much.

    Args:
        obj: a Function, an activation (also a module or layer), a rule or its name, or a plain
            function.
        *inputs: tensors of one framework, or NumPy arrays; floats are taken in float64. Without
            any, a grid from -2 to 2 for a rule, and normal numbers of shape (3, 4) for each tensor
            of a Function.
        backend: where to run it; None: where the inputs come from.

    Raises:
        RuleError: obj is the name of no rule.
        TraceError: it cannot run on that backend.
    """
    subject = subject_of(obj)
    arrays = inputs or make_inputs(subject)
    data, named = read_inputs(subject, arrays), None if backend is None else load_backend(backend)
    report = compare(subject, data, named)
    if report.ok or not report.compared or subject.is_surrogate:
        return report
    trial, _, _ = trial_as_intended(obj, arrays)
    if not trial.is_surrogate or trial.contradiction:
        return report
    as_surrogate = compare(replace(subject, is_surrogate=True), data, named)
    return replace(as_surrogate, intention=trial.intention or "SURROGATE says that it differs")
