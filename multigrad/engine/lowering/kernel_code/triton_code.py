"""Kernels in Triton, for GPUs: launches, whose programs share the elements or the rows.

The source is a module's text, without names that people or files have: tensors are a0, r0, ..., and
numbers are float64 arguments. It needs `enable_fp_fusion=False`. The programs' parts of a sum over
all lie in memory until the next launch, each program of which adds them up; a last launch writes
what depends on such sums only. A sum of columns is added up by a launch over the columns. One
program reads a row, block after block.
"""

from __future__ import annotations

from typing import NamedTuple

from ....core import ops
from ....core.ir.op import Op
from ....core.passes.decisions import EXACT, NUMBER_OVER
from .kernels import COMPUTED, INFIX, SAME, KernelTensor, Language, Parts, check_dtype, indented
from .passes import COLUMN, FULL, ONE, REDUCTIONS, ROW, SQUARED, Loop, LoopStep, Total

BEGIN = "import triton.language as tl\nfrom triton.language.extra import libdevice\n"
# As in torch on GPUs: NaN of either operand propagates, and 0 is larger than -0.
NAN = "propagate_nan=tl.PropagateNan.ALL"
LIMITS = {
    ops.MAXIMUM: f"tl.maximum({{}}, {{}}, {NAN})",
    ops.MINIMUM: f"tl.minimum({{}}, {{}}, {NAN})",
}
# CUDA's own, which torch calls on GPUs; `tl.exp` and its kind are approximate.
FUNCTIONS = {
    ops.EXP: "exp", ops.EXP2: "exp2", ops.EXPM1: "expm1", ops.LOG: "log", ops.LOG1P: "log1p",
    ops.LOG2: "log2", ops.LOG10: "log10", ops.SIN: "sin", ops.COS: "cos", ops.TAN: "tan",
    ops.ASIN: "asin", ops.ACOS: "acos", ops.ATAN: "atan", ops.SINH: "sinh", ops.COSH: "cosh",
    ops.TANH: "tanh", ops.ASINH: "asinh", ops.ACOSH: "acosh", ops.ATANH: "atanh", ops.ERF: "erf",
    ops.ERFC: "erfc",
}  # fmt: skip
# `/` and `tl.sqrt` of float32 are approximate on a GPU; those of float64 are not.
QUOTIENTS = {"float32": "tl.math.div_rn({}, {})", "float64": "{} / {}"}
ROOTS = {"float32": "tl.math.sqrt_rn({})", "float64": "tl.sqrt({})"}
# By dtype: the number from which on there are no fractions, and the number of bits.
WHOLE = {"float32": 2.0**23, "float64": 2.0**52}
BITS = {"float32": 32, "float64": 64}


def copysign(computed: str) -> str:
    # By their bits: the magnitude of one number, the sign of another.
    bits = BITS[computed]
    magnitude = f"({{}}.to(tl.uint{bits}, bitcast=True) << 1 >> 1)"
    sign = f"({{}}.to(tl.uint{bits}, bitcast=True) >> {bits - 1} << {bits - 1})"
    return f"({magnitude} | {sign}).to(tl.{computed}, bitcast=True)"


