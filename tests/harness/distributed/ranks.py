"""Checks that several processes run together: the ranks of a distributed program.

A module of checks (by custom in `tests/ranks/`) has functions under `@check()`, run in their order
by each of N processes that `run_ranks` starts once; each reports every check as JSON, so a test is
parametrized over the checks, pays for the start once, and waits for its own check:

    CHECKS = Path(__file__).parents[1] / "ranks" / "torch_rules.py"
    ranks = ranks_of(CHECKS, world=2, timeout=60)  # a fixture of the module; seconds of a check

    @pytest.mark.parametrize("name", names_in(CHECKS))
    def test_on_two_ranks(ranks: Ranks, name: str) -> None:
        ranks.assert_passed(name)

`@check(kind=("ddp", "fsdp"), rule=RULES)` is one check for each combination, called by keyword and
named `function[ddp-relu]`; the values are literals (RULES: one at the module's top), because pytest
reads the names without importing the module, which may import a framework. Modules that need the
same processes may share them: `ranks_of(FIRST, SECOND, world=2, timeout=60)`. `start()` of a
module, if there, runs before its checks, and `finish()` after those of all; `finish()` is left out
where a rank was ended. What a check returns (JSON) is `ranks.values(name)`, one value per rank.

Each rank's environment: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (free when the
ranks are started), RANKS_ADDRESSES (a free `host:port` for each rank, by commas), RANKS_FOLDER (an
empty folder that all share: for a FileStore, or checkpoints), one thread per rank, and what `env`
adds: names with values, or a function from the rank to these.
"""

from __future__ import annotations

import ast
import faulthandler
import gc
import importlib.util
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import SkipTest

TESTS = Path(__file__).parents[2]
# A rank that has ended by an error ends the others, which may wait for it, after this long.
GRACE = 10.0
SHOWN = 6000  # characters of a rank's output in a failure
Environment = Mapping[str, str] | Callable[[int], Mapping[str, str]]


# --- the checks of a module ----------------------------------------------------------------------


