"""The words in a picture: its title and the names of its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...rules.model.forwards_of_code import as_forward
from .picture import DRAWS, Ruled


def format_params(params: Mapping[str, Any]) -> str:
    """Return params as text."""
    return ", ".join(f"{name}={format_value(value)}" for name, value in params.items())


def format_value(value: Any) -> str:
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    return f"{value:g}" if isinstance(value, float) else f"{value!r:.40}"


def name_curves(ruled: Sequence[Ruled], several: bool) -> list[str]:
    """Return a name for each curve: what differs among them."""
    varied = {
        name
        for each in ruled
        for name in each.params
        if any(each.params[name] != other.params.get(name) for other in ruled)
    }
    names = []
    for each in ruled:
        own = format_params({k: v for k, v in each.params.items() if k in varied})
        words = (each.rule.name, f"({own})" if own else "") if several else (own,)
        names.append(" ".join(filter(None, words)))
    return names


def make_title(ruled: Sequence[Ruled], forward: Any) -> str:
    """Return what a picture shows, with the params that all curves share."""
    first = ruled[0]
    names = dict.fromkeys(each.rule.name for each in ruled)
    if len(names) == 1:
        shared = {**first.rule.params, **first.params}
        shared = {
            name: value
            for name, value in shared.items()
            if all(each.params.get(name, value) == value for each in ruled)
        }
        bound = format_params({**first.rule.bound, **shared})
        title = f"{first.rule.name} ({bound})" if bound else first.rule.name
    else:
        title = ", ".join(names) if len(names) <= 3 else f"{len(names)} rules"
    title += f" under {as_forward(forward).name}" if forward is not None else ""
    return title + (say_random() if any(each.behavior.is_random for each in ruled) else "")


def say_random(mean: bool = True) -> str:
    """Return the line of a title that says what is drawn of what is random."""
    return (
        f"\none draw (dots), mean of {DRAWS} and where 90 % of them lie" if mean else "\none draw"
    )
