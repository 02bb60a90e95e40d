"""Would a test notice? Plants one small fault at a time in a copy of the sources, and runs the
tests that reach it.

    python tests/mutation.py --count 100 --seed 0 --results mutation.json

Run it where multigrad and the frameworks are installed; it takes an hour or two, so it is no part
of `tox run`. The seed draws the faults, as many of each kind: an operator, a condition, a number,
an axis, and a node, a statement or a result left out. For each environment of tox.ini it then

1. runs the tests once, with a probe at the place of each fault, to learn which tests reach it;
2. plants each fault that still lives, and runs the tests that reach it until one fails: first a
   few cheap ones from many files, then more, then all, then the whole files that are named after
   the module, since what a test leaves in a memory may spoil one that does not reach the place;
3. runs the tests that killed once more without a fault; where one fails, it has no say.

What is known is kept after each step: run it again to go on where it was stopped. A survivor is a
place to look at: a test is missing, or the code is dead, or the fault changes nothing that anyone
can see.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("multigrad", "backends")
# What ships beside the library, and is held to less.
LEFT_OUT = [f"multigrad/{room}" for room in ("testing.py", "command")]
LIBRARY = "multigrad/core/rules/library/"
# The environments of tox.ini, in the order in which they are tried.
ENVIRONMENTS = {
    "core": ["--backends=numpy"],
    "torch": ["--backends=torch"],
    "keras": ["--backends=torch", "--require=keras"],
    "tensorflow": ["--backends=tensorflow"],
    "jax": ["--backends=jax", "--compiling=jax"],
    "all": ["--backends=numpy,torch,jax,tensorflow", "--compiling=jax"],
}
# What costs minutes, and rarely alone sees a fault.
SLOW = [f"--ignore-glob=*/test_{name}*.py" for name in ("bench", "demo", "examples", "fuzz")]
VARIABLES = {"MULTIGRAD_PROVE": "all", "KERAS_BACKEND": "torch"}
BATCHES = (10, 100)
PAIRS = "Add Sub, Mult Div, BitAnd BitOr, And Or, Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn"
OPERATORS: dict[type[ast.AST], Any] = {}
for one, other in (pair.split() for pair in PAIRS.split(", ")):
    OPERATORS |= {getattr(ast, one): getattr(ast, other), getattr(ast, other): getattr(ast, one)}
AXES = ("axis", "axes", "dim", "dims")
# Tells which test runs, also in a process that the test has started; of what the body of a module
# or a class runs, that it is for all of them.
PROBE = """
import inspect, os, sys

SEEN = set()


def hit(fault):
    in_function = sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0] if in_function else ""
    if (fault, test) not in SEEN:
        SEEN.add((fault, test))
        with open({hits!r}, "a") as file:
            file.write(f"{{fault}} {{test}}\\n")
"""


@dataclass(frozen=True)
class Mutant:
    """One fault: the text between two places of a file, and what stands there instead."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text!r} -> {self.instead!r}"


def main(words: list[str]) -> int:
    """Try each mutant in each environment that it has not met; 1 where one survives."""
    options = read_options(words)
    kept = json.loads(options.results.read_text()) if options.results.exists() else {}
    mutants = draw(options.seed, options.count, options.only)
    unknown = {"killed": "", "reached": {}, "met": [], "seconds": 0}
    fates = {str(m): kept.get(str(m)) or copy.deepcopy(unknown) | asdict(m) for m in mutants}
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        scratch = copy_sources(Path(folder) / "sources")
        for environment in options.environments.split(","):
            Bench(environment, options, scratch, fates).try_all(mutants)
    alive = [name for name, fate in fates.items() if not fate["killed"]]
    print(f"{len(fates) - len(alive)} of {len(fates)} killed; alive:", *alive, sep="\n")
    return 1 if alive else 0


