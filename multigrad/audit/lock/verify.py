"""Verification of a lock: its probes against the installed frameworks, its rules and Functions
against every backend. Each difference is a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np

from ...core.backend.discovery import load_backend
from ...core.ir.op import T
from ...core.ops.numerics import as_numpy_dtype
from ...core.rules.registry import resolve
from ...core.support.trees import optree
from ...engine.backend.statuses import backends
from ...engine.functions.documents.format import hash_of
from ...engine.functions.documents.functions import read_leaves
from ...engine.functions.documents.versions import OP_SET
from ...engine.functions.function import Function
from ...engine.rules.saving import (
    conventions_of,
    decode,
    from_dict,
    make_evidence,
    read_evidence,
    read_file,
    run_vector,
)
from ...errors import MultigradError, UnsupportedOp
from ...look.subject import as_array
from .lockfile import Answer, LockFile, Outcome, Probe

CLOSE = 1e-5  # of float32 numbers, beside 1: what frameworks' roundings may differ by
SHORT = {"jax.numpy": "jnp", "multigrad.xp": "xp"}
BARE = ("torch",)  # frameworks whose functions people call by their last names


NOT_ALL = "stopped: the rest was not compared"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference: of a framework in a call, or of a rule or a Function, in a sentence."""

    subject: str
    call: str
    sentence: str


@dataclass(slots=True)
class Verification:
    """What differs from a lock; and what was compared, what was not, and why."""

    changes: list[Change] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.changes

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def __str__(self) -> str:
        count = len(self.changes)
        verdict = "nothing changed" if self.ok else f"{count} change{'s' * (count > 1)}"
        lines = [*(change.sentence for change in self.changes), *self.remarks, verdict]
        return "\n".join(lines[:-1] if self.ok and NOT_ALL in self.remarks else lines)


def verify_frameworks(lock: LockFile, answers: Mapping[str, Answer]) -> Verification:
    result = Verification()
    for framework, now in answers.items():
        locked = lock.answers[framework]
        # Keras's version names its backend: numbers of two backends are not compared.
        old, new = locked.version.partition(" on ")[2], now.version.partition(" on ")[2]
        if now.absent:
            result.remarks.append(
                f"{framework} {locked.version} was locked and is not available here: {now.absent}"
            )
            continue
        if old != new:
            result.remarks.append(
                f"{framework} was locked on {old} and runs on {new} here: not compared"
            )
            continue
        rounded: Counter[str] = Counter()
        # Several probes may give one sentence, because names are shortened: the first stands.
        calls: dict[str, str] = {}
        names = sorted(set(locked.outcomes) & set(now.outcomes))
        for name in names:
            probe = lock.probes[name]
            for sentence in probe_differences(probe, locked, now, lock.probes, rounded):
                calls.setdefault(sentence, probe.call)
        result.changes += [Change(framework, call, sentence) for sentence, call in calls.items()]
        comparison = "compared with what was locked" if calls else "as locked"
        result.remarks.append(
            f"{framework} {now.version}: {len(names)} probes, {comparison} from {locked.version}"
        )
        result.remarks += [f"{framework}: {n} {what}" for what, n in sorted(rounded.items())]
    return result


