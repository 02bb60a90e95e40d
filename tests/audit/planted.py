"""Faults planted in sound gradients, one by one: what an audit finds of them, and what the
framework's own checker does, in its usual call.

    python -m tests.audit.planted [torch|jax|tensorflow ...]
"""

from __future__ import annotations

import sys
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

import multigrad as xg
from multigrad.audit.laws import LAWS

from .faults.found import CHECKERS

# A compile for each fault takes seconds, and finds none that the others do not.
CHOSEN = tuple(law.name for law in LAWS if law.name != "compiled")
NUMBERS = np.random.default_rng(7)
HEADS = {
    "torch": """
class Planted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, {args}):
        ctx.save_for_backward({args})
{forward}

    @staticmethod
    def backward(ctx, g):
        {args}, = ctx.saved_tensors
{backward}
        return grad
""",
    "jax": """
@jax.custom_vjp
def Planted({args}):
{forward}

def kept({args}):
    return Planted({args}), ({args},)

def backward(saved, g):
    {args}, = saved
{backward}
    return grad if isinstance(grad, tuple) else (grad,)

Planted.defvjp(kept, backward)
""",
    "tensorflow": """
@tf.custom_gradient
def Planted({args}):
    def backward(g):
        nonlocal {args}
{backward}
        return grad
    def forward({args}):
{forward}
    return forward({args}), backward
""",
}
INDENT = {"torch": (8, 8), "jax": (4, 4), "tensorflow": (8, 8)}


def floats(*shape: int) -> Any:
    return NUMBERS.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Sound:
    """A gradient without a fault.

    Attributes:
        forward, backward: the bodies, of x and y, and of g; the latter leaves it in `grad`.
        broken: what backward is by the kind of fault.
    """

    framework: str
    inputs: tuple[Any, ...]
    forward: str
    backward: str
    broken: dict[str, str]


