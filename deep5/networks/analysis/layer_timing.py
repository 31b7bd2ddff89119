"""`layer_times`: measure the time of each layer of a network, forward and backward."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from time import perf_counter

from deep5.core import plugins
from deep5.core.arguments import is_whole
from deep5.core.errors import Deep5Error, NetworkError, Unsupported, UsageError, brief
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.layer_clock import LayerClock
from deep5.core.tensors import Arrays
from deep5.networks.analysis.extents import chosen_extents
from deep5.networks.analysis.layer_clock import WARMUPS
from deep5.networks.analysis.layer_summary import LayerTimes, summary
from deep5.networks.arguments import check_network
from deep5.networks.network import Network
from deep5.networks.random_feed import random_feed

__all__ = ["layer_times"]

_MOST_REPETITIONS = 10_000
# Length of a framework's message.
_MOST_LETTERS = 400


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
    """Time the layers of a network at several batch sizes, forward and backward, and the whole network.

    PyTorch and the reference are timed by stamps between the lines of the program, ONNX Runtime and OpenVINO by their
    own profilers, in integer microseconds (OpenVINO reports only means, no medians). Passes with and without
    instruments alternate in one process, after three warm-up passes of each. Inputs are random. If a framework compiles
    a pass as a whole there are no layer times, and `unavailable` says so. There is no training step for a network
    without the loss, without its gradient, or with frozen parameters only.

    Args:
        network: The network; it is not changed.
        framework: The back-end, or its name, with a mode after a colon.
        batches: Values for the first dimension of every input, if it is symbolic and not in `extents`, in this order.
        backward: Whether to time a training step too.
        loss: The output to differentiate.
        repetitions: Passes of each kind, 1 to 10000.
        extents: Other symbolic dimensions by name, `{"length": 35}`.
        device: Where it runs; each stamp waits for it.
        seed: Seed of the inputs.

    Returns:
        One entry per batch size, in the order given.

    Raises:
        UsageError: `batches` is empty, contains a duplicate or anything but integers of at least 1; `repetitions` is
            invalid; the seed is not an integer; or the argument is not a network.
        NetworkError: A batch size applies to no dimension, another dimension has no value, or `extents` names an
            unknown one; or the framework fails on the network, with its reason.
        UnknownName: Unknown back-end.
        MissingDependency: It is not installed.
        Unsupported: It cannot run the network.

    >>> import deep5 as d5
    >>> found = d5.networks.layer_times(d5.networks.mlp(), "reference", batches=[4, 1], repetitions=1)
    >>> [times.batch for times in found]
    [4, 1]
    >>> found[0].whole_step_s > 0, [layer.name for layer in found[0].layers if layer.op_type == "Gemm"]
    (True, ['Gemm_1', 'Gemm_2'])
    """
    check_network(network, "layer_times")
    sizes = _checked(batches, repetitions, seed)
    chosen = {batch: chosen_extents(network, batch, {} if extents is None else extents) for batch in sizes}
    backend = plugins.framework(framework) if isinstance(framework, str) else framework
    measured = []
    for batch in sizes:
        with _failures_reported(backend.name, batch):
            executor = backend.executor(network, device=device)
            whole = _Whole(executor, random_feed(network, chosen[batch], seed), repetitions)
            reasons = []
            with _undisturbed(), ExitStack() as stack:
                clock = None
                try:
                    clock = stack.enter_context(closing(backend.layer_clock(network, device=device)))
                except Unsupported as error:
                    reasons.append(str(error))
                whole.infer(clock)
                if backward and (reason := whole.step(clock, loss)):
                    reasons.append(reason)
                passes = None if clock is None else clock.passes()
        wholes = whole.forward, whole.steps
        measured.append(summary(network, backend.name, batch, wholes, passes, "; ".join(reasons) or None))
    return measured


class _Whole:
    """Passes without instruments, which alternate with instrumented ones.

    Inference is timed first: some executors run it differently after a training step.

    Args:
        executor: The executor without instruments.
        feed: Inputs.
        repetitions: Passes of each kind after the warm-up.

    Attributes:
        forward: Seconds of inference, including the warm-up.
        steps: The same for training.
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
        """Time forward and backward; returns the reason if there is no backward pass."""
        if loss not in self._executor.network.outputs:
            return f"there is no backward pass: the network has no output {loss!r}; its outputs are " + ", ".join(
                self._executor.network.outputs
            )
        network = self._executor.network
        if not network.parameter_specs.keys() - network.frozen:
            why = "all parameters are frozen" if network.parameter_specs else "the network has no parameters"
            return f"there is no backward pass: {why}"
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
def _failures_reported(framework: str, batch: int) -> Iterator[None]:
    """Report an exception of the framework as its failure on the network."""
    try:
        yield
    except Deep5Error:
        raise
    except Exception as error:
        raise NetworkError(
            f"{framework} fails at the network with batch {batch}: {type(error).__name__}: "
            f"{' '.join(str(error).split())[:_MOST_LETTERS]}; allowed: a network that it runs, at a size that memory "
            "holds; remedy: another framework, or a smaller batch"
        ) from error


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Disable automatic garbage collection: its time would be charged to an arbitrary layer."""
    gc.collect()
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _checked(batches: Sequence[int], repetitions: int, seed: int) -> tuple[int, ...]:
    sizes = tuple(batches) if isinstance(batches, Iterable) and not isinstance(batches, (str, bytes)) else ()
    if not sizes or not all(is_whole(batch) and batch >= 1 for batch in sizes) or len(set(sizes)) < len(sizes):
        raise UsageError(
            f"got batches={brief(batches)}; allowed: integers of at least 1, one or more, each once; remedy: "
            "batches=[16, 1]"
        )
    if not is_whole(repetitions) or not 1 <= repetitions <= _MOST_REPETITIONS:
        raise UsageError(
            f"got repetitions={brief(repetitions)}; allowed: an integer from 1 to {_MOST_REPETITIONS}; "
            "remedy: repetitions=10"
        )
    if not is_whole(seed):
        raise UsageError(f"got seed={brief(seed)}; allowed: an integer; remedy: seed=0")
    return tuple(int(batch) for batch in sizes)
