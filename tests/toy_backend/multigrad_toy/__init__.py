"""multigrad's backend for `toy`."""

from __future__ import annotations

from typing import Any

import toy

from multigrad.backend import Autodiff, Backend, Kernels, Tensors, as_numpy_dtype

from . import attach, ops


def weak(number: Any, dtype: Any) -> Any:
    """Return a number as a scalar of the array's dtype."""
    return number if isinstance(number, toy.Array) else dtype.type(number)


backend = Backend(
    name="toy",
    tensors=Tensors(
        types=(toy.Array,),
        dtype=as_numpy_dtype,
        to_numpy=toy.Array.numpy,
        from_numpy=toy.Array,
        weak=weak,
        weak_literals=True,
    ),
    kernels=Kernels(rows=ops.OPS, unsupported=ops.UNSUPPORTED),
    autodiff=Autodiff(
        render=attach.render,
        finish=attach.finish,
        call=attach.call,
        attach=attach.attach,
        namespace={"zero_if_none": attach.zero_if_none},
        keeps_float_derivatives=True,  # nobody differentiates toy code
    ),
)
