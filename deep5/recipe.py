"""`Recipe`: FIXED + MUTABLE + METRICS, read from a file or from Python, validated and hashed."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from deep5.canonical import canonical, canonical_hash
from deep5.errors import Deep5Error, RecipeError, UsageError, suggestion
from deep5.metric import Goal, Metric, parse_goal
from deep5.plugins import KINDS, load, registered

__all__ = ["FULL", "Recipe", "load_recipe", "parse_setting"]

FULL = "full"
"""The size that a recipe has without `--size`."""

# Key: (kind of component it names, or None for a plain value; default, or ... where there is none).
_TRAINING: dict[str, tuple[str | None, Any]] = {
    "model": ("networks", ...),
    "dataset": ("datasets", ...),
    "train_sampler": ("samplers", "shuffle"),
    "validation_sampler": ("samplers", "ordered"),
    "epochs": (None, ...),
    "batch_size": (None, ...),
    "framework": ("frameworks", None),
    "executor": ("frameworks", None),
    "device": (None, "cpu"),
    "optimizer": ("optimizers", ...),
    "events": ("events", ()),
    "seed": (None, 0),
}
_TIMING: dict[str, tuple[str | None, Any]] = {
    "candidate": ("candidates", ...),
    "baseline": ("candidates", ...),
    "rounds": (None, 60),
    "steps": (None, 20),
    "threads": (None, 1),
    "seed": (None, 0),
}
_PLAIN = {"epochs", "batch_size", "seed", "rounds", "steps", "threads"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A benchmark run, as declared.

    Attributes:
        name: Of the recipe; the stem of its file.
        fixed: What must not change.
        mutable: What may.
        metrics: Pairs of metric and goal; None: reported, not judged.
        sizes: Changes by name of size.
        size: The size in force.
        published: Whether fixed part and metrics are as the recipe states them ("closed").
        path: The recipe's file, or None.
        source: Its text, or None.
    """

    name: str
    fixed: Mapping[str, Any]
    mutable: Mapping[str, Any]
    metrics: tuple[tuple[Metric, Goal | None], ...]
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    size: str = FULL
    published: bool = True
    path: Path | None = None
    source: str | None = None

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
        source: str | None = None,
    ) -> Recipe:
        """Validate the three parts; the caller's objects are copied, never changed.

        Raises:
            RecipeError: Overlapping, unknown or missing keys, wrong types, malformed goals; the message says where.
        """
        lines = _Lines(path, source)
        for part, what in ((fixed, "FIXED"), (mutable, "MUTABLE")):
            if not isinstance(part, Mapping) or not all(isinstance(key, str) for key in part):
                raise RecipeError(f"{lines.at(what)}{what} is {type(part).__name__}; allowed: a dict with strings as keys")
        for key in fixed:
            if key in mutable:
                raise RecipeError(
                    f"{lines.at('MUTABLE', key)}{key!r} stands in FIXED and in MUTABLE; allowed: one of them"
                )
        recipe = cls(
            name=name,
            fixed=dict(fixed),
            mutable=dict(mutable),
            metrics=_metrics(metrics, lines),
            sizes=_sizes(sizes or {}, lines),
            path=path,
            source=source,
        )
        recipe._check_keys(lines)
        for size in recipe.sizes:
            recipe.at_size(size)
        return recipe

    @property
    def timing(self) -> bool:
        """Whether the recipe times two candidates against each other instead of training a network."""
        return "candidate" in self.fixed or "candidate" in self.mutable

    @property
    def _keys(self) -> dict[str, tuple[str | None, Any]]:
        return _TIMING if self.timing else _TRAINING

    def value(self, key: str) -> Any:
        """What a key holds, or its default."""
        if key in self.fixed:
            return self.fixed[key]
        if key in self.mutable:
            return self.mutable[key]
        if key.endswith("_args"):
            return ()
        if key.endswith("_kwargs"):
            return {}
        return self._keys[key][1]

    def where(self, key: str) -> str:
        """File and line of a key, ending in ': ', or an empty string where the recipe has no file."""
        lines = _Lines(self.path, self.source)
        return lines.at("FIXED" if key in self.fixed else "MUTABLE", key)

    def fixed_hash(self) -> str:
        """SHA-256 of the canonical form of FIXED."""
        return canonical_hash({key: canonical(value, key) for key, value in self.fixed.items()})

    def source_hash(self) -> str | None:
        """SHA-256 of the file's text, or None without a file."""
        import hashlib

        return None if self.source is None else hashlib.sha256(self.source.encode()).hexdigest()

    def describe(self) -> dict[str, Any]:
        """FIXED, MUTABLE and METRICS in JSON's types."""
        return {
            "fixed": {key: canonical(value, key) for key, value in self.fixed.items()},
            "mutable": {key: canonical(value, key) for key, value in self.mutable.items()},
            "metrics": [{**metric.describe(), "goal": None if goal is None else str(goal)} for metric, goal in self.metrics],
        }

    def at_size(self, size: str) -> Recipe:
        """This recipe at another of its sizes.

        Raises:
            UsageError: It has no such size.
        """
        if size == FULL:
            return self
        if size not in self.sizes:
            raise UsageError(
                f"the recipe {self.name!r} has no size {size!r}; allowed: {', '.join([FULL, *self.sizes])}"
                f"{suggestion(size, [FULL, *self.sizes])}"
            )
        lines = _Lines(self.path, self.source)
        changes = dict(self.sizes[size])
        # A goal is for the full size; at another it is reported, unless that size states its own.
        metrics = tuple((metric, None) for metric, _ in self.metrics)
        if "metrics" in changes:
            metrics = _metrics(changes.pop("metrics"), lines)
        fixed, mutable = dict(self.fixed), dict(self.mutable)
        for key, value in changes.items():
            (fixed if key in fixed else mutable)[key] = value
        changed = replace(self, fixed=fixed, mutable=mutable, metrics=metrics, size=size, published=False)
        changed._check_keys(lines)
        return changed

    def with_settings(self, settings: Mapping[str, Any]) -> Recipe:
        """This recipe with mutable parts set anew.

        Args:
            settings: New values by key; `optimizer_kwargs.lr` sets one entry of a `_kwargs`.

        Raises:
            UsageError: A fixed part, or an unknown key.
        """
        mutable = dict(self.mutable)
        for key, value in settings.items():
            name, dot, entry = key.partition(".")
            base = _base(name)
            if name in self.fixed or (base in self.fixed and base == name):
                raise UsageError(
                    f"{name!r} is fixed by the recipe {self.name!r}; allowed to change: "
                    f"{', '.join(sorted(self._settable()))}{self._open_remedy()}"
                )
            if base not in self._keys or (dot and not name.endswith("_kwargs")):
                allowed = sorted(self._settable())
                raise UsageError(f"unknown key {key!r}; allowed: {', '.join(allowed)}{suggestion(key, allowed)}")
            if dot:
                mutable[name] = {**dict(self._mutable_value(mutable, name)), entry: value}
                continue
            if name == base and self._keys[base][0] is not None:
                # Arguments were for the component that stood there before.
                for suffix in ("_args", "_kwargs"):
                    if f"{base}{suffix}" not in settings:
                        mutable.pop(f"{base}{suffix}", None)
                other = {"framework": "executor", "executor": "framework"}.get(base)
                if other:
                    for suffix in ("", "_args", "_kwargs"):
                        if f"{other}{suffix}" in self.fixed:
                            raise UsageError(
                                f"{other!r} is fixed by the recipe {self.name!r}; allowed to change: "
                                f"{', '.join(sorted(self._settable()))}"
                            )
                        dropped = mutable.pop(f"{other}{suffix}", None)
                        # The tutorial's recipes hand the device over with the executor.
                        if suffix == "_kwargs" and isinstance(dropped, Mapping) and "device" in dropped:
                            mutable.setdefault("device", dropped["device"])
            if name == "device" and isinstance(mutable.get("executor_kwargs"), Mapping):
                kwargs = mutable["executor_kwargs"]
                mutable["executor_kwargs"] = {entry: kwargs[entry] for entry in kwargs if entry != "device"}
            mutable[name] = value
        changed = replace(self, mutable=mutable)
        changed._check_keys(_Lines(None, None))
        return changed

    def _mutable_value(self, mutable: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = mutable.get(name, {})
        return value if isinstance(value, Mapping) else {}

    def _settable(self) -> set[str]:
        keys = {key for key in self._keys if key not in self.fixed}
        return keys | {key for key in self.mutable if key not in self.fixed}

    def _open_remedy(self) -> str:
        return "; remedy: copy the recipe and change the copy, which makes it another benchmark"

    def _check_keys(self, lines: _Lines) -> None:
        keys = self._keys
        allowed = [name for key, (kind, _) in keys.items() for name in ([key, f"{key}_args", f"{key}_kwargs"] if kind else [key])]
        for what, part in (("FIXED", self.fixed), ("MUTABLE", self.mutable)):
            for key, value in part.items():
                at = lines.at(what, key)
                if key not in allowed:
                    raise RecipeError(f"{at}unknown key {key!r} in {what}; allowed: {', '.join(keys)}, each component with "
                                      f"_args and _kwargs{suggestion(key, allowed)}")
                if key.endswith("_args") and not isinstance(value, (list, tuple)):
                    raise RecipeError(f"{at}{key!r} is {type(value).__name__}; allowed: a tuple or list of arguments")
                if key.endswith("_kwargs") and not isinstance(value, Mapping):
                    raise RecipeError(f"{at}{key!r} is {type(value).__name__}; allowed: a dict of keyword arguments")
        for key, (_, default) in keys.items():
            if default is ... and key not in self.fixed and key not in self.mutable:
                raise RecipeError(f"{lines.file()}the key {key!r} is missing; allowed: in FIXED or in MUTABLE")
        if not self.timing and (self.value("framework") is None) == (self.value("executor") is None):
            raise RecipeError(f"{lines.file()}the recipe needs one of 'framework' and 'executor'; got "
                              f"{'none' if self.value('framework') is None else 'both'}")
        for key in _PLAIN & keys.keys():
            value, least = self.value(key), 0 if key == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise RecipeError(f"{self.where(key)}{key!r} is {value!r}; allowed: a whole number of at least {least}")
        for key, (kind, _) in keys.items():
            if kind is not None:
                self._check_component(key, kind, self.value(key))
        if not self.timing:
            from deep5.tensors import device

            try:
                device(self.value("device"))
            except UsageError as error:
                raise RecipeError(f"{self.where('device')}{error}") from error

    def _check_component(self, key: str, kind: str, value: Any) -> None:
        """A name must be registered (nothing is loaded); an object must be callable or an instance."""
        if key == "events" and isinstance(value, (list, tuple)):
            for item in value:
                self._check_component(key, kind, item)
            return
        if value is None:
            if key not in ("framework", "executor"):
                raise RecipeError(f"{self.where(key)}{key!r} is None; allowed: the name of a component, or an object")
            return
        if isinstance(value, (bool, int, float, list, tuple, Mapping)):
            raise RecipeError(
                f"{self.where(key)}{key!r} is {type(value).__name__}; allowed: the name of a component, or an object"
            )
        if not isinstance(value, str) or ".py:" in value or kind not in KINDS:
            return
        name = value.removeprefix("native:") if key == "optimizer" else value
        names = registered(kind)
        if name not in names and not (key == "optimizer" and value != name):
            raise RecipeError(
                f"{self.where(key)}unknown {KINDS[kind]} {value!r}; {'allowed' if kind != 'frameworks' else 'registered'}: "
                f"{', '.join(names)}{suggestion(name, names)}"
            )


def _base(key: str) -> str:
    return key.removesuffix("_args").removesuffix("_kwargs")


def _metrics(metrics: Any, lines: _Lines) -> tuple[tuple[Metric, Goal | None], ...]:
    at = lines.at("METRICS")
    shape = "allowed: a list of pairs (metric, goal)"
    if not isinstance(metrics, (list, tuple)):
        raise RecipeError(f"{at}METRICS is {type(metrics).__name__}; {shape}")
    found: list[tuple[Metric, Goal | None]] = []
    for entry in metrics:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            raise RecipeError(f"{at}METRICS holds {entry!r}; {shape}")
        metric, goal = entry
        try:
            if isinstance(metric, str):
                metric = load("metrics", metric)
            if isinstance(metric, type) and issubclass(metric, Metric):
                metric = metric()
            if not isinstance(metric, Metric):
                raise RecipeError(f"METRICS holds {metric!r} as a metric; allowed: a metric's name, class or object")
            found.append((metric, parse_goal(metric, goal)))
        except TypeError as error:
            raise RecipeError(f"{at}the metric {entry[0]!r} cannot be made: {error}") from error
        except UsageError as error:
            raise RecipeError(f"{at}{error}") from error
    names = [metric.name for metric, _ in found]
    for metric, _ in found:
        same = [other for other, _ in found if other.name == metric.name]
        if len(same) > 1 and same.count(metric) > 1:
            raise RecipeError(f"{at}METRICS holds {metric!r} {names.count(metric.name)} times; allowed: once")
    return tuple(found)


def _sizes(sizes: Any, lines: _Lines) -> dict[str, Mapping[str, Any]]:
    if not isinstance(sizes, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Mapping) for key, value in sizes.items()
    ):
        raise RecipeError(f"{lines.at('SIZES')}SIZES is not a dict of dicts; allowed: {{'smoke': {{'epochs': 1}}}}")
    if FULL in sizes:
        raise RecipeError(f"{lines.at('SIZES')}SIZES names {FULL!r}, which is the recipe as it stands; allowed: other names")
    return {key: dict(value) for key, value in sizes.items()}


