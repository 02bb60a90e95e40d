"""torch.compile never keeps a rule that is no longer in force: it follows, or it says so."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from ..harness import fresh
from ..harness.models.surrogates import triangle, window

torch: Any = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X = np.linspace(-2.0, 2.0, 9, dtype=np.float32)


def gradient(f: Callable[[Tensor], Tensor], x: Array = X) -> Array:
    """Return the gradient of `f(x).sum()`."""
    primal = torch.tensor(x, requires_grad=True)
    (grad,) = torch.autograd.grad(f(primal).sum(), primal)
    return grad.numpy()


def compiled(f: Callable[..., Any], fullgraph: bool = True) -> tuple[Callable[..., Any], Any]:
    """Return the compiled function and what counts its graphs (`frame_count`)."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    graphs = CompileCounterWithBackend("aot_eager")
    return torch.compile(f, backend=graphs, fullgraph=fullgraph), graphs


@pytest.mark.usefixtures("torch_compiles")
def test_activation_compiles_in_a_process_that_has_not_called_it_before() -> None:
    script = """
        import torch
        import multigrad as xg

        act = xg.activation("ReLU")
        x = torch.tensor([-1.0, 2.0], requires_grad=True)
        torch.compile(act, backend="aot_eager", fullgraph=True)(x).sum().backward()
        assert x.grad.tolist() == [0.0, 1.0]
    """
    fresh.check(script, "torch")


@pytest.mark.usefixtures("torch_compiles")
def test_what_was_used_before_the_compiler_was_imported_keeps_its_gradient_in_it() -> None:
    script = """
        import sys
        import torch
        import multigrad as xg

        act, step = xg.Activation("ReLU", "triangular"), xg.lower("triangular", "torch").apply
        x = torch.tensor([-0.5, 2.0, 0.25], requires_grad=True)
        act(x).sum().backward()
        step(x, 1.0).sum().backward()
        known = x.grad / 2
        other = torch.ones(2, requires_grad=True)
        own = xg.function(lambda x: x * torch.sigmoid(x), lambda g, x: g * torch.cos(x))
        own(other).sum().backward()  # and is proven
        late = {"torch._dynamo", "sympy"} & sys.modules.keys()
        assert not late, late

        def gradient(function):
            return torch.func.grad(lambda x: function(x).sum())

        for function in (act, lambda x: step(x, 1.0)):
            found = torch.compile(gradient(function), backend="aot_eager")(x.detach())
            assert found.tolist() == known.tolist(), (found, known)
    """
    fresh.check(script, "torch")


