"""Quantization-aware training at 4, 3 and 2 bits, with step sizes that are learned (LSQ).

A network of 64-32-32-10 is trained in float on DIGITS for 15 epochs, then its weights (a step size
for each output channel) and hidden activations (unsigned, a step size for each layer) are quantized
to the same few bits, in three ways:

- *rounded*: not trained further; a step size reaches to the largest weight or activation;
- *fixed*: with those step sizes, trained 15 epochs further with the straight-through estimator;
- *LSQ*: the step sizes are trained too (Esser et al., 2020, arXiv 1902.08153), from
  2 mean|w| / sqrt(Qp) on.

Test accuracy, means over 3 seeds:

    float              0.950 ± 0.015
    float, further     0.962 ± 0.010
    4 bits, rounded    0.946 ± 0.020
    4 bits, fixed      0.959 ± 0.010
    4 bits, LSQ        0.957 ± 0.010
    3 bits, rounded    0.905 ± 0.025
    3 bits, fixed      0.945 ± 0.015
    3 bits, LSQ        0.955 ± 0.010
    2 bits, rounded    0.64 ± 0.10
    2 bits, fixed      0.890 ± 0.015
    2 bits, LSQ        0.928 ± 0.015

At 4 bits the step sizes need not be learned, at 2 bits that is worth 0.04: levels that reach to the
largest weight are too coarse for the others. One seed lies within 0.02 of these (rounded: 0.1).

`python lsq_qat.py [--framework torch jax] [--quick] [--seeds N] [--out FOLDER]`
"""

import numpy as np
from course import COLORS, Outcome, Outcomes, conduct, draw_curves, summarize, whose_marks
from task import Trained, Weights, accuracy, adam, digits, draw_layers, train_on_digits

import multigrad as xg

SIZES, BITS, EPOCHS, RATE = (64, 32, 32, 10), (4, 3, 2), 15, 2e-3
LAYERS = range(len(SIZES) - 1)
relu = xg.activation("ReLU")


def run_network(weights: Weights, steps: Weights, images, bits: int | None = None):
    """Return the logits and the input of each layer; with `bits`, all but the image quantized."""
    x, seen = images, []
    for i in LAYERS:
        weight = weights[f"w{i}"]
        if bits:
            weight = xg.estimators.lsq(weight, steps[f"step of w{i}"], bits=bits)
            if i:
                x = xg.estimators.lsq(x, steps[f"step of x{i}"], bits=bits, signed=False)
        seen.append(x)
        x = x @ weight + weights[f"b{i}"]
        if i < LAYERS[-1]:
            x = relu(x)
    return x, seen


def choose_steps(inputs: list[np.ndarray], weights: Weights, bits: int, by_mean: bool) -> Weights:
    """Return the first step sizes: LSQ's by the mean size, or those that reach to the largest."""

    def step(values: np.ndarray, axis: int | None, signed: bool):
        high, size = 2 ** (bits - signed) - 1, np.abs(values)  # the highest level
        if by_mean:
            return np.float32(2 * size.mean(axis=axis, keepdims=axis is not None) / high**0.5)
        return np.float32(size.max(axis=axis, keepdims=axis is not None) / high)

    steps = {f"step of w{i}": step(weights[f"w{i}"], 0, True) for i in LAYERS}
    return steps | {f"step of x{i}": step(inputs[i], None, False) for i in LAYERS if i}


