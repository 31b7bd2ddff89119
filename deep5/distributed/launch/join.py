"""Connects a rank with the others: its communicator, the comparison of all ranks, and its reports."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError, brief
from deep5.core.files import write_atomically
from deep5.distributed.launch.device import use_device
from deep5.distributed.launch.launcher import Launched, environment_number, launched

if TYPE_CHECKING:
    from deep5.core.communicator import Communicator
    from deep5.core.tensors import Device

__all__ = ["FOLDER", "Report", "compare_ranks", "join"]

FOLDER = "DEEP5_RANKS"
"""Names the folder in which each rank started by `start_ranks` reports its progress."""

_MEET_S = 60.0
_ALIKE = "allowed: the same on all ranks; remedy: start all of them by one command, with one installation"


def join(
    launched: Launched, *, backend: str = "gloo", device: str | Device = "cuda", timeout_s: float = _MEET_S
) -> Communicator:
    """Meet the other ranks; every rank calls this.

    Args:
        launched: How this process was started.
        backend: The torch.distributed back-end: gloo or nccl; ignored with MPI.
        device: NCCL's device on this rank, which becomes PyTorch's current one; see `rank_device`.
        timeout_s: Time limit for the ranks to meet.

    Raises:
        CommunicationError: The other ranks do not arrive in time.
        MissingDependency: mpi4py, MPI or PyTorch is not installed.
        UsageError: MPI's number of ranks differs from the launcher's.
    """
    if launched.kind == "torch":
        return _join_torch(launched, backend, device, timeout_s)
    from deep5.distributed.communicators.mpi import MPICommunicator

    world = MPICommunicator.world()
    if (world.rank, world.size) != (launched.rank, launched.size):
        raise UsageError(
            f"{launched.by} started this process as rank {launched.rank} of {launched.size}, but MPI reports rank "
            f"{world.rank} of {world.size}; allowed: the same; remedy: the mpiexec of the MPI that mpi4py uses, or "
            "srun --mpi=pmix"
        )
    return world


def _join_torch(launched: Launched, backend: str, device: str | Device, timeout_s: float) -> Communicator:
    from deep5.distributed.communicators.process_group import ProcessGroupCommunicator

    if backend == "nccl":
        use_device(device)
    rank, size = launched.rank, launched.size
    address, port = os.environ["MASTER_ADDR"], environment_number("MASTER_PORT")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return ProcessGroupCommunicator.connect(
            rank, size, address=address, port=port, backend=backend, timeout_s=timeout_s
        )
    # torchrun itself listens there, so rank 0 must not.
    from datetime import timedelta

    from torch.distributed import PrefixStore, TCPStore

    from deep5.core.errors import CommunicationError

    try:
        store = TCPStore(address, port, size, False, timedelta(seconds=timeout_s), False)
    except RuntimeError as error:
        raise CommunicationError(
            f"rank {rank} found no rank 0 at {address}:{port} within {timeout_s:g} s: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return ProcessGroupCommunicator(
        PrefixStore(f"deep5-{attempt}", store), rank, size, backend=backend, timeout_s=timeout_s
    )


def compare_ranks(
    communicator: Communicator, facts: Mapping[str, str | Mapping[str, Any]], *, timeout_s: float = _MEET_S
) -> None:
    """Reject ranks that differ, because their results would not be meaningful.

    Args:
        communicator: Every rank calls this.
        facts: Values that must be the same on all ranks, by name: the recipe's hash, versions. Of a mapping (in JSON
            types), only the entries that differ are reported.
        timeout_s: Time limit of each wait.

    Raises:
        UsageError: Raised identically on every rank: the fact that differs, on which ranks, and its values.
    """
    from deep5.distributed.texts import gather_texts

    everyone = [json.loads(text) for text in gather_texts(communicator, json.dumps(dict(facts)), timeout_s=timeout_s)]
    # In the order of rank 0, so that all ranks report the same.
    names = list(dict.fromkeys(name for rank in everyone for name in rank))
    for name in names:
        values = [rank.get(name) for rank in everyone]
        other = next((value for value in values if value != values[0]), values[0])
        if other != values[0]:
            if all(isinstance(value, dict) for value in values):
                raise UsageError(f"the ranks differ in {name}: {_differences(values)}; {_ALIKE}")
            alike, others = (
                ", ".join(str(rank) for rank, value in enumerate(values) if value == reported)
                for reported in (values[0], other)
            )
            raise UsageError(
                f"the ranks differ in {name}: {_text(values[0])} on rank {alike} and {_text(other)} on rank {others}; "
                f"{_ALIKE}"
            )


def _differences(values: Sequence[Mapping[str, Any]]) -> str:
    """The differences between several documents, by name, and the ranks that have them.

    >>> _differences([{"seed": 0, "sizes": {"a": 1}}, {"seed": 3, "sizes": {"a": 1}}])
    'seed: 0 on rank 0, 3 on rank 1'
    """
    flat = [_flat(value) for value in values]
    reported = []
    for name in dict.fromkeys(name for each in flat for name in each):
        ranks: dict[str | None, list[str]] = {}
        for rank, each in enumerate(flat):
            ranks.setdefault(each.get(name), []).append(str(rank))
        if len(ranks) > 1:
            texts = [text for text in ranks if text is not None]
            # Long values are shown from their first difference.
            columns = enumerate(zip(*texts, strict=False))
            same = next((place for place, letters in columns if len(set(letters)) > 1), 0)
            those = (f"{_part(text, same)} on rank {', '.join(those)}" for text, those in ranks.items())
            reported.append(f"{name}: {', '.join(those)}")
    return "; ".join(reported)


def _flat(document: Mapping[str, Any], before: str = "") -> dict[str, str]:
    """The values of a document as strings, by dotted name."""
    found: dict[str, str] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{before}{name}.")
        else:
            found[before + name] = json.dumps(value, sort_keys=True)
    return found


def _part(text: str | None, same: int) -> str:
    if text is None or len(text) <= 60:
        return "nothing" if text is None else text
    begin = max(same - 10, 0)
    return f"{'…' if begin else ''}{text[begin : begin + 50]}{'…' if begin + 50 < len(text) else ''}"


def _text(value: str | None) -> str:
    return "nothing" if value is None else repr(value) if len(value) <= 80 else brief(value)


class Report:
    """Reports of this rank to the process that watches it; does nothing if `start_ranks` did not start this rank.

    Attributes:
        watched: Whether a process reads the reports: then the rank need not print an error, because the parent does so
            once.
    """

    def __init__(self) -> None:
        folder = os.environ.get(FOLDER)
        rank = launched() if folder else None
        self.watched = folder is not None and rank is not None and Path(folder).is_dir()
        self._path = Path(folder or "") / f"rank-{rank.rank if rank is not None else 0}.json"
        # What stays true of this rank, whatever it reports later: `folder`, and `limit_s`.
        self._kept: dict[str, Any] = {}

    def started(self) -> None:
        """Report that this rank runs."""
        self._write("started")

    def folder(self, path: str | Path) -> None:
        """Report the folder to which this rank writes its result."""
        self._kept["folder"] = str(Path(path).absolute())
        self._write("started")

    def limit(self, timeout_s: float) -> None:
        """Report how long the other ranks wait for this one."""
        self._kept["limit_s"] = timeout_s
        self._write("started")

    def finished(self, status: int) -> None:
        """Report that this rank is done and exits with this status."""
        self._write("finished", status=status)

    def failed(
        self,
        message: str,
        status: int = 3,
        *,
        reason: str | None = None,
        trace: str | None = None,
        unreached: bool = False,
        late: bool = False,
    ) -> None:
        """Report that this rank ends with an error.

        Args:
            message: The error message.
            status: Exit status of this rank.
            reason: The part of the message that gives the cause, where the rank is named before it.
            trace: The traceback as Python prints it.
            unreached: Whether the failure is that this rank did not reach the others, one of which may have ended.
            late: Whether it waited for them as long as it may.
        """
        self._write("failed", status=status, error=message, reason=reason, trace=trace, unreached=unreached, late=late)

    def _write(self, state: str, **more: int | str | None) -> None:
        if self.watched:
            self._kept = {**self._reported(), **self._kept}
            document = {
                "pid": os.getpid(),
                "host": platform.node(),
                "state": state,
                "at_ns": monotonic_ns(),
                **self._kept,
                **more,
            }
            write_atomically(self._path, json.dumps(document))

    def _reported(self) -> dict[str, Any]:
        """What another `Report` of this rank has reported."""
        try:
            found = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        return {name: found[name] for name in ("folder", "limit_s") if name in found}
