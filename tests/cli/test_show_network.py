"""`deep5 show network`: its numbers match the analysis, its pictures are complete, a file's content harms neither."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from rich.console import Console

from command import Command
from deep5.core.charts import files
from deep5.core.errors import UsageError
from deep5.core.plugins import framework
from deep5.core.tensors import TensorSpec
from deep5.networks import Network, NetworkBuilder, analyse, googlenet, gpt, lenet, lstm, resnet, resnet50, transformer
from deep5.networks.analysis import picture as pictures
from deep5.networks.analysis.extents import batch_extents
from deep5.networks.analysis.layer_summary import LayerTime, LayerTimes
from deep5.networks.analysis.layout import Layout, layered
from deep5.networks.analysis.picture import colour_of, shaded_colours, svg
from deep5.networks.onnx.parameters import Decision
from deep5.results.charts.network import layer_chart, measured_chart, type_chart
from deep5.results.network_record import NetworkRecord, by_type
from deep5.results.network_tensors import print_tensors
from deep5.results.network_times import print_times

SVG = "{http://www.w3.org/2000/svg}"
PICTURES = ("layers.png", "layers.svg", "network.svg", "types.png", "types.svg")


@pytest.fixture(autouse=True)
def hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as without a terminal; a test runner may set its own width."""
    monkeypatch.delenv("COLUMNS", raising=False)


def drawn(network: Network, **extents: int) -> ET.Element:
    batch = 1 if batch_extents(network) else None
    return ET.fromstring(svg(network, analyse(network, batch, extents=extents)))  # noqa: S314 - our own


def boxes(root: ET.Element, kind: str = "box") -> list[ET.Element]:
    return [group for group in root.iter(f"{SVG}g") if kind in group.get("class", "").split()]


