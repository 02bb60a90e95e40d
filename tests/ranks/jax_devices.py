"""Rules on four devices of one process: automatic sharding, explicit axes, `shard_map`, `pmap`."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness.distributed import training_jax
from harness.distributed.devices_jax import (
    COLLECTIVE,
    NETWORKS,
    PLACES,
    W,
    X,
    close,
    collectives,
    constant_slope,
    gradient,
    grid,
    line,
    place,
    shards,
    shared,
    total,
)
from harness.distributed.ranks import check
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import matrix

import multigrad as xg

KINDS = ("elementwise", "norm", "random", "function", "gradients")
BOTH = (True, False)


# --- training -------------------------------------------------------------------------------------
@check(kind=KINDS, way=("Auto", "Explicit"))
def trains_as_one_device_where_arrays_are_sharded(kind: str, way: str) -> None:
    mesh = jax.make_mesh((4,), ("b",), axis_types=(getattr(AxisType, way),))
    with jax.enable_x64(True), jax.set_mesh(mesh):
        x, y = (place(a, mesh, P("b")) for a in (training_jax.X, training_jax.Y))
        weights = place(training_jax.WEIGHTS, mesh, P())
        run = jax.jit(functools.partial(training_jax.train, kind=kind))
        training_jax.assert_same(jax.device_get(run(weights, x, y)), kind)


@check(kind=KINDS, check_vma=BOTH)
def trains_as_one_device_in_shard_map(kind: str, check_vma: bool) -> None:
    given = (training_jax.WEIGHTS, training_jax.X, training_jax.Y)
    with jax.enable_x64(True):
        run = training_jax.mapped(line(), kind, check_vma)
        training_jax.assert_same(jax.device_get(run(*given)), kind)


@check(kind=("norm", "random"))
def trains_as_one_device_under_pmap(kind: str) -> None:
    def run(weights: Any, x: Any, y: Any) -> Any:
        reduce = functools.partial(jax.lax.psum, axis_name="i")
        return training_jax.train(weights, x, y, kind, P("i"), reduce)

    with jax.enable_x64(True):
        parts = (a.reshape(4, 2, -1) for a in (training_jax.X, training_jax.Y))
        mapped = jax.pmap(run, axis_name="i", in_axes=(None, 0, 0))
        found = mapped(training_jax.WEIGHTS, *parts)
        training_jax.assert_same(jax.tree.map(lambda w: w[3], jax.device_get(found)), kind)


# --- where things are, and what is exchanged ------------------------------------------------------
@check(rule=("clip_norm", "full_jam"), way=("Auto", "Explicit"))
def gradients_are_placed_and_numbered_as_without_sharding(rule: str, way: str) -> None:
    mesh = grid(getattr(AxisType, way))
    run = gradient(rule, key=7)
    expected = jax.jit(run)(X)
    for spec in PLACES:
        x = place(X, mesh, spec)
        with jax.set_mesh(mesh):
            plain = jax.jit(jax.grad(lambda x: (x**2).sum()))(x)
            for found in (jax.jit(run)(x), run(x)):
                assert found.sharding == plain.sharding, (found.sharding, plain.sharding)
                if rule == "full_jam":  # the draws are the same bits
                    np.testing.assert_array_equal(found, expected)
                close(found, expected)


@check()
def elementwise_rules_exchange_nothing_and_a_norm_one_number() -> None:
    x = place(jnp.asarray(X), line(), P("b"))
    number = [("f32[]", "all-reduce")]
    for rule, expected in (("triangular", []), ("full_jam", []), ("clip_norm", number)):
        run = gradient(rule, key=7)
        assert collectives(run, x) == expected, (rule, collectives(run, x))
    for rule, expected in (("triangular", []), ("clip_norm", number)):
        for over in ("global", P("b")):
            run = shards(gradient(xg.get(rule).over(over)))
            assert collectives(run, x) == expected, (rule, collectives(run, x))
    assert collectives(shards(gradient("clip_norm")), x) == []


@check(way=("Auto", "Explicit"))
def each_device_draws_its_part(way: str) -> None:
    mesh = grid(getattr(AxisType, way))
    x = place(jnp.zeros((64, 16)), mesh, P("b", "m"))
    with jax.set_mesh(mesh):
        run = jax.jit(gradient("full_jam", key=jax.random.key(7)))
        compiled = run.lower(x).compile().as_text()
    drawn = set(re.findall(r"u32\[\d+,\d+\]", compiled))
    assert drawn == {"u32[32,8]"}, drawn
    assert not COLLECTIVE.findall(compiled)


@check()
def key_in_a_shard_map_is_the_same_on_every_shard_unless_folded_in() -> None:
    act = xg.activation("Tanh")

    def draw(x: Any) -> Any:
        key = jax.random.fold_in(jax.random.key(3), jax.lax.axis_index("b"))
        with xg.use("full_jam", key=key):
            return jax.grad(lambda x: act(x).sum())(x)

    for i, part in enumerate(np.split(shards(draw)(X), 4)):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(3), i), 0)
        np.testing.assert_array_equal(part, jax.random.uniform(key, (2, 12)))
    with xg.use("full_jam", key=3):
        parts = np.split(shards(jax.grad(lambda x: act(x).sum()))(X), 4)
    assert all((part == parts[0]).all() for part in parts)


@check()
def the_parts_that_shards_draw_are_those_of_the_whole() -> None:
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    x = np.zeros((8, 12), np.float32)
    act = xg.activation("Linear")
    key = jax.random.fold_in(jax.random.key(7), 0)
    whole = np.asarray(jax.random.uniform(key, x.shape))

    def draw(x: Any, over: Any = None, rule: str = "full_jam") -> Any:
        with xg.use(rule, key=7, over=over):
            return jax.grad(lambda x: act(x).sum())(x)

    def on_shards(f: Any, spec: Any, **options: Any) -> Any:
        return shards(f, spec, spec, mesh=mesh, **options)

    for spec in (P("a"), P(None, "b"), P("b", "a"), P(("b", "a")), P(None, ("a", "b"))):
        for check_vma in (True, False):
            drawn = on_shards(lambda x, s=spec: draw(x, s), spec, check_vma=check_vma)(x)
            np.testing.assert_array_equal(drawn, whole)
    for spec in (P("a"), P(("a", "b"))):  # along whatever axes the batch is split
        np.testing.assert_array_equal(on_shards(lambda x: draw(x, "global"), spec)(x), whole)
    noisy = on_shards(lambda x: draw(x, P("b", "a"), "noise"), P("b", "a"))(x)
    np.testing.assert_allclose(noisy - 1, draw(x, None, "noise") - 1, atol=1e-6)

    # Each example of a shard draws what that shard draws.
    each = on_shards(lambda x: jax.vmap(lambda x: draw(x, P("a")))(x), P(None, "a"))
    stacked = np.zeros((3, *x.shape), np.float32)
    np.testing.assert_array_equal(each(stacked), np.broadcast_to(whole, stacked.shape))

    # What differs between shards cannot be said to be one value.
    with pytest.raises(ValueError, match=r"replicat|varying"):
        shards(lambda x: draw(x, P("a")), P("a"), P(), mesh=mesh)(x)


# --- shard_map ------------------------------------------------------------------------------------
NAMES = (
    "constant", "constant_as_it_is", "shared", "shared_as_it_is", "loop", "scan", "remat",
)  # fmt: skip


@check(name=NAMES, check_vma=BOTH)
def functions_of_shared_and_split_values_have_the_gradients_of_one_device(
    name: str, check_vma: bool
) -> None:
    def loss(w: Any, x: Any) -> Any:
        return (NETWORKS[name](w, x) ** 2).sum()

    expected = jax.grad(loss, argnums=(0, 1))(W, X)
    for axes in ({"b", "m"}, {"b"}):  # the second: the other axis is automatic
        spec = P(tuple(sorted(axes)))
        options = {"mesh": grid(), "axis_names": axes, "check_vma": check_vma}

        def whole(w: Any, x: Any, names: Any = tuple(axes)) -> Any:
            return jax.lax.psum(loss(w, x), names)

        outside = jax.grad(shards(whole, (P(), spec), P(), **options), argnums=(0, 1))(W, X)
        for ours, theirs in zip(outside, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
        inside = shards(jax.grad(loss, argnums=1), (P(), spec), spec, **options)(W, X)
        np.testing.assert_allclose(inside, expected[1], rtol=1e-5, atol=1e-5)


@check()
def second_derivatives_in_shard_map_are_those_of_one_device() -> None:
    def penalty(w: Any, x: Any) -> Any:
        return (jax.grad(lambda x: (shared(w, constant_slope(x)) ** 2).sum())(x) ** 2).sum()

    run = shards(jax.grad(penalty), (P(), P("b")), P())
    np.testing.assert_allclose(run(W, X), jax.grad(penalty)(W, X), rtol=1e-5, atol=1e-5)


@check(check_vma=BOTH)
def a_width_that_differs_between_shards_acts_on_a_shared_weight(check_vma: bool) -> None:
    def run(w: Any, x: Any) -> Any:
        width = 1.0 + jax.lax.axis_index("b").astype(jnp.float32)
        with xg.use("triangular", params={"width": width}):
            return jax.lax.psum((xg.activation("Heaviside")(w) * x).sum(), "b")

    found = jax.grad(shards(run, (P(), P("b")), P(), check_vma=check_vma))(W, X)
    parts = (X[2 * i : 2 * i + 2].sum(0) for i in range(4))
    close(
        found,
        sum(xg.get("triangular")(None, part, W, width=1.0 + i) for i, part in enumerate(parts)),
    )


# --- what a reduction means -----------------------------------------------------------------------
@check(rule=("clip_norm", "centralize", "scaled_by_all"), check_vma=BOTH)
def a_rule_over_shards_is_that_of_the_whole_array(rule: str, check_vma: bool) -> None:
    expected = gradient(rule)(X)
    made = xg.get(rule)
    for own in (made.over("global"), made.over(axis_name="b"), made.over(P("b"))):
        np.testing.assert_allclose(
            shards(gradient(own), check_vma=check_vma)(X), expected, rtol=1e-5, atol=1e-6
        )
    two = shards(
        gradient(made.over(P("b", "m"))), P("b", "m"), P("b", "m"), mesh=grid(), check_vma=check_vma
    )
    np.testing.assert_allclose(two(X), expected, rtol=1e-5, atol=1e-6)
    for own in (made.over("global"), made.over(axis_name="b")):
        sharded = jax.jit(gradient(own))(place(X, grid(), P("b")))
        np.testing.assert_allclose(sharded, expected, rtol=1e-5, atol=1e-6)


@check()
def a_rule_over_shard_or_over_nothing_takes_each_shard_as_an_array() -> None:
    expected = [gradient("clip_norm")(part) for part in np.split(X, 4)]
    for rule in (xg.get("clip_norm").over("shard"), "clip_norm"):
        close(shards(gradient(rule))(X), np.concatenate(expected))
    close(jax.pmap(gradient("clip_norm"))(X.reshape(4, 2, 12)), expected)
    with xg.use("clip_norm"):
        through = shards(xg.activation("Tanh"))
        ones = np.ones_like(X[:2])
        found = jax.grad(lambda x: through(x).sum())(X)
    close(found, np.concatenate([ones / np.linalg.norm(ones)] * 4))


@check()
def a_rule_on_a_weight_that_all_shards_share_acts_on_the_sum_of_their_gradients() -> None:
    def on_weight(weight: Any, x: Any) -> Any:
        with xg.use("clip_norm"):
            return jax.lax.psum((xg.activation("Tanh")(weight) * x).sum(), "b")

    found = jax.grad(shards(on_weight, (P(), P("b")), P()))(W, X)
    close(found, X.sum(0) / max(1.0, np.linalg.norm(X.sum(0))))


@check()
def what_has_no_meaning_where_it_is_used_says_what_to_do() -> None:
    clip, x = xg.get("clip_norm"), place(X, grid(), P("b"))
    cases = [
        (lambda: jax.jit(gradient(clip.over("shard")))(x), r"automatic sharding.*jax\.shard_map"),
        (lambda: gradient(clip.over("shard"))(x), r"automatic sharding.*jax\.shard_map"),
        (lambda: jax.jit(gradient(clip.over(axis_name="z")))(x), r"no axis 'z'.*\['b', 'm'\]"),
        (lambda: gradient(clip.over(axis_name="z"))(X), r"no axis 'z'.*none here.*jax\.shard_map"),
        (lambda: shards(gradient(clip.over(axis_name="z")))(X), r"no axis 'z'.*\['b'\]"),
        (
            lambda: shards(gradient(clip.over(axis_name="b")), P(), P())(X),
            r"\['b'\].*all of them share.*Leave over=",
        ),
    ]
    for run, message in cases:
        with pytest.raises(xg.MultigradError, match=message):
            run()


@check(check_vma=BOTH)
def gradients_of_weights_take_a_rule_before_or_after_their_sum(check_vma: bool) -> None:
    per_shard = np.stack([part.sum(0) for part in np.split(X, 4)])

    def clipped(g: Any) -> Any:
        return g * min(1.0, 1.0 / np.linalg.norm(g))

    def run(x: Any, rule_first: bool) -> Any:
        w = jax.lax.pcast(jnp.asarray(W), "b", to="varying") if check_vma else W
        g = jax.grad(lambda w: (x * w).sum())(w)
        if rule_first:
            return jax.lax.psum(xg.apply_to_gradients(g, "clip_norm"), "b")
        return xg.apply_to_gradients(jax.lax.psum(g, "b"), "clip_norm")

    for rule_first, expected in (
        (True, sum(map(clipped, per_shard))),
        (False, clipped(per_shard.sum(0))),
    ):
        part = functools.partial(run, rule_first=rule_first)
        close(shards(part, P("b"), P(), check_vma=check_vma)(X), expected)
    sharded = place(per_shard, line(), P("b"))
    for over in (None, "global"):
        close(jax.jit(lambda g, o=over: xg.apply_to_gradients(g, "clip_norm", over=o))(sharded),
              clipped(per_shard))  # fmt: skip
    over = shards(lambda g: xg.apply_to_gradients(g, "clip_norm", over="global"))
    close(over(per_shard), clipped(per_shard))


# --- rules and functions that exchange numbers themselves -----------------------------------------
@check(rule=("by_psum", "by_pmean"), check_vma=BOTH)
def a_rule_in_jaxs_words_for_exchange_is_captured(rule: str, check_vma: bool) -> None:
    written = xg.get(rule).function

    def directly(x: Any) -> Any:
        return written(None, x, x)

    found = shards(gradient(rule), check_vma=check_vma)(X)
    close(found, shards(directly, check_vma=check_vma)(X))
    assert "all_sum" in str(xg.show(rule))


@check(rule=("by_size", "by_count"))
def a_number_of_shards_is_never_part_of_a_graph(rule: str) -> None:
    for mesh in (line(), grid()):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = shards(gradient(rule), mesh=mesh)(X)
        close(found, X / mesh.shape["b"])
        said = [str(warning.message) for warning in caught]
        assert all(re.search("axis_size|counts shards", each) for each in said), said


@check(check_vma=BOTH)
def a_custom_vjp_that_exchanges_has_the_gradients_that_jax_gives(check_vma: bool) -> None:
    ours = xg.from_custom_vjp(total)

    def plain(f: Any) -> Any:
        return jax.grad(shards(f, P("b"), P(), check_vma=check_vma))(X)

    def mixed(f: Any) -> Any:
        def run(x: Any) -> Any:
            return jax.lax.psum(f(x) * x.sum(), "b")

        return jax.grad(shards(run, P("b"), P(), check_vma=check_vma))(X)

    for way in (plain, mixed):
        np.testing.assert_allclose(way(ours), way(total), rtol=1e-5, atol=1e-5)


# --- arrays that are handed around ----------------------------------------------------------------
PAIRS = {"ring": [(i, (i + 1) % 4) for i in range(4)], "one way": [(0, 2), (3, 1)]}


def handed(kind: str, x: Any, axis_name: Any = "b") -> Any:
    """Ours."""
    if kind == "all_gather":
        return xg.xp.all_gather(x, axis_name, -1)
    if kind == "reduce_scatter":
        return xg.xp.reduce_scatter(x, axis_name, 1)
    if kind == "all_to_all":
        return xg.xp.all_to_all(x, axis_name, 1, 0)
    return xg.xp.ppermute(x, PAIRS[kind], axis_name)


def handed_by_jax(kind: str, x: Any) -> Any:
    """The same by jax's own, with their own derivatives."""
    if kind == "all_gather":
        return jax.lax.all_gather(x, "b", axis=1, tiled=True)
    if kind == "reduce_scatter":
        return jax.lax.psum_scatter(x, "b", scatter_dimension=1, tiled=True)
    if kind == "all_to_all":
        return jax.lax.all_to_all(x, "b", 1, 0, tiled=True)
    return jax.lax.ppermute(x, "b", PAIRS[kind])


