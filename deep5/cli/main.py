"""The command line. Slow imports wait until a command needs them."""

from __future__ import annotations

import _thread
import atexit
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn

import click

from deep5.cli.errors import errors, fail, reported
from deep5.cli.group import CommandGroup, DefaultGroup
from deep5.cli.recipe_options import configured, debug_option, recipe_options, whole_number
from deep5.cli.streams import output_status, steady_streams
from deep5.core.errors import brief, described
from deep5.core.library_reports import hide_reports
from deep5.core.progress import silenced
from deep5.core.terminal import plain

__all__ = ["main"]

_STATUS = """\b
Exit status:
  0    accepted
  1    not accepted
  2    wrong usage, or an invalid recipe
  3    the run failed
  130  interrupted
  141  the reader of standard output has gone
"""
# Signals from outside that ask a command to end.
_ENDING = (signal.SIGTERM, signal.SIGHUP)
_INITIALIZES = ("ExtensionFileLoader.create_module", "ExtensionFileLoader.exec_module")
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(
    cls=CommandGroup,
    late={
        "audit": ("deep5.cli.audit", "audit_command"),
        "bench": ("deep5.cli.bench_operator", "bench_command"),
        "calibrate": ("deep5.cli.calibrate", "calibrate_command"),
        "clean": ("deep5.cli.clean", "clean_command"),
        "compare": ("deep5.cli.compare", "compare_command"),
        "evaluate": ("deep5.cli.evaluate", "evaluate_command"),
        "export": ("deep5.cli.export", "export_command"),
        "generate": ("deep5.cli.generate", "generate_command"),
        "new": ("deep5.cli.new", "new_command"),
        "predict": ("deep5.cli.predict", "predict_command"),
        "leaderboard": ("deep5.cli.leaderboard", "leaderboard_command"),
        "report": ("deep5.cli.report", "report_command"),
        "run": ("deep5.cli.run", "run_command"),
        "results": ("deep5.cli.results", "results_command"),
        "profile": ("deep5.cli.profile", "profile_command"),
        "serve": ("deep5.cli.serve", "serve_command"),
        "show": ("deep5.cli.show", "show_command"),
        "study": ("deep5.cli.study", "study_command"),
        "sweep": ("deep5.cli.sweep", "sweep_command"),
    },
    context_settings=_CONTEXT,
    epilog=_STATUS,
)
@click.version_option(package_name="deep5", message="deep5 %(version)s")
def _cli() -> None:
    """Run deep-learning recipes, check them, and see what there is to build them from."""


@_cli.group(
    cls=DefaultGroup,
    default="recipe",
    late={
        "framework": ("deep5.cli.check_framework", "framework_command"),
        "optimizer": ("deep5.cli.check_optimizer", "optimizer_command"),
    },
    subcommand_metavar="RECIPE | COMMAND …",
)
def check() -> None:
    """Check RECIPE without running it, or an operator, an optimizer, or a framework.

    `deep5 check RECIPE` is short for `deep5 check recipe RECIPE`.
    """


@check.command("recipe")
@recipe_options
@click.option("--json", "as_json", is_flag=True, help="Print the recipe as JSON.")
@click.option("--quiet", is_flag=True, help="Print only errors.")
@debug_option
def check_recipe(as_json: bool, quiet: bool, debug: bool, **chosen: Any) -> None:
    """Validate RECIPE without running it."""
    with errors(debug, as_json) as show:
        from deep5.run import check as checks

        recipe = configured(**chosen)
        notes = checks.check_recipe(recipe)
        if as_json:
            about = {"hash": recipe.fixed_hash(), "size": recipe.size, "division": recipe.division}
            show(json.dumps({"recipe": recipe.name, **about, **recipe.describe(), "notes": notes}, indent=2))
        elif not quiet:
            for metric, goal in recipe.metrics:
                show(f"{metric.name}: " + (f"{goal} {metric.unit}" if goal else "reported, no goal"))
            for note in notes:
                show(note)
            show(f"{recipe.name} is a valid recipe (fixed part {recipe.fixed_hash()[:12]}, size {recipe.size})")


