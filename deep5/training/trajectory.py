"""`prove_same_trajectory`: do these back-ends compute the same training? Four parts, over all pairs.

With ReLU and max-pooling two right float32 implementations drift apart without bound, so "the same" has parts: float64
free-running, float32 restarted from the float64 state, gradients, and float32 free-running where the network is smooth.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from deep5.core import plugins
from deep5.core.errors import Unsupported, UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.networks.network import Network
from deep5.training.replay import Batch, Make, Replayed, Schedules, Waypoints, free_running, unscheduled
from deep5.training.rule import UpdateRule

__all__ = ["Comparison", "Played", "Proof", "play", "prove_same_trajectory", "same_trajectory"]

# Measured on right implementations of smooth and of kinked networks, with room: two orders of magnitude above the
# rounding of the element type times the depth, far below what one wrong hyperparameter or gradient shows.
_FREE_DOUBLE, _RESTARTED, _FREE_SINGLE = 1e-9, 1e-5, 1e-4
_GRADIENT = {True: 1e-5, False: 2e-2}
# An update is a dozen operations an element, each rounded to 6e-8, and no kink is in it.
_UPDATE = 1e-5
# Two compiled programs of one framework may round a gradient differently, and one of them fall to the other side of a
# kink; far below a percent all the same.
_WHOLE = 1e-3


class Comparison(NamedTuple):
    """One part for one pair.

    Attributes:
        part: `"a"` to `"d"`.
        what: What was compared, in words.
        first: A back-end, or `"float64"` for the reference's float64 trajectory, or for the rule in float64.
        second: Another.
        difference: The largest relative difference found.
        tolerance: What is allowed.
        ulps: The difference in units in the last place of the coarser element type: the largest, but of gradients the
            median over their elements, since an element near zero has no right digit.
    """

    part: str
    what: str
    first: str
    second: str
    difference: float
    tolerance: float
    ulps: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance; a NaN is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What was compared, all of it, and what could not be.

    Attributes:
        comparisons: One a part and pair.
        left_out: Back-ends that cannot take part in a part, `"NAME: REASON"`.
        losses: Losses of every free-running trajectory, by (back-end, dtype), shape (steps,).
    """

    comparisons: Sequence[Comparison]
    left_out: Sequence[str] = ()
    losses: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every comparison holds, and there is one."""
        return bool(self.comparisons) and all(comparison.passed for comparison in self.comparisons)

    def failures(self) -> list[str]:
        """One line for each comparison that does not hold."""
        return [
            f"({c.part}) {c.what}, {c.first} and {c.second}: {c.difference:.3g}; allowed: {c.tolerance:g}"
            for c in self.comparisons
            if not c.passed
        ]


def prove_same_trajectory(
    network: Callable[[str], Network],
    rule: Callable[[], UpdateRule],
    batches: Callable[[Network], Iterator[Batch]],
    frameworks: Sequence[str | Framework],
    *,
    smooth: bool = True,
    restarts: int = 11,
) -> Proof:
    """Train one network on several back-ends, from the same weights on the same batches, and compare all pairs.

    Args:
        network: Makes the network for a dtype, with initial weights that agree to rounding.
        rule: Makes the update rule.
        batches: Makes the batches for a network, in its dtype; their number is the length of the trajectory.
        frameworks: Back-ends, at least two. The reference's float64 trajectory is what the float32 parts start from.
        smooth: The network has no kinks (ReLU, max-pooling): part (d) is asked for, and part (c) to the tighter figure.
        restarts: At how many places of the trajectory parts (b) and (c) are judged.

    Returns:
        The proof: (a) float64, free-running: losses; (b) float32, from a float64 state: the loss there, the loss a
        step later, and the update, in two halves and as a whole step, against the rule in float64 on the back-end's own
        gradient, which kinks do not blur; (c) gradients there, norm of the difference over norm, over all
        parameters; (d) float32, free-running: losses.

    Raises:
        UsageError: Fewer than two back-ends, or no batches.
    """
    made = {found.name: found for found in map(_framework, frameworks)}
    if len(made) < 2:
        raise UsageError(f"got the back-ends {', '.join(made) or 'none'}; allowed: at least two different ones")
    double, single = network("float64"), network("float32")
    wide, narrow = list(batches(double)), list(batches(single))
    if len(wide) < 2 or len(wide) != len(narrow):
        raise UsageError(f"got {len(wide)} and {len(narrow)} batches; allowed: at least two, as many for every dtype")
    waypoints = Waypoints.along(plugins.framework("reference").executor(double), rule, wide, restarts)
    feeds = {"float64": (double, wide), "float32": (single, narrow)}
    played = {name: play(found.executor, rule, feeds, waypoints) for name, found in made.items()}
    return same_trajectory(waypoints, played, smooth=smooth)


@dataclass(frozen=True, kw_only=True)
class Played:
    """What one back-end adds to a proof.

    Attributes:
        losses: Of its free-running trajectories by dtype, shape (steps,).
        replayed: What it found at the waypoints in float32, or None.
        left_out: What it cannot take part in, `"in DTYPE: REASON"`.
    """

    losses: Mapping[str, np.ndarray]
    replayed: Replayed | None
    left_out: Sequence[str] = ()

    def arrays(self) -> dict[str, np.ndarray]:
        """All but `left_out` by name, to be kept in a file."""
        found = {f"free/{dtype}": losses for dtype, losses in self.losses.items()}
        if self.replayed is not None:
            found |= {f"replayed/{name}": value for name, value in self.replayed.arrays().items()}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray], left_out: Sequence[str] = ()) -> Played:
        """`arrays` undone."""
        losses = {name.removeprefix("free/"): value for name, value in arrays.items() if name.startswith("free/")}
        own = {name.removeprefix("replayed/"): value for name, value in arrays.items() if name.startswith("replayed/")}
        return cls(losses=losses, replayed=Replayed.of_arrays(own) if own else None, left_out=left_out)


def play(
    executor: Callable[[Network], GraphExecutor],
    make: Make,
    feeds: Mapping[str, tuple[Network, Sequence[Batch]]],
    waypoints: Waypoints,
    schedules: Schedules = unscheduled,
) -> Played:
    """A back-end's own part of a proof; it needs no other back-end beside it.

    Args:
        executor: Makes the back-end's executor of a network.
        make: Makes the optimizer.
        feeds: By dtype, `"float64"` and `"float32"`, the network and its batches.
        waypoints: Of the reference.
        schedules: Of the optimizer's hyperparameters, where they change.
    """
    losses, replayed, left_out = {}, None, []
    for dtype, (network, batches) in feeds.items():
        try:
            losses[dtype] = free_running(executor(network), make, batches, schedules)
            if dtype == "float32":
                replayed = waypoints.replay(executor(network), make, batches, schedules)
        except Unsupported as error:
            left_out.append(f"in {dtype}: {error}")
    return Played(losses=losses, replayed=replayed, left_out=left_out)


def same_trajectory(waypoints: Waypoints, played: Mapping[str, Played], *, smooth: bool) -> Proof:
    """Compare what back-ends have played, all pairs of them.

    Args:
        waypoints: Of the reference.
        played: By back-end.
        smooth: As for `prove_same_trajectory`.
    """
    losses = {(name, dtype): curve for name, own in played.items() for dtype, curve in own.losses.items()}
    found = {"float64": waypoints.replayed}
    found |= {name: own.replayed for name, own in played.items() if own.replayed is not None}
    comparisons = _curves("a", "losses in float64, free-running", losses, "float64", _FREE_DOUBLE)
    # Adam's first steps are as long for a gradient that is only rounding as for any other: behind a kink the loss after
    # the step is no closer than the gradient.
    later = _RESTARTED if smooth else _GRADIENT[False]
    for one, other in itertools.combinations(found, 2):
        first, second = found[one], found[other]
        for what, pair, tolerance in (
            ("loss at a float64 state", (first.losses, second.losses), _RESTARTED),
            ("loss a step later", (first.later, second.later), later),
        ):
            if all(curve.size for curve in pair):
                ulps = float(_ulps(*pair, np.float32).max())
                comparisons.append(Comparison("b", what, one, other, _relative(*pair), tolerance, ulps))
    for name, own in found.items():
        if own.updates is not None:
            halves, whole, ulps = own.updates
            comparisons.append(Comparison("b", "update on its own gradient", name, "float64", halves, _UPDATE, ulps))
            comparisons.append(Comparison("b", "update of a whole step", name, "float64", whole, _WHOLE, ulps))
    for one, other in itertools.combinations(found, 2):
        pairs = list(zip(found[one].gradients, found[other].gradients, strict=True))
        difference = max(_distance(a, b) for a, b in pairs)
        ulps = max(float(np.median(_ulps(a, b, np.float32))) for a, b in pairs)
        comparisons.append(
            Comparison("c", "gradients at a float64 state", one, other, difference, _GRADIENT[smooth], ulps)
        )
    if smooth:
        comparisons += _curves("d", "losses in float32, free-running", losses, "float32", _FREE_SINGLE)
    left_out = tuple(f"{name} {reason}" for name, own in played.items() for reason in own.left_out)
    return Proof(comparisons=tuple(comparisons), left_out=left_out, losses=losses)


def _framework(given: str | Framework) -> Framework:
    return plugins.framework(given) if isinstance(given, str) else given


def _curves(
    part: str, what: str, losses: Mapping[tuple[str, str], np.ndarray], dtype: str, tolerance: float
) -> list[Comparison]:
    found = []
    for one, other in itertools.combinations((name for name, kind in losses if kind == dtype), 2):
        pair = losses[one, dtype], losses[other, dtype]
        ulps = float(_ulps(*pair, np.dtype(dtype).type).max())
        found.append(Comparison(part, what, one, other, _relative(*pair), tolerance, ulps))
    return found


def _ulps(one: np.ndarray, other: np.ndarray, kind: type[np.floating]) -> np.ndarray:
    """The distance of values in units in the last place of the larger, in an element type."""
    larger = np.maximum(np.abs(one), np.abs(other)).astype(kind)
    return np.asarray(np.abs(one - other) / np.spacing(larger).astype(np.float64))


def _relative(one: np.ndarray, other: np.ndarray) -> float:
    # A loss near zero has few right digits: differences count against at least 1e-3 of the largest.
    scale = np.maximum(np.maximum(np.abs(one), np.abs(other)), 1e-3 * np.max(np.abs(one)))
    return float(np.max(np.abs(one - other) / scale))


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))
