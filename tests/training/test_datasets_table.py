"""Tables: types, splits and inputs compared with pandas and scikit-learn; cells that do not fit are named."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.datasets import load_iris, load_wine
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from deep5.core.errors import UsageError
from deep5.recipe.recipe import load_recipe
from deep5.run.execute import execute
from deep5.training.dataset import Splits
from deep5.training.datasets.class_names import class_numbers, mapping_sentence
from deep5.training.datasets.tables import table


def everything(part: Any) -> dict[str, np.ndarray]:
    batch: dict[str, np.ndarray] = part.batch(np.arange(len(part)))
    return batch


@pytest.fixture
def flights() -> pd.DataFrame:
    """Numbers, integers, booleans and strings, 40 rows in an order that is no column's."""
    rng = np.random.default_rng(3)
    return pd.DataFrame(
        {
            "distance": rng.normal(900, 300, 40).round(2),
            "carrier": rng.permutation(["LH", "AF", "BA", "KL"] * 10),
            "night": rng.permutation([True, False] * 20),
            "stops": rng.permutation([0, 1, 2, 3] * 10),
            "delay": rng.normal(10, 5, 40).round(3),
        }
    )


def run_recipe(recipe: Path, *, out: Path) -> Any:
    return execute(load_recipe(str(recipe)), out=out)


def rows_of(frame: pd.DataFrame, splits: Splits) -> list[pd.DataFrame]:
    """The rows of each part, found by the label, which is different in every row."""
    place = {np.float32(value): row for row, value in enumerate(frame["delay"])}
    return [
        frame.iloc[[place[value] for value in everything(part)["label"][:, 0]]] for part in (splits.train, splits.test)
    ]


