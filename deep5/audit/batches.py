"""How many samples each step of a rank had: what throughputs, losses and latencies are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from deep5.audit.measured import batch_size_of, ranks_of
from deep5.results.samples_file import SampleRow

__all__ = ["Batches"]

# Steps of a run of which the firsts are told.
_MOST_STEPS = 5_000_000
# How a run says that other ranks go on than wrote the checkpoint: parts of batches were others before.
_OTHERS_GO_ON = " wrote the checkpoint and "

Rows = Sequence[SampleRow]


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The sizes of the batches of one rank of a training run.

    Args:
        document: result.json.
        train_samples: Of the training set, where the events say it.
        rank: Whose part of each batch.
    """

    document: Mapping[str, Any]
    train_samples: int | None
    rank: int = 0

    @cached_property
    def ranks(self) -> int:
        """How many shared each batch."""
        return ranks_of(self.document)

    @cached_property
    def size(self) -> int | None:
        """Samples of a batch on all ranks; None where the sizes of all do not follow from the number of samples."""
        return batch_size_of(self.document)

    @cached_property
    def mixed(self) -> bool:
        """Whether the run went on with another number of ranks, so that its parts of batches were others before."""
        told = self.document["warnings"]
        return bool(self.document["resumed"]) and any(_OTHERS_GO_ON in str(sentence) for sentence in told)

    def part(self, samples: int) -> int:
        """How many of the samples of a batch this rank has."""
        from deep5.distributed.sharding import part_of

        begin, end = part_of(samples, self.rank, self.ranks)
        return end - begin

    def in_epoch(self, steps: int) -> tuple[int, int] | None:
        """How many samples this rank had in each step but the last of an epoch of so many, and in the last.

        None where that does not follow from batch size and sampler.
        """
        size, count = self.size, self.train_samples
        if size is None or count is None or self.mixed:
            return None
        if not max(1, count // size) <= steps <= -(-count // size):
            return None
        return self.part(size), self.part(min(size, count - (steps - 1) * size))

    def held(self, steps: Rows) -> list[int] | None:
        """How many samples this rank had in each step, by its place in its epoch; None where that does not follow."""
        size, count = self.size, self.train_samples
        if size is None or count is None or self.mixed:
            return None
        places, found = Counter[int | None](), []
        for sample in steps:
            found.append(min(size, count - places[sample.epoch] * size))
            places[sample.epoch] += 1
        return [self.part(held) for held in found] if min(found, default=1) > 0 else None

    def counted(self, own: Rows) -> list[int] | None:
        """Of samples an epoch, how many samples of each count: without the first batch of each size, which may compile.

        Args:
            own: Of the throughput.
        """
        ends = [0, *(sample.step or 0 for sample in own)]
        if self.document["status"] != "success" or ends[-1] > _MOST_STEPS:
            return None
        counts, is_first = list[int](), _Firsts(self.document["resumed"])
        for begin, end in pairwise(ends):
            found = self.in_epoch(end - begin)
            if found is None:
                return None
            held = [found[0]] * (end - begin - 1) + [found[1]]
            firsts = [is_first(step, size) for step, size in enumerate(held, start=begin)]
            counts.append(sum(size for size, first in zip(held, firsts, strict=True) if not first))
        return counts

    def steady(self, own: Rows) -> list[float] | None:
        """Of samples a step: those that are not the first of their size in their process; from the second epoch on."""
        taken = self.held(own)
        if taken is None:
            return None
        is_first = _Firsts(self.document["resumed"])
        steady = [s for s, held in zip(own, taken, strict=True) if not is_first(s.step or 0, held)]
        rest = steady or own
        return [sample.value for sample in rest if sample.epoch] or [sample.value for sample in rest]


class _Firsts:
    """Tells the first step of each size of batch, in each process of a run: that one may compile.

    Args:
        resumed: As result.json has it; what went on from an earlier step took the place of what had gone on before.
    """

    def __init__(self, resumed: Sequence[Mapping[str, Any]]) -> None:
        self._begins: list[int] = []
        for entry in resumed:
            self._begins = [step for step in self._begins if step < entry["step"]] + [entry["step"]]
        self._sizes = set[int]()

    def __call__(self, step: int, size: int) -> bool:
        """Whether this step, told of in order, is one."""
        while self._begins and step >= self._begins[0]:
            self._begins.pop(0)
            self._sizes = set()
        first = size not in self._sizes
        self._sizes.add(size)
        return first
