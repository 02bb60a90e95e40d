"""The command `multigrad audit`: one custom gradient, or all of a file or a package, by the laws.

Each target runs in another process, with a time limit. A report is printed as soon as it is known,
so that Ctrl-C loses none.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from xml.etree import ElementTree

from multigrad.audit.audit import (
    BROKEN,
    DERIVATIVE,
    NOT_APPLICABLE,
    REFUSED,
    AuditReport,
    Finding,
    audit_telling,
)
from multigrad.audit.derivatives import UNCOMPARED
from multigrad.audit.side import Side
from multigrad.command import STOPPED
from multigrad.command.guessed_inputs import number_hints, read_inputs
from multigrad.command.messages import sent
from multigrad.command.options import FAILED as FAILURE
from multigrad.command.options import Progress
from multigrad.command.worker import Apart, tell
from multigrad.engine.support.files import write_whole
from multigrad.errors import MultigradError

from .guessed_inputs import choose_inputs
from .targets import UNMADE, find_apart, find_target, stated_inputs

Print = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """The options of an audit, the same for every target: those of the command.

    `words` are the inputs, guessed if there are none.
    """

    words: tuple[str, ...] = ()
    laws: tuple[str, ...] | None = None
    surrogate: bool | None = None
    limit: float = 120.0


sent(AuditRequest, AuditReport, Finding)


def audit_targets(
    targets: Sequence[str],
    asked: AuditRequest,
    *,
    as_json: bool = False,
    junit: Path | None = None,
    html: Path | None = None,
    echo: Print = print,
) -> int:
    """Audit the targets, print a report of each, and return the exit status."""
    read_inputs(asked.words)
    reports: list[tuple[str, AuditReport]] = []
    with Progress(echo) as progress, Apart(asked.limit) as process:
        # Remarks next to the reports are no part of JSON.
        say: Print = str if as_json else progress.echo
        for target in targets:
            is_alone = len(targets) == 1
            audited = _audit_all(process, progress, target, asked, say=say, is_alone=is_alone)
            for name, report in audited:
                reports.append((name, report))
                line = {"target": name, **json.loads(report.to_json())}
                progress.echo(json.dumps(line) if as_json else say_report(name, report))
    if not as_json:
        echo(summarize(report for _, report in reports))
    if junit is not None:
        write_whole(junit, to_junit(reports))
    if html is not None:
        write_whole(html, to_html(reports))
    if progress.stopped:
        return STOPPED
    return 0 if all(report.ok for _, report in reports) else FAILURE


def _audit_all(
    process: Apart, progress: Progress, target: str, asked: AuditRequest, *, say: Print,
    is_alone: bool,
) -> Iterator[tuple[str, AuditReport]]:  # fmt: skip
    progress.begin(f"importing {target}")
    try:
        targets = find_apart(process, target, say)
    except MultigradError as error:
        # A single target that cannot be imported is the command's error, one of many a report.
        if is_alone:
            raise
        yield target, AuditReport(target, "", (), problem=str(error))
        return
    if not targets.kinds:
        say(f"{target} defines no custom gradients")
    unmade = targets.of(UNMADE)
    for name in progress.each(tuple(targets.kinds)):
        if name in unmade:
            say(f"{name} is not made without arguments: name an object of it")
            continue
        try:
            yield name, process.call(audit_named, name, asked)
        except MultigradError as error:
            so_far = process.told or AuditReport(name, "", ())
            yield name, replace(so_far, problem=str(error))


# --- in the other process -------------------------------------------------------------------------
def audit_named(what: str, asked: AuditRequest) -> AuditReport:
    """Audit one target with the first inputs that it accepts: given, stated by its module, found in
    annotations or a docstring, or guessed.
    """
    fn = find_target(what)
    stated = None if asked.words else stated_inputs(what)
    # A Side runs forward and backward, as an audit does before its first law.
    source, inputs = choose_inputs(what, fn, asked.words, stated, Side)
    try:
        report = audit_telling(tell, fn, inputs, asked.laws, asked.surrogate)
    except MultigradError as error:
        report = AuditReport(what, "", (), problem=str(error))
    if report.problem:
        return replace(report, problem="; ".join([report.problem, *number_hints(asked.words)]))
    report = replace(report, source=source)
    if not what.endswith(".json"):
        return report
    lines = (
        f"fn = xg.load({what!r})" if line.startswith("fn = ...") else line
        for line in report.reproducer
    )
    return replace(report, reproducer=tuple(lines))


# --- printing -------------------------------------------------------------------------------------
def say_report(name: str, report: AuditReport) -> str:
    return str(report).replace(report.name, name, 1)


def summarize(reports: Iterable[AuditReport]) -> str:
    audits = list(reports)
    broken_counts = Counter(finding.law for report in audits for finding in report.findings)
    unrun_count = sum(bool(report.problem and not report.laws) for report in audits)
    kept = [report for report in audits if report.ok]
    exempt = [
        law.reason
        for report in kept
        for law in report.laws
        if (law.law, law.state) == (DERIVATIVE, NOT_APPLICABLE)
    ]
    uncompared_count = sum(UNCOMPARED in reason for reason in exempt)
    uncompared = f", {uncompared_count} with gradients that {UNCOMPARED}"
    remark = f"{len(exempt)} without the derivative's{uncompared * bool(uncompared_count)}"
    remark = f" ({remark})" if exempt else ""
    lines = [
        f"{len(audits)} audited: {len(kept)} keep every law{remark}, {unrun_count} could not be run"
    ]
    lines += [f"  {law}: {count} {BROKEN}" for law, count in broken_counts.most_common()]
    return "\n".join(lines)


# --- audits as files ------------------------------------------------------------------------------
Reports = Sequence[tuple[str, AuditReport]]
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of custom gradients</title>
<style>:root { color-scheme: light dark; } pre { white-space: pre-wrap; }</style>
<h1>Audit of custom gradients</h1>
<pre>
$text
</pre>
</html>
""")


def to_junit(reports: Reports) -> str:
    """Return JUnit XML: a test suite for each target, a test for each law."""
    root = ElementTree.Element("testsuites", name="multigrad audit")
    for name, report in reports:
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            # A target that does not run is one test, with an error.
            tests=str(len(report.laws) or 1),
            failures=str(len(report.findings)),
            errors=str(int(bool(report.problem))),
            skipped=str(sum(each.state == NOT_APPLICABLE for each in report.laws)),
        )
        if report.source:
            properties = ElementTree.SubElement(suite, "properties")
            value = f"{report.inputs} ({report.source})"
            ElementTree.SubElement(properties, "property", name="inputs", value=value)
        if report.problem:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name="runs")
            ElementTree.SubElement(case, "error", message=report.problem)
        for finding in report.laws:
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=finding.law)
            if finding.state == BROKEN:
                failure = ElementTree.SubElement(case, "failure", message=finding.reason)
                failure.text = f"{finding.sentence} Otherwise {finding.matters}."
            elif finding.state == NOT_APPLICABLE:
                ElementTree.SubElement(case, "skipped", message=finding.reason)
            # JUnit has no state for a refusal, which is no failure: the test passes with a remark.
            elif finding.state == REFUSED:
                ElementTree.SubElement(case, "system-out").text = f"refused: {finding.reason}"
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_html(reports: Reports) -> str:
    """Return an HTML page that says what is printed."""
    texts = [summarize(report for _, report in reports), *(say_report(*each) for each in reports)]
    return PAGE.substitute(text=escape("\n\n".join(texts), quote=False))
