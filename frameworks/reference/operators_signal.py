"""Fourier transforms of signals, and the mel scale."""

from __future__ import annotations

from functools import partial

import onnx_ir as ir

from deep5.frameworks.reference.kernels import signal
from deep5.frameworks.reference.table import Call, Operator, Site, by_position

__all__ = ["OPERATORS"]


def _dft(site: Site) -> Call:
    function = partial(
        signal.dft, inverse=bool(site.attribute("inverse", 0)), onesided=bool(site.attribute("onesided", 0))
    )
    return Call(by_position(function, site.given), site.given)


def _dft_refusal(node: ir.Node) -> str | None:
    return "got axis as an attribute, of an older opset; allowed: as an input" if "axis" in node.attributes else None


def _stft(site: Site) -> Call:
    function = partial(signal.stft, onesided=bool(site.attribute("onesided", 1)))
    return Call(by_position(function, site.given), site.given)


def _mel_weights(site: Site) -> Call:
    dtype = ir.DataType(site.attribute("output_datatype", ir.DataType.FLOAT)).numpy()
    return Call(partial(signal.mel_weights, dtype=dtype), site.given)


OPERATORS: dict[str, Operator] = {
    "DFT": Operator(_dft, refusal=_dft_refusal),
    "MelWeightMatrix": Operator(_mel_weights),
    "STFT": Operator(_stft),
}
