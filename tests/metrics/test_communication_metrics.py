"""How much communication ranks hide, and how stale their updates are: on threads, MPI and gloo, and audited."""

from __future__ import annotations

import csv
import inspect
import json
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from time import sleep
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.audit import audit
from deep5.core.communicator import SingleRank
from deep5.core.errors import CommunicationError
from deep5.distributed.communicators import base_communicator, check_waiting
from deep5.distributed.communicators.base_communicator import CountedCommunicator
from deep5.distributed.communicators.check import check_communicator
from deep5.distributed.communicators.threads import ThreadCommunicator, run_in_threads
from deep5.metrics.staleness import staleness_text
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute_as_rank
from deep5.training.checkpointer import Checkpointer
from ranks import as_processes, under_mpi

# What is hidden: on a clock that the test sets ------------------------------------------------------------------------


class Operation:
    """Ends when the test sets its end."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.finished_ns = clock, None

    def wait(self, timeout_s: float = 1.0) -> None:
        self.finished_ns = self.clock.now = max(self.clock.now, self.finished_ns or self.clock.now)

    def done(self) -> bool:
        return self.finished_ns is not None


class Clock:
    def __init__(self) -> None:
        self.now = self.readings = 0

    def __call__(self) -> int:
        self.readings += 1
        return self.now


class Scripted(CountedCommunicator):
    """Two ranks, of which the other does not exist: a blocking call takes 10 ns, a start none."""

    tells_ends = True

    def __init__(self, clock: Clock) -> None:
        super().__init__(0, 2)
        self.clock, self.started = clock, list[Any]()

    def _call(self, name: str, timeout_s: float, *given: Any) -> None:
        self.clock.now += 10

    def _call_start(self, name: str, *given: Any) -> Any:
        self.started.append(Operation(self.clock))
        return self.started[-1]

    def split(self, color: int, *, key: int | None = None) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    clock = Clock()
    monkeypatch.setattr(base_communicator, "perf_counter_ns", clock)
    return Scripted(clock)


def counts(communicator: Scripted) -> tuple[int, int]:
    return communicator.hidden_ns, communicator.waited_ns


def test_what_is_hidden_ends_with_the_collective_and_not_with_the_wait(scripted: Scripted) -> None:
    assert scripted.count_hidden()
    request = scripted.all_reduce_start(np.ones(3))
    scripted.clock.now = 100
    scripted.started[0].finished_ns = 40
    request.wait()
    request.wait()
    assert counts(scripted) == (40, 0)
    scripted.clock.now = 200  # nothing is in progress
    scripted.all_reduce(np.ones(3))
    assert counts(scripted) == (40, 10)


def test_what_ends_in_the_wait_is_hidden_up_to_it(scripted: Scripted) -> None:
    scripted.count_hidden()
    request = scripted.all_reduce_start(np.ones(3))
    scripted.clock.now = 60
    operation = scripted.started[0]
    operation.wait = lambda timeout_s: setattr(scripted.clock, "now", 85)
    request.wait()
    assert counts(scripted) == (60, 25)


def test_collectives_at_once_take_the_time_of_one_and_blocking_calls_hide_nothing(scripted: Scripted) -> None:
    scripted.count_hidden()
    first = scripted.all_reduce_start(np.ones(3))
    scripted.clock.now = 20
    second = scripted.all_gather_start(np.ones(3), np.ones(6))
    scripted.clock.now = 30
    scripted.barrier()  # both are in progress for 10, and the caller waits
    assert counts(scripted) == (30, 10)
    scripted.clock.now = 100
    scripted.started[0].finished_ns, scripted.started[1].finished_ns = 45, 70
    first.wait()
    second.wait()
    # From 0 to 70, minus the barrier: the sum of both would be 45 + 50.
    assert counts(scripted) == (60, 10)


def test_what_ended_while_the_caller_was_in_a_call_hides_nothing_more(scripted: Scripted) -> None:
    scripted.count_hidden()
    request = scripted.all_reduce_start(np.ones(3))
    scripted.clock.now = 20
    scripted.barrier()
    scripted.started[0].finished_ns = 25
    scripted.clock.now = 90
    request.wait()
    assert counts(scripted) == (20, 10)


def test_messages_and_who_does_not_count_hide_nothing(scripted: Scripted) -> None:
    request = scripted.all_reduce_start(np.ones(3))
    scripted.clock.now = 50
    request.wait()
    assert counts(scripted) == (0, 0)
    scripted.count_hidden()
    sending = scripted.send_start(np.ones(3), 1)
    nothing = scripted.all_reduce_start(np.ones(0))
    scripted.clock.now = 90
    nothing.wait()
    sending.wait()
    assert counts(scripted) == (0, 0)
    scripted.tells_ends = False
    assert not scripted.count_hidden()


# What is hidden: on real ranks ---------------------------------------------------------------------------------------

# Rank 1 is late by this much; rank 0 has started its part by then, and works for this long.
LATE_S, BUSY_S = 0.2, 0.7


def seen(communicator: Any) -> list[tuple[float, float]]:
    """Seconds that a rank hid and waited: one collective during its work, two at once, and one without work."""
    assert communicator.count_hidden()
    found = []
    for collectives, busy_s in ((1, BUSY_S), (2, BUSY_S), (1, 0.0)):
        buffers = [np.ones(20_000) for _ in range(collectives)]
        communicator.barrier()
        before = communicator.hidden_ns, communicator.waited_ns
        if communicator.rank:
            sleep(LATE_S)
        requests = [communicator.all_reduce_start(buffer) for buffer in buffers]
        if communicator.rank == 0 and busy_s:
            sleep(busy_s)
        for request in requests:
            request.wait()
        assert all((buffer == 2).all() for buffer in buffers)
        found.append(((communicator.hidden_ns - before[0]) / 1e9, (communicator.waited_ns - before[1]) / 1e9))
    return found


PROGRAM = f"""
import json
import sys
from time import sleep
from typing import Any
import numpy as np