class _Lines:
    """Where keys stand in a recipe's file, for messages."""

    def __init__(self, path: Path | None, source: str | None) -> None:
        self._path = path
        self._lines: dict[tuple[str, str | None], int] = {}
        if source is None:
            return
        with contextlib.suppress(SyntaxError):
            for node in ast.parse(source).body:
                if not isinstance(node, ast.Assign):
                    continue
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self._lines[target.id, None] = node.lineno
                        if isinstance(node.value, ast.Dict):
                            for key in node.value.keys:
                                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                                    self._lines[target.id, key.value] = key.lineno

    def file(self) -> str:
        return f"{self._path}: " if self._path else ""

    def at(self, part: str, key: str | None = None) -> str:
        line = self._lines.get((part, key)) or self._lines.get((part, None))
        return f"{self._path}:{line}: " if self._path and line else self.file()


def load_recipe(name_or_path: str | Path) -> Recipe:
    """Read a recipe.

    Args:
        name_or_path: A registered name, or the path of a Python file.

    Raises:
        RecipeError: No such recipe; a file that cannot be read, raises, or is no valid recipe.
    """
    text = str(name_or_path)
    names = registered("recipes")
    if text in names:
        spec = importlib.util.find_spec(names[text].value)
        if spec is None or spec.origin is None:
            raise RecipeError(f"the recipe {text!r} is registered as {names[text].value!r}, which is not there")
        return _from_file(Path(spec.origin), text)
    path = Path(text)
    if not path.is_file():
        if path.suffix == ".py" or len(path.parts) > 1:
            raise RecipeError(f"the recipe file {text} is not there; allowed: an existing Python file, or one of "
                              f"{', '.join(names)}")
        raise RecipeError(f"unknown recipe {text!r}; allowed: {', '.join(names)}, or the path of a file"
                          f"{suggestion(text, names)}")
    return _from_file(path, path.stem)


