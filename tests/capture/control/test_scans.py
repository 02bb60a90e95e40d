"""Loops over rows as one op with a derivative: `xp.scan`, `xp.fori_loop`, `xp.cond`. What the same
steps give one after the other, in float64, is expected.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ...conftest import BACKENDS
from ...harness.own_library import assert_as_in

xp = xg.xp
STEPS = 6
generator = np.random.default_rng(11)
X, W, B = (generator.normal(size=shape) for shape in ((STEPS, 2, 3), (3, 3), (3,)))
spike = xg.activation("Heaviside", "triangular", {"width": 2.0})
Loop = Callable[..., Any]


def one_by_one(f: Any, init: Any, xs: Any, *, reverse: bool = False) -> Any:
    """The steps of a scan one after the other."""
    carry, given = init, []
    for i in range(STEPS)[:: -1 if reverse else 1]:
        row = {name: x[i] for name, x in xs.items()} if isinstance(xs, dict) else xs[i]
        carry, y = f(carry, row)
        given.append(y)
    given = given[::-1] if reverse else given
    if isinstance(given[0], tuple):
        return carry, tuple(xp.stack(column) for column in zip(*given, strict=True))
    return carry, None if given[0] is None else xp.stack(given)


def recurrent(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A cell with weights, of whose turns each gives something, and the last one's state."""
    state, given = scan(lambda h, r: (xp.tanh(h @ w + r + b), h * h), xp.zeros_like(x[0]), x)
    return given + state


