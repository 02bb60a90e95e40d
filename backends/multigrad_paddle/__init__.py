"""multigrad's Paddle backend: rules as `paddle.autograd.PyLayer`."""

from __future__ import annotations

import paddle

from multigrad.backend import (
    Autodiff,
    Backend,
    Compiler,
    Draws,
    Imports,
    Interop,
    Kernels,
    Tensors,
)

from . import differences
from .attach import attach, bridge, vjp
from .compile import compile, recompute
from .dialect import table
from .importers import pylayer
from .kernels import ops, random, widening

__all__ = ["backend"]


backend = Backend(
    name="paddle",
    tensors=Tensors(
        types=widening.TENSORS,
        dtype=bridge.dtype,
        to_numpy=bridge.to_numpy,
        from_numpy=bridge.from_numpy,
        is_traced=bridge.is_traced,
        read_number=bridge.read_number,
        requires_grad=bridge.requires_grad,
    ),
    kernels=Kernels(rows=ops.OPS, unsupported=ops.UNSUPPORTED, scan=ops.scan),
    autodiff=Autodiff(
        render=attach.render,
        finish=attach.finish,
        call=attach.call,
        attach=attach.attach,
        vjp=vjp.vjp,
        forbid_derivative=vjp.forbid_derivative,
        refuse_gradient=vjp.refuse_gradient,
        namespace=attach.NAMESPACE,
        isolate=vjp.isolate,
    ),
    draws=Draws(draw_key=random.draw_key, fold_in=random.fold_in, key_pair=random.key_pair),
    compiler=Compiler(
        jit=compile.jit,
        read_activation=(compile.ACTIVATIONS,),
        read_function=(compile.FUNCTIONS,),
        on_draw=recompute.on_draw,
    ),
    interop=Interop(lend=bridge.lend, borrow=bridge.borrow, outside=paddle.no_grad()),
    imports=Imports(import_function=pylayer.import_function),
    differences=differences.DIFFERENCES,
)
_ = table  # imported for its effect
