"""A call that fails changes nothing: a failure at every step of the calls that act on what exists,
and errors in the middle that a user meets. Layers of Keras are in `tests/keras`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.registry import epoch

from ..support.failures import Row, fail_everywhere

X = np.array([-1.5, 0.2, 0.7])
TORCH = pytest.mark.needs("torch")


# --- what is observed -----------------------------------------------------------------------------


def look_at_modules(model: Any) -> Any:
    """Give the classes of modules, and what they hold, by identity."""
    return [
        (
            type(each),
            list(vars(each)),
            [(key, id(one)) for key, one in {**each._parameters, **each._modules}.items()],
            [*each._forward_pre_hooks, *each._forward_hooks],
            [len(one._backward_hooks or ()) for one in each.parameters()],
        )
        for each in model.modules()
    ] + [list(model.state_dict())]


def look_at_names(_: Any) -> Any:
    from multigrad.core.rules.rule_names import RULES
    from multigrad.core.trace.lookups import NUMBERS

    return {name: (id(rule), NUMBERS.get(name)) for name, rule in RULES.items()}


def look_at_scope(_: Any) -> Any:
    import torch

    hooks = torch.nn.modules.module
    current = xg.context.current()
    return (
        id(current),
        len(hooks._global_forward_pre_hooks),
        len(hooks._global_forward_hooks),
        torch._C._len_torch_function_stack(),
    )


def network() -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Sequential(torch.nn.Linear(3, 2))
    )


def numbers(model: Any) -> Any:
    """Give what a model computes, and the gradient of its input."""
    import torch

    x = torch.linspace(-1.0, 1.0, 8).reshape(2, 4).requires_grad_()
    y = model(x)
    y.square().sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def check_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


# --- the table ------------------------------------------------------------------------------------


def acting(
    act: Callable[[Any], object], make: Callable[[], Any] = network
) -> Callable[[], Row[Any]]:
    """Give the row of a call after which a model computes what it does where nothing failed."""

    def row() -> Row[Any]:
        wanted = make()
        act(wanted)
        outputs = numbers(wanted)

        def check(model: Any) -> None:
            act(model)
            check_same(numbers(model), outputs)

        return Row(make, act, look_at_modules, check)

    return row


def in_part_quantized() -> Any:
    model = network()
    xg.quantize(model[2][0], bits=3, axis=0)
    return model


def quantize_first(model: Any) -> None:
    import torch

    inputs = torch.linspace(-1.0, 1.0, 8).reshape(2, 4)
    xg.quantize(model[0], "lsq_plus", activations="lsq", sample=inputs)


def attaching(rules: Callable[[], Any]) -> Any:
    """Give the row of an attachment, which needs torch."""
    row = acting(lambda model: xg.attach(model, rules()))
    return pytest.param(row, marks=TORCH)


def detach() -> Row[Any]:
    def make() -> Any:
        model = network()
        return model, xg.attach(model, {"relu": "guided", "*0": xg.attribution.epsilon()})

    def check(given: Any) -> None:  # what another call takes off is the rest
        model, handle = given
        handle.detach()
        assert not handle.is_attached
        assert {type(each).__name__ for each in model.modules()} == {"Sequential", "Linear", "ReLU"}
        check_same(numbers(model), numbers(network()))

    return Row(make, lambda given: given[1].detach(), lambda given: given[1].rows, check)


def hooks() -> Row[Any]:
    def check(model: Any) -> None:
        with xg.hook.attach_param_hooks(model), xg.use("scale", {"s": 0.5}):
            numbers(model)
        wanted = network()
        numbers(wanted)
        for one, other in zip(model.parameters(), wanted.parameters(), strict=True):
            np.testing.assert_allclose(one.grad, 0.5 * other.grad)

    return Row(network, xg.hook.attach_param_hooks, look_at_modules, check)


def register() -> Row[Any]:
    def one(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 1.0 * grad_out

    def two(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return 2.0 * grad_out

    def make() -> None:
        xg.register("fails", override=True)(one)
        assert pulled() == [1.0, 1.0, 1.0]

    def check(_: None) -> None:
        assert pulled() == [1.0, 1.0, 1.0]
        before = epoch()
        xg.register("fails", override=True)(two)
        assert epoch() > before
        assert pulled() == [2.0, 2.0, 2.0]

    return Row(make, lambda _: xg.register("fails", override=True)(two), look_at_names, check)


def unregister() -> Row[Any]:
    row = register()
    return Row(row.make, lambda _: xg.unregister("fails"), look_at_names, row.check)


def pulled() -> list[float]:
    with xg.use("fails"):
        _, pull = xg.vjp(xg.activation("Heaviside"), X)
    return pull(np.ones(3))[0].tolist()


def entering(rule: str, **options: Any) -> Callable[[], Row[Any]]:
    def row() -> Row[Any]:
        def act(entered: list[Any]) -> None:
            given = {name: value() if callable(value) else value for name, value in options.items()}
            use = xg.use(rule, **given)
            use.__enter__()
            entered.append(use)

        def look(entered: list[Any]) -> Any:
            while entered:  # the last step is after its end
                entered.pop().__exit__(None, None, None)
            return look_at_scope(None)

        def check(entered: list[Any]) -> None:
            act(entered)
            assert xg.context.current().params is not None
            look(entered)

        return Row(list, act, look, check)

    return row


def tensor_param() -> Any:
    import torch

    return {"s": torch.tensor(2.0)}


def step() -> Row[Any]:
    class Follower:
        value = 1.0

        def before_step(self, _: Any) -> None:
            pass

        def on_move(self, moving: Any) -> None:
            self.value = moving.value

    def make() -> Any:
        schedule, followers = xg.schedule.linear(1.0, 0.0, steps=4), (Follower(), Follower())
        for each in followers:
            schedule.follow(each)
        return schedule, followers

    def look(given: Any) -> Any:
        schedule, followers = given
        return schedule.state, [each.value for each in followers]

    def check(given: Any) -> None:
        given[0].step()
        assert look(given) == ((1, 0.75), [0.75, 0.75])

    return Row(make, lambda given: given[0].step(), look, check)


def assign() -> Row[Any]:
    def make() -> Any:
        return xg.Activation("Heaviside", "triangular", {"width": 2.0})

    def act(layer: Any) -> None:
        layer.rule = "arctan"

    def check(layer: Any) -> None:
        act(layer)
        assert layer.rule == "arctan"
        layer.alpha = 3.0
        assert layer.params["alpha"] == 3.0

    return Row(make, act, lambda layer: (layer.rule, layer.params), check)


ROWS: dict[str, Any] = {
    "quantize": pytest.param(acting(quantize_first, in_part_quantized), marks=TORCH),
    "quantize_all": pytest.param(acting(lambda model: xg.quantize(model, bits=3)), marks=TORCH),
    "attach_type": attaching(lambda: {"1": "guided"}),
    "attach_operation": attaching(lambda: {"relu": "guided", "*0": xg.attribution.epsilon()}),
    "attach_composite": attaching(lambda: xg.composites.epsilon_plus()),
    "detach": pytest.param(detach, marks=TORCH),
    "hooks": pytest.param(hooks, marks=TORCH),
    "assign": pytest.param(assign, marks=TORCH),
    "register": register,
    "unregister": unregister,
    "use": pytest.param(entering("triangular"), marks=TORCH),
    "use_params": pytest.param(entering("clip_norm", scope="params"), marks=TORCH),
    "use_key": pytest.param(entering("noise", key=3), marks=TORCH),
    "use_tensor": pytest.param(entering("scale", params=tensor_param), marks=TORCH),
    "step": step,
}


@pytest.mark.parametrize("make", ROWS.values(), ids=list(ROWS))
def test_a_call_that_is_interrupted_at_any_step_changes_nothing(
    make: Callable[[], Row[Any]],
) -> None:
    fail_everywhere(make())


# --- errors that users meet -----------------------------------------------------------------------


@TORCH
@pytest.mark.parametrize("given", ["the second weight", "activations", "sample"])
def test_a_layer_whose_quantization_is_refused_can_be_quantized_by_the_corrected_call(
    given: str,
) -> None:
    import torch

    table = torch.full((3, 4), 0.5)
    halved = xg.function(lambda w: w * table.mean() * torch.ones(3, w.shape[1]), prove=False)
    wrong: dict[str, Any] = {
        "the second weight": {"weights": halved},
        "activations": {"activations": "lsq"},
        "sample": {"activations": "lsq", "sample": "inputs"},
    }[given]
    model = network()
    layer = model[2][0] if given == "sample" else model
    before = look_at_modules(model)
    with pytest.raises(Exception):  # noqa: B017 (torch's own, NumPy's or ours)
        xg.quantize(layer, **wrong)
    assert look_at_modules(model) == before
    assert xg.quantize(layer, bits=3) is layer


@TORCH
def test_handles_of_hooks_still_take_them_off_after_a_quantization_that_failed() -> None:
    model = network()
    handle = model.register_forward_pre_hook(lambda *_: None)
    with pytest.raises(xg.RuleError):
        xg.quantize(model, activations="lsq")
    handle.remove()
    assert not model._forward_pre_hooks


def torchs(size: int, value: float, **options: Any) -> Any:
    import torch

    return torch.full((size,), value, **options)


# Over some nothing can be written, on others no rule acts.
LAST: dict[str, Callable[[], Any]] = {
    "read-only": lambda: np.broadcast_to(4.0, 5),
    "of integers": lambda: np.full(5, 4),
    "torch's, expanded": lambda: torchs(1, 4.0).expand(5),
    "torch's, a leaf that requires grad": lambda: torchs(5, 4.0, requires_grad=True),
    "torch's, of integers": lambda: torchs(5, 4),
}


@pytest.mark.parametrize(
    "last", [pytest.param(name, marks=[TORCH] if "torch" in name else []) for name in LAST]
)
@pytest.mark.parametrize("rule", ["scale", "centralize"])
def test_no_gradient_is_written_in_place_where_one_of_them_cannot_be(last: str, rule: str) -> None:
    full = torchs if "torch" in last else np.full
    grads = [full(3, 2.0), full(4, 3.0), LAST[last]()]
    with pytest.raises((xg.RuleError, xg.GradientError)):
        xg.apply_to_gradients(grads, rule, in_place=True)
    for each, value in zip(grads, (2.0, 3.0, 4.0), strict=True):
        assert (each == value).all()


def test_a_rule_that_fails_for_the_third_gradient_has_written_none() -> None:
    def refuses(ctx: Any, grad_out: Any, tin: Any) -> Any:
        if len(grad_out) == 5:
            raise ValueError("five")
        return 2.0 * grad_out

    rule = xg.register("fails", native=True)(refuses)
    grads = [np.full(3, 2.0), np.full(4, 3.0), np.full(5, 4.0)]
    with pytest.raises(ValueError, match="five"):
        xg.apply_to_gradients(grads, rule, in_place=True)
    assert [each.tolist() for each in grads] == [[2.0] * 3, [3.0] * 4, [4.0] * 5]
    first, second = xg.apply_to_gradients(grads[:2], rule, in_place=True)
    assert first is grads[0]
    assert second.tolist() == [6.0] * 4


def test_a_file_that_is_not_written_to_the_end_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multigrad.engine.support import files

    path = tmp_path / "rule.json"
    xg.save("triangular", path)
    before = path.read_bytes()
    fail_everywhere(
        Row(
            lambda: None,
            lambda _: files.write_whole(path, before),
            lambda _: ([each.name for each in tmp_path.iterdir()], path.read_bytes()),
            lambda _: None,
        )
    )
