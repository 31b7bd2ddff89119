"""A comparison for a terminal: verdicts first, then the proof, then what makes the numbers less certain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from deep5.core.quantities import percent, ratio, seconds, seconds_between, ulps
from deep5.core.terminal import counted, plain
from deep5.measuring.scheme import Scheme, scheme_of
from deep5.results.combined_warnings import combined
from deep5.results.comparison import ComparisonResult
from deep5.results.kind import COMPARISON
from deep5.results.ran_optimizers import optimizer_lines, optimizers_in

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

__all__ = ["comparison_tables", "left_out_of", "quick_note", "sentence", "whole_table"]

_SHOWN = 2
_LEAST_SHOWN_S = 0.5
_REASON = 300


def sentence(row: dict[str, Any], scheme: Scheme) -> str:
    """A verdict in words: the claim, or why there is none and what it would have been.

    Args:
        row: A row of `verdicts` in comparison.json.
        scheme: Rules of the comparison.
    """
    if row["word"] != "no difference shown":
        return str(row["word"])
    words = "; ".join(_missing(row, scheme))
    why = f": {words}" if words else ""
    if row["smallest"] is not None:
        return f"no difference shown{why} (the smallest provable: {_excess(row['smallest'])})"
    if row["floor"] is not None and not words:
        if row["floor"] < 2:
            return f"no difference shown (below {_excess(row['floor'])} it may be noise)"
        return f"no difference shown (too noisy: identical code may differ by up to {_excess(row['floor'])})"
    return f"no difference shown{why}"


def whole_table(rows: Iterable[dict[str, Any]]) -> str:
    """Which claims hold together, such as "3 of 4 claims hold for the whole table (at most 5 % of tables have a wrong
    one)"; empty for comparisons without such a test."""
    claims = [row for row in rows if row["word"] != "no difference shown" and row.get("sequential_p") is not None]
    if not claims:
        return ""
    holding = sum(row["whole_table"] for row in claims)
    if len(claims) == 1:
        said = "the one claim holds" if holding else "the one claim does not hold"
    else:
        said = f"{'all' if holding == len(claims) else f'{holding} of'} {len(claims)} claims hold"
    return f"{said} for the whole table (at most 5 % of tables would have a wrong one)"


def quick_note(document: dict[str, Any]) -> str:
    """What a quick comparison assumes, and the remedy."""
    scheme = scheme_of(document["statistics"])
    each = "one process" if scheme.quick_rounds == 1 else f"{scheme.quick_rounds} processes"
    return (
        f"quick: {each} per candidate, and a verdict assumes the noise of the calibration; remedy: --rigorous, which "
        f"measures {scheme.looks[0]} to {scheme.looks[-1]}"
    )


def _missing(row: dict[str, Any], scheme: Scheme) -> list[str]:
    """The conditions, of the three for a claim from several rounds, that do not hold."""
    rounds, said = row["rounds"], []
    if row["p"] is None:
        if rounds != scheme.quick_rounds:
            return [f"{rounds} rounds, and a verdict needs {scheme.looks[0]}"]
        return ["it has no valid noise floor; see the warnings"] if row["floor"] is None else []
    if row["p"] > (allowed := scheme.largest_p(rounds)):
        said.append(f"p is {row['p']:.2g}, not {allowed:.2g}")
    if None not in (row["low"], row["high"]) and row["low"] <= 1 <= row["high"]:
        said.append("the interval holds 1")
    if row["floor"] is None:
        said.append(f"the noise floor of {rounds} rounds is not known")
    elif max(row["ratio"], 1 / row["ratio"]) <= row["floor"]:
        said.append(f"the ratio is within the noise floor, {_excess(row['floor'])}")
    return said


def _excess(ratio: float) -> str:
    return percent(ratio - 1, 1) if ratio < 2 else f"{ratio:.3g} times"


