"""What is public, with its parameters, stays: `tests/data/public.txt` lists it.

`python -m tests.project.test_public` writes the list, with all frameworks installed. It adds lines,
and never takes one away: whoever removes a name that was deprecated for long enough
(docs/deprecation.md) deletes its line by hand.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import multigrad as xg

from ..harness import public

LIST = Path(__file__).parents[1] / "data" / "public.txt"
ADVICE = "type: python -m tests.project.test_public"


def listed() -> dict[str, str]:
    """Return the parameters of each public name, rule and command, by its name."""
    found = {name: parameters_of(public.find(name)) for name in public.public_names()}
    # Other tests of the process register rules of their own.
    own = [rule for rule in map(xg.get, xg.rules()) if rule.__module__.startswith("multigrad.")]
    found |= {f"rule {rule.name}": parameters_of_rule(rule) for rule in own}
    return dict(sorted({**found, **dict(options())}.items()))


def options() -> Iterator[tuple[str, str]]:
    """Yield the commands with their arguments and options."""
    from typer.main import get_command

    from multigrad.command.app import app

    commands: Any = get_command(app)
    for name, command in commands.commands.items():
        words = [each for param in command.params for each in (*param.opts, *param.secondary_opts)]
        yield f"command {name}", " ".join(f"{word}=" for word in words)


def parameters_of(obj: Any) -> str:
    """Return names of parameters, `name=` where it may be left out; those after * by name alone."""
    obj = obj.fget if isinstance(obj, property) else obj
    try:
        signature = inspect.signature(obj) if callable(obj) else None
    except (TypeError, ValueError):
        signature = None
    words, by_name = [], False
    for each in [] if signature is None else signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not by_name:
            words.append("*")
        by_name |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        words.append(f"{stars}{each.name}{'' if each.default is each.empty else '='}")
    return " ".join(words)


def parameters_of_rule(rule: xg.Rule) -> str:
    return " ".join(["*", *(f"{name}=" for name in rule.params)])


def read() -> dict[str, str]:
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {name: words for name, _, words in (line.partition(": ") for line in lines)}


def broken(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return what code that was written for the list before would miss now."""
    faults = [f"{name} is gone" for name in before.keys() - now.keys()]
    for name in before.keys() & now.keys():
        old, new = before[name].split(), now[name].split()
        kept = {word.rstrip("=") for word in new}
        faults += [f"{name} has no {w.rstrip('=')}" for w in old if w.rstrip("=") not in kept]
        # Of a parameter that is new or could be left out before, nothing may be asked.
        faults += [
            f"{name} needs {w}" for w in new if w[-1] not in "=*" and w[0] != "*" and w not in old
        ]
        positional = [w.rstrip("=") for w in old[: old.index("*") if "*" in old else None]]
        order = [w.rstrip("=") for w in new[: new.index("*") if "*" in new else None]]
        if order[: len(positional)] != positional:
            faults.append(f"{name} takes {order} by position, and took {positional}")
    return sorted(faults)


@pytest.mark.needs("torch", "jax", "tensorflow", "keras", "optax", "typer", "rich")
@pytest.mark.always
def test_what_is_public_stays_and_is_listed() -> None:
    before, now = read(), listed()
    assert broken(before, now) == [], "deprecate it: docs/deprecation.md"
    assert now == before, ADVICE


@pytest.mark.parametrize(
    ("now", "fault"),
    [
        ({}, "f is gone"),
        ({"f": "x *"}, "f has no y"),
        ({"f": "x z= * y="}, None),
        ({"f": "y= * x"}, "f takes ['y'] by position, and took ['x']"),
        ({"f": "x * y"}, "f needs y"),
        ({"f": "x * y= z"}, "f needs z"),
        ({"f": "x * y= z=", "g": ""}, None),
    ],
)
def test_what_breaks_code_is_found(now: dict[str, str], fault: str | None) -> None:
    assert broken({"f": "x * y="}, now)[:1] == ([] if fault is None else [fault])


if __name__ == "__main__":
    from multigrad.command.options import prepare_environment

    prepare_environment()
    try:
        names = listed()
    except ImportError as error:
        sys.exit(f"{error}\nWithout all frameworks, leave the list to whoever merges the change.")
    if LIST.exists() and (faults := broken(read(), names)):
        sys.exit("\n".join(faults))
    LIST.write_text(
        "".join(f"{name}: {words}\n" for name, words in names.items()), encoding="utf-8"
    )
