# liger-kernel==0.8.5, strided input: a scaled loss has wrong gradients for a transposed input.
import torch
from liger_kernel.ops.fused_linear_jsd import LigerFusedLinearJSDFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
weight = torch.linspace(-1, 2, 48).cos().reshape(6, 8)
args = (torch.linspace(0, 3, 32).sin().reshape(4, 8), weight.sin())


def gradient(x):
    x.requires_grad_()
    return torch.autograd.grad(2.0 * LigerFusedLinearJSDFunction.apply(x, weight, *args), x)[0]


x = torch.linspace(-1, 1, 32).sin().reshape(8, 4).t()
found, wanted = gradient(x.clone(memory_format=torch.preserve_format)), gradient(x.contiguous())
assert not torch.allclose(found, wanted, rtol=0.1)