HANDED = ("all_gather", "reduce_scatter", "all_to_all", "ring", "one way")


def with_gradients(f: Any, x: Any) -> tuple[Any, ...]:
    """Return a value, its gradient for cotangents of each shard's own, and a second one."""

    def first(x: Any) -> Any:
        y, pull = jax.vjp(lambda x: f(x * x), x)
        return pull(y * jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))[0]

    return f(x * x), first(x), jax.vjp(first, x)[1](x)[0]


@check(kind=HANDED, way=("shard_map", "unchecked", "pmap", "vmap"))
def what_shards_hand_around_has_the_values_and_gradients_of_jaxs_own(kind: str, way: str) -> None:
    def run(f: Any, way: str = way) -> Any:
        step = functools.partial(with_gradients, f)
        if way in ("pmap", "vmap"):
            return getattr(jax, way)(step, axis_name="b")(X.reshape(4, 2, 12))
        return shards(step, check_vma=way == "shard_map")(X)

    # Jax's own vmap takes whole permutations alone.
    by_jax = "pmap" if way == "vmap" else way
    expected = run(functools.partial(handed_by_jax, kind), by_jax)
    named = functools.partial(handed, kind)
    everywhere = functools.partial(handed, kind, axis_name="b" if way == "vmap" else None)
    for f in (named, everywhere, xg.activation(named), xg.activation(everywhere)):
        for found, value in zip(run(f), expected, strict=True):
            close(found, value)


