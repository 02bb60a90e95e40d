# torch==2.13.0, forward mode: an op of `torch.library` with a gradient silently loses the tangent.
import torch
from torch.autograd import forward_ad


@torch.library.custom_op("faults::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    return x * x


keep = lambda ctx, inputs, output: ctx.save_for_backward(*inputs)
square.register_autograd(lambda ctx, g: 2.0 * g * ctx.saved_tensors[0], setup_context=keep)
x = torch.tensor([3.0])
with forward_ad.dual_level():
    found = forward_ad.unpack_dual(square(forward_ad.make_dual(x, torch.ones(1)))).tangent
    plain = forward_ad.make_dual(x, torch.ones(1)) ** 2
    assert forward_ad.unpack_dual(plain).tangent.item() == 6.0
assert found is None or found.item() == 0.0
