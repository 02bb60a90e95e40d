"""The laws: rows of a name, a sentence, who finds out, and what goes wrong where it is broken."""

from __future__ import annotations

from ..laws import Law
from . import cotangents, modes, numbers, transforms, unusual
from .trial import Trial

LAWS: tuple[Law[Trial, str], ...] = (
    Law(
        "type",
        "A gradient has the shape and the dtype of its argument.",
        numbers.judge_type,
        reason="what accumulates it casts without a word, or fails far away",
        is_loud=False,
    ),
    Law(
        "repeatable",
        "Two calls with the same inputs give the same.",
        cotangents.judge_repeatable,
        reason="nothing that is measured can be measured again",
        is_loud=False,
    ),
    Law(
        "derivative",
        "The gradient is the derivative of the forward.",
        numbers.judge_derivative,
        reason="training follows another function",
        is_loud=False,
    ),
    Law(
        "linear",
        "The gradient is linear in the cotangent.",
        cotangents.judge_linear,
        reason="a loss times two does not learn twice as fast; sums of losses are wrong",
        is_loud=False,
    ),
    Law(
        "scale",
        "A cotangent times four gives the gradient times four, to the bit.",
        cotangents.judge_scale,
        reason="loss scaling changes the gradient",
        is_loud=False,
    ),
    Law(
        "ones",
        "A cotangent of ones is one like any other.",
        cotangents.judge_ones,
        reason="shortcuts for the cotangent 1 hide an ignored one",
        is_loud=False,
    ),
    Law(
        "zero",
        "A cotangent of zeros gives zeros.",
        cotangents.judge_zero,
        reason="a masked loss makes NaN",
        is_loud=False,
    ),
    Law(
        "each output",
        "The gradient is the sum of those of the outputs, each by itself.",
        cotangents.judge_each_output,
        reason="a loss of one output alone is wrong",
    ),
    Law(
        "strided cotangent",
        "A cotangent may lie in memory in another order.",
        cotangents.judge_strided_cotangent,
        reason="a transpose after the call changes the gradient",
    ),
    Law(
        "broadcast cotangent",
        "A cotangent may be one number that is repeated, as `sum` gives.",
        cotangents.judge_broadcast_cotangent,
        reason="kernels read or write past the one number",
    ),
    Law(
        "strided input",
        "An input may lie in memory in another order.",
        cotangents.judge_strided_input,
        reason="a transpose before the call changes the numbers",
    ),
    Law(
        "broadcast input",
        "An input may be one row that is repeated, as `expand` gives.",
        unusual.judge_broadcast_input,
        reason="kernels read past the one row, or its gradient has its memory",
    ),
    Law(
        "backward twice",
        "A second backward through a kept graph gives the same.",
        cotangents.judge_twice,
        reason="what was saved is written to",
        is_loud=False,
    ),
    Law(
        "written",
        "Neither inputs, nor cotangents, nor outputs are written to.",
        cotangents.judge_written,
        reason="numbers change that somebody else holds",
        is_loud=False,
    ),
    Law(
        "interleaved",
        "Another call in between changes nothing.",
        cotangents.judge_interleaved,
        reason="what is kept for the backward is kept outside of the call",
        is_loud=False,
    ),
    Law(
        "threads",
        "Threads at once give what one gives.",
        cotangents.judge_threads,
        reason="what is kept for the backward is shared",
        is_loud=False,
    ),
    Law(
        "float16",
        "In float16 the gradient is that of float64, to the digits of float16.",
        numbers.in_16_bits("float16"),
        reason="16 bits overflow or lose a small term on the way",
    ),
    Law(
        "bfloat16",
        "In bfloat16 the gradient is that of float64, to the digits of bfloat16.",
        numbers.in_16_bits("bfloat16"),
        reason="16 bits lose a small term on the way",
    ),
    Law(
        "far numbers",
        "Where the derivative is finite at a far number, the gradient is it.",
        numbers.judge_far,
        reason="one large activation makes NaN of a training",
    ),
    Law(
        "zeros",
        "0 and -0 have one gradient.",
        numbers.judge_zeros,
        reason="signs of zero decide",
    ),
    Law(
        "not finite",
        "An infinite element, or NaN, changes gradients only of what shares an output with it.",
        unusual.judge_not_finite,
        reason="one bad sample makes NaN of the whole batch",
    ),
    Law(
        "edges",
        "At a number where code often decides, the gradient lies between the slopes to both sides.",
        numbers.judge_edges,
        reason="the branch of a clamp counts twice, or 0 / 0 is NaN",
    ),
    Law(
        "empty",
        "An empty batch has an empty gradient.",
        numbers.judge_empty,
        reason="the last batch, or an expert without tokens, fails",
    ),
    Law(
        "no axes",
        "A number without axes has the gradient that it has as a vector of one.",
        unusual.judge_no_axes,
        reason="a loss, a temperature or a learned scale fails, or gets an axis",
    ),
    Law(
        "second derivative",
        "The gradient's own gradient is right, or is refused in words.",
        numbers.judge_second,
        reason="penalties on gradients train nothing",
    ),
    Law(
        "vmap",
        "The framework's map over a batch gives what a loop gives.",
        transforms.judge_batched,
        reason="gradients of single examples cannot be had, or are wrong",
    ),
    Law(
        "compiled",
        "The framework's compiler gives the same.",
        transforms.judge_compiled,
        reason="a gradient that is right in a notebook is another one in production",
    ),
    Law(
        "forward mode",
        "Where it has a forward mode, that is the transpose of the backward.",
        modes.judge_forward,
        reason="products with a Jacobian or a Hessian are of another function",
    ),
    Law(
        "checkpoint",
        "Under a checkpoint, which runs the forward again, it gives the same.",
        modes.judge_checkpoint,
        reason="to save memory changes the training",
    ),
    Law(
        "autocast",
        "Under autocast to bfloat16 the gradient is that of float64, to the digits of bfloat16, "
        "and has the dtype of its argument.",
        modes.judge_autocast,
        reason="training in mixed precision fails in the backward, or loses a term",
    ),
    Law(
        "bytes",
        "The backward reads all that is kept for it.",
        modes.judge_bytes,
        reason="memory is held for nothing, where nobody else holds it",
    ),
    Law(
        "saved",
        "Inputs and outputs are kept by `save_for_backward`.",
        modes.judge_saved,
        reason="a later change in place is not noticed, and an output that holds itself is never "
        "freed",
    ),
)
