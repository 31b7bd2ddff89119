"""Folders for the tests of the report: valid ones, made by the project's own functions, and hostile ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

import deep5 as d5
from deep5.core.metric import Sample
from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import STATED
from deep5.results.comparison import COMPARISON_VERSION, comparison_schema
from deep5.results.comparison_summary import results_of, verdicts_of
from deep5.results.comparison_warnings import warnings_of
from deep5.results.folder import ResultFolder
from deep5.results.kind import COMPARISON
from deep5.results.ranks_file import rank_samples
from deep5.results.round_samples import RoundSample, round_samples_text
from deep5.results.samples_file import sample_rows, samples_text
from deep5.results.schema import blank_document, metric_row
from deep5.results.validation import check_document, encode

HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=2">'
"""A name that would run code in a page that does not escape it."""

SYSTEM: dict[str, Any] = {
    "host": "machine",
    "cpu": {
        "model": "Some Processor", "vendor": "somebody", "architecture": "x86_64", "physical_cores": 2,
        "logical_cores": 2, "clock_mhz": 2600.0,
    },
    "affinity": [0, 1],
    "memory_bytes": {"total": 16 * 2**30, "available": 12 * 2**30},
    "load_average": [0.1, 0.1, 0.1],
    "accelerators": [],
    "accelerators_error": None,
}  # fmt: skip
SOFTWARE: dict[str, Any] = {
    "python": "3.11.7", "implementation": "CPython", "platform": "Linux", "deep5": "0.1.0",
    "packages": {"numpy": "2.4.6"}, "package_count": 1, "package_list_hash": "0" * 64, "environment_variables": {},
    "commit": None,
}  # fmt: skip
RECIPE: dict[str, Any] = {
    "name": "demo", "hash": "a" * 64, "fixed": {"model": "lenet"}, "mutable": {"framework": "reference", "lr": 0.1},
    "metrics": [], "size": "full", "division": "closed",
}  # fmt: skip


def samples_of(labels: list[str], workloads: list[str], rounds: int, each: int = 12) -> list[RoundSample]:
    """Samples in which every candidate takes 1.5 times as long as the previous one; every second round is reversed."""
    draw, found, process = np.random.default_rng(0), [], 0
    for number in range(rounds):
        for place, label in list(enumerate(labels))[:: -1 if number % 2 else 1]:
            for width, workload in enumerate(workloads):
                base = 1e-3 * 1.5**place * (width + 1)
                key = label, workload, number, process
                found.append(RoundSample(*key, "first", 0, 20 * base, 1, 0.0))
                for index in range(each):
                    phase = "warm-up" if index < 2 else "steady"
                    seconds = float(base * draw.lognormal(0, 0.01))
                    found.append(RoundSample(*key, phase, index, seconds, 1, 0.01 * index))
            process += 1
    return found


def processes_of(samples: list[RoundSample]) -> list[dict[str, Any]]:
    """A row per process, in the order in which they ran."""
    found: dict[int, dict[str, Any]] = {}
    for sample in samples:
        found[sample.process] = {
            "candidate": sample.candidate, "job": "time", "round": sample.round, "begin_s": 2.0 * sample.process,
            "wall_s": 1.5, "memory_bytes": 2**29, "reason": None, "machine": None, "set_up_s": 0.5, "unsettled": [],
        }  # fmt: skip
    return list(found.values())


def observed(label: str, **changes: Any) -> dict[str, Any]:
    return {
        "framework": label, "version": "1.0", "device": "cpu", "threads": 2, "dtype": "float32", "tf32": False,
        "deterministic": True, "pools": {"openmp": 2}, "affinity": [0, 1], **changes,
    }  # fmt: skip


def filled(value: Any, rule: dict[str, Any], root: dict[str, Any]) -> Any:
    """A document with the parts that its schema requires and the report does not read, as empty as possible."""
    if "$ref" in rule:
        return filled(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root)
    for choice in rule.get("anyOf", ()):
        if value is not None and choice.get("type") in {"object", "array"}:
            return filled(value, choice, root)
    if isinstance(value, list):
        return [filled(item, rule.get("items", {}), root) for item in value]
    if not isinstance(value, dict):
        return value
    parts = rule.get("properties", {})
    missing = {key: filled(blank(parts[key]), parts[key], root) for key in rule.get("required", ()) if key not in value}
    return {key: filled(item, parts.get(key, {}), root) for key, item in value.items()} | missing


def blank(rule: dict[str, Any]) -> Any:
    """The emptiest value of a part of a schema."""
    if "anyOf" in rule or "$ref" in rule:
        return None if {"type": "null"} in rule.get("anyOf", ()) else 0
    kind = rule.get("type", "string")
    values = {"object": {}, "array": [], "boolean": False, "integer": rule.get("minimum", 0), "number": 0.5}
    return rule["enum"][0] if "enum" in rule else values.get(kind, "text")


def comparison(
    out: Path,
    name: str = "demo-compare",
    labels: tuple[str, ...] = ("pytorch", "jax", "reference"),
    workloads: tuple[str, ...] = ("training step",),
    rounds: int = 10,
    seen: dict[str, dict[str, Any]] | None = None,
    batches: Mapping[str, int | None] = MappingProxyType({}),
    **changes: Any,
) -> Path:
    """A comparison's folder, valid.

    Args:
        out: Folder above it.
        name: Name of the folder.
        labels: Labels of the candidates, the baseline first.
        workloads: Names of the workloads.
        rounds: Processes of each candidate.
        seen: By candidate, changes of what its processes report about themselves.
        batches: By candidate, samples per call, if not 64.
        changes: Changes of the document.
    """
    samples = samples_of(list(labels), list(workloads), rounds)
    sizes = {(workload, label): batches.get(label, 64) for workload in workloads for label in labels}
    equivalence = [
        {"candidate": label, "workload": None, "part": part, "what": f"loss in {part}", "relative": error, "ulps": 2.5,
         "allowed": 1e-5, "passed": error <= 1e-5}
        for label in labels for part, error in (("a", 1e-12), ("b", 3e-7))
    ]  # fmt: skip
    document = {
        "schema_version": COMPARISON_VERSION, "run_id": name, "status": "success", "reasons": [],
        "warnings": warnings_of(samples, {}), "recipe": RECIPE, "kind": "training",
        "mode": "quick" if rounds <= CURRENT.quick_rounds else "rigorous",
        "baseline": labels[0], "threads": 2, "seed": 0,
        "measurement": {
            "clock": "time.perf_counter_ns", "scope": "whole steps", "order": "round after round", "most_processes": 8,
            "processors": [0, 1], "time_limit_s": 600.0, "memory_limit_bytes": 2**32, "proof_steps": 100,
        },
        "candidates": [
            {"label": label, "framework": label, "settings": {}, "status": "timed", "reason": None, "failed_rounds": [],
             "recipe": {**RECIPE["mutable"], "framework": label}, "proved_on": {"data": "b" * 64},
             "observed": observed(label, **(seen or {}).get(label, {})),
             "peaks": {"product_flop_s": 1e11, "copy_byte_s": 1e10, "product_error": 2e-7}, "memory_bytes": 2**29,
             "provenance": {"data": "b" * 64}, "left_out": []}
            for label in labels
        ],
        "equivalence": equivalence, "processes": processes_of(samples), "calibration": None,
        "proof": {"steps": 100, "smooth": True},
        "statistics": {"scheme": CURRENT.version, "looks": list(CURRENT.looks), "confidence": STATED},
        "workloads": [{"workload": workload, "flops": None, "bytes": None} for workload in workloads], "resumed": [],
        "results": results_of(samples, sizes),
        "verdicts": verdicts_of(samples, labels[0], dict.fromkeys(range(1, rounds + 1), 1.05), sizes),
        "system": {"before": SYSTEM, "after": SYSTEM}, "software": SOFTWARE,
        "provenance": {"recipe_source": None, "environment": "c" * 64}, "resources": None,
        "started": "2026-01-01T00:00:00Z", "finished": "2026-01-01T00:01:00Z",
    }  # fmt: skip
    document = filled(encode(copy.deepcopy({**document, **changes})), comparison_schema(), comparison_schema())
    check_document(document, comparison_schema())
    return written(out, name, document, samples)


def written(out: Path, name: str, document: dict[str, Any], samples: list[RoundSample]) -> Path:
    folder = out / name
    folder.mkdir(parents=True)
    (folder / COMPARISON).write_text(json.dumps(document), "utf-8")
    (folder / "samples.csv").write_text(round_samples_text(samples), "utf-8")
    return folder


def run(
    out: Path,
    name: str = "demo",
    seed: int = 0,
    offset: float = 0.0,
    system: dict[str, Any] = SYSTEM,
    last_loss: float | None = None,
    ended: str = "success",
    **recipe: Any,
) -> Path:
    """A run's folder, valid, with accuracies, losses and a breakdown of its time.

    Args:
        out: Folder above it.
        name: Name of the folder.
        seed: Seed of the run.
        offset: Offset of its accuracies, in percent.
        system: The machine.
        last_loss: Loss of its last step, if not the usual one.
        ended: Its status.
        recipe: Changes of the recipe.
    """
    accuracies = [
        Sample(60.0 + 5 * epoch + offset, step=5 * epoch, epoch=epoch, time_s=epoch * 1.0) for epoch in (1, 2, 3)
    ]
    losses = [Sample(2.0 / (step + 1), step=step, epoch=step // 5, time_s=0.2 * step) for step in range(15)]
    if last_loss is not None:
        losses[-1] = losses[-1]._replace(value=last_loss)
    metrics = [
        metric_row(d5.TestAccuracy(), None, value=accuracies[-1].value, samples=3),
        metric_row(d5.TrainingLoss(), None, value=losses[-1].value, samples=15),
        metric_row(d5.WallClockTime(), None, value=3.0 + offset / 10, samples=1),
    ]
    document = blank_document(
        recipe={**RECIPE, **recipe}, framework={"name": "reference"}, level=2, system=system, software=SOFTWARE,
        metrics=metrics, seeds={"run": seed}, started="2026-01-01T00:00:00Z",
    )  # fmt: skip
    made = ResultFolder.create(out, name, document)
    told = json.loads((made.path / "result.json").read_text("utf-8"))
    made.write_samples([*sample_rows("test_accuracy", "%", accuracies), *sample_rows("training_loss", "nat", losses)])
    made.write_file("time_breakdown.csv", "part,seconds,percent,how\nsteps,2.0,66.7,measured\ndata,1.0,33.3,measured\n")
    reasons = [] if ended == "success" else [f"it {ended}"]
    made.write_result({**told, "status": ended, "reasons": reasons, "finished": "2026-01-01T00:00:05Z"})
    made.close()
    return made.path


TIMED = {"candidate": "mine:fast", "baseline": "mine:plain", "steps": 5, "rounds": 8}
"""The fixed part of a recipe that times code."""


def timed(
    out: Path,
    name: str = "timed",
    times: Mapping[str, Sequence[float]] | None = None,
    others: Sequence[Mapping[str, Sequence[float]]] = (),
    ended: str = "success",
    fixed: Mapping[str, Any] = MappingProxyType(TIMED),
    **recipe: Any,
) -> Path:
    """A folder of a run that timed code, valid.

    Args:
        out: Folder above it.
        name: Name of the folder.
        times: Seconds of every round of the first rank, by side; None: eight rounds, the candidate twice as fast.
        others: The same of the other ranks.
        ended: Its status.
        fixed: The recipe's fixed part.
        recipe: Changes of the recipe.
    """
    draw = np.random.default_rng(0)
    if times is None:
        middles = {"candidate": 1e-3, "baseline": 2e-3, "baseline_again": 2e-3}
        times = {side: (middle * draw.lognormal(0, 0.05, 8)).tolist() for side, middle in middles.items()}
    ranks = 1 + len(others)
    document = blank_document(
        recipe={**RECIPE, "fixed": dict(fixed), **recipe}, level=2 if ranks == 1 else 3, system=SYSTEM,
        software=SOFTWARE, metrics=[metric_row(d5.Slowdown(), None, value=0.5, samples=0)], seeds={"run": 0},
        measurement={"loops": 5}, ranks=ranks, started="2026-01-01T00:00:00Z",
    )  # fmt: skip
    made = ResultFolder.create(out, name, document)
    told = json.loads((made.path / "result.json").read_text("utf-8"))
    for rank, own in enumerate((times, *others)):
        rows = [row for side, values in own.items() for row in sample_rows(f"{side}_time", "s", map(Sample, values))]
        if rank:
            made.write_file(rank_samples(rank), samples_text(rows))
        else:
            made.write_samples(rows)
    reasons = [] if ended == "success" else [f"it {ended}"]
    made.write_result({**told, "status": ended, "reasons": reasons, "finished": "2026-01-01T00:00:05Z"})
    made.close()
    return made.path


def collective(
    out: Path,
    name: str = "collective",
    algorithms: Sequence[str] = ("ring", "pipeline", "library"),
    sizes: Sequence[int] = (4, 1024, 65536),
    **recipe: Any,
) -> Path:
    """A folder of a run of collectives, valid.

    Args:
        out: Folder above it.
        name: Name of the folder.
        algorithms: Their names; the library has no model.
        sizes: Buffer sizes in bytes.
        recipe: Changes of the recipe.
    """
    fixed = {"collective": "all_reduce", "algorithms": list(algorithms), "sizes": list(sizes)}
    document = blank_document(
        recipe={**RECIPE, "fixed": fixed, **recipe}, level=3, system=SYSTEM, software=SOFTWARE,
        metrics=[metric_row(d5.RightResults(), None, value=100.0, samples=0)], seeds={"run": 0}, ranks=2,
        started="2026-01-01T00:00:00Z",
    )  # fmt: skip
    made = ResultFolder.create(out, name, document)
    told = json.loads((made.path / "result.json").read_text("utf-8"))
    rows = []
    for size in sizes:
        for place, algorithm in enumerate(algorithms):
            middle = 1e-5 * (1 + place) * (1 + size / 1000)
            model = None if algorithm == "library" else middle / 2
            rows.append(
                {"algorithm": algorithm, "size_bytes": size, "rounds": 6, "median_s": middle, "low_s": 0.9 * middle,
                 "high_s": 1.2 * middle, "algorithm_gbyte_s": size / middle / 1e9, "bus_gbyte_s": size / middle / 1e9,
                 "modelled_s": model, "measured_over_modelled": None if model is None else 2.0}
            )  # fmt: skip
    plan = {"op": "sum", "dtype": "float32"}
    content = {"version": 1, "plan": plan, "launcher": "threads", "system": SYSTEM, "rows": rows}
    made.write_file("collective.json", json.dumps(content))
    made.write_result({**told, "status": "success", "finished": "2026-01-01T00:00:05Z"})
    made.close()
    return made.path


def study(out: Path, name: str = "demo-study", **changes: Any) -> Path:
    """A study's folder with two candidates and two seeds each."""
    folder = out / name
    (folder / "runs").mkdir(parents=True)
    candidates = {}
    for place, candidate in enumerate(("adam", "momentum")):
        runs = [run(folder / "runs", f"{candidate}{seed}", seed, 5 * place + seed) for seed in (0, 1)]
        candidates[candidate] = {
            "settings": {"optimizer": candidate},
            "runs": [str(path.relative_to(folder)) for path in runs],
            "seeds": [0, 1],
            "failures": ["seed 2: it diverged"] if place else [],
            "metrics": {},
        }
    document = {"recipe": "demo", "size": "full", "candidates": candidates, "notes": [], **changes}
    (folder / "study.json").write_text(json.dumps(document), "utf-8")
    return folder


