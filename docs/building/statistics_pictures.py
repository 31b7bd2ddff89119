"""Pictures of the statistics: every number in them comes from a function of `deep5.measuring`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import compress, product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import altair as alt
import numpy as np

from deep5.core.charts import PALETTE, PERCENT, WIDTH
from deep5.measuring.bootstrap import median_distribution
from deep5.measuring.order_test import order_p
from deep5.measuring.profiles import LIMIT, performance_profiles
from deep5.measuring.samples import median_interval
from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import floor_of, median_ratio, smallest_shown, steady_part
from deep5.results.report.theme import BAND, INK
from deep5.results.round_samples import order_of_round
from drawn_charts import drawn

__all__ = ["draw"]

RED_TEAM = Path(__file__).parents[1] / "results" / "red_team.md"

SIMULATED = (("identical", 0.0, 2), ("3 % slower", 0.03, 3), ("6 % slower", 0.06, 5))
"""Comparisons of the picture `looks`: name, effect and seed."""
NOISES = (0.01, 0.02, 0.05)
"""Noise between processes, as a standard deviation of the logarithm."""
WORKLOADS = {
    "digits": {"adam": 10.0, "momentum": 13.0, "sgd": 30.0},
    "images": {"adam": 110.0, "momentum": 60.0, "sgd": 70.0},
    "text": {"adam": 40.0, "momentum": 100.0, "sgd": math.inf},
    "speech": {"adam": math.inf, "momentum": 50.0, "sgd": 180.0},
}
"""Invented times to a target, in seconds, of the picture `profile`."""


def draw(subject: str) -> str:
    """The SVG of one of `PICTURES`."""
    chart, label = PICTURES[subject]()
    return drawn(chart.properties(width=WIDTH), label)


def _rows(rows: Iterable[tuple[Any, ...]], *names: str) -> alt.Chart:
    """A chart of rows, whose columns have these names."""
    return alt.Chart(alt.Data(values=[dict(zip(names, map(_plain, row), strict=True)) for row in rows]))


def _plain(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if isinstance(value, np.generic) else value


def _x(title: str, *ends: float, **more: Any) -> alt.X:
    return alt.X("x:Q", title=title, scale=alt.Scale(domain=ends, nice=False), **more)


def _y(title: str, *ends: float, **more: Any) -> alt.Y:
    return alt.Y("y:Q", title=title, scale=alt.Scale(domain=ends, nice=False), **more)


def _named(names: Iterable[str]) -> alt.Color:
    """Colors by name, in this order."""
    listed = list(names)
    return alt.Color("name:N", title=None, scale=alt.Scale(domain=listed, range=list(PALETTE[: len(listed)])))


def _normal(count: int, spread: float) -> Any:
    """So many values whose distribution is as close to a normal one as possible, in a fixed mixed order."""
    quantiles = np.array([NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)])
    quantiles *= spread / quantiles.std(ddof=1)
    return np.random.default_rng(0).permutation(quantiles)


def _median() -> tuple[Any, str]:
    times = np.sort(2.4 + 0.15 * np.random.default_rng(4).exponential(1.0, 15))
    interval = median_interval(times.tolist())
    band = _rows([(interval.low, interval.high)], "y", "high").mark_rect(color=BAND)
    middle = _rows([(np.median(times),)], "y").mark_rule(color=INK, strokeDash=[4, 3])
    dots = _rows(enumerate(times, start=1), "x", "y").mark_point(filled=True, size=50, color=PALETTE[0])
    chart = alt.layer(
        band.encode(_y("ms", 2.3, 3.1), alt.Y2("high:Q")),
        middle.encode(_y("ms", 2.3, 3.1)),
        dots.encode(_x("sample, sorted", 0, 16), _y("ms", 2.3, 3.1)),
    )
    return chart.properties(height=200), (
        "Fifteen sorted times. The band is the interval of the median, from the fourth to the twelfth of them."
    )


def _tosses() -> tuple[Any, str]:
    rounds = 10
    ranks = range(1, rounds + 1)
    counts = np.bincount([sum(compress(ranks, signs)) for signs in product((False, True), repeat=rounds)])
    largest = CURRENT.largest_p(rounds)
    tail = [value for value in range(len(counts)) if 2 * counts[: value + 1].sum() / 2**rounds <= largest]
    ends = {*tail, *(len(counts) - 1 - value for value in tail)}
    names = ("no claim", f"claim: p ≤ {largest:.4f}")
    rows = [(value, count, names[value in ends]) for value, count in enumerate(counts)]
    chart = _rows(rows, "x", "y", "name").mark_bar(size=5)
    title = "sum of the ranks with a positive sign, 10 rounds"
    chart = chart.encode(_x(title, -1, len(counts)), _y("orders, of 1024", 0, 45), _named(names))
    return chart.properties(height=180), (
        "Orders by the sum of the positive ranks after ten rounds; only the sums 0 and 55 support a claim."
    )


def _compared(seed: int, effect: float) -> tuple[list[float], list[bool]]:
    """Logarithms of the ratios of thirty rounds with 2 % of noise, and who came first in each."""
    noise = 0.02 * np.random.default_rng(seed).standard_normal((CURRENT.looks[-1], 2))
    ratios = (noise[:, 0] - noise[:, 1] + math.log1p(effect)).tolist()
    first = [order_of_round(seed, number, 2)[0] == 0 for number in range(CURRENT.looks[-1])]
    return ratios, first


def _looks() -> tuple[Any, str]:
    lines, claims = [], []
    for name, effect, seed in SIMULATED:
        ratios, first = _compared(seed, effect)
        p = {rounds: order_p(ratios[:rounds], first[:rounds]) for rounds in range(6, CURRENT.looks[-1] + 1)}
        lines += [(rounds, value, name) for rounds, value in p.items()]
        claims += [(look, p[look], name) for look in CURRENT.looks if p[look] <= CURRENT.largest_p(look)][:1]
    x = _x("rounds", 5, 31, axis=alt.Axis(values=[6, *CURRENT.looks]))
    y = alt.Y("y:Q", title="p", scale=alt.Scale(type="log", domain=[1e-9, 1]), axis=alt.Axis(format="e", tickCount=4))
    color = _named(name for name, _, _ in SIMULATED)
    allowed = [(look - 0.6, look + 0.6, CURRENT.largest_p(look), 1e-9) for look in CURRENT.looks]
    levels = _rows(allowed, "x", "end", "y", "low").mark_rect(color=BAND)
    chart = alt.layer(
        levels.encode(x, y, alt.X2("end:Q"), alt.Y2("low:Q")),
        _rows(lines, "x", "y", "name").mark_line(strokeWidth=2).encode(x, y, color),
        _rows(claims, "x", "y", "name").mark_point(filled=True, size=90).encode(x, y, color),
    )
    return chart.properties(height=240), (
        "p-values of three simulated comparisons by rounds. Bars at the looks end at the largest that supports a claim."
    )


def _bootstrap() -> tuple[Any, str]:
    ratios = 0.04 + _normal(16, 0.03)
    values, weights = median_distribution(ratios)
    interval = median_ratio(np.exp(ratios).tolist(), [1.0] * 16)
    edges = np.linspace(0.99, 1.09, 51)
    shares, _ = np.histogram(np.exp(values), edges, weights=weights)
    x = _x("median ratio of 16 rounds drawn with replacement", 0.99, 1.09)
    y = _y("probability", 0, 0.15, axis=alt.Axis(labelExpr=PERCENT, tickCount=3))
    bars = _rows(zip(edges, edges[1:], shares, strict=False), "x", "end", "y").mark_rect(color=PALETTE[0])
    chart = alt.layer(
        _rows([(interval.low, interval.high)], "x", "end").mark_rect(color=BAND).encode(x, alt.X2("end:Q")),
        bars.encode(x, y, alt.X2("end:Q"), y2=alt.datum(0)),
        _rows([(1.0,)], "x").mark_rule(color=INK, strokeDash=[4, 3]).encode(x),
    )
    return chart.properties(height=180), (
        "Bootstrap distribution of the median of sixteen ratios, and its interval as a band, which excludes 1."
    )


def _percent_of_noise(spread: float) -> str:
    return f"{100 * spread:.0f} % of noise"


def _floor() -> tuple[Any, str]:
    rows = [
        (count, floor_of(np.exp(_normal(32, spread)), count), _percent_of_noise(spread))
        for spread in NOISES
        for count in (*CURRENT.counts("quick", 2), *range(10, 31))
    ]
    chart = _rows(rows, "x", "y", "name").mark_point(filled=True, size=40)
    x = _x("rounds of the comparison", 0, 31, axis=alt.Axis(values=[2, 10, 16, 24, 30]))
    chart = chart.encode(x, _y("noise floor, as a ratio", 1, 1.35), _named(map(_percent_of_noise, NOISES)))
    return chart.properties(height=200), (
        "The noise floor falls with the number of rounds, for three noises between processes."
    )


def _power() -> tuple[Any, str]:
    rows = []
    for spread in NOISES:
        times = np.exp(_normal(32, spread))
        for look in CURRENT.looks:
            ratios = _normal(look, math.sqrt(2) * spread).tolist()
            rows.append((look, smallest_shown(ratios, floor_of(times, look)) - 1, _percent_of_noise(spread)))
    x = _x("rounds", 9, 31, axis=alt.Axis(values=list(CURRENT.looks)))
    y = _y("smallest difference that is found", 0, 0.25, axis=alt.Axis(labelExpr=PERCENT))
    chart = _rows(rows, "x", "y", "name").mark_line(point=alt.OverlayMarkDef(filled=True, size=50))
    chart = chart.encode(x, y, _named(map(_percent_of_noise, NOISES)))
    return chart.properties(height=200), (
        "The smallest difference that is found in 95 % of cases, by the number of rounds and the noise."
    )


def _steady() -> tuple[Any, str]:
    noise = 0.03 * np.random.default_rng(1).standard_normal(60)
    times = 2.5 + 2.0 * np.exp(-np.arange(60) / 5) + noise
    found = steady_part(times.tolist())
    level = np.median(times[30:])
    names = ("steady", "warm-up")
    rows = [(place, value, names[place < found.begin]) for place, value in enumerate(times)]
    y = _y("ms", 2, 5)
    chart = alt.layer(
        _rows([(0.98 * level, 1.02 * level)], "y", "high").mark_rect(color=BAND).encode(y, alt.Y2("high:Q")),
        _rows(rows, "x", "y", "name")
        .mark_point(filled=True, size=40)
        .encode(_x("sample, without the first call", -1, 60), y, _named(names)),
    )
    return chart.properties(height=180), (
        f"Sixty times of a step; the first {found.begin} are the warm-up, the others are steady. A band shows "
        "2 % about the level of the second half."
    )


def _processes() -> tuple[Any, str]:
    rng = np.random.default_rng(3)
    levels = 2.5 * np.exp(0.02 * rng.standard_normal(16))
    names = ("one candidate", "the same candidate again")
    rows = [
        (
            process + 1 + 0.25 * rng.uniform(-1, 1),
            levels[process] * math.exp(0.002 * rng.standard_normal()),
            names[process % 2],
        )
        for process in range(16)
        for _ in range(20)
    ]
    chart = _rows(rows, "x", "y", "name").mark_point(filled=True, size=14)
    chart = chart.encode(_x("process", 0, 17), _y("ms", 2.35, 2.75), _named(names))
    return chart.properties(height=170), (
        "Times of sixteen processes of one program: close together within a process, far apart between them."
    )


def _profile() -> tuple[Any, str]:
    profiles = performance_profiles(WORKLOADS)
    names = {name: f"{name}, score {profile.score:.2f}" for name, profile in profiles.items()}
    rows = [
        (ratio, profile.share(ratio), names[name])
        for name, profile in profiles.items()
        for ratio in sorted({1.0, LIMIT, *(ratio for ratio in profile.ratios.values() if ratio <= LIMIT)})
    ]
    y = _y("workloads solved", 0, 1.05, axis=alt.Axis(labelExpr=PERCENT, values=[0, 0.25, 0.5, 0.75, 1]))
    chart = _rows(rows, "x", "y", "name").mark_line(interpolate="step-after", strokeWidth=2)
    chart = chart.encode(_x("multiple of the best time, τ", 1, LIMIT), y, _named(names.values()))
    return chart.properties(height=180), (
        "Share of four workloads that each of three optimizers solves within a multiple of the best time."
    )


def _cheats() -> tuple[Any, str]:
    rows = (line.rstrip(" |").rpartition("|")[2].strip() for line in RED_TEAM.read_text(encoding="utf-8").splitlines())
    counts = np.bincount([int(number) for number in rows if number.isdecimal()], minlength=15)
    bars = _rows(enumerate(counts[1:], start=1), "x", "y").encode(
        alt.X("x:O", title="rule", axis=alt.Axis(labelAngle=0)), alt.Y("y:Q", title="planted changes")
    )
    chart = bars.mark_bar(color=PALETTE[0]) + bars.mark_text(dy=-7).encode(text="y:Q")
    return chart.properties(
        height=170
    ), f"Number of planted changes by the rule that finds them; together {counts.sum()}."


PICTURES: dict[str, Callable[[], tuple[Any, str]]] = {
    "median": _median,
    "tosses": _tosses,
    "looks": _looks,
    "bootstrap": _bootstrap,
    "floor": _floor,
    "power": _power,
    "steady": _steady,
    "processes": _processes,
    "profile": _profile,
    "cheats": _cheats,
}
"""What a page may name after `statistics`: each returns a chart and what it shows."""
