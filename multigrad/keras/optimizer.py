"""`multigrad.keras.apply_to_gradients`: an optimizer whose steps see the gradients after a rule.

The optimizer wraps another one, as Keras's `LossScaleOptimizer` does: `apply` is the one method
that the train steps of all three Keras backends call. The state of the steps (rates, counts,
clipping, averages) stays with the inner optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Never

import keras
import numpy as np

from ..core.backend.discovery import backend_of
from ..core.rules.context import normalize_key
from ..core.rules.registry import resolve, unknown_keyword_error
from ..core.rules.rule import Rule
from ..core.rules.rule_application import apply_rule
from ..core.support.params import read_params
from ..core.trace.active_rules import settle
from ..engine.functions.calls.arguments import replace_at
from ..engine.rules.gradients import GradientRule
from ..errors import RuleError, RuleTypeError, RuleValueError
from ..schedule import Schedule
from .compiled_steps import BACKEND, opaque, read_number, read_value
from .config import describe_params, describe_rule, read_both
from .params import RuleParams, common_defaults

Tensor = Any


def apply_to_gradients(
    optimizer: Any,
    rule: str | Rule | Callable[..., Any],
    params: Mapping[str, Any] | None = None,
    *,
    key: Any = None,
    after_reduce: bool = False,
    **others: Never,
) -> Any:
    """Return an optimizer that applies a rule to each gradient before its step, with `tin=None`.

    The rule runs before the optimizer's own clipping, weight decay, averaging and gradient
    accumulation. Applied twice, the rule given last acts first. Given a LossScaleOptimizer, the
    rule sees the unscaled gradients.

    Examples:
        >>> import keras, multigrad.keras
        >>> optimizer = multigrad.keras.apply_to_gradients(
        ...     keras.optimizers.SGD(0.5), "clip_norm", {"max_norm": 1.0}
        ... )
        >>> weight = keras.Variable([0.0, 0.0])
        >>> optimizer.apply([keras.ops.convert_to_tensor([3.0, 4.0])], [weight])
        >>> keras.ops.convert_to_numpy(weight)
        array([-0.3, -0.4], dtype=float32)
        >>> optimizer.params["max_norm"] = 0.5  # between fits, without a retrace

    Args:
        optimizer: a Keras optimizer that has not been built, or the name of one.
        rule: a name, a Rule or a function.
        params: values for the rule's params; numbers become variables of the optimizer.
        key: the key of random rules; drawn like Keras's seeds where there is none. Step s, whose
            n-th gradient is meant, draws from `fold_in(fold_in(key, s), n)`.
        after_reduce: under a strategy of `tf.distribute`, whose replicas step together: whether the
            rule sees the gradients summed over the replicas, those of one device, or each replica's
            own, which are summed after it. A rule that is not linear (a norm, a clipping) is
            another one either way. On jax, and where torch trains, gradients are reduced already.

    Raises:
        RuleError: the rule or a param is unknown, or the optimizer is none (also a TypeError) or is
            built already (also a ValueError).
    """
    if others:
        raise unknown_keyword_error(apply_to_gradients, "apply_to_gradients", rule, others)
    if isinstance(optimizer, str):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        _check_fresh(optimizer)
        inner = apply_to_gradients(
            optimizer.inner_optimizer, rule, params, key=key, after_reduce=after_reduce
        )
        return type(optimizer)(
            inner, optimizer.initial_scale, optimizer.dynamic_growth_steps, name=optimizer.name
        )
    return RuledOptimizer(optimizer, rule, params, key=key, after_reduce=after_reduce)


class _OfInner:
    """An attribute of the inner optimizer; values set before there is one are dropped."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance.inner_optimizer, self.name)

    def __set__(self, instance: Any, value: Any) -> None:
        inner = vars(instance).get("inner_optimizer")
        if inner is not None:
            setattr(inner, self.name, value)


