"""A class that runs as written under torch.func or forward mode: what torch refuses says which
class, why it is not run as its graph, the line, and what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.torch_class import torch_class

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = torch.tensor([0.3, -1.2, 0.6])


@torch_class(lambda ctx, grad: 2 * grad * ctx.saved_tensors[0])
def Base(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x.round()


class Counts(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * float(len(x.tolist()))


class Marks(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        y = x.round()
        y.scale = 3.0
        return y


class Updates(Base):
    @staticmethod
    def forward(ctx: Any, x: Any, total: Any) -> Any:
        ctx.save_for_backward(x)
        total.add_(x.sum())
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad, None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * float(len(x.tolist()))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    backward = Base.backward


class HasNoVmap(Split):
    @staticmethod
    def vmap(info: Any, in_dims: Any, *args: Any) -> Any:
        pass


class HasNoJvp(Split):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError("only reverse mode")


@xg.custom_gradient
def looks(x: Any) -> Any:
    n = x.tolist()[0]
    return x * n, lambda upstream: upstream * n


stored = Base.apply
KEPT = {"stored": Base.apply, "rest": [Split.apply]}


class Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.quantize = Base.apply

    def forward(self, x: Any) -> Any:
        return self.quantize(x)


HOLDER = Holder()


class Doubles(Base):
    """Calls another class by what is stored; each of its kind overrides `inner`."""

    inner: Callable[[Any], Any]

    @classmethod
    def forward(cls, ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return 2 * cls.inner(x)


def by_default(x: Any, quantize: Any = Base.apply) -> Any:
    return quantize(x)


INNER: dict[str, Callable[[Any], Any]] = {
    "a global": lambda x: stored(x),
    "of a dict": lambda x: KEPT["stored"](x),
    "a partial": lambda x: partial(Base.apply)(x),
    "of a module": lambda x: HOLDER(x),
    "a default": by_default,
    "itself": Base.apply,
}
STUBS: dict[str, Callable[..., Any]] = {
    "pass": lambda ctx, *tangents: None,
    "of two": lambda ctx, *tangents: (None, None),
    "of torch": torch.autograd.Function.jvp,
}


WAYS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(X),
    "jacrev": lambda f: torch.func.jacrev(f)(X),
    "vmap": lambda f: torch.func.vmap(f)(X[:, None]),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X,)),
}


def pushed(f: Callable[..., Any]) -> Any:
    """Run with a tangent, as forward mode without torch.func does."""
    with torch.autograd.forward_ad.dual_level():
        return f(torch.autograd.forward_ad.make_dual(X, X))


AT = r"\(test_fallbacks_torch.py:\d+\) calls .tolist\(\)"


@pytest.mark.parametrize(
    ("cls", "way", "said"),
    [
        *((Counts, way, rf"{AT}.*gets ctx: split it into forward\(\*inputs\)") for way in WAYS),
        (Split, "vmap", rf"{AT}.* generate_vmap_rule = True"),
        (Split, "jvp", rf"{AT}.*no jvp returns tangents"),
        (HasNoVmap, "vmap", rf"{AT}.*does not return \(output, out_dims\)"),
        (HasNoJvp, "jvp", rf"{AT}.*no jvp returns tangents"),
        (Marks, "grad", r"sets attributes of tensors \(scale; .*split it"),
    ],
)
def test_what_torch_does_not_transform_is_refused_with_the_reason_and_what_to_write(
    cls: Any, way: str, said: str
) -> None:
    f = xg.convert(cls)
    with pytest.raises(xg.TraceError, match=rf"function '{cls.__name__}'.*{said}") as refused:
        WAYS[way](f)
    assert "So it runs as written" in str(refused.value)
    assert refused.value.place is not None
    assert refused.value.place[0] == __file__
    cause = refused.value.__cause__
    assert type(cause) in (RuntimeError, NotImplementedError)
    assert torch.equal(f(X), cls.apply(X))


@pytest.mark.parametrize("cls", [Counts, Split, HasNoJvp])
def test_forward_mode_without_transforms_is_refused_alike(cls: Any) -> None:
    with pytest.raises(xg.TraceError, match=r"runs as written.*no jvp returns tangents"):
        pushed(xg.convert(cls))


def test_an_argument_that_is_updated_is_the_reason_with_its_line() -> None:
    f, total = xg.convert(Updates), torch.zeros(())
    with pytest.raises(xg.TraceError, match=r"updates its argument 'total' in place \(test_.*\d"):
        torch.func.grad(lambda x: f(x, total).sum())(X)


def test_what_was_asked_to_run_as_written_says_so() -> None:
    @xg.custom_gradient(native=True)
    def branches(x: Any) -> Any:
        y = x if bool(x.sum() > 0) else -x
        return y, lambda upstream: upstream

    with pytest.raises(xg.TraceError, match=r"'branches': it has native=True. So it.*data-depend"):
        torch.func.vmap(branches)(X[:, None])


@pytest.mark.filterwarnings("ignore::multigrad.errors.NativeRuleWarning")
def test_a_function_of_ours_that_reads_values_says_so_under_vmap() -> None:
    with pytest.raises(xg.TraceError, match=rf"'looks' {AT}.*torch.func refuses: "):
        torch.func.vmap(looks)(X[:, None])


def test_an_error_of_the_users_code_stays_as_it_is_under_a_transform() -> None:
    class Picky(Split):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            raise ValueError(f"not {len(x.tolist())} rows")

    with pytest.raises(ValueError, match=re.escape("not 3 rows")):
        torch.func.grad(lambda x: xg.convert(Picky)(x).sum())(X)


def test_what_runs_as_written_runs_under_the_transforms_that_it_is_made_for() -> None:
    f = xg.convert(Split)
    found = torch.func.grad(lambda x: f(x).sum())(X)
    np.testing.assert_allclose(found, 2 * X)


@pytest.mark.parametrize("inner", INNER)
def test_a_stored_apply_inside_a_class_is_captured_as_the_class_is(inner: str) -> None:
    doubles: Any = type("Doubles", (Doubles,), {"inner": staticmethod(INNER[inner])})
    for f in (xg.convert(doubles), lambda x: xg.convert(INNER[inner])(x) * 2):
        np.testing.assert_array_equal(torch.func.vmap(f)(X[:, None])[:, 0], 2 * X.round())
        np.testing.assert_array_equal(xg.convert(doubles)(X.numpy()), 2 * X.round())
    found = torch.func.grad(lambda x: xg.convert(doubles)(x).sum())(X)
    np.testing.assert_allclose(found, 2 * X)


@pytest.mark.parametrize("stub", STUBS)
def test_a_jvp_that_gives_no_tangents_is_none(stub: str) -> None:
    cls: Any = type("Stub", (Base,), {"jvp": staticmethod(STUBS[stub])})
    f, v = xg.convert(cls), torch.tensor([1.0, 2.0, 3.0])
    np.testing.assert_allclose(torch.func.grad(lambda x: f(x).sum())(X), 2 * X)
    np.testing.assert_array_equal(torch.func.vmap(f)(X[:, None])[:, 0], X.round())
    np.testing.assert_allclose(torch.func.jvp(f, (X,), (v,))[1], 2 * X * v)
    np.testing.assert_allclose(xg.jvp(f, (X.numpy(),), (v.numpy(),))[1], 2 * X * v, rtol=1e-6)


def test_a_jvp_that_refuses_is_none_and_another_is_kept_with_its_class_as_it_is() -> None:
    class Refuses(Base):
        @staticmethod
        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise RuntimeError("in reverse mode only")

    class Pushes(Base):
        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return 5 * tangent

    for cls, expected in ((Refuses, 2 * X * X), (Pushes, 5 * X)):
        f = xg.convert(cls)
        np.testing.assert_allclose(torch.func.grad(lambda x, f=f: f(x).sum())(X), 2 * X)
        np.testing.assert_allclose(torch.func.jvp(f, (X,), (X,))[1], expected)
        np.testing.assert_array_equal(torch.func.vmap(f)(X[:, None])[:, 0], X.round())
        with torch.autograd.forward_ad.dual_level():
            pushed = f(torch.autograd.forward_ad.make_dual(X, X))
            tangent = torch.autograd.forward_ad.unpack_dual(pushed).tangent
        np.testing.assert_allclose(tangent, expected)


def test_places_that_another_class_found_select_rows_of_constants() -> None:
    class Nearest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, codes: Any) -> Any:
            _, found = (x[:, None] - codes[None]).abs().min(dim=1)
            ctx.mark_non_differentiable(found)
            return found

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            raise RuntimeError("it has no gradient")

    nearest = Nearest.apply

    class Quantize(Base):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            codes = torch.tensor([-1.0, 0.0, 1.0])
            return codes.index_select(0, nearest(x, codes))

    f = xg.convert(Quantize)
    np.testing.assert_array_equal(f(X.numpy()), Quantize.apply(X))
    np.testing.assert_allclose(torch.func.grad(lambda x: f(x).sum())(X), 2 * X)
    whole = xg.convert(lambda x: torch.tensor([4, 5, 6]).index_select(0, x.round().long() + 1))
    np.testing.assert_array_equal(whole(X.numpy()), [5, 4, 6])


class Puts(Base):
    """Does what no graph has and Dynamo reads."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x + torch.zeros(3).put(torch.tensor([0]), x[:1])


def test_compiled_transforms_never_take_the_derivative_of_a_forward_as_written() -> None:
    f = xg.convert(Puts)
    gradient = torch.func.grad(lambda x: f(x).sum())
    step = torch.compile(gradient, backend="aot_eager")
    with pytest.raises(xg.TraceError, match=r"aten.put.*So it runs as written.*forward gets ctx"):
        step(X)
    torch._dynamo.reset()  # it would remember to leave that frame out
    whole = torch.compile(gradient, backend="aot_eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"'Puts' .* with aten.put"):
        whole(X)
