"""Rules that read weights, and composites, on torch modules: against the formulas of the papers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import multigrad as xg

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = pytest.mark.needs("torch")
EPSILON = 1e-6


def stabilize(z: Any) -> Any:
    return z + torch.where(z < 0, -EPSILON, EPSILON)


def epsilon_over(forward: Any, x: Any, relevance: Any) -> Any:
    """Return x * w^T (R / z) of a layer that is linear but for its bias."""
    x = x.detach().requires_grad_()
    z = forward(x)
    (pulled,) = torch.autograd.grad(z, x, relevance / stabilize(z.detach()))
    return x.detach() * pulled


def heat(model: Any, x: Any) -> Any:
    x = x.detach().requires_grad_()
    y = model(x)
    (grad,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return grad


LAYERS = {
    "linear": (nn.Linear(4, 3), (5, 4)),
    "linear on sequences": (nn.Linear(4, 3, bias=False), (2, 5, 4)),
    "conv1d": (nn.Conv1d(2, 4, 3, padding="same"), (2, 2, 7)),
    "conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 7, 8)),
    "conv2d of one": (nn.Conv2d(4, 6, 3, dilation=2), (4, 7, 8)),
    "conv3d": (nn.Conv3d(1, 2, 2), (2, 1, 3, 4, 3)),
    "transposed": (nn.ConvTranspose2d(3, 2, 3, stride=2, output_padding=1), (2, 3, 4, 4)),
    "pooling": (nn.AvgPool2d(2, stride=1, padding=1), (2, 3, 4, 5)),
    "adaptive pooling": (nn.AdaptiveAvgPool2d((2, 1)), (2, 3, 4, 5)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_epsilon_on_a_layer_is_the_formula_of_its_weights_and_they_keep_their_gradient(
    name: str,
) -> None:
    layer, shape = LAYERS[name]
    torch.manual_seed(1)
    x = torch.randn(shape)
    rule = xg.attribution.norm() if "pooling" in name else xg.attribution.epsilon(EPSILON)
    params = list(layer.parameters())
    (layer(x).sum() if params else x.sum().requires_grad_()).backward()
    own = [param.grad.clone() for param in params]
    layer.zero_grad()
    model = nn.Sequential(layer)
    with xg.attach(model, {"0": rule}):
        assert torch.equal(model(x), layer(x))
        given = heat(model, x)
        heat_of_weights = model(x.clone().requires_grad_()).sum()
        heat_of_weights.backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(own, params, strict=True))
    expected = epsilon_over(layer, x, torch.ones_like(layer(x)))
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


class Net(nn.Module):
    """What is called in code counts as the layers do: an addition, a mean, relus."""

    def __init__(self) -> None:
        super().__init__()
        # in another order than they are called
        self.side = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)
        self.conv = nn.Conv2d(2, 3, 3, padding=1)
        self.fc = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        y = F.relu(self.bn(self.conv(x)))
        z = self.side(y)
        z += y
        return self.fc(torch.relu(z).mean((2, 3)))


@pytest.fixture
def net() -> Any:
    torch.manual_seed(5)
    net = Net().eval()
    nn.init.normal_(net.bn.running_mean)
    nn.init.uniform_(net.bn.running_var, 0.5, 2.0)
    nn.init.uniform_(net.bn.weight, 0.5, 1.5)
    nn.init.normal_(net.bn.bias)
    return net


def test_a_sum_by_keywords_has_the_rule_too() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.add(self.left(x), self.right(x))

    model, x = Sum(), torch.randn(2, 4)
    with xg.attach(model, xg.composites.epsilon_plus(canonize=True)):
        model.add = lambda a, b: a + b
        expected = heat(model, x)
        for add in (
            lambda a, b: torch.add(a, other=b),
            lambda a, b: torch.add(input=a, other=b),
        ):
            model.add = add
            assert torch.equal(heat(model, x), expected)


def test_a_composite_compiles_to_the_same_heat_map(net: Any) -> None:
    torch.compiler.reset()
    x = torch.randn(2, 2, 5, 5)
    with xg.attach(net, xg.composites.epsilon_gamma_box(-3.0, 3.0, canonize=True)):
        compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(heat(compiled, x), heat(net, x))


def test_a_call_in_code_before_the_layer_with_the_rule_of_the_first_is_named_in_a_warning() -> None:
    class InCode(nn.Module):
        def __init__(self, is_late: bool) -> None:
            super().__init__()
            self.weight, self.layer = nn.Parameter(torch.ones(2, 2)), nn.Linear(2, 2)
            self.is_late = is_late

        def forward(self, x: Any) -> Any:
            x = self.layer(x) if self.is_late else x
            x = F.linear(x, self.weight)
            return x if self.is_late else self.layer(x)

    x = torch.randn(3, 2, requires_grad=True)
    for is_late in (True, False):
        model = InCode(is_late)
        with xg.attach(model, xg.composites.epsilon_plus_flat()), warnings.catch_warnings():
            warnings.simplefilter("error")
            if is_late:
                model(x)
            else:
                with pytest.raises(
                    xg.errors.ActsNowhereWarning, match=r"first linear.*'linear' in code"
                ):
                    model(x)


def test_merging_in_training_is_refused(net: Any) -> None:
    net.train()
    x = torch.randn(2, 2, 5, 5, requires_grad=True)
    with (
        xg.attach(net, xg.composites.epsilon_plus(canonize=True)),
        pytest.raises(xg.RuleError, match=r"eval\(\)"),
    ):
        net(x)
    with xg.attach(net, xg.composites.guided_backprop()):
        net(x)


def test_a_rule_for_weights_where_there_are_none_is_refused() -> None:
    rule, model = xg.attribution.zplus(), nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    with pytest.raises(xg.RuleError, match=r"zplus.*relu"):
        xg.attach(model, {"relu": rule})
    for kind in ("convolution", "batch_normalization"):  # the first is an operation of torch, too
        with pytest.raises(xg.RuleError, match=f"'{kind}' is a kind of layers: xg.attach.*Comp"):
            xg.attach(model, {kind: rule})
    x = torch.randn(3, 2, requires_grad=True)
    with xg.attach(model, {"1": rule}), pytest.raises(xg.RuleError, match=r"'1'.*zplus"):
        model(x)
    with xg.attach(model, {"linear": rule}):
        model(x).sum().backward()
    pooling = nn.Sequential(nn.AvgPool1d(2))
    words = r"'0' \(AvgPool1d\).*what fits is xg.attribution.epsilon\(\), xg.attribution.norm\(\)"
    with xg.attach(pooling, {"0": rule}), pytest.raises(xg.RuleError, match=words):
        pooling(x)
    words = r"'low' has shape \(3,\), and the layer's input \(2,\) for each example"
    with xg.attach(model, {"linear": xg.attribution.zbox(0.0, torch.ones(2))}):
        model(x).sum().backward()
    with (
        xg.attach(model, {"linear": xg.attribution.zbox(torch.zeros(3), torch.ones(3))}),
        pytest.raises(xg.RuleError, match=words),
    ):
        model(x)
    with pytest.raises(xg.RuleError, match=r"model comes first: xg.attach\(model, rules\)"):
        xg.attach({"linear": rule}, model)
    with pytest.raises(xg.RuleError, match="does not have"):
        xg.attach(model, xg.composites.Composite("odd", {}, names={"head": "pass"}))


def test_a_name_in_a_composite_can_keep_a_layers_own_gradient() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    rule = xg.attribution.epsilon()
    x = torch.randn(3, 2)
    odd = xg.composites.Composite("odd", {"linear": rule}, names={"1": None})
    with xg.attach(model, odd):
        given = heat(model, x)
    with xg.attach(model, {"0": rule}):
        torch.testing.assert_close(given, heat(model, x))


class Gap(nn.Module):
    """A residual block, and a head that may be computed in several ways."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.fc = nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False)
        self.head = head

    def forward(self, x: Any) -> Any:
        return self.head(self, torch.relu(self.body(x)), x)


