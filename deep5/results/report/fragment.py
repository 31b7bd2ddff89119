"""What a notebook shows of a result: a table, without script, style or pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deep5.core.terminal import counted
from deep5.results.comparison import ComparisonResult
from deep5.results.report.comparison_part import comparison_title, verdict_list, verdict_table
from deep5.results.report.groups import badges, labels
from deep5.results.report.markup import element, named
from deep5.results.report.parts import guarded, note
from deep5.results.report.ranks_part import ranks_part
from deep5.results.report.runs_part import metric_table, outcome
from deep5.results.report.study_part import means_table
from deep5.results.result import Result

__all__ = ["comparison_fragment", "result_fragment", "study_fragment"]


def comparison_fragment(result: ComparisonResult) -> str:
    """A comparison: verdicts and warnings, as HTML."""
    return element(
        "div",
        element("p", element("strong", named(comparison_title(result), 80))),
        badges(result.document["recipe"]),
        guarded("the verdicts", lambda: verdict_list(result)),
        guarded("the table of verdicts", lambda: verdict_table(result)),
        note(result.document["warnings"], "Warnings"),
    )


def result_fragment(result: Result) -> str:
    """A run: its outcome, metrics and warnings, as HTML."""
    return element(
        "div",
        element("p", element("strong", named(result.document["recipe"]["name"])), ": ", outcome(result)[0]),
        badges(result.document["recipe"]),
        note(result.reasons, "Not a success, or not accepted", "bad"),
        guarded("the metrics", lambda: metric_table([result], labels([result]))),
        guarded("the ranks", lambda: ranks_part(result)),
        note(result.document["warnings"], "Warnings"),
    )


def study_fragment(
    recipe: str, runs: Mapping[str, Sequence[Result]], failures: Mapping[str, Sequence[str]], notes: Sequence[str]
) -> str:
    """A study: means over the seeds, what failed, and notes, as HTML.

    Args:
        recipe: Its name.
        runs: By candidate.
        failures: By candidate, what became of the runs that came to no end.
        notes: What is to be known.
    """
    lost = [f"{name}: {told}" for name, own in failures.items() for told in own]
    return element(
        "div",
        element("p", element("strong", named(recipe)), ": study of ", counted(len(runs), "candidate")),
        guarded("the means", lambda: means_table(runs)),
        note(lost, "Runs that came to nothing", "bad"),
        note(notes, "Notes"),
    )