@check()
def arrays_that_are_handed_around_over_two_axes_have_the_values_of_jaxs_own() -> None:
    for kind in HANDED:
        ours = functools.partial(handed, kind, axis_name=("b", "m"))
        spec = P(("b", "m"))
        found = shards(functools.partial(with_gradients, ours), spec, spec, mesh=grid())(X)
        on_one = functools.partial(with_gradients, functools.partial(handed_by_jax, kind))
        for mine, value in zip(found, shards(on_one)(X), strict=True):
            close(mine, value)


@check(check_vma=BOTH)
def rules_that_hand_arrays_around_in_jaxs_words_are_captured(check_vma: bool) -> None:
    def written(ctx: Any, grad_out: Any, tin: Any) -> Any:
        lax = jax.lax
        whole = lax.all_gather(tin, "b")  # a new axis in front
        part = lax.psum_scatter(whole * 1.5, "b", scatter_dimension=0)
        rows = lax.all_gather(part, "b", axis=0, tiled=True)
        part = part + lax.psum_scatter(rows, "b", scatter_dimension=0, tiled=True)
        turned = lax.all_to_all(part.reshape(2, 4, 3), "b", 1, 2)
        back = lax.all_to_all(turned, "b", 2, 1).reshape(part.shape)
        return lax.ppermute(back, "b", PAIRS["ring"]) * grad_out

    rule = xg.register("handing", native=False, override=True)(written)
    found = shards(gradient(rule), check_vma=check_vma)(X)
    close(found, shards(lambda x: written(None, x, x), check_vma=check_vma)(X))
    assert {"all_gather", "reduce_scatter", "all_to_all", "ppermute"} <= {
        node.op.name for node in rule.bound_rule().specialization.graph(True, {"ndim": 2}).nodes
    }


