"""Rule 6: the first calls and warm-ups of a training run fit its events and the sizes of its batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.measured import batch_size_of
from deep5.audit.numerics import parts_of
from deep5.results.mllog import MLLogLine

__all__ = ["check_first_calls"]

# Times of events are in milliseconds, without fractions.
_SLACK_S = 0.01
# An evaluation's batches have at least this size, if there are as many samples.
_EVALUATED = 256


def check_first_calls(ledger: Ledger, document: Mapping[str, Any], lines: Sequence[MLLogLine]) -> None:
    """Rule 6: the first calls and warm-ups of evaluation and training fit the sizes of the batches and the events.

    Args:
        ledger: Receives the findings.
        document: result.json.
        lines: The events.
    """
    reported, parts = document["measurement"], parts_of(document)
    first, rest, count = (reported[f"evaluation_{name}"] for name in ("first_call_s", "warm_up_s", "warmups"))
    if document["resumed"]:
        ledger.skip("first calls compared with the sizes of the batches: a resumed process has its own")
        return
    seconds = _evaluated_s(lines)
    if first is not None and rest is not None and count is not None:
        ledger.hold(
            6,
            first > 0 and rest >= 0 and first + rest <= seconds + _SLACK_S and (count == 0) == (rest == 0),
            f"the first evaluation took {first} s and {count} others of another size {rest} s; allowed: within the "
            f"{seconds:.4g} s of the evaluations in the events",
        )
    elif any(line.key == "eval_accuracy" for line in lines):
        ledger.find(6, "the first evaluation is not separate from the others; allowed: its time")
    size, values = batch_size_of(document), {line.key: line.value for line in lines}
    if size is None or int(document.get("ranks", 1)) != 1:
        ledger.skip("warm-ups compared with the sizes of the batches: the sizes are not known")
        return
    known = _sizes_of(values.get("eval_samples"), max(size, _EVALUATED))
    usual = parts.get("validation_sampler", "ordered") in ("ordered", "shuffle")
    if known is not None and count is not None and usual and not parts.get("validation_sampler_kwargs"):
        ledger.same(6, "the warm-ups of the evaluation, by the sizes of its batches", count, known - 1)
    known = _sizes_of(values.get("train_samples"), size)
    stopped = any(said.startswith("stopped:") for said in document["reasons"])
    if known is not None and not stopped and not parts.get("train_sampler_kwargs"):
        ledger.same(6, "the warm-ups of the training, by the sizes of its batches", reported["warmups"], known - 1)


def _evaluated_s(lines: Sequence[MLLogLine]) -> float:
    """Seconds of all evaluations, by the events."""
    begun = {line.metadata.get("epoch_num"): line.time_ms for line in lines if line.key == "eval_start"}
    ended = {line.metadata.get("epoch_num"): line.time_ms for line in lines if line.key == "eval_stop"}
    return sum(ended[number] - begun[number] for number in begun.keys() & ended.keys()) / 1e3


def _sizes_of(count: object, size: int) -> int | None:
    """The number of different sizes of batches of a data set, of which only the last may be smaller."""
    if not isinstance(count, int) or count < 1:
        return None
    return 1 if count <= size or count % size == 0 else 2
