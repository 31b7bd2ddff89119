"""PyTorch's thread count in the threads that deep5 starts: its convolutions sum in another order with more threads."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch

import deep5 as d5
from deep5.bench.serving.system import BatchServer
from deep5.distributed.communicators.threads import run_in_threads

DRAWN = [np.random.default_rng(1).normal(size=size).astype(np.float32) for size in ((2, 3, 5, 5), (4, 3, 3, 3), (4,))]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    d5.framework("pytorch").set_threads(1)
    yield
    torch.set_num_threads(before)


def gradients(_: Any = None) -> list[bytes]:
    """Of a convolution by its input, weights and bias."""
    tensors = [torch.tensor(value, requires_grad=True) for value in DRAWN]
    y = torch.nn.functional.conv2d(*tensors, stride=2)
    return [grad.numpy().tobytes() for grad in torch.autograd.grad(y, tensors, torch.full_like(y, 1.7))]


def test_ranks_in_threads_have_the_bits_of_the_process() -> None:
    assert run_in_threads(3, gradients) == [gradients()] * 3


def test_a_server_has_the_bits_of_the_process() -> None:
    answers: SimpleQueue[Any] = SimpleQueue()
    with BatchServer(lambda batch: [gradients() for _ in batch], max_batch=1, deadline_s=0.0) as server:
        server.submit(None, answers.put)
        found = answers.get(timeout=60)
    assert found.outputs == gradients()
