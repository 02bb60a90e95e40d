"""Domain-adversarial training: digits with labels, and turned or pale digits without any.

The features of a network of 64-64-64 go to two heads: the labels', which sees the upright digits,
and the domain's, which tells upright from changed. Between features and domain stands a gradient
reversal (Ganin and Lempitsky, 2015, arXiv 1409.7495), so that the features are trained to hide what
the head looks for. Its strength is a number, or `xg.schedule.of` a function of the step: it grows
from 0 as in the paper, here to 0.3. A schedule moves with each step, and nothing is traced again:
PyTorch's code runs as it is, JAX's under `xg.jit`. Adam 1e-3, batches of 64, 30 epochs.

Test accuracy on the changed digits, mean of the last 5 epochs, means over 3 seeds:

    turned, source only    0.433 ± 0.040
    turned, constant       0.635 ± 0.100
    turned, scheduled      0.632 ± 0.080
    pale, source only      0.56 ± 0.20
    pale, constant         0.32 ± 0.15
    pale, scheduled        0.26 ± 0.20

On digits that are turned by 30 degrees the reversal is worth 0.2, and at this strength it need not
grow. On pale digits it does harm: both domains are hidden from the head by features that mix the
classes up. From epoch to epoch the accuracy swings by 0.1, so one run says little.

`python dann.py [--framework torch jax] [--quick] [--seeds N] [--out FOLDER]`
"""

import math

import numpy as np
from course import COLORS, Outcome, Outcomes, conduct, draw_curves, whose_marks
from scipy.ndimage import rotate
from task import Trained, Weights, accuracy, adam, batches, digits, draw_layers, train

import multigrad as xg

EPOCHS, BATCH, RATE, STRENGTH = 30, 64, 1e-3, 0.3
relu = xg.activation("ReLU")


def turn(images: np.ndarray) -> np.ndarray:
    """Turn each image by 30 degrees."""
    squares = images.reshape(-1, 8, 8)
    return rotate(squares, 30, axes=(2, 1), reshape=False, order=1).reshape(-1, 64)


def fade(images: np.ndarray) -> np.ndarray:
    """Make white a light gray, and black a dark one."""
    return np.float32(0.3) + np.float32(0.4) * images


TARGETS = {"turned": turn, "pale": fade}
WAYS = "source only", "constant", "scheduled"


def draw_weights(generator: np.random.Generator) -> Weights:
    parts = {"feature": (64, 64, 64), "label": (64, 10), "domain": (64, 32, 2)}
    return {
        f"{part} {name}": weight
        for part, sizes in parts.items()
        for name, weight in draw_layers(generator, *sizes).items()
    }


def find_features(weights: Weights, images):
    hidden = relu(images @ weights["feature w0"] + weights["feature b0"])
    return relu(hidden @ weights["feature w1"] + weights["feature b1"])


def find_labels(weights: Weights, features):
    return features @ weights["label w0"] + weights["label b0"]


def find_domains(weights: Weights, features):
    hidden = relu(features @ weights["domain w0"] + weights["domain b0"])
    return hidden @ weights["domain w1"] + weights["domain b1"]


def classify(weights: Weights, images):
    return find_labels(weights, find_features(weights, images))


def grow(share):
    """Return the reversal's strength: 0 at first, all of it from the middle of the training on."""
    return STRENGTH * (2 / (1 + math.e ** (-10 * share)) - 1)


def choose_strength(way: str, steps: int):
    if way == "scheduled":
        return xg.schedule.of(lambda step: grow(step / steps))
    return 0.0 if way == "source only" else STRENGTH


def draw_epochs(seed: int, count: int, others: np.ndarray, strength):
    """Yield the epochs: labeled images, and beside them images of the other domain."""
    images, labels, _, _ = digits()
    generator = np.random.default_rng(seed)

    def draw_epoch():
        labeled = batches(generator, BATCH, images, labels)
        for pair, (other,) in zip(labeled, batches(generator, BATCH, others), strict=True):
            yield *pair, other
            if isinstance(strength, xg.schedule.Schedule):
                strength.step()

    for _ in range(count):
        yield draw_epoch()


