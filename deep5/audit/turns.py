"""Rules 7 and 11: who ran when. The order of processes and where it ended follow from seed, samples and calibration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from deep5.audit.finding import Ledger
from deep5.audit.summaries import verdicts_again
from deep5.results.round_samples import RoundSample, order_of_round
from deep5.statistics import LOOKS

__all__ = ["check_turns"]

# Two clocks are read, of the process that starts and of the one that waits.
_SLACK_S = 1e-3


def check_turns(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[RoundSample]) -> None:
    """Play the comparison's order again: who was still to run in which round, and whether it ended where it had to.

    Args:
        ledger: Takes the findings.
        document: comparison.json.
        samples: As samples.csv has them.
    """
    processes = document["processes"]
    for number, (one, other) in enumerate(pairwise(processes)):
        ledger.hold(
            7,
            one["begin_s"] + one["wall_s"] <= other["begin_s"] + _SLACK_S,
            f"processes {number} ({one['candidate']}) and {number + 1} ({other['candidate']}) ran at the same time",
        )
    _check_length(ledger, document)
    timed = [process for process in processes if process["job"] == "time"]
    if not timed:
        return
    most, mode = document["measurement"]["most_processes"], document["mode"]
    ran = [(process["round"], process["candidate"]) for process in timed]
    ledger.hold(7, len(set(ran)) == len(ran), "a candidate ran twice in one round")
    rounds = [number for number, _ in ran]
    ledger.hold(7, rounds == sorted(rounds), f"rounds do not follow one another: {rounds!r:.100}")
    last = max(rounds)
    ledger.hold(11, len(set(rounds)) == last + 1, f"of {last + 1} rounds {len(set(rounds))} are there")
    if mode == "quick" and most == 1:
        ledger.hold(7, max(rounds) == 0, "a quick comparison has several rounds")
    follows = _follows(document, samples, timed)
    whole = document["status"] == "success"
    if not whole:
        follows = follows[: len(ran)]
    got, due = set(ran), set(follows)
    for number, candidate in sorted(due - got):
        ledger.find(11, f"{candidate} did not run in round {number}, which was its turn: it is dropped unsaid")
    for number, candidate in sorted(got - due):
        ledger.find(7, f"{candidate} ran in round {number}, when it was decided or had failed already")
    ledger.checks += 2
    if got == due:
        ledger.hold(
            7,
            _is_in_turn(document, ran, follows),
            f"the order is not the one that the seed {document['seed']} draws; stored {_brief(ran)}, follows "
            f"{_brief(follows)}",
        )
    fewest = LOOKS[0]
    if (
        mode == "rigorous"
        and ledger.hold(
            7,
            most >= fewest,
            f"the mode is rigorous with at most {most} processes a candidate; allowed: at least {fewest}",
        )
        and whole
    ):
        for row in document["verdicts"]:
            ledger.hold(
                7,
                row["rounds"] >= fewest,
                f"{row['candidate']} is judged after {row['rounds']} rounds of a rigorous comparison; allowed: at "
                f"least {fewest}",
            )


def _follows(
    document: Mapping[str, Any], samples: Sequence[RoundSample], timed: Sequence[Mapping[str, Any]]
) -> list[tuple[int, str]]:
    """Round and candidate of every process that had to run, in their order."""
    began = {process["candidate"] for process in timed if process["round"] == 0}
    # Whoever passed the proof began.
    active = [label for label in _groups_of(document) if label in began]
    ended = {(row["label"], number) for row in document["candidates"] for number in row["failed_rounds"]}
    baseline, failed = document["baseline"], set[str]()
    found: list[tuple[int, str]] = []
    for number in range(min(document["measurement"]["most_processes"], len(timed) + 1)):
        if len(active) < 2 or baseline not in active:
            break
        order = order_of_round(document["seed"], number, len(active))
        found += [(number, active[place]) for place in order]
        failed |= {label for label in active if (label, number) in ended}
        active = [label for label in active if label not in failed]
        if number + 1 in LOOKS:
            rows = verdicts_again(document, samples, failed, number + 1)
            undecided = {row["candidate"] for row in rows if row["word"] == "no difference shown"}
            active = [label for label in active if label == baseline or label in undecided]
    return found


def _is_in_turn(
    document: Mapping[str, Any], ran: Sequence[tuple[int, str]], follows: Sequence[tuple[int, str]]
) -> bool:
    """Whether candidates ran in the order that was drawn; a round that an interruption cut goes on in a new order."""
    cuts = len(document["resumed"])
    active = _groups_of(document)
    for number in {number for number, _ in follows}:
        own, due = ([candidate for at, candidate in rows if at == number] for rows in (ran, follows))
        if own == due:
            continue
        # Those that ran before the interruption, in the order of all; then the rest, in an order of their own.
        same = next((place for place, pair in enumerate(zip(own, due, strict=True)) if pair[0] != pair[1]), len(own))
        for cut in range(same, -1, -1):
            left = [label for label in active if label in due[cut:]]
            drawn = [left[place] for place in order_of_round(document["seed"], number, len(left))]
            if cuts and own == due[:cut] + drawn:
                cuts -= 1
                break
        else:
            return False
    return True


def _groups_of(document: Mapping[str, Any]) -> list[str]:
    """All candidates, group after group, as the comparison goes through them."""
    groups: dict[str, list[str]] = {}
    for row in document["candidates"]:
        groups.setdefault(json.dumps(row["settings"], sort_keys=True), []).append(row["label"])
    return [label for members in groups.values() for label in members]


def _check_length(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """All processes fit into the time that the comparison took."""
    resources, processes = document["resources"], document["processes"]
    if resources is None or not processes:
        return
    last = max(process["begin_s"] + process["wall_s"] for process in processes)
    ledger.hold(
        8,
        last <= resources["wall_s"] + _SLACK_S,
        f"the last process ended at {last:.4g} s, and the comparison took {resources['wall_s']:.4g} s",
    )
    lived = sum(process["wall_s"] for process in processes)
    # A calibration within the comparison counts as well.
    ledger.hold(
        8,
        lived <= resources["processes_s"] + _SLACK_S * len(processes),
        f"the processes lived {lived:.4g} s; stored as their sum {resources['processes_s']:.4g} s",
    )
    own = resources["wall_s"] - resources["processes_s"]
    ledger.same(9, "what deep5 itself took", resources["harness_s"], own)
    ledger.same(9, "deep5's own share", resources["harness_share"], own / resources["wall_s"])


def _brief(order: Sequence[tuple[int, str]]) -> str:
    told = ", ".join(f"{candidate} ({number})" for number, candidate in order[:6])
    return told + (", …" if len(order) > 6 else "")