LATE_S, BUSY_S = {LATE_S}, {BUSY_S}
{inspect.getsource(seen)}
"""
MPI = """
from deep5.distributed.communicators.mpi import MPICommunicator
communicator = MPICommunicator.world()
"""
GLOO = """
from deep5.distributed.communicators.process_group import ProcessGroupCommunicator
rank, size, port = map(int, sys.argv[1:4])
communicator = ProcessGroupCommunicator.connect(rank, size, port=port)
"""
TOLD = """
found = seen(communicator)
if communicator.rank == 0:
    print(json.dumps(found))
communicator.close()
"""


def by_threads() -> Any:
    return run_in_threads(2, seen)[0]


def by_mpi() -> Any:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    ended = under_mpi(PROGRAM + MPI + TOLD, 2)
    assert ended.status == 0, ended
    return json.loads(ended.output)


def by_gloo() -> Any:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    ended = as_processes(PROGRAM + GLOO + TOLD, 2)
    assert [each.status for each in ended] == [0, 0], ended
    return json.loads(ended[0].output)


@pytest.mark.parametrize("by", [by_threads, by_mpi, by_gloo])
def test_work_behind_a_collective_hides_it_and_waiting_at_once_does_not(by: Callable[[], Any]) -> None:
    (hidden_s, _), (both_s, _), (_, at_once_waited_s) = by()
    # Rank 0 leaves the barrier up to half of it later than rank 1.
    assert hidden_s > LATE_S / 2
    assert both_s > LATE_S / 2
    assert at_once_waited_s > LATE_S / 2


def test_an_mpi_without_threads_does_not_know_it() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    serial = """
    import mpi4py
    mpi4py.rc.thread_level = "serialized"
    import numpy as np
    from deep5.distributed.communicators.mpi import MPICommunicator
    communicator = MPICommunicator.world()
    counts = communicator.count_hidden()
    communicator.all_reduce_start(np.ones(3)).wait()
    print(counts, communicator.hidden_ns)
    """
    ended = under_mpi(serial, 1)
    assert (ended.status, ended.output) == (0, "False 0\n"), ended


class Blind(ThreadCommunicator):
    """Takes a started operation as ended only when a rank waits for it."""

    def _call_start(self, name: str, *given: Any) -> Any:
        inner = super()._call_start(name, *given)
        return inner if name in ("send", "receive") else Looked(inner)

    def split(self, color: int, *, key: int | None = None) -> Blind:
        part = super().split(color, key=key)
        return Blind(part.rank, part._group)


class Looked:
    finished_ns = None

    def __init__(self, inner: Any) -> None:
        self.wait, self.done = inner.wait, inner.done


def test_the_suite_of_communicators_catches_one_that_sees_an_end_only_in_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_waiting, "_SLACK_S", 0.5)
    with pytest.raises(CommunicationError, match=r"hidden_ns: 0\.[6-9].. s more on rank . after 0\.6 s"):
        run_in_threads(2, lambda communicator: check_communicator(Blind(communicator.rank, communicator._group)))


# The metric ----------------------------------------------------------------------------------------------------------


class Hides(d5.DistributedOptimizer):
    """All-reduce with or without work while it runs; rank 1 is 30 ms late."""

    def __init__(self, behind_s: float, *, steps_alone: bool = False) -> None:
        super().__init__(verify_every=0)
        self.behind_s, self.steps_alone = behind_s, steps_alone

    def _prepare(self) -> None:
        self._own = self.communicator.split(0)

    def step(self, inputs: Any, info: d5.StepInfo) -> Any:
        outputs = self.backprop(inputs, info)
        # With separate counters: ranks whose steps drift apart would be late by an arbitrary time.
        self._own.barrier()
        if self.steps_alone:
            return outputs
        late_s = 0.03 if self.communicator.rank else 0.0
        sleep(late_s)
        request = self.communicator.all_reduce_start(np.ones(4))
        sleep(max(self.behind_s - late_s, 0.0))
        request.wait()
        return outputs


class Kept(d5.Event):
    """Keeps what a checkpoint would contain."""

    every_rank = True

    def __init__(self, states: list[dict[str, Any]]) -> None:
        self.states = states

    def after_epoch(self, trainer: Any, epoch: int) -> None:
        self.states.append(trainer.state_dict())

    def state_dict(self) -> dict[str, Any]:
        return {}


def trained(
    communicator: Any, scheme: Any, metric: d5.Metric, events: Any = (), *, epochs: int = 2, state: Any = None
) -> tuple[Any, Any, list[dict[str, Any]]]:
    """Train on 32 samples, 4 steps an epoch: the trainer, the metric's observer, and their state after each epoch."""
    data = d5.datasets.synthetic(shape=(6,), classes=3, train=32, test=9)
    network = d5.networks.mlp(features=6, hidden=4, classes=3, dtype="float64")
    executor = d5.framework("reference").executor(network)
    whole = d5.ShuffleSampler(data.train, 8, transforms=[d5.Cast("float64")])
    sampler = d5.ShardedSampler(whole, communicator.rank, communicator.size)
    trainer = d5.Trainer(executor, scheme.wrap(d5.SGD(0.05), communicator), sampler, communicator=communicator)
    observer = metric.observer()
    if state is not None:
        trainer.load_state_dict(state)
    kept: list[dict[str, Any]] = []
    trainer.train(epochs, [observer, *events, Kept(kept)])
    return trainer, observer, kept


