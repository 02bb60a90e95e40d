"""The MLX backend: rules as `mx.custom_function`, as one `Backend` object."""

from __future__ import annotations

import mlx.core as mx

from multigrad.backend import (
    Autodiff,
    Backend,
    Compiler,
    Draws,
    Imports,
    Interop,
    Kernels,
    Modes,
    Tensors,
)

from . import attach, compile, dialect, differences
from .importers import import_function
from .kernels import ops, random

__all__ = ["backend"]


backend = Backend(
    name="mlx",
    tensors=Tensors(
        types=(mx.array,),
        dtype=attach.dtype,
        to_numpy=attach.to_numpy,
        from_numpy=attach.from_numpy,
        in_code=("import mlx.core as mx", "mx.array({}, mx.{})"),
        is_traced=compile.is_traced,
        weak=attach.weak,
        precision=attach.precision,
    ),
    kernels=Kernels(rows=ops.OPS, unsupported=ops.UNSUPPORTED, scan=ops.scan),
    autodiff=Autodiff(
        render=attach.render,
        finish=attach.finish,
        call=attach.call,
        attach=attach.attach,
        vjp=attach.vjp,
        forbid_derivative=attach.forbid_derivative,
        refuse_gradient=attach.refuse_gradient,
        namespace=attach.NAMESPACE,
        forward_mode=True,
        keeps_float_derivatives=True,
        isolate=attach.isolate,
    ),
    draws=Draws(
        draw_key=random.draw_key,
        fold_in=random.fold_in,
        key_pair=random.key_pair,
    ),
    compiler=Compiler(
        jit=compile.jit,
        on_enter=compile.on_enter,
        on_read=compile.on_read,
        on_depend=compile.on_depend,
        is_tracing=compile.is_tracing,
        on_draw=compile.on_draw,
    ),
    interop=Interop(lend=attach.lend, borrow=attach.borrow, bridge=attach.bridge),
    imports=Imports(import_function=import_function),
    modes=Modes(jvp=attach.jvp, lacks=attach.LACKS),
    differences=differences.DIFFERENCES,
)
_ = dialect  # imported to register its table
