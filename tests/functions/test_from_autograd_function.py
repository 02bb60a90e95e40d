"""A `torch.autograd.Function` class, unchanged, gives on every backend what it gives on torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad import GradientError, TraceError, vjp
from multigrad.core.functions import captures
from multigrad.engine.functions.importers import from_autograd_function
from multigrad_conformance.under_test import pull

from ..conftest import BACKENDS
from ..harness.ejecting import load
from ..harness.own_library import assert_as_in
from ..harness.torch_class import torch_class
from ..harness.traced import kept_by_torch

torch: Any = pytest.importorskip("torch")

pytestmark = pytest.mark.needs("torch")
Tensor = Any
# No -0.0: frameworks differ in the sign of a zero that a clamp returns (docs/differences.md).
EDGES = [0.0, 2.0, 0.5, -0.5, 1.5, 1e-30, -3.0, np.inf, -np.inf, np.nan]
X = np.array([*EDGES, 0.25, -1.25], np.float32)
G = np.array([1.0, -2.0, 0.5, -0.0, 3.0, -1.0, 2.0, -0.5, 1.5, 0.75, -4.0, 2.5], np.float32)
MATRIX = np.linspace(-2.0, 2.0, 12, dtype=np.float32).reshape(3, 4)
BITS = np.random.default_rng(3).normal(scale=1.5, size=(4, 6)).astype(np.float32)
BITS[0, :3] = 0.0, 0.5, -0.5


def find_class(name: str) -> Any:
    from ..written import autograd_classes

    return getattr(autograd_classes, name)


EXACT: dict[str, Any] = {"rtol": 0, "atol": 0}
CALLS = {
    "ClippedReLU": ([X, 1.0], G),
    "ClippedReLU by an integer": ([X, 1], G),
    "IncorrectClippedReLU": ([X, 1.0], G),
    "ReplaceGrad": ([MATRIX, MATRIX[:1]], MATRIX),
    "ReplaceGrad by a column": ([MATRIX, MATRIX[:, :1]], MATRIX),
    "ReplaceGrad by a vector": ([MATRIX, MATRIX[0]], MATRIX),
    "ClampWithGrad": ([X, -0.5, 0.5], G),
    "ClampWithGrad by integers": ([X, -1, 1], G),
    "ClampThatLetsGradientsBack": ([X, -0.5, 0.5], G),
    "SortedScale": ([X, 2.0], G),
    "SortedScale by a word": ([X, 4.0, "inverse"], G),
    "TwoOutputs": ([MATRIX, MATRIX[:1]], MATRIX),
    "AddBias": ([MATRIX, MATRIX[:, :1]], np.round(MATRIX)),
    "AddBias of two dtypes": ([MATRIX, MATRIX[0].astype(np.float16)], np.round(MATRIX)),
    "ClippedReLU in 16 bits": ([X.astype(np.float16), 1.0], G.astype(np.float16)),
    "RoundStraightThrough": ([X], G),
    "Quantize": ([X, 0.25], G),
    "FakeInt8": ([BITS], BITS),
    "Affine": ([BITS, 0.02, 120], BITS),
    "Wrapping": ([BITS], BITS),
    "Packed4Bit": ([BITS], BITS),
    "Short": ([BITS], BITS),
    "Float8": ([BITS], BITS),
}


@pytest.mark.parametrize("call", CALLS)
def test_forward_and_gradients_are_bit_equal_to_the_class_on_torch(backend: Any, call: str) -> None:
    cls, (args, cotangent) = find_class(call.partition(" ")[0]), CALLS[call]
    of = from_autograd_function(cls)
    assert_as_in("torch", cls.apply, *args, of=of, backend=backend, cotangent=cotangent, **EXACT)


@pytest.mark.parametrize("name", ["SavedOutput", "OnceOnly"])
def test_a_class_with_rounding_in_it_agrees_with_itself_on_torch(backend: Any, name: str) -> None:
    x, cls = np.array([0.25, -1.5, 2.0, 0.0]), find_class(name)
    of = from_autograd_function(cls)
    assert_as_in("torch", cls.apply, x, of=of, backend=backend, rtol=1e-14, atol=1e-16)


def test_the_detach_trick_goes_through_int8(backend: Any) -> None:
    def fake(x: Tensor) -> Tensor:
        q = (x / 0.05).round().clamp(-128, 127).to(torch.int8)
        return x + (q * 0.05 - x).detach()

    assert_as_in("torch", fake, BITS, backend=backend, rtol=1e-6, atol=1e-6)


def test_a_constant_of_more_bits_makes_more_bits_of_few(backend: Any) -> None:
    weights = torch.tensor([1, 2, 4, 8, 16, 300])

    def packed(x: Tensor) -> Tensor:
        return x * ((x > 0).to(torch.uint8) * weights).sum(1, keepdim=True)

    assert_as_in("torch", packed, BITS, backend=backend, **EXACT)


def test_the_shown_tensor_may_hold_integers(backend: Any) -> None:
    replaced = from_autograd_function(find_class("ReplaceGrad"))
    shown = np.arange(6, dtype=np.int32).reshape(2, 3)
    y = backend.numpy(replaced(backend.array(shown), backend.array(np.ones((1, 3), np.float32))))
    assert y.dtype == np.int32
    np.testing.assert_array_equal(y, shown)


def test_a_default_of_forward_is_used(backend: Any) -> None:
    square = from_autograd_function(find_class("NoisySquare")).keyed(0)
    y = square(backend.array(np.array([3.0, -2.0], np.float32)))
    np.testing.assert_array_equal(backend.numpy(y), [9.0, 4.0])


def test_under_a_key_the_draws_are_the_same_everywhere(backend: Any) -> None:
    ones = np.ones(1000, np.float32)
    jammed, noisy = (
        [
            pull(on, from_autograd_function(find_class(name)).keyed(7), given)[1][0]
            for on in (backend, BACKENDS["numpy"])
        ]
        for name, given in (("JammedSquare", (X[:3],)), ("NoisySquare", (ones, 1.0)))
    )
    np.testing.assert_array_equal(*jammed)
    np.testing.assert_allclose(*noisy, atol=4 * np.finfo(np.float32).eps * 8)


@pytest.mark.backends("numpy", "torch", "tensorflow")  # jax draws nothing without a key
def test_without_a_key_the_noise_has_its_mean_and_deviation(backend: Any) -> None:
    noisy = from_autograd_function(find_class("NoisySquare"))
    x = np.zeros(20_000, np.float32)
    first, second = (pull(backend, noisy, (x, 0.5), x)[1][0] for _ in range(2))
    assert not np.array_equal(first, second)
    assert abs(first.mean()) < 5 * 0.5 / np.sqrt(x.size)
    assert abs(first.std() - 0.5) < 0.02


@pytest.mark.backends("numpy", "torch", "tensorflow")  # jax draws nothing without a key
def test_one_forward_has_one_gradient_also_where_its_backward_draws_without_a_key(
    backend: Any,
) -> None:
    noisy, x = from_autograd_function(find_class("NoisySquare")), np.ones(8, np.float32)
    y, pullback = xg.vjp(noisy, backend.array(x))
    first, second = (backend.numpy(pullback(y)[0]) for _ in range(2))
    assert not np.array_equal(first, 2.0 * x)
    np.testing.assert_array_equal(first, second)


def test_a_float_output_marked_as_not_differentiable_gives_no_gradient(backend: Any) -> None:
    function = from_autograd_function(find_class("TwoOutputs"))
    x, w = (backend.array(a) for a in (MATRIX, MATRIX[:1]))
    outputs, pullback = vjp(function, x, w)
    assert outputs[2] == 3
    gradients = pullback((None, backend.array(np.array(1.0, np.float32)), None))
    for gradient in gradients:
        np.testing.assert_array_equal(backend.numpy(gradient), 0.0)


@pytest.mark.backends("jax", "tensorflow")
def test_a_backward_that_changes_its_input_is_refused(backend: Any) -> None:
    with pytest.raises(TraceError, match=r"ChangesItsInput.*in place in backward"):
        pull(backend, from_autograd_function(find_class("ChangesItsInput")), (X,), G)


def test_keywords_bind_as_torch_binds_them(backend: Any) -> None:
    cls = find_class("SortedScale")
    scaled = from_autograd_function(cls)

    def own(x: Any) -> Any:
        return cls.apply(x, 4.0, "inverse")

    def call(x: Any) -> Any:
        return scaled(x, factor=4.0, mode="inverse")

    assert_as_in("torch", own, X, of=call, backend=backend, cotangent=G, **EXACT)


@torch_class(
    torch.autograd.function.once_differentiable(lambda ctx, grad: grad * ctx.saved_tensors[0])
)
def ScaleByNorm(ctx: Any, x: Any) -> Any:
    norm = x.norm()
    ctx.save_for_backward(norm)
    return x * norm


@pytest.mark.backends("torch", "jax", "tensorflow")
def test_a_promise_to_differentiate_once_is_kept(backend: Any) -> None:
    scaled, x = from_autograd_function(ScaleByNorm), backend.array(np.full(100, 2.0, np.float32))

    def slope(x: Any) -> Any:
        return vjp(scaled, x)[1](x)[0]

    np.testing.assert_array_equal(backend.numpy(slope(x)), 40.0)
    with pytest.raises(GradientError, match=r"'ScaleByNorm' promises that nobody differentiates"):
        vjp(slope, x)[1](x)


def test_what_is_kept_for_one_derivative_is_what_the_class_keeps() -> None:
    scaled, x = from_autograd_function(ScaleByNorm), torch.full((100,), 2.0, requires_grad=True)
    assert kept_by_torch(scaled, x) == 4


def test_what_cannot_be_captured_is_the_class_itself_on_torch() -> None:
    branches = from_autograd_function(find_class("BranchesOnValues"))
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = branches(x)
    assert type(y.grad_fn).__name__ == "BranchesOnValuesBackward"
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2.0, 2.0]


def test_too_few_gradients_name_the_class(backend: Any) -> None:
    function = from_autograd_function(find_class("TooFewGradients"))
    with pytest.raises(GradientError, match=r"TooFewGradients.backward returned 1 gradient for 2"):
        pull(backend, function, (X, X), G)


def test_a_gradient_that_no_sum_makes_fit_is_an_error(backend: Any) -> None:
    function = from_autograd_function(find_class("ForgetsToSum"))
    with pytest.raises(Exception, match=r"(?i)shape|size|type"):
        pull(backend, function, (X, X[:5]), G)


def test_a_saved_output_has_the_second_derivative_of_the_class() -> None:
    function = from_autograd_function(find_class("SavedOutput"))
    x = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,))


def test_torch_gradcheck_tells_the_incorrect_class_from_the_correct_one() -> None:
    x = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64, requires_grad=True)
    right, wrong = (
        from_autograd_function(find_class(name)) for name in ("ClippedReLU", "IncorrectClippedReLU")
    )
    with torch.no_grad():
        assert right(x, 1.0).dtype == torch.float64
    with pytest.raises(torch.autograd.gradcheck.__globals__["GradcheckError"]):
        torch.autograd.gradcheck(lambda x: wrong(x, 1.0), (x,))


def test_it_compiles_under_vmap_and_grad_like_a_function_of_our_own() -> None:
    clamp = from_autograd_function(find_class("ClampWithGrad"))

    def loss(x: Any) -> Any:
        return (clamp(x, -0.5, 0.5) * 3).sum()

    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    expected = torch.stack([torch.func.grad(loss)(row) for row in x])
    batched = torch.func.vmap(torch.func.grad(loss))
    compiled = torch.compile(batched, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(batched(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("given", [3, "ClippedReLU", dict])
def test_what_is_no_such_class_is_an_error(given: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a subclass of torch.autograd.Function"):
        from_autograd_function(given)


@pytest.mark.parametrize(
    ("names", "lacks", "own"),
    [
        ("forward", "has no backward; define it", "must implement either the backward"),
        ("backward", "has no forward; define it", "must implement the forward"),
        ("forward backward vjp", "has both a backward and a vjp", "Implementing both"),
    ],
)
def test_a_class_that_torch_does_not_differentiate_is_told_where_it_is_called(
    names: str, lacks: str, own: str
) -> None:
    def double(ctx: Any, x: Any) -> Any:
        return 2 * x

    members = dict.fromkeys(names.split(), staticmethod(double))
    incomplete = from_autograd_function(type("Incomplete", (torch.autograd.Function,), members))
    refusal = f"'Incomplete'.* {lacks}.* runs as written on torch alone"
    with pytest.raises(TraceError, match=refusal):
        incomplete(np.ones(2))
    with pytest.raises((NotImplementedError, RuntimeError), match=own):  # torch's own
        incomplete(torch.ones(2, requires_grad=True)).sum().backward()


def test_a_class_without_a_backward_computes_and_has_the_rest_on_torch() -> None:
    @from_autograd_function
    class Forward(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def jvp(ctx: Any, tangent: Any) -> Any:
            return 5 * tangent

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any) -> Any:
            return 3 * x, 0

    x = torch.ones(4)
    assert Forward(x).tolist() == [2.0] * 4
    assert torch.func.vmap(Forward)(x).tolist() == [3.0] * 4
    assert torch.func.jvp(Forward, (x,), (x,))[1].tolist() == [5.0] * 4


def test_a_decorated_class_is_the_base_of_others_and_has_its_own_names() -> None:
    class Original(torch.autograd.Function):
        """Doubles."""

        factor = 3

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 3 * grad

    Doubled: Any = from_autograd_function(Original)

    class Opposed(Doubled):
        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return -Doubled.backward(ctx, grad)

    assert issubclass(Opposed, Original)
    assert Doubled.factor == 3
    assert (Doubled.__doc__, Doubled.__module__) == ("Doubles.", __name__)
    assert not hasattr(Doubled, "not_there")
    y, pull = vjp(from_autograd_function(Opposed), np.ones(2))
    assert (y.tolist(), pull(np.ones(2))[0].tolist()) == ([2.0, 2.0], [-3.0, -3.0])


def test_its_apply_is_told_to_be_given_as_the_class() -> None:
    with pytest.raises(TypeError, match="give the class itself: ClippedReLU"):
        from_autograd_function(find_class("ClippedReLU").apply)


def test_size_is_a_method_that_equals_no_number_in_torch() -> None:
    @torch_class(lambda ctx, grad: grad)
    def Summed(ctx: Any, x: Any) -> Any:
        return x.sum() if x.size == 1 else x * x.size(0)  # of torch's, always the latter

    x = np.array([2.0], np.float32)
    given = from_autograd_function(Summed)(x)
    assert given.shape == Summed.apply(torch.tensor(x)).shape == (1,)


def test_as_an_attribute_of_a_class_it_gets_no_object() -> None:
    class Model(torch.nn.Module):
        clip = from_autograd_function(find_class("ClippedReLU"))

        def forward(self, x: Any) -> Any:
            return self.clip(x, 1.0)

    x = torch.tensor([-1.0, 0.5, 3.0])
    torch.testing.assert_close(Model()(x), find_class("ClippedReLU").apply(x, 1.0))


def test_a_decorated_class_is_called_as_before() -> None:
    @xg.convert
    @torch_class(lambda ctx, grad_out: grad_out / 2)
    def Halved(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Halved.apply(x).sin()

    def around(x: Tensor) -> Tensor:
        return 3 * Halved.apply(x)

    x = torch.tensor([0.5, 1.0])
    slopes = torch.func.vmap(torch.func.grad(Model()))(x)
    torch.testing.assert_close(slopes, x.cos() / 2)
    _, pull = xg.vjp(xg.convert(around), np.ones(2, np.float32))
    np.testing.assert_array_equal(pull(np.ones(2, np.float32))[0], [1.5, 1.5])


def test_a_class_that_calls_itself_in_backward_is_proven_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proofs: list[str] = []

    def prove(recipe: Any, *args: Any, **kwargs: Any) -> str:
        proofs.append(recipe.name)
        return captures.prove_code(recipe, *args, is_call=False)

    class Bent(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, bend: float) -> Tensor:
            ctx.bend = bend
            return x * x

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor, None]:
            return function.apply(grad_out, ctx.bend) * ctx.bend, None

    monkeypatch.setattr(captures, "prove", prove)
    function, x = xg.convert(Bent), torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(function.apply(x, 0.5).sum(), x)
    assert gradient.tolist() == [0.5] * 3
    assert proofs == ["Bent"]  # it was proven within its own proof, to the end of Python's stack


@pytest.mark.parametrize("how", [{}, {"dtype": torch.int32}])
def test_a_class_that_reads_bits_is_told_how_to_convert(how: Any) -> None:
    @torch_class(lambda ctx, grad: grad)
    def Magnitude(ctx: Any, x: Tensor) -> Tensor:
        bits = x.view(**how) if how else x.view(torch.int32)
        return (bits & 0x7FFFFFFF).view(torch.float32)

    function = from_autograd_function(Magnitude)
    assert function(torch.tensor([-1.0, 2.0])).tolist() == [1.0, 2.0]
    with pytest.raises(TraceError, match=r"reads the bits of one dtype as another's.*\.to\(dtype"):
        function(np.ones(2, np.float32))


def test_called_with_nothing_it_makes_an_instance_as_its_class_does() -> None:
    @torch_class(lambda ctx, grad: grad)
    def Same(ctx: Any, x: Any) -> Any:
        return x

    function: Any = from_autograd_function(Same)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = function()
    assert isinstance(instance, function)
    with pytest.raises(RuntimeError, match="non-static forward method is deprecated"):
        instance(torch.ones(1))


def test_what_is_lowered_or_shown_has_all_gradients_whatever_was_asked_for_at_the_capture() -> None:
    @xg.convert
    @torch_class(lambda ctx, grad_out: 2 * grad_out if ctx.needs_input_grad[0] else None)
    def function(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    function(torch.ones(3))
    assert "mul(2, grad_out)" in str(xg.show(function))
    x = torch.ones(3, requires_grad=True)
    for call in (
        xg.lower(function, "torch").apply,
        load(xg.source(function, "torch", standalone=True)),
    ):
        (gradient,) = torch.autograd.grad(call(x).sum(), x)
        assert gradient.tolist() == [2.0, 2.0, 2.0]


def test_a_class_that_calls_another_is_differentiated_again_in_torch_alone() -> None:
    class Slope(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return 3 * x.round() ** 2

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Tensor:
            return 6 * grad_out * ctx.saved_tensors[0]

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x**3

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Tensor:
            return grad_out * Slope.apply(*ctx.saved_tensors)

        jvp = backward

    function, x = xg.convert(Cube), torch.tensor([1.0, 2.0], requires_grad=True)
    (slope,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    assert torch.autograd.grad(slope.sum(), x)[0].tolist() == [6.0, 12.0]
    of_sum = torch.func.grad(lambda x: function.apply(x).sum())
    assert torch.func.grad(lambda x: of_sum(x).sum())(x.detach()).tolist() == [6.0, 12.0]

    def pushed(x: Tensor) -> Tensor:
        return torch.func.jvp(function, (x,), (torch.ones(2),))[1]

    lowered = xg.lower(function, "torch").apply
    (again,) = torch.autograd.grad(lowered(x).sum(), x, create_graph=True)
    for refused in (
        lambda: torch.func.jacfwd(of_sum)(x.detach()),
        lambda: torch.func.jacrev(pushed)(x.detach()),
        lambda: torch.autograd.grad(again.sum(), x),
    ):
        with pytest.raises(GradientError, match="'Cube' uses 'Slope', with a gradient of its own"):
            refused()


def test_what_backward_changes_on_ctx_the_next_backward_reads() -> None:
    class Counting(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.n = 1
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad_out: Tensor) -> Tensor:
            ctx.n += 1
            return grad_out * ctx.n

    for function in (Counting.apply, xg.convert(Counting)):
        x = torch.ones(2, requires_grad=True)
        y = function(x).sum()
        slopes = [torch.autograd.grad(y, x, retain_graph=True)[0].tolist() for _ in range(2)]
        assert slopes == [[2.0, 2.0], [3.0, 3.0]]
    gradient = xg.vjp(xg.convert(Counting), np.ones(2))[1](np.ones(2))[0]
    np.testing.assert_array_equal(gradient, [2.0, 2.0])
