"""multigrad's jax backend: rules as `jax.custom_vjp`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from multigrad.core.backend.contract import (
    Autodiff,
    Backend,
    Compiler,
    Kernels,
    Tensors,
    WeakTypes,
    late,
)
from multigrad.core.support.lazy_modules import late_function, load_engine

from .core import compile, versions
from .core.attach import host, render
from .core.kernels import exact, ops

__all__ = ["backend"]

load_engine(__name__)
backend = Backend(
    name="jax",
    tensors=Tensors(
        types=(jax.Array, jax.core.Tracer),
        dtype=jnp.dtype,
        to_numpy=np.asarray,  # bfloat16 keeps its dtype, by ml_dtypes
        from_numpy=jnp.asarray,  # it keeps 64 bits only within `precision`
        in_code=("import jax.numpy as jnp", 'jnp.array({}, "{}")'),
        numbers_widen=True,
        is_traced=host.is_traced,
        weak=host.weak,
        weak_types=WeakTypes(host.is_weak, versions.weaken, host.find_weak),
        precision=host.precision,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        exact=exact.OPS,
        selects=True,  # by XLA, in one kernel; a cast of its own would be another
        while_loop=late_function("multigrad_jax.kernels.loops:while_loop"),
        scan=late_function("multigrad_jax.kernels.loops:scan"),
        bits=(
            late_function("multigrad_jax.kernels.shapes:pack"),
            late_function("multigrad_jax.kernels.shapes:unpack"),
        ),
    ),
    autodiff=Autodiff(
        render=render.render,
        finish=render.finish,
        call=render.call,
        attach=late_function("multigrad_jax.attach.as_written:attach_function"),
        many=late_function("multigrad_jax.attach.modes:many"),
        vjp=late_function("multigrad_jax.attach.vjp:vjp"),
        vmap=jax.vmap,
        forbid_derivative=late_function("multigrad_jax.attach.vjp:forbid_derivative"),
        refuse_gradient=late_function("multigrad_jax.attach.vjp:refuse_gradient"),
        namespace=render.NAMESPACE,
        forward_mode=True,
        joins_loops=True,
        transposes=True,
        keeps_float_derivatives=True,
        isolate=host.isolate,
        rehearse=late_function("multigrad_jax.rehearsal:rehearse"),
    ),
    draws=late("multigrad_jax.kernels.random:DRAWS"),
    compiler=Compiler(
        jit=late_function("multigrad_jax.jit:jit"),
        on_enter=compile.on_enter,
        on_read=compile.on_read,
        on_depend=compile.on_depend,
        on_register=compile.on_register,
        on_replace=compile.on_replace,
        is_tracing=compile.is_tracing_kept,
        on_move=compile.on_move,
    ),
    interop=late("multigrad_jax.features:INTEROP"),
    imports=late("multigrad_jax.features:IMPORTS"),
    models=late("multigrad_jax.features:MODELS"),
    modes=late("multigrad_jax.features:MODES"),
    ranks=late("multigrad_jax.features:RANKS"),
    differences=late("multigrad_jax.differences:DIFFERENCES"),
    ejection=late("multigrad_jax.eject:EJECTION"),
)