def read_options(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="how many faults")
    parser.add_argument("--seed", type=int, default=0, help="which faults")
    parser.add_argument("--only", default="", help="in files whose path contains this")
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS), help="by which tests")
    parser.add_argument("--tests", nargs="*", default=["tests"], help="files or folders of tests")
    parser.add_argument("--most", type=int, help="tests for each fault and environment")
    parser.add_argument("--results", type=Path, default=Path("mutation.json"))
    return parser.parse_args(words)


# --- faults ---------------------------------------------------------------------------------------


def draw(seed: int, count: int, only: str) -> list[Mutant]:
    """Return faults drawn from all that can be planted, about as many of each kind."""
    files = [file for folder in SOURCES for file in sorted((ROOT / folder).rglob("*.py"))]
    names = [file.relative_to(ROOT) for file in files]
    names = [n for n in names if only in n.as_posix() and not any(map(n.is_relative_to, LEFT_OUT))]
    found: dict[str, list[Mutant]] = defaultdict(list)
    for name in names:
        for mutant in mutants_of(name):
            found[mutant.kind].append(mutant)
    generator = random.Random(seed)
    for kind in sorted(found):
        generator.shuffle(found[kind])
    return in_turn(found[kind] for kind in sorted(found))[:count]


def in_turn(rows: Iterable[Iterable[Any]]) -> list[Any]:
    """Return the first of each row, then the second of each, and so on."""
    return [item for column in zip_longest(*rows) for item in column if item is not None]


def mutants_of(name: Path) -> Iterator[Mutant]:
    """Yield every fault that can be planted in a file."""
    encoded = (ROOT / name).read_bytes()
    lengths = [len(line) for line in encoded.splitlines(keepends=True)]
    for node in walk(ast.parse(encoded)):
        for kind, changed in changes(node):
            place: Any = node.value if isinstance(node, ast.keyword) else node
            start = sum(lengths[: place.lineno - 1]) + place.col_offset
            end = sum(lengths[: place.end_lineno - 1]) + place.end_col_offset
            text = encoded[start:end].decode()
            instead = ast.unparse(ast.fix_missing_locations(changed))
            if isinstance(place, ast.expr) and not isinstance(place, ast.Constant):
                instead = f"({instead})"
            yield Mutant(name.as_posix(), place.lineno, kind, start, end, text, instead)


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run: no annotations, no text inside of f-strings, no TYPE_CHECKING."""
    is_for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    if is_for_types or isinstance(node, ast.JoinedStr | ast.pattern):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "type_params"):
            for child in value if isinstance(value, list) else [value]:
                yield from walk(child) if isinstance(child, ast.AST) else ()


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield what may stand in the place of a node, with the kind of fault."""
    changed: Any = copy.copy(node)
    match changed:
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            yield "dropped", changed.left
            changed.op = OPERATORS[type(op)]()
            yield "operator", changed
        case ast.BoolOp(op=op):
            changed.op = OPERATORS[type(op)]()
            yield "condition", changed
        case ast.Compare(ops=[op, *_]):
            changed.ops = [OPERATORS[type(op)](), *changed.ops[1:]]
            yield "condition", changed
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", changed.operand
        case ast.IfExp():
            changed.body, changed.orelse = changed.orelse, changed.body
            yield "condition", changed
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "operator", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(2 * value or 1.0)
        case ast.keyword(arg=name, value=value) if name in AXES:
            yield "axis", ast.Constant(1 if ast.unparse(value) == "0" else 0)
        case ast.Call(func=ast.Name(), args=[ast.expr() as value], keywords=[]):
            if not isinstance(value, ast.Starred | ast.GeneratorExp):
                yield "dropped", value
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "dropped", ast.Pass()
        case ast.Return(value=ast.expr()):
            yield "dropped", ast.Return(ast.Constant(None))


# --- trying ---------------------------------------------------------------------------------------


