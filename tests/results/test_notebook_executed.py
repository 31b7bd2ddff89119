"""A notebook that a kernel executes, as a page in a real browser: what a reader sees of deep5's values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import report_cases as cases

pytestmark = pytest.mark.slow

SHOWN = ("result", "comparison", "analysis", "splits", "report")
CELLS = (
    """import numpy as np
import pandas as pd
import deep5 as d5
from deep5.results.comparison import load_comparison""",
    "pd.DataFrame({'name': ['a', 'b'], 'value': [1.5, 2.5]})",
    """FIXED = {"model": "lenet", "dataset": "digits", "epochs": 2}
MUTABLE = {"batch_size": 256, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.003}}
METRICS = [(d5.TestAccuracy(), ">= 99.9 %"), (d5.TrainingLoss(), None), (d5.Throughput(), None)]
d5.run_recipe(FIXED, MUTABLE, METRICS)""",
    "load_comparison('demo-compare')",
    "d5.networks.analyse(d5.networks.resnet18(), 8)",
    "d5.datasets.digits()",
    """class Power(d5.Operator):
    def specs(self, x):
        return (x,)

    def forward(self, x):
        return x**3

    def backward(self, output_grads, inputs, outputs, needs):
        return (3 * inputs[0] ** 2 * output_grads[0],)

found = d5.check_forward(Power(), [np.ones(4, np.float32)], reference=lambda x: x**3)
assert str(found)
found""",
)
# Instead of scripts of the page that nbconvert would load from the network.
NO_SCRIPT = "data:text/javascript,"

LOOK = """
const ink = text => {
    const part = text.match(/[\\d.]+/g).map(Number);
    return part.length === 3 ? [...part, 1] : part;
};
const over = ([r, g, b, a], below) => [r, g, b].map((value, place) => a * value + (1 - a) * below[place]);
const paper = node => {
    const under = node.parentElement ? paper(node.parentElement) : [255, 255, 255];
    return over(ink(getComputedStyle(node).backgroundColor), under);
};
const opacity = node => (node ? Number(getComputedStyle(node).opacity) * opacity(node.parentElement) : 1);
const light = color => {
    const linear = color.map(value => value / 255).map(v => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
};
const contrast = node => {
    const below = paper(node), [r, g, b, a] = ink(getComputedStyle(node).color);
    const found = [light(over([r, g, b, a * opacity(node)], below)), light(below)].sort((x, y) => y - x);
    return (found[0] + 0.05) / (found[1] + 0.05);
};
const direct = node => [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
const named = node => `${node.tagName} ${node.className}: ${node.textContent.trim().slice(0, 40)}`;
const looks = () => [...document.querySelectorAll('table.dataframe, table.dataframe *')].map(node => {
    const style = getComputedStyle(node);
    return [...style].map(name => style.getPropertyValue(name)).join();
});

const seen = {outputs: [], faint: [], small: [], unreachable: [], page: null, scripts: 0, other: [], after: []};
seen.page = [document.documentElement.scrollWidth, document.documentElement.clientWidth];
for (const output of document.querySelectorAll('.deep5-shown')) {
    const place = output.getBoundingClientRect(), cell = output.parentElement.getBoundingClientRect();
    seen.outputs.push({text: output.textContent, fits: place.right <= cell.right + 1 && place.left >= cell.left - 1});
    seen.scripts += output.querySelectorAll('script').length;
}
// Also what a run prints, where it is not the table of the page.
const texts = '.deep5-shown *, .jp-OutputArea-output pre, .jp-OutputArea-output pre *';
for (const node of document.querySelectorAll(texts)) {
    if (!direct(node) || ['STYLE', 'SCRIPT'].includes(node.tagName)) continue;
    if (contrast(node) < 4.5) seen.faint.push(named(node));
    if (parseFloat(getComputedStyle(node).fontSize) < 12) seen.small.push(named(node));
}
for (const table of document.querySelectorAll('.deep5-shown table')) {
    const region = table.closest('.scroll'), rows = [...table.rows], last = rows[rows.length - 1];
    region.scrollLeft = region.scrollWidth;
    region.scrollTop = region.scrollHeight;
    const view = region.getBoundingClientRect();
    const cell = last.cells[last.cells.length - 1].getBoundingClientRect();
    const reached = cell.right <= view.right + 1 && cell.bottom <= view.bottom + 1 && view.width >= 200;
    if (!reached) seen.unreachable.push(named(table));
    const head = table.tHead.rows[0].cells[0].getBoundingClientRect();
    const tall = region.classList.contains('tall');
    if (tall && head.bottom < view.top + 5) seen.unreachable.push('heading of ' + named(table));
}
seen.other = looks();
document.querySelectorAll('.deep5-shown').forEach(node => node.parentElement.remove());
seen.after = looks();
seen.styles = document.querySelectorAll('.deep5-shown').length;
return seen;
"""


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook after a kernel of this interpreter executed it, with settings of this test instead of the user's."""
    import nbformat
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    cases.comparison(folder)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    with pytest.MonkeyPatch.context() as patched:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
            patched.setenv(name, str(folder / "settings"))
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    return notebook


def test_what_a_run_prints_is_plain(executed: Any) -> None:
    printed = [output for cell in executed.cells for output in cell.outputs if output.output_type != "execute_result"]
    assert {output.output_type for output in printed} == {"stream"}, "what is printed has its own colors"
    assert {output.name for output in printed} == {"stdout"}, "progress looks like an error"
    text = "".join(output.text for output in printed)
    assert "epoch 2/2" in text
    assert "not accepted" in text


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 800])
def test_the_page(executed: Any, chromium: Any, tmp_path: Path, theme: str, width: int) -> None:
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="lab", theme=theme)
    exporter.require_js_url = exporter.mathjax_url = exporter.jquery_url = exporter.mermaid_js_url = NO_SCRIPT
    page = tmp_path / "page.html"
    page.write_text(exporter.from_notebook_node(executed)[0], encoding="utf-8")
    for kind in ("browser", "performance"):
        chromium.get_log(kind)  # of the page before
    chromium.set_window_size(width, 1000)
    chromium.get(page.as_uri())
    seen = chromium.execute_script(LOOK)

    assert len(seen["outputs"]) == len(SHOWN)
    for name, output in zip(SHOWN, seen["outputs"], strict=True):
        assert output["fits"], f"{name} is wider than its cell"
    assert seen["page"][0] <= seen["page"][1], "the page scrolls sideways"
    assert seen["faint"] == [], "text with a contrast below 4.5"
    assert seen["small"] == [], "text below 12 pixels"
    assert seen["unreachable"] == [], "cells that scrolling does not reach"
    assert seen["scripts"] == 0
    assert seen["styles"] == 0
    assert len(seen["other"]) > 10
    assert seen["other"] == seen["after"], "the style applies to the table of pandas"
    assert [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"] == []
    messages = [json.loads(entry["message"])["message"] for entry in chromium.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert page.as_uri() in sent
    assert [url for url in sent if not url.startswith(("data:", page.as_uri()))] == []
