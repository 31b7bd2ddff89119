"""The format of result.json: its JSON Schema, and documents that satisfy it from the start of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from deep5.core.errors import UsageError
from deep5.core.metric import Goal, Metric
from deep5.measuring.samples import Interval

__all__ = ["NOT_FINISHED", "SCHEMA_VERSION", "blank_document", "metric_labels", "metric_row", "schema"]

SCHEMA_VERSION = "3"
NOT_FINISHED = "the run has not finished"


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of result.json; a shared object that must not be modified."""
    document: dict[str, Any] = json.loads(files("deep5.results").joinpath("schema.json").read_text("utf-8"))
    return document


def blank_document(
    *,
    recipe: Mapping[str, Any],
    run_id: str = "unassigned",
    framework: Mapping[str, Any] | None = None,
    components: Mapping[str, Any] | None = None,
    level: int | None = None,
    system: Mapping[str, Any] | None = None,
    software: Mapping[str, Any] | None = None,
    numerics: Mapping[str, Any] | None = None,
    threads: Mapping[str, Any] | None = None,
    measurement: Mapping[str, Any] | None = None,
    metrics: Sequence[Mapping[str, Any]] = (),
    provenance: Mapping[str, Any] | None = None,
    seeds: Mapping[str, int] | None = None,
    ranks: int = 1,
    started: str | None = None,
    recorded: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of an unfinished run: status "aborted", and None for everything not yet known.

    Args:
        recipe: `name`, and the known ones of `hash`, `fixed`, `mutable`, `metrics`, `size`, `division` ("closed" or
            "open"); the default division is "open".
        run_id: Name of the folder; `ResultFolder.create` sets its own.
        framework: `name`, `version`, `device`.
        components: The resolved components of the recipe, such as the optimizer with its hyperparameters.
        level: 0 to 3.
        system: The machine before the run, as returned by `describe_system`.
        software: As returned by `describe_software`.
        numerics: As observed.
        threads: `asked`, `framework`, `pools`.
        measurement: The known ones of `mode`, `clock`, `scope`, `warmups`, `loops`, `processes`, `order`,
            `cache_state`, `first_call_s`, `warm_up_s`, `evaluation_first_call_s`, `evaluation_warm_up_s`,
            `evaluation_warmups`.
        metrics: As made by `metric_row`.
        provenance: The known hashes of `data`, `split`, `initial_weights`, `init`, `trained_weights`, `batch_order`,
            `network`, `recipe_source`, `environment`.
        seeds: Seeds by purpose.
        ranks: Number of processes that train together.
        started: UTC, such as "2025-01-31T12:00:00Z".
        recorded: For a loop that is not deep5's: `loop` and `unknown`.

    Raises:
        UsageError: A part has a field that the schema does not define.
    """
    unknown_recipe: dict[str, Any] = {
        "hash": None,
        "fixed": {},
        "mutable": {},
        "metrics": [],
        "size": None,
        "division": "open",
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": run_id,
        **({} if recorded is None else {"recorded": _part("recorded", recorded)}),
        "recipe": _part("recipe", recipe, unknown_recipe),
        "framework": None if framework is None else _part("framework", framework, {"version": None, "device": None}),
        "components": None if components is None else dict(components),
        "level": level,
        "status": "aborted",
        "reasons": [NOT_FINISHED],
        "warnings": [],
        "accepted": None,
        "system": {"before": None if system is None else dict(system), "after": None},
        "software": None if software is None else dict(software),
        "numerics": None if numerics is None else dict(numerics),
        "threads": None if threads is None else dict(threads),
        "measurement": _part("measurement", measurement or {}),
        "checkpoints": None,
        "resumed": [],
        "metrics": [dict(row) for row in metrics],
        "provenance": _part("provenance", provenance or {}),
        "seeds": dict(seeds or {}),
        "ranks": ranks,
        "started": started,
        "finished": None,
        "resources": None,
    }


def metric_row(
    metric: Metric,
    goal: Goal | None,
    *,
    value: float | None = None,
    evaluated: bool = True,
    interval: Interval | tuple[float, float] | None = None,
    samples: int = 0,
    scope: str | None = None,
    missing: str | None = None,
) -> dict[str, Any]:
    """One entry of `metrics`; `passed` is derived from goal and value, so that the two are consistent.

    Args:
        metric: Provides name, unit, direction and parameters.
        goal: The bound, or None: reported, without a goal.
        value: In the metric's unit; None if the run did not yield one, which fails any goal.
        evaluated: False while the run has not finished.
        interval: Interval of the value; a plain pair of ends has no confidence.
        samples: Number of raw values.
        scope: What the clock covers, for a metric that reads one.
        missing: Why there is no value, if the machine or framework does not provide it.
    """
    if isinstance(interval, tuple):
        ends: dict[str, Any] | None = {"low": interval[0], "high": interval[1], "confidence": None}
    elif interval is not None:
        ends = {"low": interval.low, "high": interval.high, "confidence": interval.confidence}
    else:
        ends = None
    return {
        "name": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "goal": None if goal is None else {"relation": goal.relation, "bound": goal.bound},
        "value": value,
        "passed": goal.met(value) if goal is not None and evaluated else None,
        "interval": ends,
        "samples": samples,
        "scope": scope,
        "missing": missing,
        "parameters": {key: item for key, item in metric.describe().items() if key != "metric"},
    }


def metric_labels(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Label of each metric: its name, with the parameters that distinguish it from others of its name.

    Args:
        rows: As made by `metric_row`.

    >>> metric_labels([{"name": "top_k", "parameters": {"k": k, "label": "label"}} for k in (1, 5)])
    ['top_k[k=1]', 'top_k[k=5]']
    """
    labels = []
    for row in rows:
        others = [other["parameters"] for other in rows if other["name"] == row["name"]]
        apart = [
            f"{key}={value}" for key, value in row["parameters"].items() if any(o.get(key) != value for o in others)
        ]
        labels.append(f"{row['name']}[{', '.join(apart)}]" if apart else row["name"])
    return labels


def _part(name: str, given: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of one object of the schema, in its order: given value, else default, else None."""
    fields = schema()["properties"][name]["properties"]
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise UsageError(f"unknown field {unknown[0]!r} of {name}; allowed: {', '.join(fields)}")
    both = {**(defaults or {}), **given}
    return {field: both.get(field) for field in fields}
