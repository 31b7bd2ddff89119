"""The command `deep5 generate`: the text of a trained language model, as it is generated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deep5 as d5
from command import Command
from deep5.core.errors import UsageError
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.trained.generate import generator_of

PROMPT = "Return the"
DRAWN = ("--tokens", "12", "--temperature", "1.5", "--top-k", "30", "--seed", "4")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `text_gpt` at its smoke size."""
    return execute(load_recipe("text_gpt").at_size("smoke"), out=tmp_path_factory.mktemp("runs")).folder


def test_the_text_is_that_of_the_generator(trained: Path, deep5: Command) -> None:
    generator, notes = generator_of(trained)
    assert notes == ()
    assert generator.context == 32
    (done,) = generator.generate([PROMPT], max_new_tokens=12, temperature=1.5, top_k=30, seed=4)
    assert done.text
    answer = deep5("generate", str(trained), PROMPT, *DRAWN)
    assert (answer.status, answer.out) == (0, f"{done.text}\n")
    words = (*DRAWN, "--framework", "onnxruntime", "--json")
    document = json.loads(deep5("generate", str(trained), PROMPT, *words).out)
    assert document["prompt_tokens"] == len(PROMPT)
    assert document["ended"] == "length"
    assert len(document["tokens"]) == 12
    assert 0 < document["time_to_first_token_s"] < document["latency_s"]
    assert set(document["notes"]) == set()


def test_the_weights_are_the_trained_ones(trained: Path) -> None:
    generator, _ = generator_of(trained, framework="reference")
    wanted = d5.Network.from_onnx(trained / "network.onnx").initial("block0.attention.qkv.weight")
    assert (generator.executor.network.initial("block0.attention.qkv.weight") == wanted).all()
    assert (
        generator.executor.network.weights_hash()
        != d5.networks.gpt_cached(vocabulary=128, length=32, width=32, heads=2, layers=1).weights_hash()
    )


@pytest.mark.parametrize(
    ("prompt", "words", "message"),
    [
        (PROMPT, ("--tokens", "30"), "the request needs 40 tokens, 10 of the prompt and 30 new ones; allowed: 32"),
        ("", (), "the prompt has no tokens; allowed: at least one"),
        ("日本", (), "the token '日' at position 0 is not in the vocabulary of"),
        (PROMPT, ("--stop", ""), "--stop ''; allowed: a string that is not empty"),
    ],
)
def test_what_cannot_be_continued_is_an_error(
    prompt: str, words: tuple[str, ...], message: str, trained: Path, deep5: Command
) -> None:
    answer = deep5("generate", str(trained), prompt, *words)
    assert answer.status == 2
    assert message in answer.err


def test_without_a_number_there_are_as_many_tokens_as_fit(trained: Path, deep5: Command) -> None:
    answer = deep5("generate", str(trained), PROMPT, "--json")
    assert answer.status == 0, answer.err
    assert len(json.loads(answer.out)["tokens"]) == 32 - len(PROMPT)
    answer = deep5("generate", str(trained.parent), PROMPT)
    assert answer.status == 2
    assert f"allowed: a folder that a run wrote; remedy: one of those inside, such as {trained}" in answer.err


def test_another_network_has_no_generator(tmp_path: Path) -> None:
    folder = execute(load_recipe("digits_lenet").at_size("smoke"), out=tmp_path).folder
    with pytest.raises(UsageError, match="the network 'lenet' has no form with a cache"):
        generator_of(folder)