def probe_differences(
    probe: Probe,
    locked: Answer,
    now: Answer,
    probes: Mapping[str, Probe],
    rounded: Counter[str],
) -> Iterator[str]:
    """Yield what a probe gives that was not locked, in sentences.

    Args:
        probes: all of them, by which its function is named.
        rounded: counts differences that are too small for a sentence.
    """
    past, present = f"in {probe.framework} {locked.version}", f"in this one ({now.version})"
    name = name_of(probe, probes)
    old, new = locked.outcomes[probe.name], now.outcomes[probe.name]
    if "missing" in old or "missing" in new:
        if "missing" not in new:
            yield f"{probe.path} is not {past}, and is {present}"
        elif "missing" not in old:
            yield f"{probe.path} is {past}, and is not {present}"
        return
    if "raises" in old or "raises" in new:
        if old != new and {"raises": old.get("raises")} != new:
            yield f"{name} {probe.at} {_ends(old)} {past} and {_ends(new)} {present}"
        return
    pairs = [("", old["value"], new["value"])]
    pairs += [(x, each, new["derivative"].get(x)) for x, each in old["derivative"].items()]
    for letter, a, b in pairs:
        is_same, remark = compare(a, b)
        rounded[remark] += bool(remark)
        if not is_same:
            subject = f"{name}'s derivative" if letter else name
            suffix = f" for {letter}" if letter and len(old["derivative"]) > 1 else ""
            yield f"{subject}{suffix} {probe.at} is {say(a)} {past} and {say(b)} {present}"
    rounded.pop("", None)


def name_of(probe: Probe, probes: Mapping[str, Probe]) -> str:
    """Return a function's name, with its arguments if another probe has the same name."""
    space, _, last_name = probe.path.rpartition(".")
    paths = [
        each.path
        for each in probes.values()
        if (each.at, each.framework) == (probe.at, probe.framework)
        and each.path.rpartition(".")[2] == last_name
    ]
    full_name = f"{SHORT[space]}.{last_name}" if space in SHORT else probe.path
    if len(set(paths)) < len(paths):
        return full_name + probe.call[len(probe.path) :]
    is_unique = len(paths) == 1 and space not in SHORT
    return last_name if is_unique and probe.framework in BARE else full_name


def _ends(outcome: Outcome) -> str:
    return f"raises {outcome['raises']}" if "raises" in outcome else "runs"


def compare(was: Sequence[str] | None, now: Sequence[str] | None) -> tuple[bool, str]:
    """Return whether two results count as the same, and how they still differ."""
    if was is None or now is None:
        return was is now, ""
    if len(was) != len(now):
        return False, ""
    old_array, new_array = (np.array([*map(float.fromhex, each)]) for each in (was, now))
    if _is_off(old_array, new_array, CLOSE).any():
        return False, ""
    zeros = (old_array == 0) & (new_array == 0)
    if (zeros & (np.signbit(old_array) != np.signbit(new_array))).any():
        return True, "zeros have the other sign"
    return True, "" if list(was) == list(now) else "numbers differ in their last bits"


def say(numbers: Sequence[str] | None) -> str:
    if numbers is None:
        return "none"
    words = ["NaN" if each == "nan" else f"{float.fromhex(each):.6g}" for each in numbers]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"


# --- rules and Functions: the evidence of their documents, held against what they are -------------
Data = Any
BACKENDS = ("numpy", "torch", "jax", "tensorflow")  # they have float64
# By dtype, relative to max(1, size): what kernels' roundings may differ by, as in docs/format.md.
CLOSE_IN = {"float64": 2.0**-40, "float32": 2.0**-16, "bfloat16": 2.0**-5, "float16": 2.0**-7}


def make_entry(word: str, found: Any, inputs: Sequence[Any] = ()) -> Data:
    """Return the entry of a file, or of the object that a word names and was called with inputs."""
    document = _document(word, found)
    obj = from_dict(document)  # which refuses a damaged file, also one with evidence
    evidence = document.get("evidence") or make_evidence(obj, document, [*map(as_array, inputs)])
    forms = document["forms"] if len(inputs) and isinstance(obj, Function) else ()
    arguments = {"arguments": forms[0]["arguments"]} if len(forms) == 1 else {}
    return {"kind": document["kind"], **arguments, **evidence}


def _document(word: str, found: Any) -> Data:
    # The lock covers what a saved file holds, or would hold.
    if is_file(word):
        return read_file(word)
    found = getattr(found, "captured_form", found)
    return (found if isinstance(found, Function) else resolve(found)).to_dict()


def is_file(word: str) -> bool:
    return word.endswith(".json")


