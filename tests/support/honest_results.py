"""The honest folders that the tests of `deep5 audit` start from: one per kind of result, made by deep5.

They are committed in `tests/audit/honest`, without large pictures and the digits recipe, which tests add;
`python tests/support/honest_results.py` makes them again, except for the old ones.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deep5.measuring.calibration
from deep5.compare.driver import run_comparison
from deep5.measuring.calibration import Calibration
from deep5.measuring.environment import default_threads
from deep5.measuring.scheme import CURRENT
from deep5.recipe.recipe import load_recipe
from deep5.results.comparison_summary import results_of, verdicts_of
from deep5.results.comparison_warnings import warnings_in
from deep5.results.round_samples import RoundSample, order_of_round, read_round_samples, round_samples_text
from deep5.run.execute import execute
from deep5.study.study import run_study
from recorded_loops import loop

RECIPE = """
import deep5 as d5

FIXED = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 96}, "epochs": 3}
MUTABLE = {"batch_size": 32, "optimizer": "sgd", "optimizer_kwargs": {"lr": 0.05}, "framework": "reference", "seed": 0}
METRICS = [
    (d5.TestAccuracy(), ">= 1 %"),
    (d5.TestLoss(), None),
    (d5.TrainingLoss(), None),
    (d5.WallClockTime(), "< 600 s"),
    (d5.TimeToAccuracy(1), None),
    (d5.EpochsToAccuracy(1), None),
    (d5.Throughput(), None),
    (d5.StepLatency(), None),
    (d5.PeakMemory(), None),
    (d5.Utilisation(), None),
]
"""
PRODUCT = """
import deep5 as d5

