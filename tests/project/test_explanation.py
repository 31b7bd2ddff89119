"""The pages of docs/explanation agree with the code: rules, shown output, and files that they name."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import forked
from deep5.audit.finding import RULES

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "explanation"
SHOWN = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`((?:deep5|docs|frameworks|metrics|tests)/[\w/]+\.(?:py|md|h|toml))`")
PAGES = ("measurement.md", "not_supported.md", "statistics.md")


def shown() -> list[tuple[str, str, str]]:
    """Page, code and output of each Python block whose output follows it."""
    return [(page, *found) for page in PAGES for found in SHOWN.findall((FOLDER / page).read_text())]


def rules_found() -> set[int]:
    """The numbers of the rules that the audit's checks name."""
    calls = (node for path in (ROOT / "deep5" / "audit").glob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return {
        node.args[0].value
        for node in calls
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("find", "hold", "part", "same")
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, int)
    }


def test_the_page_has_each_rule_of_the_audit_with_its_number() -> None:
    page = (FOLDER / "measurement.md").read_text()
    headings = re.findall(r"^## Rule (\d+): (.*)$", page, re.MULTILINE)
    assert [(int(number), title) for number, title in headings] == list(RULES.items())
    assert rules_found() == set(RULES)
    for part in page.split("\n## Rule ")[1:]:
        for label in ("**Without it**", "**deep5**", "**Reported by**", "**Tested in**"):
            assert part.count(label) == 1, f"{label} in rule {part[:40]}"


@pytest.mark.parametrize(("page", "code", "output"), shown())
def test_shown_output_is_that_of_the_code(page: str, code: str, output: str, tmp_path: Path) -> None:
    script = tmp_path / "snippet.py"
    script.write_text(code)
    done = forked.run(["-W", "error", str(script)], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, output), f"{page}: {done.stderr}"


@pytest.mark.parametrize("page", sorted(path.name for path in FOLDER.glob("*.md")))
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(
        r"`((?:deep5|docs|frameworks|metrics|tests)/[\w/]+\.(?:py|md|h|toml))`", (FOLDER / page).read_text()
    )
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_pictures_of_the_pages_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mkdocs", reason="the site is built with deep5[dev]")
    monkeypatch.syspath_prepend(ROOT / "docs" / "building")
    import pictures

    for page in FOLDER.glob("*.md"):
        drawn = pictures.with_pictures(page.read_text(), page.name)
        assert "<!-- picture" not in drawn
        for opening in re.findall(r"<svg[^>]*>", drawn):
            assert 'role="img"' in opening
            assert "aria-label=" in opening
            assert "viewBox=" in opening
            (wide,) = re.findall(r' width="(\d+)"', opening)
            assert int(wide) <= 640
    sys.modules.pop("pictures")
