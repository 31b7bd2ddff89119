"""Shell completion of names: recipes, frameworks with their modes, keys of --set, sizes, components, result folders.

click has the scripts of the shells; this module says what may stand where. It is imported only while a shell completes,
reads no file of the user as a program, and imports no framework's library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from deep5.core.errors import Deep5Error
from deep5.core.plugins import KINDS, load, registered

__all__ = ["attach"]

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

# Characters at which bash divides a word: it replaces only what follows the last one.
_BREAKS = ":="
# Element types of operators.
_TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8", "bool")


class _Bash(BashComplete):
    """Completion for bash, also after a colon or an equals sign, which bash takes for separate words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The complete words before the cursor, and the incomplete one."""
        words: list[str] = []
        joins = False
        given = split_arg_string(os.environ["COMP_WORDS"])[: int(os.environ["COMP_CWORD"]) + 1]
        for word in given:
            breaks = bool(word) and set(word) <= set(_BREAKS)
            if words and (breaks or joins) and len(words) > 1:
                words[-1] += word
            else:
                words.append(word)
            joins = breaks
        # A word that has not begun is not in COMP_WORDS.
        begun = len(given) > int(os.environ["COMP_CWORD"]) and given[-1] != ""
        incomplete = words.pop() if begun or joins else ""
        self._kept = max(incomplete.rfind(sign) for sign in _BREAKS) + 1
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """A line for the script: kind and value, without what bash keeps."""
        return f"{item.type},{item.value[self._kept :] if item.type == 'plain' else item.value}"


add_completion_class(_Bash)


def attach(command: click.Command) -> click.Command:
    """Let the parameters of a command, and of its subcommands, complete names; returns the command."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            attach(each)
    for param in command.params:
        complete = _SPECIAL.get((command.name or "", param.name or "")) or _BY_NAME.get(param.name or "")
        if complete is not None:
            param.shell_complete = _completed(complete, param)  # type: ignore[method-assign, assignment]
    return command


def _completed(complete: Complete, param: click.Parameter) -> Callable[[click.Context, str], list[CompletionItem]]:
    def shell_complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        try:
            return complete(ctx, param, incomplete)
        except (Deep5Error, OSError):  # a damaged plug-in or folder: nothing to offer, and no message in the prompt
            return []

    return shell_complete


# click's script for bash drops what precedes an item of files or folders, which it offers if there is no name.
def _named(names: Iterable[str], incomplete: str, before: str = "") -> list[CompletionItem]:
    return [CompletionItem(f"{before}{name}") for name in names if name.startswith(incomplete)]


def _commands_beside(ctx: click.Context) -> list[str]:
    """Before a default command, the names of the other commands of its group."""
    beside = ctx.parent.command if ctx.parent is not None else None
    if isinstance(beside, click.Group) and ctx.parent is not None and ctx.command.name != ctx.info_name:
        group = beside.get_command(ctx.parent, ctx.info_name or "")
        if isinstance(group, click.Group):
            return group.list_commands(ctx)
    return []


def _recipes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Recipes by name, and files; before a default command, also the names of the others."""
    from deep5.recipe.registered import family_of

    found = set()
    for name, point in registered("recipes").items():
        if not point.attr:
            found.add(name)
        elif incomplete.startswith(name):  # a family is imported only for its cases
            found.update(f"{name}_{case}" for case in family_of(point).cases)
        else:
            found.add(f"{name}_")
    found.update(_commands_beside(ctx))
    return [CompletionItem(incomplete, type="file"), *_named(sorted(found), incomplete)]


def _framework_names() -> list[str]:
    found = []
    for name in registered("frameworks"):
        found.append(name)
        try:
            found += [f"{name}:{mode}" for mode in getattr(load("frameworks", name), "modes", {})]
        except Deep5Error:
            continue
    return found


def _framework(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _named(_framework_names(), incomplete)


def _frameworks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _listed(_framework_names(), incomplete)


def _listed(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The last of the names between commas."""
    before, comma, last = incomplete.rpartition(",")
    given = before.split(",")
    return _named([name for name in names if name not in given], last, before + comma)


def _settings(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys that the recipe does not fix, and after an equals sign the names of components."""
    from deep5.recipe.keys import allowed_keys, base, kind_of

    key, equals, value = incomplete.partition("=")
    fixed, mutable = _parts(ctx)
    keys = kind_of(fixed, mutable).keys
    if equals:
        about = keys.get(key)
        names = [] if about is None else ["True", "False"] if about.flag else registered(about.kind or "")
        names = _framework_names() if key in ("framework", "executor") else list(names)
        return _named(names, value, f"{key}=")
    free = [name for name in allowed_keys(keys) if name not in fixed and (base(name) not in fixed or name in mutable)]
    free = [name for name in free if not name.endswith("_args") or name in mutable]
    for name in [each for each in free if each.endswith("_kwargs")]:
        free += [f"{name}.{argument}" for argument in _arguments(keys, base(name), {**fixed, **mutable})]
    return _named(free, incomplete)


def _arguments(keys: Any, key: str, parts: dict[str, Any]) -> list[str]:
    from deep5.recipe.meant import arguments

    return arguments(key, keys[key].kind, parts.get(key)) or []


def _parts(ctx: click.Context) -> tuple[dict[str, Any], dict[str, Any]]:
    """FIXED and MUTABLE of a registered recipe; empty for a file, which is not run to complete a word."""
    recipe = _recipe(ctx)
    return ({}, {}) if recipe is None else (dict(recipe.fixed), dict(recipe.mutable))


def _recipe(ctx: click.Context) -> Any:
    from deep5.recipe.recipe import load_recipe
    from deep5.recipe.registered import registered_recipe

    # An option that still lacks its value leaves all words unread.
    names = [ctx.params.get("recipe"), *ctx.args]
    name = next((each for each in names if isinstance(each, str) and registered_recipe(each) is not None), None)
    return None if name is None else load_recipe(name)


def _sizes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    recipe = _recipe(ctx)
    return _named(["full", "smoke"] if recipe is None else ["full", *recipe.sizes], incomplete)


def _variations(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """As `_settings`, with several values between commas."""
    key, equals, values = incomplete.partition("=")
    before, comma, last = values.rpartition(",")
    if not equals or not comma:
        return _settings(ctx, param, incomplete)
    values_left = [item.value.partition("=")[2] for item in _settings(ctx, param, f"{key}={last}")]
    return [CompletionItem(f"{key}={before},{value}") for value in values_left if value not in before.split(",")]


def _devices(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return _named(("cpu", "cuda", "cuda:0"), incomplete)


def _names(given: Iterable[str] | Callable[[], Iterable[str]], *, several: bool = False) -> Complete:
    """Names of a list, or those that a function imports when they are needed; several between commas."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        names = given() if callable(given) else given
        return _listed(names, incomplete) if several else _named(names, incomplete)

    return complete


def _starts() -> Iterable[str]:
    from deep5.cli.starts import kinds_of_starts

    return kinds_of_starts()


def _problem_sets() -> Iterable[str]:
    from deep5.operators.problems import PROBLEM_SETS

    return PROBLEM_SETS


def _algorithms() -> Iterable[str]:
    from deep5.bench.collective.plan import LIBRARY
    from deep5.distributed.collectives.algorithms import ALGORITHMS

    return [*ALGORITHMS, LIBRARY]


def _columns() -> Iterable[str]:
    from deep5.results.choosing import columns_of

    return columns_of([])


def _operators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Registered operators and ONNX's, and files."""
    import onnx

    standard = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain}
    found = _named(sorted({*registered("operators"), *standard}), incomplete)
    return [CompletionItem(incomplete, type="file"), *found]


def _component_settings(kind: str, name: str) -> Complete:
    """Arguments of the component that another parameter names, as KEY=."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from deep5.recipe.meant import arguments

        # An option that still lacks its value leaves all words unread.
        names = [ctx.params.get(name), *ctx.args]
        known = next((each for each in names if isinstance(each, str) and each in registered(kind)), None)
        taken = [] if known is None or "=" in incomplete else arguments("", kind, known) or []
        return _named([f"{argument}=" for argument in taken], incomplete)

    return complete


def _candidates(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The names in the STUDY of a registered recipe."""
    from deep5.compare.studied import load_study

    recipe = _recipe(ctx)
    return [] if recipe is None else _listed(load_study(recipe.name)[1], incomplete)


