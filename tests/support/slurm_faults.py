"""Kills drivers, jobs and daemons of Slurm at random points of sweeps, which must end with the undisturbed table.

`python tests/support/slurm_faults.py --points 200` prints each sweep; its exit status is 1 if one differs. As root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from deep5.engines.lease import ATTEMPT
from deep5.results.result import load
from deep5.results.sweep.record import Sweep, load_sweep
from slurm_cluster import SlurmCluster
from small_recipe import RECIPE

__all__ = ["Faults", "differences"]

KINDS = ("driver", "job", "slurmd", "slurmctld")
# After this time without an end, a sweep hangs.
_LIMIT_S = 600.0


def _words(recipe: Path, out: Path, seed: int, engine: str) -> list[str]:
    words = [sys.executable, "-m", "deep5", "sweep", str(recipe), "--goal", "test_loss", "--trials", "6", "--sampler"]
    words += ["random", "--param", "optimizer_kwargs.lr=log(1e-4, 1)", "--parallel", "2", "--seed", str(seed)]
    return [*words, "--set", "epochs=800", "--engine", engine, "--workers", "2", "--quiet", "--out", str(out)]


def differences(sweep: Sweep, other: Sweep) -> list[str]:
    """What is wrong with a sweep: rows that differ from those of another one, and runs that do not count once."""
    found = []
    for trial, same in zip(sweep.trials, other.trials, strict=True):
        ours, theirs = ((t.settings, t.state, t.value, t.curve, t.epochs, t.steps) for t in (trial, same))
        if ours != theirs:
            found.append(f"trial {trial.number}: {ours} instead of {theirs}")
            continue
        assert trial.run is not None
        if load(sweep.folder / trial.run, root=sweep.folder).status != "success":
            found.append(f"trial {trial.number}: its run is not complete")
        attempts = [*(sweep.folder / "runs" / f"{trial.number:05d}").glob(f"*/{ATTEMPT}")]
        count = sum(json.loads(path.read_text())["ended"] is not None for path in attempts)
        if count != 1:
            found.append(f"trial {trial.number}: {count} of its {len(attempts)} attempts count")
    return found


class Faults:
    """Sweeps on a cluster that are disturbed at random points.

    Args:
        cluster: The cluster.
        folder: Folder of the results.
        seed: Seed of the points.
    """

    def __init__(self, cluster: SlurmCluster, folder: Path, seed: int) -> None:
        self.cluster, self.folder = cluster, folder
        self._random = random.Random(seed)  # noqa: S311  # points in time, not secrets
        self._recipe = folder / "small.py"
        self._recipe.write_text(RECIPE)

    def undisturbed(self, seed: int) -> Sweep:
        """The same sweep on this machine."""
        out = self.folder / f"local-{seed}"
        subprocess.run(_words(self._recipe, out, seed, "local"), check=True)
        return load_sweep(next(out.iterdir()))

    def disturbed(self, seed: int, points: int) -> tuple[Sweep, list[str]]:
        """A sweep on Slurm, and what was killed; resumed until it ends."""
        out = self.folder / f"slurm-{seed}"
        words, killed = _words(self._recipe, out, seed, "slurm"), list[str]()
        driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
        end = time.monotonic() + _LIMIT_S
        pause = time.monotonic() + self._random.uniform(0.5, 4.0)
        while True:
            with suppress(subprocess.TimeoutExpired):
                errors = driver.communicate(timeout=0.05)[1]
                if driver.returncode == 0:
                    break
                if driver.returncode != -signal.SIGKILL:
                    raise RuntimeError(f"after {killed}: {errors}")
                more = ["--resume", str(folder)] if (folder := next(out.glob("*"), None)) is not None else []
                driver = subprocess.Popen([*words, *more], stderr=subprocess.PIPE, text=True)
            if time.monotonic() > end:
                driver.kill()
                raise TimeoutError(f"after {killed}, no end within {_LIMIT_S:g} s")
            self.cluster.resume()
            if len(killed) < points and time.monotonic() > pause:
                kind = self._random.choice(KINDS)
                if self._kill(kind, driver):
                    killed.append(kind)
                pause = time.monotonic() + self._random.uniform(0.5, 8.0)
        return load_sweep(next(out.iterdir())), killed

    def _kill(self, kind: str, driver: subprocess.Popen[str]) -> bool:
        if kind == "driver":
            driver.kill()
            return True
        if kind == "job":
            jobs = [own for own in psutil.process_iter(["cmdline"]) if _is_job(own, self.folder)]
            for own in self._random.sample(jobs, min(1, len(jobs))):
                own.kill()
            return bool(jobs)
        pause_s = self._random.uniform(0.0, 3.0)
        if kind == "slurmctld":
            self.cluster.kill("slurmctld")
            time.sleep(pause_s)
            self.cluster.start_controller()
            return True
        node = self._random.choice(self.cluster.nodes)
        self.cluster.kill(f"slurmd-{node}")
        time.sleep(pause_s)
        self.cluster.start_node(node)
        return True


def _is_job(process: psutil.Process, folder: Path) -> bool:
    """Whether a process is a job of a sweep in this folder."""
    words = " ".join(process.info["cmdline"] or ())
    return "slurm_job" in words and str(folder) in words


def main() -> None:
    """Disturb sweeps, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--each", type=int, default=4, help="Points of one sweep.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = done = 0
    with tempfile.TemporaryDirectory() as place, SlurmCluster(Path(place) / "slurm") as cluster:
        os.environ.update(cluster.environment)
        faults = Faults(cluster, Path(place), given.seed)
        seed = 1000 * given.seed
        while done < given.points:
            seed += 1
            begin = time.monotonic()
            try:
                sweep, killed = faults.disturbed(seed, given.each)
                found = differences(sweep, faults.undisturbed(seed))
            except (RuntimeError, TimeoutError) as error:
                found, killed = [str(error)], ["?"]
            done += len(killed)
            wrong += bool(found)
            said = "; ".join(found) or "the same table"
            sys.stdout.write(f"{done} points, {time.monotonic() - begin:.0f} s: {', '.join(killed)}: {said}\n")
            sys.stdout.flush()
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
