"""Spaces as JSON: exact both ways, strict, and safe to read from strangers."""

import copy
import json
import pickle
import random
import tracemalloc

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium import Space, spaces
from hypothesis import given
from minigrid.core.mission import MissionSpace
from spaces import DRAWABLE, SPACES, annotated, facts, nested_spaces

from recorder.errors import FormatError, MetadataError, SpaceError
from recorder.spaces.space_data import MOST_ELEMENTS
from recorder.spaces.space_json import differences, plain_space, space_from_json, space_to_json


def strict(data):
    """Return `data` after a way through two strict writers and readers of JSON, which have to agree."""
    text = json.dumps(data, allow_nan=False)
    assert msgspec.json.decode(msgspec.json.encode(data)) == json.loads(text)
    return json.loads(text)


class Draws(Space):
    """A space of an unknown class with whatever samples; it draws from every generator there is."""

    def __init__(self, sample, seed=None):
        self.drawn = sample
        super().__init__(None, None, seed)

    def sample(self, mask=None, probability=None):
        self.np_random.random(), np.random.random(), random.random()
        return self.drawn

    def contains(self, x):
        return True


class Angle(spaces.Box):
    """A Box by another name."""


@pytest.mark.parametrize("space", SPACES)
class TestEverySpace:
    def test_comes_back_equal_down_to_bits_order_and_metadata(self, space):
        back = space_from_json(strict(space_to_json(space)))
        assert back == space
        assert facts(back) == facts(space)

    def test_is_its_own_plain_space(self, space):
        assert facts(plain_space(space)) == facts(space)

    def test_is_read_but_not_touched(self, space):
        seeded = copy.deepcopy(space)
        seeded.seed(3)
        before = pickle.dumps([space, seeded])
        space_to_json(space)
        space_to_json(seeded)
        assert pickle.dumps([space, seeded]) == before

    def test_does_not_differ_from_itself(self, space):
        assert differences(space_to_json(space), space_to_json(space)) == []

    def test_is_small_as_json(self, space):
        assert len(json.dumps(space_to_json(space))) < 2000


@pytest.mark.parametrize("space", DRAWABLE)
def test_a_copy_draws_the_same_samples(space):
    space = copy.deepcopy(space)
    back = space_from_json(space_to_json(space))
    space.seed(1)
    back.seed(1)
    sample = space.sample()
    assert facts(back.sample()) == facts(sample)
    assert back.contains(sample)


@given(nested_spaces)
def test_any_nested_space_comes_back_equal(space):
    data = space_to_json(space)
    back = space_from_json(strict(data))
    assert back == space
    assert facts(back) == facts(space)
    assert space_to_json(back) == data


@given(nested_spaces, nested_spaces)
def test_two_spaces_are_without_differences_only_if_equal(one, two):
    ours, theirs = space_to_json(one), space_to_json(two)
    assert bool(differences(ours, theirs)) == (ours != theirs)


def test_integers_beyond_the_doubles_are_strings():
    data = space_to_json(spaces.Box(-(2**63), 2**53 + 1, (1,), np.int64))
    assert (data["low"], data["high"]) == ("-9223372036854775808", "9007199254740993")


def test_a_dtype_of_discrete_comes_back():
    try:
        space = spaces.Discrete(3, start=1, dtype=np.uint8)
    except TypeError:
        pytest.skip("this Gymnasium has only int64")
    assert facts(space_from_json(space_to_json(space))) == facts(space)


def test_keys_that_were_not_sorted_are_batched_in_their_order():
    space = spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Discrete(2))])
    if hasattr(space, "sort_keys"):
        space = spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Discrete(2)}, sort_keys=False)
    back = space_from_json(space_to_json(space))
    batched = gym.vector.utils.batch_space(back, 2)
    assert list(batched.keys()) == list(gym.vector.utils.batch_space(space, 2).keys())


