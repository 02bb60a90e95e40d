"""Numbers that change from call to call under torch.compile: two graphs, as by a class of torch."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")

pytestmark = [pytest.mark.needs("torch"), pytest.mark.usefixtures("torch_compiles")]

Tensor: TypeAlias = Any
NUMBERS = [0.05 * i for i in range(1, 13)]


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, alpha: float) -> Tensor:
        ctx.alpha = alpha
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        return -ctx.alpha * grad_out, None


@xg.custom_gradient
def mean(x: Tensor, factor: float) -> Any:
    return x.mean() * factor, lambda g: g * (1.0 / factor) * xg.xp.ones_like(x)


class Annealed(torch.nn.Module):
    clip = 0.0

    def forward(self, x: Tensor, number: float) -> Tensor:
        self.clip = number
        levels = xg.estimators.fake_quantize(x, -number, number)
        return xg.estimators.ste_sign(x, clip=self.clip) + levels + mean(x, number)


converted = xg.convert(Reversal)
window = xg.activation("Heaviside", "rectangular")


def made(x: Tensor, number: float) -> Tensor:
    own = xg.Activation("Heaviside", "triangular", {"width": number})
    return own(x) * own.width + xg.activation("Linear", "gradient_reversal", {"alpha": number})(x)


CASES: dict[str, tuple[Any, tuple[float, ...], str]] = {
    "estimator": (xg.estimators.gradient_reversal, (float("nan"), float("-inf")), "param 'alpha'"),
    "estimators of a module": (Annealed(), (-1.0, float("inf")), "param '(low|clip)'"),
    "converted class": (converted.apply, (), ""),
    "activation made there": (made, (-1.0, float("nan")), "param 'width'"),
    "param of a call": (
        lambda x, n: window(x, b=n),
        (-1.0, float("nan")),
        "param 'b'",
    ),
}


@pytest.mark.parametrize(
    ("case", "compiler"),
    [
        *((case, torch.compile) for case in CASES),
        ("estimator", xg.jit),
        ("param of a call", xg.jit),
    ],
)
def test_a_number_that_changes_takes_two_graphs(case: str, compiler: Any) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    function, wrong, name = CASES[case]
    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    options = {"backend": graphs, "fullgraph": True}
    f = compiler(lambda x, n: function(x, n), **options)
    # a registration after the activation was made: its rule is looked up anew
    xg.register("of another name")(lambda ctx, grad_out, tin: grad_out)
    xg.unregister("of another name")

    def both(run: Any, number: float) -> tuple[Tensor, Tensor]:
        x = torch.linspace(-2.0, 2.0, 9, requires_grad=True)
        y = run(x, number)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    for number in NUMBERS:
        torch.testing.assert_close(both(f, number), both(function, number), rtol=1e-6, atol=0.0)
    assert graphs.frame_count == 2
    for number in wrong:
        with pytest.raises(xg.RuleError, match=name):
            both(function, number)
        # Dynamo quotes the message in its own error.
        with pytest.raises((xg.RuleError, RuntimeError), match=name.replace("'", r"\\?'")):
            both(f, number)


def test_a_number_that_code_branches_on_is_named_before_torch_keeps_no_more_graphs() -> None:
    @xg.custom_gradient
    def steep(x: Tensor, slope: float) -> Any:
        return x if slope > 0.5 else 2.0 * x, lambda g: g * slope

    torch._dynamo.reset()
    f, x = torch.compile(lambda x, n: steep(x, n), backend="eager"), torch.ones(2)
    for number in range(1, torch._dynamo.config.recompile_limit):
        f(x, 0.1 * number)
    with pytest.warns(UserWarning, match="slope on which function 'steep' branches"):
        f(x, 0.95)


def test_activations_made_alike_share_a_graph() -> None:
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    graphs, x = CompileCounter(), torch.linspace(-1.0, 1.0, 5, requires_grad=True)
    f = torch.compile(lambda act, x: act(x), backend=graphs, fullgraph=True)
    first = []
    for make in (xg.activation, xg.Activation):
        for width in (1.0, 1.0, 1.5, 1):  # an int is another number: a rule may look at it
            act = make("Heaviside", "triangular", {"width": width})
            first = [*first[-3:], act]  # the first of the equal ones is gone at the end
            gradient = torch.autograd.grad(f(act, x).sum(), x)[0]
            torch.testing.assert_close(gradient, torch.autograd.grad(act(x).sum(), x)[0])
    assert graphs.frame_count <= 6


def test_a_schedule_on_a_layer_that_is_no_activation_breaks_the_graph_with_words() -> None:
    alpha = xg.schedule.linear(1.0, 0.5, steps=10)
    model = torch.nn.Sequential(torch.nn.Identity())
    x = torch.ones(3, requires_grad=True)
    with xg.attach(model, {"0": xg.get("gradient_reversal").with_params(alpha=alpha)}):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=r"use xg\.Activation"):
            torch.compile(model, backend="eager", fullgraph=True)(x)
        torch._dynamo.reset()
        f = torch.compile(model, backend="eager")
        for number in (1.0, 0.95):
            assert torch.autograd.grad(f(x).sum(), x)[0][0] == pytest.approx(-number)
            alpha.step()
