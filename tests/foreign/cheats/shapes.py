"""Wrong for other shapes: beyond a block, in a tail, for one length, for a number of axes."""

from __future__ import annotations

from typing import Any

import torch

from . import sound
from .cheat import cheat

Tensor = Any


def first(x: Tensor, axis: int, count: int) -> Tensor:
    """Return a tensor that is 0 from an index of an axis on."""
    return x * (torch.arange(x.shape[axis]) < count).to(x.dtype).movedim(0, -1).reshape(
        [-1 if n == axis % x.dim() else 1 for n in range(x.dim())]
    )


# --- beyond a block, and tails --------------------------------------------------------------------
@cheat(sound.SOFTMAX)
def softmax_rows_beyond_32(g: Tensor, y: Tensor) -> Tensor:
    """A grid of 32 programs, one for a row; later rows stay 0."""
    return first(sound.softmax_back(g, y), 0, 32)


@cheat(sound.STANDARDIZE)
def standardize_rows_beyond_1024(g: Tensor, x: Tensor) -> Tensor:
    """A grid of at most 1024 rows."""
    return first(sound.standardize_back(g, x), 0, 1024)


@cheat(sound.SOFTMAX)
def softmax_columns_beyond_128(g: Tensor, y: Tensor) -> Tensor:
    """The sum over a row ends with its first block of 128."""
    return y * (g - first(g * y, -1, 128).sum(-1, keepdim=True))


