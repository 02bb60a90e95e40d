"""A binary network learns DIGITS, and each layer the width of its surrogate gradient.

Three hidden layers of 64 neurons that fire or do not. Backward, the step is a logistic sigmoid of
some width: too narrow, and hardly any neuron is near enough to its threshold to learn; too wide,
and the gradients say little about the step. `xg.estimators.learnable_step(x, width)` gives the
width a gradient too, that of the same sigmoid (Lian et al., 2023, Learnable Surrogate Gradient,
IJCAI). The networks begin with the same weights; widths of 0.01 to 10 are kept, or learned as
powers of two, one for each layer. Adam 2e-3 (twenty times that for the exponents), batches of 64,
15 epochs.

Test accuracy, means over 3 seeds:

    width 0.01             0.78 ± 0.06
    width 0.01, learned    0.93 ± 0.03
    width 0.1              0.953 ± 0.015
    width 0.1, learned     0.948 ± 0.020
    width 1                0.931 ± 0.015
    width 1, learned       0.952 ± 0.015
    width 10               0.822 ± 0.050
    width 10, learned      0.946 ± 0.015

Wherever it begins, the width comes to lie between 0.02 and 0.15 within a few epochs, which is about
the best of the widths that are kept: it saves the search, and beats no width that is well chosen.
Too narrow a start is harder to leave than one too wide.

`python learnable_width.py [--framework torch jax] [--quick] [--seeds N] [--out FOLDER]`
"""

import numpy as np
from course import COLORS, Outcome, Outcomes, conduct, summarize
from task import Trained, Weights, adam, draw_layers, train_on_digits

import multigrad as xg

SIZES, EPOCHS, RATE, FASTER = (64, 64, 64, 64, 10), 15, 2e-3, 20.0
LAYERS = range(len(SIZES) - 1)
WIDTHS = 0.01, 0.1, 1.0, 10.0


def run_network(weights: Weights, width: float, images):
    """Return the logits; `width` is that of layers whose own is not among the weights."""
    x = images
    for i in LAYERS:
        x = x @ weights[f"w{i}"] + weights[f"b{i}"]
        if i < LAYERS[-1]:
            exponent = weights.get(f"exponent {i}")
            x = xg.estimators.learnable_step(x, width if exponent is None else 2.0**exponent)
    return x


def learn(ops, start: Weights, width: float, seed: int, count: int, widths: list) -> Trained:
    """Train all of `start`; `widths` gets those of the layers after each epoch."""
    learned = [name for name in start if "exponent" in name]

    def logits(weights, images):
        return run_network(weights, width, images)

    def watch(weights):
        widths.append([2.0 ** float(weights[name]) for name in learned])

    optimizer = adam(RATE, dict.fromkeys(learned, FASTER))
    return train_on_digits(ops, logits, start, optimizer, seed, epochs=count, watch=watch)


def run(ops, seed: int, quick: bool) -> Outcome:
    start, count = draw_layers(np.random.default_rng(seed), *SIZES), 2 if quick else EPOCHS
    trained, widths = {}, {}
    for width in WIDTHS[-1:] if quick else WIDTHS:
        exponent = np.float32(np.log2(width))
        learned = start | {f"exponent {i}": exponent for i in LAYERS[:-1]}
        trained[f"width {width:g}"] = learn(ops, start, width, seed, count, [])
        name = f"width {width:g}, learned"
        trained[name] = learn(ops, learned, width, seed, count, widths.setdefault(name, []))
    return Outcome.of(trained, widths=widths)


def draw(figure, outcomes: Outcomes) -> None:
    figures, widths = figure.subplots(1, 2)
    for (framework, found), way in zip(outcomes.items(), ("o-", "^:"), strict=False):
        means = summarize(found)
        for ending, color in (("", COLORS[1]), (", learned", COLORS[0])):
            rows = [means.get(f"width {w:g}{ending}", (np.nan, np.nan)) for w in WIDTHS]
            values, spreads = zip(*rows, strict=True)
            label = f"{'learned from there' if ending else 'kept'}, {framework}"
            figures.errorbar(WIDTHS, values, spreads, fmt=way, color=color, label=label, capsize=3)
    figures.set(xscale="log", xlabel="first width", ylabel="test accuracy")
    figures.legend()
    figures.grid(alpha=0.25)
    first, *_ = outcomes.values()
    for (name, rows), color in zip(first[0].shown["widths"].items(), COLORS, strict=False):
        for i, style in enumerate(("-", "--", ":")):
            label = f"from {name.split()[1].rstrip(',')}" if i == 0 else None
            epochs = np.arange(1, len(rows) + 1)
            widths.plot(epochs, [row[i] for row in rows], color=color, linestyle=style, label=label)
    widths.set(yscale="log", xlabel="epoch", ylabel="width: first layer —, second - -, third ···")
    widths.legend()
    widths.grid(alpha=0.25)


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(__file__, __doc__, run, draw, arguments=arguments, size=(11.0, 4.5))


if __name__ == "__main__":
    main()
