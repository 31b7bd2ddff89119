"""The decoder with a cache equals the whole decoder, at each position, on every back-end, and GPT-2 of transformers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import deep5 as d5
from deep5.core.errors import UsageError
from deep5.generation.decoding import CachedDecoder, with_cache
from deep5.networks import Network, gpt, gpt_cached

FRAMEWORKS = ("reference", "pytorch", "tensorflow", "jax", "onnxruntime")
SIZES: dict[str, Any] = {"vocabulary": 19, "length": 12, "width": 16, "heads": 4, "layers": 2, "seed": 3}
TOKENS = np.random.default_rng(0).integers(0, 19, (3, 12))
# Sums of tens of products in another order: the cache has the same keys as the whole sequence.
ROUNDING = 1e-12


def scaled(network: Network, factor: float = 8.0) -> Network:
    """The network with larger weights: with the initial ones, attention is nearly uniform and would hide errors."""
    return network.with_values({name: factor * value for name, value in network.parameters().items()})


@cache
def whole() -> np.ndarray:
    """Logits of all positions of `gpt`, (3, 12, 19), by the reference in float64."""
    network = scaled(gpt(**SIZES, dropout=0.0, dtype="float64"))
    executor = d5.framework("reference").executor(network)
    return executor.inference({"input": TOKENS, "label": TOKENS})["logits"]


def stepped(framework: str, lengths: list[int], capacity: int, padded: int) -> np.ndarray:
    """The logits at the end of each prefix by a prefill of these lengths and steps, NaN before, (rows, 12, 19)."""
    network = scaled(gpt_cached(**SIZES, dtype="float64"))
    decoder = CachedDecoder(d5.framework(framework).executor(network))
    rows = np.arange(len(lengths))
    found = np.full((len(lengths), 12, 19), np.nan)
    at = np.array(lengths)
    prompts = [TOKENS[row, :length].tolist() for row, length in enumerate(lengths)]
    decoding = decoder.begin(prompts, length=padded, capacity=capacity)
    found[rows, at - 1] = decoding.logits
    while (active := at < 12).any():
        decoding.step(TOKENS[rows, np.minimum(at, 11)], active)
        at = at + active
        found[rows[active], at[active] - 1] = decoding.logits[active]
    return found


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_steps_equal_the_whole_sequence(framework: str) -> None:
    """Ragged prompts, padded: each position's logits are those of `gpt` over the whole sequence."""
    lengths = [1, 4, 7]
    found = stepped(framework, lengths, capacity=12, padded=8)
    for row, length in enumerate(lengths):
        wanted = whole()[row, length - 1 :]
        np.testing.assert_allclose(found[row, length - 1 :], wanted, rtol=ROUNDING, atol=ROUNDING)
        assert np.isnan(found[row, : length - 1]).all()


@pytest.mark.parametrize(("lengths", "padded"), [([12, 1, 5], 12), ([1, 1, 1], 1), ([3], 3)])
def test_a_prompt_may_fill_the_context_or_be_one_token(lengths: list[int], padded: int) -> None:
    found = stepped("reference", lengths, capacity=12, padded=padded)
    for row, length in enumerate(lengths):
        wanted = whole()[row, length - 1 :]
        np.testing.assert_allclose(found[row, length - 1 :], wanted, rtol=ROUNDING, atol=ROUNDING)


def test_the_cache_stays_in_the_frameworks_tensors() -> None:
    import torch

    decoder = CachedDecoder(d5.framework("pytorch").executor(gpt_cached(**SIZES)))
    decoding = decoder.begin([[1, 2]], length=2, capacity=8)
    assert isinstance(decoding.logits, np.ndarray)
    values = decoding._values
    assert all(isinstance(value, torch.Tensor) for value in values.values())
    kept = values["keys1"].clone()
    decoding.step(np.array([3]), np.array([True]))
    assert torch.equal(values["keys1"], kept)  # an executor changes no input
    new = decoding._values["keys1"]
    assert torch.equal(new[:, :, :2], kept[:, :, :2])
    assert not torch.equal(new[:, :, 2], kept[:, :, 2])


def test_parameters_are_those_of_gpt() -> None:
    plain, cached = gpt(**SIZES), gpt_cached(**SIZES)
    assert set(plain.parameter_specs) == set(cached.parameter_specs)
    for name in plain.parameter_specs:
        assert np.array_equal(plain.initial(name), cached.initial(name))
    sliced = {**SIZES, "positions": 20}
    assert gpt_cached(**sliced).parameter_specs["position"].shape == (20, 16)
    cached.with_values(gpt(**{**SIZES, "seed": 5}).parameters())


