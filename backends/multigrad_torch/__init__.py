"""multigrad's torch backend: rules as `torch.autograd.Function`."""

from __future__ import annotations

from functools import partial

import torch

from multigrad.backend import (
    Autodiff,
    Backend,
    Casts,
    Compiler,
    Draws,
    Exports,
    Imports,
    Interop,
    Kernels,
    Models,
    Modes,
    Ranks,
    Tensors,
)

from . import differences, dynamo, eject, export, hooks, models
from .attach import (
    as_it_is,
    attach,
    bridge,
    host,
    isolate,
    modes,
    render,
    vjp,
)
from .compile import compile, mirror, regions
from .dialect import asked, gradients, table, types
from .distributed import collectives
from .importers import autograd_function, custom_ops
from .kernels import elementwise, ops, random
from .kernels.fast import alone, masks

__all__ = ["backend"]


backend = Backend(
    name="torch",
    tensors=Tensors(
        write=torch.Tensor.copy_,
        unwritable=bridge.say_unwritable,
        keep=isolate.keep,
        types=(torch.Tensor,),
        dtype=bridge.dtype,
        to_numpy=bridge.to_numpy,
        from_numpy=bridge.from_numpy,
        constant=bridge.constant,
        is_traced=bridge.is_traced,
        read_number=bridge.read_number,
        device_type=asked.device_type,
        is_contiguous=asked.lies_in_order,
        is_strided=asked.is_strided,
        requires_grad=asked.requires_grad,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        while_loop=ops.while_loop,
        scan=ops.scan,
        bits=(masks.pack, masks.unpack),
        scalar_left=ops.SCALAR_LEFT,
        scalar_right=ops.SCALAR_RIGHT,
        open_number=elementwise.open_number,
        fast=alone.FAST,
    ),
    autodiff=Autodiff(
        render=render.render,
        finish=attach.finish,
        call=attach.call,
        attach=as_it_is.attach,
        bind=attach.bind,
        around_bare=attach.around_bare,
        many=attach.many,
        vjp=vjp.vjp,
        vmap=torch.func.vmap,
        forbid_derivative=vjp.forbid_derivative,
        transform=attach.transform,
        explain_refusal=as_it_is.explain_refusal,
        note_use=vjp.note_use,
        refuse_gradient=vjp.refuse_gradient,
        namespace=attach.NAMESPACE,
        forward_mode=True,
        joins_loops=True,
        casts=Casts(
            is_on=torch._C._is_any_autocast_enabled,
            without=gradients.without_autocast,
            of=types.casts_op,
        ),
        notes_shapes=True,
        isolate=isolate.isolate,
    ),
    draws=Draws(
        draw_key=random.draw_key,
        fold_in=random.fold_in,
        key_pair=random.key_pair,
        replays=True,
    ),
    compiler=Compiler(
        jit=compile.jit,
        is_exporting=compile.is_exporting,
        opaque=dynamo.disable,
        begin_again=dynamo.begin_again,
        read_activation=(compile.ACTIVATIONS, regions.READER),
        read_function=(compile.FUNCTIONS,),
        on_enter=mirror.on_enter,
        on_tensors=mirror.on_tensors,
        on_register=mirror.on_register,
        is_tracing=mirror.is_tracing,
        on_move=mirror.on_move,
        on_call=regions.on_call,
        on_draw=regions.on_draw,
        notes_regions=True,
    ),
    interop=Interop(
        lend=bridge.lend,
        borrow=bridge.borrow,
        outside=torch.no_grad(),  # what it makes autograd does not record
        bridge=host.bridge,
    ),
    imports=Imports(
        import_function=autograd_function.import_function,
        operators=custom_ops.operators,
        find_operator=custom_ops.find_operator,
        hook_params=hooks.hook_params,
    ),
    models=Models(
        is_model=models.is_model,
        attach=models.attach,
        quantize=models.quantize,
        kept=models.kept,
        kept_by_call=models.kept_by_call,
        override=models.override_function,
        is_operation=models.is_operation,
    ),
    modes=Modes(
        jvp=modes.jvp,
        checkpoints={
            "torch.utils.checkpoint": modes.checkpointed,
            "torch.utils.checkpoint with use_reentrant=True": modes.reentrant,
        },
        mapped=modes.mapped,
        whole=modes.whole,
        # Compiled code may give away what a second backward reads.
        once=partial(vjp.vjp, again=False),
        autocast=modes.autocast,
        kept=modes.kept,
    ),
    ranks=Ranks(group=collectives.rank_group),
    differences=differences.DIFFERENCES,
    ejection=eject.EJECTION,
    exports=Exports(
        programs={".pt2": export.write_program},
        functions={".onnx": export.write_onnx},
        register=export.register,
    ),
)
_ = table  # imported for its table
