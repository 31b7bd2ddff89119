"""Preparation of image files for a trained network, the same as for the run's own samples."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deep5.core.errors import UsageError
from deep5.core.tensors import TensorSpec, numpy_dtype

if TYPE_CHECKING:
    import numpy as np

    from deep5.trained.load import Trained
    from deep5.training.datasets.images import Decoder
    from deep5.training.datasets.pixels import Scaling

__all__ = ["Preparation", "preparation_of"]

_DESCRIPTION = "dataset.json"
# As `Scaling.describe` and `Decoder.describe` write them.
_SCALING = re.compile(r"divided by 255, less \(([^()]*)\), divided by \(([^()]*)\)")
_CROP = re.compile(r"shorter side scaled to (\d+), middle (\d+) x \d+")
_STRETCH = re.compile(r"both sides scaled to (\d+)")
_TURNED = "turned as EXIF says"
_DECODED = re.compile(r"decoded by (\w+)")
# Data sets of numbers in [0, 1] that do not come from image files.
_UNIT = ("digits",)


@dataclass(frozen=True, kw_only=True)
class Preparation:
    """Conversion of image files to a network's input.

    Attributes:
        name: Name of the input; None if the network takes no image, with the reason in `reason`.
        spec: Specification of the input.
        decoder: From bytes to pixels.
        scaling: From pixels to numbers; None: they stay bytes.
        transforms: Transforms of the run's test samples after that.
        invert: Whether images are inverted.
        notes: Notes, one sentence each.
        description: Description of the run's data set.
        reason: Why images are not possible.
    """

    name: str | None
    spec: TensorSpec
    decoder: Decoder | None
    scaling: Scaling | None
    transforms: Sequence[Any]
    invert: bool
    notes: tuple[str, ...]
    description: Mapping[str, Any]
    reason: str = ""

    def image(self, path: Path) -> dict[str, np.ndarray]:
        """The sample in an image file.

        Raises:
            UsageError: The network takes no images, or the file cannot be read or decoded.
        """
        import numpy as np

        if self.name is None or self.decoder is None:
            raise UsageError(f"{path} is taken for an image, and {self.reason}; allowed: .npy and .npz files")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}; allowed: a file that can be read") from error
        pixels = self.decoder.decode(data, str(path))[None]
        if self.invert:
            pixels = 255 - pixels
        batch = {self.name: pixels if self.scaling is None else self.scaling.apply(pixels)}
        for transform in self.transforms:
            batch = transform(batch, np.zeros(1, np.int64), 0)
        found = batch[self.name]
        reason = self.spec.mismatch((_first(self.spec), *found.shape[1:]), self.spec.dtype)
        floating = numpy_dtype(self.spec.dtype).kind != "u" and found.dtype.kind != "u"
        if reason or not (floating or found.dtype == numpy_dtype(self.spec.dtype)):
            raise UsageError(
                f"{path} became {found.dtype} of shape {found.shape[1:]}, and the network takes {self.spec}; remedy: "
                "--size, or --mean and --std"
            )
        return {self.name: found[0].astype(numpy_dtype(self.spec.dtype))}


def _first(spec: TensorSpec) -> int:
    return spec.shape[0] if isinstance(spec.shape[0], int) else 1


def preparation_of(
    run: Trained,
    inputs: Mapping[str, TensorSpec],
    *,
    size: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    fit: str | None,
    invert: bool,
) -> Preparation:
    """Create the preparation of images for the run's network.

    Args:
        run: The description of its data set states how its samples were prepared.
        inputs: Inputs of the network, without the label.
        size: Height and width of the pixels, or None: the run's.
        mean: Mean per channel, of pixels in [0, 1], or None: the run's.
        std: Standard deviation per channel, likewise.
        fit: `"crop"`, `"stretch"`, or None: the run's.
        invert: Whether images are inverted.

    Returns:
        The preparation. If the run's `test_transforms` cannot be created, it takes no image and states the reason.

    Raises:
        UsageError: Numbers that do not fit the channels.
    """
    description = _description(run.result.folder)
    name, spec = next(iter(inputs.items()))
    shared: dict[str, Any] = {"spec": spec, "invert": invert, "description": description}
    image = len(inputs) == 1 and len(spec.shape) == 4 and all(isinstance(extent, int) for extent in spec.shape[1:])
    reason = "" if image else f"the network takes {', '.join(f'{key}: {value}' for key, value in inputs.items())}"
    if image and (spec.shape[1] not in (1, 3) or spec.shape[2] != spec.shape[3]):
        reason = f"the network takes {spec}, not square images of one or three channels"
    if reason:
        return Preparation(name=None, decoder=None, scaling=None, transforms=(), notes=(), reason=reason, **shared)
    channels, side = int(spec.shape[1]), int(spec.shape[2])
    preparation = _preparation(description)
    try:
        transforms = _transforms(run)
    except UsageError as error:
        return Preparation(name=None, decoder=None, scaling=None, transforms=(), notes=(), reason=str(error), **shared)
    scaling, note = _scaling(run, preparation, channels, mean, std, bool(transforms))
    return Preparation(
        name=name,
        decoder=_LazyDecoder(size, fit, preparation, channels, side),  # type: ignore[arg-type]  # Pillow may not be wanted
        scaling=scaling,
        transforms=transforms,
        notes=(note,) if note else (),
        **shared,
    )


class _LazyDecoder:
    """A decoder created for the first image: it requires Pillow, which arrays do not."""

    def __init__(self, size: int | None, fit: str | None, preparation: str, channels: int, side: int) -> None:
        cropped, stretched = _CROP.search(preparation), _STRETCH.search(preparation)
        share = 1.0
        if cropped:
            share, side = int(cropped[2]) / int(cropped[1]), int(cropped[2])
            fit = fit or "crop"
        elif stretched:
            side = int(stretched[1])
        self._options: dict[str, Any] = {"size": size or side, "channels": channels, "fit": fit or "stretch"}
        # The run's own library: another one may decode other pixels.
        decoded = _DECODED.search(preparation)
        self._options |= {"name": decoded[1]} if decoded else {}
        self._options["turn"] = _TURNED in preparation or not (cropped or stretched)
        # The share belongs to the run's own cropping.
        self._options["share"] = share if cropped and fit == "crop" else 1.0

    def decode(self, data: bytes, name: str) -> np.ndarray:
        from deep5.training.datasets.images import Decoder

        return Decoder(**self._options).decode(data, name)


def _scaling(
    run: Trained,
    preparation: str,
    channels: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    transformed: bool,
) -> tuple[Scaling | None, str]:
    """The scaling of pixels, and a note on it."""
    from deep5.training.datasets.pixels import Scaling

    for option, given in (("--mean", mean), ("--std", std)):
        if given is not None and len(given) not in (1, channels):
            raise UsageError(f"{option} has {len(given)} numbers; allowed: one, or {channels}, a channel each")
    if std is not None and not all(value > 0 for value in std):
        raise UsageError(f"--std {std}; allowed: numbers above 0")
    if mean is not None or std is not None:
        means, stds = mean or (0.0,), std or (1.0,)
        return Scaling(mean=_each(means, channels), std=_each(stds, channels)), ""
    found = _SCALING.search(preparation)
    if found:
        numbers = [tuple(float(part) for part in group.split(",") if part.strip()) for group in found.groups()]
        if all(len(own) == channels for own in numbers):
            return Scaling(mean=numbers[0], std=numbers[1]), ""
    plain = Scaling(mean=(0.0,) * channels, std=(1.0,) * channels)
    if preparation in ("none", "bytes") or preparation.endswith("; bytes"):
        return None, ""
    if preparation.endswith("divided by 255"):
        return plain, ""
    if run.described.get("dataset") in _UNIT:
        return plain, "images have to be bright on dark, as the digits are; --invert inverts them"
    if transformed:
        return None, ""
    return plain, (
        "how the run's samples were prepared is not known: pixels were divided by 255; --mean and --std say otherwise"
    )


def _each(values: Sequence[float], channels: int) -> tuple[float, ...]:
    return tuple(values) if len(values) == channels else tuple(values) * channels


def _transforms(run: Trained) -> tuple[Any, ...]:
    from deep5.trained.load import transforms_of
    from deep5.training.sampler import seeded

    return seeded(transforms_of(run), 0)


def _preparation(description: Mapping[str, Any]) -> str:
    """Description of the preparation of the test samples, if that of the parts differs."""
    given = description.get("preparation", "")
    return str(given.get("test", "") if isinstance(given, Mapping) else given)


def _description(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / _DESCRIPTION).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
