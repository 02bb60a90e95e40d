"""Rules of relevance and composites against zennit, which is run as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("zennit")
pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

import torch
import zennit.composites as theirs
from torch import nn
from torch.nn import functional as F
from torchvision.models import resnet18
from torchvision.models.resnet import BasicBlock
from zennit import rules as their_rules
from zennit.canonizers import SequentialMergeBatchNorm
from zennit.torchvision import ResNetCanonizer

import multigrad as xg
from multigrad.models import attribution as lrp

LOW, HIGH = -3.0, 3.5
SINGLE = {"dtype": torch.float32}
DOUBLE = {"dtype": torch.float64}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(14)


# --- one layer ------------------------------------------------------------------------------------

RULES: dict[str, tuple[Any, Any]] = {
    "epsilon": (lambda: their_rules.Epsilon(), lrp.epsilon()),
    "epsilon of a tenth": (lambda: their_rules.Epsilon(0.1), lrp.epsilon(0.1)),
    "zplus": (lambda: their_rules.ZPlus(), lrp.zplus()),
    "gamma": (lambda: their_rules.Gamma(), lrp.gamma()),
    "gamma of 0.7": (lambda: their_rules.Gamma(0.7, 1e-3), lrp.gamma(0.7, 1e-3)),
    "alpha_beta": (lambda: their_rules.AlphaBeta(), lrp.alpha_beta()),
    "alpha 1, beta 0": (lambda: their_rules.AlphaBeta(1.0, 0.0), lrp.alpha_beta(1, 0)),
    "wsquare": (lambda: their_rules.WSquare(), lrp.wsquare()),
    "flat": (lambda: their_rules.Flat(), lrp.flat()),
    "zbox": (lambda: their_rules.ZBox(LOW, HIGH), lrp.zbox(LOW, HIGH)),
    "norm": (lambda: their_rules.Norm(), lrp.norm()),
    "epsilon, no bias": (
        lambda: their_rules.Epsilon(zero_params="bias"),
        lrp.epsilon(zero_params="bias"),
    ),
    "zplus, no bias": (
        lambda: their_rules.ZPlus(zero_params="bias"),
        lrp.zplus(zero_params="bias"),
    ),
    "wsquare, no bias": (
        lambda: their_rules.WSquare(zero_params="bias"),
        lrp.wsquare(zero_params="bias"),
    ),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), (3, 7)),
    "linear over two axes": (lambda: nn.Linear(7, 5, bias=False), (2, 3, 7)),
    "one axis": (lambda: nn.Conv1d(4, 6, 3, stride=2), (2, 4, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 8, 9)),
    "dilated": (lambda: nn.Conv2d(4, 6, (3, 2), padding=(2, 0), dilation=2), (2, 4, 8, 9)),
    "no bias": (lambda: nn.Conv2d(4, 6, 3, bias=False), (2, 4, 8, 9)),
    "three axes": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1)), (1, 2, 4, 5, 3)),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1),
        (2, 4, 5, 6),
    ),
}
POOLS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "side by side": (lambda: nn.AvgPool2d(2), (2, 3, 6, 8)),
    "padding not counted": (
        lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
        (2, 3, 6, 8),
    ),
    "padding counted": (lambda: nn.AvgPool2d(3, 2, 1), (2, 3, 6, 8)),
    "one axis": (lambda: nn.AvgPool1d(3), (2, 3, 9)),
    "uneven windows": (lambda: nn.AdaptiveAvgPool2d((3, 5)), (2, 3, 7, 8)),
    "all": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 7, 8)),
}


def pulled(model: nn.Module, x: Any, given: Any) -> Any:
    x = x.clone().requires_grad_()
    return torch.autograd.grad(model(x), x, given)[0]


def of_zennit(hook: Any, layer: nn.Module, x: Any, given: Any) -> Any:
    handle = hook.register(layer)
    result = pulled(layer, x, given)
    handle.remove()
    return result


def of_ours(rule: Any, layer: nn.Module, x: Any, given: Any) -> Any:
    with xg.attach(nn.Sequential(layer), {"0": rule}) as attached:
        assert len(attached) == 1
        return pulled(layer, x, given)


def assert_near(result: Any, expected: Any, bound: float) -> None:
    error = (result - expected).abs().max() / expected.abs().max()
    assert error <= bound


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("rule", RULES)
def test_a_rule_on_a_layer_is_zennits(rule: str, layer: str) -> None:
    make, shape = LAYERS[layer]
    hook, ours = RULES[rule]
    for dtype, bound in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        module, x = make().to(dtype), torch.randn(shape, dtype=dtype)
        given = torch.randn_like(module(x))
        expected = of_zennit(hook(), module, x, given)
        assert_near(of_ours(ours, module, x, given), expected, bound)


@pytest.mark.parametrize("pool", POOLS)
def test_the_norm_of_a_pooling_is_zennits(pool: str) -> None:
    make, shape = POOLS[pool]
    module, x = make(), torch.randn(shape, **DOUBLE)
    given = torch.randn_like(module(x))
    expected = of_zennit(their_rules.Norm(), module, x, given)
    assert_near(of_ours(lrp.norm(), module, x, given), expected, 1e-12)


# --- models ---------------------------------------------------------------------------------------


class Functional(nn.Module):
    """A model that calls functions; `modules` is what zennit needs of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 8, 3, stride=2)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.one(x))
        x = torch.relu_(self.two(x))
        x = F.adaptive_avg_pool2d(x, 1)
        return self.last(torch.flatten(x, 1))


