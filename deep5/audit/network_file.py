"""Rule 14: compares the network and weights of a run with the hashes that identify it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deep5.audit.files import bytes_of, plain
from deep5.audit.finding import Ledger
from deep5.core.quantities import size

__all__ = ["check_network"]

_NETWORK, _WEIGHTS = "network.onnx", "weights.safetensors"
# Hashing larger networks takes minutes: they are reported as not checked.
_MOST_BYTES = 200 * 2**20


def check_network(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> str | None:
    """Parse network.onnx and weights.safetensors, and hash their contents.

    Args:
        ledger: Receives the findings.
        root: The resolved folder.
        document: result.json of a training run.

    Returns:
        The dtype of most parameters; None if it is unknown.
    """
    dtypes: list[str | None] = [None]
    with ledger.part(14, _NETWORK):
        dtypes.append(_checked(ledger, root, document))
    return dtypes[-1]


def _checked(ledger: Ledger, root: Path, document: Mapping[str, Any]) -> str | None:
    path, provenance = plain(root, _NETWORK), document["provenance"]
    if path is None:
        native = any("native code" in reported for reported in document["warnings"])
        ledger.hold(14, native, f"there is no {_NETWORK}, and no reason is stated")
        return None
    if path.stat().st_size > _MOST_BYTES:
        ledger.skip(f"{_NETWORK}: it is larger than {size(_MOST_BYTES)}")
        return None
    network = _parsed(bytes_of(root, _NETWORK, most_bytes=_MOST_BYTES) or b"")
    ledger.same(14, f"the hash of the network in {_NETWORK}", provenance["network"], network.structure_hash())
    ledger.same(14, "the hash of the weights in it", provenance["trained_weights"], network.weights_hash())
    with ledger.part(14, _WEIGHTS):
        weights = plain(root, _WEIGHTS)
        if ledger.hold(14, weights is not None, f"there is no {_WEIGHTS}") and weights is not None:
            own = network.with_weights(weights).weights_hash()
            ledger.same(14, f"the hash of {_WEIGHTS}", provenance["trained_weights"], own)
    dtypes = Counter(spec.dtype for spec in network.parameter_specs.values())
    return dtypes.most_common(1)[0][0] if dtypes else None


def _parsed(content: bytes) -> Any:
    """The network of a file's bytes; weights stored in other files are rejected, wherever they are."""
    import onnx

    from deep5.core.errors import NetworkError, UsageError
    from deep5.networks.network import Network

    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception as error:  # protobuf raises its own private classes
        raise UsageError(f"it is not ONNX ({type(error).__name__})") from error
    outside = [tensor.name for tensor in model.graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    if outside:
        raise UsageError(f"its values {outside[0]!r:.60} lie in another file; allowed: a network in one file")
    try:
        return Network.from_onnx(model)
    except NetworkError:
        raise
    except Exception as error:  # a hostile graph may raise any error in onnx
        raise UsageError(f"it cannot be read as a network ({type(error).__name__}: {error})") from error
