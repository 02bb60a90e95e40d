"""What multigrad imports takes no part in Python's search for garbage, and others' garbage does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, weakref

class Knot:
    def __init__(self):
        self.own = self

def churn(count):  # so that Python searches what is young, and all where that is due
    for _ in range(count):
        Knot()

gc.collect()
kept = [[] for _ in range(100_000)]  # what an application has imported
gc.collect()
churn(100_000)
knot = weakref.ref(Knot())
assert knot() is not None  # it is garbage, which nobody has looked for
searched = []
gc.callbacks.append(lambda phase, info: searched.append(info["generation"]))

import multigrad as xg
xg.get("triangular")

assert knot() is None  # it has not aged with what was imported
churn(30_000)
print(gc.isenabled(), 2 in searched)
"""


def test_an_import_makes_no_search_of_all_objects_due() -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=False, capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == ["True", "False"], run.stderr


FROZEN = """
import gc
gc.freeze()
frozen = gc.get_freeze_count()

import multigrad as xg
xg.get("triangular")

print(gc.get_freeze_count() > 0.9 * frozen)
"""


def test_what_was_frozen_before_stays_so() -> None:
    """As servers do before they fork."""
    run = subprocess.run(
        [sys.executable, "-c", FROZEN], check=False, capture_output=True, text=True, timeout=120
    )
    assert run.stdout.split() == ["True"], run.stderr
