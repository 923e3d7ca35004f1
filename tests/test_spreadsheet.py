"""Encoding, separator and decimal sign of a CSV file are found, or the reader says what is in doubt."""

import pytest

from discretion import spreadsheet


def test_a_quoted_cell_may_hold_separators() -> None:
    sheet = spreadsheet.parse('label;"a;b";c,d\r\n1;"2\r\n";3\r\n;;\r\n4;5;6\r\n', ["label"])
    assert sheet.header == ("label", "a;b", "c,d") and sheet.separator == ";"
    assert sheet.rows == ((3, ("1", "2", "3")), (5, ("4", "5", "6")))  # a row of empty cells is none


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,x;label\n1,2;3\n", "separated by commas and semicolons"),
        ('label,x\n"1,2\n', "not CSV"),
    ],
)
def test_what_is_in_doubt_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spreadsheet.parse(text, ["label"])


def test_encodings() -> None:
    assert spreadsheet.decode("Genève".encode("cp1252"), "cp1252") == "Genève"
    with pytest.raises(ValueError, match="unknown encoding 'cp9999'"):
        spreadsheet.decode(b"a", "cp9999")
    with pytest.raises(ValueError, match="not a text in ascii"):
        spreadsheet.decode("è".encode(), "ascii")


@pytest.mark.parametrize(
    ("cells", "sign"),
    [
        (["1,5", "2"], ","),
        (["1.5", "1.234"], "."),
        (["1,234", "-,5"], ","),
        (["1,2345e-3"], ","),
        (["0.123", "x", "1.234.567"], "."),
        (["1", "2e5"], "."),
    ],
)
def test_the_sign_is_that_of_a_cell_that_can_be_nothing_else(cells: list[str], sign: str) -> None:
    rows = tuple((line, (cell, "0.5,")) for line, cell in enumerate(cells, 2))
    assert spreadsheet.Sheet(("x", "y"), rows, ";").decimal_sign(["x"], "say") == sign
    assert spreadsheet.Sheet(("x", "y"), rows, ",").decimal_sign(["x"], "say") == "."


@pytest.mark.parametrize("cells", [["1.234"], ["12,345", "1"], ["1,5", "2.5"]])
def test_a_thousand_or_a_fraction_is_not_guessed(cells: list[str]) -> None:
    sheet = spreadsheet.parse("label\tx\n" + "".join(f"a\t{cell}\nb\n" for cell in cells), ["label"])
    with pytest.raises(ValueError, match=f"line 2, column x: '{cells[0]}'.*say"):
        sheet.decimal_sign(["x"], "say")


@pytest.mark.parametrize(
    ("cell", "sign"), [("1.5", ","), ("1,5", "."), ("1,2,3", ","), ("1_0", "."), ("1e999", ".")]
)
def test_no_number(cell: str, sign: str) -> None:
    with pytest.raises(ValueError):
        spreadsheet.number(cell, sign)


def test_numbers() -> None:
    assert spreadsheet.number("-1,5e2", ",") == -150 and spreadsheet.number("inf") == float("inf")
    assert spreadsheet.hint("1 234,5", ",", "say") == "; write thousands without a separator"
    assert spreadsheet.hint("1,5", ".", "say so") == "; a decimal comma? Then say so"
    assert spreadsheet.hint("old", ".", "say") == "" == spreadsheet.hint("1e39", ".", "say")
