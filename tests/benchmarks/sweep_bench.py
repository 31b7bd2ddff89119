"""How much longer a sweep takes than the commands that it runs, one after another, without it.

Rounds alternate: a sweep of some trials with one worker, the same commands as a shell would run them, and the same
sweep with two workers. Prints the ratios of all times to those of the commands, with the range over the rounds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from deep5.results.sweep.record import load_sweep, settings_words

PROGRAM = [sys.executable, "-m", "deep5"]
SWEEP = [
    "--goal", "validation_accuracy", "--param", "optimizer_kwargs.lr=log(1e-4, 1e-1)", "--param",
    "batch_size=choice(16, 32, 64)", "--size", "smoke", "--quiet",
]  # fmt: skip


def timed(*words: str) -> float:
    """Seconds of a command of deep5."""
    begin = perf_counter()
    subprocess.run([*PROGRAM, *words], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="digits_lenet")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sampler", default="tpe")
    given = parser.parse_args()
    ratios: dict[str, list[float]] = {"one worker": [], "two workers": []}
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory() as place:
            out = Path(place)
            own = [
                *SWEEP,
                "--sampler",
                given.sampler,
                "--trials",
                str(given.trials),
                "--seed",
                str(number),
                "--parallel",
                "2",
            ]
            one_s = timed("sweep", given.recipe, *own, "--out", str(out / "one"))
            two_s = timed("sweep", given.recipe, *own, "--workers", "2", "--out", str(out / "two"))
            sweep = load_sweep(next((out / "one").iterdir()))
            plain_s = sum(
                timed(
                    "run", given.recipe, "--size", "smoke", "--quiet", "--out", str(out / "plain"),
                    *settings_words({**sweep.document["settings"], **trial.settings}),
                )
                for trial in sweep.trials
            )  # fmt: skip
        for name, seconds in (("one worker", one_s), ("two workers", two_s)):
            ratios[name].append(seconds / plain_s)
        print(  # noqa: T201
            f"round {number + 1}: commands {plain_s:.1f} s, one worker {one_s:.1f} s, two {two_s:.1f} s", flush=True
        )
    for name, own in ratios.items():
        print(  # noqa: T201
            f"{name}: {median(own):.3f} ({min(own):.3f} to {max(own):.3f}) of the commands, {given.trials} trials each"
        )


if __name__ == "__main__":
    main()