def check_entries(lock: LockFile) -> None:
    for word, entry in lock.objects.items():
        evidence = {n: entry[n] for n in entry if n not in ("kind", "arguments")}
        read_evidence(evidence, f"objects.{word}")
        locked_inputs(entry, f"objects.{word}.arguments")


def locked_inputs(entry: Data, where: str = "arguments") -> dict[str, Any]:
    """Return with what a Function was locked, by the arguments' names: arrays and plain values,
    `...` where the lock does not hold them.
    """
    leaves = read_leaves(entry.get("arguments", []), where)
    # The last vector is of the inputs themselves, where they fit NumPy's reference.
    numbers = entry["vectors"][-1]["inputs"] if entry["vectors"] else {}
    inputs: dict[str, Any] = {leaf.path.partition("[")[0]: ... for leaf in leaves}
    inputs |= {leaf.name: leaf.value for leaf in leaves if leaf.kind == "static"}
    for leaf in leaves:
        data = numbers.get(leaf.name)
        if isinstance(data, str):
            inputs[leaf.name] = float.fromhex(data)
        elif data is not None:
            dtype = "float32" if leaf.dtype in ("", T) else leaf.dtype
            inputs[leaf.name] = decode(data).astype(as_numpy_dtype(dtype))
    return inputs


def verify_objects(lock: LockFile, find: Callable[[str, Data], Any], result: Verification) -> None:
    """Compare rules and Functions with a lock; `find(word, entry)` captures one as it was then."""
    installed = {row.name: row.version for row in backends() if row.installed}
    for word, locked in lock.objects.items():
        try:
            document = _document(word, None if is_file(word) else find(word, locked))
            obj = from_dict(document)
        except (MultigradError, OSError) as error:
            result.changes.append(Change(word, "", f"{word} was locked, and now: {error}"))
            continue
        # By platform, for each vector what differs, in sentences.
        runs: dict[str, list[list[str]]] = {}
        reason = _unfit(obj, locked["vectors"])
        for name in () if reason else BACKENDS:
            if name in installed:
                platform = f"{name} {installed[name]}"
                try:
                    runs[platform] = [
                        [*_run(word, obj, vector, platform)] for vector in locked["vectors"]
                    ]
                # An op that a backend lacks is no change.
                except UnsupportedOp as error:
                    result.remarks.append(f"{word} is not compared on {platform}: {error}")
        sentences = [*_differences(word, locked, hash_of(document), runs)]
        sentences += [f"{word} {reason}"] if reason else []
        sentences += dict.fromkeys(each for run in runs.values() for row in run for each in row)
        result.changes += [Change(word, "", each) for each in sentences]
        comparison = "compared with what was locked" if sentences else "as locked"
        count = len(locked["vectors"])
        reason = f": {locked['without']}" if "without" in locked else ""
        result.remarks.append(f"{word}: {count} vectors, {comparison}{reason}")


def _unfit(obj: Any, vectors: Data) -> str:
    # Numbers of other arguments would tell of a gradient what the inputs have changed.
    forms: Any = obj.recipe.origin.forms if isinstance(obj, Function) else ()
    for vector in vectors if forms else ():
        leaves = forms[vector["form"]].layout.leaves if vector["form"] < len(forms) else ()
        names = [leaf.name for leaf in leaves if leaf.kind != "static"]
        if {*names} != {*vector["inputs"]}:
            return (
                f"was locked with tensors and numbers for {', '.join(vector['inputs'])}, and "
                f"takes them for {', '.join(names) or 'none'} as it is called here: its inputs "
                "have changed, perhaps GRADIENT_INPUTS, so no gradient is compared; lock it again"
            )
    return ""


