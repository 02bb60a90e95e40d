"""What a converted class does at each door: as the class itself, or refused by name."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ..conftest import is_installed
from ..support.sampling import WHOLE

pytestmark = pytest.mark.needs("torch")
if TYPE_CHECKING or is_installed("torch"):
    import torch

    from .doors import DOORS, Run
    from .situations import BEYOND, SITUATIONS
else:
    DOORS, SITUATIONS, BEYOND = {}, {}, set()
CALLS = 2  # of which the second reads what the first has left
TRANSFORMS = ("vmap", "func.grad", "func.vjp", "compile(func.grad)")
# What else is refused there; `fullgraph` by torch's own compiler, but for two.
REFUSED = {
    "vmap": {"an_update_with_setup_context", "a_draw_at_random"},
    "func.grad": {"a_weight_read_from_outside"},
    "func.vjp": {"a_weight_read_from_outside"},
    "compile(func.grad)": {"a_weight_read_from_outside"},
    "export": {
        "a_detached_alias_is_updated",
        "an_update_on_one_branch_by_a_value",
        "values_that_go_through_numpy",
        "values_that_go_through_numpy_and_are_counted",
    },
    "compile, fullgraph": {
        "a_count_on_the_class",
        "a_gradient_is_left_on_a_parameter",
        "a_list_outside_is_appended_to_in_backward",
        "an_argument_marked_dirty_is_returned",
        "an_update_on_one_branch_by_a_value",
        "no_zeros_for_missing_cotangents",
        "one_tensor_returned_twice",
        "values_that_go_through_numpy_and_are_counted",
    },
}


def choose_cases() -> Iterator[tuple[str, str]]:
    """Yield each situation with a third of the doors, and a tenth of those that compile."""
    for i, door in enumerate(DOORS):
        is_long = "compile" in door or door in ("xg.jit", "export")
        step = 1 if WHOLE else 10 if is_long else 3
        for situation in list(SITUATIONS)[i % step :: step]:
            yield door, situation


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
        if isinstance(error, xg.MultigradError) and (name in str(error) or "vmap" in str(error)):
            return True
        if "graph_break" in str(error) and f"function {name!r}" in str(error):  # as Dynamo says it
            return True
        error = error.__cause__
    return False


def is_refused(door: str, situation: str) -> bool:
    """Return whether a situation is to be refused at a door."""
    in_transform = door in TRANSFORMS and situation in BEYOND
    return in_transform or situation in REFUSED.get(door, ())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.always
@pytest.mark.parametrize(("door", "situation"), list(choose_cases()))
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
        if not is_told(error, name):  # then torch's compiler refuses the class as written, too
            with pytest.raises(type(error)):
                observe(DOORS[door].run, situation, convert=False)
        assert is_refused(door, situation), f"{type(error).__name__}: {error}"
        return
    assert not is_refused(door, situation), "it is refused no more"
    assert not isinstance(expected, Exception), expected
    check_same(found, expected)