@keras.saving.register_keras_serializable(package="multigrad")
class RuledOptimizer(keras.optimizers.Optimizer):
    """An optimizer that passes the gradients to another one after a rule; see `apply_to_gradients`.

    Gradients of an embedding, which TensorFlow gives as slices, become dense. Under a distribution
    strategy the rule acts on each replica's gradients, as clipping does, unless `after_reduce` is
    given.
    """

    learning_rate: Any = _OfInner()
    iterations: Any = _OfInner()
    weight_decay = _OfInner()
    clipnorm = _OfInner()
    clipvalue = _OfInner()
    global_clipnorm = _OfInner()
    use_ema = _OfInner()
    ema_momentum = _OfInner()
    ema_overwrite_frequency = _OfInner()
    gradient_accumulation_steps = _OfInner()
    _iterations = _OfInner()
    _trainable_variables = _OfInner()
    _trainable_variables_indices = _OfInner()
    _model_variables_moving_average = _OfInner()

    def __init__(
        self,
        inner_optimizer: Any,
        rule: str | Rule | Callable[..., Any],
        params: Mapping[str, Any] | None = None,
        *,
        key: Any = None,
        after_reduce: bool = False,
        loss_scale_factor: float | None = None,
        name: str | None = None,
    ) -> None:
        _check_fresh(inner_optimizer)
        numbers_given = {name: read_number(value) for name, value in read_params(params).items()}
        defaults = {} if rule is None else common_defaults(resolve(rule))
        gradient_rule = GradientRule(rule, {**defaults, **numbers_given})
        super().__init__(learning_rate=0.0, name=name)
        self.inner_optimizer = inner_optimizer
        # The rule sees unscaled gradients, so the scale is divided out here, not by the inner one.
        self.loss_scale_factor = (
            loss_scale_factor
            if loss_scale_factor is not None
            else inner_optimizer.loss_scale_factor
        )
        self.after_reduce = after_reduce
        self._gradient_rule = gradient_rule
        if key is None:
            self._key = None if gradient_rule.draws is False else _draw_key()
        else:
            words = normalize_key(key)
            if not isinstance(words, tuple):
                words = backend_of(words).tensors.to_numpy(words)
            self._key = int(words[0]), int(words[1])
        given_params = gradient_rule.params
        numbers = gradient_rule.numbers
        self._params = RuleParams(
            "the optimizer's rule",
            {name: self._add_number(name, settle(each)) for name, each in numbers.items()},
            {name: value for name, value in given_params.items() if name not in numbers},
            self._add_number,
            {name: value for name, value in given_params.items() if isinstance(value, Schedule)},
            find_rule=gradient_rule.look_up,
        )
        # Last, so that an error before leaves the inner optimizer unchanged.
        self._reduces = after_reduce and take_over_reduction(inner_optimizer)
        inner_optimizer.loss_scale_factor = None

    def _add_number(self, name: str, number: float, dtype: str | None = None) -> Any:
        initializer: Any = keras.initializers.Constant(number)
        return self.add_variable(
            (), initializer, dtype, aggregation="only_first_replica", name=name
        )

    @property
    def rule(self) -> str | Rule | Callable[..., Any]:
        """The rule as it was given."""
        return self._gradient_rule.rule

    @property
    def params(self) -> RuleParams:
        """The rule's params: variables, which `params[name] = 0.5` sets, and what is fixed."""
        return self._params

    @property
    def variables(self) -> list[Any]:
        """The rule's numbers, how far their schedules are, then the inner optimizer's variables."""
        # Without the rate and count that Keras makes for any optimizer: they are the inner one's.
        return [*self._params.all_variables().values(), *self.inner_optimizer.variables]

    def build(self, variables: Sequence[Any]) -> None:
        self.inner_optimizer.build(variables)
        self.built = True

    def apply(self, grads: Sequence[Tensor], trainable_variables: Any = None) -> None:
        """Step with the gradients after the rule."""
        grads = list(grads)
        if trainable_variables is None:
            variables = self._trainable_variables
        else:
            variables = trainable_variables = list(trainable_variables)
            if grads and not self.built:
                # Not within a scope of our name: a state tree has the inner optimizer's variables
                # by path, and the paths must be those that Keras's trainers give by `build`.
                self.build(variables)
        if len(grads) == len(variables):  # else the inner optimizer says what is wrong
            grads = self._transform(grads, variables)
        self.inner_optimizer.apply(grads, trainable_variables)

    def _transform(self, grads: list[Tensor], variables: Sequence[Any]) -> list[Tensor]:
        places = [
            i
            for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
            # A value that overwrites a variable (float8 scales) is no gradient.
            if grad is not None and not self._overwrite_variable_with_gradient(variable)
        ]
        dense = [_as_dense(grads[i], variables[i], self.loss_scale_factor) for i in places]
        if self._reduces and dense:
            import tensorflow as tf

            context = tf.distribute.get_replica_context()
            dense = dense if context is None else context.all_reduce("SUM", dense)
        return replace_at(grads, places, self._apply_rule(dense))

    @opaque
    def _apply_rule(self, grads: list[Tensor]) -> list[Tensor]:
        if not grads:
            return grads
        numbers = {name: read_value(_as_tensor(v)) for name, v in self._params.variables.items()}
        count = None if self._key is None else _as_tensor(self._iterations)
        in_force = self._gradient_rule.at_step(numbers, self._key, count)
        return [apply_rule(in_force, None, grad, None) for grad in grads]

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        self.inner_optimizer.finalize_variable_values(var_list)

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        self.inner_optimizer.exclude_from_weight_decay(var_list, var_names)

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Set all variables, the rule's numbers first; or the inner optimizer's alone, from a list
        that was read of it without a rule; or all but how far schedules are.

        Raises:
            RuleValueError: there are more or fewer, or one has another shape; nothing is set.
        """
        numbers = list(self._params.all_variables().values())
        inner = self.inner_optimizer.variables
        count = len(weights) - len(inner)
        if count in (0, len(self._params.variables)):
            numbers = numbers[:count]
        variables = [*numbers, *inner]
        shapes = [tuple(np.shape(weight)) for weight in weights]
        if shapes != [tuple(variable.shape) for variable in variables]:
            raise RuleValueError(
                f"optimizer {self.name!r} has variables of the shapes "
                f"{[tuple(variable.shape) for variable in variables]}, got {shapes}; an optimizer "
                "has all of its variables once it is built for a model's"
            )
        # First, as it refuses to be set before it is built.
        self.inner_optimizer.set_weights(weights[len(numbers) :])
        for variable, weight in zip(numbers, weights, strict=False):
            variable.assign(weight)

    def save_own_variables(self, store: Any) -> None:
        """Store the rule's numbers; Keras stores the inner optimizer, an attribute, by itself."""
        self._params.save(store)

    def load_own_variables(self, store: Any) -> None:
        self._params.load(store)

    def get_config(self) -> dict[str, Any]:
        """Return the optimizer as data, with the rule's numbers as they are now."""
        self._params.catch_up()
        numbers = {name: read_number(variable) for name, variable in self._params.variables.items()}
        numbers.update(self._params.schedules)
        return {
            "name": self.name,
            "inner_optimizer": keras.saving.serialize_keras_object(self.inner_optimizer),
            "rule": describe_rule(self.rule, self._params.fixed),
            "params": describe_params({**self._params.fixed, **numbers}),
            "key": None if self._key is None else list(self._key),
            "loss_scale_factor": self.loss_scale_factor,
            **({"after_reduce": True} if self.after_reduce else {}),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> RuledOptimizer:
        """Return the optimizer that a config describes."""
        inner = keras.saving.deserialize_keras_object(
            config["inner_optimizer"], custom_objects=custom_objects
        )
        rule, params = read_both(config["rule"], config["params"])
        key = None if config["key"] is None else tuple(config["key"])
        arguments = {"inner_optimizer": inner, "rule": rule, "params": params, "key": key}
        return cls(**{**config, **arguments})


def _check_fresh(optimizer: Any) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise RuleTypeError(
            f"apply_to_gradients takes a Keras optimizer, got {type(optimizer).__name__} "
            f"{optimizer!r:.60}; write apply_to_gradients(keras.optimizers.SGD(0.01), 'clip_norm')"
        )
    if optimizer.built:
        raise RuleValueError(
            f"optimizer {optimizer.name!r} is built already, for the variables of a model; call "
            "apply_to_gradients on a new one: type(optimizer).from_config(optimizer.get_config())"
        )


def _as_tensor(variable: Any) -> Tensor:
    # `convert_to_tensor` would leave it a variable on TensorFlow
    return keras.ops.cast(variable, variable.dtype)


def _draw_key() -> tuple[int, int]:
    # drawn as Keras draws seeds, so that `set_random_seed` repeats it
    words = np.asarray(keras.ops.convert_to_numpy(keras.random.SeedGenerator().state))
    return 0, int(words[0])


def _as_dense(grad: Tensor, variable: Any, scale: float | None) -> Tensor:
    if type(grad).__name__ == "IndexedSlices":
        import tensorflow as tf

        # not convert_to_tensor, which warns about memory that is needed here anyway
        grad = tf.math.unsorted_segment_sum(grad.values, grad.indices, variable.shape[0])
    return grad if scale is None else grad / scale


# A Keras optimizer sums the replicas' gradients in its step. On jax and torch they come reduced, by
# the compiler and by the user's training code.
SUM = "_all_reduce_sum_gradients"  # the method of Keras's optimizers on TensorFlow (3.15)


def take_over_reduction(optimizer: Any) -> bool:
    """Stop an optimizer, and those within, from summing over replicas; return whether it would."""
    if BACKEND != "tensorflow":
        return False
    wrappers = []
    while hasattr(optimizer, "inner_optimizer"):
        wrappers.append(optimizer)
        optimizer = optimizer.inner_optimizer
    if not hasattr(optimizer, SUM):
        raise RuleError(
            f"after_reduce=True is not known to work with {type(optimizer).__name__} of this Keras"
        )
    for each in wrappers:
        each._reduces = False
    setattr(optimizer, SUM, pass_on)
    return True


def pass_on(grads_and_vars: Any) -> Any:
    return grads_and_vars
