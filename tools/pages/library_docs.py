"""The pages about rules, attribution and estimators, written from what declares them."""

from __future__ import annotations

import importlib
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from multigrad import estimators
from multigrad.engine.rules.gradients import TASK_RULES
from multigrad.estimators.declared import Argument, Estimator
from multigrad.look.rule_description import Described, describe_all, split_docstring
from multigrad.models import attribution
from multigrad.models.attribution import composites
from multigrad.models.attribution.kinds import KINDS
from multigrad.models.attribution.relevance import RULES, Relevance

from .exchanges import KINDS as EXCHANGES
from .exchanges import exchanged_by
from .markdown import bullets, code, page, table

EXAMPLE = """```python
import torch
import multigrad as xg

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
)
x = torch.ones(1, 3, 8, 8, requires_grad=True)
composite = xg.composites.epsilon_gamma_box(low=-1.0, high=1.0, canonize=True)
with xg.attach(model, composite) as attached:  # printed, a table of what each layer got
    heat = torch.autograd.grad(model(x)[0, 3], x)[0]
print(heat.shape)  # torch.Size([1, 3, 8, 8])
```"""
OWN_COMPOSITE = """```python
rule = xg.attribution.epsilon(1e-3)
kinds = {
    "linear": rule,
    "convolution": rule,
    "activation": "pass",
    "batch_normalization": "pass",
    "addition": xg.attribution.norm(),
    "average_pooling": xg.attribution.norm(),
}
mine = xg.composites.Composite("mine", kinds, canonize=True)
with xg.attach(model, mine):
    heat = torch.autograd.grad(model(x)[0, 3], x)[0]
print(heat.shape)  # torch.Size([1, 3, 8, 8])
```"""
HEADS = ("rule", "what x gets", "layers", "source")


def rule_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each rule of relevance: its call, its formula, the kinds it is for, its source."""
    rules: tuple[Any, ...] = RULES
    for make in rules:
        rule = make(*[0.0] * len(required(make)))
        if isinstance(rule, Relevance):
            formula, source = said(make)
            kinds = [name for name, kind in KINDS.items() if rule.formula.applies_to(kind)]
            yield call(make), formula, ", ".join(kinds), source


def layers_of_rules() -> str:
    """Return what `rule.over` tells of the kinds of layers, as a part of a page."""
    paragraphs = inspect.getdoc(Relevance.over).split("\n\n")  # type: ignore[union-attr]
    parts = paragraphs[1 : next(i for i, p in enumerate(paragraphs) if p.startswith("Examples:"))]
    lines = [re.sub(r"\n +", " ", part) for part in parts]
    return "\n\n".join(p if p.startswith("- ") else p.replace("\n", " ") for p in lines)


def kinds_of_composites() -> str:
    """Return what a composite of one's own may say, as a part of a page."""
    parts = [
        f"`{name}` (a part of `{kind.part_of}`)" for name, kind in KINDS.items() if kind.part_of
    ]
    whole = [f"`{name}`" for name, kind in KINDS.items() if not kind.part_of]
    return (
        f"The kinds are {', '.join([*whole, *parts])}; a part has the rule of the whole unless it "
        'has its own. `first={"convolution": rule}` is for the first layer of those kinds that the '
        'model calls, and `names={"body.*": rule}` for layers by their names, before the kinds. '
        "None instead of a rule keeps a layer's own gradient. A batch normalization is merged by "
        "`canonize=True`; the rule `pass` is for one that cannot be merged."
    )


