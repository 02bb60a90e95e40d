"""How torch applies each transform."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint as recompute

import multigrad as xg
from multigrad.compat.hook import attach_param_hooks

from . import ways
from .declared import NONLINEAR, Cells
from .kinds import (
    GRAD_OUT,
    LAYER,
    WEIGHT,
    Kind,
    NotApplicable,
    V,
    X,
    bare,
    gradient_of,
    second_of,
    tangent_of,
    whole_of,
)
from .threads import on_threads

G, TANGENT = torch.tensor(GRAD_OUT), torch.tensor(V)


def leaf() -> Any:
    return torch.tensor(X, requires_grad=True)


def pulled(function: Any) -> Any:
    x = leaf()
    (grad,) = torch.autograd.grad(function(x), x, G)
    return grad.numpy(), gradient_of


def repeated(kind: Kind) -> Any:
    x = leaf()
    y = kind.make()(x)
    torch.autograd.grad(y, x, G, retain_graph=True)
    return torch.autograd.grad(y, x, G)[0].numpy(), gradient_of


def second(kind: Kind) -> Any:
    x = leaf()
    (grad,) = torch.autograd.grad(kind.make()(x), x, G, create_graph=True)
    if not grad.requires_grad:
        return torch.zeros(4).numpy(), second_of
    (found,) = torch.autograd.grad((grad * TANGENT).sum(), x, allow_unused=True)
    return (torch.zeros(4) if found is None else found).numpy(), second_of


def by_func(kind: Kind) -> Any:
    _, pull = torch.func.vjp(kind.make(), torch.tensor(X))
    return pull(G)[0].numpy(), gradient_of


def vmapped(kind: Kind) -> Any:
    function = kind.make()

    def one(x: Any) -> Any:
        return torch.func.vjp(function, x)[1](G)[0]

    return torch.func.vmap(one)(torch.tensor(X)[None].repeat(2, 1))[1].numpy(), gradient_of


def jacobian(kind: Kind) -> Any:
    found = torch.func.jacrev(kind.make())(torch.tensor(X))
    return (found @ TANGENT).detach().numpy(), tangent_of


def forward_mode(kind: Kind) -> Any:
    return torch.func.jvp(kind.make(), (torch.tensor(X),), (TANGENT,))[1].numpy(), tangent_of


def pushed(kind: Kind) -> Any:
    _, found = xg.jvp(kind.make(), (torch.tensor(X),), (TANGENT,))
    return found.numpy(), tangent_of


def compiled(kind: Kind) -> Any:
    torch.compiler.reset()
    return pulled(torch.compile(kind.make(), backend="aot_eager"))


def jitted(kind: Kind) -> Any:
    torch.compiler.reset()
    return pulled(xg.jit(kind.make(), backend="aot_eager"))


def checkpointed(kind: Kind) -> Any:
    function = kind.make()
    return pulled(lambda x: recompute(function, x, use_reentrant=False))


def autocast(kind: Kind) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return pulled(kind.make())


def half(kind: Kind) -> Any:
    x = torch.tensor(X, dtype=torch.bfloat16, requires_grad=True)
    (grad,) = torch.autograd.grad(kind.make()(x), x, G.to(torch.bfloat16))
    return grad.float().numpy(), gradient_of


def exported(kind: Kind) -> Any:
    """The program that `torch.export` keeps: the forward alone."""
    program = torch.export.export(Called(kind.make()), (torch.tensor(X),)).module()
    return program(torch.tensor(X)).detach().numpy(), forward_of


def forward_of(kind: Kind) -> Any:
    return kind.make()(torch.tensor(X)).detach().numpy()


class Called(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def stored(kind: Kind) -> Any:
    file = io.BytesIO()
    torch.save(Called(kind.make()), file)
    file.seek(0)
    return pulled(torch.load(file, weights_only=False))


def in_thread(kind: Kind) -> Any:
    x = leaf()
    y, found = kind.make()(x), []
    on_threads(lambda g: found.append(torch.autograd.grad(y, x, g)[0]), G)
    return found[0].numpy(), gradient_of


def inference(kind: Kind) -> Any:
    with torch.no_grad():
        y = kind.make()(leaf())
    assert not y.requires_grad
    return y.numpy(), forward_of


def multiplied(x: Any, w: Any) -> Any:
    return torch.nn.functional.linear(x, w.T)


def attached(kind: Kind) -> Any:
    layer: Any = torch.nn.ReLU()
    if kind.name == LAYER:
        layer = torch.nn.Linear(4, 4, bias=False)
        layer.weight.data = torch.tensor(WEIGHT.T.copy())
    model = torch.nn.Sequential(layer)
    xg.attach(model, {"0": ways.rule_of(kind)})
    return pulled(model)


def hooked(kind: Kind) -> Any:
    """The gradient of a parameter, by hooks."""
    if kind.name == LAYER:
        raise NotApplicable("it reads a layer, which a bare gradient has not")
    model = Scaled()
    attach_param_hooks(model)
    rule, key = ("noise", 7) if kind.name == ways.KEYED else (ways.rule_of(kind), None)
    params = {"sigma": 0.5} if key else None
    with xg.use(rule, params, scope="params", key=key):
        y = model()
    y.backward(G)
    return model.weight.grad.numpy(), "drawn" if kind.meaning is None else bare


class Scaled(torch.nn.Module):
    """A parameter as the output."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(X))

    def forward(self) -> Any:
        return self.weight * 1.0


