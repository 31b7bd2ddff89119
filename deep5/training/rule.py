"""`UpdateRule`: the base class of custom optimizers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from deep5.core.deep500 import PAGE, stated_form
from deep5.core.errors import RuleError
from deep5.core.events import StepInfo
from deep5.core.tensors import Array

__all__ = ["State", "ThreeStepOptimizer", "UpdateRule", "UpdateRuleOptimizer"]

State = Mapping[str, Array]

# By method, the parameters in Deep500 after `self`, and deep5's form.
_FORMER = {
    "new_input": ((), "(self, info), which returns the numbers of the step"),
    "prepare_param": (("param_name",), "(self, param, state), which returns where the gradient is taken"),
    "update_rule": (
        ("grad", "old_param", "param_name"),
        "(self, grad, param, state), which returns the new parameter and the new state",
    ),
}


class UpdateRule:
    """An optimizer as pure functions of arrays, written once for every framework.

    The methods use only the functions and operators of `deep5.array_namespace(param)`. They are traced and become one C
    kernel (PyTorch, NumPy, ONNX Runtime) or a part of the compiled step. They are pure: each is traced twice, and a
    rule whose traces differ (random numbers, time, a counter) is rejected.

    Hyperparameters are float attributes named in `hyper`; inside the methods they are scalars, not constants, so that a
    schedule may change them at any step. Everything else that the methods read (integers, booleans, strings, lists,
    globals) is a constant of the compiled step: a change in mid-run is rejected. A float attribute that `hyper` does
    not name is rejected, because it would become a constant.

    A rule may depend on `param.shape`: products of matrices, `permute_dims`, `reshape`, sums over an axis, slices. It
    is then traced once per shape, its states may have any shape, and the framework's own functions compute it. For an
    empty parameter, `update_rule` of such a rule is not called, and the states stay as `init_state` returns them.

    Attributes:
        hyper: Names of the float attributes (`lr`, `beta1`, …).
        scope: The range of `sums`: nothing (`"element"`), each parameter (`"tensor"`), all of them (`"model"`).

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Step(d5.UpdateRule):
    ...     hyper = ("lr",)
    ...     def __init__(self, lr=0.1): self.lr = lr
    ...     def update_rule(self, grad, param, state): return param - self.lr * grad, state
    >>> Step().update_rule(np.ones(2), np.zeros(2), {})[0]
    array([-0.1, -0.1])
    """

    hyper: ClassVar[tuple[str, ...]] = ()
    scope: ClassVar[Literal["element", "tensor", "model"]] = "element"

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse a method in the form of Deep500.

        Raises:
            RuleError: It takes the parameters of Deep500's method, which works on the executor's network.
        """
        super().__init_subclass__(**kwargs)
        for name, (old, new) in _FORMER.items():
            own = vars(cls).get(name)
            if inspect.isfunction(own) and (got := stated_form(own, old)) is not None:
                raise RuleError(
                    f"{cls.__qualname__}.{name}{got} is Deep500's form; allowed: {name}{new}; remedy: {PAGE}, which "
                    "has an optimizer in both forms"
                )

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse a class without `update_rule`.

        Raises:
            RuleError: It has none.
        """
        if cls.update_rule is UpdateRule.update_rule:
            raise RuleError(f"{cls.__name__} has no update_rule; remedy: define update_rule(self, grad, param, state)")
        return super().__new__(cls)

    def new_input(self, info: StepInfo) -> Mapping[str, float]:
        """Extra scalars of this step, computed on the host in float64; the other methods read them as `self.<name>`.

        They must depend only on `info` and the rule's attributes. Random numbers come from
        `deep5.generator(info.seed, "noise", info.step)`.

        Args:
            info: The step that begins; `info.step` counts from 0.
        """
        return {}

    def init_state(self, param: Array) -> dict[str, Array]:
        """The state before the first step, by name: arrays of the parameter's shape, or of shape ().

        A rule that depends on shapes may have states of any shape, and other states for other parameters.

        Args:
            param: The initial parameter.
        """
        return {}

    def prepare_param(self, param: Array, state: State) -> Array:
        """The point at which the gradient is taken, of the parameter's shape.

        Args:
            param: The parameter after the last update.
            state: The state after the last update.
        """
        return param

    def sums(self, grad: Array, param: Array, state: State) -> dict[str, Array]:
        """Sums over `scope`, each `xp.sum(expression)`; `update_rule` reads them as `self.<name>`.

        A rule that depends on shapes needs it only for sums over the model.

        Args:
            grad: Gradient at `prepare_param(param, state)`.
            param: The parameter after the last update.
            state: The state after the last update.
        """
        return {}

    def update_rule(self, grad: Array, param: Array, state: State) -> tuple[Array, State]:
        """One update.

        Args:
            grad: Gradient at `prepare_param(param, state)`, of the parameter's shape and dtype.
            param: The parameter after the last update.
            state: The state after the last update.

        Returns:
            The new parameter and the new state, with the same names.
        """
        raise NotImplementedError

    def eval_param(self, param: Array, state: State) -> Array:
        """The value that evaluation and export use, of the parameter's shape.

        It is independent of the step: it reads hyperparameters and states, but neither values from `new_input` nor
        sums. If it needs them, the rule stores them in a state of shape ().

        Args:
            param: The parameter after the last update.
            state: The state after the last update.
        """
        return param

    def describe(self) -> dict[str, Any]:
        """The rule and its attributes, in JSON types; enters a recipe's hash."""
        return {"rule": type(self).__qualname__, **vars(self)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"


UpdateRuleOptimizer = UpdateRule
"""The paper's name (Ben-Nun et al., IPDPS 2019, section IV-E)."""


class ThreeStepOptimizer(UpdateRule):
    """The paper's optimizer in three steps: a subclass must define `new_input` and `prepare_param`.

    References:
        Ben-Nun et al., A modular benchmarking infrastructure for high-performance and reproducible deep learning,
        IPDPS 2019, section IV-E.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> class Ahead(d5.ThreeStepOptimizer):
    ...     hyper = ("lr",)
    ...     def __init__(self, lr=0.1): self.lr = lr
    ...     def new_input(self, info): return {"ahead": 1.0 / (info.step + 1)}
    ...     def prepare_param(self, param, state): return param - self.lr * self.ahead
    ...     def update_rule(self, grad, param, state): return param - self.lr * grad, state
    >>> weights, info = {"w": np.array([1.0])}, d5.StepInfo(step=0, batch_size=1)
    >>> kernel = d5.bind_rule(Ahead(), {"w": d5.TensorSpec(shape=(1,), dtype="float64")}, backend="numpy")
    >>> kernel.attach(weights)
    >>> kernel.prepare(info); weights["w"].tolist()  # where the gradient is taken
    [0.9]
    >>> kernel.update({"w": np.array([2.0])}, info); weights["w"].tolist()  # from the parameter, which was 1
    [0.8]
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        missing = [name for name in ("new_input", "prepare_param") if getattr(cls, name) is getattr(UpdateRule, name)]
        if missing:
            raise RuleError(
                f"{cls.__qualname__} is a ThreeStepOptimizer without {' and '.join(missing)}; "
                "remedy: define them, or subclass UpdateRule"
            )