@check.command("operator")
@click.argument("operator", metavar="NAME|FILE:CLASS")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="An argument of the class; repeatable.")
@click.option(
    "--shape",
    "shapes",
    metavar="3x4",
    multiple=True,
    help="Shape of all inputs, or one option per input; scalar: rank 0.",
)
@click.option(
    "--dtype", "dtypes", metavar="TYPE", multiple=True, help="Element type of all inputs, or one option per input."
)
@click.option("--range", "bounds", metavar="LOW HIGH", nargs=2, type=float, help="Range from which inputs are drawn.")
@click.option("--seed", type=whole_number(0), metavar="N", default=0, help="Seed of the inputs.")
@click.option("--framework", metavar="NAME", help="Run the operator on this framework.")
@click.option("--against", metavar="NAME|FILE:FUNCTION", help="The reference: a framework, or a function in float64.")
@click.option("--strict/--no-strict", default=True, help="Whether the operator must run under array_api_strict.")
@click.option(
    "--time-limit", "time_limit_s", type=float, metavar="S", default=20.0, help="Time limit of a call in seconds."
)
@click.option("--out", metavar="DIR", help="Folder for pictures of differences.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--all", "everything", is_flag=True, help="Print every check, not only a summary and what failed.")
@click.option("--quiet", is_flag=True, help="Print only failed checks.")
@debug_option
def check_operator(operator: str, as_json: bool, everything: bool, quiet: bool, debug: bool, **chosen: Any) -> NoReturn:
    """Check an operator: values, gradients, memory, element types, layouts, empty inputs, NaN.

    FILE:CLASS is a Python file and a class in it, or an operator object in it; NAME is an ONNX operator or a registered
    one. The operator first runs in a separate process. It is not accepted if no value could be checked.
    """
    with errors(debug, as_json) as show:
        from deep5.cli.check_operator import check_operator as checked
        from deep5.core.terminal import printed

        report = checked(operator, **chosen)
        if as_json:
            show(json.dumps(report.document(), indent=2, allow_nan=False))
        elif not quiet:
            show(printed(report.print if everything else report.print_summary))
        elif report.failures or not report.values:
            show(report.story())
        status = 0 if report and report.values else 1
    raise SystemExit(status)


@_cli.command("list")
@click.argument("kind", required=False)
@click.option("--all", "everything", is_flag=True, help="Show the recipes that measure deep5 itself, too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; `internal` marks what needs --all.")
@debug_option
def list_(kind: str | None, everything: bool, as_json: bool, debug: bool) -> None:
    """Show what is registered: recipes, frameworks, metrics, networks, datasets, samplers, optimizers, events.

    Recipes that measure deep5 itself are left out; --all shows them. `deep5 list keys` shows the keys of recipes.
    """
    with errors(debug, as_json) as show:
        from deep5.cli.list import KEYS, entry_lines, listing
        from deep5.core.errors import UnknownName
        from deep5.core.plugins import KINDS

        if kind == KEYS:
            _list_keys(show, as_json=as_json)
            return
        if kind is not None and kind not in KINDS:
            raise UnknownName("kind of component", kind, [*KINDS, KEYS])
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
                show(entry_lines(row["name"], row["about"], width, "  " if kind is None else ""))
            if len(shown) < len(rows):
                show(f"{'  ' if kind is None else ''}({len(rows) - len(shown)} more measure deep5 itself: add --all)")


def _list_keys(show: Callable[[str], None], *, as_json: bool) -> None:
    """Show the keys of recipes, by kind of recipe."""
    from itertools import groupby

    from deep5.cli.list import KEYS, entry_lines, key_listing, key_text

    rows = key_listing()
    if as_json:
        show(json.dumps({KEYS: rows}, indent=2))
        return
    width = max(len(row["name"]) for row in rows)
    for recipe, own in groupby(rows, lambda row: row["recipe"]):
        show(f"{recipe}:")
        for row in own:
            show(entry_lines(row["name"], key_text(row), width, "  "))
    show("A key of a component or function also has KEY_args and KEY_kwargs, its arguments.")


