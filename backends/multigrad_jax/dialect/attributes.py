"""Attributes of `jax.Array` that no symbol answers, and why."""

from __future__ import annotations

from multigrad.capture.values.attributes import (
    COMPLEX,
    INDICES,
    MEMORY,
    PARTS,
    PRIVATE,
    VALUES,
    refusals,
)

REASONS = {
    PRIVATE: "_* __numpy_dtype__ __jax_array__ aval weak_type",
    VALUES: "argpartition choose compress nonzero",
    INDICES: "searchsorted",
    PARTS: "diagonal flat",
    COMPLEX: "conj conjugate",
    MEMORY: """
        addressable_data addressable_shards byteswap committed copy_to_host_async devices
        global_shards is_deleted is_fully_addressable is_fully_replicated itemsize nbytes
        on_device_size_in_bytes sharding to_device traceback unsafe_buffer_pointer block_until_ready
        delete format layout
    """,
}
REFUSALS = refusals(REASONS)
