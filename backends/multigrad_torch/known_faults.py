"""Known silent faults of torch: see `multigrad.engine.backend.differences.Fault`."""

from __future__ import annotations

from multigrad.engine.backend.differences import Fault

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
CLASSIC = """\
import torch
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
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


def _compiled(name: str, transform: str) -> Fault:
    return Fault(
        f"compiled {name}",
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
        "pytorch/pytorch#193279",
    )


# By the transform's name among `Modes.transforms`.
COMPILED = {
    "torch.compile(grad)": _compiled("grad", "torch.func.grad(lambda x: f(x).sum())"),
    "torch.compile(jacrev)": _compiled("jacrev", "torch.func.jacrev(lambda x: f(x).sum())"),
    "torch.compile(vjp)": _compiled(
        "vjp", "lambda x: torch.func.vjp(f, x)[1](torch.ones_like(x))[0]"
    ),
    "torch.compile(vmap(grad))": _compiled(
        "vmap", "torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))"
    ),
}
KNOWN_FAULTS = (
    *COMPILED.values(),
    Fault(
        "rrelu under a checkpoint",
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
        "pytorch/pytorch#193671",
    ),
    Fault(
        "rrelu under saved-tensor hooks",
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
        "pytorch/pytorch#193671",
    ),
    Fault(
        "draws under a memory budget",
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
        "pytorch/pytorch#190758",
    ),
    Fault(
        "tangent of a custom operator",
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
        "pytorch/pytorch#196707",
    ),
    Fault(
        "compiled associative_scan",
        "torch.compile of torch's associative_scan differentiates the forward of an "
        "autograd.Function in its body, and drops its backward",
        "leave the scan out of compiled code, or use a loop",
        CLASSIC + """\
from torch._higher_order_ops import associative_scan
def found(wrap):
    f = applied(wrap)
    def scan(x):
        return associative_scan(lambda a, b: f(a) + b, x, 0, combine_mode="generic")
    x = torch.ones(2, 3, requires_grad=True)
    y = torch.compile(scan, fullgraph=True, backend="aot_eager")(x)
    return float(torch.autograd.grad(y.sum(), x)[0][0, 0]) != 8
""",
    ),
    Fault(
        "traced by torch.fx",
        "torch.fx.symbolic_trace goes through the forward of an autograd.Function, and drops its "
        "backward",
        "make the function a leaf with torch.fx.wrap",
        CLASSIC + """\
def found(wrap):
    f = applied(wrap)
    x = torch.ones(1, requires_grad=True)
    y = torch.fx.symbolic_trace(lambda x: f(x))(x)
    return float(torch.autograd.grad(y, x)[0]) != 7
""",
    ),
    Fault(
        "exported by torch.export",
        "torch.export keeps the forward of an autograd.Function alone: who trains the exported "
        "module trains with another gradient",
        "train before the export, or make the function an operator of torch.library",
        CLASSIC + """\
def found(wrap):
    f = applied(wrap)
    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)
    x = torch.ones(1, requires_grad=True)
    y = torch.export.export(Module(), (x,)).module()(x)
    return float(torch.autograd.grad(y, x)[0]) != 7
""",
    ),
    Fault(
        "tangent of det",
        "forward mode through torch.linalg.det is 0 at a singular matrix, where reverse mode gives "
        "the adjugate",
        "use reverse mode",
        """\
import torch
def found(wrap):
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    det = wrap(lambda a: torch.linalg.det(a))
    return float(torch.func.jvp(det, (a,), (torch.eye(2),))[1]) == 0
""",
    ),
    Fault(
        "tangent of linear_cross_entropy",
        "forward mode through a chunked F.linear_cross_entropy gives the tangent zero",
        "use reverse mode, or options=None",
        """\
import torch
def found(wrap):
    w, target = torch.eye(3), torch.arange(3)
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)
    loss = wrap(lambda x: torch.nn.functional.linear_cross_entropy(x, w, target, options=options))
    return float(torch.func.jvp(loss, (torch.zeros(3, 3),), (torch.eye(3),))[1]) == 0
""",
    ),
    Fault(
        "tangent of logcumsumexp",
        "forward mode through torch.logcumsumexp loses what stands before a far larger number",
        "use reverse mode",
        """\
import torch
def found(wrap):
    x = torch.tensor([0.0, 800.0])
    f = wrap(lambda x: torch.logcumsumexp(x, 0))
    return float(torch.func.jvp(f, (x,), (torch.ones(2),))[1][0]) != 1
""",
        "pytorch/pytorch#196705",
    ),
    Fault(
        "tangent of scatter_reduce",
        "forward mode through torch.scatter_reduce with \"prod\" gives the tangent zero",
        "use reverse mode",
        """\
import torch
def found(wrap):
    x, index = torch.ones(2), torch.tensor([0, 0])
    f = wrap(lambda x: torch.scatter_reduce(torch.ones(1), 0, index, x, reduce="prod"))
    return float(torch.func.jvp(f, (x,), (torch.ones(2),))[1]) != 2
""",
        "pytorch/pytorch#196702",
    ),
    Fault(
        "second derivative of while_loop",
        "a second derivative through torch.while_loop takes what its body computes on the way for "
        "constants",
        "use torch 2.14, or a loop of Python",
        """\
import torch
def found(wrap):
    f = lambda x: torch.exp(torch.sin(x)) * x
    step = lambda i, x: (i + 1, f(x))
    loop = wrap(lambda x: torch.while_loop(lambda i, x: i < 1, step, (torch.tensor(0), x))[1])
    def second(f):
        x = torch.tensor([0.5], requires_grad=True)
        (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return float(torch.autograd.grad(first.sum(), x)[0])
    return abs(second(loop) - second(f)) > 1e-3
""",
    ),
)  # fmt: skip