@pytest.mark.usefixtures("torch_compiles")
def test_what_was_made_before_torch_was_imported_may_be_met_by_the_compiler_first() -> None:
    script = """
        import os
        import sys
        import multigrad as xg

        spike, square = xg.activation("Heaviside", "triangular"), xg.function(lambda x: x * x)
        assert "torch" not in sys.modules
        import torch
        import torch._dynamo  # as `torch.compile` does; each order is met first in a fork

        def both(x):
            return spike(x) + square(x) * square(x=x)

        class Both(torch.nn.Module):
            def forward(self, x):
                return both(x)

        for functions in (square, both), (spike, both), (both,), ():
            child = os.fork()
            if child:
                assert os.waitpid(child, 0)[1] == 0
                continue
            x = torch.tensor([-0.5, 0.25, 2.0], requires_grad=True)
            for function in functions:
                compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
                (found,) = torch.autograd.grad(compiled(x).sum(), x)
                (known,) = torch.autograd.grad(function(x).sum(), x)
                assert found.tolist() == known.tolist(), (found, known)
            if not functions:  # torch 2.15's exporter has a compile context, but reads no code
                assert torch.export.export(Both(), (x,)).module()(x).tolist() == both(x).tolist()
            break
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)


def test_a_capture_that_imports_the_compiler_runs_what_is_compiled_as_it_is_written() -> None:
    script = """
        import sys
        import torch
        import multigrad as xg

        @xg.function
        def cube(x):
            assert "torch._dynamo" not in sys.modules or cube.seen
            cube.seen = True
            return torch.compile(lambda x: x * x * x, fullgraph=True)(x)

        cube.seen = False
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        cube(x).sum().backward()
        assert x.grad.tolist() == [3.0, 12.0]
        compiled = torch.compile(lambda x: x + 1.0, backend="eager")
        compiled(x)
        assert torch._dynamo.utils.counters["frames"]["ok"] == 1, "the compiler is on again"
    """
    fresh.check(script, "torch")


def test_infinite_param_is_followed(step: Any) -> None:
    f, _ = compiled(step)
    with xg.use("rectangular", {"a": -float("inf"), "b": 1.0}):
        np.testing.assert_array_equal(gradient(f), window(X, -np.inf, 1.0))


def test_rule_assigned_to_one_of_several_modules_is_followed() -> None:
    layers = [xg.Activation("Heaviside", rule="triangular"), xg.Activation("Linear")]
    model = nn.Sequential(*layers, xg.Activation("ReLU", rule="scale", params={"s": 2.0}))
    f, graphs = compiled(model)
    forward = (X > 0).astype(np.float32)
    np.testing.assert_allclose(gradient(f), triangle(X) * 2.0, rtol=1e-6)
    model[0].rule = "rectangular"
    np.testing.assert_allclose(gradient(f), window(X) * 2.0, rtol=1e-6)
    model[2].params = {"s": 5.0}
    np.testing.assert_allclose(gradient(f), window(X) * 5.0, rtol=1e-6)
    assert graphs.frame_count == 3
    with xg.use("gradient_reversal"):  # reaches the one layer that has no rule of its own
        np.testing.assert_allclose(gradient(f), window(X) * -5.0, rtol=1e-6)
    model[2].rule = None
    np.testing.assert_allclose(gradient(f), window(X) * forward, rtol=1e-6)


def test_many_modules_of_one_model_do_not_take_each_others_rules() -> None:
    factors = [2.0, 3.0, 5.0, 7.0]
    f, graphs = compiled(
        nn.Sequential(*(xg.Activation("Linear", "scale", {"s": s}) for s in factors))
    )
    np.testing.assert_allclose(gradient(f), np.full_like(X, 210.0), rtol=1e-6)
    assert graphs.frame_count == 1


def test_layers_of_one_model_draw_their_own_numbers() -> None:
    model = nn.Sequential(*(xg.Activation("Linear") for _ in range(3)))
    f, _ = compiled(model)
    with xg.use("full_jam", key=3):
        got = gradient(f)
    with xg.use("full_jam", key=3):
        np.testing.assert_allclose(got, gradient(model), rtol=1e-6)


def test_without_a_key_compiled_code_draws_anew_and_repeats_under_a_seed() -> None:
    f, _ = compiled(xg.activation("Linear"))
    with xg.use("full_jam"):
        torch.manual_seed(5)
        first, second = gradient(f), gradient(f)
        torch.manual_seed(5)
        again = gradient(f)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.filterwarnings("ignore:torch.compile has made")
def test_more_rules_than_dynamo_keeps_graphs_for_stay_correct(step: Any) -> None:
    f, graphs = compiled(step, fullgraph=False)
    for repeat in range(2):
        for s in range(12):
            with xg.use("scale", {"s": float(s)}):
                np.testing.assert_array_equal(gradient(f), np.full_like(X, s), str(repeat))
    assert graphs.frame_count < 12


def test_trace_of_an_interleaved_task_is_not_kept_for_another_rule(step: Any) -> None:
    f, _ = compiled(step, fullgraph=False)
    found: dict[str, Array] = {}
    entered = asyncio.Event()

    async def first() -> None:
        with xg.use("triangular"):
            entered.set()
            await asyncio.sleep(0.01)  # the other task puts its rule in force meanwhile
            found["triangular"] = gradient(f)

    async def second() -> None:
        await entered.wait()
        with xg.use("rectangular"):
            await asyncio.sleep(0.1)

    async def both() -> None:
        await asyncio.gather(first(), second())

    asyncio.run(both())
    np.testing.assert_allclose(found["triangular"], triangle(X), rtol=1e-6)
    with xg.use("rectangular"):
        np.testing.assert_array_equal(gradient(f), window(X))
    np.testing.assert_array_equal(gradient(f), np.zeros_like(X))


def test_double_backward_of_compiled_code_is_refused_and_not_wrong() -> None:
    f, _ = compiled(xg.activation("Linear"))
    x = torch.tensor(X, requires_grad=True)
    with xg.use("triangular"):
        (grad,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()
    with pytest.raises(RuntimeError, match=r"double backward|not have been used"):
        torch.autograd.grad(grad.sum(), x)


@pytest.mark.parametrize("kind", ["activation", "function"])
@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_has_no_gradient_rather_than_the_forwards_own(
    kind: str, strict: bool
) -> None:
    from ..support.in_torch import Called

    double = xg.function(xg.xp.tanh, lambda grad_out, x: 2.0 * grad_out)
    model = Called(xg.Activation("Tanh") if kind == "activation" else double)
    x = torch.tensor(X)
    with xg.use("triangular"):
        exported = torch.export.export(model, (x,), strict=strict).module()
    np.testing.assert_allclose(exported(x), np.tanh(X), rtol=1e-6)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient(exported)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_default_compiler_draws_and_masks_as_eager_code_does() -> None:
    torch._dynamo.reset()
    act = xg.activation("Heaviside")
    f = torch.compile(act, fullgraph=True)
    with xg.use("rectangular_jam", {"a": -1.0}, key=3):
        got = gradient(f)
    with xg.use("rectangular_jam", {"a": -1.0}, key=3):
        np.testing.assert_array_equal(got, gradient(act))
    g = xg.jit(act)
    for key in (1, 2):
        with xg.use("rectangular_jam", {"a": -float(key)}, key=key):
            got = [gradient(g), gradient(g)]
        with xg.use("rectangular_jam", {"a": -float(key)}, key=key):
            np.testing.assert_array_equal(got, [gradient(act), gradient(act)])


def test_options_of_xg_jit_are_handed_on() -> None:
    seen = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.append(len(inputs))
        return graph.forward

    def breaks(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return xg.activation("Linear")(x)

    xg.jit(xg.Activation("Linear"), backend=backend)(torch.tensor(X))
    assert len(seen) == 1
    with pytest.raises(RuntimeError, match="graph_break"):
        xg.jit(breaks, backend=backend, fullgraph=True)(torch.tensor(X))


def test_activations_made_in_compiled_code_are_those_of_eager_code() -> None:
    from multigrad.compat.snntorch import surrogate as snntorch
    from multigrad.compat.spikingjelly import surrogate as spikingjelly

    def f(x: Tensor, number: Any) -> Tensor:
        y = snntorch.FastSigmoid.apply(x, number) + 2 * snntorch.atan(alpha=number)(x)
        y = y + 3 * spikingjelly.ATan(number)(x) + 4 * spikingjelly.sigmoid.apply(x, number)
        y = y + 5 * xg.Activation("Heaviside", "fast_sigmoid", {"slope": number})(x)
        return y + xg.activation("Heaviside", "made_in_compiled_code")(x)

    def check(number: Any) -> None:
        grads = [gradient(partial(each, number=number)) for each in (f_compiled, f)]
        np.testing.assert_allclose(*grads, rtol=1e-6)

    xg.register("made_in_compiled_code")(lambda ctx, g, tin: 6 * g)
    f_compiled = compiled(f)[0]
    check(3)
    check(0.5)
    xg.register("made_in_compiled_code", override=True)(lambda ctx, g, tin: 7 * g)
    check(2)  # Dynamo makes a symbol of a number that has changed
    for made, words in (
        (lambda: xg.activation("Heaviside", "fast_sigmoid", {"slope": torch.ones(())}), "tensors"),
        (lambda: xg.get("fast_sigmoid").under("Heaviside"), "looked up in compiled code"),
    ):
        with pytest.raises(RuntimeError, match=f"{words}.*outside"):
            compiled(lambda x, made=made: made()(x))[0](torch.tensor(X))
        with_breaks = compiled(lambda x, made=made: made()(x), fullgraph=False)[0]
        np.testing.assert_array_equal(gradient(with_breaks), gradient(lambda x, m=made: m()(x)))
    with pytest.raises(xg.RuleError, match="did you mean 'triangular'"):
        compiled(lambda x: xg.activation("Heaviside", "triangluar")(x), fullgraph=False)[0](X)


def test_constant_arrays_may_be_read_more_than_once() -> None:
    weights, shifts = np.linspace(0.5, 2.5, 9), np.linspace(-1.0, 1.0, 9)

    @xg.custom_gradient
    def weighted(x: Tensor) -> Any:
        return x * weights, lambda g: g * weights + shifts

    def f(x: Tensor) -> Tensor:
        return weighted(weighted(x))

    f_compiled, graphs = compiled(f)
    np.testing.assert_array_equal(gradient(f_compiled), gradient(f))
    assert graphs.frame_count == 1


def test_constant_arrays_are_constants_of_a_graph_of_fake_tensors() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    weights = np.linspace(0.5, 2.5, 9)
    weighted = xg.custom_gradient(lambda x: (x * weights, lambda g: g * weights))
    x = torch.tensor(X)
    wanted = weighted(x)  # which leaves a tensor for the next call
    assert torch.equal(make_fx(weighted, tracing_mode="fake")(x)(x), wanted)


def test_a_class_is_given_the_shape_of_another_tensor_or_a_module() -> None:
    class Laid(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, shape: Any, layer: Any = None) -> Tensor:
            ctx.shape, ctx.has_layer = x.shape, layer is not None
            return x.reshape(shape) if layer is None else layer(x.reshape(shape))

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            return (2 * grad).reshape(ctx.shape), *[None] * (1 + ctx.has_layer)

    function, layer, y = xg.convert(Laid), nn.Linear(3, 3), torch.zeros(3, 3)
    f, _ = compiled(lambda x: function.apply(x, y.shape).sin())
    np.testing.assert_array_equal(gradient(f), gradient(lambda x: Laid.apply(x, y.shape).sin()))
    g, _ = compiled(lambda x: function.apply(x, (3, 3), layer).sin())
    expected = gradient(lambda x: Laid.apply(x, (3, 3), layer).sin())
    np.testing.assert_array_equal(gradient(g), expected)


def test_a_class_that_is_not_captured_compiles_as_it_is() -> None:
    scale = torch.tensor(3.0)

    @xg.convert
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * scale

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Tensor:
            return grad_out * scale * 2

    f, graphs = compiled(lambda x: Scaled.apply(x).sin())
    np.testing.assert_array_equal(gradient(f), gradient(lambda x: Scaled(x).sin()))
    scale.fill_(1.0)
    np.testing.assert_array_equal(gradient(f), gradient(lambda x: Scaled(x).sin()))
    assert graphs.frame_count == 1


# Params that are tensors, in code that torch.compile has made: their values are followed, as eager
# code follows them.


@pytest.fixture(autouse=True)
def fresh_compiler() -> None:
    torch._dynamo.reset()


def as_it_is(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
    return grad_out * (1.0 - tin.abs() / width).clamp(min=0.0)


@pytest.fixture(params=["triangular", "as it is"])
def rule(request: Any) -> str:
    if request.param == "as it is":
        xg.register(request.param, native=True)(as_it_is)
    return str(request.param)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_layers_own_param_is_followed_in_place_and_by_load_state_dict(compiler: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("width", torch.tensor(2.0))
            self.act = xg.Activation("Heaviside", "triangular", {"width": self.width})

        def forward(self, x: Tensor) -> Tensor:
            return self.act(x)

    net = Net()
    f = torch.compile(net, backend=compiler, fullgraph=True)
    np.testing.assert_allclose(gradient(f), triangle(X, 2.0), rtol=1e-6)
    net.width.fill_(1.0)
    np.testing.assert_allclose(gradient(f), triangle(X, 1.0), rtol=1e-6)
    net.load_state_dict({"width": torch.tensor(3.0)})
    np.testing.assert_allclose(gradient(f), triangle(X, 3.0), rtol=1e-6)


@pytest.mark.parametrize("wrap", [lambda f: compiled(f)[0], xg.jit])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_param_in_force_is_followed_within_one_use(rule: Any, wrap: Any, dtype: str) -> None:
    act = xg.activation("Heaviside")
    f = wrap(lambda x: act(x))
    width = torch.tensor(2.0, dtype=getattr(torch, dtype))
    with xg.use(rule, {"width": width}):
        for number in (2.0, 1.0, 3.0):
            width.fill_(number)
            np.testing.assert_allclose(gradient(f), triangle(X, number), rtol=1e-6)


def test_two_tensors_that_were_equal_are_told_apart(rule: Any) -> None:
    act = xg.activation("Heaviside")
    f, _ = compiled(lambda x: act(x))
    with xg.use(rule, {"width": 2.0}):
        np.testing.assert_allclose(gradient(f), triangle(X, 2.0), rtol=1e-6)
    first, second = torch.tensor(2.0), torch.tensor(2.0)
    with xg.use(rule, {"width": first}):
        np.testing.assert_allclose(gradient(f), triangle(X, 2.0), rtol=1e-6)
    with xg.use(rule, {"width": second}):
        second.fill_(1.0)
        np.testing.assert_allclose(gradient(f), triangle(X, 1.0), rtol=1e-6)
        with xg.use(rule, {"width": 3.0}):
            np.testing.assert_allclose(gradient(f), triangle(X, 3.0), rtol=1e-6)
        np.testing.assert_allclose(gradient(f), triangle(X, 1.0), rtol=1e-6)


def test_numbers_and_tensors_stand_beside_each_other() -> None:
    def window(ctx: Any, grad_out: Tensor, tin: Tensor, a: float, b: float, c: float) -> Tensor:
        return grad_out * (a + 10.0 * b + 100.0 * c)

    act = xg.activation("Linear")
    own = xg.activation("Linear", window, {"a": 1.0, "b": torch.tensor(2.0), "c": 3})
    f, g = compiled(lambda x: act(x))[0], compiled(lambda x: own(x))[0]
    a, c = torch.tensor(1.0), torch.tensor(3.0)
    with xg.use(window, {"a": a, "b": 2.0, "c": c}):
        np.testing.assert_allclose(gradient(f), 321.0)
        np.testing.assert_allclose(gradient(g), 321.0)
        a.fill_(5.0)
        c.fill_(7.0)
        np.testing.assert_allclose(gradient(f), 725.0)
        np.testing.assert_allclose(gradient(g), 321.0)


def test_a_rule_that_branches_on_a_tensor_says_so_as_in_eager_code() -> None:
    def steep(ctx: Any, grad_out: Tensor, tin: Tensor, width: float = 1.0) -> Tensor:
        return grad_out * 2.0 if width > 1.5 else grad_out

    act = xg.activation("Linear")
    f = torch.compile(lambda x: act(x), backend="aot_eager")
    for run in (act, f):
        with (
            xg.use(steep, {"width": torch.tensor(2.0)}),
            pytest.raises(xg.TraceError, match="width"),
        ):
            gradient(run)
    own, width = xg.activation("ReLU", steep), torch.tensor(2.0)
    f = torch.compile(lambda x: own.call_with(x, (width,)), backend="aot_eager")
    with pytest.raises(xg.MultigradError, match="value of param 'width' in Python"):
        gradient(f)


@pytest.mark.usefixtures("torch_compiles")
def test_as_many_graphs_as_torch_keeps_are_warned_of_with_the_way_out() -> None:
    act = xg.activation("Heaviside")
    f, _ = compiled(lambda x: act(x))
    limit = torch._dynamo.config.recompile_limit
    for i in range(limit - 1):
        with xg.use("triangular", {"width": 1.0 + i}):
            gradient(f)
    with xg.use("triangular", {"width": 0.5}), pytest.warns(UserWarning, match=r"xg\.jit"):
        gradient(f)


@pytest.mark.parametrize("jit", [False, True], ids=["torch.compile", "xg.jit"])
def test_a_rule_that_looks_at_lengths_gets_a_graph_for_each_shape(jit: bool) -> None:
    def by_rows(ctx: Any, grad_out: Any, tin: Any) -> Any:
        rows = 0.0
        for _ in range(tin.shape[0]):
            rows += 1.0
        return grad_out * rows

    act = xg.activation("ReLU", by_rows)
    run = xg.jit(act) if jit else torch.compile(act, fullgraph=True, backend="aot_eager")
    for shape in ((3, 2), (4, 2), (5,), (3, 2)):
        x = torch.ones(shape, requires_grad=True)
        run(x).sum().backward()
        assert torch.equal(x.grad, torch.full(shape, float(shape[0])))


class Nearest(torch.autograd.Function):
    """Asks for the lengths of `codes` alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor) -> Tensor:
        place = (codes.square().sum(1) - 2 * x @ codes.T).argmin(1)
        ctx.save_for_backward(place, codes, x)
        return codes.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        place, codes, x = ctx.saved_tensors
        return grad_out * x, torch.zeros_like(codes).index_add_(0, place, grad_out)


