"""`xg.attach` on torch modules: which layers a rule acts on, and that all else stays as it is."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import Any

import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

from ..harness.models.attached import Net, gradient, make_net, named_rules  # noqa: F401 (a fixture)
from ..harness.torch_class import torch_class

pytestmark = pytest.mark.needs("torch")


@pytest.fixture
def net() -> Any:
    return make_net()


@torch_class(lambda ctx, grad: grad.clamp(min=0) * (ctx.saved_tensors[0] > 0))
def Guided(ctx: Any, x: Any) -> Any:
    """What "attached_guides" is under relu, written with torch alone."""
    ctx.save_for_backward(x)
    return x.relu()


def forward_by_hand(net: Any, x: Any, inner: Any = F.relu, outer: Any = F.relu) -> Any:
    """Return what the model computes, with its own relu's inside blocks and after them."""
    x = net.stem(x)
    for block in net.layer1:
        x = outer(block.b(inner(block.a(x))) + x)
    return net.head(x)


def test_a_pattern_puts_a_rule_on_the_layers_of_that_name(net: Any) -> None:
    def expected(x: Any) -> Any:
        return forward_by_hand(net, x, inner=Guided.apply)

    with xg.attach(net, {"layer1.*.relu": "attached_guides"}) as handle:
        given = gradient(net)
        assert len(handle) == 2
    torch.testing.assert_close(given, gradient(expected))
    assert not torch.equal(given, gradient(net))


def test_an_operation_is_found_wherever_it_is_called(net: Any) -> None:
    def expected(x: Any) -> Any:
        return forward_by_hand(net, x, inner=Guided.apply, outer=Guided.apply)

    for selector in ("relu", F.relu, torch.relu, torch.Tensor.relu_, nn.functional.relu_):
        with xg.attach(net, {selector: "attached_guides"}):
            torch.testing.assert_close(gradient(net), gradient(expected))


@pytest.mark.parametrize(
    "selector",
    [
        "stem", nn.Linear, lambda layer: isinstance(layer, nn.Linear) and layer.out_features == 4,
        lambda name, layer: name == "stem", ("stem", "layer1.0.b"),
    ],
)  # fmt: skip
def test_a_rule_over_any_forward_gives_its_inputs_gradient_and_weights_keep_theirs(
    net: Any, selector: Any
) -> None:
    net.head = nn.Linear(4, 4)
    x = torch.randn(5, 4, requires_grad=True)
    net(x).sum().backward()
    own = [p.grad.clone() for p in (net.head.weight, net.head.bias)]
    net.zero_grad()
    with xg.attach(net, {selector: "attached_doubles"}):
        y = net(x)
        upstream: list[Any] = []
        inner = net.stem(x)
        inner.register_hook(upstream.append)
        (grad,) = torch.autograd.grad(inner.sum(), x)
        y.sum().backward()
    torch.testing.assert_close(grad, 2.0 * upstream[0])
    for mine, its in zip(own, (net.head.weight, net.head.bias), strict=True):
        torch.testing.assert_close(mine, its.grad)


def test_nothing_else_of_a_model_changes_while_rules_are_attached(net: Any) -> None:
    def snapshot() -> Any:
        file = io.BytesIO()
        torch.save(net, file)
        return (
            pickle.dumps(net), pickle.dumps(net, 1), file.getvalue(), repr(net),
            [name for name, _ in net.named_parameters()], list(net.state_dict()),
            [(m.__class__, type(m).__name__, type(m).__module__, m.__doc__) for m in net.modules()],
            [sorted(vars(m)) for m in net.modules()],
        )  # fmt: skip

    before, classes = snapshot(), [type(each) for each in net.modules()]
    grad = gradient(net)
    with xg.attach(net, {"layer1.*.relu": "attached_guides", "gelu": "attached_doubles"}):
        assert snapshot() == before
        assert isinstance(net.layer1[0].relu, nn.ReLU)
        assert not torch.equal(gradient(net), grad)
    assert snapshot() == before
    assert [type(each) for each in net.modules()] == classes
    assert torch.equal(gradient(net), grad)


def test_a_copy_has_the_rules_until_they_are_detached(net: Any) -> None:
    own = gradient(net)
    handle = xg.attach(net, {"relu": "attached_guides", "head.1": "attached_doubles"})
    ruled = gradient(net)
    copied, loaded = copy.deepcopy(net), pickle.loads(pickle.dumps(net))
    assert torch.equal(gradient(copied), ruled)
    assert torch.equal(gradient(loaded), own)  # what is pickled has no rules
    handle.detach()
    handle.detach()
    assert torch.equal(gradient(copied), own)
    assert type(copied) is Net
    assert "(detached)" in repr(handle)


