"""Pictures of what a network takes, and of its measured times: shares of layers and of their types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from deep5.errors import UsageError
from deep5.networks.analysis import NetworkAnalysis
from deep5.networks.picture import colour_of
from deep5.results.chart_parts import altair
from deep5.results.network_record import QUANTITIES, by_type
from deep5.results.training_charts import headed, told_apart
from deep5.terminal import counted, plain

if TYPE_CHECKING:
    from deep5.results.network_record import NetworkRecord
    from deep5.results.network_times import Timed

__all__ = ["layer_chart", "measured_chart", "network_charts", "type_chart"]

# So many types and layers have a bar of their own, and so many types a colour; the rest is taken together.
_TYPES, _LAYERS, _COLOURS = 14, 12, 9
_REST = "#b0b0b0"
# Pixels: of a bar with what is around it, of a panel, of the panel of times; letters of a name.
_BAR, _PANEL, _TIMES_WIDTH, _TIMES_HEIGHT = 20, 210, 300, 280
_NAME = 34
_PASSES = ("forward", "backward")


def network_charts(record: NetworkRecord) -> dict[str, Any]:
    """The pictures of a network by the name of their file.

    Args:
        record: What is known of it.

    Raises:
        MissingDependency: Altair is not installed.
    """
    charts = {"types": type_chart(record.found), "layers": layer_chart(record.found)}
    if any(_parts(times) for times in record.times):
        charts["times"] = measured_chart(record.times)
    return charts


def type_chart(found: NetworkAnalysis) -> Any:
    """Shares of parameters, FLOPs and activation memory by operator, a panel each.

    Args:
        found: What `analyse` found.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There is no layer.
    """
    alt = altair()
    sums = by_type(found)
    if not sums:
        raise UsageError(f"the network {plain(found.name)!r} has no layer to draw; allowed: at least one")
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
    """Shares of parameters, FLOPs and activation memory of the layers that have most of each, and of the others.

    Args:
        found: What `analyse` found.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: There is no layer.
    """
    alt = altair()
    if not found.layers:
        raise UsageError(f"the network {plain(found.name)!r} has no layer to draw; allowed: at least one")
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


def measured_chart(measured: Sequence[Timed]) -> Any:
    """Time a sample by operator against batch size, forward and backward; a tick is the whole, measured in one piece.

    Args:
        measured: Of one network and framework, a batch size each, in the order of the bars.

    Raises:
        MissingDependency: Altair is not installed.
        UsageError: Nothing was measured.
    """
    alt = altair()
    parts = {times.batch: found for times in measured if (found := _parts(times))}
    if not parts:
        reasons = "; ".join(dict.fromkeys(times.unavailable for times in measured if times.unavailable))
        raise UsageError(f"no time of a layer to draw{f' ({reasons})' if reasons else ''}; allowed: at least one")
    sums: dict[str, float] = {}
    for found in parts.values():
        # A batch size has the weight of its shares, and not the largest batch all of it.
        whole = sum(seconds for own in found.values() for seconds in own.values()) or 1.0
        for name, own in found.items():
            sums[name] = sums.get(name, 0.0) + sum(own.values()) / whole
    order = sorted(sums, key=lambda name: -sums[name])
    shown = order[:_COLOURS] if len(order) > _COLOURS + 1 else order
    others = f"{len(order) - len(shown)} others"
    legend = [plain(name) for name in shown] + ([others] if len(shown) < len(order) else [])
    rows, ticks = [], []
    for times in measured:
        batch = str(times.batch)
        for kind in _PASSES:
            stack: dict[str, float] = {}
            for name, own in parts.get(times.batch, {}).items():
                if kind in own:
                    label = plain(name) if name in shown else others
                    stack[label] = stack.get(label, 0.0) + own[kind] / times.batch * 1e3
            rows += [
                {"pass": kind, "batch": batch, "type": label, "ms": ms, "order": legend.index(label)}
                for label, ms in stack.items()
            ]
        forward, step = times.whole_forward_s, times.whole_step_s
        ticks += [] if forward is None else [{"pass": "forward", "batch": batch, "ms": forward / times.batch * 1e3}]
        if forward is not None and step is not None:
            ticks.append({"pass": "backward", "batch": batch, "ms": (step - forward) / times.batch * 1e3})
    colours = [*told_apart(shown)[0][: len(shown)], *([_REST] if len(legend) > len(shown) else [])]
    panels = []
    for kind in _PASSES:
        drawn = [row for row in rows if row["pass"] == kind]
        if not drawn:
            continue
        x = alt.X(
            "batch:N",
            sort=[str(times.batch) for times in measured],
            title="batch size",
            axis=alt.Axis(labelAngle=0),
        )
        y = alt.Y("ms:Q", title="time a sample (ms)", stack="zero")
        colour = alt.Color(
            "type:N", sort=legend, scale=alt.Scale(domain=legend, range=colours), legend=alt.Legend(title="operator")
        )
        bars = alt.Chart(alt.Data(values=drawn)).mark_bar(size=26).encode(x=x, y=y, color=colour, order="order:Q")
        whole = (
            alt.Chart(alt.Data(values=[tick for tick in ticks if tick["pass"] == kind]))
            .mark_tick(color="#111111", thickness=2.5, width=38, orient="horizontal")
            .encode(x=x, y=alt.Y("ms:Q"))
        )
        panels.append(alt.layer(bars, whole).properties(width=_TIMES_WIDTH, height=_TIMES_HEIGHT, title=kind))
    made = alt.hconcat(*panels, spacing=20).resolve_scale(y="independent", color="shared")
    first = measured[0]
    told = ["Black: the whole without a clock within; backward: a whole step less a whole forward pass."]
    told += [
        f"Batch {times.batch} not available: {plain(times.unavailable)[:200]}."
        for times in measured
        if times.unavailable
    ]
    chart = headed(
        alt, made, plain(f"{first.network} on {first.framework}: measured time of its layers"), " ".join(told)
    )
    return chart.configure_legend(orient="right", labelFontSize=12, symbolType="square", symbolSize=120)


def _parts(times: Timed) -> dict[str, dict[str, float]]:
    """Seconds by operator and pass, of what was measured."""
    found = {}
    for name, both in times.by_type().items():
        own = {kind: seconds for kind, seconds in zip(_PASSES, both, strict=True) if seconds is not None}
        if own:
            found[name] = own
    return found


def _shares(counts: Mapping[Any, int | None]) -> dict[Any, float | None]:
    """Of the sum of what is known; None where it is not."""
    whole = sum(count or 0 for count in counts.values())
    return {name: None if count is None else count / whole if whole else 0.0 for name, count in counts.items()}


def _bars(alt: Any, bars: Sequence[tuple[str, float | None, str]], title: str, *, labels: bool) -> Any:
    """A panel: a bar a row with its share behind it."""
    rows: list[dict[str, Any]] = [
        {
            "name": label,
            "place": place,
            "share": share or 0.0,
            "colour": colour,
            "told": "unknown" if share is None else f"{share:.1%}" if share else "0",
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
        # Room for the number behind the longest bar.
        x=alt.X(
            "share:Q",
            title=f"share of {title}",
            scale=alt.Scale(domain=[0, most * 1.3], nice=False),
            axis=alt.Axis(format=".0%", grid=False, values=_marks(most)),
        ),
    )
    drawn = base.mark_bar().encode(color=alt.Color("colour:N", scale=None))
    told = base.mark_text(align="left", dx=4, fontSize=11).encode(text="told:N")
    return alt.layer(drawn, told).properties(width=_PANEL if not labels else _PANEL + 10, height=_BAR * len(rows))


def _marks(most: float) -> list[float]:
    """Three or four round shares from 0 on, none above the whole.

    >>> _marks(0.995), _marks(0.31), _marks(0.021)
    ([0.0, 0.5, 1.0], [0.0, 0.1, 0.2, 0.3], [0.0, 0.01, 0.02])
    """
    step = next(step for step in (0.5, 0.25, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001, 0.0) if most >= 1.8 * step)
    return [round(place * step, 3) for place in range(5) if place * step <= min(1.0, most * 1.2)] if step else [0.0]


def _labelled(name: str, nodes: int | None) -> str:
    return f"{plain(name)[:_NAME]} ({nodes})"


def _name(found: NetworkAnalysis, place: int) -> str:
    """Of a layer, with its operator where the name does not say it; its place tells those apart that are cut off."""
    layer = found.layers[place]
    name = plain(layer.name[-4 * _NAME :]).replace("\n", " ")
    short = name if len(name) <= _NAME else f"…{name[1 - _NAME :]}"
    told = short if layer.op_type in short else f"{short} ({plain(layer.op_type)[:_NAME]})"
    return told if short == layer.name else f"{told} [{place + 1}]"


def _title(found: NetworkAnalysis, what: str) -> str:
    extents = ", ".join(f"{name} = {extent}" for name, extent in found.extents.items())
    return plain(f"{found.name[:80]}: {what}{f' ({extents})' if extents else ''}")


def _below(found: NetworkAnalysis) -> str:
    if not found.unknown:
        return ""
    names = ", ".join(plain(name)[:_NAME] for name in list(found.unknown)[:5])
    more = f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else ""
    return f"No formula is known for {names}{more}: the FLOPs are those of the others."
