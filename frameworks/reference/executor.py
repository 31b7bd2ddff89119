"""The executor of the reference: NumPy arrays, generated code, gradients by an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from typing_extensions import override

from deep5.core.errors import ShapeError
from deep5.core.tensors import Device
from deep5.frameworks.reference.emit import compile_network
from deep5.frameworks.reference.kernels.memory import Scratch
from deep5.networks.diagnostics.failures import failed, is_own
from deep5.networks.network import Network
from deep5.networks.over_ranks import over_ranks
from deep5.networks.stamps import Stamps
from deep5.training.gradient_executor import GradientExecutor, Notify, Run

if TYPE_CHECKING:
    from deep5.core.framework import Framework
    from deep5.distributed.schemes.batch_statistics import RankStatistics

__all__ = ["ReferenceExecutor", "compiled", "settings_of"]


class ReferenceExecutor(GradientExecutor):
    """Runs a network with deep5's NumPy kernels; the executor to which the others are compared.

    Args:
        network: The network; it is not changed.
        framework: The reference.
        device: The host CPU.
        seed: The seed of noise only.
        stamps: Times each layer; None: no timing.

    Raises:
        Unsupported: Some nodes have no kernel; the message gives the reason for each.

    Attributes:
        capabilities: `"float64"`, `"early_gradients"`.
    """

    capabilities = frozenset({"early_gradients", "float64"})
    collections = True

    def __init__(
        self,
        network: Network,
        framework: Framework,
        *,
        device: Device,
        seed: int = 0,
        stamps: Stamps | None = None,
    ) -> None:
        self._stamps = stamps
        self._scratch = Scratch()
        self._ranks: RankStatistics | None = None
        super().__init__(network, framework, device=device, seed=seed)

    def _native(self, name: str, value: Any) -> Any:
        if self.network.inputs[name].dtype != "string":
            return super()._native(name, value)
        array = np.asarray(value, dtype=object)
        if wrong := next((each for each in array.flat if not isinstance(each, str)), None):
            raise ShapeError(f"input {name!r}: got {type(wrong).__name__} among its elements, expected strings")
        return array

    def _product_kernels(self, dtype: str) -> str:
        return "float32"

    def settings(self) -> dict[str, Any]:
        """Threads of the BLAS library as read back from it, dtype, TF32 and determinism."""
        return {**settings_of(self.device), **self._dtype_settings(list(self._values.values()))}

    @override
    def compile(self, network: Network, announced: Sequence[str]) -> Run:
        return compiled(network, self._values, self._scratch, announced, self._ranks, self._stamps)

    def synchronise_batch_norm(self, ranks: RankStatistics) -> None:
        """Compute batch normalization statistics over the batch of all ranks, from the next training pass."""
        self._ranks = ranks
        self._before_training = ranks.begin
        self.discard_programs()

    def _in_training(self, network: Network) -> Network:
        return network if self._ranks is None else over_ranks(network)


def compiled(
    network: Network,
    values: Mapping[str, np.ndarray],
    scratch: Scratch,
    announced: Sequence[str] = (),
    ranks: RankStatistics | None = None,
    stamps: Stamps | None = None,
) -> Run:
    """A runnable network; the arguments are those of `compile_network`."""
    program = compile_network(network, values, scratch, announced=announced, ranks=ranks, stamps=stamps).run
    first = len(network.outputs) - len(announced)

    def run(
        inputs: Sequence[Any], notify: Notify | None = None, into: Sequence[np.ndarray] | None = None
    ) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
        report = None if notify is None else partial(_notified, notify, first)
        # NumPy kernels allocate their own memory: `into` is not used.
        try:
            values = [_as_array(value) for value in program(*inputs, report)]
        except _Told as error:
            raise error.cause from None  # the caller's error, not the network's
        except Exception as error:  # any error of NumPy for values that do not fit
            if is_own(error):
                raise
            raise failed(error, "the reference") from error
        return values[:first], values[first:]

    return run


class _Told(Exception):
    """An error raised by the notified function."""

    def __init__(self, cause: Exception) -> None:
        super().__init__()
        self.cause = cause


def _notified(notify: Notify, first: int, index: int, value: np.ndarray) -> None:
    try:
        notify(index - first, value)
    except Exception as error:
        raise _Told(error) from error


def _as_array(value: Any) -> Any:
    """A NumPy scalar as an array; lists and None are unchanged."""
    return value if value is None or isinstance(value, list) else np.asarray(value)


def settings_of(device: Device) -> dict[str, Any]:
    """Version, threads, TF32 and determinism, as read back from the BLAS library."""
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return {
        "framework": "reference",
        "version": np.__version__,
        "device": str(device),
        "threads": max((pool["num_threads"] for pool in pools), default=1),
        "blas": ", ".join(sorted({f"{pool['internal_api']} {pool['version']}" for pool in pools})),
        "tf32": False,
        "deterministic": True,
    }
