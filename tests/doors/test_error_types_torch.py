"""Code that catches torch's errors of a class goes on catching those of the class converted."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import multigrad as xg
from multigrad.errors import TraceError, explaining

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = torch.tensor([0.3, -1.2, 0.6])
forward_ad = torch.autograd.forward_ad


class Base(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class Looks(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * float(len(x.tolist()))


class Miscounts(Base):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad, grad


class Crops(Base):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return torch.ones(2, 7)


class Numbers(Base):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2.0


class SavesNumber(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x, 3)
        return x * 2


class NotLinear(Base):
    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.sign()


class HasNoForward(torch.autograd.Function):
    backward = Base.backward


class Both(Base):
    @staticmethod
    def vjp(ctx: Any, grad: Any) -> Any:
        return grad


class Writes(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * 2


class Views(Base):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view(-1)

    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * 1


class Refuses(Base):
    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        if tangent.ndim == 1:
            raise ValueError("not of vectors")
        return tangent * 2


class TwoTangents(Base):
    @staticmethod
    def jvp(ctx: Any, tangent: Any) -> Any:
        return tangent * 2, tangent


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * float(len(x.tolist()))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    backward = Base.backward


def differentiate(apply: Callable[..., Any]) -> None:
    apply(X.clone().requires_grad_()).sum().backward()


def push(apply: Callable[..., Any]) -> None:
    with forward_ad.dual_level():
        apply(forward_ad.make_dual(X.clone(), X.clone()))


def transform(apply: Callable[..., Any]) -> None:
    torch.func.grad(lambda x: apply(x).sum())(X)


def batch(apply: Callable[..., Any]) -> None:
    torch.func.vmap(apply)(X)


@pytest.mark.parametrize(
    ("cls", "run", "words"),
    [
        (Miscounts, differentiate, r"an incorrect number of gradients \(expected 1, got 2\)"),
        (Crops, differentiate, "[Ss]hape|size"),
        (Numbers, differentiate, "float|2.0"),
        (SavesNumber, differentiate, "can only save variables, but argument 1 is of type int"),
        (HasNoForward, differentiate, "must implement the forward"),
        (Both, differentiate, "Implementing both 'backward' and 'vjp'"),
        (Looks, push, "must implement the jvp function"),
        (NotLinear, push, "forward mode"),
        (Writes, push, "must modify the corresponding gradient inplace"),
        (Views, push, "jvp is not returning a view"),
        (Refuses, push, "not of vectors"),
        (TwoTangents, push, "invalid number of forward gradients"),
        (Looks, transform, "must override the setup_context"),
        (Split, batch, "does not have vmap support"),
    ],
)
def test_an_error_has_the_type_and_the_words_that_torch_gives_it(
    cls: Any, run: Callable[..., Any], words: str
) -> None:
    with pytest.raises(Exception, match=words) as plain:
        run(cls.apply)
    with pytest.raises(plain.type, match=words):
        run(xg.convert(cls).apply)


def test_a_jvp_that_fits_is_used_as_it_is() -> None:
    class Pushes(Views):
        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return tangent.view(-1)

    with forward_ad.dual_level():
        pushed = xg.convert(Pushes).apply(forward_ad.make_dual(X.clone(), tangent := X.clone()))
        assert forward_ad.unpack_dual(pushed).tangent._base is tangent


def test_an_error_that_explains_another_survives_pickling_and_has_its_attributes() -> None:
    theirs = OSError("no room")
    theirs.filename2 = "here"
    error = explaining(theirs, TraceError("it is kept", ("model.py", 3)))
    for each in (error, pickle.loads(pickle.dumps(error)), error.to_keep()):
        assert isinstance(each, TraceError) and isinstance(each, OSError)
        assert str(each) == "no room\nit is kept"
        assert each.place == ("model.py", 3)
