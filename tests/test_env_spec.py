"""Specs of environments as JSON: exact where they can be, by name where not, and nothing is ever run."""

import enum
import functools
import json
import math
import reprlib
import warnings
from collections import OrderedDict, namedtuple

import gymnasium as gym
import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, WrapperSpec
from gymnasium.wrappers import (
    ClipReward,
    DtypeObservation,
    FrameStackObservation,
    GrayscaleObservation,
    RecordEpisodeStatistics,
    RescaleAction,
    ResizeObservation,
    TimeAwareObservation,
    TransformObservation,
    TransformReward,
)
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st
from minigrid.core.mission import MissionSpace
from spaces import DRAWABLE, facts

from recorder.errors import FormatError, SpaceError
from recorder.spaces.argument_json import argument_from_json, argument_to_json, not_rebuildable
from recorder.spaces.env_spec import not_rebuildable as places
from recorder.spaces.env_spec import spec_from_json, spec_to_json

with warnings.catch_warnings():  # SWIG warns when Box2D is imported: as an error that is a segmentation fault
    warnings.simplefilter("ignore")
    import gymnasium.envs.box2d


def strict(data):
    text = json.dumps(data, allow_nan=False)
    assert msgspec.json.decode(msgspec.json.encode(data)) == json.loads(text)
    return json.loads(text)


class Silent(gym.Wrapper):
    """A wrapper that does not note its arguments."""


class Doubled:
    """A callable object."""

    def __call__(self, reward):
        return reward * 2


class Color(enum.StrEnum):
    RED = "red"


Point = namedtuple("Point", "x y")


def cart_pole():
    return gym.make("CartPole-v1")


def car_racing(**arguments):
    return gym.make("CarRacing-v3", **arguments)


ENVIRONMENTS = {
    "bare": cart_pole,
    "another time limit": lambda: gym.make("CartPole-v1", max_episode_steps=7, render_mode="rgb_array"),
    "no time limit": lambda: gym.make("CartPole-v1", max_episode_steps=-1, disable_env_checker=True),
    "arguments": lambda: gym.make("FrozenLake-v1", desc=["SF", "FG"], map_name=None, is_slippery=False),
    "stacked frames": lambda: FrameStackObservation(cart_pole(), 3, padding_type="zero"),
    "two wrappers": lambda: TimeAwareObservation(RecordEpisodeStatistics(cart_pole())),
    "an array as argument": lambda: RescaleAction(gym.make("Pendulum-v1"), -1, np.float32(1)),
    "an infinity as argument": lambda: ClipReward(cart_pole(), -math.inf, 1.0),
    "a dtype as argument": lambda: DtypeObservation(cart_pole(), np.float64),
    "grey pictures": lambda: GrayscaleObservation(car_racing(continuous=False), keep_dim=True),
}


