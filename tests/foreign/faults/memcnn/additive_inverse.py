# memcnn==1.5.2, derivative: the two halves of the gradient of `AdditiveBlockInverseFunction` are swapped.
import torch
from memcnn.models.additive import AdditiveBlockInverseFunction

y = torch.tensor([[0.5, -1.0]], dtype=torch.float64, requires_grad=True)
half = torch.nn.Tanh()
x = AdditiveBlockInverseFunction.apply(y, half, half)
(found,) = torch.autograd.grad(x[:, 0].sum(), y)
first, second = (each.detach().requires_grad_() for each in torch.chunk(y.clone(), 2, dim=1))
plain = first - torch.tanh(second - torch.tanh(first))
assert torch.allclose(plain, x[:, :1])
wanted = torch.cat(torch.autograd.grad(plain.sum(), (first, second)), dim=1)
assert not torch.allclose(found, wanted, rtol=0.1)
