"""Classes that are given modules: what these hold are hidden arguments, and what a backward adds to
the `.grad` of parameters are their gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import multigrad as xg

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.random.default_rng(0).standard_normal((2, 6, 4)).astype(np.float32)
HEAD = np.linspace(-1.0, 1.0, X.size, dtype=np.float32).reshape(X.shape)


def make_module(width: int = 4, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 3), torch.nn.SiLU(), torch.nn.Linear(3, width)
    )


def make_half(seed: int) -> Any:
    """Make a function of half of an input: what is taken apart holds four of them, twice each."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())


class Tiles(torch.autograd.Function):
    """Runs a module on parts of its input, and once more in backward, part by part."""

    @staticmethod
    def forward(ctx: Any, run: Any, module: Any, x: Any, count: int) -> Any:
        ctx.run, ctx.module, ctx.count = run, module, count
        ctx.save_for_backward(x)
        with torch.no_grad():
            return torch.cat([run(module, part) for part in x.chunk(count, dim=-2)], dim=-2)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (x,) = ctx.saved_tensors
        needed = x.requires_grad
        x = x.detach()
        x.requires_grad_(needed)
        shape, width = x.shape, x.shape[-1]
        x, head = x.view(-1, width), grads[0].view(-1, width)
        slope = torch.zeros_like(x)
        parts = list(torch.chunk(x, ctx.count, dim=0))
        for i, part in enumerate(parts):
            part.requires_grad_(needed)
            start, length = i * parts[0].shape[0], part.shape[0]
            part.grad = slope.narrow(0, start, length).view_as(part)
            with torch.enable_grad():
                y = ctx.run(ctx.module, part)
            torch.autograd.backward(y, head.narrow(0, start, length).view_as(part))
        return None, None, slope.view(shape), None


class Couples(torch.nn.Module):
    """Two halves, each changed by a function of the other."""

    def __init__(self, f: Any, g: Any) -> None:
        super().__init__()
        self.f, self.g = f, g

    def forward(self, x: Any) -> Any:
        a, b = torch.chunk(x, 2, dim=-1)
        with torch.no_grad():
            a = a + self.f(b)
            b = b + self.g(a)
        return torch.cat([a, b], dim=-1)

    def invert(self, y: Any, grad: Any) -> tuple[Any, Any]:
        """Return the input, and its gradient; those of the parameters are added to theirs."""
        (a, b), (grad_a, grad_b) = torch.chunk(y, 2, dim=-1), torch.chunk(grad, 2, dim=-1)
        with torch.enable_grad():
            a.requires_grad = True
            change = self.g(a)
            torch.autograd.backward(change, grad_b)
        with torch.no_grad():
            b = b - change
            grad_a = grad_a + a.grad
            a.grad = None
        with torch.enable_grad():
            b.requires_grad = True
            change = self.f(b)
            torch.autograd.backward(change, grad_a, retain_graph=True)
        with torch.no_grad():
            a, grad_b = a - change, grad_b + b.grad
            b.grad = None
            return torch.cat([a, b.detach()], dim=-1), torch.cat([grad_a, grad_b], dim=-1)


class Reversible(torch.autograd.Function):
    """Keeps its output alone, and computes its input from that."""

    @staticmethod
    def forward(ctx: Any, x: Any, blocks: Any) -> Any:
        for block in blocks:
            x = block(x)
        ctx.y, ctx.blocks = x.detach(), blocks
        return x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        y = ctx.y
        for block in reversed(ctx.blocks):
            y, grad = block.invert(y, grad)
        return grad, None


class Rewound(torch.nn.Module):
    """Runs a module once more with the generator of random numbers where it was."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.run, self.state = run, None

    def forward(self, x: Any) -> Any:
        if not torch.is_grad_enabled():
            self.state = torch.get_rng_state()
            return self.run(x)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            return self.run(x)


class ReversibleList(torch.autograd.Function):
    """The same, which makes a module list of its own in backward."""

    forward = Reversible.forward

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        y = ctx.y
        for block in ctx.blocks[::-1]:
            y, grad = block.invert(y, grad)
        return grad, None


class Recomputes(torch.autograd.Function):
    """A checkpoint."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: Any) -> Any:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, grad)
        return None, x.grad


