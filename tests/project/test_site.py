"""The site of the documentation: built strictly, read in a browser from a folder, and what a build refuses."""

from __future__ import annotations

import doctest
import inspect
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import api_pages
import notebooks
import stored_results
import table_figures
from browser import chromium

__all__ = ["chromium"]

ROOT = Path(__file__).parents[2]
SECTIONS = ["Start", "Tutorials", "How-to", "Reference", "Explanation", "Results", "Project"]
INSIDE = ("file:", "data:", "blob:", "about:")
EXCESS = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
WIDTHS = {"desktop": 1280, "phone": 390}


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Builds the site of a repository, as `make docs` does."""
    words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=1500, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


def pages_of(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


@pytest.mark.daily
def test_it_is_built_without_a_warning(site: Path) -> None:
    assert (site / "index.html").is_file()
    assert len(pages_of(site)) >= 40


class Loaded(HTMLParser):
    """Collects what a page loads by itself: links to other sites are only followed by readers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and given.get("rel") not in {"canonical", "prev", "next"}:
            self.found.append(given.get("href", ""))
        if tag in {"script", "img", "iframe", "source", "video", "audio", "object", "embed", "use", "image"}:
            self.found += [given[name] for name in ("src", "data", "srcset", "href", "xlink:href") if given.get(name)]
        self.found += re.findall(r"url\(([^)]*)\)", given.get("style", ""))


def foreign(site: Path) -> list[str]:
    """What pages and style sheets load from elsewhere."""
    wrong = []
    for page in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(page.read_text(encoding="utf-8"))
        wrong += [f"{page.name}: {each}" for each in loaded.found if re.match(r"(https?:)?//", each)]
    for style in site.rglob("*.css"):
        addresses = re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^)'\"]*)", style.read_text(encoding="utf-8"))
        wrong += [f"{style.name}: {each}" for each in addresses]
    return wrong


@pytest.mark.daily
def test_it_loads_nothing_from_elsewhere(site: Path) -> None:
    assert foreign(site) == []


def test_what_is_loaded_from_elsewhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<a href="https://example.org/good">x</a><link rel="stylesheet" href="//example.org/a.css">'
        '<script src="https://example.org/b.js"></script><img src="c.png"><p style="background: url(http://d.org/e)">'
    )
    style = "@font-face {src: url('https://example.org/f.woff')} a {background: url(g.png)}"
    (tmp_path / "style.css").write_text(style)
    assert foreign(tmp_path) == [
        "page.html: //example.org/a.css",
        "page.html: https://example.org/b.js",
        "page.html: http://d.org/e",
        "style.css: https://example.org/f.woff",
    ]


def open_page(driver: Any, address: str, width: int, scheme: str) -> None:
    chosen = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [chosen]})
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(address)


def requested(driver: Any) -> set[str]:
    """The addresses that pages requested since the last call."""
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        pytest.param("desktop", "light", marks=pytest.mark.slow),
        pytest.param("desktop", "dark", marks=pytest.mark.daily),
        pytest.param("phone", "light", marks=pytest.mark.daily),
        pytest.param("phone", "dark", marks=pytest.mark.slow),
    ],
)
def test_every_page_in_a_browser(site: Path, chromium: Any, width: str, scheme: str) -> None:
    """From a folder: no error, nothing requested from elsewhere, no page wider than the window, the chosen colors."""
    wrong = []
    requested(chromium)
    chromium.get_log("browser")
    for page in pages_of(site):
        open_page(chromium, page.as_uri(), WIDTHS[width], scheme)
        name = page.relative_to(site)
        errors = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
        wrong += [f"{name}: {message}" for message in errors]
        wrong += [f"{name} requests {each}" for each in requested(chromium) if not each.startswith(INSIDE)]
        excess = chromium.execute_script(EXCESS)
        if excess > 0:
            wrong.append(f"{name} is {excess} pixels wider than the window")
        colors = chromium.execute_script("return document.body.getAttribute('data-md-color-scheme')")
        if colors != {"light": "default", "dark": "slate"}[scheme]:
            wrong.append(f"{name} has the colors {colors}")
    assert wrong == []


