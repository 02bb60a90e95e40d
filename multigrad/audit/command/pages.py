"""Audits as files: JUnit, which build servers read, and a page of HTML that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from string import Template
from xml.etree import ElementTree

from multigrad.audit.audit import BROKEN, KEPT, NOT_APPLICABLE, REFUSED, AuditReport, Finding
from multigrad.audit.laws import LAWS

Reports = Sequence[tuple[str, AuditReport]]
MARKS = {KEPT: "✓", BROKEN: "✗", REFUSED: "!", NOT_APPLICABLE: ""}
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Audit of custom gradients</title>
<style>
:root { color-scheme: light dark; --line: #8884; --good: #2a7d4f; --bad: #c0392b; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .2rem .45rem; text-align: left; }
thead th.law { writing-mode: vertical-rl; transform: rotate(180deg); font-weight: 400; }
td.mark { text-align: center; } code { font-size: .92em; }
.kept { color: var(--good); } .broken { color: var(--bad); font-weight: 700; }
</style>
<h1>Audit of custom gradients</h1>
<p>$count audited: $kept keep every law, $unrun do not run. ✓ kept, ✗ broken, ! refused with an
error, empty: the law does not apply.</p>
<div class="scroll"><table><thead><tr><th>target</th>$laws</tr></thead><tbody>
$rows
</tbody></table></div>
$details
<h2>The laws</h2>
<dl>
$glossary
</dl>
</html>
""")


def to_junit(reports: Reports) -> str:
    """Return a suite of tests for each target, a test for each law."""
    root = ElementTree.Element("testsuites", name="multigrad audit")
    for name, report in reports:
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(report.laws) or 1),
            failures=str(len(report.findings)),
            errors=str(int(bool(report.problem))),
            skipped=str(sum(each.state == NOT_APPLICABLE for each in report.laws)),
        )
        if report.source:
            given = ElementTree.SubElement(suite, "properties")
            value = f"{report.inputs} ({report.source})"
            ElementTree.SubElement(given, "property", name="inputs", value=value)
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
            elif finding.state == REFUSED:
                ElementTree.SubElement(case, "system-out").text = f"refused: {finding.reason}"
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def to_html(reports: Reports) -> str:
    """Return a table of targets and laws, and what was seen where one is broken."""
    laws = [law for law in LAWS if any(law.name == each.law for _, r in reports for each in r.laws)]
    return PAGE.substitute(
        count=len(reports),
        kept=sum(report.ok for _, report in reports),
        unrun=sum(bool(report.problem) for _, report in reports),
        laws="".join(f'<th class="law">{escape(law.name)}</th>' for law in laws),
        rows="\n".join(_row(name, report, [law.name for law in laws]) for name, report in reports),
        details="\n".join(_details(name, report) for name, report in reports if not report.ok),
        glossary="\n".join(
            f"<dt><b>{escape(law.name)}</b></dt><dd>{escape(law.sentence)} Otherwise "
            f"{escape(law.reason)}.</dd>"
            for law in laws
        ),
    )


def _row(name: str, report: AuditReport, laws: Sequence[str]) -> str:
    title = escape(f"{report.inputs} ({report.source})" if report.source else report.inputs)
    head = f'<tr><th title="{title}"><code>{escape(name)}</code></th>'
    if report.problem:
        return f'{head}<td colspan="{len(laws) or 1}">{escape(report.problem)}</td></tr>'
    by_law = {finding.law: finding for finding in report.laws}
    return head + "".join(_cell(by_law.get(law)) for law in laws) + "</tr>"


def _cell(finding: Finding | None) -> str:
    if finding is None:
        return "<td></td>"
    words = f"{finding.state}: {finding.reason}" if finding.reason else finding.state
    mark = MARKS[finding.state]
    return f'<td class="mark {finding.state}" title="{escape(words)}">{mark}</td>'


def _details(name: str, report: AuditReport) -> str:
    lines = [f"<h2><code>{escape(name)}</code></h2>"]
    if report.inputs:
        source = f", {report.source}" if report.source else ""
        lines.append(f"<p>On {escape(report.home)} with {escape(report.inputs + source)}.</p>")
    lines.append("<ul>")
    if report.problem:
        lines.append(f"<li>it does not run: {escape(report.problem)}</li>")
    lines += [
        f"<li><b>{escape(each.law)}</b>: {escape(each.reason)}. {escape(each.sentence)}</li>"
        for each in report.findings
    ]
    return "\n".join([*lines, "</ul>"])
