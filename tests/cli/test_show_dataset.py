"""`deep5 show dataset`: arguments, sizes, classes, samples; a picture for each kind of input; nothing is downloaded."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from command import Command
from deep5.results.charts.dataset import png
from deep5.training.datasets.example import encode_example
from deep5.training.datasets.record_files import write_records

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DEEP5_DATA", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)


def words(path: Path) -> str:
    return " ".join(text for text in ET.parse(path).getroot().itertext())  # noqa: S314 - our own


def test_a_data_set_is_shown(deep5: Command) -> None:
    status, out, err = deep5("show", "dataset", "digits", "--samples", "3")
    assert status == 0
    assert not err
    assert "train  1,438    input float32[1, 28, 28], label int64[]" in out
    assert "stratified by class, 0.2 of each to the test set, seed 0" in out
    assert out.count("float32[1, 28, 28]: 0 … ") == 3
    assert "split_seed  0      The seed of the stratified split." in out
    # The samples stay on the screen.
    assert out.index("split_seed  0 ") < out.index("train  1,438") < out.index("float32[1, 28, 28]: 0 … ")


def test_without_required_arguments_these_are_shown(deep5: Command) -> None:
    status, out, _ = deep5("show", "dataset", "table")
    assert status == 0
    assert "deep5 show dataset table --set path=… --set target=…" in out
    assert "target          required   The column to predict." in out
    document = json.loads(deep5("show", "dataset", "table", "--json").out)
    assert document["arguments"][1] == {
        "name": "target",
        "required": True,
        "default": None,
        "about": "The column to predict.",
    }


def test_a_table_with_pictures(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("".join(["size,kind,y\n", *(f"{n / 7},k{n % 3},{n % 2 + 1}\n" for n in range(30))]))
    arguments = ("show", "dataset", "table", "--set", "path=t.csv", "--set", "target=y", "-o", "pictures")
    status, out, _ = deep5(*arguments)
    assert status == 0
    assert "the labels '1', '2' are mapped to the classes 0, 1" in out
    assert "kind: category of 3 values" in out
    assert re.search(r"size +kind=k0 +kind=k1 +kind=k2 +label", out)
    folder = tmp_path / "pictures"
    assert sorted(path.name for path in folder.iterdir()) == [
        "classes.png",
        "classes.svg",
        "samples.json",
        "samples.png",
        "samples.svg",
    ]
    assert all(name in words(folder / "samples.svg") for name in ("size", "kind=k2", "24 training samples"))
    document = json.loads((folder / "samples.json").read_text())
    assert document["parts"]["train"] == {
        "samples": 24,
        "classes": {"1": 12, "2": 12},
        "specs": {"input": {"shape": [4], "dtype": "float32"}, "label": {"shape": [], "dtype": "int64"}},
    }
    assert json.loads(deep5(*arguments, "--json").out) == document


def test_images_are_drawn_in_a_grid(deep5: Command, tmp_path: Path) -> None:
    deep5("show", "dataset", "digits", "-o", "pictures", "--samples", "7")
    root = ET.parse(tmp_path / "pictures" / "samples.svg").getroot()  # noqa: S314 - our own
    assert len([element for element in root.iter() if element.tag == f"{SVG}image"]) == 7


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_png_files_are_what_pillow_reads(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    with Image.open(io.BytesIO(png(pixels))) as image:
        np.testing.assert_array_equal(np.asarray(image), pixels)


OWN = """
import numpy as np
import deep5 as d5

def samples(epoch):
    for number in range(5):
        yield {"input": np.full((2,), number, np.float32), "label": number % 2}

def stream(*, unused=3):
    specs = {"input": d5.TensorSpec(shape=(2,)), "label": d5.TensorSpec(shape=(), dtype="int64")}
    data = d5.GeneratorDataset(samples, specs)
    return d5.Splits(train=data, test=data, description={"source": "a count"})

