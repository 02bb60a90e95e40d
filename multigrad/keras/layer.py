"""`multigrad.keras.Activation`: the activation as a Keras 3 layer.

The layer hands the native tensors of Keras's backend to the core's `Activation`. What it adds is Keras's: a config in
which the rule is data, params that are Variables, a state for random draws where the framework has no generator, and
compiled steps that follow when the rule or the backend is assigned.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import keras

from ..activation import Activation as AnyActivation
from ..context import Application
from ..errors import MultigradError, RuleError
from ..lowering.backend import load_backend
from ..lowering.input_checks import check_float, find_lacking
from ..rule import Rule, Spec
from .config import describe_params, describe_rule, read_backend, read_both
from .params import Params, spread_defaults
from .structure import fetch_state, keeping_weights, note_models, renew_steps
from .tracing import (
    BACKEND,
    HOST,
    in_symbolic_scope,
    is_exporting,
    is_inference_trace,
    refuse_scan,
    refuse_xla,
    run_forward,
    run_inference,
)

Tensor = Any


@keras.saving.register_keras_serializable(package="multigrad")
class Activation(keras.layers.Layer):
    """An activation whose backward is the rule in force.

    Example:
        >>> model = keras.Sequential([
        ...     keras.layers.Dense(64),
        ...     multigrad.keras.Activation("Heaviside", rule="triangular", params={"width": 2.0}),
        ...     keras.layers.Dense(10),
        ... ])

    `rule`, `params` and `backend` may be assigned at any time; the next step follows, on every Keras backend. The numbers
    among the params are non-trainable Variables: `layer.params["width"].assign(0.5)`, or the callback `Anneal`, changes
    them without a retrace.

    A layer without a rule follows `xg.use` around `fit` or `train_on_batch`. A train step that Keras has compiled follows
    a change on torch and jax; on TensorFlow it raises StaleTraceError until
    `model.make_train_function(force=True)` or `model.compile(...)` makes a new one.

    What is exported has the native form, whatever `backend` says. A SavedModel (from TensorFlow and jax) carries the rule, its
    params as Variables; ONNX, LiteRT and torch's .pt2 hold forward alone: no gradient passes the layer in what is loaded.

    A random rule draws new numbers in each step. Under `xg.use(..., key=...)` a compiled step repeats the draws with which
    it was traced.

    Args:
        forward: Linear, ReLU, ReLU6, LeakyReLU, ELU, Tanh, Logistic, SiLU, GELU, Softplus or Heaviside, in
            any case.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside of it the true
            derivative acts (zero for Heaviside). What is saved of it is its graph, so that a file loads where the rule is
            unknown; a rule that cannot be captured must be registered to be saved.
        params: values for the rule's params.
        backend: the framework that runs forward and backward: "torch", "jax", "tensorflow" or "numpy"; None is Keras's
            own. Another one is reached by DLPack in eager code and by the host's callbacks in compiled code, so with
            TensorFlow as host not under `jit_compile=True`.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
        BackendNotFound: no such backend, or it is not installed.
        UnsupportedOp: the backend lacks an op of the rule.
    """

    def __init__(
        self,
        forward: str,
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, Any] | None = None,
        backend: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.supports_masking = True
        self._traced_for: weakref.WeakSet[Any] = weakref.WeakSet()
        self._activation = make_activation(forward, rule, params)
        self._params = Params(self, self._activation, params or {})
        self._backend: str | None = None
        self._backend = self._check_backend(backend, self._activation)
        self._note_jit()
        self.seed_generator = None
        if BACKEND == "jax":
            # jax has no generator to draw from; as in Dropout, the model's state holds one.
            self.seed_generator = keras.random.SeedGenerator()

    # --- what may be assigned --------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "rule":
            # TensorFlow's tracking would leave out an assignment of the same name, which may have another meaning now.
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @property
    def forward_name(self) -> str:
        """The activation's name."""
        return self._activation.forward.name

    @property
    def rule(self) -> str | Rule | Callable[..., Any] | None:
        """The own rule; None where `use` decides. Assign to change it; its params are then its defaults."""
        return self._activation.rule

    @rule.setter
    def rule(self, rule: str | Rule | Callable[..., Any] | None) -> None:
        activation = make_activation(self.forward_name, rule, None)
        self._check_backend(self._backend, activation)
        self._replace(activation, {})

    @property
    def params(self) -> Params:
        """The own rule's params by name, its numbers as Variables. Assign a dict to set them all."""
        return self._params

    @params.setter
    def params(self, params: Mapping[str, Any] | None) -> None:
        activation = make_activation(self.forward_name, self.rule, params)
        application = activation.application()
        if application is not None and self._is_same_code(application.spec):
            fetch_state(self._traced_for)
            self._params.assign(params or {}, application.spec)
        else:
            self._replace(activation, params or {})

    @property
    def backend(self) -> str | None:
        """The framework that runs this layer; None is Keras's own. Assign to change it."""
        return self._backend

    @backend.setter
    def backend(self, backend: str | None) -> None:
        backend = self._check_backend(backend, self._activation)
        if backend == self._backend:
            return
        self._backend = backend
        self._note_jit()
        now = self._activation
        self._supersede(make_activation(now.forward.name, now.rule, now.params))
        renew_steps(self._traced_for)

    def _replace(self, activation: AnyActivation, params: Mapping[str, Any]) -> None:
        """Take another rule, or params that are part of its code."""
        fetch_state(self._traced_for)
        for variable in self._params.variables.values():
            self._untrack_variable(variable)
        self._supersede(activation)
        self._params = Params(self, activation, params)
        renew_steps(self._traced_for)

    def _supersede(self, activation: AnyActivation) -> None:
        self._activation.superseded = True
        self._activation = activation

    def _is_same_code(self, then: Spec) -> bool:
        """Return whether a rule differs from the own one in its Variables' values only."""
        application = self._activation.application()
        if application is None or application.spec.family.id != then.family.id:
            return False
        now = application.spec
        pairs = zip(now.family.runtime, now.values, then.values, strict=True)
        return all(a == b for name, a, b in pairs if name not in self._params.variables)

    def _check_backend(self, name: str | None, activation: AnyActivation) -> str | None:
        """Return the name of a backend that can run an activation under its own rule."""
        backend = HOST if name is None else load_backend(name)
        application = activation.application()
        if application is not None:
            rule = application.spec.family.rule
            try:
                graph = application.spec.graph()
            except MultigradError:
                return name  # it looks at its input, or runs as it is
            find_lacking(f"rule {rule.name!r}", backend, graph)
        return name

    def _note_jit(self) -> None:
        """Tell Keras whether XLA may compile the layer: `jit_compile="auto"` asks."""
        self.supports_jit = BACKEND != "tensorflow" or self._guest() is None

    def _guest(self) -> str | None:
        """Return the framework to run in, where it is not Keras's own."""
        return None if self._backend in (None, BACKEND) else self._backend

    # --- calls -----------------------------------------------------------------------------------------

    @keeping_weights
    def call(self, inputs: Tensor) -> Tensor:
        """Return the activation of the inputs."""
        if in_symbolic_scope():
            return self._call_symbolically(inputs)
        note_models(self._traced_for, inputs)
        guest = self._guest()
        if guest is not None and not is_exporting(inputs):
            return call_elsewhere(self, inputs, guest)
        if BACKEND == "tensorflow" and is_inference_trace():
            return run_inference(lambda x: run_forward(self._activation.forward, x), inputs)
        values = self._params.runtime()
        if self.seed_generator is not None:
            application = self._in_force(values)
            if application is not None:
                return self._activation.apply_as(inputs, application)
        elif values:
            return self._activation.call_with(inputs, values)
        return self._activation(inputs)

    def _call_symbolically(self, x: Tensor) -> Tensor:
        """Return what has the output's shape and dtype; no gradient is taken."""
        application = self._activation.application()
        if application is not None:
            check_float(x, application.spec.family.rule)
        if self._guest() is not None:
            refuse_xla(self)
        return run_forward(self._activation.forward, x)

    def _in_force(self, values: tuple[Any, ...]) -> Any:
        """Return the rule that acts; one without a key draws from the layer's own generator, if it has one."""
        activation = self._activation
        application = activation.with_values(values) if values else activation.in_force()
        if application is None or application.counter is not None or self.seed_generator is None:
            return application
        return SeededApplication(application.spec, self.seed_generator)

    def compute_output_spec(self, inputs: Any) -> Any:
        """Return the inputs' shape and dtype.

        Raises:
            GradientError: the dtype is not one that rules compute in.
        """
        application = self._activation.application()
        if application is not None:
            check_float(inputs, application.spec.family.rule)
        return keras.KerasTensor(inputs.shape, dtype=inputs.dtype)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the inputs' shape."""
        return input_shape

    # --- saving ----------------------------------------------------------------------------------------

    def get_config(self) -> dict[str, Any]:
        """Return the layer as data.

        Raises:
            RuleError: the rule cannot be captured, and no name stands for it; register it.
        """
        try:
            rule = describe_rule(self.rule, self._params.settled())
        except RuleError as error:
            raise RuleError(f"layer {self.name!r}: {error}") from None
        params = describe_params(self._params.to_save())
        own = {"forward": self.forward_name, "rule": rule, "params": params}
        return {**super().get_config(), **own, "backend": self._backend}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Activation:
        """Return the layer that a config describes.

        Raises:
            RuleError: its rule was saved by name, and no rule of that name is registered here.
            FormatError: its rule is malformed.

        A backend that is not installed here is left out, with a warning.
        """
        try:
            rule, params = read_both(config["rule"], config["params"])
        except MultigradError as error:
            raise type(error)(f"layer {config.get('name')!r}: {error}") from error
        backend = read_backend(str(config.get("name")), config.get("backend"))
        return cls(**{**config, "rule": rule, "params": params, "backend": backend})

    def save_own_variables(self, store: Any) -> None:
        """Save the params by name."""
        for name, variable in self._params.variables.items():
            store[name] = keras.ops.convert_to_numpy(variable.value)

    def load_own_variables(self, store: Any) -> None:
        """Load the params by name.

        Raises:
            RuleError: the file was saved with another rule.
        """
        names = list(store.keys())
        if not names:
            return  # saved without a rule, or with an object that stands in several layers: Keras saves it with the first
        if sorted(names) != sorted(self._params.variables):
            raise RuleError(
                f"layer {self.name!r} has the params {sorted(self._params.variables)}, the file has {sorted(names)}: "
                f"it was saved with another rule. Assign layer.rule first"
            )
        for name in names:
            self._params.variables[name].assign(store[name])


