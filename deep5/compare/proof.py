"""Results of candidates compared with the float64 reference: one row per part, with the allowed difference."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

__all__ = ["ProofRow", "inference_rows", "is_of_an_update", "operator_rows", "training_rows"]

# For outputs in evaluation: the rounding of the element type times the depth, plus two orders of magnitude.
_OUTPUTS = {"float64": 1e-9, "float32": 1e-5}
# A graph stores the numbers in a model's code, such as an epsilon, in float32: in float64, a model as it is differs
# from its export by their rounding, 6e-8 each, times the depth and the steps. A wrong one is off by far more.
_ITSELF, _ITSELF_ALLOWED = ", of the model itself", 1e-5


@dataclass(frozen=True, kw_only=True)
class ProofRow:
    """One comparison of the proof.

    Attributes:
        candidate: Label of the candidate.
        workload: The workload, or None: all.
        part: "a": float64; "b": float32 from a float64 state; "c": gradients; "d": float32, free-running.
        what: Description of the compared values.
        relative: The largest relative difference from the float64 reference.
        ulps: Difference in units in the last place: the largest, but for gradients and whole tensors the median over
            the elements.
        allowed: The largest allowed relative difference.
    """

    candidate: str
    workload: str | None
    part: str
    what: str
    relative: float
    ulps: float
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether the difference is within the allowed one; a NaN is not."""
        return self.relative <= self.allowed

    def reported(self) -> dict[str, Any]:
        """The row in JSON types."""
        return {**asdict(self), "passed": self.passed}


def training_rows(
    candidate: str,
    reference: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
    *,
    smooth: bool,
    itself: bool = False,
) -> tuple[list[ProofRow], list[str]]:
    """The four parts of `deep5.training.trajectory`: a candidate compared with the reference's float64 trajectory; and
    what cannot be decided.

    Args:
        candidate: Its label.
        reference: Arrays of the reference's `Waypoints`.
        own: Arrays of the candidate's `Played`.
        smooth: Whether the network has no kinks.
        itself: Whether the candidate runs a library's model as it is, and the reference its export.
    """
    from deep5.training.replay import Waypoints
    from deep5.training.trajectory import Played, same_trajectory

    waypoints = Waypoints.of_arrays(reference)
    right = Played(losses={"float64": waypoints.losses, "float32": waypoints.losses}, replayed=None)
    proof = same_trajectory(waypoints, {"float64": right, candidate: Played.of_arrays(own)}, smooth=smooth)
    rows = [
        ProofRow(
            candidate=candidate,
            workload=None,
            part=found.part,
            what=found.what,
            relative=found.difference,
            ulps=found.ulps,
            allowed=found.tolerance,
        )
        for found in proof.comparisons
    ]
    return [_of_itself(row) if itself else row for row in rows], list(proof.undecided)


def _of_itself(row: ProofRow) -> ProofRow:
    """A row of a model as it is: in float64, with the tolerance for the rounded numbers of its export."""
    if "float64" not in row.what.removesuffix(" at a float64 state"):
        return row
    return replace(row, what=row.what + _ITSELF, allowed=_ITSELF_ALLOWED)


def is_of_an_update(row: ProofRow) -> bool:
    """Whether the row depends on the optimizer's update; losses and gradients of a given state do not."""
    return row.part in ("a", "d") or not row.what.removesuffix(_ITSELF).endswith("at a float64 state")


def inference_rows(
    candidate: str, reference: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray], *, itself: bool = False
) -> list[ProofRow]:
    """Outputs in evaluation, in float64 and in float32.

    Args:
        candidate: Its label.
        reference: By `DTYPE/BATCH/OUTPUT`, in float64.
        own: By the same names.
        itself: As for `training_rows`.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for dtype in dict.fromkeys(name.partition("/")[0] for name in own):
        for name, right in reference.items():
            _, place, key = name.split("/", 2)
            value = own.get(f"{dtype}/{place}/{key}")
            # A missing output counts as different.
            found.setdefault((dtype, key), []).append((math.inf, math.inf) if value is None else _apart(value, right))
    rows = [
        ProofRow(
            candidate=candidate,
            workload=None,
            part="a" if dtype == "float64" else "b",
            what=f"output {key!r} in {dtype}",
            relative=max(relative for relative, _ in pairs),
            ulps=max(ulps for _, ulps in pairs),
            allowed=_OUTPUTS[dtype],
        )
        for (dtype, key), pairs in found.items()
    ]
    return [_of_itself(row) if itself else row for row in rows]


def operator_rows(
    candidate: str,
    reference: Mapping[str, np.ndarray],
    own: Mapping[str, np.ndarray],
    allowed: Mapping[str, list[float]],
) -> list[ProofRow]:
    """All results of all workloads.

    Args:
        candidate: Its label.
        reference: By `WORKLOAD/PLACE`, from inputs in float64.
        own: By the same names, from inputs in the plan's element type.
        allowed: By workload, the allowed difference of each result.
    """
    rows = []
    for workload, tolerances in allowed.items():
        expected = sum(name.rpartition("/")[0] == workload for name in reference)
        for place in range(expected):
            name = f"{workload}/{place}"
            # A missing result counts as different.
            tolerance = tolerances[place] if place < len(tolerances) else 0.0
            relative, ulps = _apart(own[name], reference[name]) if name in own else (math.inf, math.inf)
            rows.append(
                ProofRow(
                    candidate=candidate,
                    workload=workload,
                    part="b" if "backward" not in workload else "c",
                    what=f"result {place}",
                    relative=relative,
                    ulps=ulps,
                    allowed=tolerance,
                )
            )
    return rows


def _apart(value: np.ndarray, right: np.ndarray) -> tuple[float, float]:
    """The norm of the difference over the norm, and the median difference in units in the last place of the value."""
    if value.shape != right.shape:
        return float("inf"), float("inf")
    x, y = value.astype(np.float64).ravel(), right.astype(np.float64).ravel()
    norm = float(np.linalg.norm(y))
    relative = float(np.linalg.norm(x - y)) / (norm or 1.0)
    if not x.size or value.dtype.kind not in "fV":
        return relative, 0.0
    import ml_dtypes

    eps = float(ml_dtypes.finfo(value.dtype).eps)  # type: ignore[no-untyped-call]
    spacing = eps * 2.0 ** np.floor(np.log2(np.maximum(np.abs(y), np.finfo(np.float64).tiny)))
    return relative, float(np.median(np.abs(x - y) / spacing))
