"""Metadata of spaces: carried, found, checked, inferred from."""

import copy
import json
import pickle
from collections.abc import Callable
from contextlib import ExitStack
from enum import Enum
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import (
    ClipAction,
    FilterObservation,
    FrameStackObservation,
    GrayscaleObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    RescaleAction,
    ReshapeObservation,
    TimeLimit,
    TransformObservation,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.errors import MetadataError
from recorder.leaf import Leaf
from recorder.metadata.annotation import annotate, dropped, find, metadata_of, walk
from recorder.metadata.kinds import KINDS, few_values, infer, natural
from recorder.metadata.vocabulary import (
    action_metadata,
    check_metadata,
    depth_metadata,
    image_metadata,
    proprio_metadata,
    require_valid,
)

CAMERA = image_metadata(fps=30, source="wrist")


def box(*shape, low=0, high=255, dtype=np.uint8):
    return spaces.Box(low, high, shape, dtype)


def floats(*shape):
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def robot():
    return spaces.Dict(
        {
            "camera": spaces.Dict(wrist=box(16, 16, 3), front=box(8, 8, 3)),
            "joints": floats(7),
            "a/b": spaces.Tuple([spaces.Discrete(3), spaces.Text(9)]),
            "points": spaces.Sequence(floats(3)),
            "steps": spaces.Sequence(spaces.Dict(x=floats(2))),
            "graph": spaces.Graph(floats(2), spaces.Discrete(4)),
            "choice": spaces.OneOf([spaces.Discrete(3), floats(2)]),
            "nothing": spaces.Graph(floats(2), None),
        }
    )


PATHS = [
    "",
    "a%2Fb",
    "a%2Fb/0",
    "a%2Fb/1",
    "camera",
    "camera/wrist",
    "camera/front",
    "choice",
    "choice/0",
    "choice/1",
    "graph",
    "graph/nodes",
    "graph/edges",
    "joints",
    "nothing",
    "nothing/nodes",
    "points",
    "steps",
    "steps/x",
]
LEAVES = [path for path in PATHS if path not in ("", "a%2Fb", "camera", "choice", "graph", "nothing", "steps")]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
untimed = settings(deadline=None)
metadata_values = st.dictionaries(st.text(max_size=5), json_values, max_size=3)


# Carrying


def test_walk_names_every_space_as_the_paths_of_leaves_do():
    assert list(dict(walk(robot()))) == PATHS


def seeded():
    space = annotate(robot(), {"camera/wrist": CAMERA})
    space.seed(0)
    return space


SEEDED = seeded()
BYTES = pickle.dumps(SEEDED)


@untimed
@given(st.dictionaries(st.sampled_from(PATHS), metadata_values, max_size=4), st.booleans())
def test_annotate_never_changes_the_given_space_nor_its_generators(metadata, replace):
    annotated = annotate(SEEDED, metadata, replace=replace)
    annotated["joints"].sample()
    annotated["a/b"].sample()
    assert pickle.dumps(SEEDED) == BYTES


@untimed
@given(st.dictionaries(st.sampled_from(PATHS), metadata_values, max_size=4))
def test_what_was_annotated_is_what_the_space_carries(metadata):
    annotated = dict(walk(annotate(robot(), metadata)))
    assert {path: metadata_of(annotated[path]) for path in metadata} == metadata
    assert not any(metadata_of(annotated[path]) for path in PATHS if path not in metadata)


@untimed
@given(st.sampled_from(LEAVES), metadata_values)
def test_find_returns_what_was_annotated(path, metadata):
    space = annotate(robot(), {path: {**metadata, "kind": "force"}})
    assert find(space, **{**metadata, "kind": "force"}) == [path]
    assert find(space, **{**metadata, "kind": "pose"}) == []


def test_find_compares_lists_whether_given_as_tuples_or_not():
    space = annotate(robot(), {"joints": {"names": ("x", "y")}, "camera": CAMERA, "camera/front": CAMERA})
    assert find(space, names=("x", "y")) == find(space, names=["x", "y"]) == ["joints"]
    assert find(space, kind="image", source="wrist") == ["camera/front"]
    assert find(space, missing=None) == []


def test_metadata_are_merged_key_by_key_or_replaced():
    space = annotate(robot(), {"joints": {"units": "rad", "frame": "base"}})
    merged = annotate(space, {"joints": {"units": "deg"}})
    replaced = annotate(space, {"joints": {"units": "deg"}}, replace=True)
    assert metadata_of(merged["joints"]) == {"units": "deg", "frame": "base"}
    assert metadata_of(replaced["joints"]) == {"units": "deg"}


def test_one_space_at_two_paths_is_annotated_at_one_of_them():
    camera = box(64, 64, 3)
    shared = spaces.Dict(left=camera, right=camera, both=spaces.Tuple([camera, camera]))
    shared.seed(3)
    space = annotate(shared, {"left": CAMERA, "both/1": {"source": "top"}})
    assert find(space, source="wrist") == ["left"]
    assert find(space, source="top") == ["both/1"]
    assert str(space.sample()) == str(shared.sample())


def test_a_sequence_hands_metadata_to_its_element():
    space = annotate(robot(), {"points": {"kind": "pointcloud"}})
    assert metadata_of(space["points"]) == {}
    assert metadata_of(space["points"].feature_space) == {"kind": "pointcloud"}
    assert find(space, kind="pointcloud") == ["points"]


def test_the_annotated_space_equals_the_given_one_and_samples_alike():
    space = robot()
    space.seed(5)
    annotated = annotate(space, {"camera": CAMERA, "a%2Fb/0": {"names": ["a", "b", "c"]}})
    assert annotated == space
    assert str(annotated.sample()) == str(space.sample())


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("camera/wirst", "camera/wrist"), ("wrist", "camera/wrist"), ("observation/joints", "joints")],
)
def test_a_wrong_path_lists_the_known_ones_and_the_nearest(wrong, nearest):
    with pytest.raises(MetadataError) as error:
        annotate(robot(), {wrong: {}})
    assert f"{wrong!r}, did you mean {nearest!r}?" in str(error.value)
    assert str(PATHS) in str(error.value)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"range": [0, np.inf]}, "range[1]"),
        ({"a": {"b": [float("nan")]}}, "a.b[0]"),
        ({"fps": np.int64(3)}, "fps"),
        ({"names": np.array(["a"])}, "names"),
        ({"names": {"a", "b"}}, "names"),
        ({"deep": {1: 2}}, "deep"),
        ({"text": "\ud800"}, "text"),
    ],
)
def test_what_is_not_json_is_refused_with_path_and_key(value, key):
    with pytest.raises(MetadataError, match=f"'{key.replace('[', '.').replace(']', '.')}'.*'joints'"):
        annotate(robot(), {"joints": value})


