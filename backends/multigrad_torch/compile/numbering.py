"""Which application is which, where Dynamo traces the same code more than once.

Each keyed application that compiled code makes gets a number, so that it draws its own. Dynamo may
restart a compilation, or leave part of its code to another frame: the same application must then
find its number again.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch

serial = itertools.count()


@dataclass(slots=True)
class Compilation:
    """The numbers of a keyed rule's applications in one compilation, which Dynamo may restart."""

    context: Any  # torch._guards.CompileContext
    counter: Any
    attempt: int = -1
    position: int = 0
    serials: list[int] = field(default_factory=list)

    def spare(self) -> list[int]:
        """Take the numbers that the last attempt did not use: it left their code to a new frame."""
        used = self.position if self.context.attempt == self.attempt else 0
        spare, self.serials = self.serials[used:], self.serials[:used]
        return spare


_compilations: deque[Compilation] = deque(maxlen=8)


def number_application(counter: Any) -> int:
    """Return a number for an application: a new one, or that of the same in an earlier attempt."""
    context = torch._guards.CompileContext.try_get()
    if context is None:
        return next(serial)
    for known in _compilations:
        if known.context is context and known.counter is counter:
            break
    else:
        known = Compilation(context, counter)
        known.serials += [n for c in _compilations if c.counter is counter for n in c.spare()]
        _compilations.append(known)
    if known.attempt != context.attempt:
        known.attempt, known.position = context.attempt, 0
    if known.position == len(known.serials):
        known.serials.append(next(serial))
    known.position += 1
    return known.serials[known.position - 1]
