"""multigrad's torch backend: rules as `torch.autograd.Function`."""

from __future__ import annotations

import torch

from multigrad.lowering.backend import Backend

from . import (
    attach,
    attach_function,
    bridge,
    capture,
    compile,
    compile_function,
    differences,
    hooks,
    host,
    importer,
    isolate,
    jit,
    kernels,
    ops,
    param_hooks,
    random,
    vjp,
)

__all__ = ["backend"]


def tensor_types() -> tuple[type, ...]:
    return (torch.Tensor,)


backend = Backend(
    name="torch",
    module="torch",
    distribution="torch",
    tensor_types=tensor_types,
    ops=ops.OPS,
    unsupported=ops.UNSUPPORTED,
    dtype=bridge.dtype,
    render=attach_function.render,
    finish=attach.finish,
    attach_native=attach.attach_native,
    attach_function=attach_function.attach_function,
    call=attach_function.call,
    bind=attach.bind,
    draw_key=random.draw_key,
    key_pair=random.key_pair,
    fold_in=random.fold_in,
    is_traced=bridge.is_traced,
    to_numpy=bridge.to_numpy,
    from_numpy=bridge.from_numpy,
    mirror=compile.mirror,
    show=compile.show,
    region=hooks.region,
    hook_params=param_hooks.hook_params,
    refresh=compile.refresh,
    opaque=torch.compiler.disable,
    read_number=bridge.read_number,
    is_exporting=compile.is_exporting,
    jit=jit.jit,
    forbid_derivative=vjp.forbid_derivative,
    vjp=vjp.vjp,
    lend=bridge.lend,
    borrow=bridge.borrow,
    bridge=host.bridge,
    outside=host.outside,
    import_function=importer.import_function,
    repeat_draw=hooks.repeat_draw,
    scalar_left=ops.SCALAR_LEFT,
    scalar_right=ops.SCALAR_RIGHT,
    forward_mode=True,
    namespace=attach.NAMESPACE,
    fast=kernels.FAST,
    isolate=isolate.isolate,
    replays_draws=True,
    differences=differences.DIFFERENCES,
)
_ = capture, compile_function  # imported for their tables
