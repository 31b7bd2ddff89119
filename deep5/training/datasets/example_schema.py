"""Parts of samples from the features of `tf.train.Example` messages, by a schema that is given or inferred."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from deep5.core.errors import UsageError, brief, suggestion
from deep5.core.tensors import TensorSpec
from deep5.training.datasets.decoders import PILLOW
from deep5.training.datasets.example import Feature, parse_example
from deep5.training.datasets.images import Decoder
from deep5.training.datasets.pixels import Scaling

__all__ = ["ExampleSchema", "inferred_schema", "stated_schema"]

_STATED = re.compile(r"(?P<feature>.+?)\s*(?::\s*(?P<dtype>[a-z]+[0-9]*)\[(?P<shape>[^\]]*)\])?")
_DTYPES = (
    *("float16", "float32", "float64", "bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64"),
)
_IMAGE = "image"
_UNIT = Scaling(mean=(0.0,), std=(1.0,))


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of a sample: the feature it comes from, and its shape and dtype."""

    name: str
    feature: str
    spec: TensorSpec
    decoder: Decoder | None = None

    def describe(self) -> str:
        if self.decoder is not None:
            return f"{self.feature}: {self.decoder.describe()}, divided by 255"
        return f"{self.feature}: {self.spec}"


@dataclass(frozen=True, kw_only=True)
class ExampleSchema:
    """The parts of a sample.

    Attributes:
        parts: In order.
        labels_from: The first label, which becomes class 0.
        classes: The number of classes; None: any.
    """

    parts: tuple[_Part, ...]
    labels_from: int = 0
    classes: int | None = None

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """Each part without the batch dimension."""
        return {part.name: part.spec for part in self.parts}

    def describe(self) -> dict[str, str]:
        """Feature, dtype and shape of each part."""
        return {part.name: part.describe() for part in self.parts}

    def read(self, record: bytes, name: str) -> dict[str, np.ndarray]:
        """The sample of a record.

        Args:
            record: A serialized `tf.train.Example`.
            name: The record's name in messages.

        Raises:
            UsageError: It is not an Example, or a feature is missing or does not fit its dtype or shape; the message
                includes `name`.
        """
        try:
            features = parse_example(record)
        except UsageError as error:
            raise UsageError(f"{name} {error}") from error
        sample = {}
        for part in self.parts:
            if part.feature not in features:
                raise UsageError(
                    f"{name} has no feature {part.feature!r}; allowed: {', '.join(sorted(features)) or 'none'}"
                    f"{suggestion(part.feature, features)}"
                )
            sample[part.name] = self._value(part, features[part.feature], f"{name} feature {part.feature!r}")
        return sample

    def _value(self, part: _Part, feature: Feature, where: str) -> np.ndarray:
        if part.decoder is not None:
            if not isinstance(feature, list) or len(feature) != 1:
                raise UsageError(f"{where} is {_shown(feature)}; allowed: the bytes of one image")
            return np.asarray(_UNIT.apply(part.decoder.decode(feature[0], where)[None])[0])
        dtype = np.dtype(part.spec.dtype)
        values = _numbers(feature, dtype, where)
        if part.name == "label" and values.dtype.kind in "iu" and (self.labels_from or self.classes):
            values = values - np.array(self.labels_from, values.dtype)
            most = self.classes if self.classes is not None else int(values.max(initial=0)) + 1
            wrong = values[(values < 0) | (values >= most)]
            if wrong.size:
                last = "" if self.classes is None else f" to {self.labels_from + self.classes - 1}"
                raise UsageError(
                    f"{where} holds the label {int(wrong[0]) + self.labels_from}; allowed: {self.labels_from}{last}; "
                    "remedy: labels_from= the first label, classes= their number"
                )
        return _shaped(values, part.spec, where)


def _numbers(feature: Feature, dtype: np.dtype, where: str) -> np.ndarray:
    """The values of a feature in a dtype, if they keep their values."""
    if isinstance(feature, list):
        content = b"".join(feature)
        if len(content) % dtype.itemsize:
            raise UsageError(
                f"{where} has {len(content)} bytes; allowed: a multiple of {dtype.itemsize} for {dtype}; remedy: "
                "another dtype, or 'image[C, H, W]' if the bytes are an encoded image"
            )
        return np.frombuffer(content, dtype.newbyteorder("<")).astype(dtype)
    if feature.dtype.kind == "f" and dtype.kind != "f":
        raise UsageError(f"{where} is {_shown(feature)}; allowed: a dtype of floating-point numbers; remedy: float32")
    if feature.dtype.kind == "i" and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        outside = feature[(feature < limits.min) | (feature > min(limits.max, 2**63 - 1))]
        if outside.size:
            raise UsageError(f"{where} holds {outside[0]}; allowed: {limits.min} to {limits.max}, those of {dtype}")
    return feature.astype(dtype)


