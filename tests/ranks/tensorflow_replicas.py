"""Checks of rules in the replicas of `tf.distribute`: two in one process (MirroredStrategy), or one
in each of two (MultiWorkerMirroredStrategy).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from harness.distributed.ranks import check
from harness.traced import taped
from support import matrix

import multigrad as xg

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
MODES = ("eager", "function", "jit")
EXAMPLES, STEPS, RATE = 8, 12, 0.05
Tensor = Any
tanh = xg.activation("Tanh")  # leaves it to what follows which devices there are

if WORLD > 1:
    workers = os.environ["RANKS_ADDRESSES"].split(",")
    task = {"type": "worker", "index": RANK}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": workers}, "task": task})
    STRATEGY: Any = tf.distribute.MultiWorkerMirroredStrategy()
else:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    STRATEGY = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
ALONE: Any = tf.distribute.OneDeviceStrategy("CPU:0")


# --- what runs in replicas -----------------------------------------------------------------------


def tensor(seed: int, *shape: int) -> Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=shape))


def parts_of(strategy: Any, x: Tensor) -> Any:
    """Return the part of an array that each replica has."""

    def part(context: Any) -> Tensor:
        number = context.num_replicas_in_sync
        return tf.split(x, number)[context.replica_id_in_sync_group]

    return strategy.experimental_distribute_values_from_function(part)


def local(strategy: Any, values: Any) -> list[Any]:
    return [np.asarray(value) for value in strategy.experimental_local_results(values)]


def replicas_here() -> range:
    """Return the numbers of the replicas in this process."""
    return range(RANK, RANK + 1) if WORLD > 1 else range(2)


def all_sum(values: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("SUM", values)


def compiled(run: Callable[..., Any], mode: str) -> Callable[..., Any]:
    if mode == "eager":
        return run
    return tf.function(run) if mode == "function" else xg.jit(run, "tensorflow")


# --- the rules in force --------------------------------------------------------------------------


@check(mode=MODES)
def a_use_around_the_replicas_acts_in_them_and_not_after_it(mode: str) -> None:
    gradient = taped(tanh)

    def run(x: Tensor) -> Any:
        return STRATEGY.run(gradient, args=(x,))

    f = compiled(run, mode)
    x = tensor(0, EXAMPLES)
    wide = np.maximum(1.0 - np.abs(x) / 2.0, 0.0)
    true = 1.0 - np.tanh(x) ** 2
    parts = parts_of(STRATEGY, x)
    for rule, expected in ((True, wide), (False, true), (True, wide)):
        if mode == "function":  # which says that it is stale, and is traced anew
            f = compiled(run, mode)
        with xg.use("triangular", params={"width": 2.0}) if rule else contextlib.nullcontext():
            found = local(STRATEGY, f(parts))
        for i, value in zip(replicas_here(), found, strict=True):
            np.testing.assert_allclose(value, np.split(expected, 2)[i], rtol=1e-12)


@check()
def a_traced_function_whose_rule_has_changed_is_refused() -> None:
    gradient = taped(tanh)
    f = tf.function(lambda x: STRATEGY.run(gradient, args=(x,)))
    parts = parts_of(STRATEGY, tensor(0, EXAMPLES))
    with xg.use("triangular"):
        f(parts)
    with pytest.raises(xg.StaleTraceError, match="was traced under the rule 'triangular"):
        f(parts)


@check(mode=MODES)
def each_replica_counts_draws_from_where_they_parted(mode: str) -> None:
    gradient = taped(lambda x: tanh(tanh(x)))
    scale = taped(tanh)

    def run(x: Tensor) -> Any:
        return STRATEGY.run(gradient, args=(x,))

    f = compiled(run, mode)
    x = tf.fill([EXAMPLES], tf.constant(0.3, tf.float64))
    with xg.use("full_jam", key=7):
        first, second = (local(STRATEGY, f(parts_of(STRATEGY, x))) for _ in range(2))
        after = scale(x[:4]).numpy()
    with xg.use("full_jam", key=7):
        expected = [gradient(x[:4]).numpy() for _ in range(2)]
        following = scale(x[:4]).numpy()
    for value in first:
        np.testing.assert_array_equal(value, expected[0])
    # A plain tf.function has counted once, while it was traced.
    for value in second:
        np.testing.assert_array_equal(value, expected[mode != "function"])
    if mode != "function":
        np.testing.assert_array_equal(after, following)


@check(mode=MODES)
def a_merge_call_has_the_rules_and_draws_of_the_replicas_around_it(mode: str) -> None:
    grads = tf.constant([3.0, 4.0], tf.float64)

    def merge(strategy: Any, values: Any) -> Tensor:
        total = strategy.reduce("SUM", values, axis=None)
        return xg.apply_to_gradients(total)

    def step(values: Tensor) -> Any:
        with xg.use("full_jam", scope="params", key=7):
            before = xg.apply_to_gradients(values)
            context = tf.distribute.get_replica_context()
            merged = context.merge_call(merge, args=(1 * values,))
            return before, merged, xg.apply_to_gradients(values)

    def run(values: Tensor) -> Any:
        return STRATEGY.run(step, args=(values,))

    with xg.use("full_jam", scope="params", key=7):
        expected = [xg.apply_to_gradients(each).numpy() for each in (grads, 2 * grads, grads)]
    parts = STRATEGY.experimental_distribute_values_from_function(lambda _: grads)
    for values, one in zip(compiled(run, mode)(parts), expected, strict=True):
        for value in local(STRATEGY, values):
            np.testing.assert_array_equal(value, one)


@check()
def an_error_in_a_replica_is_raised_around_them() -> None:
    def step() -> None:
        xg.apply_to_gradients(tf.ones([2]), "clip_norn")

    with pytest.raises(xg.RuleError, match="did you mean 'clip_norm'"):
        STRATEGY.run(step)


# --- training ------------------------------------------------------------------------------------


@xg.custom_gradient
def pseudo_sign(x: Tensor) -> Any:
    def grad(upstream: Tensor) -> Tensor:
        return upstream / (1.0 + x * x)

    return xg.xp.sign(x), grad


heaviside = xg.activation("Heaviside")
normalized = xg.activation("Tanh", "clip_norm", {"max_norm": 0.1}, over="global")
jammed = xg.activation("Tanh", "full_jam", over="global")


def nothing(grads: Any) -> Any:
    return grads


def clipped(grads: Any) -> Any:
    return xg.apply_to_gradients(grads, "clip_norm", {"max_norm": 0.3})


KINDS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "elementwise": (heaviside, nothing),
    "norm": (normalized, nothing),
    "random": (jammed, nothing),
    "function": (pseudo_sign, nothing),
    "parameters": (tanh, clipped),
}


def train(strategy: Any, kind: str, mode: str) -> list[Any]:
    """Return the weights after all steps, of a network whose batch all replicas share."""
    act, change = KINDS[kind]
    mean = tf.VariableAggregation.MEAN
    with strategy.scope():
        weights = [tf.Variable(tensor(i, 4, 4), aggregation=mean) for i in (1, 2)]

    def step(x: Tensor, y: Tensor) -> None:
        with tf.GradientTape() as tape:
            error = act(x @ weights[0]) @ weights[1] - y
            loss = tf.reduce_sum(error * error) / EXAMPLES
        grads = change(all_sum(tape.gradient(loss, weights)))
        for weight, grad in zip(weights, grads, strict=True):
            weight.assign_sub(RATE * grad)

    def run(x: Tensor, y: Tensor) -> None:
        strategy.run(step, args=(x, y))

    f = compiled(run, mode)
    x, y = (parts_of(strategy, tensor(i, EXAMPLES, 4)) for i in (3, 4))
    with xg.use("triangular", params={"width": 2.0}, scope="activations", key=7):
        for _ in range(STEPS):
            f(x, y)
    return [local(strategy, weight)[0] for weight in weights]


@functools.cache
def train_alone(kind: str) -> list[Any]:
    return train(ALONE, kind, "jit")


@check(kind=("elementwise", "norm", "random", "function", "parameters"), mode=("eager", "jit"))
def steps_of_replicas_are_those_of_one_device(kind: str, mode: str) -> None:
    expected = train_alone(kind)
    for weight, one in zip(train(STRATEGY, kind, mode), expected, strict=True):
        np.testing.assert_allclose(weight, one, rtol=1e-10, atol=1e-12)


# --- reductions over replicas --------------------------------------------------------------------


def sum_of_squares(x: Tensor) -> Tensor:
    return xg.xp.all_sum(x * x)


def largest(x: Tensor) -> Tensor:
    return xg.xp.all_max(x)


def both_orders(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    """Return a function of x that gives y, the gradient of half the squares of y, and that of the
    sum of this gradient.
    """

    def of(x: Tensor) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = act(x)
                loss = tf.reduce_sum(y * y) / 2
            first = inner.gradient(loss, x)
        return y, first, outer.gradient(first, x)

    return of


@check(dtype=("float64", "bfloat16"))
def what_replicas_exchange_has_gradients_of_both_orders(dtype: str) -> None:
    """Each replica's result depends on every replica's x, and ties share."""
    mode = "function" if dtype == "float64" else "eager"
    x = np.asarray([[1.0, 3.0], [-2.0, 3.0]])
    whole = (x**2).sum(0)
    of_sum = (whole + 0 * x, 4 * x * whole, 4 * whole + 8 * x * x.sum(0))
    share = np.asarray([[1.0, 0.5], [0.0, 0.5]])
    of_max = (x.max(0) + 0 * x, share * 2 * x.max(0), 2 * share)
    parts = parts_of(STRATEGY, tf.constant(x, dtype))
    for forward, expected in ((sum_of_squares, of_sum), (largest, of_max)):
        step = both_orders(xg.activation(forward))
        f = compiled(lambda x, step=step: STRATEGY.run(step, args=(x,)), mode)
        for values, whole_value in zip(f(parts), expected, strict=True):
            for i, value in zip(replicas_here(), local(STRATEGY, values), strict=True):
                assert value.dtype == dtype
                np.testing.assert_array_equal(np.float64(value), whole_value[i : i + 1])


def handed(kind: str, x: Tensor) -> Tensor:
    if kind == "all_gather":
        return xg.xp.all_gather(x, axis=1)
    if kind == "reduce_scatter":
        return xg.xp.reduce_scatter(x, axis=1)
    if kind == "all_to_all":
        return xg.xp.all_to_all(x, axis=1, concat=0)
    return xg.xp.ppermute(x, [(0, 1)])


def handed_by_numpy(kind: str, parts: list[Any]) -> list[Any]:
    """Return what each replica gets: said by hand."""
    halves = [np.split(part, 2, 1) for part in parts]
    return {
        "all_gather": [np.concatenate(parts, 1)] * 2,
        "reduce_scatter": [halves[0][i] + halves[1][i] for i in range(2)],
        "all_to_all": [np.concatenate([halves[0][i], halves[1][i]], 0) for i in range(2)],
        "ppermute": [0 * parts[0], parts[0]],
    }[kind]


@check(
    kind=("all_gather", "reduce_scatter", "all_to_all", "ppermute"),
    mode=("eager", "function"),
    dtype=("float64", "bfloat16"),
)
def what_replicas_hand_around_has_the_gradients_of_its_meaning(
    kind: str, mode: str, dtype: str
) -> None:
    """The exchange is linear: the gradient of its squares is its transpose, here by unit arrays."""
    x = np.arange(1.0, 13.0).reshape(2, 6)
    parts = [x[:1], x[1:]]
    results = handed_by_numpy(kind, parts)

    def transposed(grads: list[Any], i: int) -> Any:
        found = np.zeros_like(parts[i])
        for place in np.ndindex(found.shape):
            units = [np.zeros_like(part) for part in parts]
            units[i][place] = 1.0
            pairs = zip(handed_by_numpy(kind, units), grads, strict=True)
            found[place] = sum((y * grad).sum() for y, grad in pairs)
        return found

    step = both_orders(xg.activation(lambda x: handed(kind, x)))
    f = compiled(lambda x: STRATEGY.run(step, args=(x,)), mode)
    values, first, second = f(parts_of(STRATEGY, tf.constant(x, dtype)))
    ones = [transposed(handed_by_numpy(kind, [part * 0 + 1 for part in parts]), i) for i in (0, 1)]
    expected = (results, [transposed(results, i) for i in (0, 1)], ones)
    for given, wanted in zip((values, first, second), expected, strict=True):
        for i, value in zip(replicas_here(), local(STRATEGY, given), strict=True):
            assert value.dtype == dtype
            np.testing.assert_array_equal(np.float64(value), wanted[i])


@check()
def a_rule_that_gathers_in_tensorflows_words_is_captured() -> None:
    def written(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
        whole = tf.distribute.get_replica_context().all_gather(tin, axis=0)
        return grad_out * tf.reduce_sum(whole, axis=0)

    rule = xg.register("gathering", native=False, override=True)(written)
    x = np.asarray([[1.0, 3.0], [-2.0, 3.0]])
    step = taped(xg.activation("Linear", rule))
    found = STRATEGY.run(step, args=(parts_of(STRATEGY, tf.constant(x)),))
    for value in local(STRATEGY, found):
        np.testing.assert_array_equal(value, x.sum(0)[None])
    assert "all_gather" in str(xg.show(rule))


@check(mode=("eager", "jit"))
def uneven_parts_have_the_norm_mean_and_draws_of_the_whole(mode: str) -> None:
    x = tensor(5, 6, 3)
    for rule in ("clip_norm", "clip_rms", "normalize", "full_jam"):
        with xg.use(rule, key=7):
            whole = taped(tanh)(x).numpy()
        expected = np.split(whole, [2])
        gradient = taped(tanh)
        own = [tf.constant(part) for part in np.split(x, [2])]
        parts = STRATEGY.experimental_distribute_values_from_function(
            lambda context, own=own: own[context.replica_id_in_sync_group]
        )
        f = compiled(lambda x, step=gradient: STRATEGY.run(step, args=(x,)), mode)
        with xg.use(rule, key=7, over="global"):
            found = local(STRATEGY, f(parts))
        for i, value in zip(replicas_here(), found, strict=True):
            np.testing.assert_allclose(value, expected[i], rtol=1e-13, atol=1e-15)


def collectives_in(run: Callable[..., Any], *args: Any) -> list[tuple[str, int]]:
    """Return the collectives of a traced function, with how many elements each exchanges."""
    graph = tf.function(run).get_concrete_function(*args).graph
    found = [op for op in graph.get_operations() if "Collective" in op.type or op.type == "AddN"]
    return [(op.type, op.inputs[0].shape.num_elements()) for op in found if len(op.inputs)]


@check()
def an_elementwise_rule_adds_no_collective_and_a_norm_adds_one_of_a_scalar() -> None:
    parts = parts_of(STRATEGY, tensor(0, EXAMPLES, 4))
    found = {}
    for rule in ("triangular", "clip_norm"):
        step = taped(xg.activation("Tanh", rule, over="global"))
        found[rule] = collectives_in(lambda x, step=step: STRATEGY.run(step, args=(x,)), parts)
    assert found["triangular"] == [], found
    # One op on each device.
    assert found["clip_norm"] == [("CollectiveReduceV2", 1)] * len(replicas_here()), found


# --- what cannot be ------------------------------------------------------------------------------


@check()
def what_replicas_cannot_do_is_an_error_that_says_what_to_call() -> None:
    x = tf.ones([4, 2])
    clip = taped(xg.activation("Tanh", "clip_norm", over="global"))
    with pytest.raises(xg.GradientError, match=r"inside strategy\.run\(\.\.\.\)"):
        clip(x)
    words = f"the cross-replica context of {type(STRATEGY).__name__}"
    with STRATEGY.scope(), pytest.raises(xg.GradientError, match=words):
        clip(x)
    named = taped(xg.activation("Tanh", "clip_norm", axis_name="data"))
    parts = parts_of(STRATEGY, x)
    words = "there is no mesh axis 'data' in TensorFlow"
    with pytest.raises(xg.errors.RuleValueError, match=words):
        STRATEGY.run(named, args=(parts,))


# --- rules that meet the other replicas themselves -----------------------------------------------


def by_the_whole_sum(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    context = tf.distribute.get_replica_context()
    total = context.all_reduce("SUM", tf.reduce_sum(grad_out * grad_out))
    mean = context.all_reduce(tf.distribute.ReduceOp.MEAN, tf.reduce_mean(tin))
    return grad_out / tf.sqrt(total) + mean


def by_the_number_of_replicas(ctx: Any, grad_out: Tensor, tin: Tensor) -> Tensor:
    return grad_out / tf.distribute.get_strategy().num_replicas_in_sync


@check(mode=("eager", "jit"))
def a_rule_of_tensorflows_all_reduce_is_captured(mode: str) -> None:
    gradient = taped(xg.activation("Tanh", xg.get(by_the_whole_sum)))
    x = tensor(6, EXAMPLES)
    f = compiled(lambda x: STRATEGY.run(gradient, args=(x,)), mode)
    expected = np.split(1 / np.sqrt(EXAMPLES) + np.mean(x) + 0 * x, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", xg.errors.NativeRuleWarning)
        for i, value in zip(
            replicas_here(), local(STRATEGY, f(parts_of(STRATEGY, x))), strict=True
        ):
            np.testing.assert_allclose(value, expected[i], rtol=1e-12)


@check(mode=("eager", "function"))
def a_rule_that_depends_on_the_strategy_runs_as_it_is_and_says_why(mode: str) -> None:
    gradient = taped(xg.activation("Tanh", by_the_number_of_replicas))
    f = compiled(lambda x: STRATEGY.run(gradient, args=(x,)), mode)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        values = local(STRATEGY, f(parts_of(STRATEGY, tensor(6, EXAMPLES))))
    for value in values:
        np.testing.assert_array_equal(value, 0.5 + 0 * value)
    if mode == "eager":
        assert "get_strategy, whose answer is another one" in str(said[0].message), said


# --- each kind of rule, as docs/support.md says it ------------------------------------------------
@check(transform=("MirroredStrategy (`tf.distribute`)",))
def each_kind_of_rule(transform: str) -> None:
    with STRATEGY.scope():
        wrong = matrix.wrong("tensorflow", transform)
        assert wrong == {}, wrong
