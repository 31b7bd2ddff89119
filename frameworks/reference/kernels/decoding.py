"""Decode image files with Pillow, which is imported only here."""

from __future__ import annotations

import io

import numpy as np

from deep5.frameworks.reference.kernels.memory import Array

__all__ = ["decoded"]

_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")


def decoded(stream: Array, *, pixel_format: str) -> Array:
    """ONNX ImageDecoder (opset 20).

    Args:
        stream: The file's bytes, uint8.
        pixel_format: `"RGB"`, `"BGR"` or `"Grayscale"`.

    Returns:
        uint8, (height, width, channels); (0, 0, channels) if the bytes are not an image, as in ONNX.
    """
    from PIL import Image

    grey = pixel_format == "Grayscale"
    try:
        with Image.open(io.BytesIO(stream.tobytes()), formats=_FORMATS) as image:
            pixels = np.array(image.convert("L" if grey else "RGB"))
    except Exception:  # errors on truncated or invalid files have no other common base
        return np.zeros((0, 0, 1 if grey else 3), np.uint8)
    if grey:
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels
