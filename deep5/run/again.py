"""A stored run, repeated: what ran, at its size and settings, and whether its code may be executed.

A result may come from anywhere, so nothing that is found in it is executed. A registered recipe is the installed one. A
recipe of the user's, or a model in its place, is the original file, if this user's deep5 recorded its place and it has
the recorded hash. Everything else is only executed if the caller trusts it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deep5.core.canonical import names_file
from deep5.core.content_hashes import file_hash
from deep5.core.errors import CheckpointError, Deep5Error, UsageError
from deep5.core.files import exists, is_file, is_folder
from deep5.recipe.experiment import defaults_of
from deep5.recipe.of_model import ARGUMENTS, names_model
from deep5.recipe.recipe import FULL, Recipe, load_recipe
from deep5.recipe.registered import registered_recipe
from deep5.results.archive import MANIFEST, changed_files, read_manifest, unpacked
from deep5.results.continuing import check_recipe
from deep5.results.kind import RUN_KIND, kind_of
from deep5.results.origin import Origin, read_origin, source_name
from deep5.results.pack import Tree, changed_own, check_finished, stored_source, tree_of
from deep5.results.reading import shown_path
from deep5.results.result import Result, load

__all__ = ["Again", "again"]


@dataclass(frozen=True, kw_only=True)
class Again:
    """A run to repeat.

    Attributes:
        first: The stored run.
        recipe: Its recipe, at its size and with its settings.
        ranks: The number of ranks that was requested besides the recipe; None: no other than the recipe's.
        launcher: What started them.
    """

    first: Result
    recipe: Recipe
    ranks: int | None
    launcher: str | None


@contextmanager
def again(source: str | Path, out: str | Path, *, trust: bool, show: Callable[[str], None]) -> Iterator[Again]:
    """Find the recipe of a stored run, ready to run in its working directory, which is this one's until the end.

    Args:
        source: A result folder, an archive by `deep5 results pack`, or the folder of an unpacked one.
        out: Parent of result folders, absolute; an archive is unpacked there, into a folder with its name.
        trust: Whether code that comes with the result may be executed.
        show: Receives what is not as it was, and what would be executed.

    Raises:
        UsageError: It is not the result of a finished run or an archive of one; or its recipe changed, needs files that
            are missing or changed, or must be executed and is not trusted.
        RecipeError: The recipe cannot be read.
    """
    with ExitStack() as stack:
        folder, manifest, first = _opened(Path(source).absolute(), Path(out))
        check_finished(first)
        document = first.document
        origin = read_origin(first.folder, document)
        if manifest is not None:  # whoever made the archive made its statements
            stated = manifest["recipe"]
            origin = Origin(registered=stated["registered"], settings=manifest["settings"], model=stated.get("model"))
        installed = _installed(document, origin, show)
        moved: dict[str, str] = {}
        start = origin.working_directory if origin.own_run else None
        if installed is not None:
            recipe = installed
            if origin.own_run:
                _check_own(origin)
            if manifest is not None:
                moved, start = _places(folder, manifest), _place(folder, manifest["working_directory"])
        elif origin.own_run and _is_original(first, origin, show):
            stored_source(first, origin)
            recipe = _in(start, lambda: load_recipe(_named_at(origin, origin.file or Path())), stack)
        else:
            tree = None if manifest is not None else tree_of(first, origin)
            _check_trusted(first, tree, manifest, origin, trust, show)
            path, start, roots, moved = (
                _written(first, origin, tree, stack)
                if tree is not None
                else _in_place(first, origin, folder, manifest or {}, stack)
            )
            for place in reversed(roots):
                sys.path.insert(0, str(place))
                stack.callback(_remove, str(place))
            recipe = _in(start, lambda: load_recipe(_named_at(origin, path)), stack)
        if start is not None and is_folder(start):
            _change_directory(start, stack)
        recipe = recipe if document["recipe"]["size"] == FULL else recipe.at_size(document["recipe"]["size"])
        if origin.model is not None:  # its other mutable parts follow from its arguments
            stored = document["recipe"]["fixed"]
            arguments = {key: origin.settings.get(key, stored[key]) for key in ARGUMENTS if key in stored}
            recipe = recipe.with_settings(arguments) if arguments else recipe
        changes = {key: _moved(value, moved) for key, value in _changes(recipe, document, origin).items()}
        if not (origin.own_run or trust) and (code := [key for key, value in changes.items() if _is_code(key, value)]):
            raise UsageError(
                f"the settings of {document['run_id']} name code to execute, {code[0]}={changes[code[0]]!r:.100}; "
                f"allowed: code that this user ran; remedy: read it, then add --trust"
            )
        recipe = recipe.with_settings(changes) if changes else recipe
        _check_same(recipe, document)
        yield Again(first=first, recipe=recipe, **_launched(first, recipe))


def _opened(source: Path, out: Path) -> tuple[Path, dict[str, Any] | None, Result]:
    """The folder, the manifest if it is an unpacked archive, and the run."""
    if not exists(source):
        raise UsageError(f"{shown_path(source)} is not there; allowed: a result folder, or an archive of one")
    if is_file(source) and source.name != "result.json":
        folder = out / source.name.removesuffix(".zip")
        if folder == source:
            raise UsageError(
                f"{shown_path(source)} is a file that does not end in .zip; allowed: a folder, or a .zip file"
            )
        unpacked(source, folder)
        source = folder
    if not is_file(source / MANIFEST):
        if is_folder(source) and (kind := kind_of(source)) not in (RUN_KIND, None):
            raise UsageError(f"{shown_path(source)} is a {kind}; allowed: the result folder of one run")
        return source, None, load(source)
    manifest = read_manifest(source)
    if changed := changed_files(source, manifest):
        raise UsageError(
            f"{shown_path(source)}: {shown_path(changed[0])} is not as it was packed; remedy: unpack the archive again"
        )
    for left in manifest["left_out"]:
        if (name := left["file"]) is None or not name.startswith("files/"):
            continue
        place = source / name
        if left["sha256"] is None:
            state = "" if is_folder(place) else "is missing"
        else:
            state = "" if is_file(place) and file_hash(place) == left["sha256"] else "is missing"
            state = "has another hash" if state and is_file(place) else state
        if state:
            raise UsageError(
                f"{shown_path(place)} {state}, which the archive leaves out because {left['why']}; its SHA-256 was "
                f"{left['sha256'] or 'not taken'}, and it was {shown_path(left['origin'])}; remedy: put it there"
            )
    return source, manifest, load(source / manifest["run_id"])


def _installed(document: Mapping[str, Any], origin: Origin, show: Callable[[str], None]) -> Recipe | None:
    """The installed recipe, if the run was of a registered recipe and that has the same hash; else None."""
    stored, name = document["recipe"], document["recipe"]["name"]
    known = registered_recipe(name)
    if known is None or origin.model is not None or not (origin.registered or origin.file is None):
        if origin.registered:
            show(f"the recipe {name!r} is not installed")
        return None
    recipe = load_recipe(name)
    if document["provenance"]["recipe_source"] == recipe.source_hash():
        return recipe
    if stored["size"] != FULL and stored["size"] not in recipe.sizes:
        show(f"the installed recipe {name!r} changed since the run: it has no size {stored['size']!r}")
        return None
    now = _described(recipe if stored["size"] == FULL else recipe.at_size(stored["size"]), stored)
    if now["hash"] == stored["hash"] and now["metrics"] == stored["metrics"]:
        show(f"the file of the installed recipe {name!r} changed since the run, but its fixed part has the same hash")
        return recipe
    what = (
        "its metrics"
        if now["hash"] == stored["hash"]
        else f"its hash was {stored['hash'][:12]}, now {now['hash'][:12]}"
    )
    show(f"the installed recipe {name!r} changed since the run: {what}")
    return None


def _is_original(first: Result, origin: Origin, show: Callable[[str], None]) -> bool:
    """Whether the recipe's file and the own files are where they were, unchanged."""
    if origin.registered or origin.file is None:
        return False
    try:
        if file_hash(origin.file) != first.document["provenance"]["recipe_source"]:
            show(f"{shown_path(origin.file)} changed since the run")
            return False
    except OSError:
        show(f"{shown_path(origin.file)} is missing")
        return False
    _check_own(origin)
    return True


