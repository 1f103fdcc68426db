"""Leaves: which rows fit, what their dtype becomes, how keys become names, and what a file may say of one."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from recorder.errors import FormatError, RowError
from recorder.leaf import (
    NUMBERS,
    TEXT,
    Leaf,
    cast_exactly,
    decode_key,
    encode_key,
    encode_keys,
    join,
    leaf_from_json,
    leaf_to_json,
    text_array,
)

PICTURE = Leaf("observation/camera", (4, 4, 3), "uint8", "image")
INTEGER = Leaf("observation/count", (), "int64")
VECTOR = Leaf("observation/vector", (2,), "float32")
POINTS = Leaf("observation/points", (2,), "float32", ragged=True)
WORD = Leaf("observation/word", (), TEXT, metadata={"max_length": 5})
WORDS = Leaf("observation/words", (), TEXT, ragged=True)

BIG = 2**53 + 1
"""The first integer that is no float64."""

# What the first row decides.

DECIDED = {
    "array of the declared dtype": (VECTOR, np.zeros(2, np.float32), "float32"),
    "array of another dtype": (VECTOR, np.zeros(2), "float64"),
    "integer array in a float leaf": (VECTOR, np.zeros(2, np.int16), "int16"),
    "NumPy scalar": (INTEGER, np.int32(3), "int32"),
    "Python integer": (INTEGER, 3, "int64"),
    "Python float that is an integer": (INTEGER, 3.0, "int64"),
    "Python float that is none": (INTEGER, 3.5, "float64"),
    "Python bool": (INTEGER, True, "int64"),
    "Python integer in a float leaf": (Leaf("a", (), "float32"), 3, "float32"),
    "Python integer that no float has": (Leaf("a"), BIG, "int64"),
    "Python integer of 64 bits without a sign": (INTEGER, 2**63, "uint64"),
    "list that fits": (VECTOR, [0.5, 2], "float32"),
    "list that does not": (VECTOR, [0.1, 2], "float64"),
    "infinity and NaN in a list": (VECTOR, [float("inf"), float("nan")], "float32"),
    "other byte order": (VECTOR, np.zeros(2, ">f4"), "float32"),
    "no row at all": (POINTS, np.empty((0, 2)), "float32"),
    "ragged row": (POINTS, np.zeros((3, 2)), "float64"),
    "text": (WORD, "left", TEXT),
}


@pytest.mark.parametrize("name", DECIDED)
def test_the_first_row_decides_the_dtype(name: str) -> None:
    leaf, value, dtype = DECIDED[name]
    decided = leaf.of(value)
    assert decided.dtype == dtype
    fitted = decided.fit(value)
    if dtype != TEXT:
        assert fitted.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(fitted, np.asarray(value))


# What later rows may be.

KEPT = {
    "float32 in float64": (Leaf("a"), np.float32(0.1)),
    "float64 that float32 has": (VECTOR, np.array([0.5, -np.inf])),
    "NaN": (VECTOR, np.array([np.nan, 0])),
    "integers in floats": (VECTOR, np.array([2**24, -(2**24)])),
    "large powers of two in floats": (Leaf("a", (2,)), np.array([2**62, -(2**63)])),
    "the largest float below an integer's limit": (INTEGER, np.float64(2**63 - 1024)),
    "floats in integers": (INTEGER, 4.0),
    "unsigned in signed": (INTEGER, np.uint64(2**63 - 1)),
    "signed in unsigned": (Leaf("a", (2,), "uint8"), np.array([0, 255])),
    "numbers in bools": (Leaf("a", (2,), "bool"), np.array([0, 1])),
    "bools in numbers": (VECTOR, np.array([True, False])),
    "bools in complex": (Leaf("a", (2,), "complex64"), np.array([True, False])),
    "reals in complex": (Leaf("a", (2,), "complex128"), np.array([0.1, np.inf])),
    "large integers in complex": (Leaf("a", (), "complex128"), 2**60),
    "complex in wider complex": (Leaf("a", (), "complex128"), np.complex64(1 + 2j)),
    "a list of lists": (Leaf("a", (2, 2), "int64"), [[1, 2], [3, 4]]),
    "a memoryview": (Leaf("a", (3,), "uint8"), memoryview(b"abc")),
    "float16 in a wide integer": (Leaf("a", (2,), "int32"), np.array([65504, -0.0], np.float16)),
    "no elements": (Leaf("a", (0, 3), "int64"), np.empty((0, 3))),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_row_whose_cast_is_exact_is_kept(name: str) -> None:
    leaf, value = KEPT[name]
    fitted = leaf.fit(value)
    assert fitted.dtype == leaf.numpy_dtype
    np.testing.assert_array_equal(fitted, np.asarray(value))


REFUSED = {
    "a fraction in an integer": (INTEGER, 3.7, "int64, got float64"),
    "NaN in an integer": (INTEGER, float("nan"), "int64, got float64"),
    "infinity in an integer": (INTEGER, float("inf"), "int64, got float64"),
    "the first float beyond an integer": (INTEGER, 2.0**63, "int64, got float64"),
    "the first float below an integer": (INTEGER, -(2.0**63) - 2048, "int64, got float64"),
    "an integer that no float64 has": (Leaf("a"), np.int64(BIG), "float64, got int64"),
    "an integer that no float32 has": (VECTOR, np.array([2**24 + 1, 0]), "float32, got int64"),
    "an integer beyond float16": (Leaf("a", (), "float16"), 70_000, "float16, got int64"),
    "an integer that no complex64 has": (Leaf("a", (), "complex64"), 2**24 + 1, "complex64, got int64"),
    "a float that float32 has not": (VECTOR, np.array([0.1, 0]), "float32, got float64"),
    "a float beyond float32": (VECTOR, np.array([1e300, 0]), "float32, got float64"),
    "a float below float32": (VECTOR, np.array([1e-300, 0]), "float32, got float64"),
    "a float picture": (PICTURE, np.full((4, 4, 3), 0.5, np.float32), "uint8, got float32"),
    "300 in uint8": (Leaf("a", (), "uint8"), 300, "uint8, got int64"),
    "-1 in uint64": (Leaf("a", (), "uint64"), -1, "uint64, got int64"),
    "2 in a bool": (Leaf("a", (), "bool"), 2, "bool, got int64"),
    "complex in a float": (Leaf("a"), 1 + 0j, "float64, got complex128"),
    "complex128 that complex64 has not": (Leaf("a", (), "complex64"), 0.1 + 0j, "complex64, got complex128"),
    "half of a complex number": (Leaf("a", (), "complex64"), complex(2**24 + 1, np.nan), "complex64, got complex128"),
    "another size": (PICTURE, np.zeros((6, 6, 3), np.uint8), r"shape \(4, 4, 3\), got \(6, 6, 3\)"),
    "one number for seven": (Leaf("a", (7,)), np.zeros(1), r"shape \(7,\), got \(1,\)"),
    "a number for an array": (VECTOR, 0.5, r"shape \(2,\), got \(\)"),
    "an array for a number": (INTEGER, [3], r"shape \(\), got \(1,\)"),
    "one axis more": (VECTOR, np.zeros((1, 2), np.float32), r"shape \(2,\), got \(1, 2\)"),
    "a ragged row of other elements": (POINTS, np.zeros((3, 3), np.float32), r"shape \(n, 2\), got \(3, 3\)"),
    "a number for a ragged row": (Leaf("a", ragged=True), 3.0, r"shape \(n, \), got \(\)"),
    "None": (VECTOR, None, "array of float32 .* got NoneType None"),
    "text": (INTEGER, "7", "array of int64 .* got str '7'"),
    "bytes": (Leaf("a", (3,), "uint8"), b"abc", "array of uint8 .* got bytes"),
    "a dict": (VECTOR, {"x": 1}, "got dict"),
    "objects": (VECTOR, [object(), object()], "got list"),
    "a date": (INTEGER, np.datetime64("2020-01-01"), "got datetime64"),
    "an integer of 70 bits": (INTEGER, 2**70, "got int 1180591620717411303424"),
    "a list of no one shape": (VECTOR, [[1], [2, 3]], "array of float32"),
    "a record": (VECTOR, np.zeros(2, [("x", "f4")]), "got ndarray"),
    "a number in a text": (WORD, 3, "is text, got int 3"),
    "None in a text": (WORD, None, "is text, got NoneType"),
    "a text that is too long": (WORD, "leftmost", "at most 5 characters, got 8: 'leftmost'"),
    "a number among texts": (WORDS, ["a", 3], "is text, got int 3"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_row_that_does_not_fit_is_refused_with_leaf_expected_and_got(name: str) -> None:
    leaf, value, told = REFUSED[name]
    with pytest.raises(RowError, match=told) as refused:
        leaf.fit(value)
    assert repr(leaf.path) in str(refused.value)


@pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="long double is float64 here")
@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_a_dtype_that_no_file_can_name_is_refused_by_the_first_row(dtype: Any) -> None:
    with pytest.raises(RowError, match=r"'observation/vector'.*got (float|complex)"):
        VECTOR.of(np.zeros(2, dtype))


def test_texts_are_kept_as_plain_strings() -> None:
    assert type(WORD.fit(np.str_("left"))) is str
    assert WORDS.fit(["a", np.str_("b")]).tolist() == ["a", "b"]
    assert WORD.fit("\U0001f916" * 5) == "\U0001f916" * 5


def test_fitting_an_array_of_the_right_dtype_copies_nothing() -> None:
    value = np.zeros((4, 4, 3), np.uint8)
    assert PICTURE.fit(value) is value


numbers = st.sampled_from(sorted(NUMBERS))


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(numbers)
    return draw(numpy_st.arrays(dtype, numpy_st.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3)))


@given(arrays(), numbers)
def test_a_cast_gives_every_value_or_nothing(array: Any, dtype: str) -> None:
    cast = cast_exactly(array, np.dtype(dtype))
    assume(array.size)
    exact = all(_holds(value, dtype) for value in array.reshape(-1).tolist())
    assert (cast is not None) == exact
    if cast is not None:
        assert cast.dtype == dtype
        for found, value in zip(cast.reshape(-1).tolist(), array.reshape(-1).tolist(), strict=True):
            assert found == value or (found != found and value != value)


def _holds(value: Any, dtype: str) -> bool:
    """Tell whether a dtype has a number, by Python's own arithmetic."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return value in (0, 1) and not isinstance(value, complex)
    if kind in "iu":
        limits = np.iinfo(dtype)
        whole = not isinstance(value, complex) and value == value and abs(value) != float("inf") and int(value) == value
        return whole and limits.min <= int(value) <= limits.max
    if isinstance(value, complex) and kind != "c":
        return False
    with np.errstate(all="ignore"):
        try:
            found = np.dtype(dtype).type(value)
        except OverflowError:
            return False
    if isinstance(value, complex):
        return all(_equal(*pair) for pair in ((found.real.item(), value.real), (found.imag.item(), value.imag)))
    return _equal(found.real.item(), value)


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other or (one != one and other != other))


