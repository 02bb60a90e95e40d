"""The expected coarse gradients of three straight-through estimators, against 400,000 draws.

Yin et al. (ICLR 2019, arXiv 1903.05662) learn `y = v . step(Z w)`, with the entries of Z (m, n)
standard normal, from labels `v* . step(Z w*)` with |w*| = 1. The loss of a draw is half the squared
error; a straight-through estimator puts mu' where backward needs the step's derivative. What it
gives for w, the coarse gradient, has a mean in closed form. With u = w / |w|, t the angle between w
and w*, e the unit vector of w* - (w*.u) u, r = sqrt(2 pi), Phi the normal distribution function and

    h = |v|^2 + (1.v)^2 - (1.v) (1.v*) + v.v*

the means are

    identity      (|v|^2 u - (v.v*) w*) / r
    ReLU          h u / (2 r) - (v.v*) (u + w*) / (2 r)
    clipped ReLU  (1 - exp(-b^2 / 2)) h u / (2 r) - (v.v*) (p u + q e), where b = 1 / |w|,
                  q = sin(t) (Phi(b / sin t) - 1/2) / r and
                  p = 1 / (2 r) - exp(-b^2 / 2) Phi(b / tan t) / r + q / tan t

The first two are Lemmas 7 and 4 of the paper's submission. All three follow from two facts: the
rows z of Z are independent, so only E[z mu'(z.w)] and E[z mu'(z.w) step(z.w*)] are needed; and in
the plane of u and e these are integrals over one normal variable.

Here m = 4, n = 3, |w| = 0.8, at eight angles, with an arbitrary v and with the v of the paper's
spurious minimum, which is at the angle pi. There the coarse gradient of the identity does not
vanish but has the length (Lemma 7) 2 (m - 1) (1.v*)^2 / (r (m + 1)^2) = 0.383, so that descent
never settles. `z` is how far the mean of the draws lies from the closed form, in standard errors:
over the 48 components, the mean of z^2 is 1 if both are right.

    identity, mean of z^2                    1.0 ± 0.6
    ReLU, mean of z^2                        1.0 ± 0.6
    clipped ReLU, mean of z^2                1.0 ± 0.6
    identity, at the spurious minimum        0.383 ± 0.008
    ReLU, at the spurious minimum            0.000 ± 0.008
    clipped ReLU, at the spurious minimum    0.000 ± 0.008

`python coarse_gradients.py [--framework torch jax tensorflow] [--quick] [--out FOLDER]`
"""

from itertools import product
from math import cos, exp, pi, sin, sqrt, tan
from statistics import NormalDist

import numpy as np
from course import COLORS, EVERYWHERE, MARKS, Outcome, Outcomes, conduct, whose_marks

import multigrad as xg

xp = xg.xp
ESTIMATORS = {
    "identity": ("straight_through", {}),
    "ReLU": ("d(ReLU)", {}),
    "clipped ReLU": ("rectangular", {"a": 0.0, "b": 1.0}),
}
DRAWS, ANGLES, LENGTH = 400_000, np.arange(1, 9) * pi / 8, 0.8
V_STAR = np.array([1.0, 1.0, 0.5, -0.5])
SPURIOUS = np.array([-0.2, -0.2, 0.3, 1.3])  # (I + 11')^-1 (11' - I) v*
POINTS = {"an arbitrary v": np.array([0.7, -0.4, 0.5, 0.9]), "v of the spurious minimum": SPURIOUS}
normal = NormalDist().cdf
W_STAR, ACROSS = np.eye(3)[0], np.array([0.0, 0.6, 0.8])  # orthonormal