def _metrics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the metrics of a registered recipe."""
    recipe = _recipe(ctx)
    return [] if recipe is None else _named(dict.fromkeys(metric.name for metric, _ in recipe.metrics), incomplete)


def _parameters(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys as of `_settings`, and after an equals sign the kinds of ranges."""
    from deep5.search.space import KINDS

    key, equals, text = incomplete.partition("=")
    return _named([f"{kind}(" for kind in KINDS], text, f"{key}=") if equals else _settings(ctx, param, incomplete)


def _roots(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders; before the default command, also the names of the others."""
    return [CompletionItem(incomplete, type="dir"), *_named(_commands_beside(ctx), incomplete)]


def _files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _components(kind: str) -> Complete:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file"), *_named(registered(kind), incomplete)]

    return complete


def _results(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Result folders below the folder that is being typed, or below `results`; then any folder."""
    from deep5.results.kind import FILES

    head, _, tail = incomplete.rpartition("/")
    below = "results" if not incomplete and Path("results").is_dir() else head
    before = f"{below}/" if below or incomplete.startswith("/") else ""
    names = sorted(
        each.name
        for each in Path(before or ".").iterdir()
        if each.name.startswith(tail) and any((each / file).is_file() for file in FILES.values())
    )
    return [CompletionItem(incomplete, type="dir"), *_named(names, tail, before)]


_BY_NAME: dict[str, Complete] = {
    "recipe": _recipes,
    "framework": _framework,
    "framework_name": _framework,
    "frameworks": _frameworks,
    "size": _sizes,
    "device": _devices,
    "resume": _results,
    "folder": _results,
    "folders": _results,
    "result": _results,
    "like": _results,
    "init": _files,
    "archive": _files,
    "operator": _operators,
    "optimizer": _components("optimizers"),
    "network": _components("networks"),
    "dataset": _components("datasets"),
    "dtypes": _names(_TYPES),
    "problems": _names(_problem_sets),
}

# By command and parameter.
_SPECIAL: dict[tuple[str, str], Complete] = {
    **{(name, "settings"): _settings for name in ("run", "recipe", "compare", "sweep")},
    **dict.fromkeys((("run", "follow"), ("sweep", "goal")), _metrics),
    ("sweep", "parameters"): _parameters,
    ("sweep", "space"): _files,
    **{(name, "vary"): _variations for name in ("compare", "study")},
    ("list", "kind"): _names((*KINDS, "keys")),
    ("list", "root"): _roots,
    ("list", "sort"): _names(_columns),
    ("list", "where"): _names(lambda: [f"{name}=" for name in _columns()]),
    ("list", "columns"): _names(_columns, several=True),
    ("new", "kind"): _names(_starts),
    ("study", "only"): _candidates,
    ("study", "target"): _names(("accuracy=", "loss=")),
    ("operator", "name"): _operators,
    ("operator", "against"): _framework,
    ("operator", "uses"): _names(("training", "inference_server", "inference_device")),
    ("optimizer", "settings"): _component_settings("optimizers", "optimizer"),
    ("network", "settings"): _component_settings("networks", "network"),
    ("dataset", "settings"): _component_settings("datasets", "dataset"),
    ("evaluate", "data"): _components("datasets"),
    ("evaluate", "settings"): _component_settings("datasets", "data"),
    ("collective", "algorithms"): _names(_algorithms, several=True),
    ("collective", "launcher"): _names(("mpiexec", "threads", "torchrun")),
    ("collective", "dtype"): _names(("float16", "float32", "float64", "int32", "int64")),
    ("collective", "op"): _names(("sum", "max", "min", "prod")),
    ("serve", "source"): _recipes,
    ("predict", "size"): lambda ctx, param, incomplete: [],
}