def rows(computed: str) -> dict[Op, str]:
    """Return the expressions of ops in kernels that compute in this dtype."""
    number = f"tl.{computed}"
    quotient, root, threshold = QUOTIENTS[computed], ROOTS[computed], WHOLE[computed]
    sign = f"({{0}} > 0).to({number}) - ({{0}} < 0).to({number})"
    signed = copysign(computed)
    clip = LIMITS[ops.MINIMUM].format(LIMITS[ops.MAXIMUM].format("{0}", "{1}"), "{2}")
    fmod = "libdevice.fmod({0}, {1})"
    wrong_sign = f"({fmod} != 0) & (({{1}} < 0) != ({fmod} < 0))"
    remainder = f"tl.where({wrong_sign}, {fmod} + {{1}}, {fmod})"
    one_and_exp = "(1.0 + libdevice.exp(-{0}))"
    # Adding it leaves no bit for fractions. Triton's own floor and ceil (3.7) lose subnormals.
    nearest = signed.format(f"((tl.abs({{0}}) + {threshold}) - {threshold})", "{0}")
    nearest = f"tl.where(tl.abs({{0}}) < {threshold}, {nearest}, {{0}})"
    floor = f"({nearest} - ({nearest} > {{0}}).to({number}))"
    return {
        **INFIX,
        **SAME,
        **{op: f"libdevice.{name}({{}})" for op, name in FUNCTIONS.items()},
        ops.SIGMOID: quotient.format("1.0", one_and_exp),
        ops.SILU: quotient.format("{0}", one_and_exp),
        ops.DIV: quotient,
        NUMBER_OVER: quotient,
        ops.NEG: "{} * -1.0",  # `-x` is 0 - x, of which zeros have another sign
        ops.NOT: "~{}",
        ops.ABS: "tl.abs({})",
        ops.SQUARE: "{0} * {0}",
        ops.SQRT: root,
        EXACT[ops.SQRT]: root,
        ops.RSQRT: quotient.format("1.0", root),
        ops.RECIPROCAL: quotient.format("1.0", "{}"),
        ops.FLOOR: floor,
        ops.CEIL: signed.format(f"({nearest} + ({nearest} < {{0}}).to({number}))", "{0}"),
        ops.TRUNC: signed.format(floor.format("tl.abs({0})"), "{0}"),
        ops.ROUND: nearest,
        ops.COPYSIGN: signed,
        ops.REMAINDER: remainder,
        ops.POW: f"libdevice.pow({{0}}.to({number}), {{1}}.to({number}))",
        ops.WHERE: "tl.where({}, {}, {})",
        **LIMITS,
        ops.CLIP: clip,
        ops.SIGN: f"tl.where({{0}} != {{0}}, {{0}}, {sign})",
        ops.ISNAN: "{0} != {0}",
        ops.ISINF: 'tl.abs({}) == float("inf")',
        ops.ISFINITE: 'tl.abs({}) < float("inf")',
        ops.HEAVISIDE: f"({{}} > 0).to({number})",
        ops.RELU: LIMITS[ops.MAXIMUM].format("{0}", "0.0"),
        ops.RELU6: clip.format("{0}", "0.0", "6.0"),
        ops.LEAKY_RELU: f"tl.where({{0}} > 0, {{0}}, {{0}} * tl.full((), {{slope}}, {number}))",
    }


def power_by_number(computed: str) -> str:
    """Return the power with a number as exponent, as torch computes it on GPUs."""
    quotient, root = QUOTIENTS[computed], ROOTS[computed]
    exponent = f"{{1}}.to(tl.{computed})"
    result = f"libdevice.pow({{0}}, {exponent})"
    # Some exponents are special cases, of which torch rounds 2, -2 and 3 to the dtype first.
    for condition, power in (
        (f"{exponent} == 3", "{0} * {0} * {0}"),
        (f"{exponent} == 2", "{0} * {0}"),
        (f"{exponent} == -2", quotient.format("1.0", "({0} * {0})")),
        ("{1} == -1", quotient.format("1.0", "{0}")),
        ("{1} == 0.5", root.format("{0}")),
        ("{1} == -0.5", quotient.format("1.0", root.format("{0}"))),
        ("{1} == 1", "{0}"),
    ):
        result = f"tl.where({condition}, {power}, {result})"
    return result


def language(dtype: str) -> Language:
    """Return how kernels are written; raise CannotFuseError for a dtype without any."""
    check_dtype(dtype)
    computed = COMPUTED[dtype]
    number, in_memory = f"{{}}.to(tl.{computed})", f"{{}}.to(tl.{dtype})"
    rounded = number.format(in_memory)
    return Language(
        rows(computed),
        write,
        {ops.POW: power_by_number(computed)},
        to_number=number,
        rounded=rounded,
        reductions=REDUCTIONS,
    )


MOST = 1024  # programs that give parts of a sum
COLUMNS, PARTS = 64, 32  # of which a program adds up what others gave of a sum of columns
COUNTS = {ONE: "n", ROW: "columns", COLUMN: "(n // columns)"}  # the divisor of a mean
FREEDOM = "tl.maximum((zero + {1}).to(tl.float64) - {2!r}, 0.0)"
FINISHED = {
    ops.MEAN: "({0}) / {1}",
    ops.VAR: f"({{0}}) / {FREEDOM}",
    ops.STD: f"tl.sqrt(({{0}}) / {FREEDOM})",
}
# The number that changes no result, and the function that joins two blocks.
NEUTRAL = {ops.MAX: 'float("-inf")', ops.MIN: 'float("inf")'}
JOIN = {ops.MAX: "max", ops.MIN: "min"}
# By layout: the index of a number, and the mask of those that exist.
PLACES = {FULL: "i", ROW: "row", COLUMN: "j"}
MASKS = {FULL: "inside", ROW: "among", COLUMN: "near", ONE: "program == 0"}


