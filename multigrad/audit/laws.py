"""The laws, in the order of reports; each stands where it is judged."""

from __future__ import annotations

from . import consistency, derivatives, dtypes, modes, sizes, unusual_inputs
from .trial import Law

LAWS: tuple[Law, ...] = (
    dtypes.judge_type,
    consistency.judge_repeatable,
    consistency.judge_seeded,
    derivatives.judge_derivative,
    consistency.judge_linear,
    consistency.judge_scale,
    consistency.judge_ones,
    consistency.judge_zero,
    consistency.judge_each_output,
    consistency.judge_each_input,
    consistency.judge_parameters,
    unusual_inputs.judge_strided_cotangent,
    unusual_inputs.judge_broadcast_cotangent,
    unusual_inputs.judge_strided_input,
    unusual_inputs.judge_broadcast_input,
    consistency.judge_twice,
    consistency.judge_written,
    consistency.judge_interleaved,
    consistency.judge_threads,
    dtypes.judge_float16,
    dtypes.judge_bfloat16,
    unusual_inputs.judge_far,
    unusual_inputs.judge_zeros,
    unusual_inputs.judge_not_finite,
    unusual_inputs.judge_edges,
    unusual_inputs.judge_empty,
    unusual_inputs.judge_no_axes,
    sizes.judge_sizes,
    derivatives.judge_second,
    modes.judge_batched,
    modes.judge_compiled,
    modes.judge_compiled_transforms,
    modes.judge_forward,
    modes.judge_checkpoint,
    modes.judge_autocast,
    modes.judge_bytes,
    modes.judge_saved,
)