@pytest.fixture(params=ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def environment(request):
    with request.param() as environment:
        yield environment


class TestARealEnvironment:
    def test_has_a_spec_that_comes_back_equal(self, environment):
        data = spec_to_json(environment.spec)
        assert places(data) == []
        assert spec_from_json(strict(data)) == environment.spec

    def test_is_made_again_from_the_json_of_its_spec(self, environment):
        with gym.make(spec_from_json(strict(spec_to_json(environment.spec)))) as made:
            assert made.spec == environment.spec
            assert made.observation_space == environment.observation_space
            assert facts(made.reset(seed=1)[0]) == facts(environment.reset(seed=1)[0])


def test_small_pictures_are_made_again():
    pytest.importorskip("cv2")
    with ResizeObservation(car_racing(), (32, 24)) as environment:
        spec = spec_from_json(strict(spec_to_json(environment.spec)))
        assert spec == environment.spec
        with gym.make(spec) as made:
            assert made.observation_space == environment.observation_space


def test_the_way_to_json_leaves_the_spec_alone():
    with FrameStackObservation(cart_pole(), 3) as environment:
        before = repr(environment.spec)
        data = spec_to_json(environment.spec)
        data["additional_wrappers"][0]["kwargs"]["stack_size"] = 4
        assert repr(environment.spec) == before


class TestWhatCannotBeRebuilt:
    def spec(self):
        environment = TransformReward(RecordEpisodeStatistics(cart_pole()), Doubled())
        observed = TransformObservation(environment, lambda x: x, environment.observation_space)
        with Silent(observed) as environment:
            return environment.spec

    def test_is_listed_by_wrapper_and_argument(self):
        assert places(spec_to_json(self.spec())) == [
            "wrapper TransformReward: func",
            "wrapper TransformObservation: func",
            "wrapper Silent: all arguments, it is no RecordConstructorArgs",
        ]

    def test_is_kept_by_name(self):
        _, two, three, four = strict(spec_to_json(self.spec()))["additional_wrappers"]
        here = TestWhatCannotBeRebuilt.spec.__qualname__
        assert two["kwargs"]["func"] == {"callable": f"{__name__}:Doubled"}
        assert three["kwargs"]["func"] == {"callable": f"{__name__}:{here}.<locals>.<lambda>"}
        assert three["kwargs"]["observation_space"]["space"]["type"] == "Box"
        assert four["kwargs"] is None

    def test_raises_and_is_named_in_full(self):
        with pytest.raises(SpaceError, match=r"TransformReward: func; .*Silent.*skip_unrebuildable=True"):
            spec_from_json(spec_to_json(self.spec()))

    def test_is_left_out_when_that_is_asked_for(self):
        spec = spec_from_json(spec_to_json(self.spec()), skip_unrebuildable=True)
        assert [wrapper.name for wrapper in spec.additional_wrappers] == ["RecordEpisodeStatistics"]
        with gym.make(spec) as environment:
            environment.reset()

    def test_in_the_environment_itself_raises_in_any_case(self):
        for spec, place in (
            (EnvSpec("Own-v0", entry_point=cart_pole), "entry_point"),
            (EnvSpec("Own-v0", entry_point="a:b", kwargs={"reward": [{"f": len}]}), "argument reward/0/f"),
        ):
            data = strict(spec_to_json(spec))
            assert places(data) == [place]
            with pytest.raises(SpaceError, match=f"{place}. Make the environment yourself$"):
                spec_from_json(data, skip_unrebuildable=True)

    def test_in_making_vectors_is_left_out_like_a_wrapper(self):
        data = strict(spec_to_json(EnvSpec("Own-v0", entry_point="a:b", vector_entry_point=cart_pole)))
        assert places(data) == ["vector_entry_point"]
        assert spec_from_json(data, skip_unrebuildable=True) == EnvSpec("Own-v0", entry_point="a:b")


def test_numbers_in_the_spec_itself_may_be_of_numpy_or_infinite():
    spec = EnvSpec("Own-v0", "a:b", reward_threshold=math.inf, max_episode_steps=np.int64(5), order_enforce=np.bool_(1))
    assert spec_from_json(strict(spec_to_json(spec))) == spec


def test_an_argument_may_have_any_name():
    spec = EnvSpec("Own-v0", "a:b", kwargs={"object": 1})
    assert places(spec_to_json(spec)) == []
    assert spec_from_json(strict(spec_to_json(spec))) == spec


def test_arguments_that_hold_themselves_are_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(SpaceError, match="Own-v0"):
        spec_to_json(EnvSpec("Own-v0", "a:b", kwargs={"loop": loop}))
    with pytest.raises(SpaceError, match="Own-v0"):
        spec_to_json(EnvSpec("Own-v0", "a:b", kwargs={"text": "\ud800"}))


ARGUMENTS = [
    None,
    True,
    2**53 + 1,
    -(2**70),
    0.1,
    math.inf,
    -math.inf,
    math.nan,
    "é\n",
    (),
    (1, [2, (3.0,)], {"a": (None,)}),
    {"z": 1, "a": 2},
    {1: "a", (2, "b"): {}, None: 3},
    {"tuple": [1]},
    {"callable": "os:system"},
    {"dict": {"object": 1}},
    np.float32(0.1),
    np.float64(0.1),
    np.int64(-(2**63)),
    np.uint64(2**64 - 1),
    np.bool_(True),
    np.float16("nan"),
    np.arange(6, dtype=np.uint8).reshape(2, 3),
    np.array(5.0),
    np.zeros((0, 3), np.float32),
    np.array([0.0, -0.0, math.nan, math.inf]),
    np.zeros(2, ">i4"),
    np.full((1000, 1000), math.nan),
    np.dtype("float32"),
    np.float32,
    spaces.Box(-1, 1, (2,)),
]


@pytest.mark.parametrize("value", ARGUMENTS, ids=lambda value: f"{type(value).__name__} {value!r:.30}")
def test_an_argument_comes_back_equal_down_to_its_type(value):
    data = strict(argument_to_json(value))
    assert list(not_rebuildable(data)) == []
    assert facts(argument_from_json(data)) == facts(value) or value != value
    assert type(argument_from_json(data)) is type(value)


@pytest.mark.parametrize("space", DRAWABLE)
def test_a_space_is_an_argument_like_any_other(space):
    assert facts(argument_from_json(strict(argument_to_json([space])))) == facts([space])


ITEMS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
# Not a number comes back as one, but not with its sign and payload.
NUMBERS = st.floats(width=32, allow_nan=False)
ITEMS |= st.sampled_from(["tuple", "dict", "object"]) | numpy_st.arrays(np.float32, (2,), elements=NUMBERS)
KEYS = st.text(max_size=3) | st.sampled_from(["tuple", "dict", "object", "array", "callable"]) | st.integers()


@given(
    st.recursive(
        ITEMS,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=3)
        ),
    )
)
def test_any_nested_argument_comes_back_equal(value):
    data = strict(argument_to_json(value))
    assert list(not_rebuildable(data)) == []
    assert facts(argument_from_json(data)) == facts(value)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (math.prod, {"callable": "math:prod"}),
        (dict, {"callable": "builtins:dict"}),
        (functools.partial(math.prod, start=2), {"callable": "functools:partial(math:prod)"}),
        (Doubled(), {"callable": f"{__name__}:Doubled"}),
        (Doubled().__call__, {"callable": f"{__name__}:Doubled.__call__"}),
        (Color.RED, {"object": "<Color.RED: 'red'>"}),
        (Point(1, 2), {"object": "Point(x=1, y=2)"}),
        (OrderedDict(a=1), {"object": repr(OrderedDict(a=1))}),
        ({1}, {"object": "{1}"}),
        (b"ab", {"object": "b'ab'"}),
        (1j, {"object": "1j"}),
        (slice(3), {"object": "slice(None, 3, None)"}),
        (np.array(["a"]), {"object": repr(np.array(["a"]))}),
        (np.str_("a"), {"object": repr(np.str_("a"))}),
        (np.dtype("U3"), {"object": "dtype('<U3')"}),
        (np.ma.array([1]), {"object": repr(np.ma.array([1]))}),
    ],
)
def test_what_json_has_not_is_kept_by_name(value, kept):
    data = strict(argument_to_json({"inner": (value,)}))
    assert data == {"inner": {"tuple": [kept]}}
    assert list(not_rebuildable(data, "argument")) == ["argument/inner/0"]
    with pytest.raises(SpaceError, match="cannot be rebuilt"):
        argument_from_json(data)


