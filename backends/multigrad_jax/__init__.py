"""multigrad's jax backend: rules as `jax.custom_vjp`."""

from __future__ import annotations

import jax

from multigrad.lowering.backend import Backend

from . import (
    attach,
    attach_function,
    bridge,
    capture,
    compile,
    differences,
    host,
    importer,
    isolate,
    ops,
    random,
    vjp,
)

__all__ = ["backend"]


def tensor_types() -> tuple[type, ...]:
    return (jax.Array, jax.core.Tracer)


backend = Backend(
    name="jax",
    module="jax",
    distribution="jax",
    tensor_types=tensor_types,
    ops=ops.OPS,
    unsupported=ops.UNSUPPORTED,
    dtype=bridge.dtype,
    render=attach.render,
    finish=attach.finish,
    attach_native=attach.attach_native,
    attach_function=attach_function.attach_function,
    lend=bridge.lend,
    borrow=bridge.borrow,
    bridge=host.bridge,
    outside=host.outside,
    import_function=importer.import_function,
    call=attach.call,
    draw_key=random.draw_key,
    key_pair=random.key_pair,
    fold_in=random.fold_in,
    is_traced=bridge.is_traced,
    to_numpy=bridge.to_numpy,
    from_numpy=bridge.from_numpy,
    weak=bridge.weak,
    forward_mode=True,
    namespace=attach.NAMESPACE,
    differentiates_residuals=True,
    mirror=compile.mirror,
    guard=compile.guard,
    watch=compile.watch,
    refresh=compile.refresh,
    renew=compile.renew,
    jit=compile.jit,
    precision=bridge.precision,
    forbid_derivative=vjp.forbid_derivative,
    vjp=vjp.vjp,
    isolate=isolate.isolate,
    differences=differences.DIFFERENCES,
)
_ = capture  # the same files in every backend