@pytest.mark.parametrize("value", [3, "image", [("kind", "image")], None])
def test_metadata_that_are_no_mapping_are_refused(value):
    with pytest.raises(MetadataError, match="'joints' is a mapping"):
        annotate(robot(), {"joints": value})
    space = floats(7)
    space.metadata = value or 7
    with pytest.raises(MetadataError, match="is a mapping"):
        metadata_of(space)


def test_a_mapping_set_by_hand_is_read_as_plain_json():
    class Source(str, Enum):  # noqa: UP042
        WRIST = "wrist"

    space = floats(2)
    space.metadata = MappingProxyType({"names": ("a", "b"), "source": Source.WRIST, "scale": np.float64(2)})
    assert json.dumps(metadata_of(space)) == '{"names": ["a", "b"], "source": "wrist", "scale": 2.0}'


def test_stored_metadata_cannot_be_changed_in_place():
    given = {"names": ["a", "b"], "mount": {"height": 1}}
    space = annotate(floats(2), {"": given})
    given["names"].append("c")
    for change in (
        lambda metadata: metadata.update(kind="x"),
        lambda metadata: metadata.pop("names"),
        lambda metadata: metadata.__setitem__("kind", "x"),
        lambda metadata: metadata["mount"].clear(),
        lambda metadata: metadata.__ior__({"kind": "x"}),
    ):
        with pytest.raises(MetadataError, match="annotate"):
            change(space.metadata)
    assert space.metadata["names"] == ("a", "b")
    metadata_of(space)["mount"]["height"] = 2
    assert metadata_of(space) == {"names": ["a", "b"], "mount": {"height": 1}}