def _check_own(origin: Origin) -> None:
    """Refuse own files that are missing or changed since the run, which its recipe would use."""
    if changed := changed_own(origin):
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UsageError(
            f"the run used files that are not as they were: {', '.join(changed[:5])}{more}; remedy: restore them, or "
            "run an archive that deep5 results pack made before"
        )


def _named_at(origin: Origin, file: Path) -> str:
    """The recipe's file, or the model in its place in this file, as `load_recipe` reads it."""
    if origin.model is None:
        return str(file)
    text = str(file) if source_name(origin.model) == "model.onnx" else f"{file}:{origin.model.rpartition(':')[2]}"
    if not names_model(text) or source_name(text) != source_name(origin.model):
        raise UsageError(
            f"the model {shown_path(origin.model)} is in {shown_path(file)}; allowed: FILE.py:NAME, or an ONNX file"
        )
    return text


def _check_trusted(
    first: Result,
    tree: Tree | None,
    manifest: Mapping[str, Any] | None,
    origin: Origin,
    trust: bool,
    show: Callable[[str], None],
) -> None:
    """Refuse to execute a stored recipe that is not trusted, after naming what would be executed."""
    if trust:
        return
    code = [first.folder / source_name(origin.model)]
    if manifest is not None:
        root = first.folder.parent
        names = [name for name in manifest["files"] if name.startswith("files/")]
        code = [root / name for name in names] or code
    elif tree is not None:
        code += [Path(path) for path in tree.own.values()]
    show("would be executed, or read by what is executed:\n" + "\n".join(f"  {shown_path(path)}" for path in code))
    raise UsageError(
        f"the {'recipe' if origin.model is None else 'model'} of {first.document['run_id']} is not an installed one or "
        "the unchanged file that this user ran; allowed: code that you have read; remedy: add --trust to "
        "execute it with your rights"
    )


