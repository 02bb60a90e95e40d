"""Hooks that torch's modules get by themselves while a `use` names the scope "params"."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import textwrap
import threading
import warnings
import weakref
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks, remove_param_hooks

from ...harness import fresh
from ...support.threads import on_threads

torch: Any = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
TEN = {"rule": "scale", "params": {"s": 10.0}, "scope": "params"}


@pytest.fixture
def model() -> Any:
    return chain()


@pytest.fixture(params=[False, True], ids=["by itself", "asked"])
def hooked(request: pytest.FixtureRequest) -> Any:
    """A model whose hooks were asked for, or not."""
    model = chain()
    if request.param:
        attach_param_hooks(model)
    return model


def chain() -> Any:
    """Two layers of one weight each, 2 and 3: d/dw of w1 w0 x is 3 and 2 at x = 1."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(2.0)
        model[1].weight.fill_(3.0)
    return model


def forward(model: Any) -> Tensor:
    return model(torch.ones(1)).sum()


def backward(model: Any, loss: Tensor) -> list[float | None]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return [None if p.grad is None else p.grad.item() for p in model.parameters()]


def gradients(model: Any, **use: Any) -> list[float | None]:
    """Run forward and backward, under `use` if one is given."""
    if not use:
        return backward(model, forward(model))
    with xg.use(**use):
        return backward(model, forward(model))


def count_hooks(model: Any) -> int:
    on_parameters = sum(len(p._backward_hooks or ()) for p in model.parameters())
    return on_parameters + sum(len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("scope", ["params", ("activations", "params"), ("all", "params")])
def test_naming_params_is_enough(hooked: Any, scope: Any) -> None:
    assert gradients(hooked, **{**TEN, "scope": scope}) == [30.0, 20.0]
    assert gradients(hooked) == [3.0, 2.0]
    assert gradients(hooked, **{**TEN, "params": {"s": 7.0}, "scope": scope}) == [21.0, 14.0]


@pytest.mark.parametrize("scope", ["all", "activations"])
def test_other_scopes_attach_nothing(model: Any, scope: str) -> None:
    assert gradients(model, **{**TEN, "scope": scope}) == [3.0, 2.0]
    assert count_hooks(model) == 0


def test_backward_may_run_after_the_with(hooked: Any) -> None:
    with xg.use(**TEN):
        loss = forward(hooked)
    assert backward(hooked, loss) == [30.0, 20.0]
    with xg.use(**TEN):
        loss = forward(hooked)
    with xg.use("scale", {"s": 7.0}, scope="params"):
        assert backward(hooked, loss) == [30.0, 20.0]


def test_a_rule_in_force_at_backward_alone_acts_on_hooks_that_were_asked_for(model: Any) -> None:
    attach_param_hooks(model)
    loss = forward(model)  # without a rule
    with xg.use(**TEN):
        assert backward(model, loss) == [30.0, 20.0]
        model.zero_grad(set_to_none=True)
        (model[0].weight * 2.0).sum().backward()  # outside of its module
    assert model[0].weight.grad.item() == 20.0


def test_scope_all_acts_on_hooks_that_were_asked_for_and_on_no_others(model: Any) -> None:
    gradients(model, **TEN)
    assert gradients(model, **{**TEN, "scope": "all"}) == [3.0, 2.0]
    with attach_param_hooks(model[0]) as hooks:
        assert gradients(model, **{**TEN, "scope": "all"}) == [30.0, 2.0]
        assert gradients(model, **{**TEN, "scope": "activations"}) == [3.0, 2.0]
        assert gradients(model, **TEN) == [30.0, 20.0]
    hooks.remove()
    assert gradients(model, **{**TEN, "scope": "all"}) == [3.0, 2.0]
    assert gradients(model, **TEN) == [30.0, 20.0]


def test_hooks_never_double(model: Any) -> None:
    gradients(model, **TEN)
    before = count_hooks(model)
    for _ in range(3):
        assert gradients(model, **TEN) == [30.0, 20.0]
    assert count_hooks(model) == before
    for part in (model, model, model[0]):
        hooks = attach_param_hooks(part)
        assert gradients(model, **TEN) == [30.0, 20.0]
        assert count_hooks(model) == before
    hooks.remove()
    assert gradients(model, **TEN) == [30.0, 20.0]


def test_hooks_are_removed(model: Any) -> None:
    gradients(model, **TEN)
    remove_param_hooks(model)
    remove_param_hooks(model)
    assert count_hooks(model) == 0
    attach_param_hooks(model)
    with xg.use(**TEN):
        loss = forward(model)
    remove_param_hooks(model)
    assert count_hooks(model) == 0
    assert backward(model, loss) == [3.0, 2.0]
    assert gradients(model, **TEN) == [30.0, 20.0]
    model.requires_grad_(False)
    remove_param_hooks(model)
    assert count_hooks(model) == 0


def test_frozen_parameters_are_skipped_until_they_train(hooked: Any) -> None:
    hooked[0].weight.requires_grad_(False)
    assert gradients(hooked, **TEN) == [None, 20.0]
    hooked[0].weight.requires_grad_(True)
    assert gradients(hooked, **TEN) == [30.0, 20.0]
    hooked[0].weight.requires_grad_(False)
    assert gradients(hooked, **TEN) == [None, 20.0]
    hooked[0].weight.requires_grad_(True)
    assert gradients(hooked, **TEN) == [30.0, 20.0]


def test_new_parameters_are_picked_up(model: Any) -> None:
    gradients(model, **TEN)
    model[0].weight = nn.Parameter(torch.full((1, 1), 5.0))
    assert gradients(model, **TEN) == [30.0, 50.0]
    assert gradients(model) == [3.0, 5.0]


def test_a_shared_parameter_is_transformed_once(hooked: Any) -> None:
    hooked[1].weight = hooked[0].weight
    assert gradients(hooked, **TEN) == [40.0]
    assert gradients(hooked) == [4.0]


def test_lists_of_parameters_belong_to_the_module_that_holds_them() -> None:
    class Polynomial(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.listed = nn.ParameterList([nn.Parameter(torch.tensor(2.0))])
            self.named = nn.ParameterDict({"b": nn.Parameter(torch.tensor(3.0))})

        def forward(self, x: Tensor) -> Tensor:
            return self.listed[0] * x + self.named["b"]

    model = Polynomial()
    with xg.use(**TEN):
        loss = forward(model)
    assert backward(model, loss) == [10.0, 10.0]


@pytest.mark.parametrize("name", ["LSTM", "MultiheadAttention", "TransformerEncoderLayer"])
def test_all_parameters_of_torchs_larger_modules_are_reached(name: str) -> None:
    x = torch.linspace(-1.0, 1.0, 24).reshape(3, 2, 4)
    model, arguments = {
        "LSTM": (nn.LSTM(4, 3), (x,)),
        "MultiheadAttention": (nn.MultiheadAttention(4, 2), (x, x, x)),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), (x,)),
    }[name]

    def run() -> list[Tensor]:
        model.zero_grad()
        output = model(*arguments)
        output = output[0] if isinstance(output, tuple) else output
        (output * torch.arange(output.numel()).view_as(output)).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = run()
    with xg.use(**TEN):
        found = run()
    for ours, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, 10 * own, rtol=1e-4, atol=1e-4)


