"""Hand-written recurrent networks on PyTorch; see `pytorch_dense` for what a module has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from deep5.recipes.overhead.workloads.weights import linear, recurrent, renamed, transposed

__all__ = ["LanguageModel", "Speech", "Transducer"]

Arrays = Mapping[str, np.ndarray]


class LanguageModel(nn.Module):  # type: ignore[misc]  # torch is not followed
    """`d5.networks.lstm_language_model` without dropout."""

    def __init__(self, vocabulary: int, width: int, layers: int, **_: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.lstm(self.words(tokens))[0])

    def loss(self, input: Any, label: Any) -> Any:  # noqa: A002 - the network's name
        return functional.cross_entropy(self(input).flatten(0, 1), label.flatten())

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        made = {**renamed(given, {"words.weight": "embedding"}), **transposed(given, {"head": "fc"})}
        for layer in range(self.lstm.num_layers):
            made |= recurrent(given, "lstm", f"lstm{layer}", layer)
        return made


class Transducer(nn.Module):  # type: ignore[misc]
    """`d5.networks.attention_seq2seq` without dropout."""

    def __init__(self, width: int, source_vocabulary: int = 27, target_vocabulary: int = 41, **_: Any) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source_vocabulary, width), nn.Embedding(target_vocabulary, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.begin = nn.Linear(width, width)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.keys = nn.Linear(2 * width, width, bias=False)
        self.combined, self.head = nn.Linear(3 * width, width), nn.Linear(width, target_vocabulary)

    def forward(self, source: Any, target: Any) -> Any:
        states, last = self.encoder(self.source(source))
        hidden, _ = self.decoder(self.target(target), torch.tanh(self.begin(last[1]))[None])
        scores = torch.bmm(hidden, self.keys(states).transpose(1, 2))
        scores = scores.masked_fill((source == 0)[:, None], -1e9)
        context = torch.bmm(scores.softmax(2), states)
        return self.head(torch.tanh(self.combined(torch.cat([context, hidden], 2))))

    def loss(self, source: Any, target: Any, label: Any) -> Any:
        logits = self(source, target).flatten(0, 1)
        return functional.cross_entropy(logits, label.flatten(), ignore_index=-1)

    @staticmethod
    def values_of(given: Arrays) -> dict[str, np.ndarray]:
        tables = renamed(given, {f"{name}.weight": f"{name}.embedding" for name in ("source", "target")})
        dense = transposed(given, {"begin": "decoder.begin", "combined": "combined", "head": "fc"})
        layers = {**recurrent(given, "encoder", "encoder"), **recurrent(given, "decoder", "decoder")}
        return {**tables, **dense, **layers, "keys.weight": given["attention.weight"].T}


class Speech(nn.Module):  # type: ignore[misc]
    """`d5.networks.deep_speech`: packed sequences, so that the states stop where a sample ends."""

    def __init__(
        self,
        features: int,
        classes: int,
        width: int,
        layers: int,
        channels: int = 64,
        kernel: int = 11,
        stride: int = 2,
        **_: Any,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv1d(features, channels, kernel, stride, kernel // 2)
        self.layers = nn.ModuleList(
            nn.GRU(width if layer else channels, width, bidirectional=True) for layer in range(layers)
        )
        self.head = nn.Linear(width, classes)
        self.ctc = nn.CTCLoss(reduction="none")

    def forward(self, x: Any, steps: Any) -> Any:
        x = functional.hardtanh(self.conv(x.transpose(1, 2)), 0.0, 20.0).permute(2, 0, 1)
        length = len(x)
        for layer in self.layers:
            packed, _ = layer(pack_padded_sequence(x, steps, enforce_sorted=False))
            both, _ = pad_packed_sequence(packed, total_length=length)
            x = both.unflatten(2, (2, -1)).sum(2)
        return self.head(x).log_softmax(2)

    def loss(self, input: Any, labels: Any, input_length: Any, label_length: Any) -> Any:  # noqa: A002 - the network's
        steps = (input_length + self.stride - 1) // self.stride
        return self.ctc(self(input, steps), labels, steps, label_length).mean()

    def values_of(self, given: Arrays) -> dict[str, np.ndarray]:
        made = {**linear(given, {"conv": "conv"}), **transposed(given, {"head": "fc"})}
        for layer in range(len(self.layers)):
            made |= recurrent(given, f"layers.{layer}", f"gru{layer}")
        return made
