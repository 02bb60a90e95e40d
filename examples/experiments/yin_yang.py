"""Spiking networks learn the Yin-Yang data set under four surrogates, ten of them at once.

The data set (Kriener, Göltz and Petrovici, arXiv 2102.08211) is a disk of diameter 1 with three
classes, yin, yang and dot, all as likely: a point (x, y) is given as (x, y, 1 - x, 1 - y). 5,000 to
train on, 1,000 to test. Its authors' baselines, means and deviations over 20 runs in %: a network
4-120-3 has 98.7 ± 0.3, a network without a hidden layer 64.3 ± 0.2; the first two lines below train
these on our points.

Here: 120 leaky integrate-and-fire neurons, to which the four numbers are constant currents, for 20
steps of `xp.scan`. A membrane decays by 0.9 a step, fires above 1, and 1 is subtracted; the outputs
integrate spikes with the same decay, and their means over time are the logits. Adam from 2e-2 down
to 0, batches of 100, 80 epochs. Ten networks with initial weights of their own stand on a leading
axis and train as one; all methods begin with the same weights.

Test accuracy, means over the ten networks; 1,000 test points leave a standard error of 0.015 in the
first line and 0.004 in the others:

    4-3, no hidden layer    0.643 ± 0.030
    4-120-3, ReLU           0.987 ± 0.007
    no surrogate            0.964 ± 0.007
    fast_sigmoid            0.989 ± 0.004
    triangular              0.988 ± 0.004
    arctan                  0.989 ± 0.004
    gaussian                0.989 ± 0.004

Without a surrogate the derivative of a step is zero, and only the output layer learns: of 120
random spiking neurons it makes much, but three times the errors.

`python yin_yang.py [--framework torch jax tensorflow] [--quick] [--out FOLDER]`
"""

import numpy as np
from course import COLORS, EVERYWHERE, Outcome, Outcomes, conduct, draw_curves, whose_marks
from task import train_side_by_side

import multigrad as xg

xp = xg.xp
NETWORKS, HIDDEN, STEPS, DECAY, THRESHOLD = 10, 120, 20, 0.9, 1.0
EPOCHS, BATCH, RATE = 80, 100, 2e-2
SURROGATES = {
    "no surrogate": None,
    "fast_sigmoid": {"slope": 2.0},
    "triangular": {"width": 1.0},
    "arctan": {"alpha": 2.0},
    "gaussian": {"sigma": 0.5},
}


def yin_yang(seed: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw points (size, 4) and their classes: 0 for yin, 1 for yang, 2 for a dot.

    A class is drawn first, then points in the square until one is of that class.
    """
    generator = np.random.default_rng(seed)
    classes = generator.integers(3, size=size)
    points = generator.random((40 * size, 2))
    x, y = points.T
    left, right = (np.hypot(x - center, y - 0.5) for center in (0.25, 0.75))
    yin = (left <= 0.25) | ((y > 0.5) & (right > 0.25))
    found = np.where((left < 0.1) | (right < 0.1), 2, np.where(yin, 0, 1))
    found[np.hypot(x - 0.5, y - 0.5) > 0.5] = -1
    chosen = np.empty((size, 2))
    for each in range(3):
        chosen[classes == each] = points[found == each][: (classes == each).sum()]
    return np.concatenate([chosen, 1 - chosen], axis=1).astype(np.float32), classes


def draw_weights(seed: int, networks: int) -> dict[str, np.ndarray]:
    """Draw the weights of 4-120-3, `(networks, before, after)`."""
    generator = np.random.default_rng(seed)
    bounds = {"w0": (1.0, 4, HIDDEN), "b0": (1.0, 1, HIDDEN), "w1": (HIDDEN**-0.5, HIDDEN, 3)}
    weights = {
        name: generator.uniform(-bound, bound, (networks, *shape)).astype(np.float32)
        for name, (bound, *shape) in bounds.items()
    }
    return weights | {"b1": np.zeros((networks, 1, 3), np.float32)}


@xg.function
def shallow(points, weights):
    return xp.matmul(points, weights["w"]) + weights["b"]


@xg.function
def rectified(points, weights):
    hidden = xp.relu(xp.matmul(points, weights["w0"]) + weights["b0"])
    return xp.matmul(hidden, weights["w1"]) + weights["b1"]


def spiking(surrogate: str) -> xg.Function:
    """Return the spiking network as a function of points (n, 4): logits (networks, n, 3)."""
    params = SURROGATES[surrogate]
    fire = xg.activation("Heaviside", rule=None if params is None else surrogate, params=params)

    @xg.function
    def network(points, weights):
        current = xp.matmul(points, weights["w0"]) + weights["b0"]

        def step(state, _):
            membrane, trace, total = state
            membrane = DECAY * membrane + current
            fired = fire(membrane - THRESHOLD)
            # The outputs are linear in the spikes: their weights can wait until the loop is over.
            trace = DECAY * trace + fired
            return (membrane - THRESHOLD * fired, trace, total + trace), None

        rest = xp.zeros_like(current)
        (_, _, total), _ = xp.scan(step, (rest, rest, rest), None, length=STEPS)
        return xp.matmul(total / STEPS, weights["w1"]) + weights["b1"]

    return network


def run(ops, seed: int, quick: bool) -> Outcome:
    networks, epochs = (3, 2) if quick else (NETWORKS, EPOCHS)
    data = (*yin_yang(42, 5000), *yin_yang(40, 1000))
    deep = draw_weights(seed, networks)
    flat = {"w": 0 * deep["w0"][:, :, :3], "b": deep["b1"]}
    methods = {"4-3, no hidden layer": (shallow, flat), "4-120-3, ReLU": (rectified, deep)}
    methods |= {name: (spiking(name), deep) for name in SURROGATES}
    trained, answers = {}, {}
    for name in ("no surrogate", "fast_sigmoid") if quick else methods:
        trained[name], found = train_side_by_side(
            ops, *methods[name], data, epochs=epochs, size=BATCH, rate=RATE
        )
        each = 100 * (found == data[-1]).mean(axis=1)
        print(f"    {name:22} {each.mean():.2f} ± {each.std():.2f} %", flush=True)
        answers[name] = found[0]
    return Outcome.of(trained, points=data[2], answers=answers)


def draw(figure, outcomes: Outcomes) -> None:
    curves, points = figure.subplots(1, 2)
    ((first, *_), *_) = outcomes.values()
    x, y = first.shown["points"][:, :2].T
    answers = first.shown["answers"]
    draw_curves(curves, outcomes, "accuracy", [name for name in answers if name in SURROGATES])
    curves.set(xlabel="epoch", ylabel="test accuracy", ylim=(0.8, 1.0))
    curves.legend(title=whose_marks(outcomes), loc="lower right")
    points.scatter(x, y, c=[COLORS[each] for each in answers["fast_sigmoid"]], s=9)
    points.set(title="what one network with fast_sigmoid answers", aspect="equal")


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments, frameworks=EVERYWHERE, seeds=1
    )


if __name__ == "__main__":
    main()
