"""Kernels in C: loops over the elements, in chunks or rows that threads share.

x minus its mean comes out as follows, without the kernel's arguments (`c_preamble.py` has the
types S, of memory, and R, in which is computed, and what is called):

    double *const t1 = memory;                      the sum of each chunk
    R u1;
    for (int64_t c = 0; c < chunks; c++) {          `Parts.loops`: a loop of one step, by threads
        const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;
        R w1[CHUNK];
        for (int64_t i = 0; i < m; i++) {
            const R v0 = load(a0[first + i]);       the step's lines name v0, v1, ...
            const R v1 = v0;
            w1[i] = v1;
        }
        t1[c] = sum(w1, m);
    }
    u1 = (R)(sum_in_pairs(t1, chunks) / n);
    for (int64_t c = 0; c < chunks; c++) {          the second loop
        const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;
        const R v1 = u1;
        for (int64_t i = 0; i < m; i++) {
            const R v0 = load(a0[first + i]);
            const R v2 = v0 - v1;
            r0[first + i] = store(v2);
        }
    }

So v7 is a value within a loop over elements, and the same value elsewhere is u7, one number for
later loops; w7, of a whole chunk; t7, the totals of chunks; q7, chunks of totals of columns.

The result of a reduction does not depend on the number of threads: chunks have one length, each is
summed by a fixed number of lanes, and their sums in pairs; in double, whatever the dtype.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from ....core import ops
from ....core.ir.op import Op
from .kernels import INFIX, SAME, KernelTensor, Language, Parts, indented
from .passes import COLUMN, FULL, ONE, ROW, Loop, LoopStep, Total

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
INDICES = {FULL: "first + i", ROW: "row", COLUMN: "start + i", ONE: "0"}


def write(parts: Parts) -> str:
    """Return `name(pointers, numbers, n, columns, threads, shares)`; it returns 1 without memory.

    What it calls may read `shares`.
    """
    return _Kernel(parts).text()


class _Kernel:
    """Writes one kernel, from the whole to the content of a loop over elements."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.inputs = {place.value: (i, place) for i, place in enumerate(parts.inputs)}
        # The totals to which each chunk gives a part, in memory; those of rows need none.
        self.shared = [total for total in parts.totals if total.kind != ROW]
        self.columns = [total for total in parts.totals if total.kind == COLUMN]
        # The C types of values of a row, and of all, that one step computes and another reads.
        reads = {value for step in parts.steps for value in step.reads}
        self.passed_on: dict[str, dict[str, str]] = {ROW: {}, ONE: {}}
        for step in parts.steps:
            if step.space in self.passed_on:
                types = {name: kind for kind, name, _ in map(parse, step.lines) if name in reads}
                self.passed_on[step.space].update(types)

    def text(self) -> str:
        lines = [*self.arguments(), *self.chunks(), *self.numbers_of(ONE, self.parts.totals)]
        for loop in self.parts.loops:
            lines += self.loop(loop)
        lines += ["free(memory);"] if self.shared else []
        return f"""
int32_t {self.parts.name}(
    void **p, const double *numbers, int64_t n, int64_t columns, int32_t threads, int32_t shares
) {{
{indented([*lines, "return 0;"], 4)}\
}}
"""

    def arguments(self) -> list[str]:
        parts, lines = self.parts, []
        for i, each in enumerate(parts.inputs):
            lines.append(f"const {type_of(each)} *restrict a{i} = p[{i}];")
        for j, each in enumerate(parts.results):
            lines.append(f"{type_of(each)} *restrict r{j} = p[{len(parts.inputs) + j}];")
            if not each.is_packed and each.layout.kind == FULL:
                lines.append(f"ask_for_large_pages(r{j}, n * sizeof *r{j});")
        lines += [f"const double d{i} = numbers[{i}];" for i in range(parts.numbers)]
        lines += [f"const R s{i} = (R)d{i};" for i in range(parts.numbers)]
        # `s` is the number in R, `c` the number rounded to the dtype in memory.
        rounding = "load(store(s{0}))" if parts.dtype in ("bfloat16", "float16") else "s{0}"
        return lines + [f"const R c{i} = {rounding.format(i)};" for i in range(parts.numbers)]

    def chunks(self) -> list[str]:
        """Return the number of chunks, and memory for their parts of totals."""
        lines = ["const int64_t chunks = (n + CHUNK - 1) / CHUNK;"]
        if self.parts.is_by_rows:
            # `some` is the number of rows in a chunk.
            lines = ["const int64_t rows = n / columns;"]
            lines.append("int64_t some = MIN(CHUNK / columns + 1, 64);")
            if self.columns:  # of which each chunk has all sums: at most 256 chunks
                lines.append("if (some < (rows + 255) / 256) some = (rows + 255) / 256;")
            lines.append("const int64_t chunks = (rows + some - 1) / some;")
        if not self.shared:
            return lines
        numbers = f"({len(self.shared) - len(self.columns)} + {len(self.columns)} * columns)"
        lines.append(f"double *memory = malloc(chunks * {numbers} * sizeof *memory);")
        lines.append("if (!memory) return 1;")
        # One block of memory, divided among the totals.
        begin = "memory"
        for total in self.shared:
            is_column = total.kind == COLUMN
            name = renamed(total.value, "q" if is_column else "t")
            lines.append(f"double *const {name} = {begin};")
            begin = f"{name} + chunks{' * columns' if is_column else ''}"
        return lines

    def numbers_of(self, space: str, totals: Iterable[Total]) -> list[str]:
        """Return the declarations of u7 for values, and totals, of all or of a row."""
        values = [f"{kind} {renamed(name, 'u')};" for name, kind in self.passed_on[space].items()]
        return values + [f"R {renamed(t.value, 'u')};" for t in totals if t.kind == space]

    def loop(self, loop: Loop) -> list[str]:
        first = loop[0]
        if first.space == ONE:
            return self.once(first)
        if first.space == COLUMN:
            body = ["const int64_t m = MIN(columns - start, CHUNK);", *self.elements(first)]
            return block("for (int64_t start = 0; start < columns; start += CHUNK) {", body)
        body = self.rows_of_chunk(loop) if self.parts.is_by_rows else self.chunk(first)
        lines = ["#pragma omp parallel for num_threads(threads) schedule(static)"]
        lines += block("for (int64_t c = 0; c < chunks; c++) {", body)
        for total in [total for step in loop for total in step.totals]:
            i = total.value[1:]
            if total.kind == ONE:
                text = finished(total, f"{REDUCTIONS[total.op]}_in_pairs(t{i}, chunks)")
                lines.append(f"u{i} = {text};")
            elif total.kind == COLUMN:
                lines.append(f"sum_rows(q{i}, chunks, columns);")
        return lines

    def once(self, step: LoopStep) -> list[str]:
        """Return the code of a step for one number, or one row: a loop of one turn."""
        return block("{", ["const int64_t m = 1;", *self.elements(step)])

    def chunk(self, step: LoopStep) -> list[str]:
        begin = "const int64_t first = c * CHUNK, m = n - first < CHUNK ? n - first : CHUNK;"
        values = [(total.value[1:], REDUCTIONS[total.op]) for total in step.totals]
        ends = [f"t{i}[c] = {reduce}(w{i}, m);" for i, reduce in values]
        return [begin, *self.elements(step), *ends]

    def rows_of_chunk(self, loop: Loop) -> list[str]:
        totals = [total for step in loop for total in step.totals]
        starts, ends = ["const int64_t end = MIN((c + 1) * some, rows);"], []
        for total in totals:
            i = total.value[1:]
            if total.kind == ONE:
                starts.append(f"double sum{i} = FIRST_{REDUCTIONS[total.op]};")
                ends.append(f"t{i}[c] = sum{i};")
            elif total.kind == COLUMN:
                starts.append(f"double *restrict own{i} = q{i} + c * columns;")
                starts.append(f"memset(own{i}, 0, columns * sizeof *own{i});")
        body = self.numbers_of(ROW, totals)
        for step in loop:
            body += self.once(step) if step.space == ROW else self.row(step)
        rows = block("for (int64_t row = c * some; row < end; row++) {", body)
        return [*starts, *rows, *ends]

    def row(self, step: LoopStep) -> list[str]:
        prologue, ends, epilogue = [], [], []
        for total in step.totals:
            i, reduce = total.value[1:], REDUCTIONS[total.op]
            if total.kind == COLUMN:
                continue
            if total.kind == ROW:
                prologue.append(f"double sum{i} = FIRST_{reduce};")
                epilogue.append(f"u{i} = {finished(total, f'sum{i}')};")
            ends.append(f"const double more{i} = {reduce}(w{i}, m);")
            ends.append(f"sum{i} = JOIN_{reduce}(sum{i}, more{i});")
        sizes = "const int64_t first = row * columns + start, m = MIN(columns - start, CHUNK);"
        body = [sizes, *self.elements(step), *ends]
        chunks = block("for (int64_t start = 0; start < columns; start += CHUNK) {", body)
        return [*prologue, *chunks, *epilogue]

    def elements(self, step: LoopStep) -> list[str]:
        """Return the loops over m elements: what the step reads, its lines, and what it stores."""
        prologue, loads, stores, epilogue = [], [], [], []
        for value in step.reads:
            if value not in self.inputs:
                # Totals of columns are read for each element, other numbers before the loop.
                column = next((each for each in self.columns if each.value == value), None)
                if column is not None:
                    source = finished(column, f"{renamed(value, 'q')}[start + i]")
                    loads.append(f"const R {value} = {source};")
                else:
                    kind = {**self.passed_on[ROW], **self.passed_on[ONE]}.get(value, "R")
                    prologue.append(f"const {kind} {value} = {renamed(value, 'u')};")
                continue
            i, each = self.inputs[value]
            source = f"a{i}[{INDICES[each.layout.kind]}]"
            if each.is_packed:
                prologue += [f"uint8_t m{i}[CHUNK];", f"unpack(m{i}, a{i} + first / 8, m);"]
                source = f"m{i}[i]"
            line = f"int {value} = {source}" if each.is_mask else f"R {value} = load({source})"
            (prologue if each.layout.kind in (ROW, ONE) else loads).append(f"const {line};")
        for j in step.results:
            each = self.parts.results[j]
            if each.is_packed:
                prologue.append(f"uint8_t k{j}[CHUNK];")
                stores.append(f"k{j}[i] = {each.value};")
                # Zeros up to a multiple of 8, because whole bytes are packed.
                epilogue.append(f"for (int64_t i = m; i % 8; i++) k{j}[i] = 0;")
                epilogue.append(f"pack(r{j} + first / 8, k{j}, m);")
            else:
                text = each.value if each.is_mask else f"store({each.value})"
                stores.append(f"r{j}[{INDICES[each.layout.kind]}] = {text};")
        passed_on = self.passed_on.get(step.space, {})
        names = [name for _, name, _ in map(parse, step.lines) if name in passed_on]
        stores += [f"{renamed(name, 'u')} = {name};" for name in names]
        columns = [total.value for total in step.totals if total.kind == COLUMN]
        stores += [f"{renamed(value, 'own')}[start + i] += {value};" for value in columns]
        reductions = [total.value for total in step.totals if total.kind != COLUMN]
        return [*prologue, *in_stages(loads, step.lines, stores, reductions), *epilogue]


