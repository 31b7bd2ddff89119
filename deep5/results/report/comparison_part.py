"""The section of a comparison: verdicts and ratios, times, proof of equivalence, differing settings, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deep5.measuring.scheme import scheme_of
from deep5.results.combined_warnings import combined
from deep5.results.comparison import ComparisonResult
from deep5.results.comparison_table import left_out_of, quick_note, whole_table
from deep5.results.markup import Markup, element, named
from deep5.results.report.charts import phases_chart, ratio_chart, samples_chart
from deep5.results.report.drawing import Pen
from deep5.results.report.environment import candidate_differences, machine_state
from deep5.results.report.groups import badges
from deep5.results.report.numbers import as_float, number, percent, ratio, seconds, verdict
from deep5.results.report.parts import facts, folded, guarded, note, what_ran
from deep5.results.report.tables import Cell, table

__all__ = ["comparison_part", "comparison_title", "equivalence_table", "verdict_list", "verdict_table"]

_MARKS = {"faster": "good", "slower": "bad"}
_FEW = 8
# Ratios above this are shown as a factor, not as percent.
_TIMES = 2
_PARTS = {
    "a": "(a) float64",
    "b": "(b) float32",
    "c": "(c) gradients",
    "d": "(d) float32, free-running",
}


def comparison_title(result: ComparisonResult) -> str:
    """What was compared, how, and on how many threads."""
    document = result.document
    threads = f"{number(document['threads'])} thread{'s' * (document['threads'] != 1)}"
    return f"{document['recipe']['name']}: {document['kind']}, {document['mode']}, {threads}"


def verdict_list(result: ComparisonResult) -> Markup:
    """A sentence per verdict, claims first; then the candidates that were not timed, and why."""
    rows = sorted(result.verdicts, key=lambda row: row["word"] == "no difference shown")
    scheme = scheme_of(result.document["statistics"])
    said: list[Markup] = _counted(rows) if len(rows) > _FEW else []
    for row in rows if len(rows) <= _FEW else []:
        word = element("b", verdict(row, scheme), class_=_MARKS.get(row["word"]))
        where = f" on {row['workload']}" if len({own["workload"] for own in rows}) > 1 else ""
        names = named(row["candidate"]), " against ", named(row["baseline"]), where, ": "
        said.append(element("li", *names, word, f", ratio {ratio(row['ratio'], 3)}{_interval(row)}{_per(row)}"))
    if len(rows) > 1 and (together := whole_table(rows)):
        said.append(element("li", together))
    for row in result.candidates:
        if row["reason"]:
            word = element("b", row["status"], class_="bad")
            said.append(element("li", named(row["label"]), ": ", word, ", ", named(row["reason"], 300)))
    if result.document["status"] != "success":
        reasons = named("; ".join(result.document["reasons"]), 400)
        said.append(
            element("li", "the comparison ", element("b", result.document["status"], class_="bad"), ": ", reasons)
        )
    return element("ul", said or [element("li", "no verdicts")], class_="verdicts")


def _counted(rows: Sequence[dict[str, Any]]) -> list[Markup]:
    """For many workloads: on how many each candidate is faster or slower, and the range of its ratios."""
    said = []
    for candidate in dict.fromkeys(row["candidate"] for row in rows):
        own = [row for row in rows if row["candidate"] == candidate]
        words: list[Markup | str | None] = []
        for word in ("faster", "slower", "no difference shown"):
            if count := sum(row["word"] == word for row in own):
                words += [", " if words else None, element("b", f"{word} on {count}", class_=_MARKS.get(word))]
        ratios = [row["ratio"] for row in own]
        span = f"; ratios {ratio(min(ratios), 3)} to {ratio(max(ratios), 3)}"
        names = named(candidate), " against ", named(own[0]["baseline"]), f", {len(own)} workloads: "
        said.append(element("li", *names, *words, span))
    return said


def _per(row: dict[str, Any]) -> str:
    return ", per sample: their batches differ in size" if row["per"] == "sample" else ""


def _interval(row: dict[str, Any]) -> str:
    return "" if row["low"] is None else f" ({ratio(row['low'], 3)} to {ratio(row['high'], 3)})"


def verdict_table(result: ComparisonResult) -> Markup | None:
    """Ratios, intervals and verdicts, one row per workload and candidate."""
    if not result.verdicts:
        return None
    several, mixed = _several(result), any(row["per"] == "sample" for row in result.verdicts)
    columns = ["candidate", *(["workload"] if several else []), "verdict", "ratio", *(["time of"] if mixed else [])]
    columns += ["low", "high", "noise floor", "smallest shown", "p", "rounds"]
    rows = [
        [
            named(row["candidate"]),
            *([named(row["workload"])] if several else []),
            Cell(shown=row["word"], mark=_MARKS.get(row["word"], "")),
            Cell.ratio(row["ratio"]),
            *([f"a {row['per']}"] if mixed else []),
            *(Cell.ratio(row[key]) for key in ("low", "high")),
            *(_excess(row[key]) for key in ("floor", "smallest")),
            *(Cell.number(row[key]) for key in ("p", "rounds")),
        ]
        for row in result.verdicts
    ]
    baseline = named(result.document["baseline"])
    about = "Each candidate's time over that of the baseline, "
    return element(
        "div", element("p", about, baseline, "; below 1 is faster.", class_="quiet"), table("Verdicts", columns, rows)
    )


def _several(result: ComparisonResult) -> bool:
    """Whether there is more than one workload; a single one is named in the title."""
    return len({row["workload"] for row in result.results}) > 1


def _excess(value: Any) -> Cell:
    parsed = as_float(value)
    if parsed is None:
        return Cell.number(None)
    return Cell(shown=percent(parsed - 1) if parsed < _TIMES else f"{number(parsed, 3)} times", order=parsed)


def _lost(result: ComparisonResult) -> list[str]:
    """Why the comparison is not a success, and why candidates were not timed; each reason once."""
    said = [f"{row['label']} is {row['status']}: {row['reason']}" for row in result.candidates if row["reason"]]
    for row in result.candidates:
        if row["failed_rounds"]:
            rounds = ", ".join(number(place + 1) for place in row["failed_rounds"])
            said.append(f"{row['label']} failed in these rounds: {rounds}")
    return [*said, *(reason for reason in result.document["reasons"] if not any(reason in own for own in said))]


def _times(result: ComparisonResult) -> Markup | None:
    if not result.results:
        return None
    several, of = _several(result), {row["interval_of"] for row in result.results}
    columns = ["candidate", *(["workload"] if several else []), "median", "low", "high", "first call", "warm-up"]
    columns += ["samples/s", "batch", "processes", "samples", *(["interval of"] if len(of) > 1 else [])]
    rows = [
        [
            named(row["candidate"]),
            *([named(row["workload"])] if several else []),
            *(Cell.seconds(row[key]) for key in ("median_s", "low_s", "high_s", "first_call_s", "warm_up_s")),
            *(Cell.number(row[key]) for key in ("samples_per_s", "batch_size", "processes", "samples")),
            *([row["interval_of"]] if len(of) > 1 else []),
        ]
        for row in result.results
    ]
    over = "" if len(of) > 1 else f" over the {of.pop()}"
    return table(f"Times per call, with the interval of the median{over}", columns, rows)


def equivalence_table(result: ComparisonResult) -> Markup | None:
    """The result of the proof by value: relative error, ULPs, tolerance, first failure."""
    if not result.document["equivalence"]:
        return element("p", "Nothing was proved: no candidate reached the proof.", class_="note warn")
    several = any(row["workload"] for row in result.document["equivalence"])
    # The outcome comes early, so that it is visible on a phone.
    columns = ["candidate", "outcome", "part", *(["workload"] if several else []), "value", "relative error", "ULPs"]
    columns += ["allowed", "of allowed"]
    ordered = sorted(result.document["equivalence"], key=lambda row: row["passed"])
    rows = [
        [
            named(row["candidate"]),
            Cell(shown="same" if row["passed"] else "DIFFERENT", mark="good" if row["passed"] else "bad"),
            _PARTS[row["part"]],
            *([named(row["workload"] or "-")] if several else []),
            named(row["what"]),
            *(Cell.number(as_float(row[key])) for key in ("relative", "ulps", "allowed")),
            _share(row),
        ]
        for row in ordered
    ]
    failed = sum(not row["passed"] for row in ordered)
    text = (
        f"{failed} of {len(rows)} values {'differs' if failed == 1 else 'differ'} by more than is allowed"
        if failed
        else f"all {len(rows)} values within what is allowed"
    )
    return table(f"Proof of equivalence: {text}", columns, rows)


def _share(row: dict[str, Any]) -> Cell:
    relative, allowed = as_float(row["relative"]), as_float(row["allowed"])
    if relative is None or not allowed:
        return Cell.number(None)
    return Cell(shown=percent(relative / allowed), order=relative / allowed)


def _share_of(statistics: dict[str, Any]) -> str:
    return f"{100 * statistics['confidence']:g} %"


def _looks(document: dict[str, Any]) -> str:
    if document["mode"] == "quick":
        rounds = scheme_of(document["statistics"]).quick_rounds
        return "one round" if rounds == 1 else f"{rounds} rounds"
    return f"{', '.join(map(number, document['statistics']['looks']))} rounds"


def _proof(proof: dict[str, Any]) -> str:
    steps = "of single calls" if proof["steps"] is None else f"over {number(proof['steps'])} steps of training"
    kinks = {
        True: "; every network is smooth",
        False: "; not every network is smooth: part (d) applies to those that are",
    }
    return steps + kinks.get(proof["smooth"], "")


def comparison_part(result: ComparisonResult, place: str, pen: Pen) -> Markup:
    """The section of one comparison.

    Args:
        result: The comparison.
        place: The section's identifier.
        pen: Draws its charts.

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """
    document = result.document
    measurement, resources, statistics = document["measurement"], document["resources"], document["statistics"]
    took = (
        "-"
        if resources is None
        else f"{seconds(resources['wall_s'])}, {percent(resources['harness_share'])} of it deep5's own"
    )
    about = [
        ("on the clock", measurement["scope"]),
        ("order", measurement["order"]),
        ("seed", document["seed"]),
        ("verdicts after", f"{_looks(document)}; intervals at {_share_of(statistics)}"),
        ("proof", _proof(document["proof"])),
        ("processors", ", ".join(map(number, measurement["processors"]))),
        ("baseline", document["baseline"]),
        ("begun", document["started"]),
        *([("resumed", ", ".join(document["resumed"]))] if document["resumed"] else []),
        ("took", took),
        ("folder", result.folder.name),
    ]
    warnings = [*([quick_note(document)] if document["mode"] == "quick" else []), *combined(document["warnings"])]
    left_out: dict[str, list[str]] = {}
    for row in document["candidates"]:
        for reason in left_out_of(document, row):
            left_out.setdefault(reason, []).append(row["label"])
    system = document["system"]
    return element(
        "section",
        element("h2", named(comparison_title(result), 80), id=place),
        badges(document["recipe"]),
        note(_lost(result), "Not a success, or not compared", "bad"),
        note(warnings, "Warnings"),
        element("h3", "Verdicts and ratios"),
        guarded("the ratios", lambda: pen.figure(ratio_chart(result))),
        guarded("the table of verdicts", lambda: verdict_table(result))
        or element("p", "No candidate has a verdict against the baseline.", class_="quiet"),
        element("h3", "Times"),
        element(
            "div",
            guarded("the samples", lambda: pen.figure(samples_chart(result))),
            guarded("the phases", lambda: pen.figure(phases_chart(result))),
            class_="charts",
        ),
        guarded("the times", lambda: _times(result)),
        element("h3", "Proof of equivalence"),
        guarded("the proof", lambda: equivalence_table(result)),
        folded("Left out", [f"{', '.join(whose)}: {reason}" for reason, whose in left_out.items()]),
        element("h3", "Environment"),
        guarded("the settings", lambda: candidate_differences(document["candidates"])),
        guarded("the machine", lambda: machine_state(system["before"], system["after"], document["processes"])),
        guarded("the facts", lambda: facts(about)),
        guarded("the recipe", lambda: what_ran(document["recipe"])),
        aria_labelledby=place,
    )
