"""`xg.apply_to_gradients`: a rule on gradients that exist already, in any framework.

`GradientRule` does the same step by step, for the optimizers of Keras and optax. `combine` is for
the gradients of several losses, under one of `TASK_RULES`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Never, TypeVar, overload

import numpy as np

from ...core.backend.contract import Backend
from ...core.backend.discovery import backend_among, backend_of
from ...core.backend.values import concrete_number
from ...core.ir.op import FLOATS, dtype_name
from ...core.lowering.checks import check_float, check_values, refuse_lacking
from ...core.lowering.lower import emit_bare_rule
from ...core.rules import registry
from ...core.rules.context import CURRENT, EMPTY, RuleInForce, apply_now
from ...core.rules.registry import unknown_keyword_error
from ...core.rules.rule import Rule
from ...core.rules.rule_application import MOST_ENTRIES, apply_rule, find_rule, opaque_on
from ...core.support.params import Axes, Key, Over, read_params
from ...core.support.threads import build_once
from ...core.support.trees import optree
from ...core.trace.active_rules import CHECKED, FREE, KeySource, compare, keyed
from ...core.trace.lookups import Lookup, at_present, names_in, note_lookup, reading
from ...core.trace.xp import all as xp
from ...errors import BackendNotFound, RuleError, RuleTypeError, RuleValueError, suggest
from ..functions.custom_gradient import function as as_function
from ..functions.function import Function
from ..support.shards import with_choices
from ..trace.random_keys import Counter, key_for
from .model.rule_graphs import likely_graph

T = TypeVar("T")
Tensor = Any


@overload
def apply_to_gradients(
    grads: T,
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, object] | None = None,
    *,
    key: Key | None = None,
    over: Over | None = None,
    axis_name: Axes | None = None,
    in_place: bool = False,
    tasks: Literal[False] = False,
    **others: Never,
) -> T: ...
@overload
def apply_to_gradients(
    grads: Sequence[T],
    rule: str | Callable[..., Any],
    params: Mapping[str, object] | None = None,
    *,
    key: Key | None = None,
    tasks: Literal[True],
) -> T: ...
def apply_to_gradients(
    grads: Any,
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, object] | None = None,
    *,
    key: Key | None = None,
    over: Over | None = None,
    axis_name: Axes | None = None,
    in_place: bool = False,
    tasks: bool = False,
    **others: Never,
) -> Any:
    """Apply a rule to each gradient of a pytree, with `tin=None`.

    Examples:
        >>> grads = {"weight": np.array([3.0, 4.0]), "bias": np.array([0.1])}
        >>> xg.apply_to_gradients(grads, "clip_norm", {"max_norm": 1.0})
        {'weight': array([0.6, 0.8]), 'bias': array([0.1])}
        >>> with xg.use("clip_norm", {"max_norm": 1.0}, scope="params"):
        ...     xg.apply_to_gradients([np.array([0.0, 2.0]), None])
        [array([0., 1.]), None]
        >>> first, second = {"w": np.array([1.0, 0.0])}, {"w": np.array([-1.0, 1.0])}
        >>> xg.apply_to_gradients([first, second], "pcgrad", tasks=True)  # of two losses
        {'w': array([0.5, 1.5])}

    Args:
        grads: a tensor, or a list, tuple, dict or any registered pytree of them; None stays None.
            With `tasks`, a list of such trees, one for each loss, nested alike; None where a loss
            does not reach a tensor.
        rule: a name, a Rule or a function; None takes the rule that `use` put in force for the
            scope "params" or "all". Without one, the gradients are returned unchanged.
        params: values for the rule's params.
        key: the key of random rules; each leaf counts as one application.
        over: what the rule's reductions and draws are taken over, where each leaf is a part of an
            array that is split over devices; see `Rule.over`. Gradients that are complete
            on every device are not parts: leave it out for them.
        axis_name: the mesh axes or the group that the leaves' first axis is split over.
        in_place: whether the results are written over the gradients, as by torch's
            `clip_grad_norm_`, and are these tensors: no memory is taken for them. On PyTorch and
            NumPy, whose tensors can be written to; the gradients must not share memory. Where an
            error is raised, all gradients are as before: of a rule that acts on one after another,
            the results are kept until the last one is there.
        tasks: whether the rule sees the gradients of several losses at once: "pcgrad", "gradnorm",
            or a function `(products, **params) -> weights` of the matrix of scalar products of the
            tasks' gradients, over all tensors and in float32 at least, that returns a weight for
            each task. The result is their weighted sum. NaN in a gradient stays in its elements,
            and makes a weight that is computed from it NaN.

    Returns:
        The same structure; every leaf keeps shape and dtype. With `tasks`, that of one tree.

    Raises:
        RuleError: the rule or a param is unknown; with `tasks`, the trees are not alike, or `over`
            or `in_place` is given, too; with `in_place`, a tensor cannot be written to, or is given
            twice.
        BackendNotFound: a leaf is not a tensor of an installed framework.
    """
    if others:
        raise unknown_keyword_error(apply_to_gradients, "apply_to_gradients", rule, others)
    new_grads: Any
    if tasks:
        refuse_with_tasks(over is not None or axis_name is not None, in_place)
        new_grads = combine(grads, rule, params, key)
    else:
        if isinstance(rule, str) and rule in TASK_RULES and rule not in registry.rules():
            raise RuleError(
                f"rule {rule!r} sees the gradients of several losses at once: "
                f"xg.apply_to_gradients([grads_1, grads_2], {rule!r}, tasks=True)"
            )
        # Not in our namespace: a class that is registered with one framework alone is a leaf here.
        import optree as plain_optree

        in_force = _application(with_choices(rule, over, axis_name), params, key)
        leaves, nesting = plain_optree.tree_flatten(grads, none_is_leaf=True)
        results = _apply_to_all(in_force, leaves, rule is None, in_place)
        new_grads = plain_optree.tree_unflatten(nesting, results)
    if CHECKED and CURRENT.get() is EMPTY:  # else where the `use` is left
        compare("apply_to_gradients")
    return new_grads


def _application(rule: Any, params: Mapping[str, Any] | None, key: Any) -> RuleInForce | None:
    if rule is not None:
        return apply_now(rule, params, key)
    if params:
        raise RuleError(f"params {sorted(params)} need a rule to take them")
    active = CURRENT.get().params
    if active is None or key is None:
        return active
    return active.with_draws(keyed(key))


def _apply_to_all(
    in_force: RuleInForce | None, leaves: Sequence[Any], follows: bool, in_place: bool
) -> list[Any]:
    firsts = {type(leaf): leaf for leaf in leaves if leaf is not None}
    has_rule = in_force is not None
    backends = {kind: _backend_of(leaf, has_rule) for kind, leaf in firsts.items()}
    if in_place:
        _check_places(leaves, backends)
    if follows and any(b is not None and b.compiler.on_read for b in backends.values()):
        for leaf in leaves:
            backend = backends.get(type(leaf))
            if backend is not None and backend.compiler.on_read is not None:
                # Even without a rule, because a trace would keep that.
                backend.compiler.on_read(leaf, None, "params")
    if in_force is None:
        return list(leaves)
    results: dict[int, Any] = {}
    groups = () if CHECKED else _groups(leaves, backends)  # each application is noted there
    positions = [i for i, leaf in enumerate(leaves) if leaf is not None]
    # In place, nothing is written until everything that may raise has run: groups are asked first.
    must_ask_first = in_place and [len(places) for places in groups] != [len(positions)]
    pending_groups = []
    for places in groups:
        group = [leaves[i] for i in places]
        gradients = apply_to_many(in_force, group, in_place, only_asks=must_ask_first)
        if gradients is not None:
            results.update(zip(places, group if must_ask_first else gradients, strict=True))
            pending_groups += [group] if must_ask_first else []
    single_positions = [i for i in positions if i not in results]
    results.update({i: apply_rule(in_force, None, leaves[i], None) for i in single_positions})
    if not in_place:
        return [results.get(i) for i in range(len(leaves))]
    for group in pending_groups:
        apply_to_many(in_force, group, True)
    for i in single_positions:
        backend = backends[type(leaves[i])]
        assert backend is not None and backend.tensors.write is not None
        backend.tensors.write(leaves[i], results.pop(i))
    return list(leaves)


def _groups(
    leaves: Sequence[Any], backends: Mapping[type, Backend | None]
) -> Collection[Sequence[int]]:
    # Backends with `many` apply a rule to several tensors in one call.
    able = {kind for kind, b in backends.items() if b is not None and b.autodiff.many is not None}
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        if type(leaf) in able:
            groups.setdefault((type(leaf), leaf.dtype), []).append(i)
    return [places for places in groups.values() if len(places) > 1]


def _backend_of(leaf: Any, has_rule: bool) -> Backend | None:
    try:
        return backend_of(leaf)
    except BackendNotFound as error:
        # Without a rule every leaf is returned unchanged, whatever it is.
        if not has_rule:
            return None
        raise BackendNotFound(
            f"apply_to_gradients found a leaf that is not a tensor: {error}"
        ) from None


def _check_places(leaves: Sequence[Any], backends: Mapping[type, Backend | None]) -> None:
    for kind, backend in backends.items():
        # NumPy's scalars count as its tensors, but cannot be written to.
        if backend is not None and (backend.tensors.write is None or issubclass(kind, np.generic)):
            raise RuleError(
                f"apply_to_gradients with in_place=True got {kind.__name__} of {backend.name}, "
                "which nothing can be written to: leave in_place out, and take the gradients that "
                "are returned"
            )
    # All checks come before the first write: an error leaves every gradient as it was.
    tensors = [id(leaf) for leaf in leaves if leaf is not None]
    if len(set(tensors)) < len(tensors):
        raise RuleError(
            "apply_to_gradients with in_place=True got a tensor twice, over which the rule would "
            "act twice: give each once, or leave in_place out"
        )
    for i, leaf in enumerate(leaves):
        backend = backends.get(type(leaf))
        unwritable = None if backend is None else backend.tensors.unwritable
        reason = "" if unwritable is None else unwritable(leaf)
        if reason:
            raise RuleError(
                f"apply_to_gradients with in_place=True cannot write over leaf {i}, of shape "
                f"{tuple(leaf.shape)}: {reason}"
            )


# --- many gradients in as few calls of the framework as it has ------------------------------------
# Rules that draw, that ask for facts of their input, or whose params are tensors act on one
# gradient after another; so do all rules where a framework has no such call.
def apply_to_many(
    in_force: RuleInForce, gradients: Sequence[Tensor], in_place: bool, *, only_asks: bool = False
) -> list[Tensor] | None:
    """Apply a rule in force to gradients of one class and dtype; None: apply it to each instead.

    Args:
        in_place: writes the results into the gradients.
        only_asks: in place, writes nothing, and returns an empty list where it would write.
    """
    backend = backend_of(gradients[0])
    if backend.autodiff.many is None:
        return None
    in_force = at_present(in_force, backend)
    if not all(type(value) is float for value in in_force.values):
        return None
    apply_to_list = _appliers.get(backend.name) or opaque_on(backend, _apply_to_list, _appliers)
    return apply_to_list(in_force, gradients, backend, in_place, only_asks)


# `_apply_to_list` by backend, opaque to its compiler as `find_rule` is.
_appliers: dict[str, Callable[..., Any]] = {}


def _apply_to_list(
    in_force: RuleInForce,
    gradients: Sequence[Tensor],
    backend: Backend,
    in_place: bool,
    only_asks: bool,
) -> list[Tensor] | None:
    specialization, values = in_force.specialization, in_force.values
    first_gradient = gradients[0]
    check_float(first_gradient, specialization.rule)
    check_values(specialization.subject, specialization.runtime, backend, first_gradient, values)
    emitted = find_rule(specialization, backend, first_gradient, None, values)
    if emitted is None or emitted.is_random:
        return None
    if specialization.code.findings[False].facts or specialization.rule.shards is not None:
        return None
    refuse_lacking(emitted.lacking, dtype_name(first_gradient.dtype))
    key = ("many", backend.name, in_place)
    many = backend.autodiff.many
    assert many is not None
    emit = functools.partial(emit_bare_rule, backend=backend)
    build = functools.partial(many, emitted.graph, emit, in_place)
    run = build_once(specialization.code.entries, key, build, MOST_ENTRIES)
    if run is None:
        return None
    return run(gradients, values, True) if only_asks else run(gradients, values)


# --- gradients step by step -----------------------------------------------------------------------
class GradientRule:
    """A rule for an optimizer's gradients, looked up when used; its numbers may be tensors.

    Attributes:
        rule: as it was given.
        params: what was given for its params.
        numbers: those of its params that may be tensors, with their values; bound ones are not
            among them.
        draws: whether the rule is random; None where only its application can tell.
    """

    def __init__(self, rule: Any, params: Mapping[str, Any] | None = None) -> None:
        if rule is None:
            raise RuleError(
                "apply_to_gradients needs a rule: a name, a Rule or a function, got None"
            )
        self.rule = rule
        self.params = read_params(params)
        self._epoch = -1
        self._names: tuple[Lookup, ...] = ()
        self._in_force = in_force = self.look_up()
        graph, facts = likely_graph(in_force, False)
        self.draws: bool | None = None
        self.numbers: dict[str, Any] = {}
        if in_force.specialization.rule.native is True:
            self.draws = False  # not by a key
        if graph is not None:
            self.draws = graph.input("key") is not None
            fixed_names = {*registry.resolve(rule).bound, *in_force.specialization.hidden}
            self.numbers = {
                name: value
                for name, value in in_force.numbers.items()
                if name not in fixed_names and f"param:{name}" not in facts
            }

    def look_up(self) -> RuleInForce:
        epoch = registry.epoch()  # first: a name that changes meanwhile is looked up again
        if epoch != self._epoch:
            with reading() as meanings:
                self._in_force = apply_now(self.rule, self.params)
            self._epoch, self._names = epoch, names_in(meanings)
        for lookup in self._names:  # what traces this keeps it for these
            note_lookup(lookup)
        return self._in_force

    def at_step(self, numbers: Mapping[str, Any], key: Any, count: Any) -> RuleInForce:
        """Return the rule as it acts in one step.

        Args:
            numbers: what stands now for some of `numbers`.
            key: two uint32, or None.
            count: how many steps have been made, as a tensor; the n-th gradient of this one draws
                from `fold_in(fold_in(key, count), n)`.
        """
        in_force = self.look_up()
        values = tuple(numbers.get(name, value) for name, value in in_force.numbers.items())
        draws = FREE if key is None else KeySource(fold_step(key, count), Counter())
        return RuleInForce(in_force.specialization, values, in_force.token, draws)


def fold_step(key: Any, count: Any) -> Any:
    backend = backend_of(count)
    number = concrete_number(count)
    return backend.draws.fold_in(key_for(backend, key), count if number is None else int(number))


# --- the gradients of several losses: each task gets a weight -------------------------------------
# What such a rule sees is the matrix of scalar products of the tasks' gradients, over all their
# tensors, however many these are. It is a Function of that, the same on every framework.
# Such a rule is `(products, **params) -> weights`, with a weight for each task.
def refuse_with_tasks(are_parts: bool, in_place: bool) -> None:
    if are_parts:
        raise RuleError(
            "apply_to_gradients with tasks=True takes whole gradients, and was given over= or "
            "axis_name=: gather the parts first, or add them up (xg.xp.all_gather, all_sum)"
        )
    if in_place:
        raise RuleError(
            "apply_to_gradients with tasks=True makes one gradient of several, so none of them "
            "has a place for it: leave in_place out"
        )


def find_task_rule(rule: Any) -> Function[..., Any]:
    names = ", ".join(sorted(TASK_RULES))
    if isinstance(rule, str):
        if rule in TASK_RULES:
            return TASK_RULES[rule]
        raise RuleError(
            f"no rule on several tasks is named {rule!r}{suggest(rule, TASK_RULES)}; there are "
            f"{names}, and any function of the matrix of the gradients' "
            "scalar products that returns weights. A rule on one gradient goes without tasks=True"
        )
    if callable(rule) and not hasattr(rule, "under"):
        return rule if isinstance(rule, Function) else as_function(rule)
    raise RuleTypeError(
        f"tasks=True needs a rule on several tasks, got {rule!r:.60}: one of "
        f"{names}, or a function of the matrix of scalar products"
    )


def combine(trees: Any, rule: Any, params: Mapping[str, Any] | None, key: Any) -> Any:
    """Return the sum of the tasks' gradients, each with the weight that a rule gives it."""
    chosen = find_task_rule(rule)
    own_params = [] if chosen.parameters is None else [*chosen.parameters.parameters.values()][1:]
    known = [each.name for each in own_params]
    for name in read_params(params):
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in own_params):
            raise RuleTypeError(
                f"rule {chosen.name!r} on several tasks has no param {name!r}{suggest(name, known)}"
                f"; its params are {', '.join(known) or 'none'}"
            )
    columns, tree = align(chosen.name, trees)
    tensors = [column for column in columns if column is not None]
    if not tensors:
        return optree.tree_unflatten(tree, columns)
    leaves = [leaf for column in tensors for leaf in column if leaf is not None]
    wide = widest(chosen.name, leaves)
    products = products_of(tensors, len(trees), wide)
    weights = (chosen if key is None else chosen.keyed(key))(products, **(params or {}))
    if tuple(weights.shape) != (len(trees),):
        raise RuleValueError(
            f"rule {chosen.name!r} gave weights of shape {tuple(weights.shape)} for {len(trees)} "
            "tasks; expected one number for each"
        )
    return optree.tree_unflatten(
        tree, [None if column is None else weighted(column, weights, wide) for column in columns]
    )


