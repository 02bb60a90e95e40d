"""Two paths to one result on the same tensors, run and compared gradient by gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...core.backend.discovery import load_backend
from ...core.backend.values import owner_of
from ...core.ops.numerics import as_numpy_dtype
from ...core.rules.signature import name_of
from ...core.support.trees import optree
from ...engine.functions.calls.arguments import replace_at
from ...engine.functions.proof.compare import eps_of
from ...errors import RuleTypeError
from ...look.subject import brackets, is_float_array, read_arguments
from ..audit import opened_model
from ..seeds import Seeds
from ..trial import TOLERANCES, Arrays, Trial, place_of_largest, scaled, with_seeds

Array = Any
Path = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class ParameterRow:
    """The gradients of one parameter by both paths.

    Attributes:
        name: of the parameter, as the model or the tree of parameters names it.
        is_same: whether they agree to rounding.
        factor: the second path's gradient over the first's, if one number explains it; 0 where
            the second has none; None if none does.
        error: the largest difference, over the largest element of the first.
    """

    name: str
    is_same: bool
    factor: float | None
    error: float

    def __str__(self) -> str:
        if self.is_same:
            return f"{self.name}: the same"
        if math.isinf(self.error):
            return f"{self.name}: zero on the first path alone"
        if self.factor is None:
            return f"{self.name}: differs by {self.error:.3g} of its largest element"
        return f"{self.name}: {'none' if self.factor == 0 else f'times {self.factor:.6g}'}"


Rows = dict[int, ParameterRow]


class PathRun(NamedTuple):
    """One run of a path: its outputs, each weighted by its cotangent, their sum, and the gradients
    of all tensors of the call.
    """

    outputs: Arrays
    loss: float
    gradients: Arrays


class PathPair:
    """Two paths on the same tensors: those of the parameters, then those of the batch.

    Attributes:
        first, second: the paths as trials.
        names: of the float parameters, by position among the tensors, in the model's order.
        leaves: of the batch's tensors, by position.
        dtype: in which both run.
        given: the tensors in that dtype.
    """

    def __init__(
        self, first: Trial, second: Trial, names: Mapping[int, str], leaves: Mapping[int, str]
    ) -> None:
        self.first, self.second, self.names, self.leaves = first, second, names, leaves
        is_wide = first.wide == second.wide == "float64"
        self.dtype = "float64" if is_wide else first.dtype
        self.given = first.cast(self.dtype)
        self._cotangents: Arrays = []

    def run(self, trial: Trial, arrays: Arrays | None = None) -> PathRun:
        run = trial.run(self.given if arrays is None else arrays)
        outputs = run.arrays()
        if [c.shape for c in self._cotangents] != [y.shape for y in outputs]:
            # A loss has the cotangent 1, so that its gradient is the one that a user knows.
            is_loss = len(outputs) == 1 and outputs[0].size == 1
            self._cotangents = [np.ones_like(outputs[0])] if is_loss else trial.cotangents(run)
        return PathRun(*self._weighted(outputs), run.gradients(self._cotangents))

    def loss(self, trial: Trial, arrays: Arrays) -> float:
        """Return the sum of the weighted outputs, without a backward."""
        return self._weighted(trial.run(arrays).arrays())[1]

    def _weighted(self, outputs: Arrays) -> tuple[Arrays, float]:
        weighted = [y * c for y, c in zip(outputs, self._cotangents, strict=True)]
        return weighted, float(sum(np.sum(y.astype(np.float64)) for y in weighted))

    def with_tensor(self, n: int, array: Array) -> Arrays:
        return replace_at(self.given, [n], [array])

    def gradient(self, run: PathRun, n: int) -> Array:
        gradient = run.gradients[n]
        return np.zeros_like(self.given[n]) if gradient is None else gradient

    def allowed(self, run: PathRun, n: int) -> float:
        """Return by how much rounding may change a gradient.

        That is a share of its own size, and of the largest one's: some gradients are zero but for
        rounding, such as that of a bias before a softmax.
        """
        largest = max((size_of(run.gradients[k]) for k in self.names), default=0.0)
        noise = 1e3 * eps_of(as_numpy_dtype(self.dtype)) * largest
        return TOLERANCES[self.dtype] * size_of(run.gradients[n]) + noise

    def rows(self, a: PathRun, b: PathRun) -> Rows:
        return {n: self._row(n, a, b) for n in self.names}

    def _row(self, n: int, a: PathRun, b: PathRun) -> ParameterRow:
        first, second = self.gradient(a, n), self.gradient(b, n)
        allowed, size = self.allowed(a, n), size_of(first)
        error = np.abs(second - first)
        if np.all((error <= allowed) | (np.isnan(first) & np.isnan(second))):
            return ParameterRow(self.names[n], True, None, 0.0)
        factor = None
        if size and not second.any():
            factor = 0.0
        elif size:
            fit = float(np.sum(first * second) / np.sum(first * first))
            is_scaled = np.all(np.abs(second - fit * first) <= allowed * max(1.0, abs(fit)))
            factor = fit if is_scaled else None
        largest = float(np.max(error, initial=0.0))
        return ParameterRow(self.names[n], False, factor, largest / size if size else math.inf)

    def outputs_differ(self, a: PathRun, b: PathRun) -> str:
        shapes = [[list(y.shape) for y in each.outputs] for each in (a, b)]
        if shapes[0] != shapes[1]:
            return f"outputs have shapes {shapes[0]} and {shapes[1]}"
        for n, (y, z) in enumerate(zip(a.outputs, b.outputs, strict=True)):
            error = np.where(np.isnan(y) & np.isnan(z), 0.0, np.abs(y - z))
            if np.all(error <= TOLERANCES[self.dtype] * size_of(y)):
                continue
            if y.size == 1:
                return f"the loss is {float(y.flat[0]):.9g} and {float(z.flat[0]):.9g}"
            place = place_of_largest(np.nan_to_num(error, nan=np.inf))
            return f"output {n}{brackets(place)} differs by {error[place]:.6g}"
        return ""

    def agree(self, a: PathRun, b: PathRun) -> bool:
        rows = self.rows(a, b).values()
        return not self.outputs_differ(a, b) and all(row.is_same for row in rows)

    @property
    def example_count(self) -> int:
        """The length of the first axis of the batch's tensors; 0 if they have several."""
        counts = {self.given[n].shape[0] if self.given[n].ndim else 0 for n in self.leaves}
        return counts.pop() if len(counts) == 1 else 0

    def with_examples(self, order: list[int], *, without_masks: bool = False) -> Arrays:
        """Return the tensors with these examples of the batch, in this order."""
        return [
            a[order] if n in self.leaves and not (without_masks and is_mask(a)) else a
            for n, a in enumerate(self.given)
        ]


