"""Comparisons on simulated machines: noise of many kinds, in the order that the driver draws, with deep5's verdict.

`python tests/support/simulated.py docs/results/error_rates.md` counts how often identical candidates are called
different.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from deep5.measuring.order_test import order_p
from deep5.measuring.scheme import CURRENT
from deep5.measuring.statistics import Verdict, floor_of, judge
from deep5.results.round_samples import order_of_round

__all__ = [
    "NOISES",
    "SINES",
    "Drawn",
    "called_different",
    "compared",
    "found_of",
    "most_of",
    "quick_called_different",
    "sequential",
]

Noise = Callable[[np.random.Generator, int], np.ndarray]
"""Logarithms of the times of so many processes of the same code, in order."""

_CALIBRATED = 32
NONE = "no difference shown"


def _white(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.02 * rng.standard_normal(count)


def _heavy(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.02 * rng.standard_t(3, count)


def _cauchy(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(0.01 * rng.standard_cauchy(count), -20, 20)


def _skewed(rng: np.random.Generator, count: int) -> np.ndarray:
    return 0.05 * rng.exponential(1.0, count)


def _autoregressive(rng: np.random.Generator, count: int) -> np.ndarray:
    """Each process keeps nine tenths of what slowed down the one before it."""
    found = np.zeros(count)
    shocks = 0.02 * rng.standard_normal(count)
    found[0] = shocks[0] / math.sqrt(1 - 0.9**2)
    for place in range(1, count):
        found[place] = 0.9 * found[place - 1] + shocks[place]
    return found


def _bimodal(rng: np.random.Generator, count: int) -> np.ndarray:
    """One process in four runs on a processor at two thirds of its speed."""
    return math.log(1.5) * (rng.random(count) < 0.25) + 0.01 * rng.standard_normal(count)


def _rare(rng: np.random.Generator, count: int) -> np.ndarray:
    """One process in thirty takes three times as long."""
    return math.log(3) * (rng.random(count) < 1 / 30) + 0.01 * rng.standard_normal(count)


def _markov(rng: np.random.Generator, count: int) -> np.ndarray:
    """Two speeds, each of which lasts for five processes on average."""
    slow = np.cumsum(rng.random(count) < 0.2) + rng.integers(2)
    return 0.3 * (slow % 2) + 0.01 * rng.standard_normal(count)


def _trend(rng: np.random.Generator, count: int) -> np.ndarray:
    """A machine that warms up: each process takes 0.5 % longer than the one before it."""
    return 0.005 * np.arange(count) + 0.005 * rng.standard_normal(count)


def _drifting(rng: np.random.Generator, count: int) -> np.ndarray:
    """The speed wanders from one process to the next."""
    return 0.02 * np.cumsum(rng.standard_normal(count)) + 0.01 * rng.standard_normal(count)


def _square(rng: np.random.Generator, count: int) -> np.ndarray:
    """Two speeds that alternate every two processes, as of a job that others start regularly."""
    return 0.1 * ((np.arange(count) + rng.integers(4)) // 2 % 2) + 0.002 * rng.standard_normal(count)


def _alternating(rng: np.random.Generator, count: int) -> np.ndarray:
    """The second process of a round is always slower: the first leaves a warm machine."""
    return 0.1 * (np.arange(count) % 2) + 0.002 * rng.standard_normal(count)


def _wandering_period(rng: np.random.Generator, count: int) -> np.ndarray:
    """A period that starts at four processes and changes."""
    speed = 2 * math.pi / 4 * (1 + 0.05 * np.cumsum(rng.standard_normal(count)))
    return 0.05 * np.sin(np.cumsum(speed) + 2 * math.pi * rng.random()) + 0.002 * rng.standard_normal(count)


NOISES: Mapping[str, Noise] = {
    "white": _white,
    "heavy-tailed (t, 3 degrees of freedom)": _heavy,
    "Cauchy": _cauchy,
    "skewed (exponential)": _skewed,
    "AR(1), 0.9": _autoregressive,
    "bimodal": _bimodal,
    "rare slow processes": _rare,
    "Markov, two speeds": _markov,
    "trend": _trend,
    "random walk": _drifting,
    "square wave, period 4": _square,
    "every second process slower": _alternating,
    "sine of a wandering period": _wandering_period,
}


def _sine(period: int) -> Noise:
    def noise(rng: np.random.Generator, count: int) -> np.ndarray:
        phase = 2 * math.pi * rng.random()
        return 0.05 * np.sin(2 * math.pi * np.arange(count) / period + phase) + 0.002 * rng.standard_normal(count)

    return noise


SINES: Mapping[str, Noise] = {f"sine, period {period}": _sine(period) for period in range(2, 65)}


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A comparison of two candidates.

    Attributes:
        calibration: Seconds of the calibration's processes, which ran before.
        candidate: Seconds by round.
        baseline: Seconds by round.
        first: Whether the candidate ran first, by round.
    """

    calibration: np.ndarray
    candidate: np.ndarray
    baseline: np.ndarray
    first: list[bool]

    def verdict(self, rounds: int) -> Verdict:
        """The verdict after so many rounds."""
        floor = floor_of(self.calibration, rounds)
        return judge(self.candidate[:rounds], self.baseline[:rounds], floor, self.first[:rounds])


