"""`xg.attach` by operation: each way that a model calls one, and what a call leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from ..harness.models.attached import (
    DOUBLES,
    GUIDES,
    READS_TIN,
    gradient,
    make_net,
    named_rules,  # noqa: F401 (a fixture)
)  # fmt: skip

pytestmark = pytest.mark.needs("torch")
X = torch.linspace(-2, 2, 20).reshape(5, 4)


class Calls(nn.Module):
    """A model around one call."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.call = call
        with torch.no_grad():
            self.fc.weight.copy_(torch.eye(4))
            self.fc.bias.zero_()

    def forward(self, x: Any) -> Any:
        y = self.fc(x)
        return self.call(y), y


def grad_of_both(model: Any) -> Any:
    """Return the gradient of x, of the sum of what the call gave and ten times what it took."""
    x = X.clone().requires_grad_()
    called, given = model(x)
    (grad,) = torch.autograd.grad(called.sum() + 10.0 * given.sum(), x)
    return grad


def iadd(x: Any) -> Any:
    x += 1.0
    return x


def clamped(x: Any) -> Any:
    return torch.ops.aten.relu(x)


CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "F.relu": (F.relu, "relu"),
    "torch.relu": (torch.relu, "relu"),
    "x.relu": (torch.Tensor.relu, "relu"),
    "by keyword": (lambda x: torch.relu(input=x), "relu"),
    "aten": (clamped, "relu"),
    "nn.ReLU": (nn.ReLU(), "relu"),
    "nn.ReLU6": (nn.ReLU6(), "relu6"),
    "F.relu6": (F.relu6, "relu6"),
    "gelu": (F.gelu, "gelu"),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu"),
    "silu": (F.silu, "silu"),
    "leaky": (lambda x: F.leaky_relu(x, 0.3), "leaky_relu"),
    "elu": (lambda x: F.elu(x, alpha=0.5), "elu"),
    "softplus": (F.softplus, "softplus"),
    "sigmoid": (torch.special.expit, "sigmoid"),
    "tanh inside": (F.tanhshrink, "tanhshrink"),
    "dropout": (lambda x: F.dropout(x, 0.0), "dropout"),
    "times a number": (lambda x: 3.0 * x, "mul"),
    "1 - x": (lambda x: 1.0 - x, "sub"),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), "layer_norm"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_rule_takes_the_place_of_the_calls_gradient_and_not_of_its_value(name: str) -> None:
    call, operation = CALLS[name]
    model = Calls(call)
    plain = model(X)[0]
    with xg.attach(model, {operation: READS_TIN}):
        assert torch.equal(model(X)[0], plain)
        torch.testing.assert_close(grad_of_both(model), X + 10.0)


IN_PLACE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "x.relu_": (torch.Tensor.relu_, "relu"),
    "F.relu_": (F.relu_, "relu"),
    "inplace=True": (lambda x: F.relu(x, inplace=True), "relu"),
    "inplace by position": (lambda x: F.relu(x, True), "relu"),
    "nn.ReLU": (nn.ReLU(inplace=True), "relu"),
    "nn.Hardtanh": (nn.Hardtanh(inplace=True), "hardtanh"),
    "tanh_": (torch.Tensor.tanh_, "tanh"),
    "mul_": (lambda x: x.mul_(3.0), "mul"),
    "+=": (iadd, "add"),
}


@pytest.mark.parametrize("rule", [GUIDES, READS_TIN, DOUBLES])
@pytest.mark.parametrize("name", IN_PLACE)
def test_a_call_in_place_leaves_its_result_and_the_rules_gradient_there(
    name: str, rule: str
) -> None:
    call, operation = IN_PLACE[name]
    model = Calls(call)
    own = call(X.clone())
    with xg.attach(model, {operation: rule}):
        called, given = model(X)
        assert torch.equal(given, own)
        assert torch.equal(called, own)
        x = X.clone().requires_grad_()
        factor = {GUIDES: (X > 0).float(), READS_TIN: X, DOUBLES: torch.full_like(X, 2.0)}[rule]
        (grad,) = torch.autograd.grad(sum(each.sum() for each in model(x)), x)
        torch.testing.assert_close(grad, 2.0 * factor)