@keras.saving.register_keras_serializable(package="multigrad")
class ActivationFunction(Activation):
    """What `activation` returns: an `Activation` that takes its tensor in the dtype of the layer that holds it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.autocast = False


def activation(
    forward: str,
    rule: str | Rule | Callable[..., Any] | None = None,
    params: Mapping[str, Any] | None = None,
    backend: str | None = None,
    **options: Any,
) -> ActivationFunction:
    """Return an activation for `Dense(activation=...)` and everything else in Keras that takes one.

    Example:
        >>> keras.layers.Dense(64, activation=multigrad.keras.activation("Heaviside", rule="triangular"))

    Args, errors: as for `Activation`. What is assigned to it (`layer.activation.rule = ...`) acts as there.
    """
    return ActivationFunction(forward, rule, params, backend, **options)


def make_activation(forward: str, rule: Any, params: Mapping[str, Any] | None) -> AnyActivation:
    """Return the core's activation; what the parts of a composed rule agree on is a param of the whole."""
    if rule is None:
        return AnyActivation(forward, rule, params)
    return AnyActivation(forward, rule, {**spread_defaults(rule), **(params or {})})


def run_elsewhere(layer: Activation, x: Tensor, guest: str) -> Tensor:
    """Return a layer's activation of x, run in another framework."""
    from .. import bridging

    if HOST.is_traced(x):
        refuse_xla(layer)
    forward = layer._activation.forward
    if BACKEND == "tensorflow" and is_inference_trace():
        return run_inference(lambda x: bridging.call_activation(forward, None, x, guest), x)
    application: Application | None = layer._in_force(layer._params.runtime())
    layer._activation.tell(HOST)
    y = bridging.call_activation(forward, application, x, guest)
    if application is not None:
        layer._activation.tell_drawn(HOST, application)
    return y


call_elsewhere = run_elsewhere if HOST.opaque is None else HOST.opaque(run_elsewhere)


class SeededApplication:
    """A rule in force whose key comes from a Keras generator, asked only if the rule draws."""

    __slots__ = ("counter", "generator", "spec")

    def __init__(self, spec: Spec, generator: Any) -> None:
        self.spec = spec
        self.generator = generator
        self.counter = itertools.count()

    @property
    def key(self) -> Tensor:
        """The generator's next state: two words, known at run time."""
        refuse_scan(f"rule {self.spec.family.rule.name!r}")
        return self.generator.next().astype("uint32")
