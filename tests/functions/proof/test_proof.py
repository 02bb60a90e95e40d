"""A capture proves itself: the original runs beside its graph, and where they differ the graph is
not used.
"""

from __future__ import annotations

import itertools
import random
import types
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core.backend.discovery import load_backend
from multigrad.core.passes.simplify import substitute
from multigrad.engine.capture.dialect import find_dialect
from multigrad.engine.functions import code_proof
from multigrad.engine.functions.proof import run
from multigrad.errors import NativeRuleWarning, NotProvenWarning, TraceError

from ...harness.torch_class import torch_class
from ...harness.traced import taped

X = np.linspace(-1.7, 2.3, 12, dtype=np.float32).reshape(3, 4)
ONES = np.ones_like(X)
SERIAL = itertools.count()


def in_numpy(ctx: Any, grad_out: Any, tin: Any) -> Any:
    halved = np.abs(tin) * 0.5
    grown = np.exp(-halved)
    return grad_out * grown


@pytest.fixture
def losing_exp(capturing: Callable[..., None]) -> None:
    """Captures from now on forget `exp`."""

    def without_exp(graph: Any) -> Any:
        lost = {n: n.operands[0] for n in graph.nodes if n.op.name == "exp"}
        return replace(substitute(graph, lost), locations=graph.locations)

    capturing(without_exp, without_exp)


