"""`layer_times`: how long each layer of a network takes, forward and backward, measured."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import onnx_ir as ir

from deep5 import plugins
from deep5.arguments import is_whole
from deep5.backend import Framework
from deep5.errors import NetworkError, Unsupported, UsageError, brief
from deep5.executors import GraphExecutor
from deep5.networks.analysis import chosen_extents
from deep5.networks.layer_clock import WARMUPS, LayerClock, Pass
from deep5.networks.network import Network
from deep5.networks.random_feed import random_feed
from deep5.tensors import Arrays

__all__ = ["LayerTime", "LayerTimes", "layer_times"]

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
    own profilers, in whole microseconds (OpenVINO's has means alone, no medians). Passes with instruments and without
    take turns in one process, after three of each as a warm-up. Inputs are drawn at random. Where a framework compiles
    a pass as a whole there are no parts, and `unavailable` says so; nor is there a step of training for a network
    without the loss, or without its gradient.

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
    measured = []
    for batch in sizes:
        feed = random_feed(network, chosen_extents(network, batch, extents or {}), seed)
        whole = _Whole(backend.executor(network, device=device), feed, repetitions)
        with _undisturbed(), ExitStack() as stack:
            clock, reason = None, None
            try:
                clock = stack.enter_context(closing(backend.layer_clock(network, device=device)))
            except Unsupported as error:
                reason = str(error)
            whole.infer(clock)
            if backward:
                reason = whole.step(clock, loss) or reason
            passes = None if clock is None else clock.passes()
        measured.append(_result(network, backend, batch, whole, passes, repetitions, reason))
    return measured


class _Whole:
    """Passes without instruments, which take turns with those that have them.

    Inference is timed first: some executors run it in another way once they train.

    Args:
        executor: Without instruments.
        feed: Inputs.
        repetitions: How many passes of each kind, after the warm-up.

    Attributes:
        forward: Seconds of inference, the warm-up among them.
        steps: Likewise of training.
    """

    def __init__(self, executor: GraphExecutor, feed: Arrays, repetitions: int) -> None:
        self._executor, self._feed, self._repetitions = executor, feed, repetitions
        self.forward: list[float] = []
        self.steps: list[float] = []

    def infer(self, clock: LayerClock | None) -> None:
        """Time inference."""
        own = partial(self._executor.inference, self._feed)
        self._alternate(self.forward, own, None if clock is None else partial(clock.inference, self._feed))

    def step(self, clock: LayerClock | None, loss: str) -> str | None:
        """Time forward and backward; gives the reason where there is none."""
        if loss not in self._executor.network.outputs:
            return f"there is no backward pass: the network has no output {loss!r}; its outputs are " + ", ".join(
                self._executor.network.outputs
            )
        own = partial(self._executor.inference_and_backprop, self._feed, loss)
        try:
            own()
        except Unsupported as error:
            return f"there is no backward pass: {error}"
        instrumented = None if clock is None else partial(clock.inference_and_backprop, self._feed, loss)
        self._alternate(self.steps, own, instrumented)
        return None

    def _alternate(
        self, times: list[float], own: Callable[[], object], instrumented: Callable[[], object] | None
    ) -> None:
        for _ in range(WARMUPS + self._repetitions):
            gc.collect(0)
            self._executor.synchronize()
            begin = perf_counter()
            own()
            self._executor.synchronize()
            times.append(perf_counter() - begin)
            if instrumented is not None:
                instrumented()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """While inside, Python collects no garbage by itself: a layer would pay for another's."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
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
    forward, steps = [one[WARMUPS:] for one in passes] if passes else ([], [])
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
        whole_forward_s=median(whole.forward[WARMUPS:]),
        whole_step_s=median(whole.steps[WARMUPS:]) if whole.steps else None,
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
