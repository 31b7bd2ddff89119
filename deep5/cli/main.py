"""The command line. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import _thread
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any, NoReturn

import click

from deep5.cli.errors import discard, errors, fail, told
from deep5.core.errors import UsageError

__all__ = ["main"]

_STATUS = """\b
Exit status:
  0    accepted
  1    not accepted
  2    wrong usage, or an invalid recipe
  3    the run failed
  130  interrupted
"""
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


def _whole_number(least: int) -> Callable[[str], int]:
    """Reads an option's value."""

    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least:
            raise click.BadParameter(f"{value!r}; allowed: a whole number of at least {least}")
        return number

    return read


class _Late(click.Group):
    """A group that imports some of its commands when they are asked for.

    Args:
        late: By a command's name, the module and the function that make it.
    """

    def __init__(self, *args: Any, late: Mapping[str, tuple[str, str]], **extra: Any) -> None:
        super().__init__(*args, **extra)
        self.late = late

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.late})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.late and cmd_name not in self.commands:
            module, function = self.late[cmd_name]
            self.add_command(getattr(import_module(module), function)(errors))
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Late,
    late={
        "audit": ("deep5.cli.audit", "audit_command"),
        "bench": ("deep5.cli.bench_operator", "bench_command"),
        "calibrate": ("deep5.measuring.calibration", "calibrate_command"),
        "clean": ("deep5.cli.clean", "clean_command"),
        "compare": ("deep5.cli.compare", "compare_command"),
        "evaluate": ("deep5.trained.evaluate", "evaluate_command"),
        "export": ("deep5.cli.export", "export_command"),
        "predict": ("deep5.trained.predict", "predict_command"),
        "report": ("deep5.cli.report", "report_command"),
        "results": ("deep5.cli.results", "results_command"),
        "profile": ("deep5.cli.profile", "profile_command"),
        "show": ("deep5.cli.show", "show_command"),
        "study": ("deep5.cli.study", "study_command"),
    },
    context_settings=_CONTEXT,
    epilog=_STATUS,
)
@click.version_option(package_name="deep5", message="deep5 %(version)s")
def _cli() -> None:
    """Run deep-learning recipes, check them, and see what there is to build them from."""


