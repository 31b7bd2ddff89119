"""Generated tokens: the same on every back-end and in every batch, with their times; failures are counted."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import ShapeError, UsageError
from deep5.generation.decoding import Decoding
from deep5.networks import Network, gpt, gpt_cached
from deep5.training.datasets.text_files import vocabulary_of

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")
SIZES: dict[str, Any] = {"vocabulary": 23, "length": 24, "width": 16, "heads": 4, "layers": 2, "seed": 3}
_RNG = np.random.default_rng(5)
PROMPTS = [_RNG.integers(0, 23, size).tolist() for size in (3, 11, 1, 6)]
SAMPLED: dict[str, Any] = {"temperature": 1.1, "top_k": 12, "top_p": 0.95, "seed": 9}


def scaled(dtype: str = "float64") -> Network:
    """Larger weights than the initial ones, so that tokens differ from each other."""
    network = gpt_cached(**SIZES, dtype=dtype)
    return network.with_values({name: value * 8 for name, value in network.parameters().items()})


def made(framework: str = "reference", **options: Any) -> d5.TextGenerator:
    return d5.TextGenerator(scaled(), framework=framework, **options)


def tokens_of(done: list[d5.Completion]) -> list[tuple[int, ...]]:
    assert not [each.error for each in done if each.failed]
    return [each.tokens for each in done]


def by_the_whole_decoder(prompt: list[int], count: int) -> tuple[int, ...]:
    """Greedy tokens by `gpt` without a cache, over the whole sequence each time."""
    plain = gpt(**SIZES, dropout=0.0, dtype="float64").with_values(dict(scaled().parameters()))
    executor = d5.framework("reference").executor(plain)
    sequence = list(prompt)
    for _ in range(count):
        padded = np.array([sequence + [0] * (24 - len(sequence))])
        logits = executor.inference({"input": padded, "label": padded})["logits"]
        sequence.append(int(logits[0, len(sequence) - 1].argmax()))
    return tuple(sequence[len(prompt) :])


@pytest.mark.parametrize("settings", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_tokens_are_the_same_on_every_back_end_and_in_every_batch(settings: dict[str, Any]) -> None:
    wanted = tokens_of(made().generate(PROMPTS, max_new_tokens=10, **settings))
    assert len({token for tokens in wanted for token in tokens}) > 5
    for framework in FRAMEWORKS[1:]:
        assert tokens_of(made(framework).generate(PROMPTS, max_new_tokens=10, **settings)) == wanted
    for index, prompt in enumerate(PROMPTS):
        request = d5.GenerationRequest(prompt=prompt, max_new_tokens=10, number=index, **settings)
        assert tokens_of(made().generate([request])) == wanted[index : index + 1]
    requests = [
        d5.GenerationRequest(prompt=prompt, max_new_tokens=10, number=index, **settings)
        for index, prompt in enumerate(PROMPTS)
    ]
    assert tokens_of(made(granularity=5).generate(requests[::-1])) == wanted[::-1]


def test_greedy_tokens_are_those_of_the_whole_decoder() -> None:
    done = made().generate(PROMPTS, max_new_tokens=8)
    assert tokens_of(done) == [by_the_whole_decoder(prompt, 8) for prompt in PROMPTS]


def test_a_gpt_and_an_executor_give_the_same_tokens_as_the_form_with_a_cache() -> None:
    plain = gpt(**SIZES, dropout=0.3, dtype="float64").with_values(dict(scaled().parameters()))
    wanted = tokens_of(made().generate(PROMPTS, max_new_tokens=4))
    assert tokens_of(d5.TextGenerator(plain, framework="reference").generate(PROMPTS, max_new_tokens=4)) == wanted
    executor = d5.framework("reference").executor(scaled())
    assert tokens_of(d5.TextGenerator(executor).generate(PROMPTS, max_new_tokens=4)) == wanted


def test_draws_depend_on_seed_number_and_position() -> None:
    def drawn(prompt: list[int], **settings: Any) -> tuple[int, ...]:
        request = d5.GenerationRequest(prompt=prompt, **{**SAMPLED, "number": 1, "max_new_tokens": 12, **settings})
        return tokens_of(made().generate([request]))[0]

    first = drawn(PROMPTS[0])
    assert drawn(PROMPTS[0]) == first
    assert drawn(PROMPTS[0], seed=10) != first
    assert drawn(PROMPTS[0], number=2) != first
    # A generation may be resumed from its tokens.
    assert drawn(PROMPTS[0] + list(first[:5]), max_new_tokens=7) == first[5:]


def test_the_lowest_of_equal_tokens_is_taken() -> None:
    network = gpt_cached(**SIZES)
    zero = network.with_values({name: value * 0 for name, value in network.parameters().items()})
    for framework in FRAMEWORKS:
        assert tokens_of(d5.TextGenerator(zero, framework=framework).generate([[5]], max_new_tokens=3)) == [(0, 0, 0)]


def test_requests_of_one_batch_end_at_different_times() -> None:
    requests = [
        d5.GenerationRequest(prompt=prompt, max_new_tokens=count, number=0)
        for prompt, count in zip(PROMPTS, (1, 13, 23, 2), strict=True)
    ]
    done = made("pytorch").generate(requests)
    assert [len(each.tokens) for each in done] == [1, 13, 23, 2]
    for request, completion in zip(requests, done, strict=True):
        assert completion.request is request
        assert completion.tokens == tokens_of(made().generate([request]))[0]


def test_the_stream_tells_each_token_with_its_time_once() -> None:
    generator = made()
    stream = generator.stream(PROMPTS, max_new_tokens=3)
    first = next(stream)
    assert (first.index, first.completion) == (0, None)
    events = [first, *stream]
    assert [event.index for event in events] == [0, 1, 2, 3] * 3
    assert [event.index for event in events if event.completion] == [0, 1, 2, 3]
    times = [event.time_s for event in events]
    assert times == sorted(times)
    for index in range(4):
        own = [event for event in events if event.index == index]
        completion = own[-1].completion
        assert completion is not None
        assert completion.tokens == tuple(event.token for event in own)
        assert completion.token_times_s == tuple(event.time_s for event in own)
        assert completion.arrival_s < completion.token_times_s[0]
        assert completion.end_s == completion.token_times_s[-1]
        gaps = [later - earlier for earlier, later in pairwise(completion.token_times_s)]
        assert completion.inter_token_s == tuple(gaps)
        assert completion.tpot_s == pytest.approx(sum(gaps) / 2)
        assert completion.latency_s == pytest.approx(completion.ttft_s + sum(gaps))


def test_a_step_is_computed_when_its_token_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    run = Decoding.step
    monkeypatch.setattr(Decoding, "step", lambda *given: (steps.append(1), run(*given)))
    stream = made().stream([[1], [2]], max_new_tokens=3)
    next(stream), next(stream)
    assert not steps
    next(stream)
    assert len(steps) == 1


def test_the_clock_starts_before_the_prompt_is_read() -> None:
    """A tokenizer that takes 30 ms, and an arrival before the call, are in the time to the first token."""
    import time

    class Slow:
        def encode(self, text: str) -> list[int]:
            time.sleep(0.03)
            return [ord(letter) - 97 for letter in text]

        def decode(self, ids: Any) -> str:
            return "".join(chr(97 + token) for token in ids)

    generator = made(tokenizer=Slow())
    (done,) = generator.generate(["abc"], max_new_tokens=2)
    assert done.ttft_s >= 0.03
    assert done.text == "".join(chr(97 + token) for token in done.tokens)
    arrival = time.perf_counter() - 5
    (early,) = generator.generate([d5.GenerationRequest(prompt="abc", max_new_tokens=1, arrival_s=arrival)])
    assert early.arrival_s == arrival
    assert early.ttft_s >= 5
    assert early.tpot_s is None
    assert early.inter_token_s == ()


BAD: list[tuple[Any, str]] = [
    ([1] * 20, r"the request needs 25 tokens, 20 of the prompt and 5 new ones; allowed: 24, the longest sequence"),
    ([1, 23], r"the prompt has the token 23 at position 1; allowed: 0 to 22, the network's vocabulary"),
    ([-1], r"the prompt has the token -1 at position 0"),
    ([], r"the prompt has no tokens; allowed: at least one"),
    ([1.5], r"the prompt is \[1\.5\]; allowed: a string, or a list of integers"),
    (None, r"the prompt is None; allowed: a string, or a list of token ids"),
    ("text", r"the prompt is the string 'text', and the generator has no tokenizer"),
]


@pytest.mark.parametrize(("prompt", "message"), BAD)
def test_a_bad_request_is_a_failure_and_the_others_run(prompt: Any, message: str) -> None:
    good = tokens_of(made().generate([PROMPTS[0], PROMPTS[3]], max_new_tokens=5))
    done = made().generate([PROMPTS[0], prompt, PROMPTS[3]], max_new_tokens=5)
    assert [each.failed for each in done] == [False, True, False]
    with pytest.raises(UsageError, match=message):
        raise done[1].error or AssertionError
    assert done[1].ended == "error"
    assert done[1].ttft_s == done[1].latency_s == math.inf
    assert [done[0].tokens, done[2].tokens] == good
    summary = d5.GenerationSummary.of(done)
    assert (summary.requests, summary.failures, summary.output_tokens) == (3, 1, 10)
    assert summary.ttft.p90_s == math.inf
    assert summary.ttft.p50_s < math.inf
    assert summary.tokens_per_s == pytest.approx(10 / summary.duration_s)


def test_all_requests_may_be_bad() -> None:
    done = made().generate([prompt for prompt, _ in BAD], max_new_tokens=5)
    assert all(each.failed for each in done)
    summary = d5.GenerationSummary.of(done)
    assert (summary.failures, summary.tokens_per_s) == (len(BAD), 0.0)
    assert made().generate([]) == []
    with pytest.raises(UsageError, match="got no completions; allowed: at least one"):
        d5.GenerationSummary.of([])


def test_an_error_of_the_back_end_loses_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that fails ends those that run, with the tokens they have; one that had ended stays as it is."""
    wanted = tokens_of(made().generate(PROMPTS[:2], max_new_tokens=3))
    requests = [
        d5.GenerationRequest(prompt=prompt, max_new_tokens=count)
        for prompt, count in zip(PROMPTS[:2], (9, 2), strict=True)
    ]
    steps: list[int] = []
    run = Decoding.step

    def step(*given: Any) -> None:
        steps.append(1)
        if len(steps) == 3:
            raise ShapeError("the back-end failed")
        run(*given)

    monkeypatch.setattr(Decoding, "step", step)
    failed, done = made().generate(requests)
    assert (failed.tokens, str(failed.error), failed.ended) == (wanted[0], "the back-end failed", "error")
    assert len(failed.token_times_s) == 3
    assert failed.inter_token_s[-1] == math.inf
    assert done.tokens == wanted[1][:2]
    assert not done.failed
    assert d5.GenerationSummary.of([failed, done]).output_tokens == 2


