"""C kernels for processors, compiled by the system's compiler, with the bits of torch's own.

To have the same bits, kernels call torch's own functions on chunks: MKL's for arrays, and SLEEF's
for vectors, where libtorch was built with them.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import torch

from multigrad.core import ops
from multigrad.core.backend.rows import FastKernels
from multigrad.core.ir.op import Op
from multigrad.core.passes.decisions import EXACT, NUMBER_OVER
from multigrad.engine.lowering.kernel_code.c_code import FLAGS, C
from multigrad.engine.lowering.kernel_code.c_preamble import begin
from multigrad.engine.lowering.kernel_code.kernels import Kernel, Language
from multigrad.engine.support.c_libraries import CLibrary

from ...core.kernels import fast
from ...core.kernels.elementwise import MENDED
from ...core.kernels.fast import FAST
from ...core.state import PARENT_PROCESS

GRAIN = 1 << 15  # elements that a thread gets at least, as in torch's own loops
# MKL's names of ops, for `vms` (float32) and `vmd` (float64) functions.
MKL = {
    ops.EXP: "Exp", ops.LOG: "Ln", ops.LOG2: "Log2", ops.LOG10: "Log10", ops.SIN: "Sin",
    ops.COS: "Cos", ops.TAN: "Tan", ops.ASIN: "Asin", ops.ACOS: "Acos", ops.ATAN: "Atan",
    ops.TANH: "Tanh", ops.ERF: "Erf", ops.ERFC: "Erfc", ops.SQRT: "Sqrt",
}  # fmt: skip


class Vectors(NamedTuple):
    """An op that torch computes by vectors.

    Attributes:
        function: SLEEF's function, which is F in the formula.
        formula: the result for a vector x.
        alone: the result for one number: the last ones of each thread's share, fewer than two
            vectors, torch computes one by one.
        exponent: how an exponent is declared, if there is one.
        before: shortcuts for some exponents.
    """

    function: str
    formula: str
    alone: str = ""
    exponent: str = ""
    before: str = ""


# Shortcuts for exponents that are numbers, as torch has them. Torch rounds the exponent to the
# dtype only for vectors.
POWERS = """
    if (e == 1) return;
    if (e == 0.5) ROOT;
    if (e == -0.5) EACH(1 / SQRT(x));
    if (e == 0) EACH(1);
    if (e == -1) EACH(1 / x);
    if (e == 2) EACH(x * x);
    if (e == -2) EACH(1 / (x * x));
    if (e == 3) EACH(x * x * x);
"""
SLEEF = {
    ops.SIGMOID.name: Vectors("exp", "1 / (1 + F(-x))", "1 / (1 + EXP(-x))"),
    ops.SILU.name: Vectors("exp", "x / (1 + F(-x))", "x / (1 + EXP(-x))"),
    ops.LOG1P.name: Vectors("log1p", "F(x)"),
    ops.EXPM1.name: Vectors("expm1", "F(x)"),
    ops.POW.name: Vectors("pow", "F(x, vector_at(e + i))", "POW(x, e[i])", "const R *e,"),
    "power": Vectors("pow", "F(x, (R)e - (V){0})", "(R)pow(x, e)", "double e,", POWERS),
}
# The mode of torch's vml.h: high accuracy, subnormals are kept, errors are ignored.
OF_ARRAYS = """
void (*NAME_)(int64_t, const R *, R *, int64_t);
static void NAME(R *x, int64_t n) { NAME_(n, x, x, 0x140102); }
"""
OF_VECTORS = """
V (*NAME_)(TAKEN);
static void NAME(R *memory, int64_t m, EXPONENT int64_t first, int64_t n, int64_t shares) {
BEFORE
    R last[2 * WIDTH];
    int64_t from = 0, to = 0;
LAST
    for (int64_t i = 0; i < m; i += WIDTH) {
        const V x = vector_at(memory + i), found = FORMULA;
        memcpy(memory + i, &found, sizeof found);
    }
    memcpy(memory + from, last, (to - from) * sizeof *last);
}
"""
LAST = """
    to = find_last(m, first, n, shares, &from);
    for (int64_t i = from; i < to; i++) {
        const R x = memory[i];
        last[i - from] = ALONE;
    }
