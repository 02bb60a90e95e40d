"""What a converted class does at each door: as the class itself, or refused by name."""

from __future__ import annotations

import copy
import warnings
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import is_installed

pytestmark = pytest.mark.needs("torch")
if TYPE_CHECKING or is_installed("torch"):
    import torch

    from .doors import DOORS, Run
    from .situations import SITUATIONS
else:
    DOORS, SITUATIONS = {}, {}
CALLS = 2  # of which the second reads what the first has left


def observe(run: Run, situation: str, convert: bool) -> list[Any]:
    """Return all that calls give and leave behind."""
    import multigrad as xg

    torch.manual_seed(0)
    torch._dynamo.reset()
    made = SITUATIONS[situation]()
    own = made.function_class
    apply = xg.convert(own).apply if convert else own.apply
    found = []
    for _ in range(CALLS):
        outputs, gradients = run(made.step, apply, made.tensors)
        log = made.log() if callable(made.log) else made.log
        left = [each.detach().clone() for each in made.tensors]
        found.append((list(outputs), list(gradients), left, copied(log)))
    return found


def copied(log: Any) -> Any:
    if not isinstance(log, torch.Tensor):
        return copy.deepcopy(log)
    return log.detach().clone(), copied(getattr(log, "main_grad", None))


def check_same(found: Any, expected: Any) -> None:
    """Check that two nests of tensors and plain values are the same."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, equal_nan=True)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for each, other in zip(found, expected, strict=True):
            check_same(each, other)
    else:
        assert found == expected


def expect(door: str, situation: str) -> list[Any] | Exception:
    """Return what the class itself gives, or what torch raises of it everywhere."""
    try:
        return observe(DOORS[door].instead, situation, convert=False)
    except Exception as error:
        return error


def is_told(error: BaseException | None, name: str) -> bool:
    """Return whether an error of ours is among what led to one, with the name of the class."""
    import multigrad as xg

    while error is not None:
        if isinstance(error, xg.MultigradError) and name in str(error):
            return True
        if "graph_break" in str(error) and f"function {name!r}" in str(error):  # as Dynamo says it
            return True
        error = error.__cause__
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("door", DOORS)
def test_a_converted_class_does_what_the_class_does_or_is_refused_by_name(
    door: str, situation: str
) -> None:
    expected = expect(door, situation)
    name = SITUATIONS[situation]().function_class.__name__
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = observe(DOORS[door].run, situation, convert=True)
    except Exception as error:
        if isinstance(expected, Exception) and type(error) is type(expected):
            return  # torch itself refuses it
        if not is_told(error, name):
            with pytest.raises(type(error)):  # so does torch's compiler, of the class as written
                observe(DOORS[door].run, situation, convert=False)
        assert situation in REFUSED.get(door, ()), f"{type(error).__name__}: {error}"
        return
    assert situation not in REFUSED.get(door, ()), "it is not refused any more: take it out"
    assert not isinstance(expected, Exception), expected
    check_same(found, expected)


# By door, what is refused there.
REFUSED: dict[str, frozenset[str]] = {}
