"""Ejected files: they run where multigrad is not, give the same bits, and can be read."""

from __future__ import annotations

import ast
import builtins
import dataclasses
import operator
import pickle
import symtable
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import multigrad as xg
from multigrad import xp
from multigrad.core import ops
from multigrad.core.backend.discovery import load_backend
from multigrad.core.rules.rule_names import OWN as OWN_RULES
from multigrad.engine.functions.eject.eject import write_parts
from multigrad.engine.functions.eject.tree_shaking import Shaker

from ...harness import ejected, fresh
from ...harness.ejecting import BY_RANK, KEY, X, load, native, random_values, rules_by_rank
from ...harness.torch_class import torch_class
from ...support.sampling import WHOLE, sample

ejecting = pytest.mark.backends("numpy", "torch", "jax", "tensorflow")

FORWARDS = ("Linear", "ReLU", "Heaviside")  # in whole tables all of each rule, else in turn


def library_rules() -> list[str]:
    """Return the library's rules of one graph each; other tests register their own."""
    library = [n for n in xg.rules() if xg.get(n).__module__.startswith(OWN_RULES)]
    return [name for name in library if name not in BY_RANK]


def run_apart(backend: str, folder: Path, calls: dict[str, Any]) -> dict[str, Any]:
    """Run files in a process that cannot import multigrad."""
    (folder / ejected.CALLS).write_bytes(pickle.dumps(calls))
    done = fresh.run([ejected.__file__, backend, str(folder)], [backend])
    assert done.returncode == 0, done.stderr[-3000:]
    return pickle.loads((folder / ejected.RESULTS).read_bytes())


def test_the_rules_of_one_graph_per_rank_are_those_that_the_tests_leave_out() -> None:
    assert set(rules_by_rank()) == BY_RANK


# --- functions to eject ---------------------------------------------------------------------------
def softmax(x: Any) -> Any:
    y = xp.softmax(x, axis=-1)
    return y, lambda upstream: y * (upstream - xp.sum(upstream * y, axis=-1, keepdims=True))


def product(x: Any, w: Any) -> Any:
    return x @ w, lambda upstream: (upstream @ w.T, x.T @ upstream)


def pair(x: Any) -> Any:
    def grad(upstream: Any) -> Any:
        return upstream[0] * xp.exp(-x * x) + upstream[1] * xp.sigmoid(x)

    return (xp.erf(x), xp.softplus(x)), grad


def linear_algebra(x: Any) -> Any:
    y = np.linalg.solve(x, x.T) + np.linalg.cholesky(x) + np.linalg.inv(x)
    return y, lambda upstream: upstream @ np.linalg.pinv(x) + np.linalg.det(x)


def conv(x: Any, w: Any) -> Any:
    return xp.conv(x, w), lambda upstream: (x * xp.mean(upstream), w * xp.mean(upstream))


def arrays(x: Any) -> Any:
    table = np.linspace(-1.0, 1.0, 400).reshape(100, 4)
    return x * np.array([1.0, 2.0, np.nan, 0.1]), lambda upstream: upstream * table[:3]


def special(x: Any) -> Any:
    y = xp.lgamma(xp.abs(x)) + xp.cbrt(x) + xp.fmod(x, 0.7) + xp.log_ndtr(x)
    return xp.sort(y, axis=1), lambda upstream: xp.flip(upstream, axis=0) * xp.tan(x)


def noisy(x: Any) -> Any:
    return x, lambda upstream: upstream * xp.randn_like(x) + xp.rand_like(x)


MATRIX = (X[:, :3].T @ X[:, :3] + np.eye(3)).astype(np.float32)
IMAGE = np.linspace(-1, 1, 2 * 3 * 6 * 6, dtype=np.float32).reshape(2, 3, 6, 6)
KERNEL = np.linspace(-0.5, 0.5, 4 * 3 * 3 * 3, dtype=np.float32).reshape(4, 3, 3, 3)
FUNCTIONS: dict[Callable[..., Any], tuple[list[Any], tuple[Any, ...]]] = {
    softmax: ([X], ()),
    product: ([X, np.ones((4, 2), np.float32)], ()),
    pair: ([X], ()),
    linear_algebra: ([MATRIX], ()),
    conv: ([IMAGE, KERNEL], ()),
    arrays: ([X], ()),
    special: ([X], ()),
    noisy: ([X], (KEY,)),
}