def conserved(model: Any, composite: Any) -> tuple[Any, Any, list[str]]:
    """Return the share of a score that arrives at the input, the handle, and the warnings."""
    x = torch.rand(2, 4, dtype=torch.float64) + 0.5
    with xg.attach(model.double(), composite) as handle, warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        model(x)  # of no gradient: nothing is said
        assert not w
        z = x.clone().requires_grad_()
        for _ in range(2):
            score = model(z)[:, 1]
        (found,) = torch.autograd.grad(score, z, score.detach())
    assert all(each.category is xg.errors.ActsNowhereWarning for each in w)
    return (found.sum() / score.sum()).item(), handle, [str(each.message) for each in w]


ATTENTION = "scaled_dot_product_attention"
HEADS = {
    "layer": (lambda m, h, x: m.fc(h), "linear"),
    "linear": (lambda m, h, x: F.linear(h, m.fc.weight), "linear"),
    "moved": (
        lambda m, h, x: m.fc(F.dropout((+h).T.flip(1).clone(), 0.0).unsqueeze(0)[0].T),
        "linear",
    ),
    "matmul": (lambda m, h, x: h @ m.fc.weight.T, "matmul"),
    "einsum": (lambda m, h, x: torch.einsum("bi,oi->bo", h, m.fc.weight), "einsum"),
    "mul": (lambda m, h, x: m.fc(h * m.body.weight.diagonal()), "mul"),
    "sub": (lambda m, h, x: m.fc(h - x), "sub"),
    "one minus": (lambda m, h, x: m.fc(1.0 - h), "sub"),
    "negative": (lambda m, h, x: m.fc(-h), "neg"),
    "power": (lambda m, h, x: m.fc(h**2), "pow"),
    "softmax": (lambda m, h, x: m.fc(h).softmax(1), "softmax"),
    "normalize": (lambda m, h, x: m.fc(F.normalize(h)), "normalize"),
    "own": (lambda m, h, x: m.fc(torch.sinc(h)), "sinc"),
    "attention": (lambda m, h, x: m.fc(F.scaled_dot_product_attention(h, x, x)), ATTENTION),
    "stacked": (lambda m, h, x: m.fc(torch.stack([h, x]).sum(0)), "sum"),
    "scaled": (lambda m, h, x: m.fc(torch.add(h, x, alpha=0.5)), "add"),
}


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("canonize", [False, True, None])
def test_relevance_adds_up_or_a_warning_and_the_table_name_what_has_no_rule(
    name: str, canonize: bool | None
) -> None:
    head, operation = HEADS[name]
    rules: Any = {nn.Linear: xg.attribution.epsilon(), "relu": "pass"}
    if canonize is not None:
        rules = xg.composites.epsilon_plus(canonize=canonize)
    share, handle, said = conserved(Gap(head), rules)
    rows = {row.name: row.rule for row in handle.rows}
    if operation == "linear" and (canonize is not None or name != "linear"):
        assert abs(share - 1) < 1e-4
        assert not said
        assert ("(not called)" in rows["fc"]) == (name == "linear")
        return
    assert abs(share - 1) > 1e-2
    assert rows[operation] == "(plain gradient)"
    assert len(said) == 1  # of two calls
    assert f"no rule for {operation} (" in said[0]
    if name in ("linear", "matmul", "einsum"):
        assert f"{operation} (fc.weight)" in said[0]
        assert "(not called)" in rows["fc"]