made = stream()
number = 3
"""


def test_data_sets_of_a_file(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    status, out, _ = deep5("show", "dataset", "own.py:stream", "--samples", "2", "-o", "pictures")
    assert status == 0
    assert "own.py:stream: a count" in out
    assert "unknown until the stream ends" in out
    assert "0 0    0" in out
    assert "1 1    1" in out
    assert "2 2" not in out
    assert not (tmp_path / "pictures" / "classes.svg").exists()
    assert deep5("show", "dataset", "own.py:made").status == 0
    assert "an object already; allowed: no --set" in deep5("show", "dataset", "own.py:made", "--set", "a=1").err
    assert "gives a int; allowed: d5.Splits" in deep5("show", "dataset", "own.py:number").err


def test_a_part_of_an_argument_is_set_by_a_name_with_a_dot(deep5: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((10, 3), np.float32))
    np.save(tmp_path / "y.npy", np.arange(10) % 2)
    status, out, err = deep5("show", "dataset", "arrays", "--set", "train.input=x.npy", "--set", "train.label=y.npy")
    assert (status, err) == (0, "")
    assert "input float32[3], label int64[]" in out


def test_a_folder_does_not_hide_a_name(deep5: Command, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    assert deep5("show", "dataset", "digits", "--samples", "1").status == 0


def test_variable_samples_are_shown_without_padding(deep5: Command, tmp_path: Path) -> None:
    write_records(tmp_path / "x", [encode_example({"a": [2.0] * (9 + n), "b": [n]}) for n in range(4)])
    features = '{"values": "a: float32[?]", "b": "b"}'
    status, out, _ = deep5(
        "show", "dataset", "tfrecord", "--set", "train=x", "--set", f"features={features}", "-o", "o"
    )
    assert status == 0
    assert len(set(re.findall(r"float32\[(?:9|1[0-2])\]: 2 … 2, mean 2", out))) == 3
    # Without a part `input`, the largest part is drawn, by its name.
    assert "values of values" in words(tmp_path / "o" / "samples.svg")


def test_padding_is_counted(deep5: Command, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "notes" / name).mkdir(parents=True)
        for number in range(2):
            (tmp_path / "notes" / name / f"{number}.txt").write_text("one\n")
    arguments = ("--set", "folder=notes", "--set", "tokens=bytes", "--set", "length=9")
    assert "one⏎<pad>×5 " in deep5("show", "dataset", "text_folder", *arguments).out


def test_channels_are_named(deep5: Command, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "sounds" / name).mkdir(parents=True)
        for number in range(2):
            wavfile.write(tmp_path / "sounds" / name / f"{number}.wav", 8000, np.ones((80, 2), np.int16))
    arguments = ("show", "dataset", "audio_folder", "--set", "folder=sounds", "-o", "o")
    assert deep5(*arguments).status == 0
    drawn = words(tmp_path / "o" / "samples.svg")
    assert "channel" in drawn
    assert drawn.count("time (s)") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mnist",), "the data set mnist is not on this machine yet; a run fetches it; remedy: --download"),
        (("imagenet",), "is not downloaded, as its terms are to be agreed to"),
        (("digit",), "did you mean 'digits'?"),
        (("data.csv",), "unknown data set 'data.csv'"),
        (("folder/data.csv",), "got folder/data.csv as the data set; allowed: a registered name"),
        (("digits", "--set", "sise=3"), "did you mean 'size'?"),
        (("table", "--set", "path=t.csv"), "missing a required argument: 'target'"),
        (("table", "--set", "pth=t.csv"), "unexpected keyword argument 'pth'; allowed: path, target, "),
        (("arrays", "--set", "train=a.npy", "--set", "train.x=b.npy"), "--set train and --set train.x are both given"),
        (("arrays", "--set", "train..x=b.npy"), "allowed: a name, or names with dots between them, such as train.in"),
        (("table", "--set", "path=t.csv", "--set", "target=y"), "the file t.csv is not there"),
        (("digits", "--samples", "0"), "allowed: an integer of at least 1"),
        (("digits", "-o", " "), "allowed: the name of a folder"),
    ],
)
def test_what_is_refused(deep5: Command, arguments: tuple[str, ...], message: str) -> None:
    status, out, err = deep5("show", "dataset", *arguments)
    assert status == 2
    assert not out
    assert message in err
    assert "Traceback" not in err
