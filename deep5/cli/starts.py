"""Writes the start of a component, with a test, into a folder of the user's: the implementation of `deep5 new`."""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from deep5.core.errors import OutputError, UnknownName, UsageError
from deep5.core.plugins import registered

__all__ = ["Written", "kinds_of_starts", "write_start"]

_RANKS = "deep5 run digits_lenet --size smoke --ranks 2 --launcher threads"
# By kind of start: the kind of its registry, and the command that checks the component, or uses it.
_KINDS = {
    "recipe": ("recipes", "deep5 run {file} --size smoke"),
    "operator": ("operators", "deep5 check operator {file}:{camel}"),
    "cpp_operator": ("operators", "deep5 check operator {file}:{camel}"),
    "optimizer": ("optimizers", "deep5 check optimizer {file}:{camel}"),
    "metric": ("metrics", ""),
    "dataset": ("datasets", "deep5 show dataset {file}:{snake}"),
    "scheme": ("schemes", f"{_RANKS} --set scheme={{file}}:{{camel}}"),
    "framework": ("frameworks", "deep5 check framework {file}:{camel}"),
    "network": ("networks", "deep5 show network {file}:{snake}"),
    "sampler": ("samplers", ""),
    "transform": ("transforms", "deep5 run digits_lenet --size smoke --set train_transforms={file}:{camel}"),
    "event": ("events", "deep5 run digits_lenet --size smoke --set events={file}:{camel}"),
    "schedule": ("schedules", "deep5 run digits_lenet --size smoke --set schedules.lr={file}:{camel}"),
    "compression": ("compressors", f"{_RANKS} --set compression={{file}}:{{camel}}"),
    "engine": ("engines", ""),
}
_PLUGIN = "plugin"
_SUFFIX = ".txt"
_LONGEST = 60
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_-][A-Za-z0-9]+)*")
# Parts of a plug-in whose component is a function of the plug-in's name.
_FUNCTIONS = ("dataset", "network")


@dataclass(frozen=True, kw_only=True)
class Written:
    """What was written.

    Attributes:
        files: The files.
        commands: The next commands to run, in the working directory.
    """

    files: tuple[Path, ...]
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Names:
    """The forms of a name: `fused_gelu`, `FusedGelu`, `fused-gelu`."""

    snake: str
    camel: str

    @classmethod
    def of(cls, name: str) -> _Names:
        snake = name.replace("-", "_")
        if snake != snake.lower():
            words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
            snake = re.sub(r"_(?=\d)", "", "_".join(word.lower() for word in words))
        return cls(snake=snake, camel="".join(word[:1].upper() + word[1:] for word in snake.split("_")))

    def fill(self, text: str) -> str:
        """The content of a start with this name in the place of `my_name`, `MyName` and `my-name`."""
        named = text.replace("my_name", self.snake).replace("MyName", self.camel)
        return named.replace("my-name", self.snake.replace("_", "-"))


def kinds_of_starts() -> tuple[str, ...]:
    """The kinds that `write_start` knows."""
    return (*_KINDS, _PLUGIN)


def write_start(kind: str, name: str, folder: str | Path = ".") -> Written:
    """Write a working start of a component, with a test.

    Args:
        kind: One of `kinds_of_starts`.
        name: As `fused_gelu`, `fused-gelu` or `FusedGelu`, which are the same name.
        folder: Where to write; created if it does not exist. Of a plug-in, the folder that gets the new one.

    Raises:
        UnknownName: There is no such kind.
        UsageError: The name is not valid, or is taken; nothing was written.
        OutputError: A file exists already, or the folder cannot be written; nothing was changed.
    """
    if kind not in kinds_of_starts():
        raise UnknownName("kind of component", kind, kinds_of_starts(), "remedy: deep5 new KIND NAME")
    names = _checked(kind, name)
    place = Path(folder)
    if kind == _PLUGIN:
        place /= names.snake
        contents = dict(_plugin(names))
        commands = [f"pip install --editable {place}", f"python -m pytest {place}", "deep5 list"]
    else:
        contents = {names.fill(path): names.fill(text) for path, text in _start(kind)}
        form = _KINDS[kind][1]
        file = place / f"{names.snake}.py"
        commands = [form.format(file=file, camel=names.camel, snake=names.snake)] if form else []
        commands.append(f"python -m pytest {place / f'test_{names.snake}.py'}")
    return Written(files=tuple(_write(place, contents)), commands=tuple(commands))