def renamed(value: str, letter: str) -> str:
    """Return the name of a value in another place: u7 for v7."""
    return f"{letter}{value[1:]}"


def block(head: str, inside: Iterable[str]) -> list[str]:
    return [head, *[f"    {line}" for line in inside], "}"]


def finished(total: Total, text: str) -> str:
    return f"(R)({total.finished(text, FINISHED, COUNTS)})"


def type_of(place: KernelTensor) -> str:
    return "uint8_t" if place.is_mask else "S"


# --- loops, divided at calls for a whole chunk ----------------------------------------------------

# A line such as `const R v3 = WHOLE(torch_exp, v2);` calls a function that is faster for many
# elements at once. It ends a loop, a stage; what a later one needs is stored for the whole chunk:
#
#     for (...) { v2 = ...; v3 = v2; w3[i] = v3; }
#     torch_exp(w3, m);
#     for (...) { v3 = w3[i]; ... }
LINE = re.compile(r"const (int|R) (v\d+) = (.*);")
WHOLE = re.compile(r"WHOLE\((\w+), (\w+)((?:, \w+)*)\)")
VALUE = re.compile(r"\bv\d+\b")


def parse(line: str) -> tuple[str, str, str]:
    """Return the C type, the name and the expression of a line that names an expression."""
    match = LINE.fullmatch(line)
    assert match is not None
    return match[1], match[2], match[3]