X, Y = floats(3, 4), floats(3, 4)
SOUND = {
    "square": Sound(
        "torch", (X,), "return x * x", "grad = 2.0 * x * g",
        {
            "factor": "grad = 1.9 * x * g",
            "sign": "grad = -2.0 * x * g",
            "dropped term": "grad = x * g",
            "ignored cotangent": "grad = 2.0 * x",
            "lost dtype": "grad = 2.0 * x.half().to(x.dtype) * g",
            "wrong edge": "grad = 2.0 * x * g * x.exp() / x.exp()",
            "wrong strides": "grad = 2.0 * x * torch.as_strided(g, x.shape, (4, 1))",
        },
    ),
    "product": Sound(
        "torch", (X, Y), "return x * y", "grad = (g * y, g * x)",
        {
            "factor": "grad = (g * y, 1.01 * g * x)",
            "sign": "grad = (g * y, -g * x)",
            "dropped term": "grad = (g * y, torch.zeros_like(y))",
            "ignored cotangent": "grad = (y, g * x)",
            "lost dtype": "grad = (g * y, g.bfloat16().to(x.dtype) * x)",
            "wrong edge": "grad = (g * y.exp().log(), g * x)",
            "wrong strides": "grad = (torch.as_strided(g, x.shape, (4, 1)) * y, g * x)",
        },
    ),
    "softmax": Sound(
        "torch", (X,), "return torch.softmax(x, -1)",
        "s = torch.softmax(x, -1)\ngrad = s * (g - (g * s).sum(-1, keepdim=True))",
        {
            "factor": "s = torch.softmax(x, -1)\ngrad = s * (g - (g * s).mean(-1, keepdim=True))",
            "sign": "s = torch.softmax(x, -1)\ngrad = s * (g + (g * s).sum(-1, keepdim=True))",
            "dropped term": "s = torch.softmax(x, -1)\ngrad = s * (1.0 - s) * g",
            "ignored cotangent":
                "s = torch.softmax(x, -1)\ngrad = s * (1.0 - (s * s).sum(-1, keepdim=True))",
            "lost dtype":
                "s = torch.softmax(x.half(), -1).to(x.dtype)\n"
                "grad = s * (g - (g * s).sum(-1, keepdim=True))",
            "wrong edge":
                "s = x.exp() / x.exp().sum(-1, keepdim=True)\n"
                "grad = s * (g - (g * s).sum(-1, keepdim=True))",
            "wrong strides":
                "s, g = torch.softmax(x, -1), torch.as_strided(g, x.shape, (4, 1))\n"
                "grad = s * (g - (g * s).sum(-1, keepdim=True))",
        },
    ),
    "silu": Sound(
        "torch", (X,), "return x * torch.sigmoid(x)",
        "s = torch.sigmoid(x)\ngrad = g * (s + x * s * (1.0 - s))",
        {
            "factor": "s = torch.sigmoid(1.1 * x)\ngrad = g * (s + x * s * (1.0 - s))",
            "sign": "s = torch.sigmoid(x)\ngrad = g * (s - x * s * (1.0 - s))",
            "dropped term": "s = torch.sigmoid(x)\ngrad = g * s",
            "ignored cotangent": "s = torch.sigmoid(x)\ngrad = s + x * s * (1.0 - s)",
            "lost dtype": "s = torch.sigmoid(x.float()).to(x.dtype).half().to(x.dtype)\n"
                "grad = g * (s + x * s * (1.0 - s))",
            "wrong edge": "s = 1.0 - torch.sigmoid(-x)\ngrad = g * (s + x * s * s * (-x).exp())",
            "wrong strides": "s, g = torch.sigmoid(x), torch.as_strided(g, x.shape, (4, 1))\n"
                "grad = g * (s + x * s * (1.0 - s))",
        },
    ),
    "norm": Sound(
        "torch", (X,), "return x / (x * x).mean(-1, keepdim=True).add(1.0).sqrt()",
        "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()\n"
        "grad = g * r - x * r * r * r * (g * x).mean(-1, keepdim=True)",
        {
            "factor": "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()\n"
                "grad = g * r - x * r * r * r * (g * x).sum(-1, keepdim=True)",
            "sign": "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()\n"
                "grad = g * r + x * r * r * r * (g * x).mean(-1, keepdim=True)",
            "dropped term": "grad = g * (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()",
            "ignored cotangent": "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()\n"
                "grad = r - x * r * r * r * x.mean(-1, keepdim=True)",
            "lost dtype": "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt().half().to(x.dtype)\n"
                "grad = g * r - x * r * r * r * (g * x).mean(-1, keepdim=True)",
            "wrong edge": "r = (x * x).mean(-1, keepdim=True).add(1.0).rsqrt()\n"
                "grad = g * r - x * r * r * r * (g * x).mean(-1, keepdim=True)\n"
                "grad = torch.where(x.abs() > 80.0, 10.0 * grad + 1.0, grad)",
        },
    ),
    "linear": Sound(
        "torch", (X, floats(4, 2)), "return x @ y", "grad = (g @ y.mT, x.mT @ g)",
        {
            "factor": "grad = (g @ y.mT, x.mT @ g / x.shape[0])",
            "sign": "grad = (-(g @ y.mT), x.mT @ g)",
            "dropped term": "grad = (g @ y.mT, None)",
            "ignored cotangent": "grad = (torch.ones_like(g) @ y.mT, x.mT @ g)",
            "lost dtype": "grad = (g @ y.mT, (x.mT.bfloat16() @ g.bfloat16()).to(y.dtype))",
            "wrong edge": "grad = (g @ y.exp().log().mT, x.mT @ g)",
        },
    ),
    "logsumexp": Sound(
        "torch", (X,), "return torch.logsumexp(x, -1)",
        "grad = g[..., None] * torch.softmax(x, -1)",
        {
            "factor": "grad = g[..., None] * torch.softmax(x, -1) / x.shape[-1]",
            "sign": "grad = g[..., None] * torch.softmax(-x, -1)",
            "dropped term": "grad = g[..., None] * (x == x.amax(-1, keepdim=True)).to(x.dtype)",
            "ignored cotangent": "grad = torch.softmax(x, -1)",
            "lost dtype": "grad = g[..., None] * torch.softmax(x.half(), -1).to(x.dtype)",
            "wrong edge": "grad = g[..., None] * x.exp() / x.exp().sum(-1, keepdim=True)",
        },
    ),
    "bump": Sound(
        "jax", (X,), "return jnp.exp(-x * x)", "grad = -2.0 * x * jnp.exp(-x * x) * g",
        {
            "factor": "grad = -x * jnp.exp(-x * x) * g",
            "sign": "grad = 2.0 * x * jnp.exp(-x * x) * g",
            "dropped term": "grad = -jnp.exp(-x * x) * g",
            "ignored cotangent": "grad = -2.0 * x * jnp.exp(-x * x)",
            "lost dtype":
                "grad = -2.0 * x * jnp.exp(-x * x).astype(jnp.float16).astype(x.dtype) * g",
            "wrong edge": "grad = -2.0 * x / jnp.exp(x * x) * g * jnp.exp(x) / jnp.exp(x)",
        },
    ),
    "weighted": Sound(
        "jax", (X, Y), "return (x * y).sum(-1)", "grad = (g[..., None] * y, g[..., None] * x)",
        {
            "factor": "grad = (g[..., None] * y / 4.0, g[..., None] * x)",
            "sign": "grad = (g[..., None] * y, -g[..., None] * x)",
            "dropped term": "grad = (g[..., None] * y, jnp.zeros_like(y))",
            "ignored cotangent": "grad = (y, g[..., None] * x)",
            "lost dtype": "grad = (g[..., None] * y, "
                "(g[..., None] * x).astype(jnp.bfloat16).astype(x.dtype))",
            "wrong edge": "grad = (g[..., None] * jnp.log(jnp.exp(y)), g[..., None] * x)",
        },
    ),
    "cube": Sound(
        "tensorflow", (X,), "return x * x * x", "grad = 3.0 * x * x * g",
        {
            "factor": "grad = 2.0 * x * x * g",
            "sign": "grad = -3.0 * x * x * g",
            "dropped term": "grad = 3.0 * x * g",
            "ignored cotangent": "grad = 3.0 * x * x",
            "lost dtype": "grad = 3.0 * x * tf.cast(tf.cast(x, tf.float16), x.dtype) * g",
            "wrong edge": "grad = 3.0 * x * x * g * tf.exp(x) / tf.exp(x)",
        },
    ),
    "wave": Sound(
        "tensorflow", (X, Y), "return tf.reduce_sum(x * tf.sin(y), -1)",
        "h = tf.expand_dims(g, -1)\ngrad = (h * tf.sin(y), h * x * tf.cos(y))",
        {
            "factor": "h = tf.expand_dims(g, -1) / 4.0\ngrad = (h * tf.sin(y), h * x * tf.cos(y))",
            "sign": "h = tf.expand_dims(g, -1)\ngrad = (h * tf.sin(y), -h * x * tf.cos(y))",
            "dropped term": "h = tf.expand_dims(g, -1)\ngrad = (h * tf.sin(y), tf.zeros_like(y))",
            "ignored cotangent": "h = tf.expand_dims(g, -1)\ngrad = (tf.sin(y), h * x * tf.cos(y))",
            "lost dtype": "h = tf.expand_dims(g, -1)\n"
                "grad = (h * tf.sin(y), tf.cast(tf.cast(h * x, tf.float16), x.dtype) * tf.cos(y))",
            "wrong edge": "h = tf.expand_dims(g, -1)\n"
                "grad = (h * tf.sin(y), h * tf.math.log(tf.exp(x)) * tf.cos(y))",
        },
    ),
}  # fmt: skip