def test_bounds_that_differ_by_less_than_numpy_calls_close_are_kept_apart():
    space = spaces.Box(0, np.nextafter(np.float32(1), np.float32(2)), (2,))
    assert space_from_json(space_to_json(space)).high.tobytes() == space.high.tobytes()


def test_a_negative_zero_among_zeros_keeps_its_sign():
    space = spaces.Box(np.array([0.0, -0.0], np.float32), np.ones(2, np.float32))
    assert np.signbit(space_from_json(space_to_json(space)).low).tolist() == [False, True]


def test_metadata_is_copied_in_both_directions():
    given_metadata = {"rig": {"cameras": ["left"]}}
    space = annotated(spaces.Discrete(2), **given_metadata)
    data = space_to_json(space)
    back = space_from_json(data)
    data["metadata"]["rig"]["cameras"].append("right")
    assert back.metadata == given_metadata == space.metadata


def test_empty_metadata_is_not_the_same_as_none():
    assert space_from_json(space_to_json(annotated(spaces.Discrete(2)))).metadata == {}
    assert "metadata" not in vars(space_from_json(space_to_json(spaces.Discrete(2))))


def test_metadata_that_is_not_json_is_refused_by_path():
    space = spaces.Dict(a=spaces.Tuple([annotated(spaces.Discrete(2), scale=np.ones(2))]))
    with pytest.raises(MetadataError, match=r"'observation/a/0'"):
        space_to_json(space, "observation")


def test_a_subclass_is_kept_as_its_parent_with_its_name():
    data = space_to_json(Angle(-1, 1, (2,)))
    assert data["type"] == "Box"
    assert data["name"] == f"{__name__}:Angle"
    assert type(space_from_json(data)) is spaces.Box


class TestAnUnknownSpace:
    def test_of_texts_is_kept_as_a_text_with_its_name(self):
        space = annotated(MissionSpace(lambda color: f"get the {color} ball", [["red", "blue"]]), language="en")
        data = space_to_json(space)
        back = space_from_json(strict(data))
        assert data["type"] == "Other"
        assert data["name"] == "minigrid.core.mission:MissionSpace"
        assert type(back) is spaces.Text
        assert back.metadata == {"language": "en"}
        assert back.contains(space.sample())
        assert back.contains("")

    @pytest.mark.parametrize(
        ("sample", "plain"),
        [
            (np.zeros((2, 3), np.uint8), spaces.Box(0, 255, (2, 3), np.uint8)),
            (np.zeros((2,), np.float32), spaces.Box(-np.inf, np.inf, (2,))),
            (np.zeros((2,), np.bool_), spaces.Box(0, 1, (2,), np.bool_)),
            (np.int16(3), spaces.Box(-np.inf, np.inf, (), np.int16)),
            (3, spaces.Box(-np.inf, np.inf, (), np.int64)),
            (True, spaces.Box(0, 1, (), np.bool_)),
            (0.5, spaces.Box(-np.inf, np.inf, (), np.float64)),
            ((1, 0.5), spaces.Tuple([spaces.Box(-np.inf, np.inf, (), d) for d in (np.int64, np.float64)])),
            ({"z": 1, "a": {}}, spaces.Dict(z=spaces.Box(-np.inf, np.inf, (), np.int64), a=spaces.Dict())),
        ],
    )
    def test_is_kept_as_what_its_samples_are(self, sample, plain):
        assert facts(plain_space(Draws(sample))) == facts(plain)

    def test_with_other_alphabets_contains_its_sample(self):
        assert plain_space(Draws("拿起杯子\n")).contains("拿起杯子\n")

    def test_inside_others_is_replaced_there(self):
        space = spaces.Dict(a=spaces.Tuple([Draws(1)]), b=spaces.Sequence(Draws("x")), c=spaces.OneOf([Draws(0.5)]))
        plain = plain_space(space)
        assert isinstance(plain["a"][0], spaces.Box)
        assert isinstance(plain["b"].feature_space, spaces.Text)
        assert isinstance(plain["c"][0], spaces.Box)
        assert isinstance(space["a"][0], Draws)

    def test_leaves_every_generator_as_it_was(self):
        space = Draws(1, seed=5)
        states = [space.np_random.bit_generator.state, random.getstate(), repr(np.random.get_state())]
        space_to_json(space)
        assert states == [space.np_random.bit_generator.state, random.getstate(), repr(np.random.get_state())]

    def test_gives_the_same_json_whatever_state_it_is_in(self):
        space = MissionSpace(lambda word: f"go to {word}", [["Ж", "中", "a"]])
        data = space_to_json(space)
        for _ in range(10):
            space.sample()
            assert space_to_json(space) == data

    @pytest.mark.parametrize(
        "sample",
        [None, [1, 2], object(), np.array(["a"]), 1j, b"raw", {1: 2}, np.zeros(2, np.longdouble), 2**70],
    )
    def test_with_samples_of_another_kind_is_refused_by_name(self, sample):
        with pytest.raises(SpaceError, match=r"'action/arm': a Draws is no space of Gymnasium's.*exclude it, or wrap"):
            space_to_json(spaces.Dict(arm=Draws(sample)), "action")

    def test_that_cannot_draw_or_be_copied_is_refused(self):
        class Locked(Draws):
            def __deepcopy__(self, memo):
                raise TypeError("cannot pickle a lock")

        with pytest.raises(SpaceError, match="a Space is no space of Gymnasium's"):
            space_to_json(Space((2,), np.float32))
        with pytest.raises(SpaceError, match="cannot pickle a lock"):
            space_to_json(Locked(1))