def composite_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yield each composite: its call, what it is, its map, its source."""
    for make in composites.COMPOSITES.values():
        made = make(*[0.0] * len(required(make)))
        described, source = said(make)
        rows = [*((f"first {kind}", r) for kind, r in made.first.items()), *made.layers.items()]
        chosen = ", ".join(f"{kind}: {getattr(rule, 'name', rule)}" for kind, rule in rows)
        yield call(make), described, chosen, source


def mean_rows() -> Iterator[tuple[str, str, str]]:
    """Yield each mean of a gradient: its call, what it is, its source."""
    for make in (attribution.smooth, attribution.integrated):
        described, source = said(make)
        yield call(make), described, source


def required(make: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(make).parameters.values()
    return [p.name for p in parameters if p.default is p.empty]


def call(make: Callable[..., Any]) -> str:
    words = []
    for p in inspect.signature(make).parameters.values():
        if p.kind is p.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(p.name if p.default is p.empty else f"{p.name}={p.default!r}")
    return f"`{make.__name__}({', '.join(words)})`"


def said(make: Callable[..., Any]) -> tuple[str, str]:
    text = inspect.cleandoc(make.__doc__ or "")
    source = text.partition("Source:")[2].partition("\n\n")[0]
    return " ".join(text.partition("\n\n")[0].split()), " ".join(source.split())


# --- estimators -----------------------------------------------------------------------------------


ESTIMATOR_HEADS = ("function", "forward", "gradients and source", "numbers")
ESTIMATOR_EXAMPLE = """```python
import torch
import multigrad as xg

weight = torch.randn(64, 32, 3, 3, requires_grad=True)
step = torch.full((64, 1, 1, 1), 0.1, requires_grad=True)  # one for each output channel
xg.estimators.lsq(weight, step, bits=4).sum().backward()
print(step.grad.shape)  # torch.Size([64, 1, 1, 1])
```"""


def families() -> Iterator[tuple[str, list[Estimator]]]:
    """Yield each family, by what its file says that it is, with its functions."""
    every = list(estimators.catalogue().values())
    for family in dict.fromkeys(function.family for function in every):
        module = importlib.import_module(f"multigrad.estimators.{family}")
        title, _, _ = (inspect.getdoc(module) or "").partition(".")
        yield title, [function for function in every if function.family == family]


def row_of(function: Estimator) -> tuple[str, ...]:
    described = (part.replace("*", "\\*") for part in estimators.describe(function))
    forward, gradients, source = described
    tensors = [each.name for each in function.arguments if each.annotation == "Tensor"]
    numbers = [number_of(each) for each in function.arguments if each.annotation != "Tensor"]
    bounds = [
        f"`{each.name}` {each.range.text}"
        for each in function.arguments
        if each.annotation == "Tensor" and each.range is not None
    ]
    name = f"`{function.name}({', '.join(tensors)})`"
    said = f"{gradients} *Source*: {source}"
    return name, forward, said, "; ".join([*bounds, *numbers])


def number_of(argument: Argument) -> str:
    """Return an argument that is no tensor, with its default and its range."""
    range_ = "" if argument.range is None else f" {argument.range.text}"
    return f"`{argument.name}={argument.default!r}`{range_}"


# --- rules ---------------------------------------------------------------------------------------

# The page's parts: a family, its title, and what is to be known of all its rules.
FAMILIES = {
    "surrogate": (
        "Surrogate gradients",
        (
            "They replace the derivative of a step, which is zero, or of a rectifier. `tin` "
            "is the input of the step: for a spiking unit its membrane minus its threshold."
        ),
    ),
    "spiking": (
        "More surrogates for spiking units",
        (
            "Each name has one curve. Packages use some of these names for other curves: see [same "
            "name, different curve](same_name.md)."
        ),
    ),
    "quantization": (
        "Straight-through rules for signs and quantizers",
        (
            "`tin` is the number before it is rounded or made binary. Quantizers with a forward "
            "and learned steps of their own are [estimators](estimators.md)."
        ),
    ),
    "transforms": (
        "Transforms of a gradient",
        (
            "They scale, clip, stop or disturb a gradient, [also those of "
            "parameters](how_to/parameters.md). All but `adaptive_clip` work without `tin`."
        ),
    ),
    "peers": (
        "Rules of other packages",
        "A package's own curves, edges and defaults, under its name.",
    ),
}
UNCHANGED = "`grad_out`, unchanged"


def render_rules() -> str:
    described = sorted(filter(operator.attrgetter("family"), describe_all()), key=place_in_tables)
    parts = []
    for family, rows in itertools.groupby(described, operator.attrgetter("family")):
        title, about = FAMILIES[family]
        parts += [f"## {title}", about]
        if family != "peers":
            parts.append(rule_table(rows))
            continue
        for package, own in itertools.groupby(rows, lambda row: row.name.partition(".")[0]):
            parts += [f"### {package}", rule_table(own)]
    exchanged = [(exchanged_by(row.rule), row.name) for row in described if row.rule is not None]
    kinds = {each.kind for each, _ in exchanged}
    shards = [(str(each), name) for each, name in exchanged if each.kind != "elementwise"]
    return page(
        "Rules",
        f"The {len(described)} rules of the library. A rule is given `grad_out`, the gradient that "
        "arrives, and `tin`, the input of the forward, and returns the gradient that is passed on. "
        "Each parameter is shown with its default and its range; a number out of range is an error "
        "where it is given. The [gallery](gallery.md) draws every rule, with sliders and code to "
        "copy.",
        *parts,
        "## Several losses",
        "Rules that see the gradients of several losses at once: "
        '`xg.apply_to_gradients([grads_1, grads_2], "pcgrad", tasks=True)`; see '
        "[parameters](how_to/parameters.md#several-losses).",
        boxed(table(RULE_HEADS, map(task_row, sorted(TASK_RULES)))),
        "## Without tin",
        "The gradient of a parameter comes without a `tin`. Most rules then return `grad_out` "
        "unchanged; these do something else:",
        table(
            ("without `tin`", "rules"),
            by_answer(
                (row.without_tin, row.name) for row in described if row.without_tin != UNCHANGED
            ),
        ),
        "## Over shards",
        "What a rule exchanges when each device holds a part of an array and the rule is used with "
        '`over="global"` (see [devices](devices.md)). Rules that are not listed are elementwise.',
        bullets({kind: text for kind, text in EXCHANGES.items() if kind in kinds}),
        table(("over shards", "rules"), by_answer(shards)),
    )


def by_answer(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each answer with the names of the rules that give it."""
    for answer, same in itertools.groupby(sorted(pairs), operator.itemgetter(0)):
        yield answer, code(name for _, name in same)


def place_in_tables(row: Described) -> tuple[int, str]:
    return [*FAMILIES].index(row.family), row.name


RULE_HEADS = ("rule", "gradient, edges and source", "parameters")


def rule_table(rows: Iterable[Described]) -> str:
    cells = []
    for row in rows:
        shown = (f"`{p.name}={p.default!r}`{p.range and f' ({p.range})'}" for p in row.params)
        cells.append((f"`{row.name}`", with_source(row.formula, row.source), ", ".join(shown)))
    return boxed(table(RULE_HEADS, cells))


def with_source(formula: str, source: str) -> str:
    return f"{formula} *Source*: {source}" if source else formula


def boxed(text: str) -> str:
    """Return a table whose rows the site draws curves beside, and stacks on a narrow screen."""
    return f'<div class="rules" markdown="1">\n\n{text}\n\n</div>'


def task_row(name: str) -> tuple[str, ...]:
    formula, source = split_docstring(TASK_RULES[name].__doc__)
    params = [*inspect.signature(TASK_RULES[name]).parameters.values()][1:]
    shown = ", ".join(f"`{each.name}={each.default!r}`" for each in params)
    return f"`{name}`", with_source(formula, source), shown
