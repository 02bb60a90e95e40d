"""The commands `multigrad lock` and `multigrad verify`: names to objects, probes to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from multigrad.audit.lock.lockfile import (
    FRAMEWORKS,
    Answer,
    Asking,
    LockFile,
    Probe,
    find_probes,
    format_lock,
    probes_of,
    read_lock,
)
from multigrad.audit.lock.runner import RefusedProbe, read_call
from multigrad.audit.lock.verify import (
    NOT_ALL,
    Verification,
    check_entries,
    is_file,
    locked_inputs,
    make_entry,
    verify_frameworks,
    verify_objects,
)
from multigrad.audit.trial import trial_of
from multigrad.command import STOPPED
from multigrad.command.guessed_inputs import GUESSED, INPUTS_IN_CODE, as_word
from multigrad.command.options import FAILED, Progress
from multigrad.command.targets import find_with_inputs, names_of
from multigrad.engine.support.extras import extra_line
from multigrad.engine.support.files import write_whole
from multigrad.errors import MultigradError, suggest

# By the word before the colon, the prefix of the paths of a framework's functions.
BEGINS = {
    "torch": "torch", "jax": "jax", "tensorflow": "tf", "tf": "tf", "keras": "keras",
    "multigrad": "multigrad.xp", "numpy": "multigrad.xp",
}  # fmt: skip


def write_lock(
    named: Sequence[str], out: Path, frameworks: Sequence[str], python: str | None
) -> tuple[str, bool]:
    """Write a lock; return a sentence that says what it holds, and whether it is complete.

    Ctrl-C leaves the answers so far in a file next to it.
    """
    check_frameworks(frameworks)
    lock = LockFile()
    named_probes: dict[str, Probe] = {}
    remarks = list[str]()
    for word in named:
        # A framework's function gives probes; any other word names a rule or a Function.
        if word_probes := function_probes(word):
            named_probes |= word_probes
        for name in () if word_probes else names_of(word):
            found, inputs, source = (
                (None, (), "") if is_file(name) else find_with_inputs(name, uncalled=True)
            )
            lock.objects[name] = make_entry(name, found, inputs)
            remarks += [f"  {name}: {each}" for each in inputs_remarks(found, inputs, source)]
    lock.probes = named_probes
    # Another Python runs nothing but probes.
    if frameworks or not named or (python and not named_probes):
        lock.probes = named_probes | find_probes(frameworks or FRAMEWORKS)
    names = [name for name in FRAMEWORKS if any(p.framework == name for p in lock.probes.values())]
    lock.answers, is_whole = ask(lock.probes, names, python)
    if not is_whole:
        if not lock.answers:
            return "nothing was asked yet; no file is written", False
        # A finished one stays.
        out = out.with_name(f"{out.name}.partial")
    for name, answer in lock.answers.items() if is_whole else ():
        if answer.absent and (named_probes or name in frameworks):
            raise MultigradError(
                f"{name} cannot be asked: {answer.absent}; type: {extra_line(name)}"
            )
        for probe_name, outcome in answer.outcomes.items():
            # Only named functions must exist: the table may name some that this version lacks.
            if "missing" in outcome and probe_name in named_probes:
                path = lock.probes[probe_name].path
                hint = suggest(path, {probe.path for probe in find_probes([name]).values()})
                raise MultigradError(f"{name} has no {path}{hint}")
    write_whole(out, format_lock(lock))
    available = {name: answer for name, answer in lock.answers.items() if not answer.absent}
    count = sum(len(answer.outcomes) for answer in available.values())
    versions = [f"{name} {answer.version}" for name, answer in available.items()]
    words = "rule or Function" if len(lock.objects) == 1 else "rules and Functions"
    parts = [f"{len(lock.objects)} {words}"] if lock.objects else []
    if lock.probes:
        parts.append(f"{count} probes of {', '.join(versions) or 'no framework'}")
    lines = [f"{out}: {', '.join(parts)}", *remarks]
    lines += [
        f"  {name}: its graph alone, no numbers: {entry['without']}"
        + (f"; {INPUTS_IN_CODE} in its module states others" if ":" in name else "")
        for name, entry in lock.objects.items()
        if "without" in entry
    ]
    return "\n".join(lines), is_whole


def inputs_remarks(found: Any, inputs: Sequence[Any], source: str) -> Iterator[str]:
    """Yield with what a Function was locked where that was guessed, and what its vectors lack."""
    if source.startswith(GUESSED):
        words = ", ".join(map(as_word, inputs))
        yield f"locked with inputs that were guessed: {words}; {INPUTS_IN_CODE} states others"
    numbers = trial_of(found, inputs, None).numbers_with_gradient if inputs else {}
    if numbers:
        yield (
            f"its vectors have no gradient of {', '.join(numbers.values())}, given as a plain "
            f"number; give an array, by {INPUTS_IN_CODE} in its module"
        )


def ask(
    probes: Mapping[str, Probe], names: Sequence[str], python: str | None
) -> tuple[dict[str, Answer], bool]:
    """Return the frameworks' answers, and whether they are complete; Ctrl-C keeps those so far."""
    with Progress() as progress:
        asking = Asking(probes, names, python, note=progress.advance)
        progress.begin("importing the frameworks", sum(map(len, asking.own.values())))
        asking.run()
    if not progress.stopped:
        return asking.answers, True
    return {name: answer for name, answer in asking.answers.items() if answer.version}, False


def check_frameworks(names: Sequence[str]) -> None:
    for name in names:
        if name not in FRAMEWORKS:
            known = ", ".join(FRAMEWORKS)
            raise MultigradError(f"no framework {name!r}{suggest(name, FRAMEWORKS)} ({known})")


def function_probes(word: str) -> dict[str, Probe]:
    """Return the probes of a framework's function, as torch:clamp; none of any other word."""
    framework, colon, name = word.partition(":")
    if not colon or framework not in BEGINS:
        return {}
    probes = probes_of(f"{BEGINS[framework]}.{name}")
    try:
        for probe in probes.values():
            read_call(probe.call)
    except RefusedProbe as error:
        raise MultigradError(f"{word}: {error}") from error
    return probes


def find_as_locked(word: str, entry: Mapping[str, Any]) -> Any:
    inputs = locked_inputs(entry)
    return find_with_inputs(word, locked=inputs, uncalled=bool(inputs)).object


def verify_lock(
    path: Path,
    frameworks: Sequence[str],
    python: str | None,
    *,
    as_json: bool,
    echo: Callable[[str], object],
) -> int:
    """Print what differs from a lock, or what Ctrl-C left of it, and return the exit status."""
    check_frameworks(frameworks)
    lock = read_lock(path)
    check_entries(lock)
    names = [name for name in lock.answers if not frameworks or name in frameworks]
    answers, is_whole = ask(lock.probes, names, python)
    result: Verification = verify_frameworks(lock, answers)
    if not is_whole:
        result.remarks.append(NOT_ALL)
    elif python is None:
        verify_objects(lock, find_as_locked, result)
    # Another Python may lack multigrad: it runs only the frameworks' probes.
    elif lock.objects:
        result.remarks.append(f"{len(lock.objects)} rules and Functions: not run by {python}")
    echo(json.dumps(result.to_dict(), indent=1) if as_json else str(result))
    if not is_whole:
        return STOPPED
    return 0 if result.ok else FAILED
