"""The message for an option that a command lacks, with the option or the `--set KEY=…` that was probably meant."""

from __future__ import annotations

import difflib

import click

from deep5.core.errors import Deep5Error
from deep5.core.synonyms import nearest

__all__ = ["unknown_option"]

# From this similarity on, an option is meant rather than a key of the recipe.
_CLOSE = 0.8


def unknown_option(error: click.NoSuchOption) -> str:
    """The message; click's own suggests only options of similar spelling.

    Args:
        error: As click raised it, with the context of the command.
    """
    command = error.ctx.command if error.ctx is not None else None
    params = [] if command is None else [each for each in command.params if isinstance(each, click.Option)]
    options = [name for each in params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")]
    text = Deep5Error(error.option_name).args[0]
    found = _meant(text, options, any(each.name == "settings" for each in params) and _takes_a_recipe(command))
    path = "deep5" if error.ctx is None else error.ctx.command_path
    message = f"No such option {text!r}; allowed: those that '{path} --help' lists"
    return f"{message}; did you mean '{found}'?" if found else message


def _takes_a_recipe(command: click.Command | None) -> bool:
    return command is not None and any(each.name == "recipe" for each in command.params)


def _meant(text: str, options: list[str], keys: bool) -> str | None:
    """The option or the setting that was probably meant, or None."""
    plain, *_ = text.lstrip("-").split("=")
    names = {option.lstrip("-").replace("-", "_"): option for option in options}
    word = plain.replace("-", "_")
    if close := difflib.get_close_matches(word, names, n=1, cutoff=_CLOSE):
        return names[close[0]]
    if "device" in names and (device := nearest(word, ("cpu", "cuda"))) is not None:
        return f"--device {device}"
    if not keys:
        name = nearest(word, names)
        return None if name is None else names[name]
    from deep5.recipe.keys import allowed_keys, component_kinds, kind_of
    from deep5.recipe.meant import meant_key

    keys_of_a_recipe = kind_of({}).keys
    settings = [key for key in allowed_keys(keys_of_a_recipe) if key not in names]
    # An optimizer of most arguments: the recipe is not read to explain an option.
    found = meant_key(word, [*names, *settings], component_kinds(keys_of_a_recipe), {"optimizer": "adam"})
    if found is None:
        return None
    key, argument = found
    return names.get(key) or f"--set {'.'.join(filter(None, (key, argument)))}=…"
