# liger-kernel==0.8.5, broadcast input: for one row of logits, expanded, the loss is wrong.
import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
row = torch.tensor([[2.0, 0.0, -1.0, 1.0]], requires_grad=True)
target = torch.tensor([1, 1, 1])
wanted = torch.nn.functional.cross_entropy(row.expand(3, 4), target)
repeated = LigerCrossEntropyFunction.apply(row.repeat(3, 1), target, None)[0]
expanded = LigerCrossEntropyFunction.apply(row.expand(3, 4), target, None)[0]
torch.testing.assert_close(repeated, wanted)
assert abs(expanded - wanted) > 0.1, expanded
