"""Tolerances derived from the element type and from the condition of the computation.

An output y of inputs x that were rounded by eps may have an error of eps S, where S = sum_j |dy/dx_j x_j|, and so may
rounded intermediate results. S is estimated without derivatives: if the inputs are scaled by 1 + d c_j with c_j of the
Cauchy distribution, y moves by d S times a Cauchy variable, whose absolute value has the median 1 (Indyk, Stable
distributions, pseudorandom generators, embeddings, and data stream computation, J. ACM 53(3), 2006). With signs in
place of c_j it moves by d R on average, R = sqrt(sum_j (dy/dx_j x_j)^2), so n = (S / R)^2 inputs contribute to y.
Rounding errors are nearly independent, so that those of a sum of n terms add up to sqrt(n) of them (Higham and Mary, A
new approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from deep5.core.quantities import ulps
from deep5.core.tensors import numpy_dtype
from deep5.operators.checks.inputs import floating
from deep5.operators.contract import is_floating

__all__ = [
    "LEGEND",
    "ROUNDINGS",
    "Condition",
    "Deviation",
    "condition",
    "deviation",
    "epsilon",
    "jumps",
    "tolerance_text",
    "working",
]

Function = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

# A few operations per element, and functions such as exp with errors of 4 units in the last place.
ROUNDINGS = 8.0
LEGEND = (
    "y is what is expected, S = sum |dy/dx_j x_j| its condition and n how many inputs take part in it, both estimated "
    f"in float64; {ROUNDINGS:g} for a handful of roundings an element; in float16 that is 0.8 % of |y| + sqrt(n) S, in "
    "bfloat16 6 %: an error below it passes there"
)
"""Meaning of the letters in `tolerance_text`."""

_STEP = 2.0**-38  # far above float64 rounding, and far below nonlinear effects
_LARGEST = 1e5  # bound on the Cauchy numbers: inputs move by at most a relative 4e-7
_CAUCHY, _SIGNS, _JUMPS = 8, 4, 3


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Sensitivity of outputs to inputs, with one array per output; None for outputs that are not floating-point.

    Attributes:
        values: The outputs in float64.
        total: S, the sum of |dy/dx_j x_j|.
        terms: n, the number of contributing inputs.
    """

    values: tuple[np.ndarray, ...]
    total: tuple[np.ndarray | None, ...]
    terms: tuple[np.ndarray | None, ...]

    def scale(self, output: int) -> np.ndarray:
        """|y| + sqrt(n) S: the maximum magnitude of rounded values on the way to an output."""
        total, terms = self.total[output], self.terms[output]
        size: np.ndarray = np.abs(self.values[output]).astype(np.float64)
        return size if total is None or terms is None else size + np.sqrt(terms) * total


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of an element type."""
    return float(_limits(dtype).eps)


def working(dtype: str, inputs: Sequence[np.ndarray]) -> str:
    """The element type that determines the rounding of outputs of `dtype`: that one, or a coarser one of another
    floating-point input, in which the operator may compute.

    >>> working("float64", [np.zeros(2), np.zeros(2, np.float32)])
    'float32'
    """
    kinds = [str(value.dtype) for value, yes in zip(inputs, floating(inputs), strict=True) if yes]
    beside = [kind for kind in kinds if kind != kinds[0]] if is_floating(dtype) else []
    return max((dtype, *beside), key=epsilon) if beside else dtype


def condition(function: Function, inputs: Sequence[np.ndarray], rng: np.random.Generator) -> Condition:
    """Estimate the condition of a function at a point.

    Args:
        function: From float64 arrays (and unchanged others) to a sequence of arrays.
        inputs: The point, floating-point inputs in float64.
        rng: Draws the perturbations.
    """
    values = tuple(np.array(value) for value in function(inputs))
    which = [number for number, yes in enumerate(floating(values)) if yes]
    total: list[np.ndarray | None] = [None] * len(values)
    terms: list[np.ndarray | None] = [None] * len(values)
    if not which:
        return Condition(values=values, total=tuple(total), terms=tuple(terms))

    def moves(draw: Callable[[tuple[int, ...]], np.ndarray], count: int) -> list[list[np.ndarray]]:
        found: list[list[np.ndarray]] = [[] for _ in which]
        for _ in range(count):
            moved = function(_scaled(inputs, _STEP, draw))
            for place, number in enumerate(which):
                with np.errstate(all="ignore"):
                    found[place].append(np.abs(moved[number] - values[number]) / _STEP)
        return found

    heavy = moves(lambda shape: np.clip(rng.standard_cauchy(shape), -_LARGEST, _LARGEST), _CAUCHY)
    light = moves(lambda shape: rng.choice((-1.0, 1.0), shape), _SIGNS)
    for place, number in enumerate(which):
        spread = np.sqrt(np.mean(np.square(light[place]), axis=0))
        sums = np.maximum(np.median(heavy[place], axis=0), spread)
        with np.errstate(all="ignore"):
            count = np.square(sums / spread)
        most = max(1, sum(value.size for value in inputs))
        total[number] = np.where(np.isnan(sums), np.inf, sums)
        terms[number] = np.clip(np.where(np.isfinite(count), count, 1.0), 1.0, most)
    return Condition(values=values, total=tuple(total), terms=tuple(terms))


def jumps(
    function: Function, inputs: Sequence[np.ndarray], known: Condition, eps: float, rng: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Changes of outputs when inputs are rounded by `eps`, beyond their condition: outputs jump at comparisons that
    rounding decides. For integers: 1 where they change.
    """
    found = [np.zeros(value.shape) for value in known.values]
    for _ in range(_JUMPS):
        moved = function(_scaled(inputs, eps, lambda shape: rng.choice((-1.0, 1.0), shape)))
        for number, (value, base) in enumerate(zip(moved, known.values, strict=True)):
            total = known.total[number]
            with np.errstate(all="ignore"):
                if total is None:
                    step = np.asarray(value != base, float)
                else:
                    step = np.abs(value - base)
                    step = np.where(step > 4 * eps * (np.abs(base) + total), step, 0.0)
            found[number] = np.fmax(found[number], step)
    return tuple(found)