@pytest.mark.parametrize("method", ["encode", "decode"])
def test_an_error_of_the_tokenizer_is_a_failure_of_its_request(method: str) -> None:
    class Broken:
        def encode(self, text: str) -> list[int]:
            return self.fail("encode", [1, 2, 3])

        def decode(self, ids: Any) -> str:
            return self.fail("decode", "x" * len(ids))

        def fail(self, name: str, result: Any) -> Any:
            if name == method and (name == "encode" or len(calls) > 6):
                raise ValueError("planted")
            calls.append(name)
            return result

    calls: list[str] = []
    prompts = ["text", [4, 5]] if method == "encode" else ["text", "text"]
    failed, other = made(tokenizer=Broken()).generate(prompts, max_new_tokens=5)
    assert str(failed.error) == "planted"
    assert other.failed is (method == "decode")
    # The token whose text cannot be shown is known, and so is its time.
    assert len(failed.tokens) == len(failed.token_times_s) == (0 if method == "encode" else 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite_are_a_failure(value: float) -> None:
    network = scaled()
    spoiled = network.with_values({"norm.bias": np.full(16, value)})
    for settings in ({}, SAMPLED):
        (done,) = d5.TextGenerator(spoiled, framework="pytorch").generate([[1]], **settings, max_new_tokens=2)
        assert "the logits are not finite" in str(done.error)


def test_stops_are_tokens_and_strings() -> None:
    letters = "abcdefghijklmnopqrstuvw"
    tokenizer = d5.VocabularyTokenizer(vocabulary_of("letters", [letters], "characters", None))
    generator = made(tokenizer=tokenizer)
    (whole,) = generator.generate(["ace"], max_new_tokens=12, **SAMPLED)
    assert whole.text is not None
    assert whole.text == "".join(letters[token] for token in whole.tokens)
    at = next(place for place in range(2, 11) if whole.tokens.index(whole.tokens[place]) == place)
    (by_token,) = generator.generate(["ace"], max_new_tokens=12, **SAMPLED, stop=[whole.tokens[at]])
    assert (by_token.ended, by_token.tokens, by_token.text) == ("stop", whole.tokens[: at + 1], whole.text[:at])
    stop = whole.text[at - 1 : at + 1]
    events = list(generator.stream(["ace"], max_new_tokens=12, **SAMPLED, stop=[stop, "not there"]))
    by_text = events[-1].completion
    assert by_text is not None
    cut = whole.text.index(stop)
    assert (by_text.ended, by_text.text) == ("stop", whole.text[:cut])
    assert "".join(event.text for event in events) == by_text.text
    (unread,) = made().generate([[1]], stop=["x"])
    assert "the request stops at 'x', and the generator has no tokenizer" in str(unread.error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens: got 0; allowed: an integer from 1"),
        ({"temperature": -1}, "temperature: got -1; allowed: a finite number of at least 0"),
        ({"temperature": math.nan}, "temperature: got nan"),
        ({"top_k": 0}, "top_k: got 0"),
        ({"top_p": 1.5}, r"top_p: got 1\.5; allowed: None, or a number above 0, at most 1"),
        ({"seed": -1}, "seed: got -1"),
        ({"number": 0.5}, r"number: got 0\.5"),
        ({"stop": "text"}, "stop: got 'text'; allowed: a list"),
        ({"stop": [""]}, "stop: got"),
        ({"arrival_s": "now"}, "arrival_s: got 'now'"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made().generate([[1]], **settings)


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="prompts: got 'text'; allowed: a list of strings"):
        made().generate("text")
    with pytest.raises(UsageError, match="context: got 25; allowed: None, or 2 to 24"):
        made(context=25)
    with pytest.raises(UsageError, match=r"tokenizer: got 3; allowed: None, or an object with encode\(text\) and"):
        made(tokenizer=3)
    with pytest.raises(UsageError, match=r"vocabulary: got \['a'\]; allowed: that of a data set of text"):
        d5.VocabularyTokenizer(["a"])  # type: ignore[arg-type]
    (failed,) = made().generate([[1]], max_new_tokens=2, stop=[10_000])
    assert "the request stops at the token 10000; allowed: 0 to " in str(failed.error)
    assert made().room([1, 2]) == 22
    with pytest.raises(UsageError, match="granularity: got 0"):
        made(granularity=0)
    with pytest.raises(UsageError, match="framework: got None with a network"):
        d5.TextGenerator(scaled())
    with pytest.raises(UsageError, match="network: got 3; allowed: a Network, or an executor"):
        d5.TextGenerator(3, framework="reference")
    executor = d5.framework("reference").executor(gpt(**SIZES))
    with pytest.raises(UsageError, match=r"remedy: TextGenerator\(executor\.export\(\)\)"):
        d5.TextGenerator(executor)
    with pytest.raises(UsageError, match="framework: got 'jax' with an executor"):
        d5.TextGenerator(executor, framework="jax")
    assert made(context=8).generate([[1] * 5], max_new_tokens=4)[0].failed


def test_a_compiled_back_end_compiles_once_for_all_lengths() -> None:
    """With the context as the granularity, prompts of any length are one form of each step."""
    import jax

    generator = made("jax", granularity=24)
    generator.generate(PROMPTS[:1], max_new_tokens=3)
    counts: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: counts.append(name))
    generator.generate(PROMPTS[1:2], max_new_tokens=9)
    assert not [name for name in counts if "compile" in name]
    generator.generate(PROMPTS[:2], max_new_tokens=3)  # another batch size
    assert [name for name in counts if "compile" in name]
