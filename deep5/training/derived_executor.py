"""`DerivedExecutor`: what deep5 derives for a subclass of `GraphExecutor` that has two methods."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
from typing_extensions import override

from deep5.core.arguments import check_callable
from deep5.core.complete import PartialClassError
from deep5.core.errors import NetworkError, ShapeError, Unsupported, UsageError, brief
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor, derive_executors_by
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import Array, Arrays, Device, aligned_empty, numpy_dtype, to_numpy
from deep5.core.tensors import device as read_device
from deep5.networks.arguments import as_network
from deep5.networks.diagnostics.failures import failed
from deep5.networks.network import Network
from deep5.networks.run_modes import training_form
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import StepOptions
from deep5.training.step import KernelStep
from deep5.training.training_executor import TrainingExecutor

__all__ = ["DerivedExecutor", "GraphExecutor"]

_METHODS = ("inference", "inference_and_backprop")
_GRADIENT = "grad:"


class DerivedExecutor(TrainingExecutor, GraphExecutor):
    """The base that completes a subclass of `GraphExecutor` with its own `inference` and `inference_and_backprop`.

    The subclass calls `super().__init__(model)`, and its methods compute with `self.parameters()`, NumPy arrays that
    training writes to in place. `inference(inputs)` returns the network's outputs by name.
    `inference_and_backprop(inputs, loss)` returns them too, and the gradient of the loss by each parameter under
    `grad:NAME`; or the subclass has its own `gradients`, which returns them by parameter. Whatever else `GraphExecutor`
    has is derived: whole training steps with any update rule, sums and scales of gradients, copies in and out, export.
    A method that the subclass defines takes precedence.

    Args:
        model: The network; it is not changed.
        events: As in the tutorial's classes; the events of a training belong to its `Trainer`, so there are none.
        device: Where the subclass computes; parameters are in host memory.
        seed: Seed of noise only.

    Raises:
        UsageError: The model is not a network, or there are events.
    """

    capabilities: frozenset[str] = frozenset()
    _own: type[Any]
    """The subclass."""

    def __init__(
        self, model: NetworkSpec, events: Sequence[Any] = (), *, device: str | Device = "cpu", seed: int = 0
    ) -> None:
        if not isinstance(events, (list, tuple)) or len(events):
            raise UsageError(
                f"{type(self).__name__}: got {brief(events)} as the events of an executor; allowed: none; remedy: "
                "trainer.train(epochs, events=[…]), or the key 'events' of a recipe"
            )
        network = as_network(model, type(self).__name__)
        super().__init__(network, device=read_device(device), seed=seed)
        self._graph: Network = network
        self._values: dict[str, np.ndarray] = {}
        for name in self._specs:
            initial = network.initial(name)
            self._values[name] = aligned_empty(initial.shape, initial.dtype)
            self._values[name][...] = initial
        self._found: dict[str, np.ndarray] | None = None
        self._spent = False
        self._outputs: dict[str, Any] = {}
        self._differs: bool | None = None

    # What the subclass computes:

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        self._recent = inputs, training, info
        self._feed(inputs, empty=not training)
        options: dict[str, Any] = {"training": training, "info": info} if training else {}
        returned = self._call("inference", (inputs,), options)
        return self._outputs_in(returned, "inference")

    @override
    def inference_and_backprop(
        self,
        inputs: Arrays,
        loss: str = "loss",
        *,
        info: StepInfo | None = None,
        wrt: Sequence[str] | None = None,
        accumulate: bool = False,
        loss_scale: float = 1.0,
        on_gradient: Callable[[str, Array], None] | None = None,
    ) -> Arrays:
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        earlier, self._found = ({} if self._spent or self._found is None else self._found), None
        self._spent = False
        self._feed(inputs)
        self._check_loss(loss)
        scale, names = self._check_scale(loss, loss_scale), self._check_wrt(wrt)
        returned = self._call("inference_and_backprop", (inputs, loss), {"training": True, "info": info})
        outputs = self._outputs_in(returned, "inference_and_backprop")
        found = self._gradients_in(returned, names, scale)
        for name in found if accumulate else ():
            if name in earlier:
                self._check_sum(name, earlier[name].shape, found[name].shape)
                found[name] += earlier[name]
        for name, value in found.items() if on_gradient is not None else ():
            on_gradient(name, value)  # type: ignore[misc]  # it is not None here
        self._found = {**(earlier if accumulate else {}), **found}
        return outputs

    @override
    def gradients(self) -> Arrays:
        if self._found is None:
            self._refuse_gradients()
        return dict(self._found)

    def _call(self, method: str, given: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        """The subclass's method, with the options for which it has parameters."""
        own = getattr(self._own, method)
        parameters = inspect.signature(own).parameters
        kinds = [each.kind for each in parameters.values()]
        places = kinds.count(inspect.Parameter.POSITIONAL_ONLY) + kinds.count(inspect.Parameter.POSITIONAL_OR_KEYWORD)
        # With `self`, the inputs and the loss are three.
        if len(given) > 1 and places < 3 and inspect.Parameter.VAR_POSITIONAL not in kinds:
            if given[1] != "loss":
                raise self._lacking(method, "a second parameter, the name of the loss", f"the loss {given[1]!r}")
            given = given[:1]
        any_name = inspect.Parameter.VAR_KEYWORD in kinds
        taken = {name: value for name, value in options.items() if any_name or name in parameters}
        if options.get("training") and taken.keys() != options.keys() and self._trains_otherwise():
            missing = " and ".join(repr(name) for name in options if name not in taken)
            raise self._lacking(method, f"the parameters {missing}", "a network with dropout or batch normalization")
        try:
            return own(self, *given, **taken)
        except Exception as error:  # of any class
            raise failed(error, type(self).__name__) from error

    def _lacking(self, method: str, what: str, where: str) -> Unsupported:
        return Unsupported(
            f"{type(self).__name__}.{method} lacks {what}, which {where} needs; allowed: what deep5 derives from the "
            f"methods {' and '.join(_METHODS)}; remedy: def {method} with it, as in d5.GraphExecutor"
        )

    def _trains_otherwise(self) -> bool:
        """Whether some layers compute something else in training."""
        if self._differs is None:
            self._differs = training_form(self._graph).network is not self._graph
        return self._differs

    def _outputs_in(self, returned: Any, method: str) -> dict[str, Any]:
        """The network's outputs among what a method returned."""
        names = list(self.network.outputs)
        if not isinstance(returned, Mapping) or (missing := [name for name in names if name not in returned]):
            got = ", ".join(map(str, returned)) if isinstance(returned, Mapping) else brief(returned)
            lacks = f"; missing: {', '.join(missing)}" if isinstance(returned, Mapping) else ""
            raise NetworkError(
                f"{type(self).__name__}.{method} returned {got or 'nothing'}{lacks}; allowed: a dict with the outputs "
                f"{', '.join(names)}"
            )
        self._outputs = {name: returned[name] for name in names}
        return self._outputs

    def _gradients_in(self, returned: Mapping[str, Any], names: Sequence[str], scale: float) -> dict[str, np.ndarray]:
        """Copies of the scaled gradients among what the method returned, or of the subclass's `gradients`."""
        own = self._own.gradients is not GraphExecutor.gradients
        given = dict(self._own.gradients(self)) if own else {}
        given |= {key.removeprefix(_GRADIENT): each for key, each in returned.items() if key.startswith(_GRADIENT)}
        if missing := [name for name in names if name not in given]:
            raise Unsupported(
                f"{type(self).__name__} has no gradient by {', '.join(missing)}; allowed: the gradients that "
                f"inference_and_backprop returns as '{_GRADIENT}NAME', or its own method gradients; remedy: return "
                f"{', '.join(repr(_GRADIENT + name) for name in missing)} beside the outputs"
            )
        found = {}
        for name in names:
            spec = self._specs.get(name) or self.network.inputs[name]
            value = np.array(to_numpy(given[name]), order="C")
            if reason := spec.mismatch(value.shape, value.dtype.name):
                raise ShapeError(f"{type(self).__name__}: the gradient by {name!r}: {reason}")
            found[name] = value if scale == 1.0 else (value * scale).astype(value.dtype)
        return found

    # What is derived from the values:

    @override
    def parameters(self) -> Arrays:
        return {name: self._values[name] for name in self.network.parameter_specs}

    @override
    def buffers(self) -> Arrays:
        return {name: self._values[name] for name in self.network.buffer_specs}

    @override
    def synchronize(self) -> None:
        for value in self._outputs.values():
            to_numpy(value)  # waits for a value that is still computed

    @override
    def settings(self) -> dict[str, Any]:
        live = [to_numpy(self._live(name)) for name in self._specs]
        return {"framework": self._own.__name__, "device": str(self.device), **self._dtype_settings(live)}

    def _dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        try:
            return to_numpy(value)
        except Unsupported as error:
            raise ShapeError(f"input {name!r}: {error}") from error

    def _live(self, name: str) -> Any:
        return (self.parameters() if name in self.network.parameter_specs else self.buffers())[name]

    def _assign(self, name: str, value: np.ndarray) -> None:
        to_numpy(self._live(name))[...] = value

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> KernelStep:
        return KernelStep(self, rule, loss=loss, **options, spend=self._spend)

    def _spend(self) -> None:
        self._spent = True


