"""Params that one looks at are a copy: changing it is refused, with what to write instead."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import multigrad as xg

WAYS = {
    "item": lambda params: params.__setitem__("width", 1.0),
    "delete": lambda params: params.__delitem__("width"),
    "update": lambda params: params.update(width=1.0),
    "or": lambda params: params.__ior__({"width": 1.0}),
    "pop": lambda params: params.pop("width"),
    "setdefault": lambda params: params.setdefault("width", 1.0),
    "clear": lambda params: params.clear(),
}


@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_params_that_are_read_cannot_be_changed_in_place(change: Any) -> None:
    act = xg.activation("Linear", "triangular", {"width": 2.0})
    with pytest.raises(TypeError, match=r"changes nothing; make another: xg\.activation\("):
        change(act.params)
    with pytest.raises(TypeError, match=r"changes nothing; write rule\.with_params\("):
        change(xg.get("triangular").params)
    assert act.params == {"width": 2.0}


@pytest.mark.needs("torch")
@pytest.mark.parametrize("change", WAYS.values(), ids=WAYS)
def test_params_of_a_torch_layer_are_assigned_as_a_whole(change: Any) -> None:
    act = xg.Activation("Linear", "triangular", {"width": 2.0})
    with pytest.raises(TypeError, match=r"act\.params = \{\*\*act\.params, \.\.\.\}"):
        change(act.params)
    act.params = {**act.params, "width": 1.0}
    assert act.params == {"width": 1.0}


def test_params_that_are_copied_are_plain() -> None:
    params = xg.activation("Linear", "triangular", {"width": 2.0}).params
    for plain in (
        dict(params),
        params.copy(),
        copy.deepcopy(params),
        pickle.loads(pickle.dumps(params)),
    ):
        plain["width"] = 1.0
        assert plain == {"width": 1.0}
    assert params == {"width": 2.0}
