"""The course of the command: check, measure, show, write.

An interrupt goes straight to showing and writing what is finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from rich.console import Console

from demo.frameworks import KERAS_BACKENDS
from multigrad.command import STOPPED
from multigrad.command.options import FAILED, Interruption
from multigrad.core.rules.activation import Activation
from multigrad.engine.rules.opaque import call_activation

from . import packages, plots, results
from .cases import (
    BRIDGES_PART,
    GPU,
    GPU_PART,
    HAND_WRITTEN,
    KERAS_PART,
    NATIVE,
    OURS,
    PACKAGES_PART,
    RULES_PART,
    STEP,
    Case,
    Effort,
    Options,
    count_threads,
)
from .compare import compare, find_differences
from .fits import measure_fits
from .harness import Harness, keep_memory, load, make_values, prepare_threads
from .measure import run_race
from .overheads import plan
from .report import Progress, show, show_changes
from .results import Cell, Contest, Failure, Results, describe_machine

Tensor = Any
HOSTS = ("torch", "jax", "tensorflow")


def measure_bridges(
    host: str, harness: Harness, guests: Sequence[str], size: int, threads: int, effort: Effort
) -> Contest:
    """Run the host's own activation and one in each guest, interleaved."""
    activation = Activation(STEP.forward, rule=STEP.rule)
    x, grad_out = harness.make_inputs(*make_values(size))
    rivals = {NATIVE: activation, **{guest: partial(run_in, guest, activation) for guest in guests}}
    steps = {name: harness.build_step(rival, x, grad_out) for name, rival in rivals.items()}
    race = run_race(steps, effort)
    return Contest.of(race, BRIDGES_PART, host, STEP, size=size, threads=threads)


def run_in(guest: str, activation: Activation, x: Tensor) -> Tensor:
    return call_activation(activation.forward, activation.own_in_force(), x, guest)


COPY = "copy"


def run(options: Options) -> int:
    """Measure what the options ask for and return the exit code."""
    other = options.earlier if options.earlier is not None and options.earlier.is_dir() else None
    then = None
    if options.earlier is not None and other is None:
        then = results.read(options.earlier)
    if options.picture is not None:
        plots.check_picture(options.picture)
    for path in (options.numbers, options.picture):
        if path is not None:
            check_target(path)
    if other is not None:
        from .processes import measure_in_turns

        then, found = measure_in_turns(options, other)
    elif options.threads == "both":
        from .processes import measure_both

        found = measure_both(options)
    else:
        found = measure(options)
    console = Console()
    show(console, found)
    if then is not None:
        differences = find_differences(then, found)
        show_changes(console, compare(then, found), differences, str(options.earlier))
    if options.numbers is not None:
        results.write(found, options.numbers)
        console.print(f"wrote {options.numbers}", highlight=False, soft_wrap=True)
    if options.picture is not None and found.cells:
        plots.draw(found.cells, options.picture)
        console.print(f"wrote {options.picture}", highlight=False, soft_wrap=True)
    if found.interrupted:
        console.print("Interrupted: the tables and files hold what was finished.")
        return STOPPED
    return FAILED if found.failures else 0


def check_target(path: Path) -> None:
    """Raise OSError if a file could not be written here; better now than after the measurement."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give a file in it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=path.parent):
        pass


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to measure, and to which of the results what it gives is added."""

    backend: str
    what: str
    run: Callable[[], Any]
    results: list[Any]


def measure(options: Options) -> Results:
    """Measure cells, overheads and bridges in this process, and Keras in processes of its own."""
    found = Results(machine=describe_machine(), absences=list(options.absences))
    threads = count_threads(options.threads)
    prepare_threads(threads, on_gpu=GPU_PART in options.parts)
    keep_memory()
    with Interruption() as interruption, Progress() as progress:
        for task in list_tasks(options, threads, found):
            progress.begin(task.backend, task.what)
            try:
                task.results.append(task.run())
            except Exception as error:  # noqa: BLE001 - a framework may fail in any way
                if interruption.requested:  # which a framework turned into this error
                    break
                reason = f"{type(error).__name__}: {error}"
                found.failures.append(Failure(task.backend, task.what, reason))
                progress.fail(found.failures[-1])
            if interruption.requested:
                break
    found.interrupted = interruption.requested
    return found


