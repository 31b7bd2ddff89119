"""`start_ranks`: a command once a rank, by mpiexec or torchrun, watched until nothing of it is left."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any, Literal, TextIO, get_args

import psutil

from deep5.arguments import is_whole
from deep5.distributed.holding import LIFELINE, OVER
from deep5.distributed.joining import FOLDER, LAUNCH
from deep5.errors import MissingDependency, UsageError, brief
from deep5.plugins import install_command

__all__ = ["Launcher", "RanksEnded", "start_ranks"]

Launcher = Literal["mpiexec", "torchrun"]

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from deep5.distributed import holding; "
    "getattr(holding, sys.argv[2])(*json.loads(sys.argv[3]), sys.argv[4:])"
)
_LOOK_S = 0.1
# Until all ranks run, at most: a launcher that waits for a machine that does not answer says nothing.
_START_S = 120.0
# Where one rank failed, the others mostly fail by themselves of the same; then they say so.
_TOGETHER_S = 1.0
# Ranks that wait for a lost one have nothing to put in order for which it would be worth to wait.
_LOST_GRACE_S = 3.0
_LAUNCHER_S = 2.0
# What is printed at the end may have a slow reader.
_DRAIN_S = 60.0
_TOLD_LINES, _TOLD_BYTES = 3, 20_000
_FAILED, _INTERRUPTED = 3, 130


@dataclass(frozen=True, kw_only=True)
class RanksEnded:
    """What became of a job.

    Attributes:
        status: What the first rank that did not end with 0 ended with, 3 where one was lost, 130 where the job was
            interrupted.
        lost: The rank that was ended from outside, or None.
        failed: The rank that failed by itself first, or None.
        signal: What ended the rank that was lost, where it is known.
        error: What went wrong, in one text, or None. The rank may have printed it, unless it left that to `Report`.
        result_folder: Where the run wrote its result, as the first rank that knew it said.
        seconds_to_notice: From the end of the rank that was lost or failed until it was seen; None where none was.
    """

    status: int
    lost: int | None = None
    failed: int | None = None
    signal: int | None = None
    error: str | None = None
    result_folder: Path | None = None
    seconds_to_notice: float | None = None


def start_ranks(
    command: Sequence[str],
    *,
    ranks: int,
    launcher: Launcher,
    environment: Mapping[str, str] | None = None,
    stdout: TextIO | None = None,
    grace_s: float = 15.0,
) -> RanksEnded:
    """Run a command once a rank on this machine, and return when nothing of it is left.

    Standard output and standard error of rank 0 are this process's, terminals included. Those of the others go
    nowhere, but for what the last lines tell of an error; so does what the launcher prints.

    A rank that is lost or fails ends the others. SIGINT and SIGTERM are passed to the ranks, which have `grace_s` to
    end in good order; a second signal ends them at once. If this process is killed, the ranks end with it.

    Args:
        command: What a rank is; the path of a program and its arguments.
        ranks: How many.
        launcher: Open MPI's or MPICH's mpiexec, or torchrun of PyTorch.
        environment: Of the ranks; None: this process's.
        stdout: Takes what rank 0 prints; None: standard output.
        grace_s: Between a signal and the end of those that did not end by it.

    Raises:
        MissingDependency: The launcher is not installed.
        UsageError: A number of ranks or a launcher that is none.
    """
    if not is_whole(ranks) or ranks < 1:
        raise UsageError(f"start_ranks: got {brief(ranks)} ranks; allowed: a whole number of at least 1")
    if launcher not in get_args(Launcher):
        raise UsageError(f"unknown launcher {brief(launcher)}; allowed: {', '.join(get_args(Launcher))}")
    variables = dict(os.environ if environment is None else environment)
    with tempfile.TemporaryDirectory(prefix="deep5-ranks-", ignore_cleanup_errors=True) as name:
        variables.update({FOLDER: name, LAUNCH: f"{launcher}:{ranks}"})
        start, variable, unset = _start(launcher, ranks, Path(name), variables)
        held = _own("hold", name, os.getpid(), variable, unset)
        whole = [*_own("follow", os.getpid()), *start, *held, *command]
        with _signals() as asked, _Job(Path(name), ranks, launcher, whole, variables, stdout or sys.stdout) as job:
            return job.watch(asked, grace_s)


def _own(function: str, *arguments: Any) -> list[str]:
    """A command line that calls a function of `deep5.distributed.holding`, found where this process finds it."""
    return [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), function, json.dumps(arguments)]


def _start(
    launcher: Launcher, ranks: int, folder: Path, variables: Mapping[str, str]
) -> tuple[list[str], str, list[str]]:
    """The launcher's part of the command line, what it says the rank in, and what it sets that no rank is to see."""
    if launcher == "torchrun":
        if importlib.util.find_spec("torch") is None:
            raise MissingDependency(
                f"torchrun needs the package 'torch', which is not installed; remedy: {install_command('torch')}"
            )
        # It would give each rank one thread; how many is the run's matter, and the same by either launcher.
        unset = [] if "OMP_NUM_THREADS" in variables else ["OMP_NUM_THREADS"]
        options = ["--nproc-per-node", str(ranks), "--standalone", "--log-dir", str(folder / "torchrun"), "--no-python"]
        return [sys.executable, "-m", "torch.distributed.run", *options], "RANK", unset
    path = _mpiexec()
    told = subprocess.run(
        [path, "--version"], capture_output=True, text=True, timeout=_START_S, check=False, stdin=subprocess.DEVNULL
    )
    if "Open MPI" not in told.stdout + told.stderr:
        return [path, "-n", str(ranks)], "PMI_RANK", []
    start = [path, "--bind-to", "none", "-n", str(ranks)]
    if ranks > (psutil.cpu_count(logical=False) or 1) or ranks > len(os.sched_getaffinity(0)):
        start.insert(1, "--oversubscribe")
    if os.geteuid() == 0:
        start.insert(1, "--allow-run-as-root")
    return start, "OMPI_COMM_WORLD_RANK", []