class Deviation(NamedTuple):
    """Difference of an output from its expected value, at the element closest to, or furthest beyond, its tolerance.

    `story` is empty if all elements are within tolerance. `differences` is for the picture: the differences beyond the
    tolerance, and 0 elsewhere, so that its largest is the one in `story`. `values` is the number of compared elements.
    """

    error: float
    relative: float
    ulps: float
    allowed: float
    story: str
    differences: np.ndarray
    values: int
    shows: str = ""


def deviation(
    got: np.ndarray, expected: np.ndarray, scale: np.ndarray | None, jump: np.ndarray | None = None, twice: bool = False
) -> Deviation:
    """Compare an output with what is expected.

    Args:
        got: The output in its own element type.
        expected: The expected output in float64; integers must be equal.
        scale: |y| + sqrt(n) S, from `Condition.scale`; None for integers.
        jump: Additional tolerance; see `jumps`.
        twice: Whether the expected output was rounded as much as the actual one.
    """
    dtype = str(got.dtype)
    if got.shape != expected.shape:
        story = f"got the shape {list(got.shape)}; allowed: {list(expected.shape)}, as is expected"
        return Deviation(np.inf, np.inf, np.inf, 0.0, story, np.zeros(0), got.size)
    if got.size == 0:
        return Deviation(0.0, 0.0, 0.0, 0.0, "", np.zeros(got.shape), 0)
    if not is_floating(dtype) or scale is None:
        # NaN equals NaN here.
        wrong = np.asarray((got != expected) & ~(np.not_equal(got, got) & np.not_equal(expected, expected)), float)
        if jump is not None:
            wrong[jump > 0] = 0.0
        story = _story(got, expected, np.unravel_index(int(wrong.argmax()), wrong.shape), wrong > 0, "the same")
        return Deviation(float(wrong.max()), float(wrong.max()), float(wrong.max()), 0.0, story, wrong, got.size)
    limits = _limits(dtype)
    with np.errstate(all="ignore"):
        wide, want = got.astype(np.float64), expected.astype(np.float64)
        allowed = (2 if twice else 1) * ROUNDINGS * (float(limits.eps) * scale + _least(limits))
        if jump is not None:
            allowed = allowed + jump
        difference = np.abs(wide - want)
        # Infinity is expected where the number exceeds the element type's range, or allowed where rounding decides.
        over = np.abs(want) + allowed >= float(limits.max)
        same = (
            (wide == want) | (np.isnan(wide) & np.isnan(want)) | (over & (np.abs(wide) == np.inf) & (wide * want > 0))
        )
        difference = np.where(same, 0.0, np.where(np.isnan(difference), np.inf, difference))
        allowed = np.where(np.isnan(allowed), np.inf, allowed)
        # Non-finite values must be equal: no tolerance covers the difference between a number and infinity or NaN.
        lost = ~same & ~(np.isfinite(wide) & np.isfinite(want))
        share = np.where(lost, np.inf, np.where(difference == 0, 0.0, difference / np.maximum(allowed, 1e-320)))
        bad = share > 1
        beyond = np.where(bad, difference, 0.0)
        # If all elements are exact, use the largest one, for a meaningful tolerance.
        right = share if share.max() > 0 else np.abs(np.where(np.isfinite(want), want, 0))
        at = np.unravel_index(int((beyond if bad.any() else right).argmax()), got.shape)
        error, room = float(difference[at]), float(allowed[at])
        unit = _unit(abs(float(want[at])), limits)
        relative = error / abs(float(want[at])) if want[at] else (0.0 if error == 0 else np.inf)
    allowed_text = "the same, since one of them is not finite"
    if not lost[at]:
        allowed_text = f"an error of {room:.3g}, got one of {error:.3g}, {ulps(error / unit)} ulps"
    story = _story(got, expected, at, bad, allowed_text)
    return Deviation(error, float(relative), error / unit, room, story, beyond, got.size)