def _differences(
    word: str, locked: Data, now: str, runs: Mapping[str, list[list[str]]]
) -> Iterator[str]:
    if locked["hash"] != now:
        new_hash, old_hash = (each[: len("sha256:") + 12] for each in (now, locked["hash"]))
        count, differing = len(locked["vectors"]), sum(map(any, zip(*runs.values(), strict=True)))
        numbers = "no numbers were compared"
        if count and runs:
            verdict = "its numbers differ" if differing else "all its numbers agree"
            numbers = (
                f"{verdict} in {differing or count} of {count} vectors on {', '.join(runs)}, with "
                "the inputs and params of the lock"
            )
        yield (
            f"{word} is not what was locked: its content is {new_hash}, and was {old_hash}; "
            f"{numbers}. To accept it, lock it again"
        )
    if locked["op_set"] != OP_SET:
        yield f"{word} was locked with op set {locked['op_set']}, and this multigrad has {OP_SET}"
    # `conventions_of` reads no more of a graph than its ops.
    ops = {"nodes": [{"op": op} for op in locked["conventions"]]}
    for op, places in conventions_of(ops).items():
        for at, new_row in places.items():
            old_row = locked["conventions"][op].get(at)
            # A place that is not in the lock is newer than it.
            if old_row is not None and old_row != new_row:
                yield (
                    f"{op}'s derivative {at} is {_say(old_row)} in the lock of {word} "
                    f"and {_say(new_row)} in this multigrad"
                )


def _say(row: Data) -> str:
    return say(optree.tree_leaves([row["value"], row["derivative"]]))


def _run(word: str, obj: Any, vector: Data, platform: str) -> Iterator[str]:
    try:
        outcome = run_vector(obj, vector, load_backend(platform.partition(" ")[0]))
    except UnsupportedOp:
        raise
    except (MultigradError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        yield f"{word} does not run on {platform}: {type(error).__name__}: {error}"
        return
    for subject, old, new in _pairs(vector, outcome):
        place = _first_difference(old, new)
        if place is not None:
            yield (
                f"{word}: {subject} is {_at(old, place)} in the lock and {_at(new, place)} "
                f"on {platform}{_where(vector['inputs'], place)}"
            )


def _pairs(vector: Data, outcome: Mapping[str, Data]) -> Iterator[tuple[str, Data, Data]]:
    is_rule = "graph" in vector
    for i, pair in enumerate(zip_longest(vector["outputs"], outcome["outputs"])):
        yield ("the gradient" if is_rule else f"output {i}"), *pair
    for name, old in vector.get("gradients", {}).items():
        yield f"the gradient of {name}", old, outcome["gradients"].get(name)


def _first_difference(old: Data, new: Data) -> int | None:
    if old is None or new is None:
        return None if old is new else -1
    if old["shape"] != new["shape"] or old["dtype"] != new["dtype"]:
        # -1: the shape or the dtype differs, not a number.
        return -1
    a, b = (np.asarray(decode(each), np.float64).ravel() for each in (old, new))
    is_off = _is_off(a, b, CLOSE_IN.get(old["dtype"], 0.0))
    return int(np.argmax(is_off)) if is_off.any() else None


def _is_off(a: Any, b: Any, close: float) -> Any:
    with np.errstate(invalid="ignore"):
        is_near = np.isfinite(a) & (np.abs(a - b) <= close * np.maximum(1.0, np.abs(a)))
    # The difference of two infinities is NaN, though they are equal.
    return ~(is_near | (a == b) | (np.isnan(a) & np.isnan(b)))


def _at(array: Data, place: int) -> str:
    if array is None:
        return "none"
    if place < 0:
        return f"{array['dtype']} of shape {tuple(array['shape'])}"
    value = array["values"][place]
    return say([value]) if isinstance(value, str) else str(value)


def _where(inputs: Mapping[str, Data], place: int) -> str:
    words = []
    for name, data in inputs.items():
        if isinstance(data, str):
            words.append(f"{name}={say([data])}")
        elif 0 <= place < len(data["values"]):
            words.append(f"{name}={_at(data, place)}")
    return f", at {', '.join(words)}" if words else ""
