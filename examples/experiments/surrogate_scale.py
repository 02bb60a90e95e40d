"""The shape of a surrogate gradient matters little, its scale much: on random smooth manifolds.

Zenke and Vogels (2021, Neural Computation 33:899) find that spiking networks learn about as well
with differently shaped surrogates over a wide range of slopes, and that the scale, the surrogate's
value at the threshold, can matter much: wherever the gradient passes through a spike more than
once. Here it does at the reset, which subtracts from the membrane what has fired; with the reset
left out of the gradient, the scale has nothing to multiply up.

The data are made as theirs: each of 10 classes is a curve in 20 dimensions, and each coordinate a
Fourier series with random amplitudes and phases, whose k-th term is divided by k^3; the
coordinates of a point on it, between 0 and 1, give the times at which 20 input neurons spike once,
within 30 steps. One layer of 32 leaky integrate-and-fire neurons, outputs that integrate, the
logits their means over time; 1,000 points to train on, 1,000 to test. Three networks for each
shape and each number stand on a leading axis and train at once; Adam from 2e-2 down to 0.

Test accuracy, means over the three networks: at the best slope of six, with scale 1, and at the
largest scale, with slope 5.

    fast_sigmoid, best slope                     0.964 ± 0.015
    tanh_surrogate, best slope                   0.975 ± 0.015
    triangular, best slope                       0.972 ± 0.015
    fast_sigmoid, scale 30                       0.31 ± 0.15
    tanh_surrogate, scale 30                     0.37 ± 0.15
    triangular, scale 30                         0.32 ± 0.15
    fast_sigmoid, scale 30, reset left out       0.962 ± 0.015
    tanh_surrogate, scale 30, reset left out     0.952 ± 0.015
    triangular, scale 30, reset left out         0.939 ± 0.015

`python surrogate_scale.py [--framework torch jax] [--quick] [--out FOLDER]`
"""

from itertools import product

import numpy as np
from course import COLORS, Outcome, Outcomes, conduct
from task import train_side_by_side

import multigrad as xg

xp = xg.xp
SMOOTHNESS, CLASSES, INPUTS, HIDDEN, STEPS, DECAY, NETWORKS = 3, 10, 20, 32, 30, 0.9, 3
EPOCHS, BATCH, RATE = 20, 50, 2e-2
# Each is 1 at zero, and a function of slope * membrane.
SHAPES = {"fast_sigmoid": {"slope": 1.0}, "tanh_surrogate": {"slope": 1.0}, "triangular": {}}
SLOPES, SCALES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SLOPE = 5.0  # where the scale changes
SWEEPS = {"slope": SLOPES, "scale": SCALES, "scale, reset left out": SCALES}


