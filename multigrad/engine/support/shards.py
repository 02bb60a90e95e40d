"""What `over=` and `axis_name=` say: how a local tensor is a part of an array; and all choices that
are made beside a rule's name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from ...core.rules.registry import resolve
from ...core.rules.rule import Rule
from ...core.support.params import Fused, read_fused, read_way
from ...core.support.records import record
from ...errors import RuleError, RuleTypeError, RuleValueError

Names = tuple[str, ...]  # of mesh axes or groups
EVERY: Names = ()  # all shards


@record(eq=True)
class Shards:
    """The shards over which a rule's reductions and draws are taken.

    Attributes:
        split: for each axis of the array the mesh axes or groups over which it is split: None,
            names, or `EVERY`, all shards.
        alone: each shard is an array of its own.
    """

    split: tuple[Names | None, ...] = ()
    alone: bool = False

    def to_data(self) -> Any:
        """Return its form in a document."""
        if self.alone:
            return "shard"
        return [None if names is None else list(names) for names in self.split]

    def __str__(self) -> str:
        if self.alone:
            return "over='shard'"
        if self.split == (EVERY,):
            return "over='global'"
        if len(self.split) == 1 and self.split[0] is not None and len(self.split[0]) == 1:
            return f"axis_name={self.split[0][0]!r}"
        axes = [n[0] if n is not None and len(n) == 1 else n for n in self.split]
        return f"over=({', '.join(map(repr, axes))}{',' if len(axes) == 1 else ''})"


def read_shards(over: Any = None, axis_name: Any = None) -> Shards | None:
    """Return the meaning of `over` and `axis_name`; None if neither is given.

    Args:
        over: "shard"; "global"; or a partition spec: for each axis of the array None, a name, or a
            tuple of names. Trailing axes may be left out.
        axis_name: one name or several, of a mesh axis or a group, or an object with one; or such an
            object itself, such as a process group or mesh of torch.
    """
    if over is None and axis_name is None:
        return None
    if over is None or (isinstance(over, str) and over == "global"):
        return Shards((EVERY if axis_name is None else read_names(axis_name),))
    if axis_name is not None:
        raise RuleValueError(
            f"over={over!r} and axis_name={axis_name!r} say two things: axis_name= is for an array "
            "that is split along its first axis; else name the axes in over=(...)"
        )
    if isinstance(over, str):
        if over == "shard":
            return Shards(alone=True)
        raise RuleValueError(
            f"over is 'shard', 'global' or a partition spec, got {over!r}; for an array that is "
            f"split along its first axis over the mesh axis {over!r}: axis_name={over!r}"
        )
    if not isinstance(over, Iterable):
        raise RuleTypeError(f"over is 'shard', 'global' or a partition spec, got {over!r:.60}")
    split = [None if names is None or names == () else read_names(names) for names in over]
    while split and split[-1] is None:
        split.pop()
    all_names = [name for names in split for name in names or ()]
    if len(set(all_names)) < len(all_names):
        raise RuleValueError(f"over={tuple(over)!r} splits two axes of the array over the same")
    return Shards(tuple(split))


def read_names(given: Any) -> Names:
    """Return the names of mesh axes or groups."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given, tuple | list) and given:
        return tuple(name for each in given for name in read_names(each))
    # A mesh of torch has one group for each of its axes.
    get_group = getattr(given, "get_group", None)
    group = given if get_group is None else get_group()
    name = getattr(group, "group_name", None)
    if not isinstance(name, str):
        raise RuleTypeError(
            "an axis is named by a string, a tuple of them, a process group or a mesh of one "
            f"dimension, got {given!r:.60}"
        )
    return (name,)


def with_choices(
    rule: Any,
    over: Any = None,
    axis_name: Any = None,
    residuals: str | None = None,
    fused: Fused = "auto",
) -> Any:
    """Return a rule with these choices: `rule` itself if none is made, else a Rule.

    A name is not resolved: the result looks it up at each use, as the name alone would be.

    Args:
        over: which array a tensor is a part of, as `axis_name` is; see `Rule.over`.
        residuals: what forward keeps; None: the rule's own choice.
        fused: whether it runs as one kernel; "auto": the rule's own choice.
    """
    shards = read_shards(over, axis_name)
    choices: dict[str, Any] = {}
    if residuals is not None:
        choices["residuals"] = read_way(residuals, "a rule")
    if shards is not None:
        choices["shards"] = shards
    if read_fused(fused) != "auto":
        choices["fused"] = fused
    if not choices:
        return rule
    if rule is None:
        name, value = next(iter(choices.items()))
        choice = str(value) if name == "shards" else f"{name}={value!r}"
        raise RuleError(f"{choice} needs a rule: name the rule here too")
    if isinstance(rule, str):
        return _named(rule, **choices)
    return resolve(rule).copy(**choices)


@functools.lru_cache(768)
def _named(name: str, **choices: Any) -> Rule:
    # A composition of one part, so that the name is looked up at each use; cached, as it owns code.
    return Rule(name=name, parts=(name,), **choices)
