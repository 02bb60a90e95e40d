"""What code keeps of an argument is what it was at the call, whatever is written to the argument
before backward: as the code itself on torch, and on NumPy.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...harness.torch_class import torch_class

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
Tensor = Any
# By name, what is computed of x to be kept, and the gradient by what was kept.
KEPT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "a float": (lambda x: x.cos(), lambda g, kept: g * kept),
    "a copy": (lambda x: x.clone(), lambda g, kept: g * kept.cos()),
    "a part": (lambda x: x[:2].clone(), lambda g, kept: g * kept.sum()),
    "a norm": (lambda x: x.norm(), lambda g, kept: g * kept),
    "in 16 bits": (lambda x: x.bfloat16(), lambda g, kept: g * kept.float()),
    "of which signs cancel": (lambda x: -x, lambda g, kept: -(g * kept)),
    "the result's copy": (lambda x: x.sin().clone(), lambda g, kept: g * (1 - kept * kept)),
    "itself": (lambda x: x, lambda g, kept: g * kept.cos()),
    "a view of it": (lambda x: x.detach(), lambda g, kept: g * kept.cos()),
}


def make_class(name: str, as_attribute: bool = False) -> Any:
    compute, gradient = KEPT[name]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return gradient(g, ctx.kept if as_attribute else ctx.saved_tensors[0])

    @torch_class(backward)
    def Keeping(ctx: Any, x: Tensor) -> Tensor:
        if as_attribute:
            ctx.kept = compute(x)
        else:
            ctx.save_for_backward(compute(x))
        return x.sin()

    return Keeping


def write_in_place(x: Tensor, y: Tensor) -> None:
    x.add_(10)


def write_to_data(x: Tensor, y: Tensor) -> None:
    x.data.add_(10)


def write_to_result(x: Tensor, y: Tensor) -> None:
    y.data.add_(10)


def gradient_after(apply: Callable[[Tensor], Tensor], write: Callable[..., None]) -> Any:
    leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    x = leaf * 1
    y = apply(x)
    write(x, y)
    try:
        return torch.autograd.grad(y.sum(), leaf)[0].tolist()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return "refused"


@pytest.mark.parametrize("write", [write_in_place, write_to_data, write_to_result])
@pytest.mark.parametrize("name", KEPT)
def test_a_write_before_backward_is_seen_as_in_the_class(
    name: str, write: Callable[..., None]
) -> None:
    for as_attribute in (False, True):
        if as_attribute and name in ("itself", "a view of it"):  # which torch does not watch then
            continue
        cls = make_class(name, as_attribute)
        assert gradient_after(xg.convert(cls), write) == gradient_after(cls.apply, write)


# What is kept beside x, and the gradient by x and what was kept.
BESIDE: dict[str, tuple[Callable[[Tensor], Any], Callable[[Tensor, Any], Tensor]]] = {
    "a float": (lambda x: x.cos(), lambda x, kept: x * kept),
    "a copy": (lambda x: x.clone(), lambda x, kept: kept.cos() + x),
    "a mask": (lambda x: x > 2, lambda x, kept: x * kept),
    "a norm": (lambda x: x.norm(), lambda x, kept: x * kept),
    "a number": (lambda x: x.norm().item(), lambda x, kept: x * kept),
    "in another dtype": (lambda x: x.double(), lambda x, kept: x * kept.cos().float()),
    "a rounded one, for the difference": (lambda x: (x * 4).round() / 4, lambda x, kept: x - kept),
    "two, one of the other": (
        lambda x: (x.cos(), x.cos().sin()),
        lambda x, kept: x * kept[0] + kept[1],
    ),
    "the result's copy": (lambda x: x.sin().clone(), lambda x, kept: x * kept),
}


@pytest.mark.parametrize("write", [write_in_place, write_to_data, write_to_result])
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_kept_beside_the_argument_is_not_computed_of_what_is_written_to_it(
    name: str, write: Callable[..., None]
) -> None:
    compute, gradient = BESIDE[name]

    @torch_class(lambda ctx, g: g * gradient(ctx.saved_tensors[0], ctx.kept))
    def Keeping(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.kept = compute(x)
        return x.sin()

    assert gradient_after(xg.convert(Keeping), write) == gradient_after(Keeping.apply, write)


# Of a result e = exp(x), what is kept apart from the output, and the output.
APART: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    "a copy is returned": lambda e: (e, e.clone()),
    "a copy is kept": lambda e: (e.clone(), e),
    "times one": lambda e: (e, e * 1),
    "over one": lambda e: (e, e / 1),
    "to the power of one": lambda e: (e, e.pow(1)),
    "a copy by a cast": lambda e: (e, e.to(e.dtype, copy=True)),
    "computed of the output": lambda e: ((e * 2) / 2, e),
    "the output itself": lambda e: (e, e),
}


@pytest.mark.parametrize("name", APART)
def test_a_write_to_the_output_reaches_only_what_shares_its_memory(name: str) -> None:
    def forward_saving(ctx: Any, x: Tensor) -> Tensor:
        kept, y = APART[name](x.exp())
        ctx.save_for_backward(kept)
        return y

    def forward_with_attribute(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept, y = APART[name](x.exp())
        return y

    saving = torch_class(lambda ctx, g: g * ctx.saved_tensors[0])(forward_saving)
    holding = torch_class(lambda ctx, g: g * ctx.kept)(forward_with_attribute)
    is_watched = name != "the output itself"  # torch does not watch one that is an attribute
    for cls in (saving, holding) if is_watched else (saving,):
        for write in (write_to_result, lambda x, y: y.add_(10)):
            assert gradient_after(xg.convert(cls), write) == gradient_after(cls.apply, write)


# By name, a forward, and the gradient by the result, which backward computes again.
AGAIN: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "its derivative": (lambda x: x.exp(), lambda g, y: g * y),
    "of which the derivative is a sum": (
        lambda x: x.softmax(-1),
        lambda g, y: y * (g - (g * y).sum(-1, keepdim=True)),
    ),
    "no derivative": (lambda x: x.cos(), lambda g, y: g * y),
    "a number": (lambda x: x.norm(), lambda g, y: g * y.expand(3)),
    "of another number": (lambda x: (x * 2).sum(-1, keepdim=True), lambda g, y: (g * y).expand(3)),
}


@pytest.mark.parametrize("is_once", [False, True])
@pytest.mark.parametrize("name", AGAIN)
def test_a_write_to_the_output_does_not_reach_a_backward_that_computes_it_again(
    name: str, is_once: bool
) -> None:
    compute, gradient = AGAIN[name]

    def backward(ctx: Any, g: Tensor) -> Tensor:
        return gradient(g, compute(ctx.saved_tensors[0]))

    @torch_class(torch.autograd.function.once_differentiable(backward) if is_once else backward)
    def Again(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return compute(x)

    f = xg.convert(Again)
    expected = gradient_after(Again.apply, lambda x, y: None)
    for write in (write_to_result, lambda x, y: y.add_(10)):
        assert gradient_after(Again.apply, write) == gradient_after(f, write) == expected
    y, pull = xg.vjp(f, np.array([1.0, 2.0, 3.0], np.float32))
    before = pull(np.ones_like(y))[0].copy()
    np.asarray(y)[...] = 10
    np.testing.assert_array_equal(pull(np.ones_like(y))[0], before)


# Of an argument and a result e = exp(x), what is kept, which is in the memory of one or in its own.
OTHERWISE_LAID_OUT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in order": lambda x, e: x.contiguous(),
    "flat": lambda x, e: x.flatten(),
    "transposed, flat": lambda x, e: x.t().reshape(-1),
    "transposed in order, transposed back": lambda x, e: x.t().contiguous().t(),
    "transposed, of another shape": lambda x, e: x.transpose(0, 1).reshape(2, 3),
    "flipped twice": lambda x, e: x.flip(0).flip(0),
    "dropped out by none": lambda x, e: torch.nn.functional.dropout(x, 0.0),
    "a detached result": lambda x, e: e.detach(),
    "a part of the result": lambda x, e: e[:],
    "the result transposed twice": lambda x, e: e.t().t(),
    "the result in order": lambda x, e: e.contiguous(),
    "the result in another shape": lambda x, e: e.reshape(-1),
}


@pytest.mark.parametrize("strides", [(3, 1), (1, 2)], ids=["in order", "transposed"])
@pytest.mark.parametrize("name", OTHERWISE_LAID_OUT)
def test_what_is_kept_in_another_layout_is_a_copy_or_a_view_as_in_the_class(
    name: str, strides: tuple[int, int]
) -> None:
    @torch_class(lambda ctx, g: g * ctx.saved_tensors[0].reshape(2, 3))
    def Keeping(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(OTHERWISE_LAID_OUT[name](x, e))
        return e

    def outcome(apply: Callable[[Tensor], Tensor], write: Callable[..., None]) -> Any:
        leaf = torch.empty_strided((2, 3), strides).copy_(torch.arange(6.0).reshape(2, 3) / 10)
        x = leaf.requires_grad_() * 1
        y = apply(x)
        write(x, y)
        try:
            return torch.autograd.grad(y.sum(), leaf)[0].tolist()
        except RuntimeError:  # torch says of what it is, which may be the view or what it is of
            return "refused"

    for write in (write_in_place, write_to_data, write_to_result, lambda x, y: y.add_(10)):
        assert outcome(xg.convert(Keeping), write) == outcome(Keeping.apply, write)


# Parts of an argument in order, and whether they are copies: all but a stretch of the argument.
PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "columns": lambda x: x[:, :2].contiguous(),
    "every second row": lambda x: x[::2].contiguous(),
    "a row repeated": lambda x: x[:1].expand(3, 3).contiguous(),
    "narrowed": lambda x: x.narrow(1, 1, 2).contiguous(),
    "one of two": lambda x: x.split([1, 2], 1)[1].contiguous(),
    "a diagonal": lambda x: x.diagonal().contiguous(),
    "rows": lambda x: x[1:].contiguous(),
    "one row": lambda x: x[1].contiguous(),
    "all of it": lambda x: x[:, :].contiguous(),
    "a part of one row": lambda x: x[:1, :2].contiguous(),
    "a part of the last row": lambda x: x[2:3, 1:].contiguous(),
    "rows, whole": lambda x: x[1:, :].contiguous(),
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside another part"])
@pytest.mark.parametrize("name", PARTS)
def test_a_part_kept_in_order_is_a_copy_where_the_class_makes_one(name: str, beside: bool) -> None:
    @torch_class(lambda ctx, g: g * sum(kept.sum() for kept in ctx.saved_tensors))
    def Keeping(ctx: Any, x: Tensor) -> Tensor:
        whole = x.view(3, -1)
        ctx.save_for_backward(PARTS[name](whole), *([whole[:, :1]] if beside else []))
        return x.sin()

    def outcome(apply: Callable[[Tensor], Tensor], write: Callable[..., None]) -> Any:
        leaf = torch.arange(9.0, requires_grad=True)
        x = leaf * 1
        y = apply(x)
        write(x, y)
        try:
            return torch.autograd.grad(y.sum(), leaf)[0].tolist()
        except RuntimeError:
            return "refused"

    for write in (write_in_place, write_to_data):
        assert outcome(xg.convert(Keeping), write) == outcome(Keeping.apply, write)


def test_of_two_arguments_each_is_read_as_the_class_reads_it() -> None:
    @torch_class(lambda ctx, g: (g * ctx.p.cos(), g * ctx.p.cos() * ctx.saved_tensors[0]))
    def Product(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.p = x * w
        ctx.save_for_backward(x)
        return ctx.p.sin()

    for i in range(2):
        gradients = []
        for f in (Product.apply, xg.convert(Product)):
            leaves = [torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2)]
            y = f(*leaves)
            leaves[i].data.add_(10)
            gradients.append([g.tolist() for g in torch.autograd.grad(y.sum(), leaves)])
        assert gradients[0] == gradients[1]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_a_gradient_in_the_argument_dtype_of_what_was_kept_in_another(dtype: str) -> None:
    @torch_class(lambda ctx, g: (g * ctx.kept).to(getattr(torch, dtype)))
    def Widened(ctx: Any, x: Tensor) -> Tensor:
        ctx.kept = x.float().cos()
        return x.float().sin()

    gradients = []
    for f in (Widened.apply, xg.convert(Widened)):
        x = torch.tensor([1.0, 2.0, 3.0], dtype=getattr(torch, dtype), requires_grad=True)
        f(x).sum().backward()
        gradients.append(x.grad)
    assert gradients[0].dtype == gradients[1].dtype
    assert torch.equal(*gradients)


def test_an_update_in_place_of_what_it_is_added_to_does_not_matter() -> None:
    cls = make_class("a float")
    expected, found = (
        torch.autograd.functional.jacobian(
            lambda h, f=f: (h * 1).add_(f(h * 1)).sum(), torch.ones(3)
        )
        for f in (cls.apply, xg.convert(cls))
    )
    assert torch.equal(expected, found)


def test_a_step_of_an_optimizer_before_backward_does_not_matter() -> None:
    f = xg.convert(make_class("a float"))
    x = torch.ones(3, requires_grad=True)
    y = f(x)
    with torch.no_grad():
        x.sub_(1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3).cos())


def test_a_derivative_of_the_backward_reads_the_argument_itself_or_refuses() -> None:
    f = xg.convert(make_class("a float"))
    for is_written in (False, True):
        leaf = torch.tensor([1.0, 2.0], dtype=torch.float64, requires_grad=True)
        x = leaf * 1
        y = f(x)
        if is_written:
            x.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(y.sum(), leaf, create_graph=True)
            continue
        (first,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), leaf)
        torch.testing.assert_close(second, -leaf.sin())  # zero in the class, which keeps a constant


def test_the_argument_is_let_go_with_the_last_backward() -> None:
    f = xg.convert(make_class("a float"))
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 1
    y = f(x).sum()
    alive = weakref.ref(x)
    del x
    y.backward(retain_graph=True)
    assert alive() is not None
    y.backward()
    gc.collect()
    assert alive() is None
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_checkpoint_gives_the_same() -> None:
    f = xg.convert(make_class("a float"))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        y = torch.utils.checkpoint.checkpoint(lambda x: f(x * 1), x, use_reentrant=False)
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.testing.assert_close(gradient, x.cos())


def test_hooks_around_the_call_pack_the_argument_too() -> None:
    f = xg.convert(make_class("a float"))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    expected = x.detach().cos()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda packed: packed):
        y = f(x)
    x.data.add_(10)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    torch.testing.assert_close(gradient, expected)


def test_memory_tells_what_is_kept_and_the_argument_for_a_derivative_of_backward() -> None:
    f = xg.convert(make_class("a norm"))
    sizes = {each.name: each.bytes for each in xg.memory(f, (5, 7), torch.float32).residuals}
    assert sorted(sizes.values()) == [4, 140]
    assert xg.memory(f.keeping("input"), (5, 7), torch.float32).total == 140
    once = torch.autograd.function.once_differentiable(lambda ctx, g: g * ctx.saved_tensors[0])

    @torch_class(once)
    def Once(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.norm())
        return 2 * x

    assert xg.memory(xg.convert(Once), (5, 7), torch.float32).total == 4


def test_compiled_code_does_as_the_compiled_class() -> None:
    def compiled(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return torch.compile(lambda x: f(x), fullgraph=True, backend="aot_eager")

    for name in ("a float", "a copy", "the result's copy"):  # of x torch computes it again
        cls = make_class(name)
        own, ours = compiled(cls.apply), compiled(xg.convert(cls))
        for write in (write_in_place, write_to_data):
            expected = [gradient_after(f, write) for f in (own, cls.apply)]
            assert gradient_after(ours, write) in expected, name


@torch_class(lambda ctx, g: g * ctx.saved_tensors[0])
def KeepingItsResult(ctx: Any, x: Tensor) -> Tensor:
    y = x.exp()
    ctx.save_for_backward(y)
    return y


def test_compiled_code_keeps_the_result_that_the_class_keeps() -> None:
    f = xg.convert(KeepingItsResult)
    compiled = torch.compile(lambda x: f(x), fullgraph=True, backend="aot_eager")
    for write in (write_in_place, write_to_data):
        assert gradient_after(compiled, write) == gradient_after(KeepingItsResult.apply, write)


def test_a_write_to_the_result_within_compiled_code_does_not_reach_backward() -> None:
    f = xg.convert(KeepingItsResult)
    x = torch.ones(3, requires_grad=True)
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(lambda x: f(x).mul_(2), fullgraph=True, backend=backend)
        (gradient,) = torch.autograd.grad(compiled(x).sum(), x)
        torch.testing.assert_close(gradient, 2 * x.exp())


class Counter:
    count = 0


def append(made: Any, g: Tensor) -> Tensor:
    made["list"].append(g)
    return sum(made["list"])


def count_in_a_dict(made: Any, g: Tensor) -> Tensor:
    made["dict"]["runs"] = made["dict"].get("runs", 0) + 1
    return g * made["dict"]["runs"]


def count_in_an_object(made: Any, g: Tensor) -> Tensor:
    made["object"].count += 1
    return g * made["object"].count


def write_to_what_is_kept(made: Any, g: Tensor) -> Tensor:
    return g * made["tensor"].add_(1)


def count_by_rebinding(made: Any, g: Tensor) -> Tensor:
    made["count"] += 1
    return g * made["count"]


@pytest.mark.parametrize(
    "change",
    [append, count_in_a_dict, count_in_an_object, write_to_what_is_kept, count_by_rebinding],
)
def test_a_second_backward_sees_what_the_first_has_changed_of_what_forward_made(
    change: Callable[..., Tensor],
) -> None:
    def make(x: Tensor) -> dict[str, Any]:
        return {"list": [], "dict": {}, "object": Counter(), "tensor": x * 1, "count": 0}

    @torch_class(lambda ctx, g: change(ctx.made, g))
    def Changing(ctx: Any, x: Tensor) -> Tensor:
        ctx.made = make(x)
        return x * 2

    def changing(x: Tensor) -> Any:
        made = make(x)
        return x * 2, lambda g: change(made, g)

    def gradients(apply: Callable[[Tensor], Tensor]) -> list[Any]:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = apply(x).sum()
        return [torch.autograd.grad(y, x, retain_graph=True)[0].tolist() for _ in range(3)]

    assert gradients(xg.convert(Changing)) == gradients(Changing.apply)
    assert gradients(xg.custom_gradient(changing)) == gradients(Changing.apply)
    _, pull = xg.vjp(xg.custom_gradient(changing), torch.tensor([1.0, 2.0]))
    assert [pull(torch.ones(2))[0].tolist() for _ in range(3)] == gradients(Changing.apply)


# --- closures, and NumPy --------------------------------------------------------------------------
def keeping_a_cosine(x: Any) -> Any:
    kept = np.cos(x)
    return np.sin(x), lambda g: g * kept


def keeping_a_copy(x: Any) -> Any:
    kept = np.array(x)
    return np.sin(x), lambda g: g * np.cos(kept)


def keeping_a_copy_of_the_result(x: Any) -> Any:
    y = np.sin(x)
    kept = y.copy()
    return y, lambda g: g * np.sqrt(1 - kept * kept)


def reading_the_argument_and_a_cosine(x: Any) -> Any:
    kept = np.cos(x)
    return np.sin(x), lambda g: g * kept * x


def reading_the_argument_and_the_result(x: Any) -> Any:
    y = np.exp(x)
    return y, lambda g: g * y * x


@pytest.mark.parametrize(
    "function", [reading_the_argument_and_a_cosine, reading_the_argument_and_the_result]
)
def test_a_function_on_numpy_reads_the_argument_and_what_it_keeps(function: Any) -> None:
    gradients = []
    for f in (function, lambda x: xg.vjp(xg.custom_gradient(function), x)):
        x = np.array([0.25, 0.5])
        _, pull = f(x)
        x += 10
        gradients.append(np.ravel(pull(np.ones(2))))
    np.testing.assert_allclose(*gradients)


@pytest.mark.parametrize(
    "function", [keeping_a_cosine, keeping_a_copy, keeping_a_copy_of_the_result]
)
def test_what_a_function_keeps_on_numpy_is_kept(function: Any) -> None:
    x = np.array([0.25, 0.5])
    expected = np.cos(x)
    y, pull = xg.vjp(xg.custom_gradient(function), x)
    x += 10
    y += 10
    np.testing.assert_allclose(pull(np.ones(2))[0], expected)


def computing_the_result_again(x: Any) -> Any:
    return np.exp(x), lambda g: g * np.exp(x)


def reading_the_result(x: Any) -> Any:
    y = np.exp(x)
    return y, lambda g: g * y


@pytest.mark.parametrize("function", [computing_the_result_again, reading_the_result])
def test_a_function_on_numpy_reads_its_output_or_computes_it_again(function: Any) -> None:
    gradients = []
    for f in (function, lambda x: xg.vjp(xg.custom_gradient(function), x)):
        y, pull = f(np.array([0.25, 0.5]))
        y *= 10
        gradients.append(np.ravel(pull(np.ones(2))))
    np.testing.assert_allclose(*gradients)


def test_a_write_to_a_copy_that_a_function_on_numpy_returns_does_not_reach_what_it_keeps() -> None:
    @xg.custom_gradient
    def f(x: Any) -> Any:
        e = np.exp(x)
        return e.copy(), lambda g: g * e

    x = np.array([0.25, 0.5])
    y, pull = xg.vjp(f, x)
    y[:] = 0
    np.testing.assert_allclose(pull(np.ones(2))[0], np.exp(x))


def test_a_class_keeps_it_on_numpy() -> None:
    for name in ("a float", "a copy", "the result's copy"):
        x = np.array([0.25, 0.5], np.float32)
        y, pull = xg.vjp(xg.convert(make_class(name)), x)
        before = pull(np.ones(2, np.float32))[0]
        x += 10
        y += 10
        np.testing.assert_array_equal(pull(np.ones(2, np.float32))[0], before)