class Stage(NamedTuple):
    """One launch.

    Attributes:
        over: what its programs share: FULL, ROW, COLUMN, or ONE for a single program.
        before: steps for all, which each program takes.
        loop: steps for elements, rows or columns.
    """

    over: str
    before: tuple[LoopStep, ...]
    loop: Loop

    @property
    def gives(self) -> bool:
        return any(total.kind != ROW for step in self.loop for total in step.totals)


def stages_of(parts: Parts) -> list[Stage]:
    # Steps for one number belong to the next launch, or need a last one.
    stages, single_steps = [], []
    for loop in parts.loops:
        if loop[0].space == ONE:
            single_steps.append(loop[0])
            continue
        over = COLUMN if loop[0].space == COLUMN else ROW if parts.is_by_rows else FULL
        stages.append(Stage(over, tuple(single_steps), loop))
        single_steps = []
    return [*stages, Stage(ONE, tuple(single_steps), ())] if single_steps else stages


def given(parts: Parts, kind: str) -> list[Total]:
    """Return the sums of a kind whose parts lie in memory."""
    return [total for total in parts.totals if total.kind == kind]


def is_plain(parts: Parts) -> bool:
    return not (parts.totals or parts.is_by_rows)


def arguments_of(parts: Parts) -> list[str]:
    """Return the arguments of each launch: tensors, memory for parts of sums, numbers, sizes."""
    arguments = [f"a{i}" for i in range(len(parts.inputs))]
    arguments += [f"r{j}" for j in range(len(parts.results))]
    arguments += ["memory"] if given(parts, ONE) or given(parts, COLUMN) else []
    arguments += [f"n{i}: tl.float64" for i in range(parts.numbers)]
    arguments += ["n"] if is_plain(parts) else ["n", "columns", "programs"]
    # A program takes `ROWS` rows at once, and if `SHORT`, one block has all columns.
    constants = ["BLOCK", "ROWS", "SHORT"] if parts.is_by_rows else ["BLOCK"]
    return [*arguments, *[f"{each}: tl.constexpr" for each in constants]]


def write(parts: Parts) -> str:
    return "".join([_Launch(parts, i).text() for i in range(len(stages_of(parts)))])