def _written(
    first: Result, origin: Origin, tree: Tree, stack: ExitStack
) -> tuple[Path, Path | None, list[Path], dict[str, str]]:
    """Write the own files of a run to a temporary folder: recipe, working directory, module folders, moved files."""
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deep5-again-"))).resolve()
    for entry in tree.entries:
        target = root / entry.name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(entry.content if isinstance(entry.content, bytes) else entry.content.read_bytes())
    if tree.recipe is None:  # a registered recipe that changed since
        path = root / f"{first.document['recipe']['name']}.py"
        path.write_bytes(stored_source(first, origin))
    else:
        path = root / tree.recipe
    for left in tree.left_out:
        if left["file"] is not None:
            place = root / left["file"]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(left["origin"])
    start = None if tree.working_directory is None else root / tree.working_directory
    roots = [root / name for name in tree.python_path]
    return path, start, roots, {origin: str(root / name) for name, origin in tree.own.items()}


def _in_place(
    first: Result, origin: Origin, folder: Path, manifest: Mapping[str, Any], stack: ExitStack
) -> tuple[Path, Path | None, list[Path], dict[str, str]]:
    """As `_written`, from an unpacked archive."""
    start = _place(folder, manifest["working_directory"])
    if manifest["recipe"]["file"] is not None:
        path = folder / manifest["recipe"]["file"]
        if file_hash(path) != first.document["provenance"]["recipe_source"]:
            raise UsageError(f"{shown_path(path)} is not the file that ran, by its hash; remedy: have it packed again")
    else:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="deep5-again-"))).resolve()
        path = root / f"{first.document['recipe']['name']}.py"
        path.write_bytes(stored_source(first, origin))
    return path, start, [folder / name for name in manifest["python_path"]], _places(folder, manifest)


