"""The torch backend as one `Backend` object, in the groups that `multigrad.backend.contract` tells.

A lowered rule or function becomes a `torch.autograd.Function`: `attach` renders and calls it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

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
from multigrad.graph.support.lazy_modules import late_function

from . import differences, distributed, dtensors, dynamo, eject, export, state
from .attach import (
    as_written,
    attach,
    host,
    isolation,
    kept_tensors,
    modes,
    render,
    vjp,
)
from .compile import checkpoint_regions, compile, dynamo_guards
from .dialect import introspection, table, types
from .importers import custom_gradients
from .kernels import elementwise, exact, fast, gradient_lists, masks, ops, random

__all__ = ["backend"]


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


backend = Backend(
    name="torch",
    tensors=Tensors(
        write=torch.Tensor.copy_,
        unwritable=host.say_unwritable,
        keep=isolation.keep,
        types=(torch.Tensor,),
        dtype=host.dtype,
        to_numpy=host.to_numpy,
        from_numpy=host.from_numpy,
        in_code=("import torch", "torch.tensor({}, dtype=torch.{})"),
        constant=host.constant,
        is_traced=host.is_traced,
        read_number=host.read_number,
        device_type=introspection.device_type,
        is_contiguous=introspection.lies_in_order,
        address=introspection.address,
        is_strided=introspection.is_strided,
        requires_grad=introspection.requires_grad,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        exact=exact.OPS,
        while_loop=ops.while_loop,
        scan=ops.scan,
        bits=(masks.pack, masks.unpack),
        scalar_left=ops.SCALAR_LEFT,
        scalar_right=ops.SCALAR_RIGHT,
        open_number=elementwise.open_number,
        fast=fast.FAST,
    ),
    autodiff=Autodiff(
        render=render.render,
        finish=attach.finish,
        call=attach.call,
        attach=as_written.attach,
        bind=attach.bind,
        around_bare=dtensors.around_bare,
        many=gradient_lists.many,
        vjp=vjp.vjp,
        vmap=torch.func.vmap,
        forbid_derivative=vjp.forbid_derivative,
        transform=attach.transform,
        explain_refusal=as_written.explain_refusal,
        refuse_gradient=vjp.refuse_gradient,
        namespace=attach.NAMESPACE,
        forward_mode=True,
        joins_loops=True,
        casts=Casts(
            is_on=torch._C._is_any_autocast_enabled,
            without=state.without_autocast,
            of=types.casts_op,
        ),
        notes_shapes=True,
        isolate=isolation.isolate,
    ),
    draws=Draws(
        draw_key=random.draw_key,
        fold_in=random.fold_in,
        key_pair=random.key_pair,
        replays=True,
    ),
    compiler=Compiler(
        jit=dynamo_guards.jit,
        is_exporting=compile.is_exporting,
        opaque=dynamo.disable,
        begin_again=dynamo.begin_again,
        read_activation=(compile.ACTIVATIONS, checkpoint_regions.READER),
        read_function=(compile.FUNCTIONS,),
        on_enter=dynamo_guards.on_enter,
        on_tensors=dynamo_guards.on_tensors,
        on_register=dynamo_guards.on_register,
        is_tracing=dynamo_guards.is_tracing,
        on_move=dynamo_guards.on_move,
        on_call=checkpoint_regions.on_call,
        on_draw=checkpoint_regions.on_draw,
    ),
    interop=Interop(
        lend=host.lend,
        borrow=host.borrow,
        outside=torch.no_grad(),  # so that autograd records nothing
        bridge=host.bridge,
    ),
    imports=Imports(
        import_function=custom_gradients.import_function,
        operators=custom_gradients.operators,
        find_operator=custom_gradients.find_operator,
        hook_params=late_function("multigrad_torch.hooks.param_hooks:hook_params"),
    ),
    models=Models(
        is_model=is_model,
        attach=late_function("multigrad_torch.models.attach:attach_rules"),
        quantize=late_function("multigrad_torch.models.quantize:quantize_module"),
        kept=late_function("multigrad_torch.models.layer_memory:kept_by_layers"),
        kept_by_call=late_function("multigrad_torch.models.layer_memory:kept_by_call"),
        override=late_function("multigrad_torch.models.override:override_calls"),
        is_operation=late_function("multigrad_torch.models.operation_names:is_operation"),
    ),
    modes=Modes(
        jvp=modes.jvp,
        checkpoints={
            "torch.utils.checkpoint": modes.checkpointed,
            "torch.utils.checkpoint with use_reentrant=True": modes.reentrant,
        },
        mapped=modes.mapped,
        whole=modes.whole,
        # Compiled code may free what a second backward would read.
        once=partial(vjp.vjp, again=False),
        autocast=modes.autocast,
        transforms=modes.TRANSFORMS,
        drops=modes.drops,
        kept=kept_tensors.kept,
    ),
    ranks=Ranks(group=distributed.rank_group),
    differences=differences.DIFFERENCES,
    ejection=eject.EJECTION,
    exports=Exports(
        programs={".pt2": export.write_program},
        functions={".onnx": export.write_onnx},
        register=export.register,
    ),
)
_ = table  # imported to register its table