def hostile(out: Path) -> Path:
    """A comparison whose every string would run code, and whose numbers are as bad as the schema allows."""
    long, bad = HOSTILE + "x" * 50_000, HOSTILE + "\x00\x1b[31m\u202e\ud800"
    folder = comparison(
        out,
        "hostile",
        labels=(HOSTILE, bad.replace("\ud800", "") + "2", long[:300]),
        workloads=(HOSTILE, "plain"),
        warnings=[HOSTILE, long],
        recipe={**RECIPE, "name": HOSTILE, "fixed": {HOSTILE: [HOSTILE]}, "size": HOSTILE, "division": "open"},
    )
    document = json.loads((folder / COMPARISON).read_text("utf-8"))
    document["threads"] = 10**200
    document["candidates"][0]["observed"] |= {
        HOSTILE: HOSTILE,
        "threads": 10**400,
        "spinning": 1.7e308,
        "odd": bad,
    }
    document["equivalence"][0] |= {"relative": "nan", "ulps": "inf", "what": HOSTILE, "passed": False}
    document["verdicts"][0] |= {"ratio": 1e300, "low": 1e-300, "high": 1.7e308, "floor": 1e308, "smallest": 1e308}
    document["results"][0] |= {"median_s": 1e-320, "warm_up_s": 1e308}
    document["system"]["before"]["host"] = HOSTILE
    document["software"]["packages"][HOSTILE] = HOSTILE
    (folder / COMPARISON).write_text(json.dumps(document, allow_nan=False), "utf-8")
    return folder