"""
VECTORS = """
#ifndef __{isa}__
#error "the compiler has no {isa}"
#endif
typedef R V __attribute__((vector_size({width})));
#define WIDTH (int64_t)(sizeof(V) / sizeof(R))
#define PLACE_full first, n, shares
#define PLACE_row row, n / columns, shares
#define PLACE_column start, columns, shares
#define PLACE_one 0, 1, shares
#define EACH(value) {{ \\
    for (int64_t i = 0; i < m; i++) {{ const R x = memory[i]; memory[i] = value; }} \\
    return; \\
}}

static inline V vector_at(const R *memory) {{
    V found;
    memcpy(&found, memory, sizeof found);
    return found;
}}

// Which of m elements are the last of a share, where n are shared among threads as torch does it.
static inline int64_t find_last(
    int64_t m, int64_t first, int64_t n, int64_t shares, int64_t *from
) {{
    const int64_t most = (n + {grain} - 1) / {grain}, count = MIN(shares, most);
    const int64_t share = (n + count - 1) / count, begin = first / share * share;
    const int64_t end = MIN(begin + share, n), alone = (end - begin) % (2 * WIDTH);
    const int64_t to = MIN(end - first, m), last = end - alone - first;
    *from = last < 0 ? 0 : MIN(last, to);
    return to;
}}
"""
# By torch's CPU capability: the compiler's macro, and the bytes of a vector.
CAPABILITIES = {"AVX2": ("AVX2", 32), "AVX512": ("AVX512F", 64)}


def library() -> ctypes.CDLL | None:
    """Return torch's library of operations, or None if torch does not compute with vectors."""
    if torch.backends.cpu.get_cpu_capability() not in CAPABILITIES:
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


# 1.6 ms a dtype, of which each set of kernels asks five times.
@cache
def functions(dtype: str) -> dict[str, tuple[int, str]]:
    """Return torch's functions for a dtype, by op name: the address, and C code that calls it."""
    torch_library = library()
    if torch_library is None:
        return {}
    _, width = CAPABILITIES[torch.backends.cpu.get_cpu_capability()]
    kind, suffix = ("d", f"d{width // 8}") if dtype == "float64" else ("s", f"f{width // 4}")
    symbols = {op.name: (f"vm{kind}{name}", OF_ARRAYS) for op, name in MKL.items()}
    # A square root by MKL if torch is linked with it, otherwise by the compiler.
    root = "{ torch_sqrt(memory, m); return; }"
    if not hasattr(torch_library, symbols[ops.SQRT.name][0]):
        root = "EACH(SQRT(x))"
    for name, vectors in SLEEF.items():
        substitutions = {
            "BEFORE": vectors.before.replace("ROOT", root),
            "LAST": LAST.replace("ALONE", vectors.alone) if vectors.alone else "",
            "EXPONENT": vectors.exponent,
            "TAKEN": "V, V" if vectors.exponent else "V",
            "FORMULA": vectors.formula.replace("F(", "NAME_("),
        }
        definition = OF_VECTORS
        for word, text in substitutions.items():
            definition = definition.replace(word, text)
        symbols[name] = f"Sleef_{vectors.function}{suffix}_u10", definition
    addresses = {}
    for op_name, (symbol, definition) in symbols.items():
        # A symbol may be absent: torch was built without MKL or SLEEF.
        function = getattr(torch_library, symbol, None)
        if function is not None:
            address = ctypes.cast(function, ctypes.c_void_p).value or 0
            addresses[op_name] = address, definition.replace("NAME", f"torch_{op_name}")
    return addresses


def rows(dtype: str) -> dict[Op, str]:
    addresses = functions(dtype)
    templates = {op: f"WHOLE(torch_{op.name}, {{}})" for op in MKL if op.name in addresses}
    # Plain code corrects these ops in this version of torch, so torch's own bits are not wanted.
    vector_ops = [ops.OPS[name] for name in SLEEF if name in addresses and name in ops.OPS]
    for op in [each for each in vector_ops if each not in MENDED]:
        operands = ", ".join(["{}"] * len(op.operands))
        templates[op] = f"WHOLE(torch_{op.name}, {operands}, PLACE_{{layout}})"
    return templates


