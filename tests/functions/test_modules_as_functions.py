"""`xg.function` of a module, a layer, an object or a method of one: what it holds is read at each
call, and the gradients of its weights are not lost.
"""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest

import multigrad as xg
from multigrad.errors import RuleTypeError

from ..harness.own_library import assert_as_in
from ..harness.torch_class import torch_class

X = np.array([[0.5, -1.0, 2.0], [1.5, 0.25, -0.75]], np.float32)


def make_torch() -> Any:
    import torch

    @torch_class(lambda ctx, grad: 2 * grad)
    def Round(ctx: Any, x: Any) -> Any:
        return x.round()

    class Quantized(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.5, 0.4, -0.3], [0.2, 0.25, 0.75]]))
            self.register_buffer("shift", torch.tensor([0.1, -0.2]))
            self.slope = 0.25

        def forward(self, x: Any) -> Any:
            return Round.apply(x @ self.weight.T) * self.slope + self.shift

        def encode(self, x: Any) -> Any:
            return torch.tanh(x @ self.weight.T)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(Quantized(), torch.nn.Tanh())
            self.layers[0].register_forward_hook(lambda module, args, output: output + 0.1)
            self.gain = [torch.tensor(3.0)]

        def forward(self, x: Any) -> Any:
            return self.layers(x) * self.gain[0]

    return Net()


def torchs(module: Any) -> np.ndarray[Any, Any]:
    import torch

    return module(torch.from_numpy(X)).detach().numpy()


@pytest.mark.needs("torch")
@pytest.mark.parametrize("native", [None, False])
@pytest.mark.parametrize("is_inside", [False, True])
def test_on_torch_its_parameters_get_their_gradients(native: bool | None, is_inside: bool) -> None:
    import torch

    module, x = make_torch(), torch.from_numpy(X).requires_grad_()
    called = (lambda x: module(x).square()) if is_inside else module
    expected, found = (
        torch.autograd.grad(each(x).square().sum(), [x, *module.parameters()])
        for each in (called, xg.function(called, native=native))
    )
    assert all(float(each.abs().sum()) > 0 for each in expected)
    torch.testing.assert_close(found, expected)


@pytest.mark.needs("torch")
def test_hooks_of_the_module_itself_are_in_its_graph() -> None:
    import torch

    module = torch.nn.Linear(3, 2)
    module.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    module.register_forward_hook(lambda module, args, output: output + 0.5)
    found = np.array(xg.function(module)(X))
    np.testing.assert_allclose(found, torchs(module), rtol=1e-6)
    assert np.abs(found - module.forward(torch.from_numpy(X)).detach().numpy()).max() > 0.1


def step(module: Any) -> None:
    import torch

    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    module(torch.from_numpy(X)).sum().backward()
    optimizer.step()


def load(module: Any) -> None:
    state = {name: 2 * tensor for name, tensor in module.state_dict().items()}
    module.load_state_dict(state, assign=True)


def replace_a_layer(module: Any) -> None:
    import torch

    module.layers[1] = torch.nn.ReLU()


def set_a_number(module: Any) -> None:
    module.layers[0].slope = 0.5


def share(module: Any) -> None:
    module.layers[0].shift = module.layers[0].weight[:, 0].detach()


CHANGES = (step, load, replace_a_layer, set_a_number, share)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_inside", [False, True])
def test_what_a_module_holds_is_read_at_each_call(change: Any, is_inside: bool) -> None:
    module = make_torch()
    called = (lambda x: module(x) * 1.0) if is_inside else module
    function = xg.function(called, native=False)
    before = function(X)
    np.testing.assert_allclose(before, torchs(module), rtol=1e-5)
    change(module)
    after = function(X)
    assert not np.array_equal(before, after)
    np.testing.assert_allclose(after, torchs(module), rtol=1e-5)


@pytest.mark.needs("torch")
def test_a_method_of_a_module_is_a_function_too() -> None:
    module = make_torch().layers[0]
    function = xg.function(module.encode, native=False)
    np.testing.assert_allclose(function(X), torchs(module.encode), rtol=1e-5)
    step(module)
    np.testing.assert_allclose(function(X), torchs(module.encode), rtol=1e-5)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("is_compiled", [False, True])