@pytest.mark.parametrize("behind_s", [0.06, 0.0])
def test_overlap_of_training_is_of_all_ranks(behind_s: float) -> None:
    def rank(communicator: Any) -> tuple[Any, Any]:
        _, observer, _ = trained(communicator, Hides(behind_s), d5.CommunicationOverlap())
        own = observer.value()
        observer.combine(communicator)
        return own, observer

    (own, first), (_, second) = run_in_threads(2, rank)
    assert 0 <= first.value() <= 100
    assert first.value() == second.value() <= own
    # Eight steps, of which the first does not count.
    assert [sample.step for sample in first.samples()] == [*range(1, 8)]
    assert all(0 <= sample.value <= 100 for sample in first.samples())


def test_an_overlap_that_cannot_be_known_is_none() -> None:
    _, alone, _ = trained(SingleRank(), Hides(0.0), d5.CommunicationOverlap())
    alone.combine(SingleRank())
    assert alone.value() is None
    assert alone.missing() == "training has only one process; remedy: --ranks 2, say"

    class Untold(ThreadCommunicator):
        tells_ends = False

    def rank(communicator: Any, scheme: Any, blind: int) -> Any:
        kind = Untold if communicator.rank == blind else ThreadCommunicator
        own = kind(communicator.rank, communicator._group)
        _, observer, _ = trained(own, scheme, d5.CommunicationOverlap())
        observer.combine(own)
        return observer.value(), observer.missing()

    # One rank that cannot know it is enough.
    for found in run_in_threads(2, lambda own: rank(own, Hides(0.0), 1)):
        assert found == (None, "the communicator does not know when a collective that was started has ended")
    for found in run_in_threads(2, lambda own: rank(own, Hides(0.0, steps_alone=True), -1)):
        assert found == (None, "no rank communicated in a step after the first of each batch size")