class _Launch:
    def __init__(self, parts: Parts, index: int) -> None:
        self.parts, self.index = parts, index
        *self.earlier, self.stage = stages_of(parts)[: index + 1]
        self.number = f"tl.{COMPUTED[parts.dtype]}"
        self.inputs = {place.value: (i, place) for i, place in enumerate(parts.inputs)}
        self.ones = [total.value for total in given(parts, ONE)]
        self.columns = [total.value for total in given(parts, COLUMN)]

    def text(self) -> str:
        parts = self.parts
        body = {FULL: self.over_all, ROW: self.over_rows, COLUMN: self.over_columns, ONE: list}
        lines = [*numbers(parts), *self.for_all(), *body[self.stage.over]()]
        return f"""

def {parts.name}_{self.index}({", ".join(arguments_of(parts))}):
    program, zero = tl.program_id(0), tl.full((), 0, tl.int64)
{indented(lines, 4)}\
"""

    def for_all(self) -> list[str]:
        # Every program does this first: totals of earlier launches, and steps that need only them.
        lines = []
        steps = [step for stage in (*self.earlier, self.stage) for step in stage.before]
        reads = {each for step in (*steps, *self.stage.loop) for each in step.reads}
        for stage in self.earlier:
            for total in [total for step in stage.loop for total in step.totals]:
                if total.kind == ONE and total.value in reads:
                    lines += self.joined(total)
        for value in sorted(reads & self.inputs.keys()):
            if self.inputs[value][1].layout.kind == ONE:
                lines.append(self.load(value))
        for step in steps:
            lines += step.lines
        for step in self.stage.before:
            lines += self.stores(step)
        return lines

    def joined(self, total: Total) -> list[str]:
        place = f"memory + {self.ones.index(total.value) * MOST} + part"
        neutral = NEUTRAL.get(total.op, "0.0")
        load = f"tl.load({place}, mask=part < programs, other={neutral})"
        value = total.value
        lines = [f"part = tl.arange(0, {MOST})", f"e{value} = {load}"]
        # The parts are sums of squares, which are only added.
        as_sum = total._replace(op=ops.SUM) if total.op in SQUARED else total
        lines += self.begin(total, str(MOST), "tl.float64") + self.add(as_sum, "part < programs")
        return [*lines, f"{value} = {self.finished(total, self.end(total))}"]

    def begin(self, total: Total, size: str = "", number: str = "") -> list[str]:
        # A maximum would lose NaN, which is counted apart.
        size = size or ("ROWS, BLOCK" if self.parts.is_by_rows else "BLOCK")
        if total.op not in NEUTRAL:
            return [f"t{total.value} = tl.zeros(({size},), tl.float64)"]
        first = f"tl.full(({size},), {NEUTRAL[total.op]}, {number or self.number})"
        return [f"t{total.value} = {first}", f"k{total.value} = tl.zeros(({size},), tl.int32)"]

    def add(self, total: Total, inside: str = "inside") -> list[str]:
        value, element = total.value, f"e{total.value}"
        if total.op not in NEUTRAL:
            number = f"tl.where({inside}, {element}, 0.0).to(tl.float64)"
            if total.op not in SQUARED:
                return [f"t{value} += {number}"]
            return [f"d{value} = {number}", f"t{value} += d{value} * d{value}"]
        number = f"tl.where(({inside}) & ({element} == {element}), {element}, {NEUTRAL[total.op]})"
        return [
            f"t{value} = tl.{JOIN[total.op]}imum(t{value}, {number})",
            f"k{value} += tl.where(({inside}) & ({element} != {element}), 1, 0)",
        ]

    def end(self, total: Total) -> str:
        value, axes = total.value, {ROW: "axis=1, keep_dims=True", COLUMN: "axis=0, keep_dims=True"}
        axis = axes.get(total.kind, "axis=None")
        if total.op not in NEUTRAL:
            return f"tl.sum(t{value}, {axis})"
        extreme = f"tl.{JOIN[total.op]}(t{value}, {axis})"
        return f'tl.where(tl.sum(k{value}, {axis}) > 0, float("nan"), {extreme})'

    def finished(self, total: Total, text: str) -> str:
        return f"({total.finished(text, FINISHED, COUNTS)}).to({self.number})"

    def give(self, total: Total) -> str:
        place = f"memory + {self.ones.index(total.value) * MOST} + program"
        return f"tl.store({place}, ({self.end(total)}).to(tl.float64))"

    def over_all(self) -> list[str]:
        (step,) = self.stage.loop
        block = ["i = first + tl.arange(0, BLOCK)", "inside = i < n"]
        body = [*block, *self.loads(step), *self.lines(step), *self.stores(step)]
        if not step.totals:
            return ["first = (zero + program) * BLOCK", *body]
        body += [line for total in step.totals for line in self.add(total)]
        return [
            *[line for total in step.totals for line in self.begin(total)],
            "for c in range(program, (n + BLOCK - 1) // BLOCK, programs):",
            "    first = (zero + c) * BLOCK",
            *[f"    {line}" for line in body],
            *map(self.give, step.totals),
        ]

    def over_rows(self) -> list[str]:
        # Each row is read once for each of its steps.
        totals = [total for step in self.stage.loop for total in step.totals]
        whole_sums = [total for total in totals if total.kind == ONE]
        columns = [total for total in totals if total.kind == COLUMN]
        rows = [
            "row = (zero + r) * ROWS + tl.arange(0, ROWS)[:, None]",
            "among = row < n // columns",
        ]
        for step in self.stage.loop:
            rows += self.of_rows(step) if step.space == ROW else self.over_row(step)
        if not whole_sums and not columns:
            return ["r = program", *rows]
        epilogue = [*map(self.give, whole_sums)]
        if columns:
            epilogue += ["if SHORT:", "    j = tl.arange(0, BLOCK)[None, :]"]
            epilogue += [f"    {self.give_columns(total, self.end(total))}" for total in columns]
        return [
            *[line for total in (*whole_sums, *columns) for line in self.begin(total)],
            "for r in range(program, (n // columns + ROWS - 1) // ROWS, programs):",
            *[f"    {line}" for line in rows],
            *epilogue,
        ]

    def of_rows(self, step: LoopStep) -> list[str]:
        return [*self.loads(step), *step.lines, *self.stores(step)]

    def over_row(self, step: LoopStep) -> list[str]:
        row_totals = [total for total in step.totals if total.kind == ROW]
        begin = [line for total in row_totals for line in self.begin(total)]
        body = [
            "j = start + tl.arange(0, BLOCK)[None, :]",
            "near = j < columns",
            "inside = among & near",
            "i = row * columns + j",
            *self.loads(step),
            *self.lines(step),
            *self.stores(step),
        ]
        for total in step.totals:
            additions = self.add(total)
            # If one block has all columns, they are summed in registers, else in memory.
            if total.kind == COLUMN:
                sums = f"tl.load({self.of_columns(total, 'program')}, mask=near) + e{total.value}"
                additions = ["if SHORT:", *[f"    {line}" for line in additions]]
                additions += ["else:", f"    {self.give_columns(total, sums)}"]
            body += additions
        loop = ["for start in range(0, columns, BLOCK):", *[f"    {line}" for line in body]]
        values = [f"{each.value} = {self.finished(each, self.end(each))}" for each in row_totals]
        return [*begin, *loop, *values]

    def of_columns(self, total: Total, program: str) -> str:
        # Each program has a row in memory for its parts of the sums of columns.
        offset = f"{len(self.ones) * MOST} + {self.columns.index(total.value)} * programs * columns"
        return f"memory + {offset} + {program} * columns + j"

    def give_columns(self, total: Total, value: str) -> str:
        return f"tl.store({self.of_columns(total, 'program')}, {value}, mask=j < columns)"

    def over_columns(self) -> list[str]:
        (step,) = self.stage.loop
        lines = [
            f"j = program * {COLUMNS} + tl.arange(0, {COLUMNS})[None, :]",
            "near = j < columns",
        ]
        for total in given(self.parts, COLUMN):
            value, place = total.value, self.of_columns(total, "given")
            lines += [
                f"t{value} = tl.zeros(({PARTS}, {COLUMNS}), tl.float64)",
                f"for first in range(0, programs, {PARTS}):",
                f"    given = first + tl.arange(0, {PARTS})[:, None]",
                f"    t{value} += tl.load({place}, mask=near & (given < programs), other=0.0)",
                f"t{value} = tl.sum(t{value}, axis=0, keep_dims=True)",
                f"{value} = {self.finished(total, f't{value}')}",
            ]
        return [*lines, *self.loads(step), *step.lines, *self.stores(step)]

    def lines(self, step: LoopStep) -> list[str]:
        # A value to be reduced is called e7, and its result v7.
        reduced = {total.value for total in step.totals}
        return [f"e{line}" if line.partition(" ")[0] in reduced else line for line in step.lines]

    def loads(self, step: LoopStep) -> list[str]:
        names = [value for value in step.reads if value in self.inputs]
        return [self.load(each) for each in names if self.inputs[each][1].layout.kind != ONE]

    def load(self, value: str) -> str:
        i, place = self.inputs[value]
        return f"{value} = {loaded(i, place, self.number)}"

    def stores(self, step: LoopStep) -> list[str]:
        return [line for j in step.results for line in stored(j, self.parts.results[j])]


