"""Optax's optimizers under deep5's names. jax and optax are imported on binding, so recipes can name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from deep5.core.executors import StepOptimizer
from deep5.frameworks.jax.native_optimizer import OptaxOptimizer
from deep5.training.lbfgs import LBFGS
from deep5.training.rules.adadelta import AdaDelta
from deep5.training.rules.adagrad import AdaGrad
from deep5.training.rules.adam import Adam
from deep5.training.rules.adamw import AdamW
from deep5.training.rules.amsgrad import AMSGrad
from deep5.training.rules.lamb import LAMB
from deep5.training.rules.lars import LARS
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
    "LARSOptimizer",
    "LBFGSOptimizer",
    "LionOptimizer",
    "MomentumOptimizer",
    "NadamOptimizer",
    "NesterovOptimizer",
    "RMSPropOptimizer",
]


class GradientDescentOptimizer(OptaxOptimizer, twin=SGD):
    """`optax.sgd`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.sgd(hyper["lr"])


class MomentumOptimizer(OptaxOptimizer, twin=Momentum):
    """`optax.sgd` with momentum."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.sgd(hyper["lr"], momentum=hyper["momentum"], nesterov=hyper["nesterov"])


class NesterovOptimizer(OptaxOptimizer, twin=Nesterov):
    """`optax.sgd` with Nesterov's momentum."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.sgd(hyper["lr"], momentum=hyper["momentum"], nesterov=True)


class AdaGradOptimizer(OptaxOptimizer, twin=AdaGrad):
    """`optax.adagrad`; its epsilon is added inside the root."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.adagrad(hyper["lr"], initial_accumulator_value=hyper["initial"], eps=hyper["epsilon"])


class AdaDeltaOptimizer(OptaxOptimizer, twin=AdaDelta):
    """`optax.adadelta`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.adadelta(hyper["lr"], rho=hyper["rho"], eps=hyper["epsilon"])


class RMSPropOptimizer(OptaxOptimizer, twin=RMSProp):
    """`optax.rmsprop` with its epsilon outside the root."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.rmsprop(hyper["lr"], decay=hyper["rho"], eps=hyper["epsilon"], eps_in_sqrt=False)


def _adam(hyper: Mapping[str, Any]) -> dict[str, Any]:
    return {"learning_rate": hyper["lr"], "b1": hyper["beta1"], "b2": hyper["beta2"], "eps": hyper["epsilon"]}


class AdamOptimizer(OptaxOptimizer, twin=Adam):
    """`optax.adam`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.adam(**_adam(hyper))


class AdamWOptimizer(OptaxOptimizer, twin=AdamW):
    """`optax.adamw`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.adamw(**_adam(hyper), weight_decay=hyper["weight_decay"])


class AMSGradOptimizer(OptaxOptimizer, twin=AMSGrad):
    """`optax.amsgrad`, as in the paper; with `bias_correction` as in Optax, which corrects before the maximum."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        corrected = hyper["bias_correction"]
        return optax.amsgrad(**_adam(hyper), bias_correction_mu=corrected, bias_correction_nu=corrected)


class NadamOptimizer(OptaxOptimizer, twin=Nadam, lacks=("momentum_decay",)):
    """`optax.nadam`, whose momentum is constant, the same as deep5's with a `momentum_decay` of 20000 or more."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.nadam(**_adam(hyper))


class LARSOptimizer(OptaxOptimizer, twin=LARS):
    """`optax.lars`; it divides by ‖g + β w‖, the paper by ‖g‖ + β ‖w‖."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.lars(
            hyper["lr"],
            weight_decay=hyper["weight_decay"],
            trust_coefficient=hyper["trust"],
            momentum=hyper["momentum"],
        )


class LAMBOptimizer(OptaxOptimizer, twin=LAMB):
    """`optax.lamb`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.lamb(**_adam(hyper), weight_decay=hyper["weight_decay"])


class LionOptimizer(OptaxOptimizer, twin=Lion):
    """`optax.lion`."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.lion(hyper["lr"], b1=hyper["beta1"], b2=hyper["beta2"], weight_decay=hyper["weight_decay"])


class LBFGSOptimizer(OptaxOptimizer, twin=LBFGS, lacks=("iterations", "c1", "c2")):
    """`optax.lbfgs` with its zoom line search, one update per step."""

    accumulates = False

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        search = optax.scale_by_zoom_linesearch(max_linesearch_steps=hyper["evaluations"], initial_guess_strategy="one")
        return optax.lbfgs(hyper["lr"], memory_size=hyper["history"], linesearch=search)


NATIVE: Mapping[str, Callable[..., StepOptimizer]] = {
    "adadelta": AdaDeltaOptimizer,
    "adagrad": AdaGradOptimizer,
    "adam": AdamOptimizer,
    "adamw": AdamWOptimizer,
    "amsgrad": AMSGradOptimizer,
    "lamb": LAMBOptimizer,
    "lars": LARSOptimizer,
    "lbfgs": LBFGSOptimizer,
    "lion": LionOptimizer,
    "momentum": MomentumOptimizer,
    "nadam": NadamOptimizer,
    "nesterov": NesterovOptimizer,
    "rmsprop": RMSPropOptimizer,
    "sgd": GradientDescentOptimizer,
}
