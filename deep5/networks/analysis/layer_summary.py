"""`LayerTimes`: the times of a network's layers, computed from the measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import onnx_ir as ir

from deep5.core.layer_clock import Pass
from deep5.networks.analysis.layer_clock import WARMUPS
from deep5.networks.network import Network

__all__ = ["LayerTime", "LayerTimes", "summary"]

# If layers run as one, the first of these gets the time; without any of these, the first layer.
_PRODUCTS = frozenset(("Conv", "ConvTranspose", "Einsum", "GRU", "Gemm", "LSTM", "MatMul", "RNN"))


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Times of a layer: medians, in seconds.

    Attributes:
        name: The node's name.
        op_type: Its operator; with its domain as a prefix if that is not ONNX's own.
        forward_s: In inference; 0 if nothing runs (it was folded, or passes its input on); None if the time is not
            available, or is part of the time of `within`.
        training_forward_s: The same in the forward pass of a training step.
        backward_s: Time of its gradient in that step; a reader's time includes the sum for a value with several
            readers.
        within: The layer whose time includes this one's, if the framework fuses both; None: none.

    >>> import deep5 as d5
    >>> (times,) = d5.networks.layer_times(d5.networks.mlp(), "reference", batches=[16], repetitions=1)
    >>> layer = times.layers[0]
    >>> layer.name, layer.op_type, layer.forward_s > 0, layer.backward_s > 0
    ('Gemm_1', 'Gemm', True, True)
    """

    name: str
    op_type: str
    forward_s: float | None
    training_forward_s: float | None
    backward_s: float | None
    within: str | None = None


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """The result of `layer_times` at one batch size; medians, in seconds.

    Times of layers and times of whole passes come from separate passes, with and without instruments: `forward_s`
    corresponds to `whole_forward_s`, and `training_forward_s + backward_s` to `whole_step_s`. If the whole is larger,
    the difference is the overhead of calling the framework; if it is smaller, that of the instruments. On a busy
    machine a long pass is interrupted more often than each of its layers, so the layers' medians sum to less.
    `instrumented_forward_s` and `instrumented_step_s`, which are interrupted as often as the wholes, separate this
    effect from the other two.

    Attributes:
        network: The network's name.
        framework: `"pytorch"`, or with a mode, `"pytorch:compiled"`.
        batch: Samples.
        layers: Every node in execution order, without constants.
        forward_s: Sum of the layers' times in inference; None: not available.
        training_forward_s: The same in the forward pass of a training step.
        backward_s: The same in its backward pass.
        instrumented_forward_s: Sum of the layers' times within one pass of inference, as the median of the passes.
        instrumented_step_s: The same for a training step, forward and backward.
        whole_forward_s: An `inference` without instruments.
        whole_step_s: An `inference_and_backprop` without instruments; None: not available.
        repetitions: Number of passes of each kind in the medians.
        unavailable: Why layer times, or the whole step, are None; None: all requested times are available.

    >>> import deep5 as d5
    >>> (times,) = d5.networks.layer_times(d5.networks.mlp(), "reference", batches=[16], repetitions=1)
    >>> times.framework, times.batch, [layer.name for layer in times.layers]
    ('reference', 16, ['Gemm_1', 'Tanh_1', 'Gemm_2', 'SoftmaxCrossEntropyLoss_1'])
    >>> sorted(times.by_type())  # the values are seconds, forward and backward
    ['Gemm', 'SoftmaxCrossEntropyLoss', 'Tanh']
    """

    network: str
    framework: str
    batch: int
    layers: tuple[LayerTime, ...]
    forward_s: float | None
    training_forward_s: float | None
    backward_s: float | None
    instrumented_forward_s: float | None
    instrumented_step_s: float | None
    whole_forward_s: float
    whole_step_s: float | None
    repetitions: int
    unavailable: str | None

    def by_type(self) -> dict[str, tuple[float | None, float | None]]:
        """Seconds forward (in inference) and backward by operator, slowest first.

        Returns:
            Sums over the layers whose time is known; None if the operator has no such layer.
        """
        kinds: defaultdict[str, list[LayerTime]] = defaultdict(list)
        for layer in self.layers:
            kinds[layer.op_type].append(layer)
        sums = {
            kind: (_sum(layer.forward_s for layer in layers), _sum(layer.backward_s for layer in layers))
            for kind, layers in kinds.items()
        }
        return dict(sorted(sums.items(), key=lambda each: -((each[1][0] or 0.0) + (each[1][1] or 0.0))))


def summary(
    network: Network,
    framework: str,
    batch: int,
    wholes: tuple[Sequence[float], Sequence[float]],
    passes: tuple[Sequence[Pass], Sequence[Pass]] | None,
    unavailable: str | None,
) -> LayerTimes:
    """The medians after the warm-up.

    Args:
        network: The network whose layers were timed.
        framework: Its name, with the mode.
        batch: Samples.
        wholes: Seconds of inference and of training steps without instruments, including the warm-up.
        passes: The same with instruments; None: not measured.
        unavailable: Why something is missing.
    """
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
        framework=framework,
        batch=batch,
        layers=tuple(layers),
        forward_s=sums[0],
        training_forward_s=sums[1],
        backward_s=sums[2],
        instrumented_forward_s=median(sum(one.values()) for one in forward) if forward else None,
        instrumented_step_s=median(sum(one.values()) for one in steps) if steps else None,
        whole_forward_s=median(wholes[0][WARMUPS:]),
        whole_step_s=median(wholes[1][WARMUPS:]) if wholes[1] else None,
        repetitions=len(wholes[0]) - WARMUPS,
        unavailable=unavailable,
    )


class _Part:
    """The times of layers in one kind of pass.

    Args:
        passes: The measurements.
        backward: Whether to use the times of gradients.
        products: Names of the layers that a group of layers is named after.

    Attributes:
        times: Medians by layer, in seconds.
        within: For a layer without a separate time, the layer whose time includes it.
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
        """The time of a layer; None if it is part of another layer's time, or nothing was measured."""
        if not self._any or name in self.within:
            return None
        return self.times.get(name, 0.0)


def _op_type(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _sum(times: Iterable[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if known else None
