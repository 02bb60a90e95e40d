"""Names of rules that are like a word: misspelled ones, those of packages and those of the field.

A word is compared with names, with their last parts ("snntorch.atan"), with the initials of their
parts and with the words of docstrings, where the names that others use stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

MOST = 3  # in a message
COMMON = 4  # a word in the docstrings of more rules than that says nothing


def near_names(word: str, docstrings: Mapping[str, str]) -> list[str]:
    """Return the names that a word may have meant, the likeliest first, at most three.

    Args:
        docstrings: the known names with their docstrings.
    """
    return (called_so(word, docstrings) or misspelled(word, docstrings))[:MOST]


def misspelled(word: str, names: Iterable[str], cutoff: float = 0.5) -> list[str]:
    """Return the name that is spelled nearly so."""
    import difflib  # 1 ms, and only errors need it

    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(word).lower(), by_lower, n=1, cutoff=cutoff)
    return [by_lower[each] for each in close]


def called_so(word: str, docstrings: Mapping[str, str]) -> list[str]:
    """Return the names that others call so: plain names first, then those of packages."""
    last = plain(word.rpartition(".")[2])
    if len(last) < 2:
        return []
    said = [name for name, text in docstrings.items() if last in words_of(text)]
    named = [name for name in docstrings if plain(name.rpartition(".")[2]) == last]
    short = [name for name in docstrings if is_short_for(last, name)]
    part = [name for name in docstrings if "." not in name and last in name.lower().split("_")]
    found = {*named, *short, *part, *(said if len(said) <= COMMON else ())}
    first = [name for name in found if plain(name).startswith(last)]
    return sorted(found, key=lambda name: ("." in name, name not in named, name not in first, name))


def plain(name: str) -> str:
    """Return a name as a spelling in another case, or with other underscores, gives it too."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def words_of(text: str) -> set[str]:
    """Return the words of a docstring, each plain."""
    return {plain(word) for word in re.findall(r"\w+", text)}


def is_short_for(word: str, name: str) -> bool:
    """Return whether a word is the initials of a name's parts, or one letter more, as STE."""
    initials = "".join(part[0] for part in name.rpartition(".")[2].lower().split("_") if part)
    return len(initials) > 1 and word in (initials, *(initials + letter for letter in "el"))