def from_torch() -> xg.Function:
    import torch

    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return torch.nn.functional.gelu(grad) * torch.logsumexp(x, 0)

    @torch_class(backward)
    def Clipped(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.clamp(-1.0, 1.0)

    return xg.from_autograd_function(Clipped)


def from_jax() -> xg.Function:
    import jax.numpy as jnp
    from jax import custom_vjp, lax

    @custom_vjp
    def halved(x: Any) -> Any:
        return lax.while_loop(lambda y: jnp.max(y) > 1.0, lambda y: y * 0.5, x)

    def keep(x: Any) -> Any:
        return halved(x), x

    def pull(x: Any, grad: Any) -> Any:
        return (grad * lax.while_loop(lambda y: jnp.max(y) > 0.7, lambda y: y * 0.5, x),)

    halved.defvjp(keep, pull)
    return xg.from_custom_vjp(halved)


OWN = {"torch": from_torch, "jax": from_jax}


def functions_for(backend: str, folder: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the Function and the call of each."""
    for code, call in FUNCTIONS.items():
        function = xg.custom_gradient(code)
        function(*call[0])
        yield code.__name__, function, call
    kept = xg.function(xp.exp, lambda grad, y: grad * y, residuals=lambda y, x: y)
    kept(X)
    yield "kept", kept, ([X], ())
    made = xg.custom_gradient(softmax)
    made(X)
    xg.save(made, folder / "saved.json")
    yield "loaded", xg.load(folder / "saved.json"), ([X], ())
    # A scan, and a while loop in its backward.
    halve = lambda x: xp.fori_loop(0, 30, lambda i, z: 0.5 * xp.tanh(z) + x, xp.zeros_like(x))
    equation = xg.implicit(lambda z, x: z - 0.5 * xp.tanh(z) - x, halve)
    equation(X)
    yield "equation", equation, ([X], ())
    if backend in OWN:
        own = OWN[backend]()
        own(X)
        yield "own", own, ([X], ())


@ejecting
def test_every_rule_and_function_runs_without_multigrad_to_the_bit(
    backend: Any, compiling: bool, tmp_path: Path
) -> None:
    calls: dict[str, Any] = {}
    expected: dict[str, Any] = {}

    def add(name: str, obj: Any, given: list[Any], **options: Any) -> None:
        text = xg.source(obj, backend.name, standalone=True, **options)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        own = native(obj, backend.name, **options)
        calls[name] = given
        expected[name] = [ejected.run(backend.name, own, *call) for call in given]

    inputs = ejected.make_inputs()
    rules = sample(library_rules(), 1 / 3) if compiling else library_rules()
    for number, rule in enumerate(rules):
        values = random_values(rule)
        in_turn = [inputs[number % len(inputs)]] if compiling else inputs
        for forward in FORWARDS if WHOLE else FORWARDS[number % len(FORWARDS) :][:1]:
            name = f"rule_{number}_{forward}"
            add(name, rule, [([x], values) for x in in_turn], forward=forward)
    for name, function, call in functions_for(backend.name, tmp_path):
        add(name, function, [call])
    found = run_apart(backend.name, tmp_path, calls)
    assert [name for name in calls if found[name] != expected[name]] == []
    assert len(found) >= len(rules) * (len(FORWARDS) if WHOLE else 1) + len(FUNCTIONS) + 1


class Called:
    """A Function with the `vjp` that a lowered one and a file have on NumPy."""

    def __init__(self, function: xg.Function) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def vjp(self, *args: Any) -> Any:
        return xg.vjp(self.function, *args)


# Those that compute floats of 16 bits in float32, and one that does not ask.
@ejecting
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_file_of_an_estimator_takes_floats_of_every_dtype(backend: Any, dtype: str) -> None:
    positive = np.array([0.5, 0.75, 1.0, 1.25])
    calls = dict.fromkeys(("lsq", "pact", "n2uq"), positive)
    calls |= dict.fromkeys(("dorefa_weights", "ste_round"))
    for name, second in calls.items():
        function = getattr(xg.estimators, name)
        function.captures.variants.clear()  # other tests may have called it otherwise
        arrays = [X * 1.7] if second is None else [X * 1.7, second]
        function(*(a.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for a in arrays))
        text = xg.source(function, backend.name, standalone=True)
        assert " of dtype " not in text.partition('"""')[2].partition('"""')[0]
        made = load(text)
        for each in ("float16", ml_dtypes.bfloat16, "float32", "float64"):
            given = [a.astype(each) for a in arrays]
            values = (0.0,) if name == "n2uq" else ()
            found, own = (
                ejected.run(backend.name, called, given, values)
                for called in (made, Called(function))
            )
            assert found == own, (name, each)


@pytest.mark.parametrize("values", [(0.5, 5, True, True), (0.5, 7, True, False)])
def test_a_file_has_the_defaults_of_an_estimator(values: tuple[Any, ...]) -> None:
    xg.estimators.lsq(X, 0.5, 3)
    text = xg.source(xg.estimators.lsq.with_defaults(values), "numpy", standalone=True)
    assert f"Written into it, and no arguments: bits = {values[1]}," in text
    xg.estimators.fake_quantize.captures.variants.clear()
    assert "bits = 8," in xg.source(xg.estimators.fake_quantize, "numpy", standalone=True)


def test_a_file_for_one_dtype_says_so() -> None:
    asks = xg.function(lambda x: x * (2.0 if x.dtype == np.float32 else 3.0), None)
    asks(X)
    text = xg.source(asks, "numpy", standalone=True)
    assert "For x of dtype float32: its code asks for that. Others are refused." in text
    with pytest.raises(RuntimeError, match=r"dtype float32.*got float64.*--input 4x6:float32"):
        load(text)(X.astype(float))


@ejecting
def test_every_row_can_be_written_into_a_file_with_all_that_it_names(backend: Any) -> None:
    row = load_backend(backend.name)
    ours = frozenset({"multigrad", f"multigrad_{backend.name}"})
    for op, kernel in row.kernels.rows.items():
        if op is ops.PLACE_KEY and kernel is not op.numpy:
            continue  # refused: a test below
        shaker = Shaker(row.ejection.modules, row.ejection.forms, ours, set())
        result = shaker.express(kernel, op.name)
        text = f"{write_parts(shaker)}\nresult = {result}\n"
        scope: dict[str, Any] = {}
        exec(text, scope)  # noqa: S102
        assert "multigrad" not in text and "xg." not in text, op
        missing = [name for name in global_names(text) if name not in scope]
        assert missing == [], op


@ejecting
def test_a_draw_over_shards_has_no_file_of_its_own(backend: Any) -> None:
    rule = xg.get("noise").over("global")
    if backend.name == "numpy":  # one shard
        assert "def noise" in xg.source(rule, "numpy", standalone=True)
        return
    with pytest.raises(xg.MultigradError, match=r"noise.*each shard"):
        xg.source(rule, backend.name, standalone=True)


def global_names(text: str) -> set[str]:
    """Return the names that code takes from its module."""
    found: set[str] = set()
    waiting = [symtable.symtable(text, "file", "exec")]
    while waiting:
        table = waiting.pop()
        waiting.extend(table.get_children())
        free = (s for s in table.get_symbols() if s.is_global() and not s.is_assigned())
        found.update(s.get_name() for s in free)
    return found - {*dir(builtins)}


@pytest.mark.parametrize("rule", ["triangular", "clip_norm", "noise"])
@ejecting
def test_a_file_can_be_read(backend: Any, rule: str) -> None:
    text = xg.source(rule, backend.name, forward="ReLU", standalone=True)
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n")
    head = ast.get_docstring(ast.parse(text)) or ""
    assert head.startswith(f"ReLU with the gradient of the rule {rule!r} for {backend.name}.")
    assert f"{rule}(tin" in head and f"with {backend.name} " in head
    body = text.partition('"""\n\n')[2]
    assert "multigrad" not in body and "Any" not in body
    for node in ast.parse(body).body:  # no helper that nobody calls
        name = getattr(node, "name", None)
        if name is not None and name != rule and not getattr(node, "decorator_list", ()):
            assert body.count(name) > 1, name


@ejecting
def test_a_file_has_the_values_that_a_rule_is_bound_to(backend: Any) -> None:
    bound = xg.get("triangular").with_params(width=0.5)
    file = load(xg.source(bound, backend.name, standalone=True))
    own = native("triangular", backend.name)
    call = backend.name, own, [X], (0.5,)
    assert ejected.run(backend.name, file, [X], ()) == ejected.run(*call)
    assert ejected.run(backend.name, file, [X], (2.0,)) != ejected.run(*call)


@ejecting
def test_an_activation_is_ejected_with_its_own_forward_and_rule(backend: Any) -> None:
    act = xg.activation("Heaviside", "triangular", {"width": 0.5})
    text = xg.source(act, backend.name, standalone=True)
    bound = xg.get("triangular").with_params(width=0.5)
    assert text == xg.source(bound, backend.name, forward="Heaviside", standalone=True)
    with pytest.raises(xg.RuleError, match="leave out forward='ReLU'"):
        xg.source(act, backend.name, forward="ReLU", standalone=True)


@ejecting
def test_a_file_has_the_numbers_that_a_function_has_by_default(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = xg.estimators.swish_sign
    # Other tests have called it with a tensor for beta.
    monkeypatch.setattr(q.captures.findings, "variants", {})
    monkeypatch.setattr(q.entries, "known", {})
    monkeypatch.setattr(q.entries, "checked", {})
    q(X)
    text = xg.source(q, backend.name, standalone=True)
    assert "def swish_sign(x, beta=5.0):" in text


@ejecting
def test_a_file_says_that_it_takes_tensors_alone(backend: Any) -> None:
    scaled = xg.function(lambda x, s: x * s, lambda g, x, s: (g * s, xp.sum(g * x)))
    scaled(X, np.array(2.0))
    text = xg.source(scaled, backend.name, standalone=True)
    assert "Give x, s as tensors, no Python numbers." in text


@ejecting
def test_params_may_have_the_names_of_what_a_file_uses(backend: Any) -> None:
    def rule(
        ctx: Any, grad: Any, tin: Any, pullback: float = 2.0, np: float = 3.0, read_key: float = 5.0
    ) -> Any:
        return grad * pullback * np * read_key

    xg.register("own words")(rule)
    text = xg.source("own words", backend.name, standalone=True)
    found = ejected.run(backend.name, load(text), [X], ())
    assert found == ejected.run(backend.name, native("own words", backend.name), [X], ())


@ejecting
def test_a_helper_is_never_taken_for_a_variable_of_the_same_name(backend: Any) -> None:
    @xg.custom_gradient
    def matmul(matmul: Any, norm: Any) -> Any:
        y = xp.sum(matmul @ norm) + matmul
        return y, lambda upstream: (upstream, norm)

    w = np.ones((4, 2), np.float32)
    matmul(X, w)
    file = load(xg.source(matmul, backend.name, standalone=True))
    call = [X, w], ()
    own = ejected.run(backend.name, native(matmul, backend.name), *call)
    assert ejected.run(backend.name, file, *call) == own


SEEDS = {
    "numpy": "numpy.random:seed",
    "torch": "torch:manual_seed",
    "tensorflow": "tensorflow:random.set_seed",
}


@ejecting
def test_without_a_key_the_frameworks_generator_draws(backend: Any) -> None:
    file = load(xg.source("full_jam", backend.name, standalone=True))
    if backend.name not in SEEDS:
        with pytest.raises(TypeError, match="a key is needed"):
            file(backend.array(X))
        return
    module, _, name = SEEDS[backend.name].partition(":")
    seed = operator.attrgetter(name)(sys.modules[module])

    def draw(call: Any) -> Any:
        seed(5)
        return ejected.run(backend.name, call, [X], ())

    assert draw(file) == draw(native("full_jam", backend.name)) == draw(file)
    assert ejected.run(backend.name, file, [X], (7,)) == ejected.run(
        backend.name, file, [X], ((0, 7),)
    )


@pytest.mark.parametrize("obj", ["runs as it is", "is not captured"])
def test_what_no_file_can_hold_is_refused_with_the_reason(obj: str) -> None:
    def rule(ctx: Any, grad: Any, tin: Any) -> Any:
        return grad * float(np.sum(np.asarray(grad)))

    xg.register("runs as it is", native=True)(rule)
    xg.register("is not captured", native=False)(rule)
    with pytest.raises(xg.TraceError, match=obj if obj == "runs as it is" else "test_eject.py"):
        xg.source(obj, "numpy", standalone=True)


def test_a_backend_that_does_not_say_how_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = dataclasses.replace(load_backend("numpy"), ejection=None)
    monkeypatch.setattr("multigrad.look.source.load_backend", lambda name: bare)
    with pytest.raises(xg.UnsupportedOp, match=r"Backend\.ejection"):
        xg.source("triangular", "numpy", standalone=True)
