"""`xg.audit`: which law a faulty gradient breaks on its own framework, and that what keeps them all
is not accused.
"""

from __future__ import annotations

import gc
import itertools
import json
import re
import secrets
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from scipy import special

import multigrad as xg
from multigrad.errors import RuleTypeError

from ..harness.torch_class import torch_class

X = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
QUICK = (
    "type", "repeatable", "derivative", "linear", "scale", "ones", "zero", "strided cotangent",
    "broadcast cotangent", "strided input", "backward twice", "written", "interleaved", "float16",
    "bfloat16", "far numbers", "zeros", "empty", "second derivative", "vmap", "broadcast input",
    "not finite", "no axes",
)  # fmt: skip


def broken(report: Any) -> set[str]:
    assert not report.problem
    return {finding.law for finding in report.findings}


def keeps(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(x)
    return x * x


def saved(ctx: Any) -> Any:
    return ctx.saved_tensors[0]


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_a_class_that_keeps_every_law_is_not_accused() -> None:
    report = xg.audit(torch_class(lambda ctx, g: 2 * saved(ctx) * g)(keeps), X)
    assert report.ok
    states = {finding.law: finding.state for finding in report.laws}
    assert states["vmap"] == "refused"  # torch says that it wants setup_context
    assert states["compiled"] == states["threads"] == "kept"


# --- each framework's own -------------------------------------------------------------------------


def square_of(backend: Any, factor: float) -> Any:
    """Return a square with a custom gradient of the framework's, right by the factor 2."""
    if backend.name == "numpy":
        return xg.function(lambda x: x * x, lambda g, x: factor * x * g)
    if backend.name == "torch":
        return torch_class(lambda ctx, g: factor * saved(ctx) * g)(keeps)
    if backend.name == "jax":
        square = import_module("jax").custom_vjp(lambda x: x * x)
        square.defvjp(lambda x: (x * x, x), lambda x, g: (factor * x * g,))
        return square

    def forward(x: Any) -> Any:
        return x * x, lambda g: factor * x * g

    return import_module("tensorflow").custom_gradient(forward)


LAWS_OF_ALL = tuple(law for law in QUICK if law != "second derivative")


@pytest.mark.parametrize(
    ("factor", "said"), [(2.0, set()), (3.0, {"derivative"}), (2.000001, {"derivative"})]
)
def test_each_frameworks_custom_gradient_is_audited_as_it_is(
    backend: Any, factor: float, said: set[str]
) -> None:
    report = xg.audit(square_of(backend, factor), X, laws=LAWS_OF_ALL)
    if backend.name == "numpy" and factor == 2.000001:  # which has no autodiff to tell
        said = set()
    assert (broken(report), report.home) == (said, backend.name)


PLAIN = {
    "torch": "tanh exp sigmoid erf atan square",
    "jax": "nn.softmax",
    "tensorflow": "tanh exp nn.gelu nn.softmax",
    "numpy": "",
}


def test_a_frameworks_own_functions_keep_the_laws(backend: Any) -> None:
    for path in PLAIN[backend.name].split():
        found: Any = import_module(backend.name)
        for part in path.split("."):
            found = getattr(found, part)
        report = xg.audit(found, X, laws=LAWS_OF_ALL)
        assert report.ok, str(report)


# --- what is reported -----------------------------------------------------------------------------


def test_a_surrogate_is_no_fault() -> None:
    report = xg.audit("triangular", X, laws=["derivative", "linear"])
    assert [finding.state for finding in report.laws] == ["does not apply", "kept"]
    assert "surrogate" in report.laws[0].reason
    spike = xg.function(lambda x: xg.xp.heaviside(x), lambda g, x: g / (1 + x * x))
    assert xg.audit(spike, X).ok  # its forward is flat


@pytest.mark.needs("torch")
def test_a_class_that_computes_in_float32_is_linear_to_its_digits() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.float() * 3

    report = xg.audit(torch_class(lambda ctx, grad_out: grad_out * 3)(forward), X, laws=QUICK)
    assert broken(report) == set()


@pytest.mark.needs("torch")
def test_what_rounds_in_float32_is_a_surrogate_though_it_has_another_derivative_too() -> None:
    torch: Any = import_module("torch")

    def forward(ctx: Any, x: Any, scale: Any) -> Any:
        x, scale = x.float(), scale.float()
        ctx.save_for_backward(rounded := torch.round(x / 0.01))
        return rounded * scale

    def backward(ctx: Any, grad_out: Any) -> Any:
        return grad_out, (grad_out * saved(ctx)).sum((0, 1))

    for n in range(8):
        x = np.random.default_rng(n).standard_normal((3, 4)).astype(np.float32)
        scale = np.array(0.01, np.float32)
        assert xg.audit(torch_class(backward)(forward), x, scale, laws=["derivative"]).ok


@pytest.mark.parametrize(
    ("x", "delta"), [([0.3, -2.5], 2.0), (0.3, 2.0), ([0.3, -2.5], [2.0, 1.0])]
)
def test_a_bound_stays_in_its_range_and_is_named_beside_what_is_far(x: Any, delta: Any) -> None:
    def huber(x: Any, delta: Any) -> Any:
        size = np.abs(x)
        return np.where(size <= delta, 0.5 * x * x, delta * (size - 0.5 * delta))

    def backward_until(limit: float) -> Any:
        def backward(grad_out: Any, x: Any, delta: Any) -> Any:
            of_x = np.where(np.abs(x) < limit, 1, -1) * np.clip(x, -delta, delta)
            of_delta = grad_out * np.maximum(np.abs(x) - delta, 0)
            return grad_out * of_x, of_delta if np.ndim(delta) else np.sum(of_delta)

        return backward

    inputs = np.array(x, np.float32), np.array(delta, np.float32)
    assert xg.audit((huber, backward_until(np.inf)), *inputs, laws=["far numbers"]).ok
    report = xg.audit((huber, backward_until(50.0)), *inputs, laws=["far numbers"])
    assert re.match(r"x = -?\d+, delta = \d+: ", report.findings[0].reason)


@pytest.mark.parametrize("x", [0.3, [0.3, -2.5], [[0.3, -2.5], [1.0, 2.0]]])
def test_bounds_in_one_array_do_not_cross_beside_what_is_far(x: Any) -> None:
    def clip(x: Any, bounds: Any) -> Any:
        return np.minimum(np.maximum(x, bounds[0]), bounds[1])

    def backward(grad_out: Any, x: Any, bounds: Any) -> Any:
        low, high = x < bounds[0], x > bounds[1]
        of_bounds = np.stack([np.sum(grad_out * low), np.sum(grad_out * high)])
        return grad_out * ~(low | high), of_bounds.astype(np.asarray(bounds).dtype)

    inputs = np.array(x, np.float32), np.array([-1.0, 1.0], np.float32)
    assert xg.audit((clip, backward), *inputs, laws=["far numbers"]).ok


def test_what_oscillates_within_a_step_is_not_told_from_its_derivative() -> None:
    def forward(x: Any) -> Any:
        return special.fresnel(x)[0].astype(x.dtype)

    def backward(grad_out: Any, x: Any) -> Any:
        return grad_out * np.sin(np.pi / 2 * x * x).astype(x.dtype)

    assert xg.audit((forward, backward), X, laws=["far numbers"]).ok


@pytest.mark.needs("torch")
@pytest.mark.usefixtures("torch_compiles")
def test_what_a_compiled_forward_gives_away_is_no_fault() -> None:
    torch: Any = import_module("torch")
    own = torch_class(lambda ctx, grad_out: 2 * grad_out * saved(ctx))(keeps)

    def broken_into_two(x: Any) -> Any:
        y = torch.softmax(x @ x, 0).sin() @ x
        print(end="")  # the graph of the compiler ends here
        return own.apply(y) * y

    report = xg.audit(broken_into_two, torch.tensor(X[:, :3]), laws=["compiled"])
    assert [finding.state for finding in report.laws] == ["kept"]


@pytest.mark.needs("torch")
def test_a_forward_that_hides_steps_from_autodiff_is_not_accused() -> None:
    def hides_one(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x.detach()

    def hides_all(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.new_tensor(x.detach().numpy() ** 2)

    for forward in (hides_one, hides_all):
        report = xg.audit(torch_class(lambda ctx, g: 2 * saved(ctx) * g)(forward), X)
        assert report.ok, str(report)


@pytest.mark.needs("torch")
def test_what_shares_an_infinite_output_or_takes_other_axes_is_not_accused() -> None:
    torch: Any = import_module("torch")
    nn, laws = torch.nn.functional, ["broadcast input", "not finite", "no axes"]

    def states(fn: Callable[..., Any], *inputs: Any) -> list[str]:
        return [finding.state for finding in xg.audit(fn, *inputs, laws=laws).laws]

    kept, not_asked = "kept", "does not apply"
    assert states(lambda x: nn.softmax(x, -1), X) == [kept, kept, kept]
    # A slope of x[0] has no part in what is positive there, and has at -inf.
    assert states(nn.prelu, X, X[0]) == [kept, kept, kept]
    assert states(lambda x: torch.sum(x), X) == [kept, not_asked, not_asked]
    assert states(lambda x: nn.layer_norm(x, (4,)), X) == [kept, kept, not_asked]
    assert states(lambda x: torch.clone(x[0]), X) == [kept, kept, not_asked]


def draws(ctx: Any, x: Any) -> Any:
    kept = x.new_empty(x.shape).uniform_()
    ctx.save_for_backward(kept)
    return x * kept


@pytest.mark.needs("torch")
def test_what_draws_gets_the_same_numbers_for_each_law_and_leaves_the_generator() -> None:
    torch: Any = import_module("torch")
    before = torch.get_rng_state()
    right = xg.audit(torch_class(lambda ctx, g: saved(ctx) * g)(draws), X, laws=["seeded", *QUICK])
    assert right.ok and right.laws[0].state == "kept" and "the same seed" in right.laws[0].reason
    assert torch.equal(torch.get_rng_state(), before)
    wrong = xg.audit(torch_class(lambda ctx, g: g)(draws), X, laws=QUICK)
    assert "derivative" in broken(wrong)


@pytest.mark.needs("torch")
def test_what_no_seed_makes_repeatable_is_told_once() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        return x * (1 + secrets.randbelow(1000))

    function = torch_class(lambda ctx, grad_out: grad_out)(forward)
    report = xg.audit(function, X, laws=["seeded", *QUICK])
    assert broken(report) == {"repeatable"}
    reasons = {each.reason for each in report.laws if each.law == "linear"}
    assert reasons == {"it is not repeatable: its numbers differ each time, whatever the seed"}


@pytest.mark.needs("torch")
def test_a_race_of_one_in_forty_is_found() -> None:
    calls = itertools.count()

    def races(ctx: Any, grad_out: Any) -> Any:
        return 2 * saved(ctx) * grad_out * (1.0 if next(calls) % 40 != 39 else 1.001)

    report = xg.audit(torch_class(races)(keeps), X, laws=["repeatable"])
    assert broken(report) == {"repeatable"} and "call" in report.laws[0].reason


# What is wrong, with the input and the gradient.
OF_SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "rows beyond a block": lambda x, g: g * (torch_of(x).arange(x.shape[0]) < 32)[:, None],
    "a lost tail": lambda x, g: (
        g * (torch_of(x).arange(x.shape[1]) < max(64, x.shape[1] // 64 * 64))
    ),
    "a branch for one length": lambda x, g: g * (0.5 if x.shape[1] == 128 else 1.0),
    "a block of its own": lambda x, g: g * (0.5 if x.shape[0] == 97 else 1.0),
    "many rows": lambda x, g: g * (0.5 if x.shape[0] > 4096 else 1.0),
}


def torch_of(x: Any) -> Any:
    return import_module("torch")


@pytest.mark.needs("torch")
@pytest.mark.parametrize("fault", OF_SIZES)
@pytest.mark.parametrize("is_surrogate", [False, True])
def test_a_fault_of_one_size_is_found_from_a_small_input(fault: str, is_surrogate: bool) -> None:
    spoil = OF_SIZES[fault]

    def backward(ctx: Any, grad_out: Any) -> Any:
        x = saved(ctx)
        return spoil(x, grad_out if is_surrogate else 2 * x * grad_out)

    given = np.linspace(0.5, 2.0, 4 * 64).reshape(4, 64)
    function = torch_class(backward)(keeps)
    report = xg.audit(function, given, laws=["sizes"], surrogate=is_surrogate)
    assert broken(report) == {"sizes"}, str(report)
    assert "in place of" in report.laws[0].reason


@pytest.mark.needs("torch")
def test_rows_that_affect_each_other_and_fixed_lengths_are_not_accused() -> None:
    nn: Any = import_module("torch.nn.functional")
    given = np.linspace(-2.0, 2.0, 4 * 64).reshape(4, 64)
    for fn in (lambda x: nn.softmax(x, 0), lambda x: x.sum(0), lambda x: x.reshape(4, 8, 8)):
        assert broken(xg.audit(fn, given, laws=["sizes"])) == set()


@pytest.mark.needs("torch")
def test_an_order_and_its_inverse_stay_so_at_other_lengths() -> None:
    def forward(ctx: Any, x: Any, order: Any, inverse: Any) -> Any:
        ctx.save_for_backward(inverse)
        return x[order]

    def backward(ctx: Any, grad_out: Any) -> Any:
        return grad_out[saved(ctx)], None, None

    order = np.array([2, 0, 3, 1, 4])
    args = np.linspace(-2.0, 2.0, 15).reshape(5, 3), order, np.argsort(order)
    report = xg.audit(torch_class(backward)(forward), *args, laws=["sizes"])
    assert [law.state for law in report.laws] == ["kept"]


@pytest.mark.needs("torch")
def test_a_neuron_whose_one_output_is_flat_has_a_surrogate() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype), x * x

    def backward(ctx: Any, of_spikes: Any, of_squares: Any) -> Any:
        (x,) = ctx.saved_tensors
        return of_spikes / (1 + x.abs()) ** 2 + 2 * x * of_squares

    report = xg.audit(torch_class(backward)(forward), X, laws=QUICK)
    assert broken(report) == set()
    (derivative,) = (each for each in report.laws if each.law == "derivative")
    assert derivative.reason.startswith("its forward is flat: it is a surrogate, ")


def test_what_is_meant_to_differ_may_be_declared() -> None:
    halved = xg.function(lambda x: x * x, lambda g, x: g * x)
    assert "derivative" in broken(xg.audit(halved, X))
    assert xg.audit(halved, X, surrogate=True).ok


def test_a_surrogate_is_compared_with_what_it_is_meant_to_be_the_derivative_of() -> None:
    def sigmoid(x: Any) -> Any:
        return 1.0 / (1.0 + xg.xp.exp(-x))

    def spike(factor: float) -> Any:
        return xg.function(
            lambda x: xg.xp.heaviside(x),
            lambda g, x: factor * g * sigmoid(x) * sigmoid(-x),
        )

    laws = ["derivative", "edges"]
    report = xg.audit(spike(1.0), X, laws=laws, surrogate=sigmoid)
    assert [finding.state for finding in report.laws] == ["kept", "does not apply"]
    assert broken(xg.audit(spike(2.0), X, laws=laws, surrogate=sigmoid)) == {"derivative"}
    shorter = xg.audit(spike(1.0), X, laws=laws, surrogate=lambda x: x[:1])
    assert "those of what is meant [(1, 4)]" in shorter.findings[0].reason


def test_a_straight_through_gradient_is_held_against_what_is_meant_at_far_numbers_too() -> None:
    def through(factor: float) -> Any:
        return xg.function(lambda x: xg.xp.round(x), lambda g, x: factor * g)

    laws = ["derivative", "far numbers"]
    assert xg.audit(through(1.0), X, laws=laws, surrogate=lambda x: x).ok
    assert "derivative" in broken(xg.audit(through(2.0), X, laws=laws, surrogate=lambda x: x))


@pytest.mark.needs("torch")
def test_numbers_and_memory_that_is_kept_already_count_nothing() -> None:
    import torch

    def backward(ctx: Any, g: Any) -> Any:
        x, flat = ctx.saved_tensors
        return g * (x + flat) * ctx.pair[0], None

    @torch_class(backward)
    def Scaled(ctx: Any, x: Any, pair: Any) -> Any:
        ctx.save_for_backward(x, x.view(-1))
        ctx.pair = pair
        return x * x * pair[0] + pair[1]

    def storages() -> dict[int, int]:
        # A transform of an earlier test leaves some that are wrapped.
        is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and not is_wrapped(x)]
        return {s.data_ptr(): s.nbytes() for s in (x.untyped_storage() for x in tensors)}

    x = torch.tensor([0.5, -1.0, 2.0])
    report = xg.audit(Scaled, x, (2.0, 3.0), laws=["bytes"])
    assert report.laws[0].reason == "24 bytes are kept in float64, 24 once it is converted"
    # The tensors that Python makes of the numbers are the same in each call.
    converted = xg.convert(Scaled)
    assert converted(x.requires_grad_(), (2.0, 3.0)).grad_fn.values[-1].ndim == 0
    before = storages()
    y = converted(x, (2.0, 3.0))
    assert storages().keys() - before.keys() == {y.untyped_storage().data_ptr()}


def test_a_report_is_data_and_names_the_worst_place() -> None:
    report = xg.audit(xg.function(lambda x: x * x, lambda g, x: x * g), X, laws=["derivative"])
    (finding,) = report.findings
    assert "expected" in finding.reason
    assert finding.reason.startswith("x[0][0] = ")
    data = json.loads(report.to_json())
    assert (data["ok"], data["laws"][0]["law"]) == (False, "derivative")
    assert "The gradient is the derivative of the forward." in str(report)


def test_what_does_not_run_is_a_problem_and_no_law_is_asked() -> None:
    def fails(x: Any) -> Any:
        raise ValueError("no binding, with the error:\nthree rows, please\nand more")

    report = xg.audit(fails, X)
    assert (report.ok, report.laws) == (False, ())
    assert report.problem == "ValueError: no binding, with the error: three rows, please"
    assert str(xg.audit(fails, [1.0, 2.0])).endswith("please; no tensor is among its inputs")


def test_misuse_is_told() -> None:
    for laws in (["liner"], "liner"):
        with pytest.raises(RuleTypeError, match="no law 'liner'; did you mean 'linear'"):
            xg.audit("triangular", X, laws=laws)
    with pytest.raises(RuleTypeError, match="no float tensor"):
        xg.audit(lambda x: x, np.arange(3))
    with pytest.raises(RuleTypeError, match="whose derivative is meant, got 'tanh'"):
        xg.audit("triangular", X, surrogate="tanh")
    with pytest.raises(RuleTypeError, match="expected a custom gradient"):
        xg.audit(3.0, X)


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_scalar_of_numpy_stays_a_number(backend: Any) -> None:
    scale = xg.function(lambda x, k: x * k, native=True)
    report = xg.audit(scale, backend.array(np.ones(2, np.float32)), np.float32(2.0), laws=["bytes"])
    assert (report.home, report.findings) == (backend.name, ())
