"""A network as a server runs it: one row per request, in padded batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.bench.serving.batching import batch_sizes
from deep5.core.errors import NetworkError, ShapeError, UsageError, suggestion
from deep5.core.tensors import to_numpy

if TYPE_CHECKING:
    from deep5.core.executors import GraphExecutor
    from deep5.networks.network import Network

__all__ = ["ServedModel", "served_network"]

_LOSS = "loss"

Row = Mapping[str, np.ndarray]


def served_network(network: Network) -> Network:
    """A network without its loss, and without the inputs that only the loss needs: labels, boxes, targets of an update.

    Args:
        network: The network, whose inputs and outputs have the batch as their first dimension.

    Raises:
        NetworkError: An input or output has no batch dimension, or no output is left.

    >>> import deep5 as d5
    >>> served_network(d5.networks.mlp(features=4, hidden=3, classes=2))
    <Network 'mlp': input float32[N, 4] -> logits float32[N, 2]; 3 nodes, 4 parameters of 23 numbers>
    """
    outputs = [name for name in network.outputs if name != _LOSS]
    if not outputs:
        raise NetworkError(
            f"the network {network.model.graph.name!r} has the outputs {', '.join(network.outputs)}; allowed: an "
            "output besides the loss, which is the answer to a request"
        )
    if _LOSS in network.outputs:
        left = network.with_outputs(outputs).model.graph
        read = {value.name for value in left.inputs if value.uses() or value.is_graph_output()}
        network = network.subnetwork([name for name in network.inputs if name in read], outputs)
    for name, spec in {**network.inputs, **network.outputs}.items():
        if spec.collection or not spec.ranked or not spec.shape:
            raise NetworkError(f"{name!r} is {spec}; allowed: tensors with the batch as their first dimension")
    return network


class ServedModel:
    """Runs rows as batches of an executor.

    A batch is padded with copies of its last row to the next of `sizes`: frameworks that compile do so once per size,
    in `warm_up`, and not while requests wait. Rows of different shapes, which a network with further free dimensions
    takes, run one shape after another.

    Args:
        executor: Runs the network; see `served_network`.
        name: Name of the model for clients.
        max_batch: Most rows in a batch.

    Attributes:
        name: Name of the model.
        inputs: By name, shape and dtype of one row.
        outputs: Likewise, of the answer to one row.
        sizes: The sizes of batches that run.

    Raises:
        UsageError: The network has a fixed batch size, which is below `max_batch`.

    >>> import deep5 as d5
    >>> network = served_network(d5.networks.mlp(features=4, hidden=3, classes=2))
    >>> model = ServedModel(d5.framework("reference").executor(network), name="mlp", max_batch=4)
    >>> rows = [{"input": np.full(4, value, np.float32)} for value in range(3)]
    >>> [answer["logits"].shape for answer in model.run(rows)], model.sizes
    ([(2,), (2,), (2,)], (1, 2, 4))
    >>> model.fault({"input": np.ones(5, np.float32)})
    "input 'input': got shape (5,), expected float32[4]"
    """

    def __init__(self, executor: GraphExecutor, *, name: str, max_batch: int) -> None:
        from deep5.networks.tables import table_inputs  # it loads onnx

        self._executor, self.name = executor, name
        network = executor.network
        fixed = {spec.shape[0] for spec in network.inputs.values() if isinstance(spec.shape[0], int)}
        if fixed and max_batch > min(fixed):
            raise UsageError(
                f"max_batch is {max_batch}, and the network has the fixed batch size {min(fixed)}; allowed: at most "
                f"{min(fixed)}; remedy: max_batch={min(fixed)}, or a network with a free batch dimension"
            )
        self.max_batch = max_batch
        self._tables = table_inputs(network)
        self.sizes = (min(fixed),) if fixed else batch_sizes(max_batch)
        self.inputs = {key: replace(spec, shape=spec.shape[1:]) for key, spec in network.inputs.items()}
        self.outputs = {key: replace(spec, shape=spec.shape[1:]) for key, spec in network.outputs.items()}

    def fault(self, row: Row) -> str | None:
        """Why a row does not fit the network, or None if it does.

        Args:
            row: Arrays by input, without the batch dimension.
        """
        for name in row:
            if name not in self.inputs:
                return f"unknown input {name!r}; allowed: {', '.join(self.inputs)}{suggestion(name, self.inputs)}"
        for name, spec in self.inputs.items():
            if name not in row:
                return f"the input {name!r} is missing; allowed: {name} {spec}"
            if (found := spec.mismatch(row[name].shape, row[name].dtype.name)) is not None:
                return f"input {name!r}: {found}"
        return self.unknown_element(row)

    def unknown_element(self, row: Row) -> str | None:
        """Which token or category of a row no table has, or None; the row fits otherwise.

        Args:
            row: As for `fault`.
        """
        return next(filter(None, (table.fault(row) for table in self._tables)), None)

    def warm_up(self, row: Row) -> None:
        """Run a batch of every size, before the clock starts.

        Args:
            row: The row to run.

        Raises:
            ShapeError: It does not fit.
        """
        if (fault := self.fault(row)) is not None:
            raise ShapeError(fault)
        for size in self.sizes:
            self._run([row] * min(size, self.max_batch))

    def run(self, rows: Sequence[Row]) -> list[Any]:
        """The answers to rows, in their order: arrays by output, or the error of a row that cannot run.

        If a batch of several rows raises, each of them runs by itself, so that only the faulty ones fail.

        Args:
            rows: At least one, at most `max_batch`; each as `fault` allows.
        """
        groups: dict[Any, list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(tuple((name, row[name].shape) for name in self.inputs), []).append(place)
        answers: list[Any] = [None] * len(rows)
        for places in groups.values():
            for place, answer in zip(places, self._isolated([rows[place] for place in places]), strict=True):
                answers[place] = answer
        return answers

    def _isolated(self, rows: list[Row]) -> list[Any]:
        try:
            return self._run(rows)
        except Exception as error:
            if len(rows) == 1:
                return [error]
        return [answer for row in rows for answer in self._isolated([row])]

    def _run(self, rows: list[Row]) -> list[Any]:
        size = next(size for size in self.sizes if size >= len(rows))
        padded = [*rows, *[rows[-1]] * (size - len(rows))]
        found = self._executor.inference({name: np.stack([row[name] for row in padded]) for name in self.inputs})
        arrays = {name: to_numpy(found[name]) for name in self.outputs}
        for name, array in arrays.items():
            if array.shape[:1] != (size,):
                raise NetworkError(
                    f"the output {name!r} has the shape {array.shape} for a batch of {size}; allowed: the batch as its "
                    "first dimension"
                )
        return [{name: array[place] for name, array in arrays.items()} for place in range(len(rows))]
