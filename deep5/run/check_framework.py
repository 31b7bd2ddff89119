"""Implementation of `deep5 check framework`: the conformance suite of a back-end, in processes that it may crash."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from deep5.core.arguments import is_finite
from deep5.core.child_main import Report
from deep5.core.errors import Deep5Error, MissingDependency, Unsupported, UsageError, described
from deep5.core.files import is_file
from deep5.core.plugins import framework, load, mode_fault
from deep5.core.progress import Reporter, spent
from deep5.core.python_child import run_function
from deep5.networks.check import executor_checks
from deep5.recipe.frameworks import named_back_end
from deep5.recipe.operator_names import found_in_file, names_file
from deep5.recipe.register import refuse_local
from deep5.run.framework_report import FrameworkReport, FrameworkRow

__all__ = ["TIME_LIMIT_S", "check_framework"]

TIME_LIMIT_S = 300.0
"""Time limit of one group of checks, and the shortest one of a framework's start."""

_ROWS = "rows.jsonl"
# The words with which a child reports that a group begins; the others name what comes before the first group.
_GROUP = "the check: "
_LOADING = "the start of the framework"
_END = "the end"


def check_framework(name: str, *, seed: int = 0, time_limit_s: float = TIME_LIMIT_S) -> FrameworkReport:
    """Run the groups of `check_executor`, each to its end, and report all of them.

    They run in another process. If one crashes or exceeds the time limit, the rest run in one more process.

    Args:
        name: A registered name, mode included, or `FILE.py:NAME`.
        seed: As for `check_executor`.
        time_limit_s: Time limit of one group. What comes before the first one, such as imports, has `TIME_LIMIT_S` at
            least.

    Raises:
        UsageError: The name does not exist, or the file cannot be run or has no such back-end.
        MissingDependency: A package that the back-end needs is not installed.
    """
    if not is_finite(time_limit_s) or time_limit_s <= 0:
        raise UsageError(f"--time-limit {time_limit_s!r:.40}; allowed: a number of seconds above 0")
    _check_name(name)
    rows: list[FrameworkRow] = []
    about: dict[str, Any] = {}
    while True:
        with tempfile.TemporaryDirectory(prefix="deep5-check-") as place:
            finished, more = _run(name, [row.check for row in rows], seed, Path(place), time_limit_s)
        about = {**about, **more[0]}
        rows += more[1]
        # Without an executor of the smallest network there is nothing to check.
        if finished or not rows or rows[0].verdict == "FAILED":
            return FrameworkReport(
                framework=about.get("name", name), version=about.get("version", ""), rows=tuple(rows)
            )


def _check_name(name: str) -> None:
    """Reject what is wrong with a name, without loading the framework's library or running the user's file."""
    if names_file(name):
        if not is_file(Path(name.rpartition(":")[0] if ".py:" in name else name)):
            found_in_file(name, "CLASS", "frameworks", lambda value: False)  # raises, and lists files beside it
        return
    refuse_local("frameworks", name)
    load("frameworks", name.partition(":")[0])
    if ":" in name and (fault := mode_fault(name)) is not None:
        raise UsageError(fault)


def _run(
    name: str, done: Sequence[str], seed: int, place: Path, time_limit_s: float
) -> tuple[bool, tuple[dict[str, Any], list[FrameworkRow]]]:
    """The groups that are not done: whether all of them ran; name and version of the framework, and the rows."""
    began = monotonic()
    start_limit_s = max(time_limit_s, TIME_LIMIT_S)

    doing_now, groups = _LOADING, len(done)

    def hear(doing: str) -> float:
        nonlocal began, doing_now, groups
        groups += doing_now.startswith(_GROUP)
        began, doing_now = monotonic(), doing
        return start_limit_s if doing == _LOADING else time_limit_s

    with Reporter() as tell:

        def look(_: object) -> None:
            tell(spent(f"{name}: {doing_now}", monotonic() - began, f"{groups} groups before it"))

        given = (name, list(done), seed, str(place))
        ended = run_function(_checked, *given, time_limit_s=start_limit_s, hear=hear, look=look, separate=True)
    lasted_s = monotonic() - began
    about: dict[str, Any] = {}
    rows: list[FrameworkRow] = []
    for line in (place / _ROWS).read_text().splitlines() if (place / _ROWS).exists() else ():
        read = json.loads(line)
        if "refused" in read:
            raise (MissingDependency if read["missing"] else UsageError)(read["refused"])
        if "check" in read:
            rows.append(FrameworkRow(**read))
        else:
            about = read
    fault = ended.fault(answered=ended.doing == _END)
    if fault is None:
        return True, (about, rows)
    fault = fault.replace(ended.where, "", 1)  # the row names the group
    if ended.doing.startswith(_GROUP):
        check = ended.doing.removeprefix(_GROUP)
        if any(row.check == check for row in rows):  # it ended after its answer
            return False, (about, rows)
    else:
        check = _LOADING
    remedy = "; remedy: --time-limit, if it is not an endless loop" if ended.late else ""
    rows.append(FrameworkRow(check=check, verdict="FAILED", time_s=lasted_s, note=f"its process {fault}{remedy}"))
    return check == _LOADING, (about, rows)


def _checked(name: str, done: Sequence[str], seed: int, place: str, report: Report) -> None:
    """Run the groups that are not done, in this process, and append a line for each to a file."""
    report(_LOADING)
    with Path(place, _ROWS).open("a", buffering=1) as lines:
        for row in _answers(name, done, seed, report):
            lines.write(json.dumps(row) + "\n")
    report(_END)


def _answers(name: str, done: Sequence[str], seed: int, report: Report) -> Iterator[dict[str, Any]]:
    try:
        checked = named_back_end(name)
        yield {"name": name if names_file(name) else checked.name, "version": str(checked.version())}
    except UsageError as error:
        yield {"refused": str(error), "missing": isinstance(error, MissingDependency)}
        return
    except Exception as error:  # a user's class may raise anything
        yield _row(_LOADING, "FAILED", 0.0, f"raised {described(error)}")
        return
    framework("reference")  # its import is not the first group's time
    for check in executor_checks(checked, seed=seed):
        if check.name in done:
            continue
        report(f"{_GROUP}{check.name}")
        begin, verdict, note = monotonic(), "passed", ""
        try:
            check.run()
        except Unsupported as error:
            verdict, note = "not supported" if check.optional else "FAILED", str(error)
        except Deep5Error as error:
            verdict, note = "FAILED", str(error)
        except Exception as error:  # likewise
            verdict, note = "FAILED", f"raised {described(error)}"
        yield _row(check.name, verdict, monotonic() - begin, note)
        if check.name == "interface" and verdict == "FAILED":
            return


def _row(check: str, verdict: str, time_s: float, note: str) -> dict[str, Any]:
    return {"check": check, "verdict": verdict, "time_s": round(time_s, 4), "note": " ".join(note.split())}