def learn(ops, seed: int, quick: bool, target: str, way: str) -> Trained:
    train_x, _, test_x, test_y = digits()
    others, other_test = (TARGETS[target](images) for images in (train_x, test_x))
    count = 3 if quick else EPOCHS
    strength = choose_strength(way, count * (len(train_x) // BATCH))
    reverse = xg.activation("Linear", rule="gradient_reversal", params={"alpha": strength})
    domains = [ops.tensor(np.full(BATCH, i)) for i in range(2)]

    def loss(weights, images, labels, other):
        features = find_features(weights, images), find_features(weights, other)
        told = [
            ops.cross_entropy(find_domains(weights, reverse(each)), domain)
            for each, domain in zip(features, domains, strict=True)
        ]
        return ops.cross_entropy(find_labels(weights, features[0]), labels) + sum(told) / 2

    evaluate, test_images = ops.compiled(classify), ops.tensor(other_test)

    def score(weights):
        return accuracy(ops, evaluate(weights, test_images), test_y)

    start = draw_weights(np.random.default_rng(seed))
    epochs = draw_epochs(seed, count, others, strength)
    return train(ops, loss, start, adam(RATE), epochs, score)


def run(ops, seed: int, quick: bool) -> Outcome:
    _, _, test_x, _ = digits()
    trained, shown = {}, {}
    for target in ("turned",) if quick else TARGETS:
        for way in ("source only", "scheduled") if quick else WAYS:
            each = trained[f"{target}, {way}"] = learn(ops, seed, quick, target, way)
            shown[f"{target}, {way}"] = [
                ops.array(find_features(each.weights, ops.tensor(images)))
                for images in (test_x, TARGETS[target](test_x))
            ]
    outcome = Outcome.of(trained, features=shown)
    outcome.figures.update(
        {name: float(np.mean(each.curve[-5:])) for name, each in trained.items()}
    )
    return outcome


def draw(figure, outcomes: Outcomes) -> None:
    first, *_ = outcomes.values()
    features, known = first[0].shown["features"], first[0].curves["accuracy"]
    panels = figure.subplots(2, 3)
    for axis, way in zip(panels[0], ("source only", "scheduled"), strict=False):
        source, target = features[f"turned, {way}"]
        _, _, directions = np.linalg.svd(source - source.mean(axis=0), full_matrices=False)
        for found, color, name in ((source, COLORS[0], "upright"), (target, COLORS[4], "turned")):
            points = (found - source.mean(axis=0)) @ directions[:2].T
            axis.scatter(*points.T, s=6, color=color, alpha=0.5, label=name)
        axis.set(title=f"features, {way}", xlabel="first component", ylabel="second")
        axis.legend()
    share = np.linspace(0, 1, 101)
    panels[0, 2].plot(share, grow(share), color=COLORS[2])
    panels[0, 2].set(title="the schedule", xlabel="share of the training", ylabel="strength")
    for axis, target in zip(panels[1], TARGETS, strict=False):
        names = [name for name in known if name.startswith(target)]
        draw_curves(axis, outcomes, "accuracy", names)
        axis.set(title=f"test accuracy on {target} digits", xlabel="epoch")
        axis.legend(title=whose_marks(outcomes))
    _, _, images, _ = digits()
    rows = [images[:6], *(change(images[:6]) for change in TARGETS.values())]
    pixels = np.block([[image.reshape(8, 8) for image in row] for row in rows])
    panels[1, 2].imshow(pixels, cmap="gray_r", vmin=0, vmax=1)
    panels[1, 2].set(xticks=[], yticks=[3.5, 11.5, 19.5], yticklabels=["source", *TARGETS])


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(__file__, __doc__, run, draw, arguments=arguments, size=(13.0, 8.0))


if __name__ == "__main__":
    main()
