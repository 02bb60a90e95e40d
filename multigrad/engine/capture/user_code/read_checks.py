"""Whether what code reads is what it was, asked at each call: straight code for the usual paths.

    class Atan: slope = 2.0           def run_guarded(leaves, draws):
    def curve(x):                       try:
        return x * Atan.slope             v0 = find0()  # curve
                                          v1 = v0.__globals__.get('Atan', MISSING)
                                          if v1 is not t1() or v1 is None: raise Changed
                                          v2 = v1.slope
                                          if v2 is not t2: raise Changed
                                        except Exception: pass
                                        else: return run(leaves, draws)
                                        return otherwise(leaves, draws)

A line holds for values of the kind for which it was written, which the lines before it compare; any
other value counts as a change. Where nothing is short, a line calls what `paths.py` has for it.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType, MemberDescriptorType, ModuleType, NoneType
from typing import Any

from ....core.lowering.lower import compile_source
from ....core.trace.active_rules import KeySource
from ....core.trace.lookups import READING
from ...trace.moving_numbers import JIT_TRACE
from .paths import MISSING, POSITIVE, TAKES, Find, Open, Path, token_of

Run = Callable[[Sequence[Any], KeySource], Any]
Found = tuple[Find, Mapping[Path, Any]]  # what finds the anchor; tokens by their paths
NUMBERS = (bool, float, int, str)
SLOTS = (NoneType, MemberDescriptorType)  # what a class has for an attribute that its objects have
dict_of = object.__getattribute__


class Changed(Exception):
    """What code reads has changed."""


class Source:
    """Lines of straight code that look up values, and the names that they use."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {**TAKES, "MISSING": MISSING, "dict_of": dict_of}
        self.count = 0

    def begin(self, find: Find) -> tuple[dict[Path, str], dict[Path, Any]]:
        """Return by path the names of the values that have been looked up, and these."""
        word = self._add_line(f"find{self.count}()")
        self.names[f"find{word[1:]}"] = find
        return {(): word}, {(): find()}

    def look_up(self, path: Path, words: dict[Path, str], values: dict[Path, Any]) -> None:
        for n, (kind, place) in enumerate(path):
            before, after = path[:n], path[: n + 1]
            if after in words:
                continue
            owner, word = values[before], words[before]
            if owner is None or owner is MISSING:
                values[after], take = MISSING, f"{kind}({word}, {place!r})"
                take = f"MISSING if {word} in (None, MISSING) else {take}"
            else:
                values[after] = TAKES[kind](owner, place)
                take = _write_take(word, owner, kind, place, values[after])
            words[after] = self._add_line(take)

    def _add_line(self, value: str) -> str:
        word = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{word} = {value}")
        return word

    def make(self, name: str, text: str) -> Callable[..., Any]:
        """Return the function of a text, in which @ stands for the lines."""
        text = text.replace("@", "\n    ".join(self.lines))
        # What it reads is local: a look-up in globals would take longer.
        names = [each for each in self.names if re.search(rf"\b{each}\b", text)]
        text = f"def make({', '.join(names)}):\n {text}\n return {name}\n"
        make = compile_source(text, "reads", {})["make"]
        return make(**{each: self.names[each] for each in names})


def write_find(find: Find, path: Path) -> Find:
    """Return a function that finds the value at the end of a path from what `find` gives."""
    source = Source()
    words, values = source.begin(find)
    source.look_up(path, words, values)
    source.lines.append(f"return {words[path]}")
    return source.make("find", "def find():\n    @")


def write_guard(found: Iterable[Found], run: Run, otherwise: Run) -> Run:
    """Return `run` for as long as the tokens of what paths lead to are these; else `otherwise`.

    `otherwise` runs too where a capture, or a trace of `xg.jit`, notes what is looked up.
    """
    source = Source()
    for find, tokens in found:
        words, values = source.begin(find)
        for path, token in tokens.items():
            source.look_up(path, words, values)
            name = f"t{words[path][1:]}"
            source.names[name] = token
            source.lines.append(
                f"if {_write_test(words[path], values[path], name, token)}: raise Changed"
            )
    source.lines.append("if capture() is not None or jit_trace() is not None: raise Changed")
    source.names |= {"capture": READING.get, "jit_trace": JIT_TRACE.get, "token": token_of}
    source.names |= {"Changed": Changed, "run": run, "otherwise": otherwise}
    return source.make(
        "run_guarded",
        "def run_guarded(leaves, draws):\n  try:\n    @\n  except Exception: pass\n"
        "  else: return run(leaves, draws)\n  return otherwise(leaves, draws)",
    )


def _write_take(owner: str, value: Any, kind: str, place: Any, found: Any) -> str:
    is_function, look = type(value) is FunctionType, f"get({place!r}, MISSING)"
    if kind == "global_of" and is_function:
        return f"{owner}.__globals__.{look}"
    if kind == "cell_of" and is_function:
        return f"{owner}.__closure__[{place}].cell_contents"
    if kind == "getattr":
        return f"{owner}.{place}"
    if type(value) in (dict, list, tuple):
        if kind == "item_of":
            return f"{owner}.{look}" if type(value) is dict else f"{owner}[{place}]"
        if kind == "length_of":
            return f"len({owner})"
    text = _write_stored(owner, value, place, found) if kind == "stored" else ""
    return text or f"{kind}({owner}, {place!r})"


def _write_stored(owner: str, value: Any, name: str, found: Any) -> str:
    home, look = value if isinstance(value, type) else type(value), f"get({name!r}, MISSING)"
    meta = type(home)
    # A class is usually the first of its bases, and tells a number without asking a descriptor.
    is_own = meta.mro is type.mro and type(vars(home).get(name)) not in SLOTS
    is_plain = meta.__getattribute__ is type.__getattribute__ and not hasattr(meta, name)
    if home is value:
        if type(found) in NUMBERS and is_plain:
            return f"{owner}.{name}"
        return f"{owner}.__dict__.{look}" if is_own else ""
    is_plain = home.__getattribute__ in (object.__getattribute__, ModuleType.__getattribute__)
    contents = f"{owner}.__dict__" if is_plain else f"dict_of({owner}, '__dict__')"
    try:
        if name in dict_of(value, "__dict__"):
            return f"{contents}.{look}"
    except AttributeError:  # it has slots alone
        return ""
    if is_own:
        return f"MISSING if {name!r} in {contents} else type({owner}).__dict__.{look}"
    return ""


def _write_test(word: str, value: Any, name: str, token: Any) -> str:
    if type(token) is Open:
        bounds = f"0.0 < {word} < 1e999" if token is POSITIVE else f"-1e999 < {word} < 0.0"
        return f"type({word}) is not float or not {bounds}"
    if type(token) is weakref.ref:
        held = token()
        if held is not None and held is value:
            return f"{word} is not {name}() or {word} is None"
        if held is type(value):
            return f"type({word}) is not {name}()"
    elif token is value:
        return f"{word} is not {name}"
    elif type(token) in (str, int, tuple, frozenset):  # made anew each time
        return f"token({word}) != {name}"
    return f"token({word}) is not {name}"
