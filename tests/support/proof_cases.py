"""Drawn trainings for the proof that two back-ends train alike, and errors planted in one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import deep5 as d5

__all__ = ["Altered", "Training", "drawn", "longer_steps", "scaled_gradient", "unaltered"]


class Training(NamedTuple):
    """One drawn training.

    Attributes:
        network: Creates the network for a dtype.
        rule: Creates the update rule.
        batches: Creates the batches for a network.
        smooth: Whether the network has no kinks.
        said: A description.
    """

    network: Callable[[str], d5.Network]
    rule: Callable[[], d5.UpdateRule]
    batches: Callable[[d5.Network], Iterator[tuple[d5.StepInfo, dict[str, np.ndarray]]]]
    smooth: bool
    said: str


def drawn(seed: int) -> Training:
    """A training of a small network: many of them learn their data by heart, until losses and gradients vanish."""
    draw = np.random.default_rng([seed, 34])
    activation = str(draw.choice(["relu", "tanh"]))
    loss = str(draw.choice(["cross_entropy", "mse"], p=[0.8, 0.2]))
    classes, steps, batch = int(draw.integers(2, 9)), int(draw.integers(4, 60)), int(draw.integers(1, 24))
    spread = float(10 ** draw.uniform(-1, 1))
    if image := bool(draw.random() < 0.05):
        steps, batch = min(steps, 12), min(batch, 6)  # the reference computes a convolution slowly
        shape: tuple[int, ...] = (1, 28, 28)
        options: dict[str, Any] = {"pooling": "max" if activation == "relu" else "average"}
        make: Any = d5.networks.lenet
    else:
        shape = (int(draw.integers(2, 50)),)
        options = {"features": shape[0], "hidden": int(draw.integers(2, 80))}
        make = d5.networks.mlp
    rate = float(10 ** draw.uniform(-3, -0.7)) / (spread if spread > 1 else 1)
    rules: dict[str, Callable[[], d5.UpdateRule]] = {
        "sgd": lambda: d5.SGD(lr=rate),
        "momentum": lambda: d5.Momentum(lr=rate / 4, momentum=0.9),
        "adam": lambda: d5.Adam(lr=rate / 4),
        "rmsprop": lambda: d5.RMSProp(lr=rate / 10),
        "adagrad": lambda: d5.AdaGrad(lr=rate),
    }
    name = str(draw.choice(list(rules)))
    heart = bool(draw.random() < 0.6)  # few samples, again and again

    def batches(network: d5.Network) -> Iterator[tuple[d5.StepInfo, dict[str, np.ndarray]]]:
        own = np.random.default_rng([seed, 35])
        templates = spread * own.standard_normal((classes, *shape))
        for step in range(steps):
            if heart and step % 3 == 0:
                own = np.random.default_rng([seed, 36])
            labels = own.integers(0, classes, batch)
            images = templates[labels] + 0.1 * spread * own.standard_normal((batch, *shape))
            kind = network.inputs["label"].dtype
            given = labels if kind.startswith("int") else np.eye(classes)[labels]
            info = d5.StepInfo(step=step, epoch=step // 3, batch_size=batch)
            yield info, {"input": images.astype(network.inputs["input"].dtype), "label": given.astype(kind)}

    return Training(
        network=lambda dtype: make(
            dtype=dtype, loss=loss, classes=classes, activation=activation, seed=seed % 1000, **options
        ),
        rule=rules[name],
        batches=batches,
        smooth=activation == "tanh",
        said=f"seed {seed}: {'lenet' if image else 'mlp'} {options}, {activation}, {loss}, {name} at {rate:.2g}, "
        f"{steps} steps of {batch}, {classes} classes, spread {spread:.2g}",
    )


class Altered:
    """A back-end whose executors are changed after they are made."""

    name = "altered"

    def __init__(self, framework: d5.Framework, change: Callable[[Any], None]) -> None:
        self._framework, self._change = framework, change

    def executor(self, network: d5.Network, **options: Any) -> Any:
        executor = self._framework.executor(network, **options)
        self._change(executor)
        return executor


def unaltered(executor: Any) -> None:
    """No change: the back-end under a second name."""


def longer_steps(executor: Any) -> None:
    """A step size that is 1 % too large."""
    made = executor.train_step

    def train_step(rule: Any, *args: Any, **options: Any) -> Any:
        rule.lr = 1.01 * rule.lr
        return made(rule, *args, **options)

    executor.train_step = train_step


def scaled_gradient(place: int) -> Callable[[Any], None]:
    """One parameter's gradient, the largest or one after it, times 1.001."""

    def change(executor: Any) -> None:
        names = sorted(executor.network.trained_specs, key=lambda name: -math.prod(_shape(executor, name)))
        name, backprop = names[place % len(names)], executor.inference_and_backprop

        def inference_and_backprop(*args: Any, **options: Any) -> Any:
            outputs = backprop(*args, **options)
            executor.gradients()[name][...] *= 1.001
            return outputs

        executor.inference_and_backprop = inference_and_backprop

    return change


def _shape(executor: Any, name: str) -> tuple[int, ...]:
    return tuple(executor.network.trained_specs[name].shape)
