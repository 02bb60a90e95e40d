# liger-kernel==0.8.5, strided input: the gradient of transposed logits is the logits themselves.
import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
labels = torch.tensor([0, 2, 5, 1])
numbers = torch.linspace(-1, 1, 24).reshape(6, 4).t()
logits = numbers.clone(memory_format=torch.preserve_format).requires_grad_()
assert not logits.is_contiguous()
loss = LigerCrossEntropyFunction.apply(logits, labels, None)[0]
(found,) = torch.autograd.grad(loss, logits)
right = numbers.clone().requires_grad_()
(wanted,) = torch.autograd.grad(torch.nn.functional.cross_entropy(right, labels), right)
assert torch.equal(found, numbers) and not torch.allclose(found, wanted, atol=0.1)
