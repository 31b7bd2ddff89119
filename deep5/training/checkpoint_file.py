"""Checkpoint files: a tree of values and arrays in one safetensors file, written atomically."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from deep5.core.errors import CheckpointError, OutputError
from deep5.core.files import is_file
from deep5.core.metric import FirstCalls, Sample
from deep5.core.quantities import size
from deep5.core.tensors import numpy_dtype

__all__ = ["read_checkpoint", "write_checkpoint"]

_VERSION = 1
_KEY = "deep5"
# Number lists of at least this length become arrays: JSON takes five times the space and twenty times the time.
_LONG = 32


def write_checkpoint(path: str | Path, tree: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[str, ...]:
    """Write a file atomically, even if the machine stops.

    Arrays become the file's tensors, everything else JSON in its header. Every number is stored exactly.

    Args:
        path: A file that ends in `.safetensors`; its folder must exist.
        tree: Values by name: dicts, lists, tuples and sets of None, booleans, numbers, strings, NumPy arrays and
            `Sample`s.
        about: A description of the content, in JSON types.

    Returns:
        The places in the tree with values of other types, which are omitted.

    Raises:
        OutputError: The file cannot be written; an existing file of this name is unchanged.

    References:
        https://huggingface.co/docs/safetensors: a header of names, dtypes and shapes, and the bytes.
    """
    from safetensors.numpy import save_file

    packer = _Packer()
    document = {"version": _VERSION, "about": dict(about), "tree": packer.packed(tree, "")}
    path = Path(path)
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        os.close(handle)
        save_file(packer.arrays, temporary, metadata={_KEY: json.dumps(document)})
        _flushed(Path(temporary))
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
        _flushed(path.parent)
    except BaseException as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        # The library reports a full disk by its own exception.
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            reason = getattr(error, "strerror", None) or error
            raise OutputError(
                f"the checkpoint {path} cannot be written ({reason}); allowed: a folder that can be written, with "
                f"{size(packer.size_bytes)} free; earlier checkpoints are unchanged"
            ) from error
        raise
    return tuple(packer.left_out)


def read_checkpoint(path: str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The tree and the description that `write_checkpoint` stored. Nothing in the file is executed.

    Raises:
        CheckpointError: The file does not exist, is truncated, or was not written by deep5.
    """
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not is_file(path):
        raise CheckpointError(f"the checkpoint {path} is not there; allowed: a file that a run wrote")
    try:
        with safe_open(path, "numpy") as file:
            held = (file.metadata() or {}).get(_KEY)
            if held is None:
                raise CheckpointError(f"{path} is not a checkpoint of deep5; allowed: a file that a run wrote")
            document = json.loads(held)
            if document["version"] != _VERSION:
                raise CheckpointError(
                    f"the checkpoint {path} has version {document['version']!r}; allowed: {_VERSION}; remedy: resume "
                    "with the deep5 that wrote it"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            tree: dict[str, Any] = _unpacked(document["tree"], arrays)
            about: dict[str, Any] = document["about"]
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is truncated or damaged ({error}); remedy: resume from an earlier one"
        ) from error
    return tree, about


def _flushed(path: Path) -> None:
    """Flush the file of this name to disk before anything relies on it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _Packer:
    """Converts a tree to JSON types, and its arrays to tensors named by their paths."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        self.left_out: list[str] = []

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def packed(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            return {"$": "array", "at": self._kept(value, path)}
        if isinstance(value, np.ndarray) and value.dtype.name in _BITS:
            bits: np.ndarray = np.ascontiguousarray(value).view(_BITS[value.dtype.name]).reshape(value.shape)
            return {"$": "bits", "dtype": value.dtype.name, "at": self._kept(bits, path)}
        if isinstance(value, (np.bool_, np.integer, np.floating)):
            return {"$": "scalar", "at": self._kept(np.asarray(value), path)}
        if isinstance(value, FirstCalls):
            return {"$": "first_calls", "of": sorted(value.sizes)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, Sample):
            return {"$": "sample", "of": [self.packed(part, f"{path}/{index}") for index, part in enumerate(value)]}
        if isinstance(value, (list, tuple, set, frozenset)):
            return self._sequence(value, path)
        raise _NotPackable

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        pairs = []
        for key, entry in value.items():
            where = f"{path}/{key}" if path else str(key)
            try:
                pairs.append((self.packed(key, where), self.packed(entry, where)))
            except _NotPackable:
                self.left_out.append(where)
        if all(isinstance(key, str) and not key.startswith("$") for key, _ in pairs):
            return dict(pairs)
        return {"$": "dict", "of": pairs}

    def _sequence(self, value: Any, path: str) -> Any:
        kind = type(value).__name__
        if kind not in ("list", "tuple", "set", "frozenset"):
            raise _NotPackable
        items = sorted(value) if kind in ("set", "frozenset") else list(value)
        if kind == "list" and len(items) >= _LONG:
            types = {type(item) for item in items}
            if types == {Sample}:
                return {"$": "samples", "at": self._kept(np.array(items, dtype=np.float64), path)}
            if len(types) == 1 and (only := types.pop()) in _NUMBERS:
                try:
                    return {"$": only.__name__, "at": self._kept(np.array(items, dtype=_NUMBERS[only]), path)}
                except OverflowError:
                    pass  # integers beyond 64 bits stay strings
        found = [self.packed(item, f"{path}/{index}") for index, item in enumerate(items)]
        return found if kind == "list" else {"$": kind, "of": found}

    def _kept(self, array: np.ndarray, path: str) -> str:
        self.arrays[path] = np.ascontiguousarray(array).reshape(array.shape)
        return path


class _NotPackable(Exception):
    """A value that a checkpoint cannot hold."""


# Element types that NumPy gets from another library, and how their bits are stored.
_BITS: dict[str, type] = {"bfloat16": np.uint16}
_NUMBERS: dict[type, type] = {int: np.int64, float: np.float64, bool: np.bool_}


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: _unpacked(item, arrays) for key, item in value.items()}
    kind = value["$"]
    if kind == "array":
        return arrays[value["at"]]
    if kind == "bits":
        return arrays[value["at"]].view(numpy_dtype(value["dtype"]))
    if kind == "scalar":
        return arrays[value["at"]][()]
    if kind in ("int", "float", "bool"):
        return arrays[value["at"]].tolist()
    if kind == "samples":
        return [_sample(row) for row in arrays[value["at"]].tolist()]
    if kind == "sample":
        return Sample(*(_unpacked(part, arrays) for part in value["of"]))
    if kind == "first_calls":
        return FirstCalls(value["of"])
    if kind == "dict":
        return {_unpacked(key, arrays): _unpacked(item, arrays) for key, item in value["of"]}
    items = [_unpacked(item, arrays) for item in value["of"]]
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](items)


def _sample(row: list[float]) -> Sample:
    """NaN represents None: a sample's place and time are never NaN."""
    value, step, epoch, time_s = row
    return Sample(
        value,
        None if step != step else int(step),  # noqa: PLR0124 - only NaN differs from itself
        None if epoch != epoch else int(epoch),  # noqa: PLR0124
        None if time_s != time_s else time_s,  # noqa: PLR0124
    )
