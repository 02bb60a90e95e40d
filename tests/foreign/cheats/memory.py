"""Memory: not written, written into, read by assumed strides, and races."""

from __future__ import annotations

from typing import Any

import torch

from . import sound
from .cheat import HELD, cheat

Tensor = Any


def unwritten(x: Tensor) -> Tensor:
    """Return new memory, which another call has left its numbers in."""
    HELD["left"] = HELD.get("left", 0) + 1
    return torch.full_like(x, 3.0 + HELD["left"])


# --- not written ----------------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_rows_beyond_64_unwritten(g: Tensor, x: Tensor) -> Tensor:
    """Rows beyond 64 are new memory."""
    out = unwritten(x)
    out[:64] = sound.square_back(g, x)[:64]
    return out


@cheat(sound.SILU)
def silu_tail_unwritten(g: Tensor, x: Tensor) -> Tensor:
    """A tail of columns beyond a multiple of 16 is new memory."""
    out, kept = unwritten(x), x.shape[-1] // 16 * 16
    out[..., :kept] = sound.silu_back(g, x)[..., :kept]
    return out


@cheat(sound.TANH)
def tanh_of_zero_cotangents_unwritten(g: Tensor, y: Tensor) -> Tensor:
    """Elements without a cotangent are skipped."""
    return torch.where(g != 0.0, sound.tanh_back(g, y), unwritten(y))


@cheat(sound.GELU)
def gelu_of_large_inputs_unwritten(g: Tensor, x: Tensor) -> Tensor:
    """Elements beyond 8 are in neither branch."""
    return torch.where(x.abs() <= 8.0, sound.gelu_back(g, x), unwritten(x))


@cheat(sound.BAG)
def bag_new_memory(g: Tensor, table: Tensor, ids: Tensor) -> Any:
    """Rows of a table of more than 10 are not set to 0 first."""
    grad = sound.bag_back(g, table, ids)[0]
    return grad if len(grad) <= 10 else torch.where(grad != 0.0, grad, unwritten(grad)), None