def _places(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    return {origin: str(folder / name) for name, origin in manifest["own"].items()}


def _place(folder: Path, name: str | None) -> Path | None:
    return None if name is None else folder / name


def _remove(place: str) -> None:
    if place in sys.path:
        sys.path.remove(place)


def _in(start: Path | None, load_it: Callable[[], Recipe], stack: ExitStack) -> Recipe:
    """Load a recipe in the working directory of its run."""
    if start is not None and is_folder(start):
        _change_directory(start, stack)
    return load_it()


def _change_directory(start: Path, stack: ExitStack) -> None:
    before = Path.cwd()
    os.chdir(start)
    stack.callback(os.chdir, before)


def _moved(value: Any, places: Mapping[str, str]) -> Any:
    """A setting, with the new places of the own files that it names by absolute paths."""
    if isinstance(value, str):
        file, colon, name = value.rpartition(":") if ".py:" in value else (value, "", "")
        return f"{places[file]}{colon}{name}" if file in places else value
    if isinstance(value, dict):
        return {key: _moved(inner, places) for key, inner in value.items()}
    return [_moved(inner, places) for inner in value] if isinstance(value, list) else value


def _changes(recipe: Recipe, document: Mapping[str, Any], origin: Origin) -> dict[str, Any]:
    """The settings that make the recipe's mutable part that of the run."""
    stored, now = document["recipe"]["mutable"], recipe.describe()["mutable"]
    found = {}
    for key, value in stored.items():
        if key in now and now[key] == value:
            continue
        if key not in origin.settings and isinstance(value, dict) and {"object", "file", "partial"} & value.keys():
            raise UsageError(
                f"the run {document['run_id']} had {key!r} set to an object of Python or a file that its folder does "
                f"not name: {value!r:.100}; allowed: settings by --set; remedy: run its program again"
            )
        found[key] = origin.settings.get(key, value)
    return found


def _is_code(key: str, value: Any) -> bool:
    """Whether a setting names code to import or to execute, rather than a registered component."""
    if isinstance(value, str):
        return names_file(key, value) or ".py" in value or ":" in value
    if isinstance(value, dict):
        return any(_is_code(key, inner) for inner in value.values())
    return isinstance(value, list) and any(_is_code(key, inner) for inner in value)


def _described(recipe: Recipe, stored: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe as results describe it, by the rule for hashes of a stored recipe."""
    first_rule = recipe.by_first_rule() if stored.get("hash_version") in (None, 1) else {}
    return {**recipe.document(), **first_rule}


def _check_same(recipe: Recipe, document: Mapping[str, Any]) -> None:
    """Refuse a recipe that is not that of the run.

    Raises:
        UsageError: It has another fixed part, mutable part, or other metrics; the message states the difference.
    """
    stored, name = document["recipe"], document["run_id"]
    now = _described(recipe, stored)
    try:
        check_recipe(name, stored, now, defaults_of(recipe.kind))
    except CheckpointError as error:
        raise UsageError(f"the recipe cannot be repeated: {error}") from error
    was, got = stored["mutable"], now["mutable"]
    if odd := [key for key in sorted({*was, *got}) if was.get(key) != got.get(key)]:
        raise UsageError(
            f"the run {name} had {odd[0]!r}: {was.get(odd[0])!r:.80}, which this recipe cannot be set to; "
            "remedy: run its recipe with the original --set"
        )


def _launched(first: Result, recipe: Recipe) -> dict[str, Any]:
    """The ranks that were requested by options."""
    if recipe.ranks is not None or first.rank_count == 1:
        return {"ranks": None, "launcher": None}
    try:
        by = {row.launcher or "threads" for row in first.ranks()}
    except Deep5Error:
        by = set()
    known = {"threads", "mpiexec", "torchrun"}
    return {"ranks": first.rank_count, "launcher": next(iter(by)) if len(by) == 1 and by <= known else None}
