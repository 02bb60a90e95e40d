"""Laws of a gradient: rows that say what is held of it, where they apply, and who finds it out.

Who looks at gradients chooses the laws; they all run the same case.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np

from ..backend.contract import Backend
from ..graph.support.trees import optree
from .runs import Array, run_arrays
from .subject import Inputs, Subject, is_float_array


class Report(Protocol):
    """What a law found."""

    @property
    def ok(self) -> bool:
        """Whether the law is kept."""
        ...


R = TypeVar("R", bound=Report)


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


@dataclass(frozen=True, slots=True)
class Law(Generic[R]):
    """One law.

    Attributes:
        name: what it is switched on by.
        sentence: what it says.
        not_for: why it does not apply to a case, "" where it does.
        judge: runs the case, and says what it found.
    """

    name: str
    sentence: str
    not_for: Callable[[Case], str]
    judge: Callable[[Case], R]


def hold(case: Case, laws: Iterable[Law[R]]) -> Iterator[tuple[Law[R], R | str]]:
    """Yield each law with what it found, or why it does not apply."""
    for law in laws:
        yield law, law.not_for(case) or law.judge(case)
