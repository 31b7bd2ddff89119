"""How much longer a sweep on Slurm takes per run than bare `sbatch` of the same commands, on a cluster on this machine.

Rounds alternate: a sweep whose runs are all submitted at once, and the same commands, each submitted by `sbatch`.
Prints the difference of the times until all have ended, per run, with the range over the rounds. Needs Slurm, and root.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from deep5.results.sweep.record import load_sweep, settings_words
from slurm_cluster import SlurmCluster

PROGRAM = [sys.executable, "-m", "deep5"]


def swept(out: Path, trials: int, seed: int, options: str) -> float:
    """Seconds of a sweep."""
    begin = perf_counter()
    words = ["sweep", "digits_lenet", "--goal", "validation_accuracy", "--size", "smoke", "--sampler", "random"]
    words += ["--param", "optimizer_kwargs.lr=log(1e-4, 1e-1)", "--trials", str(trials), "--workers", str(trials)]
    words += ["--seed", str(seed), "--engine", f"slurm:{options}", "--quiet", "--out", str(out)]
    subprocess.run([*PROGRAM, *words], check=True)
    return perf_counter() - begin


def submitted(cluster: SlurmCluster, out: Path) -> float:
    """Seconds of the sweep's commands, submitted directly."""
    sweep = load_sweep(next(out.iterdir()))
    begin = perf_counter()
    numbers = []
    for trial in sweep.trials:
        settings = settings_words({**sweep.document["settings"], **trial.settings})
        words = [*PROGRAM, "run", "digits_lenet", "--size", "smoke", *settings, "--quiet", "--out", str(out / "bare")]
        numbers.append(
            cluster.said("sbatch", "--parsable", "--ntasks=1", f"--output={out}/bare.out", "--wrap", shlex.join(words))
        )
    while cluster.said("squeue", "--noheader", f"--jobs={','.join(numbers)}", "--states=PD,R,CG"):
        time.sleep(0.05)
    return perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=4)
    given = parser.parse_args()
    more: dict[str, list[float]] = {"": [], f"runs={given.trials // 2}": []}
    with tempfile.TemporaryDirectory() as place, SlurmCluster(Path(place) / "slurm", nodes=1) as cluster:
        os.environ.update(cluster.environment)
        for number in range(given.rounds):
            for options, found in more.items():
                out = Path(place) / f"{number}-{options}"
                swept_s = swept(out, given.trials, number, options)
                bare_s = submitted(cluster, out)
                found.append((swept_s - bare_s) / given.trials)
                sys.stdout.write(
                    f"round {number}, {options or 'a job per run'}: {swept_s:.2f} s, bare {bare_s:.2f} s\n"
                )
    for options, found in more.items():
        sys.stdout.write(
            f"{options or 'a job per run'}: {median(found):+.3f} s per run, {min(found):+.3f} to {max(found):+.3f}\n"
        )


if __name__ == "__main__":
    main()