@_cli.command()
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@debug_option
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


def _terminated(signum: int, frame: FrameType | None) -> None:
    """End the command by an exception; later, if an extension module is being initialized.

    Its initialization is C++ that may not expect an exception of Python, and would end the process with a traceback.
    """
    while frame is not None:
        if frame.f_code.co_qualname in _INITIALIZES:
            _thread.start_new_thread(_again, (signal.Signals(signum), 0.02))
            return
        frame = frame.f_back
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise KeyboardInterrupt(f"ended by {signal.Signals(signum).name}")


def _again(number: signal.Signals, after_s: float = 0.001) -> None:
    """Repeat a signal to the main thread, from another thread."""
    time.sleep(after_s)
    _thread.interrupt_main(number)


def _not_lost(unraisable: Any, *, debug: bool) -> None:
    """Repeat an interruption that occurred in a callback of the interpreter, which cannot raise it; warn of others."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        if debug or unraisable.exc_value is None:
            sys.__unraisablehook__(unraisable)
            return
        _ignored(getattr(unraisable.object, "__qualname__", None) or brief(unraisable.object), unraisable.exc_value)
        return

    # From another thread: in this one, the handler would run within this hook, and the interruption would be lost
    # again.
    said = str(unraisable.exc_value)
    number = next((sent for sent in _ENDING if sent.name in said), signal.SIGINT)
    _thread.start_new_thread(_again, (number,))


def _in_thread(raised: threading.ExceptHookArgs, *, debug: bool) -> None:
    """Warn of an error that ended a thread, as a recipe's own."""
    if debug or raised.exc_value is None or isinstance(raised.exc_value, SystemExit):
        threading.__excepthook__(raised)
    else:
        _ignored("a thread" if raised.thread is None else f"the thread {raised.thread.name}", raised.exc_value)


def _ignored(what: str, error: BaseException) -> None:
    said = f"{what} raised {described(error)}, which Python ignores; remedy: --debug shows where"
    # Also at the end of the interpreter, when there are no streams anymore.
    with suppress(OSError):
        os.write(2, f"deep5: warning: {plain(said)}\n".encode(errors="backslashreplace"))


def _finished() -> None:
    """Ignore later signals: while the interpreter ends, they would replace the exit status of what is finished."""
    for number in (*_ENDING, signal.SIGINT):
        if signal.getsignal(number) is _terminated:
            signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """The entry point of the command `deep5`."""
    # The first one registered is the last one called, after threads have ended and recipes' own functions have run.
    atexit.register(_finished)
    try:
        # A run ended from outside (such as by a batch system, or a terminal that is closed) shuts down cleanly, like
        # one that the user interrupts. `nohup` ignores the second signal.
        for ending in _ENDING:
            if signal.getsignal(ending) is not signal.SIG_IGN:
                signal.signal(ending, _terminated)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, _terminated)
        sys.unraisablehook = partial(_not_lost, debug="--debug" in sys.argv)
        threading.excepthook = partial(_in_thread, debug="--debug" in sys.argv)
        steady_streams()
        hide_reports()
        if "_DEEP5_COMPLETE" in os.environ:
            import deep5.cli.completion  # noqa: F401  # registers the script of bash
        with silenced("--quiet" in sys.argv):
            status = _status("--json" in sys.argv)
    except KeyboardInterrupt:
        status = 130
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 3
    status, lost = output_status(status, sys.argv[1:])
    if lost is not None:
        click.echo(f"deep5: {lost}", err=True)
    raise SystemExit(status)


def _status(as_json: bool) -> int:
    """Carry out the command; its exit status, or SystemExit."""
    try:
        status = _cli.main(standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        fail("interrupted", 130, as_json)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        raise SystemExit(2) from error
    except click.ClickException as error:
        if isinstance(error, click.UsageError) and error.ctx is not None:
            click.echo(error.ctx.get_usage(), err=True)
        fail(*reported(error), as_json)
    return status if isinstance(status, int) else 0