def manifolds(generator: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw spikes (size, 30, 20) of points on curves of 10 classes, and their classes."""
    orders = np.arange(1, 11)
    amplitudes, phases = generator.random((2, CLASSES, INPUTS, len(orders)))
    classes, places = generator.integers(CLASSES, size=size), generator.random((size, 1, 1))
    waves = np.sin(2 * np.pi * (orders * places + phases[classes]))
    values = (amplitudes[classes] / orders**SMOOTHNESS * waves).sum(axis=-1)
    for each in range(CLASSES):
        own = values[classes == each]
        values[classes == each] = (own - own.min(axis=0)) / np.ptp(own, axis=0)
    times = (values * (STEPS - 1)).round()
    return (times[:, None] == np.arange(STEPS)[:, None]).astype(np.float32), classes


def spiking(shape: str, through_reset: bool, slopes, scales):
    """Return the network, from spikes (n, 30, 20) to logits (networks, n, 10)."""
    rule = xg.get(shape).with_params(**SHAPES[shape])

    def derivative(grad_out, x, slope, scale):
        return rule(None, scale * grad_out, slope * x), None, None

    fire = xg.function(lambda x, slope, scale: xp.where(x > 0, 1.0, 0.0), derivative)

    @xg.function
    def network(spikes, weights, slope, scale):
        currents = xp.matmul(xp.permute_dims(spikes, (1, 0, 2))[:, None], weights["w0"])

        def step(state, current):
            membrane, trace, total = state
            membrane = DECAY * membrane + current
            fired = fire(membrane - 1.0, slope, scale)
            reset = fired if through_reset else xp.stop_gradient(fired)
            # The outputs are linear in the spikes: their weights can wait until the loop is over.
            trace = DECAY * trace + fired
            return (membrane - reset, trace, total + trace), None

        rest = xp.zeros_like(currents[0])
        (_, _, total), _ = xp.scan(step, (rest, rest, rest), currents)
        return xp.matmul(total / STEPS, weights["w1"]) + weights["b1"]

    return lambda spikes, weights: network(spikes, weights, slopes, scales)


def draw_weights(generator: np.random.Generator, networks: int) -> dict[str, np.ndarray]:
    weights = {
        "w0": generator.normal(0.2, 0.4, (networks, INPUTS, HIDDEN)),
        "w1": generator.normal(0.0, HIDDEN**-0.5, (networks, HIDDEN, CLASSES)),
        "b1": np.zeros((networks, 1, CLASSES)),
    }
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


def run(ops, seed: int, quick: bool) -> Outcome:
    generator, size = np.random.default_rng(seed), 200 if quick else 1000
    networks, epochs = (1, 15) if quick else (NETWORKS, EPOCHS)
    spikes, classes = manifolds(generator, 2 * size)
    data = spikes[:size], classes[:size], spikes[size:], classes[size:]
    start = draw_weights(generator, networks)
    start = {name: np.concatenate([each] * len(SLOPES)) for name, each in start.items()}
    figures, swept, losses = {}, {}, {}
    for shape, (sweep, tried) in product(SHAPES, SWEEPS.items()):
        if quick and (shape != "fast_sigmoid" or "left out" in sweep):
            continue
        values = np.repeat(np.float32(tried), networks).reshape(-1, 1, 1)
        numbers = (values, 0 * values + 1) if sweep == "slope" else (0 * values + SLOPE, values)
        network = spiking(shape, "left out" not in sweep, *map(ops.tensor, numbers))
        trained, answers = train_side_by_side(
            ops, network, start, data, epochs=epochs, size=BATCH, rate=RATE
        )
        losses[f"{shape}, {sweep}"] = trained.losses
        found = (answers == data[-1]).mean(axis=1).reshape(-1, networks).mean(axis=1)
        swept[shape, sweep] = found
        print(f"    {shape}, {sweep}:", *np.round(found, 3), flush=True)
        if sweep == "slope":
            figures[f"{shape}, best slope"] = float(found.max())
        else:
            figures[f"{shape}, {sweep.replace('scale', f'scale {SCALES[-1]:g}')}"] = float(
                found[-1]
            )
    return Outcome(figures, losses, {}, swept)


def draw(figure, outcomes: Outcomes) -> None:
    axes = figure.subplots(1, 3, sharey=True)
    for axis, (sweep, tried) in zip(axes, SWEEPS.items(), strict=True):
        for shape, color in zip(SHAPES, COLORS, strict=False):
            for (found, *_), way in zip(outcomes.values(), ("o-", "x:"), strict=False):
                if (shape, sweep) in found.shown:
                    axis.plot(tried, found.shown[shape, sweep], way, color=color)
            axis.plot([], [], color=color, label=shape)
        axis.set(
            xscale="log",
            ylim=(0, 1),
            xlabel="slope (scale 1)" if sweep == "slope" else f"{sweep} (slope {SLOPE:g})",
        )
        axis.grid(alpha=0.25)
    axes[0].set(ylabel="test accuracy")
    axes[0].legend(loc="lower left")


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments, size=(10.0, 3.5), seeds=1, kind="svg"
    )


if __name__ == "__main__":
    main()