# Keys and names.

keys = st.text(st.characters(), max_size=12) | st.sampled_from(
    ["", ".", "..", "a/b", "a%2Fb", "%-", "x~", "é", "e\u0301"]
)
long_keys = st.builds(
    lambda key, times: key * times, st.text(st.characters(), min_size=1, max_size=4), st.integers(1, 120)
)


@given(keys)
def test_a_short_key_comes_back_from_its_name(key: str) -> None:
    assert decode_key(encode_key(key)) == key


@given(keys | long_keys)
def test_a_name_is_safe_as_a_file_and_as_a_part_of_a_path(key: str) -> None:
    name = encode_key(key)
    assert 0 < len(name.encode()) <= 200
    assert name not in (".", "..")
    assert not set(name) & set("/\\\0\x7f")
    assert name.isprintable() or not any(ord(character) < 32 for character in name)
    decode_key(name)


@given(keys | long_keys, keys | long_keys)
def test_different_keys_have_different_names(one: str, other: str) -> None:
    assert (encode_key(one) == encode_key(other)) == (one == other)


@given(st.lists(keys | long_keys | st.text("aAbBßSsKk\u212a\u0130iıéÉ\u0301e", max_size=3), unique=True, max_size=8))
def test_siblings_differ_even_where_case_and_accents_are_ignored(siblings: list[str]) -> None:
    names = encode_keys(siblings)
    assert len({_caseless(name) for name in names}) == len(names)
    assert all(len(name.encode()) <= 200 for name in names)
    for key, name in zip(siblings, names, strict=True):
        assert name == encode_key(key) or "~" in name