def test_a_scheme_that_only_blocks_hides_nothing() -> None:
    def rank(communicator: Any) -> float | None:
        _, observer, _ = trained(communicator, d5.LocalSGD(2), d5.CommunicationOverlap())
        observer.combine(communicator)
        assert len(observer.samples()) == 4  # of the steps that exchange, which are every second one
        value: float | None = observer.value()
        return value

    assert run_in_threads(2, rank) == [0.0, 0.0]


# Staleness -----------------------------------------------------------------------------------------------------------

# The rank of each step, in two epochs of four steps per rank; the server begins an epoch with rank 0.
TURNS = ((0, 0, 1, 0, 1, 1, 1, 0), (0, 1, 1, 1, 1, 0, 0, 0))


def follows(turns: tuple[int, ...]) -> list[list[int]]:
    """The staleness of each rank's updates: the updates of others since its own last one, or since it began."""
    ages: list[list[int]] = [[], []]
    for place, rank in enumerate(turns):
        before = [other for other in range(place) if turns[other] == rank]
        ages[rank].append(place - before[-1] - 1 if before else 0)
    return ages


class InTurn(d5.Event):
    """Makes ranks take their steps in turn; a rank that begins an epoch then gets the current parameters."""

    every_rank = True

    def __init__(self, order: list[int], shared: list[int], condition: threading.Condition) -> None:
        self.order, self.shared, self.condition = order, shared, condition

    def before_step(self, trainer: Any, info: d5.StepInfo) -> None:
        rank = trainer.communicator.rank
        with self.condition:
            assert self.condition.wait_for(lambda: self.order[self.shared[0]] == rank, 20.0)

    def after_step(self, trainer: Any, info: d5.StepInfo, outputs: Any, begin_ns: int, end_ns: int) -> None:
        with self.condition:
            self.shared[0] += 1
            self.condition.notify_all()

    def state_dict(self) -> dict[str, Any]:
        return {}


def in_turn(turns: tuple[int, ...], states: Any = (None, None)) -> list[Any]:
    """For each rank, an epoch's samples, the value of all, the files and the state after it."""
    shared, condition = [0], threading.Condition()

    def rank(communicator: Any) -> Any:
        event = InTurn([*turns, -1], shared, condition)
        _, observer, kept = trained(
            communicator,
            d5.AsynchronousParameterServer(),
            d5.Staleness(),
            [event],
            epochs=1,
            state=states[communicator.rank],
        )
        observer.combine(communicator)
        return [sample.value for sample in observer.samples()], observer.value(), observer.files(), kept[-1]

    return run_in_threads(2, rank)


