"""`from_module`: a `torch.nn.Module` and a loss function as an executor, without an ONNX graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from deep5.core.errors import NetworkError, Unsupported, UsageError
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.seeds import derive_seed
from deep5.core.tensors import Arrays, Device, TensorSpec, dtype_name
from deep5.frameworks.pytorch.base import TorchExecutor
from deep5.frameworks.pytorch.given_masks import given_masks
from deep5.networks.module_state import attributes_of
from deep5.networks.native import NativeNetwork
from deep5.networks.network import Network
from deep5.networks.probing import (
    UNFIT,
    checked_inputs,
    checked_outputs,
    checked_seed,
    misfit,
    one_tensor,
    probed_network,
    said_of,
    tried,
)
from deep5.networks.run_modes import TrainingForm, training_form

__all__ = ["ModuleExecutor", "from_module"]

Loss = Callable[[Any, Any], Any]


def from_module(
    module: torch.nn.Module,
    loss: Loss,
    *,
    inputs: Mapping[str, TensorSpec],
    outputs: Sequence[str] = ("logits", "loss"),
    seed: int = 0,
) -> GraphExecutor:
    """An executor of a module, for `Trainer`, update rules and native optimizers.

    Parameters and buffers are shared with the module, not copied, and have the module's names; parameters that require
    no gradient count as buffers. The module may replace a buffer, `self.mean = 0.9 * self.mean + …`: buffers are
    looked up by name. A parameter that is frozen later has no gradient, which an update rule rejects;
    `ParameterGroup(…, frozen=True)` excludes it. The module changes its buffers while it runs: a failed call may have
    changed them. Every call selects `module.train()` or `module.eval()`. Random layers draw from torch's stream, which
    every training step seeds from seed and step number, so that a resumed run is reproducible; other frameworks draw
    differently. There is no graph to `export`.

    Without a `Trainer`, `bind(executor)` binds a native optimizer,
    `deep5.framework("pytorch").optimizer("adam")(lr=0.01)`, and `step(inputs, info)` runs a whole step.

    Args:
        module: Must be on the device where it is to run.
        loss: Called as `loss(output, label)`, the module's output first, like torch's losses, such as
            `torch.nn.functional.cross_entropy`; returns a scalar.
        inputs: The inputs of a call, a `TensorSpec` each: all but the last are passed to the module, by position in
            this order, the last is the label.
        outputs: Names of the module's output and of the loss.
        seed: The seed of noise for calls without `StepInfo`.

    Raises:
        UsageError: An argument has another type, or the module or the loss does not run on such inputs or returns
            something other than one tensor and a scalar.
        Unsupported: The parameters are on several devices, not yet initialized, or of an element type that NumPy lacks.

    >>> import torch
    >>> from deep5.core.tensors import TensorSpec
    >>> inputs = {"input": TensorSpec(shape=("N", 4)), "label": TensorSpec(shape=("N",), dtype="int64")}
    >>> executor = from_module(torch.nn.Linear(4, 3), torch.nn.functional.cross_entropy, inputs=inputs)
    >>> executor.network.outputs["logits"].shape, list(executor.network.parameter_specs)
    (('N', 3), ['weight', 'bias'])
    """
    if not isinstance(module, torch.nn.Module) or not callable(loss):
        raise UsageError(f"got {type(module).__name__}, {loss!r}; allowed: a torch.nn.Module and a function")
    specs = checked_inputs(inputs)
    names = checked_outputs(specs, outputs, "module")
    return ModuleExecutor(module, loss, specs, names, checked_seed(seed))


class ModuleExecutor(TorchExecutor):
    """A module on PyTorch; made by `from_module`. Implements `GraphExecutor`.

    Args:
        module: As for `from_module`.
        loss: As for `from_module`.
        inputs: As for `from_module`.
        outputs: As for `from_module`.
        seed: As for `from_module`.
        graph: The module's export, for which it stands: the executor has the parameters and buffers of this network.

    Attributes:
        module: The module, whose parameters are trained.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss,
        inputs: dict[str, TensorSpec],
        outputs: tuple[str, str],
        seed: int,
        graph: Network | None = None,
    ) -> None:
        self.module, self._loss = module, loss
        self._form: TrainingForm | None = None
        self._said = f"the module {type(module).__name__}", f"the loss {said_of(loss)}"
        self._fed = tuple(inputs)
        self._place = _place(module)
        parameters = {name: value for name, value in module.named_parameters() if value.requires_grad}
        buffers = {name: value for name, value in module.named_parameters() if not value.requires_grad}
        self._frozen = frozenset(buffers)
        buffers |= dict(module.named_buffers())
        live = {**parameters, **buffers}
        specs = {name: _spec(name, value) for name, value in live.items()}
        # Whether the module's output, and the loss, may share memory with their inputs or with live values.
        self._borrows, self._owned = [False, False], _places(live.values())
        network: NativeNetwork | Network = probed_network(
            type(module).__name__,
            self._said,
            inputs,
            outputs,
            self._tried,
            parameters={name: specs[name] for name in parameters},
            buffers={name: specs[name] for name in buffers},
            structure=_structure(module, loss),
            value=lambda name: live[name].detach().cpu().numpy(),
        )
        if graph is not None:
            own = dict(module.named_parameters(remove_duplicate=False))
            parameters = {name: own[name] for name in graph.parameter_specs}
            buffers = {name: live[name] for name in graph.buffer_specs}
            network = graph
        kind, index = self._place.type, self._place.index or 0
        super().__init__(network, parameters, buffers, device=Device(kind=kind, index=index), seed=seed)

    def draw_as_graph(self) -> None:
        """Drop by the masks of the graph from now on, instead of random numbers of torch.

        Raises:
            Unsupported: The masks of the graph are unknown before it runs.
        """
        assert isinstance(self.network, Network)  # noqa: S101 - only stand-ins for a graph
        self._form = training_form(self.network)

    def _live(self, name: str) -> Any:
        if name in self._parameters:
            return self._parameters[name]
        try:
            value = self.module.get_parameter(name) if name in self._frozen else self.module.get_buffer(name)
        except AttributeError:
            value = None
        spec = self.network.buffer_specs[name]
        if value is None or (reason := spec.mismatch(tuple(value.shape), dtype_name(value.dtype))):
            raise NetworkError(
                f"the module's buffer {name!r}: {'got none' if value is None else reason}; allowed: {spec}, as it was "
                "given to from_module; remedy: a new from_module"
            )
        return value.detach()

    @override
    def buffers(self) -> Arrays:
        return {name: self._live(name) for name in self._buffers}

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`; see `GraphExecutor.gradients`.

        Raises:
            Unsupported: There are none, or one is missing because its parameter was frozen.
        """
        for name, tensor in (self._wrt or {}).items():
            if tensor.grad is None:
                self._check_trained(name, tensor)
        return super().gradients()

    def _requested(self, targets: Mapping[str, Any]) -> None:
        for name, tensor in targets.items():
            self._check_trained(name, tensor)

    def _check_trained(self, name: str, tensor: Any) -> None:
        if not tensor.requires_grad:
            raise Unsupported(
                f"no gradient by the module's parameter {name!r}, which was frozen after from_module "
                "(requires_grad=False); allowed: parameters that require a gradient; remedy: "
                "ParameterGroup(…, frozen=True) in train_step, or a new from_module"
            )

    def _run(self, feed: list[Any], extents: Mapping[str, int], info: StepInfo | None, training: bool) -> Sequence[Any]:
        if self.module.training is not training:
            self.module.train(training)
        if not training:
            return self._both(feed)
        with self._random(self._info(info)):
            if self._form is None:
                return self._both(feed)
            drawn = [torch.from_numpy(mask).to(self._place) for mask in self._form.draw(extents, self._info(info))]
            with given_masks(type(self.module).__name__, list(zip(self._form.masks, drawn, strict=True))):
                return self._both(feed)

    def _both(self, feed: list[Any]) -> tuple[Any, Any]:
        *given, label = feed
        try:
            output = self.module(*given)
        except UNFIT as error:
            raise misfit(self._said[0], dict(zip(self._fed, given, strict=False)), error) from error
        if self._borrows[0]:
            output = output.clone()
        try:
            loss = self._loss(output, label)
        except UNFIT as error:
            raise misfit(self._said[1], {self._outputs[0]: output, self._fed[-1]: label}, error) from error
        return output, loss.clone() if self._borrows[1] else loss

    @contextmanager
    def _random(self, info: StepInfo) -> Iterator[None]:
        """Seed torch's random streams for one step; the caller's streams are restored afterwards."""
        seed = derive_seed(info.seed, "module", info.step)
        generators = [torch.default_generator]
        if self._place.type == "cuda":
            generators.append(torch.cuda.default_generators[self._place.index or 0])
        states = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)

    def _tried(self, feed: list[np.ndarray]) -> list[tuple[tuple[int, ...], str]]:
        """Shapes and element types of the outputs in evaluation mode."""
        was = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                with tried("torch", dict(zip(self._fed, feed, strict=True))):
                    *given, label = [torch.from_numpy(array).to(self._place) for array in feed]
                with tried(self._said[0], dict(zip(self._fed, given, strict=False))):
                    output = one_tensor(self._said[0], self.module(*given), torch.Tensor)
                with tried(self._said[1], {"output": output, self._fed[-1]: label}):
                    loss = one_tensor(self._said[1], self._loss(output, label), torch.Tensor)
            others = self._owned | _places([*given, label])
            for position, value in enumerate((output, loss)):
                self._borrows[position] = self._borrows[position] or not others.isdisjoint(_places([value]))
        finally:
            self.module.train(was)
        return [(tuple(output.shape), dtype_name(output.dtype)) for output in (output, loss)]


def _places(tensors: Iterable[Any]) -> set[int]:
    """The start addresses of the tensors' memory."""
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()}


def _place(module: torch.nn.Module) -> torch.device:
    tensors = [*module.parameters(), *module.buffers()]
    if any(torch.nn.parameter.is_lazy(tensor) for tensor in tensors):
        raise Unsupported(
            "the module has parameters without a shape; remedy: run it once before it is given to from_module"
        )
    places = {tensor.device for tensor in tensors}
    if len(places) > 1 or any(place.type not in ("cpu", "cuda") for place in places):
        raise Unsupported(
            f"the module lies on {', '.join(sorted(map(str, places)))}; allowed: one device, cpu or cuda; remedy: "
            "module.to(device)"
        )
    return next(iter(places), torch.device("cpu"))


def _spec(name: str, value: Any) -> TensorSpec:
    dtype = dtype_name(value.dtype)
    try:
        torch.empty(0, dtype=value.dtype).numpy()
        known = not value.is_complex()
    except TypeError:
        known = False
    if not known:
        raise Unsupported(f"{name!r} is of {dtype}, which NumPy lacks; allowed: float32, float64 and integers")
    return TensorSpec(shape=tuple(value.shape), dtype=dtype)


def _structure(module: torch.nn.Module, loss: Loss) -> str:
    """The module's layers and attributes and, if Python finds it, the source of its computations."""
    parts = [str(module), *(f"{name} {text}" for name, text in sorted(attributes_of(module).items()))]
    for what in (type(module), loss):
        try:
            parts.append(inspect.getsource(what))
        except (OSError, TypeError):
            parts.append(f"{getattr(what, '__module__', '')}.{getattr(what, '__qualname__', type(what).__name__)}")
    return "\n".join(parts)
