"""Files that are not ONNX: what their first bytes say they are, and what to do."""

from __future__ import annotations

__all__ = ["not_onnx"]

_DAMAGED = "allowed: a complete ONNX file; remedy: export it, or download it, again"
# By first bytes: what the file is, and the remedy.
_KINDS = {
    b"version https://git-lfs.github.com/spec/": (
        "a git-LFS pointer, which stands for the file",
        "git lfs pull, or a download of the file itself",
    ),
    b"PK\x03\x04": (
        "a zip archive, as torch.save and Keras write",
        "torch.onnx.export(module, inputs, 'FILE.onnx') of the module in a .pt file, or unpack the archive",
    ),
    b"\x80\x02": (
        "a Python pickle, as old versions of torch.save write",
        "torch.onnx.export(module, inputs, 'FILE.onnx') of the module in it",
    ),
    b"\x89HDF\r\n": ("an HDF5 file, as Keras writes", "model.export('FILE.onnx', format='onnx') in Keras"),
    b"\x1f\x8b": ("compressed by gzip", "gunzip"),
    b"\x89PNG": ("a PNG image", "the ONNX file itself"),
}


def not_onnx(content: bytes, said: str = "") -> str:
    """Why a file's content is not ONNX, what is allowed, and the remedy.

    Args:
        content: The content.
        said: What the parser says of it.

    >>> not_onnx(b"\\x1f\\x8b\\x08")
    'is compressed by gzip; allowed: a complete ONNX file; remedy: gunzip'
    """
    for first, (kind, remedy) in _KINDS.items():
        if content.startswith(first):
            return f"is {kind}; allowed: a complete ONNX file; remedy: {remedy}"
    if not content:
        return f"is empty; {_DAMAGED}"
    return f"cannot be read as ONNX ({said}); {_DAMAGED}"
