"""Functions in kernels of C that are torch's own, so that their bits are: MKL's, of arrays, and
SLEEF's, of vectors, as libtorch has them where it was built so. A kernel calls them on a chunk.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch

from multigrad.graph import ops
from multigrad.graph.ir.op import Op

MKL = {
    ops.EXP: "Exp", ops.LOG: "Ln", ops.LOG2: "Log2", ops.LOG10: "Log10", ops.SIN: "Sin",
    ops.COS: "Cos", ops.TAN: "Tan", ops.ASIN: "Asin", ops.ACOS: "Acos", ops.ATAN: "Atan",
    ops.TANH: "Tanh", ops.ERF: "Erf", ops.ERFC: "Erfc", ops.SQRT: "Sqrt",
}  # fmt: skip
# By op: SLEEF's function, and what torch computes by it. For the last elements of a thread's share,
# fewer than two vectors, torch's sigmoid takes C's exp, whose last bit may differ.
SLEEF = {
    ops.SIGMOID: ("exp", "1 / (1 + F(-x))"),
    ops.SILU: ("exp", "x / (1 + F(-x))"),
    ops.LOG1P: ("log1p", "F(x)"),
    ops.EXPM1: ("expm1", "F(x)"),
}
# vml.h of torch: high accuracy, subnormals stay, errors are not looked for.
OF_ARRAYS = """
void (*NAME_)(int64_t, const R *, R *, int64_t);
static void NAME(R *x, int64_t n) { NAME_(n, x, x, 0x140102); }
"""
OF_VECTORS = """
V (*NAME_)(V);
static void NAME(R *memory, int64_t n) {
    for (int64_t i = 0; i < n; i += sizeof(V) / sizeof(R)) {
        V x;
        memcpy(&x, memory + i, sizeof x);
        x = EXPRESSION;
        memcpy(memory + i, &x, sizeof x);
    }
}
"""
VECTORS = """
#ifndef __{isa}__
#error "the compiler has no {isa}"
#endif
typedef R V __attribute__((vector_size({width})));
"""
# By what torch says of the processor: what a compiler calls it, and its vectors' bytes.
CAPABILITIES = {"AVX2": ("AVX2", 32), "AVX512": ("AVX512F", 64)}


@cache
def library() -> ctypes.CDLL | None:
    """Return torch's library of operations, where it computes with vectors."""
    if torch.backends.cpu.get_cpu_capability() not in CAPABILITIES:
        return None
    try:
        return ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None


@cache
def functions(dtype: str) -> dict[str, tuple[int, str]]:
    """Return torch's functions for a dtype by the names of ops: where they are, what calls them."""
    if library() is None:
        return {}
    _, width = CAPABILITIES[torch.backends.cpu.get_cpu_capability()]
    kind, vectors = ("d", f"d{width // 8}") if dtype == "float64" else ("s", f"f{width // 4}")
    symbols = {op.name: (f"vm{kind}{name}", OF_ARRAYS) for op, name in MKL.items()}
    for op, (name, expression) in SLEEF.items():
        source = OF_VECTORS.replace("EXPRESSION", expression.replace("F(", "NAME_("))
        symbols[op.name] = f"Sleef_{name}{vectors}_u10", source
    found = {}
    for op_name, (symbol, source) in symbols.items():
        function = getattr(library(), symbol, None)
        if function is not None:
            address = ctypes.cast(function, ctypes.c_void_p).value or 0
            found[op_name] = address, source.replace("NAME", f"torch_{op_name}")
    return found


def rows(dtype: str) -> dict[Op, str]:
    """Return rows of ops by torch's functions."""
    found = functions(dtype)
    return {op: f"WHOLE(torch_{op.name}, {{}})" for op in (*MKL, *SLEEF) if op.name in found}


def source(kernels: str, dtype: str) -> str:
    """Return the definitions of what kernels call."""
    called = [text for name, (_, text) in functions(dtype).items() if is_in(kernels, name)]
    if not called:
        return ""
    isa, width = CAPABILITIES[torch.backends.cpu.get_cpu_capability()]
    return "".join([VECTORS.format(isa=isa, width=width), *called])


def give(library: ctypes.CDLL, kernels: str, dtype: str) -> None:
    """Tell a compiled library where the functions are."""
    for name, (address, _) in functions(dtype).items():
        if is_in(kernels, name):
            ctypes.c_void_p.in_dll(library, f"torch_{name}_").value = address


def is_in(kernels: str, name: str) -> bool:
    return f"torch_{name}(" in kernels
