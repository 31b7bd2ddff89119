"""Charts of a network's cost and measured times: shares of layers and of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.core.charts import PERCENT, altair, by_name, headed
from deep5.core.errors import UsageError
from deep5.core.quantities import percent
from deep5.core.terminal import counted, plain
from deep5.networks.analysis.analysis import NetworkAnalysis
from deep5.networks.analysis.picture import colour_of, shaded_colours
from deep5.results.network_record import QUANTITIES, by_type

if TYPE_CHECKING:
    from deep5.networks.analysis.layer_summary import LayerTimes
    from deep5.results.network_record import NetworkRecord

__all__ = ["layer_chart", "measured_chart", "network_charts", "type_chart"]

# Maximum number of bars for operators and layers, and of colors for operators in times; the rest is combined.
_TYPES, _LAYERS, _COLOURS = 14, 12, 9
_REST = "#b0b0b0"
# Color of the combined rest in times, where `_REST` is already an operator's color.
_REST_OF_TIMES = "#e8e8e8"
# Pixels: height of a bar with its padding, width of a panel, size of the panel of times. Then: characters of a name.
_BAR, _PANEL, _TIMES_WIDTH, _TIMES_HEIGHT = 20, 210, 300, 280
_NAME = 34
_PASSES = ("forward", "backward", "step: forward and backward")
_A_SAMPLE = "time per sample (ms)"


def network_charts(record: NetworkRecord) -> dict[str, Any]:
    """The charts of a network by file name.

    Args:
        record: Analysis and measured times of the network.

    Raises:
        MissingDependency: Altair is not installed.
    """
    charts = {"types": type_chart(record.found), "layers": layer_chart(record.found)}
    if record.times:
        charts["times"] = measured_chart(record.times)
    return charts


def type_chart(found: NetworkAnalysis) -> Any:
    """Shares of parameters, FLOPs and activation memory by operator, one panel each.

    Args:
        found: Result of `analyse`.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The network has no layers.
    """
    alt = altair()
    sums = by_type(found)
    if not sums:
        raise UsageError(f"the network {plain(found.name)!r} has no layers to draw; allowed: at least one layer")
    shares = {quantity: _shares({name: own[quantity] for name, own in sums.items()}) for quantity in QUANTITIES}

    def weight(name: str) -> float:
        return max(share.get(name) or 0.0 for share in shares.values())

    names = sorted(sums, key=lambda name: (-(shares["flops"].get(name) or 0.0), -weight(name), name))
    kept = sorted(names, key=lambda name: (name not in found.unknown, -weight(name)))[:_TYPES]
    rows = [name for name in names if name in kept]
    rest = [name for name in names if name not in kept]
    panels: list[Any] = []
    for quantity, title in QUANTITIES.items():
        bars = [(_labelled(name, sums[name]["nodes"]), shares[quantity].get(name), colour_of(name)) for name in rows]
        if rest:
            bars.append((f"{len(rest)} others", sum(shares[quantity].get(name) or 0.0 for name in rest), _REST))
        panels.append(_bars(alt, bars, title, labels=not panels))
    made = alt.hconcat(*panels, spacing=14).resolve_scale(y="independent")
    return headed(alt, made, _title(found, "shares of its operators"), _below(found))


def layer_chart(found: NetworkAnalysis) -> Any:
    """Shares of parameters, FLOPs and activation memory of the largest layers by each, and of the remaining layers.

    Args:
        found: Result of `analyse`.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: The network has no layers.
    """
    alt = altair()
    if not found.layers:
        raise UsageError(f"the network {plain(found.name)!r} has no layers to draw; allowed: at least one layer")
    counts: dict[str, dict[int, int | None]] = {
        "parameters": {place: layer.parameters for place, layer in enumerate(found.layers)},
        "flops": {
            place: None if layer.arithmetic is None else layer.arithmetic.flops
            for place, layer in enumerate(found.layers)
        },
        "activation_bytes": {place: layer.activation_bytes for place, layer in enumerate(found.layers)},
    }
    panels = []
    for quantity, title in QUANTITIES.items():
        shares = _shares(counts[quantity])
        most = sorted((place for place in shares if shares[place]), key=lambda place: -(shares[place] or 0.0))
        top = most[:_LAYERS] if len(most) > _LAYERS + 1 else most
        bars = [(_name(found, place), shares[place], colour_of(found.layers[place].op_type)) for place in top]
        if len(most) > len(top):
            others = sum(shares[place] or 0.0 for place in most[len(top) :])
            bars.append((counted(len(most) - len(top), "other layer"), others, _REST))
        panels.append(_bars(alt, bars or [("none", 0.0, _REST)], title, labels=True))
    made = alt.vconcat(*panels, spacing=16).resolve_scale(y="independent", x="independent")
    return headed(alt, made, _title(found, "its largest layers"), _below(found))


def measured_chart(measured: Sequence[LayerTimes]) -> Any:
    """Time per sample by operator against batch size, forward and backward; a tick marks the time of the whole pass.

    Operators have the colors of their kinds, as in the other charts. Where a step cannot be split, the whole step has
    its own panel.

    Args:
        measured: One per batch size, of one network and framework, in the order of the bars.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: Nothing was measured.
    """
    alt = altair()
    if not measured:
        raise UsageError("no times to draw; allowed: times of at least one batch size")
    legend, colours = _legend(measured)
    panels = []
    for side, kind in enumerate(_PASSES):
        bars = [
            {"batch": str(times.batch), "type": label, "ms": seconds / times.batch * 1e3, "order": legend.index(label)}
            for times in measured
            for label, seconds in _stack(times, side, legend).items()
        ]
        wholes = [
            {"batch": str(times.batch), "ms": seconds / times.batch * 1e3}
            for times in measured
            if (seconds := _whole(times, side)) is not None
        ]
        if not bars and not wholes:
            continue
        x = alt.X(
            "batch:N",
            sort=[str(times.batch) for times in measured],
            title="batch size",
            axis=alt.Axis(labelAngle=0),
        )
        y = alt.Y("ms:Q", title=_A_SAMPLE, stack="zero")
        looks = dict(zip(legend, colours, strict=True))
        colour = by_name(alt.Color, "type:N", looks, legend=alt.Legend(title="operator"))
        tick = {"color": "#111111", "thickness": 2.5, "width": 38, "opacity": 1, "orient": "horizontal"}
        layers = [alt.Chart(alt.Data(values=wholes)).mark_tick(**tick).encode(x=x, y=alt.Y("ms:Q", title=_A_SAMPLE))]
        if bars:
            drawn = alt.Chart(alt.Data(values=bars)).mark_bar(size=26)
            layers.insert(0, drawn.encode(x=x, y=y, color=colour, order="order:Q"))
        panels.append(alt.layer(*layers).properties(width=_TIMES_WIDTH, height=_TIMES_HEIGHT, title=kind))
    # Flush: the plots are aligned, whatever the width of the axis labels.
    made = alt.hconcat(*panels, spacing=70, bounds="flush").resolve_scale(y="independent", color="shared")
    title = plain(f"{measured[0].network} on {measured[0].framework}: measured time of its layers")
    chart = headed(alt, made, title, _notes_on_times(measured))
    return chart.configure_legend(orient="right", labelFontSize=12, symbolType="square", symbolSize=120)


def _legend(measured: Sequence[LayerTimes]) -> tuple[list[str], list[str]]:
    """Operators in descending order of time, and their colors; each batch size contributes its shares of time."""
    sums: dict[str, float] = {}
    for times in measured:
        own = {name: sum(seconds or 0.0 for seconds in both) for name, both in times.by_type().items()}
        whole = sum(own.values()) or 1.0
        for name, seconds in own.items():
            sums[name] = sums.get(name, 0.0) + seconds / whole
    order = [name for name in sorted(sums, key=lambda name: -sums[name]) if sums[name]]
    shown = order[:_COLOURS] if len(order) > _COLOURS + 1 else order
    shades = shaded_colours([layer.op_type for layer in measured[0].layers])
    colours = [shades[name] for name in shown]
    if len(shown) < len(order):
        return [*map(plain, shown), f"{len(order) - len(shown)} others"], [*colours, _REST_OF_TIMES]
    return [*map(plain, shown)], colours


def _stack(times: LayerTimes, side: int, legend: Sequence[str]) -> dict[str, float]:
    """Seconds of a pass by legend entry."""
    found: dict[str, float] = {}
    for name, both in times.by_type().items():
        if side < 2 and (seconds := both[side]):
            label = plain(name) if plain(name) in legend else legend[-1]
            found[label] = found.get(label, 0.0) + seconds
    return found


def _whole(times: LayerTimes, side: int) -> float | None:
    """Seconds of a whole pass; backward: of a whole step, minus the parts of its forward pass if it has parts."""
    if side == 0:
        return times.whole_forward_s
    if times.whole_step_s is None or (times.training_forward_s is None) != (side == 2):
        return None
    return max(0.0, times.whole_step_s - (times.training_forward_s or 0.0))


def _notes_on_times(measured: Sequence[LayerTimes]) -> str:
    black = "Black: the whole, timed at once"
    if any(_whole(times, 1) is not None for times in measured):
        black += "; backward: a whole step minus the parts of its forward pass"
    words = [f"{black}."]
    for reason in dict.fromkeys(times.unavailable for times in measured if times.unavailable):
        batches = ", ".join(str(times.batch) for times in measured if times.unavailable == reason)
        words.append(f"Not available at batch {batches}: {plain(reason)[:300]}.")
    return " ".join(words)


def _shares(counts: Mapping[Any, int | None]) -> dict[Any, float | None]:
    """Shares of the sum of the known counts; None for unknown ones."""
    whole = sum(count or 0 for count in counts.values())
    return {name: None if count is None else count / whole if whole else 0.0 for name, count in counts.items()}


def _bars(alt: Any, bars: Sequence[tuple[str, float | None, str]], title: str, *, labels: bool) -> Any:
    """A panel: one bar per row with its share after it."""
    rows: list[dict[str, Any]] = [
        {
            "name": label,
            "place": place,
            "share": share or 0.0,
            "colour": colour,
            "label": "unknown" if share is None else percent(share, 1) if share else "0",
        }
        for place, (label, share, colour) in enumerate(bars)
    ]
    most = max(row["share"] for row in rows) or 1.0
    base = alt.Chart(alt.Data(values=rows)).encode(
        y=alt.Y(
            "name:N",
            sort=[row["name"] for row in rows],
            title=None,
            axis=alt.Axis(labelLimit=260, ticks=False, domain=False) if labels else None,
        ),
        # Leave room for the number after the longest bar; if the bar fills the panel, the number is next to the axis.
        x=alt.X(
            "share:Q",
            title=f"share of {title}",
            scale=alt.Scale(domain=[0, min(1.0, most * 1.3)], nice=False),
            axis=alt.Axis(labelExpr=PERCENT, grid=False, values=_marks(most)),
        ),
    )
    drawn = base.mark_bar().encode(color=alt.Color("colour:N", scale=None))
    labels_drawn = base.mark_text(align="left", dx=4, fontSize=11).encode(text="label:N")
    # Without a frame, which would cross a number next to the axis.
    return alt.layer(drawn, labels_drawn).properties(
        width=_PANEL if not labels else _PANEL + 10, height=_BAR * len(rows), view=alt.ViewBackground(stroke=None)
    )


def _marks(most: float) -> list[float]:
    """Three or four round shares from 0 on, none above the maximum.

    >>> _marks(0.995), _marks(0.31), _marks(0.021)
    ([0.0, 0.5, 1.0], [0.0, 0.1, 0.2, 0.3], [0.0, 0.01, 0.02])
    """
    step = next(step for step in (0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0) if most >= 1.8 * step)
    return [round(place * step, 3) for place in range(5) if place * step <= min(1.0, most * 1.2)] if step else [0.0]


def _labelled(name: str, nodes: int | None) -> str:
    return f"{plain(name)[:_NAME]} ({nodes})"


def _name(found: NetworkAnalysis, place: int) -> str:
    """Name of a layer, with its operator if the name does not include it; its index distinguishes truncated names."""
    layer = found.layers[place]
    name = plain(layer.name[-4 * _NAME :]).replace("\n", " ")
    short = name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
    name = short if layer.op_type in short else f"{short} ({plain(layer.op_type)[:_NAME]})"
    return name if short == layer.name else f"{name} [{place + 1}]"


def _title(found: NetworkAnalysis, what: str) -> str:
    extents = ", ".join(f"{name} = {extent}" for name, extent in found.extents.items())
    return plain(f"{found.name[:80]}: {what}{f' ({extents})' if extents else ''}")


def _below(found: NetworkAnalysis) -> str:
    if not found.unknown:
        return ""
    names = ", ".join(plain(name)[:_NAME] for name in list(found.unknown)[:5])
    more = f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else ""
    return f"No formula is known for {names}{more}: the FLOPs exclude them."