@untimed
@given(metadata_values)
def test_metadata_survive_copies_pickle_and_json(metadata):
    space = annotate(robot(), {"camera/wrist": metadata})
    for again in (copy.copy(space), copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert metadata_of(again["camera"]["wrist"]) == metadata
    assert json.loads(json.dumps(space["camera"]["wrist"].metadata)) == metadata


def test_a_pickled_space_opens_where_this_package_is_missing():
    assert b"recorder" not in pickle.dumps(annotate(robot(), {"camera": {"mount": {"height": [1]}}}))


# Environments


class Cell(gym.Env):
    """Three steps in front of an annotated camera, with joints beside it."""

    def __init__(self):
        space = spaces.Dict(camera=box(64, 64, 3), joints=floats(7))
        self.observation_space = annotate(space, {"camera": CAMERA, "joints": {"units": "rad"}})
        self.action_space = annotate(spaces.Box(-1, 1, (2,)), {"": {"kind": "action", "mode": "delta"}})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


class Camera(Cell):
    """The camera of the cell alone."""

    def __init__(self):
        super().__init__()
        self.observation_space = self.observation_space["camera"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: TimeLimit(env, 3),
        OrderEnforcing,
        PassiveEnvChecker,
        RecordEpisodeStatistics,
        lambda env: FilterObservation(env, ["camera"]),
        lambda env: SyncVectorEnv([lambda: env]),
    ],
)
def test_wrappers_that_hand_the_space_on_keep_metadata(wrap):
    env = wrap(Cell())
    space = env.single_observation_space if isinstance(env, SyncVectorEnv) else env.observation_space
    assert find(space, kind="image", source="wrist", fps=30) == ["camera"]
    assert dropped(env) == []


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda env: FrameStackObservation(env, 2),
        GrayscaleObservation,
        lambda env: ReshapeObservation(env, (4096, 3)),
    ],
)
def test_a_wrapper_that_makes_a_new_space_is_named_with_what_it_dropped(wrapper):
    env = TimeLimit(wrapper(OrderEnforcing(Camera())), 3)
    lost = dropped(env)
    assert len(lost) == len(CAMERA)
    assert lost[0].startswith(f"'observation' lost its 'kind' in {type(env.env).__name__}: ")


def test_metadata_that_are_given_anew_are_not_dropped():
    env = FrameStackObservation(Camera(), 2)
    assert len(dropped(env, {"observation": {"kind": "stack", "fps": 30}})) == len(CAMERA) - 2
    space = annotate(env.observation_space, {"": CAMERA})
    assert dropped(TransformObservation(env, lambda observation: observation, space)) == []


def test_a_leaf_that_is_taken_away_has_lost_nothing():
    class NewCamera(gym.ObservationWrapper):
        observation_space = spaces.Dict(camera=box(32, 32, 3), joints=floats(7))

        def observation(self, observation):
            return observation

    assert len(dropped(NewCamera(Cell()))) == len(CAMERA) + 1
    assert len(dropped(FilterObservation(NewCamera(Cell()), ["joints"]))) == 1


def test_a_wrapper_around_the_action_is_named_too():
    lost = dropped(RescaleAction(Cell(), -2, 2))
    assert [message.split(":")[0] for message in lost] == [
        "'action' lost its 'kind' in RescaleAction",
        "'action' lost its 'mode' in RescaleAction",
    ]