def align(name: str, trees: Any) -> tuple[list[list[Tensor] | None], Any]:
    """Return for each leaf the gradients of the tasks, None among them where a task has none (None
    for all where no task has one), and the nesting.
    """
    if not isinstance(trees, list | tuple) or not trees:
        raise RuleTypeError(
            f"rule {name!r} takes gradients of several tasks, tasks=True: a list of trees, one for "
            f"each loss, as [grads_1, grads_2]; got {type(trees).__name__} {trees!r:.40}"
        )
    flat = [optree.tree_flatten(each, none_is_leaf=True) for each in trees]
    tree = flat[0][1]
    for i, (_, nesting) in enumerate(flat):
        if nesting != tree:
            raise RuleValueError(
                f"rule {name!r}: the gradients of task {i} are nested otherwise than those of task "
                f"0: {nesting} and {tree}. Give None for a tensor that a loss does not reach"
            )
    columns: list[list[Tensor] | None] = []
    for path, column in zip(
        tree.paths(), zip(*(leaves for leaves, _ in flat), strict=True), strict=True
    ):
        shapes = {tuple(leaf.shape) for leaf in column if hasattr(leaf, "shape")}
        if len(shapes) > 1:
            raise RuleValueError(
                f"rule {name!r}: the gradients at {list(path)} have shapes "
                f"{', '.join(map(str, sorted(shapes)))}; those of all tasks are of one tensor"
            )
        arrays = [np.asarray(leaf) if isinstance(leaf, np.generic) else leaf for leaf in column]
        columns.append(None if all(leaf is None for leaf in arrays) else arrays)
    return columns, tree


