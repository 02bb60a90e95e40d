"""A Rule as people hold it: bindings, pickling, and kinds of callables; tests/core has the rest."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.errors import NativeRuleWarning, RuleTypeError

from ...written.unseen import Unseen

X = np.array([-1.0, 0.5, 2.0], np.float32)
G = np.array([1.0, 2.0, 3.0], np.float32)


@pytest.mark.usefixtures("unproven")
@pytest.mark.parametrize(
    "make", [xg.register("counted"), lambda f: xg.compose(f, "straight_through")]
)
def test_bindings_share_one_capture(make: Callable[[Any], xg.Rule]) -> None:
    captures = Unseen()

    def counted(ctx: Any, grad_out: Any, tin: Any, s: float = 1.0) -> Any:
        captures.append(s)
        return grad_out * s

    made = make(counted)
    for s in (1.0, 2.0, 3):
        np.testing.assert_array_equal(made.with_params(s=s)(None, G, X), G * s)
    np.testing.assert_array_equal(made(None, G, X, s=4.0), G * 4)
    assert len(captures) == 1


# --- pickling and copying -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: xg.get("triangular"),
        lambda: xg.get("triangular").with_params(width=2.0),
        lambda: xg.compose("clip_norm", "scale"),
        lambda: xg.compose("clip_norm", xg.get("scale").with_params(s=3.0)),
        lambda: xg.compose("scale", xg.compose("clip_norm", "triangular")),
        lambda: xg.compose("scale", "clip_norm").with_params(s=3.0),
    ],
    ids=["registered", "bound", "composed", "composed of bound", "nested", "composed, bound"],
)
@pytest.mark.parametrize("again", [lambda rule: pickle.loads(pickle.dumps(rule)), copy.deepcopy])
def test_rule_survives_pickling_and_copying(
    make: Callable[[], xg.Rule], again: Callable[[Any], Any]
) -> None:
    rule = make()
    other = again(rule)
    assert (other.name, other.params, repr(other)) == (rule.name, rule.params, repr(rule))
    np.testing.assert_array_equal(other(None, G, X), rule(None, G, X))


def test_registered_rules_pickle_by_name() -> None:
    composed = xg.register("mine")(xg.compose("clip_norm", "scale"))
    for rule in (xg.get("noise"), composed):
        assert pickle.loads(pickle.dumps(rule)) is rule


def test_a_locals_function_does_not_pickle_and_says_which() -> None:
    rule = xg.compose(lambda ctx, g, x: g, "scale")
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(rule)


def test_shape_that_capture_cannot_tell_is_checked_when_it_runs(backend: Any) -> None:
    square, wide = (np.ones(shape, np.float32) for shape in ((3, 3), (2, 3)))
    rule = xg.register("rows")(lambda ctx, g, x: g * xp.sum(x, axis=1))
    given = rule(None, backend.array(square), backend.array(square))
    np.testing.assert_array_equal(backend.numpy(given), square * 3)
    rule = xg.register("outer")(lambda ctx, g, x: xp.expand_dims(g, 0) * x)
    with pytest.raises(
        xg.GradientError, match=r"'outer' returned shape \(1, 2, 3\).*shape \(2, 3\)"
    ):
        rule(None, backend.array(wide), backend.array(wide))


def test_a_dataclass_rule_that_cannot_be_captured_runs_as_it_is(backend: Any) -> None:
    @dataclass
    class Window:  # it has no hash
        width: float

        def __call__(self, ctx: Any, grad_out: Any, tin: Any) -> Any:
            return grad_out * (self.width if float(tin[0]) < 1e9 else 0.0)

    x = backend.array(np.ones(3, np.float32))
    with pytest.warns(NativeRuleWarning, match="turns a tensor into a Python number"):
        found = backend.numpy(xg.register("test window", override=True)(Window(3.0))(None, x, x))
    np.testing.assert_array_equal(found, [3.0] * 3)


# --- callables and defaults of other kinds --------------------------------------------------------


def test_a_default_that_no_param_can_have_is_the_functions_own(backend: Any) -> None:
    def weighted(
        ctx: Any,
        grad_out: Any,
        tin: Any,
        weights: Any = [1.0, 4.0],  # noqa: B006
        names: Any = {"k": 2.0},  # noqa: B006
        slope: float = 3.0,
    ) -> Any:
        return grad_out * weights[1] * names["k"] * slope

    rule = xg.register("weighted")(weighted)
    assert rule.params == {"slope": 3.0}
    x = backend.array(X)
    np.testing.assert_array_equal(backend.numpy(rule(None, x, x, slope=0.5)), X * 4.0)
    with pytest.raises(RuleTypeError, match="weights"):
        rule(None, x, x, weights=[2.0, 2.0])


@pytest.mark.needs("torch")
def test_a_module_is_a_rule_by_its_forward() -> None:
    import torch

    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.tensor(2.0))

        def forward(self, ctx: Any, grad_out: Any, tin: Any, slope: float = 3.0) -> Any:
            return grad_out * self.scale * slope

    gate, x = Gate(), torch.from_numpy(X)
    rule = xg.register("gate")(gate)
    assert rule.params == {"slope": 3.0}
    with pytest.warns(NativeRuleWarning, match="scale"):
        np.testing.assert_array_equal(rule(None, x, x), X * 6.0)
    gate.scale.fill_(5.0)
    np.testing.assert_array_equal(rule(None, x, x, slope=1.0), X * 5.0)
