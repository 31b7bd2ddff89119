"""Whether candidates give the same results: what computes something else is not timed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.bench.plan import Workload
from deep5.core.tensors import numpy_dtype
from deep5.operators.contract import is_floating
from deep5.operators.work import bytes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Results", "difference", "standard_of", "tolerances", "wrong_dtypes"]


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a candidate's first call gave.

    Attributes:
        label: The candidate's.
        bare: Whether it is written by hand.
        arrays: Outputs, then gradients.
    """

    label: str
    bare: bool
    arrays: Sequence[NDArray[Any]]


def standard_of(work: Workload, found: Sequence[Results]) -> Results | str | None:
    """The results that most candidates agree with; why there are none, where nobody agrees with another.

    Whoever comes first is not right for that. Code written by hand is held to the one candidate beside it.

    Args:
        work: Gives the tolerance.
        found: Of every candidate that ran; None comes of none.
    """
    own = [results for results in found if not results.bare]
    if len(found) == 2 and len(own) == 1:
        return own[0]
    votes = [sum(difference(work, other, results) is None for other in found) for results in found]
    if not votes:
        return None
    if len(votes) > 1 and max(votes) == 1:
        labels = ", ".join(results.label for results in found)
        return f"no two of {labels} give the same results; remedy: deep5 check operator"
    return found[votes.index(max(votes))]


def difference(work: Workload, results: Results, standard: Results | None) -> str | None:
    """Why results are not those that most candidates agree with, or are no right numbers; None where nothing is wrong.

    Args:
        work: Gives the tolerance.
        results: Looked at.
        standard: From `standard_of`; None: whether they are finite and of the right element types is all that is asked.
    """
    # Code by hand reads its results into what NumPy has, bfloat16 into float32, say; its tolerance is no wider for it.
    wrong = {} if results.bare else wrong_dtypes(work, results.arrays)
    for reason in wrong.values():
        return reason
    for number, value in enumerate(results.arrays):
        if value.dtype.kind in "fV" and not np.isfinite(value.astype(np.float64)).all():
            return f"its result {number} is not finite"
    if standard is None:
        return None
    label, expected = standard.label, standard.arrays
    sizes = [[value.size for value in arrays] for arrays in (results.arrays, expected)]
    if sizes[0] != sizes[1]:
        return f"its results have {sizes[0]} elements, those of {label} {sizes[1]}"
    limits = tolerances(work, results.arrays)
    for number, (value, wanted, allowed) in enumerate(zip(results.arrays, expected, limits, strict=True)):
        x, y = value.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
        off = float(np.linalg.norm(x - y) / (np.linalg.norm(y) or 1.0))
        if off > allowed:
            return f"its result {number} differs from that of {label} by {off:.2g}; allowed: {allowed:.2g} (2-norm)"
    return None


def wrong_dtypes(work: Workload, results: Sequence[NDArray[Any]]) -> dict[int, str]:
    """What is wrong with the element types of results, by place: rounded to another one, a result is another one.

    Args:
        work: Says which are right; where it says nothing of its outputs, none is wrong.
        results: Outputs, then gradients.
    """
    return {
        place: f"its result {place} is {value.dtype}; allowed: {right}"
        for place, (value, right) in enumerate(zip(results, _declared(work), strict=False))
        if str(value.dtype) != right
    }


def tolerances(work: Workload, results: Sequence[NDArray[Any]]) -> list[float]:
    """By how much each result of two frameworks may differ, relative, in the 2-norm.

    Whole numbers and truth values may not differ. Rounding errors of a sum of n products grow with the square root of
    n, in units of the rounding of the coarsest element type that takes part; 64 of them leave room for algorithms that
    round more, as Winograd's. A wrong operator differs by about 1.

    Args:
        work: Gives the inputs, the operations and the element types of results: a candidate's own would let it set
            what it is held to.
        results: Outputs, then gradients. They give how many elements share the operations, and element types where the
            operator says nothing of them.
    """
    declared = _declared(work)
    dtypes = [*declared, *(str(value.dtype) for value in results[len(declared) :])]
    return [_tolerance(work, dtype, value.size) for dtype, value in zip(dtypes, results, strict=False)]


def _declared(work: Workload) -> list[str]:
    """Element types of the outputs, and then those of the gradients, which are the inputs'; none where nobody says."""
    if work.outputs is None:
        return []
    inputs = zip(work.problem.inputs, work.direction.needs, strict=False)  # the forward pass alone needs none
    return [spec.dtype for spec in (*work.outputs, *(spec for spec, wanted in inputs if wanted))]


def _tolerance(work: Workload, dtype: str, size: int) -> float:
    import ml_dtypes

    if not is_floating(dtype):
        return 0.0
    dtypes = [dtype, *(spec.dtype for spec in work.problem.inputs if is_floating(spec.dtype))]
    eps = max(float(ml_dtypes.finfo(numpy_dtype(each)).eps) for each in dtypes)  # type: ignore[no-untyped-call]
    terms = work.flops / (2 * max(size, 1)) if work.flops else max(bytes_of(work.problem.inputs) / 4, 1)
    return min(64 * eps * math.sqrt(max(terms, 1)), 0.1)