def test_the_mode_of_a_module_that_code_calls_is_read_at_each_call(is_compiled: bool) -> None:
    import torch

    module = torch.nn.RReLU(0.5, 0.5).eval()
    if is_compiled:  # it is called past its class's own call
        module.compile(backend="eager")
    function = xg.function(lambda x: module(x) * 1.0, native=False)
    x = torch.linspace(-1, 1, 4)
    before = function(x)
    module.lower = 0.25
    np.testing.assert_allclose(function(x), module(x))
    assert not torch.equal(function(x), before)


@pytest.mark.needs("torch")
def test_the_module_is_not_touched_by_a_capture() -> None:
    module = make_torch()
    tensors = [*module.parameters(), *module.buffers()]
    before = [(each, each.clone()) for each in tensors]
    xg.function(module, native=False)(X)
    now = [*module.parameters(), *module.buffers()]
    for own, (held, value) in zip(now, before, strict=True):
        assert own is held
        assert bool((own == value).all())


@pytest.mark.needs("torch")
@pytest.mark.parametrize("kind", ["buffer", "attribute"])
def test_a_module_that_changes_itself_is_refused_elsewhere_and_changes_on_torch(kind: str) -> None:
    import torch

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x: Any) -> Any:
            if self.training and kind == "buffer":
                self.mean.mul_(0.5).add_(x.detach().mean(0))
            elif self.training:
                self.mean = self.mean + x
            return x - self.mean

    module = Counting()
    function = xg.function(module)
    function(torch.from_numpy(X))
    assert float(module.mean.abs().sum()) > 0
    words = r"updates 'mean'.*\.eval\(\)" if kind == "buffer" else "assigns to 'mean'"
    with pytest.raises(xg.errors.TraceError, match=words):
        xg.vjp(function, X)
    if kind == "buffer":
        module.eval()
        np.testing.assert_allclose(xg.vjp(function, X)[0], torchs(module), rtol=1e-6)


@pytest.mark.needs("torch")
def test_a_torch_module_has_its_weights_of_now_and_its_own_gradients(backend: Any) -> None:
    module = make_torch()
    function = xg.function(module, native=False)
    for _ in range(2):
        assert_as_in("torch", module, X, of=function, backend=backend)
        step(module)


@pytest.mark.needs("torch")
def test_torch_compile_reads_the_modules_weights() -> None:
    import torch

    module = make_torch()
    function = torch.compile(xg.function(module), backend="eager")
    x = torch.from_numpy(X)
    torch.testing.assert_close(function(x), module(x))
    step(module)
    torch.testing.assert_close(function(x), module(x))


class Scaled:
    def __init__(self) -> None:
        self.factor = 2.0
        self.row = np.array([1.0, 2.0, 3.0], np.float32)

    def __call__(self, x: Any) -> Any:
        return x * self.factor + self.row

    def double(self, x: Any) -> Any:
        return 2 * self(x)


@pytest.mark.parametrize("method", ["__call__", "double"])
def test_an_object_that_changes_is_captured_anew(method: str) -> None:
    scaled = Scaled()
    called = scaled if method == "__call__" else scaled.double
    function = xg.function(called, native=False)
    np.testing.assert_array_equal(function(X), called(X))
    scaled.factor = 3.0
    np.testing.assert_array_equal(function(X), called(X))
    scaled.row = scaled.row + 1
    np.testing.assert_array_equal(function(X), called(X))
    scaled.row[0] = 7.0
    np.testing.assert_array_equal(function(X), called(X))


def test_no_document_holds_an_object() -> None:
    with pytest.raises(xg.errors.FormatError, match="object"):
        xg.function(Scaled()).to_dict()


@pytest.mark.needs("jax")
@pytest.mark.parametrize("native", [None, False])
def test_an_object_with_jax_arrays_is_differentiated_through(native: bool | None) -> None:
    import jax
    import jax.numpy as jnp

    class Layer:
        def __init__(self, weight: Any) -> None:
            self.weight = weight

        def __call__(self, x: Any) -> Any:
            return jnp.sin(x @ self.weight)

    weight = jnp.asarray(X.T)
    layer = Layer(weight)
    function = xg.function(layer, native=native)

    def loss(weight: Any, called: Any) -> Any:
        layer.weight = weight
        return called(jnp.asarray(X)).sum()

    expected, found = (jax.grad(loss)(weight, called) for called in (layer, function))
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)
    for factor in (1, 2):
        layer.weight = factor * weight
        np.testing.assert_allclose(function(X), layer(jnp.asarray(X)), rtol=1e-5)


