"""Write the page from the lists of what does not pass: `python tests/conformance_page.py docs/conformance.md`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from conformance import SUITES, cases, excluded

FRAMEWORKS = {
    "reference": "numpy",
    "onnxruntime": "onnxruntime",
    "pytorch": "torch",
    "tensorflow": "tensorflow",
    "jax": "jax",
}
"""Each with the distribution that says its version."""
IMPORTERS = {
    "onnx2pytorch 0.6.0, experimental=True": ("pytorch", {"node": 1410, "converted": 79, "operator": 33, "simple": 15}),
    "onnx2torch 1.5.15": ("pytorch", {"node": 320, "converted": 54, "operator": 25, "simple": 6}),
    "onnx2tf 1.29.24": ("tensorflow", {"node": 861, "converted": 78, "operator": 35, "simple": 11}),
    "onnx-tf 1.10.0": ("tensorflow", {"node": 449, "converted": 77, "operator": 35, "simple": 14}),
    "jaxonnxruntime 0.3.0": ("jax", {"node": 318, "converted": 75}),
}
"""Other importers, as measured beside torch 2.13.0 and jax 0.10.2, on the framework that they are for.

TensorFlow's ask for older versions: they had models, inputs and expected outputs written by onnx 1.23.2, and read them
in an environment of their own, which `ENVIRONMENTS` says.
"""
ENVIRONMENTS = (
    "Blanks are not measured. The kernels of torchvision could not be loaded for those of PyTorch: at most 13 node",
    "tests, of NonMaxSuppression and RoiAlign, hang on them.",
    "",
    "Those for TensorFlow do not run beside these versions: each read the cases of onnx 1.23.2 in an environment of",
    "its own. onnx2tf had onnx 1.19.1 and tensorflow 2.19.0, the exact versions that it asks for. It changes the order",
    "of axes: a case counts where it passes with inputs in ONNX's order or with channels last, the model simplified",
    "or not, each output in either order, within 60 seconds. onnx-tf had onnx 1.18.0 and tensorflow 2.14.1, old enough",
    "for its tensorflow-addons, and inputs whose names begin with a letter. Of the node tests 565 are in a version of",
    "ONNX's IR that this onnx does not read; at 847, onnx-tf says that it does not have the operator's version.",
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
    """Other importers beside deep5."""
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


def reasons(framework: str, most: int = 12) -> list[str]:
    """Why cases do not pass, the commonest reasons first."""
    found = Counter(
        re.sub(r"^.*cannot run this network: ", "", re.sub(r"'[^']*'", "…", each.reason)).split(": ", 1)[-1][:110]
        for names in excluded(framework).values()
        for each in names.values()
    )
    listed = [f"- {count}: {reason}" for reason, count in found.most_common(most)]
    rest = sum(found.values()) - sum(count for _, count in found.most_common(most))
    return [*listed, *([f"- {rest}: others"] if rest else [])]


def page() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("onnx", *FRAMEWORKS.values()))
    parts = [
        "# ONNX conformance, counted",
        "",
        "How many cases of ONNX's own back-end suite (`onnx.backend.test`) pass through `Network.from_onnx` and an",
        f"executor, with ONNX's inputs, expected outputs and tolerances. {versions}.",
        "",
        *table(),
        "",
        "What does not pass is refused by name, before anything runs, unless its list says otherwise: the lists, a",
        "case a line with its reason, are `tests/conformance/FRAMEWORK.toml`. `tests/test_conformance.py` runs every",
        "case, daily one in six; a case that passes and is still on its list fails the test, as one does that no",
        "longer passes.",
        "",
        "```sh",
        "python tests/conformance.py pytorch -k resize         # cases by name",
        "python tests/conformance.py pytorch --write           # all suites, and the list anew",
        "python tests/conformance_page.py docs/conformance.md  # this page",
        "```",
        "",
        "## Beside other importers",
        "",
        "The newest versions on PyPI that run beside these versions, by the same cases and comparison:",
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
