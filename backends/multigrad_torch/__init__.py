"""The torch backend as one `Backend` object, in the groups that `multigrad.backend.contract` tells.

A lowered rule or function becomes a `torch.autograd.Function`: `attach` renders and calls it.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
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
from multigrad.graph.support.lazy_modules import late_function, late_value

from . import differences, distributed, dynamo, eject, state
from .attach import attach, host, modes, render, vjp
from .compile import checkpoint_regions, dynamo_guards, readers
from .kernels import elementwise, exact, fast, masks, ops, random

__all__ = ["backend"]


if find_spec(f"{__name__}.engine") is not None:  # the core does without it
    import_module(f"{__name__}.engine")


def is_model(value: Any) -> bool:
    return isinstance(value, torch.nn.Module)


backend = Backend(
    name="torch",
    tensors=Tensors(
        write=torch.Tensor.copy_,
        unwritable=host.say_unwritable,
        keep=late_function("multigrad_torch.attach.isolation:keep"),
        types=(torch.Tensor,),
        dtype=host.dtype,
        to_numpy=host.to_numpy,
        from_numpy=host.from_numpy,
        in_code=("import torch", "torch.tensor({}, dtype=torch.{})"),
        constant=host.constant,
        is_traced=host.is_traced,
        read_number=host.read_number,
        device_type=host.device_type,
        is_contiguous=host.lies_in_order,
        address=host.address,
        is_strided=host.is_strided,
        requires_grad=host.requires_grad,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        exact=exact.OPS,
        while_loop=late_function("multigrad_torch.kernels.loops:while_loop"),
        scan=late_function("multigrad_torch.kernels.loops:scan"),
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
        attach=late_function("multigrad_torch.attach.as_written:attach"),
        bind=attach.bind,
        around_bare=attach.around_bare,
        many=late_function("multigrad_torch.kernels.gradient_lists:many"),
        vjp=vjp.vjp,
        vmap=torch.func.vmap,
        forbid_derivative=vjp.forbid_derivative,
        transform=attach.transform,
        explain_refusal=late_function("multigrad_torch.attach.as_written:explain_refusal"),
        refuse_gradient=vjp.refuse_gradient,
        namespace=attach.NAMESPACE,
        forward_mode=True,
        joins_loops=True,
        casts=Casts(
            is_on=torch._C._is_any_autocast_enabled,
            without=state.without_autocast,
            of=late_function("multigrad_torch.dialect.types:casts_op"),
        ),
        notes_shapes=True,
        isolate=late_function("multigrad_torch.attach.isolation:isolate"),
    ),
    draws=Draws(
        draw_key=random.draw_key,
        fold_in=random.fold_in,
        key_pair=random.key_pair,
        replays=True,
    ),
    compiler=Compiler(
        jit=late_function("multigrad_torch.compile.jit:jit"),
        is_exporting=readers.is_exporting,
        opaque=dynamo.disable,
        begin_again=dynamo.begin_again,
        read_activation=(readers.ACTIVATIONS, checkpoint_regions.READER),
        read_function=(readers.FUNCTIONS,),
        on_enter=dynamo_guards.on_enter,
        on_tensors=dynamo_guards.on_tensors,
        on_register=dynamo_guards.on_register,
        is_tracing=dynamo_guards.is_tracing,
        on_move=dynamo_guards.on_move,
        on_call=checkpoint_regions.on_call,
        on_draw=checkpoint_regions.on_draw,
    ),
    interop=Interop(
        lend=late_function("multigrad_torch.attach.guests:lend"),
        borrow=late_function("multigrad_torch.attach.guests:borrow"),
        outside=torch.no_grad(),  # so that autograd records nothing
        bridge=late_function("multigrad_torch.attach.guests:bridge"),
    ),
    imports=Imports(
        dialect=late_value("multigrad_torch.dialect.table:DIALECT"),
        import_function=late_function("multigrad_torch.importers.custom_gradients:import_function"),
        operators=late_function("multigrad_torch.importers.custom_gradients:operators"),
        find_operator=late_function("multigrad_torch.importers.custom_gradients:find_operator"),
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
        kept=late_function("multigrad_torch.attach.kept_tensors:kept"),
    ),
    ranks=Ranks(group=distributed.rank_group),
    differences=differences.DIFFERENCES,
    ejection=eject.EJECTION,
    exports=Exports(
        programs={".pt2": late_function("multigrad_torch.export:write_program")},
        functions={".onnx": late_function("multigrad_torch.export:write_onnx")},
        register=late_function("multigrad_torch.export:register"),
    ),
)
