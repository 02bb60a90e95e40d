"""`xg.same`: whether two ways to compute a loss have the same gradient, parameter by parameter.

Both paths run on the same parameters and the same batch, in float64 where they can. Where they
differ, hypotheses (`hypotheses.py`) look for the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core import xp as _xp
from ...core.backend.values import owner_of
from ...core.rules.signature import name_of
from ...core.support.trees import optree
from ...errors import RuleTypeError
from ...look.subject import Report, as_array
from ..seeds import Seeds
from ..trial import Array
from .hypotheses import HYPOTHESES, Comparison
from .paired_runs import ParameterRow, Path, is_mask, make_pair

xp: Any = _xp
HIDDEN = -100  # the label that losses leave out
SEGMENT_IDS = re.compile(r"segment|document|doc_?id|seq(uence)?_?id")
MOST_ROWS = 12  # of parameters in a printed report


@dataclass(frozen=True, slots=True, repr=False)
class SameReport(Report):
    """What `xg.same` found: true if the gradients are the same, and printed with the reason if not.

    Attributes:
        names: of the two paths.
        home: the framework that they ran on.
        dtype: in which they were compared.
        outputs: where the outputs differ, in words; "" if they do not.
        rows: the parameters, in the model's order.
        reason: what explains the difference, in words; "" if nothing does.
        culprit: the parameter, or the part of the batch, that the reason names; "" for none.
        factor: the number that the reason names; None for none.
    """

    names: tuple[str, str]
    home: str
    dtype: str
    outputs: str
    rows: tuple[ParameterRow, ...]
    reason: str = ""
    culprit: str = ""
    factor: float | None = None

    @property
    def ok(self) -> bool:
        return not self.outputs and all(row.is_same for row in self.rows)

    def __str__(self) -> str:
        (first, second), count = self.names, len(self.rows)
        if self.ok:
            agree = f"{count} gradients agree in {self.dtype}"
            return f"{first} and {second} are the same on {self.home}: {agree}"
        different_rows = [row for row in self.rows if not row.is_same]
        differ = f"{len(different_rows)} of {count} gradients differ in {self.dtype}"
        lines = [f"{second} is not the same as {first} on {self.home}: {differ}"]
        lines += [f"  {each}" for each in (self.outputs, self.reason) if each]
        lines += [f"    {row}" for row in different_rows[:MOST_ROWS]]
        if len(different_rows) > MOST_ROWS:
            lines.append(f"    and {len(different_rows) - MOST_ROWS} more")
        return "\n".join(lines)


def same(path_a: Path, path_b: Path | str, parameters: Any, batch: Any) -> SameReport:
    """Compare two ways to compute a loss, or a layer, by the gradients of the parameters.

    A path is called as `path(parameters, batch)` and returns a loss, or tensors of any shapes,
    which then get the same random cotangents on both paths. What draws at random gets the same
    numbers on both.

    Examples:
        >>> import torch
        >>> batch = {"x": np.arange(6.0).reshape(3, 2), "y": np.array([1.0, 2.0, 3.0])}
        >>> def mean(w, batch):
        ...     return xg.xp.mean((batch["x"] @ w - batch["y"]) ** 2)
        >>> def total(w, batch):
        ...     return xg.xp.sum((batch["x"] @ w - batch["y"]) ** 2)
        >>> report = xg.same(mean, total, torch.tensor([0.5, -1.0]), batch)
        >>> report.factor, report.reason[:48]
        (3.0, 'the loss and every gradient are 3 times as large')
        >>> xg.same(mean, "order", torch.tensor([0.5, -1.0]), batch).ok
        True

    Args:
        path_a: the path that is taken to be right.
        path_b: the other path; or a law that the first is to keep: "order" (the examples of the
            batch may be permuted), "accumulation" (the mean over parts of the batch, weighted by
            their sizes, is that over the whole), "padding" (there may be more positions that a
            mask of zeros and ones hides, or labels of -100, and they may hold anything), or
            "packing" (the examples may share one row, in which `segment_ids` tells them apart).
        parameters: a model (a torch module, a Keras layer or model, any object with trained
            tensors), or tensors nested in lists, tuples and dicts.
        batch: tensors, nested likewise, with the examples along their first axis; NumPy arrays
            become the framework's tensors.

    Raises:
        RuleTypeError: a path cannot be called, there is no law of that name, no parameter is a
            float tensor, "padding" finds nothing that hides positions, or "packing" no segment ids.
    """
    if isinstance(path_b, str):
        if path_b not in LAWS_OF_BATCHES:
            known = ", ".join(LAWS_OF_BATCHES)
            raise RuleTypeError(f"no law {path_b!r} of a batch; there are {known}")
        second_path = LAWS_OF_BATCHES[path_b](path_a, batch)
        second_path.__name__ = f"{name_of(path_a)} under {path_b}"
    else:
        second_path = path_b
    with Seeds().kept():
        pair = make_pair((path_a, second_path), parameters, batch)
        first, second = pair.first, pair.second
        with first.quiet(pair.dtype), first.keeping_seeds():
            a, b = pair.run(first), pair.run(second)
            rows, outputs = pair.rows(a, b), pair.outputs_differ(a, b)
            names, home = (first.name, second.name), first.backend.name
            report = SameReport(names, home, pair.dtype, outputs, tuple(rows.values()))
            comparison = Comparison(pair, a, b, rows)
            for explain in () if report.ok else HYPOTHESES:
                if (reason := explain(comparison)) is not None:
                    words, culprit, factor = reason
                    return replace(report, reason=words, culprit=culprit, factor=factor)
    return report


def _in_another_order(path: Path, _: Any) -> Path:
    def permuted(parameters: Any, batch: Any) -> Any:
        return path(parameters, _examples(batch, lambda n: [*range(1, n, 2), *range(0, n, 2)]))

    return permuted


def _accumulated(path: Path, _: Any) -> Path:
    def accumulated(parameters: Any, batch: Any) -> Any:
        lengths = {len(x) for x in optree.tree_leaves(batch) if owner_of(x) is not None and x.shape}
        count = max(lengths, default=0)
        cut = (3 * count) // 8 or 1
        parts = (range(cut), cut), (range(cut, count), count - cut)
        losses = [
            path(parameters, _examples(batch, lambda _, places=places: [*places])) * (size / count)
            for places, size in parts
        ]
        return losses[0] + losses[1]

    return accumulated


def _padded(path: Path, batch: Any) -> Path:
    # The numbers are read here: within a path they may be symbols of a transform.
    arrays = [np.asarray(as_array(x)) for x in optree.tree_leaves(batch)]
    masks = [a == HIDDEN if HIDDEN in a else a == 0 for a in arrays if _hides(a)]
    if not masks:
        raise RuleTypeError(
            "'padding' asks for a mask of zeros and ones with the shape [examples, positions] in "
            f"the batch, or for labels of {HIDDEN}"
        )
    shape = masks[0].shape
    free_mask = np.logical_and.reduce([each for each in masks if each.shape == shape])
    order = [*range(shape[1]), *range(0, shape[1], 2)]

    def padded(parameters: Any, batch: Any) -> Any:
        leaves, structure = optree.tree_flatten(batch)
        return path(parameters, optree.tree_unflatten(structure, map(longer, leaves, arrays)))

    def longer(x: Any, array: Array) -> Any:
        if array.shape[:2] != shape:
            return x
        is_added = np.arange(len(order)) >= shape[1]
        x = xp.take(x, np.asarray(order), axis=1)
        if _hides(array):
            return xp.where(is_added, HIDDEN if HIDDEN in array else 0, x)
        mask = np.concatenate([free_mask, np.ones((shape[0], len(order) - shape[1]), bool)], 1)
        mask = mask.reshape(mask.shape + (1,) * (array.ndim - 2))
        return xp.where(mask, xp.flip(xp.flip(x, axis=1), axis=0), x)

    return padded


def _packed(path: Path, batch: Any) -> Path:
    paths = optree.treespec_paths(optree.tree_structure(batch))
    keys = [".".join(map(str, each)).lower() for each in paths]
    arrays = [np.asarray(as_array(x)) for x in optree.tree_leaves(batch)]
    is_ids = [SEGMENT_IDS.search(key) and a.ndim == 2 for key, a in zip(keys, arrays, strict=True)]
    shapes = {a.shape[:2] for a in arrays}
    if not any(is_ids) or len(shapes) > 1:
        raise RuleTypeError(
            "'packing' asks for a batch of tensors with the shape [examples, positions, ...], one "
            f"of them called segment_ids; this one has {', '.join(keys)}"
        )

    def packed(parameters: Any, batch: Any) -> Any:
        leaves, structure = optree.tree_flatten(batch)
        rows = map(in_one_row, leaves, arrays, is_ids)
        return path(parameters, optree.tree_unflatten(structure, rows))

    def in_one_row(x: Any, array: Array, has_ids: Any) -> Any:
        if has_ids:
            counts = array.max(axis=1) + 1
            moved = xp.add(x, (np.cumsum(counts) - counts).astype(array.dtype)[:, None])
            # Zeros in a row that begins with a larger number are padding, and stay.
            x = xp.where((array == 0) & (array[:, :1] > 0), x, moved)
        return xp.reshape(x, (1, -1, *array.shape[2:]))

    return packed


def _hides(array: Array) -> bool:
    return array.ndim == 2 and (is_mask(array) or HIDDEN in array)


def _examples(batch: Any, choose: Callable[[int], list[int]]) -> Any:
    def taken(x: Any) -> Any:
        if owner_of(x) is None or not len(x.shape):
            return x
        return xp.take(x, np.asarray(choose(int(x.shape[0]))), axis=0)

    return optree.tree_map(taken, batch)


# By name, what makes another path of a path and the batch that it is called with first.
LAWS_OF_BATCHES = {
    "order": _in_another_order,
    "accumulation": _accumulated,
    "padding": _padded,
    "packing": _packed,
}
