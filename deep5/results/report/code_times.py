"""Times of a run that timed code: every round of candidate and baseline, and their ratio beside that of the baselines.

Intervals are those of the run's metrics: of a median, by order statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from deep5.core import quantities
from deep5.core.charts import PALETTE, altair, logarithmic, same_axis
from deep5.core.errors import TooFewSamples, UsageError
from deep5.core.terminal import counted
from deep5.measuring.samples import Interval, median_interval, paired_ratios
from deep5.results.markup import Markup, clean, named
from deep5.results.ranks_file import sample_files
from deep5.results.report.chart_parts import SECONDS, WIDTH, Drawing, check_size, rows_axis, spread, within
from deep5.results.report.numbers import ratio
from deep5.results.report.tables import Cell, table
from deep5.results.report.theme import BAND, INK
from deep5.results.result import Result
from deep5.results.standing import standing
from deep5.results.timed_rounds import SIDES, timed_rounds, times_code

__all__ = ["times_drawing", "times_tables"]

# Pixels of a row, and of its band. Rounds whose points are drawn. Characters of a component's name.
_STEP, _BAND, _POINTS, _NAME = 46, 36, 300, 80
_SHOWN = {side: side.replace("_", " ") for side in SIDES}


class _Series(NamedTuple):
    """The values of a side in every round, their median, and its interval, if there are enough rounds."""

    name: str
    values: Sequence[float]
    middle: float
    interval: Interval | None


class _Times(NamedTuple):
    """Seconds of a round by side, and their ratios to the baseline's of the same round."""

    seconds: list[_Series]
    ratios: list[_Series]


def times_drawing(run: Result) -> Drawing | None:
    """Every round's times and ratios as points, with medians and intervals; None for a run that timed no code.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The samples are not in deep5's format, or a time cannot be drawn.
    """
    times = _read(run)
    if times is None:
        return None
    alt = altair()
    rounds = len(times.seconds[0].values)
    steps = (run.document["measurement"] or {}).get("loops")
    each = "round" if steps is None else f"round ({counted(steps, 'step')})"
    panels = [
        _panel(alt, times.seconds, f"time of a {each}", ratio=False),
        _panel(alt, times.ratios, "time / baseline's in the same round", ratio=True),
    ]
    chart = alt.vconcat(*panels, spacing=16)
    return Drawing("times", "Times of rounds", _about(run, times, rounds), chart, standing([run]))


def times_tables(run: Result) -> list[Markup]:
    """The same as numbers: medians of times and of ratios, with their intervals; empty for a run that timed no code.

    Raises:
        UsageError: As for `times_drawing`.
    """
    times = _read(run)
    if times is None:
        return []
    components = dict(zip(_SHOWN.values(), _components(run), strict=True))
    seconds = [
        [each.name, named(components[each.name], _NAME), *map(Cell.seconds, _ends(each)), Cell.number(len(each.values))]
        for each in times.seconds
    ]
    ratios = [[f"{each.name} / baseline", *map(Cell.ratio, _ends(each))] for each in times.ratios]
    columns = ["median", "low", "high"]
    return [
        table("Times of a round", ["side", "component", *columns, "rounds"], seconds),
        table("Ratios of times of the same round; of the baselines: the noise", ["ratio", *columns], ratios),
    ]


def _ends(each: _Series) -> tuple[float | None, ...]:
    ends = (None, None) if each.interval is None else (each.interval.low, each.interval.high)
    return (each.middle, *ends)


def _read(run: Result) -> _Times | None:
    if not times_code(run):
        return None
    for _, path in sample_files(run.folder, run.rank_count):
        check_size(run.folder, path.name)
    found = timed_rounds(run)
    if not found:
        return None
    candidate, baseline, again = (found[side] for side in SIDES)
    # Also refuses a time that is not positive and finite.
    ratios = [paired_ratios(own, baseline).tolist() for own in (candidate, again)]
    beyond = [value for values in found.values() for value in values if not within(value, SECONDS)]
    if beyond:
        raise UsageError(
            f"a round of {run.folder.name} took {beyond[0]:.3g} s; allowed: {SECONDS[0]:g} to {SECONDS[1]:g} s in a "
            "chart; remedy: restore its samples from a copy"
        )
    return _Times(
        [_series(_SHOWN[side], found[side]) for side in SIDES],
        [_series(_SHOWN[side], own) for side, own in zip((SIDES[0], SIDES[2]), ratios, strict=True)],
    )