def check(**cases: Sequence[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function a check, once for each combination of these values."""

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["cases"] = dict(expand(function.__name__, cases))
        return function

    return mark


def expand(name: str, cases: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of a check's cases with their arguments."""
    for values in itertools.product(*cases.values()):
        text = "-".join(map(str, values))
        yield f"{name}[{text}]" if cases else name, dict(zip(cases, values, strict=True))


def names_in(*paths: Path) -> list[str]:
    """Return the names of modules' checks, which are read and not imported."""
    constants: dict[str, Any] = {}
    found: list[str] = []
    for node in [node for path in paths for node in ast.parse(path.read_text()).body]:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                constants[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
        elif isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and getattr(mark.func, "id", None) == "check":
                    cases = {str(k.arg): literal(k.value, constants) for k in mark.keywords}
                    found += [name for name, _ in expand(node.name, cases)]
    return found


def literal(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """Return the value of an expression that is a literal, or the name of one."""
    return constants[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


# --- starting the ranks --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rank:
    """What one process has left.

    Attributes:
        returncode: its exit status; negative: the signal that ended it; None: it runs.
        seconds: how long it ran.
        was_ended: whether it was still running at the time-out, or GRACE after another's error.
        output: its stdout and stderr.
        reports: what it has reported of each check: "ok", "value", "error" and "seconds".
    """

    returncode: int | None
    seconds: float
    was_ended: bool
    output: str
    reports: dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the processes have left, by rank."""

    each: tuple[Rank, ...]

    def values(self, name: str) -> list[Any]:
        """Return what a check returned, by rank, after it has passed."""
        self.assert_passed(name)
        return [rank.reports[name]["value"] for rank in self.each]

    def assert_passed(self, name: str) -> None:
        """Fail with what each rank says of a check that did not pass on all of them."""
        failed = [i for i, rank in enumerate(self.each) if not rank.reports.get(name, {}).get("ok")]
        assert not failed, "\n".join(f"--- rank {i}: {self.describe(i, name)}" for i in failed)
        value = self.each[0].reports[name]["value"]
        if isinstance(value, dict) and "skipped" in value:
            raise SkipTest(value["skipped"])

    def describe(self, i: int, name: str) -> str:
        rank = self.each[i]
        if name in rank.reports:
            return str(rank.reports[name]["error"])
        how = "was ended (a time-out, or another rank)" if rank.was_ended else "ended"
        return (
            f"{how} after {rank.seconds:.0f} s with status {rank.returncode}, before it could "
            f"report {name}; its output ends with\n{rank.output[-SHOWN:]}"
        )


def ranks_of(
    *paths: Path,
    world: int,
    timeout: float,
    env: Environment | None = None,
    grace: float | None = GRACE,
) -> Any:
    """Return a fixture: the ranks, started once, with the checks asked for (see `run_ranks`)."""
    import pytest

    @pytest.fixture(scope="module")
    def ranks(request: pytest.FixtureRequest) -> Iterator[Running]:
        mine = [item for item in request.session.items if item.path == request.path]
        given = (getattr(item, "callspec", None) for item in mine)
        asked = {str(spec.params.get("name")) for spec in given if spec is not None}
        names = [name for name in names_in(*paths) if name in asked]
        with start_ranks(paths, names, world, timeout, env, grace) as running:
            yield running

    return ranks


def run_ranks(
    paths: Sequence[Path],
    names: Sequence[str] | None = None,
    *,
    world: int,
    timeout: float,
    env: Environment | None = None,
    grace: float | None = GRACE,
) -> Ranks:
    """Run modules' checks (all, or those named) on so many processes.

    Args:
        paths: the modules, one after the other; no two have a check of the same name.
        names: the checks.
        world: how many processes.
        timeout: seconds without a report after which all of them are ended.
        env: what their environment has besides.
        grace: seconds after which the others are ended where one has ended by an error; None: never
            before the time-out.
    """
    names = names_in(*paths) if names is None else names
    with start_ranks(paths, names, world, timeout, env, grace) as running:
        return Ranks(running.each)


@contextmanager
def start_ranks(
    paths: Sequence[Path],
    names: Sequence[str],
    world: int,
    timeout: float,
    env: Environment | None,
    grace: float | None,
) -> Iterator[Running]:
    """Start what `run_ranks` runs, and end what is left of it."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        (Path(folder) / "shared").mkdir()
        ports = free_ports(world + 1)
        environments = [_environment(i, world, ports, folder, env) for i in range(world)]
        started = [_Started(paths, names, Path(folder), each, timeout) for each in environments]
        running = Running(started, timeout, grace)
        try:
            yield running
        finally:
            running.end()


def free_ports(count: int) -> list[int]:
    """Return ports that nothing listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _environment(
    rank: int, world: int, ports: list[int], folder: str, more: Environment | None
) -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    given = more(rank) if callable(more) else more or {}
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONPATH": os.pathsep.join([*([path] if path else []), str(TESTS)]),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[world]),
        "RANKS_ADDRESSES": ",".join(f"127.0.0.1:{port}" for port in ports[:world]),
        "RANKS_FOLDER": str(Path(folder) / "shared"),
        **given,
    }


class _Started:
    """One process, from its start to what it has left."""

    def __init__(
        self,
        paths: Sequence[Path],
        names: Sequence[str],
        folder: Path,
        env: Mapping[str, str],
        timeout: float,
    ) -> None:
        self.was_ended = False
        self.began = self.until = time.monotonic()
        self.report = folder / f"{env['RANK']}.jsonl"
        self.log = folder / f"{env['RANK']}.log"
        modules = [str(path.resolve()) for path in paths]
        task = json.dumps([modules, list(names), str(self.report), timeout])
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "harness.distributed.ranks", task],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        if self.process.poll() is not None:
            return False
        self.until = time.monotonic()
        return True

    def end(self) -> None:
        """End it, and what it has started, if it runs."""
        if self.process.poll() is None:
            self.was_ended = True
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def collect(self) -> Rank:
        text = self.report.read_text() if self.report.exists() else ""
        reports = [json.loads(line) for line in text.split("\n")[:-1]]  # a last one may be half
        return Rank(
            returncode=self.process.returncode,
            seconds=self.until - self.began,
            was_ended=self.was_ended,
            output=self.log.read_text(errors="replace"),
            reports={report.pop("name"): report for report in reports},
        )


class Running:
    """Ranks that a test waits for until they have reported its check, each test for its own."""

    def __init__(self, started: Sequence[_Started], timeout: float, grace: float | None) -> None:
        self.started, self.timeout, self.grace = started, timeout, grace
        self.until, self.is_shorter, self.count = time.monotonic() + timeout, grace is None, 0

    @property
    def each(self) -> tuple[Rank, ...]:
        """What the processes leave at their end."""
        while self.goes_on(self.collect()):
            time.sleep(0.05)
        self.end()
        return self.collect()

    def values(self, name: str) -> list[Any]:
        return self.after(name).values(name)

    def assert_passed(self, name: str) -> None:
        self.after(name).assert_passed(name)

    def after(self, name: str) -> Ranks:
        """Wait until all ranks have reported a check, or until they end."""
        while self.goes_on(left := self.collect()):
            if all(name in rank.reports for rank in left):
                return Ranks(left)
            time.sleep(0.05)
        return Ranks(self.each)

    def goes_on(self, left: Sequence[Rank]) -> bool:
        """Return whether a rank runs before the time-out, or the grace after another's error."""
        count = sum(len(rank.reports) for rank in left)
        if count > self.count and (not self.is_shorter or self.grace is None):
            self.count, self.until = count, time.monotonic() + self.timeout
        if not sum(each.is_running() for each in self.started):
            return False
        if not self.is_shorter and any(each.process.poll() for each in self.started):
            self.until = min(self.until, time.monotonic() + (self.grace or 0.0))
            self.is_shorter = True
        return time.monotonic() < self.until

    def collect(self) -> tuple[Rank, ...]:
        return tuple(each.collect() for each in self.started)

    def end(self) -> None:
        for each in self.started:
            each.end()


# --- in a rank -----------------------------------------------------------------------------------


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    return module


def refusal(f: Callable[..., Any], *args: Any) -> str:
    """Return the class and the message of the error of ours that a call raises."""
    from multigrad import MultigradError

    try:
        f(*args)
    except MultigradError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was refused")


def run_checks(paths: Sequence[Path], names: Sequence[str], report: Path, timeout: float) -> None:
    """Run checks and report each; where it hangs, the stacks go to its output before its end."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(timeout - 2.0, 1.0))
    modules: list[ModuleType] = []
    for path in paths:
        mine = [name for name in names if name in names_in(path)]
        if mine:
            modules.append(load(path))
            run_module(modules[-1], mine, report, timeout)
    gc.collect()  # torch 2.13 may abort where the interpreter ends before a sharded model
    for module in modules:
        getattr(module, "finish", lambda: None)()


def run_module(module: ModuleType, names: Sequence[str], report: Path, timeout: float) -> None:
    cases: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {}
    for function in vars(module).values():
        for name, arguments in getattr(function, "__dict__", {}).get("cases", {}).items():
            cases[name] = (function, arguments)
    getattr(module, "start", lambda: None)()
    for name in names:
        function, arguments = cases[name]
        faulthandler.dump_traceback_later(max(timeout - 2.0, 1.0))
        began, value, error = time.perf_counter(), None, None
        try:
            value = function(**arguments)
        except SkipTest as skipped:
            value = {"skipped": str(skipped)}
        except Exception:  # noqa: BLE001
            error = traceback.format_exc()
        seconds = round(time.perf_counter() - began, 3)
        said = {"name": name, "ok": error is None, "value": value, "error": error}
        with report.open("a") as file:
            file.write(json.dumps({**said, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    given_paths, given_names, given_report, given_timeout = json.loads(sys.argv[1])
    run_checks([*map(Path, given_paths)], given_names, Path(given_report), given_timeout)
