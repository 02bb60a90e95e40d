"""The laws: rows of a name, a sentence, a reason, and who finds out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import cotangents, numbers, transforms
from .trial import Trial


@dataclass(frozen=True, slots=True)
class Law:
    """A law of gradients.

    Attributes:
        name: what it is switched on by.
        sentence: what it says.
        reason: what goes wrong where it is broken.
        judge: returns what it saw, "" where the law is kept.
        is_loud: whether code that raises here is within its rights: it says so.
    """

    name: str
    sentence: str
    reason: str
    judge: Callable[[Trial], str]
    is_loud: bool = True


LAWS = (
    Law("type", "A gradient has the shape and the dtype of its argument.",
        "what accumulates it casts without a word, or fails far away", numbers.judge_type, False),
    Law("repeatable", "Two calls with the same inputs give the same.",
        "nothing that is measured can be measured again", cotangents.judge_repeatable, False),
    Law("derivative", "The gradient is the derivative of the forward.",
        "training follows another function", numbers.judge_derivative, False),
    Law("linear", "The gradient is linear in the cotangent.",
        "a loss times two does not learn twice as fast; sums of losses are wrong",
        cotangents.judge_linear, False),
    Law("scale", "A cotangent times four gives the gradient times four, to the bit.",
        "loss scaling changes the gradient", cotangents.judge_scale, False),
    Law("ones", "A cotangent of ones is one like any other.",
        "shortcuts for the cotangent 1 hide an ignored one", cotangents.judge_ones, False),
    Law("zero", "A cotangent of zeros gives zeros.",
        "a masked loss makes NaN", cotangents.judge_zero, False),
    Law("each output", "The gradient is the sum of those of the outputs, each by itself.",
        "a loss of one output alone is wrong", cotangents.judge_each_output),
    Law("strided cotangent", "A cotangent may lie in memory in another order.",
        "a transpose after the call changes the gradient", cotangents.judge_strided_cotangent),
    Law("broadcast cotangent", "A cotangent may be one number that is repeated, as `sum` gives.",
        "kernels read or write past the one number", cotangents.judge_broadcast_cotangent),
    Law("strided input", "An input may lie in memory in another order.",
        "a transpose before the call changes the numbers", cotangents.judge_strided_input),
    Law("backward twice", "A second backward through a kept graph gives the same.",
        "what was saved is written to", cotangents.judge_twice, False),
    Law("written", "Neither inputs, nor cotangents, nor outputs are written to.",
        "numbers change that somebody else holds", cotangents.judge_written, False),
    Law("interleaved", "Another call in between changes nothing.",
        "what is kept for the backward is kept outside of the call",
        cotangents.judge_interleaved, False),
    Law("threads", "Threads at once give what one gives.",
        "what is kept for the backward is shared", cotangents.judge_threads, False),
    Law("float16", "In float16 the gradient is that of float64, to the digits of float16.",
        "16 bits overflow or lose a small term on the way", numbers.in_16_bits("float16")),
    Law("bfloat16", "In bfloat16 the gradient is that of float64, to the digits of bfloat16.",
        "16 bits lose a small term on the way", numbers.in_16_bits("bfloat16")),
    Law("far numbers", "Where the derivative is finite at a far number, so is the gradient.",
        "one large activation makes NaN of a training", numbers.judge_far),
    Law("zeros", "0 and -0 have one gradient.", "signs of zero decide", numbers.judge_zeros),
    Law("empty", "An empty batch has an empty gradient.",
        "the last batch, or an expert without tokens, fails", numbers.judge_empty),
    Law("second derivative", "The gradient's own gradient is right, or is refused in words.",
        "penalties on gradients train nothing", numbers.judge_second),
    Law("vmap", "The framework's map over a batch gives what a loop gives.",
        "gradients of single examples cannot be had, or are wrong", transforms.judge_batched),
    Law("compiled", "The framework's compiler gives the same.",
        "a gradient that is right in a notebook is another one in production",
        transforms.judge_compiled),
)  # fmt: skip
