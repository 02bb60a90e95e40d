"""What differs from a library at an edge, and is documented: rows of `docs/differences.md`."""

from __future__ import annotations

from typing import Any

from multigrad.errors import PlaceError

NOT_DIFFERENTIATED = ("not implemented", "only implemented", "Slice size at index 0 in gather")
RAISED = ("out of bounds", "out of range", "out of DATA bounds", "is not in [", "does not index")


def is_declared(case: Any, backend: str, way: str, got: Any, want: Any) -> bool:
    """Return whether a difference is documented.

    Args:
        case: the expression, the library and the edge.
        backend: on which ours ran, and the way in which it was compiled.
        way: see there.
        got: our answer.
        want: the library's.
    """
    has_none = any(word in str(want.error) for word in NOT_DIFFERENTIATED)
    if has_none and got.error is None:  # no gradient of the library's; ours is that of the ops
        return True
    is_told = want.error is not None or isinstance(got.error, PlaceError)
    is_outside = is_told or case.edge in ("high", "low", "far", "negative")
    if "unsorted_segment" in case.expression and is_outside:
        # Dropped, as TensorFlow does it on a GPU and in XLA. There its own gradient takes the last
        # row, which it has not added.
        return got.error is None
    if (
        case.library == "tensorflow"
        and way == "xla"
        and (is_outside or "sparse_softmax" in case.expression)
    ):
        # What XLA takes where a place lies outside TensorFlow leaves open: another of its ops,
        # another element.
        return got.error is None or isinstance(got.error, PlaceError)
    if way == "inductor" and case.edge == "negative" and want.error is None:
        # Torch itself refuses it.
        return case.library == "torch" and any(w in case.expression for w in ("_add", "_copy"))
    if want.error is not None and (way != "eager" or backend == "jax"):
        # Compiled code cannot raise, or its executor does, by its own error.
        return got.error is None or any(word in str(got.error) for word in RAISED)
    return False
