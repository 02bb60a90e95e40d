"""Known silent faults of frameworks: each with code that finds it in the version that is installed.

The code defines `found(wrap)`, which tells whether the fault is there; `wrap` returns a function as
it is, or as multigrad converts it. It runs in a process of its own (see `xg.doctor`), and is a text
here, as the core imports no framework.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A gradient that a framework silently gets wrong.

    Attributes:
        name: a word for it.
        framework: by its import name.
        title: what goes wrong.
        avoid: what to do instead.
        code: defines `found(wrap) -> bool`.
    """

    name: str
    framework: str
    title: str
    avoid: str
    code: str


DOUBLE = """\
import torch
class Double(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(x):
        return x * 2
    @staticmethod
    def setup_context(ctx, inputs, output):
        pass
    @staticmethod
    def backward(ctx, grad_out):
        return grad_out * 7
def applied(wrap):
    f = wrap(Double)
    return Double.apply if f is Double else f
"""
RRELU = """\
import torch
def rrelu(x):
    return torch.nn.functional.rrelu(x, 0.1, 0.9, training=True)
x = torch.linspace(-2, -1, 64, requires_grad=True)
"""
SEVEN = """\
import tensorflow as tf
@tf.custom_gradient
def double(x):
    return x * 2, lambda grad_out: grad_out * 7
x = tf.ones([2])
"""


def _compiled(name: str, transform: str) -> Fault:
    return Fault(
        f"compiled {name}",
        "torch",
        f"torch.compile of torch.func.{name} differentiates the forward of an autograd.Function, "
        "and drops its backward",
        "compile the function, and take the gradient outside; or convert it",
        DOUBLE
        + f"""\
def found(wrap):
    f = applied(wrap)
    compiled = torch.compile({transform}, fullgraph=True, backend="aot_eager")
    return float(compiled(torch.ones(1, 1)).flatten()[0]) != 7
""",
    )


KNOWN_FAULTS = (
    _compiled("grad", "torch.func.grad(lambda x: f(x).sum())"),
    _compiled("jacrev", "torch.func.jacrev(lambda x: f(x).sum())"),
    _compiled("vjp", "lambda x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0]"),
    _compiled("vmap", "torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))"),
    Fault(
        "rrelu under a checkpoint",
        "torch",
        "the backward of F.rrelu under torch.utils.checkpoint reads noise that nobody drew: the "
        "gradient is off by up to 1",
        "call it outside the checkpoint, or draw the slopes by rand_like",
        RRELU + """\
from torch.utils.checkpoint import checkpoint
def found(wrap):
    y = checkpoint(wrap(rrelu), x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return not torch.allclose(gradient * x, y)
""",
    ),
    Fault(
        "rrelu under saved-tensor hooks",
        "torch",
        "F.rrelu fills its noise after the hooks have packed it: the gradient is off by up to 1",
        "draw the slopes by rand_like",
        RRELU + """\
def found(wrap):
    copy = torch.Tensor.clone
    with torch.autograd.graph.saved_tensors_hooks(copy, copy):
        y = wrap(rrelu)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return not torch.allclose(gradient * x, y)
""",
    ),
    Fault(
        "draws under a memory budget",
        "torch",
        "torch.compile with activation_memory_budget computes torch.rand_like again in backward, "
        "with other numbers",
        "leave the budget at 1, or draw outside the compiled function",
        """\
import torch
def f(x):
    return x * torch.rand_like(x).exp().sin().exp()
def found(wrap):
    x = torch.ones(64, requires_grad=True)
    with torch._functorch.config.patch(activation_memory_budget=0.0):
        y = torch.compile(wrap(f), backend="aot_eager_decomp_partition")(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
    return not torch.allclose(gradient * x, y)
""",
    ),
    Fault(
        "tangent of a custom operator",
        "torch",
        "forward mode through an operator of torch.library with register_autograd gives the "
        "tangent zero",
        "use reverse mode, or an autograd.Function with jvp",
        """\
import torch
@torch.library.custom_op("multigrad_doctor::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x
square.register_autograd(
    lambda ctx, grad_out: 2 * grad_out * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
def found(wrap):
    x = torch.tensor([3.0])
    return float(torch.func.jvp(wrap(square), (x,), (torch.ones(1),))[1]) != 6
""",
    ),
    Fault(
        "tangent of triangular_solve",
        "torch",
        "forward mode through torch.triangular_solve reads the triangle that the solution ignores",
        "use torch.linalg.solve_triangular",
        """\
import torch
def found(wrap):
    a, b = torch.tensor([[2.0, 0.0], [1.0, 3.0]]), torch.ones(2, 1)
    solve = wrap(lambda a: torch.triangular_solve(b, a, upper=False)[0])
    above = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    return bool(torch.func.jvp(solve, (a,), (above,))[1].any())
""",
    ),
    Fault(
        "poch at zero",
        "jax",
        "the gradient of jax.scipy.special.poch by its first argument is NaN at 0, where it is "
        "gamma(m)",
        "keep the argument away from 0",
        """\
import jax
def found(wrap):
    poch = wrap(jax.scipy.special.poch)
    return bool(jax.numpy.isnan(jax.grad(poch)(0.0, 0.5)))
""",
    ),
    Fault(
        "gradient through vectorized_map",
        "tensorflow",
        "a gradient taken through tf.vectorized_map differentiates the forward of a "
        "tf.custom_gradient, and drops its own gradient",
        "take the gradient inside the mapped function, or use tf.map_fn",
        SEVEN + """\
def found(wrap):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.vectorized_map(wrap(double), x)
    return float(tape.gradient(y, x)[0]) != 7
""",
    ),
    Fault(
        "tangent of a custom gradient",
        "tensorflow",
        "tf.autodiff.ForwardAccumulator differentiates the forward of a tf.custom_gradient",
        "put the accumulator around a tf.function that calls it",
        SEVEN + """\
def found(wrap):
    with tf.autodiff.ForwardAccumulator(x, tf.ones([2])) as accumulator:
        y = wrap(double)(x)
    return float(accumulator.jvp(y)[0]) != 7
""",
    ),
    Fault(
        "second derivative of moments",
        "tensorflow",
        "the second derivative of tf.nn.moments holds the mean fixed: gradient penalties through "
        "batch normalization are wrong",
        "use tf.math.reduce_variance",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.constant([1.0, 2.0, 4.0])
    variance = wrap(lambda x: tf.nn.moments(x, [0])[1])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = variance(x)
        gradient = inner.gradient(y, x)
    return abs(float(outer.jacobian(gradient, x)[0, 1]) + 2 / 9) > 1e-3
""",
    ),
    Fault(
        "draws under recompute_grad",
        "tensorflow",
        "tf.recompute_grad draws other random numbers when it runs the function again in backward",
        "draw outside, or by stateless_uniform with a seed",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.ones([64])
    f = wrap(lambda x: x * tf.random.uniform([64]))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.recompute_grad(f)(x)
    return float(tf.reduce_max(abs(tape.gradient(y, x) * x - y))) > 1e-5
""",
    ),
    Fault(
        "cumprod at zero",
        "tensorflow",
        "the gradient of tf.math.cumprod is 0 at a factor that is 0, where it is the product of "
        "the others",
        "multiply slices, or keep factors away from 0",
        """\
import tensorflow as tf
def found(wrap):
    x = tf.constant([2.0, 0.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = wrap(tf.math.cumprod)(x)
    return float(tape.gradient(y, x)[1]) != 8
""",
    ),
)  # fmt: skip
