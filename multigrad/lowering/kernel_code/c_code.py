"""Kernels in C: loops over the elements, in chunks or rows that threads share.

The result of a reduction does not depend on the number of threads: chunks have one length, each is
summed by a fixed number of lanes, and their sums in pairs; in double, whatever the dtype.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ...graph import ops
from ...graph.ir.op import Op
from ...graph.support.params import COLUMN, FULL, ONE, ROW
from .kernels import INFIX, SAME, KernelTensor, Language, Parts, indented
from .passes import Loop, LoopStep, Total

# The C functions that reduce a chunk, of `c_preamble.py`.
REDUCTIONS = {
    ops.SUM: "sum", ops.SUM_TO: "sum", ops.MEAN: "sum", ops.VAR: "squares", ops.STD: "squares",
    ops.MAX: "largest", ops.MIN: "smallest",
}  # fmt: skip
COUNTS = {ONE: "n", ROW: "columns", COLUMN: "rows"}  # the divisor of a mean
# {0} is the total, {1} the count, {2} the correction.
FINISHED = {
    ops.MEAN: "{0} / {1}",
    ops.VAR: "{0} / fmax({1} - {2!r}, 0.0)",
    ops.STD: "sqrt({0} / fmax({1} - {2!r}, 0.0))",
}
# The index of an element in memory, by the kind of a layout.
PLACES = {FULL: "first + i", ROW: "row", COLUMN: "start + i", ONE: "0"}


def write(parts: Parts) -> str:
    """Return `name(pointers, numbers, n, columns, threads, shares)`; it returns 1 without memory.

    What it calls may read `shares`.
    """
    return _Kernel(parts).text()


class _Kernel:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.inputs = {place.value: (i, place) for i, place in enumerate(parts.inputs)}
        self.steps = [step for loop in parts.loops for step in loop]
        self.totals = [total for step in self.steps for total in step.totals]
        read = {value for step in self.steps for value in step.reads}
        # Names, with C types, that one step computes and another reads.
        self.homes = {
            name: kind
            for step in self.steps
            if step.space in (ROW, ONE)
            for kind, name, _ in map(named, step.lines)
            if name in read
        }
        of_rows = [step for step in self.steps if step.space == ROW]
        self.of_rows = {name for step in of_rows for name in self.names(step)}

    def names(self, step: LoopStep) -> list[str]:
        return [named(line)[1] for line in step.lines]

    def text(self) -> str:
        parts = self.parts
        begin = []
        for i, each in enumerate(parts.inputs):
            begin.append(f"const {kind_of(each)} *restrict a{i} = p[{i}];")
        for j, each in enumerate(parts.results):
            begin.append(f"{kind_of(each)} *restrict r{j} = p[{len(parts.inputs) + j}];")
            if not each.is_packed and each.layout.kind == FULL:
                begin.append(f"ask_for_large_pages(r{j}, n * sizeof *r{j});")
        begin += [f"const double d{i} = numbers[{i}];" for i in range(parts.numbers)]
        begin += [f"const R s{i} = (R)d{i};" for i in range(parts.numbers)]
        # `s` is the number in R, `c` the number rounded to the dtype in memory.
        rounds = "load(store(s{0}))" if parts.dtype in ("bfloat16", "float16") else "s{0}"
        begin += [f"const R c{i} = {rounds.format(i)};" for i in range(parts.numbers)]
        begin += self.chunks()
        begin += [f"{k} u{n[1:]};" for n, k in self.homes.items() if n not in self.of_rows]
        begin += [f"R u{total.value[1:]};" for total in self.totals if total.kind == ONE]
        loops = [line for loop in parts.loops for line in self.loop(loop)]
        end = ["free(memory);"] if self.sums() else []
        return f"""
