"""`multigrad.keras.Activation`: the activation as a Keras 3 layer.

The layer passes the native tensors of Keras's backend to the core's `Activation`. It adds what
Keras needs: a config in which the rule is data, params that are Variables, a state for random draws
where the framework has no generator, and compiled steps that follow when the rule or the backend is
assigned. How the layer holds the core's activation, and which of its methods a call uses, is in
`base.py`.

Three things are called rules here: `layer.rule` is what the user gave; the bound rule is this with
values for its params, as the core's activation has it (None if `use` decides); the rule in force is
the one that acts in a call, with the Variables' numbers of that moment and a key for its draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import keras

from ..core.backend.contract import Backend
from ..core.lowering.checks import check_float, find_lacking
from ..core.lowering.forwards import ActivationName, Forward
from ..core.rules.activation import Activation as AnyActivation
from ..core.rules.activation_function import as_forward
from ..core.rules.registry import resolve, unknown_keyword_error
from ..core.rules.rule import Rule
from ..core.rules.rule_in_force import RuleInForce, bind_addressed
from ..core.support.params import read_params as read_given
from ..core.support.tracebacks import shorten
from ..core.support.trees import Tensor
from ..core.trace.active_rules import KeySource
from ..core.trace.trace import NeedsConcrete
from ..engine.rules.opaque import call_activation
from ..errors import MultigradError, RuleError
from .base import HoldingLayer, naming_options
from .compiled_steps import (
    BACKEND,
    HOST,
    fetch_weights,
    is_inference_trace,
    opaque,
    read_number,
    refuse_xla,
    run_inference,
)
from .config import describe_forward, describe_params, describe_rule, read_both, read_function
from .custom_gradient import infer_outputs
from .params import COUNT_IN_FILE_SUFFIX, LayerParams, common_defaults, unchanged_on_failure

# Keras's own property, as a function: Dynamo (torch 2.13) cannot read one through `super()`.
all_weights: Any = keras.layers.Layer.weights.fget


@keras.saving.register_keras_serializable(package="multigrad")
class Activation(HoldingLayer):
    """An activation whose backward is the rule in force.

    Examples:
        >>> import keras, multigrad.keras
        >>> model = keras.Sequential([
        ...     keras.layers.Input((3,)),
        ...     multigrad.keras.Activation("Heaviside", rule="triangular", params={"width": 2.0}),
        ... ])
        >>> keras.ops.convert_to_numpy(model(np.array([[-1.0, 0.5, 3.0]])))
        array([[0., 1., 1.]], dtype=float32)
        >>> model.layers[0].params["width"] = 0.5  # the next step has it, without a retrace
        >>> keras.models.clone_model(model).layers[0].rule  # the config holds the rule as data
        'triangular'

    `rule`, `params` and `backend` may be assigned at any time; the next step follows, on every
    Keras backend. The numbers among the params are non-trainable Variables:
    `layer.params["width"] = 0.5`, or the callback `Anneal`, changes them without a retrace.
    One that is given as a schedule (`xg.schedule`) follows it: `Anneal()` steps it in `fit`.

    A layer without a rule follows `xg.use` around `fit` or `train_on_batch`. A train step that
    Keras has compiled follows a change on torch and jax; on TensorFlow it raises StaleTraceError
    until `model.make_train_function(force=True)` or `model.compile(...)` makes a new one.

    What is exported has the native form, whatever `backend` says. A SavedModel (from TensorFlow and
    jax) carries the rule, its params as Variables; ONNX, LiteRT and torch's .pt2 hold forward
    alone: no gradient passes the layer in what is loaded.

    A random rule draws new numbers in each step. Under `xg.use(..., key=...)` a compiled step
    repeats the draws with which it was traced.

    Args:
        forward: a name that `xg.activations()` lists, in any case, or a function of one tensor; see
            `xg.activation`. What is saved of a function is its graph, so that a file loads where
            the function is unknown.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside it
            the true derivative acts (zero for the steps), or a Function's own backward. What is
            saved of it is its graph, so that a file loads where the rule is unknown; a rule that
            cannot be captured must be registered to be saved.
        params: values for the rule's params.
        backend: the framework that runs forward and backward: "torch", "jax", "tensorflow" or
            "numpy"; None is Keras's own. Another one is reached by DLPack in eager code and by the
            host's callbacks in compiled code, so with TensorFlow as host not under
            `jit_compile=True`.
        at_zero: for Heaviside and Sign, the value at exactly 0, by default 0.
        threshold: for Ternary, 0.05 by default.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
        BackendNotFound: no such backend, or it is not installed.
        UnsupportedOp: the backend lacks an op of the rule.
    """

    def __init__(
        self,
        forward: ActivationName | Callable[..., Any],
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, object] | None = None,
        backend: str | None = None,
        *,
        at_zero: float | None = None,
        threshold: float | None = None,
        **options: Any,
    ) -> None:
        # It may be a param of the rule.
        explain = partial(unknown_keyword_error, Activation, "Activation", rule)
        with naming_options(options, explain):
            super().__init__(**options)
        try:
            ruled = make_activation(as_forward(forward, at_zero, threshold), rule, params)
        except Exception as error:
            shorten(error)
            raise
        self._params = self._make_params(ruled)
        self._set_held(ruled.activation, backend)

    # --- what may be assigned ---------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "rule":
            # TensorFlow's tracking would skip an assignment of the same name, which may have a
            # new meaning.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def _activation(self) -> AnyActivation:
        """The activation of the core, with the layer's own rule if it has one."""
        return self._held.object

    @property
    def forward_name(self) -> str:
        """The activation's name."""
        return self._activation.forward.name

    @property
    def rule(self) -> str | Rule | Callable[..., Any] | None:
        """The layer's own rule; None if `use` decides. Assign to change it; its params are then
        reset to their defaults.
        """
        return self._activation.rule

    @rule.setter
    def rule(self, rule: str | Rule | Callable[..., Any] | None) -> None:
        self._replace_activation(make_activation(self._activation.forward, rule, None))

    @property
    def params(self) -> LayerParams:
        """The params of the layer's own rule by name, numbers as Variables. Assign a dict to set
        them all.
        """
        return self._params

    @params.setter
    def params(self, params: Mapping[str, Any] | None) -> None:
        ruled = make_activation(self._activation.forward, self.rule, params)
        bound_rule = ruled.activation.own_in_force()
        # only numbers differ: the Variables are set, and nothing is compiled again
        if bound_rule is not None and self._is_same_code(bound_rule):
            fetch_weights(self._traced_models)
            with unchanged_on_failure(self):
                self._params.assign(ruled.given, bound_rule)
        else:
            self._replace_activation(ruled)

    def _replace_activation(self, ruled: RuledActivation) -> None:
        """Hold another activation, with new Variables for its params; compiled steps follow."""
        with self._renewing_steps():
            self._set_held(ruled.activation, self.backend)
            fetch_weights(self._traced_models)
            old_variables = self._params.all_variables().values()
            self._params = self._make_params(ruled)
            # after the new ones exist, so that an error leaves the old ones tracked
            for variable in old_variables:
                self._untrack_variable(variable)

    def _make_params(self, ruled: RuledActivation) -> LayerParams:
        return LayerParams(self, ruled.given, ruled.rule, ruled.activation.own_in_force())

    @contextmanager
    def _renewing_steps(self) -> Iterator[None]:
        with unchanged_on_failure(self), super()._renewing_steps():
            yield

    @property
    def weights(self) -> list[Any]:
        """The layer's weights. Its rule's numbers are state, as a generator's: among `variables`,
        and not among these, so that a list of weights of the same model without a rule fits.
        """
        numbers = list(self._params.all_variables().values())
        weights = all_weights(self)
        if not numbers:
            return weights
        return [weight for weight in weights if not any(weight is number for number in numbers)]

    def _is_same_code(self, other: RuleInForce) -> bool:
        """Return whether a bound rule differs from the layer's only in its Variables' values."""
        in_force = self._activation.own_in_force()
        if in_force is None or in_force.specialization.id != other.specialization.id:
            return False
        values = zip(in_force.specialization.runtime, in_force.values, other.values, strict=True)
        return all(a == b for name, a, b in values if name not in self._params.variables)

    def _check_ops(self, held: AnyActivation, backend: Backend) -> None:
        bound_rule = held.own_in_force()
        if bound_rule is None:
            return
        try:
            graph = bound_rule.graph()
        except (MultigradError, NeedsConcrete):
            return  # it branches on its input, or runs uncaptured
        find_lacking(bound_rule.specialization.subject, backend, graph)

    def call(self, inputs: Tensor) -> Tensor:
        return self._run(inputs)

    def _call_symbolically(self, inputs: Tensor) -> Tensor:
        """Return outputs of the right shape: the inputs, or those of a function without a rule."""
        bound_rule = self._activation.own_in_force()
        if bound_rule is not None:
            check_float(inputs, bound_rule.specialization.rule)
        return inputs if self._keeps_shape() else self._activation.forward.function(inputs)

    def _keeps_shape(self) -> bool:
        activation = self._activation
        # a rule acts only on functions that keep shape and dtype
        return activation.rule is not None or activation.forward.function is None

    def _call_here(self, inputs: Tensor) -> Tensor:
        activation = self._activation
        if is_inference_trace():
            return self._infer(inputs, BACKEND)
        values = self._params.runtime_values()
        if self.seed_generator is not None:
            in_force = self._rule_in_force(values)
            if in_force is not None:
                return activation.apply_as(inputs, in_force)
        elif values:
            return activation.call_with(inputs, values)
        return activation(inputs)

    @opaque
    def _call_elsewhere(self, inputs: Tensor) -> Tensor:
        activation, guest = self._activation, self._held.guest
        assert guest is not None
        if HOST.tensors.is_traced(inputs):
            refuse_xla(self)
        if is_inference_trace():
            return self._infer(inputs, guest)
        in_force = self._rule_in_force(self._params.runtime_values())
        activation.tell_compiler(HOST)
        y = call_activation(activation.forward, in_force, inputs, guest)
        if in_force is not None:
            activation.tell_compiler_drawn(HOST, in_force)
        return y

    def _infer(self, inputs: Tensor, backend: str) -> Tensor:
        forward = self._activation.forward
        return run_inference(lambda x: call_activation(forward, None, x, backend), inputs)

    def _rule_in_force(self, values: tuple[Any, ...]) -> RuleInForce | None:
        """Return the rule that acts now, with these run-time values, if any, and a key to draw from
        where the backend has no generator and `use` gives no key.
        """
        activation = self._activation
        in_force = activation.with_values(values) if values else activation.in_force()
        if in_force is None or in_force.counter is not None or self.seed_generator is None:
            return in_force
        subject = in_force.specialization.subject

        # the layer's generator is state of the compiled step, so each step draws new numbers
        def draw_key() -> Tensor:
            return HOST.draws.fold_in(self._draw_words(subject), 0)

        return in_force.with_draws(KeySource(generator=draw_key))

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the inputs' shape and dtype; of a function without a rule, what it gives.

        Raises:
            GradientError: the dtype is not one that rules compute in.
        """
        if not self._keeps_shape():
            return infer_outputs(self._call_symbolically, (inputs,), {})
        inputs = self._call_symbolically(inputs)
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the output for inputs of this shape."""
        if self._keeps_shape():
            return input_shape
        return self.compute_output_spec(keras.KerasTensor(input_shape, self.compute_dtype)).shape

    def _trackable_children(self, save_type: str = "checkpoint", **options: Any) -> dict[str, Any]:
        """Return the children that TensorFlow checkpoints save, and the rule's numbers."""
        numbers = {f"rule_{name}": each for name, each in self._params.all_variables().items()}
        return {**super()._trackable_children(save_type, **options), **numbers}

    def _describe_held(self) -> dict[str, Any]:
        try:
            rule = describe_rule(self.rule, self._params.given_fixed())
        except RuleError as error:
            raise RuleError(f"layer {self.name!r}: {error}") from None
        params = describe_params(self._params.saved_in_config())
        forward = describe_forward(f"layer {self.name!r}", self._activation.forward)
        return {"forward": forward, "rule": rule, "params": params}

    @classmethod
    def _read_held(cls, layer: str, config: Mapping[str, Any]) -> dict[str, Any]:
        try:
            rule, params = read_both(config["rule"], config["params"])
        except MultigradError as error:
            raise type(error)(f"{layer}: {error}") from error
        forward = config["forward"]
        forward = forward if isinstance(forward, str) else read_function(layer, forward)
        return {"forward": forward, "rule": rule, "params": params}

    def save_own_variables(self, store: Any) -> None:
        self._params.save(store)

    def load_own_variables(self, store: Any) -> None:
        """Load the params by name.

        Raises:
            RuleError: the file was saved with another rule.
        """
        names = list(store.keys())
        if not names:
            # Saved without a rule, or with an object that several layers share: Keras saves it with
            # the first.
            return
        params_in_file = sorted(name for name in names if not name.endswith(COUNT_IN_FILE_SUFFIX))
        if params_in_file != sorted(self._params.variables):
            raise RuleError(
                f"layer {self.name!r} has the params {sorted(self._params.variables)}, the file "
                f"has {sorted(names)}: it was saved with another rule. Assign layer.rule first"
            )
        self._params.load(store)


