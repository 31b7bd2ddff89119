"""Communication volume, waiting time and load balance of ranks that train together."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.events import StepInfo
from deep5.core.metric import FirstCalls, Metric, Observer, Sample
from deep5.core.tensors import Arrays

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator

__all__ = ["CommunicationOverlap", "CommunicationShare", "CommunicationVolume", "LoadImbalance"]

_ALONE = "training has only one process; remedy: --ranks 2, say"


class _PerStep(Observer):
    """Reads the communicator's counters before and after every step."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._ranks = 1
        self._before = (0, 0)

    def before_training(self, trainer: Any) -> None:
        self._ranks = 1 if trainer.communicator is None else trainer.communicator.size

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        if (communicator := trainer.communicator) is not None:
            self._before = communicator.sent_bytes, communicator.waited_ns

    def samples(self) -> list[Sample]:
        return list(self._samples)

    def missing(self) -> str | None:
        return _ALONE if self._ranks == 1 else None


class _Volume(_PerStep):
    def __init__(self) -> None:
        super().__init__()
        self._total = 0

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        if (communicator := trainer.communicator) is not None:
            sent = communicator.sent_bytes - self._before[0]
            self._total += sent
            self._samples.append(Sample(sent, info.step, info.epoch))

    def combine(self, communicator: Communicator) -> None:
        total = np.array([self._total], np.int64)
        communicator.all_reduce(total)
        self._total = int(total[0])

    def value(self) -> float | None:
        return float(self._total) if self._ranks > 1 else None


class CommunicationVolume(Metric):
    """Bytes that all ranks together sent in training steps, as counted by the communicator.

    Exact: the sum over ranks of the buffers passed to collectives, once per call, and of the messages sent. The bytes
    that a library sends on the wire for a collective may differ. Evaluation, initial weights and checkpoints are
    excluded; the periodic check that all ranks agree is included. Nothing is on a clock. Without ranks there is no
    value.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer, communicator = d5.CommunicationVolume().observer(), SimpleNamespace(size=2, sent_bytes=0, waited_ns=0)
    >>> trainer = SimpleNamespace(communicator=communicator)
    >>> observer.before_training(trainer)
    >>> for step, sent in enumerate((4000, 4000, 4064)):  # the last step includes a check that ranks agree
    ...     info = d5.StepInfo(step=step, batch_size=8)
    ...     observer.before_step(trainer, info)
    ...     communicator.sent_bytes += sent
    ...     observer.after_step(trainer, info, {}, 0, 1_000_000)
    >>> observer.value(), [sample.value for sample in observer.samples()]  # of this rank; `combine` adds all
    (12064.0, [4000, 4000, 4064])
    """

    name = "communication_volume"
    unit = "B"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the bytes of every step of this rank."""
        return _Volume()


class _Share(_PerStep):
    def __init__(self) -> None:
        super().__init__()
        self._waited_ns = self._took_ns = 0
        self._first = FirstCalls()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        communicator = trainer.communicator
        if communicator is not None and not self._first(info):
            waited = communicator.waited_ns - self._before[1]
            self._waited_ns += waited
            self._took_ns += end_ns - begin_ns
            self._samples.append(Sample(100.0 * waited / (end_ns - begin_ns), info.step, info.epoch))

    def state_dict(self) -> dict[str, Any]:
        return {name: value for name, value in super().state_dict().items() if name != "_first"}

    def combine(self, communicator: Communicator) -> None:
        sums = np.array([self._waited_ns, self._took_ns], np.int64)
        communicator.all_reduce(sums)
        self._waited_ns, self._took_ns = map(int, sums)

    def value(self) -> float | None:
        return 100.0 * self._waited_ns / self._took_ns if self._ranks > 1 and self._took_ns else None


class CommunicationShare(Metric):
    """Percentage of the time of training steps that ranks waited for communication, over all ranks.

    On the clock: communicator calls as seen by the caller, so communication that overlaps with the backward pass is
    excluded, and waiting for slower ranks is included. The first step of each batch size, which may compile, is
    excluded. Without ranks there is no value.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> observer, communicator = d5.CommunicationShare().observer(), SimpleNamespace(size=2, sent_bytes=0, waited_ns=0)
    >>> trainer = SimpleNamespace(communicator=communicator)
    >>> observer.before_training(trainer)
    >>> for step, waited_ns in enumerate((9_000_000, 1_000_000, 3_000_000)):  # steps of 10 ms
    ...     info = d5.StepInfo(step=step, batch_size=8)
    ...     observer.before_step(trainer, info)
    ...     communicator.waited_ns += waited_ns
    ...     observer.after_step(trainer, info, {}, 0, 10_000_000)
    >>> observer.value()  # (1 + 3) of 20 ms; the first step of a batch size does not count
    20.0
    """

    name = "communication_share"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the percentage for every step of this rank."""
        return _Share()


