"""What is said in the end: whether the frameworks agree, and the table that shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .parity import Comparison
from .results import Results
from .runs import TRUE_DERIVATIVE, Configuration, Gap, Outcome, Run
from .task import EPOCHS

COUNTS = {2: "Both", 3: "All three", 4: "All four", 5: "All five", 6: "All six"}
# What a rule multiplies a gradient by on its way back through a hidden unit with input x.
FACTORS = {
    TRUE_DERIVATIVE: "the unit's own derivative",
    "d(Linear)": "1, the derivative of a straight line",
    "rectangular": "1 where x is within 0.5 of zero, else 0",
    "triangular": "1 - |x|, at least 0",
}
COLUMNS = (
    "hidden units",
    "backward",
    "frameworks",
    "test accuracy",
    "images labeled differently",
    "first gradients differ by",
)


def show_verdict(console: Console, results: Results, comparisons: Sequence[Comparison]) -> None:
    """Print the sentence, the table, what ran in which version, and why something did not."""
    outcomes, versions = results.outcomes, results.versions
    names = {framework: version.split()[0] for framework, version in versions.items()}
    agree = not any(row.exceeds_rounding for row in comparisons)
    text = describe_agreement(outcomes, comparisons, names)
    console.print(text, style="bold" if agree else "bold yellow", markup=False, highlight=False)
    if learned := describe_learning(outcomes):
        console.print(learned, markup=False, highlight=False)
    console.print(build_table(outcomes, comparisons, results.configurations))
    console.print(explain_rules(results.configurations), markup=False, highlight=False)
    console.print(", ".join(versions.values()), style="dim", markup=False, highlight=False)
    show_gaps(console, outcomes)
    console.print()


def describe_learning(outcomes: Sequence[Outcome]) -> str:
    """Return what a step learns with surrogate gradients and without; "" if either is missing."""
    runs = [run for run in outcomes if isinstance(run, Run)]
    steps = [run for run in runs if run.configuration.forward == "Heaviside"]
    without = [run.accuracy for run in steps if run.configuration.backward is None]
    surrogates = [run.accuracy for run in steps if run.configuration.backward is not None]
    if not (without and surrogates):
        return ""
    return (
        "A step (Heaviside) has a derivative of zero, so its hidden layer does not learn: with the"
        f" true derivative the network labels {max(without):.2f} of the test images right."
        f" With a rule as its surrogate gradient it labels {min(surrogates):.2f} to"
        f" {max(surrogates):.2f} right, in every framework."
    )


def describe_agreement(
    outcomes: Sequence[Outcome], comparisons: Sequence[Comparison], names: Mapping[str, str]
) -> str:
    failed = [gap.framework for gap in outcomes if isinstance(gap, Gap) and gap.failed]
    failures = [f"{names.get(name, name)} failed" for name in dict.fromkeys(failed)]
    if not comparisons:
        text = "Nothing to compare: at least two frameworks must finish a run"
        return "; ".join([text, *failures]) + "."
    frameworks = [name for name in names if any(name in row.frameworks for row in comparisons)]
    images = next(len(outcome.predictions) for outcome in outcomes if isinstance(outcome, Run))
    beyond = [row for row in comparisons if row.exceeds_rounding]
    if beyond:
        count = f"{len(beyond)} of {len(comparisons)} networks"
        reasons = [explain(row, images, names) for row in beyond]
        text = f"They do not agree: in {count} they differ by more than rounding. "
        return text + "; ".join([*reasons, *failures]) + "."
    alike = sum(row.worst.predictions == 0 for row in comparisons)
    most = max(row.worst.predictions for row in comparisons)
    count = COUNTS.get(len(frameworks), f"All {len(frameworks)}")
    listed = [name_framework(name, comparisons, names) for name in frameworks]
    parts = [
        f"{count} agree: {', '.join(listed[:-1])} and {listed[-1]} label"
        + f" the same {images} test images alike in {alike} of {len(comparisons)} networks"
    ]
    if most:
        parts.append(f"in the rest two differ in at most {most}, which rounding accounts for")
    largest = max(row.gradient for row in comparisons)
    parts.append(f"their first gradients differ by at most {largest:.0e}")
    return "; ".join([*parts, *failures]) + "."


def name_framework(name: str, comparisons: Sequence[Comparison], names: Mapping[str, str]) -> str:
    """Return its name, and in how many networks it was compared if not in all."""
    count = sum(name in row.frameworks for row in comparisons)
    whole = len(comparisons)
    return names[name] if count == whole else f"{names[name]} (in {count} of {whole})"


def explain(row: Comparison, images: int, names: Mapping[str, str]) -> str:
    worst = row.worst
    if worst.predictions > row.expected_predictions:
        difference = (
            f"{names[worst.first]} and {names[worst.second]} label {worst.predictions} of the"
            f" {images} test images differently (rounding accounts for"
            f" {row.expected_predictions} after {EPOCHS} epochs)"
        )
    else:
        difference = (
            f"first gradients differ by {row.gradient:.0e} (rounding accounts for"
            f" {row.expected_gradient:.0e})"
        )
    return f"{row.configuration.forward}, {row.configuration.rule}: {difference}"


def build_table(
    outcomes: Sequence[Outcome],
    comparisons: Sequence[Comparison],
    configurations: Sequence[Configuration],
) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:2] else "right")
    compared = {row.configuration: row for row in comparisons}
    for configuration in configurations:
        here = [outcome for outcome in outcomes if outcome.configuration == configuration]
        if here:
            row = compared.get(configuration)
            table.add_row(
                configuration.forward,
                escape(configuration.rule),
                str(sum(isinstance(outcome, Run) for outcome in here)),
                format_accuracies([run.accuracy for run in here if isinstance(run, Run)]),
                "-" if row is None else str(row.worst.predictions),
                "-" if row is None else f"{row.gradient:.0e}",
                style="yellow" if row is not None and row.exceeds_rounding else None,
            )
    return table


def explain_rules(configurations: Sequence[Configuration]) -> str:
    """Return what each word of the column "backward" does to a gradient."""
    names = dict.fromkeys(row.rule for row in configurations)
    lines = [f"  {name:<12} {FACTORS.get(name, f'multigrad show {name}')}" for name in names]
    return "\n".join(
        ["backward: a gradient at a hidden unit with input x is multiplied by", *lines]
    )


def format_accuracies(accuracies: Sequence[float]) -> str:
    """Return the accuracy that all have, or from which to which they go."""
    texts = [f"{accuracy:.4f}" for accuracy in sorted(accuracies)]
    return " to ".join(dict.fromkeys([texts[0], texts[-1]])) if texts else "-"


def show_gaps(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print each reason for a missing run once."""
    gaps = [outcome for outcome in outcomes if isinstance(outcome, Gap)]
    for gap in {(gap.framework, gap.reason): gap for gap in gaps}.values():
        said = f"[red]failed[/red]: {gap.framework}: " if gap.failed else "Not compared: "
        console.print(f"{said}{escape(gap.reason)}", highlight=False, soft_wrap=True)