def test_each_modules_own_last_forward_decides(hooked: Any) -> None:
    with xg.use(**TEN):
        hidden = hooked[0](torch.ones(1))
    with xg.use("scale", {"s": 100.0}, "params"):
        loss = hooked[1](hidden).sum()
    assert backward(hooked, loss) == [30.0, 200.0]


def test_random_rule_repeats_by_its_key(hooked: Any) -> None:
    use = {"rule": "full_jam", "scope": "params", "key": 7}
    # Backward reaches the last layer first: it draws from fold_in(7, 0), the other from fold_in(7,
    # 1).
    expected = [3 * 0.6751335859298706, 2 * 0.8673704862594604]
    for _ in range(2):
        np.testing.assert_allclose(gradients(hooked, **use), expected, rtol=1e-6)
    assert gradients(hooked, **{**use, "key": 8}) != gradients(hooked, **use)


def test_threads_with_rules_of_their_own_or_none_do_not_meet() -> None:
    found: dict[float | None, list[Any]] = {}
    barrier = threading.Barrier(4)

    def run(s: float | None) -> None:
        model = chain()
        use = {} if s is None else {"rule": "scale", "params": {"s": s}, "scope": "params"}
        barrier.wait()
        found[s] = [gradients(model, **use) for _ in range(20)]
        assert s is not None or count_hooks(model) == 0

    with xg.use(**TEN):
        on_threads(run, None, 2.0, 3.0, 4.0)
    assert found == {s: [[3.0 * (s or 1.0), 2.0 * (s or 1.0)]] * 20 for s in (None, 2.0, 3.0, 4.0)}


def test_tasks_with_rules_of_their_own_do_not_meet() -> None:
    async def run(s: float | None) -> list[Any]:
        model = chain()
        if s is None:
            await asyncio.sleep(0)
            return gradients(model)
        with xg.use("scale", {"s": s}, scope="params"):
            await asyncio.sleep(0)
            loss = forward(model)
            await asyncio.sleep(0)
        return backward(model, loss)

    async def run_all() -> list[Any]:
        return await asyncio.gather(run(2.0), run(None), run(5.0))

    assert asyncio.run(run_all()) == [[6.0, 4.0], [3.0, 2.0], [15.0, 10.0]]


def test_modules_are_as_before_outside_of_use() -> None:
    from torch.nn.modules import module

    with xg.use(**TEN):
        with xg.use(**TEN):
            assert len(module._global_forward_pre_hooks) == 1
        assert len(module._global_forward_pre_hooks) == 1
        with pytest.raises(ZeroDivisionError), xg.use(**TEN):
            raise ZeroDivisionError
        assert len(module._global_forward_pre_hooks) == 1
    assert len(module._global_forward_pre_hooks) == 0