def test_a_vector_environment_drops_what_its_first_environment_drops():
    envs = SyncVectorEnv([lambda: ClipAction(Cell())])
    assert [message.split(" lost")[0] for message in dropped(envs)] == ["'action'", "'action'"]


REAL = {
    "CarRacing-v3": {"observation": "image", "action": "action"},
    "MiniGrid-DoorKey-5x5-v0": {
        "observation/direction": "state",
        "observation/image": "other",
        "observation/mission": "other",
        "action": "action",
    },
    "ALE/Pong-v5": {"observation": "image", "action": "action"},
    "gym_pusht/PushT-v0": {
        "observation/agent_pos": "state",
        "observation/pixels": "image",
        "action": "action",
    },
}
PACKAGES = {"CarRacing": "Box2D", "MiniGrid": "minigrid", "ALE": "ale_py", "gym_pusht": "gym_pusht"}
OPTIONS = {"gym_pusht/PushT-v0": {"obs_type": "pixels_agent_pos"}}

pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
"""Box2D's SWIG types: raised as an error inside its import, this warning ends in a segmentation fault."""


@pytest.fixture
def make():
    """Make environments of packages that may not be installed, and close them."""
    with ExitStack() as stack:

        def make(name):
            for start in (start for start in PACKAGES if name.startswith(start)):
                gym.register_envs(pytest.importorskip(PACKAGES[start]))
            env = gym.make(name, disable_env_checker=True, **OPTIONS.get(name, {}))
            stack.callback(env.close)
            return env

        yield make


@pytest.mark.parametrize("name", REAL)
def test_leaves_of_real_environments_get_the_kind_that_they_are(make, name):
    env = make(name)
    roots = {"observation": env.observation_space, "action": env.action_space}
    leaves = [leaf for root, space in roots.items() for leaf in walk(space, root)]
    kinds = {path: infer(space, {}, path).kind for path, space in leaves if path in REAL[name]}
    assert kinds == REAL[name]
    assert dropped(env) == []


def test_frames_stacked_from_a_real_game_are_a_stack(make):
    env = FrameStackObservation(make("ALE/Pong-v5"), 4)
    assert infer(env.observation_space, {}, "observation").kind == "stack"


def test_a_real_game_is_a_picture_by_its_space_and_a_drawing_by_its_first_frame(make):
    frame, _ = make("ALE/Pong-v5").reset(seed=0)
    assert natural(Leaf("observation", frame.shape, "uint8", "image"))
    assert few_values(frame)


# Checking


def faults(space, /, **metadata):
    return check_metadata(annotate(space, {"": metadata}), "observation")


@pytest.mark.parametrize(
    ("space", "metadata"),
    [
        (box(480, 640, 3), CAMERA),
        (box(480, 640, 3), {"kind": "image", "format": "bgr", "range": [0, 255]}),
        (box(3, 96, 96), image_metadata(layout="CHW")),
        (box(96, 96, 4), image_metadata("bgra")),
        (box(96, 96), image_metadata("gray", "HW")),
        (box(96, 96, 1), image_metadata("gray")),
        (floats(96, 96, 3), image_metadata(normalized=True)),
        (box(48, 64, high=65535, dtype=np.uint16), depth_metadata("mm", fps=30, range=[0, 4000])),
        (floats(48, 64, 1), depth_metadata(layout="HWC")),
        (spaces.MultiBinary((48, 64)), {"kind": "mask"}),
        (floats(2), proprio_metadata(names=("x", "y"), units=["m", "rad"], frame="base")),
        (spaces.Box(-0.1, 0.7, (2,)), action_metadata(control="joint", mode="delta", range=[-0.1, 0.7])),
        (spaces.Discrete(3), action_metadata(names=["left", "stay", "right"])),
        (floats(17, 2), {"kind": "keypoints", "names": [str(i) for i in range(17)]}),
        (floats(), {"names": ["speed"], "units": "m/s"}),
        (spaces.Text(9), {"kind": "task", "anything": {"at": ["all"]}}),
        (robot(), {"kind": "privileged", "source": "simulator"}),
    ],
)
def test_metadata_that_fit_their_space_have_no_fault(space, metadata):
    assert faults(space, **metadata) == []
    require_valid(annotate(space, {"": metadata}))


