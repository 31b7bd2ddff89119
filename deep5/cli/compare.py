"""The command `deep5 compare`."""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

import click

from deep5.cli.on_engine import engine_option
from deep5.cli.recipe_options import shared_settings_option, whole_number
from deep5.core.errors import Errors, UsageError
from deep5.core.progress import Reporter

__all__ = ["compare_command", "once", "parse_bytes"]


def compare_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("compare")
    @click.argument("recipe")
    @click.option("--frameworks", metavar="NAMES", help="Frameworks, comma-separated; a colon precedes a mode.")
    @click.option("--vary", metavar="KEY=V,V", multiple=True, help="A mutable part and its values; repeatable.")
    @shared_settings_option
    @click.option("--quick", is_flag=True, help="Two processes per candidate (default).")
    @click.option("--rigorous", is_flag=True, help="Ten to thirty processes per candidate.")
    @click.option(
        "--of", "kind", metavar="KIND", help="training (default) or inference; operators for recipes of operators."
    )
    @click.option("--size", metavar="NAME", help="A size of the recipe, such as smoke; default: full.")
    @click.option(
        "--baseline", metavar="CANDIDATE", help="The candidate to compare the others with; default: the first."
    )
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option(
        "--processes",
        "most",
        type=whole_number(1),
        metavar="N",
        help="Maximum of processes per candidate: with --rigorous 10, 16, 24 or 30, otherwise 2.",
    )
    @click.option("--steps", type=click.IntRange(min=2), metavar="N", help="Training steps of the proof; default: 100.")
    @click.option(
        "--time-limit",
        "time_limit_s",
        type=float,
        metavar="S",
        help="Time limit of one process in seconds; default: 600.",
    )
    @click.option(
        "--memory-limit",
        metavar="SIZE",
        help="Memory limit of one process, such as 4GiB; default: 90 % of free memory.",
    )
    @click.option(
        "--seed", type=click.IntRange(min=0), metavar="N", help="Seed of the order of processes; default: random."
    )
    @click.option("--out", metavar="DIR", default="results", show_default=True, help="Parent of the result folder.")
    @click.option("--resume", metavar="FOLDER", help="Resume in the folder of an interrupted comparison.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--quiet", is_flag=True, help="Print only errors.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    @engine_option(errors, "compare")
    def command(
        recipe: str,
        frameworks: str | None,
        vary: tuple[str, ...],
        settings: tuple[str, ...],
        quick: bool,
        rigorous: bool,
        memory_limit: str | None,
        out: str,
        as_json: bool,
        quiet: bool,
        debug: bool,
        **options: Any,
    ) -> None:
        """Compare candidates on RECIPE: prove that they compute the same, time them in turn, and give verdicts.

        Each candidate runs in fresh processes, one at a time. A candidate that fails, or computes something else, is
        reported as such and not timed; the others continue.
        """
        with errors(debug, as_json) as show:
            if quick and rigorous:
                raise UsageError("--quick and --rigorous are both given; allowed: one of them")

            from deep5.compare.driver import run_comparison
            from deep5.compare.options import parse_variation
            from deep5.recipe.settings import parse_setting

            options |= {
                "frameworks": [name.strip() for name in (frameworks or "").split(",") if name.strip()] or None,
                "vary": once("--vary", [parse_variation(text) for text in vary]) or None,
                "settings": once("--set", [parse_setting(text) for text in settings]) or None,
                "rigorous": rigorous if quick or rigorous else None,
                "memory_limit_bytes": None if memory_limit is None else parse_bytes(memory_limit),
            }
            with Reporter(quiet=quiet) as tell:
                done = run_comparison(
                    recipe,
                    out=out,
                    tell=tell,
                    **options,
                )
            if as_json:
                show(json.dumps({**done.document, "folder": str(done.folder)}, indent=2, allow_nan=False))
            elif not quiet:
                from deep5.core.terminal import printed
                from deep5.results.comparison_table import comparison_tables

                show(printed(partial(comparison_tables, done)))

    return command


def once(option: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The values of a repeatable option by key.

    Raises:
        UsageError: A key is given twice.
    """
    for place, (key, _) in enumerate(pairs):
        if key in dict(pairs[:place]):
            raise UsageError(f"{option} {key} is given twice; allowed: once")
    return dict(pairs)


def parse_bytes(text: str) -> int:
    """Read a size of memory.

    Raises:
        UsageError: It is invalid.

    >>> parse_bytes("4GiB"), parse_bytes("800MB")
    (4294967296, 800000000)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B?)?\s*", text)
    if found is None:
        raise UsageError(f"--memory-limit {text!r}; allowed: a size such as 4GiB or 800MB")
    unit = found[2] or ""
    base = 1024 if "i" in unit or len(unit) == 1 else 1000
    return int(float(found[1]) * base ** ("KMGT".index(unit[0]) + 1 if unit else 0))
