"""Laws of a gradient: rows that say what is held of it, where they apply, and who finds it out.

Who looks at gradients chooses the laws; they all run the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ..backend.contract import Backend
from ..graph.support.trees import optree
from .runs import Array, run_arrays
from .subject import Inputs, Subject, is_float_array

C = TypeVar("C")  # what it is held against
R = TypeVar("R")  # what it finds


@dataclass(frozen=True, slots=True)
class Case:
    """A subject on one backend with its inputs, from arrays to arrays."""

    subject: Subject
    inputs: Inputs
    backend: Backend

    def outputs(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the float outputs."""
        tensors = [self.backend.tensors.from_numpy(array) for array in arrays]
        found = optree.tree_leaves(self.subject.call(*self.inputs.nest(tensors)))
        flat = [y for y in found if hasattr(y, "dtype")]
        each = [np.asarray(self.backend.tensors.to_numpy(y)) for y in flat]
        return [array for array in each if is_float_array(array)]

    def gradients(self, arrays: Sequence[Array], cotangents: Sequence[Array]) -> list[Array | None]:
        """Return the gradient of each tensor, for a cotangent of each float output."""
        rest = iter(cotangents)
        inputs = self.inputs.nest(arrays)
        return run_arrays(
            self.subject.call, self.backend, inputs, lambda n, shape: next(rest)
        ).gradients


def _applies(case: Any) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Law(Generic[C, R]):
    """One law.

    Attributes:
        name: what it is switched on by.
        sentence: what it says.
        judge: runs the case, and says what it found.
        not_for: why it does not apply to a case, "" where it does.
        reason: what goes wrong where it is broken.
        is_loud: whether code that raises here is within its rights: it says so.
    """

    name: str
    sentence: str
    judge: Callable[[C], R]
    not_for: Callable[[C], str] = _applies
    reason: str = ""
    is_loud: bool = True


def hold(case: C, laws: Iterable[Law[C, R]]) -> Iterator[tuple[Law[C, R], R | str]]:
    """Yield each law with what it found, or why it does not apply."""
    for law in laws:
        yield law, law.not_for(case) or law.judge(case)
