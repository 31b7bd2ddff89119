"""`Alternating`: several losses of one network in turn, each with its own parameters and update rule."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from deep5.core.errors import RuleError, ShapeError, UnknownName, UsageError, brief
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import GraphExecutor, ParameterGroup
from deep5.core.tensors import Arrays
from deep5.training.optimizer import RuleOptimizer
from deep5.training.rule import UpdateRule

__all__ = ["Alternating", "Turn"]


@dataclass(frozen=True)
class Turn:
    """One of the updates of a step of `Alternating`.

    Attributes:
        rule: The update rule; it is copied when the optimizer is bound.
        loss: Name of the scalar output to minimize.
        parameters: Names of the parameters that it changes, with `*`, `?` and `[…]` as in file names.

    Raises:
        UsageError: An attribute has another type.

    >>> import deep5 as d5
    >>> d5.Turn(d5.SGD(0.1), loss="loss", parameters="discriminator.*").loss
    'loss'
    """

    rule: UpdateRule
    loss: str
    parameters: str

    def __post_init__(self) -> None:
        if not isinstance(self.rule, UpdateRule):
            raise UsageError(
                f"Turn: got {brief(self.rule)} as a rule; allowed: a d5.UpdateRule, such as d5.Adam(0.001)"
            )
        for name in ("loss", "parameters"):
            if not isinstance(given := getattr(self, name), str) or not given:
                raise UsageError(f"Turn: got {name}={brief(given)}; allowed: a string, such as 'generator.*'")

    def describe(self) -> dict[str, Any]:
        """The content of a recipe's hash."""
        return {"loss": self.loss, "parameters": self.parameters, **self.rule.describe()}


