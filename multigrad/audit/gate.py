"""`xg.gate`: whether a custom gradient computes what a reference does, in numbers, and its verdict.

Both are asked from here for what they compute (`side.py`); `multigrad gate` has each in a process
of its own.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from typing import Any, cast

import numpy as np

from ..core.backend.values import owner_of
from ..core.rules.signature import name_of
from ..errors import MultigradError, RuleTypeError
from ..look.convert import brief
from ..look.subject import Report, brackets
from .audit import (
    BROKEN,
    KEPT,
    NOT_APPLICABLE,
    REFUSED,
    AuditReport,
    Finding,
    choose_laws,
)
from .derivatives import MISSING
from .seeds import Seeds
from .side import FLOORS, GIVEN, Answer, GateCase, Side, Truth, allowed_ulps

# Only if they are asked for: two take tens of seconds each, the third is about no backward.
NOT_BY_DEFAULT = ("compiled", "compiled transforms", "forward mode")
COSTS = ("bytes",)  # broken, it costs memory; no number is wrong
# Laws of which one tells that the reference is wrong.
OF_REFERENCES = ("repeatable", "derivative", "linear", "zero", "interleaved", "written")
DTYPES = ("float32", "float16", "bfloat16")
FIRST_ORDER = 0.9  # the score of what only lacks a second derivative
DECLARE = (
    "declare that there is none, as torch's @once_differentiable on its backward does, and asking "
    "for it is an error instead of a silent 0"
)
ROUNDS = 7  # of time, the first of which does not count
MOST_JUMPING = 8  # cases that may have one; more are a fault
MOST_OF_A_CASE = 0.25  # of its elements that one may decide


# --- the verdict ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Budget:
    """The errors in one dtype, each beside the reference in float64 on the same rounded inputs.

    Attributes:
        state: "kept", "broken", "refused" (it raises) or "does not apply".
        where: the output or gradient with the largest error, over what is allowed.
        ulps: its largest error, in units of the last place of the array's largest element.
        relative: its error as a norm, over the norm of the array.
        reference_ulps, reference_relative: those of the reference in the same dtype.
        allowed: in ulps: 4 times those of the reference, or a floor.
        count: of the arrays that were compared.
        reason: what is broken or refused.
        undecided: the cases of which some elements say nothing, because the reference itself jumps
            to the number of fn within a few eps of the inputs: a near tie of an argmin.
    """

    dtype: str
    state: str = NOT_APPLICABLE
    where: str = ""
    ulps: float = 0.0
    relative: float = 0.0
    reference_ulps: float = 0.0
    reference_relative: float = 0.0
    allowed: float = 0.0
    count: int = 0
    reason: str = ""
    undecided: tuple[str, ...] = ()

    def __str__(self) -> str:
        errors = (
            f"{self.ulps:.3g} ulps ({self.relative:.2g} relative), the reference "
            f"{self.reference_ulps:.3g} ({self.reference_relative:.2g}), "
            f"{self.allowed:.3g} allowed, at {self.where}"
        )
        undecided = (
            f"not decided, as a few eps decide there: elements of {', '.join(self.undecided)}"
        )
        parts = (errors if self.where else "", self.reason, undecided if self.undecided else "")
        details = "; ".join(filter(None, parts))
        return f"{self.dtype}: {self.state}{f': {details}' if details else ''}"


@dataclass(frozen=True, slots=True, repr=False)
class GateVerdict(Report):
    """What `xg.gate` found.

    Attributes:
        name: of the custom gradient.
        ok: whether nothing is broken.
        score: the share of laws and dtypes that are kept, half of it if numbers are wrong; 0 if it
            does not run, or cannot be judged because the reference is wrong.
        failures: what is broken, in sentences; those of a wrong reference begin with its name.
        laws: what came of each law.
        budgets: the errors beside the reference.
        time_ratio, bytes_ratio: forward and backward over the reference's, and what is kept for
            the backward, if both are custom gradients; None where it is not known, or the law
            "bytes" is not asked. No verdict depends on them.
        seconds: of the entire check.
        first_order: whether it is right to first order, and nothing but its second derivative is
            missing; then it is not `ok`, and its score is 0.9.
        judged: False if the reference is wrong or does not run, or if fn does not run with inputs
            that were guessed, so that nobody knows about fn.
        source: where the command has the inputs from; "" where they were given.
        not_compared: the plain numbers whose gradient was not compared, in a sentence; "" if none.
    """

    name: str
    home: str = ""
    failures: tuple[str, ...] = ()
    score: float = 0.0
    laws: tuple[Finding, ...] = ()
    budgets: tuple[Budget, ...] = ()
    time_ratio: float | None = None
    bytes_ratio: float | None = None
    seconds: float = field(default=0.0, compare=False)
    judged: bool = True
    first_order: bool = False
    source: str = ""
    not_compared: str = ""

    @property
    def ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        place = f" on {self.home}" if self.home else ""
        word = "right" if self.ok else "wrong" if self.judged else "not judged"
        word = "right to first order" if self.first_order else word
        lines = [f"{self.name}{place}: {word}, score {self.score:.3g}"]
        lines += [f"  inputs: {self.source}"] * bool(self.source)
        lines += [f"  {failure}" for failure in self.failures]
        lines += [f"  {row}" for row in self.budgets if row.state != BROKEN]
        lines += [f"  {self.not_compared}"] * bool(self.not_compared)
        for what, ratio in (("time", self.time_ratio), ("bytes", self.bytes_ratio)):
            if ratio is not None:
                lines.append(f"  {what}: {ratio:.3g} times the reference's")
        return "\n".join(lines)

    def _fields(self) -> dict[str, Any]:
        return {**asdict(self), "laws": {each.law: each.state for each in self.laws}}


def gate(
    fn: Any,
    reference: Any,
    inputs: Sequence[Any],
    *,
    seed: int = 0,
    dtypes: Sequence[str] = DTYPES,
    laws: Iterable[str] | None = None,
) -> GateVerdict:
    """Tell whether a custom gradient is right: by the laws of `xg.audit`, and beside a reference.

    Outputs and gradients are compared at the inputs, at others drawn from them, and at other
    lengths of their axes. The reference in float64 is the truth; an error is too large if it is
    more than 4 times that of the reference in the same dtype, and above a few ulps.

    Examples:
        >>> square = xg.function(lambda x: x * x, lambda grad_out, x: 2.0 * x * grad_out)
        >>> halved = xg.function(lambda x: x * x, lambda grad_out, x: x * grad_out)
        >>> x = np.array([1.0, -2.0, 0.5], dtype=np.float32)
        >>> xg.gate(square, lambda x: x**2, [x]).ok, xg.gate(halved, lambda x: x**2, [x]).ok
        (True, False)

    Args:
        fn: what `xg.audit` takes.
        reference: the same, or a plain function that the framework differentiates.
        inputs: what both are called with.
        seed: of the drawn inputs and cotangents.
        dtypes: to compare in; other lengths are tried in the first.
        laws: the names of those to test; None: all but those of compilers and forward mode.

    Raises:
        RuleTypeError: inputs is a tensor, or has none of floats, or no law or dtype has a name.
    """
    dtypes = [dtypes] if isinstance(dtypes, str) else dtypes
    law_names = choose(dtypes, laws)
    if owner_of(inputs) is not None:
        raise RuleTypeError("inputs is a list of what both are called with: give [x], not x")
    with Seeds().kept():
        return compare_sides(
            name_of(fn), _here(fn, inputs), _here(reference, inputs),
            dtypes=dtypes, laws=law_names, seed=seed,
        )  # fmt: skip


# Calls a method of a side by its name.
Ask = Callable[..., Any]


def _here(fn: Any, inputs: Sequence[Any]) -> Ask:
    # Made when it is first asked, so that code cannot find results of the reference.
    side = cache(partial(Side, fn, inputs))
    return lambda method, *args: getattr(side(), method)(*args)


class SideFails(Exception):
    """One of two sides does not run, as `verdict` says."""

    def __init__(self, verdict: GateVerdict) -> None:
        super().__init__(verdict)
        self.verdict = verdict


def blaming(blame: Callable[[str], GateVerdict], ask: Ask, *raised: type[Exception]) -> Ask:
    """Return `ask` with every error turned into SideFails, those of the types `raised` excepted."""

    def ask_or_blame(*args: Any) -> Any:
        try:
            return ask(*args)
        except raised:
            raise
        except Exception as error:
            # Another process has put its error's type into the message.
            message = str(error) if isinstance(error, MultigradError) else brief(error)
            raise SideFails(blame(message)) from error

    return ask_or_blame


def compare_sides(
    name: str, own: Ask, other: Ask, *, dtypes: Sequence[str], laws: Sequence[str], seed: int
) -> GateVerdict:
    start = time.perf_counter()
    own = blaming(partial(does_not_run, name), own, RuleTypeError)
    other = blaming(partial(reference_does_not_run, name), other)
    try:
        numbers, report = own("numbers"), replace(own("audit", laws), name=name)
        sentence = own("not_compared")
        cases = other("cases", dtypes, numbers, seed)
        answers, truths = own("answers", cases), other("truths", cases)
        # The laws that tell a wrong reference, and those that fn breaks.
        broken_laws = [each.law for each in report.findings]
        reference_report = other("audit", [*dict.fromkeys([*OF_REFERENCES, *broken_laws])])
        # It imports much of torch, as the law does.
        byte_counts = [ask("kept_bytes") if "bytes" in laws else None for ask in (own, other)]
        answers, undecided = without_jumps(other, cases, answers, truths)
    except SideFails as failure:
        return failure.verdict
    ratios = time_ratio(partial(own, "seconds"), partial(other, "seconds")), ratio(*byte_counts)
    budgets = [budget(dtype, cases, answers, truths) for dtype in dtypes]
    budgets = [replace(row, undecided=tuple(undecided[row.dtype])) for row in budgets]
    verdict = judge((report, reference_report), budgets, ratios, time.perf_counter() - start)
    return replace(verdict, not_compared=sentence)


def without_jumps(
    other: Ask,
    cases: Sequence[GateCase],
    answers: Sequence[Answer],
    truths: Sequence[Truth | str],
) -> tuple[list[Answer], dict[str, list[str]]]:
    """Return answers with the reference's numbers where a near tie decides, and the names of these
    cases by dtype. Of the inputs as they are given everything counts.
    """
    found, undecided = [*answers], {case.dtype: list[str]() for case in cases}
    failing = [
        n
        for n, case in enumerate(cases)
        if budget(case.dtype, [case], [answers[n]], [truths[n]]).state == BROKEN
    ]
    others = [n for n in failing if not cases[n].is_made]
    if len(others) > MOST_JUMPING or any(cases[n].name == GIVEN for n in others):
        return found, undecided
    for n in failing:
        case, own, truth = cases[n], cast("Any", answers[n]), cast("Truth", truths[n])
        if _different_shapes(own, truth.exact):
            continue
        # Where it does not run a few eps away, it shows no jump.
        with suppress(SideFails):
            masks = other("jumps", case, own, truth)
            size = sum(y.size for y in truth.exact.values())
            share = sum(m.sum() for m in masks.values()) / size
            if 0.0 < share <= (1.0 if case.is_made else MOST_OF_A_CASE):
                found[n] = {k: np.where(masks[k], y, own[k]) for k, y in truth.exact.items()}
                undecided[case.dtype] += [case.name] * (not case.is_made)
    return found, undecided


def choose(dtypes: Sequence[str], laws: Iterable[str] | None) -> list[str]:
    for dtype in dtypes:
        if dtype not in FLOORS:
            raise RuleTypeError(f"no dtype {dtype!r}; there are {', '.join(FLOORS)}")
    if not dtypes:
        raise RuleTypeError("name a dtype to compare in, such as float32")
    law_names = [law.name for law in choose_laws(laws)]
    return [name for name in law_names if laws or name not in NOT_BY_DEFAULT]


def ratio(own: float | None, other: float | None) -> float | None:
    return own / other if own is not None and other else None


def time_ratio(own: Any, other: Any) -> float | None:
    """Return the ratio of medians of calls in turn, so that a busy machine slows both."""
    try:
        rounds = [(own(), other()) for _ in range(ROUNDS)][1:]
    except Exception:
        return None
    return ratio(*(statistics.median(times) for times in zip(*rounds, strict=True)))


def does_not_run(name: str, problem: str) -> GateVerdict:
    return GateVerdict(name, failures=(f"it does not run: {problem}",))


def reference_does_not_run(name: str, problem: str) -> GateVerdict:
    return not_judged(name, problem, "the reference does not run")


def not_judged(
    name: str, problem: str, why: str = "it does not run with inputs that were guessed"
) -> GateVerdict:
    return GateVerdict(name, failures=(f"{why}: {problem}",), judged=False)


def judge(
    reports: tuple[AuditReport, AuditReport],
    budgets: Sequence[Budget],
    ratios: tuple[float | None, float | None],
    seconds: float,
) -> GateVerdict:
    report, reference = reports
    # What the reference does as well is nothing that fn gets wrong.
    excuses = {*COSTS, *(each.law for each in reference.findings)}
    reference_faults = [each for each in reference.findings if each.law in OF_REFERENCES]
    figures = report.laws, tuple(budgets), *ratios, seconds  # the last fields of a verdict
    if reference.problem or reference_faults:
        texts = tuple(f"the reference is wrong: {each}" for each in reference_faults)
        if reference.problem:
            texts = (*reference_does_not_run(report.name, reference.problem).failures, *texts)
        return GateVerdict(report.name, report.home, texts, 0.0, *figures, judged=False)
    if report.problem:
        return does_not_run(report.name, report.problem)
    faults = [each for each in report.findings if each.law not in excuses]
    failures = [*map(str, faults), *(str(row) for row in budgets if row.state == BROKEN)]
    if not any(row.state in (KEPT, BROKEN) for row in budgets):
        failures += [f"nothing could be compared with the reference: {budgets[0].reason}"]
    states = [each.state for each in report.laws] + [row.state for row in budgets]
    count = sum(state in (KEPT, BROKEN) for state in states)
    share = max(1.0 - len(failures) / max(count, 1), 0.0)
    has_wrong_numbers = any(row.state == BROKEN for row in budgets)
    has_wrong_numbers |= any(each.law in OF_REFERENCES for each in faults)
    if len(failures) == 1 and faults and faults[0].reason.startswith(MISSING):
        sentences = (f"{faults[0].reason}; {DECLARE}",)
        verdict = GateVerdict(report.name, report.home, sentences, FIRST_ORDER, *figures)
        return replace(verdict, first_order=True)
    score = share / 2 if has_wrong_numbers else share
    return GateVerdict(report.name, report.home, tuple(failures), score, *figures)


def budget(
    dtype: str,
    cases: Sequence[GateCase],
    answers: Sequence[Answer],
    truths: Sequence[Truth | str],
) -> Budget:
    """Return the errors of all cases of a dtype, as that with the largest over what is allowed."""
    rows, refusal, skip_reason = [], "", ""
    for case, answer, truth in zip(cases, answers, truths, strict=True):
        if case.dtype != dtype:
            continue
        if isinstance(truth, str):
            skip_reason = skip_reason or f"the reference, {case.name}: {truth}"
        elif isinstance(answer, str):
            refusal = refusal or f"{case.name}: {answer}"
        elif fault := _different_shapes(answer, truth.exact):
            return Budget(dtype, BROKEN, reason=f"{case.name}: {fault}")
        else:
            rows += _rows(case, answer, truth)
    if not rows:
        return Budget(dtype, REFUSED if refusal else NOT_APPLICABLE, reason=refusal or skip_reason)
    # A fault at inputs like those given says more than one at inputs that are made up.
    made_up = {case.name for case in cases if case.is_made}

    def badness(row: Budget) -> tuple[bool, bool, float]:
        is_usual = row.where.partition(", ")[2] not in made_up
        return row.ulps > row.allowed, is_usual, row.ulps / row.allowed

    worst = max(rows, key=badness)
    state = BROKEN if worst.ulps > worst.allowed else KEPT
    reason = f"{worst.reason} {REFUSED}: {refusal}" if refusal else worst.reason
    return replace(worst, state=state, count=len(rows), reason=reason.strip())


def _different_shapes(answer: dict[str, Any], exact: dict[str, Any]) -> str:
    if [*answer] != [*exact]:
        return f"it has {', '.join(answer)}; expected {', '.join(exact)}"
    for name, array in exact.items():
        if answer[name].shape != array.shape:
            return f"{name} has shape {list(answer[name].shape)}, expected {list(array.shape)}"
    return ""


def _rows(case: GateCase, found: Any, truth: Truth) -> list[Budget]:
    rows = list[Budget]()
    for name, (ulps, relative, place) in case.errors(found, truth.exact, truth.usual).items():
        y, allowed = truth.exact[name], allowed_ulps(case, truth, name)
        reason = ""
        # Of outputs alone: a gradient such as 1 - tanh(x)**2 loses digits where it nearly cancels.
        if case.is_made and ulps <= allowed and name.startswith("output"):
            element = truth.worst_element(case, found, name)
            ulps, allowed, relative, place = element or (ulps, allowed, relative, place)
        if ulps > allowed:
            pairs = enumerate(case.arrays)
            inputs = [f"input {n} is {a[place]:.9g}" for n, a in pairs if a.shape == y.shape]
            at = f", where {' and '.join(inputs)}" if inputs else ""
            reason = f"{found[name][place]:.9g}, expected {y[place]:.9g}{at}"
        reference_ulps, reference_relative = truth.errors[name]
        row = Budget(
            case.dtype, where=f"{name}{brackets(place)}, {case.name}", ulps=ulps,
            relative=relative, reference_ulps=reference_ulps,
            reference_relative=reference_relative, allowed=allowed, reason=reason,
        )  # fmt: skip
        rows.append(row)
    return rows