def backwards(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """From the last row to the first."""
    return scan(lambda h, r: (xp.tanh(h * r) + r @ w, xp.exp(-h)), b * x[0], x, reverse=True)[1]


def spiking(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A leaky neuron that fires, with a gradient of its own."""

    def step(v: Any, current: Any) -> Any:
        v = 0.9 * v + current @ w
        fired = spike(v - 0.5)
        return v - 0.5 * fired, fired

    return scan(step, xp.zeros_like(x[0]), x)[1] * b


def adaptive(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A neuron whose threshold rises when it fires: two things carried, two rows, two results."""

    def step(carry: Any, row: Any) -> Any:
        v, threshold = carry
        v = 0.8 * v + row["current"]
        fired = spike(v - threshold)
        threshold = threshold + 0.3 * fired - 0.1 * row["rest"]
        return (v * (1.0 - fired), threshold), (fired, v)

    start = (xp.zeros_like(x[0]), xp.ones_like(x[0]) * xp.abs(b))
    (v, threshold), (fired, seen) = scan(step, start, {"current": x @ w, "rest": xp.abs(x)})
    return fired * threshold + seen * v


def broadcasting(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A turn that reduces, broadcasts and picks: what comes back has the shape of each operand."""
    carry, given = scan(lambda h, r: (h * xp.mean(r) + xp.sum(h * b), h[0] * r), xp.ones_like(w), x)
    return xp.sum(given * x, axis=0) + xp.sum(carry)


def nested(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A loop in a turn of another, over what the outer one carries."""

    def step(h: Any, r: Any) -> Any:
        inner, _ = xp.scan(lambda g, q: (xp.tanh(g * q + r), None), h, w)
        return inner, h * b

    return scan(step, xp.ones_like(x[0]), x)[1]


def stacked(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """A loop over what another gave."""
    below = scan(lambda h, r: (xp.sin(h + r @ w), h), xp.zeros_like(x[0]), x)[1]
    return scan(lambda h, r: (xp.tanh(h * 0.5 + r * b), h * h), xp.zeros_like(x[0]), below)[1]


def of_no_state(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """Nothing is carried, and a turn gives a tensor from around it as it is."""
    given, around = scan(lambda _, r: (None, (xp.tanh(r @ w), b)), None, x)[1]
    return given * around[:, None]


def counted(scan: Loop, x: Any, w: Any, b: Any) -> Any:
    """Numbers and integers are carried beside tensors."""

    def step(carry: Any, r: Any) -> Any:
        n, total, h = carry
        return (n + 1, total + xp.sum(r @ w), h * 0.5 + n * r), h + total

    (n, total, h), given = scan(step, (0, 0.0, xp.zeros_like(x[0])), x)
    return given + h * b * total + n


PROGRAMS = (
    recurrent, backwards, spiking, adaptive, broadcasting, nested, stacked, of_no_state, counted,
)  # fmt: skip


def function_of(program: Any, scan: Loop) -> Any:
    return xg.function(lambda x, w, b: program(scan, x, w, b), native=False)


def results(backend: Any, f: Any, dtype: str) -> list[Any]:
    given = [backend.array(a.astype(dtype)) for a in (X, W, B)]
    y, pull = xg.vjp(f, *given)
    u = np.cos(np.arange(np.prod(y.shape))).reshape(tuple(y.shape)).astype(dtype)
    return [backend.numpy(each) for each in (y, *pull(backend.array(u)))]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_scan_gives_what_its_steps_give_one_by_one(backend: Any, program: Any) -> None:
    by_scan, by_steps = function_of(program, xp.scan), function_of(program, one_by_one)
    exact = results(BACKENDS["numpy"], by_steps, "float64")
    for dtype in ("float64", "float32"):
        with backend.precision(np.dtype(dtype)):
            found, plain = (results(backend, f, dtype) for f in (by_scan, by_steps))
        eps = np.finfo(dtype).eps
        for ours, own, oracle in zip(found, plain, exact, strict=True):
            assert ours.dtype == dtype
            bound = 4 * eps * STEPS * max(1.0, float(np.abs(oracle).max()))
            worst = max(bound, 1.5 * float(np.abs(own - oracle).max()))
            assert np.abs(ours - oracle).max() <= worst


@pytest.mark.parametrize("every", [1, 4, STEPS, STEPS + 3])
def test_what_is_kept_every_few_steps_changes_no_number(backend: Any, every: int) -> None:
    def keeping(f: Any, init: Any, xs: Any, *, reverse: bool = False) -> Any:
        return xp.scan(f, init, xs, reverse=reverse, keep_every=every)

    for program in (adaptive, backwards, nested):
        with backend.precision(np.float64):
            own, by_cut = (
                results(backend, function_of(program, scan), "float64")
                for scan in (keeping, xp.scan)
            )
        for ours, others in zip(own, by_cut, strict=True):
            np.testing.assert_allclose(ours, others, rtol=1e-13, atol=1e-13)


@pytest.mark.backends("torch")
def test_only_the_carry_before_every_so_many_steps_is_kept(backend: Any, torch: Any) -> None:
    x, w = torch.ones(12, 2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    for every, number in ((1, 12), (4, 3), (12, 1)):

        def f(x: Any, w: Any, every: int = every) -> Any:
            step = lambda h, r: (xp.tanh(h * w + r), xp.exp(h))
            return xp.scan(step, xp.zeros_like(x[0]), x, keep_every=every)[1]

        shapes: list[Any] = []
        note = lambda tensor, shapes=shapes: shapes.append(tuple(tensor.shape)) or tensor
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            xg.function(f, native=False)(x, w)
        kept = sum(int(np.prod(s)) for s in shapes)
        assert kept == x.numel() + w.numel() + number * x[0].numel()


def linear(a: Any, b: Any) -> Any:
    """One linear recurrence after another."""
    return a[0] * b[0], a[1] * b[0] + b[1]


@pytest.mark.parametrize("reverse", [False, True])
def test_partial_results_of_an_associative_operation(backend: Any, reverse: bool) -> None:
    def f(a: Any, b: Any) -> Any:
        return xp.associative_scan(linear, (a, b), reverse=reverse, axis=1)[1]

    def one_after_another(a: Any, b: Any) -> Any:
        partial, h = np.zeros_like(a), np.zeros((3, 2))
        for i in range(a.shape[1])[:: -1 if reverse else 1]:
            h = partial[:, i] = a[:, i] * h + b[:, i]
        return partial

    for length in (0, 1, 2, 5, 8):
        a, b = (generator.normal(size=(3, length, 2)) for _ in range(2))
        at_hand = f(*(backend.array(v.astype("float32")) for v in (a, b)))
        expected = one_after_another(a, b)
        np.testing.assert_allclose(backend.numpy(at_hand), expected, rtol=1e-4, atol=1e-4)
        of = xg.function(f, native=False)
        assert_as_in("numpy", one_after_another, a, b, of=of, backend=backend, rtol=1e-12)


def test_the_shape_of_what_a_scan_of_custom_gradients_gives_is_known(backend: Any) -> None:
    def f(x: Any) -> Any:
        given = xp.scan(lambda h, r: (h + r, spike(h + r)), xp.zeros_like(x[0]), x)[1]
        return xp.reshape(given, (given.shape[0] * given.shape[1], given.shape[2]))

    own = X.astype("float32")
    y, gradient = backend.vjp(xg.function(f, native=False), own, np.ones((12, 3), "float32"))
    np.testing.assert_array_equal(y, np.cumsum(own, axis=0).reshape(12, 3) >= 0)
    assert gradient.shape == X.shape


def test_a_turn_back_takes_what_the_cut_says_and_sums_nothing_twice() -> None:
    f = function_of(spiking, xp.scan)
    results(BACKENDS["numpy"], f, "float64")
    text = xg.show(f)
    back = text[text.index("body(cotangent_0") :].partition("return")[0]
    assert "kept_0" in back
    assert "kept_1" not in back
    assert "heaviside" not in back  # what fires is not computed again
    assert "sum_to" not in back.partition("matmul")[0]


def test_forward_and_reverse_mode_are_transposes_of_each_other(backend: Any) -> None:
    f = function_of(recurrent, xp.scan)
    moves = [generator.normal(size=a.shape) for a in (X, W, B)]
    with backend.precision(np.float64):
        given = [backend.array(a) for a in (X, W, B)]
        y, tangent = xg.jvp(f, tuple(given), tuple(map(backend.array, moves)))
        _, pull = xg.vjp(f, *given)
        u = generator.normal(size=tuple(y.shape))
        gradients = [backend.numpy(g) for g in pull(backend.array(u))]
        left = u * backend.numpy(tangent)
    right = [g * m for g, m in zip(gradients, moves, strict=True)]
    size = sum(np.abs(each).sum() for each in (left, *right))
    total = sum(each.sum() for each in right)
    assert abs(left.sum() - total) <= 4 * np.finfo(np.float64).eps * X.size * size


def test_a_loop_that_counts(backend: Any) -> None:
    f = xg.function(lambda b: xp.fori_loop(1, 5, lambda i, h: xp.sin(h) + i * b, b), native=False)
    by_hand = xg.function(
        lambda b: xp.sin(xp.sin(xp.sin(xp.sin(b) + b) + 2 * b) + 3 * b) + 4 * b, native=False
    )
    with backend.precision(np.float64):
        for ours, own in zip(
            *(backend.vjp(g, B, np.ones_like(B)) for g in (f, by_hand)), strict=True
        ):
            np.testing.assert_allclose(ours, own, rtol=1e-13)
    np.testing.assert_array_equal(xp.fori_loop(3, 3, lambda i, h: h / 0, B), B)


def test_a_branch_lets_no_cotangent_through_the_way_that_is_not_taken(backend: Any) -> None:
    def f(x: Any) -> Any:
        return xp.cond(xp.sum(x) > 0, lambda a: xp.sqrt(a), lambda a: a * 2.0, x)

    for x, slope in (([-1.0, -4.0], [2.0, 2.0]), ([4.0, 1.0], [0.25, 0.5])):
        own = np.array(x, "float32")
        _, gradient = backend.vjp(xg.function(f, native=False), own, np.ones_like(own))
        np.testing.assert_array_equal(gradient, np.array(slope, "float32"))


def test_tensors_at_hand_are_scanned_at_once(backend: Any) -> None:
    x = X.astype("float32")
    total, sums = xp.scan(lambda c, r: (c + r, c * r), 0.0 * x[0], backend.array(x))
    np.testing.assert_allclose(backend.numpy(total), x.sum(axis=0), rtol=1e-5)
    before = np.cumsum(x, axis=0) - x
    np.testing.assert_allclose(backend.numpy(sums), before * x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reverse", [False, True])
def test_no_rows_give_the_carry_and_nothing_else(backend: Any, reverse: bool) -> None:
    def f(x: Any, h: Any) -> Any:
        return xp.scan(lambda c, r: (c * r, xp.sum(c * r)), h, x, reverse=reverse)

    own = xg.function(f, native=False)
    x, h = np.zeros((0, 3), "float32"), B.astype("float32")
    (carry, given), pull = xg.vjp(own, backend.array(x), backend.array(h))
    np.testing.assert_array_equal(backend.numpy(carry), h)
    assert tuple(given.shape) == (0,)
    of_x, of_h = pull((backend.array(2 * h), backend.array(np.zeros(0, "float32"))))
    assert tuple(of_x.shape) == (0, 3)
    np.testing.assert_array_equal(backend.numpy(of_h), 2 * h)


def test_a_turn_that_asks_for_shapes_is_told_those_of_what_it_is_given(backend: Any) -> None:
    def f(scan: Loop) -> Any:
        def step(h: Any, r: Any) -> Any:
            square = xp.matmul(xp.matrix_transpose(r), r) + np.eye(3)
            return xp.matrix_transpose(xp.solve(square, xp.matrix_transpose(h))), h.shape[0] * h

        return xg.function(lambda x: scan(step, x[0], x)[1], native=False)

    with backend.precision(np.float64):
        found, expected = (backend.vjp(f(s), X, np.ones_like(X)) for s in (xp.scan, one_by_one))
    for ours, own in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-10, atol=1e-12)


REFUSED = {
    "shape": (lambda x: xp.scan(lambda c, r: (xp.stack([c, c]), r), x[0], x), "what is carried"),
    "dtype": (lambda x: xp.scan(lambda c, r: (c > 0, r), x[0], x), "after a turn"),
    "structure": (lambda x: xp.scan(lambda c, r: ((c, c), r), x[0], x), "after a turn"),
    "result": (lambda x: xp.scan(lambda c, r: c, x[0], x), "the carry and a result"),
    "draw": (lambda x: xp.scan(lambda c, r: (c + xp.randn_like(r), r), x[0], x), "draws"),
    "length": (lambda x: xp.scan(lambda c, r: (c, r), x[0], None), "number of steps"),
    "every": (lambda x: xp.scan(lambda c, r: (c, r), x[0], x, keep_every=0), "every 1 step"),
    "partial": (lambda x: xp.associative_scan(lambda a, b: (a, b), x), "an operation on"),
    "partials": (lambda x: xp.associative_scan(linear, (x, x[1:])), "of one length"),
    "lengths": (
        lambda x: xp.scan(lambda c, r: (c, r[0] * r[1]), x[0], (x, x[1:])),
        "one length in their first axis",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loop_that_cannot_be_is_an_error_that_names_what_changes(name: str) -> None:
    f, words = REFUSED[name]
    with pytest.raises((xg.TraceError, TypeError, ValueError), match=words):
        xg.vjp(xg.function(f, native=False), X)


def test_a_scan_is_saved_and_loaded(tmp_path: Any) -> None:
    f = function_of(adaptive, xp.scan)
    expected = results(BACKENDS["numpy"], f, "float64")
    xg.save(f, tmp_path / "f.json")
    loaded = xg.load(tmp_path / "f.json")
    for ours, own in zip(results(BACKENDS["numpy"], loaded, "float64"), expected, strict=True):
        np.testing.assert_array_equal(ours, own)
    assert '"scan"' in json.dumps(f.to_dict())


@pytest.mark.backends("torch")
def test_torch_compiles_maps_and_differentiates_twice(backend: Any, torch: Any) -> None:
    f = function_of(recurrent, xp.scan)
    x, w, b = (torch.tensor(a, requires_grad=True) for a in (X, W, B))
    assert torch.autograd.gradcheck(f, (x, w, b))
    assert torch.autograd.gradgradcheck(f, (x, w, b))
    mapped = torch.func.vmap(f, (1, None, None), 1)(x, w, b)
    torch.testing.assert_close(mapped, f(x, w, b))
    expected = torch.autograd.grad(f(x, w, b).sum(), (x, w, b))
    compiled = torch.compile(lambda *a: f(*a).sum(), backend="aot_eager", fullgraph=True)
    for ours, own in zip(torch.autograd.grad(compiled(x, w, b), (x, w, b)), expected, strict=True):
        torch.testing.assert_close(ours, own)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("program", [recurrent, spiking])
def test_torch_compiles_one_loop_each_way(backend: Any, program: Any, torch: Any) -> None:
    from torch._dynamo.backends.common import aot_autograd

    loops = []

    def count(graph: Any, inputs: Any) -> Any:
        scans = [n for n in graph.graph.nodes if n.target is torch.ops.higher_order.scan]
        loops.append(len(scans))
        return graph

    f = function_of(program, xp.scan)
    arrays = [torch.tensor(a, requires_grad=True) for a in (X, W, B)]
    counting = aot_autograd(fw_compiler=count)
    compiled = torch.compile(lambda *a: f(*a), backend=counting, fullgraph=True)
    found = torch.autograd.grad(compiled(*arrays).sum(), arrays)
    assert loops == [1, 1]
    for ours, own in zip(found, torch.autograd.grad(f(*arrays).sum(), arrays), strict=True):
        torch.testing.assert_close(ours, own)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("mapped", [False, True])
def test_torch_compiles_turns_that_give_what_they_take(
    backend: Any, mapped: bool, torch: Any
) -> None:
    def of(scan: Loop, x: Any, w: Any, b: Any) -> Any:
        def step(s: Any, row: Any) -> tuple[Any, Any]:
            state, square = s
            doubled = 2 * row
            given = (row, state, doubled, doubled, xp.reshape(doubled, (6,)), square)
            return (state * row, square.T), given

        carry, given = scan(step, (x[0], w), x)
        return sum((xp.sum(y * y) for y in (*carry, *given)), xp.sum(b))

    f, by_hand = function_of(of, xp.scan), function_of(of, one_by_one)
    arrays = [torch.tensor(a) for a in (X, W, B)]
    if mapped:
        run = torch.func.vmap(lambda x: f(x, *arrays[1:]))
        x = torch.stack([arrays[0], 1 - arrays[0]])
        expected = torch.stack([by_hand(each, *arrays[1:]) for each in x])
    else:
        run, x, expected = lambda x: f(x, *arrays[1:]), arrays[0], by_hand(*arrays)
    compiled = torch.compile(lambda x: run(x), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), expected)


@pytest.mark.backends("torch")
def test_autocast_changes_nothing_that_is_carried(backend: Any, torch: Any) -> None:
    f = function_of(recurrent, xp.scan)
    x, w, b = (torch.tensor(a, dtype=torch.float32, requires_grad=True) for a in (X, W, B))
    plain = torch.autograd.grad(f(x, w, b).sum(), (x, w, b))
    with torch.autocast("cpu", torch.bfloat16):
        y = f(x, w, b)
    found = torch.autograd.grad(y.float().sum(), (x, w, b))
    for ours, own in zip(found, plain, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, own, rtol=0.1, atol=0.1)


@pytest.mark.backends("torch")
def test_torchs_own_loops_and_branches_are_captured(backend: Any, torch: Any) -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.scan import scan

    def f(x: Any, w: Any) -> Any:
        def step(h: Any, r: Any) -> Any:
            h = torch.tanh(h @ w + r)
            return h, h * h

        state, given = scan(step, torch.ones_like(x[:, 0]), x, dim=1, reverse=True)
        given = associative_scan(torch.add, given, 0, combine_mode="generic")
        _, doubled = torch.while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (0, state))
        sign = torch.cond(state.sum() > 0, lambda s: s.exp(), lambda s: -s, (state,))
        return given[-1] + doubled * sign

    captured, x = xg.function(f, native=False), X.transpose(1, 0, 2)
    y, pull = xg.vjp(captured, x, W)  # on NumPy, where torch's own cannot run
    state, given = np.ones((2, 3)), 0.0
    for i in reversed(range(STEPS)):
        state = np.tanh(state @ W + x[:, i])
        given = given + state * state
    sign = np.exp(state) if state.sum() > 0 else -state
    np.testing.assert_allclose(y, given + 8 * state * sign, rtol=1e-12)
    tensors = [torch.tensor(a, requires_grad=True) for a in (x, W)]
    for ours, own in zip(
        pull(np.ones_like(y)),
        torch.autograd.grad(captured(*tensors).sum(), tensors),
        strict=True,
    ):
        np.testing.assert_allclose(ours, own, rtol=1e-10, atol=1e-13)
    assert torch.autograd.gradcheck(captured, tensors)


@pytest.mark.backends("jax")
def test_jax_runs_one_loop_each_way_under_jit(backend: Any, jax: Any) -> None:
    from jax.test_util import check_grads

    f = function_of(recurrent, xp.scan)
    with backend.precision(np.float64):
        given = tuple(map(backend.array, (X, W, B)))
        gradient = jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1, 2)))
        text = gradient.lower(*given).compile().as_text()
        check_grads(f, given, 2, modes=["rev"])
    assert text.count(" while(") == 2


@pytest.mark.backends("tensorflow")
def test_tensorflow_runs_a_loop_of_unknown_length(backend: Any, tf: Any) -> None:
    f = function_of(spiking, xp.scan)
    given = [tf.constant(a) for a in (X, W, B)]

    def gradients(*tensors: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            y = tf.reduce_sum(f(*tensors))
        return tape.gradient(y, tensors)

    unknown = tf.TensorSpec((None, None, 3), tf.float64)
    signature = [unknown, *(tf.TensorSpec(a.shape, tf.float64) for a in given[1:])]
    expected = gradients(*given)
    for found in (
        tf.function(gradients, input_signature=signature)(*given),
        tf.function(gradients, jit_compile=True)(*given),
    ):
        for ours, own in zip(found, expected, strict=True):
            np.testing.assert_allclose(ours, own, rtol=1e-12, atol=1e-14)


@pytest.mark.backends("tensorflow")
def test_tensorflows_own_scans_are_loops_with_its_gradients(backend: Any, tf: Any) -> None:
    step = lambda carry, row: tf.tanh(carry * 0.5 + row)
    turn = lambda carry, row: (carry[0] * row, carry[1] + carry[0])
    programs: list[Loop] = [
        lambda x: tf.scan(step, x, tf.zeros_like(x[0])),
        lambda x: tf.scan(step, x, reverse=True),
        lambda x: tf.scan(turn, x, (x[0], x[1]))[1],
        lambda x: tf.foldl(tf.multiply, x),
        lambda x: tf.foldr(step, x, tf.ones_like(x[0])),
        lambda x: tf.map_fn(lambda r: tf.exp(r[0]) * r[1], (x, x), fn_output_signature=x.dtype),
    ]
    for program in programs:
        f = xg.function(program, native=False)
        assert_as_in("tensorflow", program, X, of=f, backend=backend, rtol=1e-12, atol=1e-14)
        assert " scan(" in xg.show(f)
