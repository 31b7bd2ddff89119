"""What two results of the same work must have in common, bit by bit: everything except times.

`of_run`, `of_study` and `of_comparison` return it in a form that `==` compares.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from deep5.results.comparison import load_comparison
from deep5.results.comparison_summary import standing
from deep5.results.result import load
from deep5.results.samples_file import read_samples

__all__ = ["NOT_CLOCKS", "events", "of_comparison", "of_run", "of_study"]

# Of samples.csv, the metrics that do not depend on a clock.
NOT_CLOCKS = ("test_accuracy", "training_loss")
_INPUTS = ("data", "split", "initial_weights", "init", "batch_order", "network", "trained_weights")


def of_run(folder: Path) -> dict[str, Any]:
    """Weights, losses, scores, the order of the batches, and the hashes of what went in."""
    result = load(folder)
    return {
        "status": result.status,
        "accepted": result.accepted,
        "hash": result.document["recipe"]["hash"],
        "ranks": result.document["ranks"],
        "weights": hashlib.sha256((folder / "weights.safetensors").read_bytes()).hexdigest(),
        "network": hashlib.sha256((folder / "network.onnx").read_bytes()).hexdigest(),
        "provenance": {key: result.document["provenance"][key] for key in _INPUTS},
        "samples": {path.name: _samples(path) for path in sorted(folder.glob("samples*.csv"))},
        "values": {name: result.metric(name) for name in NOT_CLOCKS},
        "goals": [(row["name"], row["goal"]) for row in result.document["metrics"]],
    }


def _samples(path: Path) -> dict[str, Any]:
    rows = read_samples(path)
    return {name: [(row.value, row.step, row.epoch) for row in rows[name]] for name in NOT_CLOCKS if name in rows}


def events(folder: Path) -> list[tuple[str, Any]]:
    """The log of a run without its clock and without the entries of resumptions."""
    lines = [json.loads(line.split(" ", 1)[1]) for line in (folder / "events.mllog").read_text().splitlines()]
    return [(line["key"], line["metadata"]) for line in lines if line["key"] != "deep5_resumed"]


def of_study(folder: Path) -> dict[str, Any]:
    """Its candidates with their runs and failures, the target, and the names of its pictures."""
    document = json.loads((folder / "study.json").read_text())
    return {
        "finished": document["finished"],
        "hash": document["hash"],
        "contents": document["provenance"]["contents"],
        "target": document["target"],
        "pictures": sorted(path.name for path in folder.iterdir() if path.is_file()),
        "candidates": {
            name: {
                "settings": own["settings"],
                "seeds": own["seeds"],
                "failures": own["failures"],
                "runs": [of_run(folder / run) for run in own["runs"]],
                "values": {metric: own["metrics"].get(metric) for metric in NOT_CLOCKS},
            }
            for name, own in document["candidates"].items()
        },
    }


def of_comparison(folder: Path) -> dict[str, Any]:
    """Candidates, rows of the proof, rounds that count, and the pairs of the verdicts."""
    document = load_comparison(folder).document
    proved = ("label", "framework", "settings", "recipe", "status", "reason", "provenance", "proved_on", "left_out")
    processes = document["processes"]
    return {
        "status": document["status"],
        "reasons": document["reasons"],
        "hash": document["recipe"]["hash"],
        "mode": document["mode"],
        "baseline": document["baseline"],
        "statistics": document["statistics"],
        "candidates": [{key: row[key] for key in proved} for row in document["candidates"]],
        "proof": document["proof"],
        "equivalence": document["equivalence"],
        # In the order in which they ran, which the seed draws.
        "rounds": [(processes[n]["round"], processes[n]["candidate"]) for n in sorted(standing(document))],
        "results": sorted(
            (row["workload"], row["candidate"], row["batch_size"], row["processes"]) for row in document["results"]
        ),
        "verdicts": [
            tuple(row[key] for key in ("workload", "candidate", "baseline", "rounds", "per"))
            for row in document["verdicts"]
        ],
    }
