"""What moves, repeats, joins and cuts elements, on every backend: exact. See
`test_ops_arrays.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.core.trace.xp import all as neutral

from ..oracles import DTYPES, FLOAT32, spread
from .test_ops import assert_close, widen
from .test_ops_arrays import exactly_equal, run

xp: Any = neutral  # `xg.xp`, and the functions that only VJPs call
Wide = Any
Function = Callable[..., Any]


MOVES: dict[str, tuple[tuple[int, ...], Function, Function]] = {
    "reshape": ((2, 3, 4), lambda x: xp.reshape(x, (4, -1)), lambda x: x.reshape(4, 6)),
    "reshape flat": ((2, 3), lambda x: xp.reshape(x, -1), np.ravel),
    "reshape of a scalar": ((), lambda x: xp.reshape(x, (1, 1)), lambda x: x.reshape(1, 1)),
    "squeeze": ((2, 1, 3), lambda x: xp.squeeze(x, 1), lambda x: x[:, 0]),
    "squeeze of two": ((1, 3, 1), lambda x: xp.squeeze(x, (0, -1)), lambda x: x[0, :, 0]),
    "squeeze of all": ((1, 3, 1), xp.squeeze, lambda x: x[0, :, 0]),
    "permute_dims": ((2, 3, 4), lambda x: xp.permute_dims(x, (2, 0, -2)),
        lambda x: np.einsum("abc->cab", x)),
    "permute_dims reversed": ((2, 3, 4), xp.permute_dims, lambda x: np.einsum("abc->cba", x)),
    "swapaxes": ((2, 3, 4), lambda x: xp.swapaxes(x, 0, -1), lambda x: np.einsum("abc->cba", x)),
    "matrix_transpose": ((2, 3, 4), xp.matrix_transpose, lambda x: np.einsum("abc->acb", x)),
    "moveaxis": ((2, 3, 4), lambda x: xp.moveaxis(x, 0, -1), lambda x: np.einsum("abc->bca", x)),
    "moveaxis of two": ((2, 3, 4), lambda x: xp.moveaxis(x, (0, 1), (2, 0)),
        lambda x: np.einsum("abc->bca", x)),
    "flip": ((2, 3, 4), xp.flip, lambda x: x[::-1, ::-1, ::-1]),
    "flip of one": ((2, 3, 4), lambda x: xp.flip(x, -2), lambda x: x[:, ::-1]),
    "flip of two": ((2, 3, 4), lambda x: xp.flip(x, (0, 2)), lambda x: x[::-1, :, ::-1]),
    "flip of a scalar": ((), xp.flip, lambda x: x),
    "roll": ((2, 3), lambda x: xp.roll(x, 1, 1), lambda x: x[:, [2, 0, 1]]),
    "roll back": ((2, 3), lambda x: xp.roll(x, -4, -1), lambda x: x[:, [1, 2, 0]]),
    "roll flat": ((2, 3), lambda x: xp.roll(x, 2),
        lambda x: x.ravel()[[4, 5, 0, 1, 2, 3]].reshape(2, 3)),
    "roll two": ((2, 3), lambda x: xp.roll(x, (1, 2), (0, 1)), lambda x: x[[1, 0]][:, [1, 2, 0]]),
    "tril": ((2, 3, 4), xp.tril, lambda x: np.where(np.tri(3, 4) > 0, x, x.dtype.type(0))),
    "tril above": ((3, 3), lambda x: xp.tril(x, 1),
        lambda x: np.where(np.tri(3, 3, 1) > 0, x, x.dtype.type(0))),
    "triu": ((3, 2), xp.triu, lambda x: np.where(np.tri(3, 2, -1) > 0, x.dtype.type(0), x)),
    "triu below": ((3, 3), lambda x: xp.triu(x, -1),
        lambda x: np.where(np.tri(3, 3, -2) > 0, x.dtype.type(0), x)),
    "broadcast_to_shape": ((3, 1), lambda x: xp.broadcast_to(x, (2, 3, 4)),
        lambda x: x + np.zeros((2, 3, 4), x.dtype)),
    "getitem": ((4, 5), lambda x: xp.getitem(x, (slice(1, None), -1)), lambda x: x[1:, -1]),
    "getitem with steps": ((4, 5),
        lambda x: xp.getitem(x, (slice(None, None, -1), slice(3, 0, -2))),
        lambda x: x[::-1, 3:0:-2]),
    "getitem at the end": ((2, 3, 4), lambda x: xp.getitem(x, (..., 0)), lambda x: x[:, :, 0]),
    "getitem with a new axis": ((2, 3), lambda x: xp.getitem(x, (slice(None), None)),
        lambda x: x[:, None]),
    "getitem of nothing": ((2, 3), lambda x: xp.getitem(x, slice(5, None)), lambda x: x[5:]),
    "take": ((2, 4), lambda x: xp.take(x, (3, 0, -1), axis=1), lambda x: x[:, [3, 0, 3]]),
    "take of one": ((2, 4), lambda x: xp.take(x, 2, axis=-1), lambda x: x[:, 2]),
    "take flat": ((2, 3), lambda x: xp.take(x, [4, 1]), lambda x: x.ravel()[[4, 1]]),
    "take of nothing": ((2, 3), lambda x: xp.take(x, [], axis=0), lambda x: x[:0]),
    "half": ((2, 4), lambda x: xp.half(x, 0, 1), lambda x: x[:, :2]),
    "half, the second": ((4, 3), lambda x: xp.half(x, 1, 0), lambda x: x[2:]),
    "tile": ((2, 3), lambda x: xp.tile(x, (2, 2)), lambda x: np.block([[x, x], [x, x]])),
    "tile along the last": ((2, 3), lambda x: xp.tile(x, 2), lambda x: np.hstack([x, x])),
    "tile with new axes": ((3,), lambda x: xp.tile(x, (2, 1)), lambda x: np.vstack([x, x])),
    "repeat": ((2, 3), lambda x: xp.repeat(x, 2, axis=1), lambda x: x[:, [0, 0, 1, 1, 2, 2]]),
    "repeat flat": ((2, 2), lambda x: xp.repeat(x, 2),
        lambda x: x.ravel()[[0, 0, 1, 1, 2, 2, 3, 3]]),
    "pad": ((2, 3), lambda x: xp.pad(x, ((1, 0), (0, 2)), 5.0),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=x.dtype.type(5))),
    "pad at the end": ((2, 3), lambda x: xp.pad(x, ((1, 1),)),
        lambda x: np.pad(x, ((0, 0), (1, 1)))),
    "pad all round": ((2, 3), lambda x: xp.pad(x, 1), lambda x: np.pad(x, 1)),
    "concatenate": ((2, 3), lambda x: xp.concatenate([x, x, x], axis=1),
        lambda x: np.hstack([x, x, x])),
    "concatenate flat": ((2, 3), lambda x: xp.concat([x, x], axis=None),
        lambda x: np.hstack([x.ravel(), x.ravel()])),
    "stack": ((2, 3), lambda x: xp.stack([x, x], axis=-1), lambda x: np.dstack([x, x])),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_is_exact(backend: Any, name: str) -> None:
    shape, function, exact = MOVES[name]
    for dtype in DTYPES:
        x = spread(shape, dtype)
        if x.size > 3:
            x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
        exactly_equal(run(backend, function, x), np.asarray(exact(x)), f"{name}, {dtype}")


# The function that undoes one: together they multiply an element by how often it was copied.
UNDOING: dict[str, tuple[Function, Function]] = {
    "reshape_like": (lambda x: xp.reshape(x, (3, 8)), xp.reshape_like),
    "setitem": (
        lambda x: xp.getitem(x, (1, slice(None, None, -2))),
        lambda y, x: xp.setitem(y, x, (1, (None, None, -2))),
    ),
    "setitem at the end": (
        lambda x: xp.getitem(x, (..., None, 1)),
        lambda y, x: xp.setitem(y, x, ("...", None, 1)),
    ),
    "untake": (lambda x: xp.take(x, (1, 1, 0), axis=1), lambda y, x: xp.untake(y, x, (1, 1, 0), 1)),
    "untile": (lambda x: xp.tile(x, (2, 1, 3)), lambda y, x: xp.untile(y, x, (2, 1, 3))),
    "untile of more axes": (
        lambda x: xp.tile(x, (2, 1, 1, 3)),
        lambda y, x: xp.untile(y, x, (2, 1, 1, 3)),
    ),
    "unrepeat": (lambda x: xp.repeat(x, 3, axis=-1), lambda y, x: xp.unrepeat(y, x, 3, -1)),
    "part": (lambda x: xp.concatenate([x, x * 2], axis=1), lambda y, x: xp.part(y, x, 0, 1)),
    "part at the end": (
        lambda x: xp.concatenate([x * 2, x], axis=-1),
        lambda y, x: xp.part(y, x, 4, -1),
    ),
}
COPIES: dict[str, Function] = {
    "setitem": lambda x: np.where(np.arange(2)[:, None, None] == 1, [[1], [0], [1]], 0) + 0 * x,
    "setitem at the end": lambda x: np.array([0, 1, 0, 0]) + 0 * x,
    "untake": lambda x: np.array([[1], [2], [0]]) + 0 * x,
    "untile": lambda x: 6 + 0 * x,
    "untile of more axes": lambda x: 6 + 0 * x,
    "unrepeat": lambda x: 3 + 0 * x,
}


@pytest.mark.parametrize("name", UNDOING)
def test_what_undoes_a_copy_sums_the_copies(backend: Any, name: str) -> None:
    function, undo = UNDOING[name]
    for dtype in DTYPES:
        x = spread((2, 3, 4), dtype)
        copies = COPIES[name](widen(x)) if name in COPIES else np.ones(x.shape)
        actual = run(backend, lambda t: undo(function(t), t), x)
        assert_close(actual, widen(x) * copies, dtype, f"{name}, {dtype}")


def test_unpart_puts_a_part_where_it_was(backend: Any) -> None:
    for dtype in DTYPES:
        like, x = spread((2, 5), dtype), spread((2, 2), dtype)
        expected = np.hstack([np.zeros((2, 2)), widen(x), np.zeros((2, 1))])
        actual = run(backend, lambda t, u: xp.unpart(t, u, 2, 1), x, like)
        exactly_equal(actual, expected.astype(dtype), f"{dtype}")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: xp.norm(x, ord=0), "order above 0"),
        (lambda x: xp.quantile(x, 1.5), "from 0 to 1"),
        (lambda x: xp.top_k_mask(x, -1), "at least 0"),
        (lambda x: xp.reshape(x, (-1, -1)), "at most one -1"),
        (lambda x: xp.pad(x, ((-1, 0),)), "not negative"),
        (lambda x: xp.permute_dims(x, (0, 0)), "each axis once"),
        (lambda x: xp.roll(x, (1, 2, 3), (0, 1)), "3 shifts for 2 axes"),
        (lambda x: xp.getitem(x, True), "mask"),
    ],
)
def test_attributes_that_mean_nothing_are_refused(function: Function, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        function(np.ones((2, 2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: xp.sum(x, axis=2),
        lambda x: xp.cumsum(x, axis=-3),
        lambda x: xp.sort(x, axis=2),
        lambda x: xp.prod(x, axis=(0, 2)),
        lambda x: xp.median(x, axis=2),
        lambda x: xp.argmax_mask(x, 2),
        lambda x: xp.softmax(x, axis=2),
        lambda x: xp.flip(x, 2),
        lambda x: xp.swapaxes(x, 0, 2),
        lambda x: xp.getitem(x, (0, 0, 0)),
        lambda x: xp.take(x, (0, 5), axis=1),
        lambda x: xp.squeeze(x, 0),
        lambda x: xp.half(x, 0, 1),
        lambda x: xp.reshape(x, (4,)),
    ],
)
def test_what_a_tensor_lacks_is_an_error_and_never_a_number(
    backend: Any, function: Function
) -> None:
    with pytest.raises(Exception, match=r"."):
        run(backend, function, spread((2, 3), FLOAT32))


def test_an_axis_that_the_input_lacks_is_named_while_capturing() -> None:
    def rule(ctx: Any, grad_out: Any, tin: Any) -> Any:
        assert grad_out.ndim == 2
        return grad_out - xg.xp.mean(grad_out, axis=2, keepdims=True)

    strict = xg.register("averages_no_axis", native=False)(rule)
    try:
        with pytest.raises(xg.TraceError, match=r"averages_no_axis.*axis 2 of a tensor that has 2"):
            strict(None, np.ones((2, 2)), np.ones((2, 2)))
    finally:
        xg.unregister("averages_no_axis")
