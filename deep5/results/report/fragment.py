"""HTML for notebooks: a table, without script, style or charts."""

from __future__ import annotations

from deep5.core.notebook import html_of
from deep5.core.terminal import counted
from deep5.results.comparison import ComparisonResult
from deep5.results.markup import element, named
from deep5.results.report.comparison_part import comparison_title, verdict_list, verdict_table
from deep5.results.report.component_fragment import analysis_fragment, report_fragment, splits_fragment
from deep5.results.report.groups import badges, labels
from deep5.results.report.parts import guarded, note
from deep5.results.report.ranks_part import ranks_part
from deep5.results.report.runs_part import metric_table, outcome
from deep5.results.report.study_part import means_table
from deep5.results.result import Result
from deep5.results.screens import write_comparison, write_result, write_study
from deep5.results.study.record import Study

__all__ = [
    "analysis_fragment",
    "comparison_fragment",
    "report_fragment",
    "result_fragment",
    "splits_fragment",
    "study_fragment",
    "write_comparison",
    "write_result",
    "write_study",
]


@html_of.register
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


@html_of.register
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


@html_of.register
def study_fragment(study: Study) -> str:
    """A study: means over the seeds, what failed, and notes, as HTML."""
    lost = [f"{name}: {failure}" for name, own in study.failures.items() for failure in own]
    return element(
        "div",
        element("p", element("strong", named(study.recipe)), ": study of ", counted(len(study.runs), "candidate")),
        guarded("the means", lambda: means_table(study.runs, study.timed)),
        note(lost, "Failed runs", "bad"),
        note(study.notes, "Notes"),
    )
