"""`multigrad.keras.Anneal`: a callback that changes a rule's number while a model trains, without a
retrace.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any, Literal

import keras

from ..errors import RuleError, RuleTypeError, RuleValueError, suggest
from .layer import Activation
from .params import RuleParams
from .steps import fetch_state


class Anneal(keras.callbacks.Callback):
    """Set a param of the rules in a model by a function of the step.

    Example:
        >>> model.fit(x, y, callbacks=[multigrad.keras.Anneal("width", lambda step: 2.0 *
        0.999**step)])

    The param is a Variable, so the compiled step stays as it is.

    Args:
        param: the param's name, such as "width". It is set in every `Activation` of the model whose
            rule has it, in layers' activations too, and in an optimizer made by
            `apply_to_gradients`.
        schedule: the value for a step: a function of how many batches the model's optimizer has
            been given (of how many epochs, with `per="epoch"`), counted from 0 and on in the next
            `fit`.
        layers: only these, by name or as objects.
        per: "batch" or "epoch".

    Raises:
        RuleError: no layer has the param, or none of that name is there (when `fit` begins).
        RuleTypeError: the schedule is no function, or gives no number (at that step), or the param
            is part of the rule's code, so that it is no Variable.
        RuleValueError: `per` is another word.
    """

    def __init__(
        self,
        param: str,
        schedule: Callable[[int], float],
        layers: Iterable[Any] | None = None,
        per: Literal["batch", "epoch"] = "batch",
    ) -> None:
        super().__init__()
        if not callable(schedule):
            raise RuleTypeError(
                f"Anneal({param!r}, ...) needs a function of the step, got {schedule!r}; write "
                "lambda step: 0.99**step"
            )
        if per not in ("batch", "epoch"):
            raise RuleValueError(f"per is 'batch' or 'epoch', got {per!r}")
        self.param = param
        self.schedule = schedule
        self.layers = None if layers is None else [getattr(one, "name", one) for one in layers]
        self.per = per
        self.step = 0
        self._first_of_execution = 0
        self._variables: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the Variables."""
        optimizer = getattr(self.model, "optimizer", None)
        self.step = 0 if optimizer is None else int(optimizer.iterations)
        self._variables = find_variables(self.model, self.param, self.layers)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the param for an epoch."""
        if self.per == "epoch":
            self._assign(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the param for a step."""
        self._first_of_execution = batch
        if self.per == "batch":
            self._assign(self.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps that ran: several, with `steps_per_execution`."""
        self.step += batch - self._first_of_execution + 1

    def _assign(self, step: int) -> None:
        value = self.schedule(step)
        if not isinstance(value, Real) and getattr(value, "shape", None) != ():
            raise RuleTypeError(
                f"Anneal({self.param!r}): the schedule gave {value!r} at {self.per} {step}, "
                "expected a number"
            )
        fetch_state([self.model])
        for variable in self._variables:
            variable.assign(float(value))


def find_variables(model: Any, param: str, names: list[str] | None) -> list[Any]:
    """Return the Variables of that param in a model, in the layers of these names.

    Raises:
        RuleError: there are none.
        RuleTypeError: it is part of a rule's code.
    """
    holders = dict(find_params(model))
    if names is not None:
        for name in names:
            if name not in holders:
                raise RuleError(
                    f"the model has no layer {name!r} with a rule"
                    f"{suggest(str(name), list(holders))} "
                    f"(layers with a rule: {', '.join(holders) or 'none'})"
                )
        holders = {name: holders[name] for name in names}
    having = {name: params for name, params in holders.items() if param in params}
    if not having:
        known = sorted({each for params in holders.values() for each in params})
        raise RuleError(
            f"no rule in the model has a param {param!r}{suggest(param, known)} "
            f"(params: {', '.join(known) or 'none'})"
        )
    for name, params in having.items():
        if param not in params.variables:
            raise RuleTypeError(
                f"param {param!r} of layer {name!r} is part of the rule's code, so a change "
                "compiles anew: assign layer.params in a callback of your own, once per epoch"
            )
    return [params.variables[param] for params in having.values()]


def find_params(model: Any) -> Iterator[tuple[str, RuleParams]]:
    """Yield name and params of each layer that has a rule of its own, and of the optimizer."""
    for layer in model._flatten_layers():
        if isinstance(layer, Activation) and len(layer.params):
            yield layer.name, layer.params
    optimizer = getattr(model, "optimizer", None)
    while optimizer is not None:
        params = getattr(optimizer, "params", None)
        if isinstance(params, RuleParams):
            yield "optimizer", params
        optimizer = getattr(optimizer, "inner_optimizer", None)
