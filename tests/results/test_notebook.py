"""What a notebook shows for results and components, also in a real browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import deep5 as d5
import report_cases as cases
from deep5.core.notebook import html_of, render, style
from deep5.operators.checks.report import OperatorReport, Row
from deep5.results.comparison import load_comparison
from deep5.results.result import load

# What a notebook page has around an output, and its rules for tables in it.
PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>Notebook</title><style>
body {{ background: {paper}; color: {ink}; font-family: sans-serif; }}
.rendered_html table {{ border: 1px solid red; font-size: 12px; }}
.rendered_html td {{ text-align: right; padding: 0.5em; }}
</style></head><body><table id="other"><tr><td>beside</td></tr></table>{outputs}</body></html>"""


class Power(d5.Operator):
    def specs(self, x: Any) -> Any:
        return (x,)

    def forward(self, x: Any) -> Any:
        return x**3

    def backward(self, output_grads: Any, inputs: Any, outputs: Any, needs: Any) -> Any:
        return (3 * inputs[0] ** 2 * output_grads[0],)


def report() -> OperatorReport:
    rows = (
        Row(check="forward, float32", verdict="passed", error=1e-7, relative=1e-7, ulps=0.5, allowed=1e-6, values=6),
        Row(check="gradient <b>", verdict="FAILED", error=0.5, relative=0.1, ulps=9e5, allowed=1e-3, note="off by 0.5"),
        Row(check="empty", verdict="refused", note="no empty inputs"),
    )
    return OperatorReport(operator="Power", framework="reference", rows=rows)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("notebook")
    cases.comparison(folder)
    return {
        "result": load(cases.run(folder)),
        "comparison": load_comparison(folder / "demo-compare"),
        "analysis": d5.networks.analyse(d5.networks.lenet(), 8),
        "splits": d5.datasets.digits(),
        "report": report(),
    }


def test_each_has_a_table_and_no_script(shown: dict[str, Any]) -> None:
    for value in shown.values():
        html = value._repr_html_()
        assert html.startswith(style())
        assert html.count("<style>") == 1
        assert "<table" in html
        assert "<script" not in html


def test_the_analysis_has_layers_and_totals(shown: dict[str, Any]) -> None:
    html = shown["analysis"]._repr_html_()

    assert "Conv" in html
    assert "peak training memory" in html
    assert f"{shown['analysis'].parameters:,}" in html


def test_the_parts_of_a_data_set_have_sizes_and_types(shown: dict[str, Any]) -> None:
    html = shown["splits"]._repr_html_()

    assert f"{len(shown['splits'].train):,} samples to train" in html
    assert "float32[1, 28, 28]" in html
    assert "int64" in html


def test_a_report_names_failures_and_escapes_names() -> None:
    html = report()._repr_html_()

    assert "off by 0.5" in html
    assert "gradient &lt;b&gt;" in html
    assert "1 of 3 checks failed" in html


def test_a_real_report() -> None:
    found = d5.check_forward(Power(), [np.ones(4, np.float32)], reference=lambda x: x**3)

    assert "Power on NumPy: passed" in found._repr_html_()


def test_another_value_is_refused() -> None:
    with pytest.raises(TypeError, match=r"cannot show a int; remedy: .*html_of\.register"):
        render(3)


def test_html_of_has_no_style(shown: dict[str, Any]) -> None:
    assert "<style" not in html_of(shown["report"])


def test_the_style_applies_only_within_its_class() -> None:
    rules = re.findall(r"^([^{}\n]+)\{", style(), re.MULTILINE)

    assert len(rules) > 10
    parts = [part.strip() for rule in rules for part in re.split(r",(?![^(]*\))", rule)]
    assert all(part.startswith(".deep5-shown.deep5-shown") for part in parts)


def page(shown: dict[str, Any], dark: bool) -> str:
    outputs = "".join(
        f'<div class="rendered_html" id="{name}">{value._repr_html_()}</div>' for name, value in shown.items()
    )
    return PAGE.format(paper="#111" if dark else "#fff", ink="#eee" if dark else "#111", outputs=outputs)


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_in_a_notebook_s_page(shown: dict[str, Any], chromium: Any, tmp_path: Path, dark: bool) -> None:
    path = tmp_path / "page.html"
    path.write_text(page(shown, dark), "utf-8")
    chromium.set_window_size(1000, 2400)
    chromium.get(path.as_uri())
    script = """
        const seen = {};
        for (const name of arguments[0]) {
            const cell = document.querySelector(`#${name} td`), table = document.querySelector(`#${name} table`);
            seen[name] = [getComputedStyle(cell).color, getComputedStyle(table).borderTopWidth,
                          document.getElementById(name).scrollWidth <= document.documentElement.clientWidth];
        }
        seen.other = getComputedStyle(document.querySelector('#other td')).whiteSpace;
        seen.body = getComputedStyle(document.body).color;
        return seen;
    """
    seen = chromium.execute_script(script, list(shown))

    for name in shown:
        color, border, fits = seen[name]
        assert color == seen["body"], f"{name} has its own text color, which may be invisible here"
        assert border == "0px", f"the page's style applies to {name}"
        assert fits, f"{name} is wider than the page"
    assert seen["other"] == "normal", "the style leaks into the page"
    assert not [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
