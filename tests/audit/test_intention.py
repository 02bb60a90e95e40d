"""Gradients that are meant to be no derivative are recognized; wrong ones stay broken.

The classes are written as their papers' code is: GRL (Ganin 2015), LSQ (Esser 2020), VQ-VAE
(van den Oord 2017), XNOR-Net (Rastegari 2016).
"""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import multigrad as xg

from ..harness.hidden import run_python

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.needs("torch")
X = np.array([[0.3, -1.2, 2.2], [0.7, 1.4, -0.6]], np.float32)
LAWS = ["derivative", "edges", "far numbers", "sizes", "second derivative", "linear"]


def named(name: str, forward: Any, backward: Any, **attributes: Any) -> Any:
    body = {"forward": staticmethod(forward), "backward": staticmethod(backward), **attributes}
    return type(name, (torch.autograd.Function,), body)


def keeps_x(change: Any) -> Any:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return change(x)

    return forward


def of_x(change: Any) -> Any:
    return lambda ctx, g: change(g, *ctx.saved_tensors)


def derivative(fn: Any, *inputs: Any) -> Any:
    report = xg.audit(fn, *inputs, laws=LAWS)
    (found,) = (each for each in report.laws if each.law == "derivative")
    # All other laws hold for what is recognized, too.
    assert {each.law for each in report.findings} <= {"derivative"}, str(report)
    return found


def lsq(name: str) -> Any:
    def forward(ctx: Any, x: Any, step: Any) -> Any:
        ctx.save_for_backward(x, step)
        return (x / step).clamp(-8, 7).round() * step

    def backward(ctx: Any, g: Any) -> Any:
        x, step = ctx.saved_tensors
        v = x / step
        low, high = (v < -8).to(x.dtype), (v > 7).to(x.dtype)
        inside = 1 - low - high
        of_step = (low * -8 + high * 7 + inside * (v.round() - v)) * g * 0.15
        return g * inside, of_step.sum().reshape(step.shape)

    return named(name, forward, backward)


@pytest.mark.parametrize("rate", [0.7, 0.3363755443563323])  # of any number of digits
@pytest.mark.parametrize("name", ["GradientReversal", "Layer"])
def test_a_reversal_is_compared_with_its_constant(name: str, rate: float) -> None:
    def forward(ctx: Any, x: Any, rate: float) -> Any:
        ctx.rate = rate
        return x.view_as(x)

    found = derivative(named(name, forward, lambda ctx, g: (-ctx.rate * g, None)), X, rate)
    assert (found.state, f"{-rate:g} times the derivative" in found.reason) == ("kept", True)


def test_a_reversal_of_a_function_needs_a_name_and_one_constant() -> None:
    def sine(name: str, change: Any) -> Any:
        return named(name, keeps_x(lambda x: x.sin()), of_x(change))

    reverse = lambda g, x: -2 * g * x.cos()
    assert derivative(sine("ReversedSine", reverse), X).state == "broken"  # another word
    assert derivative(sine("SineWithReversal", reverse), X).state == "kept"
    uneven = sine("SineWithReversal", lambda g, x: -2 * g * x)
    assert derivative(uneven, X).state == "broken"


@pytest.mark.parametrize("step", [0.1, 0.7])
@pytest.mark.parametrize("name", ["LSQ", "Layer"])
def test_a_quantizer_with_a_learned_step_is_not_accused(name: str, step: float) -> None:
    assert derivative(lsq(name), X, np.array(step, np.float32)).state == "does not apply"


def levels(x: Any, count: int) -> Any:
    return (count * (x + 1) / 2).round() * 2 / count - 1


def of_shares(g: Any, v: Any, s: Any) -> Any:
    size = v.abs().amax(1, keepdim=True)
    shares = v / size
    return 15 / size * (g - (shares.abs() == 1) * shares * (g * shares).sum(1, keepdim=True))


