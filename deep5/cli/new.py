"""The command `deep5 new`."""

from __future__ import annotations

import json

import click

from deep5.cli.errors import errors
from deep5.cli.recipe_options import debug_option

__all__ = ["new_command"]


@click.command("new")
@click.argument("kind")
@click.argument("name")
@click.option("--out", metavar="DIR", default=".", show_default=True, help="Folder to write to.")
@click.option("--json", "as_json", is_flag=True, help="Print the files and the next commands as JSON.")
@debug_option
def new_command(kind: str, name: str, out: str, as_json: bool, debug: bool) -> None:
    """Write a working start of a component, with a test: KIND is recipe, operator, cpp_operator, optimizer, metric,
    dataset, scheme, framework, network, sampler, transform, event, schedule or compression.

    NAME is fused_gelu or FusedGelu: the file gets the first form, and the class the second. KIND may also be plugin: a
    package with all of them, which pip installs. No existing file is changed.
    """
    with errors(debug, as_json) as show:
        from deep5.cli.starts import write_start

        written = write_start(kind, name, out)
        if as_json:
            show(json.dumps({"files": [str(path) for path in written.files], "next": written.commands}, indent=2))
            return
        for path in written.files:
            show(f"wrote {path}")
        show("next:")
        for command in written.commands:
            show(f"  {command}")
