"""Commands and imports, each in a fresh process, and the files that the command line reads."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from registry import register


def fresh(folder: Path, *arguments: str) -> Callable[[], object]:
    """A call that runs Python with these arguments in a new process."""

    def run() -> None:
        subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, check=True)

    return run


@register("commands.import_deep5", group="commands", unit="process")
def _import(folder: Path) -> Callable[[], object]:
    return fresh(folder, "-c", "import deep5")


@register("commands.help", group="commands", unit="process")
def _help(folder: Path) -> Callable[[], object]:
    return fresh(folder, "-m", "deep5", "--help")


@register("commands.check_digits_lenet", group="commands", unit="process")
def _check(folder: Path) -> Callable[[], object]:
    return fresh(folder, "-m", "deep5", "check", "digits_lenet")


@register("commands.run_digits_lenet_smoke", group="commands", unit="process", quick=False, once=True)
def _run(folder: Path) -> Callable[[], object]:
    return fresh(folder, "-m", "deep5", "run", "digits_lenet", "--size", "smoke", "--out", "out")


@register("commands.compare_digits_lenet_smoke", group="commands", unit="process", quick=False, once=True)
def _compare(folder: Path) -> Callable[[], object]:
    words = ("--frameworks", "pytorch,reference", "--size", "smoke", "--steps", "5", "--out", "out")
    return fresh(folder, "-m", "deep5", "compare", "digits_lenet", *words)


_RANK = """
import os, signal, time
from deep5.distributed.launch.join import Report
from deep5.distributed.launch.launcher import launched

Report().started()
if launched().rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""
_LOSES_A_RANK = f"""
import sys
from deep5.distributed.launch.start import start_ranks

ended = start_ranks([sys.executable, "-c", {_RANK!r}], ranks=2, launcher="mpiexec")
sys.exit(ended.lost != 1)
"""


@register("commands.lost_rank", group="commands", unit="process")
def _lost(folder: Path) -> Callable[[], object]:
    """From the start of two ranks until the loss of one is reported and the other, which sleeps, is ended."""
    return fresh(folder, "-c", _LOSES_A_RANK)


def _results(folder: Path, count: int) -> Path:
    """Results of `count` runs, all copies of one."""
    subprocess.run(
        [sys.executable, "-m", "deep5", "run", "digits_lenet", "--size", "smoke", "--out", "one", "--quiet"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    (made,) = (folder / "one").glob("*/result.json")
    document = json.loads(made.read_text(encoding="utf-8"))
    text = made.read_text(encoding="utf-8")
    name = str(document.get("run_id", made.parent.name))
    out = folder / "many"
    for number in range(count):
        own = out / f"digits-20260102-{number:06d}-{number:06x}"
        own.mkdir(parents=True)
        (own / "result.json").write_text(text.replace(name, own.name), encoding="utf-8")
    return out


@register("commands.results_of_10000", group="commands", unit="process", quick=False)
def _many(folder: Path) -> Callable[[], object]:
    return fresh(folder, "-m", "deep5", "results", str(_results(folder, 10_000)))
