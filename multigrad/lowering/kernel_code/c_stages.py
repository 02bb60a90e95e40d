"""Loops over a chunk, in stages: what a function computes of a whole chunk stands between two.

A line `const R v7 = WHOLE(f, v6);` says that `f(w7, m)`, which writes over the m numbers at w7,
gives v7 of v6; `WHOLE(f, v6, v5, d0)`: `f(w7, m, e7, d0)`, with v5 at e7.
Values that a later loop reads are kept in memory of the chunk's size.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

LINE = re.compile(r"const (int|R) (v\d+) = (.*);")
WHOLE = re.compile(r"WHOLE\((\w+), (\w+)((?:, \w+)*)\)")
VALUE = re.compile(r"\bv\d+\b")


def in_stages(
    load: Sequence[str], lines: Iterable[str], store: Iterable[str], reduced: Collection[str] = ()
) -> list[str]:
    """Return the loops of lines that run for each element.

    Args:
        load: gives names to inputs, which each loop reads again.
        lines: give names to what is computed, each of what stands before it.
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
        """Return the first loop that knows what a line reads."""
        read = [each for each in VALUE.findall(line) if each in known]
        stage = max((known[each] for each in read), default=0)
        kept.update([each for each in read if computed[each] < stage])
        return stage

    for line in lines:
        found = LINE.fullmatch(line)
        assert found is not None
        kinds[found[2]], name = found[1], found[2]
        stage = computed[name] = known[name] = place(found[3])
        whole = WHOLE.fullmatch(found[3])
        if whole is None:
            loops[stage].append(line)
            continue
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
