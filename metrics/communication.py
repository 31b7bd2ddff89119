"""What ranks that train together send each other, how long they wait for it, and how evenly they work."""

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

_ALONE = "one process trains alone; remedy: --ranks 2, say"


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
    """Bytes that all ranks together handed over to each other in training steps, as the communicator counts them.

    Exact: the sum over ranks of the buffers that each gave to a collective, once a call, and of the messages that it
    sent; what a library makes of a collective on the wire is its own. Evaluation, initial weights and checkpoints are
    not in it; the check of every so many steps that all ranks agree is. Nothing is on a clock. Without ranks there is
    no value.
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
    """Share of the time of training steps in which ranks waited for communication, over all ranks, in percent.

    On the clock: what calls of the communicator took as their caller saw them, so that what the backward pass hides is
    not in it, and waiting for slower ranks is. The first step of each size of batch, which may compile, is left out.
    Without ranks there is no value.
    """

    name = "communication_share"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the share of every step of this rank."""
        return _Share()


class _Overlap(_PerStep):
    def __init__(self) -> None:
        super().__init__()
        self._hidden_ns = self._waited_ns = 0
        self._missing: str | None = None
        self._tells = True
        self._hidden_before = 0
        self._first = FirstCalls()

    def before_training(self, trainer: Any) -> None:
        super().before_training(trainer)
        self._tells = trainer.communicator is not None and trainer.communicator.count_hidden()

    def before_step(self, trainer: Any, info: StepInfo) -> None:
        super().before_step(trainer, info)
        if (communicator := trainer.communicator) is not None:
            self._hidden_before = communicator.hidden_ns

    def after_step(self, trainer: Any, info: StepInfo, outputs: Arrays, begin_ns: int, end_ns: int) -> None:
        communicator = trainer.communicator
        if communicator is None or self._first(info) or not self._tells:
            return
        hidden, waited = communicator.hidden_ns - self._hidden_before, communicator.waited_ns - self._before[1]
        if hidden + waited:
            self._hidden_ns += hidden
            self._waited_ns += waited
            self._samples.append(Sample(100.0 * hidden / (hidden + waited), info.step, info.epoch))

    def state_dict(self) -> dict[str, Any]:
        kept = super().state_dict()
        return {name: kept[name] for name in kept if name not in ("_first", "_tells", "_hidden_before")}

    def combine(self, communicator: Communicator) -> None:
        sums = np.array([self._hidden_ns, self._waited_ns, 0 if self._tells else 1], np.int64)
        communicator.all_reduce(sums)
        self._hidden_ns, self._waited_ns, unknown = map(int, sums)
        if unknown:
            self._missing = "the communicator does not know when a collective that was started has ended"
        elif not self._hidden_ns + self._waited_ns:
            self._missing = "no rank communicated in a step behind the first of each size of batch"

    def value(self) -> float | None:
        took_ns = self._hidden_ns + self._waited_ns
        return 100.0 * self._hidden_ns / took_ns if self._ranks > 1 and took_ns and self._missing is None else None

    def missing(self) -> str | None:
        return super().missing() or self._missing


class CommunicationOverlap(Metric):
    """Share of the time of communication in training steps that ranks worked on in, over all ranks, in percent.

    A rank's time of communication is that which its calls and waits took, and that which collectives that it had
    started were under way while it did something else, such as the rest of the backward pass: the second part is what
    is hidden, 100 hidden / (hidden + waited). Several collectives at once take the time of one. The end is when the
    communicator learned of it, not when somebody waited; waiting for slower ranks is in both parts, as it is in
    `CommunicationShare`. So 0 is a scheme that only blocks, and where a compression makes it block; what is hidden of
    messages between two ranks is not known, and not counted as hidden.

    On the clock: as above. The first step of each size of batch is left out. Without ranks there is no value, nor where
    the communicator cannot know when a collective ended: NCCL, and an MPI that is not safe for threads.

    References:
        Shet, Sadayappan, Bernholdt, Nieplocha and Tipparaju, A framework for characterizing overlap of communication
        and computation in parallel applications, Cluster Computing 11(1), 2008: overlap as seen within the library,
        and why the moment of the end decides.
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
            # From its batch being at hand: a rank that other events hold up works on, too.
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
    """How much longer the rank that worked longest worked than all on average, in percent: 0 where all work alike.

    On the clock: training steps, from their batch being at hand, less what the communicator's calls took, so that only
    a rank's own work is in it; where ranks go in step, this is the share of their time that the others wait. The first
    step of each size of batch is left out. Without ranks there is no value.

    References:
        Pearce et al., Quantifying the Effectiveness of Load Balance Algorithms, ICS'12, equation 1.
    """

    name = "load_imbalance"
    unit = "%"
    direction = "lower"

    def observer(self) -> Observer:
        """Samples: the value, once all ranks have told theirs."""
        return _Imbalance()
