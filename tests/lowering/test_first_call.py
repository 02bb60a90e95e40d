"""A first call captures, cuts, emits and compiles; what that takes in Python is bounded, and what a
later one takes under another number, which captures nothing.

Counted are the calls of our own functions, as `sys.setprofile` tells them, without comprehensions,
lambdas and generator expressions, which versions of Python count differently.
"""

from __future__ import annotations

import os

import pytest

from ..harness import fresh

COUNT = """
import sys, threading

ROOTS = tuple(module.__file__.rpartition("__init__")[0] for module in (
    __import__("multigrad"), *map(__import__, FRAMEWORKS)))
called = 0

def note(frame, event, argument):
    global called
    if event == "call" and frame.f_code.co_filename.startswith(ROOTS):
        called += not frame.f_code.co_name.startswith("<")

def count(function, *args):
    global called
    called = 0
    threading.setprofile(note)  # a compiled step calls the guest in a thread of its own
    sys.setprofile(note)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return called
"""
IMPORT = """
import sys, torch

called = 0

def note(frame, event, argument):
    global called
    if event == "call" and "multigrad" in frame.f_code.co_filename:
        called += not frame.f_code.co_name.startswith("<")

brought = set(sys.modules)
sys.setprofile(note)
import multigrad as xg
xg.Activation("Heaviside", "triangular")
sys.setprofile(None)
brought = sys.modules.keys() - brought
ours = [name for name in brought if name.startswith("multigrad")]
assert not brought & {"torch._dynamo", "numpy.random", "multigrad.engine.rules.peers"}
print(len(ours), called)
"""
TORCH = """
def step(layer, rule, x):
    with xg.use(rule):
        y = layer(x)
    y.sum().backward()

x = torch.linspace(-1, 1, 8, requires_grad=True)
for forward, rule in ("ReLU", "rectangular"), ("ReLU", "arctan"), ("Heaviside", "triangular"):
    print(count(step, xg.Activation(forward), rule, x))
"""
CLASS = """
class Decay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, width):
        ctx.save_for_backward(x)
        ctx.width = width
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad_out):
        x, = ctx.saved_tensors
        scaled = torch.abs(x) / ctx.width
        decayed = torch.exp(-scaled)
        sloped = torch.tanh(scaled) / (1 + decayed * decayed)
        return grad_out * torch.where(scaled < 2, sloped, 0.5 * decayed), None

def step(function, x):
    function(x, 1.5).sum().backward()

decay = xg.from_autograd_function(Decay)
for dtype in torch.float32, torch.DTYPE:
    x = torch.linspace(-1, 1, 8, dtype=dtype, requires_grad=True)
    print(count(step, decay, x))
"""
CLASSES = """
def make(factor):
    class Hat(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, width):
            y = torch.sigmoid(factor * x)
            ctx.save_for_backward(x, y)
            ctx.width = width
            return y

        @staticmethod
        def backward(ctx, grad_out):
            x, y = ctx.saved_tensors
            hat = torch.clamp(1 - torch.abs(x) / ctx.width, min=0)
            return grad_out * hat * y, None

    return xg.from_autograd_function(Hat)

def step(function, x):
    function(x, 0.5).sum().backward()

x = torch.linspace(-1, 1, 8, requires_grad=True)
for factor in 2.0, 3.0:
    print(count(step, make(factor), x))
"""
ASKING = """
def make():
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return torch.nn.functional.linear(x, w)

        @staticmethod
        def backward(ctx, grad_out):
            x, w = ctx.saved_tensors
            of_x = grad_out.mm(w) if ctx.needs_input_grad[0] else None
            return of_x, grad_out.t().mm(x) if ctx.needs_input_grad[1] else None

    return xg.from_autograd_function(Linear)

def step(function, x, w):
    function(x, w).sum().backward()

x, w = torch.ones(4, 3, requires_grad=True), torch.ones(5, 3, requires_grad=True)
for _ in range(2):
    print(count(step, make(), x, w))
"""
KERAS = """
import keras, numpy as np, multigrad.keras as xk

x, y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")
for forward, rule in ("ReLU", "rectangular"), ("Heaviside", "triangular"):
    layer = xk.Activation(forward, rule, backend="torch")
    dense = keras.layers.Dense
    model = keras.Sequential([keras.Input((4,)), dense(4), layer, dense(1)])
    model.compile("sgd", "mse")
    print(count(model.train_on_batch, x, y))
"""
NEW_NUMBER = """
def step(width):
    with xg.use("triangular", {"width": width}):
        act(x)

act, x = xg.Activation("Heaviside"), torch.linspace(-1, 1, 8, requires_grad=True)
for width in 0.5, 0.625, 0.75, 0.875:
    print(count(step, width))
"""
SCHEDULED = """
width = xg.schedule.linear(1.0, 0.5, 100)
act = xg.Activation("Heaviside", "triangular", {"width": width})
x = torch.linspace(-1, 1, 8, requires_grad=True)
for _ in range(3):
    act(x)
    width.step()
print(count(act, x))
"""
JAX = """
import sys, jax, jax.numpy as jnp, multigrad as xg

def make(steps):
    def lstm(x, h, c, w, u, b):
        for t in range(steps):
            i, f, g, o = jnp.split(x[t] @ w + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return h

    shapes = (steps, 4, 3), (4, 8), (4, 8), (3, 32), (8, 32), (32,)
    return lstm, [jnp.full(shape, 0.1) for shape in shapes]

def entered(function, given):
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += event == "call"

    loss = lambda *arguments: function(*arguments).sum()
    sys.setprofile(note)
    try:
        jax.make_jaxpr(jax.grad(loss, tuple(range(6))))(*given)
    finally:
        sys.setprofile(None)
    return count

def both(steps):
    lstm, given = make(steps)
    own = entered(lstm, given)
    return own, entered(xg.function(lstm, native=False), given)

both(2), both(2)
own, ours = both(16)
print(100 * ours // own)
"""
COMPILES = """
import sys, jax, jax.numpy as jnp, multigrad as xg
from jax import monitoring

compiled = 0

def note(event, duration, **given):
    global compiled
    compiled += event == "/jax/core/compile/backend_compile_duration"

def count(function, shape):
    global compiled
    x = jnp.linspace(-1, 1, 8).reshape(shape)
    jax.grad(lambda x: jnp.sin(x).sum())(x)  # what the loss compiles, and the import has had anew
    compiled = 0
    jax.grad(lambda x: function(x).sum())(x)
    return compiled

@jax.custom_vjp
def hat(x):
    return (x > 0).astype(x.dtype)

def forward(x):
    return hat(x), x

def backward(x, grad_out):
    return (grad_out * jnp.maximum(1 - jnp.abs(x) / 0.5, 0),)

hat.defvjp(forward, backward)

@jax.custom_vjp
def window(x):
    return jax.nn.sigmoid(2.0 * x)

def masked(grad_out, x):
    s = jax.nn.sigmoid(2.0 * x)
    return grad_out * s * (1 - s) * (jnp.abs(x) < 1)

window.defvjp(lambda x: (window(x), x), lambda x, grad_out: (masked(grad_out, x),))
monitoring.register_event_duration_secs_listener(note)
ours = GIVEN
xg.vjp(xg.activation("ReLU"), jnp.ones(3))
print(count(BY_HAND, (8,)), count(ours, (2, 4)))
"""


