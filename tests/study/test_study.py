"""`deep5 study` and its pictures: candidates and seeds side by side."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil
import pytest
from rich.console import Console

from command import Command
from deep5.audit.folders import audit
from deep5.cli import main as cli
from deep5.cli.study import study_command, varied
from deep5.compare.studied import load_study, target_of
from deep5.core.charts import files
from deep5.core.errors import OutputError, RecipeError, UsageError
from deep5.measuring.pinning import processors
from deep5.results.charts.training import (
    Point,
    accuracy_chart,
    accuracy_points,
    loss_chart,
    loss_points,
    undrawn,
)
from deep5.results.folder import locked
from deep5.results.result import load
from deep5.results.samples_file import SampleRow
from deep5.results.study.folder import LeftStudy
from deep5.results.study.record import Study
from deep5.results.study.resumption import DIRTY, source_note
from deep5.results.time_to_target import Target, parse_target
from deep5.study.study import _remedy, run_study

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module", autouse=True)
def command() -> None:
    if "study" not in cli._cli.commands:
        assert isinstance(cli._cli, click.Group)
        cli._cli.add_command(study_command(cli.errors))


def result(accuracies: list[float], losses: list[list[float]], step_s: float) -> Any:
    """The parts of a result that the pictures use, with steps of this duration."""
    rows: dict[str, list[SampleRow]] = {"training_loss": [], "test_accuracy": []}
    time_s = 0.0
    for epoch, own in enumerate(losses):
        for value in own:
            time_s += step_s
            index = len(rows["training_loss"])
            rows["training_loss"].append(
                SampleRow(
                    metric="training_loss", index=index, value=value, unit="nat", step=index, epoch=epoch, time_s=time_s
                )
            )
        rows["test_accuracy"].append(
            SampleRow(
                metric="test_accuracy", index=epoch, value=accuracies[epoch], unit="%", epoch=epoch + 1, time_s=time_s
            )
        )
    return SimpleNamespace(folder="somewhere", samples=lambda: rows, verdicts=())


RUNS: dict[str, Any] = {
    "slow": [result([10, 20], [[4, 2], [1, 1]], 1.0), result([30, 60], [[2, 2], [3, 1]], 3.0)],
    "fast": [result([90, 95], [[0.5, 0.25], [0.1, 0.1]], 0.5)],
}


def test_points_by_hand() -> None:
    """Means over the seeds, extremes, and the median of the times at which an epoch ended."""
    assert accuracy_points(RUNS) == [
        Point("slow", 1, 20.0, 10.0, 30.0, 4.0, 2),  # after 2 s and 6 s
        Point("slow", 2, 40.0, 20.0, 60.0, 8.0, 2),
        Point("fast", 1, 90.0, 90.0, 90.0, 1.0, 1),
        Point("fast", 2, 95.0, 95.0, 95.0, 2.0, 1),
    ]
    assert loss_points(RUNS) == [
        Point("slow", 1, 2.5, 2.0, 3.0, 4.0, 2),
        Point("slow", 2, 1.5, 1.0, 2.0, 8.0, 2),
        Point("fast", 1, 0.375, 0.375, 0.375, 1.0, 1),
        Point("fast", 2, 0.1, 0.1, 0.1, 2.0, 1),
    ]


def test_a_loss_that_is_not_finite_is_no_point() -> None:
    runs: Any = {"a": [result([1, 2], [[1.0], [math.nan]], 1.0), result([1, 2], [[3.0], [5.0]], 1.0)]}
    assert [(point.value, point.seeds) for point in loss_points(runs)] == [(2.0, 2), (5.0, 1)]
    with pytest.raises(UsageError, match="somewhere has no samples of training_loss; remedy: add it to METRICS"):
        loss_points({"a": [SimpleNamespace(folder="somewhere", samples=dict, verdicts=())]})  # type: ignore[list-item]


def marks(svg: bytes, role: str) -> int:
    found = ET.fromstring(svg)  # noqa: S314 - made a moment ago
    return sum(role in (element.get("aria-roledescription") or "") for element in found.iter())


def test_the_pictures_have_a_line_a_candidate_and_a_band() -> None:
    pytest.importorskip("altair")
    pytest.importorskip("vl_convert")
    for name, chart in (
        ("accuracy", accuracy_chart(accuracy_points(RUNS), "a title")),
        ("loss", loss_chart(loss_points(RUNS))),
    ):
        made = files(name, chart, page=True)
        assert list(made) == [f"{name}.svg", f"{name}.png", f"{name}.html"]
        assert made[f"{name}.png"][:8] == b"\x89PNG\r\n\x1a\n"
        assert marks(made[f"{name}.svg"], "line mark container") >= 1
        assert marks(made[f"{name}.svg"], "area mark container") >= 1
        text = "".join(ET.fromstring(made[f"{name}.svg"]).itertext())  # noqa: S314
        assert "slow" in text
        assert "fast" in text
        assert ("epoch" if name == "accuracy" else "time since training began (s)") in text
        # The page draws without any download.
        assert not re.search(rb"<script[^>]+src=", made[f"{name}.html"])
    spec = json.loads(accuracy_chart(accuracy_points(RUNS)).to_json())
    assert len(spec["layer"]) == 2
    one = {"fast": RUNS["fast"]}
    assert len(json.loads(accuracy_chart(accuracy_points(one)).to_json())["layer"]) == 1  # no band for one seed


def test_many_candidates_are_told_apart() -> None:
    pytest.importorskip("altair")
    points = [Point(f"c{number}", 1, 1.0, 1.0, 1.0, 1.0, 1) for number in range(15)]
    layer = json.loads(accuracy_chart(points).to_json())["layer"][0]["encoding"]
    colours, dashes = layer["color"]["scale"]["range"], layer["strokeDash"]["scale"]["range"]
    assert len({(colour, tuple(dash)) for colour, dash in zip(colours, dashes, strict=True)}) == 15
    with pytest.raises(UsageError, match="no points to draw"):
        accuracy_chart([])
    with pytest.raises(UsageError, match="no training loss above zero"):
        loss_chart([Point("a", 1, 0.0, 0.0, 0.0, 1.0, 1)])


RECIPE = """
import deep5 as d5
SAMPLES = {"shape": (784,), "train": 60, "test": 30}
FIXED = {"model": "mlp", "dataset": "synthetic", "dataset_kwargs": SAMPLES, "epochs": 2}
MUTABLE = {"batch_size": 20, "framework": "reference", "optimizer": "sgd"}
METRICS = [(d5.TestAccuracy(), None), (d5.TrainingLoss(), None)]
STUDY = {"small": {"optimizer_kwargs": {"lr": 0.001}}, "large": {"optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}}}
"""


# Settings that are longer than the part that a message shows.
LONG = '{"beta1": 0.8999999999999999, "beta2": 0.9989999999999999, "lr": 0.001}'
BOTH = RECIPE.replace('{"optimizer_kwargs": {"lr": 0.001}}', f'{{"optimizer": "adam", "optimizer_kwargs": {LONG}}}')


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "both.py").write_text(RECIPE)
    return tmp_path / "both.py"


def test_a_study(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    told: list[str] = []
    study = run_study(file, seeds=(0, 7), out=tmp_path / "out", tell=told.append)
    begun = [line.partition(" (")[0] for line in told]
    assert sorted(begun) == ["large, seed 0", "large, seed 7", "small, seed 0", "small, seed 7"]
    assert {name.split()[-1] for name in begun[:2]} == {"0"}  # seed after seed
    counts = [line.partition(" (")[2].rstrip(")").partition(",")[0] for line in told]
    assert counts == ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]
    document = json.loads((study.folder / "study.json").read_text())
    assert document["process_per_run"] is True
    assert document["candidates"]["large"]["seeds"] == [0, 7]
    assert document["candidates"]["small"]["settings"] == {"optimizer_kwargs": {"lr": 0.001}}
    for name, candidate in document["candidates"].items():
        values = candidate["metrics"]["test_accuracy"]["values"]
        assert values == [result.metric("test_accuracy") for result in study.runs[name]]
        assert candidate["metrics"]["test_accuracy"]["mean"] == pytest.approx(sum(values) / 2)
        assert candidate["metrics"]["test_accuracy"]["deviation"] == pytest.approx(
            abs(values[0] - values[1]) / math.sqrt(2)
        )
        assert all((study.folder / run / "result.json").is_file() for run in candidate["runs"])
    names = {path.name for path in study.folder.iterdir()}
    assert names == {"runs", "study.json", *(f"{n}.{e}" for n in ("accuracy", "loss") for e in ("svg", "png", "html"))}


def test_what_is_infinite_has_no_mean() -> None:
    from deep5.results.study.record import _mean_and_spread, _summary

    assert _summary([1.0, math.inf]) == {"values": [1.0, "inf"], "mean": None, "deviation": None}
    assert _mean_and_spread([1.0, math.inf, math.nan]) == "2 of 3 without a finite value"
    assert _summary([2.0]) == {"values": [2.0], "mean": 2.0, "deviation": None}


# A candidate in a file's STUDY may hold any object: the process of the run reads it from the file again.
WRONG = """
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


class Wrong(d5.Event):
    def __init__(self, how: str) -> None:
        self.how = how

    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        if info.step:
            return
        processors = len(os.sched_getaffinity(0))
        threads = os.environ["OMP_NUM_THREADS"]
        with (HERE / "seen.txt").open("a") as file:
            file.write(f"{self.how} {os.getpid()} {os.getppid()} {processors} {threads}\\n")
        if self.how == "crash":
            os.abort()
        if self.how == "raise":
            raise ValueError("broken")
        while self.how == "hang":
            time.sleep(0.01)
        if self.how == "grow":
            self.held = b"x" * (900 << 20)
            time.sleep(60)


STUDY = {name: {"events": [Wrong(name)]} for name in ("calm", "crash", "raise", "hang", "grow")}
"""


# Long enough for the system to have counted who used the processors.
SLOW = """
import time


class Slow(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        time.sleep(0.3)


STUDY = {"slow": {"events": [Slow()]}}
"""


def seen(folder: Path) -> list[tuple[str, int, int, int, int]]:
    lines = (folder / "seen.txt").read_text().splitlines()
    return [(name, *map(int, rest)) for name, *rest in (line.split() for line in lines)]  # type: ignore[misc]


def test_each_run_has_a_process_of_its_own_and_what_befalls_one_befalls_no_other(file: Path, tmp_path: Path) -> None:
    file.write_text(TARGET + WRONG)
    study = run_study(file, only="calm,crash,raise", seeds=(0,), common={"threads": 1}, out=tmp_path / "out")
    made = seen(tmp_path)
    assert sorted(name for name, *_ in made) == ["calm", "crash", "raise"]
    assert len({process for _, process, *_ in made} | {os.getpid()}) == 4
    assert {tuple(rest) for _, _, *rest in made} == {(os.getpid(), 1, 1)}  # pinned to as many as it has threads
    assert [len(own) for own in study.runs.values()] == [1, 0, 0]
    (crash,), (raised,) = study.failures["crash"], study.failures["raise"]
    assert crash.startswith("seed 0: it was killed by SIGABRT")
    assert raised.startswith("seed 0: the run failed: ")
    assert "ValueError: broken" in raised
    assert [own[0].seconds for own in study.reached.values()] == [pytest.approx(1, abs=1), math.inf, math.inf]
    document = json.loads((study.folder / "study.json").read_text())
    assert document["finished"] is True
    assert document["candidates"]["crash"]["time_to_target"]["reasons"]["0"].startswith("failed: it was killed by ")
    assert (study.folder / "accuracy.svg").is_file()


def test_a_run_that_hangs_or_grows_is_ended_at_a_limit(file: Path, tmp_path: Path, deep5: Command) -> None:
    file.write_text(TARGET + WRONG)
    limits = ("--time-limit", "9", "--memory-limit", "700MB")
    answer = deep5("study", str(file), "--only", "calm,hang,grow", "--seeds", "1", *limits, "--json")
    assert answer.status == 0, answer.err
    candidates = json.loads(answer.out)["candidates"]
    assert len(candidates["calm"]["runs"]) == 1
    (hang,), (grow,) = candidates["hang"]["failures"], candidates["grow"]["failures"]
    assert hang.startswith("seed 0: it did not finish within 9 s; remedy: --time-limit")
    took = re.match(r"seed 0: it used too much memory, ([\d.]+) ([MG])iB,; allowed: 668 MiB; remedy: ", grow)
    assert took is not None, grow
    assert float(took[1]) * {"M": 1, "G": 1024}[took[2]] >= 668
    for _, process, *_ in seen(tmp_path):
        assert not psutil.pid_exists(process)
    for option, told in (("--time-limit=0", "allowed: above 0 s"), ("--memory-limit=1MB", "allowed: at least 256 MiB")):
        answer = deep5("study", str(file), option)
        assert answer.status == 2
        assert told in answer.err


def test_an_interrupted_study_ends_its_run_and_can_be_read(file: Path, tmp_path: Path, deep5: Command) -> None:
    file.write_text(TARGET + WRONG)
    words = ["study", str(file), "--only", "hang", "--seeds", "1", "--out", str(tmp_path / "out")]
    command = subprocess.Popen(
        [sys.executable, "-m", "deep5", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "seen.txt").exists() and time.monotonic() < until:
            time.sleep(0.05)
        command.send_signal(signal.SIGINT)
        _, told = command.communicate(timeout=60)
    finally:
        command.kill()
    assert command.returncode == 130
    (folder,) = (tmp_path / "out").iterdir()
    assert f"interrupted; what the study left is in {folder}; to resume, add --resume {folder} to the command" in told
    ((_, process, *_),) = seen(tmp_path)
    assert not psutil.pid_exists(process)
    document = json.loads((folder / "study.json").read_text())
    assert (document["finished"], document["notes"]) == (False, ["the study was interrupted"])
    (left,) = (folder / "runs").glob("*/1/both-*")
    assert load(left).status == "aborted"
    assert deep5("report", str(folder), "-o", str(tmp_path / "report.html")).status == 0
    assert not list(tmp_path.glob("deep5-study-*"))  # its scratch folder


# A run that kills the whole command, once, like a power failure.
FATAL = """
import os
import signal
from pathlib import Path

HERE = Path(__file__).parent


class Fatal(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        if not (HERE / "killed").exists():
            (HERE / "killed").touch()
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()


STUDY = {"calm": {}, "fatal": {"events": [Fatal()]}, "broken": {"optimizer_kwargs": {"lr": 1e38}}}
"""


def alone(*words: str) -> subprocess.CompletedProcess[str]:
    """The command in a separate process, with the environment that Python sees.

    Libraries that other tests loaded here may have set variables without Python's knowledge.
    """
    command = [sys.executable, "-m", "deep5", *words]
    return subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=120)


def test_a_study_that_was_killed_goes_on_with_what_is_left(
    file: Path, tmp_path: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(TARGET + FATAL)
    words = ["study", str(file), "--seeds", "2", "--out", str(tmp_path / "out")]
    killed = alone(*words)
    assert killed.returncode == -signal.SIGKILL
    (folder,) = (tmp_path / "out").iterdir()
    before = {path.relative_to(folder) for path in (folder / "runs").glob("*/*/both-*")}
    assert 1 <= len(before) <= 3
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []  # unfinished, as it says
    other = deep5("study", str(file), "--seeds", "3", "--resume", str(folder))
    assert other.status == 2
    assert "has seeds: [0, 1]; got [0, 1, 2]; allowed: the same command with --resume" in other.err
    other = deep5(*words, "--time-limit", "9", "--resume", str(folder))
    assert "has time_limit_s: 3600.0; got 9.0; allowed: the same command with --resume" in other.err
    other = deep5(*words, "--memory-limit", "4GB", "--resume", str(folder))
    assert "has memory_limit_bytes: None; got 4000000000; allowed: the same command with --resume" in other.err
    with monkeypatch.context() as changed:
        changed.setenv("OMP_DYNAMIC", "TRUE")
        other = deep5(*words, "--resume", str(folder))
        assert other.status == 2
        assert "was started with other hardware or software; allowed: the same files, machine" in other.err
    source = file.read_text()
    for changed_source in (source + "# more\n", source.replace('"epochs": 2', '"epochs": 3')):
        file.write_text(changed_source)
        other = deep5(*words, "--resume", str(folder))
        assert other.status == 2
        assert "was started with other recipe files, or files named in them; allowed" in other.err
    file.write_text(source)
    answer = alone(*words, "--resume", str(folder / "study.json"), "--json")
    assert answer.returncode == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert (document["finished"], len(document["resumed"])) == (True, 1)
    assert (
        max(json.loads((folder / name / "result.json").read_text())["started"] for name in before)
        <= (document["resumed"][0])
    )
    assert (document["time_limit_s"], document["memory_limit_bytes"]) == (3600.0, None)
    commit = document["provenance"]["commit"]
    assert (f"{DIRTY}was resumed" in document["notes"]) == (commit is not None and commit["dirty"] is True)
    assert [len(document["candidates"][name]["runs"]) for name in ("calm", "fatal")] == [2, 2]
    # Finished runs were not repeated, and the interrupted one was resumed: each has one folder.
    after = {path.relative_to(folder) for path in (folder / "runs").glob("*/*/both-*")}
    assert before <= after
    assert len(after) == 6
    again = [path for path in (folder / "runs").iterdir() if (path / "2").exists()]
    assert [path.name.partition("-")[0] for path in again] == ["fatal"]
    report = audit([folder])
    assert [str(finding) for finding in report.findings] == []
    again = deep5(*words, "--resume", str(folder))
    assert again.status == 2
    assert "is finished, or of an older deep5; allowed: an interrupted study" in again.err


def test_a_disk_that_takes_nothing_ends_a_study_in_one_line(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match=r"the study cannot continue: .*; what it left is in ") as caught:
        run_study(file, seeds=(0,), out=tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    assert str(caught.value).endswith(f"remedy: fix this, then the same command with --resume {folder}")
    full = OSError(errno.ENOSPC, "No space left on device")
    assert _remedy(folder, full).endswith(f"remedy: free some space, then the same command with --resume {folder}")


# A disk that is full at the third run, until the study has ended.
FULL = """
import errno
import os
from pathlib import Path

HERE = Path(__file__).parent


class Full(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        with (HERE / "ran").open("a") as file:
            file.write("." if info.step == 0 else "")
        if (HERE / "full").exists() and (HERE / "ran").stat().st_size == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Killed(d5.Event):
    def after_step(self, trainer, info, outputs, begin_ns, end_ns):
        (run,) = (HERE / "out").glob("*/runs/*/1/*-*")
        for path in (run / ".result.json.abcdefgh.tmp", run.with_name(f".{run.name}.tmp") / "result.json"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("half")
        os.kill(os.getpid(), 9)


STUDY = {name: {"events": [Full()], "batch_size": size} for name, size in (("one", 32), ("two", 48))}
"""


def test_a_full_disk_ends_a_study_and_no_candidate_fails_by_it(file: Path, tmp_path: Path) -> None:
    file.write_text(TARGET + FULL)
    (tmp_path / "full").touch()
    with pytest.raises(OutputError, match=r"the study cannot continue: a process found no space on a disk: ") as caught:
        run_study(file, seeds=(0, 1), out=tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    told = f"what it left is in {folder}; remedy: free some space, then the same command with --resume {folder}"
    assert str(caught.value).endswith(told)
    document = json.loads((folder / "study.json").read_text())
    assert not document["finished"]
    assert [own["failures"] for own in document["candidates"].values()] == [[], []]
    assert sum(len(own["runs"]) for own in document["candidates"].values()) == 2
    (tmp_path / "full").unlink()
    study = run_study(file, seeds=(0, 1), out=tmp_path / "out", resume=folder)
    assert not any(study.failures.values())
    assert [len(runs) for runs in study.runs.values()] == [2, 2]
    assert audit([folder]).findings == ()


def test_what_a_killed_run_left_half_written_goes(file: Path, tmp_path: Path) -> None:
    file.write_text(TARGET + FULL.replace("STUDY", "OTHERS") + "STUDY = {'killed': {'events': [Killed()]}}\n")
    study = run_study(file, seeds=(0,), out=tmp_path / "out")
    assert "killed by SIGKILL" in study.failures["killed"][0]
    (run,) = (tmp_path / "out").glob("*/runs/*/1/*-*")
    assert load(run).status == "aborted"
    assert not [path for path in run.iterdir() if path.name.endswith(".tmp")]
    assert audit([run.parents[3]]).findings == ()


def test_a_study_is_complete_from_its_first_moment(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before its first run, it is listed and resumes; temporary files of killed processes go."""
    file.write_text(TARGET + "STUDY = {'one': {}, 'two': {'optimizer': 'sgd'}}\n")

    class Killed(BaseException):
        """What a kill is to the process."""

    def killed(*given: object) -> None:
        raise Killed

    with monkeypatch.context() as changed:
        changed.setattr("deep5.study.study.locked", killed)
        with pytest.raises(Killed):
            run_study(file, seeds=(0,), out=tmp_path / "out")
    (folder,) = (tmp_path / "out").iterdir()
    assert json.loads((folder / "study.json").read_text())["finished"] is False
    assert audit([folder]).findings == ()
    run = folder / "runs" / "torn" / "1" / "torn"
    run.mkdir(parents=True)
    torn = [folder / ".study.json.abcdefgh.tmp", run / ".result.json.abcdefgh.tmp"]
    for path in torn:
        path.write_text("half")
    study = run_study(file, seeds=(0,), out=tmp_path / "out", resume=folder)
    assert study.finished
    assert not any(path.exists() for path in torn)


def test_a_study_that_cannot_be_written_says_how_to_go_on(file: Path, tmp_path: Path) -> None:
    def tell(line: str) -> None:
        (written,) = tmp_path.glob("out/*/study.json")
        written.unlink()
        (written / "in the way").mkdir(parents=True)

    with pytest.raises(OutputError, match="cannot write into ") as caught:
        run_study(file, only="small", seeds=(0,), out=tmp_path / "out", tell=tell)
    (folder,) = (tmp_path / "out").iterdir()
    told = (
        f"Is a directory; what it left is in {folder}; remedy: fix this, then the same command with --resume {folder}"
    )
    assert str(caught.value).endswith(told)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe, and the folder of a study of it that was interrupted when one run of four had finished."""
    base = tmp_path_factory.mktemp("ended")
    (base / "both.py").write_text(BOTH)
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="to resume, add --resume"):
        run_study(base / "both.py", seeds=(0, 1), out=base / "out", tell=tell)
    (folder,) = (base / "out").iterdir()
    return base / "both.py", folder


def doctored(folder: Path, to: Path, change: Callable[[Any], object]) -> Path:
    """A copy of a study's folder with another study.json."""
    shutil.copytree(folder, to)
    document = json.loads((to / "study.json").read_text())
    change(document)
    (to / "study.json").write_text(json.dumps(document))
    return to


def of_first(document: Any) -> Any:
    """The candidate that has the one run."""
    return next(own for own in document["candidates"].values() if own["runs"])


def test_what_was_left_is_checked_before_it_counts(ended: tuple[Path, Path], tmp_path: Path) -> None:
    file, folder = ended
    recorded = json.loads((folder / "study.json").read_text())
    (name,) = of_first(recorded)["runs"]

    def in_run(change: Callable[[Any], object]) -> Callable[[Path], None]:
        def doctor(copy: Path) -> None:
            found = json.loads((copy / name / "result.json").read_text())
            change(found)
            (copy / name / "result.json").write_text(json.dumps(found))

        return doctor

    def in_study(change: Callable[[Any], object]) -> Callable[[Path], None]:
        def doctor(copy: Path) -> None:
            document = json.loads((copy / "study.json").read_text())
            change(document)
            (copy / "study.json").write_text(json.dumps(document))

        return doctor

    def linked(copy: Path) -> None:
        (copy / "runs").rename(copy / "elsewhere")
        (copy / "runs").symlink_to("elsewhere")

    def failures(*told: str) -> Callable[[Path], None]:
        return in_study(lambda d: of_first(d).update(failures=list(told)))

    commit = {"id": "0" * 40, "dirty": False}
    for number, (doctor, told) in enumerate(
        (
            (
                failures("seed 0: broken"),
                "the seed 0 of '.*' has a run and a failure; allowed: one of them; .* damaged",
            ),
            (failures("seed 7: broken"), r"the seeds are \[0, 1\], and there are runs of \[0, 7\]; allowed"),
            (
                failures("seed 1: a", "seed 1: b"),
                "a failure of '.*' is 'seed 1: b'; allowed: .* each seed once; the file",
            ),
            (failures("it broke"), "a failure of '.*' is 'it broke'; allowed: 'seed N: why'"),
            (in_run(lambda d: d["seeds"].update(run=5)), r"and there are runs of \[5\]; allowed: each declared once"),
            (
                in_run(lambda d: d.update(status="failed", reasons=["broken"], accepted=None)),
                "as a finished run, and its status is failed; allowed: success; the file is damaged",
            ),
            (in_run(lambda d: d["recipe"].update(hash="0" * 64)), "holds runs whose hash differs"),
            (in_run(lambda d: d["recipe"].update(size="smoke")), "holds runs whose size differs"),
            (
                in_study(lambda d: (d.update(hash="0" * 64), of_first(d)["runs"].clear())),
                "hash is '0000.*; allowed: '.*', the recipe's; the file is damaged",
            ),
            (linked, "runs is not a folder; allowed: the folder of the study's runs; the study is damaged"),
            (lambda copy: shutil.rmtree(copy / "runs"), "runs is not a folder; allowed"),
            (in_study(lambda d: d.update(resumed=1)), "resumed is 1; allowed: a list of times; the file is damaged"),
            (in_study(lambda d: d.update(resumed=["now"])), r"resumed is \['now'\]; allowed: a list of times"),
            (in_study(lambda d: d["provenance"].update(commit=3)), "provenance.commit is 3; allowed: an object"),
            (
                in_study(lambda d: d["provenance"].update(commit=commit)),
                "was started by deep5's commit '0000.*; allowed: the same",
            ),
        )
    ):
        copy = doctored(folder, tmp_path / str(number), lambda document: None)
        doctor(copy)
        with pytest.raises(UsageError, match=told) as caught:
            run_study(file, seeds=(0, 1), resume=copy)
        assert "\n" not in str(caught.value)
        os.close(locked(copy))  # a refused command releases the lock


def test_what_differs_is_told(ended: tuple[Path, Path], tmp_path: Path) -> None:
    """Also when both values start with the same characters, of which a message shows 60."""
    file, folder = ended
    many = list(range(40))

    def rate(document: Any) -> None:
        document["candidates"]["small"]["settings"]["optimizer_kwargs"]["lr"] = 0.002

    def events(document: Any) -> None:
        document["candidates"]["large"]["settings"]["events"] = ["x" * 80]

    for number, (change, seeds, told) in enumerate(
        (
            (lambda d: d["candidates"].pop("large"), (0, 1), "has the candidate 'large': nothing; got {'optimizer"),
            (lambda d: d["candidates"].update(more={"settings": {}, "runs": [], "failures": []}), (0, 1),
             "has the candidate 'more': {}; got nothing; allowed"),
            (rate, (0, 1),
             "has 'optimizer_kwargs' of the candidate 'small': …, \"lr\": 0.002}; got …, \"lr\": 0.001}; allowed"),
            (events, (0, 1), "has 'events' of the candidate 'large': ['xxxxxxxxx"),
            (lambda d: d.update(seeds=many), [*many, 40], "has seeds: 40 of them; got 41 of them; allowed"),
            (lambda d: d.update(seeds=many), [*many[:-1], 50], "has seeds: …36, 37, 38, 39]; got …36, 37, 38, 50]; "),
        )
    ):  # fmt: skip
        copy = doctored(folder, tmp_path / str(number), change)
        with pytest.raises(UsageError) as caught:
            run_study(file, seeds=seeds, resume=copy)
        assert told in str(caught.value)


def test_nobody_goes_on_where_another_writes(ended: tuple[Path, Path], tmp_path: Path) -> None:
    """Regardless of its content: files that another process still writes are not read."""
    file, folder = ended
    copy = doctored(folder, tmp_path / "copy", lambda document: document.clear())
    lock = locked(copy)
    try:
        for path in (copy, copy / "study.json"):
            with pytest.raises(UsageError, match=r"a run still writes to .*copy; allowed: one run at a time"):
                run_study(file, seeds=(0, 1), resume=path)
    finally:
        os.close(lock)
    for path in (tmp_path / "nowhere", file):
        with pytest.raises(UsageError, match=f"{path.name} holds no study.json; allowed: a folder that 'deep5 study'"):
            run_study(file, seeds=(0, 1), resume=path)


def test_a_commit_says_nothing_of_source_with_changes(tmp_path: Path) -> None:
    for then, now, told in (
        (None, None, []),
        (False, False, []),
        (True, False, [f"{DIRTY}began"]),
        (False, True, [f"{DIRTY}was resumed"]),
        (True, True, [f"{DIRTY}was resumed"]),
    ):
        began, goes_on = (
            {"provenance": {"commit": None if dirty is None else {"id": "a", "dirty": dirty}}} for dirty in (then, now)
        )
        left = LeftStudy(folder=tmp_path, document=began, runs={}, failures={})
        assert source_note(left, goes_on) == told


def doctored_run(run: Path, number: int) -> Path:
    """Another run folder beside one."""
    other = run.with_name(f"{run.name}{number}")
    shutil.copytree(run, other)
    return other


def test_a_study_that_was_ended_several_times_is_honest(ended: tuple[Path, Path], tmp_path: Path) -> None:
    """Each interruption may leave one unlisted run: an incomplete one, or one that ended just before."""
    _, folder = ended
    resumed = [f"2026-01-01T00:0{minute}:00Z" for minute in (1, 2, 3)]
    began = ["2026-01-01T00:00:30Z", resumed[0], "2026-01-01T00:02:01Z", "2026-01-01T00:03:01Z"]

    def findings(name: str, status: Sequence[str], finished: bool) -> list[str]:
        """Of a study whose runs have no folders of attempts, as those of an older deep5."""
        (path,) = of_first(json.loads((folder / "study.json").read_text()))["runs"]
        run = f"runs/{Path(path).name}"

        def change(document: Any) -> None:
            document.update(resumed=resumed, finished=finished)
            of_first(document)["runs"] = [run]

        copy = doctored(folder, tmp_path / name, change)
        (copy / path).rename(copy / run)
        shutil.rmtree(copy / Path(path).parents[1])
        for number, (start, own) in enumerate(zip(began, status, strict=True)):
            other = doctored_run(copy / run, number)
            found = json.loads((other / "result.json").read_text())
            (other / "result.json").write_text(json.dumps({**found, "started": start, "status": own}))
        return [str(finding) for finding in audit([copy]).findings]

    assert findings("ended", ["success"] * 4, False) == []
    assert findings("broken", ["success", "aborted", "failed", "success"], False) == []
    assert any("finished, and is not listed" in told for told in findings("done", ["success"] * 4, True))


def test_an_attempt_that_finished_and_is_not_listed_was_dropped(ended: tuple[Path, Path], tmp_path: Path) -> None:
    """Unless it ran on a machine that was taken for lost, or its study is not finished."""
    _, folder = ended
    (path,) = of_first(json.loads((folder / "study.json").read_text()))["runs"]

    def dropped(name: str, finished: bool, host: str | None, listed: bool = True) -> bool:
        def change(document: Any) -> None:
            document.update(finished=finished)
            if not listed:
                of_first(document).update(runs=[], seeds=[])

        copy = doctored(folder, tmp_path / name, change)
        attempt = (copy / path).parent
        if host is None:
            doctored_run(copy / path, 2)
        else:
            shutil.copytree(attempt, attempt.with_name("2"))
            about = json.loads((attempt / "attempt.json").read_text())
            (attempt.with_name("2") / "attempt.json").write_text(json.dumps({**about, "host": host}))
        return any("finished, and is not listed" in str(finding) for finding in audit([copy]).findings)

    here = json.loads((folder / path).parent.joinpath("attempt.json").read_text())["host"]
    assert dropped("beside", finished=True, host=None)
    assert dropped("again", finished=True, host=here)
    assert not dropped("lost", finished=True, host="elsewhere")
    assert dropped("unlisted", finished=True, host=here, listed=False)
    assert not dropped("late", finished=False, host=here, listed=False)


def test_what_others_took_of_the_processors_is_told(file: Path, tmp_path: Path) -> None:
    file.write_text(RECIPE.replace('"epochs": 2', '"epochs": 3').partition("STUDY")[0] + SLOW)
    pin = f"import os; os.sched_setaffinity(0, {processors(1)})"
    busy = subprocess.Popen([sys.executable, "-c", f"{pin}\nwhile True: pass"])
    try:
        study = run_study(file, seeds=(0,), common={"threads": 1}, out=tmp_path / "out")
    finally:
        busy.kill()
        busy.wait()
    (told,) = [note for note in study.notes if "other programs" in note]
    assert re.fullmatch(r"other programs took up to \d+ % of the processors in 1 run; remedy: a quiet machine", told)


def test_a_file_that_changes_meanwhile_ends_the_study(file: Path, tmp_path: Path) -> None:
    """The process reads it again: a different run would be stored under the candidate's name."""
    source = file.read_text()

    def tell(line: str) -> None:
        file.write_text(RECIPE.replace("0.001", "0.002"))

    with pytest.raises(RecipeError, match="both, or a file that it names, has changed since the start of the study"):
        run_study(file, only="small", seeds=(0,), out=tmp_path / "out", tell=tell)
    (folder,) = (tmp_path / "out").iterdir()
    assert not [*(folder / "runs").iterdir()]  # the other run goes, so that it is not taken over
    file.write_text(source)
    study = run_study(file, only="small", seeds=(0,), out=tmp_path / "out", resume=folder)
    (run,) = study.runs["small"]
    assert run.document["recipe"]["mutable"]["optimizer_kwargs"]["lr"] == 0.001
    assert audit([folder]).findings == ()


def test_a_run_of_a_file_that_was_changed_and_restored_does_not_count(file: Path, tmp_path: Path) -> None:
    """Its result names the file that its process read."""
    source = file.read_text()

    def restore() -> None:
        until = time.monotonic() + 60
        while not [*tmp_path.glob("out/*/runs/*/1/*/result.json")] and time.monotonic() < until:
            time.sleep(0.005)
        file.write_text(source)

    restoring = threading.Thread(target=restore)

    def tell(line: str) -> None:
        file.write_text(source + "# another file\n")
        restoring.start()

    with pytest.raises(RecipeError, match="both, or a file that it names, has changed since the start of the study"):
        run_study(file, only="small", seeds=(0,), out=tmp_path / "out", tell=tell)
    restoring.join()
    assert file.read_text() == source
    (folder,) = (tmp_path / "out").iterdir()
    assert not [*(folder / "runs").iterdir()]
    assert run_study(file, only="small", seeds=(0,), out=tmp_path / "out", resume=folder).finished


def test_metrics_of_one_name_are_not_mixed(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    metrics = "[(d5.TopK(1), None), (d5.TopK(8), None), (d5.TestAccuracy(), None), (d5.TrainingLoss(), None)]"
    file.write_text(RECIPE.partition("METRICS")[0] + f"METRICS = {metrics}\nSTUDY = {{'one': {{}}}}\n")
    study = run_study(file, seeds=(0,), out=tmp_path / "out")
    found = json.loads((study.folder / "study.json").read_text())["candidates"]["one"]["metrics"]
    assert {"top_k[k=1]", "top_k[k=8]"} <= set(found)
    assert found["top_k[k=1]"]["values"] == found["test_accuracy"]["values"]
    assert min(found["top_k[k=8]"]["values"]) > max(found["top_k[k=1]"]["values"])
    assert (study.folder / "loss.svg").is_file()


def test_what_cannot_be_assembled_is_noted_and_the_rest_is_kept(file: Path, tmp_path: Path) -> None:
    file.write_text(RECIPE.partition("STUDY")[0] + "STUDY = {'small': {}, 'native': {'optimizer': 'native:adam'}}\n")
    held: list[Any] = []

    def tell(line: str) -> None:
        held.extend(json.loads(path.read_text()) for path in tmp_path.glob("out/*/study.json"))

    study = run_study(file, seeds=(0,), out=tmp_path / "out", tell=tell)
    assert study.failures["native"][0].startswith("seed 0: unknown native optimizer of reference 'adam'")
    assert [len(study.runs[name]) for name in ("small", "native")] == [1, 0]
    # At any interruption, the study contains all finished runs: after none, and after one of two.
    assert [document["notes"] for document in held] == [["the study is not finished"]] * 2
    assert sum(len(one["runs"]) + len(one["failures"]) for one in held[-1]["candidates"].values()) == 1


def test_studies_that_are_none(file: Path, tmp_path: Path) -> None:
    for text, told in (
        ("", "STUDY is None; allowed: a dict such as"),
        ("STUDY = {}", "STUDY is {}; allowed"),
        ("STUDY = {'a': 1}", "allowed: a dict such as"),
        ("STUDY = {'': {}}", "names the candidate ''; allowed: a nonempty string"),
    ):
        file.write_text(RECIPE.partition("STUDY")[0] + text + "\n")
        with pytest.raises(RecipeError, match=told):
            load_study(file)
    file.write_text(RECIPE.partition("STUDY")[0] + "STUDY = {'a': {'epochs': 3}}\n")
    with pytest.raises(UsageError, match="'epochs' is fixed by the recipe"):
        load_study(file)
    file.write_text(RECIPE)
    for seeds in ((), (1, 1)):
        with pytest.raises(UsageError, match="allowed: at least one each, once"):
            run_study(file, seeds=seeds, out=tmp_path)
    file.write_text(TARGET)
    with pytest.raises(RecipeError, match=r"cannot be passed to another process .*remedy: FILE.py:NAME for an object"):
        run_study(file, {"one": {"optimizer": object}}, out=tmp_path)
    # As a string, which it becomes in JSON, it is another key.
    with pytest.raises(RecipeError, match=r"cannot be passed to another process \(a key is not a string\)"):
        run_study(file, {"one": {"optimizer_kwargs": {"groups": [{0: 1.0}]}}}, out=tmp_path)
    with pytest.raises(UsageError, match=r"999 threads; allowed: at most \d+, the processors of this process"):
        run_study(file, {"one": {"threads": 999}}, out=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["both.py"]  # no files remain


def test_the_command(file: Path, deep5: Command) -> None:
    answer = deep5("study", str(file), "--seeds", "2", "--only", "small")
    assert answer.status == 0
    assert not answer.err  # progress is shown from five seconds on
    assert re.search(r"small +\S+ ± \S+", answer.out)
    assert "large" not in answer.out
    answer = deep5("study", str(file), "--seeds", "1", "--only", "large", "--json")
    assert set(json.loads(answer.out)["candidates"]) == {"large"}
    answer = deep5("study", str(file), "--only", "smal")
    assert answer.status == 2
    assert "unknown candidate 'smal'; allowed: large, small; did you mean 'small'?" in answer.err


TARGET = RECIPE.partition("STUDY")[0].replace("METRICS = [", "METRICS = [(d5.TimeToAccuracy(1), None), ")


def test_what_varies_without_a_study_in_the_file(
    file: Path, tmp_path: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A diverging learning rate counts as infinite and is not dropped."""
    monkeypatch.setenv("COLUMNS", "200")  # a cell that is wide because of long times would be broken into two lines
    file.write_text(TARGET)
    vary = ("--vary", "optimizer_kwargs.lr=0.001,1e38")
    answer = deep5("study", str(file), *vary, "--seeds", "2")
    assert answer.status == 0, answer.err
    folder = Path(answer.out.splitlines()[-1])
    document = json.loads((folder / "study.json").read_text())
    calm, wild = (document["candidates"][f"optimizer_kwargs.lr={lr}"] for lr in ("0.001", "1e+38"))
    assert wild["settings"] == {"optimizer_kwargs.lr": 1e38}
    assert document["target"]["goal"] == 1.0
    assert document["target"]["origin"] == "recipe"
    assert (document["seeds"], document["finished"], document["schema_version"]) == ([0, 1], True, "2")
    assert wild["seeds"] == [0, 1]  # the runs are there
    for measure in ("seconds", "epochs", "steps"):
        assert wild["time_to_target"][measure] == {
            "values": {"0": "inf", "1": "inf"},
            "median": "inf",
            "interval": None,
        }
    assert all(reason.startswith("diverged: ") for reason in wild["time_to_target"]["reasons"].values())
    # The metric's own values, to the last digit.
    seconds = calm["time_to_target"]["seconds"]["values"]
    assert list(seconds.values()) == calm["metrics"]["time_to_accuracy"]["values"]
    assert calm["time_to_target"]["reasons"] == {}
    # The picture names the candidates whose losses it cannot show.
    assert any("loss.svg does not show all runs: of optimizer_kwargs.lr=1e+38, " in note for note in document["notes"])
    text = "".join(ET.parse(folder / "loss.svg").getroot().itertext())  # noqa: S314
    assert "not all runs are drawn; of optimizer_kwargs.lr=1e+38, " in text
    told = " ".join(answer.out.split())
    assert "to a test accuracy of at least 1 %: median over the seeds (least … most)" in told
    assert re.search(r" inf +inf +inf +0 of 2", told)
    assert ": diverged: " in told


RULE = """
import deep5 as d5


class Mine(d5.UpdateRule):
    hyper = ("lr",)

    def __init__(self, lr=0.25):
        self.lr = lr

    def init_state(self, param):
        return {}

    def update_rule(self, grad, param, state):
        return param - self.lr * grad, {}
"""


def test_a_default_learning_rate_beside_the_recipes_is_warned_of(
    file: Path, deep5: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another optimizer drops the recipe's arguments."""
    monkeypatch.setenv("COLUMNS", "500")
    file.write_text(TARGET.replace('"sgd"', '"sgd", "optimizer_kwargs": {"lr": 0.125}'))
    rule = file.with_name("rules.py")
    rule.write_text(RULE)
    vary = ("--vary", f"optimizer=sgd,{rule}:Mine")
    answer = deep5("study", str(file), *vary, "--seeds", "1")
    assert answer.status == 0, answer.err
    given, own = "optimizer=sgd", f"optimizer={rule}:Mine"
    assert re.search(rf"^{given} ran SGD, lr=0.125\b", answer.out, re.MULTILINE)
    assert f"\n{own} ran Mine, lr=0.25\n" in answer.out
    warning = (
        f"the candidates have unequal lr: 0.125 of the recipe's optimizer_kwargs for {given}, and the default of the "
        f"class for {own} (0.25), because another optimizer drops the recipe's arguments; remedy: state it for each "
    )
    assert f"note: {warning}" in answer.out
    folder = Path(answer.out.splitlines()[-1])
    document = json.loads((folder / "study.json").read_text())
    assert document["candidates"][own]["optimizer"] == {"rule": "Mine", "lr": 0.25}
    assert next(note for note in document["notes"] if "unequal" in note).startswith(warning)
    assert not audit([folder]).findings
    # The remedy.
    answer = deep5("study", str(file), *vary, "--vary", "optimizer_kwargs.lr=0.125,0.25", "--seeds", "1")
    assert answer.status == 0, answer.err
    assert "unequal" not in answer.out
    assert len(re.findall(r" ran \w+, lr=", answer.out)) == 4


def test_divergence_is_seen_without_the_loss_among_the_metrics(file: Path, tmp_path: Path) -> None:
    """The run warns, in the words of the watching module."""
    file.write_text(TARGET.replace(", (d5.TrainingLoss(), None)", ""))
    study = run_study(file, varied(["optimizer_kwargs.lr=1e38"]), seeds=(0,), out=tmp_path / "out")
    (found,) = study.reached["optimizer_kwargs.lr=1e+38"].values()
    assert found.seconds == math.inf
    assert re.match(
        r"diverged: the (training loss|loss of the evaluation after epoch \d+) is (nan|inf)", found.reason or ""
    )
    assert "at least one" in study.notes[-1] or "no loss.svg" in study.notes[-1]


def test_a_run_that_was_stopped_before_any_evaluation_hides_no_other(file: Path, tmp_path: Path) -> None:
    file.write_text(TARGET.replace('"epochs": 2}', '"epochs": 2, "events": [d5.StopOnNaN(1)]}'))
    candidates = {
        "calm": {"optimizer_kwargs.lr": 0.001, "threads": 1},
        "wild": {"optimizer_kwargs.lr": 1e38, "threads": 2},
    }
    study = run_study(file, candidates, seeds=(0,), out=tmp_path / "out")
    calm, wild = (own[0] for own in study.reached.values())
    assert calm.epochs == 1.0
    assert wild.epochs == math.inf
    assert str(wild.reason).startswith("diverged: the training loss is ")
    assert "accuracy.svg does not show all runs: of wild, none of 1" in study.notes
    # All get the same processors for any number of threads: otherwise their times would not be comparable.
    runs = [result.document for own in study.runs.values() for result in own]
    assert [own["threads"]["asked"] for own in runs] == [1, 2]
    assert len({own["provenance"]["environment"] for own in runs}) == 1
    assert (study.folder / "accuracy.svg").is_file()


def test_a_run_that_fails_is_infinite(file: Path, tmp_path: Path) -> None:
    """One of two seeds."""
    file.write_text(TARGET + WRONG.replace("self.how ==", "(HERE / 'broken').exists() and self.how =="))

    def tell(line: str) -> None:
        if "seed 1 (" in line:
            (tmp_path / "broken").touch()

    study = run_study(file, only="raise", seeds=(0, 1), out=tmp_path / "out", tell=tell)
    document = json.loads((study.folder / "study.json").read_text())
    told = document["candidates"]["raise"]["time_to_target"]
    assert told["epochs"] == {"values": {"0": 1.0, "1": "inf"}, "median": "inf", "interval": None}
    assert told["reasons"]["1"].startswith("failed: the run failed: ")
    assert "accuracy.svg does not show all runs: of raise, 1 of 2" in document["notes"]
    for name in ("accuracy", "accuracy_time"):
        text = "".join(ET.parse(study.folder / f"{name}.svg").getroot().itertext())  # noqa: S314
        assert "not all runs are drawn; of raise, 1 of 2" in text
        assert "target 1 %" in text
    assert marks((study.folder / "accuracy_time.svg").read_bytes(), "rule mark container") == 1
    console = Console(width=400)
    with console.capture() as printed:
        study.print(console)
    table = printed.get()
    assert "time to 1 % (recipe's goal) [s]" in table  # names the target's origin
    assert re.search(r"raise +inf \(0\.\d+ … inf\) +inf \(1 … inf\) +inf \(3 … inf\) +1 of 2", table)
    assert re.search(r"raise, seed 1: the run failed: .*ValueError: broken", table)


def test_a_study_of_which_no_run_came_to_its_end_says_so(file: Path, deep5: Command) -> None:
    file.write_text(TARGET)
    words = " ".join(deep5("study", "--help").out.split())
    assert "the exit status is 3 only if no run finished" in words
    for options in (("--seeds", "1", "--json"), ("--seeds", "2")):
        answer = deep5("study", str(file), "--vary", "optimizer=native:adam", *options)
        assert answer.status == 3
        assert "finished; the first failure: seed 0: unknown native optimizer" in answer.err
        if "--json" in options:
            assert json.loads(answer.out)["exit_status"] == 3  # one document
    # The same failure of several runs is reported once.
    told = " ".join(answer.out.split())
    assert told.count("unknown native optimizer") == 1
    assert "optimizer=native:adam, 2 seeds: unknown native optimizer of reference 'adam'; allowed: none note: " in told
    assert told.count("note: ") == 1
    assert "note: nothing was drawn: no run finished" in told


def test_a_reason_is_told_once_though_each_run_names_its_own_folder() -> None:
    folder = Path("/out/s")
    failed = [f"seed {n}: the run failed: broken; what it left is in {folder}/runs/r-{n}" for n in range(3)]
    study = Study(
        folder=folder,
        recipe="r",
        hash="",
        size="full",
        seeds=range(3),
        settings={"a": {}, "b": {}},
        runs={"a": [], "b": []},
        failures={"a": failed, "b": [*failed[:1], "seed 1: another"]},
    )
    assert study._lost() == [
        "a, 3 seeds; b, seed 0: the run failed: broken; what it left is in its folder",
        "b, seed 1: another",
    ]


def test_what_varies() -> None:
    assert varied([]) is None
    assert varied(["framework=reference,pytorch", "optimizer=sgd,adam"]) == {
        "reference, optimizer=sgd": {"framework": "reference", "optimizer": "sgd"},
        "pytorch, optimizer=sgd": {"framework": "pytorch", "optimizer": "sgd"},
        "reference, optimizer=adam": {"framework": "reference", "optimizer": "adam"},
        "pytorch, optimizer=adam": {"framework": "pytorch", "optimizer": "adam"},
    }
    for texts, told in (
        (["optimizer=a", "optimizer=b"], "--vary optimizer is given twice; allowed: once"),
        (["seed=1,2"], "--vary seed=1,2; allowed: --seeds N"),
        (["framework=1,2"], "allowed: names, such as framework=pytorch,jax"),
        (["optimizer"], "cannot read 'optimizer'; allowed: KEY=VALUE"),
    ):
        with pytest.raises(UsageError, match=told):
            varied(texts)


def test_wrong_usage(file: Path, deep5: Command) -> None:
    for arguments, told in (
        (("--vary", "optimizer=sgd,adam"), "has a STUDY; allowed: one of them; remedy: omit --vary"),
        (("--target", "accuracy=200"), "allowed: accuracy=97 (above 0, up to 100 %)"),
        (("--target", "f1=3"), "cannot read the target 'f1=3'"),
        (("--target", "loss=3"), "allowed: a metric that is measured; remedy: (d5.TestLoss(), None) in METRICS"),
    ):
        answer = deep5("study", str(file), *arguments)
        assert answer.status == 2, answer
        assert told in answer.err
    file.write_text(TARGET)
    for arguments, told in (
        ((), "STUDY is None; allowed: a dict"),
        (("--vary", "epochs=1,2"), "'epochs' is fixed by the recipe"),
        (
            ("--vary", "framework=reference,jax", "--framework", "jax"),
            "'framework' is set for all and by the candidate",
        ),
    ):
        answer = deep5("study", str(file), *arguments)
        assert answer.status == 2, answer
        assert told in answer.err
    for name in ("layer_batches", "overhead_empty"):
        answer = deep5("study", name, "--vary", "seed=1")
        assert answer.status == 2


def test_a_model_in_place_of_a_recipe_is_studied(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(
        "import deep5 as d5\n\ndef net(hidden=5, seed=0):\n"
        "    return d5.networks.mlp(features=4, classes=3, hidden=hidden, seed=seed)\n"
    )
    chosen = ("--set", "model_kwargs.hidden=6", "--set", "dataset_kwargs.train=64", "--set", "dataset_kwargs.test=16")
    varied = ("study", "nets.py:net", "--vary", "optimizer=sgd,adam", "--framework", "reference")
    answer = deep5(*varied, *chosen, "--seeds", "1", "--target", "accuracy=1", "--json", "--quiet")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert [len(one["runs"]) for one in found["candidates"].values()] == [1, 1]
    for one in found["candidates"].values():
        assert one["settings"]["model_kwargs.hidden"] == 6
        result = load(Path(found["folder"]) / one["runs"][0], root=found["folder"])
        assert result.document["recipe"]["hash"] == found["hash"]
        assert (result.folder / "model.py").is_file()
    assert not audit([Path(found["folder"])]).findings
    folder = str(Path(found["folder"]) / found["candidates"]["optimizer=adam"]["runs"][0])
    assert deep5("run", "--like", folder, "--quiet").status == 0
    for arguments, told in (
        (("nets.py:net",), "nets.py:net is a model, which has no STUDY; allowed: --vary"),
        (("nets.py:net", "--vary", "model_kwargs.hidden=5,6"), "makes another model; allowed: one model in a study"),
        ((*varied[1:], "--set", "seed=1"), "--set seed; allowed: --seeds N"),
        ((*varied[1:], "--set", "framework=jax"), "--set framework; allowed: --framework"),
        ((*varied[1:], "--set", "epochs=1", "--set", "epochs=2"), "--set epochs is given twice"),
    ):
        answer = deep5("study", *arguments)
        assert answer.status == 2, answer
        assert told in answer.err


def test_targets(file: Path) -> None:
    recipe, _ = load_study(file)
    assert target_of(recipe) == (None, [])
    assert target_of(recipe, parse_target("accuracy=50"))[0] == Target(
        metric="test_accuracy", goal=50.0, origin="asked"
    )
    file.write_text(TARGET)
    recipe, _ = load_study(file, varied={"one": {}})
    own = Target(metric="test_accuracy", goal=1.0)
    assert target_of(recipe) == (own, [])
    assert target_of(recipe, parse_target("accuracy=1")) == (own, [])  # the same, given twice
    file.write_text(TARGET.replace("METRICS = [", "METRICS = [(d5.EpochsToAccuracy(2), None), "))
    recipe, _ = load_study(file, varied={"one": {}})
    target, notes = target_of(recipe)
    assert target is None
    assert notes[0].startswith("METRICS state several targets (1 %, 2 %), so the study has none")
    file.write_text(TARGET.partition("METRICS")[0] + "METRICS = [(d5.TimeToAccuracy(9), None)]\n")
    recipe, _ = load_study(file, varied={"one": {}})
    assert target_of(recipe)[0] == Target(metric="test_accuracy", goal=9.0)
    with pytest.raises(UsageError, match=r"has the metrics time_to_accuracy; allowed: .*d5.TestAccuracy"):
        target_of(recipe, parse_target("accuracy=50"))


def test_what_is_not_drawn_is_told() -> None:
    points = accuracy_points(RUNS)
    assert undrawn(points, {"slow": 2, "fast": 1}) == ""
    assert undrawn(points, {"slow": 5, "fast": 1, "gone": 3}) == "of slow, 2 of 5; of gone, none of 3"
    assert undrawn([], {"a": 2}) == "of a, none of 2"


@pytest.mark.slow
def test_the_optimizer_study_at_its_smoke_size(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    study = run_study("optimizer_study", size="smoke", seeds=(0,), out=tmp_path)
    assert {"Adam", "AcceleGrad"} <= set(study.settings)
    assert not any(study.failures.values())
    assert (study.folder / "accuracy.svg").is_file()
    assert (study.folder / "loss.svg").is_file()
    # Ten steps at the rates of the full size need not lower a loss; every step changes the weights.
    for name, runs in study.runs.items():
        losses = [row.value for row in runs[0].samples()["training_loss"]]
        assert len(set(losses)) == len(losses) == 10, name
        assert all(map(math.isfinite, losses)), name
