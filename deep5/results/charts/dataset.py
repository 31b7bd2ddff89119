"""Charts of a data set: its first samples as images, waveforms, histograms or tokens, and its classes."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from deep5.core.charts import PALETTE, WIDTH, altair, by_name, headed
from deep5.core.terminal import counted, plain
from deep5.results.dataset_record import tokens_text

if TYPE_CHECKING:
    from deep5.results.dataset_record import DatasetRecord

__all__ = ["dataset_charts", "png"]

# Pixels: an image and its margin, a panel of a histogram and of a waveform, a bar, a line of tokens.
_IMAGE, _MARGIN, _PANEL, _WAVE, _BAR, _LINE = 72, 20, 130, 56, 18, 22
# Maximum number of images in a row, samples, histograms in a row and in all, bars, bins, and characters of a name.
_ROW, _SAMPLES, _COLUMNS, _HISTOGRAMS, _BARS, _BINS, _NAME = 6, 24, 3, 12, 24, 20, 24
_LETTERS = 70
# Pairs of extremes that are drawn of a waveform.
_PAIRS = 220
_PARTS = {"train": PALETTE[0], "test": PALETTE[5]}


def dataset_charts(record: DatasetRecord) -> dict[str, Any]:
    """The charts of a data set by file name: `samples`, and `classes` if labels are known.

    Args:
        record: Samples and classes.

    Raises:
        MissingDependency: Altair is not installed.
    """
    charts = {"samples": _samples(record)}
    if record.class_counts("train") is not None:
        charts["classes"] = _classes(record)
    return charts


def png(pixels: np.ndarray) -> bytes:
    """A PNG file of pixels.

    Args:
        pixels: uint8, shape (height, width) or (height, width, 3).

    References:
        W3C, Portable Network Graphics (PNG) Specification, third edition: chunks of length, type, data and CRC-32; rows
        that begin with a filter byte, 0 for none; color type 0 is gray, 2 is RGB.
    """
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1).tobytes()
    header = struct.pack(">2I5B", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return b"".join(
        [b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(filtered)), chunk(b"IEND", b"")]
    )


def _samples(record: DatasetRecord) -> Any:
    alt = altair()
    # Without an input, the largest part.
    name = "input" if "input" in record.samples else max(record.samples, key=lambda one: record.samples[one].nbytes)
    inputs = record.samples[name]
    title = f"{record.source}: the first training samples"
    if inputs.dtype == object:
        return headed(alt, _values(alt, inputs, name), plain(title))
    rank = inputs.ndim - 1
    if record.description.get("sample_rate") is not None and rank == 2:
        return headed(alt, _waveforms(alt, record, inputs), plain(title))
    if rank in (2, 3) and min(inputs.shape[-2:]) >= 4 and (rank == 2 or inputs.shape[1] in (1, 3)):
        return headed(
            alt,
            _images(alt, record, inputs),
            plain(title),
            "From the lowest value of each image, black, to its highest.",
        ).configure_view(stroke=None)
    vocabulary = record.description.get("vocabulary")
    if rank == 1 and inputs.dtype.kind in "iu" and isinstance(vocabulary, list):
        return headed(alt, _tokens(alt, record, inputs, vocabulary), plain(title)).configure_view(stroke=None)
    if record.values is not None and record.values.dtype.kind in "biuf":
        count = len(record.values)
        made = _histograms(alt, record, record.values)
        return headed(alt, made, plain(f"{record.source}: inputs of {counted(count, 'training sample')}"))
    return headed(alt, _values(alt, inputs, name), plain(title))


def _images(alt: Any, record: DatasetRecord, inputs: np.ndarray) -> Any:
    rows = []
    for place, image in enumerate(inputs[:_SAMPLES]):
        wide = np.asarray(image, np.float64)
        low, high = wide.min(), wide.max()
        pixels = np.round((wide - low) / ((high - low) or 1.0) * 255).astype(np.uint8)
        pixels = pixels[0] if pixels.ndim == 3 and len(pixels) == 1 else pixels
        pixels = np.moveaxis(pixels, 0, -1) if pixels.ndim == 3 else pixels
        url = "data:image/png;base64," + base64.b64encode(png(pixels)).decode()
        row, column = divmod(place, _ROW)
        rows.append({"column": column, "row": row, "url": url, "label": _label(record, place)})
    width = min(len(rows), _ROW) * (_IMAGE + _MARGIN)
    height = -(-len(rows) // _ROW) * (_IMAGE + _MARGIN)
    base = alt.Chart(alt.Data(values=rows)).properties(width=width, height=height)
    x = alt.X("column:O", axis=None, scale=alt.Scale(padding=0))
    y = alt.Y("row:O", axis=None, scale=alt.Scale(padding=0))
    images = base.mark_image(width=_IMAGE, height=_IMAGE).encode(x=x, y=y, url="url:N")
    return images + base.mark_text(dy=_IMAGE // 2 + 8, fontSize=11).encode(x=x, y=y, text="label:N")


def _label(record: DatasetRecord, place: int) -> str:
    labels = record.samples.get("label")
    if labels is None or np.ndim(labels[place]) != 0:
        return f"sample {place}"
    value = labels[place]
    name = record.class_name(int(value)) if np.asarray(value).dtype.kind in "iu" else f"{float(value):.4g}"
    return plain(_short(name))


def _waveforms(alt: Any, record: DatasetRecord, inputs: np.ndarray) -> Any:
    rate = float(record.description["sample_rate"])
    panels = []
    shown = inputs[: min(_SAMPLES, 8)]
    several = inputs.shape[1] > 1
    legend = alt.Legend(title="channel", orient="right", symbolType="square") if several else None
    for place, wave in enumerate(shown):
        rows = []
        last = place == len(shown) - 1
        for channel, values in enumerate(np.asarray(wave, np.float64)):
            bins = np.array_split(values, min(_PAIRS, len(values)))
            begins = np.cumsum([0, *map(len, bins[:-1])])
            rows += [
                {"time": begin / rate, "low": float(part.min()), "high": float(part.max()), "channel": str(channel)}
                for begin, part in zip(begins.tolist(), bins, strict=True)
            ]
        panels.append(
            alt.Chart(alt.Data(values=rows))
            .mark_area(opacity=0.5 if several else 0.8, strokeWidth=0.6)
            .encode(
                x=alt.X("time:Q", title="time (s)" if last else None, axis=alt.Axis(labels=last)),
                y=alt.Y("low:Q", title=_label(record, place), scale=alt.Scale(domain=[-1, 1])),
                y2="high:Q",
                color=alt.Color("channel:N", scale=alt.Scale(range=list(PALETTE)), legend=legend),
                stroke=alt.Stroke("channel:N", scale=alt.Scale(range=list(PALETTE)), legend=None),
            )
            .properties(width=WIDTH, height=_WAVE)
        )
    return alt.vconcat(*panels, spacing=8)


def _tokens(alt: Any, record: DatasetRecord, inputs: np.ndarray, vocabulary: Sequence[str]) -> Any:
    rows = []
    for place, ids in enumerate(inputs[:_SAMPLES]):
        words = plain(tokens_text(ids, vocabulary, str(record.description.get("tokens"))))
        shown = words if len(words) <= _LETTERS else f"{words[:_LETTERS]}…"
        rows.append({"row": place, "words": shown, "label": _label(record, place)})
    base = alt.Chart(alt.Data(values=rows)).properties(width=WIDTH + 100, height=_LINE * len(rows))
    y = alt.Y("row:O", axis=None)
    labels = base.mark_text(align="left", fontSize=11, color="#555").encode(x=alt.value(0), y=y, text="label:N")
    return labels + base.mark_text(align="left", font="monospace", fontSize=11).encode(
        x=alt.value(70), y=y, text="words:N"
    )


def _histograms(alt: Any, record: DatasetRecord, values: np.ndarray) -> Any:
    names = record.description.get("inputs")
    if not isinstance(names, list) or len(names) != values.shape[1]:
        names = [f"input {place}" for place in range(values.shape[1])]
    if values.shape[1] > _HISTOGRAMS and not isinstance(record.description.get("inputs"), list):
        return _values(alt, values, "input")
    panels = [
        _bars(alt, values[:, place], plain(_short(names[place])), _PANEL)
        for place in range(min(len(names), _HISTOGRAMS))
    ]
    rows = [alt.hconcat(*panels[first : first + _COLUMNS]) for first in range(0, len(panels), _COLUMNS)]
    return alt.vconcat(*rows)


def _values(alt: Any, inputs: np.ndarray, name: str) -> Any:
    arrays = inputs.reshape(-1) if inputs.dtype != object else np.concatenate([part.reshape(-1) for part in inputs])
    return _bars(alt, arrays, plain(f"values of {_short(name)}"), WIDTH)


def _bars(alt: Any, values: np.ndarray, title: str, width: int) -> Any:
    counts, edges = np.histogram(np.asarray(values, np.float64), bins=_BINS)
    rows = [
        {"begin": float(begin), "end": float(end), "count": int(count)}
        for begin, end, count in zip(edges[:-1], edges[1:], counts, strict=True)
    ]
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar(color=PALETTE[0])
        .encode(
            x=alt.X("begin:Q", title=title, bin="binned", axis=alt.Axis(tickCount=3, format=".3~g")),
            x2="end:Q",
            y=alt.Y("count:Q", title="samples" if width == _PANEL else "values", axis=alt.Axis(tickCount=3)),
        )
        .properties(width=width, height=80 if width == _PANEL else 180)
    )


def _classes(record: DatasetRecord) -> Any:
    alt = altair()
    counts = {part: record.class_counts(part) or {} for part in _PARTS}
    names = list(dict.fromkeys([*counts["train"], *counts["test"]]))
    shown = names[:_BARS]
    rows = [
        {"name": plain(_short(name)), "part": part, "samples": counts[part].get(name, 0)}
        for name in shown
        for part in _PARTS
    ]
    order = list(dict.fromkeys(row["name"] for row in rows))
    made = (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            y=alt.Y("name:N", sort=order, title=None),
            x=alt.X("samples:Q", title="samples"),
            color=by_name(
                alt.Color,
                "part:N",
                _PARTS,
                title=None,
                legend=alt.Legend(symbolType="square", symbolStrokeWidth=0, symbolSize=100),
            ),
            order=alt.Order("part:N", sort="descending"),
        )
        .properties(width=WIDTH, height=_BAR * len(order))
    )
    rest = f"The first {_BARS} of {len(names)} classes." if len(names) > _BARS else ""
    return headed(alt, made, plain(f"{record.source}: samples of each class"), rest)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