def tolerance_text(dtype: str, twice: bool = False) -> str:
    """The derivation of a tolerance; `LEGEND` explains the letters."""
    return f"{'2 x ' if twice else ''}{ROUNDINGS:g} eps (|y| + sqrt(n) S), eps = {epsilon(dtype):.2g} ({dtype})"


def _story(got: np.ndarray, expected: np.ndarray, at: Any, bad: np.ndarray, allowed: str) -> str:
    if not bad.any():
        return ""
    where = [int(index) for index in at]
    return (
        f"at {where} got {got[at]!s}, expected {expected[at]!s}; allowed: {allowed}; "
        f"{int(bad.sum())} of {bad.size} elements are wrong"
    )


def _scaled(
    inputs: Sequence[np.ndarray], step: float, draw: Callable[[tuple[int, ...]], np.ndarray]
) -> tuple[np.ndarray, ...]:
    with np.errstate(all="ignore"):
        return tuple(
            np.asarray(value * (1 + step * draw(value.shape))) if yes else value
            for value, yes in zip(inputs, floating(inputs), strict=True)
        )


def _least(limits: Any) -> float:
    """The smallest number that an element type keeps.

    XLA and Eigen compute with zeros in place of subnormal numbers, of which only float16's are large enough to matter.
    """
    smallest = float(limits.smallest_normal)
    return smallest if smallest < 1e-30 else float(limits.smallest_subnormal)


def _unit(size: float, limits: Any) -> float:
    """The unit in the last place of a number."""
    if not np.isfinite(size) or size == 0:
        return float(limits.smallest_subnormal)
    return float(max(float(limits.eps) * 2.0 ** (np.frexp(size)[1] - 1), float(limits.smallest_subnormal)))


def _limits(dtype: str) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
