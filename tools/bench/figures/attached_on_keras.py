"""Epochs of `fit` in Keras with rules that were attached: against the same model written with
`multigrad.keras.Activation`, and, after `detach`, against the model that never had any.

Run it on each backend: `KERAS_BACKEND=jax python tools/bench attached_on_keras`.
"""

# Keras gathers its public names at import, where pyright cannot follow.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import Any

import keras

import multigrad.keras as xk
from bench.cases import THOROUGH_FITS
from bench.fits import WORKLOAD
from bench.harness import keep_memory
from bench.measure import Race
from bench.runners.on_keras import build_epoch, build_model, make_data, run_fits

RULE = "rectangular"
WRITTEN, LAYERS, OPERATION = "written", "attached to layers", "attached to an operation"
PLAIN, DETACHED = "plain", "detached"


def make_attached(selector: Any) -> Any:
    """Return a model with rules on what a selector means."""
    model = build_model(keras.layers.ReLU, WORKLOAD)
    xk.attach(model, {selector: RULE})
    return model


def make_detached() -> Any:
    """Return a model that was trained with rules, which were taken off."""
    model, data = build_model(keras.layers.ReLU, WORKLOAD), make_data(WORKLOAD)
    with xk.attach(model, {"relu": RULE}):
        build_epoch(model, data)()
    return model


def main() -> None:
    """Print the ratios within a round: quartiles."""
    keep_memory()
    models = {PLAIN: build_model(keras.layers.ReLU, WORKLOAD), DETACHED: make_detached()}
    race = run_fits(models, WORKLOAD, THOROUGH_FITS)
    print(f"{keras.config.backend()}: {DETACHED} / {PLAIN}: {describe(race, DETACHED, PLAIN)}")
    models = {
        WRITTEN: build_model(partial(xk.Activation, "ReLU", RULE), WORKLOAD),
        LAYERS: make_attached(keras.layers.ReLU),
        OPERATION: make_attached("relu"),
    }
    race = run_fits(models, WORKLOAD, THOROUGH_FITS)
    for name in (LAYERS, OPERATION):
        print(f"{keras.config.backend()}: {name} / {WRITTEN}: {describe(race, name, WRITTEN)}")


def describe(race: Race, name: str, other: str) -> str:
    """Return the median ratio, and in which quartiles it lies."""
    low, middle, high = race.compare(name, other)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