class _Overlap(_PerStep):
    def __init__(self) -> None:
        super().__init__()
        self._hidden_ns = self._waited_ns = 0
        self._missing: str | None = None
        self._reports = True
        self._hidden_before = 0
        self._first = FirstCalls()

    def before_training(self, trainer: Any) -> None:
        super().before_training(trainer)
        self._reports = trainer.communicator is not None and trainer.communicator.count_hidden()

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        super().before_step(trainer, info)
        if (communicator := trainer.communicator) is not None:
            self._hidden_before = communicator.hidden_ns

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        communicator = trainer.communicator
        if communicator is None or self._first(info) or not self._reports:
            return
        hidden, waited = communicator.hidden_ns - self._hidden_before, communicator.waited_ns - self._before[1]
        if hidden + waited:
            self._hidden_ns += hidden
            self._waited_ns += waited
            self._samples.append(Sample(100.0 * hidden / (hidden + waited), info.step, info.epoch))

    def state_dict(self) -> dict[str, Any]:
        kept = super().state_dict()
        return {name: kept[name] for name in kept if name not in ("_first", "_reports", "_hidden_before")}

    def combine(self, communicator: Communicator) -> None:
        sums = np.array([self._hidden_ns, self._waited_ns, 0 if self._reports else 1], np.int64)
        communicator.all_reduce(sums)
        self._hidden_ns, self._waited_ns, unknown = map(int, sums)
        if unknown:
            self._missing = "the communicator does not know when a collective that was started has ended"
        elif not self._hidden_ns + self._waited_ns:
            self._missing = "no rank communicated in a step after the first of each batch size"

    def value(self) -> float | None:
        took_ns = self._hidden_ns + self._waited_ns
        return 100.0 * self._hidden_ns / took_ns if self._ranks > 1 and took_ns and self._missing is None else None

    def missing(self) -> str | None:
        return super().missing() or self._missing


class CommunicationOverlap(Metric):
    """Percentage of the communication time in training steps that overlaps with computation, over all ranks.

    A rank's communication time consists of the time in calls and waits, and of the time that started collectives were
    in progress while it did other work, such as the rest of the backward pass. The second part is hidden: 100 hidden /
    (hidden + waited). Concurrent collectives count once. A collective ends when the communicator learns of it, not when
    the rank waits for it. Both parts include waiting for slower ranks, as in `CommunicationShare`. The value is 0 for
    schemes that only block, also if a compression makes them block. Hidden time of point-to-point messages is unknown
    and not counted.

    On the clock: as above. The first step of each batch size is excluded. There is no value without ranks, or if the
    communicator cannot know when a collective ended: NCCL, and MPI without thread support.

    References:
        Shet, Sadayappan, Bernholdt, Nieplocha and Tipparaju, A framework for characterizing overlap of communication
        and computation in parallel applications, Cluster Computing 11(1), 2008: overlap as seen within the library, and
        why the time of completion matters.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> communicator = SimpleNamespace(size=2, sent_bytes=0, waited_ns=0, hidden_ns=0, count_hidden=lambda: True)
    >>> observer, trainer = d5.CommunicationOverlap().observer(), SimpleNamespace(communicator=communicator)
    >>> observer.before_training(trainer)
    >>> for step in range(3):  # each rank waits 1 ms of 4 ms of communication
    ...     info = d5.StepInfo(step=step, batch_size=8)
    ...     observer.before_step(trainer, info)
    ...     communicator.hidden_ns += 3_000_000
    ...     communicator.waited_ns += 1_000_000
    ...     observer.after_step(trainer, info, {}, 0, 10_000_000)
    >>> observer.value()
    75.0
    """

    name = "communication_overlap"
    unit = "%"
    direction = "higher"

    def observer(self) -> Observer:
        """Samples: the overlap of every step of this rank in which it communicated."""
        return _Overlap()


class _Imbalance(_Share):
    def __init__(self) -> None:
        super().__init__()
        self._of_all: list[float] = []
        self._begin_ns = 0

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        super().before_step(trainer, info)
        self._begin_ns = perf_counter_ns()

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        communicator = trainer.communicator
        if communicator is not None and not self._first(info):
            # Counted from when the batch is available: time in other events is work of the rank, too.
            worked = end_ns - self._begin_ns - (communicator.waited_ns - self._before[1])
            self._took_ns += worked

    def combine(self, communicator: Communicator) -> None:
        everyone = np.empty(communicator.size, np.float64)
        communicator.all_gather(np.array([float(self._took_ns)]), everyone)
        self._of_all = everyone.tolist()

    def samples(self) -> list[Sample]:
        return [] if (value := self.value()) is None else [Sample(value)]

    def value(self) -> float | None:
        mean = sum(self._of_all) / len(self._of_all) if self._of_all else 0.0
        return 100.0 * (max(self._of_all) / mean - 1.0) if self._ranks > 1 and mean else None


class LoadImbalance(Metric):
    """Percentage by which the maximum working time of a rank exceeds the mean: 0 if all ranks work equally long.

    On the clock: training steps from when their batch is available, less the communicator's calls, so only a rank's own
    work counts. For synchronous ranks this is the percentage of their time that the others wait. The first step of each
    batch size is excluded. Without ranks there is no value.

    References:
        Pearce et al., Quantifying the Effectiveness of Load Balance Algorithms, ICS'12, equation 1.

    >>> from types import SimpleNamespace
    >>> import deep5 as d5
    >>> from time import perf_counter_ns
    >>> from deep5.distributed.communicators.threads import run_in_threads
    >>> def train(communicator):  # rank 0 works 1000 s a step, rank 1 3000 s
    ...     observer, trainer = d5.LoadImbalance().observer(), SimpleNamespace(communicator=communicator)
    ...     observer.before_training(trainer)
    ...     for step in range(2):
    ...         info = d5.StepInfo(step=step, batch_size=8)
    ...         observer.before_step(trainer, info)
    ...         worked_ns = (1 + 2 * communicator.rank) * 10**12
    ...         observer.after_step(trainer, info, {}, 0, perf_counter_ns() + worked_ns)
    ...     observer.combine(communicator)
    ...     return round(observer.value())
    >>> run_in_threads(2, train)  # 3000 / 2000 − 1
    [50, 50]
    """

    name = "load_imbalance"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the value, after the ranks have exchanged their times."""
        return _Imbalance()
