"""Pictures of deep5's packages: the imports between them, and the way of a recipe to a verdict."""

from __future__ import annotations

import html
import tomllib
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

__all__ = ["draw"]

ROOT = Path(__file__).parents[2]
# The steps of two commands: package, module that a reader begins with, and what leaves it.
WAYS = {
    "deep5 run": (
        ("recipe", "recipe", "as written"),
        ("recipe", "experiment", "objects, hashes"),
        ("run", "workload", "a kind of run"),
        ("training", "trainer", "steps, events"),
        ("core", "metric", "raw samples"),
        ("results", "folder", "a folder"),
        ("results", "result", "a verdict"),
    ),
    "deep5 compare": (
        ("recipe", "recipe", "as written"),
        ("compare", "plan", "candidates"),
        ("compare", "proof", "a proof"),
        ("compare", "processes", "raw samples"),
        ("compare", "record", "a folder"),
        ("measuring", "statistics", "a verdict"),
        ("audit", "folders", "findings"),
    ),
}

COLORS = {"recipe": "a", "run": "b", "training": "b", "compare": "b", "results": "c", "measuring": "c"}
"""Classes of `site_files/site.css`: what is written, what runs, what is stored and derived."""


def draw(subject: str) -> str:
    """The SVG of `layers` or of `verdict`."""
    return {"layers": _layers, "verdict": _verdict}[subject]()


@lru_cache(maxsize=1)
def _graph() -> Any:
    """The imports of the package as it is staged, imports within functions and for types included."""
    import sys

    import grimp

    sys.path.insert(0, str(ROOT / ".staging"))
    try:
        return grimp.build_graph("deep5", exclude_type_checking_imports=False, cache_dir=None)
    finally:
        sys.path.remove(str(ROOT / ".staging"))


def _package(module: str) -> str:
    """The package of deep5 that has a module."""
    return module.split(".")[1] if "." in module else ""


def layers() -> list[list[str]]:
    """The packages from the outermost to the core, as the contract in pyproject.toml orders them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (listed,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [[name.strip() for name in layer.replace(":", "|").split("|")] for layer in listed]
    return [[name for name in layer if "(" not in name] for layer in names]


def imports() -> Counter[tuple[str, str]]:
    """Number of imports between modules, by the packages of importer and imported."""
    graph, counts = _graph(), Counter[tuple[str, str]]()
    for module in graph.modules:
        for other in graph.find_modules_directly_imported_by(module):
            pair = _package(module), _package(other)
            if all(pair) and pair[0] != pair[1]:
                counts[pair] += 1
    return counts


def _svg(label: str, height: int, parts: list[str]) -> str:
    label = html.escape(label, quote=True)
    size = f'viewBox="0 0 640 {height}" width="640" height="{height}"'
    return "\n".join([f'<svg class="diagram" {size} role="img" aria-label="{label}">', *parts, "</svg>"])


def _layers() -> str:
    """A row for each package; its cells count the imports from the packages of the columns."""
    counts, order = imports(), layers()
    sizes = Counter(map(_package, _graph().modules))
    names = [name for layer in order for name in layer]
    left, top, cell = 148, 84, 24
    place = {name: number for number, name in enumerate(names)}
    parts = []
    for name, number in place.items():
        across, down = left + cell * number, top + cell * number
        parts.append(f'<text x="{left - 44}" y="{down + 16}" text-anchor="end">{name}</text>')
        parts.append(f'<text class="small" x="{left - 8}" y="{down + 16}" text-anchor="end">{sizes[name]}</text>')
        parts.append(f'<text transform="translate({across + 16} {top - 6}) rotate(-60)">{name}</text>')
        parts.append(f'<rect class="cell d" opacity="0.35" x="{across}" y="{down}" width="{cell}" height="{cell}"/>')
    most = max(counts.values())
    for (one, other), count in sorted(counts.items()):
        if one not in place or other not in place:
            continue
        across, down = left + cell * place[other], top + cell * place[one]
        shade = 0.12 + 0.4 * (count / most) ** 0.5
        color = "a" if place[other] > place[one] else "b"
        parts.append(
            f'<rect class="cell {color}" opacity="{shade:.2f}" x="{across}" y="{down}" width="{cell}" height="{cell}"/>'
        )
        parts.append(f'<text class="number" x="{across + 12}" y="{down + 16}" text-anchor="middle">{count}</text>')
    end, begin = cell * len(names), 0
    for layer in [*order, []]:
        down = top + cell * begin
        parts.append(f'<path class="grid" d="M8 {down}H{left + end}M{left + cell * begin} {top}V{top + end}"/>')
        begin += len(layer)
    parts.append(f'<text class="small" x="{left - 8}" y="{top - 6}" text-anchor="end">modules</text>')
    label = "Imports between the packages of deep5: each package imports only packages of lower layers."
    return _svg(label, top + end + 8, parts)


def _verdict() -> str:
    """A row for each command: the modules that its data pass."""
    parts, wide, high, gap = [], 82, 48, 10
    for row, (command, steps) in enumerate(WAYS.items()):
        top = 26 + row * 122
        parts.append(f'<text x="0" y="{top - 10}" font-weight="bold">{html.escape(command)}</text>')
        for number, (package, module, leaves) in enumerate(steps):
            if f"deep5.{package}.{module}" not in _graph().modules:
                raise PluginError(
                    f"the picture of a recipe's way names deep5.{package}.{module}; allowed: modules that exist"
                )
            left = number * (wide + gap)
            color = COLORS.get(package, "d")
            parts.append(f'<rect class="box {color}" x="{left}" y="{top}" width="{wide}" height="{high}" rx="4"/>')
            middle = left + wide / 2
            parts.append(f'<text x="{middle}" y="{top + 20}" text-anchor="middle">{package}</text>')
            parts.append(f'<text class="small" x="{middle}" y="{top + 36}" text-anchor="middle">{module}.py</text>')
            parts.append(f'<text class="small" x="{middle}" y="{top + high + 16}" text-anchor="middle">{leaves}</text>')
            if number:
                parts.append(f'<path class="head" d="M{left - gap + 1} {top + 19}l8 5l-8 5z"/>')
    label = "The modules that a recipe passes on its way to a verdict, for deep5 run and for deep5 compare."
    return _svg(label, 250, parts)
