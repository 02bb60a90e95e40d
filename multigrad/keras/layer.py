"""`multigrad.keras.Activation`: the activation as a Keras 3 layer.

The layer hands the native tensors of Keras's backend to the core's `Activation`. What it adds is
Keras's: a config in which the rule is data, and a state for random draws where the framework has no
generator.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import keras

from ..activation import Activation as AnyActivation
from ..errors import RuleError
from ..lowering.backend import backend_of
from ..lowering.entries import find_entry
from ..rule import Rule, Spec
from .config import describe_params, describe_rule, read_params, read_rule
from .tracing import BACKEND, in_symbolic_scope, is_inference_trace, run_forward, run_inference

Tensor = Any


@keras.saving.register_keras_serializable(package="multigrad")
class Activation(keras.layers.Layer):
    """An activation whose backward is the rule in force, on Keras's own backend.

    Example:
        >>> model = keras.Sequential([
        ...     keras.layers.Dense(64),
        ...     multigrad.keras.Activation("Heaviside", rule="triangular", params={"width": 2.0}),
        ...     keras.layers.Dense(10),
        ... ])

    A layer without a rule follows `xg.use` around `fit` or `train_on_batch`. A train step that
    Keras has compiled follows a change on torch and jax; on TensorFlow it raises StaleTraceError
    until `model.make_train_function(force=True)` or `model.compile(...)` makes a new one.

    A random rule draws new numbers in each step. Under `xg.use(..., key=...)` a compiled step
    repeats the draws with which it was traced.

    Args:
        forward: Linear, ReLU, ReLU6, LeakyReLU, ELU, Tanh, Logistic, SiLU, GELU, Softplus or
            Heaviside, in any case.
        rule: a name, a Rule or a function; wins over `use`. None: `use` decides, and outside of it
            the true derivative acts (zero for Heaviside). To be saved, the rule or its parts must
            be registered.
        params: values for the rule's params.
        **options: Keras's own, such as `name` and `dtype`.

    Raises:
        RuleError: an unknown activation (also a ValueError), rule or param (also a TypeError).
    """

    def __init__(
        self,
        forward: str,
        rule: str | Rule | Callable[..., Any] | None = None,
        params: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.supports_masking = True
        self._activation = AnyActivation(forward, rule, params)
        if BACKEND == "jax":
            # jax has no generator to draw from; as in Dropout, the model's state holds one.
            self.seed_generator = keras.random.SeedGenerator()

    @property
    def forward_name(self) -> str:
        """The activation's name."""
        return self._activation.forward.name

    @property
    def rule(self) -> str | Rule | Callable[..., Any] | None:
        """The own rule, which is fixed; None where `use` decides."""
        return self._activation.rule

    @rule.setter
    def rule(self, rule: Any) -> None:
        raise AttributeError(self._explain_fixed("rule"))

    @property
    def params(self) -> Mapping[str, Any]:
        """The own rule's params, which are fixed."""
        return MappingProxyType(self._activation.params)

    @params.setter
    def params(self, params: Any) -> None:
        raise AttributeError(self._explain_fixed("params"))

    def _explain_fixed(self, attribute: str) -> str:
        return (
            f"{self.name}.{attribute} is fixed, because a compiled train step would not see it "
            f"change. Make a new layer, multigrad.keras.Activation({self.forward_name!r}, "
            f"rule=..., params=...), and build the model with it; or make the layer without a rule "
            f"and train inside `with xg.use(...)`"
        )

    def call(self, inputs: Tensor) -> Tensor:
        """Return the activation of the inputs."""
        if in_symbolic_scope():
            return run_forward(self._activation.forward, inputs)
        if BACKEND == "tensorflow" and is_inference_trace():
            return run_inference(self._activation.forward, inputs)
        if BACKEND == "jax":
            return self._call_seeded(inputs)
        return self._activation(inputs)

    def _call_seeded(self, x: Tensor) -> Tensor:
        """Call the activation; a rule without a key draws from the layer's own generator."""
        application = self._activation.in_force()
        if application is None or application.counter is not None:
            return self._activation(x)
        backend = backend_of(x)
        if backend.guard is not None:
            backend.guard(x, self._activation)
        entry = find_entry(application.spec.family, backend, self._activation.forward)
        return entry(x, SeededApplication(application.spec, self.seed_generator))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the inputs' shape."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Return the layer as data.

        Raises:
            RuleError: the rule is a function that no name stands for; register it.
        """
        try:
            rule = describe_rule(self.rule)
        except RuleError as error:
            raise RuleError(f"layer {self.name!r}: {error}") from None
        own = {"forward": self.forward_name, "rule": rule, "params": describe_params(self.params)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Activation:
        """Return the layer that a config describes.

        Raises:
            RuleError: no rule of that name is registered here; register it before loading.
        """
        own = {"rule": read_rule(config["rule"]), "params": read_params(config["params"])}
        return cls(**{**config, **own})


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
        return self.generator.next().astype("uint32")
