"""`deep5 audit` of results of several ranks: honest ones pass, doctored ones are caught under the rule they break."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import deep5 as d5
from deep5.audit import audit
from deep5.distributed.communicators.threads import run_in_threads
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute, execute_as_rank
from deep5.training.checkpointer import Checkpointer
from honest_results import hashed_anew

Doctor = Callable[[Path], None]

# Two ranks have 17 and 16 samples of a batch, three 11 each; the last batch has fewer.
RECIPE = """
import deep5 as d5

FIXED = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 96}, "epochs": 3, "scheme": "all_reduce"}
MUTABLE = {"batch_size": 33, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}, "framework": "reference", "seed": 0}
METRICS = [
    (d5.TestAccuracy(), ">= 1 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.TrainingAccuracy(), None),
    (d5.WallClockTime(), "< 600 s"),
    (d5.TimeToAccuracy(1), None),
    (d5.EpochsToAccuracy(1), None),
    (d5.Throughput(), None),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
    (d5.CommunicationVolume(), None),
    (d5.CommunicationShare(), None),
    (d5.LoadImbalance(), None),
]
"""


class Ended(d5.Event):
    """Ends a run within a step of every rank."""

    every_rank = True

    def __init__(self, at: int, how: BaseException) -> None:
        self.at, self.how = at, how

    def after_step(self, trainer: Any, info: Any, outputs: Any, begin_ns: int, end_ns: int) -> None:
        if info.step == self.at:
            raise self.how


def by_ranks(
    out: Path, ranks: int, changes: str = "", event: d5.Event | None = None, resume: Path | None = None
) -> Path:
    """The folder of a run of RECIPE by ranks in threads, however the run ended."""
    out.mkdir(exist_ok=True)
    (out / "small.py").write_text(f"{RECIPE}\n{changes}\n")
    recipe = load_recipe(out / "small.py")
    events = () if event is None else (event,)

    def rank(communicator: Any) -> None:
        keeper = Checkpointer(every_steps=2)  # one per rank, which creates it
        execute_as_rank(
            recipe, communicator, out=out / "runs", events=events, quiet=True, resume=resume, checkpointer=keeper
        )

    with suppress(d5.core.errors.RunFailed, KeyboardInterrupt):
        run_in_threads(ranks, rank, timeout_s=120)
    (folder,) = (out / "runs").iterdir()
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return by_ranks(tmp_path_factory.mktemp("ranks"), 2)


@pytest.fixture
def given(honest: Path, tmp_path: Path) -> Path:
    """A copy of the result of two ranks."""
    return Path(shutil.copytree(honest, tmp_path / honest.name))


def found_in(folder: Path) -> list[str]:
    """The findings, with the new hashes of raw files that a test changed."""
    hashed_anew(folder)
    return [str(finding) for finding in audit([folder]).findings]


# Honest results ------------------------------------------------------------------------------------------------------


def test_an_honest_result_of_two_ranks_passes(honest: Path) -> None:
    report = audit([honest])
    assert [str(finding) for finding in report.findings] == []
    stored = json.loads((honest / "result.json").read_text())["files"]
    assert {"samples.csv", "samples-rank-1.csv", "ranks.json"} <= set(stored)
    told = [what for what in report.skipped if "the value of" in what]
    assert told == ["the value of load_imbalance, except its range: the working times of single ranks are not stored"]


@pytest.mark.parametrize(
    ("ranks", "changes"),
    [
        (3, ""),
        (3, "FIXED['dataset_kwargs'] = {'limit': 81}; MUTABLE['batch_size'] = 4"),  # the last batch has 1 of 65 samples
        (2, "MUTABLE |= {'batch_size': 40, 'train_sampler': 'ordered'}"),
        (2, "MUTABLE['accumulate'] = 2"),
        (2, "FIXED['scheme'] = 'local_sgd'; MUTABLE['optimizer'] = 'adam'"),
        (2, "FIXED['epochs'] = 1"),
        (2, "METRICS += [(d5.TopK(1), None), (d5.TopK(5), None)]"),
    ],
)
def test_honest_results_of_ranks_pass(tmp_path: Path, ranks: int, changes: str) -> None:
    folder = by_ranks(tmp_path, ranks, changes)
    document = json.loads((folder / "result.json").read_text())
    assert (document["status"], document["level"], document["ranks"]) == ("success", 3, ranks)
    assert found_in(folder) == []


@pytest.mark.parametrize(
    ("event", "status"),
    [
        (Ended(4, d5.StopTraining("enough")), "success"),
        (Ended(5, ValueError("broken")), "failed"),
        (Ended(0, ValueError("broken")), "failed"),
    ],
)
def test_honest_runs_of_ranks_of_every_end_pass(tmp_path: Path, event: d5.Event, status: str) -> None:
    folder = by_ranks(tmp_path, 2, "", event)
    assert json.loads((folder / "result.json").read_text())["status"] == status
    assert found_in(folder) == []


@pytest.mark.daily
def test_a_run_that_was_killed_between_the_samples_of_two_ranks_passes(given: Path) -> None:
    """Each rank writes its evaluations by itself; those that both have are the same."""
    scores = ("test_accuracy", "test_loss")
    files = [given / "samples.csv", given / RANK1]
    aborted = {"status": "aborted", "accepted": None, "finished": None, "resources": None, "reasons": ["killed"]}
    unknown = {"value": None, "passed": None, "interval": None, "samples": 0}
    rows: list[dict[str, Any]] = json.loads((given / "result.json").read_text())["metrics"]
    result(lambda d: d.update(aborted, metrics=[{**row, **unknown} for row in rows]))(given)
    assert found_in(given) == []
    for own in files:
        text = own.read_text()
        lines = text.splitlines(keepends=True)
        last = max(int(line.split(",")[4] or 0) for line in lines if line.startswith(scores))
        kept = [line for line in lines if not (line.startswith(scores) and int(line.split(",")[4] or 0) == last)]
        for fewer in (kept, [line for line in lines if not line.startswith(scores)]):
            assert len(fewer) < len(lines)
            own.write_text("".join(fewer))
            assert found_in(given) == []
        own.write_text(text)
    sample("test_accuracy", times(0.5))(given)
    assert any("which are the same on every rank" in what for what in found_in(given))


@pytest.mark.parametrize(("before", "ranks"), [(2, 1), (2, 2), (2, 3), (1, 3)])
def test_honest_runs_that_as_many_ranks_or_others_went_on_with_pass(tmp_path: Path, before: int, ranks: int) -> None:
    folder = by_ranks(tmp_path, before, "", Ended(4, ValueError("broken")))
    assert by_ranks(tmp_path, ranks, resume=folder) == folder
    document = json.loads((folder / "result.json").read_text())
    assert (document["status"], len(document["resumed"]), document["ranks"]) == ("success", 1, ranks)
    assert found_in(folder) == []
    skipped = audit([folder]).skipped
    assert any("the value of throughput" in what for what in skipped) == (ranks != before)


def test_a_result_of_one_rank_is_of_level_2(tmp_path: Path) -> None:
    folder = by_ranks(tmp_path, 1)
    assert json.loads((folder / "result.json").read_text())["level"] == 2
    assert found_in(folder) == []


# Doctored ones -------------------------------------------------------------------------------------------------------


def result(change: Callable[[Any], Any]) -> Doctor:
    return document_of("result.json", change)


def told(change: Callable[[Any], Any]) -> Doctor:
    """Edit the records of the ranks."""
    return document_of("ranks.json", change)


def document_of(name: str, change: Callable[[Any], Any]) -> Doctor:
    def doctor(folder: Path) -> None:
        document = json.loads((folder / name).read_text())
        change(document)
        (folder / name).write_text(json.dumps(document))

    return doctor


def value(name: str, factor: float) -> Doctor:
    def change(document: Any) -> None:
        row = next(row for row in document["metrics"] if row["name"] == name)
        row["value"] *= factor

    return result(change)


def sample(name: str, change: Callable[[dict[str, str]], dict[str, str]], place: int = -1, rank: int = 1) -> Doctor:
    """Change one sample of a metric of a rank."""

    def doctor(folder: Path) -> None:
        path = folder / (f"samples-rank-{rank}.csv" if rank else "samples.csv")
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        own = [number for number, line in enumerate(lines) if line["metric"] == name]
        lines[own[place]] = change(lines[own[place]])
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(lines)

    return doctor


def times(factor: float) -> Callable[[dict[str, str]], dict[str, str]]:
    return lambda line: {**line, "value": repr(float(line["value"]) * factor)}


def removed(name: str) -> Doctor:
    return lambda folder: (folder / name).unlink()


def written(name: str, content: bytes) -> Doctor:
    def doctor(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return doctor


def copied(name: str, to: str) -> Doctor:
    def doctor(folder: Path) -> None:
        shutil.copy(folder / name, folder / to)

    return doctor


def linked(name: str) -> Doctor:
    """Replace a file by a link to it."""

    def doctor(folder: Path) -> None:
        (folder / name).rename(folder.parent / name)
        (folder / name).symlink_to(folder.parent / name)

    return doctor


def pipe(name: str) -> Doctor:
    def doctor(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return doctor


def large(name: str) -> Doctor:
    """Make a file larger than the audit reads, without using space on the disk."""

    def doctor(folder: Path) -> None:
        with (folder / name).open("r+b") as file:
            file.truncate(1 << 40)

    return doctor


def alone(folder: Path) -> None:
    """Report the run as one process; the files of the ranks remain."""
    result(lambda d: d.update(ranks=1, level=2))(folder)


def alone_without_the_others(folder: Path) -> None:
    alone(folder)
    for name in (RANK1, "ranks.json"):
        (folder / name).unlink()


def sent_less(document: Any) -> None:
    document[1]["sent_bytes"] //= 2


RANK1 = "samples-rank-1.csv"
CORPUS: list[tuple[str, Doctor, int, str]] = [
    # Rule 14: the kind of result.
    ("level 2 with several ranks", result(lambda d: d.update(level=2)), 14,
     "the level of a result of training by 2 ranks; stored 2, recomputed 3"),
    ("more ranks than there were", result(lambda d: d.update(ranks=3)), 14,
     "the ranks of ranks.json are [0, 1]; allowed: 0 to 2"),
    ("more ranks than the scheme has", result(lambda d: d.update(ranks=3)), 14, "the number of ranks, by the scheme"),
    ("another scheme", result(lambda d: d["components"]["optimizer"].update(scheme="Gossip")), 14,
     "the scheme, by its recipe; stored 'Gossip'"),
    ("a bucket of another size", result(lambda d: d["components"]["optimizer"].update(bucket_mib=1.0)), 14,
     "the scheme's bucket_mib, which its recipe does not give"),
    ("a compression that was not there", result(lambda d: d["components"]["optimizer"].update(compression={})), 14,
     "the compression, by the recipe"),
    ("a number of ranks that is none", result(lambda d: d.update(ranks=0)), 8, "ranks is 0; allowed: at least 1"),
    ("ranks without end", result(lambda d: d.update(ranks=10**100)), 14, "the ranks of ranks.json are [0, 1]"),
    ("told as one rank", alone, 14, "there is samples-rank-1.csv, ranks.json, and the run states one rank"),
    ("told as one rank, and the others are gone", alone_without_the_others, 14,
     "the number of ranks, by the scheme; stored 1, recomputed 2"),
    ("a rank less", told(lambda d: d.pop()), 14, "the ranks of ranks.json are [0]; allowed: 0 to 1"),
    ("a rank twice", told(lambda d: d[1].update(rank=0)), 14, "the ranks of ranks.json are [0, 0]"),
    # Rule 8: what each rank measured and sent.
    ("no ranks.json", removed("ranks.json"), 8, "there is no ranks.json"),
    ("a ranks.json that is none", written("ranks.json", b"[{]"), 8, "ranks.json is truncated or not JSON"),
    ("another ranks.json", written("ranks.json", b'{"a": 1}'), 8, "ranks.json is not as deep5 writes it"),
    ("a deep ranks.json", written("ranks.json", b"[" * 5000), 8, "ranks.json cannot be checked"),
    ("ranks of other types", told(lambda d: d[1].update(sent_bytes="many")), 8, "is not as deep5 writes it"),
    ("a ranks.json behind a link", linked("ranks.json"), 8, "is a link"),
    ("a pipe as ranks.json", pipe("ranks.json"), 8, "is not a plain file"),
    ("a large ranks.json", large("ranks.json"), 8, "allowed: at most"),
    ("no samples of a rank", removed(RANK1), 8,
     "there is no samples-rank-1.csv: the raw values of 1 of 2 ranks are missing"),
    ("samples of a rank that is none", copied(RANK1, "samples-rank-2.csv"), 8,
     "samples-rank-2.csv belongs to none of the 2 ranks"),
    ("samples of the first rank twice", copied("samples.csv", "samples-rank-0.csv"), 8, "rank-0.csv belongs to none"),
    ("samples of a rank behind a link", linked(RANK1), 8, "is a link"),
    ("a pipe as samples of a rank", pipe(RANK1), 8, "is not a plain file"),
    ("large samples of a rank", large(RANK1), 8, "allowed: at most"),
    ("samples of a rank that are none", written(RANK1, b"\xff\xfe"), 8, "the samples of rank 1 cannot be checked"),
    ("the samples of another rank", copied("samples.csv", RANK1), 8,
     "the ranks 0 and 1 have 9 bit-identical samples of training_loss"),
    ("another accuracy of a rank", sample("test_accuracy", times(0.5)), 8,
     "test_accuracy of rank 1: the results of the evaluations, which are the same on every rank"),
    ("another loss of the test set of a rank", sample("test_loss", times(1.01)), 8, "test_loss of rank 1: the results"),
    ("samples of another metric", sample("test_loss", lambda line: {**line, "metric": "cost"}), 8,
     "rank 1: there are samples of cost"),
    ("a sample in another unit", sample("throughput", lambda line: {**line, "unit": "s"}), 8,
     "throughput of rank 1: samples are in s"),
    ("samples out of order", sample("throughput", lambda line: {**line, "index": "7"}), 8, "throughput of rank 1"),
    ("fewer bytes sent than in the steps", told(sent_less), 8, "in its steps; allowed: at least those"),
    ("bytes in no message", told(lambda d: d[1].update(messages=0)), 8, "allowed: none in none"),
    ("steps that nobody did", told(lambda d: d[1].update(steps=900)), 8, "the steps of rank 1, by its losses"),
    ("half a byte", sample("communication_volume", lambda line: {**line, "value": "0.5"}), 8,
     "an invalid number of sent bytes"),
    # Rule 9: what follows from the samples of all ranks.
    ("another volume", value("communication_volume", 0.5), 9, "the value of communication_volume, by all ranks"),
    ("another sample of the volume", sample("communication_volume", lambda line: {**line, "value": "1.0"}), 9,
     "the value of communication_volume, by all ranks"),
    ("another loss", value("training_loss", 1.0001), 9, "the value of training_loss; stored"),
    ("another sample of the loss", sample("training_loss", times(1.01)), 9, "the value of training_loss; stored"),
    ("a loss beyond all", value("training_loss", 3.0), 9, "is beyond the losses of the last epoch"),
    ("another accuracy in training", value("training_accuracy", 0.99), 9, "the value of training_accuracy"),
    ("another sample of it", sample("training_accuracy", times(0.9)), 9, "the value of training_accuracy"),
    ("another throughput", value("throughput", 1.01), 9, "the value of throughput; stored"),
    ("another sample of the throughput", sample("throughput", times(0.5), 1), 9, "the value of throughput; stored"),
    ("less memory", value("peak_memory", 0.5), 9, "the value of peak_memory"),
    ("a rank with more memory", sample("peak_memory", times(2.0)), 9, "the value of peak_memory"),
    ("another share", value("communication_share", 1.001), 9, "the value of communication_share"),
    ("another sample of the share", sample("communication_share", times(0.5)), 9, "the value of communication_share"),
    ("another imbalance", value("load_imbalance", 0.5), 9, "as each rank received it"),
    ("another imbalance of a rank", sample("load_imbalance", times(0.5)), 9, "as each rank received it"),
    # Rule 3.
    ("other threads", told(lambda d: d[0].update(threads=64)), 3, "the threads of rank 0, by ranks.json"),
]  # fmt: skip


@pytest.mark.parametrize(("doctor", "rule", "words"), [row[1:] for row in CORPUS], ids=[row[0] for row in CORPUS])
def test_doctored_results_of_ranks_are_caught(given: Path, doctor: Doctor, rule: int, words: str) -> None:
    doctor(given)
    hashed_anew(given)
    report = audit([given])
    assert not report
    found = [str(finding) for finding in report.findings]
    assert any(finding.rule == rule and words in finding.what for finding in report.findings), found


def test_an_imbalance_that_two_ranks_cannot_have(given: Path) -> None:
    """All records agree: the slowest rank works at most as long as both ranks together."""
    for rank in (0, 1):
        sample("load_imbalance", lambda line: {**line, "value": "150.0"}, rank=rank)(given)
    result(lambda d: next(row for row in d["metrics"] if row["name"] == "load_imbalance").update(value=150.0))(given)
    (found,) = found_in(given)
    assert "is beyond what 2 ranks allow; stored 150.0" in found


def test_ranks_of_which_samples_are_gone_leave_their_values_unchecked(given: Path) -> None:
    (given / RANK1).unlink()
    hashed_anew(given)
    report = audit([given])
    assert len(report.findings) == 1
    assert "the value of throughput: not all ranks have samples" in report.skipped


def test_ranks_that_are_only_told_of_are_told_soon(given: Path) -> None:
    """One finding for all of them, without looking for each file."""
    result(lambda d: d.update(ranks=50_000))(given)
    told(lambda d: d.extend([{**d[0], "rank": rank} for rank in range(2, 50_000)]))(given)
    found = found_in(given)
    assert len(found) <= 4  # also the scheme's number of ranks, and the first rank's part of each later epoch
    assert any("samples-rank-6.csv: the raw values of 49998 of 50000 ranks are missing" in what for what in found)


def test_what_code_alone_left_has_no_ranks(tmp_path: Path) -> None:
    """A single process that claims to be two is caught, too."""
    (tmp_path / "small.py").write_text(RECIPE.replace(', "scheme": "all_reduce"', ""))
    folder = execute(load_recipe(tmp_path / "small.py"), out=tmp_path / "runs", quiet=True).folder
    assert found_in(folder) == []
    result(lambda d: d.update(ranks=2, level=3))(folder)
    assert any("there is no ranks.json" in found for found in found_in(folder))


def test_the_command_tells_of_ranks(honest: Path, deep5: Any) -> None:
    answer = deep5("audit", str(honest))
    assert answer.status == 0
    assert "0 findings" in answer.out.splitlines()[-1]