class TestWhatCannotBeKept:
    def test_a_key_that_is_no_string_is_named(self):
        with pytest.raises(SpaceError, match="'observation': the Dict has the key 3"):
            space_to_json(spaces.Dict({3: spaces.Discrete(2)}), "observation")

    def test_text_that_is_no_unicode_is_refused(self):
        with pytest.raises(SpaceError, match="no Unicode"):
            space_to_json(spaces.Text(3, charset="a\ud800"))
        with pytest.raises(SpaceError, match="no Unicode"):
            space_to_json(spaces.Dict({"\udfff": spaces.Discrete(2)}))

    def test_a_bound_that_is_no_number_is_refused(self):
        space = spaces.Box(0, 1, (2,))
        space.low[0] = np.nan
        with pytest.raises(SpaceError, match="NaN"):
            space_to_json(space)

    @pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="here it is no dtype of its own")
    def test_a_dtype_of_this_machine_only_is_refused(self):
        with pytest.raises(SpaceError, match=np.dtype(np.longdouble).name):
            space_to_json(spaces.Box(0, 1, (2,), np.longdouble))

    def test_a_space_too_deep_to_be_read_is_not_written(self):
        space = spaces.Discrete(2)
        for _ in range(65):
            space = spaces.Tuple([space])
        with pytest.raises(SpaceError, match="deeper than 64"):
            space_to_json(space)


BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": 0.0, "high": 1.0}
DISCRETE = {"type": "Discrete", "n": 2, "dtype": "int64"}


def deep(levels, wrap):
    data = DISCRETE
    for _ in range(levels):
        data = wrap(data)
    return data


