"""`restore_ranks`: ranks go on from a checkpoint that as many ranks wrote, or others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.communicator import TIMEOUT_S, Communicator
from deep5.core.errors import CheckpointError, Deep5Error
from deep5.distributed.schemes.base import DistributedOptimizer
from deep5.training.checkpoint_file import read_checkpoint
from deep5.training.checkpointer import checkpoints, name_of, step_of

__all__ = ["restore_ranks"]


def restore_ranks(
    trainer: Any, folder: Path, communicator: Communicator, *, tell: Callable[[str], None]
) -> tuple[dict[str, Any], Path] | None:
    """Put the trainers of all ranks where the last checkpoint stands that all of them can read; called by every rank.

    With the number of ranks that wrote it, every rank goes on from its own part, to the same bits. With another
    number, ranks go on from the parts in turn (those of a group that the scheme keeps equal, from the same part), and
    from the mean of all ranks' parameters where the scheme lets them differ; what a scheme keeps beside the optimizer
    (what compression has left out so far) is begun anew, and so is what ranks other than the first have observed.

    Args:
        trainer: This rank's; its optimizer is a `DistributedOptimizer`.
        folder: Of the checkpoints, the same for every rank.
        communicator: Of all ranks.
        tell: Takes a sentence about what cannot be read, or was begun anew; what all ranks know, the first one's alone.

    Returns:
        What the checkpoint says that it is of, and the path of its first part; None where there is the first one alone,
        and the run was ended before all ranks had written their parts of it.

    Raises:
        CheckpointError: There is none that all ranks can read, or it is of another network or optimizer.
    """
    scheme = trainer.optimizer
    in_groups = isinstance(scheme, DistributedOptimizer) and scheme.keeps_equal and not scheme.consistent
    candidates = checkpoints(folder)
    for main in candidates:
        part, told, path, is_first = None, "", main, communicator.rank == 0
        try:
            _, about = read_checkpoint(path)
            writers = int(about.get("ranks", 1))
            parts = [folder / name_of(step_of(main), rank) for rank in range(writers)]
            source = scheme.members[0] if in_groups and writers != communicator.size else communicator.rank
            # With another number of ranks some parts are nobody's own, and have to be there all the same.
            for path in parts[communicator.rank :: communicator.size] if writers != communicator.size else ():
                _part(path, about)
            path = parts[source % writers]
            part = _part(path, about)
        except CheckpointError as error:
            told = str(error)
        everyone = np.array([part is not None, part is not None or path.exists()], np.int64)
        communicator.all_reduce(everyone, op="min", timeout_s=TIMEOUT_S)
        if not everyone[0]:
            if len(candidates) == 1 and not everyone[1]:
                return None
            if is_first or (told and path != main):
                tell(f"{told or f'another rank cannot read its part of {main.name}'}; the one before it is tried")
            continue
        state, _ = part or ({}, {})
        if writers != communicator.size:
            if is_first:
                tell(
                    f"{_ranks(writers)} wrote the checkpoint and {_ranks(communicator.size)} "
                    f"{'goes' if communicator.size == 1 else 'go'} on from it: the bits may differ, as sums are of "
                    "other parts"
                )
            state = _for_another_size(trainer, state, communicator, parts)
        try:
            trainer.load_state_dict(state)
        except (Deep5Error, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint {main} is of another network or optimizer: {error}") from error
        if isinstance(scheme, DistributedOptimizer) and scheme.keeps_equal:
            scheme.verify("parameters of the checkpoint")
        return about, main
    raise CheckpointError(f"there is no checkpoint in {folder} that every rank can read; remedy: run it from the start")


def _part(path: Path, about: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A rank's part of a checkpoint, of the same run and number of ranks as the first one's."""
    state, own = read_checkpoint(path)
    if other := [name for name in ("run_id", "ranks") if own.get(name) != about.get(name)]:
        raise CheckpointError(
            f"the checkpoint {path} has {other[0]} {own.get(other[0])!r}; allowed: {about.get(other[0])!r}, that of "
            "rank 0; remedy: run it from the start, or from an earlier checkpoint"
        )
    return state, own


def _for_another_size(
    trainer: Any, state: Mapping[str, Any], communicator: Communicator, parts: Sequence[Path]
) -> dict[str, Any]:
    """What a rank goes on from where other ranks than these wrote the parts."""
    scheme, executor = trainer.optimizer, dict(state["executor"])
    if isinstance(scheme, DistributedOptimizer) and not scheme.consistent:
        names = [name for name, value in executor.items() if "float" in str(value.dtype)]
        sums = {name: np.zeros(executor[name].shape) for name in names}
        for path in parts:
            values = read_checkpoint(path)[0]["executor"]
            for name in names:
                sums[name] += values[name]
        executor |= {name: (total / len(parts)).astype(executor[name].dtype) for name, total in sums.items()}
    optimizer = {name: value for name, value in state["optimizer"].items() if not name.startswith("scheme/")}
    return {
        **state,
        "executor": executor,
        "optimizer": optimizer,
        "events": state["events"] if communicator.rank == 0 else {},
    }


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"
