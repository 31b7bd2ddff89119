"""`Trial`: one proposal of a search and how its run ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["FAILED", "FINISHED", "PRUNED", "Direction", "State", "Trial", "rank_value"]

Direction = Literal["higher", "lower"]
State = Literal["finished", "pruned", "failed"]
FINISHED: State = "finished"
PRUNED: State = "pruned"
FAILED: State = "failed"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of a search.

    Attributes:
        number: Counts from 0, in the order of proposals.
        settings: The proposed settings.
        state: How it ended: "finished", "pruned" by the pruner, or "failed"; None: not yet.
        value: The goal's metric: of a finished run its value, of a pruned one the last that counted; None: it has none.
        curve: The metric after each epoch, as pairs of epochs done and value, up to the one at which it was pruned; of
            a run that no pruner watched, at most 100 of them.
        rungs: Values at the rungs of successive halving that it reached.
        run: The result folder, relative to the search's folder; None: there is none.
        reason: Why it failed.
        epochs: Epochs that it trained.
        steps: Steps that it trained.
        wall_s: Seconds that its processes took.
        host: Name of the machine.
        attempts: Number of times that its run was started.
    """

    number: int
    settings: Mapping[str, Any]
    state: State | None = None
    value: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    rungs: Sequence[float] = ()
    run: str | None = None
    reason: str | None = None
    epochs: int = 0
    steps: int = 0
    wall_s: float = 0.0
    host: str = ""
    attempts: int = 1

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Trial:
        """The trial in what `document` returned, also after JSON."""
        curve = tuple((int(epoch), float(value)) for epoch, value in document["curve"])
        return cls(**{**document, "curve": curve, "rungs": tuple(map(float, document["rungs"]))})

    def document(self) -> dict[str, Any]:
        """The trial in JSON types, but for numbers that are not finite."""
        return asdict(self)


def rank_value(trial: Trial, direction: Direction) -> float:
    """The value by which samplers rank an ended trial, lower being better.

    A run that failed or diverged is worse than all others: without it, a sampler would propose its like again.

    Args:
        trial: The trial.
        direction: Whether higher or lower values are better.
    """
    if trial.value is None or math.isnan(trial.value) or trial.state == FAILED:
        return math.inf
    return trial.value if direction == "lower" else -trial.value
