"""`PyTorchExecutor`: a network on PyTorch, as generated source that runs eagerly or compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from deep5.core.errors import Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.tensors import Device
from deep5.frameworks.pytorch.base import TorchExecutor
from deep5.frameworks.pytorch.custom import on_tensors
from deep5.frameworks.pytorch.emit import Program, compile_forward
from deep5.frameworks.pytorch.operator_check import check_operator
from deep5.frameworks.pytorch.placing import placed
from deep5.frameworks.pytorch.short import from_numpy
from deep5.frameworks.pytorch.statistics import RunningStatistics
from deep5.frameworks.pytorch.synchronised import batch_norm_over_ranks
from deep5.networks.custom import operator_of
from deep5.networks.labels import Labels, label_inputs
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics
    from deep5.frameworks.pytorch.compiled import Compiler
    from deep5.frameworks.pytorch.gradient_stamps import GradientStamps

__all__ = ["PyTorchExecutor"]


class PyTorchExecutor(TorchExecutor):
    """A network on PyTorch; made by `PyTorch.executor`. Implements `GraphExecutor`.

    Args:
        network: The network; it is not changed.
        framework: The back-end, which determines what can run.
        device: Where it runs.
        seed: Only for noise.
        compiler: Compiles the generated functions; None: they run eagerly.
        stamps: Times each layer; None: no timing.

    Raises:
        Unsupported: Nodes that torch cannot run, or not on this device; the message has the reason for each.
    """

    def __init__(
        self,
        network: Network,
        framework: Framework,
        *,
        device: Device,
        seed: int = 0,
        compiler: Compiler | None = None,
        stamps: GradientStamps | None = None,
    ) -> None:
        self._stamps = stamps
        self._forms = Forms(network, framework)
        self._operators = partial(on_tensors, framework=framework)
        place = torch.device(str(device))
        _check_operators(self._forms.evaluation, framework.name, place)
        # clone: memory allocated by torch, with the alignment that its kernels prefer.
        live = {
            name: from_numpy(network.initial(name)).clone().to(place)
            for name in (*network.parameter_specs, *network.buffer_specs)
        }
        super().__init__(
            network,
            {name: live[name].requires_grad_(name not in network.frozen) for name in network.parameter_specs},
            {name: live[name] for name in network.buffer_specs},
            device=device,
            seed=seed,
        )
        self._known, self._compiler = live, compiler
        if compiler is not None:
            self.capabilities = self.capabilities - {"early_gradients"}
            compiler.leaves = frozenset(self._leaves)
        self._active: Collection[str] = self._leaves
        self._ranks: RankStatistics | None = None

    def lend(self, other: GraphExecutor) -> None:
        """Let the executor of a variant read and write these tensors; see `TensorsByName.lend`."""
        if isinstance(other, PyTorchExecutor):
            other.adopt(self._known)
        else:
            super().lend(other)

    def adopt(self, tensors: Mapping[str, Any]) -> None:
        """Use other tensors as parameters and buffers; before anything has run."""
        if any(self._known[name] is not tensors[name] for name in self._known):
            network = self.network
            self._known = {name: tensors[name] for name in self._known}
            self._parameters = {name: self._known[name] for name in network.parameter_specs}
            self._buffers = {name: self._known[name] for name in network.buffer_specs}
            self._leaves = {name: self._parameters[name] for name in network.trained_specs}
        self._see_active()

    def take_back(self, other: GraphExecutor) -> None:
        """The tensors are shared, but other leaves may be active; see `TensorsByName.take_back`."""
        self._see_active()

    def _see_active(self) -> None:
        self._active = frozenset(name for name, tensor in self._parameters.items() if tensor.requires_grad)
        if self._compiler is not None:
            self._compiler.leaves = frozenset(self._active)

    @property
    def source(self) -> str:
        """The generated Python source of the forward pass in evaluation."""
        return self._evaluation.source

    @property
    def training_source(self) -> str:
        """The generated Python source of the forward pass in training."""
        return self._training.source

    @property
    def compilations(self) -> int:
        """Number of graphs that torch has compiled for this executor; 0 in eager mode."""
        return 0 if self._compiler is None else self._compiler.compilations

    @cached_property
    def _evaluation(self) -> Program:
        return self._program(self._forms.evaluation)

    @cached_property
    def _training(self) -> Program:
        network = self._forms.training.network
        if network is self._forms.evaluation:
            return self._evaluation
        if not self._forms.training.statistics:
            return self._program(self._forms.checked(network))
        if self._compiler is not None:
            program = self._program(self._forms.checked(network))
            return program._replace(call=self._of_classes(program.call))
        statistics = RunningStatistics(network, self._buffers)
        program = self._program(self._forms.checked(network), statistics.names)
        self._settle = statistics.settle
        call, count = program.call, len(self._outputs)

        def outputs_of(*feed: Any) -> tuple[Any, ...]:
            outputs = call(*feed)
            self._fresh = outputs[count:]
            return outputs[:count]

        return program._replace(call=outputs_of)

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Use batch normalization statistics over the batch of all ranks, from the next training pass on.

        Raises:
            Unsupported: torch compiles the pass, which does not allow communication inside.
        """
        if self._compiler is not None:
            raise Unsupported(
                "pytorch:compiled runs a pass as one compiled function, in which ranks cannot exchange statistics of "
                "batch normalization; allowed: 'pytorch'; remedy: framework 'pytorch', or synchronise_batch_norm=False"
            )
        self._ranks = ranks
        self.__dict__.pop("_training", None)

    def _of_classes(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled program, which updates running statistics as it runs: check labels before calling it."""
        # On a device, a check would have to wait.
        waits, network = self._place.type != "cpu", self.network
        found = label_inputs(network) if isinstance(network, Network) and not waits else []
        checks = [(labels.position, _class_check(labels, self.network.inputs[labels.name].dtype)) for labels in found]

        def outputs_of(*feed: Any) -> Any:
            for position, check in checks:
                check(feed[position])
            return call(*feed)

        return outputs_of

    def _program(self, network: Network, further: Sequence[str] = ()) -> Program:
        batch_norm = None if self._ranks is None else batch_norm_over_ranks(self._ranks)
        results = (*self._outputs, *further)
        program = compile_forward(
            network,
            results,
            self._known,
            self._place,
            self._operators,
            owned=True,
            batch_norm=batch_norm,
            stamps=self._stamps,
        )
        return program if self._compiler is None else program._replace(call=self._compiler(program.call, network))

    def _run(self, feed: list[Any], extents: Mapping[str, int], info: StepInfo | None, training: bool) -> Sequence[Any]:
        if not training:
            return self._evaluation.call(*feed)
        if self._ranks is not None:
            self._ranks.begin(info)
        if (form := self._forms.training).masks:
            masks = form.draw(extents, self._info(info))
            feed = [*feed, *(placed(from_numpy(mask), self._place) for mask in masks)]
        return self._training.call(*feed)

    def _backward(self, root: Any, loss_scale: float, chosen: tuple[Any, ...] | None) -> None:
        if self._stamps is None:
            super()._backward(root, loss_scale, chosen)
        else:
            with self._stamps.backward():
                super()._backward(root, loss_scale, chosen)

    def _differentiate(self, targets: Mapping[str, Any]) -> None:
        """Leaves that are not differentiated by store nothing for the backward pass and get no gradient."""
        if targets is not self._active:
            wanted = set(targets)
            if wanted != set(self._active):
                for name, tensor in self._parameters.items():
                    tensor.requires_grad_(name in wanted)
                if self._compiler is not None:
                    self._compiler.leaves = frozenset(wanted)
            self._active = targets if targets is self._leaves else wanted


def _class_check(labels: Labels, dtype: str) -> Callable[[Any], None]:
    """The check of a batch of labels on the host: torch's own, if it uses them as indices."""
    if labels.ignored is not None or dtype not in ("int32", "int64"):
        return lambda label: labels.check(label.numpy())
    classes = torch.empty(labels.classes)

    def check(label: Any) -> None:
        try:
            classes.index_select(0, label if label.ndim == 1 else label.flatten())
        except IndexError:
            labels.check(label.numpy())  # names the label
            raise

    return check


def _check_operators(network: Network, name: str, place: torch.device) -> None:
    """Reject registered operators without source for the device."""
    refused = []
    for node in network.nodes:
        try:
            if (operator := operator_of(node)) is not None:
                check_operator(operator, place.type)
        except Unsupported as error:
            refused.append(f"{node.name or node.op_type} ({node.op_type}): {error}")
    if refused:
        raise Unsupported(f"{name} cannot run this network on {place}:\n  " + "\n  ".join(refused))
