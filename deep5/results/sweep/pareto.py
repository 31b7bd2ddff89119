"""The trials of a sweep that no other one beats in value, parameters and multiply-adds at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deep5.core.errors import Deep5Error, UsageError
from deep5.core.terminal import counted
from deep5.results.screen_table import print_table
from deep5.results.sweep.record import Sweep, shown_goal
from deep5.results.sweep.trial import Trial, rank_value

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Cost", "pareto_front", "print_front"]

_NETWORK = "network.onnx"


@dataclass(frozen=True, kw_only=True)
class Cost:
    """A finished trial and the size of its network.

    Attributes:
        trial: The trial.
        parameters: Elements of all parameters.
        macs: Multiply-adds of a forward pass of one sample.
        exact: Whether `macs` is exact; otherwise it is a lower bound, since deep5 has no formula for an operator.
    """

    trial: Trial
    parameters: int
    macs: int
    exact: bool

    def document(self) -> dict[str, Any]:
        """In JSON types."""
        about = {"parameters": self.parameters, "multiply_adds": self.macs, "exact": self.exact}
        return {"number": self.trial.number, "value": self.trial.value, "settings": dict(self.trial.settings), **about}


def pareto_front(sweep: Sweep) -> list[Cost]:
    """The trials for which no other one is at least as good in value, parameters and multiply-adds, and better in one.

    Args:
        sweep: The sweep; the networks are those that its runs left.

    Returns:
        The best value first.

    Raises:
        UsageError: No trial has a value, or a network cannot be read.
    """
    direction = sweep.document["goal"]["direction"]
    costs = [_cost(sweep, trial) for trial in sweep.ranked]
    if not costs:
        raise UsageError(f"no trial of {sweep.folder} has a value; allowed: a sweep with at least one")
    front: list[Cost] = []
    points = [(rank_value(own.trial, direction), own.parameters, own.macs) for own in costs]
    for own, point in zip(costs, points, strict=True):
        beaten = any(other != point and all(a <= b for a, b in zip(other, point, strict=True)) for other in points)
        if not beaten:
            front.append(own)
    return front


def print_front(sweep: Sweep, front: Sequence[Cost], console: Console) -> None:
    """Print a row per trial of the front.

    Args:
        sweep: The sweep.
        front: What `pareto_front` returned.
        console: The console to print on.
    """
    from rich.text import Text

    keys = list(sweep.document["space"])
    rows = []
    for own in front:
        settings = [str(own.trial.settings.get(key, "-")) for key in keys]
        bound = "" if own.exact else "at least "
        rows.append(
            [str(own.trial.number), f"{own.trial.value:.6g}", f"{own.parameters:,}", f"{bound}{own.macs:,}", *settings]
        )
    goal = f"{shown_goal(sweep.document)} [{sweep.document['goal']['unit']}]"
    print_table(console, ["trial", goal, "parameters", "multiply-adds per sample", *keys], rows)
    count = counted(len(sweep.ranked), "finished trial")
    console.print(Text(f"{len(front)} of {count}: no other one is better without being larger"), overflow="fold")


def _cost(sweep: Sweep, trial: Trial) -> Cost:
    from deep5.networks.analysis.analysis import analyse
    from deep5.networks.network import Network

    path = sweep.folder / str(trial.run) / _NETWORK
    try:
        found = analyse(Network.from_onnx(path), batch=1, partial=True)
    except (Deep5Error, OSError) as error:
        raise UsageError(
            f"the network of the trial {trial.number} cannot be read: {error}; allowed: runs that left {_NETWORK}"
        ) from error
    return Cost(trial=trial, parameters=found.parameters, macs=found.macs, exact=found.exact)
