"""Rules 8, 11, 12 and 14 for several runs: consistent fixed parts and splits, distinct seeds, no copies.

Each run is compared with the first of its kind, so that the cost is linear in the number of runs, and only a few hashes
of each run stay in memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.measured import trains
from deep5.audit.numerics import parts_of
from deep5.audit.run_times import logged
from deep5.core.plugins import registered
from deep5.results.result import Result
from deep5.results.samples_file import SAMPLES, SampleRow, read_samples

__all__ = ["Together"]

# Series that two runs with different seeds cannot have bit-identically in common.
_OWN = ("training_loss", "step_latency", "wall_clock_time")
_LEAST = 3
# Of so many orders (as a logarithm), those of two seeds coincide by chance in one of 10^12 cases.
_FEW_ORDERS = math.log(1e12)
# Parts that define a run's data and evaluation, or begin the names of such parts: `validation_sampler`, for example.
_DATA = ("dataset", "validation", "test_transforms", "train_transforms")
# Parts that determine the network and its initial weights; these too, if it is code of a framework.
_DRAWN, _NATIVE = ("model", "init", "precision"), ("executor", "framework", "device")
_UNREPEATABLE = "is another one each time"


@dataclass(frozen=True, kw_only=True)
class _First:
    """The record of the first run of its kind.

    Attributes:
        name: Name of the run.
        reported: The value that other runs of its kind must have, or must not have.
    """

    name: str
    reported: Any


class Together:
    """Runs that are audited in one call.

    Args:
        ledger: Receives the findings.
        study: Whether they are the repetitions of one study, in which no two runs of a candidate share a seed. Other
            runs may: two runs of one recipe have the same seed.
    """

    def __init__(self, ledger: Ledger, *, study: bool = False) -> None:
        self._ledger, self._study = ledger, study
        self._seen: dict[tuple[Any, ...], _First] = {}

    def add(self, name: str, run: Result) -> None:
        """Compare one more run with the earlier ones.

        Args:
            name: Name used in findings.
            run: As returned by `audit_run`.
        """
        document = run.document
        with self._ledger.part(11, f"{name} compared with other runs"):
            self._check_identity(name, document)
            if run.status == "success":
                self._check_seeds(name, run)
        if run.status == "success":
            with self._ledger.part(8, f"the samples of {name} compared with those of other runs"):
                self._check_copies(name, run)

    def _first(self, *key: Any, name: str, reported: Any = None) -> _First:
        """The first run with this key, which becomes the given one if there was none."""
        return self._seen.setdefault(key, _First(name=name, reported=reported))

    def _check_identity(self, name: str, document: Mapping[str, Any]) -> None:
        """Rules 11, 12, 14: no run occurs twice; runs of one recipe have one fixed part, one split, one data set."""
        recipe, provenance = document["recipe"], document["provenance"]
        first = self._first("run", document["run_id"], name=name)
        self._ledger.hold(
            11, first.name == name, f"{first.name} and {name} are the same run; allowed: distinct run ids"
        )
        if recipe["division"] == "closed":
            first = self._first("fixed", recipe["name"], recipe["size"], name=name, reported=recipe["fixed"])
            self._ledger.hold(
                14,
                first.reported == recipe["fixed"],
                f"{first.name} and {name} are runs of {recipe['name']} with different fixed parts "
                f"({_differing(first.reported, recipe['fixed'])}); allowed: one, in the closed division",
            )
        # Only parts that the mutable parts do not change either.
        parts = parts_of(document)
        data = json.dumps({key: parts[key] for key in parts if key.startswith(_DATA)}, sort_keys=True)
        for key, rule in (("split", 12), ("data", 1)):
            if provenance[key] is None:
                continue
            first = self._first(key, recipe["hash"], data, name=name, reported=provenance[key])
            self._ledger.hold(
                rule,
                first.reported == provenance[key],
                f"{first.name} and {name} have one fixed part and different {key}; got {str(first.reported)[:12]} and "
                f"{str(provenance[key])[:12]}; allowed: one",
            )

        self._check_drawn(name, document)

    def _check_drawn(self, name: str, document: Mapping[str, Any]) -> None:
        """Rule 1: runs with one hash have one network and the same initial weights at one seed.

        Results before version 2 of hashes are left out: the hash of a function under `model` did not cover all of it.
        A run that reports that its network is another one each time states why they differ.
        """
        recipe, provenance, parts = document["recipe"], document["provenance"], parts_of(document)
        if recipe.get("hash_version") is None or any(_UNREPEATABLE in reported for reported in document["warnings"]):
            return
        chosen = {key: value for key, value in recipe["mutable"].items() if key.startswith(_DRAWN)}
        if "loss" in recipe["mutable"]:
            chosen["loss"] = recipe["mutable"]["loss"]
        model = (document["components"] or {}).get("model") or {}
        # A library's model is another network as it is than as an export.
        if parts.get("executor") is not None or model.get("kind", "ONNX") != "ONNX":
            chosen |= {key: value for key, value in recipe["mutable"].items() if key.startswith(_NATIVE)}
        stated = [recipe["hash"], recipe["size"], chosen, document["seeds"].get("weights"), provenance["init"]]
        for key in ("network", "initial_weights"):
            if provenance[key] is None or recipe["hash"] is None or "model" not in parts:
                continue
            first = self._first(f"one {key}", json.dumps(stated, sort_keys=True), name=name, reported=provenance[key])
            self._ledger.hold(
                1,
                first.reported == provenance[key],
                f"{first.name} and {name} have one hash and seed and another {key.replace('_', ' ')}; got "
                f"{str(first.reported)[:12]} and {str(provenance[key])[:12]}; allowed: one",
            )

    def _check_seeds(self, name: str, run: Result) -> None:
        """Rule 11: no two repetitions of a study share a seed; order and weights also reveal it."""
        document = run.document
        if not trains(document):
            return
        seed, parts, provenance = document["seeds"].get("run"), parts_of(document), document["provenance"]
        if self._study:
            mutable = {
                key: value for key, value in document["recipe"]["mutable"].items() if key not in ("threads", "device")
            }
            own = json.dumps([document["recipe"]["hash"], mutable, document["seeds"]], sort_keys=True)
            first = self._first("seed", own, name=name)
            self._ledger.hold(
                11,
                first.name == name,
                f"{first.name} and {name} are repetitions with the same seed {seed}; allowed: each seed once",
            )
        # A seed in the arguments of model or sampler is the recipe's, and the same in every run.
        drawn = {
            "initial_weights": provenance["init"] is None
            and "seed" not in (parts.get("model_kwargs") or {})
            and _is_own(parts.get("model")),
            "batch_order": parts.get("train_sampler", "shuffle") == "shuffle"
            and "seed" not in (parts.get("train_sampler_kwargs") or {}),
        }
        for key, is_drawn in drawn.items():
            if not is_drawn or provenance[key] is None:
                continue
            first = self._first(key, provenance[key], name=name, reported=seed)
            if key == "batch_order" and first.reported != seed and _may_coincide(run):
                self._ledger.skip("the orders of runs with different seeds: so few samples have few orders")
                continue
            self._ledger.hold(
                11,
                first.reported == seed,
                f"{first.name} and {name} state the seeds {first.reported} and {seed}, and have the same "
                f"{key.replace('_', ' ')}; allowed: that of one seed",
            )

    def _check_copies(self, name: str, run: Result) -> None:
        """Rule 8: no two runs have the same times or losses; with the same seed, losses may be equal."""
        path = plain(run.folder.resolve(), SAMPLES)
        samples: Mapping[str, list[SampleRow]] = {} if path is None else read_samples(path)
        for label in _OWN:
            values = [row.value for row in samples.get(label, ())]
            if len(values) < _LEAST:
                continue
            seed = run.document["seeds"].get("run")
            digest = hashlib.sha256(repr(values).encode()).hexdigest()
            first = self._first("samples", label, digest, name=name, reported=seed)
            self._ledger.hold(
                8,
                first.name == name or (label == "training_loss" and first.reported == seed),
                f"{first.name} and {name} have {len(values)} bit-identical samples of {label}; allowed: "
                "different samples",
            )


def _may_coincide(run: Result) -> bool:
    """Whether two seeds may draw the same order: n samples have n! of them in each epoch."""
    found, epochs = logged(run.folder.resolve(), "train_samples"), parts_of(run.document).get("epochs", 1)
    if not found or not isinstance(found[0], int) or found[0] < 1 or not isinstance(epochs, int):
        return False
    return epochs * math.lgamma(found[0] + 1) < _FEW_ORDERS


def _is_own(model: Any) -> bool:
    """Whether a network is deep5's own, all of which use the run's seed; others may have fixed weights."""
    entry = registered("networks").get(model) if isinstance(model, str) else None
    return entry is not None and entry.value.startswith("deep5.")


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    return ", ".join(sorted(key for key in {*one, *other} if one.get(key) != other.get(key)))[:80]