def numbers(parts: Parts) -> list[str]:
    number = f"tl.{COMPUTED[parts.dtype]}"
    lines = [f"d{i} = tl.full((), n{i}, tl.float64)" for i in range(parts.numbers)]
    lines += [f"s{i} = tl.full((), n{i}, {number})" for i in range(parts.numbers)]
    return lines + [f"c{i} = s{i}.to(tl.{parts.dtype}).to({number})" for i in range(parts.numbers)]


def loaded(i: int, place: KernelTensor, number: str) -> str:
    kind = place.layout.kind
    if place.is_packed:
        # The order of numpy.packbits: the first element is the highest bit.
        return f"((tl.load(a{i} + (i >> 3), mask=inside) >> (7 - (i & 7))) & 1) != 0"
    value = (
        f"tl.load(a{i})" if kind == ONE else f"tl.load(a{i} + {PLACES[kind]}, mask={MASKS[kind]})"
    )
    return f"{value} != 0" if place.is_mask else f"{value}.to({number})"


def stored(j: int, place: KernelTensor) -> tuple[str, ...]:
    kind = place.layout.kind
    if place.is_packed:
        return (
            "byte = (first >> 3) + tl.arange(0, BLOCK // 8)",
            f"k{j} = tl.reshape(inside & {place.value}, (BLOCK // 8, 8)).to(tl.int32)",
            f"k{j} = tl.sum(k{j} << (7 - tl.arange(0, 8))[None, :], axis=1).to(tl.uint8)",
            f"tl.store(r{j} + byte, k{j}, mask=byte * 8 < n)",
        )
    pointer = f"r{j}" if kind == ONE else f"r{j} + {PLACES[kind]}"
    return (f"tl.store({pointer}, {place.value}, mask={MASKS[kind]})",)