def test_inputs_are_those_of_scikit_learn(flights: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "flights.csv"
    flights.to_csv(path, index=False)
    splits = table(str(path), target="delay", categorical=["stops"])
    train, test = rows_of(flights, splits)
    assert len(train) == 32
    assert len(test) == 8
    assert not set(train.index) & set(test.index)
    scaler = StandardScaler().fit(train[["distance"]])
    for rows, part in ((train, splits.train), (test, splits.test)):
        expected = np.concatenate(
            [
                scaler.transform(rows[["distance"]]),
                OneHotEncoder(sparse_output=False).fit(flights[["carrier"]]).transform(rows[["carrier"]]),
                rows[["night"]],
                OneHotEncoder(sparse_output=False).fit(flights[["stops"]]).transform(rows[["stops"]]),
            ],
            axis=1,
        )
        np.testing.assert_allclose(everything(part)["input"], expected.astype(np.float64), rtol=1e-6, atol=1e-7)
    assert splits.description["inputs"] == [
        "distance", "carrier=AF", "carrier=BA", "carrier=KL", "carrier=LH", "night",
        "stops=0", "stops=1", "stops=2", "stops=3",
    ]  # fmt: skip
    assert splits.description["columns"] == {
        "distance": "number",
        "carrier": "category of 4 values",
        "night": "boolean",
        "stops": "category of 4 values",
        "delay": "number",
    }
    assert splits.description["task"] == "regression"
    assert str(splits.train.specs["label"]) == "float32[1]"
    codes = everything(table(flights, target="delay", encoding="codes", standardize=False).train)["input"]
    np.testing.assert_array_equal(codes[:, 0], train["distance"].astype(np.float32))
    np.testing.assert_array_equal(codes[:, 1], train["carrier"].map({"AF": 0, "BA": 1, "KL": 2, "LH": 3}))


def test_one_table_in_every_form_has_one_hash(flights: pd.DataFrame, tmp_path: Path) -> None:
    flights.to_csv(tmp_path / "t.csv", index=False)
    flights.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    flights.to_csv(tmp_path / "semicolon.csv", index=False, sep=";")
    flights.to_csv(tmp_path / "indexed.csv")
    flights.to_parquet(tmp_path / "t.parquet")
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf\n" + (tmp_path / "t.csv").read_bytes().replace(b"\n", b"\r\n"))
    (tmp_path / "bare.csv").write_bytes((tmp_path / "t.csv").read_bytes().partition(b"\n")[2])
    given: list[Any] = [*(str(path) for path in tmp_path.iterdir() if path.name != "bare.csv"), flights]
    given.append(pa.Table.from_pandas(flights, preserve_index=False))
    made = [table(one, target="delay") for one in given]
    made.append(table(str(tmp_path / "bare.csv"), target="delay", columns=list(flights.columns)))
    assert len(made) == 10
    assert len({(one.train.content_hash(), one.test.content_hash(), one.split_hash) for one in made}) == 1
    indexed = made[given.index(str(tmp_path / "indexed.csv"))]
    assert "the first column has no name and counts the rows: it is left out" in indexed.description["decisions"]
    flights.loc[:9, "distance"] += 0.01
    flights.to_csv(tmp_path / "t.csv", index=False)
    changed = table(str(tmp_path / "t.csv"), target="delay")
    assert changed.description["file_sha256"] != made[0].description["file_sha256"]
    assert changed.train.content_hash() != made[0].train.content_hash()


def test_classes_are_numbered_and_said() -> None:
    frame = load_iris(as_frame=True).frame
    frame["target"] += 1
    splits = table(frame, target="target")
    assert splits.description["classes"] == ["1", "2", "3"]
    assert "the labels '1', '2', '3' are mapped to the classes 0, 1, 2" in splits.description["decisions"]
    assert np.bincount(everything(splits.train)["label"]).tolist() == [40, 40, 40]
    assert np.bincount(everything(splits.test)["label"]).tolist() == [10, 10, 10]
    other = table(frame, target="target", split_seed=1)
    assert other.split_hash != splits.split_hash
    assert len(other.train) == 120
    words = frame.assign(target=np.array(["b", "c", "a"])[frame["target"] - 1])
    assert table(words, target="target").description["classes"] == ["a", "b", "c"]
    assert table(words, target="target", limit=6, test_limit=3).description["samples"] == {"train": 6, "test": 3}
    ten = pd.DataFrame({"x": np.arange(40.0), "y": [str(number % 20 // 2 + 2) for number in range(40)]})
    assert table(ten, target="y", categorical=["y"]).description["classes"] == [str(number) for number in range(2, 12)]


def test_a_given_test_table_is_the_split(flights: pd.DataFrame) -> None:
    train, test = flights.iloc[:25], flights.iloc[25:]
    splits = table(train, target="delay", test_path=test)
    np.testing.assert_array_equal(everything(splits.test)["label"][:, 0], test["delay"].astype(np.float32))
    own = (test["distance"] - train["distance"].mean()) / train["distance"].std(ddof=0)
    np.testing.assert_allclose(everything(splits.test)["input"][:, 0], own, rtol=1e-5)
    with pytest.raises(UsageError, match="the test table DataFrame has no column 'night'"):
        table(train, target="delay", test_path=test.drop(columns="night"))


def test_missing_values(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,x,1.5\nNA,y,2.5\n3,,3.5\n5,x,?\n7,y,9\n9,x,0\n")
    with pytest.raises(UsageError, match=r"t\.csv, row 2, column 'a': the value is missing \(3 are in all\)"):
        table(str(path), target="y")
    dropped = table(str(path), target="y", missing="drop")
    assert dropped.description["samples"] == {"train": 2, "test": 1}
    assert "3 of 6 rows with missing values are dropped" in dropped.description["decisions"]
    with pytest.raises(UsageError, match="row 4, column 'y': the value is missing"):
        table(str(path), target="y", missing="mean")
    path.write_text(path.read_text().replace("?", "4"))
    filled = table(str(path), target="y", missing="mean", standardize=False)
    assert filled.description["inputs"] == ["a", "b=x", "b=y", "b=(missing)"]
    together = np.concatenate([everything(part)["input"] for part in (filled.train, filled.test)])
    labels = np.concatenate([everything(part)["label"] for part in (filled.train, filled.test)])[:, 0]
    known = {1.5: 1, 3.5: 3, 4: 5, 9: 7, 0: 9}
    mean = np.mean([known[label] for label in everything(filled.train)["label"][:, 0].tolist() if label in known])
    assert together[labels == 2.5, 0] == pytest.approx(mean)
    assert together[labels == 3.5].tolist() == [[3, 0, 0, 1]]


BAD = {
    "a string among numbers": (b"a,y\n1,2\n3,x\n4,5\n", {}, r"t\.csv, row 2, column 'y': got 'x'; allowed: numbers"),
    "infinity": (b"a,y\n1,inf\n2,2.5\n3,1\n", {}, r"row 1, column 'y': got 'inf'"),
    "beyond float64": (b"a,y\n1,1e999\n2,2.5\n3,1\n", {}, r"row 1, column 'y': got '1e999'"),
    "a short line": (b"a,y\n1,2\n3\n4,5\n", {}, r"row 2: Expected 2 columns, got 1"),
    "an empty file": (b"", {}, r"t\.csv is empty; allowed: a header line"),
    "blank lines": (b"\n \n", {}, r"has only blank lines"),
    "a header only": (b"a,y\n", {}, r"t\.csv has no rows"),
    "one row": (b"a,y\n1,2.5\n", {}, r"'y' is 2\.5 in every row"),
    "one class": (b"a,y\n1,no\n2,no\n", {}, r"are all 'no'; allowed: at least two classes"),
    "a class of one": (b"a,y\n1,p\n2,n\n3,n\n", {}, r"class 'p' has only one sample"),
    "a string in the target": (
        b"a,y\n1,2\n3,x\n4,5\n",
        {},
        r"row 2, column 'y': got 'x'.*correct the cell, .*task='classification' if its values are classes$",
    ),
    "a class of one among numbers": (
        b"a,y\n1,2\n3,x\n4,5\n5,2\n6,5\n",
        {"task": "classification"},
        r"class 'x' has only one sample.*remedy: more samples of it, none of it, or test samples that are given apart",
    ),
    "a string in a feature": (b"a,y\n1,2\nx,3\n4,5\n", {}, r"row 2, column 'a': got 'x'.*or categorical=\['a'\]$"),
    "a column twice": (b"a,a,y\n1,2,3\n", {}, r"has the column 'a' twice"),
    "no header": (b"1,2,3\n4,5,6\n", {}, r"first line of .* holds the number '1'.*columns=\["),
    "a misspelt target": (b"a,lable\n1,2\n", {"target": "label"}, r"no column 'label'.*did you mean 'lable'\?"),
    "a misspelt feature": (b"age,y\n1,2\n", {"features": ["aeg"]}, r"no column 'aeg'.*did you mean 'age'\?"),
    "latin-1": (b"a,y\n1,2\n\xe9,3\n", {}, r"line 3: the byte 0xe9 at position 1 is not UTF-8.*iconv"),
    "latin-1 header": (b"\xe9,y\n1,2\n", {}, r"line 1: the byte 0xe9 at position 1 is not UTF-8"),
    "gzip": (gzip.compress(b"a,y\n1,2\n"), {}, r"is a gzip file; .*remedy: gunzip it"),
    "a decimal comma": (
        b"a;y\n1;0,5\n2;3\n",
        {},
        r"row 1, column 'y': got '0,5', a number with a comma; .*decimal=','",
    ),
    "thousands": (b'a,y\n5,1\n"1,234.5",2\n', {}, r"row 2, column 'a': got '1,234\.5', a number with a comma"),
    "a title": (b"# points\na,y\n1,2\n", {}, r"row 1: Expected 1 columns, got 2.*or delete the lines before the names"),
    "a separator at the end": (
        b"a,y,\n1,2,\n",
        {},
        r"a column without a name; .*remedy: name it in the first line, or",
    ),
    "utf-16": ("a,y\n1,2\n".encode("utf-16"), {}, r"is UTF-16; allowed: UTF-8"),
    "a leak": (b"a,b,y\n1,1.5,1.5\n2,2.5,2.5\n", {}, r"'b' equals the target 'y' in every row"),
    "only a target": (b"y\n1\n2\n", {}, r"has only the column 'y'"),
    "target as feature": (b"a,y\n1,2\n", {"features": ["y"]}, r"target 'y' is among the features"),
    "regression of strings": (b"a,y\n1,p\n2,n\n", {"task": "regression"}, r"got 'p' as the target of a regression"),
    "classes of fractions": (b"a,y\n1,1.5\n2,2\n", {"task": "classification"}, r"got 1\.5 as a class"),
    "an empty column": (b"a,b,y\n1,,2\n2,,3.5\n", {}, r"column 'b': all values are missing"),
    "an option": (b"a,y\n1,2\n", {"missing": "zero"}, r"missing 'zero'; allowed: 'error', 'drop', 'mean'"),
    "a share": (b"a,y\n1,2.5\n2,3.5\n", {"test_share": 2}, r"test_share 2; allowed"),
    "a separator": (b"a,y\n1,2\n", {"separator": "::"}, r"separator '::'; allowed: one character"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_tables_are_named(case: str, tmp_path: Path) -> None:
    content, arguments, message = BAD[case]
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=message):
        table(str(path), **{"target": "y", **arguments})


def test_classes_that_are_strings_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"a,y\n1,2\n3,x\n4,10\n5,2\n6,x\n7,10\n")
    assert table(str(path), target="y", task="classification").description["classes"] == ["10", "2", "x"]
    path.write_bytes(b"a,y\n1,2\n3,1\n4,10\n5,2\n6,1\n7,10\n")
    assert table(str(path), target="y", task="classification").description["columns"]["y"] == "integer"


def test_other_bad_input(tmp_path: Path, flights: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"absent\.csv is not there"):
        table(str(tmp_path / "absent.csv"), target="y")
    (tmp_path / "t.xlsx").write_bytes(b"PK")
    with pytest.raises(UsageError, match="save the table as CSV"):
        table(str(tmp_path / "t.xlsx"), target="y")
    flights.to_parquet(tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:-20])
    with pytest.raises(UsageError, match="allowed: a whole Parquet file"):
        table(str(tmp_path / "t.parquet"), target="delay")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,y\n1,2\n" * 5000)[:-20])
    with pytest.raises(UsageError, match=r"cut\.csv\.gz cannot be read .*remedy: copy or make it again"):
        table(str(tmp_path / "cut.csv.gz"), target="y")
    with pytest.raises(UsageError, match=r"got path=3; allowed: a path.*remedy: pandas\.DataFrame"):
        table(3, target="y")
    with pytest.raises(UsageError, match=r"row 2, column 'a': got 'x' among numbers"):
        table(pd.DataFrame({"a": pd.Series([1, "x", 3], dtype=object), "y": [1.5, 2, 3]}), target="y")
    with pytest.raises(UsageError, match=r"row 1, column 'a': got the string '1', which is a number"):
        table(pd.DataFrame({"a": ["1", "2", "3"], "y": [1.5, 2, 3]}), target="y")
    with pytest.raises(UsageError, match=r"'a' is of type timestamp"):
        table(pd.DataFrame({"a": pd.date_range("2020", periods=3), "y": [1.5, 2, 3]}), target="y")
    with pytest.raises(UsageError, match=r"row 3, column 'a': got inf"):
        table(pd.DataFrame({"a": [1, 2, np.inf], "y": [1.5, 2, 3]}), target="y")
    many = pd.DataFrame({"a": [f"name {number}" for number in range(1001)], "y": np.arange(1001.0)})
    with pytest.raises(UsageError, match=r"'a' has 1001 different strings"):
        table(many, target="y")
    with pytest.raises(UsageError, match=r"values up to 1e\+300; allowed: values that float32 holds"):
        table(pd.DataFrame({"a": [1, 1e300], "y": [1.5, 2]}), target="y", standardize=False)
    flights.to_csv(tmp_path / "t.csv")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 1000}))
    with pytest.raises(UsageError, match=r"bytes of memory, and 1000 are free; remedy: features="):
        table(str(tmp_path / "t.csv"), target="delay")


def test_cells_that_are_easily_misread(tmp_path: Path) -> None:
    rows = b"".join(b"%d,2020-01-%02d,%s\n" % (row, row + 1, b"no" if row % 2 else b"yes") for row in range(20))
    for name, content in (("lf", b"a,day,y\n" + rows), ("cr", (b"a,day,y\n" + rows).replace(b"\n", b"\r"))):
        (tmp_path / f"{name}.csv").write_bytes(content)
    (tmp_path / "test.csv").write_bytes(b"a,day,y\n1,2020-01-01,perhaps\n")
    made = [table(str(tmp_path / f"{name}.csv"), target="y") for name in ("lf", "cr")]
    assert made[0].train.content_hash() == made[1].train.content_hash()
    assert (
        "the column 'day' has another string in each row, such as '2020-01-01'" in made[0].description["decisions"][0]
    )
    given = table(str(tmp_path / "lf.csv"), target="y", test_path=str(tmp_path / "test.csv"))
    assert "no training row has the class 'perhaps'" in given.description["decisions"]


def test_constant_and_repeated_columns_are_said() -> None:
    frame = load_wine(as_frame=True).frame
    frame["unit"], frame["again"] = "l", frame["alcohol"]
    decisions = table(frame, target="target").description["decisions"]
    assert "the column 'unit' is constant and carries no information" in decisions
    assert "the column 'again' repeats 'alcohol'" in decisions


def test_class_numbers() -> None:
    assert class_numbers(["b", "a", "b"], "labels")[0].tolist() == [1, 0, 1]
    assert mapping_sentence(["0", "1"]) is None
    assert mapping_sentence([str(number) for number in range(1, 9)]) == (
        "the labels '1', '2', '3', '4', '5', … are mapped to the classes 0, 1, 2, 3, 4, …"
    )


def test_a_recipe_trains_on_a_table(tmp_path: Path) -> None:
    load_iris(as_frame=True).frame.to_csv(tmp_path / "iris.csv", index=False)
    recipe = tmp_path / "iris.py"
    recipe.write_text(
        'FIXED = {"model": "mlp", "model_kwargs": {"features": 4, "hidden": 16, "classes": 3}, "dataset": "table",\n'
        f'         "dataset_kwargs": {{"path": {str(tmp_path / "iris.csv")!r}, "target": "target"}}, "epochs": 20}}\n'
        'MUTABLE = {"batch_size": 16, "framework": "reference", "optimizer": "adam",\n'
        '           "optimizer_kwargs": {"lr": 0.01}}\n'
        'METRICS = [("test_accuracy", ">= 90")]\n'
    )
    result = run_recipe(recipe, out=tmp_path / "out")
    assert result.accepted
    assert (result.folder / "dataset.json").read_text().count("mapped") == 0


def test_a_recipe_trains_a_regression(tmp_path: Path, flights: pd.DataFrame) -> None:
    flights["delay"] = flights["stops"] * 2.0 + flights["night"] + flights["distance"] / 1000
    flights.to_csv(tmp_path / "flights.csv", index=False)
    recipe = tmp_path / "delays.py"
    recipe.write_text(
        'FIXED = {"model": "mlp", "model_kwargs": {"features": 7, "hidden": 16, "classes": 1,\n'
        '         "loss": "mse"},\n'
        f'         "dataset": "table",\n'
        f'         "dataset_kwargs": {{"path": {str(tmp_path / "flights.csv")!r}, "target": "delay"}},\n'
        '         "epochs": 60}\n'
        'MUTABLE = {"batch_size": 8, "framework": "reference", "optimizer": "adam", "optimizer_kwargs": {"lr": 0.02}}\n'
        'METRICS = [("training_loss", "< 0.2")]\n'
    )
    assert run_recipe(recipe, out=tmp_path / "out").accepted
