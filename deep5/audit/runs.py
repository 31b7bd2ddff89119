"""Checks one run: its documents against each other and against the rules of measurement."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deep5.audit.batches import Batches
from deep5.audit.collective_rows import check_collective_rows
from deep5.audit.data import check_data, check_description, check_own_network, check_weights
from deep5.audit.declared import check_declared, check_stated_parts
from deep5.audit.drawn_order import seed_for
from deep5.audit.due_warnings import is_said
from deep5.audit.duration import check_duration
from deep5.audit.files import plain
from deep5.audit.finding import Ledger
from deep5.audit.identity import check_environment, check_origin, check_recipe
from deep5.audit.measured import CODE, COLLECTIVES, OPERATORS, RECORDED, SERVING, TRAINING, check_level
from deep5.audit.network_file import check_network
from deep5.audit.newer import read_newer
from deep5.audit.numerics import check_numerics, check_threads, parts_of
from deep5.audit.operator_rows import check_operator_rows
from deep5.audit.own_optimizer import check_optimizer
from deep5.audit.plausible import check_accuracies, check_dates, check_hashes, check_not_numbers, check_versions
from deep5.audit.rank_values import OfAll
from deep5.audit.ranks import check_ranks
from deep5.audit.raw_files import check_raw_files
from deep5.audit.recorded import check_recorded
from deep5.audit.rounds import slowest
from deep5.audit.run_fields import check_run_fields
from deep5.audit.run_times import check_times, logged
from deep5.audit.serving_rows import check_serving_rows
from deep5.audit.values import check_values
from deep5.audit.verdict_rows import BUSY
from deep5.core.errors import Deep5Error
from deep5.core.quantities import percent
from deep5.core.version import __version__
from deep5.results.kind import RESULT
from deep5.results.result import Result, load
from deep5.results.samples_file import SAMPLES, SampleRow, read_samples
from deep5.results.schema import schema

__all__ = ["audit_run"]

_CLOCK = "time.perf_counter_ns"
_TIMED = ("s", "ms", "us", "ns", "samples/s", "J")
# The warning of a run that was resumed with other threads or another framework.
# Results of older versions have other words for "resumed".
_RESUMED = re.compile(r"(?:resumed|went +on) with (?:an)?other ")


def audit_run(root: Path, ledger: Ledger) -> Result | None:
    """Check a run's folder.

    Args:
        root: The resolved folder.
        ledger: Receives the findings.

    Returns:
        The run, for checks of several runs; None if it cannot be read.
    """
    try:
        newer = read_newer(ledger, root, RESULT, schema())
        result = load(root) if newer is None else Result(folder=root, document=newer)
    except Deep5Error as error:
        ledger.hold(8, False, f"{RESULT} cannot be read: {error}")
        return None
    document = result.document
    check_recipe(ledger, root, document)
    check_environment(ledger, root, document)
    check_origin(ledger, root, document)
    check_hashes(ledger, document)
    check_raw_files(ledger, root, document)
    with ledger.part(8, "the dates"):
        check_dates(ledger, root, document)
    with ledger.part(14, "the framework's version"):
        if (framework := document["framework"]) is not None:
            check_versions(ledger, document, "the run", framework["name"], framework["version"])
    ended = result.status == "success"
    samples: Mapping[str, Sequence[SampleRow]] = {}
    with ledger.part(8, SAMPLES):
        path = plain(root, SAMPLES)
        valued = [row["name"] for row in document["metrics"] if row["value"] is not None]
        needed = ended or bool(valued)
        if ledger.hold(8, path is not None or not needed, f"there is no {SAMPLES}: the raw values are missing"):
            samples = {} if path is None else read_samples(path)
    with ledger.part(11, "status and verdict"):
        _check_verdict(ledger, document)
        if document.get("recorded") is None:  # a recorded loop has no recipe.py
            check_declared(ledger, root, document)
            check_stated_parts(ledger, root, document)
    with ledger.part(14, "the resumptions"):
        _check_resumed(ledger, document)
        _check_load(ledger, document)
    kind = None
    with ledger.part(14, "the level"):
        kind = check_level(ledger, root, document)
    sizes: list[Any] = []
    together: Mapping[str, Sequence[SampleRow]] | None = None
    with ledger.part(8, "the events"):
        sizes = logged(root, "train_samples")
    with ledger.part(8, "the samples"):
        count = sizes[0] if sizes and isinstance(sizes[0], int) else None
        batches = Batches(document=document, train_samples=count)
        of_all: OfAll | None = None
        with ledger.part(8, "the ranks"):
            of_all = check_ranks(ledger, root, document, samples, batches)
        together = slowest(ledger, root, document, samples) if kind in (CODE, COLLECTIVES) else samples
        check_values(ledger, document, together, batches, of_all)
        check_not_numbers(ledger, document, samples)
        check_accuracies(ledger, document, samples, next(iter(logged(root, "eval_samples")), None))
    if kind is not None:
        check_run_fields(ledger, document, samples, kind)
    if kind is not None and ended:
        _check_ended(ledger, root, document, samples if together is None else together, kind)
    else:
        ledger.skip(f"times of an unfinished run (status {result.status})")
    return result


def _check_ended(
    ledger: Ledger, root: Path, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]], kind: str
) -> None:
    """Check the parts that only a finished run has."""
    with ledger.part(4, "the measurement"):
        _check_measurement(ledger, document, samples, kind)
    native = None
    if kind == TRAINING:
        native = check_network(ledger, root, document)
        with ledger.part(12, "the data"):
            check_description(ledger, root, document)
            check_data(ledger, "the run", parts_of(document), document["provenance"])
            check_weights(ledger, "the run", document, document["provenance"], document["seeds"].get("run"))
            if plain(root, "network.onnx") is not None:
                check_own_network(ledger, document)
        with ledger.part(14, "the optimizer"):
            check_optimizer(ledger, document)
    if kind == RECORDED:
        check_recorded(ledger, root, document, samples)
        with ledger.part(8, "the times"):
            check_times(ledger, root, document, samples, kind)
        return
    with ledger.part(2, "the numerics"):
        _check_observed(ledger, document, native, kind)
    with ledger.part(11, "the seeds"):
        _check_seeds(ledger, document, kind)
    with ledger.part(8, "the times"):
        check_times(ledger, root, document, samples, kind)
    if kind == OPERATORS:
        check_operator_rows(ledger, root, document, samples)
    if kind == COLLECTIVES:
        check_collective_rows(ledger, root, document, samples)
    if kind == SERVING:
        check_serving_rows(ledger, root, document)


def _check_verdict(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """`passed` follows from goal and value, `accepted` from `passed`; metrics and goals are those declared."""
    from deep5.core.metric import Goal

    rows, declared = document["metrics"], document["recipe"]["metrics"]
    named = [(row["name"], None if row["goal"] is None else _goal(row["goal"])) for row in rows]
    requested = [(entry.get("metric"), entry.get("goal")) for entry in declared]
    ledger.hold(
        11,
        named == requested,
        f"metrics and goals are not those declared before the run; stored {named!r:.200}, declared {requested!r:.200}",
    )
    ended = document["status"] == "success"
    for row in rows:
        if row["goal"] is None:
            ledger.hold(9, row["passed"] is None, f"{row['name']} has a verdict and no goal; allowed: both or neither")
            continue
        goal = Goal(relation=row["goal"]["relation"], bound=float(row["goal"]["bound"]))
        better = "higher" if goal.relation.startswith(">") else "lower"
        ledger.same(9, f"{row['name']}: the better direction, by the goal {goal}", row["direction"], better)
        value = None if row["value"] is None else float(row["value"])
        follows = goal.met(value) if ended else None
        ledger.same(9, f"{row['name']}: whether {value} meets the goal {goal}", row["passed"], follows)
    verdicts = [row["passed"] for row in rows if row["passed"] is not None]
    ledger.same(9, "whether the run is accepted", document["accepted"], all(verdicts) if verdicts and ended else None)
    for row in rows:
        if row["passed"] is False:
            reported = f"{row['name']} did not meet its goal"
            ledger.hold(11, reported in document["reasons"], f"no reason states: {reported}")
    ledger.hold(11, ended or bool(document["reasons"]), f"the run is {document['status']}, without a reason")


def _goal(goal: Mapping[str, Any]) -> str:
    from deep5.core.metric import Goal

    return str(Goal(relation=goal["relation"], bound=float(goal["bound"])))


def _check_resumed(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A run that was resumed in another environment reports it."""
    own = document["provenance"]["environment"]
    for entry in document["resumed"]:
        said = any(_RESUMED.search(reported) for reported in document["warnings"])
        ledger.hold(
            14,
            entry["environment"] == own or said,
            f"the run was resumed at step {entry['step']} in another environment; got {str(entry['environment'])[:12]} "
            f"and {str(own)[:12]}; allowed: one, or a warning that says so",
        )


