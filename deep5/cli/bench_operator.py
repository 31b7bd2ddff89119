"""The command `deep5 bench operator`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from deep5.cli.bench_collective import collective_command
from deep5.cli.group import CommandGroup
from deep5.cli.on_engine import engine_option
from deep5.core.errors import Errors, UsageError

__all__ = ["bench_command", "ready_recipe"]


def ready_recipe(
    operator: str,
    *,
    problems: str | None = None,
    uses: tuple[str, ...] = (),
    frameworks: str | None = None,
    shapes: tuple[str, ...] = (),
    attributes: tuple[str, ...] = (),
    dtypes: Sequence[str] = (),
    bounds: tuple[float, float] | None = None,
    backward: bool = False,
    rigorous: bool = False,
    threads: int = 1,
    cold: bool = False,
    limit_gflop: float | None = None,
    take: int | None = None,
    device: str = "cpu",
    seed: int = 0,
) -> Any:
    """The recipe equivalent to a command line.

    Args:
        operator: Name of an ONNX operator, `DOMAIN.NAME`, or `FILE.py:NAME`.
        problems: A problem set.
        uses: Uses of its problems.
        frameworks: Names separated by commas; None: all installed frameworks.
        shapes: Shapes of the inputs, each as `64x64`.
        attributes: Attributes of the operator, each as `KEY=VALUE`.
        dtypes: Element types of the inputs: one for all, or one per input; none: float32.
        bounds: Inputs are drawn between these.
        backward: Whether gradients are timed too.
        rigorous: Whether to use fresh processes.
        threads: Threads within an operator.
        cold: Whether to time with cold caches too.
        limit_gflop: Maximum work of a problem.
        take: Number of problems to run.
        device: The device to use.
        seed: Seed of the numbers and of the order.

    Raises:
        UsageError: An argument that cannot be read, or a name that does not exist.
    """
    from deep5.recipe.operator_names import parse_shape
    from deep5.recipe.recipe import Recipe
    from deep5.recipe.settings import parse_setting

    given = tuple(dict(parse_setting(text) for text in attributes).items())
    if len(given) < len(attributes):
        raise UsageError("--set gives an attribute twice; allowed: once")
    name = re.sub(r"[^A-Za-z0-9_]", "_", operator.rpartition(":")[2])
    fixed: dict[str, Any] = {
        "operator": operator,
        "problems": problems,
        "uses": tuple(uses),
        "shapes": tuple(parse_shape(text) for text in shapes),
        "attributes": dict(given),
        "dtype": tuple(dtypes) if len(dtypes) > 1 else "".join(dtypes) or "float32",
        **({} if bounds is None else {"bounds": bounds}),
        "backward": backward,
        "limit_gflop": limit_gflop,
        "take": take,
    }
    mutable = {
        "frameworks": _frameworks(frameworks),
        "rigorous": rigorous,
        "threads": threads,
        "cold": cold,
        "device": device,
        "seed": seed,
    }
    return Recipe.make(fixed, mutable, [], name=f"bench_{name or 'operator'}")


def _frameworks(text: str | None) -> tuple[str, ...]:
    """The named frameworks, or all whose packages are installed; loads none."""
    from importlib.metadata import PackageNotFoundError, version

    from deep5.core.plugins import load, registered

    if text is not None:
        return tuple(name.strip() for name in text.split(",") if name.strip())
    found = []
    for name in registered("frameworks"):
        try:
            for package in load("frameworks", name).requires:
                version(package)
        except (PackageNotFoundError, UsageError):
            continue
        found.append(name)
    return tuple(found)


def bench_command(errors: Errors) -> click.Group:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.group(cls=CommandGroup)
    def bench() -> None:
        """Time operators on every framework, and collectives of ranks."""

    @bench.command("operator")
    @_options
    @engine_option(errors, "bench", "operator")
    def operator(name: str, quick: bool, out: str, as_json: bool, debug: bool, **chosen: Any) -> None:
        """Time the operator NAME: ONNX's (Conv, MatMul, LSTM), DOMAIN.NAME or FILE.py:NAME.

        A NAME in a file is a class of d5.Operator, an operator (a d5.NativeOperator, say), or a function of arrays.
        """
        with errors(debug, as_json) as show:
            from deep5.bench.record import OPERATORS
            from deep5.recipe.experiment import Experiment
            from deep5.run.operators import time_operators

            recipe = ready_recipe(name, rigorous=not quick, **chosen)
            result = time_operators(Experiment.of(recipe), out, quiet=as_json)
            if as_json:
                show((result.folder / OPERATORS).read_text("utf-8").rstrip("\n"))
            else:
                show(f"the result is in {result.folder}")

    bench.add_command(collective_command(errors))
    return bench


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    number = click.IntRange(min=1)
    options = [
        click.argument("name"),
        click.option("--problems", metavar="SET", help="deepbench.conv, deepbench.gemm or deepbench.rnn."),
        click.option("--use", "uses", metavar="USE", multiple=True, help="training, inference_server, …"),
        click.option("--frameworks", metavar="NAMES", help="Comma-separated.  [default: all installed]"),
        click.option(
            "--shape", "shapes", metavar="64x64", multiple=True, help="Shape of an input; one option per input."
        ),
        click.option(
            "--set", "attributes", metavar="KEY=VALUE", multiple=True, help="An attribute of the operator; repeatable."
        ),
        click.option(
            "--dtype",
            "dtypes",
            metavar="TYPE",
            multiple=True,
            help="Element type of all inputs, or one option per input.  [default: float32]",
        ),
        click.option(
            "--range", "bounds", metavar="LOW HIGH", nargs=2, type=float, help="Range from which inputs are drawn."
        ),
        click.option("--backward", is_flag=True, help="Also time gradients."),
        click.option(
            "--quick/--rigorous",
            "quick",
            default=True,
            help="Measure in this process (about 10 s per size and framework), or in eight fresh processes.",
        ),
        click.option(
            "--threads", type=number, default=1, show_default=True, metavar="N", help="Threads within an operator."
        ),
        click.option("--cold", is_flag=True, help="Also time calls with cold caches."),
        click.option("--limit", "limit_gflop", type=float, metavar="GFLOP", help="Skip problems with more work."),
        click.option("--take", type=number, metavar="N", help="Use only N of the problems, evenly spread."),
        click.option("--device", default="cpu", show_default=True, metavar="D", help="cpu, cuda or cuda:N."),
        click.option(
            "--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the data and the order."
        ),
        click.option("--out", metavar="DIR", default="results", show_default=True, help="Parent of the result folder."),
        click.option("--json", "as_json", is_flag=True, help="Print only the times, as JSON."),
        click.option("--debug", is_flag=True, help="On an error, show the traceback."),
    ]
    for option in reversed(options):
        command = option(command)
    return command