def test_spaces_that_are_no_longer_the_same_when_plain_are_kept_by_name():
    for space in (MissionSpace(lambda: "go"), spaces.Space(), spaces.Dict({3: spaces.Discrete(2)})):
        assert list(argument_to_json(space)) == ["object"]


def test_an_object_is_kept_by_name_even_if_it_cannot_be_printed_or_is_long():
    assert "Unprintable" in argument_to_json(Unprintable())["object"]
    assert len(argument_to_json(set(range(10_000)))["object"]) <= 500


def deep(levels, wrap):
    data = 1
    for _ in range(levels):
        data = wrap(data)
    return data


@pytest.mark.parametrize(
    "data",
    [
        {"tuple": 3},
        {"dict": [[1]]},
        {"dict": [[[1], 2]]},
        {"dict": {"a": 1}},
        {"float": "1e5"},
        {"float": "infinity"},
        {"integer": "1_000"},
        {"integer": " 1"},
        {"integer": 1},
        {"integer": "9" * 5000},
        {"dtype": "O"},
        {"dtype": "V2"},
        {"type": "os.system"},
        {"array": []},
        {"array": {"dtype": "object", "shape": [1], "data": [1]}},
        {"array": {"dtype": "int8", "shape": [2], "data": [1]}},
        {"array": {"dtype": "int8", "shape": [1], "data": [999]}},
        {"array": {"dtype": "int8", "shape": [-1], "data": 1}},
        {"array": {"dtype": "int8", "shape": [2**40], "data": 1}},
        {"array": {"dtype": "int8", "shape": [1], "data": 1, "more": 1}},
        {"scalar": {"dtype": "float32", "data": "1.5"}},
        {"space": {"type": "Evil"}},
        {"space": 3},
        deep(5000, lambda inner: [inner]),
        deep(5000, lambda inner: {"tuple": [inner]}),
    ],
    ids=reprlib.repr,
)
def test_an_argument_from_a_stranger_is_refused(data):
    with pytest.raises(FormatError):
        argument_from_json(data)
    spec = spec_to_json(EnvSpec("Own-v0", "a:b")) | {"kwargs": {"value": data}}
    with pytest.raises(FormatError):
        spec_from_json(spec)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "not an id!"}, "not an id!"),
        ({"id": 3}, "id"),
        ({"entry_point": ["a"]}, "entry_point"),
        ({"entry_point": {"callable": "a:b", "arguments": []}}, "arguments"),
        ({"reward_threshold": "much"}, "reward_threshold"),
        ({"max_episode_steps": 1.5}, "max_episode_steps"),
        ({"order_enforce": "yes"}, "order_enforce"),
        ({"kwargs": []}, "kwargs"),
        ({"additional_wrappers": [{"name": "A", "entry_point": "a:B"}]}, "kwargs"),
        ({"additional_wrappers": [{"name": "A", "entry_point": 3, "kwargs": {}}]}, "entry_point"),
        ({"pickle": "gASVAAA="}, "pickle"),
    ],
)
def test_a_spec_from_a_stranger_is_refused_by_the_field(changes, words):
    data = spec_to_json(EnvSpec("Own-v0", "a:b")) | changes
    with pytest.raises(FormatError, match=words):
        spec_from_json(data)


def test_a_spec_that_lacks_a_field_is_refused_by_name():
    data = spec_to_json(EnvSpec("Own-v0", "a:b"))
    del data["order_enforce"]
    for read in (spec_from_json, places):
        with pytest.raises(FormatError, match="order_enforce"):
            read(data)


def test_nothing_that_a_file_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    wrapper = WrapperSpec("Trap", "trap:Trap", {"function": (1,)})
    spec = EnvSpec("Own-v0", "trap:Env", additional_wrappers=(wrapper,))
    data = strict(spec_to_json(spec))
    assert spec_from_json(data) == spec
    data["additional_wrappers"][0]["kwargs"]["function"] = {"callable": "trap:function"}
    with pytest.raises(SpaceError, match="wrapper Trap: function"):
        spec_from_json(data)
