"""Triton kernels on machines without a GPU, by Triton's interpreter.

The interpreter (triton 3.7) computes a kernel's program in NumPy, one instance after another. To
audit a kernel's gradient on a CPU, this module adds what it lacks, as a GPU does it: arithmetic in
bfloat16, whose bits it takes for integers; the functions of libdevice; of autotuned configurations
the first; `maximum` of NaN; calls from several threads, which it would mix up, and from compiled
code. `tests/foreign/kernels.py` and the tests of fused kernels use it.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

from multigrad.core.ops.numerics import erf, erfc
from multigrad.core.support.threads import make_lock
from multigrad.engine.ops.special_functions import erfinv, lgamma

SWITCH = "TRITON_INTERPRET"
LIBDEVICE = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
# Functions with the same name in libdevice and NumPy; below, those with other names.
SAME = (
    "abs", "cbrt", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "floor", "fmod",
    "hypot", "log", "log10", "log1p", "log2", "rint", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def rsqrt(x: Any) -> Any:
    return 1 / np.sqrt(x)


def round_away(x: Any) -> Any:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in SAME},
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atan2": np.arctan2, "atanh": np.arctanh, "div_rn": np.divide,
    "erf": erf, "erfc": erfc, "erfinv": erfinv,
    "fast_cosf": np.cos, "fast_dividef": np.divide, "fast_expf": np.exp, "fast_log2f": np.log2,
    "fast_logf": np.log, "fast_powf": np.power, "fast_sinf": np.sin, "fast_tanf": np.tan,
    "fast_tanhf": np.tanh, "lgamma": lgamma, "pow": np.power, "round": round_away,
    "rsqrt": rsqrt,
}  # fmt: skip


def prepare() -> None:
    """Choose the interpreter if there is no GPU; Triton reads this setting when it is imported."""
    if not torch.cuda.is_available():
        os.environ.setdefault(SWITCH, "1")


def is_interpreted() -> bool:
    knobs: Any = importlib.import_module("triton.knobs")
    return bool(knobs.runtime.interpret)


def mend() -> None:
    """Complete the interpreter; called after Triton's import, in a process of its own."""
    if not is_interpreted():
        return
    from triton.runtime import interpreter
    from triton.runtime.autotuner import Autotuner

    add_bfloat16(interpreter)
    add_libdevice(interpreter)
    _add_numbers(interpreter)
    _add_loops(interpreter)
    builder = interpreter.InterpreterBuilder
    # maxnum and minnum ignore NaN, as on a GPU; maximum and minimum propagate it.
    builder.create_maxnumf = functools.partialmethod(builder.binary_op, op=np.fmax)
    builder.create_minnumf = functools.partialmethod(builder.binary_op, op=np.fmin)
    Autotuner._bench = lambda *args, **kwargs: [0.0, 0.0, 0.0]  # equal: the first one is chosen
    executor = interpreter.GridExecutor
    executor.__call__ = one_at_a_time(executor.__call__)
    function, run_kernel = interpreter.InterpretedFunction, interpreter.InterpretedFunction.run

    def first_run(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Disabled at the first run: the module of `disable` may be what imports Triton right now.
        function.run = torch.compiler.disable(run_kernel)
        return function.run(self, *args, **kwargs)

    function.run = first_run


def one_at_a_time(call: Callable[..., Any]) -> Callable[..., Any]:
    # The interpreter has one place for the running instance, and replaces Triton's language.
    lock = make_lock()

    @functools.wraps(call)
    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return call(*args, **kwargs)

    return locked


def _add_numbers(interpreter: Any) -> None:
    import triton.language as tl

    convert = interpreter._implicit_cvt

    def with_floats(argument: Any) -> Any:
        if not isinstance(argument, float):
            return convert(argument)
        # On a GPU a float argument is a float32 scalar of the kernel's language.
        return tl.tensor(interpreter.interpreter_builder.get_fp32(argument), tl.float32)

    interpreter._implicit_cvt = with_floats


def _add_loops(interpreter: Any) -> None:
    def scalars(numbers: Iterable[Any]) -> Iterator[Any]:
        return map(interpreter.interpreter_semantic.to_tensor, numbers)

    def visit_for(self: Any, node: ast.For) -> ast.For:
        self.generic_visit(node)
        if isinstance(node.iter, ast.Call):
            callee = node.iter.func
            name = callee.id if isinstance(callee, ast.Name) else getattr(callee, "attr", "")
            # On a GPU a loop counts in scalars of the kernel's language, which have methods.
            if name == "range":
                function = ast.Name(id="interpreter_scalars", ctx=ast.Load())
                node.iter = ast.Call(func=function, args=[node.iter], keywords=[])
        return node

    interpreter.interpreter_scalars = scalars  # a kernel's globals have all names of its module
    interpreter.ASTTransformer.visit_For = visit_for


# --- bfloat16, whose bits the interpreter keeps as uint16 -----------------------------------------
def widen(data: Any) -> Any:
    return np.ascontiguousarray(data).view(ml_dtypes.bfloat16).astype(np.float32)


def narrow(data: Any) -> Any:
    return np.asarray(data, np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)


def add_bfloat16(interpreter: Any) -> None:
    import triton.language as tl

    handle, builder = interpreter.TensorHandle, interpreter.InterpreterBuilder

    def is_narrow(value: Any) -> bool:
        return isinstance(value, handle) and value.dtype.scalar == tl.bfloat16

    def widened(value: Any) -> Any:
        return handle(widen(value.data), tl.float32) if is_narrow(value) else value

    def narrowed(value: Any) -> Any:
        if isinstance(value, handle) and value.data.dtype == np.float32:
            return handle(narrow(value.data), tl.bfloat16)
        return value

    def in_float32(method: Callable[..., Any], *, is_rounded: bool = True) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(map(is_narrow, args)):
                return method(self, *args, **kwargs)
            result = method(self, *map(widened, args), **kwargs)
            return narrowed(result) if is_rounded else result

        return call

    def cast(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, src: Any, dst_type: Any, *how: Any) -> Any:
            dtype = dst_type.scalar
            if src.dtype.scalar != tl.bfloat16 and dtype != tl.bfloat16:
                return method(self, src, dst_type, *how)
            data = widened(src).data
            if dtype == tl.bfloat16:
                return handle(narrow(data), tl.bfloat16)
            return handle(data.astype(interpreter._get_np_dtype(dtype)), dtype)

        return call

    def get_bf16(self: Any, value: float) -> Any:
        return handle(narrow([value]), tl.bfloat16)

    builder.get_bf16 = get_bf16
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, cast(getattr(builder, name)))
    for name in (
        "binary_op", "ternary_op", "unary_op", "create_fma", "create_erf", "create_rsqrt",
    ):  # fmt: skip
        setattr(builder, name, in_float32(getattr(builder, name)))
    builder.create_dot = in_float32(builder.create_dot, is_rounded=False)

    def in_float32_along(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, tensors: Sequence[Any]) -> Any:
            if not any(is_narrow(each.handle) for each in tensors):
                return method(self, tensors)
            results = method(self, tuple(_retyped(each, widened(each.handle)) for each in tensors))
            result_list = results if isinstance(results, list | tuple) else (results,)
            return [_retyped(each, narrowed(each.handle)) for each in result_list]

        return call

    def _retyped(tensor: Any, value: Any) -> Any:
        shape = list(tensor.shape)
        return tl.core.tensor(value, tl.block_type(value.dtype, shape) if shape else value.dtype)

    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        kind.apply_impl = in_float32_along(kind.apply_impl)


def add_libdevice(
    interpreter: Any, functions: Mapping[str, Callable[..., Any]] = FUNCTIONS
) -> None:
    """Give the interpreter NumPy functions for those of libdevice, which is GPU code."""
    import triton.language as tl

    def of_tensors(compute: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **_: Any) -> Any:
            tensors = [interpreter.interpreter_semantic.to_tensor(each) for each in args]
            scalar = tensors[0].handle.dtype.scalar
            is_narrow = scalar == tl.bfloat16
            arrays = [widen(x.handle.data) if is_narrow else x.handle.data for x in tensors]
            with np.errstate(all="ignore"):
                data = np.asarray(compute(*arrays))
            result = narrow(data) if is_narrow else data.astype(arrays[0].dtype)
            is_block = any(each.type.is_block() for each in tensors)
            result_type = tl.block_type(scalar, list(result.shape)) if is_block else scalar
            return tl.core.tensor(interpreter.TensorHandle(result, scalar), result_type)

        return call

    for name in LIBDEVICE:
        module = importlib.import_module(name)
        for function, compute in functions.items():
            setattr(module, function, of_tensors(compute))