@check()
def a_permutation_of_shards_that_are_not_there_and_a_shape_that_counts_them_are_refused() -> None:
    with pytest.raises(xg.RuleError, match="names shard 4, and there are 4 shards"):
        shards(lambda x: xg.xp.ppermute(x, [(0, 4)], "b"))(X)

    def counted(ctx: Any, grad_out: Any, tin: Any) -> Any:
        return grad_out / xg.xp.all_gather(tin, "b").shape[0] ** 0.5 if tin.ndim else grad_out

    def refused(ctx: Any, grad_out: Any, tin: Any) -> Any:
        whole = xg.xp.all_gather(tin, "b")
        return grad_out * len(whole.shape[:1]) if list(whole.shape) else grad_out

    rule = xg.register("counting", native=False, override=True)(refused)
    with pytest.raises(xg.TraceError, match="how many shards there are"):
        shards(gradient(rule))(X)
    rule = xg.register("counting", native=False, override=True)(counted)
    close(shards(gradient(rule))(X), X / 8**0.5)


# --- what people put around a step ----------------------------------------------------------------
@check()
def donated_buffers_are_taken_and_the_numbers_stay() -> None:
    for jit in (jax.jit, xg.jit):
        width = xg.schedule.linear(2.0, 1.0, steps=4)
        act = xg.activation("Heaviside", "triangular", {"width": width})

        def step(w: Any, x: Any, act: Any = act) -> Any:
            return w - 0.1 * jax.grad(lambda w: (act(x * w) ** 2 + x * act(w)).sum())(w)

        run = jit(step, donate_argnums=0)
        w, expected = place(jnp.asarray(W), line(), P()), jnp.asarray(W)
        for _ in range(2):
            before, w = w, run(w, place(X, line(), P("b")))
            expected = step(expected, X)
            assert before.is_deleted()
            close(w, expected)
            width.step()


