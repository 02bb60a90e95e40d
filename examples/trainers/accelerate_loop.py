"""A training loop with Hugging Face accelerate, which wraps model, optimizer and `backward`.

The network is somebody else's and rounds its activations to 2 bits; `torch.round` has no gradient.
`attach` before `prepare` gives it a straight-through estimator; `use` clips each weight's gradient.

Needs: pip install 'multigrad-rules[torch]' accelerate scikit-learn
"""

import torch
from accelerate import Accelerator
from digits import as_tensors
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import multigrad as xg

EPOCHS, BATCH, LEVELS = 5, 64, 3


class Quantized(nn.Module):
    """Activations in 4 levels between 0 and 1."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 128)
        self.second = nn.Linear(128, 64)
        self.out = nn.Linear(64, 10)

    def forward(self, images):
        hidden = self.quantize(self.first(images))
        return self.out(self.quantize(self.second(hidden)))

    @staticmethod
    def quantize(x):
        return (x.clamp(0, 1) * LEVELS).round_() / LEVELS


def train(network, data):
    """Train it in place; return how far the first layer moved."""
    accelerator = Accelerator(cpu=True)
    before = network.first.weight.detach().clone()
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(*data), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(network, optimizer, loader)
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            with xg.use("clip_norm", params={"max_norm": 0.1}, scope="params"):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
            optimizer.step()
    return (network.first.weight - before).abs().max()


def main() -> None:
    data, (images, labels) = as_tensors(torch)
    for with_rules in (False, True):
        torch.manual_seed(0)
        network = Quantized()
        changed = xg.attach(network, {"round": "straight_through"}) if with_rules else None
        moved = train(network, data)
        accuracy = (network(images).argmax(1) == labels).float().mean()
        print(f"rules {with_rules!s:5}: accuracy {accuracy:.4f}, first layer moved by {moved:.4f}")
        if changed is not None:
            changed.detach()


if __name__ == "__main__":
    main()