@dataclass
class Bench:
    """One environment: which of its tests reach the faults, and what they say of them."""

    environment: str
    asked: argparse.Namespace
    scratch: Path
    fates: dict[str, dict[str, Any]]
    unfit: set[str] = field(default_factory=set)

    def try_all(self, mutants: list[Mutant]) -> None:
        """Learn which tests reach each fault that lives, try it, and doubt the tests that kill."""
        living = [mutant for mutant in mutants if not self.fates[str(mutant)]["killed"]]
        unknown = [m for m in living if self.environment not in self.fates[str(m)]["reached"]]
        if unknown:
            self.learn(unknown)
        left = [m for m in living if self.environment not in self.fates[str(m)]["met"]]
        while left:
            for mutant in left:
                self.try_one(mutant)
            left = self.doubt(left)

    def learn(self, mutants: list[Mutant]) -> None:
        """Note, for each fault, the tests that reach it and the seconds that they take."""
        hits = self.scratch.parent / "hits"
        hits.write_text("")
        (self.scratch / "mutation_probe.py").write_text(PROBE.format(hits=str(hits)))
        files = {mutant.file for mutant in mutants}
        whole = {file: (self.scratch / file).read_bytes() for file in files}
        for file in files:
            (self.scratch / file).write_bytes(probed(whole[file], file, mutants))
        began = time.monotonic()
        words = [*ENVIRONMENTS[self.environment], "--once", "--durations=0", "-rap", *SLOW]
        output, status = pytest([*words, *self.asked.tests], self.scratch, None)
        if status not in (0, 1):
            sys.exit(output)
        print(f"{self.environment}: {time.monotonic() - began:.0f} s, {output.splitlines()[-1]}")
        for file in files:
            restore(self.scratch / file, whole[file])
        seconds: dict[str, float] = defaultdict(float)
        for took, test in re.findall(r"^([\d.]+)s (?:setup|call) +(.+)$", output, re.MULTILINE):
            seconds[test] += float(took)
        for mutant in mutants:
            self.fates[str(mutant)]["reached"][self.environment] = {}
        passed = re.findall(r"^PASSED (.+)$", output, re.MULTILINE)
        for number, test in re.findall(r"^(\d+) (.*)$", hits.read_text(), re.MULTILINE):
            if not (self.scratch / test.partition("::")[0]).exists():
                continue  # a test that another test has run, from another folder
            reached = self.fates[str(mutants[int(number)])]["reached"][self.environment]
            reached |= {name: round(seconds[name], 2) for name in ([test] if test else passed)}
        self.keep()

    def try_one(self, mutant: Mutant) -> None:
        """Plant a fault, run the tests until one fails, and take it out again."""
        fate = self.fates[str(mutant)]
        file = self.scratch / mutant.file
        whole = file.read_bytes()
        began = time.monotonic()
        file.write_bytes(whole[: mutant.start] + mutant.instead.encode() + whole[mutant.end :])
        try:
            batches = self.batches(mutant.file, fate["reached"][self.environment])
            killer = next(filter(None, (self.killer(*batch) for batch in batches)), "")
        finally:
            restore(file, whole)
        fate["killed"] = killer and f"{self.environment}: {killer}"
        fate["met"].append(self.environment)
        fate["seconds"] += round(time.monotonic() - began, 1)
        self.keep()
        print(f"{fate['seconds']:6} s  {fate['killed'] or 'lives':60} {mutant}", flush=True)

    def batches(self, file: str, reached: dict[str, float]) -> Iterator[tuple[list[str], float]]:
        """Yield tests, with the seconds after which they hang: first a few from many files."""
        tests = spread(test for test in sorted(reached, key=reached.get) if test not in self.unfit)
        tests = tests[: self.asked.most]
        for first, end in zip((0, *BATCHES), (*BATCHES, len(tests)), strict=True):
            if batch := sorted(tests[first:end]):
                yield batch, 120 + 10 * sum(reached[test] for test in batch)
        # A rule is captured once, for many tests.
        name = "rules" if file.startswith(LIBRARY) else Path(file).stem
        if tests and (near := sorted(self.scratch.glob(f"tests/**/test_{name}*.py"))):
            yield ["--once", *map(str, near)], 900

    def killer(self, tests: list[str], limit: float) -> str:
        """Return the test that failed, or "" where none did."""
        listed = self.scratch.parent / "tests"
        listed.write_text("\n".join([*ENVIRONMENTS[self.environment], *tests]))
        output, status = pytest(["-x", f"@{listed}"], self.scratch, limit)
        if status in (0, 5):  # 5: no test was collected
            return ""
        found = failures(output)
        return found[0] if found else f"status {status}: {output.strip().splitlines()[-1:]}"

    def doubt(self, mutants: list[Mutant]) -> list[Mutant]:
        """Return the faults whose killer fails without a fault too; they live again."""
        mark = f"{self.environment}: "
        killers = {str(m): self.fates[str(m)]["killed"].removeprefix(mark) for m in mutants}
        tests = sorted({test for test in killers.values() if "::" in test})
        if not tests:
            return []
        output, status = pytest([*ENVIRONMENTS[self.environment], *tests], self.scratch, None)
        if status not in (0, 1):  # a name that pytest does not find
            sys.exit(output)
        failed = set(failures(output))
        self.unfit |= failed
        left = [mutant for mutant in mutants if killers[str(mutant)] in failed]
        for mutant in left:
            self.fates[str(mutant)]["killed"] = ""
            print(f"fails without a fault: {killers[str(mutant)]}")
        return left

    def keep(self) -> None:
        """Write what is known."""
        self.asked.results.write_text(json.dumps(self.fates, indent=1))