def test_handles_nest_and_are_detached_in_any_order(net: Any) -> None:
    own = gradient(net)
    first = xg.attach(net, {"relu": "attached_guides"})
    one = gradient(net)
    second = xg.attach(net, {"head.1": "attached_doubles"})
    both = gradient(net)
    first.detach()
    two = gradient(net)
    first = xg.attach(net, {"relu": "attached_guides"})
    assert torch.equal(gradient(net), both)
    second.detach()
    assert torch.equal(gradient(net), one)
    first.detach()
    assert torch.equal(gradient(net), own)
    assert len({each.numpy().tobytes() for each in (own, one, two, both)}) == 4


def test_a_handle_is_entered_once_and_says_so(net: Any) -> None:
    own = gradient(net)
    handle = xg.attach(net, {"relu": "attached_guides"})
    with handle:
        with pytest.raises(xg.RuleError, match="is entered already"):
            handle.__enter__()
        assert not torch.equal(gradient(net), own)
    with pytest.raises(xg.RuleError, match=r"was detached.*attach again"):
        handle.__enter__()
    assert torch.equal(gradient(net), own)


def test_a_shared_layer_is_changed_once_under_all_its_names() -> None:
    act = nn.ReLU()
    model = nn.Sequential(act, nn.Linear(4, 4), act)
    with xg.attach(model, {"2": "attached_doubles"}) as handle:
        assert len(handle) == 1
        x = torch.randn(3, 4, requires_grad=True)
        (grad,) = torch.autograd.grad(model(x).sum(), x)
        torch.testing.assert_close(grad, 4.0 * torch.ones(3, 4) @ model[1].weight)


def test_a_table_says_what_was_changed(net: Any) -> None:
    handle = xg.attach(net, {"layer1.*.relu": "attached_guides", F.gelu: "attached_doubles"})
    assert [(row.name, row.kind, row.rule) for row in handle.rows] == [
        ("layer1.0.relu", "ReLU", "attached_guides"),
        ("layer1.1.relu", "ReLU", "attached_guides"),
        ("gelu", "operation", "attached_doubles"),
    ]


def test_a_table_says_the_numbers_of_rules() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    narrow = xg.get("triangular").with_params(width=2.0)
    handle = xg.attach(model, {nn.Linear: xg.attribution.epsilon(0.25), nn.ReLU: narrow})
    rules = [row.rule for row in handle.rows]
    assert rules == ["epsilon(epsilon=0.25)", "triangular with width=2.0"]
    assert all(rule in repr(handle) for rule in rules)


BAD = {
    "layer1.*.rleu": ("layer1", "did you mean"),
    nn.Conv2d: ("Conv2d", "kinds of layers"),
    ("stem", "layer1.7.relu"): ("layer1.7.relu",),
}


@pytest.mark.parametrize("selector", BAD)
def test_a_selector_that_matches_nothing_is_refused_and_nothing_changes(
    net: Any, selector: Any
) -> None:
    with pytest.raises(xg.RuleError) as caught:
        xg.attach(net, {"relu": "attached_guides", selector: "attached_doubles"})
    for word in BAD[selector]:
        assert word in str(caught.value)
    assert all(type(each).__module__ != "multigrad_torch" for each in net.modules())
    assert [type(each) for each in (net, net.layer1[0].relu)] == [Net, nn.ReLU]
    with pytest.raises(xg.RuleError, match="did you mean 'conv2d'"):  # not `cov`
        xg.attach(nn.Sequential(nn.Conv2d(1, 1, 1)), {"conv": "attached_guides"})


def test_a_layer_with_a_rule_gets_no_other(net: Any) -> None:
    handle = xg.attach(net, {"stem": "attached_doubles"})
    with pytest.raises(xg.RuleError, match=r"stem.*attached_doubles.*detach"):
        xg.attach(net, {"stem": "attached_guides"})
    handle.detach()
    with pytest.raises(xg.RuleError, match=r"stem.*twice"):
        xg.attach(net, {"stem": "attached_doubles", nn.Linear: "attached_guides"})
    with pytest.raises(xg.RuleError, match=r"no_such_rule"):
        xg.attach(net, {"stem": "attached_doubles", "relu": "no_such_rule"})
    assert type(net.stem) is nn.Linear


def test_what_a_rule_cannot_act_on_is_said_at_the_call_and_the_model_stays_usable() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 4)
            self.recur = nn.LSTM(4, 4)
            self.pair = nn.Bilinear(4, 4, 2)
            self.fc = nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            y = self.recur(self.embed(x))[0]
            return self.fc(y) + self.pair(y, y * 2.0).sum()

    model, words = Words(), torch.tensor([[1, 2]])
    said = {
        "embed": "embed.*int64.*no gradient",
        "recur": "recur.*returns a tuple",
        "pair": "pair.*2 tensors",
        "fc": r"fc.*\(1, 2, 3\).*\(1, 2, 4\).*attached_doubles",
    }
    for name, message in said.items():
        with (
            xg.attach(model, {name: "attached_doubles"}),
            pytest.raises((xg.RuleError, xg.GradientError), match=message),
        ):
            model(words)
        model(words).sum().backward()


