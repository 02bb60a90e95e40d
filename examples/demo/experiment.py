"""The course of the experiment: check, train, show, write.

An interrupt goes straight to showing and writing what is finished.
"""

from __future__ import annotations

from importlib.util import find_spec

from multigrad.command import STOPPED
from multigrad.command.options import FAILED, Interruption, prepare_environment
from multigrad.errors import MultigradError

from .parity import compare
from .results import Options, Results, write_files
from .runs import Event, Gap, check_rules, plan
from .task import BATCH, HIDDEN, Task, load_task

PACKAGES = {"sklearn": "scikit-learn", "matplotlib": "matplotlib"}


def check_packages() -> None:
    missing = [name for module, name in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise MultigradError(
            f"the demo needs {', '.join(missing)}; type: python -m tox run -e demo"
        )


def run(options: Options) -> int:
    from rich.console import Console
    from threadpoolctl import threadpool_limits  # comes with scikit-learn

    from . import verdict
    from .beside import run_all
    from .display import LiveProgress
    from .frameworks import choose

    frameworks = choose(options.frameworks)
    configurations = plan(check_rules(options.rules))
    options.out.mkdir(parents=True, exist_ok=True)
    console = Console()
    results = Results(options, configurations, [framework.name for framework in frameworks])
    prepare_environment()
    # Matrices this small gain nothing from threads: on a busy machine they took five times as long.
    with LiveProgress(console, results) as live, threadpool_limits(1):
        live.begin("loading the digits")
        task = load_task(options.epochs, options.seed, options.learning_rate)
        live.print(describe_task(task, options))
        with Interruption() as interruption:

            def tell(event: Event) -> None:
                if interruption.requested:
                    raise KeyboardInterrupt  # a framework may have swallowed the first
                live.hear(event)

            run_all(task, frameworks, configurations, tell)
        results.interrupted = interruption.requested
        results.sort()
        comparisons = compare(results.runs)
        if results.outcomes:
            console.print()
            verdict.show_verdict(console, results, comparisons)
        live.begin("drawing the pictures")
        for path in write_files(results, comparisons):
            live.print(f"wrote {path}")
    if results.interrupted:
        console.print("Interrupted: the table and files hold the runs that were finished.")
        return STOPPED
    # A gap may also be left out for a known reason.
    has_failed = any(isinstance(each, Gap) and each.failed for each in results.outcomes)
    return FAILED if has_failed else 0


def describe_task(task: Task, options: Options) -> str:
    return (
        f"DIGITS: {len(task.train_x)} training and {len(task.test_x)} test images, 64-{HIDDEN}-10,"
        f" SGD {task.learning_rate}, batch {BATCH}, {options.epochs} epochs, seed {options.seed}"
    )