def comparison_tables(result: ComparisonResult, console: Console) -> None:
    """Print a comparison.

    Args:
        result: The comparison.
        console: The console to print on.
    """
    document = result.document
    threads = "1 thread" if document["threads"] == 1 else f"{document['threads']} threads"
    head = f"{document['recipe']['name']}: {document['kind']}, {threads}, {document['mode']}"
    console.print(_text(head, "bold"))
    _verdicts(result, console)
    _proof(document, console)
    for row in document["candidates"]:
        if row["reason"]:
            console.print(_text(f"{row['label']} is {row['status']}: {row['reason']}"), overflow="fold")
        for reason in left_out_of(document, row, _brief)[:_SHOWN]:
            console.print(_text(f"{row['label']}: {reason}"), overflow="fold")
        if (count := len(row["left_out"]) - _SHOWN) > 0:
            console.print(_text(f"{row['label']}: left out: {count} more, listed in {COMPARISON}"), overflow="fold")
    if (count := len(document["verdicts"])) > 1:
        words = f"{count} separate verdicts: at most 1 % of identical candidates would be called different"
        if together := whole_table(document["verdicts"]):
            words += f"; {together}"
        console.print(_text(words))
    if document["mode"] == "quick":
        console.print(_text(quick_note(document)))
    for warning in combined(document["warnings"]):
        console.print(_text(f"warning: {warning}"), overflow="fold")
    resources = document["resources"]
    if resources is not None:
        console.print(_text(_spent(document, resources)))
    console.print(_text(result.folder), soft_wrap=True)


def _spent(document: dict[str, Any], resources: dict[str, float]) -> str:
    """How long a comparison took, by purpose."""
    spent = {"proof": 0.0, "timing": 0.0}
    for row in document["processes"]:
        spent["timing" if row["job"] == "time" else "proof"] += row["wall_s"]
    # The remaining processes are the calibration, if there was none, and the check whether files can be run.
    spent["preparation"] = resources["processes_s"] - sum(spent.values())
    parts = [f"{what} {seconds(spent_s)}" for what, spent_s in spent.items() if spent_s >= _LEAST_SHOWN_S]
    parts.append(f"deep5 itself {seconds(resources['harness_s'])}")
    return f"took {seconds(resources['wall_s'])}: {', '.join(parts)}"


def _brief(words: str) -> str:
    """The first line of a multi-line reason, with the line it introduces, and the number of further lines."""
    first, *rest = words.splitlines() or [""]
    if rest and first.endswith(":"):
        first += f" {rest.pop(0).strip()}"
    shown = first if len(first) <= _REASON else f"{first[:_REASON]} …"
    return f"{shown} … ({counted(len(rest), 'line')} more in {COMPARISON})" if rest else shown


def left_out_of(document: dict[str, Any], row: dict[str, Any], shown: Callable[[str], str] = str) -> list[str]:
    """Where a candidate could not take part in the proof, and why; and the parts that remain, if these are enough.

    Args:
        document: comparison.json.
        row: A row of its `candidates`.
        shown: Shortens a reason.
    """
    own = {each["part"] for each in document["equivalence"] if each["candidate"] == row["label"]}
    parts = {"float64": ["a"], "float32": ["b"] if document["kind"] == "inference" else ["b", "c", "d"]}
    said = []
    for reason in row["left_out"]:
        dtype = reason.removeprefix("in ").partition(":")[0]
        place = f"{_named(parts[dtype])} left out" if dtype in parts else "left out"
        enough = dtype in parts and own and row["status"] in ("proved", "timed")
        then = f"; nothing needs to be done: the proof still has {_named(sorted(own))}" if enough else ""
        said.append(f"{place}: {shown(reason)}{then}")
    return said


def _named(parts: Sequence[str]) -> str:
    return f"{'part' if len(parts) == 1 else 'parts'} {', '.join(f'({part})' for part in parts)}"


def _differing(document: dict[str, Any]) -> list[str]:
    """The settings in which candidates differ, except for the framework."""
    rows = [row["settings"] for row in document["candidates"]]
    keys = dict.fromkeys(key for row in rows for key in row)
    return [key for key in keys if any(row.get(key) != rows[0].get(key) for row in rows)]


