"""Routing: which storage keeps which leaf, by key, kind and rule, and what the first row may change."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation, GrayscaleObservation

from recorder.errors import LayoutError
from recorder.leaf import Leaf
from recorder.metadata.annotation import annotate
from recorder.routing.layouts import extend, layout, leaves_of, settle
from recorder.routing.rules import describe
from recorder.schema import StepSpace
from recorder.storages import video_codecs
from recorder.storages.base import storage_from_json
from recorder.storages.depth import DepthStorage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from tests.spaces import SPACES

TABLE, ARRAYS, VIDEO = HDF5Storage(), ZarrStorage(), VideoStorage()
LZF = HDF5Storage(compression="lzf")
FFV1 = VideoStorage(codec="ffv1")
WEBP80 = ZarrStorage(quality=80)


def box(*shape, low=0, high=255, dtype=np.uint8):
    return spaces.Box(low, high, shape, dtype)


def floats(*shape):
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def depth(*shape):
    return box(*shape, high=65535, dtype=np.uint16)


def robot():
    """A robot with two cameras, one with depth, and what it knows of its body."""
    return spaces.Dict(
        camera=spaces.Dict(front=box(128, 160, 3), wrist=box(96, 96, 3), wrist_depth=depth(96, 96)),
        joints=floats(7),
    )


def routes(of, **choices):
    """Return the storage of every leaf by path."""
    chosen = layout(of, **choices)
    return {leaf.path: chosen.of(leaf) for leaf in leaves_of(of)}


class Robot(gym.Env):
    """An environment that is never stepped."""

    metadata = {"render_modes": [], "render_fps": 20}  # noqa: RUF012 Gymnasium's form
    observation_space = spaces.Dict(camera=box(128, 160, 3), joints=floats(7))
    action_space = floats(7)


# What has leaves


def test_the_leaves_of_an_environment_are_those_of_a_recording_of_it():
    assert {leaf.path: leaf.per for leaf in leaves_of(Robot())} == {
        "observation/camera": "moment",
        "observation/joints": "moment",
        "action": "transition",
        "reward": "transition",
        "terminated": "transition",
        "truncated": "transition",
        "time": "moment",
    }


def test_a_vector_environment_has_the_leaves_of_one_of_its_environments():
    with ExitStack() as stack:
        envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
        stack.callback(envs.close)
        assert leaves_of(envs) == leaves_of(envs.envs[0])
        assert layout(envs) == layout(envs.envs[0])


def test_spaces_leaves_and_environments_are_all_laid_out():
    env = Robot()
    step = StepSpace(env.observation_space, env.action_space)
    assert layout(step) == layout(leaves_of(step))
    assert routes(env.observation_space) == {"camera": VIDEO, "joints": TABLE}
    assert routes(box(96, 96, 3)) == {"value": ARRAYS}


@pytest.mark.parametrize("space", SPACES)
def test_every_space_is_laid_out_and_its_layout_checks(space):
    leaves = leaves_of(StepSpace(space, spaces.Discrete(2)))
    layout(leaves).check(leaves)


def test_a_layout_round_trips_through_json_without_its_notes():
    chosen = layout(Robot(), keys={"observation/camera": FFV1}, default=LZF)
    data = chosen.to_json()
    assert set(data) == {"id", "default", "storages"}
    assert storage_from_json(data) == chosen
    assert chosen.named == {"observation/camera"}
    assert storage_from_json(data).named == frozenset()
    assert hash(storage_from_json(data)) == hash(chosen)


# The default layout


@pytest.mark.parametrize(
    ("space", "storage"),
    [
        pytest.param(box(480, 640, 3), VIDEO, id="rgb of 480x640"),
        pytest.param(box(128, 128, 3), VIDEO, id="rgb of 128 a side"),
        pytest.param(box(127, 640, 3), ARRAYS, id="rgb with a shorter side"),
        pytest.param(box(96, 96, 3), ARRAYS, id="rgb of 96 a side"),
        pytest.param(box(16, 16, 3), ARRAYS, id="rgb of less than 4 KiB"),
        pytest.param(box(480, 640), ARRAYS, id="grey"),
        pytest.param(box(64, 64, 1), ARRAYS, id="one channel"),
        pytest.param(box(64, 64, 2), ARRAYS, id="two channels"),
        pytest.param(box(480, 640, 4), ARRAYS, id="four channels"),
        pytest.param(box(3, 480, 640), ARRAYS, id="channels first"),
        pytest.param(box(4, 84, 84), ARRAYS, id="stack"),
        pytest.param(box(84, 84, 4), ARRAYS, id="stack at the end"),
        pytest.param(box(2, 480, 640, 3), ARRAYS, id="stack of pictures"),
        pytest.param(box(480, 640, 3, high=19), ARRAYS, id="labels"),
        pytest.param(box(480, 640, 3, high=1), ARRAYS, id="mask of uint8"),
        pytest.param(spaces.MultiBinary((480, 640)), ARRAYS, id="mask of MultiBinary"),
        pytest.param(depth(480, 640), ARRAYS, id="depth of uint16"),
        pytest.param(floats(480, 640), ARRAYS, id="floats shaped like a picture"),
        pytest.param(floats(1024), ARRAYS, id="4 KiB of floats"),
        pytest.param(floats(1023), TABLE, id="less than 4 KiB of floats"),
        pytest.param(box(7, 7, 3), TABLE, id="7x7x3"),
        pytest.param(box(20, 20), TABLE, id="small grey"),
        pytest.param(floats(7), TABLE, id="vector"),
        pytest.param(spaces.Discrete(4), TABLE, id="discrete"),
        pytest.param(spaces.Text(9), TABLE, id="text"),
        pytest.param(box(0, 640, 3), TABLE, id="no rows of pixels"),
    ],
)
def test_without_a_word_from_the_user(space, storage):
    assert routes(StepSpace(space, spaces.Discrete(2)))["observation"] == storage


@pytest.mark.parametrize(
    ("shape", "metadata", "storage"),
    [
        ((480, 640, 3), {"format": "bgr"}, VIDEO),
        ((480, 640, 3), {"lossless": True}, ARRAYS),
        ((480, 640, 3), {"label": True}, ARRAYS),
        ((480, 640, 3), {"kind": "segmentation"}, ARRAYS),
        ((480, 640, 3), {"range": [0, 19]}, ARRAYS),
        ((480, 640, 4), {"format": "rgba"}, ARRAYS),
        ((3, 480, 640), {"format": "rgb", "layout": "CHW"}, ARRAYS),
        ((7, 7, 3), {"kind": "image"}, ARRAYS),
        ((7, 7, 3), {"kind": "state"}, TABLE),
    ],
)
def test_metadata_decide_what_a_picture_is(shape, metadata, storage):
    space = annotate(box(*shape), {"": metadata})
    assert routes(StepSpace(space, spaces.Discrete(2)))["observation"] == storage


def test_only_natural_pictures_are_lossy_and_the_reasons_say_why():
    chosen = layout(robot())
    assert [leaf.path for leaf in leaves_of(robot()) if not chosen.exact(leaf)] == ["camera/front"]
    assert chosen.reasons == {
        "camera/front": "a natural picture of 128 a side and more, coded with loss; "
        "30 frames a second, as nothing says how many",
        "camera/wrist": "a small picture, coded without loss",
        "camera/wrist_depth": "an array of 4 KiB and more",
        "joints": "a table leaf",
    }
    assert chosen.named == chosen.fallen == frozenset()


@pytest.mark.parametrize("inner", [box(480, 640, 3), spaces.Text(9), floats(2000)])
def test_rows_of_changing_length_are_kept_in_the_table(inner):
    leaves = leaves_of(StepSpace(spaces.Sequence(inner), spaces.Discrete(2)))
    assert layout(leaves) == DictStorage()


def test_a_default_takes_the_place_of_the_table_and_no_more():
    chosen = routes(robot(), default=LZF)
    assert chosen == {**routes(robot()), "joints": LZF}
    assert layout(robot(), default=LZF).default == LZF


@pytest.fixture
def no_h264(monkeypatch):
    """PyAV knows no H.264 encoder here."""
    missing = video_codecs.CODECS["h264"]._replace(encoder="libmissing")
    monkeypatch.setitem(video_codecs.CODECS, "h264", missing)


def test_without_an_encoder_natural_pictures_are_kept_exactly_and_the_reason_is_said(no_h264):
    chosen = layout(StepSpace(box(131, 137, 3), spaces.Discrete(2)))
    assert chosen.storages == {"observation": ARRAYS}
    assert chosen.fallen == {"observation"}
    assert "cannot be coded as h264" in chosen.reasons["observation"]
    assert chosen.reasons["observation"].endswith("; coded without loss")


def test_without_an_encoder_a_video_named_by_key_is_refused(no_h264):
    with pytest.raises(LayoutError, match=r"key 'front', VideoStorage\(\): .* cannot be coded as h264"):
        layout(spaces.Dict(front=box(131, 139, 3)), keys={"front": VIDEO})


# Precedence

FRONT, WRIST, DEPTH = "camera/front", "camera/wrist", "camera/wrist_depth"


@pytest.mark.parametrize(
    ("choices", "expected"),
    [
        ({"keys": {FRONT: ARRAYS}}, {FRONT: ARRAYS}),
        ({"keys": {"camera/*": FFV1}}, {FRONT: FFV1, WRIST: FFV1, DEPTH: FFV1}),
        ({"keys": {"*wrist*": FFV1}}, {WRIST: FFV1, DEPTH: FFV1}),
        ({"keys": {"*": LZF}}, {FRONT: LZF, WRIST: LZF, DEPTH: LZF, "joints": LZF}),
        ({"keys": {"c?mera/[wx]rist": FFV1}}, {WRIST: FFV1}),
        # An exact key before a glob, however long.
        ({"keys": {FRONT: ARRAYS, "camera/*ron*t*": FFV1}}, {FRONT: ARRAYS}),
        ({"keys": {"camera/*ron*t*": FFV1, FRONT: ARRAYS}}, {FRONT: ARRAYS}),
        # A longer glob before a shorter one, in either order.
        ({"keys": {"camera/w*": WEBP80, "camera/wrist_*": FFV1}}, {WRIST: WEBP80, DEPTH: FFV1}),
        ({"keys": {"camera/wrist_*": FFV1, "camera/w*": WEBP80}}, {WRIST: WEBP80, DEPTH: FFV1}),
        # Of two globs of one length, the first.
        ({"keys": {"*/front": ARRAYS, "camera*": FFV1}}, {FRONT: ARRAYS, WRIST: FFV1, DEPTH: FFV1}),
        ({"keys": {"camera*": FFV1, "*/front": ARRAYS}}, {FRONT: FFV1, WRIST: FFV1, DEPTH: FFV1}),
        # A glob before a kind, a kind before the rules.
        ({"kinds": {"image": WEBP80}}, {FRONT: WEBP80, WRIST: WEBP80}),
        ({"kinds": {"image": WEBP80}, "keys": {"*front": FFV1}}, {FRONT: FFV1, WRIST: WEBP80}),
        ({"kinds": {"depth": FFV1}}, {DEPTH: FFV1}),
        # None means the default.
        ({"keys": {FRONT: None}}, {FRONT: TABLE}),
        ({"keys": {"*": None}}, {FRONT: TABLE, WRIST: TABLE, DEPTH: TABLE}),
        ({"keys": {"*": None, FRONT: FFV1}}, {FRONT: FFV1, WRIST: TABLE, DEPTH: TABLE}),
        ({"keys": {FRONT: None}, "default": LZF}, {FRONT: LZF, "joints": LZF}),
        ({"kinds": {"depth": None}}, {DEPTH: TABLE}),
        ({"kinds": {"image": FFV1}, "keys": {WRIST: None}}, {FRONT: FFV1, WRIST: TABLE}),
        # A kind that no leaf has, in a layout for many environments.
        ({"kinds": {"normal": ARRAYS}}, {}),
    ],
)
def test_precedence(choices, expected):
    assert routes(robot(), **choices) == {**routes(robot()), **expected}


def test_a_key_that_is_a_leaf_is_no_glob():
    space = spaces.Dict({"*": floats(2), "a": floats(2), "[a]": floats(2)})
    assert routes(space, keys={"*": LZF}) == {"*": LZF, "a": TABLE, "[a]": TABLE}
    assert routes(space, keys={"[a]": LZF}) == {"*": TABLE, "a": TABLE, "[a]": LZF}


def test_named_are_the_leaves_that_were_chosen_by_key_or_kind():
    chosen = layout(robot(), keys={FRONT: VIDEO, "joints": None}, kinds={"depth": FFV1})
    assert chosen.named == {FRONT, "joints", DEPTH}
    assert chosen.reasons["joints"] == "key 'joints'"
    assert chosen.reasons[DEPTH].startswith("kind 'depth'; 30 frames a second")


# Unable


def test_a_kind_leaves_what_its_storage_cannot_keep_to_the_default_and_says_so():
    chosen = layout(robot(), kinds={"depth": VIDEO, "image": FFV1})
    assert DEPTH not in chosen.storages
    assert chosen.named == {FRONT, WRIST}
    assert chosen.fallen == {DEPTH}
    assert chosen.reasons[DEPTH].endswith("; left to the default")
    assert "is no picture that h264 takes" in chosen.reasons[DEPTH]


def test_a_picture_of_a_kind_may_be_coded_with_loss_unless_its_metadata_forbid_it():
    space = annotate(robot(), {WRIST: {"lossless": True}})
    assert routes(robot(), kinds={"image": VIDEO})[WRIST] == VIDEO
    chosen = layout(space, kinds={"image": VIDEO})
    assert chosen.fallen == {WRIST}
    assert "its metadata say lossless" in chosen.reasons[WRIST]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {DEPTH: VIDEO},
            r"key 'camera/wrist_depth', VideoStorage\(\): 'camera/wrist_depth': uint16 \(96, 96\)",
        ),
        ({"*depth": VIDEO}, r"key '\*depth', VideoStorage\(\)"),
        ({"joints": ZarrStorage(codec="webp")}, "WebP keeps uint8 pictures"),
        ({"camera/*": VIDEO}, "'camera/wrist_depth': uint16"),
    ],
)
def test_a_key_names_no_storage_that_cannot_keep_its_leaf(keys, message):
    with pytest.raises(LayoutError, match=message):
        layout(robot(), keys=keys)


@dataclass(frozen=True)
class Careless(HDF5Storage):
    """Takes anything, and keeps floats of a few digits."""

    id = "careless"

    def exact(self, leaf):
        return leaf.numpy_dtype.kind != "f"


def test_loss_is_refused_for_what_is_no_picture_even_where_the_storage_would_take_it():
    message = r"key 'joints', Careless\(\): 'joints' would lose by Careless\(\), and its kind is 'state'; keep it"
    with pytest.raises(LayoutError, match=message):
        layout(robot(), keys={"joints": Careless()})
    assert layout(robot(), kinds={"state": Careless()}).fallen == {"joints"}


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (VIDEO, r"a table leaf, VideoStorage\(\): 'joints': float32 \(7,\) is no picture that h264 takes"),
        (Careless(), r"a table leaf, Careless\(\): 'joints' would lose by Careless\(\)"),
    ],
)
def test_a_default_that_cannot_keep_what_is_left_to_it_is_refused(default, message):
    with pytest.raises(LayoutError, match=message):
        layout(robot(), default=default)


def test_a_default_of_episodes_must_keep_infos_and_one_of_single_rows_need_not():
    assert layout(spaces.Dict(a=floats(7)), default=ARRAYS) == DictStorage({}, ARRAYS)
    with pytest.raises(LayoutError, match=r"keeps every key of info too, ZarrStorage\(\): 'info' is sparse"):
        layout(StepSpace(floats(7), floats(7)), default=ARRAYS)


# Options


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"image": {"crf": 18}}, {FRONT: VideoStorage(crf=18)}),
        ({"image": {"crf": 18, "method": 2}}, {FRONT: VideoStorage(crf=18), WRIST: ZarrStorage(method=2)}),
        ({FRONT: {"crf": 18}}, {FRONT: VideoStorage(crf=18)}),
        ({"camera/*": {"level": 9}}, {WRIST: ZarrStorage(level=9), DEPTH: ZarrStorage(level=9)}),
        # Kinds, then shorter globs, then longer ones, then keys.
        (
            {FRONT: {"crf": 1}, "image": {"crf": 2, "threads": 2}, "*": {"crf": 3, "keyframe_every": 5}},
            {FRONT: VideoStorage(crf=1, threads=2, keyframe_every=5)},
        ),
        (
            {"camera/*": {"level": 9}, "*": {"level": 8}},
            {WRIST: ZarrStorage(level=9), "joints": HDF5Storage(level=8)},
        ),
        ({"joints": {"compression": "gzip"}}, {"joints": HDF5Storage(compression="gzip")}),
        ({"normal": {"anything": 1}}, {}),
    ],
)
def test_options_are_laid_over_those_of_the_storage_that_is_chosen(options, expected):
    found = routes(robot(), options=options)
    assert {path: found[path] for path in expected} == expected
    assert layout(robot(), options=options).named == frozenset()


def test_options_reach_storages_that_were_named_and_leave_the_given_ones_as_they_are():
    chosen = routes(robot(), kinds={"image": FFV1}, options={"image": {"fps": 5}, WRIST: {"threads": 2}})
    assert chosen[FRONT] == replace(FFV1, fps=5)
    assert chosen[WRIST] == replace(FFV1, fps=5, threads=2)
    assert FFV1.fps is None


def test_a_name_of_options_that_is_a_leaf_means_no_kind():
    space = spaces.Dict(depth=floats(3), wrist_depth=depth(96, 96))
    assert routes(space, options={"depth": {"level": 2}}) == {
        "depth": HDF5Storage(level=2),
        "wrist_depth": ARRAYS,
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": {"quality": 101}}, "a number from 0 to 100"),
        ({FRONT: {"crf": -1}}, "a number from 0 to 51"),
        ({FRONT: {"preset": "no-such"}}, "by its options: .* cannot be coded as h264"),
        ({"joints": {"compression": "zip"}}, "by its options: HDF5Storage has no compression 'zip'"),
    ],
)
def test_a_value_of_an_option_that_a_storage_refuses_is_no_reason_to_take_another_storage(options, message):
    with pytest.raises(LayoutError, match=message):
        layout(robot(), options={"image": {"quality": None}, **options})


# Unknown names


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"keys": {"camera/frnt": ARRAYS}},
            "no leaf 'camera/frnt', did you mean 'camera/front'?; the leaves are [",
        ),
        ({"keys": {"front": ARRAYS}}, "no leaf 'front', did you mean 'camera/front'?"),
        ({"keys": {"observation/joints": None}}, "no leaf 'observation/joints', did you mean 'joints'?"),
        ({"keys": {"camera": ARRAYS}}, "no leaf 'camera', did you mean 'camera/*'?"),
        ({"keys": {"camra/*": ARRAYS}}, "no leaf 'camra/*', did you mean"),
        ({"keys": {"CAMERA/*": ARRAYS}}, "no leaf 'CAMERA/*'"),
        ({"keys": {"info/*": ARRAYS}}, "keys of info are always kept in the default"),
        (
            {"kinds": {"imgae": ARRAYS}},
            "no kind 'imgae', did you mean 'image'?; the kinds are ['action', 'depth'",
        ),
        (
            {"options": {"imgae": {"fps": 5}}},
            "no leaf or kind 'imgae', did you mean 'image'?; the leaves are",
        ),
        ({"options": {"camera/frnt": {}}}, "no leaf or kind 'camera/frnt', did you mean 'camera/front'?"),
        (
            {"options": {FRONT: {"cfr": 5}}},
            f"VideoStorage for {FRONT!r} has no option 'cfr', did you mean 'crf'?",
        ),
        (
            {"options": {"camera/*": {"nothing": 5}}},
            "VideoStorage and ZarrStorage for 'camera/*' has no option",
        ),
        ({"options": {FRONT: {"quality": 5}}}, "has no option 'quality'; it has ['codec', 'crf',"),
        ({"keys": {FRONT: "hdf5"}}, f"{FRONT!r}: a storage such as ZarrStorage(), or None, not 'hdf5'"),
        ({"kinds": {"image": VideoStorage}}, "'image': a storage such as ZarrStorage(), or None, not <class"),
        ({"default": "hdf5"}, "'default': a storage such as ZarrStorage(), or None, not 'hdf5'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(choices, message):
    with pytest.raises(LayoutError) as caught:
        layout(robot(), **choices)
    assert message in str(caught.value)


# Frame rates


def rate(of, **choices):
    chosen = layout(of, **choices)
    path = "observation/camera"
    return chosen.storages[path].fps, chosen.reasons[path].rpartition("; ")[2]


def test_the_frame_rate_is_that_of_the_storage_the_metadata_the_environment_or_said_to_be_a_guess():
    env = Robot()
    assert rate(env) == (20, "20 frames a second by the environment")
    assert rate(env, fps=50.0) == (50.0, "50 frames a second by the environment")
    assert rate(env, options={"image": {"fps": 7}}) == (7, "7 frames a second")
    assert rate(env, keys={"observation/camera": FFV1}) == (20, "20 frames a second by the environment")
    env.observation_space = annotate(env.observation_space, {"camera": {"fps": 15}})
    assert rate(env) == (None, "15 frames a second by its metadata")
    assert rate(env, options={"image": {"fps": 7}}) == (7, "7 frames a second")
    bare = StepSpace(Robot.observation_space, Robot.action_space)
    assert rate(bare) == (None, "30 frames a second, as nothing says how many")


def test_the_video_inside_of_a_depth_storage_has_a_frame_rate_too():
    leaf = Leaf("depth", (48, 64), "float32", "depth", metadata={"fps": 15})
    given = layout([leaf], kinds={"depth": DepthStorage()}, fps=50)
    assert "15 frames a second by its metadata" in given.reasons["depth"]
    other = layout([replace(leaf, metadata={})], kinds={"depth": DepthStorage()}, fps=50).of(leaf)
    assert isinstance(other, DepthStorage) and other.storage == VideoStorage(codec="ffv1", fps=50)


@pytest.mark.parametrize("said", [None, 0, -5, "fast", float("nan"), float("inf")])
def test_a_frame_rate_of_an_environment_that_is_none_is_passed_over(said):
    env = Robot()
    env.metadata = {"render_fps": said}
    assert rate(env) == (None, "30 frames a second, as nothing says how many")


# The first row

NOISE = np.random.default_rng(0).integers(0, 256, (128, 160, 3), np.uint8)
DRAWING = NOISE // 128 * 100


def camera(dtype="uint8", kind="image", **metadata):
    return Leaf("observation/camera", (128, 160, 3), dtype, kind, metadata=metadata)


def settled(storage, leaf, first):
    return settle(storage, [leaf], {leaf.path: first})


def test_a_natural_first_frame_changes_nothing():
    chosen = layout([camera()])
    assert settled(chosen, camera(), NOISE) is chosen


@pytest.mark.parametrize("first", [DRAWING, np.zeros_like(NOISE)])
def test_a_first_frame_of_few_colours_moves_a_leaf_from_lossy_to_exact(first):
    chosen = settled(layout([camera()]), camera(), first)
    assert chosen.storages == {camera().path: ARRAYS}
    assert chosen.fallen == {camera().path}
    assert chosen.reasons[camera().path] == (
        "the first frame has few colours, as drawings and labels do; coded without loss"
    )
    assert settled(chosen, camera(), NOISE) is chosen, "nothing moves back"


def test_a_small_picture_that_is_lossy_by_an_option_moves_as_well():
    small = Leaf("observation", (64, 64, 3), "uint8", "image")
    chosen = layout([small], options={"image": {"quality": 80}})
    assert not chosen.exact(small)
    assert settled(chosen, small, DRAWING[:64, :64]).storages == {"observation": ARRAYS}
    assert settled(chosen, small, NOISE[:64, :64]) is chosen


@pytest.mark.parametrize(
    "chosen",
    [
        layout([camera()], keys={camera().path: VIDEO}),
        layout([camera()], kinds={"image": VIDEO}),
        DictStorage({camera().path: VIDEO}),
        DictStorage({}, VIDEO),
    ],
    ids=["by key", "by kind", "by hand", "as default"],
)
def test_a_lossy_storage_that_was_named_stays_whatever_the_first_frame(chosen):
    assert settled(chosen, camera(), DRAWING) is chosen


def test_a_leaf_without_a_first_row_stays_until_it_has_one():
    other = Leaf("render", (400, 600, 3), "uint8", "image")
    chosen = layout([camera(), other])
    once = settle(chosen, [camera(), other], {camera().path: DRAWING})
    assert once.of(other) == VIDEO
    assert settled(once, other, np.zeros((400, 600, 3), np.uint8)).of(other) == ARRAYS


def test_a_first_row_of_another_dtype_moves_a_leaf_whose_storage_cannot_keep_it():
    chosen = settled(layout([camera()]), camera("float32"), NOISE.astype("float32"))
    assert chosen.of(camera("float32")) == ARRAYS
    assert "after the first row" in chosen.reasons[camera().path]
    assert chosen.fallen == {camera().path}


def test_a_first_row_of_another_dtype_stays_where_it_can_be_kept():
    wide = Leaf("observation", (128, 160, 3), "int64", "other")
    narrow = replace(wide, dtype="uint8", kind="image")
    chosen = layout([wide], options={"observation": {"level": 9}})
    assert settled(chosen, narrow, NOISE) is chosen, "nothing moves from exact to lossy"


def test_a_first_row_that_a_named_storage_cannot_keep_is_refused():
    chosen = layout([camera()], keys={camera().path: VIDEO})
    with pytest.raises(LayoutError, match=r"VideoStorage\(\) was named, and after the first row .*float32"):
        settled(chosen, camera("float32"), NOISE.astype("float32"))


def test_a_first_row_that_the_default_cannot_keep_moves_to_what_can_or_is_refused():
    class Bytes(HDF5Storage):
        """Keeps single bytes."""

        def check(self, leaves):
            if any(leaf.nbytes > 1 for leaf in leaves):
                raise LayoutError(f"{leaves[0].path!r} has more than a byte")

    flag = Leaf("flag", (), "bool", per="transition")
    chosen = layout([flag], default=Bytes())
    assert settled(chosen, replace(flag, dtype="int8"), np.int8(1)) is chosen
    with pytest.raises(LayoutError, match="'flag' has more than a byte"):
        settled(chosen, replace(flag, dtype="int64"), np.int64(1))


# Leaves that come later


def test_leaves_of_which_a_layout_says_nothing_are_added_as_by_default():
    render = Leaf("render", (400, 600, 3), "uint8", "image")
    chosen = layout([camera()], default=LZF)
    whole = extend(chosen, [camera(), render, Leaf("extra/gain")], fps=60)
    assert whole.storages == {camera().path: VIDEO, "render": VideoStorage(fps=60)}
    assert whole.default == LZF
    assert whole.reasons.keys() == {camera().path, "render", "extra/gain"}
    assert settled(whole, render, np.zeros((400, 600, 3), np.uint8)).of(render) == ARRAYS


def test_what_was_laid_out_by_hand_is_named_when_leaves_are_added():
    render = Leaf("render", (400, 600, 3), "uint8", "image")
    whole = extend(DictStorage({camera().path: VIDEO}), [render])
    assert whole.named == {camera().path}
    assert settled(whole, camera(), DRAWING).of(camera()) == VIDEO


# Real environments

PACKAGES = {"CarRacing": "Box2D", "MiniGrid": "minigrid", "ALE": "ale_py", "gym_pusht": "gym_pusht"}
PACKAGES |= {"HalfCheetah": "mujoco", "Fetch": "gymnasium_robotics"}

pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
"""Box2D's SWIG types: raised as an error inside its import, this warning ends in a segmentation fault."""