@check()
def one_trace_of_xg_jit_serves_all_numbers_on_sharded_arguments() -> None:
    traces = 0

    def run(x: Any) -> Any:
        nonlocal traces
        traces += 1
        return jax.grad(lambda x: (xg.activation("Tanh")(x) ** 2).sum())(x)

    place_ = NamedSharding(line(), P("b"))
    compiled = xg.jit(run, out_shardings=place_)
    for width in (1.0, 2.0):
        with xg.use("triangular", params={"width": width}):
            found = compiled(place(X, line(), P("b")))
            assert found.sharding == place_
            close(found, run(X))
    assert traces == 1 + 2, traces


@check(way=("nnx", "linen"))
def flax_models_train_sharded_under_an_optax_chain_with_a_rule(way: str) -> None:
    # Here, as the other checks need neither.
    import optax
    from flax import linen, nnx

    from multigrad.compat.optax import apply_rule

    act = xg.activation("Heaviside", "triangular")
    if way == "nnx":
        rngs = nnx.Rngs(0)
        network = nnx.Sequential(nnx.Linear(12, 8, rngs=rngs), act, nnx.Linear(8, 2, rngs=rngs))
        graph, params = nnx.split(network, nnx.Param)

        def apply(params: Any, x: Any) -> Any:
            return nnx.merge(graph, params)(x)
    else:
        model = linen.Sequential([linen.Dense(8), act, linen.Dense(2)])
        params = model.init(jax.random.key(0), X)
        apply = model.apply

    chain = optax.chain(apply_rule("clip_norm"), apply_rule("full_jam", key=3), optax.sgd(0.1))

    @jax.jit
    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: (apply(p, x) ** 2).sum())(params)
        updates, state = chain.update(gradients, state)
        return optax.apply_updates(params, updates), state

    def train(params: Any, x: Any) -> Any:
        state = chain.init(params)
        for _ in range(3):
            params, state = step(params, state, x)
        return params

    def placed(leaf: Any) -> Any:
        return place(leaf, grid(), P(None, "m") if leaf.ndim == 2 else P("m"))

    expected = train(params, jnp.asarray(X))
    found = train(jax.tree.map(placed, params), place(X, grid(), P("b")))
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        close(ours, theirs)
        assert ours.sharding.is_equivalent_to(placed(theirs).sharding, ours.ndim)


# --- each kind of rule, as docs/support.md says it ------------------------------------------------
@check(transform=("`shard_map`, a part on each device", "automatic sharding (`NamedSharding`)"))
def each_kind_of_rule(transform: str) -> None:
    wrong = matrix.wrong("jax", transform)
    assert wrong == {}, wrong
