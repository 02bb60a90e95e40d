"""The laws as a table: a name, a sentence, a judge, and what goes wrong if the law is broken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import consistency, derivatives, modes, sizes, unusual_inputs
from .trial import Trial


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Attributes:
        name: as `xg.audit(laws=...)` takes it.
        sentence: what it says.
        judge: runs a trial; "" or a remark where the law is kept, else what it saw.
        matters: what goes wrong where it is broken.
        is_loud: whether code that raises here refuses, instead of breaking the law.
    """

    name: str
    sentence: str
    judge: Callable[[Trial], str]
    matters: str
    is_loud: bool = True


LAWS: tuple[Law, ...] = (
    Law(
        "type",
        "A gradient has the shape and the dtype of its argument.",
        derivatives.judge_type,
        matters="accumulation casts it silently, or fails far away",
        is_loud=False,
    ),
    Law(
        "repeatable",
        "Calls with the same inputs give the same result.",
        consistency.judge_repeatable,
        matters="no other law can be tested",
        is_loud=False,
    ),
    Law(
        "seeded",
        "What draws at random draws the same from the same seed.",
        consistency.judge_seeded,
        matters="no run can be repeated, and a checkpoint's second forward is another one",
        is_loud=False,
    ),
    Law(
        "derivative",
        "The gradient is the derivative of the forward.",
        derivatives.judge_derivative,
        matters="training goes wrong",
        is_loud=False,
    ),
    Law(
        "linear",
        "The gradient is linear in the cotangent.",
        consistency.judge_linear,
        matters="doubling a loss does not double its gradient; sums of losses are wrong",
        is_loud=False,
    ),
    Law(
        "scale",
        "A cotangent times a power of two gives the gradient times it, bit for bit.",
        consistency.judge_scale,
        matters="loss scaling changes the gradient",
        is_loud=False,
    ),
    Law(
        "ones",
        "A cotangent of ones is treated like any other.",
        consistency.judge_ones,
        matters="a shortcut for the cotangent 1 hides that it is otherwise ignored",
        is_loud=False,
    ),
    Law(
        "zero",
        "A cotangent of zeros gives zeros.",
        consistency.judge_zero,
        matters="a masked loss gives NaN",
        is_loud=False,
    ),
    Law(
        "each output",
        "The gradient is the sum of the gradients of the outputs, taken separately.",
        consistency.judge_each_output,
        matters="a loss on one output alone is wrong",
    ),
    Law(
        "each input",
        "An input's gradient is the same if the other inputs need none, or share its memory.",
        consistency.judge_each_input,
        matters="training with a frozen part, or a call with one tensor for two, goes wrong",
    ),
    Law(
        "each parameter",
        "Each trained parameter of a module gets a gradient, which is not zero at all numbers.",
        consistency.judge_parameters,
        matters="a part of the model is never trained",
        is_loud=False,
    ),
    Law(
        "strided cotangent",
        "A cotangent may have another memory order, or be a part of a larger tensor.",
        unusual_inputs.judge_strided_cotangent,
        matters="a transpose after the call changes the gradient",
    ),
    Law(
        "broadcast cotangent",
        "A cotangent may be one repeated number, as `sum` gives.",
        unusual_inputs.judge_broadcast_cotangent,
        matters="kernels read or write past the one number",
    ),
    Law(
        "strided input",
        "An input may have another memory order, or be a part of a larger tensor.",
        unusual_inputs.judge_strided_input,
        matters="a transpose before the call changes the numbers",
    ),
    Law(
        "broadcast input",
        "An input may be one repeated row, as `expand` gives.",
        unusual_inputs.judge_broadcast_input,
        matters="kernels read past the one row, or its gradient shares that row's memory",
    ),
    Law(
        "backward twice",
        "A second backward through a retained graph gives the same result.",
        consistency.judge_twice,
        matters="a saved tensor is overwritten",
        is_loud=False,
    ),
    Law(
        "written",
        "Inputs, cotangents and outputs are not written to.",
        consistency.judge_written,
        matters="numbers that other code holds change",
        is_loud=False,
    ),
    Law(
        "interleaved",
        "Another call in between changes nothing.",
        consistency.judge_interleaved,
        matters="values for the backward are kept outside the call",
        is_loud=False,
    ),
    Law(
        "threads",
        "Concurrent threads give the same results as one.",
        consistency.judge_threads,
        matters="values for the backward are shared between threads",
        is_loud=False,
    ),
    Law(
        "float16",
        "In float16 the gradient is that of float64, to the precision of float16.",
        derivatives.in_16_bits("float16"),
        matters="16 bits overflow or lose a small term on the way",
    ),
    Law(
        "bfloat16",
        "In bfloat16 the gradient is that of float64, to the precision of bfloat16.",
        derivatives.in_16_bits("bfloat16"),
        matters="16 bits lose a small term on the way",
    ),
    Law(
        "far numbers",
        "Where the derivative at a large number is finite, the gradient equals it.",
        unusual_inputs.judge_far,
        matters="one large activation turns a training into NaN",
    ),
    Law(
        "zeros",
        "0 and -0 have the same gradient.",
        unusual_inputs.judge_zeros,
        matters="the sign of a zero decides the gradient",
    ),
    Law(
        "not finite",
        "An infinite element, or NaN, affects only gradients of elements that share an output; "
        "that of a cotangent is not hidden.",
        unusual_inputs.judge_not_finite,
        matters="one bad sample turns the entire batch into NaN",
    ),
    Law(
        "edges",
        "At numbers where code often branches, and where numbers are alike, the gradient lies "
        "between the slopes on both sides.",
        unusual_inputs.judge_edges,
        matters="a clamp counts at both branches, or 0 / 0 is NaN",
    ),
    Law(
        "empty",
        "An empty batch has an empty gradient.",
        unusual_inputs.judge_empty,
        matters="the last batch, or an expert without tokens, fails",
    ),
    Law(
        "no axes",
        "A scalar has the same gradient as a vector of one element.",
        unusual_inputs.judge_no_axes,
        matters="a loss, a temperature or a learned scale fails, or gets an axis",
    ),
    Law(
        "sizes",
        "The gradient is right for every length of an axis, and for more axes.",
        sizes.judge_sizes,
        matters="the last block, a larger batch or a longer sequence gets a wrong gradient",
    ),
    Law(
        "second derivative",
        "The gradient's own gradient is right, or is refused with an error.",
        derivatives.judge_second,
        matters="gradient penalties have no effect",
    ),
    Law(
        "vmap",
        "The framework's map over a batch gives what a loop gives.",
        modes.judge_batched,
        matters="per-example gradients are unavailable, or wrong",
    ),
    Law(
        "compiled",
        "The framework's compiler gives the same result.",
        modes.judge_compiled,
        matters="a gradient that is right in a notebook differs in production",
    ),
    Law(
        "compiled transforms",
        "A transform of gradients inside the compiler gives the same result.",
        modes.judge_compiled_transforms,
        matters="the compiler differentiates the forward, and silently drops the backward",
    ),
    Law(
        "forward mode",
        "Forward mode, if there is one, is the transpose of the backward.",
        modes.judge_forward,
        matters="products with a Jacobian or a Hessian belong to another function",
    ),
    Law(
        "checkpoint",
        "Under a checkpoint, which runs the forward again, it gives the same result.",
        modes.judge_checkpoint,
        matters="saving memory changes the training",
    ),
    Law(
        "autocast",
        "Under autocast to bfloat16 the gradient is that of float64, to the precision of "
        "bfloat16, and has the dtype of its argument.",
        modes.judge_autocast,
        matters="training in mixed precision fails in the backward, or loses a term",
    ),
    Law(
        "bytes",
        "The backward reads everything that is kept for it.",
        modes.judge_bytes,
        matters="memory is wasted, unless other code needs it anyway",
    ),
    Law(
        "saved",
        "Inputs and outputs are kept by `save_for_backward`.",
        modes.judge_saved,
        matters="a later in-place change is not noticed, and an output that refers to itself is "
        "never freed",
    ),
)
