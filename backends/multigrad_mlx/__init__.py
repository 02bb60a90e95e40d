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

from . import differences
from .attach import bridge, host, modes, render, vjp
from .compile import checkpoint_regions, compile, trace_dependencies
from .dialect import table
from .importers import custom_function
from .kernels import ops, random

__all__ = ["backend"]


backend = Backend(
    name="mlx",
    tensors=Tensors(
        types=(mx.array,),
        dtype=bridge.dtype,
        to_numpy=bridge.to_numpy,
        from_numpy=bridge.from_numpy,
        is_traced=trace_dependencies.is_traced,
        weak=bridge.weak,
        precision=bridge.precision,
    ),
    kernels=Kernels(rows=ops.OPS, unsupported=ops.UNSUPPORTED, scan=ops.scan),
    autodiff=Autodiff(
        render=render.render,
        finish=render.finish,
        call=render.call,
        attach=render.attach,
        vjp=vjp.vjp,
        forbid_derivative=vjp.forbid_derivative,
        refuse_gradient=vjp.refuse_gradient,
        namespace=render.NAMESPACE,
        forward_mode=True,
        keeps_float_derivatives=True,
        isolate=vjp.isolate,
    ),
    draws=Draws(
        draw_key=random.draw_key,
        fold_in=random.fold_in,
        key_pair=random.key_pair,
    ),
    compiler=Compiler(
        jit=compile.jit,
        on_enter=trace_dependencies.on_enter,
        on_read=trace_dependencies.on_read,
        on_depend=trace_dependencies.on_depend,
        is_tracing=trace_dependencies.is_tracing,
        on_draw=checkpoint_regions.on_draw,
    ),
    interop=Interop(lend=bridge.lend, borrow=bridge.borrow, bridge=host.bridge),
    imports=Imports(import_function=custom_function.import_function),
    modes=Modes(jvp=modes.jvp, lacks=modes.LACKS),
    differences=differences.DIFFERENCES,
)
_ = table  # imported to register its table
