"""The command `multigrad gate`: a file with a custom gradient beside a file with its reference.

Each file runs in a process of its own, so that the one cannot find results of the other, within
limits of time and memory, and behind walls (`walls.py`).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from multigrad.audit.audit import AuditReport, Finding
from multigrad.audit.gate import (
    DTYPES,
    GateVerdict,
    SideFails,
    blaming,
    choose,
    compare_sides,
    does_not_run,
    not_judged,
    reference_does_not_run,
)
from multigrad.audit.side import GateCase, Side, Truth
from multigrad.command.guessed_inputs import (
    GUESSED,
    choose_inputs,
    inputs_to_type,
    number_hints,
    read_inputs,
    split_name,
)
from multigrad.command.messages import pack, sent, unpack
from multigrad.command.targets import PAIRED, callable_of, find_target, import_target, stated_inputs
from multigrad.command.walls import JOURNAL, wall_in
from multigrad.command.worker import Apart, Lost
from multigrad.core.backend.discovery import in_use
from multigrad.errors import MultigradError, suggest
from multigrad.look.convert import brief

MOST_TOLD = 5
WARM = ("torch",)  # imported before processes are forked: their threads start with their work
NEVER_FORKED = {"jax", "tensorflow"}  # a fork may wait for their threads without end
NO_FUNCTIONS = ("get_inputs", "get_init_inputs")
OUT_OF_MEMORY = re.compile(r"MemoryError|allocate memory|out of memory|SIGKILL")


@dataclass(frozen=True, slots=True)
class GateRequest:
    """The options of a gate: two files, and `limit` in seconds, `memory` in GiB for each."""

    kernel: str = ""
    reference: str = ""
    name: str = ""
    words: tuple[str, ...] = ()
    seed: int = 0
    dtypes: tuple[str, ...] = DTYPES
    laws: tuple[str, ...] | None = None
    limit: float = 60.0
    memory: float = 4.0


sent(GateRequest, GateCase, Truth, AuditReport, Finding)


def gate_files(asked: GateRequest) -> GateVerdict:
    """Judge a file.

    Raises:
        MultigradError: the request is wrong: no such file, nothing of one name, no inputs.
    """
    start = time.perf_counter()
    if not hasattr(os, "fork"):
        raise MultigradError("multigrad gate forks processes, which Windows does not: call xg.gate")
    choose(asked.dtypes, asked.laws)
    read_inputs(asked.words)
    files, names = list[str](), list[str]()
    for option, word in (("KERNEL.py", asked.kernel), ("--reference", asked.reference)):
        path, name = split_name(word)
        if not path:
            raise MultigradError(f"name {option}, a file")
        if not Path(path).is_file():
            raise MultigradError(f"there is no file {path}")
        files.append(str(Path(path).resolve()))
        names.append(name or asked.name)
    asked = replace(asked, kernel=files[0], reference=files[1])
    text = Path(asked.kernel).read_text() + Path(asked.reference).read_text()
    for name in WARM:
        if re.search(rf"\b{name}\b", text) and importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    # only a program that calls this has imported one of those
    method = "fork" if NEVER_FORKED.isdisjoint(sys.modules) else "spawn"
    with (
        tempfile.TemporaryDirectory() as folder,
        Apart(asked.limit, method) as kernel_process,
        Apart(asked.limit, method) as reference_process,
    ):
        # In one file with its reference, it has to be read.
        hidden = asked.reference if asked.reference != asked.kernel else ""
        kernel_process.first = [(wall_in, folder, asked.memory, hidden)]
        reference_process.first = [(wall_in, folder, asked.memory)]
        verdict = _judge(kernel_process, reference_process, asked, names)
        journal = Path(folder, JOURNAL)
        offences = journal.read_text().splitlines() if journal.exists() else []
    if offences:
        sentences = tuple(f"it {each}" for each in [*dict.fromkeys(offences)][:MOST_TOLD])
        verdict = replace(verdict, failures=(*sentences, *verdict.failures), score=0.0, judged=True)
    return replace(verdict, seconds=time.perf_counter() - start)


def _judge(
    kernel_process: Apart, reference_process: Apart, asked: GateRequest, chosen: Sequence[str]
) -> GateVerdict:
    name = Path(asked.kernel).name
    of_kernel = partial(_call, kernel_process, asked)
    of_reference = partial(_call, reference_process, asked)
    ask_reference = blaming(partial(reference_does_not_run, name), of_reference)
    try:
        # The kernel first, whose process has nothing of the reference.
        names = blaming(partial(does_not_run, name), of_kernel)(public_names, asked.kernel)
        wanted = ask_reference(public_names, asked.reference)
        pair = pair_of_names(names, wanted, *chosen)
        name = f"{name}:{pair[0]}"
        ask_kernel = blaming(partial(does_not_run, name), of_kernel)
        stated: bytes = ask_kernel(read_stated, f"{asked.kernel}:{pair[0]}")
        source, made_with = ask_reference(make_reference, asked, pair[1], stated)
        if source.startswith(GUESSED):
            # What does not fit a guess is not the kernel's fault.
            ask_kernel = blaming(partial(not_judged, name), of_kernel)
        words = None if source.startswith(GUESSED) else asked.words
        ask_kernel(make_side, asked.kernel, pair[0], asked.seed, made_with, words)
    except SideFails as failure:
        return failure.verdict
    sides = (partial(of_side, ask_side) for of_side in (of_kernel, of_reference))
    laws = choose(asked.dtypes, asked.laws)
    verdict = compare_sides(name, *sides, dtypes=asked.dtypes, laws=laws, seed=asked.seed)
    return replace(verdict, source=source)


def _call(process: Apart, asked: GateRequest, function: Callable[..., Any], *args: Any) -> Any:
    # `limit` is for all calls of a process together.
    try:
        return process.call(function, *args)
    except Lost as lost:
        if "does not end" in str(lost):
            raise Lost(f"it does not end within {asked.limit:g} s; --limit sets the time") from lost
        memory = f": perhaps it needs more than {asked.memory:g} GiB of memory"
        raise Lost(f"{lost}{memory if OUT_OF_MEMORY.search(str(lost)) else ''}") from lost
    except MultigradError as error:
        if OUT_OF_MEMORY.search(str(error)):
            message = f"it needs more than {asked.memory:g} GiB of memory: {error}"
            raise MultigradError(message) from error
        raise
    finally:
        process.limit = max(process.limit - process.spent, 0.1)


def pair_of_names(
    names: Sequence[str], wanted: Sequence[str], name: str = "", other: str = ""
) -> tuple[str, str]:
    """Return the names of the kernel and of its reference: `ModelNew` beside `Model`, else those
    that are equal but for case and underscores, such as `Square` and `square`.

    Args:
        name, other: what was asked of the one file and of the other; "": nothing.
    """
    for word in (name, other):
        if word and word not in (*names, *wanted):
            known = f"{', '.join(names)}; {', '.join(wanted)}"
            raise MultigradError(f"no {word!r}{suggest(word, [*names, *wanted])} ({known})")
    if name in names and other in wanted:
        return name, other
    if not (name or other) and "Model" in wanted:
        for each in ("ModelNew", "Model"):
            if each in names:
                return each, "Model"
    forms = {_form(each): each for each in reversed(wanted)}
    pairs = [(each, forms[_form(each)]) for each in names if _form(each) in forms]
    pairs = [pair for pair in pairs if name in ("", *pair) and other in ("", *pair)]
    equal = [pair for pair in pairs if pair[0] == pair[1]]
    pairs = equal if len(equal) == 1 else pairs
    if len(pairs) != 1:
        both = ", ".join(pair[0] for pair in pairs)
        fault = f"both have {both}; name one by --name" if pairs else "they have no name in common"
        raise MultigradError(f"{fault} ({', '.join(names)}; {', '.join(wanted)})")
    return pairs[0]


def _form(name: str) -> str:
    return name.replace("_", "").lower()


def serve_requests(asked: GateRequest, lines: Iterable[str] | None = None) -> None:
    """Answer requests, a line of JSON each, by lines of JSON: a verdict, or {"error": ...}.

    A request names kernel and reference, and may have other fields of `GateRequest`.
    """
    _warm_up(asked)
    field_names = {each.name for each in fields(GateRequest)}
    for line in sys.stdin if lines is None else lines:
        if not line.strip():
            continue
        try:
            request = json.loads(line)
            if not isinstance(request, dict) or request.keys() - field_names:
                raise MultigradError(f"a request is an object with some of {sorted(field_names)}")
            options = {n: tuple(v) if isinstance(v, list) else v for n, v in request.items()}
            answer = gate_files(replace(asked, **options)).to_json()
        except (MultigradError, OSError, TypeError, ValueError) as error:
            answer = json.dumps({"ok": False, "error": str(error)})
        print(answer, flush=True)


def _warm_up(asked: GateRequest) -> None:
    for name in WARM:
        if importlib.util.find_spec(name) is None:
            continue
        framework: Any = importlib.import_module(name)
        # What runs here is on CPUs: a GPU's threads would not survive the forks.
        if os.path.exists("/dev/nvidiactl"):
            continue
        framework.set_num_threads(1)
        x = np.ones((2, 3), np.float32)
        side = Side(framework.nn.functional.softsign, [framework.from_numpy(x)])
        side.audit(choose(asked.dtypes, asked.laws))


# --- calls in the process of a file ---------------------------------------------------------------
SIDES: list[Side] = []  # of this process: one, once it is made


def public_names(path: str) -> list[str]:
    """Import a file, and return the names of what it defines that can be called."""
    module = import_target(path)
    names = list[str]()
    for name, value in vars(module).items():
        home = getattr(value, "__module__", module.__name__)
        # Operators and custom functions of frameworks have the module of their class.
        is_own = home == module.__name__ or not isinstance(value, type | type(public_names))
        if callable(value) and is_own and name[0] != "_" and name not in NO_FUNCTIONS:
            names.append(name)
    # The second of a pair, `f` and `f_vjp`, is a part of it.
    backwards = {name + ending for name in names for ending in PAIRED}
    return [name for name in names if name not in backwards]


def read_stated(target: str) -> bytes:
    """Return the inputs that a module states, as a message; empty if it states none."""
    inputs = stated_inputs(target)
    return b"" if inputs is None else pack([*inputs])


def make_reference(asked: GateRequest, name: str, stated_by_kernel: bytes) -> tuple[str, bytes]:
    """Make the reference, and return where its inputs are from, and as a message what it is made
    with and its inputs.
    """
    module, target = import_target(asked.reference), f"{asked.reference}:{name}"
    _seed(asked.seed)
    init = module.get_init_inputs() if hasattr(module, "get_init_inputs") else []
    source, inputs = "", []
    if hasattr(module, "get_inputs") and not asked.words:
        inputs = [*module.get_inputs()]
    else:
        stated = stated_inputs(target)
        if stated is None and stated_by_kernel:
            stated = unpack(stated_by_kernel, tensors=True)
        fn = find_target(target)
        source, inputs = choose_inputs(target, fn, asked.words, stated, Side)
    made_with = pack((init, inputs))
    make_side(asked.reference, name, asked.seed, made_with, asked.words)
    return source, made_with


def make_side(path: str, name: str, seed: int, made: bytes, words: Sequence[str] | None) -> None:
    """Make the side of this process; `words` are those of its inputs, None if they are guessed."""
    init, inputs = unpack(made, tensors=True)
    fn = find_target(f"{path}:{name}")
    is_model = isinstance(fn, type) and name in ("Model", "ModelNew")

    def make(init: Mapping[Any, Any]) -> Any:
        _seed(seed)  # the same, so that the parameters are equal
        named = {key: value for key, value in init.items() if isinstance(key, str)}
        return fn(*(value for key, value in init.items() if key not in named), **named)

    _seed(seed)
    init = init if isinstance(init, dict) else dict(enumerate(init))
    try:
        SIDES.append(Side(make(init), inputs, init, make) if is_model else Side(fn, inputs))
    except Exception as error:
        hints = [inputs_to_type(callable_of(fn))] if words is None else number_hints(words)
        if not hints:
            raise
        raise MultigradError("; ".join([brief(error).rstrip("."), *hints])) from error


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    for name in WARM:
        if name in sys.modules:
            sys.modules[name].manual_seed(seed)
    for backend in in_use():
        if backend.modes.seed is not None:
            backend.modes.seed(seed)


def ask_side(method: str, *args: Any) -> Any:
    return getattr(SIDES[-1], method)(*args)
