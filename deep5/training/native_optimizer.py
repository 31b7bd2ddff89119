"""The common part of all frameworks' native optimizers: they have the arguments of deep5's optimizer of that name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from deep5.core.arguments import is_finite
from deep5.core.errors import Deep5Error, Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Array, Arrays
from deep5.training.accumulation import BatchLayout, Halves, accumulated_step, batch_layout
from deep5.training.hyper_ranges import hyper_fault
from deep5.training.hyper_state import KEY, apart, check_names, plain

__all__ = ["NativeOptimizer", "Unbound"]


class Unbound:
    """Placeholder for the executor before `bind`; its use is an error."""

    def __getattr__(self, name: str) -> Any:
        raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")


class NativeOptimizer(ABC):
    """An optimizer of a framework that owns its step; a `StepOptimizer`.

    A subclass names its `twin`, the equivalent deep5 optimizer, and accepts its arguments under the same names
    with the same defaults: `class AdamOptimizer(TorchOptimizer, twin=Adam)`. `lacks` lists the arguments that the
    framework does not support; they are not accepted.

    Args:
        args: The twin's positional arguments.
        loss: Name of the scalar output to differentiate.
        named: The twin's keyword arguments.

    Raises:
        UsageError: A value is not a finite number although the twin's default is a number.

    Attributes:
        framework: Name of the back-end of its executors.
        library: The name of its library in messages.
        twin: deep5's own optimizer.
        accumulates: Whether its step needs only one gradient, so that several micro-batches may contribute to it.
        closures: Whether repeated loss evaluations in its step call the bound executor, so that they can cover the
            samples of several ranks.
        loss: As given.
        hyper: As given, for `native` and for the record.
        hyper_now: The current values, after `set_hyper`.
    """

    framework: ClassVar[str]
    library: ClassVar[str]
    accumulates: ClassVar[bool] = True
    closures: ClassVar[bool] = False
    twin: ClassVar[type]
    __signature__: ClassVar[inspect.Signature]
    # The framework reads these at the beginning and never again.
    initial: ClassVar[tuple[str, ...]] = ("initial",)

    def __init_subclass__(cls, *, twin: type | None = None, lacks: Collection[str] = (), **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if twin is not None:
            taken = inspect.signature(twin).parameters.values()
            own = [parameter for parameter in taken if parameter.name not in (*lacks, "loss")]
            loss = inspect.Parameter("loss", inspect.Parameter.KEYWORD_ONLY, default="loss", annotation="str")
            cls.twin, cls.__signature__ = twin, inspect.Signature([*own, loss])

    def __init__(self, *args: Any, loss: str = "loss", **named: Any) -> None:
        bound = self.__signature__.bind(*args, loss=loss, **named)
        bound.apply_defaults()
        self.hyper: dict[str, Any] = {name: value for name, value in bound.arguments.items() if name != "loss"}
        for name, value in self.hyper.items():
            self._check(name, value)
        self.loss = loss
        self._now = dict(self.hyper)
        self._executor: Any = Unbound()
        self._layout: BatchLayout | None = None
        self._optimizer: Any = Unbound()

    def _check(self, name: str, value: Any) -> None:
        default = self.__signature__.parameters[name].default
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise UsageError(f"{type(self).__name__}: got {name}={brief(value)}; allowed: True or False")
        elif isinstance(default, int):
            if isinstance(value, bool) or not isinstance(value, int):
                raise UsageError(f"{type(self).__name__}: got {name}={brief(value)}; allowed: an integer")
        elif isinstance(value, bool) or not is_finite(value):
            raise UsageError(f"{type(self).__name__}: got {name}={brief(value)}; allowed: a finite number")
        elif allowed := hyper_fault(self, name, float(value)):
            raise UsageError(f"{type(self).__name__}: got {name}={brief(value)}; allowed: {allowed}")

    @property
    def hyper_now(self) -> dict[str, Any]:
        """The hyperparameters of the next step."""
        return dict(self._now)

    @property
    def changeable(self) -> tuple[str, ...]:
        """The hyperparameters that `set_hyper` accepts."""
        found = getattr(self.twin, "hyper", ())
        return tuple(name for name in self.hyper if name in found and name not in self.initial)

    def set_hyper(self, name: str, value: float) -> None:
        """Change a hyperparameter for all later steps.

        Args:
            name: deep5's name for it, such as `lr`.
            value: A finite number.

        Raises:
            UsageError: Unknown hyperparameter, one that the framework cannot change, or not a finite number.
        """
        if name not in self.changeable:
            what = "that may change" if name in self.hyper else "of this optimizer"
            raise UsageError(f"no hyperparameter {name!r} {what}; allowed: {', '.join(self.changeable)}")
        self._check(name, value)
        self._change({**self._now, name: value})
        self._now[name] = value

    @abstractmethod
    def _change(self, hyper: Mapping[str, Any]) -> None:
        """Apply these hyperparameters to the framework's optimizer."""

    @abstractmethod
    def bind(self, executor: GraphExecutor) -> None:
        """Create the framework's optimizer for the executor's parameters."""

    def _foreign(self, executor: GraphExecutor) -> UsageError:
        """The error for another framework's executor."""
        return UsageError(
            f"a native optimizer of {self.framework} cannot drive a {type(executor).__name__}; allowed: an executor of "
            f"{self.framework}"
        )

    @contextmanager
    def _making(self) -> Iterator[None]:
        """Convert the framework's rejection of a hyperparameter during the creation of its optimizer.

        Raises:
            UsageError: The framework rejects one.
        """
        try:
            yield
        except Deep5Error:
            raise
        except (TypeError, ValueError) as error:
            raise UsageError(f"{self.library} refuses the optimizer {self.describe()}: {error}") from error

    @abstractmethod
    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """Forward, backward and the framework's update."""

    @property
    def halves(self) -> Halves | None:
        """The step in two halves; None if it needs more than one gradient."""
        return _Halves(self) if self.accumulates else None

    def accumulated_step(self, batches: Sequence[Arrays], info: StepInfo) -> Arrays:
        """One step from several micro-batches; see `deep5.training.accumulation.accumulated_step`.

        Raises:
            Unsupported: The optimizer evaluates the loss repeatedly in its step, or the sample dimension of the inputs
                is unknown.
        """
        if not self.accumulates:
            raise Unsupported(
                f"{type(self).__name__} evaluates the loss again within its step, which is of one batch; got "
                "several micro-batches; allowed: step(inputs, info) on all samples at once"
            )
        self._layout = layout = batch_layout(self._executor.network, self._layout)
        return accumulated_step(_Halves(self), self._executor, batches, info, layout)

    @abstractmethod
    def _apply(self, gradients: Arrays) -> None:
        """The framework's update from the executor's gradients, as `gradients()` returns them."""

    def _arithmetic(self) -> AbstractContextManager[None]:
        """A context for averaging the outputs of micro-batches."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """The framework's state as NumPy arrays, and under `"hyper"` the current changeable hyperparameters."""
        return {**self._state(), KEY: {"values": plain({name: self._now[name] for name in self.changeable})}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` exactly; its hyperparameters replace the current ones.

        A state of an earlier deep5 has none and does not change them.

        Raises:
            ShapeError: An entry is missing, unknown, or of another shape or dtype; or the hyperparameters belong to
                another optimizer.
            UsageError: A hyperparameter is not allowed.
        """
        rest, held = apart(state)
        values = {} if held is None else dict(held["values"])
        if held is not None:
            check_names(values, self.changeable)
            for name, value in values.items():
                self._check(name, value)
        self._load_state(rest)
        if {**self._now, **values} != self._now:
            self._change({**self._now, **values})
            self._now.update(values)

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """The framework's state as NumPy arrays."""

    @abstractmethod
    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `_state` exactly."""

    def describe(self) -> dict[str, Any]:
        """The optimizer and its hyperparameters."""
        return {"native": self.framework, "optimizer": type(self).__name__, **self.hyper}


class _Halves:
    """The step of a native optimizer in two halves; see `deep5.training.accumulation.Halves`."""

    def __init__(self, optimizer: NativeOptimizer) -> None:
        self._optimizer, self.arithmetic = optimizer, optimizer._arithmetic

    def backprop(
        self,
        inputs: Arrays,
        info: StepInfo,
        on_gradient: Callable[[str, Array], None] | None = None,
        *,
        accumulate: bool = False,
        loss_scale: float = 1.0,
    ) -> Arrays:
        optimizer = self._optimizer
        outputs: Arrays = optimizer._executor.inference_and_backprop(
            inputs,
            optimizer.loss,
            info=info,
            accumulate=accumulate,
            loss_scale=loss_scale,
            on_gradient=on_gradient,
        )
        return outputs

    def apply(self, gradients: Arrays, info: StepInfo) -> None:
        self._optimizer._apply(gradients)
