"""Rules on two processes of torch: DTensors, data, tensor and pipeline parallel models."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..harness.distributed.ranks import Ranks, names_in, ranks_of
from ..harness.hidden import python

pytestmark = pytest.mark.needs("torch")
RANKS = Path(__file__).parents[1] / "ranks"
CHECKS = RANKS / "torch_dtensors.py", RANKS / "torch_models.py"
ranks = ranks_of(*CHECKS, world=2, timeout=110)


@pytest.mark.parametrize("name", names_in(*CHECKS))
def test_on_two_processes(ranks: Ranks, name: str) -> None:
    ranks.assert_passed(name)


# Rules on a mesh of two dimensions of torch: four processes.


CHECKS_MESHES = RANKS / "torch_meshes.py"
ranks_meshes = ranks_of(CHECKS_MESHES, world=4, timeout=110)


@pytest.mark.parametrize("name", names_in(CHECKS_MESHES))
def test_meshes(ranks_meshes: Ranks, name: str) -> None:
    ranks_meshes.assert_passed(name)


# Reductions of rules over the processes of torch's groups.


CHECKS_REDUCTIONS = RANKS / "torch_collectives.py"
ranks_reductions = ranks_of(CHECKS_REDUCTIONS, world=2, timeout=110)


@pytest.mark.parametrize("name", names_in(CHECKS_REDUCTIONS))
def test_reductions(ranks_reductions: Ranks, name: str) -> None:
    ranks_reductions.assert_passed(name)


IMPORTED_LATE = """
import sys, warnings, torch, multigrad as xg
warnings.simplefilter("ignore")  # torch says what is to be called instead

@xg.register("summed")
def summed(ctx, grad_out, tin):
    from torch.distributed.nn import functional
    return grad_out * functional.all_reduce(tin)

xg.Activation("ReLU", "triangular")(torch.ones(1))
assert "torch.distributed.nn" not in sys.modules  # it takes a tenth of our own import
text = xg.show("summed")
print("all_sum(tin" in str(text), "call(" in str(text))
"""


def test_a_collective_is_known_though_the_rule_itself_imports_it() -> None:
    """Torch does not, and nor does multigrad."""
    assert python("-c", IMPORTED_LATE).split()[-2:] == ["True", "False"]
