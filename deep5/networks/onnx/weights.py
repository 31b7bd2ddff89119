"""Weights in separate files: safetensors, or another ONNX model with the same parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from deep5.core.errors import MissingDependency, NetworkError, OutputError, UsageError
from deep5.core.files import is_file, is_folder, write_atomically
from deep5.core.network_spec import NetworkSpec
from deep5.core.tensors import TensorSpec
from deep5.networks.constants import separate_roles
from deep5.networks.onnx.importing import import_model
from deep5.networks.onnx.initial_values import initial_value
from deep5.networks.onnx.specs import initial_specs

__all__ = ["check_path", "read_weights", "write_weights"]

# Names in a message: enough to recognize the network that the file belongs to.
_SHOWN = 6


def check_path(path: str | Path, kind: str, ending: str, otherwise: str) -> None:
    """Reject a file that cannot be written, before anything is computed for it.

    Args:
        path: The file.
        kind: What is to be written, for messages.
        ending: The required suffix.
        otherwise: The method that writes the other format.

    Raises:
        UsageError: No path, or another suffix.
        OutputError: The folder does not exist.
    """
    _check_kind(path, kind, f"NAME{ending}")
    if not is_folder(folder := Path(path).parent):
        raise OutputError(f"{kind} cannot be written to {path} ({folder} is not a folder); allowed: a writable file")
    if Path(path).suffix != ending:
        other = ".onnx" if ending == ".safetensors" else ".safetensors"
        raise UsageError(
            f"got {str(path)!r} as a file for {kind}; allowed: NAME{ending}; remedy for {other}: {otherwise}"
        )


def _check_kind(path: object, kind: str, allowed: str) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise UsageError(f"got an object of type {type(path).__name__} as a file for {kind}; allowed: {allowed}")


def write_weights(network: NetworkSpec, path: str | Path) -> None:
    """Write parameters and buffers as a safetensors file, atomically; equal values give equal bytes.

    Args:
        network: The network, whose initial values are written.
        path: A file that ends in `.safetensors`.

    Raises:
        UsageError: No path, or another suffix.
        MissingDependency: safetensors is not installed.
        OutputError: The file cannot be written.

    References:
        https://huggingface.co/docs/safetensors: a header of names, dtypes and shapes, then the bytes.
    """
    check_path(path, "the weights", ".safetensors", "save")
    save, _, _ = _safetensors()
    data = save({name: network.initial(name) for name in (*network.parameter_specs, *network.buffer_specs)})
    try:
        write_atomically(path, data)
    except OSError as error:
        raise OutputError(
            f"the weights cannot be written to {path} ({error.strerror}); allowed: a writable file"
        ) from error


def read_weights(
    specs: Mapping[str, TensorSpec], path: str | Path, untrained: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Read values for exactly the parameters and buffers of a network.

    Args:
        specs: Specifications of the parameters and buffers, by name.
        path: A safetensors file, or an ONNX file, whose initial values are matched by name.
        untrained: Names of the network's other tensors, which an ONNX file may also contain.

    Raises:
        UsageError: No path, or a file of another type.
        MissingDependency: safetensors is not installed.
        NetworkError: The file is missing or unreadable, or values are missing, unknown, or of another shape or dtype;
            each is named.
    """
    _check_kind(path, "the weights", "NAME.safetensors, NAME.onnx")
    if not is_file(path):
        state = "is a folder" if is_folder(path) else "is not there"
        raise NetworkError(f"the file {path} {state}; allowed: a .safetensors or an .onnx file")
    if Path(path).suffix == ".onnx":
        values = _read_model(path, specs, untrained)
    elif Path(path).suffix == ".safetensors":
        values = _read_safetensors(path)
    else:
        raise UsageError(f"got {path} as a file of weights; allowed: NAME.safetensors, NAME.onnx")
    if problems := _problems(specs, values):
        raise NetworkError(f"the weights in {path} do not fit the network: " + "; ".join(problems))
    return values


def _read_model(
    path: str | Path, wanted: Mapping[str, TensorSpec], untrained: Collection[str]
) -> dict[str, np.ndarray]:
    """The parameters and buffers of another model, and its initial values with a name in `wanted`."""
    model = import_model(path, dict.fromkeys(wanted, True), strict=False).model
    separate_roles(model.graph)
    found = initial_specs(model.graph)
    # The same value may be a parameter in one model and a setting in the other.
    own = [name for name in (*found.parameters, *found.buffers) if name in wanted or name not in untrained]
    names = dict.fromkeys([*own, *(name for name in wanted if name in model.graph.initializers)])
    return {name: initial_value(model, name) for name in names}


def _problems(specs: Mapping[str, TensorSpec], values: Mapping[str, np.ndarray]) -> list[str]:
    missing = [name for name in specs if name not in values]
    unknown = sorted(values.keys() - specs.keys())  # safetensors returns them in no fixed order
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
    """The first entries and the number of others: a large network has hundreds."""
    more = len(entries) - _SHOWN
    return between.join(entries[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    _, load, refused = _safetensors()
    try:
        values: dict[str, np.ndarray] = load(Path(path).read_bytes())
    except (refused, KeyError, ValueError) as error:  # KeyError: an element type that NumPy lacks
        raise NetworkError(
            f"the file {path} cannot be read as safetensors ({error}); allowed: a complete file"
        ) from error
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
