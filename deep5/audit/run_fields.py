"""Fields of a run that follow from others of its document, are stored twice, or have a range."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.host import check_device, check_host, check_name, check_pools
from deep5.audit.measured import OPERATORS, TRAINING
from deep5.audit.numerics import parts_of
from deep5.audit.verdict_rows import BUSY
from deep5.core.plugins import registered
from deep5.core.version import __version__
from deep5.results.samples_file import SampleRow

__all__ = ["check_run_fields"]

_HIGHER = {
    "bleu", "bus_bandwidth", "chrf", "communication_overlap", "confusion_matrix", "f1", "final_test_accuracy",
    "goodput", "highest_rate", "mean_average_precision", "mean_return", "operator_coverage", "request_throughput",
    "right_results", "roc_auc", "test_accuracy", "throughput", "top_k", "training_accuracy", "utilisation",
}  # fmt: skip
# Events of deep5 that never end a training.
_STOP_NOTHING = {"checkpointer", "csv_logger", "progress_bar", "scheduled", "slow_rank", "tensorboard_logger"}
# How a scope begins that a metric of deep5 states.
_SCOPE = re.compile(r"On the clock: \S.{8}|Nothing is on a clock|the metric does not say what is on the clock")
# Processes read the two clocks one after the other.
_ROOM_S, _ROOM = 1.0, 1.1
# The shortest time between two checkpoints that are written without a request, with room for a clock that varies.
_EVERY_S = 25.0
_LOSSES = ("training_loss", "test_loss")
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]*(?::[a-z0-9_]+)?")
_TIMES = ("s", "ms", "us", "ns")

Samples = Mapping[str, Sequence[SampleRow]]


def check_run_fields(ledger: Ledger, document: Mapping[str, Any], samples: Samples, kind: str) -> None:
    """Check the fields of a run.

    Args:
        ledger: Receives the findings.
        document: result.json.
        samples: Rows of samples.csv, by metric.
        kind: The kind of measurement.
    """
    with ledger.part(8, "the machine"):
        check_host(ledger, document)
    with ledger.part(14, "the name of the run"):
        check_name(ledger, document, "")
    with ledger.part(3, "the framework"):
        _check_framework(ledger, document)
    with ledger.part(5, "what metrics state"):
        _check_metrics(ledger, document)
    with ledger.part(8, "the resources"):
        _check_resources(ledger, document)
    if document["status"] != "success":
        return
    with ledger.part(12, "the end of the training"):
        _check_stop(ledger, document)
    with ledger.part(8, "the losses"):
        _check_losses(ledger, document, samples)
    with ledger.part(8, "the checkpoints"):
        _check_checkpoints(ledger, document, samples)
    with ledger.part(13, "the warnings of the run"):
        _check_warnings(ledger, document)
    if kind == TRAINING:
        stated = [document["measurement"][key] for key in ("loops", "order", "cache_state")]
        ledger.same(4, "loops, order and caches of a training", stated, [None, None, None])
    elif kind == OPERATORS:
        due = "warm, cold" if parts_of(document).get("cold") else "warm"
        ledger.same(4, "the state of the caches", document["measurement"]["cache_state"], due)


def _check_framework(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """The framework is the one that the recipe names, on its device; pools are those of the machine."""
    found, parts, threads = document["framework"], parts_of(document), document["threads"]
    # The loop that was recorded set its own threads.
    asked = (threads or {}).get("asked" if document.get("recorded") is None else "framework")
    check_pools(ledger, "the run", document, (threads or {}).get("pools"), asked)
    numerics = document["numerics"] or {}
    required = document.get("recorded") is None and parts.get("deterministic", True) is True
    if required and numerics.get("deterministic") is False:
        said = any("bit-identical" in warning or "deterministic" in warning for warning in document["warnings"])
        ledger.hold(2, said, "the run was not deterministic, as its recipe requires; allowed: with a warning")
    if found is None:
        return
    named = parts.get("framework")
    if isinstance(named, str) and _IDENTIFIER.fullmatch(named) and "executor" not in parts:
        one, other = (str(name).partition(":")[0] for name in (found["name"], named))
        ledger.same(3, "the framework, by the recipe", one, other)
    check_device(ledger, "the run", document, str(found["name"]), found["device"], parts.get("device"))


def _check_metrics(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Direction, scope and parameters of each metric are those of its kind, and as declared."""
    known = registered("metrics")
    for row, declared in zip(document["metrics"], document["recipe"]["metrics"], strict=False):
        name = row["name"]
        own = name in known and known[name].value.startswith("deep5.")
        if own:
            ledger.same(9, f"{name}: the better direction", row["direction"], "higher" if name in _HIGHER else "lower")
            ledger.same(9, f"{name}: its unit", row["unit"], known[name].load().unit)
        scope = row["scope"]
        ledger.hold(
            5,
            scope is None or _SCOPE.match(scope) is not None,
            f"{name} states {scope!r:.60} as its scope; allowed: what is on the clock",
        )
        ledger.hold(
            9, row["missing"] is None or row["value"] is None, f"{name} has a value, and a reason for its absence"
        )
        parameters = {key: value for key, value in declared.items() if key not in ("metric", "goal")}
        ledger.same(11, f"{name}: its parameters, as declared", row["parameters"], parameters)


