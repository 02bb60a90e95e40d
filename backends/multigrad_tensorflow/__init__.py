"""multigrad's TensorFlow backend: rules as `tf.custom_gradient`."""

from __future__ import annotations

import tensorflow as tf

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
    regions,
    vjp,
)

__all__ = ["backend"]


def tensor_types() -> tuple[type, ...]:
    return (tf.Tensor, tf.Variable)


backend = Backend(
    name="tensorflow",
    module="tensorflow",
    distribution="tensorflow",
    tensor_types=tensor_types,
    ops=ops.OPS,
    unsupported=ops.UNSUPPORTED,
    dtype=bridge.dtype,
    render=attach.render,
    finish=attach.finish,
    attach_native=attach.attach_native,
    attach_function=attach_function.attach_function,
    call=attach.call,
    draw_key=random.draw_key,
    key_pair=random.key_pair,
    fold_in=random.fold_in,
    is_traced=bridge.is_traced,
    read_number=bridge.read_number,
    to_numpy=bridge.to_numpy,
    from_numpy=bridge.from_numpy,
    weak=bridge.weak,
    namespace=attach.NAMESPACE,
    differentiates_residuals=True,
    mirror=compile.mirror,
    guard=compile.guard,
    watch=compile.watch,
    jit=compile.jit,
    forbid_derivative=vjp.forbid_derivative,
    vjp=vjp.vjp,
    lend=bridge.lend,
    borrow=bridge.borrow,
    bridge=host.bridge,
    import_function=importer.import_function,
    region=regions.region,
    repeat_draw=regions.repeat_draw,
    isolate=isolate.isolate,
    differences=differences.DIFFERENCES,
)
_ = capture  # the same files in every backend