def _recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.argument("recipe"),
        click.option("--framework", metavar="NAME", help="Run on this framework."),
        click.option(
            "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set a mutable part; may be repeated."
        ),
        click.option("--seed", type=_whole_number(0), metavar="N", help="Seed of weights, order and noise."),
        click.option("--device", metavar="D", help="cpu, cuda or cuda:N."),
        click.option("--threads", type=_whole_number(1), metavar="N", help="Threads within an operator."),
        click.option("--init", metavar="FILE", help="Start from these weights: a .safetensors or .onnx file."),
        click.option("--size", metavar="NAME", default="full", help="A size of the recipe, such as smoke."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _debug_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--debug", is_flag=True, help="On an error, show the traceback.")(command)


def _configured(
    recipe: str,
    framework: str | None,
    settings: tuple[str, ...],
    seed: int | None,
    device: str | None,
    threads: int | None,
    init: str | None,
    size: str,
) -> Any:
    from deep5.recipe.recipe import load_recipe
    from deep5.recipe.settings import parse_setting

    changes: dict[str, Any] = {}
    for text in settings:
        key, value = parse_setting(text)
        if key in changes:
            raise UsageError(f"--set {key} is given twice; allowed: once")
        changes[key] = value
    options = {"framework": framework, "seed": seed, "device": device, "threads": threads, "init": init}
    for key, given in options.items():
        if given is not None:
            if key in changes:
                raise UsageError(f"--{key} and --set {key} are both given; allowed: one of them")
            changes[key] = given
    return load_recipe(recipe).at_size(size).with_settings(changes)


@_cli.command()
@_recipe_options
@click.option("--out", metavar="DIR", default="results", show_default=True, help="Where the result folder goes.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, to standard output.")
@click.option("--quiet", is_flag=True, help="No progress bar, no warnings and no table.")
@click.option("--resume", metavar="FOLDER", help="Go on in the result folder of a run that was ended before its time.")
@click.option(
    "--checkpoint-every",
    "every",
    metavar="N|Ts|never",
    help="Checkpoint after every N steps or T seconds (500, 60s). Default: 30s; deleted when the run is done.",
)
@click.option(
    "--ranks",
    type=_whole_number(1),
    metavar="N",
    help="Train with N processes that share every batch; in place of the recipe's number.",
)
@click.option(
    "--launcher",
    type=click.Choice(["mpiexec", "torchrun", "threads"]),
    help="What starts them: mpiexec (the default where the recipe names none) for MPI, torchrun for PyTorch's process "
    "groups with gloo or NCCL, or threads of this process.",
)
@_debug_option
def run(
    out: str,
    as_json: bool,
    quiet: bool,
    resume: str | None,
    every: str | None,
    ranks: int | None,
    launcher: Any,
    debug: bool,
    **chosen: Any,
) -> NoReturn:
    """Run RECIPE, a name or a file, and judge it by its metrics.

    A run that was ended goes on by the same command and --resume FOLDER, to the same bits as without the end.

    With --ranks, or under mpiexec, torchrun or srun, several processes train together, by the recipe's scheme; where
    the recipe itself asks for ranks, they are started without it.
    """
    out_stream = sys.stdout  # with --json, what is printed within goes elsewhere
    with errors(debug, as_json) as show:
        from deep5.distributed.launch.launcher import launched

        for key, given in (("ranks", ranks), ("launcher", launcher)):
            if given is not None and any(text.partition("=")[0].strip() == key for text in chosen["settings"]):
                raise UsageError(f"--{key} and --set {key} are both given; allowed: one of them")
        recipe = _configured(**chosen)
        options = {} if every is None else {"checkpointer": _checkpointer(every)}
        how = {"out": out, "quiet": quiet, "resume": resume, **options}
        if any(asked is not None for asked in (ranks, launcher, recipe.ranks, launched())):
            from deep5.run.ranks import run_with_ranks

            result, status = run_with_ranks(recipe, ranks, launcher, sys.argv[1:], stdout=out_stream, **how)
        else:
            from deep5.run.execute import execute, progress

            result = execute(recipe, events=() if quiet else progress(recipe), **how)
            status = 0 if result else 1
        if result is not None and (as_json or not quiet):
            try:
                show(_shown(result, as_json))
                sys.stdout.flush()
            except OSError:
                # Nobody can be told any more, but the run is done and judged, and its folder written.
                discard(sys.stdout)
    sys.exit(status)


def _checkpointer(every: str) -> Any:
    """What `--checkpoint-every` asks for: a number of steps, of seconds with an s behind it, or never."""
    from deep5.training.checkpointer import Checkpointer

    if every == "never":
        return None
    try:
        if every.endswith("s"):
            return Checkpointer(every_s=float(every[:-1]))
        return Checkpointer(every_steps=int(every))
    except (ValueError, UsageError):
        raise UsageError(
            f"--checkpoint-every {every!r}; allowed: a whole number of steps such as 500, seconds such as 60s, or never"
        ) from None


def _shown(result: Any, as_json: bool) -> str:
    """The result as JSON, or as the table, with colours where the output is a terminal."""
    from deep5.results.table import to_json, verdict_table

    if as_json:
        return to_json(result)
    return _printed(lambda console: verdict_table(result, console))


def _printed(write: Callable[[Any], None]) -> str:
    """What is written to a console, as a text."""
    from rich.console import Console

    console = Console()
    with console.capture() as text:
        write(console)
    return text.get().rstrip("\n")


class _OrRecipe(_Late):
    """A group in which what is no command of its own is a recipe: `deep5 check RECIPE`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if not args or args[0] not in (*self.commands, *self.late, "-h", "--help"):
            return self.commands["recipe"].make_context(info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@_cli.group(
    cls=_OrRecipe,
    late={"optimizer": ("deep5.cli.check_optimizer", "optimizer_command")},
    subcommand_metavar="RECIPE | COMMAND …",
)
def check() -> None:
    """Check RECIPE without running it, or an operator, or an optimizer.

    `deep5 check RECIPE` is short for `deep5 check recipe RECIPE`.
    """


@check.command("recipe")
@_recipe_options
@click.option("--json", "as_json", is_flag=True, help="Print what the recipe holds as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing where the recipe is valid.")
@_debug_option
def check_recipe(as_json: bool, quiet: bool, debug: bool, **chosen: Any) -> None:
    """Validate RECIPE without running it."""
    with errors(debug, as_json) as show:
        from deep5.run import check as checks

        recipe = _configured(**chosen)
        notes = checks.check_recipe(recipe)
        if as_json:
            about = {"hash": recipe.fixed_hash(), "size": recipe.size, "division": recipe.division}
            show(json.dumps({"recipe": recipe.name, **about, **recipe.describe(), "notes": notes}, indent=2))
        elif not quiet:
            for metric, goal in recipe.metrics:
                show(f"{metric.name}: " + (f"{goal} {metric.unit}" if goal else "reported, not judged"))
            for note in notes:
                show(note)
            show(f"{recipe.name} is a valid recipe (fixed part {recipe.fixed_hash()[:12]}, size {recipe.size})")


@check.command("operator")
@click.argument("operator", metavar="NAME|FILE:CLASS")
@click.option(
    "--set", "settings", metavar="NAME=VALUE", multiple=True, help="An argument of the class; repeat for more."
)
@click.option(
    "--shape", "shapes", metavar="3x4", multiple=True, help="Shape of the inputs, or of each in turn; scalar: no axes."
)
@click.option(
    "--dtype", "dtypes", metavar="TYPE", multiple=True, help="Element type of the inputs, or of each in turn."
)
@click.option("--range", "bounds", metavar="LOW HIGH", nargs=2, type=float, help="Draw inputs between these.")
@click.option("--seed", type=_whole_number(0), metavar="N", default=0, help="Seed of the inputs.")
@click.option("--framework", metavar="NAME", help="Run the operator on this framework.")
@click.option("--against", metavar="NAME|FILE:FUNCTION", help="What is right: a framework, or a function in float64.")
@click.option("--strict/--no-strict", default=True, help="Whether it has to run under array_api_strict.")
@click.option("--time-limit", "time_limit_s", type=float, metavar="S", default=20.0, help="Seconds a call may take.")
@click.option("--out", metavar="DIR", help="Where pictures of differences go.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--quiet", is_flag=True, help="Print nothing where all is right, else what is not.")
@_debug_option
def check_operator(operator: str, as_json: bool, quiet: bool, debug: bool, **chosen: Any) -> NoReturn:
    """Check an operator: values, gradients, memory, element types, layouts, empty inputs, NaN.

    FILE:CLASS is a Python file and a class in it, or an operator that is made there; NAME is one of ONNX's operators,
    or a registered one. It runs in a process of its own first. Where no value could be judged, it is not accepted.
    """
    with errors(debug, as_json) as show:
        from deep5.cli.check_operator import check_operator as checked

        report = checked(operator, **chosen)
        if as_json:
            show(json.dumps(report.document(), indent=2, allow_nan=False))
        elif not quiet:
            show(_printed(report.print))
        elif report.failures or not report.values:
            show(report.story())
        status = 0 if report and report.values else 1
    sys.exit(status)


@_cli.command("list")
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="Show the recipes that measure deep5 itself, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; `internal` marks what needs --all.")
@_debug_option
def list_(kind: str | None, everything: bool, as_json: bool, debug: bool) -> None:
    """Show what is registered: recipes, frameworks, metrics, networks, datasets, samplers, optimizers, events.

    Recipes that measure deep5 itself are left out; --all shows them.
    """
    with errors(debug, as_json) as show:
        from deep5.cli.list import listing
        from deep5.core.errors import UnknownName
        from deep5.core.plugins import KINDS

        if kind is not None and kind not in KINDS:
            raise UnknownName("kind of component", kind, KINDS)
        found = {name: listing(name) for name in ([kind] if kind else KINDS)}
        if as_json:
            show(json.dumps(found, indent=2))
            return
        for name, rows in found.items():
            if kind is None:
                show(f"{name}:")
            shown = [row for row in rows if everything or not row.get("internal")]
            width = max((len(row["name"]) for row in shown), default=0)
            for row in shown:
                show(f"{'  ' if kind is None else ''}{row['name']:<{width}}  {row['about']}".rstrip())


@_cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@_debug_option
def info(as_json: bool, debug: bool) -> None:
    """Show machine and versions, for a bug report."""
    with errors(debug, as_json) as show:
        from deep5.measuring.environment import info as gather

        found = gather()
        show(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(value: Any, indent: str = "") -> Iterator[str]:
    for key, entry in value.items():
        if isinstance(entry, dict) and entry:
            yield f"{indent}{key}:"
            yield from _lines(entry, indent + "  ")
        else:
            text = ", ".join(map(str, entry)) if isinstance(entry, list) else entry
            yield f"{indent}{key}: {'-' if text in (None, '', {}) else text}"


def _terminated(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt("ended by SIGTERM")


def _not_lost(unraisable: Any) -> None:
    """An interruption that met a callback of the interpreter's own, which cannot raise it: it comes again at once."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return

    def again(number: signal.Signals) -> None:
        time.sleep(0.001)
        _thread.interrupt_main(number)

    # From another thread: here, the handler would run within this hook, and be lost once more.
    number = signal.SIGTERM if "SIGTERM" in str(unraisable.exc_value) else signal.SIGINT
    _thread.start_new_thread(again, (number,))


def main() -> None:
    """The entry point of the command `deep5`."""
    # A run that is told to end (by a batch system, say) ends in good order, as one that the user interrupts.
    signal.signal(signal.SIGTERM, _terminated)
    sys.unraisablehook = _not_lost
    as_json = "--json" in sys.argv
    try:
        status = _cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail("interrupted", 130, as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        fail(*told(error), as_json)
    sys.exit(status if isinstance(status, int) else 0)
