"""Doctored results: honest folders of each kind, changed as a cheat would, and the rule under which each is caught.

`python tests/support/doctored.py docs/results/red_team.md` writes the table of the docs.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from cheats import LIVE
from deep5.bench.summary import rates_of, roofline_of
from deep5.core.canonical import canonical_hash
from deep5.measuring.calibration import Calibration
from deep5.measuring.environment import environment_hash
from deep5.results.comparison_summary import results_of, standing, verdicts_of
from deep5.results.comparison_warnings import warnings_in
from deep5.results.round_samples import RoundSample, order_of_round, read_round_samples, round_samples_text
from honest_results import LEVEL0, OLD_RIGOROUS, QUICK, RECORDED, RIGOROUS, RUN, SET, STUDY, hashed_anew
from unchecked import UNCHECKED

Doctor = Callable[[Path], None]
"""Changes a folder."""

# How a result is doctored --------------------------------------------------------------------------------------------


@contextmanager
def edited(path: Path) -> Iterator[Any]:
    """Edit the document of a JSON file, and store the new hashes of the raw files in its folder."""
    document = json.loads(path.read_text())
    yield document
    path.write_text(json.dumps(document))
    hashed_anew(path.parent)


def result(change: Callable[[Any], Any]) -> Doctor:
    def doctor(folder: Path) -> None:
        with edited(folder / "result.json") as document:
            change(document)

    return doctor


def comparison(change: Callable[[Any], Any]) -> Doctor:
    def doctor(folder: Path) -> None:
        with edited(folder / "comparison.json") as document:
            change(document)

    return doctor


def study(change: Callable[[Any], Any]) -> Doctor:
    def doctor(folder: Path) -> None:
        with edited(folder / "study.json") as document:
            change(document)

    return doctor


def rows(change: Callable[[list[RoundSample]], list[RoundSample]]) -> Doctor:
    """Change the samples of a comparison."""

    def doctor(folder: Path) -> None:
        path = folder / "samples.csv"
        path.write_text(round_samples_text(change(read_round_samples(path))))
        hashed_anew(folder)

    return doctor


def lines_of(change: Callable[[list[str]], list[str]], name: str = "samples.csv") -> Doctor:
    """Change the lines of a file after the run, whose hash in the document stays."""

    def doctor(folder: Path) -> None:
        text = (folder / name).read_text()
        (folder / name).write_text("".join(change(text.splitlines(keepends=True))))
        assert (folder / name).read_text() != text

    return doctor


def at_step(lines: list[str], step: int = 4) -> int:
    """The place of the training loss at a step that no stored figure depends on."""
    return next(place for place, line in enumerate(lines) if line.startswith(f"training_loss,{step},"))


def loss_changed(lines: list[str]) -> list[str]:
    """Triple the training loss of a middle step."""
    place = at_step(lines)
    own = lines[place].split(",")
    own[2] = repr(3 * float(own[2]))
    return [*lines[:place], ",".join(own), *lines[place + 1 :]]


def loss_removed(lines: list[str]) -> list[str]:
    return [line for place, line in enumerate(lines) if place != at_step(lines)]


def loss_repeated(lines: list[str]) -> list[str]:
    return [*lines[: at_step(lines)], *lines[at_step(lines) :][:1], *lines[at_step(lines) :]]


def losses_swapped(lines: list[str]) -> list[str]:
    place = at_step(lines)
    return [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]]


def digit_changed(lines: list[str]) -> list[str]:
    """Change the last digit of the third sample of a comparison or of operators."""
    own = lines[3].split(",")
    column = 2 if lines[0].startswith("metric,") else lines[0].split(",").index("seconds")
    own[column] = own[column][:-1] + ("1" if own[column][-1] != "1" else "2")
    return [*lines[:3], ",".join(own), *lines[4:]]


def cells(change: Callable[[dict[str, str]], dict[str, str] | None]) -> Doctor:
    """Change each line of a run's samples; a line for which `change` returns None is left out."""

    def doctor(folder: Path) -> None:
        path = folder / "samples.csv"
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(line for old in lines if (line := change(dict(old))) is not None)
        hashed_anew(folder)

    return doctor


def metric(name: str, **fields: Any) -> Doctor:
    def change(document: Any) -> None:
        next(row for row in document["metrics"] if row["name"] == name).update(fields)

    return result(change)


def in_first(doctor: Doctor) -> Doctor:
    """Apply to the first run of the folder, by name."""
    return lambda folder: doctor(sorted(path for path in folder.iterdir() if path.is_dir())[0])


def in_run(doctor: Doctor) -> Doctor:
    """Apply to the first run of a study."""
    return lambda folder: doctor(sorted((folder / "runs").iterdir())[0])


