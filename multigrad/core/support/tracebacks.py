"""What a traceback shows: the user's frames, those of the libraries in between, and few of ours.

A mistake in the user's code raises through dozens of our frames, which hide the line that matters.
`shorten` takes them out where an error leaves us, at the doors that users call:

    except Exception as error:
        shorten(error)
        raise

A `try` costs nothing until something is raised. What goes out is the error itself, with its notes;
only the tracebacks change. With MULTIGRAD_TRACEBACK=full nothing is taken out.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from .lazy_modules import provided

P = ParamSpec("P")
R = TypeVar("R")
VARIABLE, FULL = "MULTIGRAD_TRACEBACK", "full"


@provided
def shorten(error: BaseException) -> None:
    """Take our frames out of the traceback of an error that is being handled; the core has few."""


def shows_all() -> bool:
    # Read each time, as it may change while a program runs.
    return os.environ.get(VARIABLE) == FULL


def door(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose errors are shortened; for what is not called often."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            shorten(error)
            raise

    return call
