"""Decoding libraries of image files next to Pillow: libjpeg-turbo by PyTurboJPEG, and OpenCV.

A library decodes a complete file to the pixels that it holds. The rest is common to all, so that samples differ only by
what the libraries decode: the check of the file (`image_headers`), orientation, colors and scaling (`images`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from deep5.core.errors import MissingDependency, UsageError, brief, suggestion
from deep5.core.plugins import install_command, missing_dependency, uninterrupted
from deep5.training.datasets.image_headers import ImageHeader

__all__ = ["DECODERS", "PILLOW", "Decode", "check_decoder", "decode_by", "decoder_version"]

PILLOW = "pillow"
"""The decoder that every data set of images uses unless another one is named."""

DECODERS = (PILLOW, "turbojpeg", "opencv")
"""The names of the decoding libraries."""

Decode = Callable[[bytes, ImageHeader], np.ndarray]
"""Decodes a complete file: uint8 (height, width), or (height, width, channels) in RGB or RGBA.

It raises `ValueError` with the reason if it cannot.
"""

_REPORT = "_TurboJPEG__report_error"
_LIBRARY = (
    "apt install libturbojpeg0 on Debian and Ubuntu, dnf install turbojpeg on Fedora, brew install jpeg-turbo on macOS"
)


def check_decoder(name: Any) -> str:
    """The name of a decoder whose library is installed.

    Raises:
        UsageError: No decoder has this name.
        MissingDependency: Its library is not installed; the message states the command that installs it.

    >>> check_decoder("pillow")
    'pillow'
    >>> check_decoder("gimp")
    Traceback (most recent call last):
        ...
    deep5.core.errors.UsageError: unknown decoder 'gimp'; allowed: 'pillow', 'turbojpeg', 'opencv'
    """
    if not isinstance(name, str) or name not in DECODERS:
        similar = suggestion(name, DECODERS) if isinstance(name, str) else ""
        raise UsageError(f"unknown decoder {brief(name)}; allowed: {', '.join(map(repr, DECODERS))}{similar}")
    if name == PILLOW:
        try:
            import PIL  # noqa: F401 - fail here, not after an hour of training
        except ModuleNotFoundError as error:
            raise missing_dependency("a data set of image files", error) from error
    else:
        _LIBRARIES[name]()
    return name


def decode_by(name: str) -> Decode:
    """The function that decodes by a library other than Pillow.

    Args:
        name: "turbojpeg" or "opencv".

    Raises:
        MissingDependency: The library is not installed.

    >>> import io
    >>> from PIL import Image
    >>> from deep5.training.datasets.image_headers import image_header
    >>> buffer = io.BytesIO()
    >>> Image.new("RGB", (4, 2), (255, 0, 0)).save(buffer, "PNG")
    >>> pixels = decode_by("opencv")(buffer.getvalue(), image_header(buffer.getvalue()))
    >>> pixels.shape, pixels[0, 0].tolist()
    ((2, 4, 3), [255, 0, 0])
    """
    return _LIBRARIES[name]()[0]


def decoder_version(name: str) -> str:
    """The library of a decoder and its version, with Pillow's, which scales.

    >>> decoder_version("pillow").split()[0]
    'Pillow'
    """
    from importlib.metadata import version

    pillow = f"Pillow {version('pillow')}"
    return pillow if name == PILLOW else f"{_LIBRARIES[name]()[1]}; scaled by {pillow}"


@functools.cache
def _turbojpeg() -> tuple[Decode, str]:
    """The decoder of PyTurboJPEG, and its version."""
    try:
        with uninterrupted():
            import turbojpeg
    except ModuleNotFoundError as error:
        raise missing_dependency("the decoder 'turbojpeg'", error) from error
    if not hasattr(turbojpeg.TurboJPEG, _REPORT):
        raise MissingDependency(
            f"the decoder 'turbojpeg' needs PyTurboJPEG 1, got {turbojpeg.__version__}, whose warnings of incomplete "
            f"files are not found; remedy: {install_command('turbojpeg')}"
        )
    try:
        library = _strict(turbojpeg.TurboJPEG)()
    except (RuntimeError, OSError) as error:
        raise MissingDependency(
            "the decoder 'turbojpeg' needs the system library libturbojpeg, which is not found "
            f"({' '.join(str(error).split())[:80]}); remedy: {_LIBRARY}; or decoder='pillow', which is built with it"
        ) from error
    gray, colors = turbojpeg.TJPF_GRAY, turbojpeg.TJPF_RGB

    def decode(data: bytes, header: ImageHeader) -> np.ndarray:
        if header.format != "JPEG":
            raise ValueError(
                f"it is {header.format}; the decoder 'turbojpeg' decodes JPEG; decoder='opencv' or 'pillow' decodes it"
            )
        if header.channels == 4:
            raise ValueError(
                "its colors are CMYK, which libjpeg-turbo does not convert to RGB; decoder='pillow' decodes it"
            )
        try:
            if header.channels == 1:
                return np.asarray(library.decode(data, gray))[:, :, 0]
            return np.asarray(library.decode(data, colors))
        except OSError as error:
            raise ValueError(str(error)) from error

    return decode, f"PyTurboJPEG {turbojpeg.__version__}"


def _strict(base: Any) -> Any:
    """The class of PyTurboJPEG with an error in place of a warning: after one, part of the picture is missing.

    The filters of Python's warnings belong to the process, and images are decoded by several threads, so that a context
    of `warnings` cannot do this.
    """

    def report(self: Any, handle: Any) -> None:
        raise OSError(self._TurboJPEG__get_error_string(handle))

    return type("StrictTurboJPEG", (base,), {_REPORT: report})


@functools.cache
def _opencv() -> tuple[Decode, str]:
    """The decoder of OpenCV, and its version."""
    try:
        with uninterrupted():
            import cv2
    except ModuleNotFoundError as error:
        raise missing_dependency("the decoder 'opencv'", error) from error
    except ImportError as error:
        raise MissingDependency(
            f"the decoder 'opencv' cannot load OpenCV ({' '.join(str(error).split())[:120]}); remedy: pip install "
            "opencv-python-headless, which needs no libraries of a display"
        ) from error

    def decode(data: bytes, header: ImageHeader) -> np.ndarray:
        if header.animated or header.transparent:
            kind = "with several frames" if header.animated else "with a transparent color"
            raise ValueError(f"it is a PNG {kind}, of which OpenCV returns other pixels; decoder='pillow' decodes it")
        flags = cv2.IMREAD_UNCHANGED
        if header.format == "JPEG":
            gray = header.channels == 1
            flags = (cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR) | cv2.IMREAD_IGNORE_ORIENTATION
        try:
            pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        except cv2.error as error:
            raise ValueError(str(error)) from error
        if pixels is None:
            raise ValueError("OpenCV returns no pixels")
        if pixels.dtype == np.uint16:
            pixels = (pixels.astype(np.uint16) >> 8).astype(np.uint8)  # the high byte, as Pillow
        if pixels.ndim == 3:
            # OpenCV's order is blue, green, red.
            pixels = pixels[:, :, ::-1] if pixels.shape[2] == 3 else pixels[:, :, [2, 1, 0, 3]]
        return pixels

    return decode, f"OpenCV {cv2.__version__}"


_LIBRARIES: dict[str, Callable[[], tuple[Decode, str]]] = {"turbojpeg": _turbojpeg, "opencv": _opencv}
