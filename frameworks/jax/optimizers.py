"""Optax's optimizers under deep5's names; jax and optax load when one is bound, so that a recipe may name them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, StepOptimizer
from deep5.core.plugins import missing_dependency
from deep5.core.tensors import Arrays
from deep5.training.lbfgs import LBFGS
from deep5.training.native_optimizer import NativeOptimizer, Unbound
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

if TYPE_CHECKING:
    from deep5.frameworks.jax.native_step import NativeStep, Point

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
    "OptaxOptimizer",
    "RMSPropOptimizer",
]


class OptaxOptimizer(NativeOptimizer):
    """An optimizer of Optax that owns its step, one compiled function.

    Hyperparameters enter the compiled step as numbers, so that all of them may change without a second trace.
    """

    framework, library = "jax", "optax"

    @abstractmethod
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        """Optax's transformation, out of the module; hyperparameters may be traced numbers."""

    def bind(self, executor: GraphExecutor) -> None:
        """Make the compiled step over the executor's parameters.

        Raises:
            UsageError: The executor is another framework's, or Optax refuses a hyperparameter.
            MissingDependency: Optax is not installed.
        """
        if getattr(executor, "differentiated", None) is None or not hasattr(executor, "program"):
            raise self._foreign(executor)
        optax = _optax()
        from deep5.frameworks.jax.native_step import NativeStep

        own: Any = executor
        own._check_loss(self.loss)
        constants = {name: value for name, value in self.hyper.items() if name not in self.changeable}

        def initial(values: dict[str, Any], numbers: Mapping[str, Any]) -> Any:
            return self.native(optax, {**constants, **numbers}).init(values)

        def update(point: Point, state: Any, numbers: Mapping[str, Any]) -> Any:
            optimizer = optax.with_extra_args_support(self.native(optax, {**constants, **numbers}))
            changes, state = optimizer.update(
                point.gradients,
                state,
                point.values,
                value=point.loss,
                grad=point.gradients,
                value_fn=point.function,
            )
            return optax.apply_updates(point.values, changes), state

        numbers = {name: float(self.hyper[name]) for name in self.changeable}
        with self._making():
            self._optimizer = NativeStep(own, self.loss, initial, update, numbers)
        self._executor, self._now = executor, dict(self.hyper)

    @property
    def train_step(self) -> NativeStep:
        """The compiled step."""
        if isinstance(self._optimizer, Unbound):
            _ = self._optimizer.any  # says so
        found: NativeStep = self._optimizer
        return found

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and Optax's update, one function."""
        return self.train_step(inputs, info)

    def _apply(self, gradients: Arrays) -> None:
        self.train_step.apply(gradients)

    def _arithmetic(self) -> AbstractContextManager[None]:
        import jax

        # JAX has 64-bit types only where they are asked for.
        found: AbstractContextManager[None] = jax.enable_x64(True)
        return found

    def _change(self, hyper: Mapping[str, Any]) -> None:
        self.train_step.numbers = {name: float(hyper[name]) for name in self.changeable}

    def _state(self) -> dict[str, Any]:
        """Optax's state as NumPy arrays in the network's order of axes, by their place in its tree."""
        return self.train_step.state_dict()

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state`, bit for bit.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype.
        """
        self.train_step.load_state_dict(state)


def _optax() -> Any:
    try:
        import optax
    except ModuleNotFoundError as error:
        raise missing_dependency("a native optimizer of jax", error) from error
    return optax


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
    """`optax.adagrad`; its epsilon stands inside the root."""

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
    """`optax.amsgrad`, as the paper has it; with `bias_correction` as Optax does, which corrects before the maximum."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        corrected = hyper["bias_correction"]
        return optax.amsgrad(**_adam(hyper), bias_correction_mu=corrected, bias_correction_nu=corrected)


class NadamOptimizer(OptaxOptimizer, twin=Nadam, lacks=("momentum_decay",)):
    """`optax.nadam`, whose momentum is constant, as deep5's is with a `momentum_decay` of 20000 or more."""

    @override
    def native(self, optax: Any, hyper: Mapping[str, Any]) -> Any:
        return optax.nadam(**_adam(hyper))


class LARSOptimizer(OptaxOptimizer, twin=LARS):
    """`optax.lars`; it divides by ‖g + β w‖ where the paper has ‖g‖ + β ‖w‖."""

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
    """`optax.lbfgs` with its zoom line search, one update a step."""

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