@pytest.mark.parametrize(
    ("space", "metadata", "fault"),
    [
        (floats(7), {"kind": "propio"}, "kind 'propio' is not known, did you mean 'proprio'?"),
        (box(96, 96, 3), {"format": "rbg"}, "format 'rbg' is not known, did you mean 'rgb'?"),
        (box(96, 96, 3), {"layout": "WHC"}, "layout 'WHC' is not known, did you mean 'HWC'?"),
        (box(96, 96, 3), {"layout": ["H"]}, "layout ['H'] is not known; there are ['HWC', 'CHW', 'HW']"),
        (box(96, 96, 3), image_metadata("rgba"), "'rgba' has 4 channels, shape (96, 96, 3) has 3 in HWC"),
        (box(3, 96, 96), {"format": "rgb"}, "has 3 channels, shape (3, 96, 96) has 96; say layout 'CHW'"),
        (box(96, 96, 3), image_metadata(layout="CHW"), "has 96 in CHW; say layout 'HWC'"),
        (box(96, 96, 2), {"kind": "image"}, "kind 'image' has 1 or 3 or 4 channels, shape (96, 96, 2) has 2"),
        (box(96, 96), image_metadata(), "layout 'HWC' has 3 axes, the Box has shape (96, 96)"),
        (floats(7), {"kind": "depth"}, "kind 'depth' has 2 or 3 axes, the Box has shape (7,)"),
        (spaces.Text(5), {"kind": "image"}, "kind 'image' has 2 or 3 axes, the Text has shape ()"),
        (robot(), {"kind": "mask"}, "kind 'mask' has 2 or 3 axes, the Dict has shape ()"),
        (floats(96, 96, 3), image_metadata(), "kind 'image' is uint8 or uint16, got float32"),
        (
            floats(96, 96),
            {"kind": "mask"},
            "kind 'mask' is bool or integers or unsigned integers, got float32",
        ),
        (
            box(96, 96, 3),
            {"kind": "normal", "range": [0, 256]},
            "range [0, 256] goes beyond the bounds 0 to 255",
        ),
        (spaces.Box(-1, 1, (2,)), {"range": [-1.5, 1]}, "range [-1.5, 1] goes beyond the bounds -1 to 1"),
        (floats(2), {"range": [1, 0]}, "range is [lowest, highest], got [1, 0]"),
        (floats(2), {"range": 3}, "range is [lowest, highest], got 3"),
        (floats(2), {"names": ["a"]}, "names has 1 items, the space has shape (2,)"),
        (floats(2), {"names": ["a", "a"]}, "names is a list of different texts, got ['a', 'a']"),
        (spaces.Discrete(3), {"names": ["a", "b"]}, "names has 2 items, the space has shape (3,)"),
        (floats(2), {"units": ["m"]}, "units has 1 items, the space has shape (2,)"),
        (floats(2), {"units": 3}, "units is a text or a list of texts, got 3"),
        (box(96, 96, 3), {"fps": 0}, "fps is a number above 0, got 0"),
        (box(96, 96, 3), {"fps": True}, "fps is a number above 0, got True"),
        (floats(2), {"source": 3}, "source is a text, got 3"),
        (floats(2), {"label": "speed"}, "label is true or false, got 'speed'"),
    ],
)
def test_each_fault_has_one_message_with_its_path(space, metadata, fault):
    (message,) = faults(space, **metadata)
    assert message.startswith("'observation': ")
    assert fault in message


