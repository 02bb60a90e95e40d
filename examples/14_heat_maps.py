"""Heat maps of a convolutional network that knows nothing of them: which pixels of a digit spoke
for its class.

The network is plain PyTorch. Guided backpropagation and two composites of relevance are attached
and taken off again; weights and outputs stay what they are. Where Keras or flax is installed, the
same weights give the same maps there. `--quick` trains less, `--out` names the picture.

Needs: pip install 'multigrad-rules[torch,plot]' scikit-learn; for the others keras, jax and flax
"""

import argparse
import os
from importlib.util import find_spec

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


def channels_last(weight: torch.Tensor) -> np.ndarray:
    """A convolution's weight as Keras and flax have it."""
    return weight.detach().permute(2, 3, 1, 0).numpy()


def rows_last(dense: nn.Linear) -> np.ndarray:
    """A dense weight for features whose channels come last."""
    return dense.weight.detach().reshape(10, 32, 2, 2).permute(2, 3, 1, 0).reshape(-1, 10).numpy()


def numbers(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [tensor.detach().numpy() for tensor in tensors]


def in_keras(network: nn.Module, composite, images: np.ndarray, classes: np.ndarray):
    os.environ.setdefault("KERAS_BACKEND", "torch")
    import keras

    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8, 8, 1)),
        layers.Conv2D(16, 3, padding="same"), layers.BatchNormalization(epsilon=1e-5),
        layers.ReLU(),
        layers.Conv2D(32, 3, padding="same"), layers.BatchNormalization(epsilon=1e-5),
        layers.ReLU(), layers.MaxPooling2D(2),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(), layers.Dense(10),
    ])  # fmt: skip
    weights = []
    for layer in network:
        if isinstance(layer, nn.Conv2d):
            weights += [channels_last(layer.weight), *numbers(layer.bias)]
        elif isinstance(layer, nn.BatchNorm2d):
            weights += numbers(layer.weight, layer.bias, layer.running_mean, layer.running_var)
    model.set_weights([*weights, rows_last(network[-1]), *numbers(network[-1].bias)])
    with xg.attach(model, composite):
        out, pull = xg.vjp(lambda x: model(x, training=False), keras.ops.convert_to_tensor(images))
        (heat,) = pull(keras.ops.one_hot(classes, 10, dtype=out.dtype))
        return keras.ops.convert_to_numpy(heat)


def in_flax(network: nn.Module, composite, images: np.ndarray, classes: np.ndarray):
    import jax
    from flax import linen

    class Network(linen.Module):
        @linen.compact
        def __call__(self, x):
            for channels in (16, 32):
                x = linen.Conv(channels, (3, 3))(x)
                x = linen.relu(linen.BatchNorm(use_running_average=True)(x))
            x = linen.max_pool(x, (2, 2), (2, 2))
            x = linen.relu(linen.Conv(32, (3, 3), padding="VALID")(x))
            return linen.Dense(10)(x.reshape(len(x), -1))

    params, statistics = {}, {}
    for kind in (nn.Conv2d, nn.BatchNorm2d):
        for i, layer in enumerate(each for each in network if isinstance(each, kind)):
            weight, bias = numbers(layer.weight, layer.bias)
            if kind is nn.Conv2d:
                params[f"Conv_{i}"] = {"kernel": channels_last(layer.weight), "bias": bias}
            else:
                params[f"BatchNorm_{i}"] = {"scale": weight, "bias": bias}
                mean, variance = numbers(layer.running_mean, layer.running_var)
                statistics[f"BatchNorm_{i}"] = {"mean": mean, "var": variance}
    (bias,) = numbers(network[-1].bias)
    params["Dense_0"] = {"kernel": rows_last(network[-1]), "bias": bias}
    variables = {"params": params, "batch_stats": statistics}
    under = xg.override(lambda x: Network().apply(variables, x), composite)
    chosen = np.arange(len(classes)), classes
    return np.asarray(jax.grad(lambda x: under(x)[chosen].sum())(images))


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
        for axis, each in zip(axes[row], maps, strict=True):
            if name == "image":
                xg.heatmap(each, ax=axis, cmap="gray_r")
            else:
                xg.heatmap(each, ax=axis, signed=True)
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
    first = [int((known == digit).nonzero()[0]) for digit in SHOWN]
    for framework, run in {"keras": in_keras, "flax": in_flax}.items():
        if find_spec(framework) is None:
            print(f"in {framework}: it is not installed")
            continue
        composite = COMPOSITES["epsilon gamma box"]
        shown = test[first].permute(0, 2, 3, 1).numpy()
        found = run(network, composite, shown, known[first].numpy())
        own = maps["epsilon gamma box"][first].permute(0, 2, 3, 1).numpy()
        difference = float(np.abs(found - own).max() / np.abs(own).max())
        print(f"in {framework}: epsilon gamma box, largest difference {difference:.1e} of its top")
    same = torch.equal(heat_maps(network, test, known), plain)
    same &= all(torch.equal(value, kept[name]) for name, value in network.state_dict().items())
    print(f"taken off, the network is as it was: {same}")
    draw(options.out, test[first], {name: each[first] for name, each in maps.items()})
    print(f"drawn: {options.out}")


if __name__ == "__main__":
    main()
