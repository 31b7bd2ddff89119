"""The data set `webdataset`: tar files of the library's own writer, and archives that are damaged or hostile."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from deep5.core.errors import UsageError
from deep5.training.datasets.tar_files import entries, read_entry
from deep5.training.datasets.webdatasets import webdataset

RNG = np.random.default_rng(2)
VECTORS = {"input": "npy", "label": "cls"}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEEP5_CACHE", str(tmp_path / "cache"))


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


def samples(count: int, first: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(first, first + count):
        yield {
            "__key__": f"s/{number:03d}",
            "npy": np.arange(number, number + 3, dtype=np.float32),
            "cls": number % 2,
            "json": {"age": number, "names": ["x"], "box": [number / 2, 1.5]},
            "txt": ["cat", "dog"][number % 2],
            "png": np.full((5, 5, 3), number * 10, np.uint8),
        }


def write(path: Path, given: Any) -> Path:
    """By the library WebDataset."""
    webdataset_library = pytest.importorskip("webdataset")
    with webdataset_library.TarWriter(str(path)) as writer:
        for sample in given:
            writer.write(sample)
    return path


def tar(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_samples_are_those_of_the_library(tmp_path: Path) -> None:
    library = pytest.importorskip("webdataset")
    path = write(tmp_path / "a.tar", samples(6))
    with path.open("rb") as file:
        grouped = list(
            library.tariterators.group_by_keys(
                {**one, "__url__": ""} for one in library.tariterators.tar_file_iterator(file)
            )
        )
    decode = library.Decoder([library.imagehandler("rgb")])
    theirs = [[decode(sample)[kind] for kind in ("npy", "cls", "png", "json")] for sample in grouped]
    splits = webdataset(
        str(path), parts={**VECTORS, "image": "jpg;png", "box": "json:box"}, test=str(path), size=5, workers=2
    )
    ours = everything(splits.train)
    np.testing.assert_array_equal(ours["input"], [one[0] for one in theirs])
    np.testing.assert_array_equal(ours["label"], [one[1] for one in theirs])
    np.testing.assert_allclose(ours["image"], [one[2].transpose(2, 0, 1) for one in theirs], atol=1e-6)
    np.testing.assert_array_equal(ours["box"], [one[3]["box"] for one in theirs])
    assert splits.train.labels().tolist() == [0, 1, 0, 1, 0, 1]
    assert splits.description["decisions"] == []


def test_splits_classes_and_hashes(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / f"a-{number}.tar", samples(10, 10 * number))
    named = webdataset(str(tmp_path / "a-*.tar"), parts={"input": "npy", "label": "txt"}, test_share=0.3)
    assert named.description["classes"] == ["cat", "dog"]
    assert named.description["decisions"] == ["the labels 'cat', 'dog' are mapped to the classes 0, 1"]
    assert np.bincount(everything(named.test)["label"]).tolist() == [3, 3]
    firsts = [everything(part)["input"][:, 0] for part in (named.train, named.test)]
    assert sorted(np.concatenate(firsts).tolist()) == list(range(20))
    assert named.train.content_hash() != named.test.content_hash()
    default = webdataset(str(tmp_path / "a-0.tar"), size=4)
    assert {name: str(spec) for name, spec in default.train.specs.items()} == {
        "input": "float32[3, 4, 4]",
        "label": "int64[]",
    }
    before = webdataset(str(tmp_path / "a-0.tar"), parts=VECTORS).train.content_hash()
    write(tmp_path / "a-0.tar", samples(10, 1))
    assert webdataset(str(tmp_path / "a-0.tar"), parts=VECTORS).train.content_hash() != before


def test_values_of_json(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", samples(8))
    ages = webdataset(str(path), parts={"input": "npy", "label": "json:age"}, test=str(path))
    assert ages.description["classes"] == [str(number) for number in range(8)]
    boxes = webdataset(str(path), parts={"input": "npy", "label": "json:box"}, test=str(path))
    assert str(boxes.train.specs["label"]) == "float32[2]"
    halves = tar(
        tmp_path / "b.tar", {"0.npy": npy(np.ones(2)), "0.json": b"1.5", "1.npy": npy(np.ones(2)), "1.json": b"2"}
    )
    with pytest.raises(UsageError, match=r"the sample '1': 'label': got dtype int64, expected float32"):
        everything(webdataset(str(halves), parts={"input": "npy", "label": "json"}, test=str(halves)).train)


def hostile(path: Path, kind: str) -> None:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo({"climbs": "a/../../x.cls", "absolute": "/etc/x.cls"}.get(kind, "x.cls"))
        member.type = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "device": tarfile.CHRTYPE}.get(
            kind, tarfile.REGTYPE
        )
        member.linkname = "/etc/passwd" if kind in ("link", "hard") else ""
        archive.addfile(member)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("climbs", r"'a/\.\./\.\./x\.cls' has a path that leaves its folder"),
        ("absolute", r"'/etc/x\.cls' has a path that leaves its folder"),
        ("link", r"'x\.cls' is a link to '/etc/passwd'"),
        ("hard", r"'x\.cls' is a link to '/etc/passwd'"),
        ("device", r"'x\.cls' is a device"),
    ],
)
def test_hostile_entries_are_refused(tmp_path: Path, kind: str, message: str) -> None:
    hostile(tmp_path / "x.tar", kind)
    with pytest.raises(UsageError, match=message):
        webdataset(str(tmp_path / "x.tar"), parts=VECTORS)


def test_damaged_archives(tmp_path: Path) -> None:
    path = write(tmp_path / "x.tar", samples(4))
    whole = path.read_bytes()
    listed = entries(path)
    assert [entry.name for entry in listed][:2] == ["s/000.cls", "s/000.json"]
    last = listed[-1]
    ends = last.begin + -(-last.size // 512) * 512
    for content, message in [
        (whole[: listed[5].begin - 100], "is no whole tar file"),
        (whole[: last.begin + 100], "is no whole tar file"),
        (whole[:ends], "is no whole tar file"),
        (whole[: listed[3].begin - 512], "is no whole tar file"),
        (b"x" * 2000, "no whole tar file"),
        (gzip.compress(whole), r"it is a gzip file\); allowed: uncompressed tar files; remedy: gunzip it"),
        (lzma.compress(whole), r"it is an xz file\); allowed: uncompressed tar files; remedy: unxz it"),
    ]:
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            webdataset(str(path), parts=VECTORS)
    path.write_bytes(whole[: last.begin])
    with pytest.raises(UsageError, match=r"is truncated: the file became shorter"):
        read_entry(path, last)


GOOD = {"0.npy": npy(np.ones(2)), "0.cls": b"0", "1.npy": npy(np.ones(2)), "1.cls": b"1"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({**GOOD, "2.npy": npy(np.ones(2))}, r"the sample '2' has no entry for 'label' \(\.cls\); .* it has \.npy"),
        ({**GOOD, "0.txt": b"late"}, r"the entries of the sample '0' do not follow each other"),
        ({**GOOD, "./1.cls": b"1"}, r"has the entry '1\.cls' twice"),
        ({**GOOD, "1.cls": b"one"}, r"'1\.cls' holds 'one'; allowed: an integer; remedy: \.txt"),
        ({**GOOD, "1.cls": b"\xff"}, r"'1\.cls': the byte 0xff at position 1 is not UTF-8"),
        ({**GOOD, "1.cls": b"0"}, r"the labels are all '0'; allowed: at least two classes"),
        ({**GOOD, "1.npy": npy(np.ones(3))}, r"the sample '1': 'input': got shape \(3,\), expected float64\[2\]"),
        ({**GOOD, "1.npy": npy(np.array([1, np.nan]))}, r"the sample '1': 'input' is nan at \(1,\)"),
        ({**GOOD, "1.npy": npy(np.ones(2))[:-3]}, r"'1\.npy' is no array"),
        ({**GOOD, "1.npy": npy(np.array([{}], object))}, r"'1\.npy' is no array \(.*pickle"),
        ({"readme": b"x", ".hidden.cls": b"0"}, r"has no samples; allowed: at least one"),
    ],
)
def test_bad_samples_are_named(tmp_path: Path, files: dict[str, bytes], message: str) -> None:
    path = str(tar(tmp_path / "x.tar", files))
    with pytest.raises(UsageError, match=message):
        everything(webdataset(path, parts=VECTORS, test=path).train)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parts": {"input": "pyd"}}, r"\.pyd are not read: a pickle runs code when it is loaded"),
        ({"parts": {"input": "pth"}}, r"\.pth are not read: a pickle runs code"),
        ({"parts": {"input": "mp4"}}, r"\.mp4 have no decoder; allowed: cls"),
        ({"parts": {"input": "npy:x"}}, r"a field of \.npy for 'input'"),
        ({"parts": {}}, r"got parts=\{\}"),
        ({"parts": {"input": 3}}, r"got parts=\{'input': 3\}"),
        ({"parts": {"input": "json:nose"}}, r"has no field 'nose'; allowed: age, names, box"),
        ({"parts": {"input": "json:names"}}, r"holds \['x'\]; allowed: a number, a string, or a list"),
        ({"parts": {"input": "txt"}}, r"'input' is the string 'cat'; allowed: strings only as label"),
        ({"parts": {"input": "png", "label": "clss"}}, r"\.clss have no decoder"),
        ({"train": "absent-*.tar"}, r"no file absent-\*\.tar"),
        ({"train": "absent-{08..10}.tar"}, r"the file absent-08\.tar is not there"),
        ({"train": "https://example.org/x.tar"}, r"no file https://.*remedy: download it first"),
        ({"train": "x-{0..9999999}.tar"}, r"names 10000000 files; allowed: at most 1000000"),
        ({"workers": "2"}, r"workers '2'; allowed: None or an integer of at least 1"),
        ({"limit": 99}, r"limit 99; allowed"),
        ({"parts": {"input": "png"}, "channels": 2}, r"images of 2 channels"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "x.tar", samples(4))
    with pytest.raises(UsageError, match=message):
        webdataset(**{"train": str(path), "parts": VECTORS, **arguments})


def test_a_range_of_numbers_names_files_in_its_order(tmp_path: Path) -> None:
    for number in range(8, 12):
        write(tmp_path / f"x-{number:02d}.tar", samples(2, 2 * number))
    splits = webdataset(str(tmp_path / "x-{09..11}.tar"), parts=VECTORS)
    values = np.concatenate([everything(part)["input"][:, 0] for part in (splits.train, splits.test)])
    assert sorted(values.tolist()) == [*range(18, 24)]


def test_images_that_do_not_decode(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (6, 4), 51).save(buffer, "PNG")
    path = str(tar(tmp_path / "x.tar", {"0.png": buffer.getvalue(), "0.cls": b"0", "1.png": b"no", "1.cls": b"1"}))
    splits = webdataset(path, test=path, size=2, channels=1)
    np.testing.assert_allclose(splits.train.batch(np.array([0]))["input"], 0.2, atol=1e-6)
    with pytest.raises(UsageError, match=r"1\.png"):
        splits.train.batch(np.array([1]))