def list_tasks(options: Options, threads: int, found: Results) -> Iterator[Task]:
    """Yield what is to be done; a framework that cannot be imported is left out."""
    harnesses: dict[str, Harness] = {}
    usable = list(options.backends)
    if {RULES_PART, BRIDGES_PART, PACKAGES_PART} & set(options.parts):
        for backend in options.backends:
            run = partial(start, backend, threads, harnesses, found)
            yield Task(backend, "import", run, [])
            if backend in harnesses and RULES_PART in options.parts:
                yield from list_cells(options, backend, harnesses[backend], threads, found)
        usable = list(harnesses)
    if GPU_PART in options.parts:
        yield Task(GPU, "import", partial(start, GPU, threads, harnesses, found), [])
        if GPU in harnesses:
            # A norm is no kernel of its elements.
            cases = [case for case in options.cases if case.rule != "clip_norm"]
            on_gpu = replace(options, cases=cases, sizes=options.gpu_sizes)
            yield from list_cells(on_gpu, GPU, harnesses[GPU], threads, found)
    if RULES_PART in options.parts and options.overheads:
        for backend, measurement in plan(list(harnesses)):
            what = measurement.__name__.removeprefix("measure_").replace("_", " ")
            run = partial(measurement, backend, harnesses[backend], options.effort)
            yield Task(backend, what, run, found.overheads)
    if BRIDGES_PART in options.parts:
        for host, size in product(filter(harnesses.__contains__, HOSTS), options.bridge_sizes):
            if guests := [name for name in harnesses if name != host]:
                arguments = (host, harnesses[host], guests, size, threads, options.effort)
                what = f"bridges to {', '.join(guests)}, {size:,} elements"
                yield Task(host, what, partial(measure_bridges, *arguments), found.contests)
    if PACKAGES_PART in options.parts and packages.BACKEND in options.backends:
        yield from list_packages(options, harnesses, threads, found)
    if KERAS_PART in options.parts and find_spec("keras") is not None:
        for backend in filter(usable.__contains__, KERAS_BACKENDS):
            guests = [name for name in usable if name != backend]
            arguments = (backend, guests, threads, options.fit_effort, found.versions)
            yield Task(backend, "fit with Keras", partial(measure_fits, *arguments), found.contests)


def list_cells(
    options: Options, backend: str, harness: Harness, threads: int, found: Results
) -> Iterator[Task]:
    for case, size in product(options.cases, options.sizes):
        what = f"{case.label}, {size:,} elements"
        arguments = (backend, harness, case, size, threads, options.effort)
        yield Task(backend, what, partial(measure_cell, *arguments), found.cells)


def list_packages(
    options: Options, harnesses: dict[str, Harness], threads: int, found: Results
) -> Iterator[Task]:
    """Yield each function of a package that is installed; the others are named."""
    if absent := packages.list_absent():
        found.absences.append(f"not installed, so not compared with: {', '.join(absent)}")
    for each, size in product(packages.installed(), options.package_sizes):
        if packages.BACKEND in harnesses:
            arguments = (each, harnesses[packages.BACKEND], size, threads, options.effort)
            run = partial(packages.measure_package, *arguments)
            yield Task(packages.BACKEND, f"{each.name}, {size:,} elements", run, found.contests)


def start(backend: str, threads: int, harnesses: dict[str, Harness], found: Results) -> None:
    harness = load(backend)
    harness.set_threads(threads)
    found.versions[backend] = harness.describe()
    harnesses[backend] = harness


def measure_cell(
    backend: str, harness: Harness, case: Case, size: int, threads: int, effort: Effort
) -> Cell:
    """Run all rivals and a copy of the input interleaved."""
    x, grad_out = harness.make_inputs(*make_values(size))
    with ExitStack() as stack:
        harness.enter_rule(case, stack)
        rivals = harness.list_rivals(case)
        contenders = {name: harness.build_step(f, x, grad_out) for name, f in rivals.items()}
        # Of a GPU alone: elsewhere a call returns when its work is done.
        finish = getattr(harness, "finish", None)
        race = run_race({**contenders, COPY: harness.build_copy(x)}, effort, finish=finish)
        # By now kernels are there, which keep less.
        kept = {name: harness.count_kept_bytes(f, x, grad_out) for name, f in rivals.items()}
    timings = {name: race.summarize(name) for name in rivals}
    ratios = {name: race.compare(OURS, name) for name in rivals if name != OURS}
    relative = {name: race.compare(name, HAND_WRITTEN) for name in rivals}
    figures = {"timings": timings, "ratios": ratios, "relative": relative, "kept_bytes": kept}
    return Cell(backend, case, size, threads=threads, copy=race.summarize(COPY), **figures)
