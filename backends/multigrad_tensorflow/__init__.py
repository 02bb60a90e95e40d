"""multigrad's TensorFlow backend: rules as `tf.custom_gradient`."""

from __future__ import annotations

import tensorflow as tf

from multigrad.core.backend.contract import Autodiff, Backend, Compiler, Kernels, Tensors, late
from multigrad.core.support.lazy_modules import late_function, load_engine

from .core import compile
from .core.attach import host, render
from .core.kernels import exact, ops

__all__ = ["backend"]


load_engine(__name__)
backend = Backend(
    name="tensorflow",
    tensors=Tensors(
        types=(tf.Tensor, tf.Variable),
        dtype=tf.as_dtype,
        to_numpy=host.to_numpy,
        from_numpy=tf.convert_to_tensor,
        in_code=("import tensorflow as tf", 'tf.constant({}, "{}")'),
        constant=host.constant,
        is_traced=host.is_traced,
        weak=host.weak,
        read_number=host.read_number,
        write_number=host.write_number,
        keep=host.keep,
    ),
    kernels=Kernels(
        rows=ops.OPS,
        unsupported=ops.UNSUPPORTED,
        exact=exact.OPS,
        while_loop=late_function("multigrad_tensorflow.kernels.loops:while_loop"),
        scan=late_function("multigrad_tensorflow.kernels.loops:scan"),
        bits=(
            late_function("multigrad_tensorflow.kernels.shapes:pack"),
            late_function("multigrad_tensorflow.kernels.shapes:unpack"),
        ),
    ),
    autodiff=Autodiff(
        render=render.render,
        finish=render.finish,
        call=render.call,
        attach=late_function("multigrad_tensorflow.attach.as_written:attach"),
        many=late_function("multigrad_tensorflow.attach.modes:many"),
        vjp=late_function("multigrad_tensorflow.attach.vjp:vjp"),
        forbid_derivative=late_function("multigrad_tensorflow.attach.vjp:forbid_derivative"),
        refuse_gradient=late_function("multigrad_tensorflow.attach.vjp:refuse_gradient"),
        namespace=render.NAMESPACE,
        keeps_float_derivatives=True,
        joins_loops=True,
        isolate=host.isolate,
    ),
    draws=late("multigrad_tensorflow.kernels.random:DRAWS"),
    compiler=Compiler(
        jit=late_function("multigrad_tensorflow.jit:jit"),
        read_activation=(compile.READER,),
        on_enter=compile.on_enter,
        on_read=compile.on_read,
        on_depend=compile.on_depend,
        is_tracing=compile.is_tracing,
        follow=compile.follow,
        forget_traces=compile.forget_traces,
        on_call=late_function("multigrad_tensorflow.recomputed_regions:on_call"),
        on_draw=late_function("multigrad_tensorflow.recomputed_regions:on_draw"),
        recall=late_function("multigrad_tensorflow.recomputed_regions:recall"),
    ),
    interop=late("multigrad_tensorflow.features:INTEROP"),
    imports=late("multigrad_tensorflow.features:IMPORTS"),
    models=late("multigrad_tensorflow.features:MODELS"),
    modes=late("multigrad_tensorflow.features:MODES"),
    ranks=late("multigrad_tensorflow.features:RANKS"),
    differences=late("multigrad_tensorflow.differences:DIFFERENCES"),
    ejection=late("multigrad_tensorflow.eject:EJECTION"),
)
