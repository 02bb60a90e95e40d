"""A surrogate gradient from a paper: is the code the paper's formula, and how do three surrogates
differ?

SuperSpike (Zenke and Ganguli, 2018, Neural Computation 30, equation 2.6): the derivative of a spike
is replaced by 1 / (1 + beta * |x|)^2, the derivative of the fast sigmoid x / (1 + |x|) up to scale.
One published implementation has lost the square; a check tells. Needs: multigrad; matplotlib draws
the curves where it is installed
"""

import sys
from importlib.util import find_spec

import numpy as np

import multigrad as xg
from multigrad import xp

BETA = 10.0


@xg.register("superspike")
def superspike(ctx, grad_out, tin, beta: float = BETA):
    return grad_out / (1 + beta * xp.abs(tin)) ** 2


@xg.register("superspike_without_its_square")
def without_square(ctx, grad_out, tin, beta: float = BETA):
    return grad_out / (1 + beta * xp.abs(tin))


# What the paper differentiates: a surrogate is the true derivative of a smooth step.
def fast_sigmoid(x, beta):
    return x / (1 + beta * xp.abs(x))


def as_gradient_of_the_fast_sigmoid(rule: xg.Rule) -> xg.Function:
    """Put a rule under the paper's smooth step, to compare it with finite differences."""
    return xg.function(
        fast_sigmoid, lambda grad_out, x, beta: (rule(None, grad_out, x, beta=beta), None)
    )


def main(picture: str | None = None) -> None:
    x = np.linspace(-1.0, 1.0, 21)
    for name in ("superspike", "superspike_without_its_square"):
        report = xg.check(as_gradient_of_the_fast_sigmoid(xg.get(name)), x, BETA)
        print(f"{name}: {'the paper' if report.ok else 'NOT the paper'}")
        print(report, end="\n\n")
    print("Under the step itself a surrogate is meant to differ from the true derivative, zero:")
    for name in ("superspike", "triangular", "arctan"):
        report = xg.check(xg.activation("Heaviside", rule=name), x)
        print(
            f"  {name:12} at most {report.max_error:.3f} ({report.compared} points, "
            f"{len(report.kinks)} left out)"
        )
    if picture and find_spec("matplotlib"):
        draw(picture)


def draw(picture: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    x = np.linspace(-1.5, 1.5, 301)
    for name in ("superspike", "triangular", "arctan", "superspike_without_its_square"):
        _, pullback = xg.vjp(xg.activation("Heaviside", rule=name), x)
        (curve,) = pullback(np.ones_like(x))
        pyplot.plot(x, curve, label=name)
    pyplot.xlabel("membrane minus threshold")
    pyplot.ylabel("surrogate derivative of the spike")
    pyplot.legend(loc="upper left", bbox_to_anchor=(1, 1))  # beside the curves, not over them
    pyplot.savefig(picture, dpi=120, bbox_inches="tight")
    print(f"drawn: {picture}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