def test_an_addition_in_code_is_in_the_table_and_a_warning_says_how_it_gets_its_rule() -> None:
    model = Gap(lambda m, h, x: m.fc(h + x))
    share, handle, said = conserved(model, xg.composites.epsilon_plus())
    assert abs(share - 1) > 1e-2
    assert "canonize=True" in said[0]
    assert ("add", "(plain gradient)") in [(row.name, row.rule) for row in handle.rows]
    share, handle, said = conserved(model, xg.composites.epsilon_plus(canonize=True))
    assert abs(share - 1) < 1e-4
    assert not said
    assert ("add", "addition") in [(row.name, row.selector) for row in handle.rows]
    assert not conserved(model, xg.composites.guided_backprop())[2]  # it shares out nothing
    by_name = xg.composites.Composite("mine", {}, names={"*": xg.attribution.epsilon()})
    for rules in (by_name, {nn.Linear: xg.attribution.epsilon()}):
        assert "no rule for add (activations)" in conserved(model, rules)[2][0]
    assert not conserved(model, {"body": "pass", "relu": "guided"})[2]


def test_a_batch_normalization_that_multiplies_relevance_is_named_with_how_it_is_merged() -> None:
    torch.manual_seed(0)
    layers = nn.Linear(4, 9, bias=False), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3, bias=False)
    model = nn.Sequential(*layers).eval()
    nn.init.constant_(model[1].running_var, 0.01)
    share, handle, said = conserved(model, xg.composites.excitation_backprop())
    assert share > 5
    assert "no rule for batch_norm (1.weight, 1.bias)" in said[0]
    assert "canonize=True merges" in said[0]
    assert "batch_norm" in [row.name for row in handle.rows]
    share, _, said = conserved(model, xg.composites.excitation_backprop(canonize=True))
    assert abs(share - 1) < 1e-4
    assert not said
    rules = {nn.Linear: xg.attribution.zplus(), nn.ReLU: "pass"}
    share, handle, said = conserved(model, rules)
    assert share > 5
    assert "the mapping has no rule for batch_norm (1.weight, 1.bias)" in said[0]
    assert "A Composite with canonize=True merges" in said[0]
    assert [row.name for row in handle.rows if row.rule == "(plain gradient)"] == ["batch_norm"]
    # calls of constants leave no trace in the table
    handle = conserved(model, xg.composites.epsilon_plus(canonize=True))[1]
    assert "epsilon(epsilon=1e-06) (merged with 0)" in [row.rule for row in handle.rows]


def test_an_operation_without_a_rule_in_a_function_is_named_once() -> None:
    weight, x = torch.ones(3, 4), torch.ones(1, 4, requires_grad=True)
    under = xg.attach(lambda x: F.linear(x, weight) ** 2, {"linear": xg.attribution.zplus()})
    under(x.detach())
    with pytest.warns(xg.errors.ActsNowhereWarning, match="mapping has no rule for pow") as record:
        under(under(x)[:, :1].expand(1, 4))
    assert len(record) == 1
    assert record[0].filename == __file__


class Smooth(nn.Module):
    """Has a ReLU that it does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x: Any) -> Any:
        return F.gelu(self.fc(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        Smooth,
        lambda: torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="eager"),
    ],
)
def test_a_composite_that_acts_nowhere_is_refused_as_a_selector_is(make: Any) -> None:
    model, x = make(), torch.ones(1, 4, requires_grad=True)

    def explain() -> None:
        with xg.attach(model, xg.composites.guided_backprop()):
            model(x)

    with pytest.raises(xg.RuleError, match=r"'guided_backprop' has no rule.*it is for relu, and"):
        explain()
    with pytest.raises(xg.RuleError, match="'epsilon_plus' has no rule for any layer"):
        xg.attach(nn.Sequential(nn.Embedding(3, 4)), xg.composites.epsilon_plus())
