"""`xg.attach` on models that others wrote: torchvision's, timm's, transformers', with captum's
guided backpropagation and deconvolution as the oracle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

captum = pytest.importorskip("captum")
pytestmark = [pytest.mark.peers, pytest.mark.needs("torch")]

import timm
import torch
import torchvision
import transformers
from captum.attr import Deconvolution, GuidedBackprop
from torch import nn

import multigrad as xg


def make_vit() -> nn.Module:
    model = torchvision.models.VisionTransformer(
        image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32
    )
    nn.init.normal_(model.heads.head.weight)  # which is made of zeros
    return model


def make_efficientnet() -> nn.Module:
    return timm.create_model("efficientnet_lite0", num_classes=7, act_layer=nn.SiLU)


def make_mobilenet() -> nn.Module:
    return torchvision.models.mobilenet_v3_small(num_classes=7)


def make_timm() -> nn.Module:
    return timm.create_model("resnet18", num_classes=7)


VISION: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "resnet18": (lambda: torchvision.models.resnet18(num_classes=7), "relu"),
    "vgg11_bn": (lambda: torchvision.models.vgg11_bn(num_classes=7), "relu"),
    "timm's resnet18": (make_timm, "relu"),
    "mobilenet_v3_small": (make_mobilenet, "hardswish"),
    "vit": (make_vit, "gelu"),
    "timm's efficientnet": (make_efficientnet, "silu"),
}  # fmt: skip
X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def make(name: str) -> nn.Module:
    torch.manual_seed(2)
    return VISION[name][0]().eval()


def heat(model: Any, x: torch.Tensor = X) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(model(x)[:, 3].sum(), x)
    return grad


@pytest.mark.filterwarnings("ignore:Setting backward hooks")
@pytest.mark.parametrize("name", ["resnet18", "vgg11_bn"])
@pytest.mark.parametrize(
    ("rule", "oracle"), [("guided", GuidedBackprop), ("deconvnet", Deconvolution)]
)
def test_heat_maps_are_captums(name: str, rule: str, oracle: Any) -> None:
    model = make(name)
    theirs = make(name)
    for module in theirs.modules():  # captum's hooks refuse what is written in place
        if isinstance(module, nn.ReLU):
            module.inplace = False
    if name == "resnet18":  # and calls of one relu twice
        separate(theirs)
    expected = oracle(theirs).attribute(X.clone().requires_grad_(), target=3)
    for selector in ("relu", nn.ReLU):
        with xg.attach(model, {selector: rule}):
            torch.testing.assert_close(heat(model), expected, rtol=1e-5, atol=1e-7)


def separate(model: Any) -> None:
    """Give each call of a block's relu a module of its own, as captum asks."""

    def forward(block: Any) -> Callable[[Any], Any]:
        first, second = nn.ReLU(), nn.ReLU()
        block.relu, block.relu2 = first, second

        def run(x: Any) -> Any:
            y = block.bn2(block.conv2(block.relu(block.bn1(block.conv1(x)))))
            return block.relu2(y + (x if block.downsample is None else block.downsample(x)))

        return run

    for block in [each for each in model.modules() if hasattr(each, "downsample")]:
        block.forward = forward(block)


@pytest.mark.parametrize("name", VISION)
def test_a_model_is_as_it_was_before_within_and_after(name: str) -> None:
    model, operation = make(name), VISION[name][1]
    y = model(X).detach()
    before, own, saved = repr(model), heat(model), pickle.dumps(model)
    with xg.attach(model, {operation: "deconvnet"}) as handle:
        assert torch.equal(model(X).detach(), y)
        assert not torch.equal(heat(model), own)
        assert (repr(model), pickle.dumps(model)) == (before, saved)
        assert operation in repr(handle)
    assert torch.equal(heat(model), own)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "vit"])
def test_compiled_models_have_the_rules(name: str) -> None:
    torch.compiler.reset()
    model, operation = make(name), VISION[name][1]
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    own = heat(compiled)
    with xg.attach(model, {operation: "deconvnet"}):
        torch.testing.assert_close(heat(compiled), heat(model), rtol=1e-4, atol=1e-6)
        assert not torch.equal(heat(compiled), own)
    assert torch.equal(heat(compiled), own)


def test_a_bert_of_transformers_by_operation_layer_and_pattern() -> None:
    torch.manual_seed(2)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    embedded = torch.randn(2, 5, 16)

    def grad() -> torch.Tensor:
        x = embedded.clone().requires_grad_()
        logits = model(inputs_embeds=x).logits
        return torch.autograd.grad(logits.sum(), x)[0]

    own, state = grad(), pickle.dumps(model)
    found = []
    layers = "bert.encoder.layer.*.intermediate.intermediate_act_fn"
    kind = type(model.bert.encoder.layer[0].intermediate.intermediate_act_fn)
    for selector in ("gelu", torch.nn.functional.gelu, layers, kind):
        with xg.attach(model, {selector: "deconvnet"}):
            found.append(grad())
            assert pickle.dumps(model) == state
    assert all(torch.equal(each, found[0]) for each in found)
    assert not torch.equal(found[0], own)
    assert torch.equal(grad(), own)