def source(kernels: str, dtype: str) -> str:
    """Return the C definitions of the functions that kernels call."""
    definitions = [text for name, (_, text) in functions(dtype).items() if is_in(kernels, name)]
    if not definitions:
        return ""
    isa, width = CAPABILITIES[torch.backends.cpu.get_cpu_capability()]
    return "".join([VECTORS.format(isa=isa, width=width, grain=GRAIN), *definitions])


def give(library: ctypes.CDLL, kernels: str, dtype: str) -> None:
    """Store the functions' addresses in a compiled library."""
    for name, (address, _) in functions(dtype).items():
        if is_in(kernels, name):
            ctypes.c_void_p.in_dll(library, f"torch_{name}_").value = address


def is_in(kernels: str, name: str) -> bool:
    names = (name, "power") if name == ops.SQRT.name else (name,)
    return any(f"torch_{each}(" in kernels for each in names)


Tensor: TypeAlias = torch.Tensor
# Patterns by which fast code rounds differently from the ops; kernels must have its bits.
NAMES = ("torch.one_plus_square", "torch.divided", "torch.reciprocal")
ROUNDING = FastKernels(patterns=tuple([row for row in FAST.patterns if row.name in NAMES]))
OWN_ROWS = {
    # torch's own kernel (2.13) is compiled to a fused multiply-add; where it is not, bits differ.
    fast.ONE_PLUS_SQUARE: "{2} == {2} ? FMA({2} * {0}, {0}, 1) : 1 + ({0} * {1}) * ({0} * {1})",
    fast.DIVIDED: "{2} == {2} ? ({0} / {3}) * {1} : ((1 / {3}) * {1}) * {0}",
    EXACT[ops.SQRT]: C.rows[ops.SQRT],
    NUMBER_OVER: C.rows[ops.DIV],
}
COMPARES_BESIDE = True
ON_NUMBERS = {fast.SQUARED: fast.squared, fast.FACTOR: fast.factor}


def language(dtype: str) -> Language:
    by_number = dict(C.by_number)
    if "power" in functions(dtype):
        by_number[ops.POW] = "WHOLE(torch_power, {}, {}, PLACE_{layout})"
    return replace(C, rows={**C.rows, **OWN_ROWS, **rows(dtype)}, by_number=by_number)


class CLaunch:
    def __init__(self, library: ctypes.CDLL, kernel: Kernel) -> None:
        self.function = getattr(library, kernel.name)
        self.pointers = Struct(f"{len((*kernel.parts.inputs, *kernel.parts.results))}P").pack

    def pack(self, numbers: Sequence[float], n: int, columns: int) -> Any:
        """Return the number of elements, and the arguments of a call as C values."""
        array = (ctypes.c_double * len(numbers))(*numbers)
        return n, (array, ctypes.c_int64(n), ctypes.c_int64(columns))

    def __call__(self, tensors: Sequence[Tensor], packed: Any) -> None:
        n, arguments = packed
        shares, threads = torch.get_num_threads(), 1
        # A forked process has one thread: OpenMP would wait forever for the parent's.
        if n >= 2 * GRAIN and os.getpid() == PARENT_PROCESS:
            threads = min(shares, n // GRAIN)
        pointers = self.pointers(*map(Tensor.data_ptr, tensors))
        # `shares` decides the bits (where torch computes one by one), `threads` only the speed.
        if self.function(pointers, *arguments, threads, shares):
            raise MemoryError


def load(kernels: Sequence[Kernel], like: Tensor) -> list[CLaunch]:
    """Return a launcher for each kernel; raise NoLibraryError without a compiler."""
    dtype = kernels[0].parts.dtype
    text = "".join([kernel.source for kernel in kernels])
    code = begin(dtype) + source(text, dtype) + text
    binary = CLibrary("kernels", code, FLAGS).load()
    give(binary, text, dtype)
    return [CLaunch(binary, kernel) for kernel in kernels]