def run(ops, seed: int, quick: bool) -> Outcome:
    train_x, _, test_x, test_y = digits()

    def learn(logits, start: Weights) -> Trained:
        epochs = 2 if quick else EPOCHS
        return train_on_digits(ops, logits, start, adam(RATE), seed, epochs=epochs)

    def in_float(weights, images):
        return run_network(weights, {}, images)[0]

    start = draw_layers(np.random.default_rng(seed), *SIZES)
    trained = {"float": learn(in_float, start)}
    start = arrays_of(ops, trained["float"].weights)
    if not quick:
        trained["float, further"] = learn(in_float, start)
    inputs = run_network(trained["float"].weights, {}, ops.tensor(train_x))[1]
    inputs = [ops.array(each) for each in inputs]
    rounded, steps = {}, {}
    for bits in BITS[-1:] if quick else BITS:
        widest = choose_steps(inputs, start, bits, by_mean=False)
        kept = {name: ops.tensor(size) for name, size in widest.items()}

        def fixed(weights, images, bits=bits, kept=kept):
            return run_network(weights, kept, images, bits)[0]

        def learned(weights, images, bits=bits):
            return run_network(weights, weights, images, bits)[0]

        first = choose_steps(inputs, start, bits, by_mean=True)
        logits = fixed(trained["float"].weights, ops.tensor(test_x))
        rounded[f"{bits} bits, rounded"] = accuracy(ops, logits, test_y)
        trained[f"{bits} bits, fixed"] = learn(fixed, start)
        trained[f"{bits} bits, LSQ"] = learn(learned, start | first)
        steps[bits] = widest, arrays_of(ops, trained[f"{bits} bits, LSQ"].weights)
    outcome = Outcome.of(trained, weights=start, steps=steps)
    outcome.figures.update(rounded)
    return outcome


def arrays_of(ops, weights: Weights) -> Weights:
    return {name: ops.array(weight) for name, weight in weights.items()}


def draw(figure, outcomes: Outcomes) -> None:
    figures, steps, *curves = figure.subplots(2, 2).flat
    draw_figures(figures, outcomes)
    first = next(iter(outcomes.values()))[0]
    draw_steps(steps, first.shown["steps"][2])
    known = first.curves["accuracy"]
    for axis, bits in zip(curves, (3, 2), strict=True):
        names = "float, further", f"{bits} bits, fixed", f"{bits} bits, LSQ"
        draw_curves(axis, outcomes, "accuracy", [name for name in names if name in known])
        axis.set(title=f"{bits} bits, after the training in float", ylim=(0.85, 0.99))
        axis.set(xlabel="epoch", ylabel="test accuracy")
        axis.legend(title=whose_marks(outcomes), loc="lower right")


def draw_figures(axis, outcomes: Outcomes) -> None:
    """Draw the accuracy at each number of bits: a line per way, a row of marks per framework."""
    for (framework, found), style in zip(outcomes.items(), ("o-", "^:", "s:"), strict=False):
        means = summarize(found)
        for way, color in zip(("rounded", "fixed", "LSQ"), COLORS, strict=False):
            rows = [means.get(f"{bits} bits, {way}", (np.nan, np.nan)) for bits in BITS]
            values, spreads = zip(*rows, strict=True)
            label = f"{way}, {framework}"
            axis.errorbar(BITS, values, spreads, fmt=style, color=color, label=label, capsize=3)
        axis.axhline(
            means.get("float, further", means["float"])[0], color="#999999", linestyle=style[1:]
        )
    axis.set(xlabel="bits", ylabel="test accuracy", xticks=BITS, title="gray: float")
    axis.legend()
    axis.grid(alpha=0.25)


def draw_steps(axis, sizes: tuple[Weights, Weights]) -> None:
    """Draw the step size of each channel at 2 bits: fixed, and learned."""
    fixed, learned = sizes
    for i, color in zip(LAYERS, COLORS, strict=False):
        name = f"step of w{i}"
        axis.scatter(fixed[name], learned[name], color=color, s=18, label=f"weights of layer {i}")
    axis.axline((0, 0), slope=1, color="#999999")
    axis.set(title="step sizes at 2 bits, one point for each channel (seed 0)")
    axis.set(xlabel="fixed: up to the largest weight", ylabel="learned by LSQ")
    axis.legend()
    axis.grid(alpha=0.25)


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(__file__, __doc__, run, draw, arguments=arguments, size=(12.0, 8.5))


if __name__ == "__main__":
    main()