def _caseless(name: str) -> str:
    """Return a name for a canonical caseless match, as Unicode defines it in D145."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def test_a_key_that_is_the_name_of_another_differs_from_it() -> None:
    hashed = encode_keys(["a", "A"])[1]
    assert len(set(encode_keys(["a", "A", hashed]))) == 3
    assert len(set(encode_keys(["a", hashed, "A"]))) == 3
    cut = encode_key("x" * 300)
    assert len(set(encode_keys([cut, "x" * 300]))) == 2


def test_names_are_told_apart_as_files(tmp_path: Path) -> None:
    siblings = [
        "a/b",
        "a.b",
        "a b",
        "é",
        "*",
        "",
        ".",
        "..",
        "a%2Fb",
        "con",
        "\\",
        "\n",
        "x" * 300,
        "\ud800",
        "~",
    ]
    for name in encode_keys(siblings):
        (tmp_path / f"{name}.zarr").mkdir()
    assert len(os.listdir(tmp_path)) == len(siblings)  # noqa: PTH208  # what the system itself says


@pytest.mark.parametrize("name", ["%", "%2", "%2f", "%FF", "%ED%A0", "%ED%20", "%C3%A9", "100%", "%%2F"])
def test_a_name_that_was_never_encoded_is_decoded_without_an_error(name: str) -> None:
    assert decode_key(name) == name.replace("%2F", "/").replace("%20", " ")


def test_a_cut_name_is_decoded_to_the_cut_key() -> None:
    assert decode_key(encode_key("\ud800" * 100)).startswith("\ud800" * 20)
    assert decode_key(encode_key("x" * 300)) == encode_key("x" * 300)


def test_parts_that_are_empty_join_to_nothing() -> None:
    assert join("observation", "", "camera") == "observation/camera"
    assert join("", "row") == "row"


# Leaves in files.

leaves = st.builds(
    Leaf,
    st.lists(keys, min_size=1, max_size=3).map(lambda parts: "/".join(map(encode_key, parts))),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    numbers | st.sampled_from([TEXT, "json"]),
    st.sampled_from(["other", "image", "my kind"]),
    st.sampled_from(["moment", "transition"]),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3) | st.none(), max_size=2),
)


@given(leaves)
def test_a_leaf_comes_back_from_json(leaf: Leaf) -> None:
    assert leaf_from_json(leaf_to_json(leaf)) == leaf


LEAF = {"path": "a/b", "shape": [2], "dtype": "float32", "kind": "other", "per": "moment"}


@pytest.mark.parametrize(
    "change",
    [
        *({"path": path} for path in ("", "..", "a/../b", "/a", "a/", "a//b", ".", "a\\b", "a\0", "\ud800", 3, None)),
        *({"shape": shape} for shape in ([-1], [2**40], ["2"], [2.0], 3, None, "22")),
        *({"dtype": dtype} for dtype in ("object", "U5", "float128", "datetime64[s]", "V8", ["float32"], None, 4)),
        *({"per": per} for per in ("step", None, 1)),
        *({name: 1} for name in ("ragged", "sparse", "metadata", "kind", "unknown")),
    ],
    ids=str,
)
def test_a_leaf_that_was_never_written_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        leaf_from_json({**LEAF, **change})


@pytest.mark.parametrize("data", [None, [], "leaf", {}, {"path": "a"}, 3])
def test_what_is_no_leaf_is_refused(data: Any) -> None:
    with pytest.raises(FormatError):
        leaf_from_json(data)


def test_texts_and_arrays_lie_one_by_one_in_an_array_of_objects() -> None:
    for items in (
        [],
        ["a", "b"],
        [[1, 2], [3, 4]],
        [np.zeros(2), np.zeros(2)],
        [np.zeros(1), np.zeros(2)],
        [{}, None],
    ):
        array = text_array(items)
        assert array.shape == (len(items),)
        assert all(found is item for found, item in zip(array, items, strict=True))
