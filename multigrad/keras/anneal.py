"""`multigrad.keras.Anneal`: a callback that changes a rule's number while a model trains, without a
retrace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import Any, Literal

import keras

from ..core.support.threads import set_within
from ..errors import RuleError, RuleTypeError, RuleValueError, suggest
from ..schedule import Schedule
from .compiled_steps import FITTED, assign_number, put_callback_first, read_array
from .layer import Activation
from .params import RuleParams


class Anneal(keras.callbacks.Callback):
    """Set a param of the rules in a model by a function of the step.

    Examples:
        >>> import keras, multigrad.keras
        >>> act = multigrad.keras.Activation("Heaviside", rule="triangular", params={"width": 2.0})
        >>> model = keras.Sequential([keras.layers.Dense(2), act, keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> narrow = multigrad.keras.Anneal("width", lambda epoch: 2.0 / (1 + epoch))
        >>> x, y = np.ones((4, 3)), np.ones((4, 1))
        >>> history = model.fit(x, y, epochs=2, verbose=0, callbacks=[narrow])
        >>> float(act.params["width"])
        1.0

    The param is a Variable, so the compiled step stays as it is.

    Where params of the model were given as schedules (`params={"width": xg.schedule.cosine(...)}`),
    `Anneal()` steps those after each batch.

    It runs before all other callbacks, wherever it stands among them, so that what they save fits.

    Args:
        param: the param's name, such as "width". It is set in every `Activation` of the model whose
            rule has it, in layers' activations too, and in an optimizer made by
            `apply_to_gradients`. None: every param that was given as a schedule.
        schedule: the value for a step: a function of how many batches the model's optimizer has
            been given (of how many epochs, with `per="epoch"`), counted from 0 and on in the next
            `fit`. A schedule of `xg.schedule` is such a function, and is set to that count. None:
            the schedules that the param was given as, each stepped by its own count.
        layers: only these, by name or as objects.
        per: "batch" or "epoch".

    Raises:
        RuleError: no layer has the param, or none of that name is there, or none follows a
            schedule, or two callbacks step one (when `fit` begins).
        RuleTypeError: the schedule is not a function, or gives no number at that step, or the param
            is part of the rule's code, so that it is no Variable.
        RuleValueError: `per` is another word.
    """

    def __init__(
        self,
        param: str | None = None,
        schedule: Callable[[int], float] | None = None,
        layers: Iterable[Any] | None = None,
        per: Literal["batch", "epoch"] = "batch",
    ) -> None:
        super().__init__()
        if schedule is None and callable(param):
            raise RuleTypeError(
                f"Anneal takes the param's name first, got {param!r:.60}; write "
                "Anneal('width', schedule)"
            )
        if (schedule is not None or param is not None) and not isinstance(param, str):
            raise RuleTypeError(f"Anneal takes the name of a param, got {param!r:.60}")
        if schedule is not None and not callable(schedule):
            raise RuleTypeError(
                f"Anneal({param!r}, ...) needs a function of the step, got {schedule!r}; write "
                "lambda step: 0.99**step"
            )
        if per not in ("batch", "epoch"):
            raise RuleValueError(f"per is 'batch' or 'epoch', got {per!r}")
        self.param = param
        self.schedule = schedule
        self.layers = None if layers is None else [getattr(each, "name", each) for each in layers]
        self.per = per
        self.step = 0
        self._has_begun = False
        self._first_of_execution = 0
        self._variables: list[tuple[RuleParams, Any]] = []
        self._schedules: list[Schedule] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Find the Variables or schedules to set."""
        # callbacks that save the model at the end of a batch must see our step
        callbacks = put_callback_first(self)
        self._has_begun = False
        if self.schedule is None:
            self._schedules = find_schedules(self.model, self.param, self.layers)
            others = [each for each in callbacks if isinstance(each, Anneal) and each is not self]
            stepped = {id(schedule) for other in others for schedule in other._schedules}
            for schedule in self._schedules:
                if id(schedule) in stepped:
                    raise RuleError(f"two Anneal callbacks step {schedule!r}: give one of them")
                schedule.meet_followers()
        elif self.param is not None:
            self._variables = find_variables(self.model, self.param, self.layers)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.per == "epoch" and self.schedule is not None:
            self._assign(self.schedule, epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.per == "epoch":
            self._step(1)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the param for a step."""
        self._first_of_execution = batch
        if not self._has_begun:  # a callback that restores the model has done so by now
            optimizer = getattr(self.model, "optimizer", None)
            self.step = 0 if optimizer is None else int(read_array(optimizer.iterations))
            self._has_begun = True
        if self.per == "batch" and self.schedule is not None:
            self._assign(self.schedule, self.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the steps that ran: several, with `steps_per_execution`."""
        steps = batch - self._first_of_execution + 1
        self.step += steps
        if self.per == "batch":
            self._step(steps)

    def _step(self, number: int) -> None:
        with set_within(FITTED, self._model):  # not `model`, which on jax restores all weights
            for schedule in self._schedules:
                schedule.step(number)

    def _assign(self, schedule: Callable[[int], float], step: int) -> None:
        value = schedule(step)
        if not isinstance(value, Real) and getattr(value, "shape", None) != ():
            raise RuleTypeError(
                f"Anneal({self.param!r}): the schedule gave {value!r} at {self.per} {step}, "
                "expected a number"
            )
        number = float(value)
        # all are checked first: an error leaves every Variable as it was
        for params, _ in self._variables:
            self._check(params, number, step)
        # a schedule called for a step still counts by itself
        if isinstance(schedule, Schedule):
            schedule.load_state_dict({"count": step})
        for _, variable in self._variables:
            assign_number(variable, number, [self._model])

    def _check(self, params: RuleParams, number: float, step: int) -> None:
        message = f"Anneal({self.param!r}): the schedule gave {number!r} at {self.per} {step}"
        if not math.isfinite(number):
            raise RuleValueError(f"{message}, expected a finite number")
        try:
            params.check(str(self.param), number)
        except RuleValueError as error:
            raise RuleValueError(f"{message}: {error}") from None


def find_holders(model: Any, names: list[str] | None) -> dict[str, RuleParams]:
    """Return the params in a model by the name of their layer, for layers of these names."""
    holders = dict(find_params(model))
    if names is None:
        return holders
    for name in names:
        if name not in holders:
            raise RuleError(
                f"the model has no layer {name!r} with a rule"
                f"{suggest(str(name), list(holders))} "
                f"(layers with a rule: {', '.join(holders) or 'none'})"
            )
    return {name: holders[name] for name in names}


def find_schedules(model: Any, param: str | None, names: list[str] | None) -> list[Schedule]:
    """Return the distinct schedules of a param in a model, or of any param."""
    schedules: dict[int, Schedule] = {}
    for params in find_holders(model, names).values():
        for name, schedule in params.schedules.items():
            if param in (None, name):
                schedules[schedule.serial] = schedule
    if not schedules:
        words = "no param" if param is None else f"no param {param!r}"
        raise RuleError(
            f"{words} in the model was given as a schedule, so there is nothing to step; write "
            "params={'width': xg.schedule.linear(...)} or Anneal('width', schedule)"
        )
    return list(schedules.values())


def find_variables(model: Any, param: str, names: list[str] | None) -> list[tuple[RuleParams, Any]]:
    """Return the Variables of a param in a model, each with the params that it is among."""
    holders = find_holders(model, names)
    matches = {name: params for name, params in holders.items() if param in params}
    if not matches:
        names_known = sorted({each for params in holders.values() for each in params})
        raise RuleError(
            f"no rule in the model has a param {param!r}{suggest(param, names_known)} "
            f"(params: {', '.join(names_known) or 'none'})"
        )
    for name, params in matches.items():
        if param not in params.variables:
            raise RuleTypeError(
                f"param {param!r} of layer {name!r} is part of the rule's code, so a change "
                "compiles anew: assign layer.params in a callback of your own, once per epoch"
            )
    return [(params, params.variables[param]) for params in matches.values()]


def find_params(model: Any) -> Iterator[tuple[str, RuleParams]]:
    """Yield name and params of each layer with a rule of its own, and of the optimizer."""
    for layer in model._flatten_layers():
        if isinstance(layer, Activation) and len(layer.params):
            yield layer.name, layer.params
    optimizer = getattr(model, "optimizer", None)
    # optimizers wrap others: ours, and LossScaleOptimizer
    while optimizer is not None:
        params = getattr(optimizer, "params", None)
        if isinstance(params, RuleParams):
            yield "optimizer", params
        optimizer = getattr(optimizer, "inner_optimizer", None)
