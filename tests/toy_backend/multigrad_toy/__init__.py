"""multigrad's backend for `toy`."""

from __future__ import annotations

import toy

from multigrad import random
from multigrad.lowering.backend import Backend

from . import attach, bridge, ops

__all__ = ["backend"]


def tensor_types() -> tuple[type, ...]:
    return (toy.Array,)


backend = Backend(
    name="toy",
    module="toy",
    distribution="multigrad-toy",
    tensor_types=tensor_types,
    ops=ops.OPS,
    unsupported=ops.UNSUPPORTED,
    dtype=bridge.dtype,
    render=attach.render,
    finish=attach.finish,
    attach_native=attach.attach_native,
    attach_function=attach.attach_function,
    call=attach.call,
    draw_key=random.draw_key,
    key_pair=bridge.key_pair,
    fold_in=random.fold_in,
    is_traced=bridge.is_traced,
    to_numpy=toy.Array.numpy,
    from_numpy=toy.Array,
    weak=bridge.weak,
    weak_literals=True,
    differentiates_residuals=True,  # nobody differentiates toy code
)
