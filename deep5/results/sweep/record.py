"""`Sweep`: a search over a recipe's mutable parts, read from its folder: what was declared, and what became of it."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError, brief
from deep5.core.notebook import render
from deep5.core.quantities import duration
from deep5.core.screen import on_a_screen
from deep5.core.terminal import counted
from deep5.results.kind import STUDY, SWEEP
from deep5.results.reading import NotThere, read_json
from deep5.results.screen_table import print_table
from deep5.results.sweep.log import read_trials
from deep5.results.sweep.trial import FAILED, FINISHED, PRUNED, Trial, rank_value

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["RUNS", "SWEEP_VERSION", "Sweep", "load_sweep", "settings_words", "shown_goal"]

SWEEP_VERSION = "1"
"""Version of sweep.json."""

RUNS = "runs"
"""The subfolder of a sweep's folder with a folder per run."""

_SHOWN = 10
# Strings that a command line may have without quotes.
_PLAIN = re.compile(r"[A-Za-z_][\w:./-]*")
_REQUIRED = {
    "recipe": str, "hash": str, "size": str, "space": dict, "settings": dict, "goal": dict, "sampler": str,
    "pruner": str, "trials": int, "seed": int, "parallel": int, "finished": bool,
    "notes": list, "resumed": list, "provenance": dict,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A search and its trials.

    Attributes:
        folder: Contains sweep.json, trials.jsonl and, in `runs`, a folder per run.
        document: The declaration: sweep.json without what is computed from the trials.
        trials: All proposed trials, in order.
    """

    folder: Path
    document: Mapping[str, Any]
    trials: Sequence[Trial]

    @property
    def ended(self) -> list[Trial]:
        """Trials that have ended, in order."""
        return [trial for trial in self.trials if trial.state is not None]

    @property
    def ranked(self) -> list[Trial]:
        """Finished trials with a value, the best first; of equal values the earlier one."""
        direction = self.document["goal"]["direction"]
        finished = [trial for trial in self.trials if trial.state == FINISHED]
        finished = [trial for trial in finished if math.isfinite(rank_value(trial, direction))]
        return sorted(finished, key=lambda trial: (rank_value(trial, direction), trial.number))

    @property
    def best(self) -> Trial | None:
        """The finished trial with the best value; None: none has one."""
        return next(iter(self.ranked), None)

    @property
    def budget(self) -> dict[str, Any]:
        """What the search took: trials by outcome, epochs, steps, seconds of all runs, and the machines."""
        states = Counter(trial.state for trial in self.ended)
        return {
            "trials": len(self.ended),
            **{state: states[state] for state in (FINISHED, PRUNED, FAILED)},
            "epochs": sum(trial.epochs for trial in self.ended),
            "steps": sum(trial.steps for trial in self.ended),
            "runs_s": sum(trial.wall_s for trial in self.ended),
            "hosts": sorted({trial.host for trial in self.ended if trial.host}),
        }

    def full_document(self) -> dict[str, Any]:
        """sweep.json: the declaration, the budget, and the best trial."""
        best = self.best
        return {
            **self.document,
            "budget": self.budget,
            "best": None
            if best is None
            else {"number": best.number, "value": best.value, "settings": dict(best.settings), "run": best.run},
        }

    @property
    def command(self) -> str | None:
        """The command that runs the recipe with the best settings, on all training samples; None without a best."""
        if self.best is None:
            return None
        settings = {**self.document["settings"], **self.best.settings}
        if self.document["goal"].get("samples") == "validation":
            settings.pop("validation", None)
        size = [] if self.document["size"] == "full" else ["--size", self.document["size"]]
        return shlex.join(["deep5", "run", self.document["recipe"], *size, *settings_words(settings)])

    def __str__(self) -> str:
        return on_a_screen(self, f"{self.folder} holds all of it")

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return render(self)

    def print(self, console: Console, *, everything: bool = False) -> None:
        """Print the best trials, the budget, and the notes.

        Args:
            console: The console to print on.
            everything: Print all trials, in their order.
        """
        from rich.text import Text

        document, budget = self.document, self.budget
        console.print(
            Text(
                f"{document['recipe']}, size {document['size']}: {document['sampler']}, pruner {document['pruner']}, "
                f"by {shown_goal(document)} ({document['goal']['direction']} is better)"
            ),
            overflow="fold",
        )
        keys = list(document["space"])
        heads = _short(keys)
        shown = self.trials if everything else self.ranked[:_SHOWN]
        state = ["state"] if everything else []
        rows = []
        for trial in shown:
            cells = [_cell(trial.settings[key]) if key in trial.settings else "-" for key in keys]
            value = "-" if trial.value is None else f"{trial.value:.6g}"
            rows.append(
                [
                    str(trial.number),
                    *([trial.state or "running"] if everything else []),
                    value,
                    str(trial.epochs),
                    *cells,
                ]
            )
        if rows:
            goal = f"{shown_goal(document)} [{document['goal']['unit']}]"
            print_table(console, ["trial", *state, goal, "epochs", *heads], rows)
        lines = []
        if not everything and len(self.ranked) > _SHOWN:
            lines.append(f"the best {_SHOWN} of {len(self.ranked)} finished trials")
        counts = ", ".join(f"{budget[state]} {state}" for state in (FINISHED, PRUNED, FAILED) if budget[state])
        lines.append(
            f"budget: {counted(budget['trials'], 'trial')} of {document['trials']} ({counts or 'none has ended'}), "
            f"{counted(budget['epochs'], 'epoch')}, {duration(budget['runs_s'])} of runs"
            + (f" on {', '.join(budget['hosts'])}" if budget["hosts"] else "")
            + (f"; {left} proposed and not ended" if (left := len(self.trials) - budget["trials"]) else "")
        )
        reasons = Counter(str(trial.reason) for trial in self.ended if trial.state == FAILED)
        lines += [f"{counted(count, 'trial')} failed: {reason}" for reason, count in reasons.most_common(3)]
        if self.command is not None:
            lines.append(f"the best settings: {self.command}")
        lines += [f"note: {note}" for note in document["notes"]]
        for line in lines:
            console.print(Text(line), overflow="fold")
        console.print(Text(str(self.folder)), soft_wrap=True)


def load_sweep(path: str | Path) -> Sweep:
    """Read a sweep, also one that is under way or was killed.

    Args:
        path: The folder, or the sweep.json in it.

    Raises:
        UsageError: There is no sweep, or it is damaged.
    """
    folder = Path(path).resolve()
    folder = folder.parent if folder.name == SWEEP else folder
    file = folder / SWEEP
    try:
        document = read_json(file)
    except NotThere as error:
        remedy = "; it is a study" if (folder / STUDY).exists() else ""
        raise UsageError(f"{folder} holds no {SWEEP}; allowed: a folder that 'deep5 sweep' wrote{remedy}") from error
    if not isinstance(document, dict) or document.get("schema_version") != SWEEP_VERSION:
        raise UsageError(f"{file} is not of schema version {SWEEP_VERSION!r}; allowed: what this deep5 writes there")
    for key, kind in _REQUIRED.items():
        value = document.get(key)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise UsageError(
                f"{file}: {key} is {brief(value)}; allowed: what 'deep5 sweep' writes there; it is damaged"
            )
    goal = document["goal"]
    names = ("metric", "unit", "direction")
    if not all(isinstance(goal.get(name), str) for name in names) or goal["direction"] not in ("higher", "lower"):
        raise UsageError(f"{file}: goal is {brief(goal)}; allowed: what 'deep5 sweep' writes there; it is damaged")
    declared = {key: value for key, value in document.items() if key not in ("budget", "best")}
    return Sweep(folder=folder, document=declared, trials=read_trials(folder))


def settings_words(settings: Mapping[str, Any]) -> list[str]:
    """Settings as words of a command line, `--set KEY=VALUE` each; `parse_setting` gives the same values.

    Args:
        settings: In JSON types.

    >>> settings_words({"optimizer": "adam", "optimizer_kwargs.lr": 0.1, "precision": None})
    ['--set', 'optimizer=adam', '--set', 'optimizer_kwargs.lr=0.1', '--set', 'precision=None']
    """
    words = []
    for key, value in settings.items():
        plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value not in ("None", "True", "False")
        words += ["--set", f"{key}={value}" if plain else f"{key}={value!r}"]
    return words


def shown_goal(document: Mapping[str, Any]) -> str:
    """The goal's metric by what it was measured on: `validation_accuracy` for `test_accuracy` of held-out samples.

    Args:
        document: sweep.json.
    """
    name = str(document["goal"]["metric"])
    if document["goal"].get("samples") == "validation" and name.startswith("test_"):
        return f"validation_{name.removeprefix('test_')}"
    return name


def _short(keys: Sequence[str]) -> list[str]:
    """Keys without what comes before the last dot, where that leaves them distinct."""
    tails = Counter(key.rpartition(".")[2] for key in keys)
    return [tail if tails[tail := key.rpartition(".")[2]] == 1 else key for key in keys]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