def _checked(kind: str, name: str) -> _Names:
    """The name, if a module, a class and a component may have it."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise UsageError(
            f"got the name {name!r:.80}; allowed: at most {_LONGEST} letters and digits, a letter first, and single _ "
            f"or - between them; remedy: deep5 new {kind} fused_gelu, say"
        )
    names = _Names.of(name)
    snake = names.snake
    if keyword.iskeyword(snake) or keyword.issoftkeyword(snake) or keyword.iskeyword(names.camel):
        raise UsageError(f"got the name {name!r}, a word of Python; allowed: any other; remedy: my_{snake}, say")
    if snake.startswith("test_") or snake == "test":
        raise UsageError(f"got the name {name!r}, which pytest takes for tests; allowed: any other; remedy: my_{snake}")
    # A file of that name would take the place of the module, for everything that runs in its folder.
    if snake in sys.stdlib_module_names or _is_installed(snake):
        raise UsageError(
            f"got the name {name!r}, and a module {snake} is installed, which the new file would hide; allowed: a "
            f"name that no module has; remedy: my_{snake}, say"
        )
    for own in _KINDS if kind == _PLUGIN else (kind,):
        if snake in registered(_KINDS[own][0]):
            raise UsageError(
                f"got the name {name!r}, and deep5 has the {own} {snake!r} already; allowed: a name that 'deep5 list "
                f"{_KINDS[own][0]}' does not show; remedy: my_{snake}, say"
            )
    return names


def _is_installed(module: str) -> bool:
    """Whether a module exists elsewhere than in the working directory."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    if spec is None or spec.origin is None:
        return False
    return Path(spec.origin).parent not in (Path.cwd(), Path.cwd() / module)


def _start(kind: str) -> Iterator[tuple[str, str]]:
    """The files of a start: names and contents, with `my_name` in both."""
    for file in sorted(_folder(kind).iterdir(), key=lambda file: file.name):
        if file.name.endswith(_SUFFIX):
            yield file.name.removesuffix(_SUFFIX), file.read_text(encoding="utf-8")


def _folder(kind: str) -> Traversable:
    return files("deep5.cli") / "starts" / kind


def _plugin(names: _Names) -> Iterator[tuple[str, str]]:
    """The files of a plug-in: a module and a test of every kind, and what a package needs."""
    points: dict[str, dict[str, str]] = {}
    yield f"src/{names.snake}/__init__.py", '"""Components for deep5."""\n'
    for kind, (registry, _) in _KINDS.items():
        # Of one package, each class has its own name.
        own = _Names(snake=names.snake, camel=names.camel + _Names.of(kind).camel)
        for path, text in _start(kind):
            filled = own.fill(text).replace("org.example", names.snake)
            if path.startswith("test_"):
                filled = re.sub(rf"^from {names.snake} import", f"from {names.snake}.{kind} import", filled, flags=re.M)
                alias = f"from {names.snake} import {kind} as {names.snake}"
                yield f"tests/test_{kind}.py", re.sub(rf"^import {names.snake}$", alias, filled, flags=re.M)
            else:
                end = path.rpartition(".")[2]
                yield f"src/{names.snake}/{kind}.{end}", filled.replace(f"{names.snake}.cpp", f"{kind}.cpp")
        found = names.snake if kind in _FUNCTIONS else own.camel
        name = f"{names.snake}.{own.camel}" if registry == "operators" else names.snake
        value = f"{names.snake}.{kind}" + ("" if kind == "recipe" else f":{found}")
        points.setdefault(registry, {})[name] = value
    for path, text in _start(_PLUGIN):
        yield path, names.fill(text).replace("{entry_points}", _entry_points(points))


def _entry_points(points: Mapping[str, Mapping[str, str]]) -> str:
    parts = []
    for registry, named in points.items():
        lines = [f'[project.entry-points."deep5.{registry}"]']
        lines += [f'{_key(name)} = "{value}"' for name, value in named.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _write(place: Path, contents: Mapping[str, str]) -> list[Path]:
    """Write files that do not exist yet; if one cannot be written, none stays."""
    paths = {place / name: text for name, text in contents.items()}
    existing = [path for path in paths if os.path.lexists(path)]
    if existing:
        raise OutputError(f"{existing[0]} exists already; allowed: new files only; remedy: another name, or --out DIR")
    made: list[Path] = []
    try:
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except OSError as error:
        for path in made:
            path.unlink(missing_ok=True)
        raise OutputError(
            f"{error.filename or place} cannot be written ({error.strerror or error}); allowed: a folder that you may "
            "write to; remedy: --out DIR"
        ) from error
    return made
