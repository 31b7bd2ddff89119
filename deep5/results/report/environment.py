"""Reports and marks differences in the conditions of candidates or of whole results."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from deep5.results.markup import Markup, element, named
from deep5.results.report.numbers import as_float, number, percent, rate, size
from deep5.results.report.parts import facts
from deep5.results.report.tables import Cell, table

__all__ = ["candidate_differences", "machine_state", "result_differences", "steady"]

_HASH = re.compile("[0-9a-f]{40,64}")
# Settings specific to a framework: they differ between frameworks.
_ITS_OWN = frozenset({"framework", "version", "blas", "provider", "recipe: framework"})
_MOST_COLUMNS = 12
_MEMORY = "memory: total"
# The clock frequency, and its observed maximum, may vary by this much in normal operation.
_CLOCK, _PEAK = 0.05, 0.25


def _flat(value: Any, name: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(entry, f"{name}: {key}" if name else str(key))
    else:
        yield name, value


def _shown(value: Any) -> str:
    if isinstance(value, str) and _HASH.fullmatch(value):
        return element("code", value[:12], title=value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_shown, value)) or "none"
    return number(value) if as_float(value) is not None or isinstance(value, (bool, type(None))) else str(value)


def _same(values: Sequence[Any]) -> bool:
    return len({json.dumps(value, sort_keys=True, default=str) for value in values}) < 2


def candidate_differences(candidates: Sequence[Mapping[str, Any]]) -> Markup | None:
    """Settings reported by the candidates' processes, one column per candidate; differences come first, marked.

    Args:
        candidates: From comparison.json.
    """
    shown = [row for row in candidates if row["observed"]][:_MOST_COLUMNS]
    if not shown:
        return None
    frameworks = [row["framework"] for row in shown]
    reported = [
        dict(_flat({**row["observed"], "recipe": row["recipe"], "hash of": row["provenance"] or {}})) for row in shown
    ]
    found = []
    for key in dict.fromkeys(key for own in reported for key in own):
        values = [own[key] for own in reported if key in own]
        if key in _ITS_OWN:
            word = _of_framework(frameworks, [own.get(key) for own in reported])
        elif key.startswith("pools: "):
            # Thread pools belong to libraries: a process that does not load one has none.
            word = "same" if _same(values) else "DIFFERS"
        else:
            word = "DIFFERS" if not _same(values) else "same" if len(values) == len(reported) else "not reported by all"
        found.append((word, key, [own.get(key, "not reported") for own in reported]))
    for key, unit in (("product_flop_s", "FLOP/s"), ("copy_byte_s", "B/s")):
        peaks = [(row["peaks"] or {}).get(key) for row in shown]
        known = [peak for peak in peaks if peak]
        word = "DIFFERS" if known and max(known) > (1 + _PEAK) * min(known) else "same"
        about = {"product_flop_s": "peak: matrix product", "copy_byte_s": "peak: copy"}[key]
        found.append((word, about, [rate(peak, unit) for peak in peaks]))
    errors = [(row["peaks"] or {}).get("product_error") for row in shown]
    found.append(("its own", "error of a matrix product, relative", errors))
    memory = [size(row["memory_bytes"]) for row in shown]
    found.append(("its own", "most memory of a process", memory))
    order = ("DIFFERS", "not reported by all", "its own", "same")
    found.sort(key=lambda row: order.index(row[0]))
    rows = [[key, _mark(word), *(_shown(value) for value in values)] for word, key, values in found]
    return table("Settings, as each candidate's process read them back", _columns(row["label"] for row in shown), rows)


def _columns(names: Iterable[str]) -> list[str]:
    return ["setting", "between candidates", *(name if len(name) <= 32 else name[:31] + "…" for name in names)]


def _mark(word: str) -> Cell:
    return Cell(shown=word, mark={"DIFFERS": "bad", "not reported by all": "warn"}.get(word, ""))


def _of_framework(frameworks: Sequence[str], values: Sequence[Any]) -> str:
    """Whether two candidates of one framework report different values."""
    by_name: dict[str, list[Any]] = {}
    for framework, value in zip(frameworks, values, strict=True):
        by_name.setdefault(framework, []).append(value)
    return "its own" if all(map(_same, by_name.values())) else "DIFFERS"


def machine_state(before: Mapping[str, Any], after: Mapping[str, Any] | None, processes: Sequence[Any] = ()) -> Markup:
    """The machine before and after, and during its timed processes; a changed clock and a busy machine are marked.

    Args:
        before: `system.before` of a result.
        after: `system.after`, or None.
        processes: From comparison.json.
    """
    after = after or {}
    cores = _get(before, "cpu", "logical_cores")
    states: list[tuple[str, list[Any]]] = [
        ("clock, MHz", [_get(before, "cpu", "clock_mhz"), _get(after, "cpu", "clock_mhz")]),
        ("load, one minute", [_first(_get(before, "load_average")), _first(_get(after, "load_average"))]),
        ("memory free", [_get(before, "memory_bytes", "available"), _get(after, "memory_bytes", "available")]),
    ]
    seen = [row["machine"] for row in processes if row["job"] == "time" and isinstance(row["machine"], Mapping)]
    inner = [entry for own in seen for entry in own.values() if isinstance(entry, Mapping)]
    own = {
        "clock, MHz": [entry.get("clock_mhz") for entry in inner],
        "load, one minute": [_first(entry.get("load_average")) for entry in inner],
        "memory free": [entry.get("available_bytes") for entry in inner],
    }
    rows = []
    for name, pair in states:
        values = [value for value in (as_float(entry) for entry in [*pair, *own[name]]) if value is not None]
        word = Cell(shown="")
        if name.startswith("clock") and values and max(values) > (1 + _CLOCK) * min(values):
            word = Cell(shown=f"changed by {percent(max(values) / max(min(values), 1e-9) - 1)}", mark="warn")
        # Timed code causes load itself: only the load before it matters.
        busy = as_float(pair[0]) if name.startswith("load") else None
        if busy is not None and busy > 0.5 * (as_float(cores) or 1.0):
            word = Cell(shown="busy before it began", mark="warn")
        between = [value for value in map(as_float, own[name]) if value is not None]
        shown = size if name.startswith("memory") else number
        span = f"{shown(min(between))} to {shown(max(between))}" if between else "-"
        rows.append([name, *(Cell(shown=shown(end), order=as_float(end)) for end in pair), span, word])
    return table("The machine", ["state", "before", "after", "in timed processes", "remark"], rows, sortable=False)


def _get(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else None


def result_differences(documents: Sequence[tuple[str, Mapping[str, Any]]]) -> Markup | None:
    """Machine and software of the results of a page, one column per environment; None without results.

    Args:
        documents: Names and documents of comparison.json and result.json.
    """
    if not documents:
        return None
    columns: dict[str, list[str]] = {}
    reported: dict[str, dict[str, Any]] = {}
    for name, document in documents:
        own = dict(_flat(steady(document)))
        key = json.dumps(own, sort_keys=True, default=str)
        columns.setdefault(key, []).append(name)
        reported[key] = own
    if len(columns) == 1:
        said = f"All {len(documents)} results are of one machine and one set of versions."
        if len(documents) == 1:
            said = "There is one result: nothing to compare its machine and versions with."
        return element("div", element("p", said, class_="quiet"), _machine(documents[0][1]))
    shown = list(columns)[:_MOST_COLUMNS]
    rows = []
    for key in dict.fromkeys(key for place in shown for key in reported[place]):
        values = [reported[place].get(key, "not reported") for place in shown]
        if not _same(values):
            rows.append([key, *(size(value) if key == _MEMORY else _shown(value) for value in values)])
    names = [f"environment {number}" for number, _ in enumerate(shown, 1)]
    legend = [
        element("li", f"{name}: ", *((", " if place else "", named(own)) for place, own in enumerate(columns[key])))
        for name, key in zip(names, shown, strict=True)
    ]
    head = f"The results of this page are of {len(columns)} environments: compare them with care."
    beyond = None if len(shown) == len(columns) else element("p", f"{len(columns) - len(shown)} more are not shown.")
    return element(
        "div",
        element("p", element("strong", head), class_="note warn"),
        element("ul", legend),
        beyond,
        table("What differs between them", ["part", *names], rows),
    )


def _machine(document: Mapping[str, Any]) -> Markup:
    """The machine and software common to all results of the page."""
    before, software = _get(document, "system", "before"), document.get("software")
    places = [
        ("host", before, ("host",)),
        ("processor", before, ("cpu", "model")),
        ("logical processors", before, ("cpu", "logical_cores")),
        ("platform", software, ("platform",)),
        ("Python", software, ("python",)),
        ("deep5", software, ("deep5",)),
    ]
    pairs = [(name, _shown(value)) for name, part, keys in places if (value := _get(part, *keys)) is not None]
    memory = _get(before, "memory_bytes", "total")
    return facts([*pairs, *([] if memory is None else [("memory", size(memory))])])


def steady(document: Mapping[str, Any]) -> dict[str, Any]:
    """The machine and software of a result that do not change by themselves within minutes.

    Args:
        document: From comparison.json or result.json.
    """
    before = _get(document, "system", "before") or {}
    software = document.get("software") or {}
    cpu = {key: value for key, value in (_get(before, "cpu") or {}).items() if key != "clock_mhz"}
    parts = {
        key: software.get(key) for key in ("python", "platform", "deep5", "packages", "environment_variables", "commit")
    }
    return {
        "host": before.get("host"),
        "cpu": cpu,
        "affinity": before.get("affinity"),
        _MEMORY: _get(before, "memory_bytes", "total"),
        "accelerators": json.dumps(before.get("accelerators"), sort_keys=True),
        **{key: value for key, value in parts.items() if value is not None},
    }