def widest(name: str, leaves: Sequence[Tensor]) -> str:
    """Return the dtype in which products are taken: float64 where a gradient has it."""
    for leaf in leaves:
        _backend_of(leaf, has_rule=True)
    backend_among(leaves)  # refuses several
    dtypes = {dtype_name(leaf.dtype) for leaf in leaves}
    if others := sorted(dtypes.difference(FLOATS)):
        raise RuleTypeError(f"rule {name!r} takes gradients of floats, got {', '.join(others)}")
    return "float64" if "float64" in dtypes else "float32"


def products_of(columns: Sequence[Sequence[Tensor]], number: int, wide: str) -> Tensor:
    products: dict[tuple[int, int], Tensor] = {}
    for column in columns:
        vectors = {i: flat(leaf, wide) for i, leaf in enumerate(column) if leaf is not None}
        # Reversed, so that i >= j in each pair, as the rows below look them up.
        for i, j in itertools.combinations_with_replacement(reversed(vectors), 2):
            product = xp.sum(vectors[i] * vectors[j], axis=0, keepdims=True)
            products[i, j] = product if (i, j) not in products else products[i, j] + product
    zero = xp.zeros_like(next(iter(products.values())))
    pairs = itertools.product(range(number), repeat=2)
    rows = [products.get((max(pair), min(pair)), zero) for pair in pairs]
    return xp.reshape(xp.concat(rows), (number, number))


