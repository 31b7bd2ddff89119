"""Pictures of the statistics: every number in them comes from a function of `deep5.measuring`."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import compress, product
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from deep5.measuring.bootstrap import median_distribution
from deep5.measuring.order_test import order_p
from deep5.measuring.profiles import LIMIT, performance_profiles
from deep5.measuring.samples import median_interval
from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import floor_of, median_ratio, smallest_shown, steady_part
from deep5.results.round_samples import order_of_round
from plot import Axis, Plot, numbered

__all__ = ["draw"]

RED_TEAM = Path(__file__).parents[1] / "results" / "red_team.md"

SIMULATED = (("a", "identical", 0.0, 2), ("b", "3 % slower", 0.03, 3), ("c", "6 % slower", 0.06, 5))
"""Comparisons of the picture `looks`: color, name, effect and seed."""
WORKLOADS = {
    "digits": {"adam": 10.0, "momentum": 13.0, "sgd": 30.0},
    "images": {"adam": 110.0, "momentum": 60.0, "sgd": 70.0},
    "text": {"adam": 40.0, "momentum": 100.0, "sgd": math.inf},
    "speech": {"adam": math.inf, "momentum": 50.0, "sgd": 180.0},
}
"""Invented times to a target, in seconds, of the picture `profile`."""


def draw(subject: str) -> str:
    """The SVG of one of `PICTURES`."""
    return PICTURES[subject]()


def _normal(count: int, spread: float) -> Any:
    """So many values whose distribution is as close to a normal one as possible, in a fixed mixed order."""
    quantiles = np.array([NormalDist().inv_cdf((place + 0.5) / count) for place in range(count)])
    quantiles *= spread / quantiles.std(ddof=1)
    return np.random.default_rng(0).permutation(quantiles)


def _median() -> str:
    rng = np.random.default_rng(4)
    times = np.sort(2.4 + 0.15 * rng.exponential(1.0, 15))
    interval = median_interval(times.tolist())
    plot = Plot(
        label="Fifteen sorted times. The interval of the median begins at the fourth and ends at the twelfth of them.",
        x=Axis(title="sample, sorted", low=0, high=16, ticks=numbered(range(1, 16))),
        y=Axis(title="ms", low=2.3, high=3.1, ticks=[(2.4, "2.4"), (2.6, "2.6"), (2.8, "2.8"), (3.0, "3.0")]),
        height=260,
    )
    plot.band(0, 16, interval.low, interval.high, "a", "interval of the median, 95 %")
    plot.line([(0, float(np.median(times))), (16, float(np.median(times)))], "a", dashed=True)
    plot.dots(list(enumerate(times.tolist(), start=1)), "b", "time")
    return plot.svg()


def _tosses() -> str:
    rounds = 10
    ranks = range(1, rounds + 1)
    sums = [sum(compress(ranks, signs)) for signs in product((False, True), repeat=rounds)]
    counts = np.bincount(sums)
    bars = [(value - 0.5, value + 0.5, int(count)) for value, count in enumerate(counts)]
    largest = CURRENT.largest_p(rounds)
    tail = [value for value in range(len(counts)) if 2 * counts[: value + 1].sum() / 2**rounds <= largest]
    ends = {*tail, *(len(counts) - 1 - value for value in tail)}
    plot = Plot(
        label="Orders by the sum of the positive ranks after ten rounds; only the sums 0 and 55 support a claim.",
        x=Axis(
            title="sum of the ranks with a positive sign, 10 rounds",
            low=-1,
            high=len(counts),
            ticks=numbered((0, 10, 20, 27, 35, 45, 55)),
        ),
        y=Axis(title="orders, of 1024", low=0, high=45, ticks=numbered((0, 10, 20, 30, 40))),
        height=240,
    )
    plot.bars([bar for value, bar in enumerate(bars) if value not in ends], "a", "no claim")
    plot.bars([bar for value, bar in enumerate(bars) if value in ends], "b", f"claim: p ≤ {largest:.4f}")
    return plot.svg()


def _compared(seed: int, effect: float) -> tuple[list[float], list[bool]]:
    """Logarithms of the ratios of thirty rounds with 2 % of noise, and who came first in each."""
    noise = 0.02 * np.random.default_rng(seed).standard_normal((CURRENT.looks[-1], 2))
    ratios = (noise[:, 0] - noise[:, 1] + math.log1p(effect)).tolist()
    first = [order_of_round(seed, number, 2)[0] == 0 for number in range(CURRENT.looks[-1])]
    return ratios, first


def _looks() -> str:
    plot = Plot(
        label="p-values of three simulated comparisons by rounds, with the largest that supports a claim at each look.",
        x=Axis(title="rounds", low=5, high=31, ticks=numbered((6, *CURRENT.looks))),
        y=Axis(
            title="p",
            low=1e-9,
            high=1,
            ticks=[(10.0**power, f"1e{power}" if power else "1") for power in range(-9, 1, 3)],
            logarithmic=True,
        ),
        height=320,
    )
    for color, name, effect, seed in SIMULATED:
        ratios, first = _compared(seed, effect)
        p = {rounds: order_p(ratios[:rounds], first[:rounds]) for rounds in range(6, CURRENT.looks[-1] + 1)}
        plot.line(p.items(), color, name)
        claims = [look for look in CURRENT.looks if p[look] <= CURRENT.largest_p(look)]
        plot.dots([(look, p[look]) for look in claims[:1]], color, radius=5)
    for look in CURRENT.looks:
        plot.line([(look, 1e-9), (look, CURRENT.largest_p(look))], "d", "claim" if look == CURRENT.looks[0] else "")
        plot.line([(look - 0.6, CURRENT.largest_p(look)), (look + 0.6, CURRENT.largest_p(look))], "d")
    return plot.svg()


def _bootstrap() -> str:
    ratios = 0.04 + _normal(16, 0.03)
    values, weights = median_distribution(ratios)
    interval = median_ratio(np.exp(ratios).tolist(), [1.0] * 16)
    edges = np.linspace(0.99, 1.09, 51)
    shares, _ = np.histogram(np.exp(values), edges, weights=weights)
    plot = Plot(
        label="Bootstrap distribution of the median of sixteen ratios, and its interval, which excludes 1.",
        x=Axis(
            title="median ratio of 16 rounds drawn with replacement",
            low=0.99,
            high=1.09,
            ticks=[(1 + step / 100, f"{1 + step / 100:.2f}") for step in range(0, 9, 2)],
        ),
        y=Axis(title="probability", low=0, high=0.15, ticks=[(0, "0"), (0.05, "5 %"), (0.1, "10 %"), (0.15, "15 %")]),
        height=240,
    )
    plot.band(interval.low, interval.high, 0, 0.15, "b", "interval of the ratio")
    plot.bars([(left, right, share) for left, right, share in zip(edges, edges[1:], shares, strict=False)], "a")
    plot.line([(1, 0), (1, 0.15)], "d", "no difference", dashed=True)
    return plot.svg()


def _floor() -> str:
    plot = Plot(
        label="The noise floor falls with the number of rounds, for three noises between processes.",
        x=Axis(
            title="rounds of the comparison",
            low=0,
            high=31,
            ticks=numbered((2, 10, 16, 24, 30)),
        ),
        y=Axis(
            title="noise floor, as a ratio",
            low=1,
            high=1.35,
            ticks=[(1 + step / 10, f"{1 + step / 10:.1f}") for step in range(4)],
        ),
        height=260,
    )
    for color, spread in (("a", 0.01), ("b", 0.02), ("c", 0.05)):
        times = np.exp(_normal(32, spread))
        plot.dots(
            [(count, floor_of(times, count)) for count in (*CURRENT.counts("quick", 2), *range(10, 31))],
            color,
            f"{100 * spread:.0f} % of noise",
            3,
        )
    return plot.svg()


def _power() -> str:
    plot = Plot(
        label="The smallest difference that is found in 95 % of cases, by the number of rounds and the noise.",
        x=Axis(title="rounds", low=9, high=31, ticks=numbered(CURRENT.looks)),
        y=Axis(
            title="smallest difference that is found",
            low=0,
            high=0.25,
            ticks=[(step / 20, f"{5 * step} %") for step in range(6)],
        ),
        height=260,
    )
    for color, spread in (("a", 0.01), ("b", 0.02), ("c", 0.05)):
        times = np.exp(_normal(32, spread))
        found = [
            (look, smallest_shown((_normal(look, math.sqrt(2) * spread)).tolist(), floor_of(times, look)) - 1)
            for look in CURRENT.looks
        ]
        plot.line(found, color, f"{100 * spread:.0f} % of noise")
        plot.dots(found, color)
    return plot.svg()


def _steady() -> str:
    rng = np.random.default_rng(1)
    times = 2.5 + 2.0 * np.exp(-np.arange(60) / 5) + 0.03 * rng.standard_normal(60)
    found = steady_part(times.tolist())
    level = float(np.median(times[30:]))
    plot = Plot(
        label=f"Sixty times of a step; the first {found.begin} are the warm-up, the others are steady.",
        x=Axis(
            title="sample, without the first call",
            low=-1,
            high=60,
            ticks=numbered(range(0, 61, 10)),
        ),
        y=Axis(title="ms", low=2, high=5, ticks=numbered((2, 3, 4, 5))),
        height=240,
    )
    plot.band(-1, 60, level * 0.98, level * 1.02, "d", "2 % about the level of the second half")
    plot.dots([(place, value) for place, value in enumerate(times) if place < found.begin], "b", "warm-up", 3)
    plot.dots([(place, value) for place, value in enumerate(times) if place >= found.begin], "a", "steady", 3)
    return plot.svg()


def _processes() -> str:
    rng = np.random.default_rng(3)
    levels = 2.5 * np.exp(0.02 * rng.standard_normal(16))
    plot = Plot(
        label="Times of sixteen processes of one program: close together within a process, far apart between them.",
        x=Axis(title="process", low=0, high=17, ticks=numbered(range(1, 17))),
        y=Axis(title="ms", low=2.35, high=2.75, ticks=numbered((2.4, 2.5, 2.6, 2.7))),
        height=220,
    )
    for color, name, start in (("a", "one candidate", 0), ("b", "the same candidate again", 1)):
        dots = [
            (process + 1 + 0.25 * rng.uniform(-1, 1), levels[process] * math.exp(0.002 * rng.standard_normal()))
            for process in range(start, 16, 2)
            for _ in range(20)
        ]
        plot.dots(dots, color, name, 2)
    return plot.svg()


def _profile() -> str:
    profiles = performance_profiles(WORKLOADS)
    plot = Plot(
        label="Share of four workloads that each of three optimizers solves within a multiple of the best time.",
        x=Axis(title="multiple of the best time, τ", low=1, high=LIMIT, ticks=numbered((1, 2, 3, 4))),
        y=Axis(
            title="workloads solved",
            low=0,
            high=1.05,
            ticks=[(quarter / 4, f"{25 * quarter} %") for quarter in range(5)],
        ),
        height=240,
    )
    for color, (name, profile) in zip("abc", profiles.items(), strict=True):
        steps = sorted({1.0, LIMIT, *(ratio for ratio in profile.ratios.values() if ratio <= LIMIT)})
        corners = [(1.0, profile.share(1.0))]
        for ratio in steps[1:]:
            corners += [(ratio, corners[-1][1]), (ratio, profile.share(ratio))]
        plot.line(corners, color, f"{name}, score {profile.score:.2f}")
    return plot.svg()


def _cheats() -> str:
    rows = (line.rstrip(" |").rpartition("|")[2].strip() for line in RED_TEAM.read_text(encoding="utf-8").splitlines())
    counts = np.bincount([int(number) for number in rows if number.isdecimal()], minlength=15)
    high = 20 * -(-int(counts.max()) // 20)
    plot = Plot(
        label=f"Number of planted changes by the rule that finds them; together {counts.sum()}.",
        x=Axis(title="rule", low=0.4, high=14.6, ticks=numbered(range(1, 15))),
        y=Axis(title="planted changes", low=0, high=high, ticks=numbered(range(0, high + 1, 20))),
        height=220,
    )
    plot.bars([(rule - 0.35, rule + 0.35, int(counts[rule])) for rule in range(1, 15)], "a")
    for rule in range(1, 15):
        plot.note(rule, int(counts[rule]) + high / 40, str(counts[rule]), "middle")
    return plot.svg()


PICTURES: dict[str, Callable[[], str]] = {
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
"""What a page may name after `statistics`."""