@keras.saving.register_keras_serializable(package="multigrad")
class ActivationFunction(Activation):
    """The `Activation` that `activation` returns: it computes in the dtype of the layer that holds
    it.

    Examples:
        >>> import keras, multigrad.keras
        >>> act = multigrad.keras.activation("Heaviside", rule="triangular")
        >>> isinstance(act, multigrad.keras.ActivationFunction)
        True
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.autocast = False


def activation(
    forward: ActivationName | Callable[..., Any],
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, object] | None = None,
    backend: str | None = None,
    **options: Any,
) -> ActivationFunction:
    """Return an activation for `Dense(activation=...)` and everything else in Keras that takes one.

    Examples:
        >>> import keras, multigrad.keras
        >>> act = multigrad.keras.activation("Heaviside", rule="triangular")
        >>> layer = keras.layers.Dense(2, activation=act, kernel_initializer="ones")
        >>> keras.ops.convert_to_numpy(layer(np.array([[1.0, 0.5]])))
        array([[1., 1.]], dtype=float32)

    Args, errors: as for `Activation`. What is assigned to it (`layer.activation.rule = ...`) acts
    as there.
    """
    return ActivationFunction(forward, rule, params, backend, **options)


class RuledActivation(NamedTuple):
    """What a layer is made of.

    Attributes:
        activation: the activation of the core.
        rule: its own rule as it is registered now; None if `use` decides.
        given: the params that were given for the rule, without those bound to one of its parts.
    """

    activation: AnyActivation
    rule: Rule | None
    given: dict[str, Any]


def make_activation(
    forward: Forward, rule: Any, params: Mapping[str, Any] | None
) -> RuledActivation:
    """Return the core's activation under a rule with params, in the terms of the whole rule.

    A param on which the parts of a composed rule agree is a param of the whole; one of a single
    part ("noise.sigma") is bound to it.
    """
    values = {name: read_number(value) for name, value in read_given(params).items()}
    if rule is None:
        return RuledActivation(AnyActivation(forward, rule, values), None, values)
    whole_rule = bound = resolve(rule)
    if whole_rule.parts:
        bound, values = bind_addressed(whole_rule, values)
    activation = AnyActivation(
        forward, rule if bound is whole_rule else bound, {**common_defaults(bound), **values}
    )
    return RuledActivation(activation, bound, values)