def _from_file(path: Path, name: str) -> Recipe:
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"the recipe file {path} cannot be read ({error}); allowed: a Python file") from error
    scope: dict[str, Any] = {"__name__": f"deep5_recipe_{path.stem}", "__file__": str(path), "__doc__": None}
    try:
        code = compile(source, str(path), "exec")
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise RecipeError(f"{path}{line}: not valid Python: {error.args[0]}") from error
    try:
        with _beside(path), _as_module(scope):
            # A recipe is the user's own program; results never hold one that is executed again.
            exec(code, scope)  # noqa: S102
    except Deep5Error as error:
        raise _located(error, path) from error
    except Exception as error:
        raise RecipeError(f"{_at(error, path)}the recipe raised {type(error).__name__}: {error}") from error
    except SystemExit as error:
        raise RecipeError(f"{path}: the recipe called exit({error.code!r}) while it was read; remedy: put that under "
                          "if __name__ == \"__main__\"") from error
    missing = [part for part in ("FIXED", "MUTABLE", "METRICS") if part not in scope]
    if missing:
        raise RecipeError(f"{path}: the recipe has no {' and no '.join(missing)}; allowed: a file that defines FIXED, "
                          "MUTABLE and METRICS")
    return Recipe.make(
        scope["FIXED"],
        scope["MUTABLE"],
        scope["METRICS"],
        name=name,
        sizes=scope.get("SIZES"),
        path=path,
        source=source,
    )


