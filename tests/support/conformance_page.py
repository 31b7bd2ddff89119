"""Write docs/results/conformance.md from the lists of failing cases: `COMMAND`."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from importlib.metadata import version
from pathlib import Path

from conformance import SUITES, cases, excluded
from page_record import record_line

COMMAND = "python tests/support/conformance_page.py docs/results/conformance.md"
FRAMEWORKS = {
    "reference": "numpy",
    "onnxruntime": "onnxruntime",
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
}
"""Each framework with the distribution that states its version."""
IMPORTERS = {
    "onnx2pytorch 0.6.0, experimental=True": ("pytorch", {"node": 1410, "converted": 79, "operator": 33, "simple": 15}),
    "onnx2torch 1.5.15": ("pytorch", {"node": 320, "converted": 54, "operator": 25, "simple": 6}),
    "onnx2tf 1.29.24": ("tensorflow", {"node": 861, "converted": 78, "operator": 35, "simple": 11}),
    "onnx-tf 1.10.0": ("tensorflow", {"node": 449, "converted": 77, "operator": 35, "simple": 14}),
    "jaxonnxruntime 0.3.0": ("jax", {"node": 318, "converted": 75}),
}
"""Other importers, measured with torch 2.13.0 and jax 0.10.2, on their framework.

Those for TensorFlow require older versions: they read models, inputs and expected outputs that onnx 1.23.2 wrote in a
separate environment, which `ENVIRONMENTS` describes.
"""
ENVIRONMENTS = (
    "Blanks were not measured. The kernels of torchvision could not be loaded for those of PyTorch: at most 13 node",
    "tests, of NonMaxSuppression and RoiAlign, depend on them.",
    "",
    "The importers for TensorFlow do not run with these versions: each read the cases of onnx 1.23.2 in a separate",
    "environment. onnx2tf had onnx 1.19.1 and tensorflow 2.19.0, the exact versions that it requires. It changes the",
    "order of axes: a case counts if it passes with inputs in ONNX's order or with channels last, the model simplified",
    "or not, each output in either order, within 60 seconds. onnx-tf had onnx 1.18.0 and tensorflow 2.14.1, old enough",
    "for its tensorflow-addons, and inputs whose names begin with a letter. 565 of the node tests use a version of",
    "ONNX's IR that this onnx does not read; for 847, onnx-tf reports that it does not have the operator's version.",
)


def table() -> list[str]:
    """Counts by framework and suite."""
    sizes = {suite: len(cases(suite)) for suite in SUITES}
    lines = [
        "| framework | " + " | ".join(f"{suite}, of {size}" for suite, size in sizes.items()) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for framework in FRAMEWORKS:
        left = excluded(framework)
        lines.append(f"| `{framework}` | " + " | ".join(str(sizes[s] - len(left.get(s, ()))) for s in SUITES) + " |")
    return lines


def importers() -> list[str]:
    """Other importers next to deep5."""
    suites = ("node", "converted", "operator", "simple")
    lines = ["| importer | framework | " + " | ".join(suites) + " |", "|---|---|" + "---:|" * len(suites)]
    for framework in dict.fromkeys(framework for framework, _ in IMPORTERS.values()):
        left = excluded(framework)
        own = [str(len(cases(suite)) - len(left.get(suite, ()))) for suite in suites]
        lines.append(f"| deep5 | {framework} | " + " | ".join(own) + " |")
        for name, (other, counts) in IMPORTERS.items():
            if other == framework:
                lines.append(f"| {name} | {framework} | " + " | ".join(str(counts.get(s, "")) for s in suites) + " |")
    return lines


NOT_RUN = re.compile(r"^\w+ cannot run this network: (?:\S+ \((?P<operator>\w+)\)(?: in it)?: )+")
"""deep5's words before a reason: they name the first refused node, and nodes inside it."""
GROUPS = (
    (r"has no such operator", "no such operator: {}", "operator"),
    (r"the domain '(?P<domain>\S+)' is not ONNX's own", "operators of other domains: {}", "domain operator"),
    (r"has no operator (?P<operator>\S+)", "no such operator: {}", "operator"),
    (r"has no kernel for (?P<operator>\S+)", "no kernel: {}", "operator"),
    (r"^the element type (?P<type>\w+) of '", "element types that are not computed with: {}", "type"),
    (r"has no inputs or outputs of (?P<type>\w+),", "element types that it neither takes nor gives: {}", "type"),
    (r"^the (?:in|out)put '\S+' is (?P<type>[a-z0-9 ]+)", "strings, lists or optional values given: {}", "type"),
    (r"computes what is (?P<type>\w+) in float64", "numbers computed in a type that does not hold them: {}", "type"),
    (r"would compute it in float32 without a warning", "float16 that it would compute in float32: {}", "operator"),
    (r"the statistics that it updates are", "updated statistics of a batch normalization as outputs", ""),
    (r"^\w+ failed in the network '\S+': (?P<operator>\w+): ", "it fails when it runs: {}", "operator"),
)
"""Groups of reasons: a pattern, the line for it, and which part of it is counted."""


def grouped(reason: str) -> tuple[str, str]:
    """The line of a reason, and the part that is counted there; the reason itself if no group fits."""
    refused = NOT_RUN.match(reason)
    said = reason[refused.end() :] if refused else reason
    for pattern, line, part in GROUPS:
        found = re.search(pattern, said)
        if found is None:
            continue
        known = {**(refused.groupdict() if refused else {}), **found.groupdict()}
        return line, ".".join(known[each] for each in part.split())
    return said.removeprefix("the model is not valid ONNX: "), ""


def reasons(framework: str) -> list[str]:
    """Why cases do not pass, the most frequent reasons first."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for names in excluded(framework).values():
        for each in names.values():
            line, part = grouped(each.reason)
            found[line][part] += 1
    lines = []
    for line, parts in sorted(found.items(), key=lambda entry: -entry[1].total()):
        lines.append(f"- {parts.total()}: " + line.format(", ".join(f"{part} {n}" for part, n in parts.most_common())))
    return lines


def page() -> str:
    known = {name: version(name) for name in ("onnx", *FRAMEWORKS.values())}
    versions = ", ".join(f"{name} {number}" for name, number in known.items())
    parts = [
        "# ONNX conformance, counted",
        "",
        "This page counts the cases of ONNX's back-end suite (`onnx.backend.test`) that pass through",
        f"`Network.from_onnx` and an executor, with ONNX's inputs, expected outputs and tolerances. {versions}.",
        "",
        record_line(COMMAND, "outcomes, not times", known),
        "",
        "<!-- chart: passed -->",
        "",
        *table(),
        "",
        "A case that does not pass is refused by name, before anything runs, unless its list says otherwise. The",
        "lists, one case per line with its reason, are `tests/support/conformance/FRAMEWORK.toml`.",
        "`tests/networks/onnx/test_conformance.py` runs every case, one in six of them daily. The test fails if a",
        "listed case passes, or if an unlisted case does not.",
        "",
        "```sh",
        "python tests/support/conformance.py pytorch -k resize         # cases by name",
        "python tests/support/conformance.py pytorch --write           # all suites, and a new list",
        f"{COMMAND}  # this page",
        "```",
        "",
        "## Compared with other importers",
        "",
        "The newest versions on PyPI that run with these versions, by the same cases and comparison:",
        "",
        *importers(),
        "",
        *ENVIRONMENTS,
        "",
        "## Why cases do not pass",
    ]
    for framework in FRAMEWORKS:
        parts += ["", f"### {framework}", "", *reasons(framework)]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
