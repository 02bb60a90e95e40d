"""What is advised to the author of a rule, in the words for what else is captured.

Of an imported function the reader is not the author: the advice to write it otherwise is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REPHRASED: Mapping[str, Sequence[tuple[str, str]]] = {
    "function": (
        ("register the rule with native=True", "give it native=True"),
        ("a param of the rule", "an argument"),
    ),
    "imported function": (
        (", or register the rule with native=True to run it as it is", ""),
        (". Register the rule with native=True to run it as it is", ""),
        (". Write it with xg.xp", ""),
        ("a param of the rule", "an argument"),
    ),
}


def rephrase(problem: str, kind: str) -> str:
    """Return a problem in the words for a kind of trace."""
    for phrase, other in REPHRASED.get(kind, ()):
        problem = problem.replace(phrase, other)
    return problem