ROWS = [
    # As LSQ and PACT have it, integers as I-BERT does, DoReFa's tanh, and a row over its largest.
    (lambda v, s: v.round().clamp(-8, 7) * s, lambda g, v, s: g * (v.abs() < 7), "the cotangent"),
    (lambda v, s: v.round().clamp(-8, 7), lambda g, v, s: g / s, "x adds up to"),
    (lambda v, s: (15 * v / v.abs().amax(1, keepdim=True)).round() * s, of_shares, "x adds up to"),
    (
        lambda v, s: levels((s * v).tanh(), 15) * s,
        lambda g, v, s: g * s / (s * v).cosh() ** 2,
        "x adds up to",
    ),
    (lambda v, s: v.sign() * s, lambda g, v, s: g * s / (s * v).cosh() ** 2, "inputs cross four"),
    (lambda v, s: v.round().clamp(-8, 7) * s, lambda g, v, s: g * s * (v.abs() < 7), None),
    (lambda v, s: v.round().clamp(-8, 7) * s, lambda g, v, s: 2 * g, None),
    (lambda v, s: v.round().clamp(-8, 7) * s, lambda g, v, s: -g, None),
    (lambda v, s: v.round(), lambda g, v, s: g * s, None),
    (lambda v, s: levels((s * v).tanh(), 15) * s, lambda g, v, s: g / (s * v).cosh() ** 2, None),
]


@pytest.mark.parametrize(("forward", "backward", "said"), ROWS)
@pytest.mark.parametrize("documented", [False, True])
def test_a_quantizer_is_held_to_what_its_forward_rises_by(
    forward: Any, backward: Any, said: str | None, *, documented: bool
) -> None:
    def keeps(ctx: Any, x: Any, scale: Any) -> Any:
        ctx.save_for_backward(x, scale)
        return forward(x / scale, scale)

    def of_both(ctx: Any, g: Any) -> Any:
        x, scale = ctx.saved_tensors
        return backward(g, x / scale, scale), (g * x).sum()

    name, text = ("Layer", "Straight-through.") if documented else ("ScaledQuant", "")
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    quantizer = named(name, keeps, of_both, __doc__=text)
    (found,) = xg.audit(quantizer, x, np.array(0.2, np.float32), laws=["derivative"]).laws
    assert found.state == ("broken" if said is None else "does not apply"), str(found)
    assert (said or "the forward changes by") in found.reason


def test_vector_quantization_whose_codes_lie_close_is_not_accused_but_for_faults() -> None:
    def nearest(ctx: Any, x: Any, codes: Any) -> Any:
        squares = x.square().sum(1, keepdim=True) + codes.square().sum(1)
        places = (squares - 2 * x @ codes.T).argmin(1)
        ctx.save_for_backward(places, codes)
        return codes[places]

    def of_codes(ctx: Any, g: Any) -> Any:
        places, codes = ctx.saved_tensors
        return g, codes.new_zeros(codes.shape).index_add(0, places, g)

    def of_half_the_codes(ctx: Any, g: Any) -> Any:
        of_rows, of_codebook = of_codes(ctx, g)
        return of_rows, of_codebook * (0.5 if g.element_size() == 2 else 1)

    vq = named("Layer", nearest, of_codes)
    draw = np.random.default_rng(2).standard_normal
    # Of many codes, copies with small changes, rounding takes another one.
    square = [draw((4, 6), np.float32) for _ in range(2)]
    assert "straight-through" in derivative(vq, *square).reason
    many, of_16_bits = [draw((n, 8), np.float32) for n in (128, 32)], ["float16", "bfloat16"]
    assert xg.audit(vq, *many, laws=[*of_16_bits, "autocast"]).ok
    wrong = xg.audit(named("Layer", nearest, of_half_the_codes), *many, laws=of_16_bits)
    assert "float16" in {each.law for each in wrong.findings}


def test_what_passes_an_argument_through_and_binary_weights_are_not_accused() -> None:
    vq = named("Layer", lambda ctx, x, q: x + (q - x), lambda ctx, g: (g, None))
    assert "straight-through" in derivative(vq, X, np.round(X)).reason
    few = keeps_x(lambda x: x * (x >= x.amax(-1, keepdim=True)))
    assert (
        "flat in most elements of x,"
        in derivative(named("Layer", few, of_x(lambda g, x: g)), X).reason
    )
    steps = keeps_x(lambda x: x.round())
    assert "flat in x," in derivative(named("Layer", steps, of_x(lambda g, x: g)), X).reason
    xnor = keeps_x(lambda x: x.sign() * x.abs().mean())
    masked = of_x(lambda g, x: g * (x.abs() < 1))
    assert derivative(named("BinarizeWeight", xnor, masked), X).state == "does not apply"
    assert derivative(named("Layer", xnor, masked), X).state == "broken"