def flat(leaf: Tensor, wide: str) -> Tensor:
    # Scalar products are taken of vectors in a wide dtype, whatever the leaves are.
    return xp.astype(xp.reshape(leaf, (-1,)), wide)


def weighted(column: Sequence[Tensor], weights: Tensor, wide: str) -> Tensor:
    total = None
    for i, leaf in enumerate(column):
        if leaf is not None:
            share = flat(leaf, wide) * weights[i]
            total = share if total is None else total + share
    first_leaf = next(leaf for leaf in column if leaf is not None)
    return xp.astype(xp.reshape_like(total, first_leaf), first_leaf.dtype)


def pcgrad(products: Tensor, order: str = "fixed") -> Tensor:
    """The sum of the tasks' gradients, from each of which its conflicts are taken: for each other
    task j in turn, g_i - min(0, g_i . g_j) / |g_j|^2 * g_j.

    `order` is that of the others: "fixed", as they are given; "random", as in the paper, drawn for
    each task by the key of the call. Where a gradient is not finite nothing is taken from any.
    Source: Yu et al., 2020 (arXiv 2001.06782), alg. 1.
    """
    if order not in ("fixed", "random"):
        raise ValueError(f"order is 'fixed' or 'random', got {order!r}")
    task_count = products.shape[0]
    identity = xp.tril(xp.triu(xp.ones_like(products)))
    lengths = xp.sum(products * identity, axis=0)
    places = xp.argsort(xp.rand_like(products), axis=1) if order == "random" else None
    rows = identity  # what task i's gradient has become, in terms of all
    # In terms of the scalar products: row i has task i's coefficients of all gradients.
    for turn in range(task_count):
        if places is None:
            one_hot = xp.stack([identity[turn]] * task_count)
        else:
            one_hot = xp.astype(xp.one_hot(places[:, turn], task_count), products.dtype)
        dots = xp.sum(xp.matmul(rows, products) * one_hot, axis=1, keepdims=True)
        length = xp.sum(lengths * one_hot, axis=1, keepdims=True)
        is_itself = xp.sum(identity * one_hot, axis=1, keepdims=True) > 0
        conflicts = (dots < 0) & (length > 0) & ~is_itself
        # The inner `where` keeps 0 / 0 out of the branch that is not taken.
        rows = rows - xp.where(conflicts, dots / xp.where(conflicts, length, 1.0), 0.0) * one_hot
    return xp.sum(rows, axis=0)