def plane(angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit vectors u, `angle` away from w*, and e, orthogonal to it."""
    u = cos(angle) * W_STAR + sin(angle) * ACROSS
    return u, sin(angle) * W_STAR - cos(angle) * ACROSS


def closed_form(name: str, v: np.ndarray, angle: float) -> np.ndarray:
    """Return the expected coarse gradient for w, of shape (3,)."""
    (u, e), both, r, b = plane(angle), v @ V_STAR, sqrt(2 * pi), 1 / LENGTH
    h = v @ v + v.sum() ** 2 - v.sum() * V_STAR.sum() + both
    if name == "identity":
        return (v @ v * u - both * W_STAR) / r
    if name == "ReLU":
        return (h * u - both * (u + W_STAR)) / (2 * r)
    q = sin(angle) * (normal(b / sin(angle)) - 0.5) / r
    beyond = exp(-(b**2) / 2)
    p = 0.5 / r - beyond * normal(b / tan(angle)) / r + q / tan(angle)
    return (1 - beyond) * h * u / (2 * r) - both * (p * u + q * e)


def make_loss(rule: str, params: dict[str, float]) -> xg.Function:
    """Return the loss of each draw under an estimator; z (draws, 4, 3), w (draws, 1, 3)."""
    step = xg.activation("Heaviside", rule, params)

    @xg.function
    def loss(z, w, v, labels):
        return (xp.sum(step(xp.sum(z * w, axis=-1)) * v, axis=-1) - labels) ** 2 / 2

    return loss


def draw_gradients(ops, loss, v: np.ndarray, angle: float, inputs: np.ndarray) -> np.ndarray:
    """Return the coarse gradient for w of each draw; inputs (draws, 4, 3), result (draws, 3)."""
    labels = (inputs @ W_STAR > 0) @ V_STAR
    z, v, labels = (ops.tensor(each.astype(np.float32)) for each in (inputs, v, labels))
    # Each draw has a w of its own, so each gets its own gradient.
    w = np.tile(LENGTH * plane(angle)[0], (len(inputs), 1, 1)).astype(np.float32)
    losses, pull = xg.vjp(lambda w: loss(z, w, v, labels), ops.tensor(w))
    (gradients,) = pull(0 * losses + 1)
    return ops.array(gradients)[:, 0].astype(np.float64)


def run(ops, seed: int, quick: bool) -> Outcome:
    generator = np.random.default_rng(seed)
    draws, angles = (DRAWS // 20, ANGLES[3::4]) if quick else (DRAWS, ANGLES)
    losses = {name: make_loss(*estimator) for name, estimator in ESTIMATORS.items()}
    means = {(name, point): [] for name in ESTIMATORS for point in POINTS}
    scores = {name: [] for name in ESTIMATORS}
    for (point, v), angle in product(POINTS.items(), angles):
        inputs = generator.standard_normal((draws, len(v), len(W_STAR)))
        for name, loss in losses.items():
            gradients = draw_gradients(ops, loss, v, angle, inputs)
            mean, error = gradients.mean(axis=0), gradients.std(axis=0) / sqrt(draws)
            means[name, point].append(mean)
            scores[name].append((mean - closed_form(name, v, angle)) / error)
    print(f"    largest of {9 * len(scores['ReLU'])} |z|: {np.abs([*scores.values()]).max():.2f}")
    figures = {f"{name}, mean of z^2": float(np.square(z).mean()) for name, z in scores.items()}
    for name in ESTIMATORS:
        last = means[name, "v of the spurious minimum"][-1]
        figures[f"{name}, at the spurious minimum"] = float(np.linalg.norm(last))
    return Outcome(figures, {}, {}, {"means": means, "angles": angles})


def draw(figure, outcomes: Outcomes) -> None:
    axes = figure.subplots(1, 2)
    angles = np.linspace(0.02, pi, 200)
    for (axis, (point, v)), (name, color) in product(
        zip(axes, POINTS.items(), strict=True), zip(ESTIMATORS, COLORS, strict=False)
    ):
        lines = [closed_form(name, v, angle) for angle in angles]
        axis.plot(angles, np.linalg.norm(lines, axis=1), color=color, label=name)
        for mark, (first, *_) in zip(MARKS, outcomes.values(), strict=False):
            lengths = np.linalg.norm(first.shown["means"][name, point], axis=1)
            marked = {"marker": mark, "linestyle": "none", "markerfacecolor": "none"}
            axis.plot(first.shown["angles"], lengths, color=color, **marked)
        axis.set(title=point, xlabel="angle between w and w*", ylim=(0, None))
        axis.grid(alpha=0.25)
    axes[0].set(ylabel="length of the expected coarse gradient")
    axes[0].legend(title=whose_marks({"closed form": []} | outcomes))


def main(arguments: list[str] | None = None) -> Outcomes:
    return conduct(
        __file__, __doc__, run, draw, arguments=arguments, frameworks=EVERYWHERE, seeds=1
    )


if __name__ == "__main__":
    main()
