"""What a document cannot say: hashes of nothing, versions that disagree, dates that are far apart, a silent NaN."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.numerics import parts_of
from deep5.results.mllog import read_mllog
from deep5.results.result import EVENTS
from deep5.results.samples_file import SampleRow

__all__ = ["check_accuracies", "check_dates", "check_hashes", "check_not_numbers", "check_versions"]

_HASH = re.compile(r"[0-9a-f]{64}")
# A SHA-256 has fewer different digits in one of 10^13 cases.
_FEWEST_DIGITS = 8
# The package that has a framework's version.
_PACKAGES = {
    "pytorch": "torch", "tensorflow": "tensorflow", "jax": "jax", "onnxruntime": "onnxruntime", "openvino": "openvino",
    "reference": "numpy",
}  # fmt: skip
# The numbers of a version, and what may follow them: a build, a candidate, a development version.
_NUMBERS = re.compile(r"(\d+(?:\.\d+)*)(?:[+._-].*|(?:a|b|c|rc|dev|post|pre)\d*.*)?")
# A folder is named when it is made, and a log is written while it runs: a clock may be set in between, and a
# calibration is a day old at most.
_APART = timedelta(days=1)
_NAMED = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]+$")
_SILENT = re.compile(r"\b(?:nan|-?inf)\b")
# Data sets with one label per sample.
_ONE_LABEL = ("digits", "mnist", "fashion_mnist", "cifar10", "cifar100")
# A share is a quotient of integers, stored as a percentage in double precision.
_ROUNDING = 1e-9


def check_hashes(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """Rule 14: a stored hash is one: no SHA-256 consists of a few digits.

    Args:
        ledger: Receives the findings.
        document: result.json or comparison.json.
    """
    for place, value in _texts(document, ""):
        if _HASH.fullmatch(value):
            ledger.hold(
                14,
                len(set(value)) >= _FEWEST_DIGITS,
                f"{place} is {value[:12]}…, which is no hash; allowed: the SHA-256 of the content",
            )


def _texts(value: Any, place: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{place}[{number}]")


def check_versions(ledger: Ledger, document: Mapping[str, Any], who: str, framework: str, version: object) -> None:
    """Rule 14: a framework's version, as it reported it, is that of its package.

    Args:
        ledger: Receives the findings.
        document: result.json or comparison.json.
        who: Name used in findings.
        framework: Name of the framework, mode included.
        version: As the framework reported it; None: unknown.
    """
    packages = (document["software"] or {}).get("packages") or {}
    package = _PACKAGES.get(framework.partition(":")[0])
    if version is None or package not in packages:
        return
    if document["resumed"]:
        ledger.skip("the framework's version: a resumption may have had another one")
        return
    stored, installed = (_NUMBERS.fullmatch(str(text)) for text in (version, packages[package]))
    ledger.hold(
        14,
        stored is not None and installed is not None and stored[1] == installed[1],
        f"{who} ran on {framework} {version!s:.40}, and the package {package} has the version "
        f"{packages[package]!s:.40}; allowed: one version",
    )


def check_dates(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> None:
    """Rule 8: name, start, log and calibration are of one time.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json or comparison.json.
    """
    dates: list[tuple[str, datetime]] = []
    if document["started"] is None:
        return
    begun = datetime.fromisoformat(document["started"])
    named = _NAMED.search(str(document["run_id"]))
    if named is not None:
        dates.append(("its name", datetime.strptime(named[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)))
    if (path := plain(root, EVENTS)) is not None and "level" in document and (lines := read_mllog(path)):
        dates.append(("its events", datetime.fromtimestamp(lines[0].time_ms / 1e3, UTC)))
    calibration = document.get("calibration")
    if calibration and not document["resumed"]:
        dates.append(("its calibration", datetime.fromisoformat(str(calibration["when"]))))
    for what, when in dates:
        # A run that was interrupted before its first checkpoint starts its log again, any time later.
        apart = begun - when if document["resumed"] and when > begun else abs(when - begun)
        allowed = 2 * _APART if what == "its calibration" else _APART
        ledger.hold(
            8,
            apart <= allowed,
            f"it started at {document['started']}, and {what} is of {when:%Y-%m-%dT%H:%M:%SZ}; allowed: a difference "
            f"of {allowed.days} days at most",
        )


def check_not_numbers(ledger: Ledger, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]) -> None:
    """Rule 13: a loss that is not finite is reported.

    Args:
        ledger: Receives the findings.
        document: result.json of a run.
        samples: Rows of samples.csv, by metric.
    """
    for name in ("training_loss", "test_loss"):
        rows = [row for row in samples.get(name, ()) if not math.isfinite(row.value)]
        stored = [row for row in document["metrics"] if row["name"] == name and row["value"] is not None]
        if rows or any(not math.isfinite(float(row["value"])) for row in stored):
            said = [*document["warnings"], *document["reasons"]]
            ledger.hold(
                13,
                any(_SILENT.search(sentence) for sentence in said),
                f"{name} is not finite, and no warning reports it; allowed: with deep5's warning",
            )


def check_accuracies(
    ledger: Ledger, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]], count: object
) -> None:
    """Rule 8: a share of correct labels is a quotient of integers, the lower one the size of the test set.

    Args:
        ledger: Receives the findings.
        document: result.json of a run.
        samples: Rows of samples.csv, by metric.
        count: Number of test samples, by the events; None: unknown.
    """
    rows = samples.get("test_accuracy", ())
    if not rows:
        return
    parts = parts_of(document)
    usual = parts.get("validation_sampler", "ordered") in ("ordered", "shuffle")
    options = parts.get("validation_sampler_kwargs") or {}
    if parts.get("dataset") not in _ONE_LABEL or not usual or options or not isinstance(count, int) or count < 1:
        ledger.skip("accuracies against the size of the test set: the number of labels is not known")
        return
    for row in rows:
        correct = row.value * count / 100
        ledger.hold(
            8,
            abs(correct - round(correct)) <= _ROUNDING * count and 0 <= correct <= count * (1 + _ROUNDING),
            f"an accuracy of {row.value:.12g} % is {correct:.6g} of {count} test samples; allowed: an integer",
        )
