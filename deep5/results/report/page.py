"""The page: one file that needs no network, runs a single script, and shows everything that can be shown."""

from __future__ import annotations

import base64
import hashlib
from functools import cache, partial
from importlib.resources import files
from typing import Any

from deep5.results.comparison import ComparisonResult
from deep5.results.markup import Markup, element, named
from deep5.results.report.collect import Collection
from deep5.results.report.comparison_part import comparison_part, comparison_title, verdict_list
from deep5.results.report.drawing import Pen
from deep5.results.report.environment import result_differences
from deep5.results.report.groups import badges, differing_inputs, groups
from deep5.results.report.parts import guarded, note
from deep5.results.report.runs_part import group_part, group_title, run_list
from deep5.results.report.study_part import study_list, study_part, study_title
from deep5.results.report.theme import dark_rules
from deep5.results.result import Result

__all__ = ["report_page", "whole_page"]


@cache
def _own(name: str) -> str:
    return files("deep5.results.report").joinpath(name).read_text("utf-8")


def report_page(found: Collection) -> str:
    """The whole page, as HTML.

    Its style and script are part of deep5, and its content security policy lets the browser load and run nothing else.

    Args:
        found: The contents of the page.

    Raises:
        MissingDependency: A package of the extra `report` is missing.
    """
    pen = Pen()
    runs = groups(found.runs)
    said: list[Markup] = []
    parts: list[Markup | None] = []
    links: list[tuple[str, str]] = []

    def add(title: str, place: str, recipe: Any, verdicts: Any, part: Any) -> None:
        links.append((place, title))
        head = element("h3", element("a", named(title, 80), href=f"#{place}"))
        said.append(element("div", head, None if recipe is None else badges(recipe), guarded("its verdicts", verdicts)))
        # Its heading must exist, because links lead to it, even if the rest fails.
        parts.append(guarded(title, part))

    for number, result in enumerate(found.comparisons, 1):
        place = f"comparison-{number}"
        add(
            comparison_title(result),
            place,
            result.document["recipe"],
            partial(verdict_list, result),
            partial(comparison_part, result, place, pen),
        )
    for number, group in enumerate(runs, 1):
        place = f"runs-{number}"
        add(
            group_title(group),
            place,
            group.recipe,
            partial(run_list, group),
            partial(group_part, group, place, pen),
        )
    for number, study in enumerate(found.studies, 1):
        place = f"study-{number}"
        add(
            study_title(study),
            place,
            None,
            partial(study_list, study),
            partial(study_part, study, place, pen),
        )
    links.append(("environments", "Environments"))
    unreadable = [f"{row.path}: {row.reason}" for row in found.unreadable]
    main = element(
        "main",
        note(unreadable, "These could not be read and are not in this report", "bad"),
        _apart(found),
        element("h2", "Verdicts", id="verdicts"),
        element("p", "Ratios are of times, each candidate's over the baseline's: below 1 is faster.", class_="quiet")
        if found.comparisons
        else None,
        said or element("p", "There is nothing to show."),
        parts,
        element("h2", "Environments", id="environments"),
        guarded("the environments", lambda: result_differences(_documents(found)))
        or element("p", "No result of this page names a machine.", class_="quiet"),
        id="main",
    )
    navigation = element(
        "nav",
        element("ul", (element("li", element("a", named(title, 60), href=f"#{place}")) for place, title in links)),
        aria_label="contents",
    )
    return whole_page("deep5 report", _heading(found), navigation, main)


def _heading(found: Collection) -> Markup:
    counts = (
        (len(found.comparisons), "comparison", "comparisons"),
        (len(found.runs), "run", "runs"),
        (len(found.studies), "study", "studies"),
        (len(found.unreadable), "folder that could not be read", "that could not be read"),
    )
    text = ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count)
    audit = "Not audited here: ", element("code", "deep5 audit FOLDER"), " re-derives every number."
    return element(
        "header",
        element("h1", "deep5 report"),
        element("p", text or "nothing", class_="quiet"),
        element("p", *audit, class_="quiet") if len(found) else None,
    )


def _apart(found: Collection) -> Markup | None:
    """A warning if results of different or changed recipes share the page."""
    recipes = [document["recipe"] for _, document in _documents(found)]
    kinds = {(recipe["name"], recipe["hash"], str(recipe["fixed"])) for recipe in recipes}
    said = []
    if len(kinds) > 1:
        said.append(
            f"not comparable: this page has results of {len(kinds)} different fixed parts, each in a separate section"
        )
    said += differing_inputs([(name, document) for name, document in _documents(found) if "level" in document])
    if any(recipe["division"] == "open" for recipe in recipes):
        said.append("open: the fixed part of a recipe was changed (also by a size other than full)")
    return note(said, "Read these numbers within their section")


def _documents(found: Collection) -> list[tuple[str, Any]]:
    own: list[ComparisonResult | Result] = [*found.comparisons, *found.runs]
    own += [run for study in found.studies for runs in study.runs.values() for run in runs]
    return [(result.folder.name, result.document) for result in own]


def whole_page(title: str, heading: Markup, navigation: Markup | None, main: Markup) -> str:
    """A page in one file, whose content security policy lets the browser load and run nothing else.

    Args:
        title: Its title.
        heading: Its heading.
        navigation: Links within it, or None.
        main: Its content, with the id `main`.
    """
    script = Markup(_own("page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),  # otherwise a browser requests it
        element("style", Markup(_own("page.css") + dark_rules())),
    )
    body = element(
        "body",
        element("a", "Skip to the results", class_="skip", href="#main"),
        heading,
        navigation,
        main,
        element(
            "footer",
            element("p", "Tables sort by their headings.", class_="quiet"),
        ),
        element("p", id="sorted", class_="unseen", role="status"),
        element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"
