"""The command `deep5 serve`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deep5.core.errors import Errors, UsageError
from deep5.core.files import is_file, is_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from deep5.networks.network import Network

__all__ = ["serve_command"]

_LONGEST_S = 1e6
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


def serve_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("serve")
    @click.argument("source", metavar="SOURCE")
    @click.option("--framework", metavar="NAME", help="Back-end that runs the network, in place of SOURCE's.")
    @click.option("--device", metavar="D", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
    @click.option("--threads", type=click.IntRange(min=1), metavar="N", help="Threads within an operator.")
    @click.option("--name", metavar="NAME", help="Name of the model for clients.")
    @click.option(
        "--max-batch", type=click.IntRange(1, 65536), default=8, show_default=True, metavar="N",
        help="Most samples in a batch.",
    )  # fmt: skip
    @click.option(
        "--deadline", "deadline_s", type=float, default=0.002, show_default=True, metavar="S",
        help="Longest wait of the oldest sample for a fuller batch, in seconds.",
    )  # fmt: skip
    @click.option(
        "--timeout", "timeout_s", type=float, default=60.0, show_default=True, metavar="S",
        help="Longest time to an answer in seconds.",
    )  # fmt: skip
    @click.option(
        "--max-body", type=click.IntRange(1, 4096), default=64, show_default=True, metavar="MIB",
        help="Largest body of a request in MiB.",
    )  # fmt: skip
    @click.option(
        "--waiting", type=click.IntRange(min=1), default=4096, show_default=True, metavar="N",
        help="Most samples that wait; further ones are refused.",
    )  # fmt: skip
    @click.option("--host", default="127.0.0.1", show_default=True, metavar="A", help="Address to listen at.")
    @click.option(
        "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, metavar="N", help="0: a free port."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def serve(
        source: str, framework: str | None, name: str | None, deadline_s: float, timeout_s: float, max_body: int,
        waiting: int, as_json: bool, debug: bool, **chosen: Any,
    ) -> None:  # fmt: skip
        """Serve a network by KServe's protocol, version 2, over HTTP, until Ctrl-C.

        SOURCE is a recipe, whose network has its initial weights; a result folder, whose network is trained; or an ONNX
        file. There is no authentication: by default only this machine can connect.
        """
        with errors(debug, as_json) as show:
            from deep5.bench.serving.http_server import Limits
            from deep5.run.server_process import serve_network

            if not 0 <= deadline_s < _LONGEST_S:
                raise UsageError(f"--deadline {deadline_s:g}; allowed: seconds from 0 to {_LONGEST_S:g}, such as 0.002")
            if not 0 < timeout_s < _LONGEST_S:
                raise UsageError(f"--timeout {timeout_s:g}; allowed: seconds above 0, to {_LONGEST_S:g}, such as 60")
            network, own_name, own_framework = _source(source)
            chosen_name = own_name if name is None else name
            if _NAME.fullmatch(chosen_name) is None:
                raise UsageError(
                    f"the model's name is {chosen_name!r:.120}; allowed: letters, digits, _, . and -; remedy: --name"
                )
            on = framework or own_framework
            limits = Limits(body_bytes=max_body << 20, waiting=waiting, timeout_s=timeout_s)
            answered = serve_network(
                network,
                name=chosen_name,
                framework_name=on,
                deadline_s=deadline_s,
                limits=limits,
                on_start=_reporting(show, on, as_json=as_json),
                **chosen,
            )
            if not as_json:
                show(f"answered {answered} requests")

    return serve


def _reporting(show: Callable[[str], None], on: str, *, as_json: bool) -> Callable[[str, str], None]:
    def started(url: str, model: str) -> None:
        if as_json:
            show(json.dumps({"url": url, "model": model, "framework": on}))
        else:
            show(f"serving {model} on {on} at {url} by KServe's protocol, version 2; stop with Ctrl-C")

    return started


def _source(source: str) -> tuple[Network, str, str]:
    """The network, its name, and the framework that runs it by default."""
    from deep5.networks.network import Network

    if source.lower().endswith(".onnx"):
        if not is_file(source):
            raise UsageError(f"the file {source} is not there; allowed: a recipe, a result folder, or an ONNX file")
        return Network.from_onnx(source), Path(source).stem, "onnxruntime"
    if is_folder(source):
        from deep5.trained.load import trained, weights_of

        run = trained(source)
        network, _ = weights_of(run)
        recorded = run.result.document["framework"] or {}
        return network, str(run.result.document["recipe"]["name"]), str(recorded.get("name"))
    from deep5.recipe.experiment import recipe_parts
    from deep5.recipe.recipe import load_recipe
    from deep5.run.serving import recipe_network

    recipe = load_recipe(source)
    if "model" not in recipe.kind.keys:
        raise UsageError(
            f"{source} is a recipe without a network; allowed: a recipe with the key 'model', a result folder, or an "
            "ONNX file"
        )
    named = recipe.value("framework")
    return recipe_network(recipe_parts(recipe)), recipe.name, named if isinstance(named, str) else "pytorch"