@contextlib.contextmanager
def _as_module(scope: dict[str, Any]) -> Iterator[None]:
    """Classes defined in the recipe find their module, as `inspect` and data classes expect."""
    import types

    module = types.ModuleType(scope["__name__"])
    module.__dict__.update(scope)
    sys.modules[scope["__name__"]] = module
    try:
        yield
    finally:
        module.__dict__.update(scope)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[None]:
    """A recipe may import what lies beside it, as when Python runs it."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _at(error: BaseException, path: Path) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{frames[-1].lineno}: " if frames else f"{path}: "


def _located(error: Deep5Error, path: Path) -> Deep5Error:
    """The same error with file and line in front; the kind of a missing dependency is kept."""
    from deep5.errors import MissingDependency

    kind = MissingDependency if isinstance(error, MissingDependency) else RecipeError
    return kind(f"{_at(error, path)}{error}")


def parse_setting(text: str) -> tuple[str, Any]:
    """Read `KEY=VALUE`; the value is a Python literal, or else a string.

    Raises:
        UsageError: There is no '='.

    >>> parse_setting("batch_size=32"), parse_setting("optimizer=adam")
    (('batch_size', 32), ('optimizer', 'adam'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"cannot read the setting {text!r}; allowed: KEY=VALUE, such as batch_size=32")
    try:
        return key.strip(), ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return key.strip(), value
