"""TensorFlow's own dispatcher, for calls that no stand-in sees: of a function that an object of a
library holds.

It is a fallback: TensorFlow asks it after its function has refused the arguments with a TypeError
or ValueError, as it does for a symbolic value. A function that calls others may be asked about from
the inside out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from multigrad.capture.code.table import record_call
from multigrad.trace.trace import Value

# Functions of TensorFlow call these on their arguments, before what they are about.
ASKED_INSIDE = (tf.rank, tf.shape, tf.size)


class Dispatcher(tf.__internal__.dispatch.GlobalOpDispatcher):
    """Records a captured function that was called with symbolic values.

    Attributes:
        public: by each function that a public one of the table wraps, and by itself, the public
            one.
    """

    def __init__(self, functions: Iterable[Callable[..., Any]]) -> None:
        self.public = {
            inner: function
            for function in functions
            if function not in ASKED_INSIDE
            for inner in unwrap(function)
        }

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Return the result, or that the next to be asked should handle it."""
        function = self.public.get(op)
        if function is None or not any(map(is_symbolic, (*args, *kwargs.values()))):
            return self.NOT_SUPPORTED
        return record_call("tensorflow", function, tuple(args), dict(kwargs))


def is_symbolic(given: Any) -> bool:
    """Return whether an argument is a symbolic value, or a list of some."""
    items = given if isinstance(given, list | tuple) else (given,)
    return any(isinstance(item, Value) for item in items)


def unwrap(function: Any) -> Iterator[Any]:
    """Yield a function and those inside its decorators."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def register(functions: Iterable[Callable[..., Any]]) -> None:
    """Make TensorFlow ask us about these functions."""
    Dispatcher(functions).register()