@pytest.mark.daily
def test_the_search_finds_a_name_in_a_folder(site: Path, chromium: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    open_page(chromium, (site / "index.html").as_uri(), WIDTHS["desktop"], "light")
    field = chromium.find_element(By.CSS_SELECTOR, "[data-md-component=search-query]")
    chromium.execute_script("document.querySelector('[data-md-toggle=search]').click()")
    field.send_keys("AcceleGrad")
    links = WebDriverWait(chromium, 60).until(
        lambda driver: driver.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
    )
    found = [link.get_attribute("href") for link in links]
    assert any("reference/api/optimizers.html" in address for address in found), found


@pytest.mark.daily
def test_the_sections_of_the_navigation(site: Path, chromium: Any) -> None:
    from selenium.webdriver.common.by import By

    open_page(chromium, (site / "index.html").as_uri(), WIDTHS["desktop"], "light")
    tabs = chromium.find_elements(By.CSS_SELECTOR, ".md-tabs__link")
    assert [tab.text for tab in tabs] == SECTIONS


# What a build refuses.


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The repository's documentation without tutorials and with links to the code."""
    for name in ("docs", "recipes", "frameworks", "metrics", "deep5", ".staging"):
        if name != "docs":
            (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copyfile(path, tmp_path / path.name)
    return tmp_path


def test_a_page_outside_the_navigation_is_named(copied: Path) -> None:
    (copied / "docs" / "how_to" / "stray.md").write_text("# Stray\n\nSee [nothing](gone.md) and [this](#gone).\n")
    done = build(copied, copied / "site")
    assert done.returncode == 1
    for part in ("how_to/stray.md", "gone.md", "'#gone'"):
        assert part in done.stderr


def test_a_public_name_without_an_example_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import deep5

    assert api_pages.without_example() == []

    class Bare(deep5.Metric):
        """Without an example."""

    Bare.__module__ = "deep5.metrics.bare"
    names = {**api_pages.public_names(), "deep5.Bare": Bare}
    monkeypatch.setattr(api_pages, "public_names", lambda: names)
    made = api_pages.pages()
    assert "::: deep5.Bare" in made["reference/api/metrics.md"]
    assert "deep5.Bare has no example in its docstring" in caplog.text


def test_the_examples_of_aliases_run() -> None:
    """The strings below their definitions, which `doctest` does not find."""
    aliases = {
        name: value
        for name, value in api_pages.public_names().items()
        if not (inspect.isclass(value) or inspect.isfunction(value) or inspect.ismodule(value))
    }
    assert aliases
    for name, value in aliases.items():
        example = doctest.DocTestParser().get_doctest(api_pages.docstring(name, value), {}, name, None, None)
        assert example.examples
        assert doctest.DocTestRunner().run(example).failed == 0


def test_every_public_name_is_on_one_page_of_the_reference() -> None:
    listed = re.findall(r"^::: (\S+)$", "\n".join(api_pages.pages().values()), re.MULTILINE)
    assert sorted(listed) == sorted(api_pages.public_names())


def test_a_failing_tutorial_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.exceptions import PluginError

    monkeypatch.setattr(notebooks, "SOURCES", tmp_path)
    monkeypatch.setattr(notebooks, "KEPT", tmp_path / "kept")
    (tmp_path / "broken.py").write_text("# %% [markdown]\n# # Broken\n\n# %%\nprint(1)\n\n# %%\n1 / 0\n")
    with pytest.raises(PluginError, match=r"(?s)docs/tutorials/broken.py fails: .*ZeroDivisionError"):
        notebooks.markdown("broken")
    (tmp_path / "broken.py").write_text("# %% [markdown]\n# # Sound\n\n# %%\nprint(2)\n\n# %%\n[1, 2]\n")
    page = notebooks.markdown("broken")
    assert "````{.text .output}\n2\n````" in page
    assert "[Download this notebook](broken.ipynb)" in page


def test_a_build_shows_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebooks, "SOURCES", tmp_path)
    monkeypatch.setattr(notebooks, "KEPT", tmp_path / "kept")
    monkeypatch.setenv("DEEP5_TUTORIALS", "kept")
    (tmp_path / "sums.py").write_text("# %% [markdown]\n# # Sums\n\n# %%\nprint(1 + 1)\n")
    assert notebooks.markdown("sums").endswith("```python\nprint(1 + 1)\n```\n\n*Not executed for this build.*\n")
    notebooks.executed("sums")
    assert "````{.text .output}\n2\n````\n\n*Executed on " in notebooks.markdown("sums")


def test_a_figure_without_its_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mkdocs.exceptions import PluginError

    stored = next(path.parent for path in stored_results.STORED.glob("*/record.json"))
    monkeypatch.setattr(stored_results, "STORED", tmp_path / "docs" / "stored")
    monkeypatch.setattr(stored_results, "ROOT", tmp_path)
    shutil.copytree(stored, tmp_path / "docs" / "stored" / "made")
    figure = next((tmp_path / "docs" / "stored" / "made").glob("*.svg")).stem
    line = f"<!-- figure: made {figure} -->"
    record = json.loads((stored / "record.json").read_text())
    assert f"```sh\n{record['command']}\n```" in stored_results.with_figures(line, "results/page.md")
    with pytest.raises(PluginError, match="shows the figure 'gone' of 'made'; allowed: "):
        stored_results.with_figures("<!-- figure: made gone -->", "results/page.md")
    (tmp_path / "docs" / "stored" / "made" / "record.json").write_text(json.dumps({**record, "command": ""}))
    with pytest.raises(PluginError, match=r"the figures of 'made' have no command in docs/stored/made/record.json"):
        stored_results.with_figures(line, "results/page.md")


@pytest.mark.parametrize("name", sorted(stored_results.commands()))
def test_the_command_of_a_figure_makes_it_again(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command as a reader copies it from the page, at the smallest size: it makes the same figures."""
    shown = sorted(path.name for path in (stored_results.STORED / name).glob("*.svg"))
    page = stored_results.with_figures(f"<!-- figure: {name} {Path(shown[0]).stem} -->", "results/page.md")
    (command,) = re.findall(r"^```sh\n(.*)\n```$", page, re.MULTILINE)
    monkeypatch.setattr(stored_results, "STORED", tmp_path)
    stored_results.make(name, command, None if "--size" in command else "smoke")
    assert sorted(path.name for path in (tmp_path / name).glob("*.svg")) == shown
    made = json.loads((tmp_path / name / "record.json").read_text())
    assert made["command"] == command
    assert made["machine"]["processor"]
    assert {"deep5", "Python", "numpy"} <= set(made["versions"])


def test_a_chart_of_a_table_without_its_record_is_named() -> None:
    from mkdocs.exceptions import PluginError

    table = "# Page\n\n| framework | node, of 4 |\n|---|---:|\n| `a` | 3 |\n\n<!-- chart: passed -->\n"
    missing = r"page\.md shows a chart and does not state its command, date, machine, versions"
    with pytest.raises(PluginError, match=missing):
        table_figures.with_charts(table, "page.md")


# Tutorials.


@pytest.mark.parametrize("name", notebooks.names())
def test_a_tutorial_runs(name: str) -> None:
    """Every cell; the site shows this execution."""
    notebook = notebooks.executed(name)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    drawn = sum("image/svg+xml" in output.get("data", {}) for output in outputs)
    assert drawn >= 1, "a tutorial has charts"


def test_all_tutorials_exist() -> None:
    assert notebooks.names() == sorted((
        "back_end_in_an_afternoon", "comparing_honestly", "customizing_learning", "distributed", "first_steps",
        "operators", "your_own_model",
    ))  # fmt: skip