def test_gpt_gets_its_form_with_a_cache(tmp_path: Any) -> None:
    """Also after a save as ONNX, as runs save it, and with the dropout and the longer table of the training."""
    plain = gpt(**SIZES, positions=15, dropout=0.2)
    plain.save(tmp_path / "network.onnx")
    cached, context = with_cache(Network.from_onnx(tmp_path / "network.onnx"))
    assert context == 12
    assert cached.structure_hash() == gpt_cached(**SIZES, positions=15).structure_hash()
    assert all(np.array_equal(cached.initial(name), plain.initial(name)) for name in plain.parameter_specs)
    assert with_cache(cached) == (cached, 15)


@pytest.mark.parametrize("make", [d5.networks.lenet, d5.networks.lstm_language_model, d5.networks.transformer])
def test_another_network_has_no_form_with_a_cache(make: Any) -> None:
    with pytest.raises(UsageError, match=r"has no form with a cache; allowed: deep5\.networks\.gpt_cached"):
        with_cache(make())


def test_sizes_are_checked() -> None:
    with pytest.raises(UsageError, match="3 heads do not divide a width of 16"):
        gpt_cached(**{**SIZES, "heads": 3})
    with pytest.raises(UsageError, match="got layers = 0; allowed: an integer of at least 1"):
        gpt_cached(**{**SIZES, "layers": 0})
    with pytest.raises(UsageError, match="got 3 positions for 12 tokens"):
        gpt_cached(**SIZES, positions=3)


def test_openvino_runs_it_in_float32() -> None:
    network = scaled(gpt_cached(**SIZES))
    found = []
    for framework in ("openvino", "reference"):
        decoding = CachedDecoder(d5.framework(framework).executor(network)).begin(
            [[1, 2, 3], [4]], length=4, capacity=8
        )
        decoding.step(np.array([5, 6]), np.array([True, True]))
        found.append(decoding.logits)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-4)


# GPT-2's names by ours: the matrices of its Conv1D layers are (in, out), as here.
GPT2 = {
    "attention.norm.scale": "ln_1.weight",
    "attention.norm.bias": "ln_1.bias",
    "attention.qkv.weight": "attn.c_attn.weight",
    "attention.qkv.bias": "attn.c_attn.bias",
    "attention.out.weight": "attn.c_proj.weight",
    "attention.out.bias": "attn.c_proj.bias",
    "feed_forward.norm.scale": "ln_2.weight",
    "feed_forward.norm.bias": "ln_2.bias",
    "feed_forward.in.weight": "mlp.c_fc.weight",
    "feed_forward.in.bias": "mlp.c_fc.bias",
    "feed_forward.out.weight": "mlp.c_proj.weight",
    "feed_forward.out.bias": "mlp.c_proj.bias",
}


def gpt2() -> tuple[Any, Network]:
    """GPT-2 of transformers with drawn weights, and ours with the same, in float64."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    # The number that an attribute of ONNX, which is float32, holds.
    epsilon = float(np.float32(1e-5))
    sizes = {"vocab_size": 19, "n_positions": 12, "n_embd": 16, "n_layer": 2, "n_head": 4}
    config = GPT2Config(**sizes, layer_norm_epsilon=epsilon, initializer_range=0.3, bos_token_id=0, eos_token_id=0)
    theirs = GPT2LMHeadModel(config).double().eval()
    values = {name: value.numpy() for name, value in theirs.transformer.state_dict().items()}
    named = {"embedding": "wte.weight", "position": "wpe.weight", "norm.scale": "ln_f.weight", "norm.bias": "ln_f.bias"}
    for layer in range(2):
        named |= {f"block{layer}.{ours}": f"h.{layer}.{name}" for ours, name in GPT2.items()}
    ours = gpt_cached(**SIZES, dtype="float64").with_values({own: values[name] for own, name in named.items()})
    return theirs, ours


@pytest.mark.filterwarnings("ignore")  # of transformers' own imports
def test_logits_and_greedy_tokens_are_those_of_transformers() -> None:
    import torch

    theirs, ours = gpt2()
    prompts = [TOKENS[0, :3].tolist(), TOKENS[1, :6].tolist()]
    done = d5.TextGenerator(ours, framework="pytorch").generate(prompts, max_new_tokens=6)
    decoder = CachedDecoder(d5.framework("reference").executor(ours))
    for prompt, completion in zip(prompts, done, strict=True):
        wanted = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=6, do_sample=False, use_cache=True, eos_token_id=None, pad_token_id=0
        )
        assert list(completion.tokens) == wanted[0, len(prompt) :].tolist()
        decoding = decoder.begin([prompt], length=len(prompt), capacity=12)
        with torch.no_grad():
            logits = theirs(wanted).logits[0].numpy()
        for place, token in enumerate(completion.tokens, len(prompt)):
            np.testing.assert_allclose(decoding.logits[0], logits[place - 1], rtol=ROUNDING, atol=ROUNDING)
            decoding.step(np.array([token]), np.array([True]))
