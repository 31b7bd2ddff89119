"""`check_sharding`: the ranks of a sampler together read exactly the batches of one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from deep5.core.errors import Deep5Error
from deep5.core.tensors import to_numpy
from deep5.distributed.sharding import ShardedSampler, part_of
from deep5.training.batch_source import Batch, BatchSource, batch_size_of

__all__ = ["check_sharding"]

_END = object()


def check_sharding(
    make_sampler: Callable[[], BatchSource],
    size: int,
    *,
    sharded: Callable[[BatchSource, int, int], Any] = ShardedSampler,
    epochs: int = 2,
    borrow: bool = True,
) -> None:
    """Check that ranks share the batches of a sampler: in order, without duplicates or omissions, bit-identically.

    Each epoch is read by one rank and by all ranks in parallel, and restarted in its middle and at its end. Sample ids
    are compared where they are known, the samples always. In a dimension whose size varies between batches, such as
    sequence length, only the part that all have is compared: the padding after it is each rank's own.

    Args:
        make_sampler: Makes the unsharded sampler; called once per rank.
        size: Number of ranks.
        sharded: Makes one rank's part from (sampler, rank, size).
        epochs: Number of epochs to read.
        borrow: Whether a rank without a sample in a batch must return a borrowed one; otherwise it must skip the batch.

    Raises:
        Deep5Error: A check fails; the message names the epoch, the batch and the rank.
        UsageError: The sampler cannot be split over this many ranks.
    """
    one = make_sampler()
    ranks = [sharded(make_sampler(), rank, size) for rank in range(size)]
    for epoch in range(epochs):
        count = _check_epoch(one, ranks, epoch, 0, borrow)
        for rank, own in enumerate(ranks):
            steps = own.steps(epoch)
            if borrow and steps not in (count, None):
                raise Deep5Error(f"epoch {epoch}: rank {rank} reports {steps} batches; allowed: {count}, as one rank")
        for start in sorted({count // 2, count - 1, count} - {0, -1}):
            _check_epoch(one, ranks, epoch, start, borrow)
    hashes = [source.order_hash(epochs) for source in (one, *ranks)]
    if len(set(hashes)) != 1:
        raise Deep5Error(
            f"order_hash({epochs}) is {hashes[1:]} on the ranks; allowed: {hashes[0]}, as without sharding"
        )


def _check_epoch(one: BatchSource, ranks: list[Any], epoch: int, start: int, borrow: bool) -> int:
    """Read an epoch from a batch on, by one rank and by all; return its number of batches, skipped ones included."""
    sources: list[Iterator[Any]] = [iter(own.batches(epoch, start)) for own in ranks]
    had = [0] * len(ranks)
    done, names = start, _varying(one)
    for number, whole in enumerate(one.batches(epoch, start), start):
        total = _count(whole)
        where = f"epoch {epoch}, batch {number}" + (f", started at {start}" if start else "")
        for rank, source in enumerate(sources):
            begin, end = part_of(total, rank, len(ranks))
            if begin == end and not borrow:
                continue
            who = f"{where}: rank {rank} of {len(ranks)}"
            given = next(source, _END)
            if given is _END:
                raise Deep5Error(
                    f"{who} has no more batches; allowed: its part of every batch; remedy: keep the last, smaller batch"
                )
            _check_part(who, given, whole, begin, end, names)  # type: ignore[arg-type]
            had[rank] += end - begin
            known = ranks[rank].global_batch_size(epoch, number)
            if known != total:
                raise Deep5Error(f"{who} reports {known} samples on all ranks; allowed: {total}")
        done = number + 1
    for rank, (source, own) in enumerate(zip(sources, ranks, strict=True)):
        if next(source, _END) is not _END:
            raise Deep5Error(f"epoch {epoch}: rank {rank} has batches after the last one; allowed: {done}, as one rank")
        samples = own.samples(epoch)
        if start == 0 and samples not in (had[rank], None):
            raise Deep5Error(
                f"epoch {epoch}: rank {rank} reports {samples} samples; allowed: {had[rank]}, as many as it gave"
            )
    return done


def _check_part(who: str, given: Batch, whole: Batch, begin: int, end: int, varying: frozenset[str]) -> None:
    """Check one rank's part of one batch."""
    (ids, inputs), (all_ids, all_inputs) = given, whole
    if begin == end:
        if ids is None or len(ids) != 0:
            raise Deep5Error(
                f"{who} has samples {_listed(ids)}; allowed: an empty list of identities, since the batch has too "
                "few samples for this rank"
            )
        begin, end = 0, 1
    elif all_ids is not None and (ids is None or not np.array_equal(ids, all_ids[begin:end])):
        raise Deep5Error(
            f"{who} has samples {_listed(ids)}; allowed: {_listed(all_ids[begin:end])}, its part of the batch; "
            "remedy: the order of all ranks by (seed, epoch), cut by part_of"
        )
    if inputs.keys() != all_inputs.keys():
        raise Deep5Error(f"{who} has the inputs {', '.join(inputs)}; allowed: {', '.join(all_inputs)}")
    for name in inputs:
        own, wanted = to_numpy(inputs[name]), to_numpy(all_inputs[name])[begin:end]
        if own.ndim == wanted.ndim and len(own) == len(wanted) and name in varying:
            common = tuple(slice(min(extents)) for extents in zip(own.shape, wanted.shape, strict=True))
            own, wanted = own[common], wanted[common]
        if own.shape != wanted.shape or own.dtype != wanted.dtype or own.tobytes() != wanted.tobytes():
            raise Deep5Error(
                f"{who} has {name!r} of {own.dtype}{list(own.shape)}; allowed: the bits of rows {begin} to {end - 1} "
                f"of the batch, {wanted.dtype}{list(wanted.shape)}; remedy: transforms that draw by (seed, epoch, "
                "sample) and look at one sample at a time"
            )


def _varying(source: Any) -> frozenset[str]:
    """The parts of a sample that have a dimension of variable size."""
    specs: Mapping[str, Any] = getattr(getattr(source, "dataset", None), "specs", None) or {}
    return frozenset(name for name, spec in specs.items() if any(isinstance(extent, str) for extent in spec.shape))


def _count(batch: Batch) -> int:
    ids, inputs = batch
    return batch_size_of(inputs) if ids is None else len(ids)


def _listed(ids: Any) -> str:
    return "unknown" if ids is None else str(np.asarray(ids)[:8].tolist())