def gradnorm(products: Tensor, rates: Any = None, alpha: float = 1.5) -> Tensor:
    """The sum of the tasks' gradients, weighted so that their norms are as rate^alpha, and the
    weights add up to the number of tasks: those at which GradNorm's loss is 0.

    `rates` are the relative inverse training rates r_i, a number for each task: its loss by its
    first loss, by the mean of these over tasks; None: all are 1. The paper goes towards these
    weights by a step of gradient descent at a time. A gradient of 0 has weight 0; one that is NaN
    makes all weights NaN.
    Source: Chen et al., 2018 (arXiv 1711.02257), eq. 1 and 2.
    """
    task_count = products.shape[0]
    norms = xp.sqrt(xp.stack([products[i, i] for i in range(task_count)]))
    if rates is None:
        rates = (1.0,) * task_count
    if len(rates) != task_count:
        raise ValueError(f"there are {len(rates)} rates for {task_count} tasks")
    if isinstance(rates, tuple | list):
        rates = xp.stack([xp.full_like(norms[0], rate) for rate in rates])
    targets = xp.astype(rates, norms.dtype) ** alpha
    shares = xp.where(norms == 0, 0.0, targets / xp.where(norms == 0, 1.0, norms))
    total = xp.sum(shares)
    return task_count * shares / xp.where(total == 0, 1.0, total)


OF_TASKS: list[Callable[..., Tensor]] = [pcgrad, gradnorm]
TASK_RULES = {each.__name__: as_function(each, native=False) for each in OF_TASKS}