def test_all_faults_of_a_space_are_raised_together():
    space = annotate(robot(), {"joints": {"kind": "propio", "fps": -1}, "camera/front": {"format": "gray"}})
    space["points"].metadata = {"kind": "pointcloud"}
    space["choice"].metadata = 3
    with pytest.raises(MetadataError) as error:
        require_valid(space)
    lines = str(error.value).splitlines()
    assert [line.split(": ")[0] for line in lines if "choice" not in line] == [
        "'camera/front'",
        "'joints'",
        "'joints'",
        "'points'",
    ]
    assert sum("'choice' is a mapping, got the int 3" in line for line in lines) == 1


@untimed
@given(
    metadata_values,
    st.sampled_from(["kind", "format", "layout", "fps", "range", "names", "units"]),
    json_values,
)
def test_the_check_takes_any_json(metadata, key, value):
    for space in (box(96, 96, 3), floats(7), spaces.Text(3), spaces.Discrete(2), robot()):
        assert isinstance(faults(space, **{**metadata, key: value}), list)


def test_builders_leave_out_what_is_none():
    assert image_metadata(fps=None) == {"kind": "image", "format": "rgb", "layout": "HWC"}
    assert depth_metadata() == {"kind": "depth", "units": "m"}
    assert proprio_metadata(names=("a",)) == {"kind": "proprio", "names": ["a"]}
    assert action_metadata(control="torque", gain=2) == {"kind": "action", "control": "torque", "gain": 2}


@pytest.mark.parametrize("options", [{"format": "gbr"}, {"fps": -1}, {"fps": np.inf}, {"range": [2, 1]}])
def test_builders_refuse_what_no_space_could_have(options):
    with pytest.raises(MetadataError):
        image_metadata(**options)


# Inference

RULES = [
    # metadata, and the names that decide without looking at the space
    (box(480, 640, 3), {"kind": "tactile"}, "observation", "tactile"),
    (box(480, 640, 3), {"kind": "image"}, "observation/depth", "image"),
    (box(480, 640, 3), {"label": True}, "observation", "segmentation"),
    (box(480, 640, 3), {"label": False}, "observation", "image"),
    (box(3, 96, 96), {"format": "bgr"}, "observation", "image"),
    (box(480, 640, 3), {}, "action", "action"),
    (spaces.Discrete(4), {}, "action/gripper", "action"),
    (spaces.Text(9), {}, "observation/mission", "task"),
    (spaces.Text(9), {}, "observation/log", "other"),
    (spaces.Space(), {}, "observation", "other"),
    # one picture
    (box(480, 640, 3), {}, "observation/camera", "image"),
    (box(16, 16, 3), {}, "observation", "image"),
    (box(84, 84), {}, "observation", "image"),
    (box(84, 84, 1), {}, "observation", "image"),
    (box(7, 7, 3), {}, "observation/image", "other"),
    (box(15, 640, 3), {}, "observation", "other"),
    (box(480, 640, 3), {}, "observation/depth/front_camera", "depth"),
    (box(480, 640, 3), {}, "observation/camera/instanceSegImage", "segmentation"),
    (box(480, 640, 3), {}, "observation/a%2Fseg", "segmentation"),
    (box(480, 640, 3), {}, "observation/mask/surface_normals", "normal"),
    (box(480, 640, 3), {}, "observation/normalized", "image"),
    (box(480, 640, 3), {}, "observation/tactile_left", "tactile"),
    (box(64, 64, 3, high=19), {}, "observation", "segmentation"),
    (box(64, 64, 3, low=1), {}, "observation", "segmentation"),
    (spaces.Box(np.zeros((64, 64)), np.eye(64) * 255, dtype=np.uint8), {}, "", "segmentation"),
    (box(64, 64, high=1), {}, "observation", "mask"),
    (box(64, 64, high=1, dtype=np.int64), {}, "observation", "mask"),
    (box(64, 64, high=1, dtype=np.bool_), {}, "observation", "mask"),
    (spaces.MultiBinary((64, 64)), {}, "observation", "mask"),
    (box(48, 64, high=65535, dtype=np.uint16), {}, "observation", "depth"),
    (box(48, 64, 3, high=65535, dtype=np.uint16), {}, "observation", "other"),
    (floats(48, 64), {}, "observation/depth", "depth"),
    (floats(48, 64, 1), {}, "observation/depthImage", "depth"),
    (floats(48, 64), {}, "observation", "other"),
    (floats(480, 640, 3), {}, "observation/rgb", "other"),
    (spaces.MultiDiscrete(np.full((20, 20), 3)), {}, "observation", "other"),
    # other arrays
    (box(4, 84, 84), {}, "observation", "stack"),
    (box(84, 84, 4), {}, "observation", "stack"),
    (box(640, 480, 4), {}, "observation/rgba", "stack"),
    (box(64, 64, 2), {}, "observation", "stack"),
    (box(3, 96, 96), {}, "observation", "stack"),
    (box(1, 84, 84), {}, "observation", "stack"),
    (box(2, 480, 640, 3), {}, "observation", "stack"),
    (floats(4, 84, 84), {}, "observation/depth", "stack"),
    (box(7, 7, 3, high=10), {}, "observation", "other"),
    (box(1, 1, 3), {}, "observation", "other"),
    (box(0, 3), {}, "observation", "other"),
    (floats(17, 3), {}, "observation", "other"),
    (floats(17, 3), {}, "observation/keypoints", "keypoints"),
    (floats(3, 3), {}, "observation/camera_intrinsics", "intrinsics"),
    (floats(7), {}, "observation/privileged/object_pose", "pose"),
    (floats(7), {}, "observation/privileged/object", "privileged"),
    (floats(7), {}, "observation/robot/proprio", "proprio"),
    (floats(4), {}, "observation", "state"),
    (floats(), {}, "observation/speed", "state"),
    (floats(4), {}, "", "state"),
    (floats(4), {}, "state/qpos", "state"),
    (spaces.Discrete(5), {}, "observation", "state"),
    (spaces.MultiDiscrete([3, 4]), {}, "observation", "state"),
    (spaces.MultiBinary(8), {}, "observation/action_mask", "state"),
    (box(128), {}, "observation", "state"),
    (floats(), {}, "reward", "other"),
    (floats(3), {}, "info/force", "force"),
    (box(1, dtype=np.bool_, high=1), {}, "terminated", "other"),
    (box(480, 640, 3), {}, "render", "image"),
]