def test_staleness_of_a_script_is_exact_and_goes_on_behind_a_checkpoint() -> None:
    first, second = follows(TURNS[0]), follows(TURNS[1])
    assert first == [[0, 0, 1, 3], [0, 1, 0, 0]]  # calculated by hand
    before = in_turn(TURNS[0])
    every = first[0] + first[1]
    for rank, (ages, value, files, _) in enumerate(before):
        assert ages == first[rank]
        assert value == fmean(every)
        assert files == {"staleness.csv": "staleness,updates\n0,5\n1,2\n2,0\n3,1\n"}
    after = in_turn(TURNS[1], states=[found[3] for found in before])
    every += second[0] + second[1]
    for rank, (ages, value, files, _) in enumerate(after):
        assert ages == first[rank] + second[rank]
        assert value == fmean(every)
        assert files == {"staleness.csv": staleness_text([every.count(age) for age in range(max(every) + 1)])}


def test_schemes_without_staleness_have_none_and_say_why() -> None:
    def rank(communicator: Any, scheme: Any) -> Any:
        _, observer, _ = trained(communicator, scheme, d5.Staleness())
        observer.combine(communicator)
        return observer.samples(), observer.value(), observer.files(), observer.missing()

    told = "AllReduce counts no staleness; remedy: the scheme asynchronous or stale_synchronous"
    assert run_in_threads(2, lambda own: rank(own, d5.AllReduce())) == [([], None, {}, told)] * 2
    told = "training has only one process; remedy: --ranks 2, say"
    assert rank(SingleRank(), d5.AsynchronousParameterServer()) == ([], None, {}, told)


# Results, and their audit --------------------------------------------------------------------------------------------

RECIPE = """
import deep5 as d5

FIXED = {"model": "lenet", "dataset": "digits", "epochs": 3}
FIXED |= {"dataset_kwargs": {"limit": 96}}
MUTABLE = {"batch_size": 16, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}, "framework": "reference", "seed": 0}
METRICS = [
    (d5.TestAccuracy(), ">= 1 %"),
    (d5.StepLatency(), None),
    (d5.CommunicationShare(), None),
    (d5.CommunicationOverlap(), None),
    (d5.Staleness(), None),
]
"""
Doctor = Callable[[Path], None]


class Ended(d5.Event):
    """Ends a run within the first step after its second epoch."""

    every_rank = True

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.epoch == 2:
            raise ValueError("broken")


def by_ranks(out: Path, changes: str, *, ended: bool = False, resume: Path | None = None) -> Path:
    """The folder of a run of RECIPE by two ranks in threads, however the run ended."""
    out.mkdir(exist_ok=True)
    (out / "small.py").write_text(f"{RECIPE}\n{changes}\n")
    recipe = load_recipe(out / "small.py")

    def rank(communicator: Any) -> None:
        keeper = Checkpointer(every_steps=6)  # one per rank, which creates it
        events = (Ended(),) if ended else ()
        execute_as_rank(
            recipe, communicator, out=out / "runs", events=events, quiet=True, resume=resume, checkpointer=keeper
        )

    with suppress(d5.core.errors.RunFailed):
        run_in_threads(2, rank, timeout_s=120)
    (folder,) = (out / "runs").iterdir()
    return folder


STALE = 'FIXED |= {"scheme": "stale_synchronous", "scheme_kwargs": {"bound": 2}}'


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_ranks(tmp_path_factory.mktemp("reduced"), 'FIXED["scheme"] = "all_reduce"')