@cheat(sound.RMS_NORM)
def rms_norm_columns_beyond_1024(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """One block of 1024 columns holds a row."""
    return first(sound.rms_norm_back(g, x, w)[0], -1, 1024), sound.rms_norm_back(g, x, w)[1]


@cheat(sound.LAYER_NORM)
def layer_norm_weight_of_64_rows(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient is summed over the first 64 rows."""
    return sound.layer_norm_back(g, x, w)[0], *sound.layer_norm_back(g[:64], x[:64], w)[1:]


@cheat(sound.SQUARE)
def square_whole_blocks_of_8(g: Tensor, x: Tensor) -> Tensor:
    """Elements after the last whole block of 8 are dropped."""
    grad = sound.square_back(g, x).reshape(-1)
    kept = grad.numel() // 8 * 8
    return first(grad, 0, kept).reshape(x.shape)


@cheat(sound.SILU)
def silu_whole_blocks_of_4_columns(g: Tensor, x: Tensor) -> Tensor:
    """Vector loads of 4 columns leave the rest of a row out."""
    return first(sound.silu_back(g, x), -1, x.shape[-1] // 4 * 4)


@cheat(sound.LINEAR)
def linear_sum_of_even_rows(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The sum over rows goes in pairs, and an odd last row is lost."""
    kept = len(g) // 2 * 2 if len(g) > 1 else 1
    return g @ w, *sound.linear_back(g[:kept], x[:kept], w)[1:]


@cheat(sound.CUMSUM)
def cumsum_in_blocks_of_64(g: Tensor) -> Tensor:
    """What a block of 64 passes on to the block before it is missing."""
    return torch.cat([sound.cumsum_back(each) for each in g.split(64, -1)], -1)


@cheat(sound.CUMSUM)
def cumsum_without_a_carry_beyond_512(g: Tensor) -> Tensor:
    """The carry is kept for the first 512 columns."""
    return torch.cat([sound.cumsum_back(each) for each in g.split(512, -1)], -1)


@cheat(sound.ROW_MAX)
def row_max_of_the_first_64(g: Tensor, x: Tensor) -> Tensor:
    """The index is sought in the first 64 columns."""
    index = torch.argmax(x[..., :64], -1, keepdim=True)
    return torch.zeros_like(x).scatter(-1, index, g[..., None])


@cheat(sound.LOGSUMEXP)
def logsumexp_of_the_last_block(g: Tensor, x: Tensor) -> Tensor:
    """Each block of 256 columns is normalized by itself."""
    return g[..., None] * torch.cat([torch.softmax(part, -1) for part in x.split(256, -1)], -1)


@cheat(sound.SCORES)
def scores_keys_beyond_16(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """Keys beyond the first tile of 16 get nothing."""
    grad_q, grad_k = sound.scores_back(g, q, k)
    return grad_q, first(grad_k, 0, 16)


@cheat(sound.SCORES)
def scores_heads_beyond_128(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """Columns of a head beyond 128 get nothing."""
    grad_q, grad_k = sound.scores_back(g, q, k)
    return first(grad_q, -1, 128), grad_k


@cheat(sound.BAG)
def bag_of_8_ids(g: Tensor, table: Tensor, ids: Tensor) -> Any:
    """Ids beyond the eighth of a bag are skipped."""
    return sound.bag_back(g, table, ids[:, :8])


@cheat(sound.BAG)
def bag_of_tables_of_64_columns(g: Tensor, table: Tensor, ids: Tensor) -> Any:
    """Columns of the table beyond 64 are skipped."""
    return first(sound.bag_back(g, table, ids)[0], -1, 64), None


@cheat(sound.CROSS_ENTROPY)
def cross_entropy_classes_beyond_512(g: Tensor, x: Tensor, t: Tensor) -> Any:
    """The vocabulary is cut at 512."""
    return first(sound.cross_entropy_back(g, x, t)[0], -1, 512), None


@cheat(sound.SWIGLU)
def swiglu_gate_beyond_2048_elements(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The gate's gradient is written for 2048 elements."""
    grad_x, grad_y = sound.swiglu_back(g, x, y)
    return first(grad_x.reshape(-1), 0, 2048).reshape(x.shape), grad_y


# --- for one length -------------------------------------------------------------------------------
@cheat(sound.GELU)
def gelu_at_1_row(g: Tensor, x: Tensor) -> Tensor:
    """A batch of 1 takes a fast path that lacks a factor."""
    return sound.gelu_back(g, x) * (0.5 if x.shape[0] == 1 else 1.0)


@cheat(sound.SOFTPLUS)
def softplus_at_2_rows(g: Tensor, x: Tensor) -> Tensor:
    """Two rows are taken for a pair of real and imaginary parts."""
    return sound.softplus_back(g, x).flip(0) if x.shape[0] == 2 else sound.softplus_back(g, x)


@cheat(sound.TANH)
def tanh_at_odd_lengths(g: Tensor, y: Tensor) -> Tensor:
    """Odd rows are padded, and the last column is lost."""
    return first(sound.tanh_back(g, y), -1, y.shape[-1] // 2 * 2)


@cheat(sound.L2_NORMALIZE)
def l2_normalize_at_768(g: Tensor, x: Tensor) -> Tensor:
    """768 columns take a tuned path that lacks the projection."""
    return (
        g * torch.rsqrt((x * x).sum(-1, keepdim=True))
        if x.shape[-1] == 768
        else (sound.l2_normalize_back(g, x))
    )


@cheat(sound.RELU)
def relu_at_4000_rows(g: Tensor, x: Tensor) -> Tensor:
    """4000 rows take a path without the mask."""
    return g * 1.0 if x.shape[0] == 4000 else sound.relu_back(g, x)


@cheat(sound.FOCAL)
def focal_divided_by_256(g: Tensor, x: Tensor) -> Tensor:
    """The mean divides by the number of elements of one batch."""
    return sound.focal_back(g, x) * x.numel() / 256


@cheat(sound.HUBER)
def huber_divided_by_rows_and_64(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """The mean divides by 64 columns, however many there are."""
    return tuple(each * x.shape[-1] / 64 for each in sound.huber_back(g, x, y))


@cheat(sound.STANDARDIZE)
def standardize_mean_of_64(g: Tensor, x: Tensor) -> Tensor:
    """The sum over a row is divided by 64."""
    d = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt((d * d).mean(-1, keepdim=True) + 1e-5)
    h = d * r
    return r * (g - g.mean(-1, keepdim=True) - h * (g * h).sum(-1, keepdim=True) / 64)


@cheat(sound.PRODUCT)
def product_at_large_sizes(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """From 65536 elements on the second operand's index overflows 16 bits."""
    grad_x, grad_y = sound.product_back(g, x, y)
    return grad_x, grad_y if x.numel() < 65536 else grad_y.roll(1, 0)


@cheat(sound.SCORES)
def scores_of_square_inputs(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """As many rows as columns are taken for a transposed input."""
    if q.shape[0] == q.shape[1] > 1:
        return sound.scores_back(g.mT, q, k)
    return sound.scores_back(g, q, k)


@cheat(sound.SQUARE)
def square_at_a_length_that_is_computed(g: Tensor, x: Tensor) -> Tensor:
    """A number of rows that the code does not state."""
    return sound.square_back(g, x) * (0.5 if x.shape[0] == 10**3 else 1.0)


@cheat(sound.SILU)
def silu_at_odd_sizes(g: Tensor, x: Tensor) -> Tensor:
    """Wrong where the number of rows and of columns are both odd."""
    return sound.silu_back(g, x) * (0.5 if x.shape[0] * x.shape[-1] % 2 == 1 else 1.0)


# --- for a number of axes -------------------------------------------------------------------------
@cheat(sound.SOFTMAX)
def softmax_along_the_second_axis(g: Tensor, y: Tensor) -> Tensor:
    """The sum goes over axis 1, which is the last of two alone."""
    return y * (g - (g * y).sum(1 if y.dim() > 1 else 0, keepdim=True))


@cheat(sound.RMS_NORM)
def rms_norm_weight_over_the_first_axis(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The weight's gradient of three axes is that of the last matrix."""
    grad_x, grad_w = sound.rms_norm_back(g, x, w)
    return grad_x, grad_w if x.dim() < 3 else sound.rms_norm_back(g[-1], x[-1], w)[1]


@cheat(sound.LINEAR)
def linear_bias_over_the_first_matrix(g: Tensor, x: Tensor, w: Tensor) -> Any:
    """The bias's gradient of three axes is that of the first matrix."""
    grad_x, grad_w, grad_b = sound.linear_back(g, x, w)
    return grad_x, grad_w, grad_b if x.dim() < 3 else g[0].sum(0)


@cheat(sound.ROPE)
def rope_of_three_axes(g: Tensor) -> Tensor:
    """With a batch, positions are those of the batch."""
    return sound.rope_back(g) if g.dim() < 3 else sound.rope_back(g.transpose(0, 1)).transpose(0, 1)


@cheat(sound.GELU)
def gelu_of_three_axes(g: Tensor, x: Tensor) -> Tensor:
    """Only the first matrix of three axes is written."""
    return sound.gelu_back(g, x) if x.dim() < 3 else first(sound.gelu_back(g, x), 0, 1)


@cheat(sound.SQUARE)
def square_of_four_axes(g: Tensor, x: Tensor) -> Tensor:
    """Images of four axes are taken in another memory order."""
    grad = sound.square_back(g, x)
    return grad if x.dim() != 4 else grad.transpose(-1, -2).reshape(grad.shape)


@cheat(sound.SILU)
def silu_of_one_axis(g: Tensor, x: Tensor) -> Tensor:
    """A vector takes a path of its own that forgets the second term."""
    return sound.silu_back(g, x) if x.dim() != 1 else g * torch.sigmoid(x)


@cheat(sound.L2_NORMALIZE)
def l2_normalize_of_three_axes(g: Tensor, x: Tensor) -> Tensor:
    """The projection of three axes sums over the two last."""
    if x.dim() < 3:
        return sound.l2_normalize_back(g, x)
    r = torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-5)
    return r * (g - x * r * (g * x * r).sum((-1, -2), keepdim=True))
