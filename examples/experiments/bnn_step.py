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

from course import EVERYWHERE, Outcome, Outcomes, conduct, draw_training
from suc import train_unit
from task import Trained

import multigrad as xg

ONES, EPOCHS, BATCH = (4096, 64, 0.5), 20, 64
RULES = {
    "Step / 1": "d(Linear)",
    "Step / rectangular": "rectangular",
    "Step / 1, whole batches": "d(Linear)",
}


def run(ops, seed: int, quick: bool) -> Outcome:
    def learn(name: str) -> Trained:
        unit, whole = xg.activation("Heaviside", RULES[name]), name.endswith("whole batches")
        words = {"batch": BATCH, "epochs": 3 if quick else EPOCHS, "whole": whole}
        return train_unit(ops, unit, lambda p, y: (p - y) ** 2, ONES, seed, **words)

    return Outcome.of({name: learn(name) for name in RULES})


def draw(figure, outcomes: Outcomes) -> None:
    draw_training(figure, outcomes, "training loss: the share of wrong answers")


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments,
        frameworks=EVERYWHERE, seeds=5,
    )  # fmt: skip


if __name__ == "__main__":
    main()
