"""The command `deep5 show`."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deep5.cli.group import CommandGroup
from deep5.cli.show_dataset import dataset_command
from deep5.cli.show_parts import called, check_folder, pairs, printed
from deep5.cli.show_sweep import sweep_command
from deep5.core.errors import (
    Errors,
    MissingDependency,
    NetworkError,
    NetworkWarning,
    UnknownName,
    UsageError,
)
from deep5.core.files import is_file
from deep5.core.terminal import plain

if TYPE_CHECKING:
    from deep5.networks.network import Network
    from deep5.results.network_record import NetworkRecord

__all__ = ["show_command"]

_BATCHES = "256,64,16,4,1"


def show_command(errors: Errors) -> click.Group:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.group("show", cls=CommandGroup)
    def show() -> None:
        """Show the parts of a component: the layers of a network, the samples of a data set, the
        trials of a sweep."""

    @show.command("network")
    @click.argument("network", metavar="NAME|FILE")
    @click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="An argument of the network; repeatable."
    )
    @click.option("--batch", type=int, metavar="N", help="Batch size, the first dimension of inputs; default: 1.")
    @click.option(
        "--extent", "extents", metavar="NAME=N", multiple=True, help="Value of another symbolic dimension; repeatable."
    )
    @click.option("--run", is_flag=True, help="Measure the sizes that cannot be inferred by one run on random inputs.")
    @click.option(
        "--time-limit", type=float, default=60.0, show_default=True, metavar="S", help="Seconds that --run may take."
    )
    @click.option("--time", "framework", metavar="FRAMEWORK", help="Also measure the layers on this framework.")
    @click.option("--batches", metavar="N,…", help=f"Batch sizes for --time; default: {_BATCHES}.")
    @click.option("--threads", type=int, metavar="N", help="Threads within an operator for --time.")
    @click.option("-o", "--out", metavar="DIR", help="Write network.json and pictures of graph and shares there.")
    @click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def network_(
        network: str,
        settings: tuple[str, ...],
        batch: int | None,
        extents: tuple[str, ...],
        run: bool,
        time_limit: float,
        framework: str | None,
        batches: str | None,
        threads: int | None,
        out: str | None,
        as_json: bool,
        debug: bool,
    ) -> None:
        """Show the layers of a network: shapes, parameters, operations, memory, without running it.

        NAME is a registered network ('deep5 list networks') or FILE.py:NAME, as in a recipe; FILE ends in .onnx. --out
        also draws the graph and the shares of layers and of their operators; --time measures every layer, forward and
        backward, at several batch sizes. A size that is not given, or that only a run determines, is shown by its name
        or as unknown, and sums are then lower bounds; --run measures the latter, in at most --time-limit seconds. For
        a FILE, a second table says which tensors are trained, which are not, why, and which of this is a guess.
        """
        with errors(debug, as_json) as report:
            if not time_limit > 0:
                raise UsageError(f"--time-limit {time_limit:g}; allowed: seconds above 0; remedy: --time-limit 60")
            sizes = _batch_sizes(framework, batches, threads)
            if out is not None:
                check_folder(out)
            made, arguments = _network(network, settings)
            record = _record(
                network,
                made,
                arguments,
                batch,
                pairs("--extent", extents),
                time_limit if run else None,
                framework,
                sizes,
                threads,
            )
            missing = [] if out is None else _write(made, record, Path(out))
            if as_json:
                report(json.dumps(record.document(), indent=2, allow_nan=False))
                for reason in missing:
                    click.echo(f"deep5: {plain(reason)}", err=True)
            else:
                report(printed(record))
                if out is not None:
                    report(plain("\n".join([out, *missing])))

    show.add_command(dataset_command(errors))
    show.add_command(sweep_command(errors))
    return show


def _batch_sizes(framework: str | None, text: str | None, threads: int | None) -> list[int]:
    if framework is None:
        for option, given in (("--batches", text), ("--threads", threads)):
            if given is not None:
                raise UsageError(f"{option} is given and --time is not; allowed: both; remedy: --time pytorch, say")
        return []
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}; allowed: an integer of at least 1")
    try:
        found = [int(part) for part in (text or _BATCHES).split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1 or len(set(found)) < len(found):
        raise UsageError(
            f"--batches {text!r}; allowed: distinct, comma-separated integers of at least 1, such as {_BATCHES}"
        )
    return found


def _network(text: str, settings: Sequence[str]) -> tuple[Network, dict[str, Any]]:
    """The network named on the command line, and the arguments that created it.

    Raises:
        UsageError: No such name or file, or arguments that do not fit.
    """
    arguments = pairs("--set", settings)
    from deep5.core.plugins import load
    from deep5.networks.network import Network
    from deep5.recipe.file import named_in_file

    if text.endswith(".onnx"):
        if arguments:
            raise UsageError("--set is given with a file; allowed: with a registered network, which takes arguments")
        with warnings.catch_warnings(record=True) as ignored:
            warnings.simplefilter("always", NetworkWarning)
            try:
                read = Network.from_onnx(text)
            except NetworkError as error:
                raise UsageError(str(error)) from error
        for warning in ignored:
            click.echo(f"deep5: {plain(str(warning.message))}", err=True)
        return read, {}
    if ".py:" not in text and (os.sep in text or text.endswith(".py")):
        raise _no_name(text)
    try:
        made = named_in_file(text) if ".py:" in text else load("networks", text)
    except UnknownName as error:
        if is_file(text):
            raise _no_name(text) from error
        raise
    if callable(made):
        made = called(text, made, arguments)
    elif arguments:
        raise UsageError(f"{text} is an object already; allowed: no --set")
    if not isinstance(made, Network):
        raise UsageError(f"{text} gives a {type(made).__name__}; allowed: a d5.Network")
    return made, arguments


def _no_name(file: str) -> UsageError:
    remedy = f"{file}:NAME" if file.endswith(".py") else "d5.Network.from_onnx(…).save('FILE.onnx') for ONNX in it"
    return UsageError(
        f"got the file {file} as the network; allowed: a registered name, FILE.onnx or FILE.py:NAME; remedy: {remedy}"
    )


def _record(
    source: str,
    made: Network,
    arguments: Mapping[str, Any],
    batch: int | None,
    extents: Mapping[str, Any],
    run_s: float | None,
    framework: str | None,
    batches: Sequence[int],
    threads: int | None,
) -> NetworkRecord:
    from deep5.core.plugins import framework as backend
    from deep5.core.time_limit import time_limit
    from deep5.networks.analysis.analysis import analyse
    from deep5.networks.analysis.extents import batch_extents
    from deep5.networks.analysis.layer_timing import layer_times
    from deep5.networks.analysis.sizes import measured_specs
    from deep5.results.network_record import NetworkRecord

    try:
        one = batch is None and any(symbol not in extents for symbol in batch_extents(made))
        measured = None
        if run_s is not None:
            with time_limit(run_s):
                measured = measured_specs(made, 1 if one else batch, extents)
        try:
            found = analyse(made, 1 if one else batch, extents=extents, partial=True, measured=measured)
        except NetworkError:
            if not one:
                raise
            found = analyse(made, extents=extents, partial=True)  # the nodes do not accept a batch of one
        if framework is not None and threads is not None:
            backend(framework).set_threads(threads)
        times = [] if framework is None else layer_times(made, framework, batches, extents=extents)
    except NetworkError as error:
        raise UsageError(str(error)) from error
    return NetworkRecord(
        source=source, found=found, arguments=arguments, decisions=made.decisions, times=times, threads=threads
    )


def _write(made: Network, record: NetworkRecord, out: Path) -> list[str]:
    """Write the files; returns what could not be drawn, with reasons."""
    from deep5.core.files import write_folder
    from deep5.networks.analysis.picture import svg
    from deep5.results.kind import NETWORK

    content: dict[str, bytes | str] = {NETWORK: json.dumps(record.document(), indent=2, allow_nan=False) + "\n"}
    missing = []
    try:
        content["network.svg"] = svg(made, record.found)
    except UsageError as error:
        missing.append(f"no network.svg was drawn: {error}")
    try:
        from deep5.core.charts import files
        from deep5.results.charts.network import network_charts

        for name, chart in network_charts(record).items():
            content |= files(name, chart)
    except MissingDependency as error:
        missing.append(f"no shares were drawn: {error}")
    write_folder(out, content)
    return missing
