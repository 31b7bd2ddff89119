"""A decoder with a cache on an executor: prefill and steps, with the cache in the framework's own tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from deep5.core.errors import NetworkError, UsageError
from deep5.core.executors import GraphExecutor
from deep5.core.tensors import Arrays, numpy_dtype, to_numpy
from deep5.networks.network import Network
from deep5.networks.zoo.decoder_cached import gpt_cached

__all__ = ["CachedDecoder", "Decoding", "with_cache"]


def with_cache(network: Network) -> tuple[Network, int]:
    """The network with a cache and the weights of one of `gpt`, and the longest sequence that it learned.

    Args:
        network: A `gpt_cached`, which is returned as it is, or a `gpt`, such as one that a run has saved.

    Raises:
        UsageError: It is none of them.
    """
    specs = network.parameter_specs
    try:
        rows = int(specs["position"].shape[0])
        if "past_keys0" in network.inputs:
            return network, rows
        vocabulary, width = (int(size) for size in specs["embedding"].shape)
        (length,) = network.inputs["input"].shape[1:]
        made = gpt_cached(
            vocabulary=vocabulary,
            length=int(length),
            width=width,
            heads=int(network.initial("attention.split")[2]),
            layers=sum(name.endswith(".attention.qkv.weight") for name in specs),
            positions=rows,
            dtype=specs["embedding"].dtype,
        )
        if network.model.graph.name != "gpt" or set(made.parameter_specs) != set(specs):
            raise NetworkError("other parameters")
        return made.with_values(network.parameters()), int(length)
    except (KeyError, ValueError, TypeError, NetworkError) as error:
        raise UsageError(
            f"the network {network.model.graph.name!r} has no form with a cache; allowed: "
            "deep5.networks.gpt_cached(…), or deep5.networks.gpt(…) with any weights"
        ) from error


class CachedDecoder:
    """A network like `gpt_cached` on an executor. Threads may share it: it has no state.

    Args:
        executor: Runs the network.

    Attributes:
        vocabulary: Number of different tokens.

    Raises:
        UsageError: The network has other inputs or outputs.
    """

    def __init__(self, executor: GraphExecutor) -> None:
        network = executor.network
        self.executor = executor
        self._caches = [name for name in network.outputs if name != "logits"]
        wanted = {"input", "past", "count", *(f"past_{name}" for name in self._caches)}
        if set(network.inputs) != wanted or not self._caches or "logits" not in network.outputs:
            raise UsageError(
                f"the executor's network has the inputs {', '.join(network.inputs)}; allowed: those of "
                "deep5.networks.gpt_cached(…); remedy: TextGenerator(executor.export()), if it is a gpt"
            )
        self.vocabulary = int(network.outputs["logits"].shape[1])

    def begin(self, prompts: Sequence[Sequence[int]], *, length: int, capacity: int) -> Decoding:
        """Read the prompts of a batch.

        Args:
            prompts: Token ids, at least one per prompt and at most `length`.
            length: Tokens per row that are computed; shorter prompts are padded.
            capacity: Tokens per row that the cache has room for, at least `length`.
        """
        counts = np.array([len(prompt) for prompt in prompts])
        tokens = np.zeros((len(prompts), length), np.int64)
        for row, prompt in zip(tokens, prompts, strict=True):
            row[: len(prompt)] = prompt
        caches = {}
        for name in self._caches:
            spec = self.executor.network.inputs[f"past_{name}"]
            shape = (len(prompts), int(spec.shape[1]), capacity, int(spec.shape[3]))
            caches[name] = np.zeros(shape, numpy_dtype(spec.dtype))
        return Decoding(self.executor, caches, tokens, counts)


class Decoding:
    """The state of one batch: the caches, as native values of the executor, and how much of them is used.

    Args:
        executor: Runs the network.
        caches: Empty caches by the name of the output.
        tokens: The prompts, padded, (N, length).
        counts: Their tokens, (N,).

    Attributes:
        logits: Scores of the next token of each row, (N, vocabulary), as a NumPy array: all work for them is done.
    """

    def __init__(self, executor: GraphExecutor, caches: dict[str, Any], tokens: np.ndarray, counts: np.ndarray) -> None:
        self._executor = executor
        self._names = [(name, f"past_{name}") for name in caches]
        self._past = np.zeros(len(counts), np.int64)
        self._one = np.ones(len(counts), np.int64)
        self._values: Arrays = caches
        self.logits = self._run(tokens, counts)

    def step(self, tokens: np.ndarray, active: np.ndarray) -> None:
        """Add a token to each row and compute the scores of the next one.

        Args:
            tokens: Ids, int64 (N,).
            active: Which rows continue, bool (N,); a row that does not can never do so again. Its logits are of no use.
        """
        # A row that has ended writes to its first place, since its cache may be full.
        self._past = np.where(active, self._past, 0)
        self.logits = self._run(tokens[:, None], self._one)

    def _run(self, tokens: np.ndarray, counts: np.ndarray) -> np.ndarray:
        feed = {"input": tokens, "past": self._past, "count": counts}
        for name, past in self._names:
            feed[past] = self._values[name]
        self._values = self._executor.inference(feed)
        # A new array: an executor may still read the old one.
        self._past = self._past + counts
        found: np.ndarray = to_numpy(self._values["logits"])
        return found