def test_a_straight_through_estimator_is_held_to_its_name() -> None:
    def ste(name: str, change: Any) -> Any:
        return named(name, keeps_x(lambda x: x.round()), of_x(change))

    assert derivative(ste("RoundSTE", lambda g, x: g * (x < 1)), X).state == "does not apply"
    assert derivative(ste("Layer", lambda g, x: g), X).state == "does not apply"
    clipped = keeps_x(lambda x: x.clamp(-1, 1).mul(4).round())
    for name, doc, said in (
        ("Layer", "Straight-Through inside", "its docstring says 'Straight-Through'"),
        ("RoundQuantizer", "A round", "its name says 'Quantizer'"),
    ):
        fn = named(name, clipped, of_x(lambda g, x: 4 * g * (x.abs() < 1)), __doc__=doc)
        assert said in derivative(fn, X).reason
    doubled = derivative(ste("StraightThroughRound", lambda g, x: 2 * g), X)
    assert (doubled.state, "not the cotangent" in doubled.reason) == ("broken", True)


def test_what_clips_its_cotangent_keeps_all_laws_but_those_that_it_is_said_to_break(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clip(change: Any) -> Any:
        return named("Clip", keeps_x(lambda x: x.view_as(x)), of_x(change))

    by_norm = clip(lambda g, x: g * (1 / (g.norm() + 1e-6)).clamp(max=1.0))
    laws = ["type", "derivative", "linear", "scale", "ones", "zero", "each output", "sizes"]
    accused = xg.audit(by_norm, X, laws=laws)
    matters = {each.law: each.matters for each in accused.findings}
    assert {"derivative", "linear", "scale", "sizes"} <= matters.keys()
    assert 'SURROGATE = {NAME: "cotangent"}' in matters["linear"]
    assert "SURROGATE = True" in matters["derivative"]
    module: Any = types.ModuleType("code_with_a_clip")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    module.SURROGATE, by_norm.__module__ = {"Clip": "cotangent"}, module.__name__
    assert xg.audit(by_norm, X, laws=laws).ok
    offset = clip(lambda g, x: g.clamp(-1, 1) + 1)
    wrong = xg.audit(offset, X, laws=laws, surrogate="cotangent")
    assert [each.law for each in wrong.findings] == ["zero"]


@pytest.mark.parametrize(
    ("forward", "backward"),
    [
        (lambda x: x * x, lambda g, x: g * x),  # half
        (lambda x: x.sin(), lambda g, x: -g * x.cos()),  # the other sign
        (lambda x: x.exp(), lambda g, x: g),  # that of the identity
        (lambda x: x.clamp(min=-2), lambda g, x: -g),  # the identity at these numbers
    ],
)
@pytest.mark.parametrize("name", ["Layer", "RoundRobin", "FlowThrough"])
def test_a_wrong_derivative_stays_broken(name: str, forward: Any, backward: Any) -> None:
    fn = named(name, keeps_x(forward), of_x(backward), __doc__="In reverse mode; a sign, a round.")
    found = derivative(fn, X)
    assert found.state == "broken"
    assert "SURROGATE = True" in found.matters


@pytest.mark.parametrize(("factor", "state"), [(1.0, "kept"), (2.0, "broken")])
def test_a_clamp_whose_gradient_is_zero_where_it_is_flat_is_held_to_its_derivative(
    factor: float, state: str
) -> None:
    clamp = named(
        "Clip",
        keeps_x(lambda x: factor * x.clamp(0, 1)),
        of_x(lambda g, x: g * ((x >= 0) & (x <= 1))),
    )
    assert derivative(clamp, X).state == state


def test_code_states_what_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    def square(**attributes: Any) -> Any:
        halved = of_x(lambda g, x: g * x)
        return named("Square", keeps_x(lambda x: x * x), halved, **attributes)

    assert derivative(square(SURROGATE=True), X).state == "does not apply"
    for factor, state in ((0.5, "kept"), (3, "broken")):
        stated = square(SURROGATE=lambda x, factor=factor: x * x * factor)
        assert derivative(stated, X).state == state
        for fn in (stated, xg.convert(stated)):
            assert xg.check(fn, X).ok is (state == "kept")
    module: Any = types.ModuleType("code_of_a_user")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    ours = square(__module__=module.__name__)
    for stated, state in ((True, "does not apply"), ({"Square": True}, "does not apply")):
        module.SURROGATE = stated
        assert derivative(ours, X).state == state
    module.SURROGATE = {"Cube": True}
    assert derivative(ours, X).state == "broken"
    steps = keeps_x(lambda x: x.round())
    doubled = of_x(lambda g, x: 2 * g)
    assert "surrogate=f" in derivative(named("Layer", steps, doubled), X).reason
    # No flat forward excuses what is said to be a derivative.
    assert derivative(named("Layer", steps, doubled, SURROGATE=False), X).state == "broken"


@pytest.mark.parametrize("negative", [2, 3, 4, 6])
def test_a_forward_that_is_flat_in_places_excuses_no_gradient(negative: int) -> None:
    x = X * np.where(np.arange(6) < negative, -1, 1).reshape(2, 3).astype(X.dtype) * np.sign(X)
    relu, clip = keeps_x(lambda x: x.clamp(min=0)), keeps_x(lambda x: x.clamp(-0.5, 0.5))
    twice = named("Layer", relu, of_x(lambda g, x: 2 * g))
    reason = xg.audit(twice, np.array([-1.0, 1.0, 2.0], np.float32), laws=["derivative"])
    assert "everywhere" not in str(reason)  # twice where it is positive alone
    faults = (
        (relu, lambda g, x: g * (x < 0)),
        (relu, lambda g, x: g.clone()),
        (clip, lambda g, x: g * (x.abs() > 0.5)),
        (keeps_x(lambda x: torch.where(x > 0.2, x, 0)), lambda g, x: g),
    )
    for forward, backward in faults:
        fn = named("Layer", forward, of_x(backward))
        assert not xg.audit(fn, x, laws=["derivative"]).ok

    def largest(ctx: Any, a: Any, b: Any) -> Any:
        return torch.maximum(a, b)

    both = named("Layer", largest, lambda ctx, g: (g, g))
    assert not xg.audit(both, x, X[::-1].copy(), laws=["derivative"]).ok

    def rises_late(ctx: Any, x: Any) -> Any:  # the first output is flat at these inputs alone
        ctx.save_for_backward(x)
        return (x - 3).clamp(min=0), x**3

    def cubic(ctx: Any, g: Any, gg: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x > 3) + gg * 3 * x * x.detach()

    reason = str(xg.audit(named("Layer", rises_late, cubic), X, laws=["second derivative"]))
    assert "the second derivative is wrong" in reason and "@once_differentiable" in reason


# --- what is printed ------------------------------------------------------------------------------
FAILING = """
import numpy as np
import multigrad as xg
from multigrad.testing import assert_gradient

square = xg.function(lambda x: x * x, lambda grad_out, x: x + grad_out)

def test_square():
    assert_gradient(square, np.array([[1.0, 2.0], [0.3, -0.4]]))
"""


def test_a_failure_under_pytest_takes_at_most_40_lines(tmp_path: Path) -> None:
    (tmp_path / "test_square.py").write_text(FAILING)
    asked = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--log-level=DEBUG")
    said = run_python(*asked, "test_square.py", cwd=tmp_path).stdout
    assert "derivative is broken by inputs as small as these" in said
    assert "from test_square import square" in said
    assert "assert_gradient(\n" not in said  # of our own frame
    assert "multigrad/testing.py" not in said
    assert len(said.splitlines()) <= 40


def test_a_difference_that_happens_to_be_one_of_its_arguments_is_no_reversal() -> None:
    x = torch.linspace(0.5, 2.0, 4)
    report = xg.audit(torch.sub, x, x / 2, laws=["derivative"])
    assert report.ok and not report.laws[0].reason
