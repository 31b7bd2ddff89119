"""Weights in files of their own: safetensors, or another ONNX model of the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deep5.errors import MissingDependency, NetworkError, OutputError, UsageError
from deep5.files import write_atomically

if TYPE_CHECKING:
    import numpy as np

    from deep5.networks.network import Network
    from deep5.tensors import TensorSpec

__all__ = ["read_weights", "write_weights"]

# Names in a message: enough to see which network the file is of.
_SHOWN = 6


def write_weights(network: Network, path: str | Path) -> None:
    """Write parameters and buffers as a safetensors file, atomically; the same values give the same bytes.

    Args:
        network: The network, whose initial values are written.
        path: A file that ends in `.safetensors`.

    Raises:
        UsageError: Another ending.
        MissingDependency: safetensors is not installed.
        OutputError: It cannot be written.

    References:
        https://huggingface.co/docs/safetensors: a header of names, dtypes and shapes, and the bytes.
    """
    if Path(path).suffix != ".safetensors":
        raise UsageError(f"got {path} as a file for weights; allowed: NAME.safetensors; remedy for .onnx: save")
    save, _, _ = _safetensors()
    data = save({name: network.initial(name) for name in _specs(network)})
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OutputError(
            f"the weights cannot be written to {path} ({error.strerror}); allowed: a writable file"
        ) from error


def read_weights(network: Network, path: str | Path) -> dict[str, np.ndarray]:
    """Read values for all parameters and buffers of a network, and for nothing else.

    Args:
        network: The network that the values are for.
        path: A safetensors file, or an ONNX file, whose initial values are taken by their names.

    Raises:
        UsageError: A file of another kind.
        MissingDependency: safetensors is not installed.
        NetworkError: No such file, a file that cannot be read, and missing, unknown, misshapen values or ones of
            another dtype, each by name.
    """
    if not Path(path).is_file():
        raise NetworkError(f"the file {path} is not there; allowed: a .safetensors or an .onnx file")
    if Path(path).suffix == ".onnx":
        other = type(network).from_onnx(path)
        # The roles of the other file's values are its own business: a parameter here may be a setting there.
        held = {name: other.initial(name) for name in _specs(network) if name in other.model.graph.initializers}
        values = {**{name: other.initial(name) for name in _specs(other)}, **held}
    elif Path(path).suffix == ".safetensors":
        values = _read_safetensors(path)
    else:
        raise UsageError(f"got {path} as a file of weights; allowed: NAME.safetensors, NAME.onnx")
    if problems := _problems(_specs(network), values):
        raise NetworkError(f"the weights in {path} do not fit the network: " + "; ".join(problems))
    return values


def _specs(network: Network) -> dict[str, TensorSpec]:
    return {**network.parameters, **network.buffers}


def _problems(specs: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]) -> list[str]:
    missing = [name for name in specs if name not in values]
    unknown = sorted(values.keys() - specs.keys())  # safetensors gives them in no fixed order
    misfits = [
        f"{name!r}: {reason}"
        for name, spec in specs.items()
        if name in values and (reason := spec.mismatch(values[name].shape, str(values[name].dtype)))
    ]
    return [
        *([f"missing {_few(missing)}"] if missing else []),
        *([f"unknown {_few(unknown)}; allowed: {_few(list(specs))}"] if unknown else []),
        *([_few(misfits, "; ")] if misfits else []),
    ]


def _few(entries: Sequence[str], between: str = ", ") -> str:
    """The first entries, and how many there are beside them: a large network has hundreds."""
    more = len(entries) - _SHOWN
    return between.join(entries[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    _, load, refused = _safetensors()
    try:
        values: dict[str, np.ndarray] = load(Path(path).read_bytes())
    except (refused, KeyError, ValueError) as error:  # KeyError: an element type that NumPy does not have
        raise NetworkError(f"the file {path} cannot be read as safetensors ({error})") from error
    return values


def _safetensors() -> tuple[Callable[..., bytes], Callable[[bytes], dict[str, np.ndarray]], type[Exception]]:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load, save
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "weights in files of their own need safetensors; remedy: pip install safetensors"
        ) from error
    return save, load, SafetensorError
