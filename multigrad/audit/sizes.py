"""The law of sizes: a gradient is right for every length of its axes.

Kernels work in blocks: a length that is no multiple of the block, one row more than a grid holds,
or a shape of its own branch is where they go wrong. The lengths that are tried are those around
powers of two, and around the numbers that the code itself states.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

import numpy as np

from ..core.backend.discovery import load_backend
from ..core.functions.recipe import defined_at
from ..core.rules.signature import name_of
from ..engine.capture.user_code.inspection import mentioned
from ..engine.capture.user_code.snapshot import functions_of
from ..engine.functions.calls.arguments import replace_at
from ..engine.support.public_modules import is_of_session, name_in_module
from ..look.subject import as_array, is_float_array, origin_of
from .consistency import judge_bfloat16, judge_float16
from .derivatives import differs_in_own_dtype, judge_second, slope_along
from .trial import Arrays, ForwardRun, NotApplicable, Trial, law, wave

Array = Any
SIZES = (1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025)
FEW_SIZES = (1, 2, 7, 33, 65, 129, 1025)  # where each shape is compiled
LONG = 31
MORE_ROWS = 65
ODD = (7, 33, 17, 9)  # of all axes at once
MANY_ROWS = 4097
SMALL_ROW = 256  # elements of a row of which so many are tried
MOST_ELEMENTS = 2**19  # of one input
MOST_RESULTS = 2**21  # of one output
LENGTHS_IN_CODE = range(8, 4097)
MOST_IN_CODE = 6
NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.])")


class Axis(NamedTuple):
    """Axes of one length, which vary together; `places` are the inputs and their axes."""

    length: int
    places: tuple[tuple[int, int], ...]


@law("sizes", "the last block, a larger batch or a longer sequence gets a wrong gradient")
def judge_sizes(trial: Trial) -> str:
    """The gradient is right for every length of an axis, and for more axes."""
    run, u = trial.start()
    if _beside_differences(trial, trial.inputs, u, run.gradients(u)):
        raise NotApplicable("it is no derivative at the given lengths either")
    numbers, tried_count = numbers_in_code(trial), 0
    for axis in find_axes(trial):
        try:
            half = axis.length // 2
            has_parts = trial.is_linear and _beside_parts(trial, axis, trial.inputs, half) == ""
        except Exception:  # of the user's code: ids may name rows that half a table lacks
            has_parts = False
        for size in sizes_to_try(trial, axis, numbers):
            arrays = resized(trial, axis, size)
            if not _runs(trial, arrays):
                continue
            tried_count += 1
            fault = _compare(trial, axis, size, arrays, by_parts=has_parts)
            if fault:
                return f"with {size} in place of {axis.length}: {fault}"
    fault = _compare_all_odd(trial) or _compare_more_axes(trial) or _judge_more_rows(trial)
    if not tried_count and not fault:
        raise NotApplicable("its inputs have no axis that may have another length")
    return fault


def _compare_all_odd(trial: Trial) -> str:
    """Compare where every axis has another odd length at once."""
    arrays, sizes = trial.inputs, []
    for axis, size in zip(find_axes(trial), ODD, strict=False):
        arrays = resized(trial, axis, size, arrays)
        sizes.append(f"{size} in place of {axis.length}")
    if len(sizes) < 2 or not _runs(trial, arrays):
        return ""
    run, u = trial.start(arrays)
    fault = _beside_differences(trial, arrays, u, run.gradients(u))
    return f"with {' and '.join(sizes)}: {fault}" if fault else ""


def _judge_more_rows(trial: Trial) -> str:
    """Ask with more rows what is else asked of the given inputs alone."""
    for axis in find_axes(trial)[:1]:
        arrays = resized(trial, axis, MORE_ROWS)
        if axis.length >= MORE_ROWS or not _runs(trial, arrays):
            continue
        larger_trial = _on(trial, arrays)
        for judge in (judge_float16, judge_bfloat16, judge_second):
            # What is refused, or tells nothing, is no difference.
            with suppress(Exception):
                fault = judge(larger_trial)
                if not fault or _breaks(judge, trial):
                    continue
                # Among many numbers one may be rounded across a step: so it is asked at others too.
                if _breaks(judge, _on(trial, trial.changed(arrays, lambda a: a * 0.75))):
                    return f"with {MORE_ROWS} in place of {axis.length}: {fault}"
    return ""


def _on(trial: Trial, arrays: Arrays) -> Trial:
    leaves = replace_at(trial.arguments.leaves, trial.arguments.places, arrays)
    return replace(trial, arguments=replace(trial.arguments, leaves=tuple(leaves)))


def _breaks(judge: Callable[[Trial], str], trial: Trial) -> bool:
    with suppress(Exception):
        return bool(judge(trial))
    return False


def _compare_more_axes(trial: Trial) -> str:
    """Compare a batch of two with each by itself, if its outputs are those of each."""
    if trial.seeds is not None or not trial.is_linear:
        return ""  # each would get other numbers, or another norm, than in the batch
    inputs = trial.inputs
    shape = inputs[trial.floats[0]].shape
    places = [n for n in trial.floats if inputs[n].shape == shape and n < trial.input_count]
    pair = [inputs, [a * 0.75 if n in places else a for n, a in enumerate(inputs)]]
    runs = [trial.run(arrays) for arrays in pair]
    u = [trial.cotangents(run, seed=n) for n, run in enumerate(runs)]
    single_gradients = [run.gradients(each) for run, each in zip(runs, u, strict=True)]
    for batch_shape in ((2,), (2, 1)):

        def stack(first: Array, second: Array, batch_shape: tuple[int, ...] = batch_shape) -> Array:
            return np.stack([first, second]).reshape(*batch_shape, *first.shape)

        arrays = [
            stack(a, b) if n in places else a for n, (a, b) in enumerate(zip(*pair, strict=True))
        ]
        if not trial.runs(arrays):
            continue
        run = trial.run(arrays)
        outputs = [stack(a, b) for a, b in zip(*(each.arrays() for each in runs), strict=True)]
        if trial.find_difference(run.arrays(), outputs):
            continue  # it takes them for something else than a batch
        gradients = run.gradients([stack(a, b) for a, b in zip(*u, strict=True)])
        wanted = [
            None if a is None else stack(a, b) if n in places else a + b
            for n, (a, b) in enumerate(zip(*single_gradients, strict=True))
        ]
        if trial.is_surrogate:  # what a batch shares may be scaled by its size, as LSQ's step is
            gradients, wanted = (
                [a if n in places else None for n, a in enumerate(each)]
                for each in (gradients, wanted)
            )
        fault = trial.find_difference(gradients, wanted, 2)
        if fault:
            return f"with {len(batch_shape)} more axes: {fault} of each by itself"
    return ""


def _runs(trial: Trial, arrays: Arrays) -> bool:
    try:
        trial.run(arrays)
    except Exception:  # of the user's code, which takes no such length
        return False
    return True


def find_axes(trial: Trial) -> list[Axis]:
    count = trial.input_count  # parameters stay
    places: dict[int, list[tuple[int, int]]] = {}
    for n, array in enumerate(trial.given[:count]):
        for axis, length in enumerate(array.shape):
            places.setdefault(length, []).append((n, axis))
    return [Axis(length, tuple(each)) for length, each in places.items() if length > 1]


def sizes_to_try(trial: Trial, axis: Axis, numbers: Sequence[int]) -> Iterator[int]:
    sizes = {*(FEW_SIZES if trial.backend.modes.compiles_each_shape else SIZES), *numbers}
    sizes |= {other.length for other in find_axes(trial)}  # a square, too
    shapes = [y.shape for y in trial.run().outputs]

    def largest(shapes: Iterable[Sequence[int]], size: int) -> int:
        # An axis of this length may be there twice.
        return max(
            (math.prod(size if m == axis.length else m for m in each) for each in shapes), default=0
        )

    given = [trial.given[n].shape for n, _ in axis.places]

    def fits(size: int) -> bool:
        return largest(given, size) <= MOST_ELEMENTS and largest(shapes, size) <= MOST_RESULTS

    if largest(given, 1) <= SMALL_ROW and all(dim == 0 for _, dim in axis.places):
        sizes.add(MANY_ROWS)
    return filter(fits, sorted(sizes - {axis.length}))


def numbers_in_code(trial: Trial) -> list[int]:
    """Return the numbers around those that the code states, such as its block size."""
    numbers = set[int]()
    for function in functions_of(*trial.code):
        for each in (function, *(value for _, value in mentioned(function))):
            numbers.update(map(int, NUMBER.findall(source_of(each))))
    lengths = sorted(numbers & {*LENGTHS_IN_CODE})[:MOST_IN_CODE]
    return sorted({n + step for n in lengths for step in (-1, 0, 1)})


def source_of(value: Any) -> str:
    source = getattr(value, "src", None)
    if isinstance(source, str):
        return source
    try:
        return inspect.getsource(value) if inspect.isfunction(value) else ""
    except OSError:
        return ""


def resized(trial: Trial, axis: Axis, size: int, given: Arrays | None = None) -> Arrays:
    """Return the inputs with another length: their numbers over again, no two alike."""
    arrays = list(trial.inputs if given is None else given)
    for n, dim in axis.places:
        array = np.take(arrays[n], np.arange(size) % axis.length, axis=dim)
        if n in trial.floats:
            waves = 1 + 0.01 * np.sin(np.arange(array.size)).reshape(array.shape)
            array = (array * waves).astype(array.dtype)
        elif _is_permuted(arrays[n], dim):
            places = np.arange(size)
            blocks = np.moveaxis(array, dim, -1) + places // axis.length * axis.length
            blocks = np.where(places < size // axis.length * axis.length, blocks, places)
            array = np.moveaxis(blocks, -1, dim).astype(array.dtype)
        arrays[n] = array
    return arrays


def _is_permuted(array: Array, dim: int) -> bool:
    """Return whether integers are an order of all places, which another length orders in blocks.

    So the inverse of an order stays its inverse. What is in order already are labels.
    """
    places = np.arange(array.shape[dim])
    rows = np.moveaxis(array, dim, -1)
    return len(places) > 3 and bool((np.sort(rows) == places).all() and (rows != places).any())


def _compare(trial: Trial, axis: Axis, size: int, arrays: Arrays, *, by_parts: bool) -> str:
    run, u = trial.start(arrays)
    gradients = run.gradients(u)
    for n in trial.floats:
        if gradients[n] is not None and gradients[n].shape != arrays[n].shape:
            return f"argument {n} has a gradient of shape {gradients[n].shape}"
    short_length = min(size, axis.length)
    # Of a shorter length the given one is the whole.
    longer_arrays = arrays if short_length < size else trial.inputs
    fault = _beside_parts(trial, axis, longer_arrays, short_length) if by_parts else ""
    fault = fault or _beside_differences(trial, arrays, u, gradients)
    # Few numbers cancel in a norm, of which float32 keeps little.
    if not fault and size >= LONG and (size not in SIZES or size in FEW_SIZES):
        fault = differs_in_own_dtype(trial, arrays, tolerance=1e-2)
    return fault or ""


def _beside_differences(trial: Trial, arrays: Arrays, u: Arrays, gradients: Arrays) -> str:
    if trial.digits != "float64" or (trial.is_surrogate and trial.meant is None):
        return ""
    directions = {n: wave(arrays[n], n) for n in trial.floats}
    line = slope_along(trial.stated.weighed(u), arrays, gradients, directions)
    # A flat forward is that of a surrogate.
    if not line.slope or not line.is_wrong or not line.is_kept_by(256):
        return ""
    return f"along one direction {line.gradient:.9g}, expected {line.slope:.9g} by differences"


# --- a part of the batch by itself ----------------------------------------------------------------


def _beside_parts(trial: Trial, axis: Axis, arrays: Arrays, length: int) -> str | None:
    """Return where gradients of rows differ from those of the same rows alone, "" if nowhere; None
    if rows affect each other.
    """
    run, u = trial.start(arrays)
    outputs, grads = run.arrays(), run.gradients(u)
    place, dim = axis.places[0]
    size = arrays[place].shape[dim]
    places = {n for n, _ in axis.places}
    for start in sorted({0, (size - length) // 2, size - length}):
        rows = slice(start, start + length)
        part = trial.run([_rows(a, axis, n, rows) for n, a in enumerate(arrays)])
        axes = [_axis_of(y, z, size, length) for y, z in zip(outputs, part.arrays(), strict=True)]
        if None in axes:
            return None
        output_rows = [_taken(y, dim, rows) for y, dim in zip(outputs, axes, strict=True)]
        if trial.find_difference(part.arrays(), output_rows):
            return None
        if not _are_apart(trial, axis, run, rows, axes):
            return None
        wanted = part.gradients([_taken(c, dim, rows) for c, dim in zip(u, axes, strict=True)])
        got = [_rows(g, axis, n, rows) if n in places else wanted[n] for n, g in enumerate(grads)]
        fault = trial.find_difference(got, wanted)
        if fault:
            return f"{fault} of these rows alone, from {start} on"
    return ""


def _are_apart(trial: Trial, axis: Axis, run: ForwardRun, rows: slice, axes: list[int]) -> bool:
    """Return whether rows and the others do not affect each other: no softmax, no running sum."""
    arrays, outputs = [run.read(x) for x in run.inputs], run.arrays()
    place, dim = axis.places[0]
    is_inside = np.isin(np.arange(arrays[place].shape[dim]), np.arange(rows.start, rows.stop))
    for is_changed in (is_inside, ~is_inside):
        points = list(arrays)
        for n, dim in axis.places:
            if n in trial.floats:
                mask = np.expand_dims(is_changed, [i for i in range(arrays[n].ndim) if i != dim])
                points[n] = np.where(mask, 3.0 - 2.5 * arrays[n], arrays[n]).astype(arrays[n].dtype)
        results = trial.run(points).arrays()
        indices = np.flatnonzero(~is_changed)
        for y, z, output_dim in zip(results, outputs, axes, strict=True):
            pair = (np.take(each, indices, axis=output_dim) for each in (y, z))
            if not np.array_equal(*pair, equal_nan=True):
                return False
    return True


def _rows(array: Array, axis: Axis, n: int, rows: slice) -> Array:
    for place, dim in axis.places:
        if place == n and array is not None:
            array = _taken(array, dim, rows)
    return array


def _taken(array: Array, dim: int, rows: slice) -> Array:
    return array[(slice(None),) * dim + (rows,)]


def _axis_of(whole: Array, part: Array, size: int, short: int) -> Any:
    """Return the axis of an output along which it has the rows; None if there is none."""
    if whole.ndim != part.ndim:
        return None
    axes = [i for i, (m, n) in enumerate(zip(whole.shape, part.shape, strict=True)) if m != n]
    is_one = len(axes) == 1 and (whole.shape[axes[0]], part.shape[axes[0]]) == (size, short)
    return axes[0] if is_one else None


# --- the smallest inputs that still break a law, and lines to copy that show it -------------------
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
