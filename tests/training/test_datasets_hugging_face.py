"""The data set `hugging_face`: rows are those of the library `datasets`; nothing is downloaded."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deep5.core.errors import UsageError
from deep5.training.datasets.hub_tables import hugging_face

library = pytest.importorskip("datasets")


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def rows(count: int = 12) -> Any:
    return library.Dataset.from_dict(
        {
            "a": [float(number) for number in range(count)],
            "b": [number * 2 for number in range(count)],
            "label": [number % 3 + 1 for number in range(count)],
        }
    )


def test_columns_become_inputs(tmp_path: Path) -> None:
    data = rows()
    splits = hugging_face(data, test_share=0.25)
    assert {name: str(spec) for name, spec in splits.train.specs.items()} == {
        "input": "float32[2]",
        "label": "int64[]",
    }
    batch = everything(splits.train)
    for (a, b), label in zip(batch["input"], batch["label"], strict=True):
        assert data[int(a)] == {"a": a, "b": b, "label": label + 1}
    assert splits.description["decisions"] == ["the labels '1', '2', '3' are mapped to the classes 0, 1, 2"]
    assert np.bincount(everything(splits.test)["label"]).tolist() == [1, 1, 1]
    assert str(hugging_face(data, columns={"input": "a", "label": "label"}).train.specs["input"]) == "float32[1]"
    data.save_to_disk(str(tmp_path / "saved"))
    saved = hugging_face(str(tmp_path / "saved"), test_share=0.25)
    assert saved.train.content_hash() == splits.train.content_hash()
    assert hugging_face(rows(13)).train.content_hash() != hugging_face(rows()).train.content_hash()


def test_parts_lists_and_regressions(tmp_path: Path) -> None:
    def part(begin: int, count: int) -> Any:
        return library.Dataset.from_dict(
            {
                "ids": [[number, number + 1, number + 2] for number in range(begin, begin + count)],
                "score": [number / 2 for number in range(begin, begin + count)],
            }
        )

    both = library.DatasetDict({"train": part(0, 5), "validation": part(5, 3)})
    both.save_to_disk(str(tmp_path / "saved"))
    for data in (both, str(tmp_path / "saved")):
        splits = hugging_face(data, label="score")
        assert splits.description["samples"] == {"train": 5, "test": 3}
        test = everything(splits.test)
        np.testing.assert_array_equal(test["input"], [[5, 6, 7], [6, 7, 8], [7, 8, 9]])
        np.testing.assert_array_equal(test["label"], np.float32([[2.5], [3], [3.5]]))
        assert test["input"].dtype == np.int64
    named = hugging_face(both, columns={"tokens": "ids"})
    assert list(named.train.specs) == ["tokens"]


def test_images_and_class_names() -> None:
    def png(value: int) -> dict[str, Any]:
        buffer = io.BytesIO()
        Image.new("L", (6, 6), value).save(buffer, "PNG")
        return {"bytes": buffer.getvalue(), "path": None}

    features = library.Features({"image": library.Image(), "label": library.ClassLabel(names=["cat", "dog"])})
    data = library.Dataset.from_dict(
        {"image": [png(51 * (number % 2)) for number in range(8)], "label": [number % 2 for number in range(8)]},
        features=features,
    )
    splits = hugging_face(data, size=4, channels=1)
    assert splits.description["classes"] == ["cat", "dog"]
    batch = everything(splits.train)
    np.testing.assert_allclose(batch["input"][:, 0, 0, 0], 0.2 * batch["label"], atol=1e-6)
    hidden = library.Dataset.from_dict({"image": [png(0)], "label": [-1]}, features=features)
    with pytest.raises(UsageError, match=r"row 8, column 'label': the label -1 is none of the 2 classes"):
        hugging_face(library.DatasetDict({"train": data, "test": hidden}))


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        ({"x": [1.0, None, 2.0], "label": [0, 1, 0]}, {}, r"row 1, column 'x': the value is missing"),
        ({"x": [1.0, 2.0], "label": [0, None]}, {}, r"row 1, column 'label': the value is missing"),
        ({"x": ["one", "two"], "label": [0, 1]}, {}, r"row 0, column 'x': got 'one'; .*remedy: tokens by data\.map"),
        ({"x": [[1, 2], [1]], "label": [0, 1]}, {}, r"row 1: 'input': got shape \(1,\), expected int64\[2\]"),
        ({"x": [float("nan")] * 2, "label": [0, 1]}, {}, r"row 0: 'input' is nan;"),
        (
            {"x": [1e300] * 2, "label": [0, 1]},
            {},
            r"row 0, column 'x': got 1e\+300; allowed: values that float32 holds",
        ),
        ({"x": np.full(2, 2**63, np.uint64), "label": [0, 1]}, {}, r"got 9223372036854775808; .*that int64 holds"),
        ({"x": [1.0, 2.0], "label": [3, 3]}, {}, r"the labels are all '3'"),
        ({"x": [1.0], "lable": [3]}, {}, r"no column 'label' \(label\); .*did you mean 'lable'\?"),
        ({"x": [1.0], "label": [3]}, {"columns": {"input": "y"}}, r"no column 'y'; allowed: x, label"),
        ({"x": [1.0], "label": [3]}, {"columns": {"input": 3}}, r"got the columns 3 for 'input'"),
        ({"x": [1.0], "label": [3]}, {"columns": {}}, r"got columns=\{\}"),
        ({"x": [], "label": []}, {}, r"has no rows"),
    ],
)
def test_bad_columns(columns: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    data = library.Dataset.from_dict(columns)
    with pytest.raises(UsageError, match=message):
        everything(hugging_face(library.DatasetDict({"train": data, "test": data}), **arguments).train)


def test_what_is_not_a_data_set(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the folder mnist is not there; .*deep5 downloads nothing here"):
        hugging_face("mnist")
    with pytest.raises(UsageError, match=r"cannot be read \(.*allowed: a folder that save_to_disk wrote"):
        hugging_face(str(tmp_path))
    with pytest.raises(UsageError, match=r"got data='dict'"):
        hugging_face({"x": [1]})
    with pytest.raises(UsageError, match=r"remedy: load it without streaming=True"):
        hugging_face(rows().to_iterable_dataset())
    sound = library.Dataset.from_dict({"x": [{"bytes": b"RIFF", "path": None}], "label": [0]})
    with pytest.raises(UsageError, match=r"the column 'x' holds audio; .*remedy: the data set audio_folder"):
        hugging_face(sound.cast_column("x", library.Audio()))
    with pytest.raises(UsageError, match=r"the parts are test; allowed: train"):
        hugging_face(library.DatasetDict({"test": rows()}))