def _complete(partial: type[Any]) -> type[Any]:
    """A class with the rest of `GraphExecutor`; the class itself if it lacks one of the two methods."""
    if any(getattr(getattr(partial, name), "__isabstractmethod__", False) for name in _METHODS):
        return partial
    methods = {name: getattr(DerivedExecutor, name) for name in _METHODS}
    derived = sorted(partial.__abstractmethods__)

    def begin(self: Any, *given: Any, **named: Any) -> None:
        own = partial.__init__
        # A protocol's own constructor does nothing.
        (DerivedExecutor.__init__ if own is GraphExecutor.__init__ else own)(self, *given, **named)
        if "_values" not in vars(self):
            raise PartialClassError(
                f"{partial.__name__} does not define {', '.join(derived)}, and its __init__ does not call that of its "
                "base, from which deep5 derives them; allowed: one of both; remedy: super().__init__(model) in "
                f"{partial.__name__}.__init__"
            )

    about = {"_own": partial, "__init__": begin, "__module__": partial.__module__, "__doc__": partial.__doc__}
    content = {**methods, **about}
    made = types.new_class(partial.__name__, (partial, DerivedExecutor), exec_body=lambda space: space.update(content))
    made.__qualname__ = partial.__qualname__
    return made


derive_executors_by(_complete)