@pytest.mark.parametrize(("space", "metadata", "path", "kind"), RULES)
def test_each_rule_of_the_table_gives_its_kind(space, metadata, path, kind):
    inferred = infer(space, metadata, path)
    assert inferred.kind == kind
    assert inferred.why
    assert kind in KINDS


def test_the_reason_says_what_was_seen():
    assert infer(box(480, 640, 3), {}).why == "uint8 (480, 640, 3), 0 to 255: an RGB picture"
    assert infer(floats(48, 64), {}, "observation/depth").why == "float32 (48, 64), -inf to inf, 'depth' in its name"
    assert infer(floats(4), {"kind": "pose"}).why == "kind from metadata"


words = st.lists(st.sampled_from(["rgb", "camera", "image", "depth", "mask", "label", "pixels", "seg"]), max_size=3)
arrays = st.builds(
    lambda shape, dtype, high: spaces.Box(0, high, shape, dtype),
    st.lists(st.sampled_from([1, 3, 4, 16, 128]), max_size=3).map(tuple),
    st.sampled_from([np.uint8, np.uint16, np.int32, np.float32]),
    st.sampled_from([1, 10, 255]),
)


@untimed
@given(arrays, words)
def test_a_name_never_makes_a_leaf_lossy(space, words):
    path = "/".join(["observation", *words])
    plain, named = (
        natural(Leaf(path, space.shape, space.dtype.name, infer(space, {}, where).kind))
        for where in ("observation", path)
    )
    assert plain or not named


# Lossy or exact


def picture(shape=(128, 128, 3), dtype="uint8", kind="image", **changes):
    return Leaf("observation", shape, dtype, kind, **changes)


