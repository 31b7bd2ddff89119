"""The command `deep5 generate`."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from deep5.core.errors import Errors, UsageError
from deep5.core.terminal import plain
from deep5.trained.generate import generator_of

__all__ = ["generate_command"]

_TOKENS = 32


def generate_command(errors: Errors) -> click.Command:
    """Create the command.

    Args:
        errors: Error handling of the command line.
    """

    @click.command("generate")
    @click.argument("result", metavar="RESULT")
    @click.argument("prompt", metavar="PROMPT")
    @click.option(
        "--tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="New tokens, at most; default: 32, or what the network's longest sequence leaves.",
    )
    @click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="T",
        help="Divides the logits before a draw; 0: the most probable token.",
    )
    @click.option("--top-k", type=click.IntRange(min=1), metavar="K", help="Draw from the K most probable tokens.")
    @click.option(
        "--top-p", type=click.FloatRange(0, 1, min_open=True), metavar="P", help="Draw from those with probability P."
    )
    @click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N", help="Of the draws.")
    @click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
    @click.option("--framework", metavar="NAME", help="Run on this framework instead of the run's.")
    @click.option("--device", metavar="D", default="cpu", show_default=True, help="cpu, cuda or cuda:N.")
    @click.option("--recipe", metavar="RECIPE", help="The run's recipe, if its data set is code of the recipe.")
    @click.option("--json", "as_json", is_flag=True, help="Print tokens and latencies as JSON.")
    @click.option("--debug", is_flag=True, help="On an error, show the traceback.")
    def generate(
        result: str,
        prompt: str,
        tokens: int | None,
        framework: str | None,
        device: str,
        recipe: str | None,
        as_json: bool,
        debug: bool,
        **settings: Any,
    ) -> None:
        """Continue PROMPT with the trained language model of RESULT, a result folder.

        The text appears as it is generated. Nothing in RESULT is executed.
        """
        with errors(debug, as_json) as show:
            if not all(settings["stop"]):
                raise UsageError("--stop ''; allowed: a string that is not empty")
            generator, notes = generator_of(result, framework=framework, device=device, recipe=recipe)
            ended = []
            most = tokens or max(1, min(_TOKENS, generator.room(prompt)))
            for event in generator.stream([prompt], max_new_tokens=most, **settings):
                if not as_json:
                    click.echo(plain(event.text), nl=False)
                    sys.stdout.flush()
                if event.completion is not None:
                    ended.append(event.completion)
            (done,) = ended
            if done.error is not None:
                raise done.error
            if as_json:
                document = {
                    "text": done.text,
                    "tokens": list(done.tokens),
                    "ended": done.ended,
                    "prompt_tokens": done.prompt_tokens,
                    "time_to_first_token_s": done.ttft_s,
                    "time_per_output_token_s": done.tpot_s,
                    "latency_s": done.latency_s,
                    "notes": list(notes),
                }
                show(json.dumps(document, indent=2, allow_nan=False))
                return
            show("\n".join(["", *(f"note: {note}" for note in notes)]))

    return generate