def rectangles(root: ET.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of each box."""
    found = []
    for group in boxes(root):
        (own,) = group.iter(f"{SVG}rect")
        x, y, width, height = (float(own.get(name, "nan")) for name in ("x", "y", "width", "height"))
        found.append((x, y, x + width, y + height))
    return found


def overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def unknown() -> Network:
    build = NetworkBuilder("partly", dtype="float32")
    x = build.input("x", ("N", 4, 8, 8))
    y = build.op("Relu", build.op("Conv", x, build.parameter("w", (4, 4, 1, 1))))
    return build.network({"y": build.op("Einsum", y, equation="nchw->nc")})


# -- the table --------------------------------------------------------------------------------------------------------


def cells(out: str, name: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.split()[:1] == [name]]
    return line.split()


def test_the_styles_of_a_graph_are_only_its_own() -> None:
    root = drawn(lenet())
    assert root.get("class") == "deep5-graph"
    rules = root.findtext(f"{SVG}style", "").splitlines()
    assert rules
    assert all(rule.startswith(".deep5-graph ") for rule in rules), "a page that contains the picture takes its styles"


def test_the_table_has_the_numbers_of_the_analysis(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("show", "network", "lenet", "--batch", "2")
    assert (answer.status, answer.err) == (0, "")
    assert list(tmp_path.iterdir()) == []  # no file was requested
    assert "\x1b" not in answer.out
    assert max(map(len, answer.out.splitlines())) <= 100
    found = analyse(lenet(), batch=2)
    assert answer.out.startswith("lenet: 13 layers, N = 2\n")
    for layer in found.layers[:-1]:
        own = cells(answer.out, layer.name)
        assert own[1:3] == [layer.op_type, "×".join(map(str, layer.outputs[0].shape))]
        assert layer.arithmetic is not None
        assert own[-2:] == [f"{layer.arithmetic.flops / found.flops:.1%}".rstrip("%"), "%"]
        assert not layer.parameters or own[3] == f"{layer.parameters:,}"
    totals = {line[:25].strip(): line[25:].strip() for line in answer.out.splitlines()}
    assert totals["parameters"] == "61,706 (241 KiB)"
    assert totals["multiply-adds"] == f"{found.macs:,}"
    assert totals["FLOPs, work W"] == f"{found.flops:,}"
    assert totals["depth D"] == f"{found.depth}"
    assert totals["average parallelism W/D"] == f"{found.flops / found.depth:,.0f}"
    assert totals["arithmetic intensity"] == f"{found.intensity:.3g} FLOPs per byte"
    assert totals["activation memory"] == f"{found.activation_bytes / 1024:.3g} KiB"
    assert totals["peak training memory"].startswith(f"{found.peak_training_bytes / 1024:.3g} KiB, without")


@pytest.mark.parametrize(
    ("words", "parameters", "macs"),
    [
        # He et al., table 1: 3.8 billion multiply-adds, of convolutions with their stride in the first.
        (("resnet50",), 25_557_032, (3.8e9, 4.2e9)),
        (("resnet", "--set", "depth=20"), 269_722, (40e6, 42e6)),
        (("squeezenet",), 1_248_424, (0.7e9, 0.9e9)),
        # Sandler et al., table 4: 300 million.
        (("mobilenet_v2",), 3_504_872, (0.29e9, 0.33e9)),
    ],
)
def test_published_counts(words: tuple[str, ...], parameters: int, macs: tuple[float, float], deep5: Command) -> None:
    found = json.loads(deep5("show", "network", *words, "--json").out)
    assert found["totals"]["parameters"] == parameters
    assert sum(layer["parameters"] for layer in found["layers"]) == parameters
    assert macs[0] <= found["totals"]["macs"] <= macs[1]


def test_a_long_network_is_told_in_full(deep5: Command) -> None:
    network = resnet50()
    lines = deep5("show", "network", "resnet50").out.splitlines()
    assert max(map(len, lines)) <= 100
    names = {line.split()[0] for line in lines if line.split()}
    assert {str(node.name) for node in network.nodes} - {"SoftmaxCrossEntropyLoss_1"} <= names


def test_a_name_in_the_table_cannot_be_read_as_another(deep5: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    network = gpt(length=1024, vocabulary=50257)
    lines = deep5("show", "network", "gpt", "--batch", "8", "--set", "vocabulary=50257", "--set", "length=1024").out
    assert max(map(len, lines.splitlines())) <= 100
    told = {line.split()[0] for line in lines.splitlines() if line.split()}
    assert {str(node.name) for node in network.nodes if node.op_type != "Constant"} <= told
    monkeypatch.setenv("COLUMNS", "70")
    rows = deep5("show", "network", "gpt", "--batch", "8", "--set", "length=1024").out.splitlines()[4:-20]
    assert len(rows) > 350
    assert max(map(len, rows)) <= 70
    names = [line.split()[0] for line in rows]
    assert len(set(names)) == len(names)
    assert all(line.endswith(" %") for line in rows)


def test_long_names_in_the_table_stay_apart() -> None:
    build = NetworkBuilder("long", dtype="float32")
    x = build.input("x", ("N", 4))
    for _ in range(3):
        x = build.op("Relu", x)
    network = build.network({"y": x})
    for place in range(3):
        network = network.rename(f"Relu_{place + 1}", f"{'a' * 60}{place}{'z' * 60}")
    console = Console(width=100, record=True, file=io.StringIO())
    NetworkRecord(source="long", found=analyse(network, 1)).print(console)
    lines = [line.strip() for line in console.export_text().splitlines()]
    rows = [line.split("Relu")[0].strip() for line in lines if line.startswith("aaa")]
    assert len(set(rows)) == 3
    assert all("…" in row for row in rows)


def test_an_operator_without_formula_is_told_and_not_counted_as_zero(deep5: Command, tmp_path: Path) -> None:
    network = unknown()
    network.save(tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx", "-o", "here")
    assert answer.status == 0
    assert cells(answer.out, "Einsum_1") == ["Einsum_1", "Einsum", "1×4", "unknown", "16", "B", "unknown"]
    for told in (
        "No formula is known for Einsum (1 node): sums exclude their cost",
        f"at least {analyse(network, batch=1).flops:,}",
        "≥ ",
        "of what is known ",
    ):
        assert told in answer.out
    found = json.loads((tmp_path / "here" / "network.json").read_text())
    assert found["unknown"] == {"Einsum": 1}
    assert [found["layers"][-1][name] for name in ("flops", "macs", "depth", "share", "intensity")] == [None] * 5
    assert found["types"]["Einsum"] == {"nodes": 1, "parameters": 0, "flops": None, "activation_bytes": 16}
    (box,) = boxes(ET.parse(tmp_path / "here" / "network.svg").getroot(), "unknown")  # noqa: S314 - our own
    assert "unknown, deep5 has no formula" in str(box.findtext(f"{SVG}title"))
    text = (tmp_path / "here" / "network.svg").read_text()
    assert "no formula known" in text
    assert "16 parameters, at least 2.3 kFLOP forward" in text
    assert "No formula is known for Einsum" in (tmp_path / "here" / "types.svg").read_text()


def test_sums_by_type_are_those_of_the_layers() -> None:
    found = analyse(resnet(depth=20), batch=3)
    sums = by_type(found)
    assert sum(own["nodes"] or 0 for own in sums.values()) == len(found.layers)
    assert sum(own["parameters"] or 0 for own in sums.values()) == found.parameters
    assert sum(own["flops"] or 0 for own in sums.values()) == found.flops
    assert sum(own["activation_bytes"] or 0 for own in sums.values()) == found.activation_bytes


# -- the document -----------------------------------------------------------------------------------------------------


def test_the_document(deep5: Command, tmp_path: Path) -> None:
    words = ("show", "network", "resnet", "--set", "depth=20", "--set", "classes=7", "--batch", "4", "-o", "here")
    answer = deep5(*words, "--json")
    document = json.loads(answer.out)
    assert json.loads((tmp_path / "here" / "network.json").read_text()) == document
    assert (document["source"], document["arguments"]) == ("resnet", {"depth": 20, "classes": 7})
    assert document["extents"] == {"N": 4}
    found = analyse(resnet(depth=20, classes=7), batch=4)
    for name in ("parameters", "macs", "flops", "depth", "activation_bytes", "peak_training_bytes", "intensity"):
        assert document["totals"][name] == getattr(found, name)
    assert [layer["name"] for layer in document["layers"]] == [layer.name for layer in found.layers]
    assert sum(layer["share"] for layer in document["layers"]) == pytest.approx(1)
    assert document["layers"][0]["outputs"] == [{"shape": [4, 16, 32, 32], "dtype": "float32"}]
    assert document["times"] == []


def test_other_extents_and_a_network_of_a_file(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import deep5 as d5\n\n"
        "def small(width=3):\n"
        "    build = d5.NetworkBuilder('small', dtype='float32')\n"
        "    x = build.input('x', ('N', 'length', 8))\n"
        "    return build.network({'y': build.op('MatMul', x, build.parameter('w', (8, width)))})\n"
    )
    words = ("show", "network", "own.py:small", "--json", "--set", "width=5", "--batch", "2", "--extent", "length=6")
    found = json.loads(deep5(*words).out)
    assert found["extents"] == {"N": 2, "length": 6}
    assert found["totals"]["macs"] == 2 * 6 * 8 * 5
    assert found["layers"][0]["outputs"][0]["shape"] == [2, 6, 5]


# -- the graph --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [googlenet, lambda: resnet(depth=44), lstm, lambda: transformer(layers=3)])
def test_a_picture_has_a_box_a_node_and_none_overlap(make: Any) -> None:
    network = make()
    root = drawn(network)
    nodes = [node for node in network.nodes if node.op_type != "Constant"]
    assert len(boxes(root, "node")) == len(nodes)
    assert len(boxes(root, "input")) == len(network.inputs)
    assert len(boxes(root, "output")) == len(network.outputs)
    told = [str(group.findtext(f"{SVG}title")).splitlines()[0] for group in boxes(root, "node")]
    assert told == [f"{node.op_type} {node.name}" for node in nodes]
    own = rectangles(root)
    assert not [pair for pair in itertools.combinations(own, 2) if overlap(*pair)]
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    assert all(left >= 0 and top >= 0 and right <= width and bottom <= height for left, top, right, bottom in own)
    # Every edge that ends at a box ends at the middle of its upper side.
    ends = {
        (x, y)
        for path in root.iter(f"{SVG}path")
        if path.get("marker-end")
        for x, y in [numbers(path.get("d", ""))[-1]]
    }
    uppers = {(round((left + right) / 2, 0), top) for left, top, right, _ in own}
    assert {(round(x, 0), y) for x, y in ends} <= {(x + d, y) for x, y in uppers for d in (-1, 0, 1)}


def numbers(path: str) -> list[tuple[float, float]]:
    """The points of a path of M, V and C commands."""
    found = []
    for command, text in re.findall(r"([MVC])([^MVC]*)", path):
        own = [float(number) for number in text.split()]
        found.append((found[-1][0], own[0]) if command == "V" else (own[-2], own[-1]))
    return found


def test_what_is_fed_stands_right_above_who_reads_it() -> None:
    root = drawn(lenet())
    label = next(group for group in boxes(root, "input") if "label" in str(group.findtext(f"{SVG}title")))
    loss = next(group for group in boxes(root, "node") if "SoftmaxCrossEntropy" in str(group.findtext(f"{SVG}title")))
    tops = [float(next(group.iter(f"{SVG}rect")).get("y", "nan")) for group in (label, loss)]
    assert 0 < tops[1] - tops[0] < 100


def hostile() -> onnx.ModelProto:
    name = "</title><script>alert('&\"')</script>\x1b[31m\u202e\x00]]>"
    node = helper.make_node("Relu", ["x"], ["y<b>"], name=name)
    other = helper.make_node("Neg", ["y<b>"], ["z"], name="n" * 5000)
    graph = helper.make_graph(
        [node, other],
        "<svg onload=alert(1)>\n&",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N & <i>", 3])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N & <i>", 3])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_names_of_a_file_are_text_and_nothing_else(deep5: Command, tmp_path: Path) -> None:
    onnx.save(hostile(), tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx", "-o", "here")
    assert answer.status == 0, answer.err
    assert "\x1b" not in answer.out
    assert "\u202e" not in answer.out
    for name in ("network.svg", "layers.svg", "types.svg"):
        text = (tmp_path / "here" / name).read_text()
        root = ET.fromstring(text)  # noqa: S314 - what is tested
        assert not [one for one in root.iter() if one.tag.rpartition("}")[2] in ("script", "i", "b")]
        assert not [name for one in root.iter() for name in one.attrib if name.startswith("on")]
        assert not {"\x1b", "\u202e", "\x00"} & set(text)
    root = ET.parse(tmp_path / "here" / "network.svg").getroot()  # noqa: S314 - what is tested
    assert len(boxes(root, "node")) == 2
    assert "<script>" in str(boxes(root, "node")[0].findtext(f"{SVG}title"))
    assert max(right - left for left, _, right, _ in rectangles(root)) < 300  # the name of 5000 letters is cut


def test_a_branch_that_reads_from_outside_has_its_edge() -> None:
    def branch(op: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(f"{op}_out", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["h"], [f"{op}_out"])], op, [], [value])

    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="outside"),
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=branch("Neg"), else_branch=branch("Abs")),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    network = Network.from_onnx(model)
    root = drawn(network)
    assert len([path for path in root.iter(f"{SVG}path") if path.get("marker-end")]) == 4  # x, h, c, y
    (box,) = boxes(root, "unknown")
    assert "If choice" in str(box.findtext(f"{SVG}title"))


def test_what_is_too_large_is_refused_in_words(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = analyse(lenet(), batch=1)
    monkeypatch.setattr(pictures, "MOST_NODES", 12)
    with pytest.raises(UsageError, match=r"a picture of 13 nodes; allowed: up to 12; remedy: .*network.subnetwork"):
        svg(lenet(), found)
    answer = deep5("show", "network", "lenet", "-o", "here")
    assert answer.status == 0
    assert answer.out.endswith(
        "here\nno network.svg was drawn: a picture of 13 nodes; allowed: up to 12; remedy: a part, network.subnetwork\n"
    )
    assert not (tmp_path / "here" / "network.svg").exists()
    answer = deep5("show", "network", "lenet", "-o", "here", "--json")
    assert json.loads(answer.out)["totals"]["parameters"] == 61_706
    assert answer.err.startswith("deep5: no network.svg was drawn: a picture of 13 nodes")
    assert (tmp_path / "here" / "types.svg").exists()
    monkeypatch.undo()
    monkeypatch.setattr(pictures, "_MOST_PASSED", 40)
    with pytest.raises(UsageError, match=r"a picture whose edges pass layers \d+ times; allowed: up to 40"):
        svg(googlenet(), analyse(googlenet(), batch=1))


def test_the_work_for_a_large_graph_grows_with_its_size() -> None:
    """Boxes whose edges pass seven layers each: four times as many take about four times as many calls, not sixteen."""

    def calls(count: int) -> int:
        made = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        edges = [(i, j) for i in range(count) for j in (i + 1, i + 8) if j < count]
        sys.setprofile(note)
        try:
            layered([(80.0, 40.0)] * count, edges)
        finally:
            sys.setprofile(None)
        return made

    assert calls(1000) < 6 * calls(250)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[tuple[float, float]], list[tuple[int, int]]]:
    count = draw(st.integers(1, 14))
    sizes = draw(
        st.lists(st.tuples(st.floats(10, 200), st.floats(20, 60)), min_size=count, max_size=count),
    )
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = [(min(pair), max(pair)) for pair in draw(st.lists(pairs, max_size=3 * count)) if pair[0] != pair[1]]
    return sizes, edges


@settings(max_examples=150, deadline=None)
@given(graphs())
def test_layouts_of_any_graph(graph: tuple[list[tuple[float, float]], list[tuple[int, int]]]) -> None:
    sizes, edges = graph
    made = layered(sizes, edges)
    own = [(x, y, x + w, y + h) for (x, y), (w, h) in zip(made.corners, sizes, strict=True)]
    assert not [pair for pair in itertools.combinations(own, 2) if overlap(*pair)]
    for source, reader in edges:
        assert own[source][3] < own[reader][1]
    assert len(made.ends) == len(set(edges))
    assert all(left >= -1e-6 and right <= made.width + 1e-6 for left, _, right, _ in own)
    assert max(bottom for *_, bottom in own) <= made.height + 1e-6
    assert crossed_boxes(made, own) == []


def crossed_boxes(made: Layout, own: list[tuple[float, float, float, float]]) -> list[Any]:
    """Boxes that an edge crosses: below its layer an edge enters no box, beside the boxes of a layer it is straight."""
    found = []
    for points in (*made.lanes, *made.ends):
        for (x, top), (to, bottom) in itertools.pairwise(points):
            line = (min(x, to) - 0.1, top + 0.1, max(x, to) + 0.1, bottom - 0.1)
            found += [(line, box) for box in own if line[1] < line[3] and overlap(line, box)]
    return found


# -- the shares -------------------------------------------------------------------------------------------------------


def test_the_files(deep5: Command, tmp_path: Path) -> None:
    answer = deep5("show", "network", "lenet", "-o", "here")
    assert answer.out.endswith("\nhere\n")
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == sorted((*PICTURES, "network.json"))
    for name in PICTURES:
        content = (tmp_path / "here" / name).read_bytes()
        if name.endswith(".png"):
            assert content.startswith(b"\x89PNG")
        else:
            assert ET.fromstring(content.decode()).tag == f"{SVG}svg"  # noqa: S314 - our own
    text = (tmp_path / "here" / "types.svg").read_text()
    for word in ("Conv (2)", "share of parameters", "share of FLOPs", "share of activation memory", "84.6 %"):
        assert word in text
    # A second time, into its own folder.
    assert deep5("show", "network", "mlp", "-o", "here").status == 0
    assert json.loads((tmp_path / "here" / "network.json").read_text())["source"] == "mlp"


def values(chart: Any) -> list[list[dict[str, Any]]]:
    """The rows of each panel."""
    spec = chart.to_dict()
    return [panel["data"]["values"] for panel in spec.get("hconcat") or spec["vconcat"]]


def test_shares_add_up_to_the_whole() -> None:
    found = analyse(googlenet(), batch=1)
    for chart in (type_chart(found), layer_chart(found)):
        panels = values(chart)
        assert len(panels) == 3
        for rows in panels:
            assert sum(row["share"] for row in rows) == pytest.approx(1)
            assert len({row["name"] for row in rows}) == len(rows) <= 15
    by_layer = values(layer_chart(found))
    assert [row["name"] for row in by_layer[0]][:2] == ["Gemm_1", "Gemm_3"]
    assert by_layer[1][-1]["name"] == "141 other layers"  # of 165, 12 are concatenations and flattens
    first = values(type_chart(found))[1][0]
    conv = sum(layer.arithmetic.flops for layer in found.layers if layer.op_type == "Conv" and layer.arithmetic)
    assert (first["name"], first["share"]) == ("Conv (59)", conv / found.flops)


def test_no_axis_of_shares_goes_beyond_the_whole() -> None:
    found = analyse(lenet(), batch=1)
    for chart in (type_chart(found), layer_chart(found)):
        spec = chart.to_dict()
        for panel in spec.get("hconcat") or spec["vconcat"]:
            low, high = panel["layer"][0]["encoding"]["x"]["scale"]["domain"]
            assert low == 0
            assert max(row["share"] for row in panel["data"]["values"]) <= high <= 1


def test_long_names_that_end_alike_stay_apart() -> None:
    build = NetworkBuilder("long", dtype="float32")
    x = build.input("x", ("N", 4))
    for _ in range(3):
        x = build.op("Relu", x)
    network = build.network({"y": x})
    for place, name in enumerate(("a" + "x" * 60, "b" + "x" * 60, "Relu\n")):
        network = network.rename(f"Relu_{place + 1}", name)
    rows = values(layer_chart(analyse(network, batch=1)))[1]
    assert len({row["name"] for row in rows}) == 3


# -- measured times ---------------------------------------------------------------------------------------------------


def times(batch: int, *, parts: bool = True, types: int = 2, within: str | None = None) -> LayerTimes:
    """As if measured: operators A0, A1, … take 1, 2, … ms per sample forward and twice that backward."""
    seconds = [1e-3 * (place + 1) * batch for place in range(types)]
    layers = tuple(
        LayerTime(
            name=f"a{place}",
            op_type=f"A{place}",
            forward_s=own if parts and not (within and place) else None,
            training_forward_s=own if parts else None,
            backward_s=2 * own if parts else None,
            within=within if place else None,
        )
        for place, own in enumerate(seconds)
    )
    whole = sum(seconds)
    return LayerTimes(
        network="made",
        framework="own",
        batch=batch,
        layers=layers,
        forward_s=whole if parts else None,
        training_forward_s=whole if parts else None,
        backward_s=2 * whole if parts else None,
        instrumented_forward_s=whole if parts else None,
        instrumented_step_s=3 * whole if parts else None,
        whole_forward_s=1.1 * whole,
        whole_step_s=3.5 * whole,
        repetitions=10,
        unavailable=None if parts else "own has <no> times of layers",
    )


def printed(measured: list[LayerTimes], threads: int | None = None) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    print_times(measured, console, threads)
    return console.export_text()


def test_measured_bars_are_the_time_a_sample_and_ticks_the_whole() -> None:
    forward, backward = measured_chart([times(256), times(4)]).to_dict()["hconcat"]
    rows = forward["layer"][0]["data"]["values"]
    assert {(row["batch"], row["type"]): row["ms"] for row in rows} == {
        (batch, name): pytest.approx(ms) for batch in ("256", "4") for name, ms in (("A0", 1), ("A1", 2))
    }
    assert [row["ms"] for row in backward["layer"][0]["data"]["values"]] == pytest.approx([4, 2, 4, 2])
    for panel, whole in ((forward, 3.3), (backward, 3 * 3.5 - 3)):
        ticks = panel["layer"][1]["data"]["values"]
        assert [(row["batch"], row["ms"]) for row in ticks] == [(batch, pytest.approx(whole)) for batch in ("256", "4")]
        assert panel["layer"][0]["encoding"]["x"]["sort"] == ["256", "4"]


def test_many_measured_operators_are_taken_together() -> None:
    forward = measured_chart([times(2, types=14)]).to_dict()["hconcat"][0]
    rows = forward["layer"][0]["data"]["values"]
    assert len(rows) == 10
    assert rows[-1]["type"] == "5 others"
    assert sum(row["ms"] for row in rows) == pytest.approx(sum(range(1, 15)))
    assert (
        forward["layer"][0]["encoding"]["color"]["scale"]["range"][-1] not in shaded_colours(list("abcdefg")).values()
    )


def test_measured_operators_have_the_colours_of_their_kinds() -> None:
    def measured(order: list[str]) -> LayerTimes:
        made = times(2, types=len(order))
        named = [replace(layer, op_type=name) for layer, name in zip(made.layers, order, strict=True)]
        return replace(made, layers=tuple(named))

    found = []
    for order in (["Conv", "Relu", "Gemm", "Gelu"], ["Gelu", "Gemm", "Conv", "Relu"]):  # another operator takes most
        encoding = measured_chart([measured(order)]).to_dict()["hconcat"][0]["layer"][0]["encoding"]
        scale = encoding["color"]["scale"]
        found.append(dict(zip(scale["domain"], scale["range"], strict=True)))
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 4
    for name in ("Conv", "Gemm", "Gelu"):
        assert found[0][name] == colour_of(name)


def test_times_that_are_not_available_are_told() -> None:
    chart = measured_chart([times(8, parts=False), times(2, parts=False)])
    told = " ".join(chart.to_dict()["title"]["subtitle"])
    assert "Not available at batch 8, 2: own has <no> times of layers." in told
    assert "backward" not in told
    forward, step = chart.to_dict()["hconcat"]  # the totals
    assert [(panel["title"], panel["layer"][0]["mark"]["type"]) for panel in (forward, step)] == [
        ("forward", "tick"), ("step: forward and backward", "tick")
    ]  # fmt: skip
    assert [row["ms"] for row in step["data"]["values"]] == pytest.approx([3 * 3.5] * 2)
    ET.fromstring(files("times", chart)["times.svg"].decode())  # noqa: S314 - our own
    out = printed([times(8, parts=False)])
    assert "Not available at batch 8: own has <no> times of layers" in out
    assert cells(out, "8") == ["8", "-", "26.4", "ms", "-", "-", "84", "ms", "-"]
    with pytest.raises(UsageError, match="no times to draw"):
        measured_chart([])


def test_the_table_of_times() -> None:
    out = printed([times(4), times(1, within="a0")], threads=2)
    assert "Measured on own with 2 threads, medians of 10; ratio: parts / whole" in out
    assert cells(out, "4") == ["4", "12", "ms", "13.2", "ms", "0.91", "36", "ms", "42", "ms", "0.86"]
    forward, backward = out.partition("backward")[::2]
    assert cells(forward, "A1") == ["A1", "8", "ms", "in", "A0"]
    assert cells(backward, "A1") == ["A1", "16", "ms", "4", "ms"]


def test_layers_are_measured(deep5: Command, tmp_path: Path) -> None:
    words = ("--time", "reference", "--batches", "3,1", "--threads", "1", "-o", "here")
    answer = deep5("show", "network", "mlp", *words)
    assert answer.status == 0, answer.err
    for told in ("Measured on reference with 1 thread", "forward, in inference", "backward", "batch 3"):
        assert told in answer.out
    document = json.loads((tmp_path / "here" / "network.json").read_text())
    assert document["threads"] == 1
    assert [own["batch"] for own in document["times"]] == [3, 1]
    for own in document["times"]:
        assert [layer["name"] for layer in own["layers"]] == [layer["name"] for layer in document["layers"]]
        assert own["forward_s"] == pytest.approx(sum(layer["forward_s"] or 0 for layer in own["layers"]))
        assert own["whole_step_s"] > 0
    text = (tmp_path / "here" / "times.svg").read_text()
    for word in ("mlp on reference: measured time of its layers", "Gemm", "time per sample (ms)"):
        assert word in text
    assert (tmp_path / "here" / "times.png").read_bytes().startswith(b"\x89PNG")


# -- what cannot be shown ----------------------------------------------------------------------------------------------


OWN = """\
number = 3


def broken():
    return 1 / 0


def sequence():
    import deep5 as d5
    import numpy as np

    build = d5.NetworkBuilder("sequence", dtype="float32")
    x = build.input("x", ("N", "T", 16))
    shape = build.constant("shape", np.array([6, 8]))  # of one sample of three
    return build.network({"y": build.op("Reshape", build.op("Relu", x), shape)})
"""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("resnet5",), r"unknown network 'resnet5'; allowed: .*; did you mean 'resnet50'\?"),
        (("none.onnx",), r"the file none.onnx is not there; allowed: an ONNX file"),
        (("text.onnx",), r"text.onnx .*cannot be read as ONNX"),
        (("here/none",), r"got the file here/none as the network; allowed: a registered name, FILE.onnx or FILE.py:NA"),
        (("own.py",), r"got the file own.py as the network; allowed: .*FILE.py:NAME; remedy: own.py:NAME"),
        (("plain",), r"got the file plain as the network; allowed: a registered name, FILE.onnx or FILE.py:NAME"),
        (("text.onnx", "--set", "classes=3"), "--set is given with a file; allowed: with a registered network"),
        (("lenet", "--batch", "0"), "got batch = 0; allowed: an integer from 1 to 2147483647"),
        (("lenet", "--batch", "9223372036854775808"), "got batch = 9223372036854775808; allowed: an integer from"),
        (("lenet", "--batch", "4", "--extent", "N=3"), "is left for the batch size: got batch = 4 beside N = 3"),
        (
            ("own.py:sequence", "--batch", "4", "--run"),
            "the dimension 'T' of an input is not known, and a batch sets only .* --extent T=…",
        ),
        (("own.py:sequence", "--time", "reference", "--extent", "T=3", "--batches", "4"), "cannot run .*Reshape"),
        (("lenet", "-o", ""), "--out ''; allowed: the name of a folder"),
        (("lenet", "--batch", "x"), "'x' is not a valid integer"),
        (("lenet", "--extent", "M=3"), "no input has a symbolic dimension 'M'; allowed: N"),
        (("lenet", "--extent", "N=x"), "got N = 'x'; allowed: an integer from 1 to 2147483647"),
        (("lenet", "--extent", "N"), "cannot read the setting 'N'; allowed: KEY=VALUE"),
        (("lenet", "--extent", "N=1", "--extent", "N=2"), "--extent N is given twice; allowed: once"),
        (("lenet", "--set", "classes"), "cannot read the setting 'classes'"),
        (("lenet", "--set", "clases=3"), "do not fit: .*allowed: classes, .*; did you mean 'classes'"),
        (("lenet", "--set", "classes=0"), "got classes = 0; allowed: an integer of at least 1"),
        (("own.py:broken",), "own.py:broken raised ZeroDivisionError when it was constructed: division by zero"),
        (("own.py:number",), "own.py:number gives a int; allowed: a d5.Network"),
        (("own.py:number", "--set", "a=1"), "own.py:number is an object already; allowed: no --set"),
        (("own.py:absent",), "has no 'absent'; allowed: number, broken"),
        (("lenet", "--time", "pytorhc"), r"unknown framework 'pytorhc'; .*did you mean 'pytorch'"),
        (
            ("lenet", "--time", "reference", "--batches", "4,x"),
            "--batches '4,x'; allowed: distinct, comma-separated integers of at least 1",
        ),
        (("lenet", "--time", "reference", "--batches", "4,0"), "--batches '4,0'; allowed"),
        (("lenet", "--time", "reference", "--batches", "4,4"), "--batches '4,4'; allowed: distinct"),
        (("lenet", "--time", "reference", "--threads", "0"), "--threads 0; allowed: an integer of at least 1"),
        (("lenet", "--batches", "4"), "--batches is given and --time is not; .*remedy: --time pytorch"),
        (("lenet", "--threads", "1"), "--threads is given and --time is not"),
        (("lenet", "--time", "reference", "--extent", "N=2"), "no dimension of an input is left for the batch size"),
        (("lenet", "-o", "run"), "run holds a run; allowed: a folder without other results"),
        (("lenet", "-o", "text.onnx"), "cannot write into text.onnx: .*; allowed: a writable folder"),
    ],
)
def test_what_cannot_be_shown(words: tuple[str, ...], says: str, deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "plain").write_text("no model")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    before = sorted(path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path))
    answer = deep5("show", "network", *words)
    assert answer.status == 2
    assert answer.out == ""
    assert re.search(says, answer.err)
    assert "Traceback" not in answer.err
    assert sorted(path.name for path in tmp_path.rglob("*") if "__pycache__" not in str(path)) == before


def test_a_network_that_only_a_run_knows_the_shapes_of(deep5: Command, tmp_path: Path) -> None:
    build = NetworkBuilder("open", dtype="float32")
    network = build.network({"y": build.op("NonZero", build.input("x", ("N", 3)))})
    network.save(tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx", "--batch", "4")
    assert (answer.status, answer.err) == (0, "")
    assert cells(answer.out, "NonZero_1") == ["NonZero_1", "NonZero", "2×?", "unknown", "unknown", "unknown"]
    assert "Only a run determines the sizes of NonZero (1 node)" in " ".join(answer.out.split())
    assert "Remedy: --run" in " ".join(answer.out.split())
    ran = deep5("show", "network", "own.onnx", "--batch", "4", "--run")
    assert (ran.status, ran.err) == (0, "")
    assert cells(ran.out, "NonZero_1")[2:5] == ["2×12", "unknown", "192"]  # 2 * 12 int64
    assert "Remedy" not in ran.out


def test_sizes_that_are_not_given_are_listed_at_once(deep5: Command, tmp_path: Path) -> None:
    build = NetworkBuilder("open", dtype="float32")
    x = build.input("x", ("N", "T", "C"))
    y = build.op("Add", build.op("Relu", x), build.input("m", ("N", "T", "C")))
    build.network({"y": y}).save(tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx")
    assert (answer.status, answer.err) == (0, "")
    assert cells(answer.out, "Relu_1")[:4] == ["Relu_1", "Relu", "1×T×C", "unknown"]
    assert "sizes T, C are not given; what depends on them is unknown. Remedy: --extent T=… --extent C=…" in " ".join(
        answer.out.split()
    )
    known = json.loads(deep5("show", "network", "own.onnx", "--extent", "T=2", "--extent", "C=3", "--json").out)
    assert (known["missing"], known["unsized"]) == ([], {})
    assert known["totals"]["flops"] == 12
    partly = json.loads(deep5("show", "network", "own.onnx", "--extent", "T=2", "--json").out)
    assert (partly["missing"], partly["unsized"]) == (["C"], {"Relu": 1, "Add": 1})
    assert [layer["sized"] for layer in partly["layers"]] == [False, False]


def test_sums_of_partly_known_sizes_are_lower_bounds(deep5: Command, tmp_path: Path) -> None:
    build = NetworkBuilder("partly", dtype="float32")
    x = build.op("Relu", build.input("x", (4, 3)))
    build.network({"y": x, "z": build.op("NonZero", x)}).save(tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx")
    totals = {line[:25].strip(): line[25:].strip() for line in answer.out.splitlines()}
    assert totals["FLOPs, work W"] == "at least 12"
    assert totals["activation memory"] == "at least 48 B"


def test_a_stale_declaration_is_reported_in_one_line(deep5: Command, tmp_path: Path) -> None:
    inputs, outputs = ([helper.make_tensor_value_info(*each)] for each in (("x", 1, ["N", 3]), ("y", 1, [7])))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "stale", inputs, outputs)
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "own.onnx"
    )
    answer = deep5("show", "network", "own.onnx")
    assert answer.status == 0
    assert answer.err.startswith("deep5: the file own.onnx declares shapes that contradict what its nodes compute")
    assert len(answer.err.splitlines()) == 1


def test_the_picture_of_what_is_partly_known(deep5: Command, tmp_path: Path) -> None:
    build = NetworkBuilder("partly", dtype="float32")
    build.network({"y": build.op("NonZero", build.input("x", ("N", 3)))}).save(tmp_path / "own.onnx")
    answer = deep5("show", "network", "own.onnx", "-o", "pictures")
    assert (answer.status, answer.err) == (0, "")
    assert "NonZero" in (tmp_path / "pictures" / "network.svg").read_text()


def test_a_default_batch_that_does_not_fit(deep5: Command, tmp_path: Path) -> None:
    """The nodes accept two rows only: without --batch the sizes stay symbolic."""
    build = NetworkBuilder("two", dtype="float32")
    y = build.op("Add", build.input("x", ("N", 3)), build.input("m", (2, 3)))
    target = build.constant("s", np.array([4, 3]))
    z = build.op("Reshape", build.op("Concat", y, build.input("k", ("N", 3)), axis=0), target)
    build.network({"z": z}).save(tmp_path / "own.onnx")
    assert deep5("show", "network", "own.onnx").status == 0


def test_without_what_draws_there_are_words(deep5: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    answer = deep5("show", "network", "lenet", "-o", "here")
    assert answer.status == 0
    reason = "pictures need the package 'altair', which is not installed; remedy: pip install 'deep5[report]'"
    assert f"no shares were drawn: {reason}" in " ".join(answer.out.split())
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == ["network.json", "network.svg"]


def test_help(deep5: Command) -> None:
    assert "network" in deep5("show", "--help").out
    for option in ("--set", "--batch", "--extent", "--time", "--batches", "--threads", "--out", "--json", "--debug"):
        assert option in deep5("show", "network", "--help").out


# -- the tensors of a file ---------------------------------------------------------------------------------------------


def test_the_tensors_of_a_file_are_listed_with_their_reasons(deep5: Command, tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["": 20]> g (float[N, 3] x) => (float[N, 2] y) {
        h = MatMul (x, w)  a = MatMul (h, v)  s = Mul (a, half)  y = Add (s, table)
    }"""
    model = onnx.parser.parse_model(text)
    shapes = {"w": (3, 2), "v": (2, 2), "half": (), "table": (2,)}
    for name, shape in shapes.items():
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.FLOAT, shape, [0.5] * math.prod(shape)))
    onnx.save(model, tmp_path / "file.onnx")
    answer = deep5("show", "network", str(tmp_path / "file.onnx"))
    assert answer.status == 0
    rows = [re.split(r"\s{2,}", line.strip()) for line in answer.out.splitlines()]
    assert ["trained", "2", "10", "3", "matrix of MatMul", "w, v"] in rows
    assert ["trained", "1", "2", "4, guess", "several elements", "table"] in rows
    assert ["constant", "1", "1", "5, guess", "one element: no parameter's name", "half"] in rows
    assert "2 of 4 decisions are guesses" in answer.out
    found = json.loads(deep5("show", "network", str(tmp_path / "file.onnx"), "--json").out)["tensors"]
    assert [(each["name"], each["outcome"], each["rule"], each["guess"]) for each in found] == [
        ("w", "trained", 3, False), ("v", "trained", 3, False), ("half", "constant", 5, True),
        ("table", "trained", 4, True),
    ]  # fmt: skip
    assert found[0]["shape"] == [3, 2]
    assert json.loads(deep5("show", "network", "mlp", "--json").out)["tensors"] == []


