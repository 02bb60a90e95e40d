"""The frameworks' own functions, held against the laws of an audit: none may be accused.

The names and how each is called come from the tables of the dialects.
`python -m tests.audit.audited torch` audits all of them; the tests take a few.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import multigrad as xg
from multigrad.audit.audit import LAWS, Finding
from multigrad.errors import RuleTypeError

from ..dtypes.table import ALL_PATTERNS, Library, names_of, patterns_of, values

# By the words of a name, what is left out, and why.
LEFT_OUT = {
    r"arg|sort|unique|count|search|bit|shift|view|digit|hist|bucket|nonzero": "it gives no floats",
    r"detach|new_tensor|stop_gradient|^tensor$": "it is there to cut the gradient off",
    r"cholesky|cho_|eigh|eigvalsh|logdet": "it reads one triangle of a symmetric matrix",
    r"^softmax_cross_entropy_with_logits": "labels that are no distribution are not allowed",
    r"select_n": "it is about places",
    r"^pdist$": "in torch 2.13 its gradient of nothing ends the process",
    r"^(linalg_)?matrix_exp$": "in torch 2.13 its gradient is NaN in float16",
    r"^group_norm$": "in torch 2.13, in float16 on a CPU, what it saves is rounded",
    r"^fake_quant": "it is straight-through",
    r"^moments": "TensorFlow 2.21 holds the mean fixed: its second derivative is another one",
}
# What is said of these is true: a law, and the words of a name.
TRUE = {
    # In torch 2.13 the tangent reads the other triangle.
    "forward mode": r"\.triangular_solve\(",
    # Their backwards take logarithms of the positive and negative parts, without NaN (torch 2.13,
    # TensorFlow 2.21).
    "not finite": r"\.(logcumsumexp|cumulative_logsumexp)\(",
    "edges": r"^tensorflow.*\.(cumprod|xlogy|xlog1py|xdivy)\(",  # 0 where a factor is 0, in 2.21
}
WITHOUT = ("compiled", "compiled transforms", "threads")  # which take longer than all others


def calls_of(
    library: str, only: str = "", share: float = 1.0
) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the differentiable functions of a library that take no words: a name with the way to
    call it, the function and its arguments.
    """
    make = Library(library).make
    given = [make(values("float32", False) / n) for n in (1, 2, 3)]
    chooser = random.Random(0)
    for name, function in names_of(library).items():
        last = name.rpartition(".")[2]
        is_left_out = any(re.search(word, last) for word in LEFT_OUT)
        if chooser.random() >= share or re.search(only, name) is None or is_left_out:
            continue
        for way in patterns_of(Library(library), function):
            args, kwargs = ALL_PATTERNS[way](*given)
            if not kwargs and way[0] != "[":
                yield f"{name}({way})", function, args
                break


def accused(
    library: str, only: str = "", share: float = 1.0, without: Sequence[str] = WITHOUT
) -> Iterator[tuple[str, tuple[Finding, ...]]]:
    """Yield each function that is audited, with the laws that it is said to break.

    Args:
        share: of the functions, drawn by a fixed seed.
    """
    laws = [law.name for law in LAWS if law.name not in without]
    for name, function, args in calls_of(library, only, share):
        try:
            report = xg.audit(function, *args, laws=laws)
        except RuleTypeError:  # no float goes in
            continue
        if not report.problem:
            yield name, tuple(each for each in report.findings if not _is_true(name, each.law))


def _is_true(name: str, law: str) -> bool:
    return law in TRUE and re.search(TRUE[law], name) is not None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--only", default="", help="a regular expression of the names to audit")
    parser.add_argument("--share", type=float, default=1.0)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    audited, wrong = 0, 0
    for name, findings in accused(given.library, given.only, given.share):
        audited, wrong = audited + 1, wrong + bool(findings)
        for finding in findings:
            print(name, finding, flush=True)
    print(f"{given.library}: {audited} audited, {wrong} accused")
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
