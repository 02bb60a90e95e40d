"""Loops in C over the elements of a chunk: lines of code divided at calls for a whole chunk.

A line such as `const R v3 = WHOLE(torch_exp, v2);` calls a function that is faster for many
elements at once. It ends a loop; what a later loop needs is stored for the whole chunk, v3 at w3:

    for (...) { v2 = ...; w3[i] = v2; }
    torch_exp(w3, m);
    for (...) { v3 = w3[i]; ... }
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

LINE = re.compile(r"const (int|R) (v\d+) = (.*);")
WHOLE = re.compile(r"WHOLE\((\w+), (\w+)((?:, \w+)*)\)")
VALUE = re.compile(r"\bv\d+\b")


def named(line: str) -> tuple[str, str, str]:
    """Return the C type, the name and the expression of a line that names an expression."""
    found = LINE.fullmatch(line)
    assert found is not None
    return found[1], found[2], found[3]


def in_stages(
    load: Sequence[str], lines: Iterable[str], store: Iterable[str], reduced: Collection[str] = ()
) -> list[str]:
    """Return the loops of lines that run for each element.

    Args:
        load: gives names to inputs, which each loop reads again.
        lines: each names an expression of names before it.
        store: write results.
        reduced: names of which the whole chunk is read after the loops: v7 at w7.
    """
    computed: dict[str, int] = {}  # in which loop
    known: dict[str, int] = {}  # from which loop on
    kinds: dict[str, str] = {}
    kept: set[str] = {*reduced}
    loops: list[list[str]] = [[]]
    calls: list[list[str]] = [[]]
    text: list[str] = []

    def place(line: str) -> int:
        # The first loop in which all is known that the line reads.
        read = [each for each in VALUE.findall(line) if each in known]
        stage = max((known[each] for each in read), default=0)
        kept.update([each for each in read if computed[each] < stage])
        return stage

    for line in lines:
        kind, name, expression = named(line)
        kinds[name] = kind
        stage = computed[name] = known[name] = place(expression)
        whole = WHOLE.fullmatch(expression)
        if whole is None:
            loops[stage].append(line)
            continue
        # A call for the whole chunk ends a loop; its results are known from the next loop on.
        known[name] += 1
        kept.add(name)
        loops[stage].append(f"const R {name} = {whole[2]};")
        others = f"e{name[1:]}"
        for other in VALUE.findall(whole[3]):
            text.append(f"R {others}[CHUNK];")
            loops[stage].append(f"{others}[i] = {other};")
        calls[stage].append(f"{whole[1]}(w{name[1:]}, m{VALUE.sub(others, whole[3])});")
        if known[name] == len(loops):
            loops.append([])
            calls.append([])
    for line in store:
        loops[place(line)].append(line)
    text += [
        f"{'uint8_t' if kinds[name] == 'int' else 'R'} w{name[1:]}[CHUNK];"
        for name in sorted(kept, key=lambda each: int(each[1:]))
    ]
    for stage, (loop, after) in enumerate(zip(loops, calls, strict=True)):
        earlier = [each for each in kinds if each in kept and computed[each] < stage]
        memory = [f"const {kinds[each]} {each} = w{each[1:]}[i];" for each in earlier]
        own = [each for each in kinds if each in kept and computed[each] == stage]
        keep = [f"w{each[1:]}[i] = {each};" for each in own]
        inside = [f"    {line}" for line in (*load, *memory, *loop, *keep)]
        text += ["for (int64_t i = 0; i < m; i++) {", *inside, "}", *after]
    return text
