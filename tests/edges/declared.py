"""What differs from a library at an edge, and is documented: rows of `docs/differences.md`."""

from __future__ import annotations

from typing import Any

NOT_DIFFERENTIATED = ("not implemented", "only implemented", "Slice size at index 0 in gather")


def is_declared(case: Any, backend: str, way: str, got: Any, want: Any) -> bool:
    """Return whether a difference is documented.

    Args:
        case: the expression, the library and the edge.
        backend: on which ours ran, and the way in which it was compiled.
        way: see there.
        got: our answer.
        want: the library's.
    """
    if want.error is not None and any(word in str(want.error) for word in NOT_DIFFERENTIATED):
        return got.error is None  # the library has no gradient there; ours is that of the ops
    is_segments = "unsorted_segment" in case.expression
    if is_segments and case.edge in ("high", "far"):
        # Dropped, as TensorFlow does it on a GPU and in XLA. There its own gradient takes the last
        # row, which it has not added.
        return got.error is None
    if is_segments and "0)" in case.expression:
        return got.error is None
    cannot_raise = backend == "jax" or way not in ("eager", "function")
    if want.error is not None and cannot_raise:
        # Compiled code cannot raise, or raises by the compiler's own checks.
        return got.error is None or "out of bounds" in str(got.error)
    if want.error is not None and way == "function":  # the executor raises, and names the op
        return type(got.error).__name__ == "InvalidArgumentError"
    return False