@pytest.fixture(scope="module")
def stale(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_ranks(tmp_path_factory.mktemp("stale"), STALE)


def row_of(folder: Path, name: str) -> Any:
    document = json.loads((folder / "result.json").read_text())
    return next(row for row in document["metrics"] if row["name"] == name)


def samples_of(folder: Path, name: str, rank: int) -> list[float]:
    path = folder / (f"samples-rank-{rank}.csv" if rank else "samples.csv")
    with path.open(newline="") as file:
        return [float(line["value"]) for line in csv.DictReader(file) if line["metric"] == name]


def found_in(folder: Path) -> list[str]:
    return [str(finding) for finding in audit([folder]).findings]


def test_an_overlap_in_a_result_passes_the_audit(reduced: Path) -> None:
    report = audit([reduced])
    assert [str(finding) for finding in report.findings] == []
    assert not [what for what in report.skipped if "communication_overlap" in what]
    assert 0 <= row_of(reduced, "communication_overlap")["value"] <= 100
    missing = row_of(reduced, "staleness")["missing"]
    assert missing == "AllReduce counts no staleness; remedy: the scheme asynchronous or stale_synchronous"
    assert not (reduced / "staleness.csv").exists()


def test_a_staleness_in_a_result_passes_the_audit(stale: Path) -> None:
    report = audit([stale])
    assert [str(finding) for finding in report.findings] == []
    assert not [what for what in report.skipped if "staleness" in what]
    ages = samples_of(stale, "staleness", 0) + samples_of(stale, "staleness", 1)
    assert row_of(stale, "staleness")["value"] == pytest.approx(fmean(ages), rel=1e-12)
    lines = (stale / "staleness.csv").read_text().splitlines()
    assert lines == ["staleness,updates", *(f"{age},{ages.count(age)}" for age in range(int(max(ages)) + 1))]


def test_a_run_that_went_on_has_the_samples_of_both_parts(tmp_path: Path) -> None:
    folder = by_ranks(tmp_path, STALE, ended=True)
    assert json.loads((folder / "result.json").read_text())["status"] == "failed"
    assert found_in(folder) == []
    assert by_ranks(tmp_path, STALE, resume=folder) == folder
    assert json.loads((folder / "result.json").read_text())["status"] == "success"
    assert found_in(folder) == []
    ages = [samples_of(folder, "staleness", rank) for rank in (0, 1)]
    assert len(ages[0]) == len(ages[1])  # each of them has a part of every batch
    assert row_of(folder, "staleness")["value"] == pytest.approx(fmean(ages[0] + ages[1]), rel=1e-12)
    steps = {rank["steps"] for rank in json.loads((folder / "ranks.json").read_text())}
    assert steps == {len(ages[0])}


def test_without_share_or_latency_the_audit_says_what_it_cannot_derive(tmp_path: Path) -> None:
    folder = by_ranks(tmp_path, 'FIXED["scheme"] = "all_reduce"; del METRICS[2]')
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []
    told = "the value of communication_overlap, except its range: the communication times of the steps are not"
    assert any(what.startswith(told) for what in report.skipped)


def value(name: str, changed: Callable[[float], float]) -> Doctor:
    def doctor(folder: Path) -> None:
        document = json.loads((folder / "result.json").read_text())
        row = next(row for row in document["metrics"] if row["name"] == name)
        row["value"] = changed(row["value"])
        (folder / "result.json").write_text(json.dumps(document))

    return doctor


def samples(name: str, changed: Callable[[float], float], *, rank: int = 1, every: bool = False) -> Doctor:
    """Change the last sample of a rank, or every one."""

    def doctor(folder: Path) -> None:
        path = folder / (f"samples-rank-{rank}.csv" if rank else "samples.csv")
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        own = [line for line in lines if line["metric"] == name]
        for line in own if every else own[-1:]:
            line["value"] = repr(changed(float(line["value"])))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)

    return doctor


def histogram(text: str) -> Doctor:
    return lambda folder: (folder / "staleness.csv").write_text(text) and None


def without_histogram(folder: Path) -> None:
    (folder / "staleness.csv").unlink()


