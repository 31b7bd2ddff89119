"""Training loss and test loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.errors import UnknownName, UsageError
from deep5.core.events import StepInfo
from deep5.core.metric import Metric, Observer, Sample
from deep5.core.tensors import Arrays, to_numpy

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["TestLoss", "TrainingLoss"]


class _Losses(Observer):
    def __init__(self, output: str) -> None:
        self._output = output
        self._unread: list[Any] = []
        # One list per quantity: appending numbers is cheap, and the garbage collector has nothing to track.
        self._losses: list[float] = []
        self._steps: list[int] = []
        self._epochs: list[int] = []
        self._sizes: list[int] = []
        self._elapsed_ns: list[int] = []
        self._of_all: tuple[float, int] | None = None

    def before_training(self, trainer: Any) -> None:
        self.check_network(trainer.executor.network)

    def check_network(self, network: Any) -> None:
        outputs = network.outputs
        if self._output not in outputs:
            raise UnknownName("output", self._output, outputs)
        spec = outputs[self._output]
        if spec is not None and any(extent != 1 for extent in spec.shape):
            scalars = [name for name, other in outputs.items() if other is None or not other.shape]
            raise UsageError(
                f"training_loss of the output {self._output!r}, which is {spec}; allowed: a scalar"
                + (f"; remedy: {', '.join(map(repr, scalars))}" if scalars else "")
            )

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        # Reading a loss may synchronize the device: keep the value and read it after the epoch.
        self._unread.append(outputs[self._output])
        self._steps.append(info.step)
        self._epochs.append(info.epoch)
        self._sizes.append(info.batch_size)
        self._elapsed_ns.append(end_ns - trainer.origin_ns)

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self._read()

    def after_training(self, trainer: Any) -> None:
        self._read()

    def state_dict(self) -> dict[str, Any]:
        self._read()  # a native value cannot be saved
        return super().state_dict()

    def _read(self) -> None:
        self._losses += [loss if type(loss) is float else float(to_numpy(loss)) for loss in self._unread]
        self._unread.clear()

    def samples(self) -> list[Sample]:
        self._read()
        times = [elapsed_ns / 1e9 for elapsed_ns in self._elapsed_ns]
        return list(map(Sample, self._losses, self._steps, self._epochs, times))

    def _last(self) -> tuple[float, int]:
        """Sum of the losses over the samples of the last epoch, and their number."""
        self._read()
        last = self._epochs[-1] if self._epochs else None
        rows = zip(self._losses, self._sizes, self._epochs, strict=True)
        own = [(loss, size) for loss, size, epoch in rows if epoch == last and size]
        return sum(loss * size for loss, size in own), sum(size for _, size in own)

    def combine(self, communicator: Communicator) -> None:
        sums = np.array(self._last(), np.float64)
        communicator.all_reduce(sums)
        self._of_all = float(sums[0]), int(sums[1])

    def value(self) -> float | None:
        total, samples = self._of_all or self._last()
        return total / samples if samples else None


class TrainingLoss(Metric):
    """Mean loss over the training samples of the last epoch, as computed in training; each sample counts once.

    Nothing is on a clock. Samples: the loss of every step.

    Args:
        output: Name of the network's loss.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer = d5.TrainingLoss().observer()
    >>> for step, (loss, size) in enumerate(((9.0, 64), (3.0, 64), (2.0, 64), (1.0, 32))):
    ...     info = d5.StepInfo(step=step, epoch=step // 2, batch_size=size)
    ...     observer.after_step(SimpleNamespace(origin_ns=0), info, {"loss": loss}, 0, 1_000_000)
    >>> round(observer.value(), 6)  # (2 · 64 + 1 · 32) / 96, of the last epoch
    1.666667
    """

    name = "training_loss"
    unit = "nat"
    direction = "lower"

    def __init__(self, output: str = "loss") -> None:
        self.output = output

    def observer(self) -> Observer:
        """Samples: the loss of every step."""
        return _Losses(self.output)


class _TestLosses(Observer):
    def __init__(self) -> None:
        self._samples: list[Sample] = []

    def after_evaluation(self, trainer: Any, epoch: int, scores: dict[str, float]) -> None:
        self._samples.append(Sample(scores["loss"], trainer.step, epoch + 1, trainer.elapsed_ns() / 1e9))

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def value(self) -> float | None:
        return self._samples[-1].value if self._samples else None


class TestLoss(Metric):
    """Mean loss over the test samples after the last epoch (not the best one); each sample counts once.

    Nothing is on a clock. The network is in evaluation mode, with the optimizer's evaluation weights.

    >>> import deep5 as d5
    >>> data = d5.datasets.synthetic(shape=(16,), classes=3, train=60, test=30)
    >>> executor = d5.framework("reference").executor(d5.networks.mlp(features=16, hidden=8, classes=3))
    >>> train, test = d5.ShuffleSampler(data.train, 10), d5.OrderedSampler(data.test, 30)
    >>> trainer = d5.Trainer(executor, d5.Adam(0.03), train, test)
    >>> observer = d5.TestLoss().observer()
    >>> trainer.train(epochs=3, events=[observer])
    >>> observer.value() == trainer.scores["loss"], [sample.step for sample in observer.samples()]
    (True, [6, 12, 18])
    """

    __test__ = False  # the usual term; pytest must not collect it
    name = "test_loss"
    unit = "nat"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the loss after every epoch."""
        return _TestLosses()