@pytest.fixture
def make():
    """Make environments of packages that may not be installed, and close them."""
    with ExitStack() as stack:

        def make(name, **options):
            for start in (start for start in PACKAGES if name.startswith(start)):
                gym.register_envs(pytest.importorskip(PACKAGES[start]))
            env = gym.make(name, disable_env_checker=True, **options)
            stack.callback(env.close)
            return env

        yield make


@pytest.mark.parametrize(
    ("name", "options", "pictures"),
    [
        ("CartPole-v1", {}, {}),
        ("Blackjack-v1", {}, {}),
        ("Pendulum-v1", {}, {}),
        ("CarRacing-v3", {}, {"observation": ARRAYS}),
        ("HalfCheetah-v5", {}, {}),
        ("FetchReach-v4", {}, {}),
        ("MiniGrid-DoorKey-5x5-v0", {}, {}),
        ("gym_pusht/PushT-v0", {"obs_type": "pixels_agent_pos"}, {"observation/pixels": ARRAYS}),
        ("ALE/Pong-v5", {}, {"observation": VideoStorage(fps=30)}),
    ],
)
def test_pictures_of_real_environments_leave_the_table(make, name, options, pictures):
    env = make(name, **options)
    assert layout(env).storages == pictures
    layout(env).check(leaves_of(env))


def test_stacked_frames_of_a_real_game_are_kept_exactly(make):
    env = FrameStackObservation(GrayscaleObservation(make("ALE/Pong-v5")), 4)
    chosen = layout(env)
    assert chosen.storages == {"observation": ARRAYS}
    assert all(map(chosen.exact, leaves_of(env)))


def test_the_first_frame_of_a_real_game_is_a_drawing_and_moves_it_to_an_exact_storage(make):
    env = make("ALE/Pong-v5")
    frame, _ = env.reset(seed=0)
    assert settle(layout(env), leaves_of(env), {"observation": frame}).storages == {"observation": ARRAYS}


def test_a_storage_is_described_by_what_makes_it():
    given = (HDF5Storage(), VideoStorage(codec="ffv1", fps=5), ZarrStorage(quality=80.0))
    for storage, number in zip(given, count()):
        assert eval(describe(storage)) == given[number]
    assert describe(DictStorage()) == "DictStorage()"