int32_t {parts.name}(
    void **p, const double *numbers, int64_t n, int64_t columns, int32_t threads, int32_t shares
) {{
{indented([*begin, *loops, *end, "return 0;"], 4)}\
}}
"""

    def sums(self) -> list[Total]:
        return [total for total in self.totals if total.kind != ROW]

    def chunks(self) -> list[str]:
        of_columns = [total for total in self.totals if total.kind == COLUMN]
        if not self.parts.is_by_rows:
            found = ["const int64_t chunks = (n + CHUNK - 1) / CHUNK;"]
        else:
            # At most 256 chunks if each has the sums of all columns.
            found = [
                "const int64_t rows = n / columns;",
                "int64_t some = MIN(CHUNK / columns + 1, 64);",
                *["if (some < (rows + 255) / 256) some = (rows + 255) / 256;"][: len(of_columns)],
                "const int64_t chunks = (rows + some - 1) / some;",
            ]
        if not self.sums():
            return found
        counts = f"({len(self.sums()) - len(of_columns)} + {len(of_columns)} * columns)"
        found.append(f"double *memory = malloc(chunks * {counts} * sizeof *memory);")
        found.append("if (!memory) return 1;")
        # One block of memory, divided among the totals.
        place = "memory"
        for total in self.sums():
            name = f"{'q' if total.kind == COLUMN else 't'}{total.value[1:]}"
            found.append(f"double *const {name} = {place};")
            place = f"{name} + chunks{' * columns' if total.kind == COLUMN else ''}"
        return found

    def loop(self, loop: Loop) -> list[str]:
        if loop[0].space == ONE:
            return self.once(loop[0])
        if loop[0].space == COLUMN:
            return self.over_columns(loop[0])
        inside = self.over_rows(loop) if self.parts.is_by_rows else self.over_chunk(loop[0])
        text = [
            "#pragma omp parallel for num_threads(threads) schedule(static)",
            "for (int64_t c = 0; c < chunks; c++) {",
            *[f"    {line}" for line in inside],
            "}",
        ]
        for total in [total for step in loop for total in step.totals]:
            i, how = total.value[1:], REDUCTIONS[total.op]
            if total.kind == ONE:
                text.append(f"u{i} = {finished(total, f'{how}_in_pairs(t{i}, chunks)')};")
            elif total.kind == COLUMN:
                text.append(f"sum_rows(q{i}, chunks, columns);")
        return text

    def once(self, step: LoopStep) -> list[str]:
        inside = ["const int64_t m = 1;", *self.stages(step)]
        return ["{", *[f"    {line}" for line in inside], "}"]

    def over_columns(self, step: LoopStep) -> list[str]:
        inside = ["const int64_t m = MIN(columns - start, CHUNK);", *self.stages(step)]
        begin = "for (int64_t start = 0; start < columns; start += CHUNK) {"
        return [begin, *[f"    {line}" for line in inside], "}"]

    def over_chunk(self, step: LoopStep) -> list[str]:
        begin = "const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;"
        values = [(total.value[1:], REDUCTIONS[total.op]) for total in step.totals]
        ends = [f"t{i}[c] = {how}(w{i}, m);" for i, how in values]
        return [begin, *self.stages(step), *ends]

    def over_rows(self, loop: Loop) -> list[str]:
        totals = [total for step in loop for total in step.totals]
        begin = ["const int64_t end = MIN((c + 1) * some, rows);"]
        end = []
        inside = [f"{k} u{n[1:]};" for n, k in self.homes.items() if n in self.of_rows]
        inside += [f"R u{total.value[1:]};" for total in totals if total.kind == ROW]
        for total in totals:
            i = total.value[1:]
            if total.kind == ONE:
                begin.append(f"double sum{i} = FIRST_{REDUCTIONS[total.op]};")
                end.append(f"t{i}[c] = sum{i};")
            elif total.kind == COLUMN:
                begin.append(f"double *restrict own{i} = q{i} + c * columns;")
                begin.append(f"memset(own{i}, 0, columns * sizeof *own{i});")
        for step in loop:
            inside += self.once(step) if step.space == ROW else self.over_row(step)
        rows = ["for (int64_t row = c * some; row < end; row++) {"]
        return [*begin, *rows, *[f"    {line}" for line in inside], "}", *end]

    def over_row(self, step: LoopStep) -> list[str]:
        begin, end, after = [], [], []
        for total in step.totals:
            i, how = total.value[1:], REDUCTIONS[total.op]
            if total.kind == COLUMN:
                continue
            if total.kind == ROW:
                begin.append(f"double sum{i} = FIRST_{how};")
                after.append(f"u{i} = {finished(total, f'sum{i}')};")
            end.append(f"const double more{i} = {how}(w{i}, m);")
            end.append(f"sum{i} = JOIN_{how}(sum{i}, more{i});")
        sizes = "first = row * columns + start, m = MIN(columns - start, CHUNK)"
        inside = [f"const int64_t {sizes};", *self.stages(step), *end]
        chunks = "for (int64_t start = 0; start < columns; start += CHUNK) {"
        return [*begin, chunks, *[f"    {line}" for line in inside], "}", *after]

    def stages(self, step: LoopStep) -> list[str]:
        before, load, store, after = [], [], [], []
        for value in step.reads:
            if value not in self.inputs:
                is_summed = any(t.value == value and t.kind == COLUMN for t in self.totals)
                # Sums of columns are read for each element, other numbers before the loop.
                (load if is_summed else before).append(self.computed(value))
                continue
            i, each = self.inputs[value]
            place = f"a{i}[{PLACES[each.layout.kind]}]"
            if each.is_packed:
                before.append(f"uint8_t m{i}[CHUNK];")
                before.append(f"unpack(m{i}, a{i} + first / 8, m);")
                place = f"m{i}[i]"
            word = f"int {value} = {place}" if each.is_mask else f"R {value} = load({place})"
            (before if each.layout.kind in (ROW, ONE) else load).append(f"const {word};")
        for j in step.results:
            each = self.parts.results[j]
            if each.is_packed:
                before.append(f"uint8_t k{j}[CHUNK];")
                store.append(f"k{j}[i] = {each.value};")
                # Zeros up to a multiple of 8, because whole bytes are packed.
                after.append(f"for (int64_t i = m; i % 8; i++) k{j}[i] = 0;")
                after.append(f"pack(r{j} + first / 8, k{j}, m);")
            else:
                value = each.value if each.is_mask else f"store({each.value})"
                store.append(f"r{j}[{PLACES[each.layout.kind]}] = {value};")
        if step.space in (ROW, ONE):
            store += [f"u{name[1:]} = {name};" for name in self.names(step) if name in self.homes]
        columns = [total.value for total in step.totals if total.kind == COLUMN]
        store += [f"own{value[1:]}[start + i] += {value};" for value in columns]
        reduced = [total.value for total in step.totals if total.kind != COLUMN]
        return [*before, *in_stages(load, step.lines, store, reduced), *after]

    def computed(self, value: str) -> str:
        i = value[1:]
        for total in self.totals:
            if total.value == value and total.kind == COLUMN:
                return f"const R {value} = {finished(total, f'q{i}[start + i]')};"
        return f"const {self.homes.get(value, 'R')} {value} = u{i};"


def finished(total: Total, text: str) -> str:
    return f"(R)({total.finished(text, FINISHED, COUNTS)})"


def kind_of(place: KernelTensor) -> str:
    return "uint8_t" if place.is_mask else "S"


# --- loops, divided at calls for a whole chunk ----------------------------------------------------

# A line such as `const R v3 = WHOLE(torch_exp, v2);` calls a function that is faster for many
# elements at once. It ends a loop; what a later loop needs is stored for the whole chunk, v3 at w3:
#
#     for (...) { v2 = ...; w3[i] = v2; }
#     torch_exp(w3, m);
#     for (...) { v3 = w3[i]; ... }
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


# --- expressions ----------------------------------------------------------------------------------

# Nobody reads C's floating-point exceptions; and threads, which macOS's clang lacks.
FLAGS = ("-fno-trapping-math", "-fopenmp")
ROWS: dict[Op, str] = {
    **INFIX,
    **SAME,
    ops.DIV: "{} / {}",
    ops.NEG: "-{}",
    ops.NOT: "!{}",
    ops.ABS: "FABS({})",
    ops.SQUARE: "{0} * {0}",
    ops.SQRT: "SQRT({})",
    ops.RSQRT: "1 / SQRT({})",
    ops.RECIPROCAL: "1 / {}",
    ops.FLOOR: "FLOOR({})",
    ops.CEIL: "CEIL({})",
    ops.TRUNC: "TRUNC({})",
    ops.ROUND: "RINT({})",
    ops.COPYSIGN: "COPYSIGN({}, {})",
    ops.REMAINDER: "remainder_of({}, {})",
    ops.WHERE: "{} ? {} : {}",
    # NaN of either operand propagates; of equal ones, such as zeros of two signs, the second is
    # taken, and it is also the one that is tested for NaN: the first may be such a choice itself,
    # and then GCC does not vectorize.
    ops.MAXIMUM: "!({0} <= {1}) & ({1} == {1}) ? {0} : {1}",
    ops.MINIMUM: "!({0} >= {1}) & ({1} == {1}) ? {0} : {1}",
    ops.CLIP: "CLIP({}, {}, {})",
    ops.SIGN: "{0} != {0} ? {0} : (R)(({0} > 0) - ({0} < 0))",
    ops.ISNAN: "{0} != {0}",
    ops.ISINF: "FABS({}) == INFINITY",
    ops.ISFINITE: "FABS({}) < INFINITY",
    ops.HEAVISIDE: "(R)({} > 0)",
    ops.RELU: "{0} < 0 ? 0 : {0}",
    ops.RELU6: "CLIP({}, 0, 6)",
    ops.LEAKY_RELU: "{0} > 0 ? {0} : {0} * (R){slope}",
}
BY_NUMBER = {ops.MAXIMUM: "{0} < {1} ? {1} : {0}", ops.MINIMUM: "{0} > {1} ? {1} : {0}"}

C = Language(
    ROWS,
    write,
    BY_NUMBER,
    line="const R {} = {};",
    mask_line="const int {} = {};",
    to_number="(R){}",
    rounded="load(store({}))",
    reductions=REDUCTIONS,
)