class Alternating:
    """Updates of several parts of a network in turn, as of a generative adversarial network; a `StepOptimizer`.

    A step is one whole training step for each turn, in their order and on the same batch: forward, backward of the
    turn's loss, and the turn's rule for its own parameters. A later turn sees the parameters that earlier turns
    changed. The parameters of all other turns have no gradient and stay bit-identical. Each turn is a pass in training
    mode, with the random masks of the step; running statistics change in each.

    Args:
        turns: The turns by name.

    Raises:
        UsageError: There are no turns, or one is not a `Turn`.

    Attributes:
        loss: The loss of the first turn.

    References:
        Goodfellow et al., Generative adversarial nets, NeurIPS 2014, algorithm 1, with one step of the discriminator.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> executor = d5.framework("reference").executor(d5.networks.gan(image=4, latent=3, hidden=(8,)))
    >>> optimizer = d5.Alternating({
    ...     "discriminator": d5.Turn(d5.Adam(0.001), loss="loss", parameters="discriminator.*"),
    ...     "generator": d5.Turn(d5.Adam(0.0005), loss="generator_loss", parameters="generator.*"),
    ... })
    >>> optimizer.bind(executor)
    >>> batch = {"input": np.ones((5, 1, 4, 4), np.float32), "latent": np.ones((5, 3), np.float32)}
    >>> sorted(optimizer.step(batch, d5.StepInfo(batch_size=5)))
    ['generated', 'generator_loss', 'loss']
    >>> optimizer.set_hyper("generator.lr", 0.0001)
    >>> optimizer.hyper["discriminator.lr"], optimizer.hyper["generator.lr"]
    (0.001, 0.0001)
    """

    def __init__(self, turns: Mapping[str, Turn]) -> None:
        if not isinstance(turns, Mapping) or not turns or not all(isinstance(turn, Turn) for turn in turns.values()):
            raise UsageError(
                f"Alternating: got {brief(turns)} as turns; allowed: a dict of d5.Turn by name, at least one"
            )
        self._turns = dict(turns)
        self.loss = next(iter(turns.values())).loss
        self._waiting: dict[str, float] = {}
        self._bound: dict[str, RuleOptimizer] = {}

    def bind(self, executor: GraphExecutor) -> None:
        """Create the executor's whole step of each turn.

        Args:
            executor: Runs the network, and keeps the parameters.

        Raises:
            RuleError: A parameter belongs to no turn or to several, a turn has none, or a rule has other parameters for
                evaluation.
            UsageError: A turn's loss is not an output.
        """
        names = self._owners(list(executor.network.trained_specs))
        made = {}
        for name, turn in self._turns.items():
            if type(turn.rule).eval_param is not UpdateRule.eval_param:
                raise RuleError(
                    f"Alternating: the rule {type(turn.rule).__name__} of the turn {name!r} has other parameters for "
                    "evaluation; allowed: rules without eval_param"
                )
            others = frozenset(other for other, owner in names.items() if owner != name)
            groups = [ParameterGroup(others.__contains__, frozen=True)] if others else []
            made[name] = RuleOptimizer(copy.copy(turn.rule), loss=turn.loss, groups=groups)
            made[name].bind(executor)
        self._bound = made
        for name, value in self._waiting.items():
            self.set_hyper(name, value)

    def _owners(self, parameters: list[str]) -> dict[str, str]:
        """The turn of each parameter."""
        found: dict[str, str] = {}
        for parameter in parameters:
            own = [name for name, turn in self._turns.items() if fnmatchcase(parameter, turn.parameters)]
            if len(own) != 1:
                got = f"belongs to the turns {', '.join(own)}" if own else "belongs to no turn"
                raise RuleError(
                    f"Alternating: the parameter {parameter!r} {got}; allowed: one turn for each parameter that is "
                    "trained; remedy: other names in Turn(parameters=…), or network.freeze"
                )
            found[parameter] = own[0]
        for name, turn in self._turns.items():
            if name not in found.values():
                raise RuleError(
                    f"Alternating: {turn.parameters!r} of the turn {name!r} matches no parameter that is trained; "
                    f"allowed: {', '.join(parameters[:10])}{', …' if len(parameters) > 10 else ''}"
                )
        return found

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One update of each turn on one batch.

        Args:
            inputs: The batch, as for `GraphExecutor.inference`.
            info: The step.

        Returns:
            The outputs before the first update, but each turn's loss as its turn began.

        Raises:
            UsageError: `bind` was not called, or `info` is not a `StepInfo`.
        """
        check_info(info)
        outputs: dict[str, Any] = {}
        for optimizer in self._optimizers().values():
            found = optimizer.step(inputs, info)
            outputs = outputs or dict(found)
            outputs[optimizer.loss] = found[optimizer.loss]
        return outputs

    @property
    def hyper(self) -> dict[str, float]:
        """The hyperparameters of all rules, as `TURN.NAME`."""
        return {f"{name}.{key}": getattr(rule, key) for name, rule in self._rules() for key in rule.hyper}

    @property
    def changeable(self) -> tuple[str, ...]:
        """The hyperparameters that `set_hyper` accepts: those of one turn, and those that all turns have."""
        shared = [key for _, rule in self._rules() for key in rule.hyper]
        common = [key for key in dict.fromkeys(shared) if shared.count(key) == len(self._turns)]
        return (*self.hyper, *common)

    def set_hyper(self, name: str, value: float) -> None:
        """Set a hyperparameter from the next step on.

        Args:
            name: `TURN.NAME`; or `NAME`, for all turns.
            value: The new value.

        Raises:
            UnknownName: There is no such hyperparameter.
            UsageError: A value is not allowed.
        """
        if name not in self.changeable:
            raise UnknownName("hyperparameter of Alternating", name, self.changeable)
        turn, _, key = name.rpartition(".")
        if not self._bound:
            self._waiting[name] = value
            return
        for own, optimizer in self._bound.items():
            if turn in ("", own):
                optimizer.set_hyper(key, value)

    def averaged(self) -> AbstractContextManager[None]:
        """Does nothing: the rules evaluate the parameters themselves."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """The state of each turn's rule, by the turn's name."""
        return {name: optimizer.state_dict() for name, optimizer in self._optimizers().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict`.

        Args:
            state: A result of `state_dict`, for the same network and turns.

        Raises:
            ShapeError: The state is of other turns; or as for `RuleOptimizer.load_state_dict`.
        """
        if state.keys() != self._turns.keys():
            raise ShapeError(
                f"the optimizer's state has the turns {', '.join(state)}; allowed: {', '.join(self._turns)}"
            )
        for name, optimizer in self._optimizers().items():
            optimizer.load_state_dict(state[name])

    def describe(self) -> dict[str, Any]:
        """The turns, each with its rule; in JSON types."""
        turns = {}
        for name, turn in self._turns.items():
            own = {key: self.hyper[f"{name}.{key}"] for key in turn.rule.hyper}
            turns[name] = {**turn.describe(), **own}
        return {"optimizer": "Alternating", "turns": turns}

    def _rules(self) -> Iterator[tuple[str, UpdateRule]]:
        for name, turn in self._turns.items():
            yield name, self._bound[name].rule if self._bound else turn.rule

    def _optimizers(self) -> dict[str, RuleOptimizer]:
        if not self._bound:
            raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")
        return self._bound
