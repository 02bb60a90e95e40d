"""The torch backend as one `Backend` object, in the groups that `core/backend/contract.py` tells.

A lowered rule or function becomes a `torch.autograd.Function`: `attach` renders and calls it.
"""

from __future__ import annotations

import torch

from multigrad.core.backend.contract import (
    Autodiff,
    Backend,
    Casts,
    Compiler,
    Kernels,
    Tensors,
    late,
)
from multigrad.core.support.lazy_modules import late_function, load_engine

from .core import dynamo, state
from .core.attach import attach, host, render
from .core.compile import dynamo_guards, readers
from .core.kernels import elementwise, exact, fast, ops

__all__ = ["backend"]


load_engine(__name__)
backend = Backend(
    name="torch",
    tensors=Tensors(
        write=torch.Tensor.copy_,
        unwritable=late_function("multigrad_torch.attach.memory:say_unwritable"),
        keep=late_function("multigrad_torch.attach.kept_tensors:keep"),
        types=(torch.Tensor,),
        dtype=host.dtype,
        to_numpy=host.to_numpy,
        from_numpy=host.from_numpy,
        in_code=("import torch", "torch.tensor({}, dtype=torch.{})"),
        constant=host.constant,
        is_traced=host.is_traced,
        read_number=late_function("multigrad_torch.features:read_number"),
        device_type=host.device_type,
        is_contiguous=late_function("multigrad_torch.attach.memory:lies_in_order"),
        address=late_function("multigrad_torch.attach.memory:address"),
        is_strided=late_function("multigrad_torch.attach.memory:is_strided"),
        requires_grad=host.requires_grad,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        exact=exact.OPS,
        while_loop=late_function("multigrad_torch.kernels.loops:while_loop"),
        scan=late_function("multigrad_torch.kernels.loops:scan"),
        bits=(
            late_function("multigrad_torch.kernels.arrays:pack"),
            late_function("multigrad_torch.kernels.arrays:unpack"),
        ),
        scalar_left=elementwise.SCALAR_LEFT,
        scalar_right=elementwise.SCALAR_RIGHT,
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
        vjp=late_function("multigrad_torch.attach.vjp:vjp"),
        vmap=torch.func.vmap,
        forbid_derivative=late_function("multigrad_torch.attach.vjp:forbid_derivative"),
        transform=attach.transform,
        explain_refusal=late_function("multigrad_torch.attach.as_written:explain_refusal"),
        refuse_gradient=late_function("multigrad_torch.attach.vjp:refuse_gradient"),
        namespace=attach.NAMESPACE,
        forward_mode=True,
        joins_loops=True,
        casts=Casts(
            is_on=torch._C._is_any_autocast_enabled,
            without=state.without_autocast,
            of=late_function("multigrad_torch.dialect.types:casts_op"),
        ),
        notes_shapes=True,
        isolate=state.isolate,
    ),
    draws=late("multigrad_torch.kernels.random:DRAWS"),
    compiler=Compiler(
        jit=late_function("multigrad_torch.compile.jit:jit"),
        is_exporting=readers.is_exporting,
        opaque=dynamo.disable,
        begin_again=dynamo.begin_again,
        read_activation=(readers.ACTIVATIONS, dynamo_guards.REGIONS),
        read_function=(readers.FUNCTIONS,),
        on_enter=dynamo_guards.on_enter,
        on_tensors=dynamo_guards.on_tensors,
        on_register=dynamo_guards.on_register,
        is_tracing=dynamo_guards.is_tracing,
        on_move=dynamo_guards.on_move,
        on_call=late_function("multigrad_torch.compile.checkpoint_regions:on_call"),
        on_draw=dynamo_guards.on_draw,
    ),
    interop=late("multigrad_torch.features:INTEROP"),
    imports=late("multigrad_torch.features:IMPORTS"),
    models=late("multigrad_torch.features:MODELS"),
    modes=late("multigrad_torch.attach.modes:MODES"),
    ranks=late("multigrad_torch.features:RANKS"),
    differences=late("multigrad_torch.differences:DIFFERENCES"),
    ejection=late("multigrad_torch.eject:EJECTION"),
    exports=late("multigrad_torch.features:EXPORTS"),
)