def test_hooks_keep_no_model_alive() -> None:
    model = chain()
    gradients(model, **TEN)
    refs = [weakref.ref(item) for item in (model, *model.modules(), *model.parameters())]
    del model
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)


def test_copies_and_pickles_of_a_hooked_model_train(hooked: Any) -> None:
    gradients(hooked, **TEN)
    for twin in (copy.deepcopy(hooked), pickle.loads(pickle.dumps(hooked))):
        assert gradients(twin) == [3.0, 2.0]
        assert gradients(twin, **TEN) == [30.0, 20.0]
        assert gradients(twin, **{**TEN, "scope": "all"}) == [3.0, 2.0]  # of which none was asked
    assert gradients(hooked, **TEN) == [30.0, 20.0]


def test_evaluation_between_forward_and_backward_does_not_count(hooked: Any) -> None:
    with xg.use(**TEN):
        loss = forward(hooked)
    with torch.no_grad():
        forward(hooked)
    assert backward(hooked, loss) == [30.0, 20.0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_modules_keep_their_rule(model: Any, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    for _ in range(2):
        with xg.use(**TEN):
            x = torch.ones(1, requires_grad=True)
            loss = checkpoint(model, x, use_reentrant=reentrant).sum()
        assert backward(model, loss) == [30.0, 20.0]
    assert gradients(model) == [3.0, 2.0]


def test_functional_calls_with_a_models_own_parameters_are_reached(model: Any) -> None:
    own = dict(model.named_parameters())
    with xg.use(**TEN):
        loss = torch.func.functional_call(model, own, torch.ones(1)).sum()
    assert backward(model, loss) == [30.0, 20.0]


def test_replicas_that_hold_no_parameters_of_their_own_are_untouched(model: Any) -> None:
    # What nn.DataParallel runs on each device: copies of the modules around tensors made of the
    # parameters.
    replica = model[0]._replicate_for_data_parallel()
    replica._parameters = {"weight": model[0].weight * 1.0, "bias": None}
    with xg.use(**TEN):
        loss = forward(replica)
    assert backward(model, loss) == [1.0, None]


# --- torch.compile --------------------------------------------------------------------------------


def compiled(what: Any) -> Any:
    return torch.compile(what, backend="aot_eager")


@pytest.fixture
def fresh_compiler() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("before", [False, True])
def test_compiled_modules_follow_the_rule_also_those_compiled_before(
    hooked: Any, before: bool, fresh_compiler: None
) -> None:
    module = compiled(hooked)
    if before:
        assert gradients(module) == [3.0, 2.0]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Using `torch.compile")
        for s in (10.0, 7.0, 10.0):
            use = {"rule": "scale", "params": {"s": s}, "scope": "params"}
            assert gradients(module, **use) == [3.0 * s, 2.0 * s]
            with xg.use(**use):
                loss = forward(module)
            assert backward(module, loss) == [3.0 * s, 2.0 * s]
            assert gradients(module) == [3.0, 2.0]
    remove_param_hooks(module)
    assert count_hooks(module) == 0


def test_functions_compiled_inside_of_use_follow_the_rule(model: Any, fresh_compiler: None) -> None:
    run = compiled(lambda x: model(x).sum())
    for s in (10.0, 7.0):
        with xg.use("scale", {"s": s}, scope="params"):
            loss = run(torch.ones(1))
        assert backward(model, loss) == [3.0 * s, 2.0 * s]
        assert backward(model, run(torch.ones(1))) == [3.0, 2.0]


def test_use_may_stand_inside_of_what_is_compiled(model: Any, fresh_compiler: None) -> None:
    def run(x: Tensor) -> Tensor:
        with xg.use(**TEN):
            return model(x).sum()

    whole = torch.compile(run, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"put `with xg.use\(...\)` around"):
        whole(torch.ones(1))
    run = compiled(run)
    for _ in range(3):
        assert backward(model, run(torch.ones(1))) == [30.0, 20.0]


def test_a_model_with_hooks_is_compiled_with_them(model: Any, fresh_compiler: None) -> None:
    attach_param_hooks(model)
    run = compiled(lambda x: model(x).sum())
    assert backward(model, run(torch.ones(1))) == [3.0, 2.0]
    with xg.use(**TEN):
        loss = run(torch.ones(1))
    assert backward(model, loss) == [30.0, 20.0]
    assert backward(model, run(torch.ones(1))) == [3.0, 2.0]


def test_a_model_that_outlives_the_modules_as_python_ends_says_nothing() -> None:
    script = """
    import torch
    import multigrad as xg

    torch.kept_to_the_end = torch.nn.Linear(1, 1)
    with xg.use("scale", {"s": 2.0}, scope="params"):
        torch.kept_to_the_end(torch.ones(1)).sum().backward()
    """
    done = fresh.run(["-c", textwrap.dedent(script)], ["torch"])
    assert (done.returncode, done.stderr) == (0, "")
