"""torch.compile around, within and beneath other transforms keeps the rule, or raises."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest

import multigrad as xg

from . import formulas
from .formulas import find

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")

Tensor: TypeAlias = Any
Array: TypeAlias = np.ndarray[Any, Any]

X, W, V = (each.astype(np.float32) for each in (formulas.X, formulas.W, formulas.V))
FORMULAS = {
    name: formulas.NUMPYS[name]
    for name in (
        *("triangular", "rectangular", "clip_norm", "d(Linear)", "test norm"),
        formulas.COMPOSED,
    )
}
close = partial(formulas.close, rtol=2e-6, atol=1e-6)
every_rule = pytest.mark.parametrize("rule", FORMULAS)
BATCH = np.stack([X, 0.5 * X, -X])


@pytest.fixture(autouse=True)
def fresh(times_norm: str) -> None:
    """Start from no compiled code."""
    torch._dynamo.reset()


def compile_whole(f: Callable[..., Any], backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(f, backend=backend, fullgraph=True, **options)


def pull(f: Callable[[Tensor], Tensor], x: Array, w: Array) -> Array:
    """Return the gradient of `sum(w f(x))`."""
    primal = torch.tensor(x, requires_grad=True)
    (grad,) = torch.autograd.grad((f(primal) * torch.tensor(w)).sum(), primal)
    return grad.numpy()


@every_rule
def test_step_that_is_compiled_whole_trains_by_the_rule(rule: str) -> None:
    linear = torch.nn.Linear(7, 7, bias=False)
    torch.nn.init.eye_(linear.weight)
    model = torch.nn.Sequential(linear, xg.Activation("Heaviside"))
    compiled = compile_whole(model)
    with xg.use(find(rule)):
        (compiled(torch.tensor(X)) * torch.tensor(W)).sum().backward()
    close(linear.weight.grad, np.outer(FORMULAS[rule](W, X), X))


@every_rule
def test_backward_inside_of_compiled_code_is_the_rules(rule: str) -> None:
    act = xg.activation("Tanh")
    weight, w = torch.tensor(X, requires_grad=True), torch.tensor(W)

    def step() -> None:
        (act(weight * 1.0) * w).sum().backward()

    with xg.use(find(rule)):
        torch.compile(step, backend="aot_eager")()
    close(weight.grad, FORMULAS[rule](W, X))


@pytest.mark.parametrize(
    ("rule", "compiler"),
    [*((rule, "aot_eager") for rule in FORMULAS), ("rectangular", "eager")],
)
def test_transforms_inside_of_compiled_code_see_the_rule(rule: str, compiler: str) -> None:
    from torch.func import grad, jacrev, vjp, vmap

    act, w = xg.activation("Tanh"), torch.tensor(W)
    x, batch = torch.tensor(X), torch.tensor(BATCH)

    def loss(x: Tensor) -> Tensor:
        return (act(x) * w).sum()

    formula = FORMULAS[rule]
    rows = np.stack([formula(row, X) for row in np.eye(7, dtype=np.float32)])
    many = formula(np.broadcast_to(W, BATCH.shape), BATCH)
    with xg.use(find(rule)):
        close(compile_whole(grad(loss), compiler)(x), formula(W, X))
        close(compile_whole(lambda x: vjp(act, x)[1](w)[0], compiler)(x), formula(W, X))
        close(compile_whole(jacrev(act), compiler)(x), rows)
        close(compile_whole(vmap(grad(loss)), compiler)(batch), many)
        close(compile_whole(grad(lambda x: vmap(loss)(x).sum()), compiler)(batch), many)
        mapped = compile_whole(vmap(act), compiler)
        close(pull(mapped, BATCH, np.broadcast_to(W, BATCH.shape).copy()), many)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "test norm"])
def test_second_order_inside_of_compiled_code_is_that_of_eager_code(rule: str) -> None:
    from torch.func import grad, jacrev

    act, w, v, x = xg.activation("Tanh"), torch.tensor(W), torch.tensor(V), torch.tensor(X)
    first = grad(lambda x: (act(x) * w).sum())
    slope = {
        "triangular": np.diag(-np.sign(X) * (np.abs(X) < 1.0) * W),
        "rectangular": np.zeros((7, 7)),
        "test norm": np.outer(W, X / np.linalg.norm(X)),
    }[rule]
    with xg.use(rule):
        close(compile_whole(jacrev(first))(x), slope)
        close(compile_whole(grad(lambda x: (first(x) * v).sum()))(x), V @ slope)


@every_rule
def test_one_graph_for_all_sizes_keeps_the_rule(rule: str) -> None:
    from torch.func import grad

    act = xg.activation("Tanh")
    plain = compile_whole(act, dynamic=True)
    transformed = compile_whole(grad(lambda x, w: (act(x) * w).sum()), dynamic=True)
    with xg.use(find(rule)):
        for n in (3, 5, 7):
            expected = FORMULAS[rule](W[:n], X[:n])
            close(pull(plain, X[:n], W[:n]), expected)
            close(transformed(torch.tensor(X[:n]), torch.tensor(W[:n])), expected)


@every_rule
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_keep_dtype_and_rule(rule: str, dtype: str) -> None:
    from torch.func import grad

    act = xg.activation("Heaviside")
    x, w = (torch.tensor(values).to(getattr(torch, dtype)) for values in (X, W))
    expected = FORMULAS[rule](w.float().numpy(), x.float().numpy())
    primal = x.clone().requires_grad_()
    with xg.use(find(rule)):
        y = compile_whole(act)(primal)
        mapped = compile_whole(grad(lambda x: (act(x) * w).sum()))(x)
    (grad_in,) = torch.autograd.grad((y * w).sum(), primal)
    for got in (grad_in, mapped):
        assert got.dtype == x.dtype
        np.testing.assert_allclose(got.float(), expected, rtol=0.02, atol=0.01)


@every_rule
@pytest.mark.parametrize("compile_it", [False, True])
def test_autocast_gives_each_gradient_its_tensors_dtype(rule: str, compile_it: bool) -> None:
    first, last = (torch.nn.Linear(7, 7, bias=False) for _ in range(2))
    for layer in (first, last):
        torch.nn.init.eye_(layer.weight)
    model = torch.nn.Sequential(first, xg.Activation("Tanh"), last)
    run = compile_whole(model) if compile_it else model
    x = torch.tensor(X, requires_grad=True)
    scale = 1024.0  # as a gradient scaler has it
    with torch.autocast("cpu", torch.bfloat16), xg.use(find(rule)):
        y = run(x)
        loss = (y.float() * torch.tensor(W)).sum() * scale
    loss.backward()
    assert y.dtype == torch.bfloat16
    expected = FORMULAS[rule](W * scale, X)
    for grad, value in (
        (x.grad, expected),
        (first.weight.grad, np.outer(expected, X)),
    ):
        assert grad.dtype == torch.float32
        np.testing.assert_allclose(grad, value, rtol=0.03, atol=0.01 * np.abs(value).max())


@pytest.mark.parametrize("compile_it", [False, True])
def test_float32_input_under_autocast_stays_float32(compile_it: bool) -> None:
    act = xg.activation("Tanh")
    run = compile_whole(act) if compile_it else act
    with torch.autocast("cpu", torch.bfloat16), xg.use("triangular"):
        assert run(torch.tensor(X)).dtype == torch.float32
        close(pull(run, X, W), FORMULAS["triangular"](W, X))


# --- lowered objects in the code of experts -------------------------------------------------------


class Layer:
    """Keep `F.apply` as an attribute, as surrogate libraries do."""

    def __init__(self, native: Any) -> None:
        self.apply = native.apply

    def __call__(self, x: Tensor) -> Tensor:
        return self.apply(x)


@pytest.mark.parametrize("rule", ["triangular", "rectangular", "d(Linear)", "clip_norm"])
@pytest.mark.parametrize("forward_mode", [False, True])
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_lowered_function_keeps_its_gradient_in_compiled_code(
    rule: str, forward_mode: bool, compiler: str
) -> None:
    from torch.func import grad, vmap

    if forward_mode and rule == "clip_norm":
        with pytest.raises(xg.UnsupportedOp, match="not linear"):
            xg.lower(rule, "torch", forward="Tanh", forward_mode=True)
        return
    native = xg.lower(rule, "torch", forward="Tanh", forward_mode=forward_mode)
    layer, w = Layer(native), torch.tensor(W)

    def loss(x: Tensor) -> Tensor:
        return (native.apply(x) * w).sum()

    expected = FORMULAS[rule](W, X)
    close(pull(compile_whole(lambda x: native.apply(x), compiler), X, W), expected)
    close(pull(compile_whole(lambda x: layer(x), compiler), X, W), expected)
    close(compile_whole(grad(loss), compiler)(torch.tensor(X)), expected)
    close(compile_whole(vmap(grad(loss)), compiler)(torch.tensor(X)[None])[0], expected)


def test_lowered_random_function_draws_anew_in_compiled_code() -> None:
    from torch.func import grad

    native = xg.lower("full_jam", "torch")
    plain = compile_whole(lambda x: native.apply(x))
    transformed = compile_whole(grad(lambda x: native.apply(x).sum()))
    draws = [pull(plain, X, W) / W for _ in range(3)]
    draws += [transformed(torch.tensor(X)).numpy() for _ in range(3)]
    assert len({tuple(draw) for draw in draws}) == 6
    assert all(((draw >= 0.0) & (draw <= 1.0)).all() for draw in draws)


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("rule", ["rectangular", formulas.COMPOSED])
def test_default_compiler_keeps_masks_norms_and_lowered_functions(rule: str) -> None:
    from torch.func import grad, vmap

    act, w = xg.activation("Tanh"), torch.tensor(W)
    native = xg.lower(find(rule), "torch", forward="Tanh")
    with xg.use(find(rule)):
        close(pull(compile_whole(act, "inductor"), X, W), FORMULAS[rule](W, X))
        mapped = compile_whole(vmap(grad(lambda x: (act(x) * w).sum())), "inductor")
        many = FORMULAS[rule](np.broadcast_to(W, BATCH.shape), BATCH)
        close(mapped(torch.tensor(BATCH)), many)
    lowered = compile_whole(lambda x: native.apply(x), "inductor")
    close(pull(lowered, X, W), FORMULAS[rule](W, X))
