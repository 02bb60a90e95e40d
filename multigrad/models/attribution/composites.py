"""`xg.composites`: which rule each kind of layer gets, with zennit's names, maps and defaults.

xg.attach(model, xg.composites.epsilon_plus(canonize=True))
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from ...core.rules.registry import get
from ...core.rules.rule import Rule
from ...core.support.pickles import pickled
from ...core.support.trees import Tensor
from ...engine.functions.calls.parameters import told_arguments
from ...engine.support.public_modules import module_hooks
from ...errors import RuleTypeError, RuleValueError, suggest
from . import relevance as rules
from .kinds import KINDS, LayerKind, LayerRule

AnyRule: TypeAlias = str | Rule | LayerRule
Rules: TypeAlias = Mapping[str, AnyRule | None]
ZeroParams = rules.ZeroParams

__all__ = [
    "COMPOSITES",
    "Composite",
    "beta_smooth",
    "deconvnet",
    "epsilon_alpha2_beta1",
    "epsilon_alpha2_beta1_flat",
    "epsilon_gamma_box",
    "epsilon_plus",
    "epsilon_plus_flat",
    "excitation_backprop",
    "find",
    "guided_backprop",
]


@dataclass(frozen=True)
class Composite:
    """Which rule each layer of a model gets; prints as a table.

    Examples:
        >>> mine = xg.composites.Composite(
        ...     "mine", {"relu": "pass", "linear": xg.attribution.epsilon(0.25)}
        ... )
        >>> mine
        mine
          relu    pass
          linear  epsilon(epsilon=0.25)

    Attributes:
        name: its name in messages.
        layers: a rule by kind; a layer of a kind that has none keeps its own gradient. What is said
            of `activation` holds of `relu`, of `convolution` of `convolution_transpose`, of
            `average_pooling` of the adaptive one, where nothing is said of these.
        first: the same for the first layer of a kind that is listed here, in the order in which
            the model calls its layers.
        names: a rule by a layer's name, in which `*` stands for any characters; before the kinds.
        canonize: whether a batch normalization is merged with the linear layer or convolution whose
            output it takes and nothing else reads, and additions written in code count as layers of
            kind `addition`. No weights are changed. A batch normalization to which `names` gives
            None, or a rule that reads no weights, is not merged.
    """

    name: str
    layers: Rules
    first: Rules = field(default_factory=dict)
    names: Rules = field(default_factory=dict)
    canonize: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.canonize, bool):
            raise RuleTypeError(f"canonize is True or False, not {self.canonize!r:.60}")
        for part in ("layers", "first", "names"):
            mapping: Any = getattr(self, part)
            if not isinstance(mapping, Mapping):
                raise RuleTypeError(f"{part} is a mapping to rules, not {mapping!r:.60}")
            for key, rule in mapping.items():
                if part != "names" and key not in KINDS:
                    raise RuleValueError(
                        f"{part}: no kind of layers is named {key!r}{suggest(str(key), KINDS)} "
                        f"(kinds: {', '.join(KINDS)})"
                    )
                refuse_uncalled(f"{part}: {key!r}", rule)
                if isinstance(rule, str):
                    get(rule)  # raises for an unknown name
            # A copy, which later changes of the given mapping do not reach.
            object.__setattr__(self, part, MappingProxyType(dict(mapping)))

    def __reduce__(self) -> Any:
        # A read-only mapping has no pickle.
        parts = (dict(part) for part in (self.layers, self.first, self.names))
        return pickled(Composite, self.name, *parts, self.canonize)

    def __enter__(self, *error: object) -> NoReturn:
        raise RuleTypeError(f"composite {self.name!r}: write `with xg.attach(model, composite):`")

    __exit__ = __enter__

    def choose(self, layers: Iterable[tuple[str, str | None]]) -> list[AnyRule | None]:
        """Return the rule for each layer of a model, None where it keeps its own gradient.

        Examples:
            >>> layers = [("0", "convolution"), ("1", "relu"), ("2", "linear")]
            >>> xg.composites.guided_backprop().choose(layers)
            [None, 'guided', None]

        Args:
            layers: name and kind of each, in the order of calls; None for a kind of no name.

        Raises:
            RuleValueError: a name in `names` fits no layer.
        """
        rules_chosen: list[AnyRule | None] = []
        unused, seen_first = set(self.names), False
        for name, kind in layers:
            patterns = [pattern for pattern in self.names if fnmatchcase(name, pattern)]
            unused -= set(patterns)
            is_first = not seen_first and entry_of(self.first, kind) is not None
            seen_first |= is_first
            # A layer's name counts before its place, and its place before its kind.
            if patterns:
                rules_chosen.append(self.names[patterns[0]])
            elif is_first:
                rules_chosen.append(self.rule(kind, is_first=True))
            else:
                rules_chosen.append(self.rule(kind))
        if unused:
            raise RuleValueError(
                f"composite {self.name!r} names layers that the model does not have: "
                f"{', '.join(map(repr, sorted(unused)))}"
            )
        return rules_chosen

    def rule(self, kind: str | None, is_first: bool = False) -> AnyRule | None:
        """Return the rule for a layer of a kind, None where it keeps its own gradient.

        Examples:
            >>> xg.composites.guided_backprop().rule("relu")
            'guided'
        """
        rules = self.first if is_first else self.layers
        entry = entry_of(rules, kind)
        return None if entry is None else rules[entry]

    def __repr__(self) -> str:
        rows = [
            *((f"name {name}", rule) for name, rule in self.names.items()),
            *((f"first {kind}", rule) for kind, rule in self.first.items()),
            *self.layers.items(),
        ]
        width = max((len(name) for name, _ in rows), default=0)
        title = f"{self.name}{' (canonized)' if self.canonize else ''}"
        return "\n".join([title, *(f"  {name.ljust(width)}  {rule}" for name, rule in rows)])


def entry_of(rules: Rules, kind: str | None) -> str | None:
    # The key of the kind itself, or of the kind that it is part of.
    while kind is not None and kind not in rules:
        kind = KINDS.get(kind, LayerKind()).part_of
    return kind


def refuse_uncalled(subject: str, rule: Any) -> None:
    """Raise for a function of `xg.attribution` instead of the rule that it returns."""
    if any(rule is make for make in rules.RULES):
        raise RuleTypeError(
            f"{subject} has the function {rule.__name__}, which is no rule: call "
            f"{call_text('attribution', rule)}, which reads what layers hold"
        )


def call_text(module: str, make: Callable[..., Any]) -> str:
    parameters = inspect.signature(make).parameters.values()
    required = ", ".join(each.name for each in parameters if each.default is each.empty)
    return f"xg.{module}.{make.__name__}({required})"


def call_hint(name: str) -> str:
    # Also "z+", "lrp_epsilon", "EpsilonRule" and "zennit.rules.ZPlus".
    word = re.sub(r"^(zennit\.(\w+\.)?)?(lrp)?|rule$|[_ -]", "", name.lower().replace("+", "plus"))
    for module, makers in (("attribution", rules.RULES), ("composites", _MAKERS)):
        for make in makers:
            if make.__name__.replace("_", "") == word:
                kind = "a composite" if makers is _MAKERS else "one that reads what layers hold"
                return f", but {kind}: {call_text(module, make)}"
    return ""


def find(composite: str | Composite) -> Composite:
    """Return the composite with a name and its defaults; a composite is returned unchanged.

    Examples:
        >>> xg.composites.find("guided_backprop")
        guided_backprop
          relu  guided
        >>> xg.composites.find("epsilon_gamma_box")
        Traceback (most recent call last):
            ...
        multigrad.errors.RuleValueError: composite 'epsilon_gamma_box' needs the bounds of the ...

    Raises:
        RuleValueError: there is none of that name, or it needs arguments.
    """
    if isinstance(composite, Composite):
        return composite
    make = COMPOSITES.get(composite)
    if make is None:
        raise RuleValueError(
            f"no composite named {composite!r}{suggest(composite, COMPOSITES)} "
            f"(composites: {', '.join(COMPOSITES)})"
        )
    try:
        return make()
    except TypeError:
        raise RuleValueError(
            f"composite {composite!r} needs the bounds of the input: write "
            f"xg.composites.{composite}(low, high)"
        ) from None


def _layers(
    convolution: LayerRule, epsilon: float, stabilizer: float, zero_params: ZeroParams, extra: Rules
) -> dict[str, AnyRule | None]:
    return {
        "activation": "pass",
        "batch_normalization": "pass",
        "addition": rules.norm(stabilizer),
        "average_pooling": rules.norm(stabilizer),
        "convolution": convolution,
        "linear": rules.epsilon(epsilon, zero_params),
        **extra,
    }


@told_arguments
def epsilon_gamma_box(
    low: Tensor,
    high: Tensor,
    epsilon: float = 1e-6,
    gamma: float = 0.25,
    stabilizer: float = 1e-6,
    *,
    zero_params: ZeroParams = None,
    canonize: bool = False,
) -> Composite:
    """z-box for the first convolution, gamma for the others, epsilon for linear layers.

    Source: Montavon et al., 2019 (doi 10.1007/978-3-030-28954-6_10), section 10.3;
    `EpsilonGammaBox` of zennit.

    Examples:
        >>> xg.composites.epsilon_gamma_box(low=-3.0, high=3.0)
        epsilon_gamma_box
          first convolution    zbox(low=-3.0, high=3.0, stabilizer=1e-06)
          activation           pass
          batch_normalization  pass
          addition             norm(stabilizer=1e-06)
          average_pooling      norm(stabilizer=1e-06)
          convolution          gamma(gamma=0.25, stabilizer=1e-06)
          linear               epsilon(epsilon=1e-06)

    Args:
        low: the smallest value of the model's input: a number, or a tensor as for
            `xg.attribution.zbox`.
        high: the largest.
        epsilon: of the rule for linear layers.
        gamma: how much more positive weights count.
        stabilizer: of the other rules.
        zero_params: "bias", or more of the layers' parameters, that count as zero.
        canonize: see `Composite`.
    """
    inner = rules.gamma(gamma, stabilizer, zero_params)
    box = rules.zbox(low, high, stabilizer, zero_params)
    layers = _layers(inner, epsilon, stabilizer, zero_params, {})
    return Composite("epsilon_gamma_box", layers, {"convolution": box}, canonize=canonize)


@told_arguments
def epsilon_plus(
    epsilon: float = 1e-6,
    stabilizer: float = 1e-6,
    *,
    zero_params: ZeroParams = None,
    canonize: bool = False,
) -> Composite:
    """z-plus for convolutions, epsilon for linear layers.

    Source: Kohlbrenner et al., 2020 (arXiv 1910.09840); `EpsilonPlus` of zennit.

    Arguments are those of `epsilon_gamma_box`.

    Examples:
        >>> xg.composites.epsilon_plus().rule("convolution")
        zplus(stabilizer=1e-06)
    """
    layers = _layers(rules.zplus(stabilizer, zero_params), epsilon, stabilizer, zero_params, {})
    return Composite("epsilon_plus", layers, canonize=canonize)


@told_arguments
def epsilon_alpha2_beta1(
    epsilon: float = 1e-6,
    stabilizer: float = 1e-6,
    *,
    zero_params: ZeroParams = None,
    canonize: bool = False,
) -> Composite:
    """alpha-beta with alpha 2 and beta 1 for convolutions, epsilon for linear layers.

    Source: Kohlbrenner et al., 2020 (arXiv 1910.09840); `EpsilonAlpha2Beta1` of zennit.

    Examples:
        >>> xg.composites.epsilon_alpha2_beta1().rule("convolution")
        alpha_beta(alpha=2.0, beta=1.0, stabilizer=1e-06)

    Arguments are those of `epsilon_gamma_box`.
    """
    inner = rules.alpha_beta(2.0, 1.0, stabilizer, zero_params)
    layers = _layers(inner, epsilon, stabilizer, zero_params, {})
    return Composite("epsilon_alpha2_beta1", layers, canonize=canonize)


def _flat_first(composite: Composite, stabilizer: float, zero_params: ZeroParams) -> Composite:
    flat = rules.flat(stabilizer, zero_params)
    first = {"linear": flat, "convolution": flat}
    return Composite(f"{composite.name}_flat", composite.layers, first, canonize=composite.canonize)


@told_arguments
def epsilon_plus_flat(
    epsilon: float = 1e-6,
    stabilizer: float = 1e-6,
    *,
    zero_params: ZeroParams = None,
    canonize: bool = False,
) -> Composite:
    """Like `epsilon_plus`, but flat for the first layer with weights.

    Source: Kohlbrenner et al., 2020 (arXiv 1910.09840); `EpsilonPlusFlat` of zennit.

    Examples:
        >>> xg.composites.epsilon_plus_flat().rule("linear", is_first=True)
        flat(stabilizer=1e-06)
    """
    inner = epsilon_plus(epsilon, stabilizer, zero_params=zero_params, canonize=canonize)
    return _flat_first(inner, stabilizer, zero_params)


@told_arguments
def epsilon_alpha2_beta1_flat(
    epsilon: float = 1e-6,
    stabilizer: float = 1e-6,
    *,
    zero_params: ZeroParams = None,
    canonize: bool = False,
) -> Composite:
    """Like `epsilon_alpha2_beta1`, but flat for the first layer with weights.

    Source: Kohlbrenner et al., 2020 (arXiv 1910.09840); `EpsilonAlpha2Beta1Flat` of zennit.

    Examples:
        >>> xg.composites.epsilon_alpha2_beta1_flat().rule("convolution", is_first=True)
        flat(stabilizer=1e-06)
    """
    inner = epsilon_alpha2_beta1(epsilon, stabilizer, zero_params=zero_params, canonize=canonize)
    return _flat_first(inner, stabilizer, zero_params)


@told_arguments
def guided_backprop(*, canonize: bool = False) -> Composite:
    """The rule `guided` for every relu; other layers keep their gradients.

    Source: Springenberg et al., 2014 (arXiv 1412.6806); `GuidedBackprop` of zennit.

    Examples:
        >>> xg.composites.guided_backprop()
        guided_backprop
          relu  guided
    """
    return Composite("guided_backprop", {"relu": "guided"}, canonize=canonize)


@told_arguments
def deconvnet(*, canonize: bool = False) -> Composite:
    """The rule `deconvnet` for every relu; other layers keep their gradients.

    Source: Zeiler and Fergus, 2013 (arXiv 1311.2901); `DeconvNet` of zennit.

    Examples:
        >>> xg.composites.deconvnet()
        deconvnet
          relu  deconvnet
    """
    return Composite("deconvnet", {"relu": "deconvnet"}, canonize=canonize)


@told_arguments
def excitation_backprop(
    stabilizer: float = 1e-6, *, zero_params: ZeroParams = None, canonize: bool = False
) -> Composite:
    """z-plus for every layer with weights, norm for pooling and addition.

    Source: Zhang et al., 2018 (arXiv 1608.00507); `ExcitationBackprop` of zennit.

    Examples:
        >>> xg.composites.excitation_backprop()
        excitation_backprop
          addition         norm(stabilizer=1e-06)
          average_pooling  norm(stabilizer=1e-06)
          linear           zplus(stabilizer=1e-06)
          convolution      zplus(stabilizer=1e-06)

    Arguments are those of `epsilon_gamma_box`.
    """
    plus, norm = rules.zplus(stabilizer, zero_params), rules.norm(stabilizer)
    layers = {"addition": norm, "average_pooling": norm, "linear": plus, "convolution": plus}
    return Composite("excitation_backprop", layers, canonize=canonize)


@told_arguments
def beta_smooth(beta_smooth: float = 10.0, *, canonize: bool = False) -> Composite:
    """The rule `beta_smooth` for every relu; other layers keep their gradients.

    Source: Dombrowski et al., 2019 (arXiv 1906.07983); `BetaSmooth` of zennit.

    Examples:
        >>> xg.composites.beta_smooth(5.0)
        beta_smooth
          relu  <Rule beta_smooth with beta=5.0>
    """
    smooth = get("beta_smooth").with_params(beta=beta_smooth)
    return Composite("beta_smooth", {"relu": smooth}, canonize=canonize)


_MAKERS: Sequence[Callable[..., Composite]] = (
    epsilon_gamma_box,
    epsilon_plus,
    epsilon_alpha2_beta1,
    epsilon_plus_flat,
    epsilon_alpha2_beta1_flat,
    guided_backprop,
    deconvnet,
    excitation_backprop,
    beta_smooth,
)
# By name, for those who choose one by a string.
COMPOSITES: Mapping[str, Callable[..., Composite]] = MappingProxyType(
    {make.__name__: make for make in _MAKERS}
)

if not TYPE_CHECKING:
    __getattr__, __dir__ = module_hooks(__name__, __all__)
