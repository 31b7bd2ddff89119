"""The communicators pass their conformance suite on real ranks, and the suite catches wrong ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from deep5.core.communicator import TIMEOUT_S, SingleRank
from deep5.core.errors import CommunicationError, MissingDependency, UsageError
from deep5.distributed.communicators import check_waiting, mpi
from deep5.distributed.communicators.check import check_communicator
from deep5.distributed.communicators.process_group import ProcessGroupCommunicator
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads
from ranks import as_processes, free_port, mpi_version, under_mpi

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("mpi4py", reason="mpi4py is not installed")

MPI = """
import os, sys, time
import numpy as np
from deep5.distributed.communicators.check import check_communicator
from deep5.distributed.communicators.mpi import MPICommunicator

communicator = MPICommunicator.world()
rank, size = communicator.rank, communicator.size
"""
GLOO = """
import os, sys, time
import numpy as np
from deep5.distributed.communicators.check import check_communicator
from deep5.distributed.communicators.process_group import ProcessGroupCommunicator

rank, size, port = map(int, sys.argv[1:4])
"""
# One start covers all sizes.
SUITE = """
check_communicator(communicator)
for members in (3, 2):
    part = communicator.split(int(rank >= members))
    if rank < members:
        check_communicator(part)
    communicator.barrier()
    part.close()
