"""`SAG`: stochastic average gradient, which stores a gradient for every part of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import psutil

from deep5.core.arguments import is_finite
from deep5.core.errors import ShapeError, UsageError, brief
from deep5.core.events import StepInfo, check_info
from deep5.core.executors import GraphExecutor
from deep5.core.quantities import size
from deep5.core.tensors import Arrays, to_numpy
from deep5.training.hyper_state import KEY, apart, restore_rate
from deep5.training.packed import Packed
from deep5.training.state_check import check_entries

__all__ = ["SAG"]

# Interval of the checks of free memory, in gradients.
_LOOK_EVERY = 32
_UNITS = ("sample", "batch")


class SAG:
    """Gradient descent along the average of the most recent gradients of all parts of the data; a `StepOptimizer`.

    For each part i of the batch: d ← d − nᵢ yᵢ + nᵢ ∇fᵢ(w), yᵢ ← ∇fᵢ(w);  then once  w ← w − lr · d / m
    with fᵢ the mean loss of part i, nᵢ its samples, and m the samples seen so far, which the paper uses in place of n
    during the first pass.

    A gradient of all parameters is stored for each part, in the parameters' own type; their sum d is stored in float64.
    `unit` defines the parts:

    - `"sample"`: each sample by its id, for any batches. Its gradient is computed separately, with a forward and a
      backward pass per sample.
    - `"batch"`: each mini-batch by the ids of its samples, one pass per step. The batches have to be the same in every
      epoch, in any order: a sampler that shuffles samples regroups them, which is rejected.

    If ranks share the batches, a mini-batch is that of all ranks, and so are its samples: the rank with the sample
    computes its gradient and sends it to all. Every rank stores the same state as a single rank would.

    Args:
        lr: Learning rate α; 1 / L for a loss whose gradient has the Lipschitz constant L, 1 / (16 L) in the proof.
        unit: What a gradient is stored for.
        loss: Name of the scalar output to minimize: the mean over the batch of a loss of each sample.

    Raises:
        UsageError: `unit` is neither of the two, or `lr` is not a finite number.

    References:
        Schmidt, Le Roux and Bach, Minimizing finite sums with the stochastic average gradient, Mathematical Programming
        162, 2017, algorithm 1, and section 4 on re-weighting on early iterations and on mini-batches.

    >>> import numpy as np
    >>> import deep5 as d5
    >>> build = d5.NetworkBuilder("mean", dtype="float64")
    >>> away = build.op("Sub", build.parameter("w", (1,), d5.networks.zeros), build.input("input", ("N", 1)))
    >>> network = build.network({"loss": build.op("ReduceMean", build.op("Mul", away, away), keepdims=0)})
    >>> executor, optimizer = d5.framework("reference").executor(network), d5.SAG(lr=0.25)
    >>> optimizer.bind(executor)
    >>> for step, value in enumerate((4.0, 2.0)):
    ...     info = d5.StepInfo(step=step, batch_size=1, sample_ids=(step,))
    ...     outputs = optimizer.step({"input": np.array([[value]])}, info)
    ...     print(executor.parameters()["w"].tolist())  # gradients −8 at w = 0, and 0 at w = 2; their mean is −4
    [2.0]
    [3.0]
    """

    hyper: ClassVar[tuple[str, ...]] = ("lr",)

    def __init__(self, lr: float = 0.01, unit: str = "sample", *, loss: str = "loss") -> None:
        if unit not in _UNITS:
            raise UsageError(f"SAG: got unit={brief(unit)}; allowed: 'sample', 'batch'")
        self.unit, self.loss = unit, loss
        self.set_hyper("lr", lr)
        self._packed: Packed | None = None
        self._gathered: Callable[[np.ndarray], np.ndarray] | None = None
        self._forget()

    def _forget(self) -> None:
        self._gradients: list[np.ndarray] = []
        self._members: list[tuple[int, ...]] = []
        self._slot: dict[int, int] = {}  # by sample id
        self._sum, self._seen = np.zeros(self._packed.size if self._packed else 0), 0

    def set_hyper(self, name: str, value: float) -> None:
        """Change the learning rate, `lr`.

        Args:
            name: `"lr"`.
            value: The new value.

        Raises:
            UsageError: Another hyperparameter, or not a finite number.
        """
        if name != "lr":
            raise UsageError(f"no hyperparameter {name!r}; allowed: lr")
        if not is_finite(value) or value < 0:
            raise UsageError(f"SAG: got lr={brief(value)}; allowed: a finite number of at least 0")
        self.lr = float(value)

    def bind(self, executor: GraphExecutor) -> None:
        """Bind the executor's parameters.

        Args:
            executor: Runs the network.

        Raises:
            UsageError: The parameters have several types; or, with `unit="sample"`, the network keeps batch statistics,
                which do not exist for a single sample, or its inputs have no symbolic batch dimension.
        """
        # If ranks share the batches, this executor gathers them, and wraps the executor of this rank.
        self._gathered = getattr(executor, "gathered", None)
        single = self.unit == "sample" and self._gathered is not None
        packed = Packed(getattr(executor, "own", executor) if single else executor, self.loss, "SAG")
        self._batched = [
            name for name, spec in executor.network.inputs.items() if len(spec.shape) and isinstance(spec.shape[0], str)
        ]
        if self.unit == "sample" and executor.network.buffer_specs:
            raise UsageError(
                f"SAG with unit='sample' cannot train a network that keeps statistics of batches "
                f"({', '.join(list(executor.network.buffer_specs)[:3])} …): a single sample has none; "
                "remedy: unit='batch'"
            )
        if self.unit == "sample" and not self._batched:
            raise UsageError(
                "SAG with unit='sample' runs single samples, but no input of the network has a symbolic batch "
                "dimension; remedy: unit='batch'"
            )
        self._packed = packed
        self._forget()

    def step(self, inputs: Arrays, info: StepInfo) -> Arrays:
        """One step; see the class.

        Args:
            inputs: The batch, as for `GraphExecutor.inference`.
            info: The step; its `sample_ids` are those of the batch.

        Returns:
            The outputs before the step; with `unit="sample"` assembled from those of the samples, as NumPy arrays.

        Raises:
            UsageError: `bind` was not called, `info` has no sample ids, batches differ from those of the previous
                epoch, or there is no memory for another gradient.
        """
        packed, together = self._bound(), self._gathered
        own = ids = _sample_ids(info, empty=together is not None)
        if together is not None:
            ids = tuple(together(np.array(own, np.int64)).tolist())
        parameters = packed.read()
        if self.unit == "batch":
            slot = self._batch_slot(ids)
            outputs = packed.backprop(inputs, info)
            self._remember(slot, ids, packed.gradient())
        else:
            parts: list[dict[str, np.ndarray]] = []
            gradients: Any = self._single_gradients(inputs, own, info, parts)
            if together is not None:
                gradients = together(np.array(list(gradients), packed.dtype).reshape(len(own), packed.size))
            for sample, gradient in zip(ids, gradients, strict=True):
                self._remember(self._slot.get(sample, len(self._gradients)), (sample,), gradient)
            outputs = self._joined(parts) if parts else packed.executor.inference(inputs)
        packed.write(parameters - self.lr / self._seen * self._sum)
        return outputs

    def _single_gradients(
        self, inputs: Arrays, ids: Sequence[int], info: StepInfo, parts: list[dict[str, np.ndarray]]
    ) -> Iterator[np.ndarray]:
        """Yields the gradients of single samples; adds their outputs to `parts`."""
        packed = self._bound()
        if ids:
            self._check_batch(inputs, len(ids))
        for row, sample in enumerate(ids):
            single = {name: value[row : row + 1] if name in self._batched else value for name, value in inputs.items()}
            one = info._replace(batch_size=1, sample_ids=np.array([sample]))
            parts.append({name: np.array(to_numpy(value)) for name, value in packed.backprop(single, one).items()})
            yield packed.gradient()

    def _bound(self) -> Packed:
        if self._packed is None:
            raise UsageError("the optimizer is not bound to an executor; remedy: call bind(executor) first")
        return self._packed

    def _check_batch(self, inputs: Arrays, samples: int) -> None:
        for name in self._batched:
            if name in inputs and len(inputs[name]) != samples:
                raise ShapeError(
                    f"input {name!r}: got {len(inputs[name])} samples where info.sample_ids names {samples}"
                )

    def _batch_slot(self, ids: Sequence[int]) -> int:
        """The index of a mini-batch's gradient; a new one comes after the others."""
        slots = {self._slot.get(sample) for sample in ids}
        if slots == {None}:
            return len(self._gradients)
        slot = slots.pop()
        if slots or slot is None or len(self._members[slot]) != len(ids):
            raise UsageError(
                "SAG with unit='batch' keeps a gradient of each mini-batch, but got samples of different earlier "
                f"batches in one (ids {', '.join(map(str, ids[:4]))} …); allowed: the same batches in every epoch; "
                "remedy: the sampler 'ordered', or unit='sample'"
            )
        return slot

    def _remember(self, slot: int, ids: Sequence[int], gradient: np.ndarray) -> None:
        """Replace the gradient of a part."""
        if slot == len(self._gradients):
            self._check_room()
            self._gradients.append(np.zeros_like(gradient))
            self._members.append(tuple(ids))
            self._slot.update(dict.fromkeys(ids, slot))
            self._seen += len(ids)
        kept = self._gradients[slot]
        self._sum += len(ids) * (gradient.astype(np.float64) - kept)
        kept[...] = gradient

    def _check_room(self) -> None:
        if len(self._gradients) % _LOOK_EVERY == 0:
            needed, free = _LOOK_EVERY * self._sum.nbytes, psutil.virtual_memory().available
            if needed > free:
                raise UsageError(
                    f"SAG has no memory for more than {len(self._gradients)} gradients: the next {_LOOK_EVERY} need up "
                    f"to {size(needed)} and {size(free)} are free; remedy: unit='batch', or fewer "
                    "samples"
                )

    def _joined(self, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
        """Combine the outputs of single samples to those of their batch: means of scalars, all others concatenated."""
        joined: dict[str, Any] = {}
        for name in parts[0]:
            values = [part[name] for part in parts]
            spec = self._bound().executor.network.outputs[name]
            if len(spec.shape) and isinstance(spec.shape[0], str):
                joined[name] = np.concatenate(values)
            elif spec.shape == () and values[0].dtype.kind == "f":
                joined[name] = np.mean(values, dtype=np.float64).astype(values[0].dtype)
            else:
                joined[name] = values[-1]
        return joined

    def state_dict(self) -> dict[str, Any]:
        """The gradients, packed in the network's order of parameters, the parts' samples, and the sum.

        Returns:
            `gradients`, shape (parts, numbers); `sizes`, the samples of each part; `members`, the concatenated ids of
            the parts; `sum`, float64; `hyper`, the current learning rate.
        """
        packed = self._bound()
        gradients = np.empty((len(self._gradients), packed.size), packed.dtype)
        for row, gradient in zip(gradients, self._gradients, strict=True):
            row[...] = gradient
        return {
            "gradients": gradients,
            "sizes": np.array([len(ids) for ids in self._members], np.int64),
            "members": np.array([sample for ids in self._members for sample in ids], np.int64),
            "sum": self._sum.copy(),
            KEY: {"values": {"lr": self.lr}},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state_dict` exactly.

        Args:
            state: A result of `state_dict`, for the same network.

        Raises:
            ShapeError: An entry is missing, unknown, or inconsistent with the network or the others.
        """
        packed, expected = self._bound(), ("gradients", "members", "sizes", "sum")
        state, held = apart(state)
        check_entries(state, expected)
        gradients, members, sizes, total = (np.asarray(state[name]) for name in expected)
        whole = all(array.ndim == 1 and array.dtype == np.int64 for array in (members, sizes))
        fits = (gradients.shape, str(gradients.dtype)) == ((len(sizes), packed.size), packed.dtype) if whole else False
        if (
            not fits
            or int(sizes.sum()) != len(members)
            or (total.shape, str(total.dtype)) != ((packed.size,), "float64")
        ):
            raise ShapeError(
                f"the optimizer's state: got gradients {gradients.dtype}{gradients.shape}, sizes "
                f"{sizes.dtype}{sizes.shape}, members {members.dtype}{members.shape}, sum {total.dtype}{total.shape}; "
                f"allowed: gradients of {packed.size} numbers of {packed.dtype}, one a part, with as many members as "
                "the sizes add up to"
            )
        restore_rate(self, held)
        self._forget()
        ends = np.cumsum(sizes)
        for slot, (gradient, samples, end) in enumerate(zip(gradients, sizes, ends, strict=True)):
            ids = tuple(members[end - samples : end].tolist())
            self._gradients.append(gradient.copy())
            self._members.append(ids)
            self._slot.update(dict.fromkeys(ids, slot))
        self._sum, self._seen = total.copy(), len(members)

    def describe(self) -> dict[str, Any]:
        """The optimizer and its arguments."""
        return {"optimizer": "SAG", "lr": self.lr, "unit": self.unit, "loss": self.loss}


def _sample_ids(info: StepInfo, *, empty: bool = False) -> tuple[int, ...]:
    """The sample ids of a batch; may be empty if allowed, as one rank's part may be."""
    ids = check_info(info).sample_ids
    array = np.asarray([] if ids is None else ids)
    if empty and ids is not None and array.shape == (0,):
        return ()
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        raise UsageError(
            f"SAG keeps gradients by the ids of samples, but got info.sample_ids={brief(ids)}; allowed: an integer "
            "for each sample of the batch, as the samplers of deep5 give"
        )
    return tuple(array.tolist())
