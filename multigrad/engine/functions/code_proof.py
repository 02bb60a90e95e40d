"""What of a capture needs more than plain code: the proof of code, and the library that it is read
as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ...core.functions.arguments import Layout
from ...core.functions.captures import capture, prove
from ...core.functions.recipe import Recipe, Variant
from ...core.passes.facts import LIBRARY
from ..capture.user_code.libraries import read_as_meant
from .proof.executions import FunctionUnderProof
from .proof.functions import prove_function
from .recording.recapture import note_open
from .recording.record import capture_function


def capture_code(
    recipe: Recipe, layout: Layout, facts: Mapping[str, Any], leaves: Sequence[Any] = ()
) -> Variant:
    """Return the graphs of code for arguments of a layout, read as it is meant."""
    return read_as_meant(
        lambda facts: capture_function(recipe, layout, facts, leaves), facts, recipe.dialect
    )


def prove_code(recipe: Recipe, variant: Variant, leaves: Sequence[Any], *, is_call: bool) -> str:
    """Compare graphs with the code that they were captured from; see `captures.prove`."""
    if variant.draws_apart:
        return note_open(recipe, "a function that it calls draws several times, by keys of its own")
    recapture = partial(capture_function, recipe, variant.layout, variant.facts)
    captured = FunctionUnderProof(recipe, variant, leaves)
    return prove_function(captured, recapture, is_call=is_call)


def read_otherwise(recipe: Recipe, variant: Variant, leaves: Sequence[Any]) -> Variant | None:
    """Return a proven capture as the code of another library than that of the call's tensors."""
    called = variant.facts.get(LIBRARY)
    if called and recipe.dialect() != recipe.dialect(called):
        facts = {**variant.facts, LIBRARY: ""}
        with suppress(Exception):
            other = capture(recipe, variant.layout, facts, leaves)
            other.proofs[variant.layout.dtype or ""] = prove(recipe, other, leaves)
            return other
    return None