def _check_load(ledger: Ledger, document: Mapping[str, Any]) -> None:
    """A finished run that reports a time reports a busy machine; older versions did so, if at all, for goals only."""
    share = (document["resources"] or {}).get("others_share")
    timed = [row for row in document["metrics"] if _is_time(row["unit"])]
    if document["software"]["deep5"] != __version__:
        timed = [row for row in timed if row["goal"] is not None]
    if document["status"] != "success" or not isinstance(share, (int, float)) or share < BUSY or not timed:
        return
    said = f"other programs took {percent(share)}"
    ledger.hold(
        13,
        is_said((said,), document["warnings"]),
        f"{said} of the processors during a run that reports {timed[0]['name']}; allowed: a warning that says so",
    )


def _is_time(unit: str) -> bool:
    return unit in {"s", "ms", "us", "ns"} or unit.endswith("/s")


def _has_steps(document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]]) -> bool:
    """Whether a training made a step; an event may stop it before the first one."""
    stopped = any(said.startswith("stopped:") for said in document["reasons"])
    return any(samples.values()) or not stopped or document["measurement"]["first_call_s"] is not None


def _check_measurement(
    ledger: Ledger, document: Mapping[str, Any], samples: Mapping[str, Sequence[SampleRow]], kind: str
) -> None:
    reported = document["measurement"]
    ledger.same(4, "the clock", reported["clock"], _CLOCK)
    ledger.hold(
        5, bool(str(reported["scope"] or "").strip()), "no scope states what the clock covers; allowed: a scope"
    )
    for row in document["metrics"]:
        if row["unit"] in _TIMED:
            ledger.hold(5, bool(row["scope"]), f"{row['name']} is in {row['unit']} without a scope of the clock")
    processes = reported["processes"]
    ledger.hold(7, processes is not None, "the number of measured processes is missing; allowed: their number")
    if reported["mode"] == "rigorous" and processes is not None:
        ledger.hold(7, processes >= 8, f"the mode is rigorous with {processes} processes; allowed: at least 8")
    if reported["mode"] == "quick" and processes is not None:
        ledger.hold(7, processes == 1, f"the mode is quick with {processes} processes; allowed: one")
    if kind in (TRAINING, RECORDED) and _has_steps(document, samples):
        first, rest = reported["first_call_s"], reported["warm_up_s"]
        ledger.hold(6, first is not None, "the first call is not separate from the steady state")
        ledger.hold(6, first is None or float(first) > 0, f"the first call took {first} s; allowed: a time above 0")
        ledger.hold(6, rest is not None and reported["warmups"] is not None, "the warm-up is not separate")
        if rest is not None and reported["warmups"] is not None:
            ledger.hold(
                6,
                (reported["warmups"] == 0) == (float(rest) == 0.0),
                f"{reported['warmups']} calls of warm-up took {rest} s; allowed: 0 s for no call, else more than 0 s",
            )
    begun, ended = document["started"], document["finished"]
    ledger.hold(11, begun is not None and ended is not None, "the run does not state its start and end")
    if begun is not None and ended is not None and document["resources"]:
        check_duration(ledger, document, float(document["resources"]["wall_time_s"]))


