"""The API reference: one page for each group of public names, which mkdocstrings fills from their docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
from itertools import pairwise
from typing import Any

from mkdocs.exceptions import PluginError

import deep5

log = logging.getLogger("mkdocs.api_pages")

# Page, title, and the modules whose public names it has; the first page with a module that fits has the name.
PAGES = {
    "recipes": ("Recipes, runs and results", ("recipe", "run", "compare", "recorder", "results", "core.metric")),
    "backends": (
        "Back-ends and executors",
        (
            "core.framework",
            "core.executors",
            "core.plugins",
            "networks.check",
            "training.engine_framework",
            "training.gradient_executor",
            "training.derived_executor",
            "training.onnx_engine",
            "training.operator_executor",
        ),
    ),
    "operators": ("Level 0: operators", ("operators", "core.operator", "networks.onnx_operator")),
    "networks": ("Level 1: networks", ("networks",)),
    "optimizers": (
        "Level 2: optimizers",
        (
            "training.rules",
            "training.rule",
            "training.kernel",
            "training.lbfgs",
            "training.sag",
            "training.optimizer",
            "training.pipeline",
            "training.check",
        ),
    ),
    "schedules": ("Level 2: schedules", ("training.schedules", "training.batch_sizes")),
    "datasets": (
        "Level 2: data sets, samplers, transforms",
        (
            "training.datasets",
            "training.dataset",
            "training.generated",
            "training.sequences",
            "training.loaders",
            "training.sampler",
            "training.bucket_sampler",
            "training.weighted_sampler",
            "training.stream_sampler",
            "training.transforms",
            "training.batch_source",
            "training.prefetch",
        ),
    ),
    "training": ("Level 2: training", ("training",)),
    "generation": ("Level 2: generation", ("generation",)),
    "distributed": ("Level 3: distributed training", ("distributed", "core.communicator")),
    "metrics": ("Metrics", ("metrics",)),
    "core": ("Tensors, events, errors", ("core",)),
}
# Modules that are names of deep5: their own public names are part of the reference.
MODULES = ("networks", "datasets", "results")


def public_names() -> dict[str, Any]:
    """Every public name, `deep5.Adam` or `deep5.networks.lenet`, with its object."""
    found = {f"deep5.{name}": getattr(deep5, name) for name in dir(deep5) if not name.startswith("_")}
    for module in MODULES:
        part = found[f"deep5.{module}"]
        known = {id(value) for value in found.values()}
        names = {f"deep5.{module}.{name}": getattr(part, name) for name in part.__all__}
        found |= {name: value for name, value in names.items() if id(value) not in known}
    return found


def _module(name: str, value: Any) -> str:
    """The module that defines a public name, without `deep5.`."""
    if inspect.ismodule(value):
        return value.__name__.removeprefix("deep5.")
    if name == "deep5.Transformation":
        return "networks"
    return str(value.__module__).removeprefix("deep5.")


def page_of(name: str, value: Any) -> str:
    """The page of a public name: the longest of the listed modules that contains it."""
    module = _module(name, value)
    fits = [
        (len(listed), page)
        for page, (_, modules) in PAGES.items()
        for listed in modules
        if module == listed or module.startswith(f"{listed}.")
    ]
    if not fits:
        raise PluginError(f"no page of the API reference has the module of {name}, {module}; remedy: api_pages.PAGES")
    return max(fits)[1]


def without_example() -> list[str]:
    """Public names whose docstring has no doctest."""
    return [name for name, value in public_names().items() if ">>>" not in docstring(name, value)]


def docstring(name: str, value: Any) -> str:
    """The docstring of a public name, and not one that it inherits; of an alias the string below its definition."""
    if inspect.isclass(value):
        return vars(value).get("__doc__") or ""
    if inspect.ismodule(value) or inspect.isfunction(value):
        return value.__doc__ or ""
    module = importlib.import_module(f"deep5.{deep5._HOME[name.removeprefix('deep5.')]}")
    body = ast.parse(inspect.getsource(module)).body
    for defined, below in pairwise(body):
        names = [each.id for each in getattr(defined, "targets", []) if isinstance(each, ast.Name)]
        if name.rpartition(".")[2] in names and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return str(below.value.value)
    return ""


def pages() -> dict[str, str]:
    """Path and Markdown of each page of the API reference.

    A public name without an example is a warning, which fails a strict build.

    Raises:
        PluginError: No page has the module of a public name.
    """
    for name in without_example():
        log.warning("%s has no example in its docstring; remedy: end the docstring with a doctest", name)
    listed: dict[str, list[str]] = {page: [] for page in PAGES}
    for name, value in public_names().items():
        listed[page_of(name, value)].append(name)
    return {
        f"reference/api/{page}.md": "\n\n".join([f"# {title}", *(f"::: {name}" for name in listed[page])]) + "\n"
        for page, (title, _) in PAGES.items()
    }