def last_count(program: str, *, roots: str = '"multigrad_torch",', **environment: str) -> int:
    """Return how many calls of these packages the last first call of a program takes."""
    beginning = f"FRAMEWORKS = ({roots})\n{COUNT}\nimport torch, multigrad as xg\n"
    return int(run_alone(beginning + program, **environment)[-1])


def run_alone(program: str, **environment: str) -> list[str]:
    """Return the words that a program prints in a process of its own."""
    named = [
        name for name in ("torch", "jax") if f"import {name}" in program or f", {name}" in program
    ]
    run = fresh.run(
        ["-c", program], named, env={**os.environ, "MULTIGRAD_PROVE": "0", **environment}
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()


@pytest.mark.needs("torch")
def test_what_comes_before_a_first_call_imports_few_modules_and_takes_few_calls() -> None:
    """Each module takes 0.15 ms at least, and most of a first gradient is its import."""
    modules, calls = map(int, run_alone(IMPORT))
    assert 100 < modules <= 420
    assert 1000 < calls <= 12_000


COUNTED = {
    "the first call under a rule": (TORCH, 100, 900),
    # It is recorded once: the side that its clamp leaves open is no number that was drawn.
    "the first call of a class": (CLASSES, 500, 2000),
    # It is recorded once: ranks, and which arguments ask for a gradient, are told on the way.
    "the first call of a class that asks for gradients": (ASKING, 500, 1500),
    "use with a new number": (NEW_NUMBER, 10, 25),
    "a scheduled layer after a step": (SCHEDULED, 3, 10),
}


@pytest.mark.needs("torch")
@pytest.mark.parametrize(("program", "least", "most"), COUNTED.values(), ids=COUNTED)
def test_it_takes_few_calls_of_python(program: str, least: int, most: int) -> None:
    assert least < last_count(program) <= most


@pytest.mark.needs("torch", "jax", "keras")
def test_the_first_batch_of_a_guest_layer_takes_few_calls_of_python() -> None:
    assert (
        100
        < last_count(KERAS, roots='"multigrad_torch", "multigrad_jax"', KERAS_BACKEND="jax")
        <= 700
    )


@pytest.mark.needs("torch")
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_a_class_in_a_second_dtype_takes_few_calls_of_python(dtype: str) -> None:
    again = CLASS.replace("DTYPE", dtype)
    assert last_count(again) <= 350  # the graphs are those of float32
    # What the class refers to is put back after the proof runs it.
    assert 500 < last_count(again, MULTIGRAD_PROVE="1") <= 1010


@pytest.mark.needs("jax")
def test_the_first_call_of_jaxs_code_takes_few_times_what_jaxs_own_gradient_takes() -> None:
    """The gradient is traced twice, of the original and of ours; capture and proof are the rest."""
    assert 150 < int(run_alone(JAX, MULTIGRAD_PROVE="1")[-1]) <= 300


@pytest.mark.needs("jax")
@pytest.mark.parametrize(
    ("given", "by_hand"),
    [
        ("xg.activation('Heaviside', 'triangular', {'width': 0.5})", "hat"),
        ("xg.from_custom_vjp(hat)", "hat"),
        ("xg.function(lambda x: jax.nn.sigmoid(2.0 * x), masked)", "window"),
    ],
)
def test_a_first_gradient_in_jax_compiles_what_a_hand_written_one_does(
    given: str, by_hand: str
) -> None:
    """JAX compiles each op by itself, for longer than a capture takes; neither that nor its proof
    compiles any.
    """
    program = COMPILES.replace("GIVEN", given).replace("BY_HAND", by_hand)
    own, ours = map(int, run_alone(program, MULTIGRAD_PROVE="1"))
    assert 5 <= ours <= own
