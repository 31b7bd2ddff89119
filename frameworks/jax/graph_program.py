"""`GraphProgram`: an ONNX network as the functions that an executor runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from deep5.core.events import StepInfo
from deep5.core.framework import Framework
from deep5.core.seeds import derive_seed
from deep5.core.tensors import Device
from deep5.frameworks.jax.emit import RunsOperator, write
from deep5.frameworks.jax.host import find_host_values
from deep5.frameworks.jax.kernels import layers
from deep5.frameworks.jax.masks import StepMasks
from deep5.frameworks.jax.operator_check import check_operator
from deep5.frameworks.jax.program import Function
from deep5.frameworks.jax.storage import find_flat, find_storage
from deep5.frameworks.jax.synchronised import batch_norm_over_ranks
from deep5.networks.custom import operator_of
from deep5.networks.kernels.drawing import draws
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms
from deep5.operators.kinds import is_compiled

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["GraphProgram"]


class GraphProgram:
    """An ONNX network as pure functions that JAX traces; see `Program`.

    Args:
        network: The network.
        framework: The back-end.
        operators: From a registered operator to the function that runs it on arrays.
        device: The device to run on; None: the host.

    Raises:
        Unsupported: Some nodes cannot run; the message gives the reason for each.

    Attributes:
        stored: How layer weights are stored, by name.
        x64: True: 64-bit types keep their width, as in ONNX.
        fallible: Whether it contains compiled operators, or exchanges statistics with other ranks.
        untraceable: Why JAX cannot trace it, so that it runs operator by operator; empty if JAX can.
    """

    x64 = True
    _evaluations = 0
    _ranks: RankStatistics | None = None

    def __init__(
        self, network: Network, framework: Framework, operators: RunsOperator, device: Device | None = None
    ) -> None:
        self._forms, self._operators = Forms(network, framework), operators
        self.fallible = False
        for node in self._forms.evaluation.nodes:
            if (operator := operator_of(node)) is not None:
                check_operator(operator, device)
                self.fallible |= is_compiled(operator)
        self._names = tuple(network.parameter_specs), tuple(network.buffer_specs), tuple(network.outputs)
        self._draws = draws(self._forms.evaluation)
        self.untraceable = find_host_values(self._forms.evaluation).reason
        self._flat = find_flat(self._forms.evaluation)
        self.stored = find_storage(self._forms.evaluation, self._flat)

    @cached_property
    def evaluation(self) -> Function:
        """The network in evaluation."""
        return self._written(self._forms.evaluation, {}, layers.batch_normalization_in_training)

    @cached_property
    def training(self) -> Function:
        """The network in training; takes what `draw` gives after the inputs."""
        form = self._forms.training
        if form.network is self._forms.evaluation:
            return self.evaluation
        batch_norm = layers.batch_normalization_in_training
        if self._ranks is not None:
            batch_norm = batch_norm_over_ranks(self._ranks)
        written = self._written(form.network, form.statistics, batch_norm)
        if (masks := self._masks) is None:
            return written

        def call(parameters: Any, buffers: Any, inputs: Sequence[Any]) -> Any:
            return written.call(parameters, buffers, masks.given(inputs))

        return Function(call, written.source)

    @cached_property
    def _masks(self) -> StepMasks | None:
        return StepMasks(form) if (form := self._forms.training).masks else None

    def _written(self, network: Network, fresh: Mapping[str, str], batch_norm: Callable[..., Any]) -> Function:
        return write(
            network,
            fresh,
            self.stored,
            self._flat,
            *self._names,
            operators=self._operators,
            batch_norm=batch_norm,
        )

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Use batch normalization statistics of the batch of all ranks, in code traced from now on."""
        self._ranks, self.fallible = ranks, True
        self.__dict__.pop("training", None)

    def draw(self, extents: Mapping[str, int], info: StepInfo) -> list[np.ndarray]:
        """What selects the masks, and the random key if nodes draw; reports the step to the statistics exchange."""
        if self._ranks is not None:
            self._ranks.begin(info)
        numbers = [] if self._masks is None else [self._masks.numbers(info)]
        return numbers + ([_key(info.seed, info.step)] if self._draws else [])

    def evaluation_key(self, info: StepInfo) -> list[np.ndarray]:
        """The random key of an evaluation call, if nodes draw: a new key for each call."""
        if not self._draws:
            return []
        self._evaluations += 1
        return [_key(info.seed, info.step, self._evaluations)]


def _key(seed: int, *purpose: int) -> np.ndarray:
    return np.array(jax.random.key_data(jax.random.key(derive_seed(seed, "nodes that draw", *purpose))))
