"""`TensorFlowExecutor`: a network on TensorFlow, as generated source traced over variables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from deep5.core.errors import Unsupported
from deep5.core.executors import GraphExecutor
from deep5.core.framework import Framework
from deep5.core.tensors import Device
from deep5.frameworks.tensorflow.base import TracedExecutor
from deep5.frameworks.tensorflow.custom import route
from deep5.frameworks.tensorflow.emit import Program, compile_forward, preferred_orders
from deep5.frameworks.tensorflow.functions import placed
from deep5.frameworks.tensorflow.order import Order
from deep5.frameworks.tensorflow.synchronised import batch_norm_over_ranks
from deep5.frameworks.tensorflow.table import needs_host
from deep5.frameworks.tensorflow.variables import Live
from deep5.networks.network import Network
from deep5.networks.run_modes import Forms, TrainingForm

if TYPE_CHECKING:
    from deep5.distributed.schemes.batch_statistics import RankStatistics
    from deep5.frameworks.tensorflow.scopes import Scopes

__all__ = ["TensorFlowExecutor"]


class TensorFlowExecutor(TracedExecutor):
    """A network on TensorFlow; created by `TensorFlow.executor`. Implements `GraphExecutor`.

    It is traced as a whole. A network with control flow, lists, computed axes or values of unknown rank runs eagerly
    instead, operator by operator; with XLA such nodes are rejected.

    Args:
        network: The network; it is not changed.
        framework: The back-end, which determines which nodes can run.
        device: The device to run on.
        seed: The seed of noise only.
        xla: Whether XLA compiles the traced functions.
        scopes: Names operations after layers; None: operations keep their names.

    Raises:
        Unsupported: TensorFlow cannot run some nodes; the message gives the reason for each.
    """

    def __init__(
        self,
        network: Network,
        framework: Framework,
        *,
        device: Device,
        seed: int = 0,
        xla: bool = False,
        scopes: Scopes | None = None,
    ) -> None:
        self._scopes = scopes
        self._route = partial(route, framework=framework, device=placed(device))
        self._forms, self._orders = Forms(network, framework), preferred_orders(network)
        with tf.device(placed(device)):
            live = {
                name: Live(
                    network.initial(name), self._orders[name], trainable=name in network.parameter_specs, name=f"p{i}"
                )
                for i, name in enumerate((*network.parameter_specs, *network.buffer_specs))
            }
        # A network is traced unless some value must be known on the host before it can be computed.
        eager = any(needs_host(node) is not None for node in self._forms.evaluation.nodes)
        super().__init__(network, live, device=device, seed=seed, xla=xla, eager=eager)

    def lend(self, other: GraphExecutor) -> None:
        """Let the executor of a variant read and write these variables; see `TensorsByName.lend`."""
        if isinstance(other, TensorFlowExecutor):
            other.adopt(self.live, self._orders)
        else:
            super().lend(other)

    def adopt(self, live: Mapping[str, Live], orders: Mapping[str, Order]) -> None:
        """Use other variables for parameters and buffers; before anything is traced."""
        if any(own is not live[name] for name, own in self.live.items()):
            self.live = {name: live[name] for name in self.live}
            self._orders = {name: orders[name] for name in self._orders}

    def take_back(self, other: GraphExecutor) -> None:
        """The variables are shared; see `TensorsByName.take_back`."""

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Use batch normalization statistics of the batch of all ranks, starting with the next training pass.

        Raises:
            Unsupported: XLA compiles the pass, in which ranks cannot exchange data.
        """
        if self._xla:
            raise Unsupported(
                "tensorflow:xla runs a pass as one compiled function, in which ranks cannot exchange statistics of "
                "batch normalization; allowed: 'tensorflow'; remedy: framework 'tensorflow', or "
                "synchronise_batch_norm=False"
            )
        self._ranks = ranks
        self.__dict__.pop("_training", None)
        self._functions.clear()

    @property
    def source(self) -> str:
        """The generated Python source of the forward pass in evaluation."""
        return self._evaluation.source

    @cached_property
    def _evaluation(self) -> Program:
        return self._program(self._forms.evaluation, gradients=False)

    @cached_property
    def _training(self) -> Program:
        network = self._form.network
        if network is not self._forms.evaluation:
            network = self._forms.checked(network)
        elif not self._evaluation.forward_only:
            return self._evaluation
        return self._program(network, gradients=True)

    @cached_property
    def _form(self) -> TrainingForm:
        return self._forms.training

    def _program(self, network: Network, *, gradients: bool) -> Program:
        batch_norm = None if self._ranks is None else batch_norm_over_ranks(self._ranks)
        return self._runnable(
            compile_forward,
            network,
            self._orders,
            device=self.place,
            xla=self._xla,
            gradients=gradients,
            route=self._route,
            batch_norm=batch_norm,
            scopes=self._scopes,
        )

    def traced_graph(self, kind: str) -> Any:
        """The `tf.Graph` of a function that has already run: `"forward"` or `"gradients"`."""
        return next(function.graph for key, function in self._functions.items() if key[0] == kind)