@pytest.mark.needs("tensorflow")
def test_a_tf_function_that_a_function_calls_is_no_state() -> None:
    import tensorflow as tf

    compiled = tf.function(lambda x: tf.sin(x) + x)
    compiled(tf.constant(X))
    function = xg.function(lambda x: compiled(x) * 2.0, native=False)
    np.testing.assert_allclose(function(X), 2 * (np.sin(X) + X), rtol=1e-6)


@pytest.mark.needs("torch")
def test_a_copy_of_a_model_has_functions_of_its_own_weights() -> None:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(3, 3)
            self.scale = torch.nn.Parameter(torch.tensor(3.0))
            self.method = xg.function(self.scaled, None)
            self.ruled = xg.function(self.scaled, lambda g, x: 5 * g)
            self.module = xg.function(self.inner, None)
            self.drawn = xg.function(lambda x: x + xg.xp.randn_like(x), None).keyed(3)

        def scaled(self, x: Any) -> Any:
            return x * self.scale

        def forward(self, x: Any) -> Any:
            return self.method(x) + self.module(x) + self.ruled(x) + self.drawn(x)

    model, x = Scaled(), torch.tensor(X)
    model(x)
    other, again = copy.deepcopy(model), copy.deepcopy(Scaled())
    with torch.no_grad():
        for weights in [*other.parameters(), *again.parameters()]:
            weights.zero_()
    for each in (other, again):
        noise = each(x.clone().requires_grad_())
        assert not each.method(x).any() and not each.module(x).any() and not each.ruled(x).any()
        assert noise.requires_grad
    assert (other.drawn.draws.counter.count, again.drawn.draws.counter.count) == (2, 1)
    assert model.method(x).any() and model.module(x).any() and model.ruled(x).any()


@pytest.mark.needs("torch")
def test_a_copied_function_is_captured_anew_where_the_first_one_is() -> None:
    import torch

    def make(factor: float) -> Any:
        return xg.custom_gradient(lambda x: (x * factor, lambda g: g))

    function = make(2.0)
    function(torch.tensor(X))
    for each in (copy.deepcopy(function), copy.deepcopy(make(2.0))):
        for dtype in (torch.float32, torch.float64):
            given = torch.tensor(X, dtype=dtype)
            torch.testing.assert_close(each(given), 2 * given)


@pytest.mark.needs("torch")
def test_a_module_apart_is_a_function_of_its_parameters(backend: Any, tmp_path: Any) -> None:
    import torch

    module = make_torch()
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(torchs_of(module), [*parameters.values()])
    apply, found = xg.convert(module, to=backend.name)
    step(module)  # its own weights are no one else's
    assert {name: tuple(each.shape) for name, each in found.items()} == {
        name: tuple(each.shape) for name, each in parameters.items()
    }
    y, pull = xg.vjp(apply, found, backend.array(X))
    of_parameters, of_x = pull(2.0 * y)
    assert of_x.shape == y.shape[:1] + X.shape[1:]
    for name, own in zip(parameters, gradients, strict=True):
        np.testing.assert_allclose(backend.numpy(of_parameters[name]), own, rtol=1e-4, atol=1e-6)
    xg.save(apply, tmp_path / "apply.json")  # unlike the module, it holds no object
    again = xg.load(tmp_path / "apply.json")(found, backend.array(X))
    np.testing.assert_array_equal(backend.numpy(again), backend.numpy(y))


@pytest.mark.needs("torch")
def test_a_class_given_a_module_inside_of_a_module_apart_gives_its_parameters_gradients(
    backend: Any,
) -> None:
    import torch

    class Tiled(torch.autograd.Function):
        """Computes what a module does by parts, and again in backward: `.grad` is added to."""

        @staticmethod
        def forward(ctx: Any, x: Any, module: Any) -> Any:
            ctx.module = module
            ctx.save_for_backward(x)
            with torch.no_grad():
                return torch.cat([module(part) for part in x.split(1)])

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            x = x.detach().requires_grad_()
            with torch.enable_grad():
                y = torch.cat([ctx.module(part) for part in x.split(1)])
            torch.autograd.backward(y, grad)
            return x.grad, None

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())

        def forward(self, x: Any) -> Any:
            return Tiled.apply(x, self.inner) + x

    block, x = Block(), torch.from_numpy(X).requires_grad_()
    expected = torch.autograd.grad(
        (block.inner(x) + x).square().sum(), [x, *block.inner.parameters()]
    )
    apply, parameters = xg.convert(block, to=backend.name)
    y, pull = xg.vjp(apply, parameters, backend.array(X))
    of_parameters, of_x = pull(2.0 * y)
    for own, other in zip([of_x, *of_parameters.values()], expected, strict=True):
        np.testing.assert_allclose(backend.numpy(own), other, rtol=1e-5, atol=1e-6)


