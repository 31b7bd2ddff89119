"""`Recipe`: FIXED + MUTABLE + METRICS, read from a file or from Python, validated and hashed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from deep5.core.canonical import canonical, canonical_hash, check_nesting, copied
from deep5.core.errors import Deep5Error, RecipeError, UsageError, brief, suggestion
from deep5.core.files import exists, is_file, is_folder
from deep5.core.metric import Goal, Metric
from deep5.core.plugins import framework, registered
from deep5.recipe.content import Content, content_of
from deep5.recipe.file import read_recipe_file
from deep5.recipe.key_checks import check_keys, check_parts
from deep5.recipe.keys import Kind, kind_of
from deep5.recipe.lines import RecipeLines
from deep5.recipe.metrics import read_metrics
from deep5.recipe.of_model import METRICS, InPlace, changed_around, in_place_of, names_model, parts_around
from deep5.recipe.own_network import is_own_network
from deep5.recipe.part import Part, part_of
from deep5.recipe.registered import family_of, recipe_names, registered_recipe
from deep5.recipe.settings import changed_by_settings, changed_by_size, changes_the_goal
from deep5.recipe.variants import candidates_of, sizes_of

__all__ = ["FULL", "HASH_VERSION", "Recipe", "load_recipe"]

FULL = "full"
"""The default size of a recipe, without `--size`."""

HASH_VERSION = 2
"""The version of the rule for hashes of recipes with the user's code; for others it gives what version 1 does."""