MODULE = make_module()
BLOCKS = torch.nn.ModuleList([Couples(make_half(i), make_half(i + 9)) for i in (1, 2)])
REWOUND = torch.nn.ModuleList(
    [Couples(Rewound(make_half(i)), Rewound(make_half(i + 9))) for i in (1, 2)]
)


def run_module(module: Any, x: Any) -> Any:
    return module(x)


def doubled(x: Any) -> Any:
    return MODULE(x) * 2


# A class, its arguments ("x" where the tensor goes), the module among them, what it computes.
CASES: dict[str, tuple[Any, tuple[Any, ...], Any, Any]] = {
    "tiles": (Tiles, (run_module, MODULE, "x", 3), MODULE, MODULE),
    "reversible": (Reversible, ("x", BLOCKS), BLOCKS, None),
    "reversible, rewound": (ReversibleList, ("x", REWOUND), REWOUND, None),
    "checkpoint of a module": (Recomputes, (MODULE, "x"), MODULE, MODULE),
    "checkpoint of a method": (Recomputes, (MODULE.forward, "x"), MODULE, MODULE),
    "checkpoint of a function": (Recomputes, (doubled, "x"), MODULE, doubled),
}


def with_x(args: tuple[Any, ...], x: Any) -> list[Any]:
    return [x if isinstance(each, str) else each for each in args]


def by_autograd(case: str) -> tuple[Any, list[Any]]:
    """Return the output and the gradients of the input and the parameters as torch has them."""
    used, args, module, plain = CASES[case]
    x = torch.tensor(X, requires_grad=True)
    if plain is not None:
        y = plain(x)
        found = torch.autograd.grad(y, [x, *module.parameters()], torch.tensor(HEAD))
        return y.detach().numpy(), [each.numpy() for each in found]
    module.zero_grad()
    y = used.apply(*with_x(args, x))
    expected = y.detach().clone()
    y.backward(torch.tensor(HEAD))
    found = [each.grad.numpy().copy() for each in (x, *module.parameters())]
    module.zero_grad()
    return expected.numpy(), found


@pytest.mark.parametrize("case", CASES)
def test_a_class_with_a_module_inside_has_its_numbers(backend: Any, case: str) -> None:
    used, args, _, _ = CASES[case]
    expected, (slope, *_) = by_autograd(case)
    if case == "reversible, rewound" and backend.name != "torch":
        with pytest.raises(xg.TraceError, match="assigns to 'state' of a Rewound"):
            xg.convert(used)(*with_x(args, backend.array(X)))
        return
    y, pull = xg.vjp(xg.convert(used), *with_x(args, backend.array(X)))
    np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-4, atol=1e-6)
    found = pull(backend.array(HEAD))[args.index("x")]
    np.testing.assert_allclose(backend.numpy(found), slope, rtol=1e-4, atol=1e-5)