def test_a_layer_with_an_omitted_output_is_shown(deep5: Command, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[3, 1, 2] x, float[1, 4, 2] w, float[1, 4, 1] r)
        => (float[1, 1, 1] h) { , h = LSTM <hidden_size = 1> (x, w, r) }"""
    (tmp_path / "net.onnx").write_bytes(onnx.parser.parse_model(text).SerializeToString())
    assert "LSTM" in deep5("show", "network", str(tmp_path / "net.onnx")).out


@pytest.mark.parametrize("columns", [80, 100, 140])
def test_counts_rules_and_reasons_are_readable_and_names_give_way(columns: int) -> None:
    spec = TensorSpec(shape=(1000, 1000))
    reason = "folded by torch from parameters"
    long = [f"model.encoder.layer.{place}.attention.output.weight" for place in range(30)]
    decisions = [
        Decision(name=name, spec=spec, outcome="trained", rule=2, reason=reason, operators=()) for name in long
    ]
    decisions.append(replace(decisions[0], name="w" * 300, outcome="constant", rule=4))
    console = Console(width=columns, record=True, file=io.StringIO())
    print_tensors(decisions, console)
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= columns
    assert len(lines) < 20
    assert lines[0] == "Tensors of the file (--json lists the names that are cut here):"
    (row,) = [line for line in lines if line.startswith(" trained")]
    assert re.match(r" trained +30 +30,000,000 +2 +folded by torch", row)
    (row,) = [line for line in lines if line.startswith(" constant")]
    assert re.match(r" constant +1 +1,000,000 +4, guess +folded by torch.* www+…w+$", row)
    (more,) = [line for line in lines if line.endswith(" more")]
    assert 30 - int(more.split()[-2]) >= 3
    words = " ".join(line[: line.find("model") % 200] for line in lines)
    assert "from parameters" in re.sub(r"\s+", " ", words)


def test_a_value_is_listed_under_the_name_by_which_it_is_fetched(deep5: Command, tmp_path: Path) -> None:
    """An exporter's names of nodes and values differ, and a long name is complete."""
    name = "logits_" + "long" * 40
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[N, 4] x) => (float[N, 4] {name}) {{
        tanh = Tanh (x)  a, b = Split <num_outputs = 2, axis = 1> (tanh)
        both = Concat <axis = 1> (b, a)  {name} = Relu (both)
    }}"""
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = f"node_{node.op_type}_7"
    onnx.save(model, tmp_path / "file.onnx")
    shown = deep5("show", "network", "file.onnx").out
    assert max(map(len, shown.splitlines())) <= 100
    after = shown.split("Values for executor.fetch, feed and wrt=, and the nodes that compute them:\n")[1]
    assert [line.split() for line in after.splitlines()[:3]] == [
        ["tanh", "node_Tanh_7"], ["a", "node_Split_7"], ["b", "node_Split_7"],
    ]  # fmt: skip
    assert name in "".join(after.replace("node_Relu_7", "").split())
    layers = json.loads(deep5("show", "network", "file.onnx", "--json").out)["layers"]
    values = [value for layer in layers for value in layer["values"]]
    assert values == ["tanh", "a", "b", "both", name]
    executor = framework("reference").executor(Network.from_onnx(str(tmp_path / "file.onnx")))
    assert list(executor.fetch(values, {"x": np.ones((2, 4), np.float32)})) == values


def test_values_named_after_their_nodes_take_one_sentence(deep5: Command) -> None:
    out = deep5("show", "network", "lstm").out
    assert "(of other nodes: NODE_output, and further ones NODE_1_output, NODE_2_output, …)" in " ".join(out.split())
    assert "LSTM_1_1_output" not in out
    assert [line.split() for line in out.splitlines() if line.split()[:1] == ["logits"]] == [["logits", "Gemm_1"]]