def _mpiexec() -> str:
    # That of the package openmpi, which belongs to the mpi4py beside it, before the system's.
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        raise MissingDependency(
            f"mpiexec is not installed: it is neither in {beside} nor on the PATH; remedy: {install_command('mpi4py')}"
        )
    return found


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM; outside the main thread, where Python takes none, they are left as they are."""
    asked: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, lambda got, frame: asked.append(got))
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@dataclass(frozen=True, kw_only=True)
class _End:
    """How a rank ended; `signal` is 0 where it is not known."""

    rank: int
    at_ns: int
    status: int | None
    signal: int | None


class _Job:
    """A launcher with its ranks; left as a context, nothing of it lives."""

    def __init__(
        self,
        folder: Path,
        ranks: int,
        launcher: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        stdout: TextIO,
    ) -> None:
        self.folder, self.ranks, self.launcher, self.stdout = folder, ranks, launcher, stdout
        self.ended: dict[int, _End] = {}
        self.holders: dict[int, tuple[psutil.Process, int]] = {}
        self._stack = ExitStack()
        self._threads: list[threading.Thread] = []
        self._said: dict[int, deque[bytes]] = {}
        os.mkfifo(folder / LIFELINE)
        self._lifeline = os.open(folder / LIFELINE, os.O_RDWR)
        self._pipes: list[int] = []
        for rank in range(ranks):
            self._connect(rank)
        with (folder / "launcher.txt").open("wb") as printed:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=dict(variables),
                # A terminal's signals are for this process, which passes them on.
                start_new_session=True,
            )

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep()
        for handle in self._pipes:
            os.close(handle)
        deadline = monotonic() + _DRAIN_S
        for thread in self._threads:
            thread.join(max(deadline - monotonic(), 0.0))

    def _connect(self, rank: int) -> None:
        """Where a rank's output goes: to terminals directly, and through pipes otherwise."""
        out, err = (self.folder / f"rank-{rank}.{name}" for name in ("out", "err"))
        self._said[rank] = deque(maxlen=_TOLD_BYTES // 1000)
        if rank == 0:
            self._relay(rank, out, self.stdout, keep=False)
            self._relay(rank, err, sys.stderr, keep=True)
        else:
            self._relay(rank, err, None, keep=True)
            out.symlink_to(err)

    def _relay(self, rank: int, path: Path, stream: Any, *, keep: bool) -> None:
        terminal = _terminal(stream)
        if terminal is not None:
            path.symlink_to(terminal)
            return
        os.mkfifo(path)
        # Held open for writing, too, so that there is no end before the first rank comes.
        source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._pipes.append(os.open(path, os.O_WRONLY))
        os.set_blocking(source, True)
        said = self._said[rank] if keep else None
        thread = threading.Thread(target=_pass_on, args=(source, stream, said), name=f"rank-{rank}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def watch(self, asked: list[int], grace_s: float) -> RanksEnded:
        """Return when all ranks have ended, or were ended because one did not end well."""
        deadline = monotonic() + _START_S
        while True:
            self._look()
            if asked:
                return self._interrupted(asked, grace_s)
            if (first := self._first()) is not None:
                return self._wrong(first, min(grace_s, _LOST_GRACE_S))
            if len(self.ended) == self.ranks:
                return RanksEnded(status=0, result_folder=self._result_folder())
            if self.process.poll() is not None:
                self._look()
                if self._first() is None and len(self.ended) < self.ranks:
                    return self._launcher_failed()
            elif len(self.holders) < self.ranks and monotonic() > deadline:
                return RanksEnded(
                    status=_FAILED,
                    error=f"{len(self.holders)} of {self.ranks} ranks were there after {_START_S:g} s{self._printed()}",
                )
            else:
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(_LOOK_S)

    def _look(self) -> None:
        """Find who has started and who has ended."""
        for rank in range(self.ranks):
            if rank in self.ended:
                continue
            if rank not in self.holders and (told := self._read(f"holder-{rank}.json")):
                with suppress(psutil.NoSuchProcess):
                    self.holders[rank] = (psutil.Process(told["pid"]), told["rank_pid"])
                gone = rank not in self.holders
            else:
                gone = rank in self.holders and not _lives(self.holders[rank][0])
            if told := self._read(f"ended-{rank}.json"):
                self.ended[rank] = _End(rank=rank, at_ns=told["at_ns"], status=told["status"], signal=told["signal"])
            elif gone:
                self.ended[rank] = _End(rank=rank, at_ns=monotonic_ns(), status=None, signal=0)

    def _read(self, name: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return {}
        return found

    def _first(self) -> tuple[int, int, dict[str, Any]] | None:
        """When and of which rank the first was that did not end well, and what that rank reports.

        One that says that it failed counts from then on: until its process ends it may take longer than the others do
        to notice, and MPI's end may wait for them.
        """
        found = []
        for rank in range(self.ranks):
            report, end = self._read(f"rank-{rank}.json"), self.ended.get(rank)
            if report.get("state") == "failed":
                found.append((int(report["at_ns"]), rank, report))
            elif end is not None and end.status != 0:
                found.append((end.at_ns, rank, {}))
        return min(found, key=lambda each: each[:2], default=None)

    def _wrong(self, first: tuple[int, int, dict[str, Any]], grace_s: float) -> RanksEnded:
        """The first rank that did not end well; what it did to the others is not told."""
        notice = max(monotonic_ns() - first[0], 0) / 1e9
        if first[2]:
            self._wait(_TOGETHER_S)
        first = self._first() or first
        self._end(signal.SIGTERM, grace_s)
        _, rank, report = first
        end, folder = self.ended.get(rank), self._result_folder()
        if not report and end is not None and end.signal is not None:
            return RanksEnded(
                status=_FAILED,
                lost=rank,
                signal=end.signal or None,
                error=self._lost(end),
                result_folder=folder,
                seconds_to_notice=notice,
            )
        status = report.get("status") or (end.status if end is not None else None) or _FAILED
        error = report.get("error") or f"rank {rank} ended with the status {status}{self._tail(rank)}"
        return RanksEnded(status=status, failed=rank, error=error, result_folder=folder, seconds_to_notice=notice)

    def _lost(self, end: _End) -> str:
        if not end.signal:
            return f"rank {end.rank} of {self.ranks} is lost: its process is gone"
        number = end.signal
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        why = "; the system does so where memory runs out" if number == signal.SIGKILL else self._tail(end.rank)
        return f"rank {end.rank} of {self.ranks} is lost: it was ended by {name}{why}"

    def _interrupted(self, asked: list[int], grace_s: float) -> RanksEnded:
        self._end(asked[0], grace_s if len(self.holders) == self.ranks else 0.0, asked)
        return RanksEnded(status=_INTERRUPTED, error="interrupted", result_folder=self._result_folder())

    def _launcher_failed(self) -> RanksEnded:
        status = self.process.returncode
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with the status {status}"
        self._end(signal.SIGTERM, _LOST_GRACE_S)
        return RanksEnded(
            status=_FAILED,
            error=f"{self.launcher} {how} before its ranks{self._printed()}",
            result_folder=self._result_folder(),
        )

    def _printed(self) -> str:
        return _told((self.folder / "launcher.txt").read_bytes())

    def _tail(self, rank: int) -> str:
        sleep(_LOOK_S)  # its last lines are on their way
        return _told(b"".join(list(self._said[rank])))

    def _result_folder(self) -> Path | None:
        told = (self._read(f"rank-{rank}.json").get("folder") for rank in range(self.ranks))
        return next((Path(folder) for folder in told if folder), None)

    def _wait(self, limit_s: float, asked: list[int] | None = None) -> None:
        """Until all that started have ended, or the limit, or a second signal."""
        deadline = monotonic() + limit_s
        while monotonic() < deadline and (asked is None or len(asked) < 2):
            self._look()
            if all(rank in self.ended for rank in self.holders):
                return
            sleep(_LOOK_S / 4)

    def _end(self, number: int, grace_s: float, asked: list[int] | None = None) -> None:
        """Give the ranks that are left a signal and some time, and then end them."""
        self._look()
        for rank, (holder, process) in self.holders.items():
            # A rank's number is its own for as long as its parent, the holder, has not reaped it.
            if rank not in self.ended and _lives(holder):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, number)
        self._wait(grace_s, asked)

    def _sweep(self) -> None:
        """End all that is left: what ranks started, the ranks, those who hold their places, and the launcher."""
        left = _tree(self.process)
        places = {holder.pid for holder, _ in self.holders.values()}
        above = {ancestor.pid for holder, _ in self.holders.values() for ancestor in _parents(holder)}
        for each in left:
            # Of the launcher's, only what is below a holder: it would complain of anything else.
            if each.pid not in places and each.pid not in above and places & {up.pid for up in _parents(each)}:
                with suppress(psutil.Error):
                    each.kill()
        # Those who hold the places let go, and the launcher sees them all end well.
        (self.folder / OVER).touch()
        os.close(self._lifeline)
        for sign in (None, signal.SIGTERM, signal.SIGKILL):
            if sign is not None:
                self.process.send_signal(sign)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_LAUNCHER_S)
                break
        for each in left:
            with suppress(psutil.Error):
                each.kill()
        psutil.wait_procs(left, _LAUNCHER_S)


def _tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        return list(psutil.Process(process.pid).children(recursive=True))
    except psutil.Error:
        return []


def _parents(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.parents())
    except psutil.Error:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _terminal(stream: Any) -> str | None:
    """The path of the terminal that a stream is, where it can be opened once more."""
    try:
        path = os.ttyname(stream.fileno())
    except (OSError, ValueError, AttributeError):
        return None
    return path if os.access(path, os.W_OK) else None


def _pass_on(source: int, stream: Any, said: deque[bytes] | None) -> None:
    """What comes from a pipe, unchanged to a stream, if there is one; the last of it is kept."""
    with os.fdopen(source, "rb", buffering=0) as file:
        while block := file.read(1000):
            if said is not None:
                said.append(block)
            try:
                if stream is not None:
                    _write(stream, block)
            except (OSError, ValueError):
                stream = None  # nobody reads it any more; the rank is not to wait for that


def _write(stream: Any, block: bytes) -> None:
    buffer = getattr(stream, "buffer", None)
    if buffer is None:
        stream.write(block.decode(errors="replace"))
        stream.flush()
    else:
        buffer.write(block)
        buffer.flush()


def _told(said: bytes) -> str:
    lines = [line.strip() for line in said[-_TOLD_BYTES:].decode(errors="replace").splitlines() if line.strip()]
    last = " | ".join(line[:200] for line in lines[-_TOLD_LINES:])
    return f"; it said: {last}" if last else ""
