"""Kernels in Triton, for GPUs: each program takes a block of the elements.

The source is a module's text. It has nothing of what people or files name: tensors are a0, r0, ...,
and numbers are arguments, float64 as they are. It needs `enable_fp_fusion=False`.
"""

from __future__ import annotations

from ..graph import ops
from ..graph.ir.op import Op
from .kernels import COMPUTED, INFIX, SAME, Language, Parts, check_dtype, indented

BEGIN = "import triton.language as tl\n"
# Of two tensors, as torch does it on GPUs: NaN of either side comes through, and 0 is above -0.
NAN = "propagate_nan=tl.PropagateNan.ALL"
# Of a tensor and a number, which stands last.
LIMITS = {
    ops.MAXIMUM: "tl.where({0} < {1}, {1}, {0})",
    ops.MINIMUM: "tl.where({0} > {1}, {1}, {0})",
}
CLIP = LIMITS[ops.MINIMUM].format(LIMITS[ops.MAXIMUM], "{2}")
# `/` and `tl.sqrt` of float32 are approximate on a GPU; those of float64 are not.
QUOTIENTS = {"float32": "tl.math.div_rn({}, {})", "float64": "{} / {}"}
ROOTS = {"float32": "tl.math.sqrt_rn({})", "float64": "tl.sqrt({})"}
# By what is computed: from here on there are no fractions; and the place of the sign.
WHOLE = {"float32": 2.0**23, "float64": 2.0**52}
BITS = {"float32": 32, "float64": 64}


def copysign(computed: str) -> str:
    """Return the sign of one number on another, by their bits."""
    bits = BITS[computed]
    magnitude = f"({{}}.to(tl.uint{bits}, bitcast=True) << 1 >> 1)"
    sign = f"({{}}.to(tl.uint{bits}, bitcast=True) >> {bits - 1} << {bits - 1})"
    return f"({magnitude} | {sign}).to(tl.{computed}, bitcast=True)"


def rows(computed: str) -> dict[Op, str]:
    """Return the expressions of ops, by what is computed in."""
    number = f"tl.{computed}"
    quotient, root, whole = QUOTIENTS[computed], ROOTS[computed], WHOLE[computed]
    sign = f"({{0}} > 0).to({number}) - ({{0}} < 0).to({number})"
    signed = copysign(computed)
    # Adding it leaves no bit for fractions. Triton's own floor and ceil (3.7) lose subnormals.
    near = signed.format(f"((tl.abs({{0}}) + {whole}) - {whole})", "{0}")
    near = f"tl.where(tl.abs({{0}}) < {whole}, {near}, {{0}})"
    floor = f"({near} - ({near} > {{0}}).to({number}))"
    return {
        **INFIX,
        **SAME,
        ops.DIV: quotient,
        ops.NEG: "{} * -1.0",  # `-x` is 0 - x, of which zeros have another sign
        ops.NOT: "~{}",
        ops.ABS: "tl.abs({})",
        ops.SQUARE: "{0} * {0}",
        ops.SQRT: root,
        ops.RSQRT: quotient.format("1.0", root),
        ops.RECIPROCAL: quotient.format("1.0", "{}"),
        ops.FLOOR: floor,
        ops.CEIL: signed.format(f"({near} + ({near} < {{0}}).to({number}))", "{0}"),
        ops.TRUNC: signed.format(floor.format("tl.abs({0})"), "{0}"),
        ops.ROUND: near,
        ops.COPYSIGN: signed,
        ops.WHERE: "tl.where({}, {}, {})",
        ops.MAXIMUM: f"tl.maximum({{}}, {{}}, {NAN})",
        ops.MINIMUM: f"tl.minimum({{}}, {{}}, {NAN})",
        ops.CLIP: CLIP,
        ops.SIGN: f"tl.where({{0}} != {{0}}, {{0}}, {sign})",
        ops.ISNAN: "{0} != {0}",
        ops.ISINF: 'tl.abs({}) == float("inf")',
        ops.ISFINITE: 'tl.abs({}) < float("inf")',
        ops.HEAVISIDE: f"({{}} > 0).to({number})",
        ops.RELU: LIMITS[ops.MAXIMUM].format("{0}", "0.0"),
        ops.RELU6: CLIP.format("{0}", "0.0", "6.0"),
        ops.LEAKY_RELU: f"tl.where({{0}} > 0, {{0}}, {{0}} * tl.full((), {{slope}}, {number}))",
    }


def write(parts: Parts) -> str:
    """Return a kernel: `name[grid](*tensors, *numbers, n, BLOCK=...)`."""
    number = f"tl.{COMPUTED[parts.dtype]}"
    load, store = [], []
    for i, each in enumerate(parts.inputs):
        value = f"tl.load(a{i} + i, mask=inside).to({number})"
        if each.is_packed:
            value = f"((tl.load(a{i} + (i >> 3), mask=inside) >> (7 - (i & 7))) & 1) != 0"
        elif each.is_mask:
            value = f"tl.load(a{i} + i, mask=inside) != 0"
        load.append(f"{each.value} = {value}")
    for j, each in enumerate(parts.results):
        if each.is_packed:
            store += [
                f"k{j} = tl.reshape(inside & {each.value}, (BLOCK // 8, 8)).to(tl.int32)",
                f"k{j} = tl.sum(k{j} << (7 - tl.arange(0, 8))[None, :], axis=1).to(tl.uint8)",
                f"tl.store(r{j} + byte, k{j}, mask=byte * 8 < n)",
            ]
        else:
            store.append(f"tl.store(r{j} + i, {each.value}, mask=inside)")
    if any(each.is_packed for each in parts.results):
        store.insert(0, "byte = (first >> 3) + tl.arange(0, BLOCK // 8)")
    numbers = [f"s{i} = tl.full((), n{i}, {number})" for i in range(parts.numbers)]
    numbers += [f"c{i} = s{i}.to(tl.{parts.dtype}).to({number})" for i in range(parts.numbers)]
    arguments = [f"a{i}" for i in range(len(parts.inputs))]
    arguments += [f"r{j}" for j in range(len(parts.results))]
    arguments += [f"n{i}: tl.float64" for i in range(parts.numbers)]
    return f"""

def {parts.name}({", ".join(arguments)}, n, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = first + tl.arange(0, BLOCK)
    inside = i < n
{indented([*numbers, *load, *parts.lines, *store], 4)}\
"""


def language(dtype: str) -> Language:
    """Return how kernels for a dtype are written.

    Raises:
        CannotFuseError: there are none.
    """
    check_dtype(dtype)
    computed = COMPUTED[dtype]
    number, stored = f"{{}}.to(tl.{computed})", f"{{}}.to(tl.{dtype})"
    rounded = number.format(stored)
    return Language(rows(computed), write, LIMITS, to_number=number, rounded=rounded)
