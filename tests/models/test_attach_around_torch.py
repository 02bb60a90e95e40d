"""`xg.attach` within what surrounds a torch model: transforms, regions that run again, threads,
hooks, parametrizations, classes that change, compilers and exporters.
"""

from __future__ import annotations

import copy
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
from ..support.threads import on_threads

pytestmark = pytest.mark.needs("torch")
RULES = {"relu": GUIDES, "head.1": DOUBLES, "stem": DOUBLES}
X = torch.linspace(-2, 2, 20).reshape(5, 4)


@pytest.mark.parametrize("selector", ["layer1.*.relu", "relu", "stem", "layer1.0"])
def test_compiled_code_follows_attach_and_detach(selector: str) -> None:
    torch.compiler.reset()
    net = make_net()
    own = gradient(net)
    before = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert torch.equal(gradient(before), own)
    handle = xg.attach(net, {selector: DOUBLES})
    ruled = gradient(net)
    after = torch.compile(net, fullgraph=True, backend="aot_eager")
    assert not torch.equal(ruled, own)
    torch.testing.assert_close(gradient(after), ruled)
    torch.testing.assert_close(gradient(before), ruled)
    handle.detach()
    torch.testing.assert_close(gradient(before), own)
    torch.testing.assert_close(gradient(after), own)


class Activations(nn.Module):
    """Functions that Dynamo does not ask modes about by itself."""

    def forward(self, x: Any) -> Any:
        return F.hardswish(F.tanh(F.hardtanh_(2.0 * x))) + F.relu_(x * 1.0) ** 2


@pytest.mark.parametrize("operation", ["hardswish", "tanh", "hardtanh", "relu", "pow"])
def test_compiled_code_misses_no_function_of_an_operation(operation: str) -> None:
    torch.compiler.reset()
    model = Activations()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with xg.attach(model, {operation: READS_TIN}):
        torch.testing.assert_close(gradient(compiled), gradient(model))


def test_a_compiled_model_is_attached_to_by_its_own_names() -> None:
    torch.compiler.reset()
    net = make_net()
    compiled = torch.compile(net, backend="aot_eager")
    with xg.attach(compiled, {"layer1.*.relu": GUIDES}):
        torch.testing.assert_close(gradient(compiled), gradient(net))


def test_transforms_of_functions_take_the_rules() -> None:
    net = make_net()
    with xg.attach(net, RULES):
        expected = gradient(net)
        params = dict(net.named_parameters())
        net.zero_grad()
        (net(X) ** 2).sum().backward()

        def loss(x: Any, params: Any) -> Any:
            return (torch.func.functional_call(net, params, (x,)) ** 2).sum()

        def loss_of_one(x: Any) -> Any:
            return loss(x[None], params)

        torch.testing.assert_close(torch.func.grad(loss)(X, params), expected)
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss_of_one))(X), expected)
        by_name = torch.func.grad(loss, argnums=1)(X, params)
    for name, param in net.named_parameters():
        torch.testing.assert_close(by_name[name], param.grad)


def test_without_gradients_a_model_computes_what_it_did() -> None:
    net = make_net()
    y = net(X)
    with xg.attach(net, RULES), torch.no_grad():
        assert torch.equal(net(X), y)
    with xg.attach(net, RULES), torch.inference_mode():
        assert torch.equal(net(X), y)


def test_under_autocast_a_rules_gradient_has_the_inputs_dtype() -> None:
    net = make_net()
    with xg.attach(net, RULES):
        expected = gradient(net)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = gradient(net)
    assert given.dtype is torch.float32
    torch.testing.assert_close(given, expected, rtol=0.1, atol=0.05 * float(expected.abs().max()))


def test_threads_each_have_the_rules_of_their_own_models() -> None:
    nets = [make_net() for _ in range(4)]
    own, found = gradient(nets[0]), {}
    handles = [xg.attach(net, RULES) for net in nets[::2]]
    ruled = gradient(nets[0])

    def run(i: int) -> None:
        found[i] = [gradient(nets[i]) for _ in range(5)]

    on_threads(run, *range(4))
    for i in range(4):
        assert all(torch.equal(grad, own if i % 2 else ruled) for grad in found[i])
    for each in handles:
        each.detach()


def test_hooks_of_users_see_the_layer_with_its_rule() -> None:
    net, seen = make_net(), []
    net.head[1].register_full_backward_hook(lambda m, into, out: seen.append((into[0], out[0])))
    net.head[1].register_forward_hook(lambda m, args, out: seen.append(type(m).__name__))
    with xg.attach(net, {"head.1": DOUBLES}):
        gradient(net)
    assert seen[0] == "GELU"
    torch.testing.assert_close(seen[1][0], 2.0 * seen[1][1])


def test_parametrized_layers_stay_so_in_any_order() -> None:
    norm, undo = nn.utils.parametrizations.weight_norm, nn.utils.parametrize.remove_parametrizations
    net = make_net()
    ruled, plain = None, gradient(net)
    for attach_first in (True, False):
        handle = xg.attach(net, RULES) if attach_first else None
        norm(net.stem)
        handle = handle or xg.attach(net, RULES)
        ruled = gradient(net) if ruled is None else ruled
        torch.testing.assert_close(gradient(net), ruled)
        copied = copy.deepcopy(net)
        torch.testing.assert_close(gradient(copied), ruled)
        if attach_first:
            handle.detach()
            torch.testing.assert_close(gradient(copied), plain)
            torch.testing.assert_close(gradient(copy.deepcopy(copied)), plain)
            undo(net.stem, "weight")
        else:
            undo(net.stem, "weight")  # which spoils the copy, as in torch without rules
            torch.testing.assert_close(gradient(net), ruled)
            handle.detach()
        assert type(net.stem) is nn.Linear
        torch.testing.assert_close(gradient(net), plain)


def test_a_lazy_layer_keeps_its_rule_when_it_becomes_another() -> None:
    net = nn.Sequential(nn.LazyLinear(4))
    with xg.attach(net, {"0": DOUBLES}):
        first = gradient(net, X)
        assert torch.equal(gradient(net, X), first)
        assert net[0].__class__ is nn.Linear
    assert type(net[0]) is nn.Linear
    torch.testing.assert_close(2.0 * (2.0 * net(X)), first)


def test_a_module_with_a_forward_of_its_own_keeps_it_under_the_rule() -> None:
    net, same = make_net(), make_net()
    block = net.layer1[0]
    inner = block.forward
    block.forward = lambda x: 1.0 * inner(x)
    for rules in ({"layer1.0": DOUBLES}, {"relu": GUIDES}):
        with xg.attach(net, rules), xg.attach(same, rules):
            torch.testing.assert_close(gradient(net), gradient(same))
        torch.testing.assert_close(gradient(net), gradient(same))
    del block.forward


def test_replicas_of_data_parallel_have_the_rules() -> None:
    net = make_net()
    with xg.attach(net, RULES):
        replica = net.layer1[0]._replicate_for_data_parallel()
        torch.testing.assert_close(gradient(replica), gradient(net.layer1[0]))


def test_what_is_exported_has_no_gradient_in_the_place_of_the_rules() -> None:
    net = make_net().eval()
    for rules in ({"relu": GUIDES}, {"stem": DOUBLES}):
        with xg.attach(net, rules):
            exported = torch.export.export(net, (X,)).module()
        assert torch.equal(exported(X), net(X))
        with pytest.raises(RuntimeError, match=r"not require grad|not have been used"):
            gradient(exported)