def test_scripted_and_traced_layers_are_refused(net: Any) -> None:
    scripted = torch.jit.script(nn.Sequential(nn.ReLU()))
    traced = torch.jit.trace(nn.ReLU(), torch.ones(2))
    for each in (scripted, traced):
        model = nn.Sequential(nn.Linear(2, 2), each)
        for selector in ("1", "relu"):
            with pytest.raises(xg.RuleError, match=r"script|trace"):
                xg.attach(model, {selector: "attached_guides"})
        assert type(model) is nn.Sequential
    with pytest.raises(xg.RuleError, match="or a function of tensors"):
        xg.attach(nn.ReLU, {"relu": "attached_guides"})


def test_a_name_means_the_rule_that_is_registered_now() -> None:
    def times(factor: float) -> None:
        xg.register("renamed", override=True)(lambda ctx, grad_out, tin: factor * grad_out)

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    x = torch.rand(3, 4)
    times(1.0)
    for selector in ("0", "relu"):
        compiled = torch.compile(model, backend="aot_eager")
        with xg.attach(model, {selector: "renamed"}):
            once = gradient(model, x), gradient(compiled, x)
            times(2.0)
            twice = gradient(model, x), gradient(compiled, x)
            times(1.0)
        for one, two in zip(once, twice, strict=True):
            torch.testing.assert_close(two, 2.0 * one)


@torch_class(lambda ctx, grad: grad * ctx.saved_tensors[0] * (1 - ctx.saved_tensors[0]))
def Sigmoid(ctx: Any, x: Any) -> Any:
    """A Function with an operation inside."""
    y = torch.sigmoid(x)
    ctx.save_for_backward(y)
    return y


class Inside(nn.Module):
    def forward(self, x: Any) -> Any:
        return Sigmoid.apply(x)


def test_an_operation_that_is_called_where_no_gradient_is_taken_is_an_error() -> None:
    model, x = Inside(), torch.ones(2, requires_grad=True)
    words = r"calls operation 'sigmoid' only where torch takes no gradient.*autograd\.Function"
    with xg.attach(model, {"sigmoid": "attached_doubles"}):
        with torch.no_grad():
            model(x)  # no gradient is asked for
        for _ in range(2):
            with pytest.raises(xg.RuleError, match=words):
                model(x)
    with pytest.raises(xg.RuleError, match=words):
        xg.override(Sigmoid.apply, {"sigmoid": "attached_doubles"})(x)
    with xg.attach(model, {Inside: "attached_doubles"}):
        assert torch.autograd.grad(model(x).sum(), x)[0].tolist() == [2.0, 2.0]


class Called(nn.Module):
    """A module that computes in `__call__`."""

    def __call__(self, x: Any) -> Any:
        return torch.relu(x)


@pytest.mark.parametrize("selector", ["relu", Called])
def test_a_module_without_forward_has_the_rules_in_its_call(selector: Any) -> None:
    for model in (Called(), nn.Sequential(nn.Identity(), Called())):
        own = gradient(model)
        with xg.attach(model, {selector: lambda ctx, grad_out, tin: grad_out * 0.0}):
            assert not gradient(model).any()
        assert torch.equal(gradient(model), own)
        with xg.attach(model, {"tanh": "attached_doubles"}), pytest.raises(xg.RuleError):
            model(torch.ones(2))


def test_a_selector_that_means_nothing_is_refused(net: Any) -> None:
    for rules, words in (
        ({"relu": None}, "'relu' has None instead of a rule"),
        ({nn.Linear: None}, "has None instead of a rule"),
        ({(): "attached_doubles"}, r"selector \(\) means nothing"),
        ({"relu": "attached_guides", F.relu: "attached_doubles"}, "relu.*twice"),
        ({nn.ReLU(): "attached_doubles"}, "selector ReLU is a layer, and none of this model's"),
    ):
        with pytest.raises(xg.RuleError, match=words):
            xg.attach(net, rules)
    with pytest.raises(xg.RuleError, match=r"selector \(\) means nothing"):
        xg.override(torch.relu, {(): "attached_doubles"})
    assert type(net.stem) is nn.Linear


def test_a_layer_itself_is_a_selector(net: Any) -> None:
    with xg.attach(net, {"layer1.0.relu": "attached_guides"}):
        expected = gradient(net)
    with xg.attach(net, {net.layer1[0].relu: "attached_guides"}) as handle:
        assert [row.name for row in handle.rows] == ["layer1.0.relu"]
        assert torch.equal(gradient(net), expected)


