"""Rules 7 and 11: process order and the end of a comparison follow from seed, samples and calibration."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from deep5.audit.comparison_rows import failed_turns_of, last_processes
from deep5.audit.drawn_order import order_in_round
from deep5.audit.finding import Ledger
from deep5.audit.rank_test import rules_of
from deep5.audit.summaries import verdicts_again
from deep5.audit.timed_samples import TimedSample

__all__ = ["check_turns"]

# Two clocks are read: that of the starting process and that of the waiting one.
_SLACK_S = 1e-3


def check_turns(ledger: Ledger, document: Mapping[str, Any], samples: Sequence[TimedSample]) -> None:
    """Replay the comparison's order: which candidates had to run in each round, and whether it ended where required.

    Args:
        ledger: Receives the findings.
        document: comparison.json.
        samples: All rows of samples.csv.
    """
    processes = document["processes"]
    for number, (one, other) in enumerate(pairwise(processes)):
        ledger.hold(
            7,
            one["begin_s"] + one["wall_s"] <= other["begin_s"] + _SLACK_S,
            f"processes {number} ({one['candidate']}) and {number + 1} ({other['candidate']}) ran at the same time",
        )
    _check_length(ledger, document)
    sessions = _sessions(document)
    # For an interrupted comparison: without a round that was interrupted again in its second run.
    open_round = None if document["status"] == "success" else _broken_again(document, sessions)
    timed = [
        processes[number] for number in sorted(last_processes(document)) if processes[number]["round"] != open_round
    ]
    if not timed:
        return
    most, mode = document["measurement"]["most_processes"], document["mode"]
    ran = [(process["round"], process["candidate"]) for process in timed]
    rounds = [number for number, _ in ran]
    ledger.hold(7, rounds == sorted(rounds), f"rounds are not consecutive: {rounds!r:.100}")
    last = max(rounds)
    ledger.hold(11, len(set(rounds)) == last + 1, f"there are {len(set(rounds))} of {last + 1} rounds")
    rules = rules_of(document)
    if mode == "quick" and most == rules.quick_rounds:
        ledger.hold(
            7,
            max(rounds) < rules.quick_rounds,
            f"a quick comparison has {max(rounds) + 1} rounds; allowed: {rules.quick_rounds}",
        )
    whole = document["status"] == "success"
    if not whole and last == 0:
        ledger.skip("the order of an interrupted first round: its other candidates are not known")
        return
    every = _follows(document, samples, timed)
    _check_broken_off(ledger, document, sessions, every)
    follows = every if whole else every[: len(ran)]
    got, due = set(ran), set(follows)
    for number, candidate in sorted(due - got):
        ledger.find(11, f"{candidate} did not run in round {number}, in its turn: it was dropped without a reason")
    for number, candidate in sorted(got - due):
        ledger.find(7, f"{candidate} ran in round {number}, after its verdict or failure")
    ledger.checks += 2
    if got == due:
        ledger.hold(
            7,
            _is_in_turn(document, ran, follows),
            f"the order is not that of the seed {document['seed']}; stored {_brief(ran)}, recomputed {_brief(follows)}",
        )
    fewest = rules.looks[0]
    if (
        mode == "rigorous"
        and ledger.hold(
            7,
            most >= fewest,
            f"the mode is rigorous with at most {most} processes per candidate; allowed: at least {fewest}",
        )
        and whole
    ):
        ended = any(row["failed_rounds"] for row in document["candidates"] if row["label"] == document["baseline"])
        for row in document["verdicts"]:
            ledger.hold(
                7,
                row["rounds"] >= fewest or ended,  # the baseline failed before, so nothing is claimed
                f"{row['candidate']} has a verdict after {row['rounds']} rounds of a rigorous comparison; allowed: at "
                f"least {fewest}",
            )


def _follows(
    document: Mapping[str, Any], samples: Sequence[TimedSample], timed: Sequence[Mapping[str, Any]]
) -> list[tuple[int, str]]:
    """Round and candidate of every process that had to run, in order."""
    began = {process["candidate"] for process in timed if process["round"] == 0}
    # All candidates that passed the proof began.
    active = [label for label in _groups_of(document) if label in began]
    ended = failed_turns_of(document)
    baseline, failed = document["baseline"], set[str]()
    found: list[tuple[int, str]] = []
    for number in range(min(document["measurement"]["most_processes"], len(timed) + 1)):
        if len(active) < 2 or baseline not in active:
            break
        order = _order(document, number, len(active))
        found += [(number, active[place]) for place in order]
        failed |= {label for label in active if (number, label) in ended}
        active = [label for label in active if label not in failed]
        if number + 1 in rules_of(document).looks:
            rows = verdicts_again(document, samples, failed, number + 1)
            undecided = {row["candidate"] for row in rows if row["word"] == "no difference shown"}
            active = [label for label in active if label == baseline or label in undecided]
    return found


def _order(document: Mapping[str, Any], number: int, count: int) -> list[int]:
    mirrored = not rules_of(document).tossed or document["mode"] == "quick"
    return order_in_round(document["seed"], number, count, mirrored=mirrored)


def _is_in_turn(
    document: Mapping[str, Any], ran: Sequence[tuple[int, str]], follows: Sequence[tuple[int, str]]
) -> bool:
    """Whether candidates ran in the drawn order.

    An interrupted round runs again in an order of the remaining candidates: those that had failed in it do not run
    again.
    """
    active = _groups_of(document)
    ended = failed_turns_of(document)
    for number in {number for number, _ in follows}:
        own, due = ([candidate for at, candidate in rows if at == number] for rows in (ran, follows))
        orders = [due]
        for count in range(1, len(own) if document["resumed"] else 0):
            if (number, own[count - 1]) not in ended:
                break
            left = [label for label in active if label in due and label not in own[:count]]
            orders.append(own[:count] + [left[place] for place in _order(document, number, len(left))])
        if own not in orders:
            return False
    return True


def _sessions(document: Mapping[str, Any]) -> dict[int, int]:
    """For each timed process, how often the comparison had been resumed before: each time the proof is repeated."""
    found: dict[int, int] = {}
    session, timed = 0, False
    for number, row in enumerate(document["processes"]):
        if row["job"] == "time":
            found[number] = session
        elif timed:
            session += 1
        timed = row["job"] == "time"
    return found


def _broken_again(document: Mapping[str, Any], sessions: Mapping[int, int]) -> int | None:
    """The last round, if it was interrupted and has begun again."""
    rounds = {number: document["processes"][number]["round"] for number in sessions}
    last = max(rounds.values(), default=None)
    ran = {sessions[number] for number, own in rounds.items() if own == last}
    return last if len(ran) > 1 else None


def _check_broken_off(
    ledger: Ledger,
    document: Mapping[str, Any],
    sessions: Mapping[int, int],
    follows: Sequence[tuple[int, str]],
) -> None:
    """A process that does not count belongs to an interrupted round, all of which ran again afterwards."""
    rows = [(session, document["processes"][number]) for number, session in sessions.items()]
    cuts, reported = max(sessions.values(), default=0), len(document["resumed"])
    ledger.hold(
        7,
        cuts <= reported,
        f"the proof was repeated {cuts} times between rounds, and the comparison was resumed {reported} times",
    )
    ended = failed_turns_of(document)
    ran: dict[int, dict[int, set[str]]] = {}
    for session, row in rows:
        ran.setdefault(row["round"], {}).setdefault(session, set()).add(row["candidate"])
    lasts: dict[int, int] = {}
    for session, row in rows:
        lasts[session] = max(lasts.get(session, 0), row["round"])
    times = Counter((session, row["round"], row["candidate"]) for session, row in rows)
    ledger.hold(7, max(times.values(), default=1) == 1, "a candidate ran twice in one round")
    for number, by_session in ran.items():
        due = {candidate for at, candidate in follows if at == number}
        *cut, final = sorted(by_session)
        for session in cut:
            # All candidates that had not failed until then had to run again.
            again = {label for label in by_session[session] if (number, label) not in ended}
            ledger.hold(
                7,
                not due <= by_session[session] and lasts[session] == number,
                f"round {number} was complete, and ran again",
            )
            ledger.hold(
                7,
                again <= by_session[final] or document["status"] != "success",
                f"of the interrupted round {number}, {sorted(again - by_session[final])} did not run again: its "
                "results were not measured in turn",
            )


def _groups_of(document: Mapping[str, Any]) -> list[str]:
    """All candidates, group after group, in the comparison's order."""
    groups: dict[str, list[str]] = {}
    for row in document["candidates"]:
        groups.setdefault(json.dumps(row["settings"], sort_keys=True), []).append(row["label"])
    return [label for members in groups.values() for label in members]


def _check_length(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """All processes fit into the comparison's duration."""
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
    # A calibration within the comparison also counts.
    ledger.hold(
        8,
        lived <= resources["processes_s"] + _SLACK_S * len(processes),
        f"the processes took {lived:.4g} s; stored as their sum {resources['processes_s']:.4g} s",
    )
    own = resources["wall_s"] - resources["processes_s"]
    ledger.same(9, "the time of deep5 itself", resources["harness_s"], own)
    ledger.same(9, "deep5's share", resources["harness_share"], own / resources["wall_s"])


def _brief(order: Sequence[tuple[int, str]]) -> str:
    reported = ", ".join(f"{candidate} ({number})" for number, candidate in order[:6])
    return reported + (", …" if len(order) > 6 else "")
