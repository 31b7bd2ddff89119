"""Samples in each step of a rank: the reference for its throughputs, losses and latencies."""

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

# Maximum steps of a run for which first steps are determined.
_MOST_STEPS = 5_000_000
# The warning of a run resumed by another number of ranks: its batches were split differently before.
_OTHERS_GO_ON = " wrote the checkpoint and "

Rows = Sequence[SampleRow]


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batch sizes of one rank of a training run.

    Args:
        document: result.json.
        train_samples: Size of the training set, if the events state it.
        rank: The rank.
    """

    document: Mapping[str, Any]
    train_samples: int | None
    rank: int = 0

    @cached_property
    def ranks(self) -> int:
        """Number of ranks that shared each batch."""
        return ranks_of(self.document)

    @cached_property
    def size(self) -> int | None:
        """Samples per batch over all ranks; None if the batch sizes cannot be derived from the number of samples."""
        return batch_size_of(self.document)

    @cached_property
    def mixed(self) -> bool:
        """Whether the run resumed with another number of ranks, so that it split batches differently before."""
        reported = self.document["warnings"]
        return bool(self.document["resumed"]) and any(_OTHERS_GO_ON in str(sentence) for sentence in reported)

    def part(self, samples: int) -> int:
        """This rank's number of samples in a batch."""
        from deep5.distributed.sharding import part_of

        begin, end = part_of(samples, self.rank, self.ranks)
        return end - begin

    def in_epoch(self, steps: int) -> tuple[int, int] | None:
        """This rank's samples in each step but the last of an epoch of `steps` steps, and in the last step.

        None if they cannot be derived from batch size and sampler.
        """
        size, count = self.size, self.train_samples
        if size is None or count is None or self.mixed:
            return None
        if not max(1, count // size) <= steps <= -(-count // size):
            return None
        return self.part(size), self.part(min(size, count - (steps - 1) * size))

    def held(self, steps: Rows) -> list[int] | None:
        """This rank's samples in each step, by its position in its epoch; None if they cannot be derived."""
        size, count = self.size, self.train_samples
        if size is None or count is None or self.mixed:
            return None
        places, found = Counter[int | None](), []
        for sample in steps:
            found.append(min(size, count - places[sample.epoch] * size))
            places[sample.epoch] += 1
        return [self.part(held) for held in found] if min(found, default=1) > 0 else None

    def counted(self, own: Rows) -> list[int] | None:
        """Samples counted by each per-epoch sample: all but the first batch of each size, which may compile.

        Args:
            own: Samples of the throughput.
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
        """Per-step samples, without the first of each size in its process; if possible from the second epoch on."""
        taken = self.held(own)
        if taken is None:
            return None
        is_first = _Firsts(self.document["resumed"])
        steady = [s for s, held in zip(own, taken, strict=True) if not is_first(s.step or 0, held)]
        rest = steady or own
        return [sample.value for sample in rest if sample.epoch] or [sample.value for sample in rest]


class _Firsts:
    """Detects the first step with each batch size in each process of a run, because it may include compilation.

    Args:
        resumed: The entry in result.json; a resumption from an earlier step replaces the later ones.
    """

    def __init__(self, resumed: Sequence[Mapping[str, Any]]) -> None:
        self._begins: list[int] = []
        for entry in resumed:
            self._begins = [step for step in self._begins if step < entry["step"]] + [entry["step"]]
        self._sizes = set[int]()

    def __call__(self, step: int, size: int) -> bool:
        """Whether this step is such a first step; steps are passed in order."""
        while self._begins and step >= self._begins[0]:
            self._begins.pop(0)
            self._sizes = set()
        first = size not in self._sizes
        self._sizes.add(size)
        return first