@pytest.mark.parametrize("rule", ["attached_doubles", xg.attribution.epsilon()])
def test_a_rule_that_no_gradient_comes_to_is_warned_of_once(rule: Any) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.ones(1, 4)
    with xg.attach(model, {"0": rule}):
        model(x)
        with pytest.warns(xg.errors.ActsNowhereWarning, match=r"layer '0'.*needs no gradient"):
            model(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(x)
    with xg.attach(model, {nn.Linear: rule}), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            model(x)


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("rule", ["triangular", "pass"])
def test_a_rule_that_does_not_fit_is_an_error_at_the_first_call(
    rule: str, needs_gradient: bool
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
    x = torch.ones(2, 3, requires_grad=needs_gradient)
    for selector, words in (
        ("0", r"layer '0' \(Linear\) makes shape \(2, 4\) of \(2, 3\), and rule '{}' .*fits"),
        ("1", r"layer '1' \(Linear\) makes shape \(2, 1\) of \(2, 4\), and rule '{}'"),
        ("linear", r"operation 'linear' makes shape \(2, 4\) of \(2, 3\), and rule '{}'"),
    ):
        with xg.attach(model, {selector: rule}):
            for called in (model, torch.compile(model, backend="eager")):
                with pytest.raises(xg.GradientError, match=words.format(rule)):
                    called(x)
            with torch.no_grad(), pytest.raises(xg.GradientError, match=words.format(rule)):
                model(x)
    model(x)


class Held(nn.Module):
    """A block that holds its activation as a function, and calls the operation besides."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.activation = nn.Linear(4, 4), F.relu

    def forward(self, x: Any) -> Any:
        return F.relu(self.activation(self.fc(x)) - 1.0)


def test_a_function_that_a_layer_holds_is_selected_by_its_name() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(Held(), Held())
    x = torch.linspace(-2.0, 2.0, 8).reshape(2, 4)

    def by_hand(x: Any) -> Any:
        first, second = model
        x = F.relu(Guided.apply(first.fc(x)) - 1.0)
        return F.relu(F.relu(second.fc(x)) - 1.0)

    own, held = gradient(model, x), dict(vars(model[0]))
    with xg.attach(model, {"0.activation": "attached_guides"}) as handle:
        assert [(row.name, row.kind) for row in handle.rows] == [("0.activation", "function")]
        assert torch.equal(gradient(model, x), gradient(by_hand, x))
        compiled = torch.compile(model, backend="eager")
        assert torch.equal(gradient(compiled, x), gradient(by_hand, x))
        assert vars(model[0]) == held
        copied = copy.deepcopy(model)
        assert torch.equal(gradient(copied, x), gradient(by_hand, x))
        with pytest.raises(xg.RuleError, match=r"'0\.activation' has rule 'attached_guides'"):
            xg.attach(model, {"*.activation": "attached_doubles"})
        with pytest.raises(xg.RuleError, match="lies inside layer '0'"):
            xg.attach(model, {"0": "attached_doubles", "0.activation": "attached_doubles"})
        model[0].activation = torch.tanh  # another one has the rule too
        assert model[0].__dict__["activation"] is torch.tanh
        model[0].activation = F.relu
    assert torch.equal(gradient(model, x), own)
    assert pickle.loads(pickle.dumps(model[0])).activation is F.relu
    assert model[0].activation is F.relu
    with xg.attach(model, {"*.activation": "attached_doubles"}) as handle:
        assert len(handle) == 2
    with pytest.raises(xg.RuleError, match=r"layer '0' \(Held\) has no 'activated'"):
        xg.attach(model, {"0.activated": "attached_doubles"})
    with pytest.raises(xg.RuleError, match="reads what layers hold"):
        xg.attach(model, {"0.activation": xg.attribution.epsilon()})


def test_the_activation_of_torchs_own_layers_is_selected_by_its_name() -> None:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    x = torch.linspace(-2.0, 2.0, 12).reshape(1, 3, 4)
    with xg.attach(layer, {"relu": "attached_guides"}):
        expected = gradient(layer, x)
    with xg.attach(layer, {"activation": "attached_guides"}):
        assert torch.equal(gradient(layer, x), expected)


@pytest.mark.parametrize("rules", [{"relu": "guided"}, {"1": "guided"}])
def test_a_model_with_rules_is_not_captured_without_them(rules: Any) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    x = torch.randn(3, 2, requires_grad=True)
    with xg.attach(model, rules):
        apply, parameters = xg.convert(model, to="torch")
        with pytest.raises(xg.errors.TraceError, match=r"with rules of xg.attach, .*detach\(\)"):
            apply(parameters, x)
        found, expected = (
            torch.autograd.grad(f(x).sum(), x)[0] for f in (xg.convert(model), model)
        )
        torch.testing.assert_close(found, expected)
