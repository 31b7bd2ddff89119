"""`deep5 predict`: classes and probabilities of arrays and images, prepared like the run's samples."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import deep5 as d5
from command import Command
from deep5.cli import main as cli
from deep5.cli.predict import predict_command
from deep5.core.errors import UsageError
from deep5.trained.predict import predict_files
from deep5.training.dataset import ArrayDataset, Splits

MUTABLE = {"batch_size": 32, "framework": "reference", "optimizer": "adam"}


@pytest.fixture(scope="module", autouse=True)
def command() -> None:
    if "predict" not in cli._cli.commands:
        assert isinstance(cli._cli, click.Group)
        cli._cli.add_command(predict_command(cli.errors))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LeNet on the digits: images of 28 x 28, gray, in [0, 1]."""
    fixed = {"model": "lenet", "dataset": "digits", "dataset_kwargs": {"limit": 320}, "epochs": 2}
    return Path(d5.run_recipe(fixed, MUTABLE, [], out=tmp_path_factory.mktemp("out"), quiet=True).folder)


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    return d5.datasets.digits().test.batch(np.arange(70))


@pytest.fixture(scope="module")
def expected(result: Path, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Probabilities from the executor, with the softmax in NumPy."""
    executor = d5.framework("reference").executor(d5.Network.from_onnx(result / "network.onnx"))
    logits = np.asarray(executor.inference(batch)["logits"], np.float64)
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def test_arrays_of_one_and_of_several(
    result: Path, batch: dict[str, np.ndarray], expected: np.ndarray, tmp_path: Path
) -> None:
    np.save(tmp_path / "one.npy", batch["input"][3])
    np.save(tmp_path / "many.npy", batch["input"])  # more than one batch
    np.savez(tmp_path / "named.npz", input=batch["input"][:2], label=batch["label"][:2])
    np.savez(tmp_path / "other.npz", anything=batch["input"][:2].astype(np.float64))
    files = [tmp_path / name for name in ("one.npy", "many.npy", "named.npz", "other.npz")]
    found, notes = predict_files(result, files, top=10)
    assert notes == ()
    order = [3, *range(70), 0, 1, 0, 1]
    assert [(Path(one.file).name, one.index) for one in found] == [
        ("one.npy", None),
        *(("many.npy", index) for index in range(70)),
        *((name, index) for name in ("named.npz", "other.npz") for index in (0, 1)),
    ]
    for one, row in zip(found, expected[order], strict=True):
        assert [number for number, _ in one.ranked] == np.argsort(-row, kind="stable").tolist()
        assert [p for _, p in one.ranked] == pytest.approx(sorted(row, reverse=True), rel=1e-5)
        assert sum(p for _, p in one.ranked) == pytest.approx(1.0)
    assert [len(one.ranked) for one in predict_files(result, files[:1], top=3)[0]] == [3]


def test_an_image_is_prepared_as_the_digits_are(
    result: Path, batch: dict[str, np.ndarray], expected: np.ndarray, tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (batch["input"][:5, 0] * 255).round().astype(np.uint8)
    for number in range(5):
        image.fromarray(pixels[number]).save(tmp_path / f"{number}.png")
        image.fromarray(255 - pixels[number]).save(tmp_path / f"dark{number}.png")
        image.fromarray(np.stack([pixels[number]] * 3, axis=-1)).resize((56, 56)).save(tmp_path / f"large{number}.bmp")
    found, notes = predict_files(result, [tmp_path / f"{number}.png" for number in range(5)])
    assert [one.ranked[0][0] for one in found] == expected[:5].argmax(axis=1).tolist()
    # Rounded to 256 levels.
    assert [one.ranked[0][1] for one in found] == pytest.approx(expected[:5].max(axis=1), abs=5e-3)
    assert "bright on dark" in notes[0]
    inverted, _ = predict_files(result, [tmp_path / f"dark{number}.png" for number in range(5)], invert=True)
    assert [one.ranked for one in inverted] == [one.ranked for one in found]
    large, _ = predict_files(result, [tmp_path / f"large{number}.bmp" for number in range(5)])
    assert [one.ranked[0][0] for one in large] == [one.ranked[0][0] for one in found]


def test_the_scaling_of_the_command_line(
    result: Path, batch: dict[str, np.ndarray], expected: np.ndarray, tmp_path: Path
) -> None:
    """An image written with a mean and a deviation is read with them."""
    image = pytest.importorskip("PIL.Image")
    pixels = ((batch["input"][0, 0] * 0.5 + 0.25) * 255).round().astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    ((plain,), _), ((scaled,), notes) = (
        predict_files(result, [tmp_path / "a.png"], **given) for given in ({}, {"mean": (0.25,), "std": (0.5,)})
    )
    assert notes == ()
    assert scaled.ranked[0][1] == pytest.approx(expected[0].max(), abs=5e-3)
    assert scaled.ranked != plain.ranked
    with pytest.raises(UsageError, match="--mean has 3 numbers; allowed: one, or 1, a channel each"):
        predict_files(result, [tmp_path / "a.png"], mean=(0.1, 0.2, 0.3))
    with pytest.raises(UsageError, match=r"--std \(0\.0,\); allowed: numbers above 0"):
        predict_files(result, [tmp_path / "a.png"], std=(0.0,))


COLOURS = (0.2, 0.4, 0.6), (0.5, 0.25, 0.125)


def linear(*, seed: int = 0) -> d5.Network:
    """One product, of color images of 32 x 32."""
    build = d5.NetworkBuilder("linear", seed=seed)
    x, label = build.input("input", ("N", 3, 32, 32)), build.input("label", ("N",), "int64")
    logits = build.op("Gemm", build.op("Flatten", x), build.parameter("w", (4, 3072)), transB=1)
    loss = build.op("SoftmaxCrossEntropyLoss", logits, label, reduction="mean")
    return build.network({"logits": logits, "loss": loss})


def coloured(tmp_path: Path, **description: Any) -> Path:
    """A result of a data set of color images that describes their preparation."""

    def data() -> Splits:
        draw = np.random.default_rng(0)
        part = ArrayDataset(
            {"input": draw.standard_normal((40, 3, 32, 32)).astype(np.float32), "label": np.arange(40) % 4}
        )
        return Splits(train=part, test=part, split_hash="0" * 64, description=description)

    fixed = {
        "model": linear,
        "dataset": data,
        "epochs": 1,
        "test_transforms": [],
    }
    return Path(d5.run_recipe(fixed, MUTABLE, [], out=tmp_path, quiet=True).folder)


def test_an_image_is_prepared_as_the_description_says(tmp_path: Path) -> None:
    """Cropped from the middle, minus the mean, divided by the deviation, as its data set's description says."""
    image = pytest.importorskip("PIL.Image")
    from deep5.training.datasets.images import Decoder
    from deep5.training.datasets.pixels import Scaling

    decoder, scaling = Decoder(size=32, fit="crop", share=0.5), Scaling(mean=COLOURS[0], std=COLOURS[1])
    told = f"{decoder.describe()}; {scaling.describe()}"
    folder = coloured(tmp_path / "out", preparation=told, classes=["ant", "bee", "cat", "dog"])
    pixels = np.random.default_rng(1).integers(0, 256, (128, 64, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    # The shorter side already is 64, so no scaling; the middle 32 x 32 of 128 x 64.
    middle = pixels[48:80, 16:48].transpose(2, 0, 1).astype(np.float32) / 255
    mean, std = (np.array(values, np.float32)[:, None, None] for values in COLOURS)
    np.save(tmp_path / "a.npy", (middle - mean) / std)
    found, notes = predict_files(folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=4)
    assert notes == ()
    assert [number for number, _ in found[0].ranked] == [number for number, _ in found[1].ranked]
    assert [p for _, p in found[0].ranked] == pytest.approx([p for _, p in found[1].ranked], rel=1e-5)
    names = ["ant", "bee", "cat", "dog"]
    assert [one["name"] for one in found[0].document()["top"]] == [names[number] for number, _ in found[0].ranked]


def test_a_mean_of_numpy_numbers_is_read_back(tmp_path: Path) -> None:
    """Like computed statistics: the description contains plain numbers."""
    image = pytest.importorskip("PIL.Image")
    from deep5.training.datasets.folders import image_folder

    mean, std = np.array([0.51, 0.49, 0.47]), np.array([0.26, 0.25, 0.24])
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    (tmp_path / "ants" / "ant").mkdir(parents=True)
    for name in ("ants/ant/0.png", "ants/ant/1.png", "a.png"):
        image.fromarray(pixels).save(tmp_path / name)
    splits = image_folder(str(tmp_path / "ants"), size=32, mean=tuple(mean), std=tuple(std))
    folder = coloured(tmp_path / "out", preparation=splits.description["preparation"])
    np.save(tmp_path / "a.npy", splits.test.batch(np.array([0]))["input"][0])
    found, notes = predict_files(folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=4)
    assert notes == ()
    assert found[0].ranked == found[1].ranked


@pytest.mark.parametrize("turn", [True, False])
def test_an_image_is_prepared_as_test_samples_are(turn: bool, tmp_path: Path) -> None:
    """For parts that differ, as in ImageNet; and rotated by EXIF orientation only if the run's samples were."""
    image = pytest.importorskip("PIL.Image")
    from deep5.training.datasets.images import Decoder
    from deep5.training.datasets.pixels import Scaling

    decoders = {
        "train": Decoder(size=16, fit="crop", share=0.25, turn=turn),
        "test": Decoder(size=32, fit="crop", share=0.5, turn=turn),
    }
    scaling = Scaling(mean=COLOURS[0], std=COLOURS[1])
    told = {name: f"{decoder.describe()}; {scaling.describe()}" for name, decoder in decoders.items()}
    folder = coloured(tmp_path / "out", preparation=told)
    exif = image.Exif()
    exif[0x0112] = 6  # the camera was rotated
    pixels = np.random.default_rng(1).integers(0, 256, (128, 64, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    np.save(
        tmp_path / "a.npy", scaling.apply(decoders["test"].decode((tmp_path / "a.png").read_bytes(), "a.png")[None])
    )
    found, notes = predict_files(folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=4)
    assert notes == ()
    assert found[0].ranked == found[1].ranked


def test_bytes_and_units_of_a_description(tmp_path: Path) -> None:
    """Every description of pixel values by image data sets is understood."""
    image = pytest.importorskip("PIL.Image")
    from deep5.training.datasets.images import Decoder
    from deep5.training.datasets.pixels import PIXELS, scaling_of

    pixels = np.random.default_rng(1).integers(0, 256, (40, 60, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    folder = coloured(tmp_path / "out")
    for fit in ("stretch", "crop"):
        for kind in PIXELS:
            decoder, scaling = Decoder(size=32, fit=fit), scaling_of(kind, *COLOURS, "coloured")
            told = f"{decoder.describe()}; {scaling.describe() if scaling else 'bytes'}"
            (folder / "dataset.json").write_text(json.dumps({"preparation": {"test": told}}))
            decoded = decoder.decode((tmp_path / "a.png").read_bytes(), "a.png")[None]
            if scaling is None:
                with pytest.raises(UsageError, match="became uint8"):
                    predict_files(folder, [tmp_path / "a.png"])
                continue
            np.save(tmp_path / "a.npy", scaling.apply(decoded))
            found, notes = predict_files(folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=4)
            assert notes == ()
            assert found[0].ranked == found[1].ranked


def test_an_unknown_preparation_is_said(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = coloured(tmp_path / "out", source="invented")
    image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "a.png")
    _, notes = predict_files(folder, [tmp_path / "a.png"])
    assert "how the run's samples were prepared is not known: pixels were divided by 255" in notes[0]


def test_transforms_of_evaluation_are_applied(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    from deep5.core.plugins import registered
    from deep5.training.transforms import Normalise

    normalise = [Normalise(0.5, 0.25)]
    fixed = {"model": "lenet", "dataset": "synthetic", "epochs": 1, "dataset_kwargs": {"train": 40, "test": 10}}
    fixed |= {"test_transforms": normalise, "train_transforms": normalise}
    folder = Path(
        d5.run_recipe(
            {**fixed, "test_transforms": normalise, "train_transforms": normalise},
            MUTABLE,
            [],
            out=tmp_path,
            quiet=True,
        ).folder
    )
    (folder / "dataset.json").write_text(json.dumps({"preparation": "none"}))
    pixels = np.random.default_rng(1).integers(0, 256, (28, 28)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    changed = normalise[0]({"input": pixels[None, None]}, np.zeros(1, np.int64), 0)["input"]
    np.save(tmp_path / "a.npy", changed.astype(np.float32))
    assert "normalise" in registered("transforms")
    found, _ = predict_files(folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=10)
    assert [number for number, _ in found[0].ranked] == [number for number, _ in found[1].ranked]
    # A product's rows are summed in other orders.
    assert [p for _, p in found[0].ranked] == pytest.approx([p for _, p in found[1].ranked], rel=1e-5)


OWN = """
import numpy as np
import deep5 as d5
from test_predict import linear

def own():
    return d5.datasets.synthetic(shape=(3, 32, 32), classes=4, train=40, test=10)

def darker(inputs, ids, epoch):
    return {**inputs, "input": inputs["input"] * np.float32(0.25)}

FIXED = {"model": linear, "dataset": own, "epochs": 1, "test_transforms": TRANSFORMS}
MUTABLE = {"batch_size": 20, "framework": "reference", "optimizer": "sgd"}
METRICS = [(d5.TestLoss(), None)]
"""


@pytest.mark.parametrize("transforms", ["darker", "[d5.CenterCrop(32), darker]"])
def test_transforms_of_the_recipes_own_need_the_recipe(transforms: str, tmp_path: Path) -> None:
    """They are never omitted silently."""
    image = pytest.importorskip("PIL.Image")
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute
    from deep5.trained.evaluate import evaluate_result

    file = tmp_path / "own.py"
    file.write_text(OWN.replace("TRANSFORMS", transforms))
    result = execute(load_recipe(file), out=tmp_path / "out")
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    unchanged = pixels.transpose(2, 0, 1).astype(np.float32)
    np.save(tmp_path / "a.npy", unchanged * np.float32(0.25))
    with pytest.raises(
        UsageError, match=r"taken for an image, and 'test_transforms' of this result .*remedy: --recipe"
    ):
        predict_files(result.folder, [tmp_path / "a.png"])
    assert len(predict_files(result.folder, [tmp_path / "a.npy"])[0]) == 1  # arrays are not transformed
    (result.folder / "dataset.json").write_text(json.dumps({"preparation": "none"}))
    found, notes = predict_files(result.folder, [tmp_path / "a.png", tmp_path / "a.npy"], top=4, recipe=file)
    assert notes == ()
    assert found[0].ranked == found[1].ranked
    assert evaluate_result(result.folder, recipe=file).loss == result.metric("test_loss")


def test_registered_transforms_of_a_data_set_of_the_recipes_own(tmp_path: Path) -> None:
    """The data set cannot be created without the recipe, but its samples' transforms can."""
    image = pytest.importorskip("PIL.Image")
    from deep5.recipe.recipe import load_recipe
    from deep5.run.execute import execute

    file = tmp_path / "own.py"
    file.write_text(OWN.replace("TRANSFORMS", "[d5.Normalise(0.5, 0.25)]"))
    folder = execute(load_recipe(file), out=tmp_path / "out").folder
    (folder / "dataset.json").write_text(json.dumps({"preparation": "none"}))
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    image.fromarray(pixels).save(tmp_path / "a.png")
    found = [predict_files(folder, [tmp_path / "a.png"], top=4, recipe=given)[0][0].ranked for given in (None, file)]
    changed = d5.Normalise(0.5, 0.25)({"input": pixels.transpose(2, 0, 1)[None]}, np.zeros(1, np.int64), 0)["input"]
    np.save(tmp_path / "a.npy", changed.astype(np.float32))
    assert found == [predict_files(folder, [tmp_path / "a.npy"], top=4)[0][0].ranked] * 2


# Errors


def test_arrays_that_do_not_fit(result: Path, batch: dict[str, np.ndarray], tmp_path: Path) -> None:
    wrong = {
        "narrow": (
            batch["input"][:, :, :, :5],
            r"holds float32 of shape \(70, 1, 28, 5\) for 'input'; the network takes",
        ),
        "bytes": ((batch["input"] * 255).astype(np.uint8), "remedy: prepare pixels as the data set does"),
        "flat": (batch["input"].ravel(), "or several with their axis first"),
        "text": (np.array(["a"]), "holds <U1 of shape"),
        "object": (np.array([{}], dtype=object), "cannot be read .*allowed: arrays of numbers as numpy.save writes"),
    }
    for name, (array, told) in wrong.items():
        np.save(tmp_path / f"{name}.npy", array)
        with pytest.raises(UsageError, match=told):
            predict_files(result, [tmp_path / f"{name}.npy"])
    (tmp_path / "cut.npy").write_bytes((tmp_path / "narrow.npy").read_bytes()[:100])
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    np.savez(tmp_path / "two.npz", a=batch["input"], b=batch["input"])
    for name, told in {"cut.npy": "cannot be read", "cut.npz": "cannot be read", "two.npz": "holds 'a', 'b'"}.items():
        with pytest.raises(UsageError, match=f"{name} {told}"):
            predict_files(result, [tmp_path / name])


def test_images_that_do_not_decode_are_named(result: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.random.default_rng(0).integers(0, 256, (28, 28)).astype(np.uint8)).save(tmp_path / "whole.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:300])
    (tmp_path / "text.jpg").write_text("no image")
    for name in ("cut.png", "text.jpg"):
        with pytest.raises(UsageError, match=f"the image .*{name} does not decode"):
            predict_files(result, [tmp_path / "whole.png", tmp_path / name])
    with pytest.raises(UsageError, match=r"nothing\.png is not there; allowed: \.npy and \.npz files, and images"):
        predict_files(result, [tmp_path / "nothing.png"])
    with pytest.raises(UsageError, match="is a folder"):
        predict_files(result, [tmp_path])


def test_a_network_that_takes_no_images(tmp_path: Path) -> None:
    fixed = {"model": "mlp", "dataset": "synthetic", "dataset_kwargs": {"shape": (784,), "train": 40}, "epochs": 1}
    folder = d5.run_recipe(fixed, MUTABLE, [], out=tmp_path, quiet=True).folder
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"a\.png is taken for an image, and the network takes input: .*\.npy"):
        predict_files(folder, [tmp_path / "a.png"])
    np.save(tmp_path / "a.npy", np.zeros(784))
    assert len(predict_files(folder, [tmp_path / "a.npy"])[0]) == 1


def test_numbers_that_are_none_predict_nothing(result: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((1, 28, 28), np.nan, np.float32))
    ((one,), _) = predict_files(result, [tmp_path / "a.npy"])
    assert one.ranked == ()
    assert one.document()["class"] is None
    assert one.line().endswith("no prediction: its logits are not finite")


@pytest.mark.parametrize("logits", [[0.0, np.inf, 1.0], [-np.inf] * 3, [0.0, np.nan, np.inf], [np.inf, -np.inf, 0.0]])
def test_a_largest_logit_that_is_not_finite_predicts_nothing(logits: list[float]) -> None:
    from deep5.trained.predict import _ranked

    assert _ranked(np.array(logits), 3) == ()


def test_a_class_that_is_ruled_out_has_no_probability() -> None:
    from deep5.trained.predict import _ranked

    assert _ranked(np.array([0.0, -np.inf, 0.0]), 3) == ((0, 0.5), (2, 0.5), (1, 0.0))


# The command


def test_the_command(
    result: Path, batch: dict[str, np.ndarray], expected: np.ndarray, deep5: Command, tmp_path: Path
) -> None:
    np.save(tmp_path / "a.npy", batch["input"][:2])
    file, best = str(tmp_path / "a.npy"), expected[0].argmax()
    answer = deep5("predict", str(result), file)
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.splitlines()[0] == f"{file}[0]  {best} {100 * expected[0, best]:.2f} %"
    document = json.loads(deep5("predict", str(result), file, "--json", "--top", "2").out)
    assert document["notes"] == []
    assert [len(one["top"]) for one in document["predictions"]] == [2, 2]
    assert document["predictions"][0]["class"] == best
    answer = deep5("predict", str(result), file, "--top", "2", "--out", "p.csv")
    assert answer.out == "2 predictions in p.csv\n"
    with (tmp_path / "p.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [(row["index"], row["rank"]) for row in rows] == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
    assert float(rows[0]["probability"]) == document["predictions"][0]["probability"]
    deep5("predict", str(result), file, "--top", "2", "--out", "p.json")
    assert json.loads((tmp_path / "p.json").read_text()) == document["predictions"]
    for arguments, told in (
        (["--out", "p.txt"], "--out p.txt; allowed: a file that ends in .csv or .json"),
        (["--mean", "a,b"], "--mean 'a,b'; allowed: one number per channel"),
        (["--framework", "torhc"], "did you mean"),
        (["--out", "nowhere/p.csv"], "cannot write nowhere/p.csv"),
    ):
        answer = deep5("predict", str(result), file, *arguments)
        assert answer.status == 2
        assert told in answer.err
    assert deep5("predict", str(result)).status == 2