def as_modules(model: Functional) -> nn.Module:
    return nn.Sequential(
        model.one, nn.ReLU(), model.two, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        model.last,
    )  # fmt: skip


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * 16 * 16, 20), nn.ReLU(), nn.Linear(20, 20), nn.Tanh(),
        nn.Linear(20, 5),
    )  # fmt: skip


def vgg() -> nn.Module:
    def block(inner: int, outer: int) -> list[nn.Module]:
        return [nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(inplace=True)]

    features = [*block(3, 8), *block(8, 8), nn.MaxPool2d(2), *block(8, 16), nn.MaxPool2d(2)]
    head = [nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(16 * 9, 20), nn.ReLU(inplace=True),
            nn.Dropout(), nn.Linear(20, 5)]  # fmt: skip
    return nn.Sequential(nn.Sequential(*features), nn.Sequential(*head))


def pooled() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=2, dilation=2), nn.LeakyReLU(0.1),
        nn.AvgPool2d(2), nn.Conv2d(8, 8, 3, groups=4, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AvgPool2d(3, 2, 1), nn.Flatten(), nn.Linear(8 * 9, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "mlp": (mlp, None),
    "vgg": (vgg, SequentialMergeBatchNorm),
    "vgg as it is": (vgg, None),
    "resnet18": (resnet18, ResNetCanonizer),
    "resnet18 as it is": (resnet18, None),
    "pooled": (pooled, SequentialMergeBatchNorm),
    "functional": (Functional, None),
}
COMPOSITES = {
    "epsilon_gamma_box": theirs.EpsilonGammaBox,
    "epsilon_plus": theirs.EpsilonPlus,
    "epsilon_alpha2_beta1": theirs.EpsilonAlpha2Beta1,
    "epsilon_plus_flat": theirs.EpsilonPlusFlat,
    "epsilon_alpha2_beta1_flat": theirs.EpsilonAlpha2Beta1Flat,
    "guided_backprop": theirs.GuidedBackprop,
    "deconvnet": theirs.DeconvNet,
    "excitation_backprop": theirs.ExcitationBackprop,
    "beta_smooth": theirs.BetaSmooth,
}


class EachCall(nn.Module):
    """A relu that is called twice, as two modules: zennit 0.5.1 keeps one input for each module."""

    def __init__(self) -> None:
        super().__init__()
        self.relus, self.calls = nn.ModuleList([nn.ReLU(), nn.ReLU()]), 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.relus[self.calls % 2](x)


def made(name: str) -> tuple[nn.Module, nn.Module]:
    """A model in double precision with weights and statistics of its own, and zennit's twin."""
    model = MODELS[name][0]().double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    twin = copy.deepcopy(model)
    for module in list(twin.modules()):
        if isinstance(module, BasicBlock):
            module.relu = EachCall()
        elif isinstance(module, nn.BatchNorm2d):
            # zennit 0.5.1 counts eps a second time in what it has merged.
            module.running_var += module.eps
            module.eps = 0.0
        elif isinstance(module, nn.ReLU):
            module.inplace = False  # zennit 0.5.1 reads the input of a relu after it was written to
    return model, as_modules(twin) if isinstance(twin, Functional) else twin


def intermediate(model: nn.Module, run: Callable[[], Any]) -> tuple[Any, float]:
    """What a run gives, and the largest relevance, activation or weight that it meets."""
    largest = [p.abs().max().item() for p in model.parameters()]

    def note(*tensors: Any) -> None:
        largest.extend(t.abs().max().item() for t in tensors if isinstance(t, torch.Tensor))

    def forward(module: nn.Module, inputs: Any, output: Any) -> None:
        note(*inputs, output)
        for tensor in (*inputs, output):
            if tensor.requires_grad:
                tensor.register_hook(note)

    leaves = [each for each in model.modules() if not list(each.children())]
    handles = [each.register_forward_hook(forward) for each in leaves]
    result = run()
    for handle in handles:
        handle.remove()
    return result, max(largest)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("composite", COMPOSITES)
def test_the_heat_map_of_a_composite_is_zennits(composite: str, name: str) -> None:
    model, twin = made(name)
    canonizer = MODELS[name][1]
    size = 33 if name.startswith("resnet") else 16
    x = torch.randn(2, 3, size, size, **DOUBLE).clamp(LOW, HIGH)
    given = torch.zeros_like(model(x))
    given[:, 1] = 1.0
    options = {"low": LOW, "high": HIGH} if composite == "epsilon_gamma_box" else {}
    bounds = {key: torch.full_like(x[:1], value) for key, value in options.items()}

    def zennits(dtype: Any) -> Any:
        canonizers = [canonizer()] if canonizer else []
        own = {key: value.to(dtype) for key, value in bounds.items()}
        made_by_them = COMPOSITES[composite](canonizers=canonizers, **own)
        with made_by_them.context(copy.deepcopy(twin).to(dtype)) as modified:
            return intermediate(modified, lambda: pulled(modified, x.to(dtype), given.to(dtype)))

    def ours(dtype: Any) -> Any:
        chosen = getattr(xg.composites, composite)(**options, canonize=canonizer is not None)
        same = copy.deepcopy(model).to(dtype)
        plain = same(x.to(dtype))
        with xg.attach(same, chosen):
            assert torch.equal(same(x.to(dtype)), plain)
            heat = pulled(same, x.to(dtype), given.to(dtype))
        for key, value in model.state_dict().items():
            assert torch.equal(same.state_dict()[key], value.to(same.state_dict()[key].dtype))
        return heat

    expected, largest = zennits(torch.float64)
    assert_near(ours(torch.float64), expected, 1e-12)
    error = (ours(torch.float32) - expected).abs().max().item()
    assert error <= 4 * torch.finfo(torch.float32).eps * largest
    assert expected.abs().max() > 0
