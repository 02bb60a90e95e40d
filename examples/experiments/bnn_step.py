"""FreeGrad's binary experiment: a single unit whose activation is a step, which has no gradient.

The unit is `Heaviside(w x + b)` with a squared error, so that all it sees is right or wrong. Its
input is a vector of 64 bits whose count of ones is uniform, the class is whether more than half are
ones. Backward, the step is the constant 1 (`d(Linear)`), or 1 in a window around the jump.
4,096 vectors, 80 % to train, SGD 0.1, batches of 64, 20 epochs. Settings: arXiv 2509.07236, section
5.1 and table 13. FreeGrad 1.0.1 itself gave 0.939 ± 0.053 for Step / 1 over five seeds.

Test accuracy after the last epoch, means over 5 seeds, the same in PyTorch, JAX and TensorFlow:

    Step / 1                   0.962 ± 0.050
    Step / rectangular         0.976 ± 0.020
    Step / 1, whole batches    0.983 ± 0.010

The spread has one cause: the last batch of an epoch has 12 vectors only, and what a few wrong ones
of them do to the weights is what the test then sees. With whole batches alone the five seeds end
between 0.979 and 0.985.

`python bnn_step.py [--framework torch jax tensorflow] [--quick] [--seeds N] [--out FOLDER]`
"""

import numpy as np
from course import EVERYWHERE, Outcome, Outcomes, conduct, draw_training
from suc import draw_ones
from task import batches, draw_layers, sgd, train

import multigrad as xg

SAMPLES, BITS, THRESHOLD, EPOCHS, BATCH, RATE = 4096, 64, 0.5, 20, 64, 0.1
RULES = {
    "Step / 1": "d(Linear)",
    "Step / rectangular": "rectangular",
    "Step / 1, whole batches": "d(Linear)",
}


def run(ops, seed: int, quick: bool) -> Outcome:
    generator = np.random.default_rng(seed)
    x, y = draw_ones(generator, SAMPLES, BITS, THRESHOLD)
    cut = int(0.8 * SAMPLES)
    start = draw_layers(generator, BITS, 1)
    trained = {}
    for name, rule in RULES.items():
        unit = xg.activation("Heaviside", rule=rule)

        def predict(weights, x, unit=unit):
            return unit(x @ weights["w0"] + weights["b0"])[:, 0]

        def loss(weights, x, y, predict=predict):
            return ops.mean((predict(weights, x) - y) ** 2)

        def score(weights, predict=predict):
            return float((ops.array(predict(weights, ops.tensor(x[cut:]))) == y[cut:]).mean())

        order, whole = np.random.default_rng(seed), name.endswith("whole batches")
        epochs = (
            batches(order, BATCH, x[:cut], y[:cut], whole=whole)
            for _ in range(3 if quick else EPOCHS)
        )
        trained[name] = train(ops, loss, start, sgd(RATE), epochs, score)
    return Outcome.of(trained)


def draw(figure, outcomes: Outcomes) -> None:
    draw_training(figure, outcomes, "training loss: the share of wrong answers")


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments,
        frameworks=EVERYWHERE, seeds=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