def _verdicts(result: ComparisonResult, console: Console) -> None:
    settings = {row["label"]: row["settings"] for row in result.candidates}
    verdicts = {(row["workload"], row["candidate"]): row for row in result.verdicts}
    set_up = {label: median(times) for label, times in _set_up(result.document).items()}
    several = len({row["workload"] for row in result.results}) > 1
    outcomes, phases, scheme = [], [], scheme_of(result.document["statistics"])
    for row in sorted(result.results, key=lambda row: (row["workload"], row["median_s"])):
        verdict = verdicts.get((row["workload"], row["candidate"]))
        name = f"{row['workload']}: {row['candidate']}" if several else row["candidate"]
        baseline = row["candidate"] == result.document["baseline"]
        of_baseline = "1" if baseline else "-"
        if verdict is not None:
            of_baseline = ratio(verdict["ratio"])
            of_baseline += " a sample" if verdict["per"] == "sample" else ""
            if verdict["low"] is not None:
                of_baseline += f" ({ratio(verdict['low'])} to {ratio(verdict['high'])})"
        said = sentence(verdict, scheme) if verdict is not None else "baseline" if baseline else "-"
        if settings[row["candidate"]] != settings[result.document["baseline"]]:
            said += "; it has other settings and a separate proof"
        outcomes.append([name, seconds(row["median_s"]), of_baseline, said])
        interval = seconds_between(row["low_s"], row["high_s"])
        shown = [
            interval,
            seconds(set_up.get(row["candidate"])),
            seconds(row["first_call_s"]),
            seconds(row["warm_up_s"]),
            str(row["processes"]),
        ]
        phases.append([name, *shown])
    _table(console, ["candidate", "median", "ratio", "verdict"], outcomes)
    if keys := _differing(result.document):
        words = (
            f"Candidates with another {' or '.join(keys)} have other settings and a separate reference in the proof:"
        )
        console.print(_text(f"{words} whether they compute the same is not known; a ratio is only of time"))
        for line in optimizer_lines(optimizers_in(result.document)):
            console.print(_text(line), overflow="fold")
    single = all(row["interval_of"] == "samples of one process" for row in result.results)
    within = "95 % interval in its process" if single else "95 % interval"
    _table(console, ["candidate", within, "set-up", "first call", "warm-up", "processes"], phases)


def _set_up(document: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds from the start of each timed process to the first step, including imports, by candidate."""
    found: dict[str, list[float]] = {}
    for row in document["processes"]:
        if row["job"] == "time" and row["set_up_s"] is not None:
            found.setdefault(row["candidate"], []).append(row["set_up_s"])
    return found


def _proof(document: dict[str, Any], console: Console) -> None:
    """The worst row of each part and candidate: the one closest to its tolerance, or beyond it."""
    worst: dict[tuple[str, str], dict[str, Any]] = {}
    for row in document["equivalence"]:
        key = row["candidate"], row["part"]
        if key not in worst or _share(row) > _share(worst[key]):
            worst[key] = row
    rows = [
        [
            row["candidate"],
            f"({row['part']}) {row['workload'] + ': ' if row['workload'] else ''}{row['what']}",
            f"{float(row['relative']):.1e}",
            ulps(float(row["ulps"])),
            f"{float(row['allowed']):.0e}",
            "same" if row["passed"] else "DIFFERENT",
        ]
        for row in worst.values()
    ]
    steps = document["proof"]["steps"]
    over = "" if steps is None else f" over {steps} {'batches' if document['kind'] == 'inference' else 'steps'}"
    _table(console, ["candidate", f"proof{over}: the worst row of each part", "error", "ULPs", "allowed", ""], rows)
    if rows:
        console.print(_text("same: error <= allowed; ULPs, the difference in units in the last place, do not decide"))


def _share(row: dict[str, Any]) -> float:
    relative, allowed = float(row["relative"]), float(row["allowed"])
    return float("inf") if math.isnan(relative) else relative / allowed if allowed else float(relative > 0) * 1e9


def _table(console: Console, columns: Iterable[str], rows: Iterable[list[str]]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        table.add_column(_text(column), overflow="fold")
    for row in rows:
        table.add_row(*map(_text, row))
    console.print(table)


def _text(words: object, style: str = "") -> Text:
    """Text for the console, without markup: a label, a reason or a path may have any content."""
    from rich.text import Text

    return Text(plain(words), style=style)
