"""Times of a run with two sources: compares samples, events, and the lifetime of the process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.events import check_log
from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.first_calls import check_first_calls
from deep5.audit.measured import OPERATORS, RECORDED, TRAINING
from deep5.audit.numerics import parts_of
from deep5.audit.positions import check_positions
from deep5.audit.step_share import check_step_share
from deep5.audit.verdict_rows import BUSY
from deep5.results.mllog import MLLogLine, read_mllog
from deep5.results.result import EVENTS
from deep5.results.samples_file import SampleRow

__all__ = ["check_times", "logged"]

# Times of events are in milliseconds, without fractions; between an event and the adjacent clock reading are some
# microseconds, occasionally more on a busy machine: a share of the measured time.
_SLACK_S, _SHARE = 0.01, 0.05
_RESOLUTION_S = 1e-2
# A busy machine may delay a process so long between two readings; the median of several epochs ignores it. Longer where
# the result reports that other programs use the processors.
_DELAY_S, _DELAY_BUSY_S = 0.2, 1.0
# Times of one clock are sums of nanoseconds in float64.
_TICK_S, _ROUNDING = 1e-6, 1e-9
# Maximum ratio of the middle epoch's time between samples and events.
_EPOCH = 1.25
_SERIES = 5
Samples = Mapping[str, Sequence[SampleRow]]


def logged(root: Path, key: str) -> list[Any]:
    """The values of a key in a run's events; none without a log.

    Args:
        root: The resolved folder.
        key: For example "train_samples".
    """
    path = plain(root, EVENTS)
    return [] if path is None else [line.value for line in read_mllog(path) if line.key == key]


def check_times(ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Samples, kind: str) -> None:
    """Compare samples, events and the lifetime of the process.

    The clock of a resumed run stood still between its processes, but its events' times continued: only comparisons
    across a resumption are skipped.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a finished run.
        samples: Rows of samples.csv, by metric.
        kind: The kind of measurement.
    """
    wall = float(document["resources"]["wall_time_s"])
    latest = max((s.time_s for own in samples.values() for s in own if s.time_s is not None), default=0.0)
    if kind in (TRAINING, RECORDED):
        ledger.hold(
            8, latest <= wall + _SLACK_S, f"a sample was taken at {latest:.6g} s, and the run took {wall:.6g} s"
        )
        first = document["measurement"]["first_call_s"]
        if first is not None:
            ledger.hold(6, float(first) <= wall, f"the first call took {first} s, and the run {wall:.6g} s")
    elif kind == OPERATORS:
        lived = wall + float(document["resources"]["set_up_s"])
        ledger.hold(8, latest <= lived + 1, f"a sample was taken at {latest:.6g} s, and the run took {lived:.6g} s")
    _check_steps(ledger, document, samples, recorded=kind == RECORDED)
    with ledger.part(8, EVENTS):
        path = plain(root, EVENTS)
        if path is not None:
            lines = read_mllog(path)
            _check_events(ledger, document, samples, lines)
            _check_epochs(ledger, document, samples, lines)
            if kind == TRAINING:
                check_log(ledger, document, samples, lines)
                check_first_calls(ledger, document, lines)
                known = next((line.value for line in lines if line.key == "train_samples"), None)
                count = known if isinstance(known, int) else None
                check_positions(ledger, document, samples, Batches(document=document, train_samples=count))
        elif kind == TRAINING:
            ledger.hold(8, False, f"there is no {EVENTS}; allowed: a log, as every training run writes it")


def _check_steps(ledger: Ledger, document: Mapping[str, Any], samples: Samples, *, recorded: bool) -> None:
    """The first step is the first call; a step is no longer than the time between the losses of two steps."""
    latencies, losses = samples.get("step_latency", ()), samples.get("training_loss", ())
    if latencies:
        ledger.same(
            6, "the first call, by the first step", document["measurement"]["first_call_s"], latencies[0].value / 1e3
        )
        total, clocks = sum(s.value for s in latencies) / 1e3, samples.get("wall_clock_time", ())
        if clocks:
            ledger.hold(
                8,
                total <= clocks[-1].value + _SLACK_S,
                f"all steps took {total:.6g} s, and training {clocks[-1].value:.6g} s",
            )
        ledger.hold(8, min(s.value for s in latencies) >= 1e-3, "a step took less than a microsecond")
    for sample in samples.get("wall_clock_time", ()):
        ledger.same(8, "the time at which a wall-clock time was read", sample.time_s, sample.value)
    # Between the steps of a recorded loop may be anything.
    if recorded or not latencies or [s.step for s in latencies] != [s.step for s in losses]:
        return
    check_step_share(ledger, document, latencies, losses)


def _check_events(ledger: Ledger, document: Mapping[str, Any], samples: Samples, lines: Sequence[MLLogLine]) -> None:
    by_key: dict[str, list[MLLogLine]] = {}
    for line in lines:
        by_key.setdefault(line.key, []).append(line)
    # After a resumption another process writes, by the system clock.
    ordered = all(a.time_ms <= b.time_ms or "deep5_resumed" in (a.key, b.key) for a, b in pairwise(lines))
    ledger.hold(8, ordered, "the events are out of order; allowed: times that do not decrease")
    if seeds := by_key.get("seed"):
        ledger.same(11, "the seed in the events", seeds[0].value, document["seeds"].get("run"))
    again = len(by_key.get("deep5_resumed", ()))
    ledger.hold(
        11,
        again <= len(document["resumed"]),
        f"the run was resumed {again} times by its events; stored {len(document['resumed'])}",
    )
    accuracies = [float(line.value) * 100 for line in by_key.get("eval_accuracy", ())]
    scores = samples.get("test_accuracy")
    if scores is not None:
        ledger.hold(
            8,
            len(scores) == len(accuracies)
            and all(math.isclose(s.value, a, rel_tol=1e-9) for s, a in zip(scores, accuracies, strict=True)),
            f"the accuracies are not those of the events; stored {[s.value for s in scores]!r:.80}, follows "
            f"{accuracies!r:.80}",
        )
    requested = parts_of(document).get("epochs")
    stopped = any(reported.startswith("stopped:") for reported in document["reasons"])
    epochs = len(by_key.get("epoch_stop", ()))
    if isinstance(requested, int) and not stopped:
        ledger.same(12, "the epochs in the events, by the recipe", epochs, requested)
    begun, ended = by_key.get("run_start"), by_key.get("run_stop")
    clocks = samples.get("wall_clock_time")
    if not begun or not ended or not clocks:
        return
    if again or document["resumed"]:
        ledger.skip(
            "the length of training compared with the events: the run was resumed, and its clock stopped in between"
        )
        return
    seconds = (ended[-1].time_ms - begun[0].time_ms) / 1e3
    reported = clocks[-1].value
    ledger.hold(
        8,
        reported <= seconds + _SLACK_S,
        f"training took {reported:.6g} s by its samples and {seconds:.6g} s by its events",
    )
    last = by_key.get("epoch_stop")
    begins = by_key.get("epoch_start")
    if last and begins:
        least = (last[-1].time_ms - begins[0].time_ms) / 1e3
        ledger.hold(
            8,
            reported >= least - _SLACK_S - _SHARE * least,
            f"training took {reported:.6g} s by its samples, and its epochs {least:.6g} s by its events",
        )


def _check_epochs(ledger: Ledger, document: Mapping[str, Any], samples: Samples, lines: Sequence[MLLogLine]) -> None:
    """The throughput of the middle epoch, and the time between its ends, agree with the events within the noise."""
    begun: dict[int, int] = {}
    trained: dict[int, float] = {}
    ended: dict[int, int] = {}
    torn = set[int]()
    for line in lines:
        number = int(line.metadata.get("epoch_num", 0))
        if line.key == "deep5_resumed":
            # Also the epoch that had not begun: the time since the end of the last one is that of two processes.
            torn |= (set(begun) - set(ended)) | {max(ended, default=0) + 1}
        elif line.key == "epoch_start":
            begun[number] = line.time_ms
        elif line.key == "eval_start" and number in begun:
            trained[number] = (line.time_ms - begun[number]) / 1e3
        elif line.key == "epoch_stop" and number in begun:
            ended[number] = line.time_ms
            trained.setdefault(number, (line.time_ms - begun[number]) / 1e3)
    known = [line.value for line in lines if line.key == "train_samples"]
    count = known[0] if known and isinstance(known[0], int) else None
    batches = Batches(document=document, train_samples=count)
    reported, own = document["measurement"], samples.get("throughput", ())
    clocks = {sample.epoch or 0: sample.value for sample in samples.get("wall_clock_time", ())}
    latencies = {sample.step or 0: sample.value / 1e3 for sample in samples.get("step_latency", ())}
    single = len(trained) == 1
    off = float(reported["first_call_s"] or 0.0) + float(reported["warm_up_s"] or 0.0) if single else 0.0
    pairs = []
    before = 0
    for sample, count in zip(own, batches.counted(own) or (), strict=False):
        number, begin, before = sample.epoch or 0, before, sample.step or 0
        full, last = batches.in_epoch(before - begin) or (0, 0)
        taken = full * (before - begin - 1) + last
        if not taken or sample.value <= 0:
            continue
        # The first steps of each size are not in its time, unless there are no others.
        seconds = (count or taken) / sample.value
        if count in (0, taken):
            steps_s = sum(latencies.get(step, 0.0) for step in range(begin, before))
            _hold_within(ledger, number, seconds, steps_s, clocks.get(number, math.inf) - clocks.get(number - 1, 0.0))
        if number in trained and number not in torn and (single or count in (0, taken)):
            pairs.append((seconds, trained[number] - (off if count not in (0, taken) else 0.0)))
    delay_s = _DELAY_BUSY_S if ((document["resources"] or {}).get("others_share") or 0.0) >= BUSY else _DELAY_S
    _hold_epochs(ledger, "the throughput", pairs, delay_s)
    if "mean_return" in samples:
        return  # it plays between the event and the reading of the clock, the longer the better the agent
    # From one end to the next: before an epoch starts, checkpoints and samples are written.
    pairs = [
        (clocks[number] - clocks[number - 1], (ended[number] - ended[number - 1]) / 1e3)
        for number in clocks
        if number - 1 in clocks and {number, number - 1} <= ended.keys() and not {number, number - 1} & torn
    ]
    _hold_epochs(ledger, "the wall-clock time", pairs, delay_s)


def _hold_within(ledger: Ledger, number: int, seconds: float, steps_s: float, whole_s: float) -> None:
    """By one clock, the time of an epoch's throughput contains its steps, and is within the epoch."""
    ledger.hold(
        8,
        steps_s - _TICK_S <= seconds * (1 + _ROUNDING) and seconds <= whole_s * (1 + _ROUNDING) + _TICK_S,
        f"epoch {number} took {seconds:.4g} s by the throughput, and its steps {steps_s:.4g} s and all of it "
        f"{whole_s:.4g} s by the other metrics; allowed: a time in between",
    )


def _hold_epochs(ledger: Ledger, what: str, pairs: Sequence[tuple[float, float]], delay_s: float) -> None:
    """Compare medians of seconds by samples and by events: a single epoch may have been delayed between them."""
    if not pairs:
        return
    reported, seen = (median(own) for own in zip(*pairs, strict=True))
    room = delay_s if len(pairs) < _SERIES else _RESOLUTION_S
    low, high = seen / _EPOCH - room, seen * _EPOCH + room
    ledger.hold(
        8,
        low <= reported <= high,
        f"the middle epoch took {reported:.4g} s by {what}, and {seen:.4g} s by the events; allowed: "
        f"{max(low, 0.0):.4g} to {high:.4g} s",
    )
