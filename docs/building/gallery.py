"""The gallery: every recipe with its picture, its goals, its time on two cores, and its command."""

from __future__ import annotations

import re
from pathlib import Path

import stored_results
from deep5.cli.list import listing
from deep5.recipe.recipe import Recipe, load_recipe
from drawn_charts import inlined

ROOT = Path(__file__).parents[2]
SECTIONS = {
    "Training": ("digits", "cifar10", "imagenet", "large", "optimizer", "vision"),
    "Language and speech": ("text", "speech"),
    "Detection": ("detection",),
    "Recommendation and graphs": ("recommendation", "graph"),
    "Generation": ("generation",),
    "Agents": ("reinforcement",),
    "Serving": ("serving",),
    "Operators": ("deepbench", "matmul", "layer", "convolution", "recurrent"),
    "Data": ("data",),
    "Micro-batches": ("microbatching",),
    "Distributed training": ("distributed",),
}
"""Title of a section, and how the names of its recipes begin."""
# Figures by preference; a recipe shows the first that its result has.
FIRST = (
    "loading",
    "batches",
    "scaling",
    "communication_volume",
    "staleness",
    "accuracy",
    "return",
    "collective",
    "serving",
    "violin",
    "study",
    "operators",
    "times",
    "loss",
)


def _section(name: str) -> str:
    return next(title for title, starts in SECTIONS.items() if name.startswith(starts))


def _goals(recipe: Recipe) -> str:
    """Its metrics with a goal, or what it reports."""
    goals = [
        f"`{metric.name}` {goal}" + ("" if str(goal).endswith(metric.unit) else f" {metric.unit}")
        for metric, goal in recipe.metrics
        if goal is not None
    ]
    reported = [f"`{metric.name}`" for metric, goal in recipe.metrics if goal is None]
    return f"Goals: {', '.join(goals)}" if goals else f"Reports {', '.join(reported[:6])}"


def _entry(name: str, about: str) -> str:
    """One recipe."""
    stored = stored_results.GALLERY.get(name, f"recipes/{name}")
    record = stored_results.record_of(stored)
    folder = stored_results.STORED / stored
    drawn = {path.stem: path for path in folder.glob("*.svg")}
    chosen = next((drawn[stem] for stem in FIRST if stem in drawn), next(iter(sorted(drawn.values())), None))
    if chosen is None:
        raise stored_results.no_figure(stored)
    picture = inlined(chosen.read_text(encoding="utf-8"), f"{chosen.stem} of {record['command']}")
    seconds = record["seconds"]
    taken = f"{max(seconds, 1)} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    size = " at this size" if "--size" in record["command"] else ""
    runs = f", {record['runs']} runs" if record["runs"] > 1 else ""
    return "\n\n".join((
        f"### {name} {{ #{name} }}",
        f"{about}.",
        f'<div class="picture">{picture}</div>',
        f"{_goals(load_recipe(name))}. {taken} on two cores{size}{runs}, without the start of the program. "
        f"[Source]({_source(name)}).",
        f"```sh\n{record['command']}\n```",
        f"{stored_results.standing(record)}\n{{ .standing }}",
    ))  # fmt: skip


def _source(name: str) -> str:
    """Path of the file of a recipe on the site, relative to the gallery."""
    return f"recipes/{_file(name).name}.txt"


def _file(name: str) -> Path:
    """The file of a recipe in the repository; of a family the file with its cases."""
    from deep5.core.plugins import registered
    from deep5.recipe.registered import module_file

    points = registered("recipes")
    families = [each for each in points if name == each or name.startswith(f"{each}_")]
    point = points[max(families, key=len)]
    return Path(str(module_file(point)))


def pages() -> dict[str, str]:
    """The gallery, and the sources of the recipes by path on the site."""
    rows = listing("recipes")
    shown = {str(row["name"]): re.sub(r"\.$", "", str(row["about"])) for row in rows if not row["internal"]}
    sections: dict[str, list[str]] = {title: [] for title in SECTIONS}
    for name, about in shown.items():
        sections[_section(name)].append(_entry(name, about))
    measuring = sum(bool(row["internal"]) for row in rows)
    parts = [
        "# Gallery of recipes",
        "A recipe is one file that fixes what must not change, names what may change, and states goals. Each of these "
        "ships with deep5. Copy its command to run it; add `--size smoke` to try it in seconds, and `--set KEY=VALUE` "
        f"to change what may change. {measuring} more recipes measure deep5 itself: [what deep5 costs]"
        "(../results/overhead.md).",
        *(part for title, entries in sections.items() for part in (f"## {title}", *entries)),
    ]
    sources = {f"start/recipes/{_file(name).name}.txt": _file(name).read_text(encoding="utf-8") for name in shown}
    return {"start/gallery.md": "\n\n".join(parts) + "\n", **sources}
