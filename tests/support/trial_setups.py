"""The recipes of the trials, and the commands that run them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["COMPARISON", "RANKS", "RUN", "SETUPS", "STUDY", "Setup"]

RUN, RANKS, STUDY, COMPARISON = "run", "ranks", "study", "comparison"

# Dropout, batch normalization, an average for evaluation, a smaller last batch: 14 steps an epoch.
_RESUMED = Path(__file__).with_name("resume_recipe.py").read_text(encoding="utf-8")
_EPOCHS, _SLEEPS_S = '"epochs": 12', "time.sleep(0.01)"
assert _EPOCHS in _RESUMED
assert _SLEEPS_S in _RESUMED
_SHORT = _RESUMED.replace(_EPOCHS, '"epochs": 4').replace(_SLEEPS_S, "time.sleep(0.003)")

_SMALL = """
import deep5 as d5

FIXED = {
    "model": "mlp", "model_kwargs": {"features": 4, "hidden": 3, "classes": 3}, "dataset": "synthetic",
    "dataset_kwargs": {"shape": (4,), "classes": 3, "train": 40, "test": 9}, "epochs": 3,
}
MUTABLE = {"batch_size": 4, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.01}}
METRICS = [(d5.TestAccuracy(), ">= 0"), (d5.TrainingLoss(), None), (d5.WallClockTime(), None)]
STUDY = {"one": {}, "two": {"optimizer_kwargs": {"lr": 0.02}}}
"""


@dataclass(frozen=True, kw_only=True)
class Setup:
    """A command that trials interrupt.

    Attributes:
        name: Its name.
        kind: `RUN`, `RANKS`, `STUDY` or `COMPARISON`.
        recipe: Source of the recipe.
        words: Arguments of the command after the recipe.
        launcher: What starts ranks.
        environment: More environment variables.
    """

    name: str
    kind: str
    recipe: str
    words: tuple[str, ...] = ()
    launcher: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command of deep5."""
        return {STUDY: "study", COMPARISON: "compare"}.get(self.kind, "run")

    @property
    def processes(self) -> bool:
        """Whether the command starts other processes."""
        return self.kind in (STUDY, COMPARISON) or self.launcher in ("mpiexec", "torchrun")


def _run(name: str, *words: str, every: str = "5") -> Setup:
    return Setup(name=name, kind=RUN, recipe=_SHORT, words=("--quiet", "--checkpoint-every", every, *words))


def _ranks(launcher: str, name: str = "", *words: str) -> Setup:
    every = ("--quiet", "--ranks", "2", "--launcher", launcher, "--checkpoint-every", "4")
    return Setup(name=f"{launcher}{name}", kind=RANKS, recipe=_SMALL, words=(*every, *words), launcher=launcher)


SETUPS = (
    _run("reference"),
    _run("adam", "--set", "optimizer=adam", "--set", "prefetch=2"),
    _run("accumulating", "--set", "optimizer=momentum", "--set", "accumulate=2", every="3"),
    _run("rarely", every="30s"),  # no checkpoint in time: it starts again
    _run("pytorch", "--framework", "pytorch"),
    _ranks("threads"),
    _ranks("threads", " with compression", "--set", "compression=top_k"),
    _ranks("mpiexec"),
    _ranks("torchrun", "", "--framework", "pytorch"),
    Setup(name="study", kind=STUDY, recipe=_SMALL, words=("--seeds", "1")),
    Setup(name="study of two seeds", kind=STUDY, recipe=_SMALL, words=("--seeds", "2", "--target", "accuracy=60")),
    Setup(
        name="comparison",
        kind=COMPARISON,
        recipe=_SMALL,
        words=(
            "--frameworks",
            "reference",
            "--vary",
            "batch_size=4,5",
            "--steps",
            "2",
            "--threads",
            "1",
            "--seed",
            "0",
        ),
    ),
)
"""The set-ups, in the order in which `trials.drawn` names them."""