def _series(name: str, values: Sequence[float]) -> _Series:
    try:
        interval = median_interval(values)
    except TooFewSamples:
        interval = None
    return _Series(name, values, float(np.median(values)), interval)


def _panel(alt: Any, series: Sequence[_Series], title: str, *, ratio: bool) -> Any:
    points = [
        {"name": each.name, "value": each.values[place], "round": place}
        for each in series
        for place in _drawn(each.values)
    ]
    medians = [
        {"name": each.name, "middle": each.middle}
        | ({} if each.interval is None else {"low": each.interval.low, "high": each.interval.high})
        for each in series
    ]
    ends = [each.values[place] for each in series for place in _drawn(each.values)]
    shown, around = (None, [0.97, 1.03]) if ratio else (quantities.seconds, [])
    x = logarithmic(alt, alt.X, "value:Q", spread([*ends, *around]), title, shown)
    y = rows_axis(alt, [each.name for each in series])
    within_row = alt.YOffset("round:Q", scale=alt.Scale(nice=False, zero=False, padding=6))
    data = alt.Chart(alt.Data(values=medians))
    layers = [
        data.mark_tick(color=INK, thickness=2, height=_BAND, opacity=1).encode(x=same_axis(x, "middle:Q"), y=y),
        alt.Chart(alt.Data(values=points))
        .mark_point(filled=True, size=20, opacity=1, color=PALETTE[0])
        .encode(x=x, y=y, yOffset=within_row),
    ]
    if ratio:
        one = alt.Chart(alt.Data(values=[{"one": 1.0}]))
        layers.insert(0, one.mark_rule(color=INK, strokeDash=[3, 3]).encode(x=same_axis(x, "one:Q")))
    if all(each.interval is not None for each in series):
        band = data.mark_bar(color=BAND, height=_BAND)
        layers.insert(0, band.encode(x=same_axis(x, "low:Q"), x2="high:Q", y=y))
    return alt.layer(*layers).properties(width=WIDTH, height=_STEP * len(series))


def _drawn(values: Sequence[float]) -> list[int]:
    """The rounds whose points are drawn: all, or some at equal distances and the two extremes."""
    if len(values) <= _POINTS:
        return list(range(len(values)))
    chosen = np.linspace(0, len(values) - 1, _POINTS - 2).round().astype(int).tolist()
    return sorted({*chosen, int(np.argmin(values)), int(np.argmax(values))})


def _about(run: Result, times: _Times, rounds: int) -> str:
    candidate, baseline, _ = _components(run)
    ranks = "" if run.rank_count == 1 else f", of the slowest of {run.rank_count} ranks"
    said = [
        f"Candidate: {candidate}; baseline, and again a second instance of it: {baseline}",
        f"Points are times of {counted(rounds, 'round')}{ranks}, from the first at the top of a row to the last",
    ]
    if (interval := times.seconds[0].interval) is None:
        said.append("Lines are medians, without intervals: there are fewer than six rounds")
    else:
        said.append(f"Lines are medians, and gray bands their {100 * interval.confidence:g} % intervals")
    ours, noise = map(_ratio, times.ratios)
    said.append(f"Ratio to the baseline of the same round: candidate {ours}; baseline again (A/A) {noise}")
    if rounds > _POINTS:
        said.append(f"Of {rounds} rounds, at most {_POINTS} are drawn, with the fastest and the slowest")
    return ". ".join(said) + "."


def _ratio(each: _Series) -> str:
    ends = "" if each.interval is None else f" ({ratio(each.interval.low)} to {ratio(each.interval.high)})"
    return f"{ratio(each.middle)}{ends}"


def _components(run: Result) -> tuple[str, str, str]:
    """The names of what was timed, by side."""
    recipe = run.document["recipe"]
    parts = {**recipe["mutable"], **recipe["fixed"]}
    wholes = (" ".join(clean(str(parts[key])).split()) for key in ("candidate", "baseline"))
    candidate, baseline = (whole if len(whole) <= _NAME else f"{whole[: _NAME - 1]}…" for whole in wholes)
    return candidate, baseline, baseline
