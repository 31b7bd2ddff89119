"""The page of commands and options, from click's own objects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping

import click
from mkdocs.exceptions import PluginError

from deep5.cli.main import _cli
from tables import code, require, table, with_code

HEAD = """\
# Commands

`deep5 COMMAND --help` prints the options of a command, and `deep5 --version` the version. `python -m deep5` is the same
program. With `_DEEP5_COMPLETE`, the shell [completes](environment.md#_deep5_complete) names, keys and result folders.
"""
STATUS = """\
## Exit status

{table}

Status 0 also means that there was no goal to check. Status 1 also means that a check or an audit has a finding. An
error is printed to standard error in one line, `deep5: what happened; what was given; allowed: …; remedy: …`; `--debug`
also prints the traceback. With `--json`, standard output is one JSON document, on an error
`{{"error": …, "exit_status": …}}`.
"""
EXAMPLES: Mapping[str, str] = {
    "audit": "deep5 audit results",
    "bench collective": "deep5 bench collective --quick",
    "bench operator": "deep5 bench operator MatMul --shape 64x64 --shape 64x64 --frameworks pytorch,reference",
    "calibrate": "deep5 calibrate",
    "check": "deep5 check my_recipe.py",
    "check framework": "deep5 check framework reference",
    "check operator": "deep5 check operator ops.py:IPow --set power=3",
    "check optimizer": "deep5 check optimizer rules.py:SignMomentum",
    "check recipe": "deep5 check recipe digits_lenet",
    "clean": "deep5 clean --checkpoints results --keep 1",
    "compare": "deep5 compare digits_lenet --frameworks pytorch,onnxruntime,reference --rigorous",
    "evaluate": "deep5 evaluate results/digits_lenet-…",
    "export": "deep5 export results --format parquet -o samples.parquet",
    "generate": "deep5 generate results/text_gpt-… 'Return the' --tokens 20",
    "info": "deep5 info",
    "list": "deep5 list keys",
    "new": "deep5 new metric slowest_step",
    "predict": "deep5 predict results/digits_lenet-… photo.png",
    "profile": "deep5 profile results/digits_lenet-study-… results/other-study-…",
    "report": "deep5 report results -o report.html",
    "results list": "deep5 results list results --sort recipe",
    "results pack": "deep5 results pack results/digits_lenet-… -o digits.zip",
    "results sign": "deep5 results sign results/digits_lenet-… --key ~/.ssh/id_ed25519",
    "results unpack": "deep5 results unpack digits.zip",
    "results verify": "deep5 results verify results/digits_lenet-… --signer ada.pub",
    "run": "deep5 run digits_lenet --framework reference",
    "serve": "deep5 serve results/digits_lenet-… --framework onnxruntime --port 0",
    "show dataset": "deep5 show dataset digits -o pictures",
    "show network": "deep5 show network googlenet -o pictures",
    "show sweep": "deep5 show sweep results/digits_lenet-sweep-…",
    "leaderboard": "deep5 leaderboard results/digits_lenet-study-…",
    "study": "deep5 study digits_lenet --size smoke --vary optimizer=adam,momentum --framework reference "
    "--target accuracy=20",
    "sweep": "deep5 sweep digits_lenet --size smoke --goal validation_accuracy --trials 3 "
    "--param 'batch_size=choice(16, 32, 64)'",
}
"""A line by command; the tests of the documents, or of this page, run each."""


def commands(group: click.Command = _cli) -> Iterator[tuple[str, click.Context]]:
    """Each command below a group with its context, by its name without `deep5`: `bench operator`."""
    yield from _below(group, click.Context(group, info_name="deep5"), "")


def _below(command: click.Command, context: click.Context, path: str) -> Iterator[tuple[str, click.Context]]:
    if path:
        yield path, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                below = click.Context(found, info_name=name, parent=context, **found.context_settings)
                yield from _below(found, below, f"{path} {name}".strip())


def pages(group: click.Command = _cli) -> dict[str, str]:
    """The page.

    Args:
        group: The group of all commands.

    Raises:
        PluginError: A command without help or example, or an option without help.
    """
    found = dict(commands(group))
    require("commands", [(name, context.command.help) for name, context in found.items()], "its docstring")
    groups = {name for name, context in found.items() if isinstance(context.command, click.Group)}
    missing = sorted(set(found) - groups - set(EXAMPLES))
    if missing:
        raise PluginError(f"commands without an example: {', '.join(missing)}; remedy: command_page.EXAMPLES")
    summary = table(
        ("command", "what it does"),
        [
            (f"[{code(f'deep5 {name}')}](#deep5-{name.replace(' ', '-')})", with_code(_first_sentence(context.command)))
            for name, context in found.items()
        ],
    )
    sections = [_section(name, context) for name, context in found.items()]
    return {"reference/commands.md": "\n".join([HEAD, summary, "", _status(), *sections])}


def _status() -> str:
    """The exit statuses, as the epilog of the help lists them."""
    rows = re.findall(r"^ +(\d+) +(.+)$", _cli.epilog or "", re.MULTILINE)
    return STATUS.format(table=table(("status", "meaning"), [(code(status), about) for status, about in rows]))


def _paragraphs(command: click.Command) -> list[str]:
    """The paragraphs of the help of a command."""
    return [" ".join(each.split()) for each in inspect.cleandoc(command.help or "").split("\n\n")]


def _section(name: str, context: click.Context) -> str:
    """A command with its usage, options and example."""
    command = context.command
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [
        f"{'##' if ' ' not in name else '###'} deep5 {name}",
        f"```text\n{usage}\n```",
        *(with_code(each) for each in _paragraphs(command)),
    ]
    options = [
        (param, record)
        for param in command.params
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None
    ]
    require(f"options of deep5 {name}", [(names, about) for _, (names, about) in options], "help= of the option")
    parts += [f"{code(names)}\n:   {_about(about)}" for _, (names, about) in options]
    if name in EXAMPLES:
        parts.append(f"```sh\n{EXAMPLES[name]}\n```")
    return "\n\n".join(parts) + "\n"


def _about(about: str) -> str:
    """The help of an option, with its default and its range as sentences.

    >>> _about("Rounds of calls.  [default: 20; quick: 8]  [x>=1]")
    'Rounds of calls. Default: 20; quick: 8. At least 1.'
    """
    said, *extras = re.split(r"\s+\[((?:default: |x>=|required)[^\]]*)\]", about)
    parts = [part for extra in extras for part in re.split("; (?=x>=)", extra) if part]
    sentences = [
        part.replace("x>=", "At least ").replace("default:", "Default:").replace("required", "Required")
        for part in parts
    ]
    return with_code(" ".join(f"{each.rstrip('.')}." for each in [said, *sentences]))


def _first_sentence(command: click.Command) -> str:
    """The first sentence of the help; of a long one, what precedes its colon or semicolon."""
    first = _paragraphs(command)[0].split(". ")[0].rstrip(".")
    return re.split("[;:] ", first)[0] if len(first) > 110 else first