# Components without effects that need nothing from the run.
_CREATED = ("optimizer", "gradient_modifier", "compression", "schedules", "train_transforms", "test_transforms")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A benchmark run, as declared.

    Attributes:
        name: Name of the recipe; the stem of its file.
        fixed: Parts that must not change.
        mutable: Parts that may change.
        metrics: Pairs of metric and goal; None: reported, without a goal.
        sizes: Changes by name of size.
        size: The selected size.
        published: Whether the fixed part and the metrics are as the recipe states them ("closed").
        settings: By key that was set from outside, its settings as `--set KEY=VALUE`.
        path: The recipe's file, or None.
        source: Its content, or None.
        lines: Positions of its parts in the file.
        in_place: The model that was given in place of a recipe, for which this one is made, or None.
        study: By candidate of a study, its settings; None without a STUDY.
    """

    name: str
    fixed: Mapping[str, Any]
    mutable: Mapping[str, Any]
    metrics: tuple[tuple[Metric, Goal | None], ...]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: str = FULL
    published: bool = True
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    path: Path | None = None
    source: bytes | None = None
    lines: RecipeLines = field(default=RecipeLines(None, None), repr=False, compare=False)
    in_place: InPlace | None = None
    study: Mapping[str, Mapping[str, Any]] | None = None

    @classmethod
    def make(
        cls,
        fixed: Mapping[str, Any],
        mutable: Mapping[str, Any],
        metrics: Sequence[tuple[Any, Any]],
        *,
        name: str = "recipe",
        sizes: Mapping[str, Mapping[str, Any]] | None = None,
        path: Path | None = None,
        source: bytes | None = None,
    ) -> Recipe:
        """Validate the three parts; the caller's dicts and lists are copied, never changed.

        Raises:
            RecipeError: Overlapping, unknown, or missing keys, wrong types, malformed goals; the message gives the
                position.
        """
        lines = RecipeLines(path, source)
        for part, what in ((fixed, "FIXED"), (mutable, "MUTABLE"), (metrics, "METRICS"), (sizes, "SIZES")):
            check_nesting(part, f"{lines.at(what)}{what}")
        for part, what in ((fixed, "FIXED"), (mutable, "MUTABLE")):
            if not isinstance(part, Mapping) or not all(isinstance(key, str) for key in part):
                raise RecipeError(f"{lines.at(what)}{what} is {part!r}; allowed: a dict with strings as keys")
        for key in fixed:
            if key in mutable:
                raise RecipeError(
                    f"{lines.at('MUTABLE', key)}{key!r} is in both FIXED and MUTABLE; allowed: one of them"
                )
        recipe = cls(
            name=name,
            fixed=copied(fixed),
            mutable=copied(mutable),
            metrics=(),
            sizes=sizes_of(sizes, lines, FULL),
            path=path,
            source=source,
            lines=lines,
        )._checked()
        recipe = replace(recipe, metrics=read_metrics(metrics, lines, "METRICS"))
        for size in recipe.sizes:
            recipe.at_size(size)
        return recipe

    @cached_property
    def kind(self) -> Kind:
        """The kind of the recipe, with its allowed keys."""
        return kind_of(self.fixed, self.mutable)

    @property
    def ranks(self) -> int | None:
        """The requested number of ranks; None: the recipe runs without ranks, as one process."""
        ranks: int | None = self.value("ranks") if "ranks" in self.kind.keys else None
        return ranks

    @property
    def division(self) -> str:
        """Either "closed", which allows comparing two results with the same hash, or "open".

        Keys that determine the measurement and are in MUTABLE, in the recipe or by a setting, are not in the hash.
        """
        return "closed" if self.published and not self.kind.measured & self.mutable.keys() else "open"

    def value(self, key: str) -> Any:
        """The value of a key, or its default; dicts and lists are fresh copies."""
        for part in (self.fixed, self.mutable):
            if key in part:
                return copied(part[key])
        if key.endswith("_args"):
            return ()
        if key.endswith("_kwargs"):
            return {}
        return self.kind.keys[key].default

    def _checked(self) -> Recipe:
        check_parts(self.fixed, self.mutable, self.where)
        return self

    def where(self, key: str) -> str:
        """File and line of a key or of METRICS, ending in ': '; empty without a file and for settings."""
        if key in self.settings:
            return ""
        if key in self.sizes.get(self.size, ()):
            return self.lines.at("SIZES", self.size, key)
        part = "FIXED" if key in self.fixed else "MUTABLE"
        return self.lines.at(part, key) if key in self.fixed or key in self.mutable else self.lines.at(key)

    def fixed_hash(self, version: int = HASH_VERSION) -> str:
        """SHA-256 of FIXED: of its canonical form, and of the user's code, files and network in it, if any.

        Args:
            version: 1: by the rule of earlier versions of deep5, without the content; equal if there is none.

        Raises:
            RecipeError: FIXED holds a value without a canonical form, or its network cannot be created.
        """
        if version == 1:
            return str(self.by_first_rule()["hash"])
        fixed = self._canonical(self.fixed, strict=True)
        # Text that the first version of the rule cannot give.
        return canonical_hash(fixed if self.content is None else {"content": self.content, "fixed": fixed})

    @property
    def content(self) -> dict[str, Any] | None:
        """Hashes of the user's code, files and network in FIXED, as in `deep5.recipe.content.Content`."""
        return None if self.own_content is None else self.own_content.document

    @cached_property
    def own_content(self) -> Content | None:
        """The user's code, files and network in FIXED; None if it has only named parts and values."""
        parts = [self._part(key) for key in ("model", *_CREATED) if self._determines(key)]
        model = next((part for part in parts if part.key == "model"), None)
        if model is not None and is_own_network(model.value):
            self._set_threads()
        others = [part for part in parts if part is not model]
        return content_of(self.fixed, path=self.path, source=self.source, model=model, others=others)

    def _set_threads(self) -> None:
        """Set the threads of the framework before the user's code starts it: TensorFlow cannot change them later."""
        name, threads = self.value("framework"), self.value("threads")
        if isinstance(name, str) and ".py:" not in name and threads is not None:
            with suppress(Deep5Error):  # reported where the executor is made
                framework(name).set_threads(threads)

    def _determines(self, key: str) -> bool:
        """Whether the fixed part determines a component of training completely."""
        arguments = {f"{key}_args", f"{key}_kwargs"}
        return key in self.fixed and not arguments & self.mutable.keys()

    def _part(self, key: str) -> Part:
        about, folder = self.kind.keys[key], self.folder_of(key)
        return part_of(key, about, self.fixed, where=self.where, settings=self.settings, file=self.path, folder=folder)

    def source_hash(self) -> str | None:
        """SHA-256 of the content of the recipe's file, or of the model's in its place; None without a file."""
        if self.in_place is not None:
            return self.in_place.sha256
        return None if self.source is None else hashlib.sha256(self.source).hexdigest()

    def stored_source(self) -> bytes | None:
        """What a result stores of the file that `source_hash` identifies; None without a file.

        Raises:
            RecipeError: The file of a model changed since the start.
        """
        return self.source if self.in_place is None else self.in_place.read()

    def describe(self) -> dict[str, Any]:
        """FIXED, MUTABLE and METRICS in JSON types.

        Raises:
            RecipeError: FIXED holds a value without a canonical form.
        """
        return {
            "fixed": self._canonical(self.fixed, strict=True),
            "mutable": self._canonical(self.mutable, strict=False),
            "metrics": [
                {**canonical(metric.describe(), "METRICS", strict=False), "goal": None if goal is None else str(goal)}
                for metric, goal in self.metrics
            ],
        }

    def document(self) -> dict[str, Any]:
        """The description of the recipe in a result; raises as `describe`."""
        return {
            "name": self.name,
            "hash": self.fixed_hash(),
            "hash_version": 1 if self.content is None else HASH_VERSION,
            "content": self.content,
            **self.describe(),
            "size": self.size,
            "division": self.division,
        }

    def by_first_rule(self) -> dict[str, Any]:
        """The parts of `document` that differ by the first rule for hashes; raises as `describe`."""
        fixed = self._canonical(self.fixed, strict=True, by_text=True)
        return {"hash": canonical_hash(fixed), "fixed": fixed, "content": None}

    def _canonical(self, part: Mapping[str, Any], *, strict: bool, by_text: bool = False) -> dict[str, Any]:
        found = {}
        for key, value in part.items():
            try:
                found[key] = canonical(value, key, strict=strict, beside=self.folder_of(key), by_text=by_text)
            except RecipeError as error:
                raise RecipeError(f"{self.where(key)}{error}") from error
        return found

    def folder_of(self, key: str) -> Path | None:
        """Folder of a relative `FILE.py:NAME` under a key: the recipe's; None: the working directory."""
        return self.path.parent if self.path is not None and key not in self.settings else None

    def at_size(self, size: str) -> Recipe:
        """This recipe at another of its sizes.

        Raises:
            UsageError: It has no such size.
        """
        if size == FULL:
            return self
        if size not in self.sizes:
            names = [FULL, *self.sizes]
            raise UsageError(
                f"the recipe {self.name!r} has no size {size!r}; allowed: {', '.join(names)}{suggestion(size, names)}"
            )
        changes = dict(self.sizes[size])

        def where(key: str) -> str:
            return self.lines.at("SIZES", size, key)

        parts = {**self.fixed, **self.mutable}
        check_keys(changes, f"the size {size!r}", self.kind.keys, parts, where, ("metrics",))
        # Goals apply to the full size; at another size, metrics are only reported unless that size states its own
        # goals.
        metrics: tuple[tuple[Metric, Goal | None], ...] = tuple((metric, None) for metric, _ in self.metrics)
        if "metrics" in changes:
            metrics = read_metrics(changes.pop("metrics"), self.lines, "SIZES", size, "metrics")
        fixed, mutable = changed_by_size(self.fixed, self.mutable, changes)
        return replace(self, fixed=fixed, mutable=mutable, metrics=metrics, size=size, published=False)._checked()

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """This recipe with new values of mutable parts; of a recipe made for a model, also of the model's arguments.

        Args:
            settings: New values by key, in any order; `optimizer_kwargs.lr` sets one entry of a `_kwargs`.

        Raises:
            UsageError: A fixed part, an unknown key, or an invalid value.
        """
        for key, value in settings.items():
            check_nesting(value, f"the setting {key!r}")
        if self.in_place is None:
            fixed, mutable = self.fixed, changed_by_settings(self.name, self.fixed, self.mutable, settings)
        else:
            before = {key: self.mutable[key] for key in self.settings if key in self.mutable}
            fixed, mutable = changed_around(self.name, self.fixed, self.mutable, before, settings, self.where)
        names = {key.partition(".")[0] for key in settings}
        written = dict(self.settings)
        for key, value in settings.items():
            name, option = key.partition(".")[0], f"--set {key}="
            earlier = [text for text in written.get(name, ()) if not text.startswith(option)]
            written[name] = (*earlier, option + (f"{value:.60}" if isinstance(value, str) else brief(value)))
        published = self.published and not changes_the_goal(self.mutable, names)
        changed = replace(self, fixed=fixed, mutable=mutable, settings=written, published=published)
        changed._checked()
        if "own_content" in vars(self) and not {"model_args", "model_kwargs"} & names:
            vars(changed)["own_content"] = self.own_content  # the same fixed part
        return changed


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: A registered name, the path of a Python file, or a model, for which a recipe is made:
            `FILE.py:NAME` or the path of an ONNX file.

    Raises:
        RecipeError: No such recipe, or a file that cannot be read, raises, or is not a valid recipe.
    """
    text = str(name_or_path)
    if names_model(text):
        name, fixed, mutable = parts_around(text)
        return replace(Recipe.make(fixed, mutable, METRICS, name=name), in_place=in_place_of(text))
    found = registered_recipe(text)
    path = Path(text) if found is None else found.path()
    if found is None and not is_file(path):
        raise RecipeError(_not_there(path, text))
    scope, source = read_recipe_file(path, None if found is None else found.source())
    made = Recipe.make(
        scope["FIXED"],
        scope["MUTABLE"],
        scope["METRICS"],
        name=path.stem if found is None else text,
        sizes=scope.get("SIZES"),
        path=path,
        source=source,
    )
    if (study := scope.get("STUDY")) is None:
        return made
    return replace(made, study=candidates_of(study, made.lines, made.with_settings))


def _not_there(path: Path, text: str) -> str:
    names, points = recipe_names(), registered("recipes")
    short = [name for name in names if name in points and not name.startswith("distributed_")]
    allowed = f"allowed: {', '.join(short)}, more by 'deep5 list recipes', or the path of a Python file"
    if text in points:
        cases = [f"{text}_{case}" for case in family_of(points[text]).cases]
        return f"{text!r} is a family of {len(cases)} recipes; allowed: one of them, such as {', '.join(cases[:3])}"
    if text and is_folder(path):
        inside = sorted(str(file) for file in path.glob("*.py") if not file.name.startswith("_"))
        more = f", … ({len(inside)} in all)" if len(inside) > 3 else ""
        remedy = f"; remedy: name a file in it, such as {', '.join(inside[:3])}{more}" if inside else ""
        return f"the recipe {text} is a folder; {allowed}{remedy}"
    if text and (path.suffix == ".py" or len(path.parts) > 1 or exists(path)):
        beside = [str(file) for file in path.parent.glob("*.py")]
        wrong = "is not a file" if exists(path) else "is not there"
        return f"the recipe file {text} {wrong}; {allowed}{suggestion(text, beside)}"
    return f"unknown recipe {text!r}; {allowed}{suggestion(text, names)}"