def test_in_place_a_random_rule_draws_once_at_the_first_call_too() -> None:
    def scatter(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out * tin * xg.xp.rand_like(tin)

    model = Calls(torch.relu_)
    gradients = []
    with xg.attach(model, {"relu": scatter}):
        for _ in range(2):
            torch.manual_seed(3)
            gradients.append(grad_of_both(model))
    assert torch.equal(*gradients)


def test_in_place_a_rule_that_runs_as_written_leaves_no_class_of_a_call() -> None:
    native = xg.register("as_written", native=True)(lambda ctx, grad_out, tin: grad_out * tin)
    model = Calls(torch.relu_)
    gc.collect()
    before = torch.autograd.Function.__subclasses__()
    with xg.attach(model, {"relu": native}):
        for _ in range(3):
            torch.testing.assert_close(grad_of_both(model), 11.0 * X)
        gc.collect()
        assert torch.autograd.Function.__subclasses__() == before


def test_an_operation_is_seen_inside_of_torchs_own_python_functions() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(4, 2, batch_first=True)
    x = torch.randn(2, 3, 4)

    def attend(x: Any) -> Any:
        return model(x, x, x)[0]

    own = gradient(attend, x)
    with xg.attach(model, {"softmax": DOUBLES}):
        assert not torch.equal(gradient(attend, x), own)
    assert torch.equal(gradient(attend, x), own)


def test_methods_of_a_model_and_of_its_parts_have_the_rules_too() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def encode(self, x: Any) -> Any:
            return self.net.stem(x).relu()

        def forward(self, x: Any) -> Any:
            return self.encode(x)

    model = Encoder()
    parts = (model.encode, model, model.net, model.net.layer1, model.net.layer1[0])
    own = [gradient(part) for part in parts]
    with xg.attach(model, {"relu": GUIDES}):
        assert all(not torch.equal(gradient(p), g) for p, g in zip(parts[2:], own[2:], strict=True))
        torch.testing.assert_close(gradient(parts[0]), gradient(parts[1]))
    assert all(torch.equal(gradient(p), g) for p, g in zip(parts, own, strict=True))


def test_other_models_and_code_outside_keep_their_gradients() -> None:
    net, other = make_net(), make_net()
    own = gradient(other)
    with xg.attach(net, {"relu": DOUBLES}):
        gradient(net)
        assert torch.equal(gradient(other), own)
        assert torch.equal(gradient(torch.relu, X), gradient(F.relu, X))


def test_an_operation_that_no_call_hits_is_an_error_that_lists_those_called() -> None:
    net = make_net()
    with xg.attach(net, {"relu": GUIDES, "sigmoid": GUIDES}):
        for called in (net, torch.compile(net, backend="eager")):
            with pytest.raises(xg.RuleError, match=r"sigmoid.*it calls: .*gelu.*linear"):
                called(X)
        with pytest.raises(xg.RuleError, match="sigmoid"):
            gradient(net)
    gradient(net)


def test_an_operation_of_two_activations_is_refused() -> None:
    net = make_net()
    with xg.attach(net, {"add": DOUBLES}), pytest.raises(xg.RuleError, match=r"add.*2 tensors"):
        net(X.clone().requires_grad_())
    gradient(net)


def test_torch_fx_and_scripts_do_not_leave_the_rules_out_in_silence() -> None:
    net = make_net()
    with xg.attach(net, {"relu": GUIDES}):
        ruled = gradient(net)
        with pytest.raises(xg.RuleError, match=r"torch\.fx"):
            torch.fx.symbolic_trace(net)
        with pytest.raises(xg.RuleError, match=r"torch\.jit\.script"):
            torch.jit.script(net)
    traced = torch.fx.symbolic_trace(net)
    own = gradient(traced)
    with xg.attach(traced, {"relu": GUIDES}):
        torch.testing.assert_close(gradient(traced), ruled)
    assert torch.equal(gradient(traced), own)


def test_an_operation_has_one_rule_in_a_model_until_that_is_detached() -> None:
    net = make_net()
    with xg.attach(net, {"relu": GUIDES}) as first:
        with pytest.raises(
            xg.RuleError, match=r"'relu' has a rule already in this .* error.handle.detach\(\)"
        ) as refusal:
            xg.attach(net, {F.relu: DOUBLES, "tanh": DOUBLES})
        assert refusal.value.handle is first
        first.detach()
        with xg.attach(net, {F.relu: DOUBLES}):
            gradient(net)


def test_a_model_of_torch_s_layers_alone_says_what_it_calls() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    message = pytest.raises(xg.RuleError, match="it calls: linear")
    with xg.attach(model, {"relu": GUIDES}), message:
        model(X)


class Counted(torch.Tensor):
    """A tensor whose class sees the calls that it takes part in, as quantized weights do."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Counted.calls += func is F.linear
        return super().__torch_function__(func, types, args, kwargs or {})


def test_layers_without_the_operation_still_ask_the_class_of_their_weights() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].weight = nn.Parameter(model[0].weight.detach().as_subclass(Counted))
    with xg.attach(model, {"relu": GUIDES}):
        for turn in range(1, 4):
            gradient(model, X)
            assert Counted.calls == turn


class Shared(nn.Module):
    """A part of two models."""

    def forward(self, x: Any) -> Any:
        return F.relu(x)


def test_a_layer_of_two_models_has_one_rule_for_an_operation() -> None:
    shared = Shared()
    one, two = nn.Sequential(nn.ReLU(), shared), nn.Sequential(shared, nn.Linear(4, 4))
    x = X.abs() + 1.0
    with xg.attach(one, {"relu": READS_TIN}):
        with pytest.raises(xg.RuleError, match=r"'relu' .*layer '0'.*another model.*detach"):
            xg.attach(two, {"relu": DOUBLES})
        assert type(two) is nn.Sequential
        with xg.attach(two, {"linear": DOUBLES}):  # another operation is not in its way
            torch.testing.assert_close(gradient(one, x), 2.0 * x**3)
    with xg.attach(two, {"relu": DOUBLES}):
        torch.testing.assert_close(gradient(one, x), 4.0 * x)


def test_a_shared_layer_that_calls_none_of_the_operations_is_in_nobodys_way() -> None:
    shared = nn.Linear(4, 4)
    one, two = nn.Sequential(nn.ReLU(), shared), nn.Sequential(shared, nn.ReLU())
    own = [gradient(each) for each in (one, two)]
    with xg.attach(one, {"relu": DOUBLES}), xg.attach(two, {"relu": READS_TIN}):
        found = [gradient(each) for each in (one, two)]
        alone = nn.Sequential(shared, nn.ReLU())
        with xg.attach(alone[1], {"relu": READS_TIN}):
            assert torch.equal(found[1], gradient(alone))
    assert all(not torch.equal(a, b) for a, b in zip(own, found, strict=True))


def test_of_two_models_within_each_other_the_inner_rule_wins_in_each_part() -> None:
    inner = nn.Sequential(Shared())
    outer = nn.Sequential(inner, nn.ReLU())
    x = X.abs() + 1.0
    for first, second in ((outer, inner), (inner, outer)):
        rules = {outer: {"relu": DOUBLES}, inner: {"relu": READS_TIN}}
        with xg.attach(first, rules[first]), xg.attach(second, rules[second]):
            for part in (inner, inner[0], torch.compile(inner, backend="eager")):
                torch.testing.assert_close(gradient(part, x), 2.0 * x**2)
            torch.testing.assert_close(gradient(outer, x), 4.0 * x**2)


def test_a_composite_and_a_rule_for_one_of_its_operations_are_refused_together() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    with xg.attach(model, xg.composites.epsilon_plus()):
        with pytest.raises(xg.RuleError, match=r"'relu' has a rule already in this Sequential"):
            xg.attach(model, {"relu": GUIDES})
        with pytest.raises(xg.RuleError, match=r"an operation .* by composite 'epsilon_plus'"):
            xg.attach(model, xg.composites.epsilon_plus())
        model(X)
    with (
        xg.attach(model, {"relu": GUIDES}),
        pytest.raises(xg.RuleError, match=r"'relu' has a rule already in this Sequential"),
    ):
        xg.attach(model, xg.composites.epsilon_plus())


def test_a_layer_with_a_rule_of_its_own_is_named_where_the_operation_is_not_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with (
        xg.attach(model, {"1": GUIDES}),
        xg.attach(model, {"relu": DOUBLES}),
        pytest.raises(xg.RuleError, match=r"no operation 'relu'.*layer '1'.*rule of its own"),
    ):
        gradient(model)


def test_a_model_prepared_for_quantization_takes_rules() -> None:
    quantization = pytest.importorskip("torch.ao.quantization")
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).train()
    model.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    prepared = quantization.prepare_qat(model)
    own = [type(each) for each in prepared.modules()]
    prepared(X)
    with xg.attach(prepared, {"relu": lambda ctx, grad_out, tin: grad_out * 0.0}):
        assert not gradient(prepared).any()
    assert gradient(prepared).any()
    assert [type(each) for each in prepared.modules()] == own
