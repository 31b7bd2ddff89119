"""`layer_times`: how long each layer of a network takes, forward and backward, measured."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import onnx_ir as ir

from deep5 import plugins
from deep5.arguments import is_whole
from deep5.backend import Framework
from deep5.errors import NetworkError, Unsupported, UsageError, brief
from deep5.executors import GraphExecutor
from deep5.networks.analysis import chosen_extents
from deep5.networks.layer_clock import LayerClock, Pass
from deep5.networks.network import Network
from deep5.networks.random_feed import random_feed
from deep5.tensors import Arrays

__all__ = ["LayerTime", "LayerTimes", "layer_times"]

_WARMUPS = 3
_MOST_REPETITIONS = 10_000
# Where layers run as one, the time is that of the first of these; else of the first.
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"))


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """How long a layer takes: medians, in seconds.

    Attributes:
        name: The node's name.
        op_type: Its operator; of another domain than ONNX's own with that in front.
        forward_s: In inference; 0 where nothing runs (it was computed in advance, or hands its input on); None where
            it is not available, or is part of the time of `within`.
        training_forward_s: Likewise in the forward pass of a step of training.
        backward_s: Of its gradient there; of a value with several readers, a reader's time has the sum.
        within: The layer whose time has this one's in it, where the framework runs both as one; None: none.
    """

    name: str
    op_type: str
    forward_s: float | None
    training_forward_s: float | None
    backward_s: float | None
    within: str | None = None


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """What `layer_times` measured at one batch size; medians, in seconds.

    The parts are of instrumented passes, the wholes of others: `forward_s` belongs to `whole_forward_s`, and
    `training_forward_s + backward_s` to `whole_step_s`. What the whole has more is the way into the framework and out
    of it; what it has less is what the instruments cost.

    Attributes:
        network: Its name.
        framework: `"pytorch"`, or with a mode, `"pytorch:compiled"`.
        batch: Samples.
        layers: Every node in the order of execution, constants left out.
        forward_s: Sum of the parts in inference; None: not available.
        training_forward_s: Likewise in the forward pass of a step of training.
        backward_s: Likewise in its backward pass.
        whole_forward_s: An `inference` without instruments.
        whole_step_s: An `inference_and_backprop` without instruments; None: there is none.
        repetitions: Passes of each kind that the medians are of.
        unavailable: Why parts, or the whole step, are None; None: nothing is missing that was asked for.
    """

    network: str
    framework: str
    batch: int
    layers: tuple[LayerTime, ...]
    forward_s: float | None
    training_forward_s: float | None
    backward_s: float | None
    whole_forward_s: float
    whole_step_s: float | None
    repetitions: int
    unavailable: str | None

    def by_type(self) -> dict[str, tuple[float | None, float | None]]:
        """Seconds forward (in inference) and backward by operator, those that take longest first.

        Returns:
            Sums over the layers whose time is known; None where none of the operator's is.
        """
        kinds: defaultdict[str, list[LayerTime]] = defaultdict(list)
        for layer in self.layers:
            kinds[layer.op_type].append(layer)
        sums = {
            kind: (_sum(layer.forward_s for layer in layers), _sum(layer.backward_s for layer in layers))
            for kind, layers in kinds.items()
        }
        return dict(sorted(sums.items(), key=lambda each: -((each[1][0] or 0.0) + (each[1][1] or 0.0))))


def layer_times(
    network: Network,
    framework: Framework | str = "pytorch",
    batches: Sequence[int] = (256, 128, 64, 32, 16, 8, 4, 2, 1),
    *,
    backward: bool = True,
    loss: str = "loss",
    repetitions: int = 10,
    extents: Mapping[str, int] | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> list[LayerTimes]:
    """Time the layers of a network at several batch sizes, forward and backward, beside the whole.

    PyTorch and the reference are timed by stamps between the lines of the program, ONNX Runtime and OpenVINO by their
    own profilers, in whole microseconds. Passes with instruments and without take turns in one process, after three of
    each as a warm-up. Inputs are drawn at random. Where a framework compiles a pass as a whole there are no parts, and
    `unavailable` says so; nor is there a backward pass for a network without the loss.

    Args:
        network: The network; it is not changed.
        framework: The back-end, or its name, with a mode behind a colon.
        batches: What the symbolic extents of the inputs are set to that `extents` does not name, one after the other.
        backward: Whether a step of training is timed too.
        loss: The output to differentiate.
        repetitions: Passes of each kind, 1 to 10000.
        extents: Other symbolic extents by name, `{"length": 35}`.
        device: Where it runs; each stamp waits for it.
        seed: Of the inputs.

    Returns:
        One a batch size, in the order given.

    Raises:
        UsageError: `batches` holds no or other than whole numbers of at least 1; `repetitions` likewise.
        NetworkError: No extent of an input is left to set to a batch size, or `extents` names one that is not there.
        UnknownName: No back-end has that name.
        MissingDependency: It is not installed.
        Unsupported: It cannot run the network.
    """
    sizes = _checked(network, batches, repetitions, extents or {})
    backend = plugins.framework(framework) if isinstance(framework, str) else framework
    executor = backend.executor(network, device=device)
    missing = None if loss in network.outputs or not backward else f"the network has no output {loss!r}"
    measured = []
    for batch in sizes:
        feed = random_feed(network, chosen_extents(network, batch, extents or {}), seed)
        whole = _Whole(executor, feed, loss if backward and missing is None else None)
        try:
            clock = backend.layer_clock(network, device=device)
        except Unsupported as error:
            _alternate(whole.calls, repetitions)
            measured.append(_result(network, backend, batch, whole, None, repetitions, str(error)))
            continue
        with closing(clock):
            whole.instrumented(clock)
            _alternate(whole.calls, repetitions)
            measured.append(
                _result(network, backend, batch, whole, clock.passes(), repetitions, missing or whole.reason)
            )
    return measured


class _Whole:
    """The passes that take turns.

    Args:
        executor: Without instruments.
        feed: Inputs.
        loss: What a step differentiates; None: there is none.

    Attributes:
        calls: Each kind of pass once.
        forward: Seconds of those in inference without instruments.
        steps: Likewise of training.
        reason: Why there is no step although it was asked for.
    """

    def __init__(self, executor: GraphExecutor, feed: Arrays, loss: str | None) -> None:
        self._executor, self._feed, self._loss = executor, feed, loss
        self.forward: list[float] = []
        self.steps: list[float] = []
        self.reason: str | None = None
        self.calls: list[Callable[[], object]] = [self._timed(self.forward, executor.inference, feed)]
        if loss is None:
            return
        try:
            executor.inference_and_backprop(feed, loss)
        except Unsupported as error:
            self.reason, self._loss = str(error), None
        else:
            self.calls.append(self._timed(self.steps, executor.inference_and_backprop, feed, loss))

    def instrumented(self, clock: LayerClock) -> None:
        """Have passes with instruments take turns with the others."""
        self.calls.insert(1, lambda: clock.inference(self._feed))
        if (loss := self._loss) is not None:
            self.calls.append(lambda: clock.inference_and_backprop(self._feed, loss))

    def _timed(self, times: list[float], run: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
        def call() -> None:
            self._executor.synchronize()
            begin = perf_counter()
            run(*arguments)
            self._executor.synchronize()
            times.append(perf_counter() - begin)

        return call


def _alternate(calls: Sequence[Callable[[], object]], repetitions: int) -> None:
    gc.collect()
    collects = gc.isenabled()
    gc.disable()  # so that no layer pays for another's garbage
    try:
        for _ in range(_WARMUPS + repetitions):
            gc.collect(0)
            for call in calls:
                call()
    finally:
        if collects:
            gc.enable()


def _result(
    network: Network,
    framework: Framework,
    batch: int,
    whole: _Whole,
    passes: tuple[Sequence[Pass], Sequence[Pass]] | None,
    repetitions: int,
    reason: str | None,
) -> LayerTimes:
    nodes = [node for node in network.nodes if node.op_type != "Constant" or node.domain]
    forward, steps = [one[_WARMUPS:] for one in passes] if passes else ([], [])
    products = {str(node.name) for node in nodes if node.op_type in _PRODUCTS and not node.domain}
    kinds = [_Part(forward, False, products), _Part(steps, False, products), _Part(steps, True, products)]
    layers = []
    for node in nodes:
        name = str(node.name)
        times = [kind.time(name) for kind in kinds]
        within = next((kind.within[name] for kind in kinds if name in kind.within), None)
        layers.append(
            LayerTime(
                name=name,
                op_type=_op_type(node),
                forward_s=times[0],
                training_forward_s=times[1],
                backward_s=times[2],
                within=within,
            )
        )
    sums = [_sum(kind.times.values()) for kind in kinds]
    return LayerTimes(
        network=str(network.model.graph.name),
        framework=framework.name,
        batch=batch,
        layers=tuple(layers),
        forward_s=sums[0],
        training_forward_s=sums[1],
        backward_s=sums[2],
        whole_forward_s=median(whole.forward[_WARMUPS:]),
        whole_step_s=median(whole.steps[_WARMUPS:]) if whole.steps else None,
        repetitions=repetitions,
        unavailable=reason,
    )


class _Part:
    """The times of layers in one kind of pass.

    Args:
        passes: What was measured.
        backward: Whether gradients are meant.
        products: Names of the layers that a group of layers is called by.

    Attributes:
        times: Medians by layer, in seconds.
        within: By a layer without a time of its own, the layer whose time has it.
    """

    def __init__(self, passes: Sequence[Pass], backward: bool, products: set[str]) -> None:
        self._any = bool(passes)
        found: list[dict[str, float]] = []
        self.within: dict[str, str] = {}
        for one in passes:
            sums: dict[str, float] = {}
            for group, seconds in one.items():
                if group.backward == backward:
                    first = next((layer for layer in group.layers if layer in products), group.layers[0])
                    sums[first] = sums.get(first, 0.0) + seconds
                    self.within.update((layer, first) for layer in group.layers if layer != first)
            found.append(sums)
        names = dict.fromkeys(name for sums in found for name in sums)
        self.times = {name: median(sums.get(name, 0.0) for sums in found) for name in names}
        self.within = {layer: first for layer, first in self.within.items() if layer not in self.times}

    def time(self, name: str) -> float | None:
        """Of a layer; None where it is part of another's, or nothing was measured."""
        if not self._any or name in self.within:
            return None
        return self.times.get(name, 0.0)


def _checked(network: Network, batches: Sequence[int], repetitions: int, extents: Mapping[str, int]) -> tuple[int, ...]:
    sizes = tuple(batches) if isinstance(batches, Iterable) and not isinstance(batches, (str, bytes)) else ()
    if not sizes or not all(is_whole(batch) and batch >= 1 for batch in sizes):
        raise UsageError(
            f"got batches={brief(batches)}; allowed: whole numbers of at least 1, one or more; remedy: batches=[16, 1]"
        )
    if not is_whole(repetitions) or not 1 <= repetitions <= _MOST_REPETITIONS:
        raise UsageError(
            f"got repetitions={brief(repetitions)}; allowed: a whole number from 1 to {_MOST_REPETITIONS}; "
            "remedy: repetitions=10"
        )
    symbols = {extent for spec in network.inputs.values() for extent in spec.shape if isinstance(extent, str)}
    if not symbols - extents.keys():
        raise NetworkError(
            f"no extent of an input is left for the batch size: got {', '.join(map(str, network.inputs.values()))}, "
            f"extents={dict(extents)}; allowed: a symbolic one that extents does not name"
        )
    return tuple(int(batch) for batch in sizes)


def _op_type(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _sum(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if known else None
