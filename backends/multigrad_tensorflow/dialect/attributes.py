"""Attributes of `tf.Tensor` that no symbol answers, and why."""

from __future__ import annotations

from multigrad.capture.values.attributes import NUMBERS, PRIVATE, refusals

GRAPHS = "which is of TensorFlow's own graphs"

REASONS = {
    PRIVATE: "_* OVERLOADABLE_OPERATORS __div__ __rdiv__ __nonzero__ __tf_tracing_type__",
    GRAPHS: "consumers eval experimental_ref graph name op ref value_index",
    NUMBERS: "cpu gpu numpy",
}
REFUSALS = refusals(REASONS)
