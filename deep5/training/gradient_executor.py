"""`GradientExecutor`: trains on any engine that runs ONNX forward.

The backward pass is part of the graph (`gradient_network`), the update is the compiled rule, and parameters are in host
memory that the engine reads in place. An engine only adds the execution of one network.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Unpack

import numpy as np
import onnx_ir as ir
from typing_extensions import override

from deep5.core.arguments import check_callable
from deep5.core.errors import ShapeError, Unsupported
from deep5.core.events import StepInfo
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework, Support
from deep5.core.tensors import Array, Arrays, Device, aligned_empty, numpy_dtype, to_numpy
from deep5.networks.constants import FLOATS
from deep5.networks.custom import is_custom
from deep5.networks.gradients import gradient_network
from deep5.networks.gradients.rules import CONSTANT, RULES
from deep5.networks.labels import label_inputs
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms
from deep5.networks.transforms.lowering import lowered
from deep5.training.rule import UpdateRule
from deep5.training.rule_step import StepOptions
from deep5.training.step import KernelStep
from deep5.training.training_executor import TrainingExecutor

__all__ = ["GradientExecutor", "Notify", "Run", "has_gradient"]

Notify = Callable[[int, Any], None]
_Key = tuple[Any, ...]


class Run(Protocol):
    """A runnable network."""

    def __call__(
        self, inputs: Sequence[Any], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        """Run once.

        Args:
            inputs: In the network's order.
            notify: Called with (number, value) for each announced output as soon as the engine provides it.
            into: The announced outputs of an earlier call without other references: memory that the engine may reuse
                for the outputs of this call.

        Returns:
            The outputs in the network's order: those not announced, and the announced ones. No later call writes to
            their memory while it is referenced, except if it is passed as `into`; announced outputs are C-contiguous
            and writable.
        """
        ...


class _Program(NamedTuple):
    """A runnable network and its outputs.

    Attributes:
        run: The engine's.
        outputs: Names of the first outputs: those of the executor's network.
        statistics: The buffers for the outputs after them.
        names: The tensors whose gradients the announced outputs are.
        loss_dtype: Element type of the loss.
    """

    run: Run
    outputs: tuple[str, ...]
    statistics: tuple[np.ndarray, ...] = ()
    names: tuple[str, ...] = ()
    loss_dtype: str = ""


@dataclass
class _Memory:
    """The announced outputs of a program, and their addresses, once requested."""

    arrays: Sequence[np.ndarray]
    places: dict[str, int] = field(default_factory=dict)


@dataclass
class _Gradients:
    """Gradients of the last call.

    Attributes:
        key: The key of the program that ran last.
        values: By name.
        memory: The part that the last program created.
        given: Whether a caller holds references.
        spent: Whether a whole training step has consumed them.
    """

    key: _Key
    values: dict[str, np.ndarray]
    memory: _Memory
    given: bool
    spent: bool = False


class GradientExecutor(TrainingExecutor):
    """Base of executors whose engine has no gradients; implements `GraphExecutor`.

    Args:
        network: The network; it is not changed.
        framework: The back-end.
        device: Where the engine runs; parameters are in host memory.
        seed: Only for noise.

    Raises:
        Unsupported: The engine cannot run some nodes; the message has the reason for each.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> network = d5.networks.mlp(features=4, hidden=8, classes=3)
    >>> executor = d5.framework("onnxruntime").executor(network)  # an engine without gradients
    >>> isinstance(executor, d5.GradientExecutor)
    True
    >>> outputs = executor.inference_and_backprop({"input": np.ones((2, 4), np.float32), "label": np.array([0, 2])})
    >>> {name: gradient.shape for name, gradient in executor.gradients().items()}
    {'fc1.weight': (8, 4), 'fc1.bias': (8,), 'fc2.weight': (3, 8), 'fc2.bias': (3,)}
    """

    capabilities: frozenset[str] = frozenset()

    def __init__(self, network: Network, framework: Framework, *, device: Device, seed: int = 0) -> None:
        super().__init__(network, device=device, seed=seed)
        self._forms = Forms(network, framework)
        # The live parameters and buffers, 64-byte aligned: the engine reads them.
        self._values: dict[str, np.ndarray] = {}
        for name in self._specs:
            initial = network.initial(name)
            self._values[name] = aligned_empty(initial.shape, initial.dtype)
            self._values[name][...] = initial
        self._labels = label_inputs(network)
        self._programs: dict[_Key, _Program] = {}
        self._last: _Gradients | None = None
        # Unreferenced gradient memory by program: a training loop allocates nothing.
        self._spare: dict[_Key, _Memory] = {}
        self._scale: tuple[Any, np.ndarray] = (None, np.array(0))
        # Called with the step before each training pass, if the program depends on it.
        self._before_training: Callable[[StepInfo | None], None] = lambda info: None

    @abstractmethod
    def compile(self, network: Network, announced: Sequence[str]) -> Run:
        """Make a network runnable; its parameters and buffers are those of this executor, read in place.

        Args:
            network: One of this executor's, forward or with gradients.
            announced: Names of its last outputs, which `notify` reports.
        """

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Threads, dtype, TF32 and determinism as read back from the engine; see `GraphExecutor.settings`."""

    def suited(self, network: Network) -> Network:
        """A network with gradients in other operators, if the engine lacks these or has faster ones.

        Args:
            network: The network with gradients, after all expansions.
        """
        return network

    def _in_training(self, network: Network) -> Network:
        """The training network as this executor runs it, before its gradient is derived."""
        return network

    def _dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def _native(self, name: str, value: Any) -> Any:
        try:
            array = value if type(value) is np.ndarray else to_numpy(value)
            return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
        except Unsupported as error:
            raise ShapeError(f"input {name!r}: {error}") from error

    def _live(self, name: str) -> Any:
        return self._values[name]

    def _assign(self, name: str, value: np.ndarray) -> None:
        self._values[name][...] = value

    def _feed(self, inputs: Arrays, *, empty: bool = False) -> tuple[list[Any], dict[str, int]]:
        fed, extents = super()._feed(inputs, empty=empty)
        for labels in self._labels:
            labels.check(fed[labels.position])
        return fed, extents

    @override
    def inference(self, inputs: Arrays, *, training: bool = False, info: StepInfo | None = None) -> Arrays:
        """See `GraphExecutor.inference`."""
        self._recent = inputs, training, info
        if self._feeding is not None and self._feeding.is_fed(inputs):
            return self._feeding.inference(inputs, training, info)
        fed, extents = self._feed(inputs, empty=not training)
        program = self._programs.get(("forward", training)) or self._runnable(self._forward, training)
        if training and self._forms.training.masks:
            fed += self._forms.training.draw(extents, self._info(info))
        if training:
            self._before_training(info)
        results, _ = program.run(fed)
        return self._outputs(program, results)

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
        """See `GraphExecutor.inference_and_backprop`."""
        if wrt is not None and wrt is not self._direct and (between := self._between(wrt)):
            return self._backprop_between(
                between,
                inputs,
                loss,
                info=info,
                wrt=wrt,
                accumulate=accumulate,
                loss_scale=loss_scale,
                on_gradient=on_gradient,
            )
        if on_gradient is not None:
            check_callable("on_gradient", on_gradient, "(name, gradient)")
        fed, extents = self._feed(inputs)
        # Any failure from here on leaves no gradients.
        last, self._last = self._last, None
        if type(loss) is not str:
            self._check_loss(loss)
        if wrt is not None and type(wrt) is not tuple:
            wrt = self._check_wrt(wrt)
        key = ("gradients", loss, wrt)
        try:
            program = self._programs.get(key)
        except TypeError:  # no name in it
            program = None
        program = program or self._runnable(self._backward, key, loss, wrt)
        if self._forms.training.masks:
            fed += self._forms.training.draw(extents, self._info(info))
        fed.append(self._loss_scale(self._check_scale(loss, loss_scale), program.loss_dtype))
        adds = accumulate and last is not None and not last.spent
        earlier = last.values if adds and last is not None else {}
        for position, (name, _) in enumerate(self._inputs if earlier else ()):
            if name in earlier and name in program.names:
                self._check_sum(name, earlier[name].shape, fed[position].shape)
        if last is not None and not adds:
            self._recycle(last)
        memory = self._spare.pop(key, None)

        def add(index: int, gradient: np.ndarray) -> None:
            if (name := program.names[index]) in earlier:
                np.add(earlier[name], gradient, out=gradient)

        def announce(index: int, gradient: np.ndarray) -> None:
            add(index, gradient)
            if on_gradient is not None:
                on_gradient(program.names[index], gradient)

        notify = None if on_gradient is None else announce
        self._before_training(info)
        results, arrays = program.run(fed, notify, None if memory is None else memory.arrays)
        if earlier and notify is None:
            for index, gradient in enumerate(arrays):
                add(index, gradient)
        if last is not None and adds and last.key == key:
            self._recycle(last)  # the sums are in other memory now
        if memory is None or arrays is not memory.arrays:
            memory = _Memory(arrays)
        values = {**earlier, **dict(zip(program.names, arrays, strict=True))}
        self._last = _Gradients(key, values, memory, given=on_gradient is not None)
        return self._outputs(program, results)

    def gradients(self) -> Arrays:
        """Gradients of the last `inference_and_backprop`, C-contiguous; later calls do not change them.

        Raises:
            Unsupported: No backward pass has run yet, or the last call failed.
        """
        if self._last is None:
            self._refuse_gradients()
        self._last.given = True
        return dict(self._last.values)

    def lend(self, other: GraphExecutor) -> None:
        """Let the executor of a variant read and write this executor's memory; see `TensorsByName.lend`."""
        if isinstance(other, GradientExecutor) and any(
            value is not self._values[name] for name, value in other._values.items()
        ):
            other.parameters()  # an engine that keeps copies of its own reads the memory from now on
            other._values = {name: self._values[name] for name in other._values}
            other.discard_programs()

    def take_back(self, other: GraphExecutor) -> None:
        """The memory is shared, and an engine must see what changed; see `TensorsByName.take_back`."""
        self.buffers()

    def _addends(self) -> Arrays:
        return {} if self._last is None or self._last.spent else self._last.values

    def _set_gradients(self, values: Mapping[str, Any] | None) -> None:
        self._last = None if values is None else _Gradients(("by name",), dict(values), _Memory(()), given=True)

    def parameters(self) -> Arrays:
        """The live parameters: C-contiguous NumPy arrays, 64-byte aligned; write into them in place."""
        return {name: self._values[name] for name in self.network.parameter_specs}

    def buffers(self) -> Arrays:
        """The live running statistics, like `parameters`."""
        return {name: self._values[name] for name in self.network.buffer_specs}

    def _make_step(self, rule: UpdateRule, loss: str, **options: Unpack[StepOptions]) -> KernelStep:
        return KernelStep(
            self,
            rule,
            loss=loss,
            **options,
            threads=self._threads(),
            locate=self._locate,
            spend=self.spend,
        )

    def discard_programs(self) -> None:
        """Recompile at the next call: the options of compiled programs are fixed."""
        self._programs.clear()

    def synchronize(self) -> None:
        """Return immediately: the engine has finished when a call returns."""

    def _threads(self) -> int:
        """How many threads the update may use."""
        return 1

    def _recycle(self, gradients: _Gradients) -> None:
        if not gradients.given:
            self._spare[gradients.key] = gradients.memory

    def _locate(self, names: Sequence[str]) -> Sequence[int]:
        """Addresses of gradients of the last call; unlike with `gradients`, the executor retains ownership."""
        if self._last is None:
            self._refuse_gradients()
        places = self._last.memory.places
        if not places:
            for name, array in self._last.values.items():
                places[name] = array.__array_interface__["data"][0]
        return [places[name] for name in names]

    def spend(self) -> None:
        """Mark the gradients as consumed by a whole training step: they stay readable, but nothing is added to them."""
        if self._last is not None:
            self._last.spent = True

    def _loss_scale(self, number: float, dtype: str) -> np.ndarray:
        if self._scale[0] != (number, dtype):
            self._scale = (number, dtype), np.array(number, dtype=dtype)
        return self._scale[1]

    def _forward(self, training: bool) -> _Program:
        evaluation, form = self._forms.evaluation, self._forms.training if training else None
        if form is None or form.network is evaluation:
            program = _Program(self.compile(evaluation, ()), tuple(self.network.outputs))
            # One program serves both modes if training makes no difference.
            self._programs[("forward", False)] = program
        else:
            from deep5.networks.gradients.batch_normalization import expand_training

            network = self._forms.checked(expand_training(self._in_training(form.network)))
            program = _Program(self.compile(network, ()), tuple(self.network.outputs), self._statistics())
        self._programs[("forward", training)] = program
        return program

    def _backward(self, key: _Key, loss: str, wrt: Sequence[str] | None) -> _Program:
        self._check_loss(loss)
        names = self._check_wrt(wrt)
        network = lowered(self._in_training(self._forms.differentiated), has_gradient)
        network = self._forms.checked(self.suited(self._forms.lowered(gradient_network(network, loss, names))))
        run = self.compile(network, [f"grad:{name}" for name in names])
        program = _Program(
            run, tuple(self.network.outputs), self._statistics(), names, self.network.outputs[loss].dtype
        )
        self._programs[key] = program
        return program

    def _statistics(self) -> tuple[np.ndarray, ...]:
        return tuple(self._values[name] for name in self._forms.training.statistics)

    def _outputs(self, program: _Program, results: Sequence[np.ndarray]) -> Arrays:
        """The network's own outputs by name; copies new running statistics into their buffers."""
        if program.statistics:
            for buffer, value in zip(program.statistics, results[len(program.outputs) :], strict=True):
                buffer[...] = value
            results = results[: len(program.outputs)]
        return dict(zip(program.outputs, results, strict=True))


def has_gradient(node: ir.Node) -> Support:
    """Whether the gradient of a node can be derived, so that an engine's own layer need not be expanded."""
    known = is_custom(node) or (not node.domain and (node.op_type in RULES or node.op_type in CONSTANT))
    return Support(known or not any(value.dtype in FLOATS for value in node.outputs), "it has no gradient rule")
