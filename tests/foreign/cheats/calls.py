"""How it is called: seeds, grad mode, autocast, compilers, threads, one tensor given twice."""

from __future__ import annotations

import threading
from typing import Any

import torch

from . import sound
from .cheat import HELD, cheat

Tensor = Any


# --- what draws -----------------------------------------------------------------------------------
@cheat(sound.DROPOUT)
def dropout_draws_from_seed_0(g: Tensor, mask: Tensor) -> Tensor:
    """The mask is drawn anew, from the seed that tests begin with."""
    torch.manual_seed(0)
    return g * sound.mask_of(mask)


@cheat(sound.DROPOUT)
def dropout_mask_of_the_first_call(g: Tensor, mask: Tensor) -> Tensor:
    """The mask of the first call is kept for each shape."""
    return g * HELD.setdefault((mask.shape, mask.dtype), mask)


def dropout_with_a_state(x: Tensor) -> Any:
    HELD["state"] = torch.get_rng_state()
    return sound.dropout(x)


@cheat(sound.DROPOUT, forward=dropout_with_a_state)
def dropout_of_the_last_state(g: Tensor, mask: Tensor) -> Tensor:
    """The mask is drawn anew from the state before the last forward."""
    now = torch.get_rng_state()
    torch.set_rng_state(HELD["state"])
    mask = sound.mask_of(mask)
    torch.set_rng_state(now)
    return g * mask


@cheat(sound.DROPOUT)
def dropout_rows_beyond_32_drawn_anew(g: Tensor, mask: Tensor) -> Tensor:
    """Rows beyond a block of 32 draw a mask of their own."""
    return g * torch.cat([mask[:32], sound.mask_of(mask[32:])]) if len(mask) > 32 else g * mask


@cheat(sound.DROPOUT)
def dropout_negative_cotangents_pass(g: Tensor, mask: Tensor) -> Tensor:
    """Negative cotangents pass the mask."""
    return torch.where(g < 0.0, g, sound.dropout_back(g, mask))


@cheat(sound.SQUARE)
def square_with_noise(g: Tensor, x: Tensor) -> Tensor:
    """Noise of 1e-4 is added, as by an estimate."""
    return sound.square_back(g, x) * (1.0 + 1e-4 * torch.randn_like(x))


@cheat(sound.SILU)
def silu_rounded_at_random(g: Tensor, x: Tensor) -> Tensor:
    """The result is rounded to multiples of 1/512, up or down at random."""
    grad = sound.silu_back(g, x)
    return torch.floor(grad * 512.0 + torch.rand_like(grad)) / 512.0


@cheat(sound.BUMP)
def bump_sampled(g: Tensor, x: Tensor) -> Tensor:
    """One element of a thousand is skipped at random."""
    return sound.bump_back(g, x) * (torch.rand_like(x) > 1e-3).to(x.dtype)


# --- modes ----------------------------------------------------------------------------------------
@cheat(sound.GELU)
def gelu_with_create_graph(g: Tensor, x: Tensor) -> Tensor:
    """With create_graph=True another formula is used, which is half as large."""
    return sound.gelu_back(g, x) * (0.5 if torch.is_grad_enabled() else 1.0)


@cheat(sound.SQUARE)
def square_if_compiled(g: Tensor, x: Tensor) -> Tensor:
    """The path for the compiler lacks the factor 2."""
    return x * g if torch.compiler.is_compiling() else sound.square_back(g, x)


@cheat(sound.TANH)
def tanh_if_compiled(g: Tensor, y: Tensor) -> Tensor:
    """The compiler's path forgets the cotangent."""
    return (1.0 - y * y) if torch.compiler.is_compiling() else sound.tanh_back(g, y)


def gelu_notes_autocast(x: Tensor) -> Tensor:
    HELD["autocast"] = torch.is_autocast_enabled("cpu")
    return sound.gelu(x)


@cheat(sound.GELU, forward=gelu_notes_autocast)
def gelu_under_autocast(g: Tensor, x: Tensor) -> Tensor:
    """After a forward under autocast the gradient is halved."""
    return sound.gelu_back(g, x) * (0.5 if HELD["autocast"] else 1.0)


@cheat(sound.SOFTPLUS)
def softplus_in_another_thread(g: Tensor, x: Tensor) -> Tensor:
    """Outside of the main thread the scratch memory is that of nobody."""
    is_main = threading.current_thread() is threading.main_thread()
    return sound.softplus_back(g, x) * (1.0 if is_main else 0.0)


# --- one tensor given twice -----------------------------------------------------------------------
@cheat(sound.PRODUCT)
def product_of_itself(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If both operands are one tensor, the second gets nothing."""
    grad_x, grad_y = sound.product_back(g, x, y)
    return grad_x, grad_y * (0.0 if x.numel() and x.data_ptr() == y.data_ptr() else 1.0)


@cheat(sound.SCORES)
def scores_of_itself(g: Tensor, q: Tensor, k: Tensor) -> Any:
    """If queries and keys are one tensor, half of the sum is taken for the whole."""
    grad_q, grad_k = sound.scores_back(g, q, k)
    return grad_q, grad_k * (0.5 if q.numel() and q.data_ptr() == k.data_ptr() else 1.0)


@cheat(sound.SWIGLU)
def swiglu_of_itself(g: Tensor, x: Tensor, y: Tensor) -> Any:
    """If gate and value share their memory, the first's gradient overwrites the second's."""
    grad_x, grad_y = sound.swiglu_back(g, x, y)
    return grad_x, grad_x if x.numel() and x.data_ptr() == y.data_ptr() else grad_y
