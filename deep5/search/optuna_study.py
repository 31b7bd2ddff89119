"""Optuna's samplers and pruners on stored trials: a new study for each proposal, filled with what is stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from deep5.core.errors import MissingDependency
from deep5.results.sweep.trial import FINISHED, PRUNED, Direction, Trial, rank_value
from deep5.search.space import Parameter, Space

__all__ = ["Watched", "filled_study", "optuna", "suggested"]

_RUNG = "completed_rung_"


def optuna() -> Any:
    """The module.

    Raises:
        MissingDependency: It is not installed.
    """
    try:
        import optuna as module
    except ImportError as error:
        raise MissingDependency(
            "the sampler tpe and the pruners are Optuna's, which is not installed; remedy: pip install 'deep5[search]'"
        ) from error
    return module


@contextmanager
def _silent() -> Iterator[None]:
    """Without Optuna's log of each trial."""
    logging = optuna().logging
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


def filled_study(space: Space, trials: Sequence[Trial], known: int, direction: Direction, **parts: Any) -> Any:
    """A study in memory that minimizes, with these trials in their order; the next one follows them.

    Args:
        space: The space of the search.
        trials: All trials before the next one.
        known: How many of them, from the first on, are given with their outcome; the others as running.
        direction: Whether higher or lower values are better.
        parts: A sampler, a pruner.
    """
    module = optuna()
    states = module.trial.TrialState
    distributions = {key: _distribution(own) for key, own in space.parameters.items()}
    with _silent():
        # The name decides on the bracket of Hyperband.
        study = module.create_study(study_name="deep5", direction="minimize", **parts)
        made = []
        for trial in trials:
            about: dict[str, Any] = {
                "params": {key: space.parameters[key].number(value) for key, value in trial.settings.items()},
                "distributions": {key: distributions[key] for key in trial.settings},
            }
            if trial.number >= known:
                made.append(module.trial.create_trial(state=states.RUNNING, **about))
                continue
            about["intermediate_values"] = dict(_values(trial.curve, direction))
            about["system_attrs"] = {f"{_RUNG}{rung}": value for rung, value in enumerate(trial.rungs)}
            if trial.state == PRUNED:
                made.append(module.trial.create_trial(state=states.PRUNED, **about))
            else:
                value = rank_value(trial, direction)
                if trial.state != FINISHED or not math.isfinite(value):
                    about["intermediate_values"] = {}
                made.append(module.trial.create_trial(state=states.COMPLETE, value=value, **about))
        study.add_trials(made)
    return study


def suggested(space: Space, study: Any) -> dict[str, Any]:
    """The settings of the next trial of a study.

    Args:
        space: The space of the search.
        study: As by `filled_study`.
    """
    with _silent():
        trial = study.ask()
        settings: dict[str, Any] = {}
        for key, own in space.parameters.items():
            if space.applies(own, settings):
                number = _suggested(trial, own)
                settings[key] = own.values[int(number)] if own.values else number
        return settings


def _suggested(trial: Any, own: Parameter) -> float:
    """What Optuna suggests, from `_distribution`."""
    if own.kind == "choice":
        return int(trial.suggest_categorical(own.key, tuple(range(len(own.values)))))
    if own.values:
        return int(trial.suggest_int(own.key, 0, len(own.values) - 1))
    if own.is_integer:
        return int(trial.suggest_int(own.key, int(own.low), int(own.high), log=own.is_log))
    return float(trial.suggest_float(own.key, own.low, own.high, log=own.is_log))


class Watched:
    """The trial that a pruner watches.

    Args:
        study: As by `filled_study`, with a pruner.
        direction: Whether higher or lower values are better.

    Attributes:
        rungs: Values at the rungs of successive halving so far.
    """

    def __init__(self, study: Any, direction: Direction) -> None:
        self._study, self._direction = study, direction
        with _silent():
            self._trial = study.ask()

    def prunes(self, epoch: int, value: float) -> bool:
        """Whether the pruner ends the trial after this epoch.

        Args:
            epoch: Epochs done; each once, ascending.
            value: The metric.
        """
        with _silent():
            for _, own in _values([(epoch, value)], self._direction):
                self._trial.report(own, epoch)
            return bool(self._trial.should_prune())

    @property
    def rungs(self) -> list[float]:
        """See above."""
        stored: Mapping[str, Any] = self._study.get_trials(deepcopy=False)[self._trial.number].system_attrs
        found: list[float] = []
        while (name := f"{_RUNG}{len(found)}") in stored:
            found.append(float(stored[name]))
        return found


def _values(curve: Sequence[tuple[int, float]], direction: Direction) -> Iterator[tuple[int, float]]:
    """Values of a curve, lower being better."""
    sign = 1.0 if direction == "lower" else -1.0
    for epoch, value in curve:
        yield epoch, sign * value


def _distribution(own: Parameter) -> Any:
    """Optuna's distribution of what `Parameter.number` gives."""
    kinds = optuna().distributions
    if own.kind == "choice":
        return kinds.CategoricalDistribution(tuple(range(len(own.values))))
    if own.values:  # in order, and evenly spread on the range's scale
        return kinds.IntDistribution(0, len(own.values) - 1)
    if own.is_integer:
        return kinds.IntDistribution(int(own.low), int(own.high), log=own.is_log)
    return kinds.FloatDistribution(own.low, own.high, log=own.is_log)
