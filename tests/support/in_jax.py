"""How jax applies each transform."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import multigrad as xg

from . import ways
from .declared import NONLINEAR, Cells
from .kinds import GRAD_OUT, Kind, NotApplicable, V, X, gradient_of, second_of, tangent_of, whole_of

G, TANGENT, AT = jnp.array(GRAD_OUT), jnp.array(V), jnp.array(X)


def gradient(function: Any) -> Any:
    return lambda x: jax.vjp(function, x)[1](G)[0]


def pulled(function: Any) -> Any:
    return np.asarray(gradient(function)(AT)), gradient_of


def repeated(kind: Kind) -> Any:
    _, pull = jax.vjp(kind.make(), AT)
    pull(G)
    return np.asarray(pull(G)[0]), gradient_of


def second(kind: Kind) -> Any:
    found = jax.grad(lambda x: (gradient(kind.make())(x) * TANGENT).sum())(AT)
    return np.asarray(found), second_of


def vmapped(kind: Kind) -> Any:
    found = jax.vmap(gradient(kind.make()))(jnp.stack([AT, AT]))
    return np.asarray(found[1]), gradient_of


def jacobian(kind: Kind) -> Any:
    return np.asarray(jax.jacrev(kind.make())(AT) @ TANGENT), tangent_of


def forward_mode(kind: Kind) -> Any:
    return np.asarray(jax.jvp(kind.make(), (AT,), (TANGENT,))[1]), tangent_of


def lowered_forward(kind: Kind) -> Any:
    """What `xg.lower(..., forward_mode=True)` gives: a `jax.custom_jvp` function."""
    function = kind.make()
    act = getattr(function, "forward", None)
    if act is None or getattr(function, "rule", None) is None:
        raise NotApplicable("only a rule under an activation is lowered so")
    rule = xg.get(function.rule).with_params(**(function.params or {}))
    made = xg.lower(rule, "jax", forward=act.name, forward_mode=True)
    return np.asarray(jax.jvp(made, (AT,), (TANGENT,))[1]), tangent_of


def pushed(kind: Kind) -> Any:
    _, found = xg.jvp(kind.make(), (AT,), (TANGENT,))
    return np.asarray(found), tangent_of


def compiled(kind: Kind) -> Any:
    return np.asarray(jax.jit(gradient(kind.make()))(AT)), gradient_of


def scanned(kind: Kind) -> Any:
    function = kind.make()

    def turn(x: Any, _: Any) -> Any:
        return x, function(x)

    def last(x: Any) -> Any:
        return lax.scan(turn, x, None, length=1)[1][0]

    return pulled(last)


def chosen(kind: Kind) -> Any:
    function = kind.make()
    return pulled(lambda x: lax.cond(x.sum() > 0, function, lambda x: x, x))


def half(kind: Kind) -> Any:
    _, pull = jax.vjp(kind.make(), AT.astype(jnp.bfloat16))
    return np.asarray(pull(G.astype(jnp.bfloat16))[0].astype(jnp.float32)), gradient_of


def exported(kind: Kind) -> Any:
    """What `jax.export` keeps, the gradient with it, read back from bytes."""
    from jax import export

    program = export.export(jax.jit(gradient(kind.make())))(AT)
    return np.asarray(export.deserialize(program.serialize()).call(AT)), gradient_of


def rows() -> Any:
    """Return a mesh of all devices, and an input and a cotangent with a row for each."""
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("i",))
    return mesh, jnp.tile(AT, (len(devices), 1)), jnp.tile(G, (len(devices), 1))


def part(function: Any) -> Any:
    return lambda x, grad_out: jax.vjp(function, x)[1](grad_out)[0]


def in_shards(kind: Kind) -> Any:
    """Each device has a row, which is all that the rule sees."""
    mesh, x, grad_out = rows()
    spec = PartitionSpec("i")
    run = jax.shard_map(part(kind.make()), mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    return np.asarray(run(x, grad_out)), gradient_of


def sharded(kind: Kind) -> Any:
    """Each device has a row; the rule is that of the whole."""
    mesh, x, grad_out = rows()
    place = NamedSharding(mesh, PartitionSpec("i"))
    run = jax.jit(part(kind.make()))
    found = run(jax.device_put(x, place), jax.device_put(grad_out, place))
    return np.asarray(found), whole_of(kind, len(x))


# What a transform needs besides.
NEEDS = {"run by PyTorch (a bridge)": ("torch",), "run by TensorFlow (a bridge)": ("tensorflow",)}
TRANSFORMS = {
    "backward": lambda kind: pulled(kind.make()),
    "backward, repeated": repeated,
    "another thread": ways.in_thread(pulled),
    "second derivative": second,
    "vmap": vmapped,
    "Jacobian by reverse mode": jacobian,
    "forward mode": forward_mode,
    "`xg.jvp`": pushed,
    "forward mode, by `xg.lower(..., forward_mode=True)`": lowered_forward,
    "the framework's compiler": compiled,
    "`xg.jit`": lambda kind: (np.asarray(xg.jit(gradient(kind.make()))(AT)), gradient_of),
    "recomputed (checkpoint)": lambda kind: pulled(jax.checkpoint(kind.make())),
    "loop (`scan`, `while`)": scanned,
    "branch (`cond`)": chosen,
    "bfloat16": half,
    "export": exported,
    "`xg.override`": lambda kind: pulled(ways.overriding(kind, jax.nn.relu, jnp.matmul)),
    "`xg.apply_to_gradients`": lambda kind: ways.applied(kind, G),
    "saved and loaded (`xg.save`)": ways.through(pulled, ways.saved),
    "ejected, without multigrad (`xg.source(..., standalone=True)`)": ways.through(
        pulled, ways.ejected, "jax"
    ),
    "run by NumPy (a bridge)": ways.through(pulled, ways.bridged, "numpy"),
    "run by PyTorch (a bridge)": ways.through(pulled, ways.bridged, "torch"),
    "run by TensorFlow (a bridge)": ways.through(pulled, ways.bridged, "tensorflow"),
}
# By tests/ranks/jax_devices.py, on four devices.
ON_DEVICES = {
    "`shard_map`, a part on each device": in_shards,
    "automatic sharding (`NamedSharding`)": sharded,
}
EXCEPTIONS = [
    Cells(
        ("forward mode, by `xg.lower(..., forward_mode=True)`",),
        ("with a reduction", "random, without a key", "composed"),
        "is not linear in grad_out, so it has no forward mode",
        "UnsupportedOp",
    ),
    Cells(
        ("forward mode, by `xg.lower(..., forward_mode=True)`",),
        ("as it is",),
        "runs as written (native=True)",
        "TraceError",
    ),
    Cells(
        ("forward mode, by `xg.lower(..., forward_mode=True)`",),
        ("scheduled number",),
        "what is lowered holds numbers; give it schedule.value",
        "RuleTypeError",
    ),
    Cells((), ("random, without a key",), "a random rule needs a key on jax", "RuleError"),
    Cells(
        ("forward mode", "`xg.jvp`"),
        ("with a reduction", "random, with a key", "loop by values", "composed"),
        "is not linear in grad_out, so it has no forward mode",
        "GradientError",
    ),
    Cells(("`xg.jvp`",), ("as it is",), "a jax.custom_vjp has no forward mode", "UnsupportedOp"),
    Cells(
        ("forward mode",),
        ("as it is",),
        "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
        "TypeError",
    ),
    Cells(
        ("forward mode, by `xg.lower(..., forward_mode=True)`",),
        ("random, with a key", "own forward", "loop by values", "rule of a layer"),
        "",
        absent=True,
    ),
    Cells(
        ("Jacobian by reverse mode",),
        NONLINEAR,
        "Each row is the result for a gradient with a single 1: not the matrix of a linear map.",
    ),
]
