"""Kernels in Triton, for GPUs: each program takes a block of the elements.

The source is a module's text. It has nothing of what people or files name: tensors are a0, r0, ...,
and numbers are arguments, float64 as they are. It needs `enable_fp_fusion=False`.
"""

from __future__ import annotations

from ...graph import ops
from ...graph.ir.op import Op
from .kernels import COMPUTED, INFIX, SAME, Language, check_dtype
from .triton_passes import REDUCTIONS, write

BEGIN = "import triton.language as tl\nfrom triton.language.extra import libdevice\n"
# As torch does it on GPUs: NaN of either side comes through, and 0 is above -0.
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
    clip = LIMITS[ops.MINIMUM].format(LIMITS[ops.MAXIMUM].format("{0}", "{1}"), "{2}")
    found = "libdevice.fmod({0}, {1})"
    turned = f"({found} != 0) & (({{1}} < 0) != ({found} < 0))"
    remainder = f"tl.where({turned}, {found} + {{1}}, {found})"
    one_and_exp = "(1.0 + libdevice.exp(-{0}))"
    # Adding it leaves no bit for fractions. Triton's own floor and ceil (3.7) lose subnormals.
    near = signed.format(f"((tl.abs({{0}}) + {whole}) - {whole})", "{0}")
    near = f"tl.where(tl.abs({{0}}) < {whole}, {near}, {{0}})"
    floor = f"({near} - ({near} > {{0}}).to({number}))"
    return {
        **INFIX,
        **SAME,
        **{op: f"libdevice.{name}({{}})" for op, name in FUNCTIONS.items()},
        ops.SIGMOID: quotient.format("1.0", one_and_exp),
        ops.SILU: quotient.format("{0}", one_and_exp),
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
    """Return a power as torch computes it on GPUs of an exponent that is a number: some it takes
    for themselves, of which it rounds 2, -2 and 3 to the dtype first.
    """
    quotient, root = QUOTIENTS[computed], ROOTS[computed]
    exponent = f"{{1}}.to(tl.{computed})"
    found = f"libdevice.pow({{0}}, {exponent})"
    for number, power in (
        (f"{exponent} == 3", "{0} * {0} * {0}"),
        (f"{exponent} == 2", "{0} * {0}"),
        (f"{exponent} == -2", quotient.format("1.0", "({0} * {0})")),
        ("{1} == -1", quotient.format("1.0", "{0}")),
        ("{1} == 0.5", root.format("{0}")),
        ("{1} == -0.5", quotient.format("1.0", root.format("{0}"))),
        ("{1} == 1", "{0}"),
    ):
        found = f"tl.where({number}, {power}, {found})"
    return found


def language(dtype: str) -> Language:
    """Return how kernels for a dtype are written.

    Raises:
        CannotFuseError: there are none.
    """
    check_dtype(dtype)
    computed = COMPUTED[dtype]
    number, stored = f"{{}}.to(tl.{computed})", f"{{}}.to(tl.{dtype})"
    rounded = number.format(stored)
    return Language(
        rows(computed),
        write,
        {ops.POW: power_by_number(computed)},
        to_number=number,
        rounded=rounded,
        reductions=REDUCTIONS,
    )