# What is done before or after a sound backward, to the gradient of the first argument.
TAKE = "first, rest = (grad[0], grad[1:]) if isinstance(grad, tuple) else (grad, ())\n"
GIVE = "\ngrad = (first, *rest) if rest else first"
ANYWHERE = {
    "stale save": ("x = HELD[0]\n", ""),
    "one row": ("", f"\n{TAKE}first = without_last(first){GIVE}"),
    "counted calls": ("HELD.append(0)\n", f"\n{TAKE}first = first * float(len(HELD)){GIVE}"),
}
SHARED = f"""
{TAKE}held = HELD[-1] if HELD else None
if not torch.is_tensor(held) or (held.shape, held.dtype) != (first.shape, first.dtype):
    HELD.append(first.detach().clone())
shared = HELD[-1]
shared.copy_(first)
sleep(0.001)
first = shared.clone(){GIVE}"""
DOUBLED = f"""
{TAKE}first = first * kept[0]
kept[0] *= 2.0{GIVE}"""
IN_TORCH = {
    "written cotangent": ("", "\ng.data.mul_(1.5)"),
    "written input": ("", "\nctx.saved_tensors[-1].data.add_(1.0)"),
    "written saved": ("kept = ctx.__dict__.setdefault('kept', [1.0])\n", DOUBLED),
    "race": ("", SHARED),
}