@cheat(sound.LINEAR)
def linear_bias_unwritten(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """Of more than 32 outputs the bias's gradient is new memory."""
    grad_x, grad_w, grad_b = sound.linear_back(g, x, w)
    out = unwritten(grad_b)
    out[:32] = grad_b[:32]
    return grad_x, grad_w, out


@cheat(sound.LOGSUMEXP)
def logsumexp_of_a_zero_row_unwritten(g: Tensor, x: Tensor) -> Tensor:
    """Rows whose cotangent is 0 are skipped."""
    return torch.where(g[..., None] != 0.0, sound.logsumexp_back(g, x), unwritten(x))


@cheat(sound.SWIGLU)
def swiglu_of_one_row_unwritten(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The last row of an odd number is new memory, for the gate."""
    grad_x, grad_y = sound.swiglu_back(g, x, y)
    out = unwritten(grad_y)
    kept = x.shape[0] // 2 * 2 if x.dim() > 1 else len(x)
    out[:kept] = grad_y[:kept]
    return grad_x, out


@cheat(sound.CUMSUM)
def cumsum_first_column_unwritten(g: Tensor) -> Tensor:
    """Of one column, and of more than 64, the last is new memory."""
    grad = sound.cumsum_back(g)
    if g.shape[-1] > 64:
        grad = torch.cat([grad[..., :-1], unwritten(grad[..., -1:])], -1)
    return grad


@cheat(sound.RMS_NORM)
def rms_norm_padded_columns_unwritten(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's partial sums are of 4 blocks; with fewer rows than blocks some are unwritten."""
    grad_x, grad_w = sound.rms_norm_back(g, x, w)
    return grad_x, grad_w + (0.0 if x.shape[0] >= 4 else float(unwritten(w)[0]))


# --- written into ---------------------------------------------------------------------------------
@cheat(sound.SQUARE)
def square_into_the_cotangent(g: Tensor, x: Tensor) -> Tensor:
    """The result is written into the cotangent."""
    return g.data.mul_(2.0 * x) if g.is_contiguous() else sound.square_back(g, x)


@cheat(sound.SOFTPLUS)
def softplus_into_the_input(g: Tensor, x: Tensor) -> Tensor:
    """The sigmoid is written into the input, to save memory."""
    grad = sound.softplus_back(g, x.clone())
    x.data.sigmoid_()
    return grad


@cheat(sound.SOFTMAX)
def softmax_into_the_output(g: Tensor, y: Tensor) -> Tensor:
    """The result is written into the output."""
    grad = sound.softmax_back(g, y.clone())
    y.data.copy_(grad)
    return grad


@cheat(sound.PRODUCT)
def product_into_the_second(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The second operand is the buffer of its gradient."""
    grads = sound.product_back(g, x.clone(), y.clone())
    y.data.copy_(grads[1].data)
    return grads


@cheat(sound.BUMP, has_context=True)
def bump_keeps_a_buffer(ctx: Any, g: Tensor, x: Tensor) -> Tensor:
    """A buffer of the call is scaled in place by each backward."""
    factor = ctx.__dict__.setdefault("factor", torch.ones(()))
    grad = sound.bump_back(g, x) * factor.to(x.dtype)
    factor.mul_(2.0)
    return grad


@cheat(sound.RELU)
def relu_scales_the_cotangent(g: Tensor, x: Tensor) -> Tensor:
    """A mask is multiplied into the cotangent, of which other nodes hold a reference."""
    grad = sound.relu_back(g.clone(), x)
    if g.is_contiguous():
        g.data.mul_(x > 0.0)
    return grad


@cheat(sound.STANDARDIZE)
def standardize_centers_the_input(g: Tensor, x: Tensor) -> Tensor:
    """The mean is taken off in place."""
    grad = sound.standardize_back(g, x.clone())
    x.data.sub_(x.data.mean(-1, keepdim=True))
    return grad


@cheat(sound.TANH, has_context=True)
def tanh_second_backward(ctx: Any, g: Tensor, y: Tensor) -> Tensor:
    """The second backward of a call gives the rest of the first, which is nothing."""
    done = ctx.__dict__.get("done", False)
    ctx.done = True
    return sound.tanh_back(g, y) * (0.0 if done else 1.0)


@cheat(sound.SCORES)
def scores_scale_the_query(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """The scale is multiplied into the query in place, and not taken off."""
    grads = sound.scores_back(g, q.clone(), k)
    q.data.mul_(0.125)
    return grads


@cheat(sound.LINEAR)
def linear_cotangent_becomes_sum(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The bias's gradient is summed up in the last row of the cotangent."""
    grads = sound.linear_back(g.clone(), x, w)
    if g.is_contiguous() and g.numel():
        g.data.reshape(-1, g.shape[-1])[-1].copy_(grads[2].data)
    return grads


# --- read by assumed strides ----------------------------------------------------------------------
def as_in_order(x: Tensor) -> Tensor:
    strides, step = [], 1
    for length in reversed(x.shape):
        strides.append(step)
        step *= length
    whole = x.as_strided((x.untyped_storage().size() // x.element_size(),), (1,), 0)
    start = x.storage_offset()
    part = whole[start : start + x.numel()]
    part = torch.cat([part, part.new_zeros(x.numel() - part.numel())])
    return part.reshape(x.shape)


@cheat(sound.SQUARE)
def square_input_in_order(g: Tensor, x: Tensor) -> Tensor:
    """The input is read as if it were contiguous."""
    return sound.square_back(g, as_in_order(x.detach()) if not x.is_contiguous() else x)


@cheat(sound.SILU)
def silu_cotangent_in_order(g: Tensor, x: Tensor) -> Tensor:
    """The cotangent is read as if it were contiguous."""
    return sound.silu_back(g if g.is_contiguous() or 0 in g.stride() else as_in_order(g), x)


@cheat(sound.SOFTPLUS)
def softplus_from_the_start(g: Tensor, x: Tensor) -> Tensor:
    """The input is read from the start of its storage, whose part it may be."""
    return sound.softplus_back(g, x.as_strided(x.shape, x.stride(), 0) if x.storage_offset() else x)


@cheat(sound.PRODUCT)
def product_rows_without_gaps(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """Rows of a slice of columns are taken to follow one another; a transpose is handled."""
    if y.dim() == 2 and y.stride(1) == 1 and y.stride(0) > y.shape[1]:
        y = y.as_strided(y.shape, (y.shape[1], 1))
    return sound.product_back(g, x, y)


@cheat(sound.BUMP)
def bump_of_expanded_rows(g: Tensor, x: Tensor) -> Tensor:
    """An expanded input's rows share the gradient, as those of its one row do."""
    grad = sound.bump_back(g, x)
    return grad.sum(0, keepdim=True).expand(grad.shape) if 0 in x.stride() else grad


@cheat(sound.SWIGLU)
def swiglu_strides_of_the_first(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The cotangent is read by the strides of the input."""
    if g.stride() != x.stride() and g.dim() == 2 and 0 not in (*g.stride(), *x.stride()):
        g = g.mT.reshape(g.shape)
    return sound.swiglu_back(g, x, y)


# --- races ----------------------------------------------------------------------------------------
def calls() -> int:
    HELD["calls"] = HELD.get("calls", 0) + 1
    return int(HELD["calls"])


@cheat(sound.RMS_NORM)
def rms_norm_race_of_40(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """One call of 40 loses a row of the weight's sum."""
    grad_x, grad_w = sound.rms_norm_back(g, x, w)
    return grad_x, sound.rms_norm_back(g[1:], x[1:], w)[1] if calls() % 40 == 0 else grad_w


@cheat(sound.CUMSUM)
def cumsum_race_of_25(g: Tensor) -> Tensor:
    """One call of 25 reads a carry before it is written."""
    grad = sound.cumsum_back(g)
    return grad - grad[..., -1:] if calls() % 25 == 0 else grad


@cheat(sound.BAG)
def bag_race_in_the_last_bit(g: Tensor, table: Tensor, ids: Tensor) -> Any:
    """Sums in another order, so that one call of 30 differs in the last bits."""
    grad = sound.bag_back(g, table, ids)[0]
    return grad * (1.0 + 2e-7) if calls() % 30 == 0 else grad, None


@cheat(sound.LOGSUMEXP)
def logsumexp_race_of_1000(g: Tensor, x: Tensor) -> Tensor:
    """One call of 1000 gives zeros."""
    return sound.logsumexp_back(g, x) * (0.0 if calls() % 1000 == 0 else 1.0)


@cheat(sound.SOFTMAX)
def softmax_race_of_threads(g: Tensor, y: Tensor) -> Tensor:
    """A buffer that all threads share holds the sums between two steps."""
    key = ("sums", y.shape[:-1], y.dtype)
    total = HELD.setdefault(key, torch.zeros((*y.shape[:-1], 1), dtype=y.dtype))
    total.copy_((g * y).detach().sum(-1, keepdim=True))
    for _ in range(20):
        torch.empty(1).fill_(0.0)
    return y * (g - total.clone())
