"""Tables as users have them: what would be misread is refused by name, and what is harmless is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nbl.envs import Classification, tables
from nbl.types import NblError


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No data of the machine's, and no network."""
    monkeypatch.delenv(tables.FOLDER, raising=False)
    monkeypatch.setattr(tables, "from_hub", lambda options: pytest.fail("the network was asked"))
    monkeypatch.chdir(tmp_path)


def test_letters_that_look_like_numbers_stay_letters(tmp_path):
    """Codes of illnesses are '250', 'V27'; a class may be called anything, '?' too."""
    (tmp_path / "a.csv").write_text("code,label\n250,1\nV27,2\n251,?\n252,1\n250,2\n250,?\n")
    env = Classification(path="a.csv", scale="none")
    assert env.table.tolist() == [[0], [3], [1], [2], [0], [0]] and env.classes == ["1", "2", "?"]


@pytest.mark.parametrize("text", ["", "label\n", "a,label\n1,2,3\n"])
def test_files_that_are_no_tables(text, tmp_path):
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(NblError, match=r"a\.csv"):
        Classification(path=tmp_path / "a.csv")


def test_dates_are_refused_by_name(tmp_path):
    (tmp_path / "a.csv").write_text("day,label\n2020-01-01,0\n2020-01-02,1\n")
    with pytest.raises(NblError, match="day"):
        Classification(path=tmp_path / "a.csv")


def test_missing_numbers_are_an_error_dropped_or_zero(tmp_path):
    """An unknown letter is a value of its own."""
    (tmp_path / "a.csv").write_text("x;y;label\n1;a;0\n;b;1\n3;;0\n4;a;1\n")
    with pytest.raises(NblError, match=r"x \(1\)"):
        Classification(path="a.csv")
    assert Classification(path="a.csv", missing="drop").table.tolist() == [[1, 1], [3, 0], [4, 1]]
    assert Classification(path="a.csv", missing="zero").table.tolist() == [[1, 1], [0, 2], [3, 0], [4, 1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,label\n1,x\n2,\n3,y\n4,x\n", "1 rows have no class"),
        ("a,a,label\n1,2,x\n2,3,y\n", "a.csv: two columns have the same name: 'a'"),
        ("a,label\n1e300,x\n2,y\n", r"'a' has numbers up to 1e\+300"),
        ("a,label\n1,x\n2.5,x\n?,y\n", r"numbers, and among them '\?'.*drop=\[a\]"),
        ("a;label\n" + "".join(f"{i},5;{i % 2}\n" for i in range(12)), "'a' has numbers with signs"),
        ('a,label\n1,x\n"2,000",y\n', "'a' has numbers with signs"),
        ("a,label\n1,2020-01-01\n2,2020-01-02\n", "'label' is of type date"),
        ("a,label\n5%,x\n$ 7,y\n", "'a' has numbers with signs"),
        ("5.1,3.5,0\n4.9,3.0,1\n", "the first line has to hold names"),
        ("a,b,label\n,1,x\n,2,y\n", "leaves no row; 'a'"),
    ],
)
def test_what_would_be_misread_is_refused(text, words, tmp_path):
    """An empty class is no class, a column is not lost to its namesake, and numbers are not taken for letters."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(NblError, match=words):
        Classification(path=tmp_path / "a.csv", missing="drop")


def test_what_is_left_out_may_be_anything(tmp_path):
    (tmp_path / "a.csv").write_text("day,a,label\n2020-01-01,1,0\n2020-01-02,2,1\n")
    assert Classification(path=tmp_path / "a.csv", drop=["day"]).table.tolist() == [[1], [2]]
    assert Classification(path=tmp_path / "a.csv", drop="day").features == 1


def test_row_numbers_of_pandas_and_spaces_in_the_header_are_no_features(tmp_path):
    (tmp_path / "a.csv").write_text(",a, label\n0,7,x\n1,8,y\n2,9,x\n")
    env = Classification(path=tmp_path / "a.csv")
    assert env.table.tolist() == [[7], [8], [9]] and env.classes == ["x", "y"]


@pytest.mark.parametrize("scale", ["minmax", "standard"])
def test_online_scaling_keeps_small_differences_of_large_numbers(scale):
    """Seconds since 1970 are 128 apart in float32."""
    when = 1_700_000_000 + np.arange(8)
    found = [
        torch.cat([env.row(t) for t in range(1, 9)])
        for shift in (0, 1_700_000_000)
        for env in [Classification(data={"t": when - shift, "label": np.arange(8) % 2}, scale=scale, fit="online")]
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("coding", ["utf-16", "latin-1"])
def test_other_encodings_are_named(coding, tmp_path):
    (tmp_path / "a.csv").write_bytes("größe,label\n1,ä\n2,ö\n".encode(coding))
    with pytest.raises(NblError, match=r"a\.csv: .*Save it as UTF-8"):
        Classification(path=tmp_path / "a.csv")


def test_spaces_around_values_bars_and_commas_at_the_end(tmp_path):
    (tmp_path / "a.csv").write_text("1|2|\nred| yes|\nblue |yes|\nred |no|\nblue|no|\n")
    env = Classification(path=tmp_path / "a.csv", target=2, scale="none")
    assert env.classes == ["no", "yes"] and env.table.tolist() == [[1], [0], [1], [0]]
    with pytest.raises(NblError, match="no column beside"):
        Classification(path=tmp_path / "a.csv", target=2, drop=1)