@pytest.fixture
def proving(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Set how much is proven."""
    return lambda word: monkeypatch.setenv("MULTIGRAD_PROVE", word)


@pytest.fixture(autouse=True)
def by_default(proving: Callable[[str], None]) -> None:
    proving("1")


def rule_of(function: Callable[..., Any], **options: Any) -> xg.Rule:
    """Return a rule of a copy of a function, which nothing has captured yet."""
    code, closure = function.__code__, function.__closure__
    own = types.FunctionType(code, function.__globals__, function.__name__, None, closure)
    name = f"proven {next(SERIAL)}"
    rule = xg.register(name, **options)(own)
    xg.unregister(name)
    return rule


@pytest.mark.usefixtures("losing_exp")
def test_a_rule_that_its_graph_is_not_runs_as_it_is_with_one_warning() -> None:
    rule = rule_of(in_numpy)
    with pytest.warns(NativeRuleWarning, match="differs from its graph") as told:
        given = [rule(None, ONES, X) for _ in range(2)]
    for each in given:
        np.testing.assert_array_equal(each, in_numpy(None, ONES, X))
    assert len(told) == 1


def test_the_warning_shows_the_input_both_results_and_the_line_where_they_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    aliases: Any = find_dialect("numpy").names.aliases  # type: ignore[union-attr]
    monkeypatch.setitem(aliases.aliases, np.exp, xp.abs)
    with pytest.warns(NativeRuleWarning) as told:
        rule_of(in_numpy)(None, ONES, X)
    words = str(told[0].message)
    for part in ("tin[0, 0] = ", "as written", "as a graph", "grown = np.exp(-halved)"):
        assert part in words, words


@pytest.mark.usefixtures("losing_exp")
@pytest.mark.needs("torch")
def test_elsewhere_than_on_its_own_framework_such_a_rule_is_an_error() -> None:
    import torch

    rule = rule_of(in_numpy)
    with (
        pytest.warns(NativeRuleWarning),
        pytest.raises(TraceError, match="differs from its graph"),
    ):
        rule(None, torch.ones(3), torch.ones(3))


@pytest.mark.usefixtures("losing_exp")
def test_such_a_rule_is_an_error_where_it_must_be_captured() -> None:
    with pytest.raises(TraceError, match="differs from its graph"):
        rule_of(in_numpy, native=False)(None, ONES, X)


@pytest.mark.usefixtures("losing_exp")
def test_a_function_of_the_neutral_dialect_is_proven_against_its_own_run_on_arrays() -> None:
    grow = xg.function(lambda x: xp.exp(x) * 2.0, lambda grad_out, x: grad_out * xp.exp(x))
    with pytest.warns(NativeRuleWarning, match="the result"):
        given = grow(X)
    np.testing.assert_allclose(given, np.exp(X) * 2.0, rtol=1e-6)


@pytest.mark.usefixtures("losing_exp")
@pytest.mark.needs("torch")
def test_the_gradient_of_a_class_is_compared_with_autograds() -> None:
    import torch

    @torch_class(lambda ctx, grad_out: grad_out * torch.exp(ctx.saved_tensors[0]))
    def Grow(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * 2.0

    grow = xg.from_autograd_function(Grow)
    x = torch.tensor([0.5, 1.5], requires_grad=True)
    with pytest.warns(NativeRuleWarning, match="the gradient of x"):
        grow(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.exp([0.5, 1.5]), rtol=1e-6)
    with pytest.raises(TraceError, match="differs from its graph"):
        grow(X)


@pytest.mark.usefixtures("losing_exp")
def test_a_proof_can_be_left_out(proving: Callable[[str], None]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unproven = rule_of(in_numpy, prove=False)(None, ONES, X)
        np.testing.assert_allclose(unproven, -np.abs(X) * 0.5)
        proving("0")
        np.testing.assert_array_equal(rule_of(in_numpy)(None, ONES, X), unproven)
        forgetful = xg.function(lambda x: xp.exp(x), lambda grad_out, x: grad_out, prove=False)
        np.testing.assert_array_equal(forgetful(X), X)


def test_a_wrong_setting_is_told_when_something_is_captured(proving: Callable[[str], None]) -> None:
    proving("yes")
    with pytest.raises(ValueError, match="MULTIGRAD_PROVE is 0, 1 or all, got 'yes'"):
        rule_of(in_numpy)(None, ONES, X)


def test_a_proof_leaves_the_generators_as_they_were() -> None:
    def drawing(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xp.rand_like(grad_out)

    before = random.getstate(), np.random.get_state()[1].copy()
    with xg.use(rule_of(drawing), key=3):
        xg.vjp(xg.activation("ReLU"), X)[1](ONES)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


@pytest.mark.needs("torch")
def test_draws_of_torch_are_proven_by_the_keys_of_the_graph(proving: Callable[[str], None]) -> None:
    import torch

    def noisy(ctx: Any, grad_out: Any, tin: Any) -> Any:
        kept = torch.bernoulli(torch.sigmoid(tin))
        return grad_out * torch.rand_like(grad_out) + torch.randn_like(tin) * kept

    proving("all")
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotProvenWarning)
        xg.show(rule_of(noisy))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.needs("torch")
def test_a_part_that_drew_where_it_failed_draws_the_same_where_it_runs() -> None:
    import torch

    def drawing(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * xp.rand_like(grad_out)

    def by_method(ctx: Any, grad_out: Any, tin: Any) -> Any:
        moved = grad_out + xp.rand_like(grad_out)
        return moved.sigmoid()  # of no array of NumPy, on which it is tried first

    def of_torch(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return torch.relu(grad_out)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        xg.show(xg.compose(*map(rule_of, (of_torch, by_method, drawing))))


@pytest.mark.needs("torch")
def test_a_proof_knows_no_mode_that_is_around_it() -> None:
    import torch

    def doubled(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * torch.sigmoid(tin) * 2.0

    seen: list[Any] = []
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t)
    with (
        torch.no_grad(),
        torch.inference_mode(),
        torch.autocast("cpu", dtype=torch.bfloat16),
        torch.device("meta"),
        hooks,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        xg.show(rule_of(doubled))
        assert not torch.is_grad_enabled()
        assert torch.empty(1).device.type == "meta"
    assert not seen


def test_what_may_have_side_effects_runs_once_for_a_proof(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def logging(ctx: Any, grad_out: Any, tin: Any) -> Any:
        if type(tin) is np.ndarray:
            with open(log, "a", encoding="utf-8") as file:
                file.write("run\n")
        return grad_out * 2.0

    rule = rule_of(logging)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NativeRuleWarning)
        rule(None, ONES, X)
    assert log.read_text(encoding="utf-8").count("run") <= 1


def test_a_proof_repeats_no_warning_of_the_users_for_each_sample() -> None:
    def warning(ctx: Any, grad_out: Any, tin: Any) -> Any:
        warnings.warn("said by the rule", UserWarning, stacklevel=1)
        return grad_out * 2.0

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        rule_of(warning)(None, ONES, X)
    assert len(seen) == 2  # in the capture, and in its proof


def test_the_loops_of_a_rule_are_proven_for_each_rank(proving: Callable[[str], None]) -> None:
    def per_axis(ctx: Any, grad_out: Any, tin: Any) -> Any:
        for axis in range(tin.ndim):
            grad_out = grad_out - grad_out.mean(axis=axis, keepdims=True)
        return grad_out

    proving("all")
    rule = rule_of(per_axis)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for shape in ((4,), (2, 3), (2, 3, 2)):
            given = np.random.default_rng(0).normal(size=shape)
            np.testing.assert_allclose(rule(None, given, given), per_axis(None, given, given))


@pytest.mark.needs("torch")
def test_a_call_is_compared_in_its_own_dtype_after_one_in_another(
    proving: Callable[[str], None],
) -> None:
    import torch

    proving("all")
    places = np.array([3, 0])
    taken = xg.function(lambda x: np.take(x, places, axis=0), native=False)
    given = np.arange(12.0).reshape(4, 3)
    for x in (given, torch.tensor(given).float(), torch.tensor(given)):
        assert taken(x).dtype == x.dtype


def test_what_could_not_be_proven_is_marked_and_under_all_said_loudly(
    proving: Callable[[str], None],
) -> None:
    weights = np.arange(7.0)

    def weighted(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * weights  # which a proof without a call cannot know the length of

    reason = "not proven: ValueError: operands could not be broadcast"
    assert reason in xg.show(rule_of(weighted))
    proving("all")
    with pytest.warns(NotProvenWarning, match=reason):
        xg.show(rule_of(weighted))


def test_a_method_that_numpy_lacks_asks_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "in_use", lambda: [load_backend("numpy")])  # none that has it
    shown = xg.show(rule_of(lambda ctx, grad_out, tin: grad_out * tin.abs()))
    assert "not proven: NumPy's arrays have no .abs; say in which library" in shown


def test_a_rule_is_proven_on_the_shape_that_it_is_called_with() -> None:
    weights = np.arange(7.0)
    rule = rule_of(lambda ctx, grad_out, tin: grad_out * weights)
    given = np.ones((2, 7))
    np.testing.assert_array_equal(rule(None, given, given), given * weights)
    assert "not proven" not in xg.show(rule)


def test_under_all_each_call_is_compared(
    proving: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    prove = code_proof.prove_function

    def noting(given: Any, *args: Any, **kwargs: Any) -> str:
        calls.append(kwargs)
        return prove(given, *args, **kwargs)

    monkeypatch.setattr(code_proof, "prove_function", noting)
    proving("all")
    doubled = xg.function(lambda x: x * 2.0, lambda grad_out, x: grad_out * 2.0)
    for _ in range(3):
        doubled(X)
    assert calls == [{"is_call": False}, *[{"is_call": True}] * 3]


@pytest.mark.needs("tensorflow")
def test_a_first_use_where_not_even_the_number_of_axes_is_known() -> None:
    import tensorflow as tf

    @xg.register("reader.unit")
    def unit(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / xp.sqrt(xp.sum(grad_out * grad_out))

    gradient = taped(lambda x: xg.activation("Linear", unit)(x))
    gradient = tf.function(gradient, input_signature=[tf.TensorSpec(None)])
    np.testing.assert_allclose(gradient(tf.ones((2, 2))), np.full((2, 2), 0.5))
