"""Paddle's rows of the ops over shards: a process that is alone has the whole of each array."""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle.distributed

from multigrad.backend import UnsupportedOp, ops, rows_of

from ..kernels.widening import Tensor


def alone(names: Any) -> None:
    """Refuse to go on where several processes run.

    Raises:
        UnsupportedOp: they do.
    """
    count = paddle.distributed.get_world_size()
    if count > 1:
        raise UnsupportedOp(
            f"a reduction over all shards, among {count} processes of paddle.distributed: only one "
            "process is supported. Leave over= away"
        )


def all_sum(x: Tensor, of: Tensor, *, names: Any) -> Tensor:
    alone(names)
    return x


def all_max(x: Tensor, of: Tensor, *, names: Any) -> Tensor:
    alone(names)
    return x


def all_gather(x: Tensor, of: Tensor, *, names: Any, axis: int) -> Tensor:
    alone(names)
    return x


def reduce_scatter(x: Tensor, of: Tensor, *, names: Any, axis: int) -> Tensor:
    alone(names)
    return x


def all_to_all(x: Tensor, of: Tensor, *, names: Any, axis: int, concat: int) -> Tensor:
    alone(names)
    return x


def ppermute(x: Tensor, of: Tensor, *, names: Any, pairs: Any) -> Tensor:
    alone(names)
    ops.PPERMUTE.numpy(np.zeros(()), None, names=names, pairs=pairs)  # refuses others
    return x if pairs else paddle.zeros_like(x)


def all_dim(x: Tensor, *, axis: int, names: Any) -> int:
    alone(names)
    return x.shape[axis]


def place_key(key: Any, like: Tensor, *, split: Any) -> Any:
    alone(split)
    return key


def to_shard(x: Tensor) -> Tensor:
    return x


def from_shard(x: Tensor, like: Tensor) -> Tensor:
    return x


OPS = rows_of(vars())