def _shaped(values: np.ndarray, spec: TensorSpec, where: str) -> np.ndarray:
    fixed = int(np.prod([extent for extent in spec.shape if isinstance(extent, int)]))
    variable = sum(isinstance(extent, str) for extent in spec.shape)
    rest, odd = divmod(values.size, fixed) if fixed else (0, values.size)
    if odd or (not variable and rest != 1):
        times = " times any number" * bool(variable)
        raise UsageError(f"{where} has {values.size} values; allowed: {fixed}{times}, {spec}")
    return values.reshape([extent if isinstance(extent, int) else rest for extent in spec.shape])


def stated_schema(
    what: str,
    features: Mapping[str, str],
    example: Mapping[str, Feature],
    *,
    labels_from: int,
    classes: int | None,
    decoder: str = PILLOW,
) -> ExampleSchema:
    """The schema that a caller states.

    Args:
        what: The data set, for messages.
        features: For each part of a sample `FEATURE: dtype[shape]`, or `FEATURE` for the dtype and shape that it has in
            `example`. One dimension may be `?`. Bytes are read as little-endian numbers of the dtype, or decoded as an
            image: `image[3, 64, 64]`.
        example: The first record.
        labels_from: The first label.
        classes: The number of classes; None: any.
        decoder: The library that decodes images.

    Raises:
        UsageError: A line does not follow the format, or the feature is missing.
    """
    parts = []
    for name, stated in features.items():
        match = _STATED.fullmatch(stated.strip()) if isinstance(stated, str) else None
        if match is None or not isinstance(name, str):
            raise UsageError(
                f"{what} with features {name!r}: {brief(stated)}; allowed: 'FEATURE: dtype[shape]', such as "
                "'pixels: float32[28, 28]', or the feature's name"
            )
        feature = match["feature"]
        if feature not in example:
            raise UsageError(
                f"{what}: the first record has no feature {feature!r}; allowed: {_listed(example)}"
                f"{suggestion(feature, example)}"
            )
        if match["dtype"] is None:
            parts.append(_Part(name=name, feature=feature, spec=_spec_of(what, feature, example)))
            continue
        parts.append(_part(what, name, feature, match["dtype"], match["shape"], decoder))
    return ExampleSchema(parts=tuple(parts), labels_from=labels_from, classes=classes)


def inferred_schema(
    what: str, example: Mapping[str, Feature], *, labels_from: int, classes: int | None
) -> ExampleSchema:
    """A schema with a part for each feature of the first record, of its name, dtype and number of values.

    Raises:
        UsageError: A feature holds bytes, which have no dtype.
    """
    parts = [_Part(name=name, feature=name, spec=_spec_of(what, name, example)) for name in sorted(example)]
    return ExampleSchema(parts=tuple(parts), labels_from=labels_from, classes=classes)


def _part(what: str, name: str, feature: str, dtype: str, shape: str, by: str) -> _Part:
    extents: list[int | str] = []
    for text in filter(None, (one.strip() for one in shape.split(","))):
        if not text.isascii() or not (text == "?" or text.isdecimal()) or text.strip("0") == "":
            raise UsageError(f"{what}: the shape [{shape}] of {name!r}; allowed: integers of at least 1, and ? once")
        extents.append("length" if text == "?" else int(text))
    if extents.count("length") > 1:
        raise UsageError(f"{what}: the shape [{shape}] of {name!r}; allowed: integers of at least 1, and ? once")
    if dtype == _IMAGE:
        if len(extents) != 3 or extents[1] != extents[2] or not all(isinstance(one, int) for one in extents):
            raise UsageError(f"{what}: image[{shape}] for {name!r}; allowed: image[C, S, S], such as image[3, 64, 64]")
        channels, size, _ = (int(extent) for extent in extents)
        decoder = Decoder(size=size, channels=channels, name=by)
        return _Part(
            name=name, feature=feature, decoder=decoder, spec=TensorSpec(shape=(channels, size, size), dtype="float32")
        )
    if dtype not in _DTYPES:
        raise UsageError(
            f"{what}: the dtype {dtype!r} of {name!r}; allowed: {', '.join((*_DTYPES, _IMAGE))}"
            f"{suggestion(dtype, (*_DTYPES, _IMAGE))}"
        )
    return _Part(name=name, feature=feature, spec=TensorSpec(shape=tuple(extents), dtype=dtype))


def _spec_of(what: str, name: str, example: Mapping[str, Feature]) -> TensorSpec:
    feature = example[name]
    if isinstance(feature, list):
        raise UsageError(
            f"{what}: the feature {name!r} is {_shown(feature)}, which have no dtype; allowed: features= with a dtype "
            f"and shape for it, or without it: features={{'input': '{name}: uint8[28, 28]'}} or '{name}: image[3, 64, "
            f"64]', say; the first record has {_listed(example)}"
        )
    return TensorSpec(shape=() if feature.size == 1 else (feature.size,), dtype=str(feature.dtype))


def _listed(example: Mapping[str, Feature]) -> str:
    return ", ".join(f"{name} ({_shown(feature)})" for name, feature in sorted(example.items())) or "no features"


def _shown(feature: Feature) -> str:
    if isinstance(feature, list):
        count = sum(map(len, feature))
        return f"{count} bytes" if len(feature) == 1 else f"{count} bytes in {len(feature)} strings"
    return f"{feature.dtype}[{feature.size}]"