OVERLAP, STALENESS = "communication_overlap", "staleness"
CORPUS: list[tuple[str, str, Doctor, int, str]] = [
    ("another overlap", "reduced", value(OVERLAP, lambda old: old + 0.01), 9, "the value of communication_overlap"),
    ("another sample of it", "reduced", samples(OVERLAP, lambda old: old / 2 + 1), 9,
     "the value of communication_overlap; stored"),
    ("more than all", "reduced", samples(OVERLAP, lambda _: 150.0), 8, "an overlap is not a share of"),
    ("less than none", "reduced", samples(OVERLAP, lambda _: -1.0, rank=0), 8, "an overlap is not a share of"),
    ("nearly all of every step", "reduced", samples(OVERLAP, lambda _: 99.999, every=True), 8,
     "rank 1: by its share and its overlap, communication took longer than its step"),
    ("a share that leaves no room for it", "reduced", samples("communication_share", lambda _: 101.0), 8,
     "rank 1: by its share and its overlap, communication took longer than its step 17"),
    ("another staleness", "stale", value(STALENESS, lambda old: old + 0.001), 9, "the value of staleness"),
    ("another sample of it", "stale", samples(STALENESS, lambda old: old + 1), 9, "the value of staleness; stored"),
    ("half an update", "stale", samples(STALENESS, lambda old: old + 0.5), 8, "a staleness that is not a number of"),
    ("an update before its parameters", "stale", samples(STALENESS, lambda _: -1.0), 8, "a staleness that is not"),
    ("staler than the bound allows", "stale", samples(STALENESS, lambda _: 6.0), 8,
     "rank 1: an update has a staleness of 6; allowed: at most 5, by a bound of 2"),
    ("another histogram", "stale", histogram("staleness,updates\n0,36\n"), 8, "the updates of staleness.csv"),
    ("a histogram that is none", "stale", histogram("ages\nmany\n"), 8, "staleness.csv is not as deep5 writes it"),
    ("a histogram with a gap", "stale", histogram("staleness,updates\n1,36\n"), 8, "a line for each staleness from 0"),
    ("ages without end", "stale", samples(STALENESS, lambda _: 1e300), 8, "the updates of staleness.csv"),
    ("an age that is no number", "stale", samples(STALENESS, lambda _: float("inf")), 8, "the samples of rank 1"),
    ("no histogram", "stale", without_histogram, 8, "there is no staleness.csv"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("of", "doctor", "rule", "words"), [row[1:] for row in CORPUS], ids=[" ".join(row[:2]) for row in CORPUS]
)
def test_doctored_results_are_caught(
    request: pytest.FixtureRequest, tmp_path: Path, of: str, doctor: Doctor, rule: int, words: str
) -> None:
    folder: Path = request.getfixturevalue(of)
    given = Path(shutil.copytree(folder, tmp_path / folder.name))
    doctor(given)
    findings = audit([given]).findings
    assert any(finding.rule == rule and words in finding.what for finding in findings), list(map(str, findings))


# Their descriptions, and the cost of counting -------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [d5.CommunicationOverlap(), d5.Staleness()], ids=str)
def test_what_the_metrics_say_of_themselves(metric: d5.Metric) -> None:
    from deep5.core.plugins import load
    from deep5.run.record import _scope

    assert load("metrics", metric.name) is type(metric)
    assert _scope(metric).startswith(("On the clock:", "Nothing is on a clock"))
    fresh = metric.observer()
    assert (fresh.samples(), fresh.value(), fresh.files()) == ([], None, {})


@pytest.mark.parametrize("counting", [False, True])
def test_a_blocking_call_hides_nothing_and_reads_the_clock_twice(scripted: Scripted, counting: bool) -> None:
    """Counting the hidden time adds no reading of the clock to a blocking call."""
    if counting:
        assert scripted.count_hidden()
    buffer, before = np.ones(2), scripted.clock.readings
    for _ in range(20):
        scripted.all_reduce(buffer)
    assert scripted.clock.readings - before == 2 * 20
    assert counts(scripted) == (0, 20 * 10)
