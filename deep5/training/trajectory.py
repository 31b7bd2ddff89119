"""`prove_same_trajectory`: do these back-ends compute the same training? Four parts, over all pairs.

With ReLU and max-pooling, two correct float32 implementations diverge without bound, so "the same" has parts: float64
free-running, float32 restarted from the float64 state, gradients, and float32 free-running if the network is smooth.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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

__all__ = ["Comparison", "Played", "Proof", "play", "prove_same_trajectory", "reason_without", "same_trajectory"]

# Measured on correct implementations of smooth and non-smooth networks, with margin: two orders of magnitude above the
# rounding of the element type times the depth, far below the effect of one wrong hyperparameter or gradient.
_FREE_DOUBLE, _RESTARTED, _FREE_SINGLE = 1e-9, 1e-5, 1e-4
_GRADIENT = {True: 1e-5, False: 2e-2}
# In float64 at one state, kinks rarely matter; a wrong factor of one parameter's gradient does.
_GRADIENT_DOUBLE = 1e-7
# Parameters whose gradient is smaller than this part of the whole are compared with that part: what cancels, such as
# the gradient of a bias before a normalization, has no correct digit.
_PART = 1e-6
# Two correct float32 implementations add in other orders: their errors differ by a factor. The reference's own one is
# measured, so that a loss of 1e-8, the difference of numbers near 10, need not have correct digits.
_MARGIN = 8.0
# An update is a dozen operations per element, each rounded to 6e-8, and has no kink.
_UPDATE = 1e-5
# Two compiled programs of one framework may round a gradient differently and end up on different sides of a kink;
# the difference is still far below a percent.
_WHOLE = 1e-3
# What a back-end suggests against an element type without kernels.
_OF_PRECISION = re.compile(r"; remedy: [^;\n]*with_precision\([^)\n]*\)")


class Comparison(NamedTuple):
    """One part for one pair.

    Attributes:
        part: `"a"` to `"d"`.
        what: A description of the comparison.
        first: A back-end, or `"float64"` for the reference's float64 trajectory, or for the rule in float64.
        second: Another.
        difference: The largest relative difference.
        tolerance: The maximum allowed difference.
        ulps: The difference in units in the last place of the coarser element type: the maximum, but for gradients the
            median over their elements, since an element near zero has no correct digit.
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
        """Whether the difference is within the tolerance; NaN fails."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, kw_only=True)
class Proof:
    """All comparisons, and what could not be compared.

    Attributes:
        comparisons: One per part and pair.
        left_out: Back-ends excluded from a part, `"NAME: REASON"`.
        undecided: Comparisons that cannot be decided in float32, with the reason; and a step size that is 1 % larger,
            if no comparison would find it.
        losses: Losses of every free-running trajectory, by (back-end, dtype), shape (steps,).
    """

    comparisons: Sequence[Comparison]
    left_out: Sequence[str] = ()
    undecided: Sequence[str] = ()
    losses: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every comparison passes, and there is at least one."""
        return bool(self.comparisons) and all(comparison.passed for comparison in self.comparisons)

    def failures(self) -> list[str]:
        """One line for each failed comparison."""
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
        network: Creates the network for a dtype, with initial weights that agree to rounding.
        rule: Creates the update rule.
        batches: Creates the batches for a network, in its dtype; their number is the length of the trajectory.
        frameworks: Back-ends, at least two. The float32 parts start from the reference's float64 trajectory.
        smooth: The network has no kinks (ReLU, max-pooling): part (d) is required, and part (c) has the tighter
            tolerance.
        restarts: Number of points of the trajectory at which parts (b) and (c) are evaluated.

    Returns:
        The proof: (a) float64, free-running: losses; (b) float32, from a float64 state: the loss there, the loss a
        step later, and the update, in two halves and as a whole step, compared with the rule in float64 on the
        back-end's own gradient, which is insensitive to kinks; (c) gradients there, norm of the difference divided by
        the norm, over all parameters, and of each parameter in float64; (d) float32, free-running: losses. What is
        nearly zero is compared with the error that the reference itself has in float32 there.

    Raises:
        UsageError: Fewer than two back-ends, or no batches.

    >>> import deep5 as d5
    >>> def batches(network):
    ...     data = d5.datasets.synthetic(shape=(4,), classes=3, train=12, test=6).train.cast(network.inputs)
    ...     for step, (ids, inputs) in enumerate(d5.OrderedSampler(data, 4).batches(epoch=0)):
    ...         yield d5.StepInfo(step=step, batch_size=4, sample_ids=ids), inputs
    >>> def network(dtype):
    ...     return d5.networks.mlp(features=4, hidden=8, classes=3, dtype=dtype)
    >>> proof = d5.prove_same_trajectory(network, d5.Adam, batches, ["reference", "onnxruntime"], restarts=2)
    >>> proof.passed, sorted({comparison.part for comparison in proof.comparisons}), proof.failures()
    (True, ['a', 'b', 'c', 'd'], [])
    """
    made = {found.name: found for found in map(_framework, frameworks)}
    if len(made) < 2:
        raise UsageError(f"got the back-ends {', '.join(made) or 'none'}; allowed: at least two different ones")
    double, single = network("float64"), network("float32")
    wide, narrow = list(batches(double)), list(batches(single))
    if len(wide) < 2 or len(wide) != len(narrow):
        raise UsageError(f"got {len(wide)} and {len(narrow)} batches; allowed: at least two, as many for every dtype")
    feeds = {"float64": (double, wide), "float32": (single, narrow)}
    waypoints = Waypoints.along(plugins.framework("reference").executor, rule, feeds, restarts)
    played = {name: play(found.executor, rule, feeds, waypoints) for name, found in made.items()}
    return same_trajectory(waypoints, played, smooth=smooth)


@dataclass(frozen=True, kw_only=True)
class Played:
    """One back-end's contribution to a proof.

    Attributes:
        losses: Losses of its free-running trajectories by dtype, shape (steps,).
        replayed: Its results at the waypoints in float32, or None.
        gradients: All its gradients at each waypoint in float64, concatenated, or None.
        left_out: The parts from which it is excluded, `"in DTYPE: REASON"`.
    """

    losses: Mapping[str, np.ndarray]
    replayed: Replayed | None
    gradients: Sequence[np.ndarray] | None = None
    left_out: Sequence[str] = ()

    def arrays(self) -> dict[str, np.ndarray]:
        """All fields except `left_out` by name, for storage in a file."""
        found = {f"free/{dtype}": losses for dtype, losses in self.losses.items()}
        if self.replayed is not None:
            found |= {f"replayed/{name}": value for name, value in self.replayed.arrays().items()}
        found |= {f"double/{place}": value for place, value in enumerate(self.gradients or ())}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray], left_out: Sequence[str] = ()) -> Played:
        """The inverse of `arrays`."""
        losses = {name.removeprefix("free/"): value for name, value in arrays.items() if name.startswith("free/")}
        own = {name.removeprefix("replayed/"): value for name, value in arrays.items() if name.startswith("replayed/")}
        double = [arrays[f"double/{place}"] for place in range(sum(name.startswith("double/") for name in arrays))]
        return cls(
            losses=losses,
            replayed=Replayed.of_arrays(own) if own else None,
            gradients=double or None,
            left_out=left_out,
        )


def play(
    executor: Callable[[Network], GraphExecutor],
    make: Make,
    feeds: Mapping[str, tuple[Network, Sequence[Batch]]],
    waypoints: Waypoints,
    schedules: Schedules = unscheduled,
) -> Played:
    """A back-end's own part of a proof, independent of other back-ends.

    Args:
        executor: Creates the back-end's executor of a network.
        make: Creates the optimizer.
        feeds: By dtype, `"float64"` and `"float32"`, the network and its batches.
        waypoints: The reference's waypoints.
        schedules: The optimizer's hyperparameter schedules, if any.
    """
    losses, replayed, gradients, left_out = dict[str, np.ndarray](), None, None, list[str]()
    for dtype, (network, batches) in feeds.items():
        try:
            losses[dtype] = free_running(executor(network), make, batches, schedules)
            if dtype == "float32":
                replayed = waypoints.replay(executor(network), make, batches, schedules)
            else:
                gradients = waypoints.gradients(executor(network), batches)
        except Unsupported as error:
            left_out.append(reason_without(dtype, error))
    return Played(losses=losses, replayed=replayed, gradients=gradients, left_out=left_out)


def reason_without(dtype: str, error: Unsupported) -> str:
    """Why a back-end is excluded from the parts of a proof in an element type: `"in DTYPE: REASON"`.

    The proof sets the element type, so another precision of the network, which a back-end may suggest, is no remedy.

    Args:
        dtype: The element type.
        error: The back-end's own reason.

    >>> reason_without("float64", Unsupported("no kernel; remedy: deep5.networks.with_precision(network, 'float32')"))
    'in float64: no kernel'
    """
    return f"in {dtype}: {_OF_PRECISION.sub('', str(error))}"


def same_trajectory(waypoints: Waypoints, played: Mapping[str, Played], *, smooth: bool) -> Proof:
    """Compare the results of all pairs of back-ends.

    Args:
        waypoints: The reference's waypoints.
        played: By back-end.
        smooth: As for `prove_same_trajectory`.
    """
    losses = {(name, dtype): curve for name, own in played.items() for dtype, curve in own.losses.items()}
    found = {"float64": waypoints.replayed}
    found |= {name: own.replayed for name, own in played.items() if own.replayed is not None}
    errors, right = waypoints.rounding, waypoints.replayed
    comparisons = _curves("a", "losses in float64, free-running", losses, "float64", _FREE_DOUBLE, 0.0 * errors.curve)
    undecided, largest = list[str](), float(np.abs(waypoints.losses).max())
    # Adam's first steps have the same length for a gradient of mere rounding error as for any other: after a kink the
    # loss after the step is no closer than the gradient.
    later = _RESTARTED if smooth else _GRADIENT[False]
    for what, name, tolerance in (
        ("loss at a float64 state", "losses", _RESTARTED),
        ("loss a step later", "later", later),
    ):
        rounding = getattr(errors, name)
        clear = _decidable(what, largest, tolerance, rounding, undecided)
        for one, other in itertools.combinations(found, 2):
            pair = tuple(getattr(found[each], name) for each in (one, other))
            if clear.any() and all(curve.size for curve in pair):
                first, second = (curve[clear] for curve in pair)
                ulps = float(_ulps(first, second, np.float32).max())
                apart = _relative(first, second, tolerance, rounding[clear], largest)
                comparisons.append(Comparison("b", what, one, other, apart, tolerance, ulps))
    for name, own in found.items():
        if own.updates is not None:
            halves, whole, ulps = own.updates
            comparisons.append(Comparison("b", "update on its own gradient", name, "float64", halves, _UPDATE, ulps))
            comparisons.append(Comparison("b", "update of a whole step", name, "float64", whole, _WHOLE, ulps))
    what, tolerance, noise = "gradients at a float64 state", _GRADIENT[smooth], np.linalg.norm(errors.gradients, axis=1)
    longest = max(float(np.linalg.norm(gradient)) for gradient in right.gradients)
    clear = _decidable(what, longest, tolerance, noise, undecided)
    for one, other in itertools.combinations(found, 2) if clear.any() else ():
        pairs = [
            pair
            for pair, known in zip(zip(found[one].gradients, found[other].gradients, strict=True), clear, strict=True)
            if known
        ]
        difference = _distance(pairs, tolerance, noise[clear], longest)
        ulps = max(float(np.median(_ulps(a, b, np.float32))) for a, b in pairs)
        comparisons.append(Comparison("c", what, one, other, difference, tolerance, ulps))
    doubles = {"float64": waypoints.replayed.gradients}
    doubles |= {name: own.gradients for name, own in played.items() if own.gradients is not None}
    for one, other in itertools.combinations(doubles, 2):
        pairs = list(zip(doubles[one], doubles[other], strict=True))
        ulps = max(float(np.median(_ulps(a, b, np.float64))) for a, b in pairs)
        difference = _by_parameter(pairs, waypoints, smooth=smooth)
        comparisons.append(
            Comparison("c", "gradients in float64 at a float64 state", one, other, difference, _GRADIENT_DOUBLE, ulps)
        )
    if smooth:
        what = "losses in float32, free-running"
        # What two trainings differ by grows: all that follows a step that decides nothing decides nothing either.
        clear = _decidable(what, largest, _FREE_SINGLE, np.maximum.accumulate(errors.curve), undecided)
        single = {key: curve[clear] for key, curve in losses.items() if key[1] == "float32" and clear.any()}
        comparisons += _curves("d", what, single, "float32", _FREE_SINGLE, errors.curve[clear])
    undecided += _unseen(waypoints, played.values())
    left_out = tuple(f"{name} {reason}" for name, own in played.items() for reason in own.left_out)
    return Proof(comparisons=tuple(comparisons), left_out=left_out, undecided=tuple(undecided), losses=losses)


def _decidable(what: str, largest: float, tolerance: float, rounding: np.ndarray, undecided: list[str]) -> np.ndarray:
    """Where the reference's own errors in float32 leave room for a decision; nowhere: the reason is added.

    AdaGrad's first step has one length for any gradient, also for one of mere rounding errors: then two correct
    implementations differ by whole steps.
    """
    clear = np.asarray(_MARGIN * rounding <= tolerance * largest)  # false for NaN
    if rounding.size and not clear.any():
        undecided.append(
            f"{what}: cannot be decided, because the reference itself is off by {rounding.min():.2g} or more in "
            f"float32, and the largest value is {largest:.2g}"
        )
    return clear


def _unseen(waypoints: Waypoints, played: Iterable[Played]) -> list[str]:
    """Why no comparison would find a step size that is 1 % larger, if none would: updates below rounding."""
    others = list(played)
    allowed = _FREE_DOUBLE if all("float64" in own.losses for own in others) else _FREE_SINGLE
    replayed = [own.replayed for own in others if own.replayed is not None]
    seen = bool(replayed) and all(own.updates is not None and own.seen > _UPDATE for own in replayed)
    if seen or waypoints.effect > allowed:
        return []
    return [
        f"a step size that is 1 % larger: cannot be decided, because it changes no loss by more than "
        f"{waypoints.effect:.2g} of it (allowed: {allowed:g}), and parameters by less than their rounding in float32; "
        "remedy: more steps, or a larger step size"
    ]


def _framework(given: str | Framework) -> Framework:
    return plugins.framework(given) if isinstance(given, str) else given


def _curves(
    part: str,
    what: str,
    losses: Mapping[tuple[str, str], np.ndarray],
    dtype: str,
    tolerance: float,
    rounding: np.ndarray,
) -> list[Comparison]:
    found = []
    for one, other in itertools.combinations((name for name, kind in losses if kind == dtype), 2):
        pair = losses[one, dtype], losses[other, dtype]
        ulps = float(_ulps(*pair, np.dtype(dtype).type).max())
        apart = _relative(*pair, tolerance, rounding, float(np.abs(pair[0]).max()))
        found.append(Comparison(part, what, one, other, apart, tolerance, ulps))
    return found


def _ulps(one: np.ndarray, other: np.ndarray, kind: type[np.floating]) -> np.ndarray:
    """The distance of values in units in the last place of the larger value, for an element type."""
    larger = np.maximum(np.abs(one), np.abs(other)).astype(kind)
    return np.asarray(np.abs(one - other) / np.spacing(larger).astype(np.float64))


def _floor(tolerance: float, rounding: np.ndarray, largest: float) -> float:
    """The least number that differences are relative to, so that the reference's own errors of arithmetic are allowed;
    at most the largest of the numbers: errors are never larger than what is allowed there.
    """
    return min(_MARGIN * float(rounding.max(initial=0.0)) / tolerance, largest)


def _relative(one: np.ndarray, other: np.ndarray, tolerance: float, rounding: np.ndarray, largest: float) -> float:
    sizes = np.maximum(np.abs(one), np.abs(other))
    # A loss near zero has few correct digits: differences are relative to at least 1e-3 of the largest loss.
    floor = max(_floor(tolerance, rounding, largest), 1e-3 * largest)
    return float(np.max(_divided(np.abs(one - other), np.maximum(sizes, floor))))


def _distance(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]], tolerance: float, rounding: np.ndarray, longest: float
) -> float:
    """The largest norm of a difference of gradients, relative to the norm."""
    sizes = np.array([np.linalg.norm(other) for _, other in pairs])
    apart = np.array([np.linalg.norm(one - other) for one, other in pairs])
    return float(_divided(apart, np.maximum(sizes, _floor(tolerance, rounding, longest))).max())


def _by_parameter(pairs: Sequence[tuple[np.ndarray, np.ndarray]], waypoints: Waypoints, *, smooth: bool) -> float:
    """The largest norm of a difference of one parameter's gradient, relative to the norm.

    After kinks, two correct implementations may rarely differ at a state, where an element lies on a kink: of all
    states, the lower median counts. A wrong factor is there at each.
    """
    sizes, apart = (waypoints.norms(each) for each in ([b for _, b in pairs], [a - b for a, b in pairs]))
    relative = _divided(apart, np.maximum(sizes, _PART * np.linalg.norm(sizes, axis=1, keepdims=True)))
    over = relative.max(axis=0) if smooth else np.sort(relative, axis=0)[(len(relative) - 1) // 2]
    return float(over.max(initial=0.0))


def _divided(apart: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Differences relative to sizes; equal zeros do not differ."""
    return np.asarray(np.divide(apart, sizes, out=np.where(apart == 0, 0.0, np.inf), where=sizes > 0))