communicator.close()
print("rank", rank, "passed")
"""


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_threads_pass_the_suite(size: int) -> None:
    run_in_threads(size, check_communicator)


def test_a_single_rank_passes_the_suite() -> None:
    check_communicator(SingleRank())


@pytest.mark.daily
def test_mpi_passes_the_suite() -> None:
    ended = under_mpi(MPI + SUITE, 4, timeout_s=180.0)
    assert ended.status == 0, ended
    assert sorted(ended.output.splitlines()) == [f"rank {rank} passed" for rank in range(4)]


@pytest.mark.daily
def test_gloo_passes_the_suite() -> None:
    connect = "communicator = ProcessGroupCommunicator.connect(rank, size, port=port, checked=True)\n"
    for rank, ended in enumerate(as_processes(GLOO + connect + SUITE, 4, timeout_s=180.0)):
        assert (ended.status, ended.output) == (0, f"rank {rank} passed\n"), ended


def test_gloo_passes_the_suite_where_the_ranks_do_not_tell_each_other() -> None:
    program = """
    communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
    check_communicator(communicator, mismatches=False)
    communicator.close()
    print("rank", rank, "passed")
    """
    for rank, ended in enumerate(as_processes(GLOO + dedent(program), 2)):
        assert (ended.status, ended.output) == (0, f"rank {rank} passed\n"), ended


class Averages(ThreadCommunicator):
    def _call(self, name, timeout_s, *given):
        super()._call(name, timeout_s, *given)
        if name == "all_reduce" and given[1] == "sum":
            given[0][...] = given[0] / self.size


class CountsNothing(ThreadCommunicator):
    sent_bytes = property(lambda self: 0, lambda self, value: None)


class ExchangesBackwards(ThreadCommunicator):
    def exchange(
        self, buffer: np.ndarray, out: np.ndarray, neighbours: Sequence[int], *, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().exchange(buffer, out, neighbours, timeout_s=timeout_s)
        out[...] = out[::-1].copy()


class RoundsDifferently(ThreadCommunicator):
    def _call(self, name, timeout_s, *given):
        super()._call(name, timeout_s, *given)
        if name == "all_reduce" and given[0].size == 3 and given[0].dtype == np.float32 and self.rank == 1:
            given[0][...] = np.nextafter(given[0], np.float32(0))


class DoesNotWait(ThreadCommunicator):
    def barrier(self, *, timeout_s: float = TIMEOUT_S) -> None:
        pass


class WaitsTooLong(ThreadCommunicator):
    def _call(self, name, timeout_s, *given):
        super()._call(name, max(timeout_s, 1.0), *given)

    def split(self, color: int, *, key: int | None = None) -> ThreadCommunicator:
        part = super().split(color, key=key)
        return WaitsTooLong(part.rank, part._group)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (Averages, r"all_reduce, sum of float32\[\d\]: on rank \d, \d of \d numbers are wrong"),
        (CountsNothing, "all_reduce, .* counted 0 bytes in 1 messages; allowed: 4 in 1"),
        (ExchangesBackwards, r"exchange of 3 numbers with the ranks \[.*\]: .* \d of 6 numbers are wrong"),
        (RoundsDifferently, r"all_reduce.* of float32\[3\].*: on rank 1, \d of 3 numbers are wrong"),
        (DoesNotWait, "barrier: over in .* before rank 2 had come"),
        (WaitsTooLong, "barrier while rank 2 does not come: rank . got the error after"),
    ],
)
def test_the_suite_catches_a_wrong_communicator(
    monkeypatch: pytest.MonkeyPatch, wrong: type[ThreadCommunicator], told: str
) -> None:
    # The machine's allowance on a limit: threads that only wait need little.
    monkeypatch.setattr(check_waiting, "_SLACK_S", 0.5)
    with pytest.raises(CommunicationError, match=told):
        run_in_threads(3, lambda communicator: check_communicator(wrong(communicator.rank, communicator._group)))


def damaged(fires: Callable[..., bool], change: Callable[[np.ndarray], Any]) -> type[ThreadCommunicator]:
    """Communicators of which the first array of some blocking calls is changed after it: where `fires` is true."""

    class Damaged(ThreadCommunicator):
        def _call(self, name: str, timeout_s: float, *given: Any) -> None:
            super()._call(name, timeout_s, *given)
            if fires(self, name, *given):
                given[0][...] = change(given[0])

        def split(self, color: int, *, key: int | None = None) -> ThreadCommunicator:
            part = super().split(color, key=key)
            return type(self)(part.rank, part._group)

    return Damaged


def summed(dtype: Any, least: int = 0) -> Callable[..., bool]:
    return lambda self, name, buffer=None, *given: (
        name == "all_reduce" and buffer.dtype == dtype and buffer.size >= least
    )


def nothing(values: np.ndarray) -> np.ndarray:
    return np.zeros_like(values)


class OnlyWhole(ThreadCommunicator):
    """The parts of a split are wrong."""

    is_part = False

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        super()._call(name, timeout_s, *given)
        if self.is_part and name == "all_reduce":
            given[0][...] = 0

    def split(self, color: int, *, key: int | None = None) -> ThreadCommunicator:
        part = super().split(color, key=key)
        made = OnlyWhole(part.rank, part._group)
        made.is_part = True
        return made


DAMAGED = {
    "float64 of float32": (damaged(summed(np.float64), np.float32), r"all_reduce, sum of float64\[1\]"),
    "int64 of int8": (
        damaged(summed(np.int64), lambda values: values.astype(np.int8)),
        r"all_reduce, .* of int64\[\d\]",
    ),
    "int32": (damaged(summed(np.int32), nothing), r"all_reduce, .* of int32\[3\]"),
    "uint64": (damaged(summed(np.uint64), nothing), r"all_reduce, .* of uint64\[3\]"),
    "int8": (damaged(summed(np.int8), nothing), r"all_reduce, .* of int8\[3\]"),
    "bool": (damaged(summed(bool), nothing), r"all_reduce, .* of bool\[3\]"),
    "multiple of 8": (
        damaged(lambda self, name, *given: name == "all_reduce" and given[0].size in (16, 32, 64), nothing),
        r"all_reduce, .* of float32\[64\]",
    ),
    "sum to root 1": (
        damaged(lambda self, name, *given: (name, *given[1:]) == ("reduce", 1, "sum") and self.rank == 1, nothing),
        "reduce to 1, sum of",
    ),
    "NaN": (damaged(summed(np.float64), np.nan_to_num), "all_reduce, sum of NaN and infinities on rank"),
    "sign of a product": (
        damaged(lambda self, name, *given: name == "all_reduce" and given[1] == "prod", np.abs),
        "all_reduce, prod of float32",
    ),
    "rank 2": (
        damaged(lambda self, name, *given: name == "broadcast" and given[0].ndim == 2, nothing),
        "broadcast from . of float32",
    ),
    "rank 3": (
        damaged(lambda self, name, *given: name == "all_reduce" and given[0].ndim == 3, nothing),
        "all_reduce.* of float32",
    ),
    "many": (damaged(summed(np.float32, 50_000), nothing), r"a sum of float32\[1000003\] is off"),
    "parts": (OnlyWhole, r"all_reduce, sum of float64\[3\]"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_the_suite_catches_what_is_wrong_of_some_arrays(name: str) -> None:
    wrong, told = DAMAGED[name]
    with pytest.raises(CommunicationError, match=told):
        run_in_threads(2, lambda communicator: check_communicator(wrong(communicator.rank, communicator._group)))


def test_mpi_tells_who_waits_for_a_rank_that_does_not_come() -> None:
    program = """
    if rank == 1:
        time.sleep(600)
    for count in (1, 100_000):
        try:
            communicator.all_reduce(np.ones(count), timeout_s=0.5)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    """
    ended = under_mpi(MPI + dedent(program), 2)
    assert ended.output.count("OperationTimeout: all_reduce was not finished within 0.5 s") == 2, ended
    assert ended.status == 3, ended
    assert "rank 0 exits with 2 MPI operations pending" in ended.errors


def test_mpi_ends_where_a_rank_is_lost_in_the_middle_of_an_operation() -> None:
    program = """
    from deep5.distributed.communicators import mpi_waiting

    mpi_waiting.GRACE_S = 0.5
    if rank == 1:
        # As far as all others can know, it is about to do the same.
        buffer = np.ones(100_000)
        communicator._now.agree(("all_reduce", buffer.dtype, buffer.size, "sum"), 10.0)
        time.sleep(60)
    communicator.all_reduce(np.ones(100_000), timeout_s=1.0)
    """
    ended = under_mpi(MPI + dedent(program), 2)
    assert ended.status == 3, ended
    assert "all_reduce was not finished within 1 s: another rank is late, or lost; remedy: a longer" in ended.errors


def test_mpi_does_not_hang_where_a_rank_dies() -> None:
    program = """
    if rank == 1:
        os._exit(7)
    communicator.all_reduce(np.ones(100_000))
    """
    ended = under_mpi(MPI + dedent(program), 3, timeout_s=40)
    # Open MPI gives the status of the lost rank, MPICH that of the ranks that it then killed.
    assert ended.status in (7, 9), ended


def test_mpi_ends_where_a_rank_does_not_come_to_the_meeting() -> None:
    program = """
    import os, time
    from deep5.distributed.communicators.mpi import MPICommunicator

    if os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")) == "1":
        time.sleep(600)
    MPICommunicator.world(timeout_s=2.0)
    """
    ended = under_mpi(program, 2)
    assert ended.status in (1, 9), ended
    assert "Timeout" in ended.errors
    assert "_meet_all_other_ranks_or_end" in ended.errors


def test_a_message_that_was_begun_and_does_not_end_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    if "Open MPI" not in mpi_version():
        pytest.skip("only Open MPI is told by these variables to go by sockets")
    # As between two hosts, where both sides begin a large message, and neither completes it without the other.
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    monkeypatch.setenv("OMPI_MCA_btl", "self,tcp")
    program = """
    large, other = np.ones(5_000_000), np.ones(5_000_000)
    if rank == 1:
        communicator.send_start(large, 0)
        communicator.send_start(large, 0, tag=1)
        time.sleep(600)
    for wait in (
        lambda: communicator.receive(large, 1, timeout_s=1.0),
        lambda: communicator.exchange(large[:3], other[:3], [1], timeout_s=1.0),
    ):
        try:
            wait()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    """
    ended = under_mpi(MPI + dedent(program), 2)
    assert "OperationTimeout: receive from rank 1 was not finished within 1 s" in ended.output, ended
    assert ended.status == 3, ended


def test_mpi_looks_at_a_buffer_every_time() -> None:
    program = """
    values = np.ones(1000)
    communicator.all_reduce(values)
    sent = communicator.sent_bytes
    values.flags.writeable = False
    try:
        communicator.all_reduce(values)
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    assert communicator.sent_bytes == sent
    """
    ended = under_mpi(MPI + dedent(program), 2)
    assert ended.output.count("UsageError: got a read-only array of float64[1000] for a result") == 2, ended
    assert ended.status == 0, ended


def test_numbers_in_another_order_of_bytes_are_refused() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        communicator.all_reduce(np.ones(3, ">f8"))

    with pytest.raises(UsageError, match="got a buffer of >f8; allowed: numbers in this machine's byte order"):
        run_in_threads(2, work)


def test_gloo_tells_who_waits_for_a_rank_that_dies() -> None:
    program = """
    communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
    if rank == 2:
        os._exit(7)
    waits = [
        lambda: communicator.all_reduce(np.ones(100_000), timeout_s=10),
        lambda: communicator.all_reduce_start(np.ones(3)).wait(10),
        lambda: communicator.receive(np.ones(3), 2, timeout_s=10),
    ]
    for wait in waits:
        try:
            wait()
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
    """
    ended = as_processes(GLOO + dedent(program), 3, timeout_s=50)
    assert [each.status for each in ended] == [0, 0, 7], ended
    for rank in (0, 1):
        lines = ended[rank].output.splitlines()
        for line, what in zip(lines, ("all_reduce", "all_reduce", "receive of 24 bytes from rank 2"), strict=True):
            assert line.startswith(f"CommunicationError: {what} failed on rank {rank}: "), ended


def test_gloo_ends_where_a_rank_does_not_come() -> None:
    """An operation that was started and never completed keeps the process no more than a blocking call does."""
    program = """
    communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
    if rank == 0:
        request = communicator.all_reduce_start(np.ones(3))
        try:
            request.wait(0.3)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        asked = communicator.receive_start(np.ones(3), 1)
        print(request.done(), asked.done(), flush=True)
    else:
        time.sleep(3)
    """
    first, second = as_processes(GLOO + dedent(program), 2)
    assert (first.status, second.status) == (0, 0), (first, second)
    told = "OperationTimeout: all_reduce was not finished on rank 0 within 0.3 s; remedy: every rank has to call"
    assert first.output.startswith(told)
    assert first.output.endswith("False False\n")


def test_a_process_ends_after_gloos_threads() -> None:
    """A thread of gloo that still runs Python, or releases a tensor, when Python has ended aborts the process."""
    program = """
    from deep5.distributed.communicators import process_group

    communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
    assert communicator.count_hidden()
    process_group._Started._end = lambda *given: print(time.sleep(2), rank, flush=True)
    request = communicator.all_reduce_start(np.ones(3))
    time.sleep(0.5)
    """
    for rank, ended in enumerate(as_processes(GLOO + dedent(program), 2)):
        assert (ended.status, ended.output) == (0, f"None {rank}\n"), ended


def test_a_group_that_torch_made_is_taken() -> None:
    program = """
    import torch.distributed as distributed

    try:
        ProcessGroupCommunicator.of_group()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    store = distributed.TCPStore("127.0.0.1", port, size, rank == 0)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    total = np.array([rank + 1], np.int16)
    ProcessGroupCommunicator.of_group().all_reduce(total)
    alone = ProcessGroupCommunicator.of_group(distributed.new_group([1])) if rank == 1 else distributed.new_group([1])
    print(total[0], alone.size if rank == 1 else None, flush=True)
    distributed.destroy_process_group()
    """
    first, second = as_processes(GLOO + dedent(program), 2)
    assert first.output.startswith("UsageError: torch.distributed is not initialized; remedy: "), first
    assert first.output.endswith("\n3 None\n"), first
    assert second.output.endswith("\n3 1\n"), second


def test_the_ranks_that_nobody_meets_are_told() -> None:
    with pytest.raises(CommunicationError, match=r"rank 1 found no store at 127\.0\.0\.1:"):
        ProcessGroupCommunicator.connect(1, 2, port=free_port(), timeout_s=0.5)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown back-end 'mpi' of torch\.distributed; allowed: gloo, nccl"):
        ProcessGroupCommunicator.connect(0, 1, port=free_port(), backend="mpi")


def test_without_mpi4py_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi._library.cache_clear()
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(MissingDependency, match=r"needs the package 'mpi4py'.* pip install 'deep5\[mpi\]'"):
        mpi.MPICommunicator.world()


@pytest.mark.gpu
def test_nccl_passes_the_suite() -> None:
    check_communicator(ProcessGroupCommunicator.connect(0, 1, port=free_port(), backend="nccl"))
