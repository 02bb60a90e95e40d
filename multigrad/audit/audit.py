"""`xg.audit`, and what it reports."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..capture.code.signature import name_of
from ..errors import RuleTypeError
from ..graph.support.notebook import InNotebooks
from ..graph.support.versions import ignoring_warnings
from ..look.convert import brief
from ..look.laws import Law
from .exemptions import excuse
from .judging import NotApplicable
from .laws import LAWS
from .parameters import keeping_dtypes, open_up
from .trial import Trial, trial_of

REPEATABLE = "repeatable"
KEPT, BROKEN, REFUSED, NOT_APPLICABLE = "kept", "broken", "refused", "does not apply"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one law.

    Attributes:
        law: its name.
        state: "kept", "broken", "refused" (the code raises, which says so) or "does not apply".
        reason: what was observed, or why the law does not apply; a remark or "" if it is kept.
        sentence: what the law says.
        matters: what goes wrong if it is broken.
    """

    law: str
    state: str
    reason: str
    sentence: str
    matters: str

    def __str__(self) -> str:
        return f"{self.law}: {self.state}{f': {self.reason}' if self.reason else ''}"


@dataclass(frozen=True, slots=True)
class AuditReport(InNotebooks):
    """What `xg.audit` found; prints as a table.

    Examples:
        >>> reversal = xg.function(lambda x: x * 1.0, lambda grad_out, x: -grad_out)
        >>> report = xg.audit(reversal, np.array([1.0, 2.0]), laws=["derivative", "zero"])
        >>> [finding.law for finding in report.findings]
        ['derivative']
        >>> xg.audit(reversal, np.array([1.0, 2.0]), surrogate=True).ok  # as it is meant to differ
        True

    Attributes:
        name: of what was audited.
        home: the framework that it ran on.
        laws: what came of each law.
        problem: why it does not run at all; then no law was asked.
        inputs: what it was called with, tensors by dtype and shape.
        source: where the command has the inputs from; "" where they were given.
    """

    name: str
    home: str
    laws: tuple[Finding, ...]
    problem: str = ""
    inputs: str = ""
    source: str = ""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The laws that are broken."""
        return tuple(finding for finding in self.laws if finding.state == BROKEN)

    @property
    def ok(self) -> bool:
        """Whether it runs, and no law is broken."""
        return not self.problem and not self.findings

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name} does not run: {self.problem}"
        kept = sum(finding.state == KEPT for finding in self.laws)
        given = f" with {self.inputs}" if self.inputs else ""
        lines = [
            f"{self.name} on {self.home}{given}: {kept} laws kept, {len(self.findings)} broken"
        ]
        if self.source:
            lines.append(f"  inputs: {self.source}")
        for state in (BROKEN, REFUSED, KEPT, NOT_APPLICABLE):
            for finding in self.laws:
                if finding.state == state and finding.reason:
                    lines.append(f"  {finding}")
                    if state == BROKEN:
                        lines.append(f"    {finding.sentence} Otherwise {finding.matters}.")
        return "\n".join(lines)

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(
            {
                "name": self.name, "home": self.home, "inputs": self.inputs,
                "source": self.source, "ok": self.ok, "problem": self.problem,
                "laws": [asdict(finding) for finding in self.laws],
            }
        )  # fmt: skip


def audit(
    fn: Any,
    *inputs: Any,
    laws: Iterable[str] | None = None,
    surrogate: bool | Callable[..., Any] | None = None,
) -> AuditReport:
    """Test a custom gradient against the laws of gradients, in its own framework.

    Nothing is converted: a `torch.autograd.Function`, a function decorated with `jax.custom_vjp`,
    `jax.custom_jvp` or `tf.custom_gradient`, any function of tensors, and rules and Functions of
    multigrad run unchanged. So does a pair of plain functions, a forward and a backward, as for
    `xg.function`. For a module or a layer, the gradients of its parameters are audited too.

    Examples:
        >>> import torch
        >>> class Square(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.save_for_backward(x)
        ...         return x * x
        ...
        ...     @staticmethod
        ...     def backward(ctx, grad_out):
        ...         (x,) = ctx.saved_tensors
        ...         return 2.0 * x  # grad_out is forgotten
        >>> report = xg.audit(Square, torch.tensor([1.0, -2.0]))
        >>> report.ok, [finding.law for finding in report.findings][:3]
        (False, ['derivative', 'linear', 'scale'])

    Args:
        fn: what is audited.
        *inputs: what it is called with; arrays and any framework's tensors stand for tensors.
        laws: the names of the laws to test; None: all.
        surrogate: whether its gradient is meant to differ from the derivative; None: a rule under
            an activation is, and whatever has a flat forward. A function of the same arguments: it
            is meant to be the derivative of that.

    Raises:
        RuleTypeError: fn is not callable, there is no tensor among the inputs, or a law
            has another name.
    """
    chosen = _choose(laws)
    try:
        with ignoring_warnings():
            called, given, parameters = open_up(fn, inputs)
            with keeping_dtypes(called):
                trial = trial_of(called, given, surrogate)
    except RuleTypeError:
        raise
    except Exception as error:
        return AuditReport(name_of(fn), "", (), problem=brief(error))
    if not trial.floats:
        raise RuleTypeError(f"{trial.name} got no float tensor to be audited with; pass arrays")
    with ignoring_warnings(), keeping_dtypes(called):
        found = tuple(_named(_hold(called, trial, law), trial, parameters) for law in chosen)
    unnamed = [""] * (len(trial.leaves) - len(parameters))
    names = [*unnamed, *(f"{name} " for name in parameters)]
    shown = ", ".join(name + _shown(leaf) for name, leaf in zip(names, trial.leaves, strict=True))
    return AuditReport(trial.name, trial.backend.name, found, inputs=shown)


def _named(finding: Finding, trial: Trial, parameters: Sequence[str]) -> Finding:
    """Return a finding in which parameters have their names: they are the last tensors."""
    first = len(trial.places) - len(parameters)

    def name(argument: re.Match[str]) -> str:
        n = int(argument[1]) - first
        return parameters[n] if 0 <= n < len(parameters) else argument[0]

    return replace(finding, reason=re.sub(r"\bargument (\d+)", name, finding.reason))


def _shown(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)[:40]
    return f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _choose(names: Iterable[str] | None) -> Sequence[Law[Trial, str]]:
    if names is None:
        return LAWS
    rows = {law.name: law for law in LAWS}
    asked = list(names)
    unknown = [name for name in asked if name not in rows]
    if unknown:
        raise RuleTypeError(f"no law {unknown[0]!r}; there are {', '.join(rows)}")
    return [rows[name] for name in asked]


def _hold(called: Any, trial: Trial, law: Law[Trial, str]) -> Finding:
    try:
        with trial.quiet():
            if law.name != REPEATABLE and not trial.is_repeatable:
                raise NotApplicable(f"it is not {REPEATABLE}: what is drawn differs each time")
            said = law.judge(trial)
            if said and (reason := excuse(called, law.name)):
                raise NotApplicable(reason)
        state = BROKEN if said else KEPT
    except NotApplicable as reason:
        state, said = NOT_APPLICABLE, str(reason)
    except Exception as error:
        state, said = REFUSED if law.is_loud else BROKEN, f"it raises {brief(error)}"
    return Finding(law.name, state, str(said), law.sentence, law.reason)
