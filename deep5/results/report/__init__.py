"""The report: results, comparisons and studies on one page that works offline, and their figures for a paper."""

from deep5.results.report.collect import Collection, collect
from deep5.results.report.figures import report_figures
from deep5.results.report.fragment import comparison_fragment, result_fragment, study_fragment
from deep5.results.report.page import report_page

__all__ = [
    "Collection",
    "collect",
    "comparison_fragment",
    "report_figures",
    "report_page",
    "result_fragment",
    "study_fragment",
]