def compared(rng: np.random.Generator, noise: Noise, seed: int, effect: float = 0.0, mode: str = "rigorous") -> Drawn:
    """A calibration and then a whole comparison, whose candidate takes `1 + effect` times as long as its baseline.

    Args:
        rng: Draws the noise.
        noise: The machine.
        seed: Seed of the comparison, which determines its order.
        effect: Relative difference of the candidates.
        mode: "quick" or "rigorous".
    """
    rounds = CURRENT.quick_rounds if mode == "quick" else CURRENT.looks[-1]
    logs = noise(rng, _CALIBRATED + 2 * rounds)
    calibration, rest = np.exp(logs[:_CALIBRATED]), logs[_CALIBRATED:].reshape(rounds, 2)
    orders = np.array([order_of_round(seed, number, 2, reverses=CURRENT.reverses(mode)) for number in range(rounds)])
    times = np.empty_like(rest)
    np.put_along_axis(times, orders, np.exp(rest), axis=1)
    return Drawn(
        calibration=calibration,
        candidate=(1 + effect) * times[:, 0],
        baseline=times[:, 1],
        first=[order[0] == 0 for order in orders.tolist()],
    )


def sequential(drawn: Drawn) -> Verdict:
    """Like a comparison: a verdict at every look, until there is a claim."""
    for rounds in CURRENT.looks:
        verdict = drawn.verdict(rounds)
        if verdict.word != NONE:
            break
    return verdict


def called_different(noise: Noise, seed: int, tries: int) -> tuple[int, int]:
    """How many of so many comparisons of identical candidates claim a difference.

    Returns:
        By only the test, whose bound holds without a calibration or an interval; by the whole verdict.
    """
    rng, significant, claimed = np.random.default_rng(seed), 0, 0
    for number in range(tries):
        drawn = compared(rng, noise, seed * tries + number)
        ratios = np.log(drawn.candidate / drawn.baseline)
        # Every claim needs a significant test; the rest of a verdict takes most of the time.
        if any(
            order_p(ratios[:look].tolist(), drawn.first[:look]) <= CURRENT.largest_p(look) for look in CURRENT.looks
        ):
            significant += 1
            claimed += sequential(drawn).word != NONE
    return significant, claimed


def quick_called_different(noise: Noise, seed: int, tries: int) -> int:
    """How many of so many quick comparisons of identical candidates claim a difference."""
    rng = np.random.default_rng(seed)
    drawn = (compared(rng, noise, seed * tries + number, mode="quick") for number in range(tries))
    return sum(each.verdict(CURRENT.quick_rounds).word != NONE for each in drawn)


def most_of(count: int, rate: float) -> int:
    """The most hits that `count` tries at a rate yield in 999 of 1000 cases."""
    return math.floor(count * rate + NormalDist().inv_cdf(0.999) * math.sqrt(count * rate * (1 - rate)))


_TRIES, _QUICK_TRIES = 10_000, 10_000
_PAGE = """# Error rates of verdicts

How often identical candidates are called different on simulated machines, in comparisons whose order the driver's own
`order_of_round` draws and whose verdict `deep5.measuring.statistics.judge` gives. Generated by `python
tests/support/simulated.py docs/results/error_rates.md`, which takes about half an hour.
[statistics.md](../explanation/statistics.md#the-test-of-the-drawn-order) explains the rules.

- *only the test*: {tries:,} rigorous comparisons of up to thirty rounds with the significance test as the only
  condition. It is at most 0.95 % by construction; with so many tries, {bound:.2f} % is exceeded in one of a thousand
  cases.
- *verdict*: the same comparisons with the interval and the noise floor of a calibration on the same machine.
- *quick*: {quick:,} quick comparisons. Their bound of 1 % assumes that calibration and comparison share one noise; it
  is not a property of the test.

| noise between processes | only the test | verdict | quick |
|---|---:|---:|---:|
{rows}

Sines have an amplitude of 5 % and a random phase; their row has the largest of the 63 rates, which is near 1.2 % (2.35
standard errors above) if each is 0.95 %. A true difference of 3 % at 2 % of white noise is found in
{power:.1%} of {power_tries:,} rigorous comparisons.
"""


def _row(name: str) -> tuple[str, float, float, float]:
    noise, seed = {**NOISES, **SINES}[name], sum(map(ord, name))
    significant, claimed = called_different(noise, seed, _TRIES)
    return (
        name,
        significant / _TRIES,
        claimed / _TRIES,
        quick_called_different(noise, seed, _QUICK_TRIES) / _QUICK_TRIES,
    )


def found_of(effect: float, tries: int) -> int:
    """How many rigorous comparisons under 2 % of white noise find a candidate that takes `1 + effect` times as long."""
    rng = np.random.default_rng(3)
    return sum(sequential(compared(rng, _white, number, effect)).word == "slower" for number in range(tries))


def main(path: Path) -> None:
    """Write the page."""
    with ProcessPoolExecutor(2) as pool:
        rows = list(pool.map(_row, [*NOISES, *SINES]))
    shown = rows[: len(NOISES)]
    of_sines = rows[len(NOISES) :]
    shown.append(
        ("sines of every period from 2 to 64 processes", *(max(row[at] for row in of_sines) for at in (1, 2, 3)))
    )
    tries = 2000
    page = _PAGE.format(
        tries=_TRIES,
        quick=_QUICK_TRIES,
        bound=100 * most_of(_TRIES, sum(CURRENT.shares)) / _TRIES,
        rows="\n".join(f"| {name} | {one:.2%} | {two:.2%} | {three:.2%} |" for name, one, two, three in shown),
        power=found_of(0.03, tries) / tries,
        power_tries=tries,
    )
    path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
