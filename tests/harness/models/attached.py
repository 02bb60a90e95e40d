"""What the tests of `xg.attach` on torch share: a model that somebody else wrote, two rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import multigrad as xg

DOUBLES, GUIDES, READS_TIN = "attached_doubles", "attached_guides", "attached_reads_tin"


def doubles(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * 2.0


def guides(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return xg.xp.where(tin > 0, xg.xp.maximum(grad_out, 0.0), 0.0)


def reads_tin(ctx: Any, grad_out: Any, tin: Any) -> Any:
    return grad_out * tin


@contextmanager
def registered_rules() -> Iterator[None]:
    rules = {DOUBLES: doubles, GUIDES: guides, READS_TIN: reads_tin}
    for name, rule in rules.items():
        xg.register(name)(rule)
    try:
        yield
    finally:
        for name in rules:
            xg.unregister(name)


@pytest.fixture(scope="module", autouse=True)
def named_rules() -> Iterator[None]:
    """The rules are registered in a module of tests that imports this."""
    with registered_rules():
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        return F.relu(self.b(self.relu(self.a(x))) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.layer1 = nn.Sequential(Block(), Block())
        self.head = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 3))

    def forward(self, x: Any) -> Any:
        return self.head(self.layer1(self.stem(x)))


def make_net() -> Net:
    torch.manual_seed(3)
    return Net()


def gradient(model: Callable[[Any], Any], x: Any = None) -> Any:
    if x is None:
        x = torch.linspace(-2, 2, 20).reshape(5, 4)
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad((model(x) ** 2).sum(), x)
    return grad