HOSTILE = {
    "no object": (3, "Expected `object`"),
    "nothing": (None, "Expected `object`"),
    "no type": ({"shape": [2]}, "missing required field `type`"),
    "unknown type": ({"type": "Evil"}, "'Evil'"),
    "a type that is a path": ({"type": "os:system"}, "'os:system'"),
    "missing field": ({"type": "Box", "shape": [2]}, "`dtype`|`low`|`high`"),
    "unknown field": (BOX | {"__class__": "x"}, "`__class__`"),
    "inner type": ({"type": "Dict", "spaces": {"a": {"type": "Evil"}}}, "'Evil'"),
    "object dtype": (BOX | {"dtype": "object"}, "'object'"),
    "structured dtype": (BOX | {"dtype": "f4,f4"}, "'f4,f4'"),
    "datetime dtype": (BOX | {"dtype": "datetime64[s]"}, "datetime64"),
    "string dtype": (BOX | {"dtype": "U5"}, "'U5'"),
    "float dtype of Discrete": (DISCRETE | {"dtype": "float32"}, "Discrete"),
    "float dtype of MultiDiscrete": (
        {"type": "MultiDiscrete", "shape": [1], "dtype": "float32", "nvec": 2.0},
        "MultiDiscrete",
    ),
    "negative side": (BOX | {"shape": [-1]}, ">= 0"),
    "side that is no integer": (BOX | {"shape": [1.5]}, "Expected `int`"),
    "side that is true": (BOX | {"shape": [True]}, "Expected `int`"),
    "shape that is no list": (BOX | {"shape": 2}, "Expected `array`"),
    "too many bounds": (BOX | {"low": [0.0, 0.0, 0.0]}, "Box"),
    "too few bounds": (BOX | {"low": [0.0]}, "Box"),
    "nested bounds": (BOX | {"low": [[0.0, 0.0]]}, "low"),
    "NaN": (BOX | {"low": "nan"}, "Box"),
    "a word": (BOX | {"low": "low"}, "low"),
    "a number with a line end": (BOX | {"low": "1\n"}, "low"),
    "low above high": (BOX | {"low": 2.0}, "Box"),
    "beyond the dtype": (BOX | {"high": 1e300}, "1e\\+300"),
    "beyond an integer dtype": (BOX | {"dtype": "uint8", "high": 256}, "256"),
    "below an integer dtype": (BOX | {"dtype": "uint8", "low": -1}, "-1"),
    "half a number": (BOX | {"dtype": "int8", "high": 0.5}, "0.5"),
    "beyond every float": (BOX | {"high": 10**400}, "Box"),
    "an integer that is infinite": (BOX | {"dtype": "int8", "high": float("inf")}, "Box"),
    "two for a bool": (BOX | {"dtype": "bool", "high": 2}, "2"),
    "gigabytes from one number": (BOX | {"shape": [2**14, 2**14]}, str(MOST_ELEMENTS)),
    "more than memory": (BOX | {"shape": [2**40, 2**40]}, str(MOST_ELEMENTS)),
    "zero times more than memory": (BOX | {"shape": [2**62, 2**62, 0], "low": [], "high": []}, "Box"),
    "too many dimensions": (BOX | {"shape": [1] * 100}, "Box"),
    "many large ones": ({"type": "Tuple", "spaces": [BOX | {"shape": [2**24]}] * 9}, str(MOST_ELEMENTS)),
    "many small ones": ({"type": "Tuple", "spaces": [DISCRETE] * 200_000}, str(MOST_ELEMENTS)),
    "a large MultiBinary": ({"type": "MultiBinary", "n": 2**40}, str(MOST_ELEMENTS)),
    "a negative MultiBinary": ({"type": "Tuple", "spaces": [{"type": "MultiBinary", "n": -(2**40)}]}, ">= 0"),
    "a large MultiDiscrete": (
        {"type": "MultiDiscrete", "shape": [2**40], "dtype": "int64", "nvec": 2},
        str(MOST_ELEMENTS),
    ),
    "no choices": (DISCRETE | {"n": 0}, "Discrete"),
    "choices that are no number": (DISCRETE | {"n": "many"}, "n"),
    "more choices than the dtype has": (DISCRETE | {"n": "99999999999999999999"}, "Discrete"),
    "no choices in one place": (
        {"type": "MultiDiscrete", "shape": [2], "dtype": "int64", "nvec": [2, 0]},
        "MultiDiscrete",
    ),
    "a text of less than nothing": (
        {"type": "Text", "min_length": -1, "max_length": 2, "charset": "a"},
        "Text",
    ),
    "a OneOf of none": ({"type": "OneOf", "spaces": []}, "OneOf"),
    "too deep": (deep(65, lambda inner: {"type": "Tuple", "spaces": [inner]}), "deeper than 64"),
    "far too deep": (deep(50_000, lambda inner: {"type": "Tuple", "spaces": [inner]}), "deep"),
    "deep under unknown names": (
        deep(65, lambda inner: {"type": "Other", "name": "a:b", "space": inner}),
        "deeper than 64",
    ),
    "doubling at each level": (
        deep(40, lambda inner: {"type": "Sequence", "stack": True, "space": inner}),
        str(MOST_ELEMENTS),
    ),
    "graphs of graphs": (
        deep(40, lambda inner: {"type": "Graph", "node_space": inner, "edge_space": None}),
        str(MOST_ELEMENTS),
    ),
    "metadata that is no object": (BOX | {"metadata": [1]}, "metadata"),
}


