"""Agreement between candidates: those that compute something else are not timed."""

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
    """Results of a candidate's first call.

    Attributes:
        label: Label of the candidate.
        bare: Whether it is hand-written on the bare framework.
        arrays: Outputs, then gradients.
    """

    label: str
    bare: bool
    arrays: Sequence[NDArray[Any]]


def standard_of(work: Workload, found: Sequence[Results]) -> Results | str | None:
    """The results that most candidates agree with; why there are none, if no two candidates agree.

    The first candidate is not assumed to be correct. Hand-written code is compared with the one other candidate.

    Args:
        work: Defines the tolerance.
        found: Results of every candidate that ran; the return value is None if empty.
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
    """Why results differ from those of most candidates, or are invalid; None if they are correct.

    Args:
        work: Defines the tolerance.
        results: The results to check.
        standard: Result of `standard_of`; None: check only that they are finite and of the right element types.
    """
    # Hand-written code converts its results to NumPy types, such as bfloat16 to float32; its tolerance stays the same.
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
    """Errors in the element types of results, by position: a result rounded to another type is another result.

    Args:
        work: Defines the correct types; without declared outputs, none is wrong.
        results: Outputs, then gradients.
    """
    return {
        place: f"its result {place} is {value.dtype}; allowed: {right}"
        for place, (value, right) in enumerate(zip(results, _declared(work), strict=False))
        if str(value.dtype) != right
    }


def tolerances(work: Workload, results: Sequence[NDArray[Any]]) -> list[float]:
    """Allowed difference of each result between two frameworks, relative, in the 2-norm.

    Integers and booleans must not differ. Rounding errors of a sum of n products grow with the square root of n, in
    units of the rounding of the coarsest element type involved; a factor of 64 leaves room for algorithms that round
    more, such as Winograd's. A wrong operator differs by about 1.

    Args:
        work: Defines the inputs, the operations, and the element types of results; a candidate must not set its own
            tolerance.
        results: Outputs, then gradients. They determine how many elements share the operations, and the element types
            if the operator does not declare them.
    """
    declared = _declared(work)
    dtypes = [*declared, *(str(value.dtype) for value in results[len(declared) :])]
    return [_tolerance(work, dtype, value.size) for dtype, value in zip(dtypes, results, strict=False)]


def _declared(work: Workload) -> list[str]:
    """Element types of the outputs, then those of the gradients, which equal the inputs'; empty if not declared."""
    if work.outputs is None:
        return []
    inputs = zip(work.problem.inputs, work.direction.needs, strict=False)  # the forward pass requires no gradients
    return [spec.dtype for spec in (*work.outputs, *(spec for spec, wanted in inputs if wanted))]


def _tolerance(work: Workload, dtype: str, size: int) -> float:
    import ml_dtypes

    if not is_floating(dtype):
        return 0.0
    dtypes = [dtype, *(spec.dtype for spec in work.problem.inputs if is_floating(spec.dtype))]
    eps = max(float(ml_dtypes.finfo(numpy_dtype(each)).eps) for each in dtypes)  # type: ignore[no-untyped-call]
    terms = work.flops / (2 * max(size, 1)) if work.flops else max(bytes_of(work.problem.inputs) / 4, 1)
    return min(64 * eps * math.sqrt(max(terms, 1)), 0.1)