def _check_observed(ledger: Ledger, document: Mapping[str, Any], native: str | None, kind: str) -> None:
    threads, parts = document["threads"], parts_of(document)
    if kind in (OPERATORS, COLLECTIVES):
        own = parts.get("dtype", "float32")
        found = (document["numerics"] or {}).get("dtype")
        listed = [found] if isinstance(found, str) else list(found or ())
        ledger.same(2, "the element type, by the recipe", listed, [own] if isinstance(own, str) else list(own))
    elif kind in (TRAINING, SERVING):
        check_numerics(ledger, "the run", document["numerics"], parts, native=native)
    else:
        ledger.skip("numerics of a recipe that times hand-written code: it does not state them")
    if ledger.hold(3, threads is not None, "the number of threads is missing"):
        check_threads(ledger, "the run", threads["asked"], threads["framework"], document["warnings"])


def _check_seeds(ledger: Ledger, document: Mapping[str, Any], kind: str) -> None:
    """The seeds of all purposes follow from the run's seed, which the recipe names."""
    seeds, parts = document["seeds"], parts_of(document)
    if not ledger.hold(11, "run" in seeds, "the run does not state its seed; allowed: an integer"):
        return
    ledger.same(11, "the run's seed, by its recipe", seeds["run"], parts.get("seed", 0))
    needed = ("weights", "order", "noise") if kind == TRAINING else ()
    for purpose in needed:
        ledger.same(11, f"the seed of {purpose}", seeds.get(purpose), seed_for(seeds["run"], purpose))