def spread(tests: Iterable[str]) -> list[str]:
    """Return tests so that the first are from as many files, and functions, as there are."""
    files: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test in tests:
        files[test.partition("::")[0]][test.partition("[")[0]].append(test)
    return in_turn(in_turn(functions.values()) for functions in files.values())


def probed(source: bytes, file: str, mutants: list[Mutant]) -> bytes:
    """Return the text of a file in which each fault's place tells that it is reached."""
    inserts: list[tuple[tuple[int, ...], int, str]] = []
    for number, mutant in enumerate(mutants):
        start, end = mutant.start, mutant.end
        hit = f"__import__('mutation_probe').hit({number})"
        if mutant.file == file and mutant.instead in ("pass", "return None"):  # statements
            inserts.append(((start, 1, -end, -1), start, f"{hit}; "))
        elif mutant.file == file:
            inserts.append(((start, 1, -end, number), start, f"({hit}, "))
            inserts.append(((end, 0, -start, -number), end, ")[1]"))
    for _, place, text in sorted(inserts, reverse=True):
        source = source[:place] + text.encode() + source[place:]
    compile(source, file, "exec")
    return source


# --- running --------------------------------------------------------------------------------------


def copy_sources(folder: Path) -> Path:
    """Copy what git knows of the working tree, and compile it as of the same old day."""
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
            os.utime(folder / name, (0, 0))
    subprocess.run([sys.executable, "-m", "compileall", "-q", *SOURCES], cwd=folder, check=True)
    return folder


def restore(file: Path, source: bytes) -> None:
    """Write a file's own source again, as of the day of what Python has compiled of it."""
    file.write_bytes(source)
    os.utime(file, (0, 0))


def pytest(words: list[str], scratch: Path, limit: float | None) -> tuple[str, int]:
    """Run tests in one process; return what pytest writes and its status (124: it hangs)."""
    plugins = ["-p", "no:cacheprovider", "-p", "multigrad_conformance.plugin"]
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-n0", *plugins, *words]
    paths = os.pathsep.join([str(scratch), str(scratch / "backends")])
    xla = {"JAX_COMPILATION_CACHE_DIR": str(scratch.parent / "xla")}
    variables = {**os.environ, **VARIABLES, **xla, "PYTHONPATH": paths}
    how: dict[str, Any] = {"cwd": scratch, "env": variables, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, check=False, timeout=limit, **how)
    except subprocess.TimeoutExpired:
        return "it hangs", 124
    return done.stdout + done.stderr, done.returncode


def failures(output: str) -> list[str]:
    """Return the tests that failed, as pytest's summary names them."""
    return re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