@pytest.mark.parametrize(("data", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_from_a_stranger_is_refused_for(data, words):
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=words):
            space_from_json(data)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_the_name_of_a_class_in_a_file_is_never_imported():
    for name in ("antigravity:x", "os:system"):
        assert type(space_from_json(BOX | {"name": name})) is spaces.Box
        assert type(space_from_json({"type": "Other", "name": name, "space": BOX})) is spaces.Box


class TestDifferences:
    ours = spaces.Dict(
        camera=annotated(spaces.Box(0, 255, (96, 96, 3), np.uint8), kind="image", fps=30),
        joints=spaces.Tuple([spaces.Box(-1, 1, (7,)), spaces.Discrete(2)]),
        task=spaces.Text(5),
    )
    theirs = spaces.Dict(
        camera=annotated(spaces.Box(0, 255, (64, 64, 3), np.uint8), kind="image", fps=10, unit="m"),
        joints=spaces.Tuple([spaces.Box(-1, 2, (7,)), spaces.MultiBinary(2)]),
        goal=spaces.Text(5),
    )

    def test_are_listed_by_path(self):
        assert differences(space_to_json(self.ours), space_to_json(self.theirs), "observation") == [
            "observation/camera: shape (96, 96, 3) here, (64, 64, 3) in the recording",
            "observation/camera: metadata fps 30 here, 10 in the recording",
            "observation/camera: metadata unit nothing here, m in the recording",
            "observation/joints/0: high 1.0 here, 2.0 in the recording",
            "observation/joints/1: Discrete here, MultiBinary in the recording",
            "observation/task: only here",
            "observation/goal: only in the recording",
        ]

    def test_have_the_paths_of_leaves(self):
        one, two = (space_to_json(spaces.Dict({"a/b": spaces.Discrete(n)})) for n in (2, 3))
        assert differences(one, two, "action") == ["action/a%2Fb: n 2 here, 3 in the recording"]

    def test_in_long_lists_are_told_in_a_line(self):
        one, two = (
            space_to_json(spaces.Box(np.arange(999) - n, np.full(999, 1e3), dtype=np.float64))
            for n in ([0] * 999, [0] * 998 + [1])
        )
        (line,) = differences(one, two)
        assert line.startswith("the space: low differs after [0.0, 1.0")
        assert len(line) < 120

    def test_are_not_in_names_of_classes_nor_in_the_order_of_keys(self):
        here = spaces.Dict([("a", MissionSpace(lambda: "go")), ("b", Angle(0, 1))])
        there = spaces.Dict([("b", spaces.Box(0, 1)), ("a", plain_space(MissionSpace(lambda: "go")))])
        assert differences(space_to_json(here), space_to_json(there)) == []

    def test_of_metadata_on_an_unknown_space_are_listed(self):
        here, there = (annotated(MissionSpace(lambda: "go"), language=word) for word in ("en", "fr"))
        assert differences(space_to_json(here), space_to_json(there), "mission") == [
            "mission: metadata language en here, fr in the recording"
        ]

    def test_of_what_is_no_space_raise(self):
        with pytest.raises(FormatError, match="Evil"):
            differences(BOX, {"type": "Evil"})