class Weighted(torch.nn.Module):
    """A function behind weights that leave its input as it is: their gradient shows its own."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4, 4, bias=False, dtype=torch.float32)
        self.linear.weight.data = torch.eye(4, dtype=torch.float32)

    def forward(self, x: Any) -> Any:
        return self.function(self.linear(x))

    def shown(self) -> Any:
        """Return the gradient of the function's input."""
        grad: Any = self.linear.weight.grad
        grad = grad.full_tensor() if isinstance(grad, DTensor) else grad
        return (grad[:, 3] / X[3]).numpy()


def trained(kind: Kind, wrap: Callable[[Any], Any]) -> Any:
    inner = Weighted(kind.make())
    wrap(inner)(torch.tensor(X)).backward(G)
    return inner.shown(), gradient_of


def on_dtensor(kind: Kind) -> Any:
    """Two rows, of which each process has one: the rule is that of the whole."""
    mesh = init_device_mesh("cpu", (2,))
    x, grad_out = (
        distribute_tensor(torch.tensor(each).repeat(2, 1), mesh, [Shard(0)])
        for each in (X, GRAD_OUT)
    )
    x.requires_grad_()
    (grad,) = torch.autograd.grad(kind.make()(x), x, grad_out)
    return grad.full_tensor().numpy(), whole_of(kind, 2)


# What a transform needs besides.
NEEDS = {"run by JAX (a bridge)": ("jax",), "run by TensorFlow (a bridge)": ("tensorflow",)}
TRANSFORMS = {
    "backward": lambda kind: pulled(kind.make()),
    "backward, repeated": repeated,
    "backward in another thread": in_thread,
    "second derivative": second,
    "functional vjp (`torch.func.vjp`)": by_func,
    "vmap": vmapped,
    "Jacobian by reverse mode": jacobian,
    "forward mode": forward_mode,
    "`xg.jvp`": pushed,
    "the framework's compiler": compiled,
    "`xg.jit`": jitted,
    "recomputed (checkpoint)": checkpointed,
    "bfloat16": half,
    "autocast": autocast,
    "no gradient requested": inference,
    "export": exported,
    "pickle": lambda kind: pulled(pickle.loads(pickle.dumps(kind.make()))),
    "deep copy": lambda kind: pulled(copy.deepcopy(Called(kind.make()))),
    "saved with the framework": stored,
    "`xg.attach`": attached,
    "`xg.override`": lambda kind: pulled(ways.overriding(kind, torch.relu, multiplied)),
    "`xg.apply_to_gradients`": lambda kind: ways.applied(kind, G),
    '`use(scope="params")`, by hooks': hooked,
    "saved and loaded (`xg.save`)": ways.through(pulled, ways.saved),
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ways.through(
        pulled, ways.ejected, "torch"
    ),
    "run by NumPy (a bridge)": ways.through(pulled, ways.bridged, "numpy"),
    "run by JAX (a bridge)": ways.through(pulled, ways.bridged, "jax"),
    "run by TensorFlow (a bridge)": ways.through(pulled, ways.bridged, "tensorflow"),
}
# By tests/ranks/torch_models.py and torch_dtensors.py, on two processes.
ON_DEVICES = {
    "DistributedDataParallel": lambda kind: trained(kind, DistributedDataParallel),
    "FSDP2 (`fully_shard`)": lambda kind: trained(kind, fully_shard),
    "DTensor": on_dtensor,
}
EXCEPTIONS = [
    Cells(
        ("forward mode", "`xg.jvp`"),
        NONLINEAR,
        "is not linear in grad_out, so it has no forward mode",
        "GradientError",
    ),
    Cells(
        ("forward mode",),
        ("as it is",),
        "runs as written, so it has no forward mode",
        "NotImplementedError",
    ),
    Cells(
        ("`xg.jvp`",), ("as it is",), "runs as written, so it has no forward mode", "UnsupportedOp"
    ),
    Cells(
        ("vmap",),
        ("random, without a key",),
        "a random rule without a key cannot draw inside torch.func.vmap: pass key=...",
        "RuleError",
    ),
    Cells(
        ("Jacobian by reverse mode",),
        ("with a reduction", "random, with a key", "random, without a key", "composed"),
        "Each row is the result for a gradient with a single 1: not the matrix of a linear map.",
    ),
    Cells(
        ("export",),
        (),
        "The exported program computes the forward; a `.pt2` file contains no custom gradient.",
    ),
]
