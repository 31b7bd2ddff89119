"""Utilization: the fraction of the machine's measured peak that training reaches."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error, TooFewSamples, Unsupported
from deep5.core.events import StepInfo
from deep5.core.metric import FirstCalls, Metric, Observer, Sample
from deep5.core.plugins import framework, registered
from deep5.core.tensors import Arrays, numpy_dtype
from deep5.measuring.samples import median_interval
from deep5.metrics.network_flops import forward_flops
from deep5.metrics.training_set import first_batch

__all__ = ["Utilisation"]

# Forward, and the gradients by inputs and by weights, each of equal work.
_PASSES = 3
# Sizes of the square products that measure the peak; the larger ones if they are fast.
_SIZES, _LARGE_SIZES = (512, 1024, 2048), (4096, 8192)


class _Utilisation(Observer):
    synchronous = True

    def __init__(self) -> None:
        self._steps: list[Sample] = []
        self._sizes: list[int] = []
        self._is_first = FirstCalls()
        # Operations per sample and peak operations per second; known after training.
        self._work = 0.0
        self._peak = 0.0
        self._missing: str | None = "training did not finish"

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if not self._is_first(info):
            self._steps.append(Sample((end_ns - begin_ns) / 1e9, info.step, info.epoch))
            self._sizes.append(info.batch_size)

    def after_training(self, trainer: Any) -> None:
        if trainer.status not in ("success", "stopped"):
            return
        if not self._steps:
            self._missing = "there were no steps but the first ones, which may compile"
            return
        try:
            _, inputs = first_batch(trainer.train_sampler)
            shapes = {name: tuple(map(int, array.shape)) for name, array in inputs.items()}
            size = next(iter(shapes.values()))[0]
            self._work = _PASSES * forward_flops(trainer.executor.network, shapes) / size
            self._peak = _peak(trainer.executor)
            self._missing = None
        except Unsupported as error:
            self._missing = str(error)

    def state_dict(self) -> dict[str, Any]:
        return {"_steps": list(self._steps), "_sizes": list(self._sizes)}

    def samples(self) -> list[Sample]:
        if self._missing is not None:
            return []
        return [
            step._replace(value=100 * self._work * size / step.value / self._peak)
            for step, size in zip(self._steps, self._sizes, strict=True)
        ]

    def _steady(self) -> list[float]:
        """From the second epoch, if there is one: the first epoch allocates memory and fills caches."""
        samples = self.samples()
        return [sample.value for sample in samples if sample.epoch] or [sample.value for sample in samples]

    def value(self) -> float | None:
        return median(steady) if (steady := self._steady()) else None

    def interval(self) -> tuple[float, float] | None:
        try:
            interval = median_interval(self._steady())
        except TooFewSamples:
            return None
        return interval.low, interval.high

    def missing(self) -> str | None:
        return self._missing


def _peak(executor: Any) -> float:
    """Operations per second of the framework's matrix product, in the dtype of the network's weights."""
    from deep5.measuring import loops as timing
    from deep5.networks.onnx_operator import ONNXOperator
    from deep5.operators.roofline import best_rate

    settings = executor.settings()
    name = str(settings.get("framework", "")).partition(":")[0]
    if name not in registered("frameworks"):
        raise Unsupported("not available here: the executor does not say on which framework it runs")
    dtype = numpy_dtype(str(settings.get("dtype", "float32")))
    on_host = executor.device.kind == "cpu"
    found: list[float] = []
    try:
        product = framework(name).operator_executor(ONNXOperator("MatMul"), device=executor.device)
        for size in _SIZES if on_host else (*_SIZES, *_LARGE_SIZES):
            draw = np.random.Generator(np.random.Philox(size))
            arrays = product.arrays(*(draw.standard_normal((size, size)).astype(dtype) for _ in range(2)))
            work = timing.Work(call=product.inference, arguments=arrays, synchronize=product.synchronize)
            found.append(best_rate(work, 2 * size**3))
    except Deep5Error as error:
        if not found:
            raise Unsupported(f"not available here: {name} has no matrix product to compare with ({error})") from error
    return max(found)


class Utilisation(Metric):
    """Percentage of the peak that a training step reaches: median over the steps from the second epoch.

    The work of a step is three times that of the forward pass: forward, gradients by inputs, and gradients by weights
    (the usual convention, which slightly overcounts the first layer). The forward pass counts the convolutions, matrix
    products and recurrent layers of the network's graph; a multiplication and an addition count as two operations. The
    peak is measured after training in the same process: the framework's fastest square matrix product, in the dtype of
    the weights, on the same device and threads.

    On the clock: forward, backward, update; the device is synchronized after every step. Off it: data, events, and the
    first step of each batch size, which may compile.

    References:
        Chowdhery et al., PaLM: Scaling language modeling with Pathways, JMLR 24, 2023, appendix B (model FLOPs
        utilization).

    >>> import deep5 as d5
    >>> from deep5.metrics.network_flops import forward_flops
    >>> network = d5.networks.mlp(features=16, hidden=8, classes=3)
    >>> 3 * forward_flops(network, {"input": (10, 16), "label": (10,)})  # a step: 3 · 2 · 10 · (16 · 8 + 8 · 3)
    9120
    >>> observer = d5.Utilisation().observer()
    >>> observer.value(), observer.missing()
    (None, 'training did not finish')
    """

    name = "utilisation"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: every step except the first of each batch size."""
        return _Utilisation()