def in_stages(
    load: Sequence[str], lines: Iterable[str], store: Iterable[str], reduced: Collection[str]
) -> list[str]:
    """Return the loops of lines that run for each element.

    Args:
        load: gives names to inputs, which each loop reads again.
        lines: each names an expression of names before it.
        store: write results.
        reduced: values that are read after the loops for the whole chunk.
    """
    kinds: dict[str, str] = {}
    stage_of: dict[str, int] = {}  # the stage in which a value is computed
    ready_at: dict[str, int] = {}  # the first stage that may read it
    arrays = {*reduced}  # the values that are stored for the whole chunk
    stages: list[list[str]] = [[]]
    calls: list[list[str]] = [[]]  # after each stage
    declarations: list[str] = []

    def find_stage(text: str) -> int:
        # The first in which all is known that the text reads.
        operands = [each for each in VALUE.findall(text) if each in ready_at]
        stage = max((ready_at[each] for each in operands), default=0)
        arrays.update([each for each in operands if stage_of[each] < stage])
        return stage

    for line in lines:
        kind, name, expression = parse(line)
        kinds[name] = kind
        stage = stage_of[name] = ready_at[name] = find_stage(expression)
        call = WHOLE.fullmatch(expression)
        if call is None:
            stages[stage].append(line)
            continue
        function, operand, extras = call.groups()
        ready_at[name] += 1
        arrays.add(name)
        stages[stage].append(f"const R {name} = {operand};")
        # A second operand is stored, too: e3 is that of v3.
        extra_array = renamed(name, "e")
        for extra in VALUE.findall(extras):
            declarations.append(f"R {extra_array}[CHUNK];")
            stages[stage].append(f"{extra_array}[i] = {extra};")
        calls[stage].append(f"{function}({renamed(name, 'w')}, m{VALUE.sub(extra_array, extras)});")
        if ready_at[name] == len(stages):
            stages.append([])
            calls.append([])
    for line in store:
        stages[find_stage(line)].append(line)
    for name in sorted(arrays, key=lambda each: int(each[1:])):
        element = "uint8_t" if kinds[name] == "int" else "R"
        declarations.append(f"{element} {renamed(name, 'w')}[CHUNK];")
    text = [*declarations]
    for stage, body in enumerate(stages):
        earlier = [each for each in kinds if each in arrays and stage_of[each] < stage]
        reads = [f"const {kinds[each]} {each} = {renamed(each, 'w')}[i];" for each in earlier]
        current = [each for each in kinds if each in arrays and stage_of[each] == stage]
        saves = [f"{renamed(each, 'w')}[i] = {each};" for each in current]
        text += block("for (int64_t i = 0; i < m; i++) {", [*load, *reads, *body, *saves])
        text += calls[stage]
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
