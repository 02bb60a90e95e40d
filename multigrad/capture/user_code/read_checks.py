"""Whether what code reads is what it was, asked at each call: straight code for the usual paths.

    class Atan: slope = 2.0           def is_same():
    def curve(x):                         v0 = find0()  # curve
        return x * Atan.slope             v1 = v0.__globals__.get('Atan', MISSING)
                                          if v1 is not t1() or v1 is None: return False
                                          v2 = v1.__dict__.get('slope', MISSING)
                                          if v2 is not t2: return False
                                          return True

A line holds for values of the kind for which it was written, which the lines before it compare; any
other value counts as a change. Where nothing is short, a line calls what `paths.py` has for it.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType, MemberDescriptorType, ModuleType, NoneType
from typing import Any

from ...lowering.source import compile_source
from .paths import Path

Check = Callable[[], bool]
Found = tuple[Callable[[], Any], Mapping[Path, Any]]  # what finds the anchor; tokens by their paths
NUMBERS = (bool, float, int, str)
SLOTS = (NoneType, MemberDescriptorType)  # what a class has for an attribute that its objects have
dict_of = object.__getattribute__


def write_check(
    found: Iterable[Found], takes: Mapping[str, Callable[..., Any]], scope: Mapping[str, Any]
) -> Check:
    """Return a function that tells whether the tokens of what paths lead to are still these.

    Args:
        takes: the steps of paths.
        scope: `MISSING`, `OPEN` and `token`, which returns a value's token, as in `paths.py`.
    """
    namespace, lines = {**takes, **scope, "dict_of": dict_of}, list[str]()
    missing, count = scope["MISSING"], 0
    for find, tokens in found:
        namespace[f"find{count}"] = find
        lines.append(f"v{count} = find{count}()")
        words: dict[Path, str] = {(): f"v{count}"}
        values: dict[Path, Any] = {(): find()}
        count += 1
        for path, token in tokens.items():
            for n, (kind, place) in enumerate(path):
                before, after = path[:n], path[: n + 1]
                if after in words:
                    continue
                owner, word, words[after] = values[before], words[before], f"v{count}"
                count += 1
                if owner is None or owner is missing:
                    values[after], take = missing, f"{kind}({word}, {place!r})"
                    take = f"MISSING if {word} in (None, MISSING) else {take}"
                else:
                    values[after] = takes[kind](owner, place)
                    take = _write_take(word, owner, kind, place, values[after])
                lines.append(f"{words[after]} = {take}")
            name = f"t{words[path][1:]}"
            namespace[name] = token
            test = _write_test(words[path], values[path], name, token, scope["OPEN"])
            lines.append(f"if {test}: return False")
    body = "\n        ".join((*lines, "return True"))
    # What it reads is local: a look-up in globals would take longer.
    names = [name for name in namespace if re.search(rf"\b{name}\b", body)]
    source = (
        f"def make({', '.join(names)}):\n  def is_same():\n    try:\n        {body}\n"
        "    except Exception:\n        return False\n  return is_same\n"
    )
    make = compile_source(source, "reads", {})["make"]
    return make(**{name: namespace[name] for name in names})


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


def _write_test(word: str, value: Any, name: str, token: Any, open_token: Any) -> str:
    if token is open_token:
        return f"type({word}) is not float"
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
