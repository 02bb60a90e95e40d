"""Passes over the elements in C, and what stands between them.

Of a value v7: w7 is that of a chunk, u7 that of a row or of all; t7 is what each chunk gives of a
sum, q7 what it gives of the sums of columns.
"""

from __future__ import annotations

from ...graph import ops
from .c_stages import LINE, in_stages
from .kernels import Parts, Place, indented
from .passes import COLUMN, FULL, ONE, ROW, Loop, Step, Total

# What reduces a chunk, and what joins two numbers.
REDUCTIONS = {
    ops.SUM: "sum", ops.SUM_TO: "sum", ops.MEAN: "sum", ops.VAR: "squares", ops.STD: "squares",
    ops.MAX: "largest", ops.MIN: "smallest",
}  # fmt: skip
COUNTS = {ONE: "n", ROW: "columns", COLUMN: "rows"}  # of what a mean is taken
FINISHED = {
    ops.MEAN: "{0} / {1}",
    ops.VAR: "{0} / fmax({1} - {2!r}, 0.0)",
    ops.STD: "sqrt({0} / fmax({1} - {2!r}, 0.0))",
}
TOTALS = """
#define JOIN_sum(a, b) ((a) + (b))
#define JOIN_squares JOIN_sum
#define JOIN_largest(a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define JOIN_smallest(a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define ADD_sum JOIN_sum
#define ADD_squares(a, b) ((a) + (b) * (b))
#define ADD_largest JOIN_largest
#define ADD_smallest JOIN_smallest
#define FIRST_sum 0
#define FIRST_squares 0
#define FIRST_largest -INFINITY
#define FIRST_smallest INFINITY
#define REDUCTION(name) \\
    static double name##_in_pairs(double *x, int64_t n) { \\
        for (int64_t half; n > 1; n = half) { \\
            half = (n + 1) / 2; \\
            for (int64_t i = half; i < n; i++) x[i - half] = JOIN_##name(x[i - half], x[i]); \\
        } \\
        return x[0]; \\
    } \\
    static double name(const R *x, int64_t n) { \\
        double lanes[LANES]; \\
        int64_t i = 0; \\
        for (int l = 0; l < LANES; l++) lanes[l] = FIRST_##name; \\
        for (; i + LANES <= n; i += LANES) \\
            for (int l = 0; l < LANES; l++) lanes[l] = ADD_##name(lanes[l], (double)x[i + l]); \\
        for (int half = LANES / 2; half; half /= 2) \\
            for (int l = 0; l < half; l++) lanes[l] = JOIN_##name(lanes[l], lanes[l + half]); \\
        double rest = FIRST_##name; \\
        for (; i < n; i++) rest = ADD_##name(rest, (double)x[i]); \\
        return JOIN_##name(lanes[0], rest); \\
    }
REDUCTION(sum)
REDUCTION(squares)
REDUCTION(largest)
REDUCTION(smallest)

static void sum_rows(double *x, int64_t n, int64_t columns) {
    for (int64_t half; n > 1; n = half) {
        half = (n + 1) / 2;
        for (int64_t i = half * columns; i < n * columns; i++) x[i - half * columns] += x[i];
    }
}
"""
PLACES = {FULL: "first + i", ROW: "row", COLUMN: "start + i", ONE: "0"}


def write(parts: Parts) -> str:
    """Return a kernel: `name(pointers, numbers, n, columns, threads, shares)`, which
    returns whether there was no memory for it. What it calls may read `shares`.
    """
    return _Kernel(parts).text()


class _Kernel:
    """Writes the passes of a kernel."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.inputs = {place.value: (i, place) for i, place in enumerate(parts.inputs)}
        self.steps = [step for loop in parts.loops for step in loop]
        self.totals = [total for step in self.steps for total in step.totals]
        read = {value for step in self.steps for value in step.reads}
        # What one step computes and another reads.
        self.homes = {
            name: kind
            for step in self.steps
            if step.space in (ROW, ONE)
            for kind, name, _ in map(self.named, step.lines)
            if name in read
        }
        of_rows = [step for step in self.steps if step.space == ROW]
        self.of_rows = {name for step in of_rows for name in self.names(step)}

    def named(self, line: str) -> tuple[str, str, str]:
        found = LINE.fullmatch(line)
        assert found is not None
        return found[1], found[2], found[3]

    def names(self, step: Step) -> list[str]:
        return [self.named(line)[1] for line in step.lines]

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
        """Return what chunks give in memory."""
        return [total for total in self.totals if total.kind != ROW]

    def chunks(self) -> list[str]:
        """Return how many there are, and the memory for what they give."""
        of_columns = [total for total in self.totals if total.kind == COLUMN]
        if not self.parts.is_by_rows:
            found = ["const int64_t chunks = (n + CHUNK - 1) / CHUNK;"]
        else:
            # Not many where each gives the sums of all columns.
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
        place = "memory"
        for total in self.sums():
            name = f"{'q' if total.kind == COLUMN else 't'}{total.value[1:]}"
            found.append(f"double *const {name} = {place};")
            place = f"{name} + chunks{' * columns' if total.kind == COLUMN else ''}"
        return found

    def loop(self, loop: Loop) -> list[str]:
        """Return a pass over the elements, or a step in between."""
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

    def once(self, step: Step) -> list[str]:
        """Return a step for a row or for all."""
        inside = ["const int64_t m = 1;", *self.stages(step)]
        return ["{", *[f"    {line}" for line in inside], "}"]

    def over_columns(self, step: Step) -> list[str]:
        inside = ["const int64_t m = MIN(columns - start, CHUNK);", *self.stages(step)]
        begin = "for (int64_t start = 0; start < columns; start += CHUNK) {"
        return [begin, *[f"    {line}" for line in inside], "}"]

    def over_chunk(self, step: Step) -> list[str]:
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

    def over_row(self, step: Step) -> list[str]:
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

    def stages(self, step: Step) -> list[str]:
        """Return the loops of a step over m elements."""
        before, load, store, after = [], [], [], []
        for value in step.reads:
            if value not in self.inputs:
                is_summed = any(t.value == value and t.kind == COLUMN for t in self.totals)
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
        """Return the line that reads what another step has computed."""
        i = value[1:]
        for total in self.totals:
            if total.value == value and total.kind == COLUMN:
                return f"const R {value} = {finished(total, f'q{i}[start + i]')};"
        return f"const {self.homes.get(value, 'R')} {value} = u{i};"


def finished(total: Total, text: str) -> str:
    return f"(R)({total.finished(text, FINISHED, COUNTS)})"


def kind_of(place: Place) -> str:
    return "uint8_t" if place.is_mask else "S"