def _check_stop(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A training that ended early has an event that can stop it, or a metric of the user's, which can too."""
    said = [reported for reported in document["reasons"] if reported.startswith("stopped:")]
    events = (document["components"] or {}).get("events") or ()
    names = [event.get("event") if isinstance(event, Mapping) else None for event in events]
    known = registered("metrics")
    own = [
        row["name"]
        for row in document["metrics"]
        if row["name"] not in known or not known[row["name"]].value.startswith("deep5.")
    ]
    ledger.hold(
        12,
        not said or bool(own) or not _STOP_NOTHING.issuperset(names),
        f"the run was {said[:1]!s:.80}, and its events {names!s:.100} stop nothing; allowed: with one that can",
    )


def _check_resources(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Times are positive, and no process used more processor time than its processors had."""
    used = document["resources"]
    if used is None:
        return
    wall, cpu, share = float(used["wall_time_s"]), float(used["cpu_time_s"]), used.get("others_share")
    ledger.hold(
        8, wall > 0 and 0 <= used["set_up_s"] < math.inf, f"the set-up took {used['set_up_s']} s, the run {wall} s"
    )
    cores = ((document["system"]["before"] or {}).get("cpu") or {}).get("logical_cores")
    most = math.inf if cores is None or document["resumed"] else cores * (wall * _ROOM + _ROOM_S)
    ledger.hold(
        8,
        0 < cpu <= most,
        f"the run used {cpu:.6g} s of its {cores} processors within {wall:.6g} s; allowed: no more than they have",
    )
    ledger.hold(8, share is None or 0 <= share <= 1, f"other programs took {share} of the processors; allowed: 0 to 1")
    reported = document["measurement"]
    for key in ("first_call_s", "warm_up_s", "evaluation_first_call_s", "evaluation_warm_up_s"):
        value = reported[key]
        ledger.hold(
            6, value is None or 0 <= value <= wall, f"{key} is {value}; allowed: 0 to {wall:.6g}, the whole run"
        )


def _check_losses(ledger: Ledger, document: Mapping[str, Any], samples: Samples) -> None:
    """A cross-entropy is not negative: that of deep5's own networks, whose losses are in nats."""
    model = parts_of(document).get("model")
    if model == "policy_network":
        return  # weighted by advantages, which have either sign
    entry = registered("networks").get(model) if isinstance(model, str) else None
    if entry is None or not entry.value.startswith("deep5."):
        ledger.skip("the sign of the losses: the network is not one of deep5's")
        return
    for name in _LOSSES:
        negative = [sample.value for sample in samples.get(name, ()) if sample.value < 0]
        ledger.hold(8, not negative, f"{name} is {negative[:1]} in a step; allowed: at least 0, a cross-entropy")


def _check_checkpoints(ledger: Ledger, document: Mapping[str, Any], samples: Samples) -> None:
    """Checkpoints take time; those that the user did not request are written every half a minute at most."""
    found = document["checkpoints"]
    if found is None:
        return
    written, seconds, wall = found["written"], float(found["seconds"]), float(document["resources"]["wall_time_s"])
    ledger.hold(
        8,
        written >= 0 and 0 <= seconds <= wall and (written > 0) == (seconds > 0),
        f"{written} checkpoints took {seconds} s of the {wall:.6g} s of the run; allowed: 0 s for none, else more",
    )
    events = (document["components"] or {}).get("events") or ()
    requested = any(isinstance(event, Mapping) and event.get("event") == "checkpointer" for event in events)
    steps = max((sample.step or 0 for own in samples.values() for sample in own), default=0)
    most = 2 * steps + 2 if requested else wall / _EVERY_S + 1
    ledger.hold(
        8, written <= most, f"{written} checkpoints were written in {steps} steps and {wall:.6g} s; allowed: {most:.4g}"
    )


def _check_warnings(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """More threads than free processors are reported, by deep5 since the version that this one is."""
    share, before = (document["resources"] or {}).get("others_share"), document["system"]["before"]
    asked = (document["threads"] or {}).get("asked")
    used = (before or {}).get("affinity")
    if document["software"]["deep5"] != __version__ or share is None or asked is None or not used:
        return
    timed = any(
        row["goal"] is not None and (row["unit"] in _TIMES or row["unit"].endswith("/s")) for row in document["metrics"]
    )
    busy = round(share * len(used)) if timed and share >= BUSY else 0
    free = max(1, len(used) - busy)
    said = any(f"the run had {asked} threads on " in warning for warning in document["warnings"])
    ledger.hold(
        13,
        said or asked <= free,
        f"the run had {asked} threads, and other programs left {free} of its {len(used)} processors free; allowed: a "
        "warning that says so",
    )