FIXED = {"operator": "MatMul", "shapes": [[64, 64], [64, 64]]}
MUTABLE = {"frameworks": "reference", "threads": 1, "rounds": 8, "pictures": False}
METRICS = [(d5.OperatorTime(), None), (d5.OperatorCoverage(), None)]
"""
RUN, SET, STUDY, QUICK, RIGOROUS, LEVEL0 = "run", "set", "study", "quick", "rigorous", "level0"
RECORDED = "recorded"
# Comparisons under the first scheme, made by an earlier deep5.
OLD_QUICK, OLD_RIGOROUS = "old_quick", "old_rigorous"
HONEST = Path(__file__).parents[1] / "audit" / "honest"


_ROUNDS = CURRENT.looks[0]
# Some cheats write larger files, which no audit reads.
_LARGE_BYTES = 2**28


def make(out: Path) -> None:
    """Make a folder of each kind below `out`, with a separate cache."""
    kept = os.environ.get("DEEP5_CACHE")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["DEEP5_CACHE"] = str(Path(scratch, "cache"))
        try:
            _make(out, Path(scratch))
        finally:
            if kept is None:
                del os.environ["DEEP5_CACHE"]
            else:
                os.environ["DEEP5_CACHE"] = kept


def _make(out: Path, scratch: Path) -> None:
    made = Calibration(
        machine=deep5.measuring.calibration.machine_id(),
        threads=default_threads("") or 1,
        processes={"matrix product": tuple(1 + 0.001 * (number % 7) for number in range(32))},
        when=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        others_share=1.0,  # as while these tests run
    )
    path = deep5.measuring.calibration._file(made.machine, made.threads)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made.document()))
    file, product = scratch / "small.py", scratch / "product.py"
    file.write_text(RECIPE)
    product.write_text(PRODUCT)
    recipe = load_recipe(file)
    shutil.move(execute(recipe, out=scratch / "runs", quiet=True).folder, out / RUN)
    execute(recipe.with_settings({"seed": 1}), out=out / SET, quiet=True)
    execute(recipe.with_settings({"seed": 2}), out=out / SET, quiet=True)
    settings = {"slow": {"optimizer_kwargs": {"lr": 0.01}}, "fast": {"optimizer_kwargs": {"lr": 0.1}}}
    shutil.move(run_study(file, settings, seeds=(0, 1), out=scratch / "studies").folder, out / STUDY)
    options: dict[str, Any] = {"frameworks": ["reference", "onnxruntime"], "size": "smoke", "steps": 6}
    shutil.move(run_comparison("digits_lenet", out=scratch / "c", **options).folder, out / QUICK)
    (out / RIGOROUS).mkdir()
    many_rounds(out / QUICK, out / RIGOROUS)
    shutil.move(execute(load_recipe(product), out=scratch / "operators", quiet=True).folder, out / LEVEL0)
    import torch

    shutil.move(loop(scratch / "loops", number=torch.tensor).folder, out / RECORDED)
    path.unlink()


def many_rounds(one: Path, path: Path) -> None:
    """The rigorous form of the quick comparison, with two processes per candidate, derived as deep5 derives it."""
    document = json.loads((one / "comparison.json").read_text())
    samples = read_round_samples(one / "samples.csv")
    processes = [row for row in document["processes"] if row["job"] != "time"]
    timed = {row["candidate"]: row for row in document["processes"] if row["round"] == 0}
    labels, made = [row["label"] for row in document["candidates"]], list[RoundSample]()
    begin = max(row["begin_s"] + row["wall_s"] for row in document["processes"]) + 1
    for number in range(_ROUNDS):
        for place in order_of_round(document["seed"], number, len(labels), reverses=False):
            own = timed[labels[place]]
            factor = 1 + 1e-6 * len(processes)
            processes.append({**own, "round": number, "begin_s": begin, "wall_s": own["wall_s"] * factor + 0.1})
            begin += processes[-1]["wall_s"] + 0.1
            made += [
                sample._replace(
                    round=number,
                    process=len(processes) - 1,
                    seconds=sample.seconds * factor,
                    time_s=sample.time_s * factor,
                )
                for sample in samples
                if sample.candidate == labels[place] and sample.round == 0
            ]
    ended = datetime.fromisoformat(document["started"]) + timedelta(seconds=begin)
    document |= {"mode": "rigorous", "processes": processes, "finished": f"{ended:%Y-%m-%dT%H:%M:%SZ}"}
    document["measurement"]["most_processes"] = _ROUNDS
    lived = sum(row["wall_s"] for row in processes)
    own = begin - lived
    document["resources"] |= {"wall_s": begin, "processes_s": lived, "harness_s": own, "harness_share": own / begin}
    for row in document["candidates"]:
        row["memory_bytes"] = timed[row["label"]]["memory_bytes"]  # of the process that all rounds repeat
    told = document["calibration"]
    calibration = Calibration(
        machine="", threads=1, processes={k: tuple(v) for k, v in told["processes"].items()}, when=""
    )
    sizes = {(row["workload"], row["candidate"]): row["batch_size"] for row in document["results"]}
    document["results"] = results_of(made, sizes)
    document["verdicts"] = verdicts_of(made, document["baseline"], {_ROUNDS: calibration.floor(_ROUNDS)})
    document["warnings"] = warnings_in(document, made)
    shutil.copy(one / "recipe.py", path / "recipe.py")
    (path / "comparison.json").write_text(json.dumps(document))
    (path / "samples.csv").write_text(round_samples_text(made))
    hashed_anew(path)


def hashed_anew(folder: Path) -> None:
    """Store the hashes that the raw files of all results below a folder have now; those of missing and huge ones go."""
    for path in (*folder.rglob("result.json"), *folder.rglob("comparison.json")):
        if not path.is_file():  # some cheats make it a pipe
            continue
        with suppress(ValueError):  # or no JSON
            document = json.loads(path.read_text())
            own = {name: path.parent / name for name in document.get("files", ())}
            now = {name: _hash(file) for name, file in own.items() if file.is_file() and _is_small(file)}
            if now != document.get("files", {}):
                path.write_text(json.dumps({**document, "files": now}))


def _hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _is_small(file: Path) -> bool:
    return file.stat().st_size < _LARGE_BYTES


if __name__ == "__main__":
    for made in (RUN, SET, STUDY, QUICK, RIGOROUS, LEVEL0, RECORDED):
        shutil.rmtree(HONEST / made, ignore_errors=True)
    make(HONEST)
    for file in (*HONEST.glob("study/*.html"), *HONEST.glob("study/*.png"), HONEST / QUICK / "recipe.py"):
        file.unlink()
    (HONEST / RIGOROUS / "recipe.py").unlink()
