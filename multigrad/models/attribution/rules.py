"""The relevance rules of `xg.attribution`, with zennit's names and defaults.

Each returns a rule for `xg.attach`, `xg.override` and `xg.composites`, or by itself a layer of any
framework's tensors: `rule.over(kind)`. Numbers are run-time numbers. `zero_params` names those of
the layer's parameters, "weight" or "bias", that count as zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from ...errors import RuleValueError
from . import relevance as formulas
from .relevance import Relevance, make_rule

Tensor = Any
ZeroParams: TypeAlias = str | Sequence[str] | None


def epsilon(epsilon: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """x * w^T (R / stabilize(z)), with z = w x + b: LRP-epsilon.

    Source: Bach et al., 2015 (doi 10.1371/journal.pone.0130140), eq. 58; `Epsilon` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> layer = xg.attribution.epsilon().over("linear")
        >>> y, pull = xg.vjp(layer, x, weight, None)
        >>> pull(y)[0].round(3)  # what each input added to y = 5: 1 * 3 and 2 * 1
        array([[3., 2.]])
    """
    return make_rule(formulas.EPSILON, zero_params, epsilon=epsilon)


def zplus(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """The share of positive contributions to z: positive inputs times positive weights, and
    negative times negative.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the z+ rule; the marginal
    winning probability of Zhang et al., 2018 (arXiv 1608.00507); `ZPlus` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.zplus().over("linear"), x, weight, None)
        >>> pull(np.array([[5.0]]))[0].round(3)
        array([[3., 2., 0.]])
    """
    return make_rule(formulas.ZPLUS, zero_params, stabilizer=stabilizer)


def gamma(
    gamma: float = 0.25, stabilizer: float = 1e-6, zero_params: ZeroParams = None
) -> Relevance:
    """Like epsilon, but contributions with the sign of z count 1 + gamma times; none where z = 0.

    Source: Montavon et al., 2019 (doi 10.1007/978-3-030-28954-6_10), section 10.2.3; for inputs of
    both signs Andeol et al., 2021; `Gamma` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.gamma(1.0).over("linear"), x, weight, None)
        >>> pull(y)[0].round(3)
        array([[ 2.667,  1.778, -0.444]])
    """
    return make_rule(formulas.GAMMA, zero_params, gamma=gamma, stabilizer=stabilizer)


def alpha_beta(
    alpha: float = 2.0,
    beta: float = 1.0,
    stabilizer: float = 1e-6,
    zero_params: ZeroParams = None,
) -> Relevance:
    """alpha times the share of positive contributions to z, minus beta times that of negative ones.

    Source: Bach et al., 2015 (doi 10.1371/journal.pone.0130140), eq. 60; `AlphaBeta` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0, 1.0]]), np.array([[3.0], [1.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.alpha_beta(2.0, 1.0).over("linear"), x, weight, None)
        >>> pull(np.array([[5.0]]))[0].round(3)
        array([[ 6.,  4., -5.]])

    Raises:
        RuleValueError: alpha - beta is not 1, or one of them is below 0.
    """
    if isinstance(alpha, int | float) and isinstance(beta, int | float):
        if alpha < 0 or beta < 0:
            raise RuleValueError(f"alpha and beta are 0 or more, not {alpha} and {beta}")
        if alpha - beta != 1.0:
            raise RuleValueError(f"alpha - beta is 1, not {alpha} - {beta}")
    return make_rule(
        formulas.ALPHA_BETA, zero_params, alpha=alpha, beta=beta, stabilizer=stabilizer
    )


def wsquare(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """The share of the squared weight, whatever the input.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the w^2 rule; `WSquare` of
    zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> y, pull = xg.vjp(xg.attribution.wsquare().over("linear"), x, weight, None)
        >>> pull(np.array([[10.0]]))[0].round(3)
        array([[9., 1.]])
    """
    return make_rule(formulas.WSQUARE, zero_params, stabilizer=stabilizer)


def flat(stabilizer: float = 1e-6, zero_params: ZeroParams = None) -> Relevance:
    """An equal share for each connected input.

    Source: Lapuschkin et al., 2019 (doi 10.1038/s41467-019-08987-4); `Flat` of zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 2.0]]), np.array([[3.0], [1.0]])
        >>> y, pull = xg.vjp(xg.attribution.flat().over("linear"), x, weight, None)
        >>> pull(np.array([[10.0]]))[0].round(3)
        array([[5., 5.]])
    """
    return make_rule(formulas.FLAT, zero_params, stabilizer=stabilizer)


def zbox(
    low: Tensor, high: Tensor, stabilizer: float = 1e-6, zero_params: ZeroParams = None
) -> Relevance:
    """The share of x w - low max(w, 0) - high min(w, 0), for inputs known to lie within bounds.

    Source: Montavon et al., 2017 (doi 10.1016/j.patcog.2016.11.008), the z^B rule; `ZBox` of
    zennit.

    Examples:
        >>> x, weight = np.array([[1.0, 0.0]]), np.array([[3.0], [-1.0]])
        >>> y, pull = xg.vjp(xg.attribution.zbox(0.0, 1.0).over("linear"), x, weight, None)
        >>> pull(np.array([[4.0]]))[0].round(3)
        array([[3., 1.]])

    Args:
        low: the smallest value of the input: a number, or a tensor of the model's framework that
            broadcasts to it, for a convolution with channels before lengths, (1, channels, 1, 1),
            also where the framework has them last.
        high: the largest.
    """
    return make_rule(formulas.ZBOX, zero_params, low=low, high=high, stabilizer=stabilizer)


def norm(stabilizer: float = 1e-6) -> Relevance:
    """x times the transpose of the layer at R / stabilize(z): for pooling and addition.

    The formula of epsilon, whose number here only prevents a division by zero. Source: `Norm` of
    zennit.

    Examples:
        >>> rule = xg.attribution.norm()
        >>> y, pull = xg.vjp(rule.over("addition"), np.array([3.0]), np.array([1.0]))
        >>> [part.round(3) for part in pull(np.array([4.0]))[:2]]  # each term gets what it added
        [array([3.]), array([1.])]
    """
    return make_rule(formulas.NORM, None, stabilizer=stabilizer)