class Model(torch.nn.Module):
    """Calls a class with its blocks."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.used, _, self.blocks, _ = CASES[case]

    def forward(self, x: Any) -> Any:
        return self.used.apply(x, self.blocks)


def test_within_a_module_that_is_taken_apart_parameters_get_gradients(backend: Any) -> None:
    _, (slope, *expected) = by_autograd("reversible")
    apply, parameters = xg.convert(Model("reversible"), to=backend.name)
    _, pull = xg.vjp(apply, parameters, backend.array(X))
    gradients, own = pull(backend.array(HEAD))
    names = [f"blocks.{name}" for name, _ in BLOCKS.named_parameters()]
    every = [own, *(gradients[name] for name in names)]
    for found, known in zip(every, [slope, *expected], strict=True):
        np.testing.assert_allclose(backend.numpy(found), known, rtol=1e-4, atol=1e-5)


def test_a_module_that_is_taken_apart_and_stores_on_itself_is_refused(backend: Any) -> None:
    apply, parameters = xg.convert(Model("reversible, rewound"), to=backend.name)
    with pytest.raises(xg.TraceError, match="assigns to 'state' of a Rewound"):
        apply(parameters, backend.array(X))


# What stores on a module runs as written: it adds to the gradients of the parameters itself.
@pytest.mark.parametrize("case", sorted(CASES.keys() - {"reversible, rewound"}))
def test_on_torch_parameters_are_arguments_of_autograd(case: str) -> None:
    used, args, module, _ = CASES[case]
    _, expected = by_autograd(case)
    x = torch.tensor(X, requires_grad=True)
    y = xg.convert(used)(*with_x(args, x))
    found = torch.autograd.grad(y, [x, *module.parameters()], torch.tensor(HEAD))
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own.numpy(), other, rtol=1e-4, atol=1e-5)
    assert all(each.grad is None for each in module.parameters())


def test_what_a_module_holds_is_read_at_each_call(backend: Any) -> None:
    module = make_module(seed=5)
    function = xg.convert(Recomputes)
    for _ in range(2):
        with torch.no_grad():
            module[0].weight.mul_(-0.5)
            module[2].bias.add_(1.0)
        y = function(module, backend.array(X))
        expected = module(torch.tensor(X)).detach().numpy()
        np.testing.assert_allclose(backend.numpy(y), expected, rtol=1e-4, atol=1e-6)


def test_a_second_derivative_through_what_is_added_is_refused() -> None:
    x = torch.tensor(X, requires_grad=True)
    y = xg.convert(Recomputes)(MODULE, x)
    (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    with pytest.raises((xg.GradientError, RuntimeError), match="differentiate"):
        torch.autograd.grad(slope.sum(), x)


class Keeper(torch.nn.Module):
    """Keeps what it has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0, 3.0]))
        self.calls, self.first = 0, None

    @cached_property
    def doubled(self) -> Any:
        return self.weight.detach() * 2

    @cached_property
    def steps(self) -> Any:
        return torch.arange(2.0)

    @cached_property
    def number(self) -> float:
        return 3.0

    def counted(self) -> Any:
        self.calls += 1
        return self.weight.detach() * self.calls

    def lazy(self) -> Any:
        if self.first is None:
            self.first = self.weight.detach() * 2
        return self.first

    def added(self) -> Any:
        if not hasattr(self, "second"):
            self.second = self.weight.detach() * 2
        return self.second


KEEPING: dict[str, Callable[[Any], Any]] = {
    "a cached property of weights": lambda module: module.doubled,
    "a cached constant": lambda module: module.steps,
    "a cached number": lambda module: module.number,
    "a count": lambda module: module.counted(),
    "what it fills": lambda module: module.lazy(),
    "what it adds": lambda module: module.added(),
}


@pytest.mark.parametrize("part", ["forward", "backward"])
@pytest.mark.parametrize("kept", KEEPING)
def test_what_code_stores_on_a_module_is_stored_as_the_class_stores_it(
    kept: str, part: str
) -> None:
    factor = KEEPING[kept]

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, module: Any) -> Any:
            ctx.module = module
            return x * (factor(module) if part == "forward" else 2)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * (factor(ctx.module) if part == "backward" else 2), None

    def run(apply: Any) -> list[Any]:
        module, x = Keeper(), torch.tensor([1.0, 2.0], requires_grad=True)
        outcomes = []
        for _ in range(3):
            y = apply(x, module)
            outcomes += [y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()]
            with torch.no_grad():
                module.weight *= 10
        names = sorted(vars(module))
        return [*outcomes, module.calls, names]

    assert run(xg.convert(Scaled).apply) == run(Scaled.apply)


def test_on_another_framework_a_cached_property_is_computed_at_each_call() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, module: Any) -> Any:
            ctx.module = module
            return x * module.doubled

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * ctx.module.doubled, None

    y, pull = xg.vjp(xg.convert(Scaled), np.ones(2, np.float32), Keeper())
    assert (y.tolist(), pull(np.ones(2, np.float32))[0].tolist()) == ([4.0, 6.0], [4.0, 6.0])
