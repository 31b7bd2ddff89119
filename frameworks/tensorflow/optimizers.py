"""Keras's optimizers under deep5's names. Keras is imported on binding, so recipes can name them without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from deep5.core.executors import StepOptimizer
from deep5.frameworks.tensorflow.native_optimizer import KerasOptimizer
from deep5.training.rules.adadelta import AdaDelta
from deep5.training.rules.adagrad import AdaGrad
from deep5.training.rules.adam import Adam
from deep5.training.rules.adamw import AdamW
from deep5.training.rules.amsgrad import AMSGrad
from deep5.training.rules.lamb import LAMB
from deep5.training.rules.lion import Lion
from deep5.training.rules.momentum import Momentum
from deep5.training.rules.nadam import Nadam
from deep5.training.rules.nesterov import Nesterov
from deep5.training.rules.rmsprop import RMSProp
from deep5.training.rules.sgd import SGD

__all__ = [
    "NATIVE",
    "AMSGradOptimizer",
    "AdaDeltaOptimizer",
    "AdaGradOptimizer",
    "AdamOptimizer",
    "AdamWOptimizer",
    "GradientDescentOptimizer",
    "LAMBOptimizer",
    "LionOptimizer",
    "MomentumOptimizer",
    "NadamOptimizer",
    "NesterovOptimizer",
    "RMSPropOptimizer",
]


class GradientDescentOptimizer(KerasOptimizer, twin=SGD):
    """`keras.optimizers.SGD`."""

    made = "SGD"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {}


class MomentumOptimizer(KerasOptimizer, twin=Momentum):
    """`keras.optimizers.SGD` with momentum; the velocity includes the learning rate."""

    made = "SGD"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"momentum": hyper["momentum"], "nesterov": hyper["nesterov"]}


class NesterovOptimizer(KerasOptimizer, twin=Nesterov):
    """`keras.optimizers.SGD` with Nesterov's momentum; the velocity includes the learning rate."""

    made = "SGD"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"momentum": hyper["momentum"], "nesterov": True}


class AdaGradOptimizer(KerasOptimizer, twin=AdaGrad):
    """`keras.optimizers.Adagrad`; its epsilon is added inside the root."""

    made = "Adagrad"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"epsilon": hyper["epsilon"], "initial_accumulator_value": hyper["initial"]}


class AdaDeltaOptimizer(KerasOptimizer, twin=AdaDelta):
    """`keras.optimizers.Adadelta`."""

    made = "Adadelta"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"rho": hyper["rho"], "epsilon": hyper["epsilon"]}


class RMSPropOptimizer(KerasOptimizer, twin=RMSProp):
    """`keras.optimizers.RMSprop`; its epsilon is added inside the root."""

    made = "RMSprop"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {"rho": hyper["rho"], "epsilon": hyper["epsilon"]}


def _adam(hyper: Mapping[str, Any]) -> dict[str, Any]:
    return {"beta_1": hyper["beta1"], "beta_2": hyper["beta2"], "epsilon": hyper["epsilon"]}


class AdamOptimizer(KerasOptimizer, twin=Adam):
    """`keras.optimizers.Adam`; its epsilon is added to a root without bias correction."""

    made = "Adam"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return _adam(hyper)


class AdamWOptimizer(KerasOptimizer, twin=AdamW):
    """`keras.optimizers.AdamW`; its epsilon is added to a root without bias correction."""

    made = "AdamW"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**_adam(hyper), "weight_decay": hyper["weight_decay"]}


class AMSGradOptimizer(KerasOptimizer, twin=AMSGrad, lacks=("bias_correction",)):
    """`keras.optimizers.Adam` with `amsgrad`; it corrects the bias, the same as deep5's with `bias_correction=True`.

    Its epsilon is added to a root without bias correction.
    """

    made = "Adam"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return {**_adam(hyper), "amsgrad": True}


class NadamOptimizer(KerasOptimizer, twin=Nadam, lacks=("momentum_decay",)):
    """`keras.optimizers.Nadam`, whose momentum increases the same way as deep5's with `momentum_decay=1`."""

    made = "Nadam"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return _adam(hyper)


class LAMBOptimizer(KerasOptimizer, twin=LAMB, lacks=("weight_decay",)):
    """`keras.optimizers.Lamb`; its weight decay differs from the paper's and is not supported."""

    made = "Lamb"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        return _adam(hyper)


class LionOptimizer(KerasOptimizer, twin=Lion):
    """`keras.optimizers.Lion`."""

    made = "Lion"

    @override
    def arguments(self, hyper: Mapping[str, Any]) -> dict[str, Any]:
        decay = hyper["weight_decay"]
        return {"beta_1": hyper["beta1"], "beta_2": hyper["beta2"], "weight_decay": decay or None}


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adadelta": AdaDeltaOptimizer,
    "adagrad": AdaGradOptimizer,
    "adam": AdamOptimizer,
    "adamw": AdamWOptimizer,
    "amsgrad": AMSGradOptimizer,
    "lamb": LAMBOptimizer,
    "lion": LionOptimizer,
    "momentum": MomentumOptimizer,
    "nadam": NadamOptimizer,
    "nesterov": NesterovOptimizer,
    "rmsprop": RMSPropOptimizer,
    "sgd": GradientDescentOptimizer,
}