def put(document: Any, *path: Any, to: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = to


def setting(*path: Any, to: Any) -> Doctor:
    """Set one field of a document of any kind."""

    def doctor(folder: Path) -> None:
        name = next(n for n in ("comparison.json", "study.json", "result.json") if (folder / n).exists())
        with edited(folder / name) as document:
            put(document, *path, to=to)

    return doctor


def rehash(document: Any) -> None:
    document["recipe"]["hash"] = canonical_hash(document["recipe"]["fixed"])


def changed_fixed(document: Any) -> None:
    document["recipe"]["fixed"]["dataset_kwargs"] = {"limit": 64}
    rehash(document)


def swapped(samples: list[RoundSample]) -> list[RoundSample]:
    """Swap the times of the two candidates."""
    other = {"reference": "onnxruntime", "onnxruntime": "reference"}
    return [sample._replace(candidate=other[sample.candidate]) for sample in samples]


def slowest_dropped(samples: list[RoundSample]) -> list[RoundSample]:
    """Drop the slowest sample that another sample follows; dropping the last of a process would leave no gap."""
    within = [one for one, other in pairwise(samples) if one.process == other.process and one.phase == "steady"]
    slowest = max(within, key=lambda s: s.seconds)
    return [sample for sample in samples if sample is not slowest]


def other_warm_up(samples: list[RoundSample]) -> list[RoundSample]:
    """Count three samples more or fewer as warm-up."""
    some = any(sample.phase == "warm-up" for sample in samples)
    if some:
        return [s._replace(phase="steady") if s.phase == "warm-up" else s for s in samples]
    return [s._replace(phase="warm-up") if s.phase == "steady" and s.place < 3 else s for s in samples]


def half_warm(samples: list[RoundSample]) -> list[RoundSample]:
    """Declare half of the samples of each process its warm-up, or none where half of them were."""
    counts = Counter(sample.process for sample in samples if sample.phase != "first")
    warm = Counter(sample.process for sample in samples if sample.phase == "warm-up")
    ends = {process: count // 2 if warm[process] != count // 2 else 0 for process, count in counts.items()}
    return [
        s if s.phase == "first" else s._replace(phase="warm-up" if s.place < ends[s.process] else "steady")
        for s in samples
    ]


def copied(samples: list[RoundSample]) -> list[RoundSample]:
    """Give the second process the steady times of its candidate's first process."""
    first, own = samples[0], [s for s in samples if s.process == samples[0].process]
    later = next(s.process for s in samples if s.candidate == first.candidate and s.process != first.process)
    number = next(s.round for s in samples if s.process == later)
    rest = [s for s in samples if s.process != later]
    return sorted(rest + [s._replace(process=later, round=number) for s in own], key=lambda s: s.process)


def scaled(factor: float, *, clock: bool) -> Doctor:
    """Scale a candidate's times and recompute everything that follows from them."""

    def doctor(folder: Path) -> None:
        made_to_follow(
            folder,
            [
                sample._replace(seconds=sample.seconds * factor, time_s=sample.time_s * (factor if clock else 1))
                if sample.candidate == "onnxruntime"
                else sample
                for sample in read_round_samples(folder / "samples.csv")
            ],
        )

    return doctor


def one_short(folder: Path) -> None:
    """Report a sample that took 50 ms longer as a tenth of its time, on a quiet machine, and recompute what follows."""
    samples = read_round_samples(folder / "samples.csv")
    steady: dict[int, list[int]] = {}
    for place, sample in enumerate(samples):
        if sample.phase == "steady":
            steady.setdefault(sample.process, []).append(place)
    # In the process with the fewest samples, where one counts most: among very many, one such sample is plausible.
    places = min(steady.values(), key=len)
    at, process = places[len(places) // 2], samples[places[0]].process
    # Next to other programs, the system may have preempted it there.
    setting("processes", process, "machine", "others_share", to=0.0)(folder)
    samples[at] = samples[at]._replace(seconds=samples[at].seconds / 10)
    made_to_follow(
        folder,
        [
            own._replace(time_s=own.time_s + 0.05) if place >= at and own.process == process else own
            for place, own in enumerate(samples)
        ],
    )


def made_to_follow(folder: Path, samples: list[RoundSample]) -> None:
    """Write other samples and what is derived from them."""
    (folder / "samples.csv").write_text(round_samples_text(samples))
    with edited(folder / "comparison.json") as document:
        sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
        floors = {row["rounds"]: row["floor"] for row in document["verdicts"]}
        document["results"] = results_of(samples, sizes)
        document["verdicts"] = verdicts_of(samples, document["baseline"], floors)


def dropped_run(folder: Path) -> None:
    """Drop a run of a study: its folder and all records of it."""
    with edited(folder / "study.json") as document:
        own = document["candidates"]["fast"]
        shutil.rmtree(folder / own["runs"].pop())
        gone = str(own["seeds"].pop())
        for told in own["metrics"].values():
            told["values"].pop()
            told["mean"], told["deviation"] = told["values"][0] if told["mean"] is not None else None, None
        del gone


def dropped_round(folder: Path) -> None:
    """Drop a slow round of one candidate, with its process and its samples."""
    with edited(folder / "comparison.json") as document:
        number = next(n for n, row in enumerate(document["processes"]) if row["round"] == 3)
        del document["processes"][number]
    path = folder / "samples.csv"
    samples = [sample for sample in read_round_samples(path) if sample.process != number]
    path.write_text(round_samples_text(s._replace(process=s.process - (s.process > number)) for s in samples))


def best_epoch(folder: Path) -> None:
    """Report the value of the best epoch, which is not the last."""
    with (folder / "samples.csv").open(newline="") as file:
        values = [float(line["value"]) for line in csv.DictReader(file) if line["metric"] == "test_loss"]
    cells(lambda line: {**line, "value": "0.001"} if (line["metric"], line["index"]) == ("test_loss", "0") else line)(
        folder
    )
    metric("test_loss", value=0.001)(folder)
    assert min(values) > 0.001


def shared_seed(folder: Path) -> None:
    """Give two runs of a study the same seed, and report two seeds."""
    with edited(folder / "study.json") as document:
        own = document["candidates"]["fast"]
        first, second = (folder / path for path in own["runs"])
    name = second.name
    shutil.rmtree(second)
    shutil.copytree(first, second)
    result(lambda d: d.update(run_id=name))(second)


def failed(folder: Path) -> None:
    """Report a run as failed, in the form of a failed run: no metric is checked against its goal."""
    with edited(folder / "result.json") as document:
        document.update(status="failed", reasons=["broken"], accepted=None)
        for row in document["metrics"]:
            row["passed"] = None


def unlisted(document: Any) -> None:
    for key in ("runs", "seeds"):
        document["candidates"]["fast"][key].pop()


def with_more(runs: int, change: Callable[[Any], Any], status: str = "success") -> Doctor:
    """Add `runs` run folders to a study that does not list them."""

    def doctor(folder: Path) -> None:
        first = sorted((folder / "runs").iterdir())[0]
        for number in range(runs):
            other = first.with_name(f"{first.name[:-1]}{number}more")
            shutil.copytree(first, other)
            result(lambda d, name=other.name: d.update(run_id=name))(other)  # type: ignore[misc]
            if status == "failed":
                failed(other)
        study(change)(folder)

    return doctor


def resumed_at(*times: str) -> Callable[[Any], None]:
    """Report that a study was resumed at these times."""
    return lambda document: document.update(resumed=list(times))


def as_interrupted(runs: int) -> Doctor:
    """Report a study as interrupted after runs had ended and before they were listed."""

    def doctor(document: Any) -> None:
        document["finished"] = False
        document["notes"] = ["the study was interrupted"]
        for _ in range(runs):
            unlisted(document)

    return study(doctor)


def loaded(folder: Path) -> None:
    """Other processes took half of a processor, yet there is a verdict based on a quiet machine's floor."""
    with edited(folder / "comparison.json") as document:
        document["calibration"]["others_share"] = 0.0
        document["processes"][-1]["machine"]["others_share"] = 0.5


def same_seed(folder: Path) -> None:
    one, other = sorted(folder.iterdir())
    shutil.rmtree(other)
    shutil.copytree(one, folder / "again")


def resumed(document: Any, environment: str = "0" * 64) -> None:
    document["resumed"].append({"time": "", "checkpoint": None, "step": 1, "epoch": 0, "environment": environment})


def last_left_out(folder: Path) -> None:
    cells(lambda r: None if (r["metric"], r["index"]) == ("test_loss", "2") else r)(folder)
    metric("test_loss", samples=2)(folder)


def other_environment(document: Any) -> None:
    document["software"]["packages"]["numpy"] = "1.0"
    document["provenance"]["environment"] = environment_hash(document["system"]["before"], document["software"])


def link_out(name: str) -> Doctor:
    def doctor(folder: Path) -> None:
        outside = folder.parent / "outside"
        outside.mkdir()
        shutil.move(folder / name, outside / name)
        (folder / name).symlink_to(outside / name)

    return doctor


def drawn_order(seed: int, number: int, count: int = 2) -> list[int]:
    return order_of_round(seed, number, count, reverses=False)


def other_order(folder: Path) -> None:
    """Store a seed that draws another order than the one in which the candidates ran."""
    with edited(folder / "comparison.json") as document:
        own = [drawn_order(document["seed"], number) for number in range(8)]
        document["seed"] = next(
            seed for seed in range(100) if [drawn_order(seed, number) for number in range(8)] != own
        )


def cells_of(name: str, factor: float) -> Doctor:
    """Scale all samples of a metric, its value and its interval by the same factor."""

    def change(document: Any) -> None:
        own = next(row for row in document["metrics"] if row["name"] == name)
        own["value"] *= factor
        if own["interval"] is not None:
            own["interval"] |= {end: own["interval"][end] * factor for end in ("low", "high")}

    def doctor(folder: Path) -> None:
        cells(lambda r: {**r, "value": repr(float(r["value"]) * factor)} if r["metric"] == name else r)(folder)
        result(change)(folder)

    return doctor


def fast_steps(folder: Path, factor: float = 1 / 50) -> None:
    """Make the steps, and the first call with them, faster."""
    cells_of("step_latency", factor)(folder)
    with (folder / "samples.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["metric"] == "step_latency"]
    values = sorted(float(line["value"]) for line in lines if line["epoch"] != "0")
    middle = (values[2] + values[3]) / 2
    result(lambda d: d["measurement"].update(first_call_s=float(lines[0]["value"]) / 1e3))(folder)
    metric("step_latency", value=middle, interval={"low": values[0], "high": values[-1], "confidence": None})(folder)


def some_fast_steps(folder: Path) -> None:
    """Make the steps of the last epoch a tenth faster; their share of the peak stays."""
    cells(
        lambda r: (
            {**r, "value": repr(float(r["value"]) * 0.9)} if (r["metric"], r["epoch"]) == ("step_latency", "2") else r
        )
    )(folder)


def best_throughput(folder: Path) -> None:
    """Report the value of the best epoch."""
    with (folder / "samples.csv").open(newline="") as file:
        values = [float(line["value"]) for line in csv.DictReader(file) if line["metric"] == "throughput"]
    metric("throughput", value=max(values))(folder)


def fast_clock(folder: Path) -> None:
    """Shorten the times of the evaluations as if training had taken a third."""

    def change(row: dict[str, str]) -> dict[str, str]:
        row["time_s"] = repr(float(row["time_s"]) / 3) if row["time_s"] else ""
        if row["metric"] in ("wall_clock_time", "time_to_accuracy"):
            row["value"] = row["time_s"]
        return row

    cells(change)(folder)
    with edited(folder / "result.json") as document:
        for row in document["metrics"]:
            if row["name"] in ("wall_clock_time", "time_to_accuracy"):
                row["value"] /= 3


def broken_off(ran: int, again: int, left: int | None = None) -> Doctor:
    """Interrupt the sixth round of a rigorous comparison after `ran` candidates, and resume it with its last `again`.

    Of the resumed processes `left` exist, and the comparison was interrupted once more; None: all exist.
    """

    def doctor(folder: Path) -> None:
        samples = read_round_samples(folder / "samples.csv")
        with edited(folder / "comparison.json") as document:
            old, labels = document["processes"], document["candidates"]
            proofs = [row for row in old if row["job"] != "time"]
            begin = next(number for number, row in enumerate(old) if row["round"] == 5)
            rest = old[begin + len(labels) - again :]
            document["processes"] = [*old[: begin + ran], *proofs, *rest]
            moved = len(document["processes"]) - len(old)
            # The times must differ in their last bits.
            made = [s._replace(seconds=s.seconds * 1.00001, time_s=s.time_s * 1.00001) for s in samples]
            made = [s for s in made if s.process < begin + ran]
            made += [s._replace(process=s.process + moved) for s in samples if s.process >= len(old) - len(rest)]
            at = 0.0
            for number, row in enumerate(document["processes"]):
                document["processes"][number] = {**row, "begin_s": at, "wall_s": row["wall_s"] * 1.0001}
                at += row["wall_s"] * 1.0001 + 0.1
            lived = sum(row["wall_s"] for row in document["processes"])
            own = {"wall_s": at, "processes_s": lived, "harness_s": at - lived, "harness_share": (at - lived) / at}
            document["resources"] |= own
            document["resumed"] = [document["started"]]
            begun = datetime.fromisoformat(document["started"])
            document["finished"] = f"{begun + timedelta(seconds=at):%Y-%m-%dT%H:%M:%SZ}"
            if left is not None:
                document["processes"] = document["processes"][: begin + ran + len(proofs) + left]
                document |= {"status": "aborted", "reasons": ["interrupted"], "resources": None}
            stands = standing(document)
            counts = [s for s in made if s.process in stands and (left is None or s.round < 5)]
            sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
            document["results"] = results_of(counts, sizes)
            floors = {10: Calibration.of_document(document["calibration"]).floor(10)}
            document["verdicts"] = verdicts_of(counts, document["baseline"], floors)
            document["warnings"] = warnings_in(document, made)
        there = len(document["processes"])
        (folder / "samples.csv").write_text(round_samples_text([s for s in made if s.process < there]))

    return doctor


def second_as_first(folder: Path) -> None:
    """Report the first call of a resumed process, in a run that was not resumed."""
    lines = list(csv.DictReader((folder / "samples.csv").read_text().splitlines()))
    (second,) = [float(r["value"]) for r in lines if (r["metric"], r["step"]) == ("step_latency", "1")]
    setting("measurement", "first_call_s", to=second / 1e3)(folder)


def as_resumed(doctor: Doctor) -> Doctor:
    """Apply the change, and report the result as resumed."""

    def both(folder: Path) -> None:
        doctor(folder)
        if (folder / "comparison.json").exists():
            comparison(lambda d: d["resumed"].append(d["started"]))(folder)
        else:
            result(lambda d: resumed(d, d["provenance"]["environment"]))(folder)

    return both


def other_line(folder: Path) -> None:
    """Change a line of recipe.py and update its hash."""
    path = folder / "recipe.py"
    path.write_bytes(path.read_bytes() + b"# as fast as can be\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name = "comparison.json" if (folder / "comparison.json").exists() else "result.json"
    with edited(folder / name) as document:
        document["provenance"]["recipe_source"] = digest
        document["recipe"]["division"] = "closed"


def value_of_a_failed_one(folder: Path) -> None:
    """Report values that a failed run never had."""
    failed(folder)
    cells(lambda r: {**r, "value": "99.0"} if r["metric"] == "test_loss" else r)(folder)


def operators(change: Callable[[Any], Any]) -> Doctor:
    """Change the first row of a run of operators."""

    def doctor(folder: Path) -> None:
        with edited(folder / "operators.json") as document:
            change(document["rows"][0])

    return doctor


def of_operators(*path: Any, to: Any) -> Doctor:
    """Set one field of operators.json."""

    def doctor(folder: Path) -> None:
        with edited(folder / "operators.json") as document:
            put(document, *path, to=to)

    return doctor


def of_settings(**fields: Any) -> Doctor:
    """Change what the first framework of a run of operators reads back."""

    def doctor(folder: Path) -> None:
        with edited(folder / "operators.json") as document:
            next(iter(document["processes"][0]["settings"].values())).update(fields)

    return doctor


def other_peak(folder: Path) -> None:
    """Report a slower machine, so that the operator is near its peak."""
    with edited(folder / "operators.json") as document:
        document["roofline"]["flop_s"] *= 0.9
        document["rows"][0].update(rates_of_row(document))


def faster_than_memory(folder: Path) -> None:
    """Add times after an eviction of the caches, in which the memory moves fewer bytes."""
    from deep5.audit.operator_summary import middle

    times = [5e-7 + 1e-9 * number for number in range(8)]
    with edited(folder / "operators.json") as document:
        row = document["rows"][0]
        row["cold"] = middle([times])
        name = row["series"][0].replace("| warm |", "| cold |")
    with (folder / "samples.csv").open("a", encoding="utf-8") as file:
        file.writelines(f"{name},{index},{value!r},s,,,{9.0 + index}\n" for index, value in enumerate(times))


def rates_of_row(document: Any) -> dict[str, float | None]:
    row = document["rows"][0]
    return rates_of(row["median_s"], row["flops"], row["bytes"], roofline_of(document["roofline"]))


def nan_proof(folder: Path) -> None:
    with edited(folder / "comparison.json") as document:
        for row in document["equivalence"]:
            if row["candidate"] == "onnxruntime":
                row.update(relative="nan", passed=False)


def decoy(name: str) -> Doctor:
    return lambda folder: (folder / name).write_text("{}") and None


def link_in(folder: Path) -> None:
    """Make samples.csv of a run of a study a link to that of another run."""
    one, other = sorted((folder / "runs").iterdir())[:2]
    (one / "samples.csv").unlink()
    (one / "samples.csv").symlink_to(Path("..") / other.name / "samples.csv")


def pipe(name: str) -> Doctor:
    def doctor(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return doctor


def described(change: Callable[[Any], Any]) -> Doctor:
    def doctor(folder: Path) -> None:
        with edited(folder / "dataset.json") as document:
            change(document)

    return doctor


def noisy(folder: Path) -> None:
    """Make one process twice as slow as the others, and derive everything again except the warnings."""
    path = folder / "samples.csv"
    samples = [
        s._replace(seconds=s.seconds * 2, time_s=s.time_s * 2) if s.round == 2 else s for s in read_round_samples(path)
    ]
    path.write_text(round_samples_text(samples))


def at_once(folder: Path) -> None:
    """Let the last two processes begin at the same time."""
    with edited(folder / "comparison.json") as document:
        document["processes"][-1]["begin_s"] = document["processes"][-2]["begin_s"]


def other_rate(seeds: int, *, recipe: bool = True) -> Doctor:
    """Run a study's candidate with another learning rate than its settings state."""

    def doctor(folder: Path) -> None:
        with edited(folder / "study.json") as document:
            paths = document["candidates"]["fast"]["runs"][:seeds]
        for path in paths:
            with edited(folder / path / "result.json") as document:
                document["components"]["optimizer"]["lr"] = 0.3
                if recipe:
                    document["recipe"]["mutable"]["optimizer_kwargs"]["lr"] = 0.3

    return doctor


def set_of(row: int, settings: dict[str, Any]) -> Doctor:
    """Give a candidate of a comparison settings that its recipe does not have."""
    return setting("candidates", row, "settings", to=settings)


def other_weights(folder: Path) -> None:
    """Give all candidates the same weights, but not those that the seed draws."""
    with edited(folder / "comparison.json") as document:
        for candidate in document["candidates"]:
            candidate["provenance"]["initial_weights"] = "0" * 64


def rehashed(change: Callable[[Any], Any]) -> Doctor:
    """Change the software of a result, and recompute the environment's hash."""

    def doctor(folder: Path) -> None:
        for name in ("result.json", "comparison.json", "environment.json"):
            if not (folder / name).exists():
                continue
            with edited(folder / name) as document:
                change(document["software"])
                if "provenance" in document:
                    known = environment_hash(document["system"]["before"], document["software"])
                    document["provenance"]["environment"] = known

    return doctor


def other_accuracy(folder: Path) -> None:
    """Report an accuracy that no number of correct test samples gives, in all places where it is stored."""
    cells(lambda r: {**r, "value": "43.0"} if (r["metric"], r["index"]) == ("test_accuracy", "2") else r)(folder)
    metric("test_accuracy", value=43.0)(folder)
    _last_accuracy(folder, 0.43)


def _last_accuracy(folder: Path, share: float) -> None:
    lines = (folder / "events.mllog").read_text().splitlines()
    last = max(number for number, line in enumerate(lines) if '"eval_accuracy"' in line)
    fields = json.loads(lines[last].partition(" ")[2]) | {"value": share}
    lines[last] = f":::MLLOG {json.dumps(fields)}"
    (folder / "events.mllog").write_text("\n".join(lines) + "\n")


def silent_nan(folder: Path) -> None:
    """A NaN loss, without the warning."""
    cells(lambda r: {**r, "value": "nan"} if r["metric"] == "test_loss" else r)(folder)
    metric("test_loss", value="nan", passed=None)(folder)


def log_of(days: int) -> Doctor:
    """Move the times of the events."""

    def doctor(folder: Path) -> None:
        lines = []
        for line in (folder / "events.mllog").read_text().splitlines():
            fields = json.loads(line.partition(" ")[2])
            lines.append(f":::MLLOG {json.dumps(fields | {'time_ms': fields['time_ms'] + days * 86_400_000})}")
        (folder / "events.mllog").write_text("\n".join(lines) + "\n")

    return doctor


def without_goal(document: Any) -> None:
    """Remove a goal, also where it is declared."""
    for row in (*document["metrics"], *document["recipe"]["metrics"]):
        if row.get("name", row.get("metric")) == "test_accuracy":
            row["goal"] = None
            if "passed" in row:
                row["passed"] = None


def without_metric(folder: Path) -> None:
    """Remove a metric with a goal, its samples, and its declaration."""
    with edited(folder / "result.json") as document:
        document["metrics"] = [row for row in document["metrics"] if row["name"] != "test_accuracy"]
        declared = document["recipe"]["metrics"]
        document["recipe"]["metrics"] = [row for row in declared if row["metric"] != "test_accuracy"]
    cells(lambda r: None if r["metric"] == "test_accuracy" else r)(folder)


def without_rows(*whats: str) -> Doctor:
    """Remove parts of the proof of all candidates."""

    def change(document: Any) -> None:
        document["equivalence"] = [row for row in document["equivalence"] if row["what"] not in whats]

    return comparison(change)


def renamed(document: Any) -> None:
    """Give the measurements of one framework the name of another."""
    made = json.loads(json.dumps(document).replace('"onnxruntime"', '"pytorch"'))
    software = document["software"]
    document.clear()
    document.update(made, software=software)


def quiet_floor(folder: Path) -> None:
    """Make the calibration of a noisy machine quiet, and recompute the noise floors and the verdicts."""
    samples = [
        s._replace(seconds=s.seconds * 1.2, time_s=s.time_s * 1.2) if s.round == 1 else s
        for s in read_round_samples(folder / "samples.csv")
    ]
    (folder / "samples.csv").write_text(round_samples_text(samples))
    with edited(folder / "comparison.json") as document:
        told = document["calibration"]
        told["processes"] = {name: [1 + 0.01 * (n % 20) for n in range(32)] for name in told["processes"]}
        document["warnings"] = warnings_in(document, samples)
        told["processes"] = {name: [1 + 0.0001 * (n % 20) for n in range(32)] for name in told["processes"]}
        floors = {row["rounds"]: Calibration.of_document(told).floor(row["rounds"]) for row in document["verdicts"]}
        sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
        document["results"] = results_of(samples, sizes)
        document["verdicts"] = verdicts_of(samples, document["baseline"], floors)


def slower_slowest(samples: list[RoundSample]) -> list[RoundSample]:
    """Make the slowest sample slower, which moves no median."""
    slowest = max((s for s in samples if s.phase == "steady" and s.calls > 1), key=lambda s: s.seconds)
    return [s._replace(seconds=s.seconds * 1.001) if s is slowest else s for s in samples]


INVENTED = {"low": 1.0, "high": 1.1, "confidence": None}

# Single fields, which other fields of the same folder determine -------------------------------------------------------


def events(change: Callable[[dict[str, Any]], bool | None]) -> Doctor:
    """Change each event in place; one for which `change` returns False is left out."""

    def doctor(folder: Path) -> None:
        lines = []
        for line in (folder / "events.mllog").read_text().splitlines():
            fields = json.loads(line.partition(" ")[2])
            if change(fields) is not False:
                lines.append(f":::MLLOG {json.dumps(fields)}")
        (folder / "events.mllog").write_text("\n".join(lines) + "\n")

    return doctor


def event(key: str, value: Any) -> Doctor:
    """Set the value of an event."""
    return events(lambda e: e.update(value=value) if e["key"] == key else None)


def no_event(key: str) -> Doctor:
    """Remove an event."""
    return events(lambda e: e["key"] != key)


def edited_recipe(folder: Path) -> None:
    """Change the fixed part in the recipe's file, and its hash."""
    path = folder / "recipe.py"
    path.write_text(path.read_text().replace('"epochs": ', '"epochs": 1'))
    name = "comparison.json" if (folder / "comparison.json").exists() else "result.json"
    with edited(folder / name) as document:
        document["provenance"]["recipe_source"] = hashlib.sha256(path.read_bytes()).hexdigest()
        document["software"]["deep5"] = "0.1.0"
        document["provenance"]["environment"] = environment_hash(document["system"]["before"], document["software"])


def in_series(name: str, **fields: str) -> Doctor:
    """Set fields of all samples of a metric."""
    return cells(lambda r: {**r, **fields} if r["metric"] == name else r)


def quiet_machine(document: Any) -> None:
    """Remove what other programs took of the processors, and the warnings of it; the readings remain."""
    for row in document["processes"]:
        if row["machine"] is not None:
            row["machine"]["others_share"] = 0.0
    document["warnings"] = [said for said in document["warnings"] if "of its processors' time" not in said]


def faster_loop(folder: Path) -> None:
    """Report a recorded loop at half of all its times, with all that follows from them, except for the events."""
    names = ("wall_clock_time", "step_latency")

    def halved(line: dict[str, str]) -> dict[str, str]:
        columns = [*(["value"] if line["unit"] in ("s", "ms") else []), *(["time_s"] if line["time_s"] else [])]
        return {**line, **{column: repr(float(line[column]) / 2) for column in columns}}

    cells(halved)(folder)
    cells_of("throughput", 2.0)(folder)

    def change(document: Any) -> None:
        for key in ("first_call_s", "warm_up_s"):
            document["measurement"][key] /= 2
        for row in document["metrics"]:
            if row["name"] in names:
                row["value"] /= 2
                if row["interval"] is not None:
                    row["interval"] |= {end: row["interval"][end] / 2 for end in ("low", "high")}

    result(change)(folder)
    path = folder / "time_breakdown.csv"
    lines = list(csv.reader(path.read_text().splitlines()))
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(lines[0])
        writer.writerows([part, f"{float(seconds) / 2:.6g}", *rest] for part, seconds, *rest in lines[1:])


CORPUS: list[tuple[str, str, Doctor, int, str]] = [
    # The eight cases of the specification.
    ("a dropped run", STUDY, dropped_run, 11, "which are declared: dropped"),
    ("a dropped round", RIGOROUS, dropped_round, 11, "did not run in round 3, in its turn"),
    ("a shared seed", STUDY, shared_seed, 11, "are repetitions with the same seed 0"),
    ("a changed fixed part", SET, in_first(result(changed_fixed)), 14, "with different fixed parts (dataset_kwargs)"),
    ("swapped samples", QUICK, rows(swapped), 8, "no such process of this candidate"),
    ("an impossible time", QUICK, scaled(1e-4, clock=True), 8, "operations take at least"),
    ("one short sample", QUICK, one_short, 8, "took less than half of the time between their readings"),
    ("another share of the harness", QUICK, setting("resources", "harness_share", to=0.0), 9, "deep5's share"),
    ("no warning of noise", QUICK, setting("warnings", to=[]), 13, "a warning is missing"),
    ("an edited summary", QUICK, setting("results", 0, "median_s", to=1e-3), 9, "median_s; stored 0.001"),
    ("an undeclared precision", RUN, setting("numerics", "dtype", to="bfloat16"), 2, "has the element type 'bfloat16'"),
    ("another split", SET, in_first(setting("provenance", "split", to="0" * 64)), 12,
     "have one fixed part and different split"),
    # Rule 1.
    ("a longer proof", QUICK, setting("proof", "steps", to=1000), 1, "the stored proof has 1000 steps"),
    ("no proof", QUICK, setting("equivalence", to=[]), 1, "without a proof of its loss at a float64 state"),
    ("a failing row marked passed", QUICK, setting("equivalence", 0, "relative", to=0.5), 1,
     "whether 0.5 is within 1e-09; stored True"),
    ("a loose tolerance", QUICK, setting("equivalence", 0, "allowed", to=0.5), 1, "0.5 is allowed; deep5 allows"),
    ("other weights", QUICK, setting("candidates", 0, "provenance", "initial_weights", to="0" * 64), 1,
     "have different initial weights"),
    ("half a proof", QUICK, comparison(lambda d: d["equivalence"].pop(-2)), 1,
     "without a proof of its gradients at a float64 state"),
    # Rule 2.
    ("no numerics", RUN, setting("numerics", to=None), 2, "does not state its numerics"),
    ("TF32", RUN, setting("numerics", "tf32", to=True), 2, "the run rounds products to TF32"),
    ("TF32 of a candidate", QUICK, setting("candidates", 1, "observed", "tf32", to=True), 2,
     "onnxruntime rounds products to TF32"),
    ("TF32 in secret", QUICK, setting("candidates", 1, "peaks", "product_error", to=1e-3), 2,
     "its product in float32 is off by 0.001"),
    ("another type of a candidate", QUICK, setting("candidates", 1, "observed", "dtype", to="float64"), 2,
     "have different element types"),
    ("low precision inside", QUICK, setting("candidates", 1, "observed", "compute_dtype", to="float16"), 2,
     "computes in 'float16'"),
    ("another precision than declared", RUN, setting("recipe", "mutable", "precision", to="float64"), 2,
     "by the recipe's precision; stored 'float32', recomputed 'float64'"),
    ("no type declared, and a lower one inside", RUN,
     result(lambda d: d["numerics"].update(dtype=None, compute_dtype="bfloat16")), 2, "computes in 'bfloat16'"),
    ("TF32 by another word", RUN, setting("numerics", "tf32", to="yes"), 2, "rounds products to TF32 ('yes')"),
    ("no types at all", QUICK, comparison(lambda d: [put(row, "observed", "dtype", to=None) for row in
     d["candidates"]]), 2, "has the element type None"),
    ("no probe of the products", QUICK, setting("candidates", 1, "peaks", "product_error", to=None), 2,
     "the error of its matrix product is missing"),
    ("no peaks", QUICK, comparison(lambda d: [put(row, "peaks", to=None) for row in d["candidates"]]), 8,
     "its peaks are missing"),
    ("a NaN proof", QUICK, nan_proof, 1, "onnxruntime was timed, and failed the proof in"),
    ("proved on other data", QUICK, setting("candidates", 1, "proved_on", "data", to="0" * 64), 1,
     "onnxruntime was proved on other data than those of the timing"),
    ("more rounds than any comparison runs", RIGOROUS, rows(lambda samples: [s._replace(round=number) for number, s in
     enumerate(samples * 9)]), 8, "samples.csv has "),
    ("the operations of an operator unreported", LEVEL0, operators(lambda row: row.update(flops=None)), 9,
     "gflop_s of MatMul"),
    ("another rate of memory", LEVEL0, operators(lambda row: row.update(gbyte_s=99.0)), 9, "gbyte_s of MatMul"),
    ("another share of the peak", LEVEL0, operators(lambda row: row.update(share_of_peak=0.999)), 9,
     "share_of_peak of MatMul"),
    ("another share of the roofline", LEVEL0, operators(lambda row: row.update(share_of_roofline=0.999)), 9,
     "share_of_roofline of MatMul"),
    ("invented cold times", LEVEL0, operators(lambda row: row.update(cold={"median_s": 1e-6})), 9,
     "the cold times of MatMul"),
    ("other warm-ups", LEVEL0, operators(lambda row: row.update(warm_ups=row["warm_ups"] + 1)), 8,
     "the warm-ups of MatMul"),
    ("a higher peak", LEVEL0, other_peak, 9, "the peak flop_s"),
    ("fewer bytes than the memory can move", LEVEL0, faster_than_memory, 8, "after an eviction of the caches, are"),
    ("a headline that no row has", LEVEL0, cells_of("operator_time", 0.01), 9, "the samples of operator_time"),
    ("a study without its hash", STUDY, study(lambda d: d.pop("hash")), 11, "study.json does not state its hash"),
    ("a study without its seeds", STUDY, study(lambda d: d.pop("seeds")), 11, "study.json does not state its seeds"),
    ("a seed of another fixed part", STUDY, in_run(result(changed_fixed)), 14, ", except the seed"),
    ("a seed of another split", STUDY, in_run(setting("provenance", "split", to="0" * 64)), 12, ": the split of "),
    ("a time to no target", STUDY, setting("target", to=None), 11, "the time to a target; there is no target"),
    ("another type of operators", LEVEL0, setting("numerics", "dtype", to="float16"), 2,
     "stored ['float16'], recomputed ['float32']"),
    # Rule 3.
    ("more threads", QUICK, setting("candidates", 0, "observed", "threads", to=64), 3, "reference has 64 threads"),
    ("other processors", QUICK, setting("candidates", 0, "observed", "affinity", to=[0, 1, 2, 3]), 3,
     "the processors that it ran on"),
    ("more threads of a run", RUN, setting("threads", "framework", to=64), 3, "the run has 64 threads"),
    ("another framework", QUICK, setting("candidates", 0, "observed", "framework", to="onnxruntime"), 3,
     "should run on reference, and ran on onnxruntime"),
    # Rules 4 and 5.
    ("another clock", RUN, setting("measurement", "clock", to="time.time"), 4, "the clock; stored 'time.time'"),
    ("another clock of a comparison", QUICK, setting("measurement", "clock", to="cuda events"), 4,
     "the clock; stored 'cuda events'"),
    ("no scope", RUN, setting("measurement", "scope", to=None), 5, "no scope states what the clock covers"),
    ("no scope of a metric", RUN, metric("step_latency", scope=None), 5, "step_latency is in ms without a scope"),
    ("no scope of a comparison", QUICK, setting("measurement", "scope", to=" "), 5,
     "no scope states what the clock covers"),
    # Rule 6.
    ("no first call", RUN, setting("measurement", "first_call_s", to=None), 6, "the first call is not separate"),
    ("another first call", RUN, setting("measurement", "first_call_s", to=1e-5), 6,
     "the first call, by the first step; stored 1e-05"),
    ("another first call, as resumed", RUN, as_resumed(setting("measurement", "first_call_s", to=1e-5)), 6,
     "the first call, by the first step; stored 1e-05"),
    ("the second step as the first call", RUN, second_as_first, 6, "the first call, by the first step; stored"),
    ("another warm-up than reported", QUICK, rows(other_warm_up), 6, "the stored warm-up has"),
    (
        "half of the samples as warm-up",
        QUICK,
        rows(half_warm),
        6,
        "the stored warm-up has",
    ),
    ("the first call as a sample", QUICK, rows(lambda s: [r for r in s if r.phase != "first"]), 6,
     "0 samples are marked as the first call"),
    ("samples below the clock", QUICK, rows(lambda s: [r._replace(seconds=1e-9) for r in s]), 6,
     "which no clock can resolve"),
    # Rule 7.
    ("quick with many processes", QUICK, setting("measurement", "most_processes", to=30), 7,
     "the mode is quick with up to 30 processes"),
    ("rigorous with one process", QUICK, setting("mode", to="rigorous"), 7, "with at most 2 processes per candidate"),
    ("a run rigorous with one process", LEVEL0, setting("measurement", "mode", to="rigorous"), 7,
     "the mode is rigorous with 1 processes"),
    ("two at a time", QUICK, at_once, 7, "ran at the same time"),
    ("other rules than those of its time", OLD_RIGOROUS, setting("statistics", "scheme", to=2), 7,
     "the rounds after which verdicts are computed"),
    ("older rules", RIGOROUS, comparison(lambda d: d["statistics"].pop("scheme")), 7,
     "the rounds after which verdicts are computed"),
    ("another order under old rules", OLD_RIGOROUS, other_order, 7, "the order is not that of the seed"),
    ("another order", RIGOROUS, other_order, 7, "the order is not that of the seed"),
    ("a whole round ran again", RIGOROUS, broken_off(2, 2), 7, "round 5 was complete, and ran again"),
    ("half a round of another day", RIGOROUS, broken_off(1, 1), 7, "did not run again: its results were not measured"),
    ("a round ran again, unreported", RIGOROUS,
     lambda f: (broken_off(1, 2)(f), comparison(lambda d: d["resumed"].clear())(f)), 7,
     "repeated 1 times between rounds, and the comparison was resumed 0 times"),
    # Rule 8.
    ("no samples", QUICK, lambda folder: (folder / "samples.csv").unlink(), 8, "there is no samples.csv"),
    ("no samples of a run", RUN, lambda folder: (folder / "samples.csv").unlink(), 8, "there is no samples.csv"),
    ("a slow sample dropped", QUICK, rows(slowest_dropped), 8, "samples are missing, duplicated, or out of order"),
    ("a sample twice", QUICK, rows(lambda s: [*s, s[-1]]), 8, "samples are missing, duplicated, or out of order"),
    ("samples sorted", QUICK, rows(lambda s: sorted(s, key=lambda r: (r.process, r.phase, r.seconds))), 8,
     "time decreases"),
    ("a process copied", RIGOROUS, rows(copied), 8, "are bit-identical to those of"),
    ("a NaN sample", QUICK, rows(lambda s: [s[0]._replace(seconds=float("nan")), *s[1:]]), 8,
     "is not positive and finite"),
    ("a step dropped", RUN, cells(lambda r: None if (r["metric"], r["index"]) == ("step_latency", "4") else r), 8,
     "there are 8 samples; stored: 9"),
    (
        "accuracies that the log does not have",
        RUN,
        cells(lambda r: {**r, "value": "99.0"} if r["metric"] == "test_accuracy" else r),
        8,
        "the accuracies are not those of the events",
    ),
    ("times that do not fit", QUICK, scaled(0.5, clock=False), 8, "are not timed"),
    ("slow times that do not fit", QUICK, scaled(3.0, clock=False), 8,
     "its samples took longer than the time between their readings (by 3)"),
    ("longer than the process lived", QUICK, scaled(50.0, clock=True), 8, "and the process took"),
    (
        "steps longer than training",
        RUN,
        cells(lambda r: {**r, "value": "99999.0"} if (r["metric"], r["index"]) == ("step_latency", "3") else r),
        8,
        "took longer than the time between their losses",
    ),
    ("a process without samples", RIGOROUS, rows(lambda s: [r for r in s if r.round != 5]), 8,
     "finished, and its samples are missing"),
    # Rule 9.
    ("a better verdict", QUICK, comparison(lambda d: d["verdicts"][0].update(ratio=0.1, word="faster")), 9,
     "ratio; stored 0.1"),
    ("a narrow interval", QUICK, comparison(lambda d: d["results"][0].update(low_s=d["results"][0]["median_s"])), 9,
     ": low_s; stored"),
    ("another p", RIGOROUS, setting("verdicts", 0, "p", to=1e-6), 9, ": p; stored 1e-06"),
    ("another p under old rules", OLD_RIGOROUS, setting("verdicts", 0, "p", to=1e-6), 9, ": p; stored 1e-06"),
    ("a smaller p of the whole comparison", RIGOROUS, setting("verdicts", 0, "sequential_p", to=1e-6), 9,
     ": sequential_p; stored 1e-06"),
    ("a claim for the whole table", RIGOROUS,
     comparison(lambda d: d["verdicts"][0].update(whole_table=not d["verdicts"][0]["whole_table"])), 9,
     ": whole_table; stored"),
    ("a result twice as good", QUICK, comparison(lambda d: d["results"][0].update(samples_per_s=1e9)), 9,
     "samples_per_s; stored 1000000000.0"),
    ("a result dropped", QUICK, comparison(lambda d: d["results"].pop()), 9,
     "can be computed from the samples, and is not stored"),
    ("another value", RUN, metric("peak_memory", value=1.0), 9, "the value of peak_memory; stored 1.0"),
    ("another latency", RUN, metric("step_latency", value=0.01), 9, "the value of step_latency; stored 0.01"),
    ("another loss", RUN, metric("training_loss", value=0.01), 9, "the value of training_loss; stored 0.01"),
    ("a throughput beyond all epochs", RUN, metric("throughput", value=1e9), 9,
     "the value of throughput is beyond those of all epochs"),
    ("passed without meeting the goal", RUN, metric("test_accuracy", goal={"relation": ">=", "bound": 99.9}), 9,
     "meets the goal >= 99.9; stored True"),
    ("accepted without passing", RUN, setting("accepted", to=False), 9, "whether the run is accepted"),
    ("another mean", STUDY, setting("candidates", "slow", "metrics", "test_accuracy", "mean", to=99.0), 9,
     "the mean of test_accuracy; stored 99.0"),
    ("another operator time", LEVEL0, metric("operator_time", value=1e-6), 9,
     "the value of operator_time; stored 1e-06"),
    # Rule 10.
    ("no calibration", QUICK, setting("calibration", to=None), 10, "no calibration of the machine"),
    ("a verdict under another load", QUICK, loaded, 10, "the floor under the load of other programs; stored 1.0"),
    ("another floor", QUICK, setting("verdicts", 0, "floor", to=1.00001), 10,
     "the noise floor of 2 rounds; stored 1.00001"),
    ("calibrated with other threads", QUICK, setting("calibration", "threads", to=77), 10,
     "the calibration's threads; stored 77"),
    # Rule 11.
    ("a run not listed", STUDY, study(unlisted), 11, "finished, and is not listed"),
    ("two runs not listed, as interrupted", STUDY, as_interrupted(2), 11, "finished, and is not listed"),
    ("two runs not listed, as resumed", STUDY,
     study(lambda d: (resumed_at("2999-01-01T00:00:00Z")(d), unlisted(d), unlisted(d))), 11,
     "finished, and is not listed"),
    ("a run not listed, and resumed before it", STUDY,
     study(lambda d: (resumed_at("2000-01-01T00:00:00Z")(d), unlisted(d))), 11, "finished, and is not listed"),
    ("nine runs not listed, as resumed nine times at the end", STUDY,
     with_more(9, resumed_at(*(f"2999-01-0{n}T00:00:00Z" for n in range(1, 10)))), 11,
     "finished, and is not listed"),
    ("resumed nine times, as a number", STUDY, with_more(9, lambda d: d.update(resumed=9)), 11,
     "resumed in study.json is 9; allowed: a list of times"),
    ("resumed at no time", STUDY, study(resumed_at("yesterday")), 11, "resumed in study.json is not as deep5 writes"),
    ("two failures unreported, as unfinished", STUDY, with_more(2, lambda d: d.update(finished=False), "failed"), 11,
     "2 runs failed, 0 failures are listed"),
    ("a target as the recipe's own", STUDY,
     study(lambda d: d.update(target={"metric": "test_accuracy", "goal": 50.0, "origin": "recipe"})), 11,
     "the target 'test_accuracy' 50.0 is stored as the recipe's; its runs state ["),
    ("a candidate dropped", STUDY, study(lambda d: d["candidates"].pop("fast")), 11,
     "finished, and is not listed"),
    ("a run that is not there", STUDY, lambda f: shutil.rmtree(sorted((f / "runs").iterdir())[0]), 11,
     "is listed, and does not exist"),
    ("a run that failed, as one that ended", STUDY, in_run(failed), 11, "its status is failed"),
    ("a run outside of the study", STUDY, setting("candidates", "fast", "runs", 0, to="../run"), 11,
     "'../run' is listed as a run, and is not a separate folder"),
    ("another seed reported", RUN, setting("seeds", "run", to=5), 11, "the run's seed, by its recipe; stored 5"),
    ("another goal than declared", RUN, metric("wall_clock_time", goal={"relation": "<", "bound": 900.0}), 11,
     "are not those declared before the run"),
    ("a verdict on one that failed", QUICK, setting("candidates", 1, "status", to="failed"), 11,
     "is failed, and has a verdict"),
    ("one that never ran", QUICK, setting("candidates", 1, "status", to="waiting"), 11, "is waiting at the end"),
    ("a repetition with the same seed", SET, same_seed, 11, "are the same run"),
    # Rule 12.
    ("the best epoch", RUN, best_epoch, 12, "that of the best epoch, not the last"),
    ("the last epoch left out", RUN, last_left_out, 12, "is evaluated after 2 epochs"),
    ("the last epoch left out, as stopped", RUN,
     lambda f: (last_left_out(f), result(lambda d: d["reasons"].append("stopped: enough"))(f)), 12, "stop nothing"),
    ("a target that was reached later", RUN, metric("epochs_to_accuracy", value=3.0), 12,
     "the first evaluation that reached 1; stored 3.0"),
    ("another split of a candidate", QUICK, setting("candidates", 0, "provenance", "split", to="0" * 64), 12,
     "have different split"),
    # Rule 13.
    ("a warning taken out", RIGOROUS, noisy, 13, "a warning is missing"),
    # Rule 14.
    ("a fixed part that has another hash", RUN, setting("recipe", "fixed", "epochs", to=300), 14,
     "the recipe's hash; stored"),
    ("another recipe file", RUN, lambda folder: (folder / "recipe.py").write_text("FIXED = {}"), 14,
     "the hash of recipe.py"),
    ("another machine", RUN, setting("system", "before", "cpu", "model", to="Fastest 9000"), 14,
     "the environment's hash"),
    ("another network", RUN, setting("provenance", "network", to="0" * 64), 14,
     "the hash of the network in network.onnx"),
    ("trained weights of another run", RUN, setting("provenance", "trained_weights", to="0" * 64), 14,
     "the hash of weights.safetensors"),
    ("another version", QUICK, setting("software", "packages", "numpy", to="1.0"), 14, "the environment's hash"),
    ("runs of two environments", STUDY, in_run(result(other_environment)), 14, "have 2 environments"),
    ("a resumption elsewhere", RUN, result(resumed), 14, "in another environment"),
    # Two results in one folder; levels and divisions that do not match the contents.
    ("a run that is a comparison, too", RUN, decoy("comparison.json"), 14, "holds result.json and comparison.json"),
    ("a comparison that is a study, too", QUICK, decoy("study.json"), 14, "holds comparison.json and study.json"),
    ("a run of a study that is a comparison, too", STUDY, in_run(decoy("comparison.json")), 14,
     "holds result.json and comparison.json"),
    ("another level", RUN, setting("level", to=0), 14, "the level of a result of training; stored 0"),
    ("a level and no numerics", RUN, result(lambda d: d.update(level=3, numerics=None)), 14,
     "the level of a result of training; stored 3"),
    ("operators as training", LEVEL0, setting("level", to=2), 14, "the level of a result of operators; stored 2"),
    ("parts of two measurements", RUN, setting("recipe", "mutable", "candidate", to="nothing"), 14,
     "the parts of training and of hand-written code"),
    ("a line changed in a recipe of deep5", QUICK, other_line, 14, "recipe.py is not the recipe 'digits_lenet'"),
    ("no environment", RUN, lambda folder: (folder / "environment.json").unlink(), 14, "there is no environment.json"),
    ("no environment, as resumed", RUN, as_resumed(lambda folder: None), 14, "there is no environment-2.json"),
    # Data and split.
    ("an invented split", RUN, setting("provenance", "split", to="0" * 64), 12, "the hash of the split of the run"),
    ("invented data", RUN, setting("provenance", "data", to="0" * 64), 1, "the hash of the data of the run"),
    ("no data", RUN, setting("provenance", "data", to=None), 1, "there is no hash of the run's data"),
    ("other samples described", RUN, described(lambda d: d["samples"].update(train=97)), 12,
     "samples of the train set in dataset.json; stored 97, recomputed 96"),
    ("another split described", RUN, described(lambda d: d.update(split="the easy ones")), 12,
     "the description of the digits in dataset.json"),
    ("nothing described", RUN, lambda folder: (folder / "dataset.json").unlink(), 12, "there is no dataset.json"),
    ("invented weights", QUICK, other_weights, 1, "the hash of the initial weights of reference"),
    # Times scaled together with everything derived from them.
    ("a throughput of a thousand", RUN, cells_of("throughput", 1000.0), 8, "s by the throughput, and"),
    ("a throughput of three", RUN, cells_of("throughput", 3.0), 8, "s by the throughput, and"),
    ("steps of a fiftieth", RUN, fast_steps, 8, "are step time"),
    ("fast steps of some", RUN, some_fast_steps, 8, "times that in another"),
    ("beyond the peak", RUN, cells_of("utilisation", 1e5), 8, "of the machine's measured peak; allowed"),
    ("a clock of a third", RUN, fast_clock, 8, "and its epochs"),
    ("a throughput of a thousand, as resumed", RUN, as_resumed(cells_of("throughput", 1000.0)), 8,
     "s by the throughput, and"),
    ("another throughput, as resumed", RUN, as_resumed(best_throughput), 9, "the value of throughput; stored"),
    ("another latency, as resumed", RUN, as_resumed(metric("step_latency", value=0.01)), 9,
     "the value of step_latency; stored 0.01"),
    ("two at a time, as resumed", QUICK, as_resumed(at_once), 7, "ran at the same time"),
    ("a dropped round, as resumed", RIGOROUS, as_resumed(dropped_round), 11,
     "did not run in round 3, in its turn"),
    ("another order, as resumed", RIGOROUS, as_resumed(other_order), 7, "the order is not that of the seed"),
    # Intervals and values that no measurement gave.
    ("an interval of one reading", RUN, metric("peak_memory", interval=INVENTED), 9, "peak_memory has an interval"),
    ("another interval", RUN, metric("step_latency", interval=INVENTED), 9,
     "the interval of step_latency; stored [1.0, 1.1]"),
    ("an invented confidence", RUN, result(lambda d: d["metrics"][7]["interval"].update(confidence=0.999)), 9,
     "has the confidence 0.999"),
    ("another confidence", QUICK, setting("results", 0, "confidence", to=0.999), 9, "confidence; stored 0.999"),
    ("values of a run that failed", RUN, value_of_a_failed_one, 9, "the value of test_loss; stored"),
    ("a value of a run that failed, without samples", RUN, lambda f: (failed(f), (f / "samples.csv").unlink()), 8,
     "there is no samples.csv"),
    # Links and special files.
    ("a document outside", RUN, link_out("result.json"), 8, "is a link"),
    ("samples outside", RUN, link_out("samples.csv"), 8, "is a link"),
    ("samples of a comparison outside", QUICK, link_out("samples.csv"), 8, "is a link"),
    ("a recipe outside", RUN, link_out("recipe.py"), 14, "is a link"),
    ("a network outside", RUN, link_out("network.onnx"), 14, "is a link"),
    ("a pipe", RUN, pipe("samples.csv"), 8, "samples.csv is not a plain file"),
    ("samples of a study's run as a pipe", STUDY, in_run(pipe("samples.csv")), 8, "samples.csv is not a plain file"),
    ("samples of a study's run that are another's", STUDY, link_in, 8, "is a link"),
    ("a document that is a pipe", RUN, pipe("result.json"), 8, "is not a plain file"),
    ("events that are a pipe", RUN, pipe("events.mllog"), 8, "is not a plain file"),
    ("a recipe that is a pipe", RUN, pipe("recipe.py"), 14, "is not a plain file"),
    ("weights that are a pipe", RUN, pipe("weights.safetensors"), 14, "is not a plain file"),
    ("an environment that is a pipe", RUN, pipe("environment.json"), 14, "is not a plain file"),
    ("a description that is a pipe", RUN, pipe("dataset.json"), 12, "is not a plain file"),
    ("operators that are a pipe", LEVEL0, pipe("operators.json"), 9, "is not a plain file"),
    ("a study that is a pipe", STUDY, pipe("study.json"), 11, "is not a plain file"),
    ("a comparison that is a pipe", QUICK, pipe("comparison.json"), 8, "is not a plain file"),
    ("samples of a comparison that are a pipe", QUICK, pipe("samples.csv"), 8, "is not a plain file"),
    ("no JSON", RUN, lambda f: (f / "result.json").write_text("{" * 10_000), 8, "is truncated or not JSON"),
    ("deep JSON", STUDY, lambda f: (f / "study.json").write_text("[" * 100_000), 11, "it nests deeper than 100"),
    ("a study of nothing", STUDY, lambda f: (f / "study.json").write_text("[]"), 11, "study.json"),
    ("candidates that are none", STUDY, study(lambda d: d.update(candidates={"a": 3})), 11,
     "study.json is not as deep5 writes it"),
    # Settings, and what ran.
    ("a candidate's other rate", QUICK, setting("candidates", 1, "recipe", "optimizer_kwargs", "lr", to=0.1), 14,
     "onnxruntime: the recipe, compared with that of reference with the same settings"),
    ("the baseline's other rate", QUICK, setting("candidates", 0, "recipe", "optimizer_kwargs", "lr", to=0.1), 14,
     "reference: the recipe, compared with the comparison's"),
    ("a setting that did not stand", QUICK, set_of(1, {"optimizer_kwargs.lr": 0.1}), 14,
     "onnxruntime: optimizer_kwargs of its recipe, by its settings; stored {'lr': 0.003}, recomputed {'lr': 0.1}"),
    ("batches of another size", QUICK, comparison(lambda d: [put(row, "recipe", "batch_size", to=32) for row in
     [*d["candidates"], {"recipe": d["recipe"]["mutable"]}]]), 14, "timed with batches of 64; its recipe has 32"),
    ("a seed's other rate", STUDY, other_rate(1), 14, "optimizer_kwargs of its recipe, by its settings"),
    ("a rate of all seeds", STUDY, other_rate(2), 14, "optimizer_kwargs of its recipe, by its settings"),
    ("a seed's other optimizer", STUDY, other_rate(1, recipe=False), 14, "fast: the optimizer of "),
    ("another optimizer of all seeds", STUDY, other_rate(2, recipe=False), 14,
     "the optimizer's lr, by its recipe; stored 0.3, recomputed 0.1"),
    ("a seed of other batches", STUDY, in_run(setting("recipe", "mutable", "batch_size", to=48)), 14,
     ", except the seed"),
    ("no ONNX", RUN, lambda f: (f / "network.onnx").write_bytes(b"\xff" * 100), 14, "it is not ONNX"),
    ("a log that is none", RUN, lambda f: (f / "events.mllog").write_text(":::MLLOG {\n:::MLLOG []\n"), 8,
     "line 1 is damaged"),
    ("settings that are none", QUICK, setting("candidates", 0, "observed", to={"threads": [], "dtype": {}}), 2,
     "is not as deep5 writes it"),
    ("a calibration that is none", QUICK, setting("calibration", to={}), 10,
     "the calibration is not as deep5 writes it"),
    # What the stored data show, each field of which is plausible by itself.
    ("seconds of 97 %", QUICK, scaled(0.97, clock=False), 8, "between two readings"),
    ("seconds of 97 % in all rounds", RIGOROUS, scaled(0.97, clock=False), 8, "between two readings"),
    ("seconds of 103 %", QUICK, scaled(1.03, clock=False), 8, "its samples took longer than the time between"),
    ("another version of the framework", RUN, setting("framework", "version", to="9.9"), 14,
     "and the package numpy has"),
    ("another version of the package", RUN, rehashed(lambda d: d["packages"].update(numpy="1.0")), 14,
     "and the package numpy has the version 1.0"),
    ("another version of a candidate", QUICK, rehashed(lambda d: d["packages"].update(onnxruntime="1.0")), 14,
     "and the package onnxruntime has the version 1.0"),
    ("an accuracy that the test set cannot give", RUN, other_accuracy, 8, "test samples; allowed: an integer"),
    ("a NaN without a warning", RUN, silent_nan, 13, "test_loss is not finite, and no warning reports it"),
    ("initial weights of zero hash", RUN, setting("provenance", "initial_weights", to="0" * 64), 14,
     "which is no hash"),
    ("a batch order of zero hash", RUN, setting("provenance", "batch_order", to="0" * 64), 14, "which is no hash"),
    ("first batches of zero hash", QUICK, setting("candidates", 0, "proved_on", "first_batches", to="0" * 64), 14,
     "which is no hash"),
    ("finished a year later", RUN, setting("finished", to="2027-11-25T21:50:12Z"), 8, "by its dates"),
    ("begun a year before", RUN,
     result(lambda d: d.update(started="2025-11-25T21:50:10Z", finished="2025-11-25T21:50:12Z")), 8, "and its name is"),
    ("a log of a year later", RUN, log_of(365), 8, "and its events is"),
    ("a comparison of a year before", QUICK,
     comparison(lambda d: d.update(started="2025-11-27T13:12:14Z", finished="2025-11-27T13:12:46Z")), 8, "its name is"),
    ("a calibration of a year before", QUICK, setting("calibration", "when", to="2025-11-27T13:11:46Z"), 8,
     "and its calibration is"),
    ("an unknown key", RUN, result(lambda d: d.update(verified=True)), 8, "unknown field"),
    ("an unknown key inside", RUN, result(lambda d: d["measurement"].update(verified=True)), 8, "unknown field"),
    ("an unknown key of a comparison", QUICK, comparison(lambda d: d.update(verified=True)), 8, "unknown field"),
    ("an unknown key of a study", STUDY, study(lambda d: d.update(verified=True)), 11, "study.json states verified"),
    ("an unknown key of a study's candidate", STUDY, study(lambda d: d["candidates"]["fast"].update(rank=1)), 11,
     "candidates.fast states rank"),
    ("a goal removed", RUN, result(without_goal), 11, "the goals are not those of recipe.py"),
    ("a metric with a goal removed", RUN, without_metric, 11, "the goals are not those of recipe.py"),
    ("a label with another framework", QUICK, setting("candidates", 1, "framework", to="pytorch"), 3,
     "should run on pytorch, and ran on onnxruntime"),
    ("labels exchanged", QUICK,
     comparison(lambda d: [row.update(label=other) for row, other in zip(d["candidates"], ("onnxruntime", "reference"),
     strict=True)]), 11, "allowed: the label's"),
    ("one framework's times as another's", QUICK,
     lambda f: (comparison(renamed)(f), rows(lambda s: [r._replace(candidate=r.candidate.replace("onnxruntime",
     "pytorch")) for r in s])(f)), 14, "and the package torch has the version"),
    ("no proof of the loss a step later", QUICK, without_rows("loss a step later"), 1,
     "without a proof of: loss a step"),
    ("no proof of the update", QUICK, without_rows("update on its own gradient"), 1, "without a proof of: update on"),
    ("no proof of a whole step", QUICK, without_rows("update of a whole step"), 1, "without a proof of: update of a"),
    ("no proof of the gradients in float64", QUICK, without_rows("gradients in float64 at a float64 state"), 1,
     "without a proof of: gradients in float64"),
    ("no free training", QUICK, without_rows("losses in float32, free-running"), 1, "without part (d)"),
    ("no free training, and a network with kinks", QUICK,
     lambda f: (without_rows("losses in float32, free-running")(f), setting("proof", "smooth", to=False)(f)), 1,
     "without part (d)"),
    ("a calibration made quiet", QUICK, comparison(lambda d: d["calibration"].update(processes={name: [1.0] * 32 for
     name in d["calibration"]["processes"]})), 10, "the noise floor of 2 rounds"),
    ("a calibration made quiet, with its floors", QUICK, quiet_floor, 13, "noise floor is too narrow"),
    # Fields that others of the same folder determine.
    ("proved on other batches than the other candidate", QUICK,
     setting("candidates", 1, "proved_on", "first_batches", to="0123456789abcdef" * 4), 1,
     "were proved on different first batches"),
    ("a busy machine made quiet", QUICK, comparison(quiet_machine), 13, "what other programs took, by its readings"),
    ("more processors than pinned", QUICK,
     comparison(lambda d: [put(d["processes"][-1]["machine"], when, "processors", to=64) for when in ("before",
     "after")]), 3, "the number of processors, by the measurement"),
    ("a process busier than its processors", QUICK,
     comparison(lambda d: put(d["processes"][-1]["machine"]["after"], "own_s", to=1e6)), 13,
     "allowed: no part above the whole"),
    ("more free memory than there is", QUICK,
     comparison(lambda d: put(d["processes"][-1]["machine"]["after"], "available_bytes", to=10**15)), 8,
     "and no more than the machine's"),
    ("one framework's operators as another's", LEVEL0, operators(lambda r: r.update(framework="pytorch")), 3,
     "the candidate, by its framework"),
    ("operators of another problem", LEVEL0, operators(lambda r: r.update(problem="Conv")), 8,
     "its samples are those of"),
    ("operators of another direction", LEVEL0, operators(lambda r: r.update(direction="backward")), 8,
     "its samples are those of"),
    *((f"no {key} in the events", RUN, no_event(key), 8, "the events") for key in ("init_start", "init_stop",
      "submission_benchmark", "submission_division", "seed", "global_batch_size", "train_samples", "eval_samples",
      "opt_name", "run_start", "epoch_start", "epoch_stop", "eval_start", "eval_stop", "run_stop")),
    ("no learning rate in the events", RUN, no_event("opt_base_learning_rate"), 14, "the learning rate in the events"),
    ("no events at all", RUN, events(lambda e: False), 8, "the events are not those of a run"),
    ("a log twice", RUN, lambda f: (f / "events.mllog").write_text((f / "events.mllog").read_text() * 2), 8,
     "the events name"),
    ("a run that was aborted by its events", RUN,
     events(lambda e: e["metadata"].update(status="aborted") if e["key"] == "run_stop" else None), 11,
     "the run ended as ['aborted'] by its events"),
    ("epochs of one number in the events", RUN,
     events(lambda e: e["metadata"].update(epoch_num=1) if "epoch_num" in e["metadata"] else None), 8,
     "the events are not those of a run"),
    ("an interval of events as a point", RUN,
     events(lambda e: e.update(event_type="POINT_IN_TIME") if e["key"] == "epoch_stop" else None), 8,
     "have the type of others"),
    ("another benchmark in the events", RUN, event("submission_benchmark", "resnet"), 14,
     "the benchmark in the events"),
    ("another division in the events", RUN, event("submission_division", "open"), 14, "the division in the events"),
    ("another optimizer in the events", RUN, event("opt_name", "adam"), 14, "the optimizer in the events"),
    ("another rate in the events", RUN, event("opt_base_learning_rate", 0.1), 14, "the learning rate in the events"),
    ("another batch size in the events", RUN, event("global_batch_size", 64), 14, "the batch size in the events"),
    ("another batch size", RUN, setting("recipe", "mutable", "batch_size", to=64), 14, "the batch size in the events"),
    ("losses of the same step", RUN, in_series("training_loss", step="1"), 8, "training_loss: steps are missing"),
    ("losses of the first epoch", RUN, in_series("training_loss", epoch="0"), 8, "steps are of the first"),
    ("the last losses dropped", RUN, lambda f: (cells(lambda r: None if r["metric"] == "training_loss" and
     int(r["index"]) > 6 else r)(f), metric("training_loss", samples=7)(f)), 8, "have different numbers of samples"),
    ("an accuracy of another step", RUN, in_series("test_accuracy", step="1"), 8, "ended at step"),
    ("an accuracy before its epoch", RUN, cells(lambda r: {**r, "time_s": "1e-6"} if (r["metric"], r["index"]) ==
     ("test_accuracy", "0") else r), 8, "allowed: a time in between"),
    ("a throughput of another step", RUN, in_series("throughput", step="1"), 8, "ended at step"),
    ("a throughput at a time", RUN, in_series("throughput", time_s="0.01"), 8, "allowed: none, since it reads a"),
    ("a clock of other epochs", RUN, in_series("wall_clock_time", epoch="0"), 8, "wall_clock_time: its epochs are"),
    ("steps of a third", RUN, lambda f: fast_steps(f, 0.3), 8, "allowed: at least 50 %"),
    ("no evaluation's first call", RUN, setting("measurement", "evaluation_first_call_s", to=None), 6,
     "the first evaluation is not separate"),
    ("a negative first evaluation", RUN, setting("measurement", "evaluation_first_call_s", to=-1.0), 6,
     "the first evaluation took"),
    ("a long first evaluation", RUN, setting("measurement", "evaluation_first_call_s", to=100.0), 6,
     "the first evaluation took"),
    ("more warm-ups of the evaluation", RUN, result(lambda d: d["measurement"].update(evaluation_warmups=7,
     evaluation_warm_up_s=0.001)), 6, "the warm-ups of the evaluation"),
    ("more warm-ups of the training", RUN, result(lambda d: d["measurement"].update(warmups=3, warm_up_s=0.001)), 6,
     "the warm-ups of the training"),
    ("another fixed part in recipe.py", RUN, edited_recipe, 14, "epochs of the recipe, by FIXED of recipe.py"),
    ("a size that the recipe has not", RUN, setting("recipe", "size", to="smoke"), 14, "the size is 'smoke'"),
    ("a run of another recipe's name", RUN, setting("recipe", "name", to="imagenet"), 14, "the result is named"),
    ("a run of another name", RUN, setting("run_id", to="imagenet-20261127-211403-a5cea9"), 14, "the result is named"),
    ("another framework than the recipe's", RUN, setting("framework", "name", to="onnxruntime"), 3,
     "the framework, by the recipe"),
    ("another framework in the recipe", RUN, setting("recipe", "mutable", "framework", to="pytorch"), 3,
     "the framework, by the recipe"),
    ("an accelerator that the framework has not", RUN, setting("framework", "device", to="cuda:0"), 14,
     "allowed: cpu, the only one that reference has"),
    ("another device than the recipe's", RUN, setting("recipe", "mutable", "device", to="cuda"), 3,
     "is requested; allowed: the requested one"),
    ("a large pool of threads", RUN, result(lambda d: d["threads"].update(pools={"openmp": 640})), 3, "has pools of"),
    ("not deterministic", RUN, setting("numerics", "deterministic", to=False), 2, "the run was not deterministic"),
    ("another optimizer in the recipe", RUN,
     lambda f: (setting("recipe", "mutable", "optimizer", to="adam")(f), event("opt_name", "adam")(f)), 14,
     "the optimizer's rule, by its recipe"),
    ("another rule of the optimizer", RUN, setting("components", "optimizer", "rule", to="Adam"), 14,
     "the optimizer's rule, by its recipe"),
    ("another kernel of the optimizer", RUN, setting("components", "optimizer", "kernel", to="cuda"), 14,
     "the optimizer's kernel is 'cuda'"),
    ("a negative rate", RUN, result(lambda d: (put(d, "recipe", "mutable", "optimizer_kwargs", to={"lr": -0.5}),
     put(d, "components", "optimizer", "lr", to=-0.5))), 14, "the optimizer's lr is -0.5"),
    ("a default that another rate replaced", RUN, result(lambda d: d["recipe"]["mutable"].pop("optimizer_kwargs")), 14,
     "the optimizer's lr, which its recipe does not give"),
    ("more processor time than there was", RUN, setting("resources", "cpu_time_s", to=1000.0), 8,
     "allowed: no more than they have"),
    ("no processor time", RUN, setting("resources", "cpu_time_s", to=0.0), 8, "the run used 0 s"),
    ("a negative set-up", RUN, setting("resources", "set_up_s", to=-5.0), 8, "the set-up took -5.0 s"),
    ("more load than there is", RUN, result(lambda d: d["resources"].update(others_share=3.0)), 8,
     "other programs took 3.0 of the processors"),
    ("another host at the end", RUN, setting("system", "after", "host", to="elsewhere"), 14, "the host after"),
    ("another vendor at the end", RUN, setting("system", "after", "cpu", "vendor", to="Intel"), 14, "vendor before"),
    ("more free memory than memory", RUN, setting("system", "before", "memory_bytes", "available", to=10**15), 8,
     "allowed: parts no larger than the whole"),
    ("a processor twice", RUN, setting("system", "after", "affinity", to=[1, 1]), 8, "allowed: parts no larger than"),
    ("a slower throughput as the better one", RUN, metric("throughput", direction="lower"), 9,
     "throughput: the better direction"),
    ("a higher loss as the better one", RUN, metric("training_loss", direction="higher"), 9,
     "training_loss: the better direction"),
    ("a scope that says nothing", RUN, metric("step_latency", scope="-"), 5, "allowed: what is on the clock"),
    ("a reason for the absence of a value that is there", RUN, metric("test_accuracy", missing="not measured"), 9,
     "has a value, and a reason for its absence"),
    ("milliseconds as microseconds", RUN,
     lambda f: (cells(lambda r: {**r, "unit": r["unit"].replace("ms", "us")})(f), metric("step_latency", unit="us")(f)),
     9, "step_latency: its unit"),
    ("a target in the other direction", STUDY, study(lambda d: d["target"].update(relation="<=")), 11,
     "the relation and the unit of the target"),
    ("another schema version of a study", STUDY, study(lambda d: d.update(schema_version="2x")), 11,
     "the schema version of study.json; stored '2x'"),
    ("the loss of another output", RUN, metric("training_loss", parameters={"output": "other"}), 11,
     "training_loss: its parameters, as declared"),
    ("another target as declared", RUN, result(lambda d: put(d["recipe"]["metrics"][4], "target", to=90.0)), 11,
     "time_to_accuracy: its parameters, as declared"),
    ("negative losses", RUN, lambda f: (cells(lambda r: {**r, "value": "-" + r["value"]} if r["metric"] == "test_loss"
     else r)(f), result(lambda d: d["metrics"][1].update(value=-d["metrics"][1]["value"]))(f)), 8,
     "allowed: at least 0, a cross-entropy"),
    ("checkpoints in no time", RUN, result(lambda d: d["checkpoints"].update(written=1)), 8, "else more"),
    ("many checkpoints without a request", RUN, result(lambda d: d["checkpoints"].update(written=9, seconds=0.1)),
     8, "checkpoints were written in"),
    ("checkpoints longer than the run", RUN, result(lambda d: d["checkpoints"].update(written=1, seconds=1e4)), 8,
     "1 checkpoints took"),
    ("caches of a training", RUN, setting("measurement", "cache_state", to="cold"), 4, "loops, order and caches"),
    ("more threads than processors, unreported", RUN, result(lambda d: (d["resources"].update(others_share=0.0),
     d["system"]["before"].update(affinity=[0]), d["threads"].update(asked=3, framework=3))), 13,
     "allowed: a warning that says so"),
    ("a comparison of another name", QUICK, setting("run_id", to="imagenet-compare-20261127-211403-a5cea9"), 14,
     "the result is named"),
    ("another fixed part in recipe.py, compared", QUICK, edited_recipe, 14, "epochs of the recipe, by FIXED of"),
    ("no metrics", QUICK, setting("recipe", "metrics", to=[]), 11, "the metrics are not those of recipe.py"),
    ("another framework of the baseline's recipe", QUICK, setting("recipe", "mutable", "framework", to="jax"), 14,
     "the comparison's recipe, by the baseline's"),
    ("another framework of a candidate's recipe", QUICK, setting("candidates", 1, "recipe", "framework", to="jax"), 3,
     "the framework of its recipe"),
    ("another host at the end of a comparison", QUICK, setting("system", "after", "host", to="elsewhere"), 14,
     "the host after"),
    ("a scope of a comparison that says nothing", QUICK, setting("measurement", "scope", to="-"), 5,
     "the scope is '-'"),
    ("an order that is none", QUICK, setting("measurement", "order", to="sorted"), 7, "the order is 'sorted'"),
    ("another confidence of all intervals", QUICK, setting("statistics", "confidence", to=0.5), 9, "the confidence of"),
    ("a process without memory", QUICK, setting("processes", 0, "memory_bytes", to=0), 8, "its limits are"),
    ("a limit that nothing meets", QUICK, setting("measurement", "memory_limit_bytes", to=10**6), 8,
     "processes may take"),
    ("a time limit of one second", QUICK, setting("measurement", "time_limit_s", to=1.0), 8, "its limits are"),
    ("a set-up longer than the process", QUICK, setting("processes", -1, "set_up_s", to=1e4), 8, "its set-up took"),
    ("a candidate of less memory", QUICK, setting("candidates", 0, "memory_bytes", to=1), 8, "by its processes"),
    ("a process of no candidate", QUICK, setting("processes", 0, "candidate", to="reference"), 11,
     "there is no such candidate"),
    ("a peak that no processor has", QUICK, setting("candidates", 1, "peaks", "product_flop_s", to=1e16), 8,
     "product_flop_s is 1e+16"),
    ("a copy that no processor makes", QUICK, setting("candidates", 1, "peaks", "copy_byte_s", to=1e16), 8,
     "copy_byte_s is 1e+16"),
    ("an exact product in float32", QUICK, setting("candidates", 1, "peaks", "product_error", to=0.0), 2,
     "is exact, which none is"),
    ("a calibration of another machine", QUICK, setting("calibration", "machine", to="0123456789abcdef"), 10,
     "the calibration's machine"),
    ("a calibration of another version", QUICK, setting("calibration", "version", to=1), 10, "the version of the cal"),
    ("a reason against a candidate that was timed", QUICK, setting("candidates", 1, "reason", to="slow"), 11,
     "is timed, with a reason against it"),
    ("another workload", QUICK, setting("workloads", 0, "workload", to="inference"), 8, "the workloads are inference"),
    ("a proof of another workload", QUICK, setting("equivalence", 1, "workload", to="inference"), 1,
     "allowed: of a candidate, and the whole"),
    ("no ulps", QUICK, comparison(lambda d: [row.update(ulps=0.0) for row in d["equivalence"]]), 1, "is 0 ulps"),
    ("ulps of a billion", QUICK, comparison(lambda d: [row.update(ulps=1e12) for row in d["equivalence"] if
     row["what"] == "loss at a float64 state"]), 1, "is 1e+12 ulps"),
    ("ulps without a difference", QUICK, comparison(lambda d: [row.update(relative=0.0) for row in d["equivalence"] if
     row["what"] == "loss at a float64 state"]), 1, "no relative difference, and"),
    ("an exact proof", QUICK, comparison(lambda d: [row.update(relative=0.0, ulps=0.0) for row in d["equivalence"]]), 1,
     "no number in float32 differs"),
    ("kinks of a smooth network", QUICK, setting("proof", "smooth", to=False), 1, "allowed: only of a smooth network"),
    ("a large pool of a candidate", QUICK, setting("candidates", 1, "observed", "pools", to={"openblas": 640}), 3,
     "has pools of"),
    ("no pools of a candidate", QUICK, setting("candidates", 1, "observed", "pools", to={}), 3,
     "states no pool of openblas"),
    ("no threads of a candidate", QUICK, comparison(lambda d: d["candidates"][1]["observed"].pop("threads")), 3,
     "does not state threads"),
    ("a candidate that was not deterministic", QUICK, setting("candidates", 1, "observed", "deterministic", to=False),
     2, "was not deterministic"),
    ("threads that spin", QUICK, setting("candidates", 1, "observed", "spinning", to=True), 3, "its threads spin"),
    ("another provider", QUICK, setting("candidates", 1, "observed", "provider", to="CUDAExecutionProvider"), 3,
     "ran on 'CUDAExecutionProvider' and the device cpu"),
    ("another device of a candidate", QUICK, setting("candidates", 1, "observed", "device", to="cuda:0"), 3,
     "is requested; allowed: the requested one"),
    ("more training samples of a candidate", QUICK, setting("candidates", 1, "observed", "train_samples", to=10**6), 12,
     "its training samples, compared with"),
    ("another learning rate of a candidate", QUICK,
     setting("candidates", 1, "observed", "optimizer", to={"rule": "Adam", "lr": 0.5}), 14,
     "the optimizer of onnxruntime's lr, by its recipe"),
    ("another optimizer of a study's candidate", STUDY,
     study(lambda d: d["candidates"]["slow"].update(optimizer={"rule": "Adam", "lr": 0.5})), 14, "slow: its optimizer"),
    ("operators of other sizes", LEVEL0, operators(lambda r: r.update(title="512x512, 512x512")), 14, "the sizes of"),
    ("a plan of other sizes", LEVEL0, setting("components", "plan", "shapes", to=[[8, 8], [8, 8]]), 14,
     "shapes of the plan, by the recipe"),
    ("a plan of other frameworks", LEVEL0, setting("components", "plan", "frameworks", to=["pytorch"]), 14,
     "frameworks of the plan, by the recipe"),
    ("a rigorous plan", LEVEL0, setting("components", "plan", "mode", to="rigorous"), 7, "the mode of the plan"),
    ("peaks of more threads", LEVEL0, of_operators("roofline", "threads", to=64), 3, "the threads of the peaks"),
    ("operators of more threads", LEVEL0, of_settings(threads=64), 3, "has 64 threads; allowed: the plan's 1"),
    ("operators of another version", LEVEL0, of_settings(version="9.9"), 14, "and the package numpy has"),
    ("operators of another device", LEVEL0, of_settings(device="cuda:0"), 3, "allowed: the requested one"),
    ("operators that were not deterministic", LEVEL0, of_settings(deterministic=False), 2, "was not deterministic"),
    ("a coarse clock", LEVEL0, of_operators("processes", 0, "resolution_s", to=1.0), 4, "the clock resolves 1 s"),
    ("a slow loop", LEVEL0, of_operators("processes", 0, "overhead_s", to=1e-4), 13, "a warning is missing: loop"),
    ("another number of a process", LEVEL0, of_operators("processes", 0, "process", to=1), 8, "the numbers of the"),
    ("warnings of a row taken out", LEVEL0, operators(lambda r: r.update(warnings=[])), 13,
     "a warning is missing: interval"),
    ("a long first call of an operator", LEVEL0, operators(lambda r: r.update(first_call_s=1e4)), 6, "its first call"),
    ("an operator in no time", LEVEL0, operators(lambda r: r.update(spent_s=0.0)), 8, "its part of the run 0 s"),
    ("more calls of an operator", LEVEL0, operators(lambda r: r.update(calls=10**6)), 8, "allowed: no part longer"),
    ("an operator with more memory than there is", LEVEL0, operators(lambda r: r.update(memory_bytes=10**15)), 8,
     "and no more than there are"),
    ("a loop at twice its speed, except for its events", RECORDED, faster_loop, 8, "by its events"),
    ("a faster throughput of a loop", RECORDED, cells_of("throughput", 1.5), 8, "by steps and epochs"),
    ("another throughput of a loop than its samples'", RECORDED, metric("throughput", value=1e9), 9,
     "by steps and epochs"),
    ("larger batches of a loop", RECORDED, in_series("batch_size", value="64.0"), 8, "by steps and epochs"),
    ("shorter steps of a loop", RECORDED, in_series("time[step]", value="1e-05"), 8, "the regions of step 0 took"),
    ("shorter epochs of a loop", RECORDED, in_series("time[epoch]", value="0.0001"), 8, "and its steps"),
    ("longer evaluations of a loop", RECORDED, in_series("time[evaluation]", value="5.0"), 8, "by the wall-clock time"),
    ("a longer region", RECORDED, in_series("time[forward]", value="1.0"), 8, "the regions of step 0 took 1"),
    ("a longer region between steps", RECORDED, in_series("time[evaluation: forward]", value="1.0"), 8,
     "the regions of the evaluation"),
    ("a loop without its breakdown", RECORDED, lambda f: (f / "time_breakdown.csv").unlink(), 9, "there is no time_br"),
    ("another breakdown of a loop", RECORDED, lambda f: (f / "time_breakdown.csv").write_text(
     (f / "time_breakdown.csv").read_text().replace("steps: backward,", "steps: backward,1")), 9, "steps: backward in"),
    ("a lower loss of a loop", RECORDED, metric("training_loss", value=0.01), 9, "the value of training_loss"),
    ("a lower latency of a loop", RECORDED, metric("step_latency", value=0.01), 9, "the value of step_latency"),
    ("another first step of a loop", RECORDED, setting("measurement", "warmups", to=0), 6, "the first steps of other"),
    ("a step of a loop dropped", RECORDED, cells(lambda r: None if (r["metric"], r["index"]) == ("time[step]",
     "3") else r),
     8, "time[step]: samples are missing"),
    ("invented seeds of a loop", RECORDED, setting("seeds", to={"run": 1}), 11, "the seeds of a recorded loop"),
    ("invented data of a loop", RECORDED, setting("provenance", "data", to="ab12cd34ef56" * 5 + "abcd"), 14,
     "has the parts of training and of a recorded loop"),
    ("an optimizer of a loop", RECORDED, setting("components", to={"optimizer": {}}), 14,
     "which a recorder cannot know"),
    ("settings of a loop", RECORDED, setting("recipe", "mutable", to={"lr": 0.1}), 14,
     "the mutable part of a recorded"),
    ("a closed loop", RECORDED, setting("recipe", "division", to="closed"), 14, "the division of a recorded"),
    ("nothing unknown of a loop", RECORDED, setting("recorded", "unknown", to=[]), 14, "cannot know has seeds"),
    ("a loop as a run of deep5", RECORDED, result(lambda d: d.pop("recorded")), 14, "there is no network.onnx"),
    ("a run of deep5 as a loop", RUN, setting("recorded", to={"loop": "hand-written", "unknown": []}), 14,
     "has the parts of training and of a recorded loop"),
    ("a loop of two ranks", RECORDED, setting("ranks", to=2), 14, "the number of ranks of a recorded loop"),
    ("TF32 of a loop on the host", RECORDED, setting("numerics", "tf32", to=True), 2, "no TF32, and deterministic"),
    ("another framework of a loop", RECORDED, setting("framework", "name", to="torch"), 3, "one that deep5 knows"),
    ("another accuracy of a loop", RECORDED, in_series("test_accuracy", value="99.0"), 8,
     "are not those of the events"),
    ("an evaluation of a loop dropped from its events", RECORDED, no_event("eval_start"), 8,
     "the events of the recording"),
    ("more processes of an operator", LEVEL0, operators(lambda r: r.update(processes=3)), 8, "by its series"),
    ("the hash of the samples taken out", RUN, result(lambda d: d["files"].pop("samples.csv")), 8,
     "no hash of samples.csv is stored"),
    ("the hash of a file outside", RUN, result(lambda d: d["files"].update({"../run/result.json": "0" * 64})), 8,
     "leads out of"),
]  # fmt: skip
"""Name, kind of result, change, rule and words of the finding; the new hashes of changed raw files are stored, too."""

LATER: list[tuple[str, str, Doctor, str, str]] = [
    ("another training loss at a middle step", RUN, lines_of(loss_changed), "samples.csv", "changed"),
    ("a training loss removed", RUN, lines_of(loss_removed), "samples.csv", "changed"),
    ("a training loss added", RUN, lines_of(loss_repeated), "samples.csv", "changed"),
    ("two training losses swapped", RUN, lines_of(losses_swapped), "samples.csv", "changed"),
    ("two events swapped", RUN, lines_of(lambda text: [*text[:-2], *text[:-3:-1]], "events.mllog"), "events.mllog",
     "changed"),
    ("no description of the data", RUN, lambda f: (f / "dataset.json").unlink(), "dataset.json", "missing"),
    ("another training loss of a loop", RECORDED, lines_of(loss_changed), "samples.csv", "changed"),
    ("another training loss of a run of a study", STUDY, in_run(lines_of(loss_changed)), "samples.csv", "changed"),
    ("a digit of one of many times", QUICK, lines_of(digit_changed), "samples.csv", "changed"),
    ("a digit of one of many times of an operator", LEVEL0, lines_of(digit_changed), "samples.csv", "changed"),
    ("another use of an operator", LEVEL0, lines_of(lambda text: [line.replace('"use": "', '"use": "x') for line in
     text], "operators.json"), "operators.json", "changed"),
]  # fmt: skip
"""Name, kind of result, change after the run without new hashes, the file that the finding names, and its word."""

UNSEEN: list[tuple[str, str, Doctor, str]] = [
    ("all times of a candidate scaled together: samples, readings, and all that follows", QUICK,
     scaled(0.97, clock=True), "nothing else depends on them"),
    ("the throughput of a run raised by 3 %, with all that follows", RUN, cells_of("throughput", 1 / 0.97),
     "on a busy machine, events and samples may differ by a quarter"),
    ("the steps of a run at 90 %, with all that follows", RUN, lambda f: fast_steps(f, 0.9),
     "data and events may take a part of the time between two steps"),
    ("a few of many samples", QUICK, rows(slower_slowest), "no median moves"),
    ("the training loss of a middle step", RUN, lines_of(loss_changed), "nothing else depends on it"),
]  # fmt: skip
"""Name, kind of result, change, and why a folder cannot show it."""

_KINDS = {
    RUN: "run", SET: "runs", STUDY: "study", QUICK: "comparison, quick", RIGOROUS: "comparison, rigorous",
    OLD_RIGOROUS: "comparison of the first scheme", LEVEL0: "operators", RECORDED: "recorded loop",
}  # fmt: skip
_STATUS = {
    "failed": "the candidate fails, and has no verdict",
    "different": "the proof fails: it is not timed",
}
_PAGE = """# Cheats, and what finds them

Each row is a result that deep5 made, changed as a cheat would change it. `tests/audit/test_audit.py` changes them anew
and requires the finding; the same folders pass unchanged. Generated by `python tests/support/doctored.py
docs/results/red_team.md`. [measurement.md](../explanation/measurement.md) explains the rules.

## Caught by `deep5 audit`

{count} of {count}.

| change | result | rule |
|---|---|---:|
{rows}

These changes include the new hashes of raw files in `result.json` or `comparison.json`: the rules find them without
those hashes.

## Raw files that were changed after the run

{later} of {later}. The hashes that the end of the run stored stay as they were.

| change | result | file | rule |
|---|---|---|---:|
{changed}

## Caught by `deep5 compare` while it measures

{live} of {live}. Each row is a framework, registered as a user's would be. It computes the right results in the proof,
except for the one of zeros, and cheats while it is timed. `tests/compare/test_live_cheats.py` runs them all by the
command.

| cheat | compared | outcome | reason, in part |
|---|---|---|---|
{cheats}

A framework runs in the process that times it. One that recognizes each of these checks, and behaves well during them,
cannot be excluded. Results therefore state the versions of all packages, so that a doubtful one can be measured again.

## What a folder cannot show

These changes have no finding if the new hashes of raw files are stored, too. [A
signature](../how_to/results.md#signatures) makes later changes visible.

| change | result | why |
|---|---|---|
{unseen}

### Single fields

`tests/audit/test_audit_fields.py` changes each field of these documents by itself. These changes have no finding,
those of `operators.json` if its new hash is stored, too:

| document | field | why |
|---|---|---|
{unchecked}
"""


def main(path: Path) -> None:
    """Write the page."""
    path.write_text(page(), encoding="utf-8")


def page() -> str:
    """The table of the docs."""
    rows = [
        f"| {name} | {_KINDS[kind]} | {rule} |" for name, kind, _, rule, _ in sorted(CORPUS, key=lambda row: row[3])
    ]
    unseen = [f"| {name} | {_KINDS[kind]} | {why} |" for name, kind, _, why in UNSEEN]
    unchecked = [
        f"| {name}, {_KINDS[kind]} | `{field}` | {why} |"
        for (kind, name), fields in UNCHECKED.items()
        for field, why in fields.items()
    ]
    cheats = [f"| {cheat.what} | {cheat.kind} | {_STATUS[cheat.status]} | {cheat.said} |" for cheat in LIVE]
    return _PAGE.format(
        count=len(CORPUS),
        rows="\n".join(rows),
        later=len(LATER),
        changed="\n".join(f"| {name} | {_KINDS[kind]} | `{file}` | 8 |" for name, kind, _, file, _ in LATER),
        unseen="\n".join(unseen),
        live=len(LIVE),
        cheats="\n".join(cheats),
        unchecked="\n".join(unchecked),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
