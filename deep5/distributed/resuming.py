"""`restore_ranks`: ranks resume from a checkpoint written by the same or another number of ranks."""

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
    """Restore the trainers of all ranks from the last checkpoint that all of them can read; called by every rank.

    With the number of ranks that wrote it, every rank resumes bit-identically from its own part. With another number,
    the parts are assigned to ranks in turn (ranks of a group that the scheme keeps equal use the same part), and
    parameters become the mean over all ranks if the scheme lets them differ. Scheme state next to the optimizer (what
    compression has left out so far) is reset, and so are the observations of all ranks but the first.

    Args:
        trainer: This rank's trainer; its optimizer is a `DistributedOptimizer`.
        folder: Folder of the checkpoints, the same for every rank.
        communicator: Connects all ranks.
        tell: Receives a sentence about each item that cannot be read or was reset; called only on the first rank for
            items known to all ranks.

    Returns:
        The description in the checkpoint and the path of its first part; None if only the first part exists and the run
        was interrupted before all ranks had written theirs.

    Raises:
        CheckpointError: No checkpoint can be read by all ranks, or it belongs to another network or optimizer.
    """
    scheme = trainer.optimizer
    in_groups = isinstance(scheme, DistributedOptimizer) and scheme.keeps_equal and not scheme.consistent
    candidates = checkpoints(folder)
    for main in candidates:
        part, reported, path, is_first = None, "", main, communicator.rank == 0
        try:
            _, about = read_checkpoint(path)
            writers = int(about.get("ranks", 1))
            parts = [folder / name_of(step_of(main), rank) for rank in range(writers)]
            source = scheme.members[0] if in_groups and writers != communicator.size else communicator.rank
            # With another number of ranks some parts belong to no rank but must exist nevertheless.
            for path in parts[communicator.rank :: communicator.size] if writers != communicator.size else ():
                _part(path, about)
            path = parts[source % writers]
            part = _part(path, about)
        except CheckpointError as error:
            reported = str(error)
        everyone = np.array([part is not None, part is not None or path.exists()], np.int64)
        communicator.all_reduce(everyone, op="min", timeout_s=TIMEOUT_S)
        if not everyone[0]:
            if len(candidates) == 1 and not everyone[1]:
                return None
            if is_first or (reported and path != main):
                tell(f"{reported or f'another rank cannot read its part of {main.name}'}; the one before it is tried")
            continue
        state, _ = part or ({}, {})
        if writers != communicator.size:
            if is_first:
                tell(
                    f"{_ranks(writers)} wrote the checkpoint and {_ranks(communicator.size)} "
                    f"{'resumes' if communicator.size == 1 else 'resume'} from it: the bits may differ, as sums are of "
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
    """A rank's part of a checkpoint, from the same run and number of ranks as the first part."""
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
    """The state from which a rank resumes when another number of ranks wrote the parts."""
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
