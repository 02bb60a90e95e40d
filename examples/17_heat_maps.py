"""Heat maps of a convolutional network that knows nothing of them: which pixels of a digit spoke
for its class.

The network is plain PyTorch. Guided backpropagation and two composites of relevance are attached
and taken off again; weights and outputs stay what they are. `--quick` trains less, `--out` names
the picture.

Needs: pip install 'multigrad-rules[torch,plot]' scikit-learn
"""

import argparse

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import multigrad as xg

COMPOSITES = {
    "the gradient": None,
    "guided backprop": xg.composites.guided_backprop(),
    "epsilon plus": xg.composites.epsilon_plus(canonize=True),
    "epsilon gamma box": xg.composites.epsilon_gamma_box(low=0.0, high=1.0, canonize=True),
}
SHOWN = (0, 1, 2, 3, 4, 7, 9)  # digits in the picture


def make_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3), nn.ReLU(inplace=True),
        nn.Flatten(), nn.Linear(32 * 4, 10),
    )  # fmt: skip


def train(network: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    network.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
    network.eval()


def heat_maps(network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """What the score of its own class sends back to each image."""
    images = images.clone().requires_grad_()
    score = network(images)[torch.arange(len(labels)), labels].sum()
    return torch.autograd.grad(score, images)[0]


def on_ink(maps: torch.Tensor, images: torch.Tensor) -> float:
    """The share of all heat that lies where there is ink."""
    return float((maps.abs() * (images > 0.2)).sum() / maps.abs().sum())


def draw(path: str, images: torch.Tensor, rows: dict[str, torch.Tensor]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        1 + len(rows), len(images), figsize=(1.2 * len(images), 1.35 * (1 + len(rows)))
    )
    for row, (name, maps) in enumerate([("image", images), *rows.items()]):
        for axis, image in zip(axes[row], maps[:, 0].numpy(), strict=True):
            top = max(float(np.abs(image).max()), 1e-12)
            colors = "gray_r" if name == "image" else "seismic"
            axis.imshow(image, cmap=colors, vmin=0 if name == "image" else -top, vmax=top)
            axis.set(xticks=[], yticks=[])
        axes[row][0].set_title(name, loc="left", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="train for 2 epochs, not for 15")
    parser.add_argument("--out", default="heat_maps.png", help="where the picture goes")
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    network = make_network()
    train(network, images[:1400], labels[:1400], 2 if options.quick else 15)
    test, known = images[1400:], labels[1400:]
    scores = network(test)
    print(f"test accuracy {(scores.argmax(1) == known).float().mean().item():.3f}")

    plain = heat_maps(network, test, known)
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    maps = {}
    for name, composite in COMPOSITES.items():
        if composite is None:
            maps[name] = plain
        else:
            with xg.attach(network, composite) as attached:
                assert torch.equal(network(test), scores)
                maps[name] = heat_maps(network, test, known)
            if name == "epsilon gamma box":
                print(attached)
        print(f"{name:<18} heat on ink {on_ink(maps[name], test):.3f}")
    same = torch.equal(heat_maps(network, test, known), plain)
    same &= all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())
    print(f"taken off, the network is as it was: {same}")

    first = [int((known == digit).nonzero()[0]) for digit in SHOWN]
    draw(options.out, test[first], {name: each[first] for name, each in maps.items()})
    print(f"drawn: {options.out}")


if __name__ == "__main__":
    main()