def make_pair(paths: tuple[Path, Path], parameters: Any, batch: Any) -> PathPair:
    """Return two paths with the tensors of parameters and batch.

    Raises:
        RuleTypeError: a path cannot be called, or no parameter is a float tensor.
    """
    for path in paths:
        if not callable(path):
            raise RuleTypeError(f"a path is a function, not a {type(path).__name__}")
    fill, tensors, order = opened_model(parameters)
    owners = [owner_of(x) for x in optree.tree_leaves(tensors)]
    owner = next((o for o in owners if o is not None and o.name != "numpy"), None)
    home = owner or load_backend("numpy")
    arguments = read_arguments((tensors, batch))
    names, leaves = {}, {}
    entries = optree.treespec_paths(arguments.tree)
    for n, place in enumerate(arguments.places):
        _, argument, *inner = entries[place]
        if argument:
            leaves[n] = "batch" + "".join(f"[{entry!r}]" for entry in inner)
        elif is_float_array(arguments.arrays[n]):
            name = ".".join(map(str, inner)) or "parameters"
            names[n] = order.get(name, name)
    if not names:
        raise RuleTypeError(f"no float tensor among the parameters, a {type(parameters).__name__}")
    places = {name: place for place, name in enumerate(order.values())}
    names = dict(sorted(names.items(), key=lambda row: places.get(row[1], 0)))

    seeds = Seeds(home, *paths)

    def trial_of_path(path: Path, word: str) -> Trial:
        def call(tensors: Any, batch: Any) -> Any:
            return path(fill(tensors), batch)

        return with_seeds(Trial(word, call, home, arguments), seeds)

    words = [name_of(path) for path in paths]
    words = ["path_a", "path_b"] if words[0] == words[1] else words
    first, second = map(trial_of_path, paths, words)
    return PathPair(first, second, names, leaves)


def is_mask(array: Array) -> bool:
    return array.size > 1 and bool(np.isin(array, (0, 1)).all())


def size_of(array: Array | None) -> float:
    return 0.0 if array is None else float(np.max(np.abs(array), initial=0.0))


def scaled_at(arrays: Arrays, numbers: list[int], factor: float) -> Arrays:
    return replace_at(arrays, numbers, scaled([arrays[n] for n in numbers], factor))