@pytest.mark.parametrize("metadata", [{}, CAMERA, {"format": "bgr", "range": [0, 255], "label": False}])
def test_large_rgb_pictures_are_natural(metadata):
    assert natural(picture(metadata=metadata))


@pytest.mark.parametrize(
    "leaf",
    [
        picture((127, 640, 3)),
        picture((640, 127, 3)),
        picture((480, 640)),
        picture((480, 640, 1)),
        picture((480, 640, 4)),
        picture((3, 480, 640)),
        picture((2, 480, 640, 3)),
        picture(()),
        picture(dtype="uint16"),
        picture(dtype="float32"),
        picture(kind="segmentation"),
        picture(ragged=True),
        picture(sparse=True),
        picture(metadata={"format": "rgba"}),
        picture(metadata={"layout": "CHW"}),
        picture(metadata={"range": [0, 19]}),
        picture(metadata={"label": True}),
        picture(metadata={"lossless": True}),
    ],
)
def test_all_else_is_kept_exactly(leaf):
    assert not natural(leaf)


def colourful(colours, shape=(480, 640)):
    """A frame with so many colours, nearly all of them in its last pixels."""
    numbers = np.zeros(shape[0] * shape[1], np.uint32)
    numbers[-colours:] = np.arange(colours)
    return np.stack([numbers % 251, numbers // 251, numbers % 241], -1).astype(np.uint8).reshape(*shape, 3)


@pytest.mark.parametrize(("colours", "few"), [(1, True), (256, True), (257, False), (5000, False)])
def test_few_values_counts_the_colours_of_all_pixels(colours, few):
    assert few_values(colourful(colours)) is few


@pytest.mark.parametrize(("numbers", "few"), [(20, True), (32, True), (33, False)])
def test_labels_in_three_channels_are_few_numbers_though_many_colours(numbers, few):
    frame = np.random.default_rng(0).integers(0, numbers, (480, 640, 3), np.uint8)
    assert few_values(frame) is few


def test_a_camera_is_no_drawing_and_a_black_frame_is_not_known_to_be_a_camera():
    noise = np.random.default_rng(0).normal(100, 20, (480, 640, 3)).astype(np.uint8)
    assert not few_values(noise)
    assert not few_values(noise[::2, ::2])
    assert few_values(np.zeros((480, 640, 3), np.uint8))
    assert few_values(np.zeros((0, 0, 3), np.uint8))


@untimed
@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 4), st.integers(0, 3))
def test_few_values_agrees_with_counting_one_by_one(pixels, numbers, channels, seed):
    frame = np.random.default_rng(seed).integers(0, numbers, (pixels, 1, channels), np.uint8)
    colours = {tuple(pixel) for pixel in frame.reshape(-1, channels).tolist()}
    assert few_values(frame) is (len(colours) <= 256 or len(set(frame.ravel().tolist())) <= 32)


def test_metadata_that_holds_itself_is_refused_by_name() -> None:
    loop: dict[str, object] = {}
    loop["inner"] = [loop]
    with pytest.raises(MetadataError, match="'wrist' holds itself"):
        annotate(spaces.Dict(wrist=spaces.Box(0, 1)), {"wrist": loop})  # type: ignore[dict-item]


@pytest.mark.parametrize("build", [image_metadata, depth_metadata, proprio_metadata, action_metadata])
def test_a_builder_makes_its_own_kind_only(build: Callable[..., dict[str, object]]) -> None:
    assert build(kind=build()["kind"]) == build()
    with pytest.raises(MetadataError, match="kind='reward': leave it out"):
        build(kind="reward")


def test_pickled_metadata_is_what_it_was() -> None:
    space = annotate(spaces.Box(0, 1, (2,)), {"": {"names": ["a", "b"], "deep": {"more": [1, [2, 3]]}}})
    again = pickle.loads(pickle.dumps(space))
    assert again.metadata == space.metadata
    assert type(again.metadata) is type(again.metadata["deep"]) is dict
    assert again.metadata["deep"]["more"] == (1, (2, 3))