@pytest.mark.needs("torch")
def test_a_parameter_that_a_module_holds_twice_is_given_once() -> None:
    import torch

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(3))
            self.again = self.weight
            self.held = [self.weight]

        def forward(self, x: Any) -> Any:
            return (x @ self.weight) @ self.again.T * self.held[0].sum()

    module = Tied()
    apply, parameters = xg.convert(module, to="numpy")
    assert [*parameters] == ["weight"]
    y, pull = xg.vjp(apply, parameters, X)
    expected = torch.autograd.grad(torchs_of(module), [module.weight])[0]
    np.testing.assert_allclose(pull(2.0 * y)[0]["weight"], expected, rtol=1e-5)


def torchs_of(module: Any) -> Any:
    import torch

    return module(torch.from_numpy(X)).square().sum()


@pytest.mark.needs("torch")
def test_a_module_apart_is_given_all_its_parameters_by_name() -> None:
    apply, parameters = xg.convert(make_torch(), to="numpy")
    with pytest.raises(xg.RuleError, match="wieght'; did you mean"):
        apply({**parameters, "layers.0.wieght": X}, X)
    with pytest.raises(xg.RuleError, match="got no parameter"):
        apply({}, X)
    with pytest.raises(xg.RuleError, match="a dict by name"):
        apply(X)
    with pytest.raises(xg.RuleError, match="for a module"):
        xg.convert(lambda x: x, to="numpy")


@pytest.mark.backends("torch")
def test_what_a_module_has_computed_and_keeps_is_told_of(backend: Any) -> None:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        @functools.cached_property
        def scale(self) -> Any:
            return self.weight * 2

        def forward(self, x: Any) -> Any:
            return x * self.scale

    module, x = Scaled(), torch.ones(3)
    module(x)
    with pytest.raises(TypeError, match=r"a Scaled cannot be copied: .*cached_property is kept"):
        xg.convert(module, to="torch")
    with pytest.raises(TypeError, match="Scaled holds tensors of its own; apply, parameters ="):
        xg.parity(xg.convert(module), x, backends=["torch", "numpy"])
    with pytest.raises(TypeError, match="Scaled holds tensors of its own; apply, parameters ="):
        xg.parity(module, x)
    with pytest.raises(TypeError, match="nobody knows with what Scaled is called: give its inputs"):
        xg.parity(module)
    as_it_is = xg.convert(lambda x: x * 2.0, capture=xg.Capture(native=True))
    with pytest.raises(xg.UnsupportedOp, match="runs as it is, and numpy has no derivative"):
        xg.vjp(as_it_is, X)


@pytest.mark.backends("numpy", "torch", "jax")
@pytest.mark.needs("torch")
def test_a_module_taken_apart_computes_its_cached_properties_at_each_call(backend: Any) -> None:
    import torch

    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.0, 3.0]))

        @functools.cached_property
        def scale(self) -> Any:
            return self.weight * 2

        @functools.cached_property
        def steps(self) -> Any:
            return torch.arange(2.0) + 1

        def forward(self, x: Any) -> Any:
            return x * self.scale + self.steps

    apply, parameters = xg.convert(Scaled(), to=backend.name)
    x = backend.array(np.ones(2, np.float32))
    for factor in (1.0, 10.0):
        y = apply({"weight": parameters["weight"] * factor}, x)
        assert backend.numpy(y).tolist() == [2 * factor + 1, 6 * factor + 2]


@pytest.mark.needs("torch")
def test_an_object_whose_first_call_makes_a_tensor_has_that_from_then_on() -> None:
    import torch

    class Ramp:
        @functools.cached_property
        def steps(self) -> Any:
            return torch.arange(2.0)

        def __call__(self, x: Any) -> Any:
            return x * self.steps

    ramp = Ramp()
    function = xg.convert(ramp)
    assert function(torch.ones(2)).tolist() == [0.0, 1.0]
    ramp.steps += 1
    assert function(torch.ones(2)).tolist() == [1.0, 2.0]


@pytest.mark.needs("torch")
def test_a_module_given_numpy_arrays_is_told_what_to_pass() -> None:
    module = make_torch()
    with pytest.raises(RuleTypeError, match=r"for a Net.*torch\.as_tensor\(x\)"):
        xg.vjp(module, X)
