"""The smallest inputs that still break a law, and lines to copy that show it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import PathFinder
from typing import Any

import numpy as np

from ..core.backend.discovery import load_backend
from ..core.functions.capture_errors import defined_at
from ..core.rules.signature import name_of
from ..core.support.pickles import is_of_session, name_in_module
from ..look.subject import as_array, is_float_array, origin_of

MOST_TRIES = 60  # audits of one law
MOST_SHOWN = 16  # elements of an array in lines to copy, if they are not all alike
PLAIN = (bool, int, float, str, bytes, type(None))  # whose `repr` is Python that makes them again


def smallest(
    inputs: Sequence[Any], breaks: Callable[[Sequence[Any]], bool], seconds: float
) -> list[Any]:
    """Return inputs with fewer elements and rounder numbers that break what these do.

    Args:
        breaks: whether a law is broken with inputs.
        seconds: no further ones are tried after these.
    """
    best = [as_array(each) for each in inputs]
    tries, end = MOST_TRIES, time.monotonic() + seconds
    while True:
        # From the largest step again after each success.
        for candidate in _simpler(best):
            if not tries or time.monotonic() > end:
                return best
            tries -= 1
            if breaks(candidate):
                best = candidate
                break
        else:
            return best


def _simpler(inputs: list[Any]) -> Iterator[list[Any]]:
    for axis in (0, -1):
        # Arrays of one length are cut together, as batches and their weights are.
        lengths = {x.shape[axis] for x in inputs if isinstance(x, np.ndarray) and x.ndim}
        if len(lengths) == 1 and max(lengths) > 1:
            length = max(lengths)
            for shorter_length in (1, length // 2):
                if shorter_length < length:
                    yield [_cut(x, axis, shorter_length) for x in inputs]
    # Fewer elements did not break it: rounder numbers, in one array at a time.
    for place, x in enumerate(inputs):
        for simpler in _rounder(x) if isinstance(x, np.ndarray) and is_float_array(x) else ():
            if simpler.tobytes() != x.tobytes():
                yield [simpler if n == place else each for n, each in enumerate(inputs)]


def _cut(x: Any, axis: int, length: int) -> Any:
    has_axes = isinstance(x, np.ndarray) and x.ndim
    return np.take(x, range(length), axis=axis) if has_axes else x


def _rounder(x: Any) -> Iterator[Any]:
    # Ones are simplest, then whole numbers, then numbers with one digit.
    if np.all(x == 1):
        return
    yield np.ones_like(x)
    wide = x.astype(np.float64)
    for digits in (0, 1):
        yield np.round(wide, digits).astype(x.dtype)


# --- lines to copy --------------------------------------------------------------------------------
def lines_to_copy(
    fn: Any, home: str, law: str, inputs: Sequence[Any], surrogate: Any
) -> tuple[str, ...]:
    """Return a program that audits one law with inputs.

    What no text makes again, such as a lambda or a long array, is a variable for the reader's own.
    """
    program = Program(home)
    arguments = [program.text(fn, "fn")]
    arguments += [program.text(x, f"x{n}") for n, x in enumerate(inputs)]
    if surrogate is not None:
        arguments.append(f"surrogate={program.text(surrogate, 'surrogate')}")
    call = f'print(xg.audit({", ".join(arguments)}, laws=["{law}"]))'
    imports = sorted(program.imports, key=lambda line: line.startswith("from "))
    return (*imports, *program.variables, call)


class _Text(str):
    """Text that is written in a container as it is, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class Program:
    """Values as Python text, with the imports that it needs; a variable stands for any other."""

    def __init__(self, home: str) -> None:
        self.tensors, self.variables = load_backend(home).tensors, list[str]()
        self.imports = ["import multigrad as xg"]

    def text(self, value: Any, variable: str) -> str:
        """Return text that makes a value again, or else a variable of this name."""
        value, text = as_array(value), ""
        if type(value) in PLAIN:
            text = _number(value) if isinstance(value, float) else repr(value)
        elif type(value) in (tuple, list):
            return repr(type(value)(self._texts(value, variable)))
        elif type(value) is dict and all(type(key) in PLAIN for key in value):
            return repr(dict(zip(value, self._texts(value.values(), variable), strict=True)))
        elif isinstance(value, np.ndarray | np.generic):
            text = self._tensor(value)
        else:
            text = self._name(value)
        return text or self._own(variable, value)

    def _own(self, variable: str, value: Any) -> str:
        line = f"{variable} = ...  # put your own here: {_describe(value)}"
        self.variables += [line] * (line not in self.variables)
        return variable

    def _texts(self, values: Iterable[Any], variable: str) -> list[_Text]:
        return [_Text(self.text(each, f"{variable}_{n}")) for n, each in enumerate(values)]

    def _import(self, line: str, text: str) -> str:
        self.imports += [line] * (line not in self.imports)
        return text

    def _tensor(self, array: Any) -> str:
        if array.size and (array == array.flat[0]).all():
            text = _number(array.flat[0])
            for length in reversed(array.shape):
                text = f"[{text}] * {length}" if length > 1 else f"[{text}]"
        elif array.size <= MOST_SHOWN and 0 not in array.shape[:-1]:
            text = _numbers(array)
        else:
            return ""
        # Some make 64 bits in a mode alone; arrays of NumPy stand for tensors, too.
        is_wide = self.tensors.precision is not None and array.dtype.name.endswith("64")
        is_scalar = isinstance(array, np.generic)  # of NumPy, which is no tensor
        tensors = load_backend("numpy").tensors if is_wide or is_scalar else self.tensors
        line, constructor = tensors.in_code
        if not line:
            return ""
        return self._import(line, constructor.format(text, array.dtype) + "[()]" * is_scalar)

    def _name(self, value: Any) -> str:
        """Return the name by which a module holds a value, and import it; "" if none does."""
        written = re.fullmatch(r"(\w+)\.([\w.]+)", repr(value))  # such as torch.float32
        if written and name_in_module(value, written[1]):
            return self._import(f"import {written[1]}", written[0])
        origin = origin_of(value)
        if isinstance(origin, type) and origin.__module__ != "__main__":
            name = "" if value.is_keyed or value.defaults else self._name(origin)
            if name:
                return f"xg.convert({name})"
        for module in (getattr(value, "__module__", None), "__main__"):
            if isinstance(module, str) and (found := name_in_module(value, module)):
                # The lines run where a session goes on, but no script is run again for them.
                if module == "__main__" and not is_of_session(module):
                    return self._own(found, value) if found.isidentifier() else ""
                return self._from(module, found)
        return ""

    def _from(self, module: str, name: str) -> str:
        if module in ("__main__", "builtins"):  # the lines are pasted where the former is
            return name
        root = module.partition(".")[0]
        file = getattr(sys.modules[root], "__file__", None) or ""
        folder = os.path.dirname(file.removesuffix("__init__.py").rstrip(os.sep))
        if folder and PathFinder.find_spec(root, [*sys.path, os.getcwd()]) is None:
            self._import("import sys", "")
            self._import(f"sys.path.insert(0, {folder!r})", "")
        line = f"from {module} import {name.partition('.')[0]}"
        # Another module may have another object of the same name.
        if any(each.split()[-1] == line.split()[-1] for each in self.imports if each != line):
            return self._import(f"import {module}", f"{module}.{name}")
        return self._import(line, name)


def _number(value: Any) -> str:
    # Of a scalar of NumPy: the shortest digits that are read as the same number of its dtype.
    return str(value) if np.isfinite(value) else f'float("{value}")'


def _numbers(array: np.ndarray) -> str:
    return f"[{', '.join(map(_numbers, array))}]" if array.ndim else _number(array[()])


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    place = defined_at([value, getattr(value, "forward", None)])
    name = f"{name_of(value)} at {place}" if place else repr(value)
    return " ".join(name.split())[:80]