class NearestByLengths(Nearest):
    """Asks for the lengths of all: a graph would be for one batch alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor) -> Tensor:
        place = (codes.square().sum(1) - 2 * x @ codes.T).argmin(1).view(x.shape[:-1])
        ctx.save_for_backward(place, codes, x)
        return codes[place]

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> Any:
        place, codes, x = ctx.saved_tensors
        counts = torch.ones(1, 1).expand(grad_out.shape[0], 4)
        grad_codes = torch.zeros_like(codes)
        return grad_out * x, grad_codes.index_put_((place,), counts * grad_out, accumulate=True)


@pytest.mark.parametrize("cls", [Nearest, NearestByLengths])
def test_a_batch_of_another_size_is_no_other_graph(cls: Any) -> None:
    nearest, codes = xg.convert(cls), torch.randn(5, 4, requires_grad=True)

    def overwritten(x: Tensor) -> Tensor:
        kept = x.clone()
        y = nearest(kept, codes)
        kept.zero_()  # which a compiler does not notice, and eager code refuses
        return y

    f, graphs = compiled(overwritten)
    for n in range(4, 16):
        x = torch.randn(n, 4, requires_grad=True)
        found, expected = f(x), cls.apply(x, codes)
        assert torch.equal(found, expected)
        grads = (torch.autograd.grad(y.square().sum(), (x, codes)) for y in (found, expected))
        assert all(map(torch.equal, *grads))
    assert graphs.frame_count == 2
    nearest = xg.convert(cls)  # not captured yet
    f, graphs = compiled(overwritten)
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    assert torch.equal(f(x), cls.apply(x, codes))
    assert torch.equal(f(x[:5]), cls.apply(x[:5], codes)) and graphs.frame_count == 1


@pytest.mark.parametrize("strict", [False, True])
def test_a_class_that_asks_for_lengths_is_exported_for_any_batch(strict: bool) -> None:
    class Codes(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nearest(x, codes)

    nearest, codes, batch = xg.convert(NearestByLengths), torch.randn(5, 4), torch.export.Dim("n")
    program = torch.export.export(
        Codes(), (torch.randn(6, 4),), dynamic_shapes=({0: batch},), strict=strict
    )
    x = torch.randn(9, 4)
    assert torch.equal(program.module()(x), NearestByLengths.apply(x, codes))


def squared(x: Tensor) -> Tensor:
    return x * x, lambda upstream: upstream * 2.0 * x


def exponential(x: Tensor) -> Tensor:
    y = xg.xp.exp(x)
    return y, lambda upstream: upstream * y


@pytest.mark.parametrize("function", [squared, exponential])
@pytest.mark.parametrize("compiler", ["eager", "inductor"])
def test_what_is_kept_is_what_it_was_before_the_caller_wrote_into_it(
    function: Any, compiler: str
) -> None:
    """Eager torch raises an error; compiled code of torch's own classes is silently wrong."""
    act = xg.custom_gradient(function)

    def written(x: Tensor) -> Tensor:
        hidden = x * 2.0
        y = act(hidden)
        result = y * 3.0
        hidden.add_(1.0)
        y.add_(1.0)
        return result

    run = torch.compile(written, backend=compiler, fullgraph=True)
    expected = 6.0 * np.exp(2.0 * X) if function is exponential else 24.0 * X
    np.testing.assert_allclose(gradient(run), expected, rtol=1e-6)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(written)