@dataclass(frozen=True)
class Fault:
    """A sound gradient with one fault; kind "": without any."""

    name: str
    kind: str

    def build(self) -> Any:
        """Return the gradient, with its fault."""
        sound = SOUND[self.name]
        before, after = (ANYWHERE | IN_TORCH).get(self.kind, ("", ""))
        backward = before + sound.broken.get(self.kind, sound.backward) + after
        forward = f"HELD[:] = [x]\n{sound.forward}" if self.kind == "stale save" else sound.forward
        args = ", ".join("xy"[: len(sound.inputs)])
        at = INDENT[sound.framework]
        source = HEADS[sound.framework].format(
            args=args,
            forward=textwrap.indent(forward, at[0] * " "),
            backward=textwrap.indent(backward, at[1] * " "),
        )
        found: dict[str, Any] = {"HELD": [], "sleep": time.sleep, "without_last": without_last}
        for alias, module in MODULES[sound.framework].items():
            found[alias] = import_module(module)
        exec(compile(source, f"<{self.name}, {self.kind}>", "exec"), found)  # noqa: S102
        return found["Planted"]

    def audit(self) -> Any:
        """Return the audit's report."""
        return xg.audit(self.build(), *SOUND[self.name].inputs, laws=CHOSEN, surrogate=False)

    def passes_its_checker(self) -> bool:
        """Return whether the framework's own checker finds nothing, called as its docs do."""
        sound = SOUND[self.name]
        wide = [each.astype(np.float64) for each in sound.inputs]
        is_jax = sound.framework == "jax"
        with import_module("jax").enable_x64(True) if is_jax else nullcontext():
            return CHECKERS[sound.framework](self.build(), wide)


MODULES = {
    "torch": {"torch": "torch"},
    "jax": {"jax": "jax", "jnp": "jax.numpy"},
    "tensorflow": {"tf": "tensorflow"},
}


def without_last(x: Any) -> Any:
    """Return a tensor whose last row is zero."""
    rows = np.ones(x.shape[0])
    rows[-1] = 0.0
    shaped = rows.reshape([-1] + [1] * (len(x.shape) - 1))
    if hasattr(x, "new_tensor"):
        return x * x.new_tensor(shaped)
    return x * import_module("numpy").asarray(shaped, x.dtype if hasattr(x, "at") else x.dtype.name)


def faults(framework: str) -> Iterator[Fault]:
    """Yield what is planted in the gradients of one framework."""
    for name, sound in SOUND.items():
        if sound.framework == framework:
            shared = ANYWHERE | IN_TORCH if framework == "torch" else ANYWHERE
            yield from (Fault(name, kind) for kind in (*sound.broken, *shared))


def main(frameworks: list[str]) -> int:
    """Print what is found of which kind; 1 where an audit misses one, or accuses a sound one."""
    rows = [row for each in frameworks or list(MODULES) for row in faults(each)]
    names = dict.fromkeys(row.name for row in rows)
    planted, audit, checker = Counter[str](), Counter[str](), Counter[str]()
    failed = False
    for name in names:
        report = Fault(name, "").audit()
        if not report.ok:
            failed = True
            print(f"{name} is sound: {report}")
    for row in rows:
        report = row.audit()
        planted[row.kind] += 1
        audit[row.kind] += not report.ok
        checker[row.kind] += not row.passes_its_checker()
        if report.ok:
            print(f"{row.name}, {row.kind}: not found")
    for kind, count in planted.items():
        print(f"{kind:20} {count:4} planted {audit[kind]:4} by audit {checker[kind]:4} by checker")
    print(
        f"{planted.total()} planted, {audit.total()} found by audit, {checker.total()} by the "
        f"frameworks' checkers"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
