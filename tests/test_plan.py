"""The plan: what is kept how, why and at what cost, said without touching the environment."""

import json
import random
import tempfile
from contextlib import ExitStack

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import GrayscaleObservation

from recorder.columns import Ragged
from recorder.errors import LayoutError, MetadataError, RowError
from recorder.leaf import Leaf
from recorder.metadata.annotation import annotate
from recorder.routing.layouts import layout, leaves_of, plan
from recorder.routing.planning import Plan, PlanRow
from recorder.routing.trial import picture_axis, synthetic_rows, trial
from recorder.schema import StepSpace
from recorder.storages.depth import DepthStorage
from recorder.storages.dict import DictStorage
from recorder.storages.hdf5 import HDF5Storage
from recorder.storages.video import VideoStorage
from recorder.storages.zarr import ZarrStorage
from tests.spaces import SPACES


def box(*shape, low=0, high=255, dtype=np.uint8):
    return spaces.Box(low, high, shape, dtype)


def floats(*shape):
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


class Robot(gym.Env):
    """An environment that nobody may touch."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012 Gymnasium's form
    render_mode = "rgb_array"

    def __init__(self):
        self.observation_space = spaces.Dict(camera=box(128, 160, 3), joints=floats(7))
        self.action_space = floats(3)

    def touched(self, *_, **__):
        raise AssertionError("the plan touched the environment")

    reset = step = render = touched
    np_random = np_random_seed = property(touched)


def row(found: Plan, path: str) -> PlanRow:
    return next(row for row in found.rows if row.path == path)


def noted(found: Plan, words: str) -> list[str]:
    return [note for note in found.notes if words in note]


# What it says


def test_a_plan_has_a_row_for_each_leaf_with_all_that_becomes_of_it():
    found = plan(Robot())
    assert [(row.path, row.shape, row.dtype, row.kind, row.storage, row.exact) for row in found.rows] == [
        ("observation/camera", (128, 160, 3), "uint8", "image", "VideoStorage(fps=20)", False),
        ("observation/joints", (7,), "float32", "state", "HDF5Storage()", True),
        ("action", (3,), "float32", "action", "HDF5Storage()", True),
        ("reward", (), "float64", "reward", "HDF5Storage()", True),
        ("terminated", (), "bool", "flag", "HDF5Storage()", True),
        ("truncated", (), "bool", "flag", "HDF5Storage()", True),
        ("time", (), "float64", "time", "HDF5Storage()", True),
    ]
    camera = row(found, "observation/camera")
    assert camera.why == "uint8 (128, 160, 3), 0 to 255: an RGB picture"
    assert camera.note.endswith("coded with loss; 20 frames a second by the environment")


def test_bytes_are_those_of_one_more_row_without_the_headers_of_files():
    found = plan(Robot())
    sizes = {row.path: row.bytes_per_step for row in found.rows}
    assert sizes["observation/joints"] == pytest.approx(28, abs=1)
    assert sizes["action"] == pytest.approx(12, abs=1)
    assert sizes["terminated"] == pytest.approx(1, abs=1)
    assert 0 < sizes["observation/camera"] < 128 * 160 * 3
    assert found.bytes_per_step == sum(sizes.values())
    assert all(row.milliseconds_per_step > 0 for row in found.rows)
    assert found.milliseconds_per_step == sum(row.milliseconds_per_step for row in found.rows)


def test_bytes_are_the_same_each_time():
    first, second = (plan(Robot()) for _ in range(2))
    assert [row.bytes_per_step for row in first.rows] == [row.bytes_per_step for row in second.rows]


def test_the_text_is_an_aligned_table_with_its_notes_below():
    lines = str(plan(Robot())).splitlines()
    table, notes = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert table[0].split() == [
        "leaf",
        "shape",
        "dtype",
        "kind",
        "kept",
        "in",
        "bytes/step",
        "ms/step",
        "why",
    ]
    assert [line.split()[0] for line in table[1:]] == [*(leaf.path for leaf in leaves_of(Robot())), "total"]
    assert [word for line in table for word in line.split() if word in ("LOSSY", "exact")] == [
        "LOSSY",
        *["exact"] * 6,
    ]
    why = table[0].index("why")
    assert all(line[why - 1] == " " != line[why] for line in table[:-1])
    assert len({len(line[: line.index("  HDF5Storage()")]) for line in table[2:-1]}) == 1
    assert all(note.startswith("- ") for note in notes)
    assert all(line == line.rstrip() for line in lines)


def test_a_plan_is_a_value_and_strict_json():
    found = plan(Robot())
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["rows"][0]["path"] == "observation/camera"
    assert data["rows"][0]["shape"] == [128, 160, 3]
    assert data["bytes_per_step"] == found.bytes_per_step
    assert data["notes"] == list(found.notes)
    again = Plan(tuple(PlanRow(**{**row, "shape": tuple(row["shape"])}) for row in data["rows"]), tuple(data["notes"]))
    assert again == found
    assert hash(again) == hash(found)


@pytest.mark.parametrize("space", SPACES)
def test_every_space_can_be_planned(space):
    step = StepSpace(space, spaces.Discrete(2))
    found = plan(step)
    assert [row.path for row in found.rows] == [leaf.path for leaf in leaves_of(step)]
    assert all(row.exact or "image" in row.kind for row in found.rows)
    assert "total" in str(found)


def test_rows_of_changing_length_are_said_to_be():
    found = plan(spaces.Dict(words=spaces.Sequence(spaces.Text(5)), points=spaces.Sequence(floats(3))))
    assert [row.note for row in found.rows] == ["rows of changing length; a table leaf"] * 2


# What is said aloud


def test_what_is_lossy_what_a_kill_costs_and_that_figures_are_estimates_is_said():
    found = plan(Robot())
    assert noted(found, "observation/camera: coded with loss, unless its first frame has few colours")
    assert noted(found, "observation/camera: a kill loses up to 1 frames")
    assert noted(found, "estimates, measured here and now on synthetic pictures and numbers")
    assert not noted(found, "joints")


def test_a_picture_that_was_named_lossy_stays_so_and_its_first_frame_is_not_spoken_of():
    found = plan(Robot(), storage=layout(Robot(), keys={"observation/camera": VideoStorage()}))
    assert not row(found, "observation/camera").exact
    assert not noted(found, "first frame")


def test_what_falls_to_raw_is_said_with_the_reason():
    env = Robot()
    env.observation_space["depth"] = box(64, 64, high=65535, dtype=np.uint16)
    found = plan(env, storage=layout(env, kinds={"depth": VideoStorage()}))
    depth = row(found, "observation/depth")
    assert (depth.storage, depth.exact) == ("HDF5Storage()", True)
    assert depth.bytes_per_step == pytest.approx(8192, abs=1)
    assert depth.note.endswith("; left to the default")
    [fallen] = noted(found, "observation/depth: not kept as wanted: ")
    assert "is no picture that h264 takes" in fallen
    assert noted(found, "observation/depth: kept raw, 8,192 bytes a row are not made smaller by HDF5Storage()")


def test_metadata_that_a_wrapper_dropped_are_named_until_they_are_given_anew():
    env = Robot()
    env.observation_space = annotate(box(128, 160, 3), {"": {"fps": 15}})
    wrapped = GrayscaleObservation(env)
    assert noted(plan(wrapped), "'observation' lost its 'fps' in GrayscaleObservation")
    given = plan(wrapped, metadata={"observation": {"fps": 15}})
    assert not noted(given, "lost")


def test_metadata_decide_as_they_do_for_a_recorder():
    for path in ("observation/camera", "camera"):
        found = plan(Robot(), metadata={path: {"kind": "segmentation"}})
        assert (found.rows[0].kind, found.rows[0].storage) == ("segmentation", "ZarrStorage()")
        assert found.rows[0].why == "kind from metadata"
    with pytest.raises(MetadataError, match="camra"):
        plan(Robot(), metadata={"camra": {"kind": "image"}})


# Frames of one's own

NOISE = np.random.default_rng(0).integers(0, 256, (6, 128, 160, 3), np.uint8)
JOINTS = np.zeros((6, 7), np.float32)


def observations(camera=NOISE, joints=JOINTS):
    return [{"camera": picture, "joints": numbers} for picture, numbers in zip(camera, joints, strict=True)]


def test_frames_are_measured_in_place_of_synthetic_ones():
    found = plan(Robot(), frames=observations())
    assert row(found, "observation/camera").bytes_per_step > 10 * plan(Robot()).rows[0].bytes_per_step
    [note] = noted(found, "estimates")
    assert "the given rows of observation/camera, observation/joints and synthetic ones" in note
    assert not noted(found, "unless its first frame"), "it has been seen"


def test_rows_by_path_are_measured_as_well():
    found = plan(Robot(), frames={"observation/camera": NOISE[:, :, :, ::-1], "action": np.ones((2, 3), "f4")})
    assert row(found, "observation/camera").bytes_per_step > 10_000
    assert row(found, "action").bytes_per_step == pytest.approx(12, abs=1)


def test_the_first_frame_decides_as_the_first_row_of_a_recording():
    drawing = NOISE // 128 * 100
    found = plan(Robot(), frames=observations(camera=drawing, joints=JOINTS.astype("float64")))
    assert row(found, "observation/camera").storage == "ZarrStorage()"
    assert noted(found, "observation/camera: not kept as wanted: the first frame has few colours")
    assert row(found, "observation/joints").dtype == "float64"
    assert row(found, "observation/joints").bytes_per_step == pytest.approx(56, abs=1)


def test_text_and_rows_of_changing_length_can_be_frames():
    space = spaces.Dict(words=spaces.Text(9), points=spaces.Sequence(floats(3)))
    space.seed(0)
    found = plan(space, frames=[space.sample() for _ in range(4)])
    assert [row.path for row in found.rows] == ["words", "points"]


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (observations()[:1], "a trial of 'observation/camera' takes two frames or more, got 1"),
        ({"observation/camera": NOISE[:1]}, "takes two frames or more, got 1"),
        ({"camera": NOISE}, "no leaf 'camera' to try, did you mean 'observation/camera'?"),
        ({"observation/camera": NOISE[:, :64]}, r"shape \(128, 160, 3\), got \(64, 160, 3\)"),
        (observations(joints=JOINTS[:, :3]), r"'observation/joints' has shape \(7,\), got \(3,\)"),
        ([{"camera": NOISE[0]}] * 2, "lacks"),
        ([], "two frames or more"),
    ],
)
def test_frames_that_do_not_fit_are_refused(frames, message):
    with pytest.raises(RowError, match=message):
        plan(Robot(), frames=frames)


def test_frames_of_leaves_are_given_by_path():
    leaves = leaves_of(Robot())
    assert not noted(plan(leaves, frames={"observation/camera": NOISE}), "unless its first frame")
    with pytest.raises(RowError, match="by leaf path"):
        plan(leaves, frames=observations())


# What is planned


def test_a_plan_is_of_the_storage_that_is_given():
    chosen = layout(Robot(), default=HDF5Storage(compression="gzip"), kinds={"image": ZarrStorage(level=9)})
    found = plan(Robot(), storage=chosen)
    assert [row.storage for row in found.rows][:2] == [
        "ZarrStorage(level=9)",
        "HDF5Storage(compression='gzip')",
    ]
    assert row(found, "observation/camera").note == "kind 'image'"


def test_a_plan_is_of_one_storage_for_all_leaves_too():
    found = plan(Robot(), storage=HDF5Storage())
    assert {row.storage for row in found.rows} == {"HDF5Storage()"}
    assert noted(found, "observation/camera: kept raw, 61,440 bytes a row")


def test_a_plan_is_of_the_leaves_that_are_given():
    leaves = [*leaves_of(Robot()), Leaf("extra/gain", (), "float64", "other", "transition")]
    found = plan(Robot(), leaves=leaves, storage=layout(leaves))
    assert [row.path for row in found.rows][-1] == "extra/gain"
    few = plan(Robot(), leaves=leaves[1:2], frames=observations())
    assert [row.path for row in few.rows] == ["observation/joints"]


def test_a_storage_that_cannot_keep_a_leaf_is_refused():
    with pytest.raises(LayoutError, match="'observation/joints'"):
        plan(Robot(), storage=VideoStorage())
    with pytest.raises(LayoutError, match="no leaf 'observation/camera' to keep"):
        plan(spaces.Dict(a=floats(2)), storage=DictStorage({"observation/camera": VideoStorage()}))


def test_vector_environments_are_planned_as_one_of_their_environments():
    with ExitStack() as stack:
        envs = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2)
        stack.callback(envs.close)
        assert [row.shape for row in plan(envs).rows] == [(4,), (), (), (), (), ()]


# Transparency


def test_a_plan_takes_no_random_number_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = random.getstate(), np.random.get_state()[1].tolist()
    plan(Robot(), frames=observations())
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_is_running_goes_on_as_if_there_had_been_no_plan():
    def run(planned: bool):
        with ExitStack() as stack:
            env = gym.make("CartPole-v1", render_mode="rgb_array")
            stack.callback(env.close)
            seen = [env.reset(seed=3)[0], env.step(0)[0]]
            if planned:
                plan(env)
            state = env.unwrapped.np_random.bit_generator.state
            return [*seen, env.step(1)[0], env.render(), env.reset()[0], env.spec], state

    (bare, bare_state), (planned, planned_state) = run(False), run(True)
    assert bare_state == planned_state
    assert all(np.array_equal(a, b) for a, b in zip(bare[:-1], planned[:-1], strict=True))
    assert bare[-1] == planned[-1]


# Trials


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((480, 640, 3), 0),
        ((480, 640), 0),
        ((3, 96, 96), 1),
        ((84, 84, 4), 0),
        ((2, 480, 640, 3), 1),
        ((7, 7, 3), None),
        ((100,), None),
        ((), None),
        ((0, 3), None),
    ],
)
def test_where_the_pictures_in_an_array_are(shape, axis):
    assert picture_axis(shape) == axis


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "uint16", "int64", "uint64", "float16", "float32", "complex64"]
)
@pytest.mark.parametrize("shape", [(), (7,), (32, 24), (3, 32, 24), (32, 24, 3), (0,)])
def test_synthetic_rows_have_the_form_of_their_leaf_and_move(shape, dtype):
    leaf = Leaf("a", shape, dtype)
    rows = synthetic_rows(leaf)
    assert (rows.shape[1:], rows.dtype.name) == (shape, dtype)
    assert np.array_equal(rows, synthetic_rows(leaf))
    if shape != (0,):
        assert len(np.unique(rows)) > 1
        assert not np.array_equal(*np.split(rows, 2))


def test_synthetic_pictures_use_the_range_of_their_kind():
    def highest(dtype, kind):
        return synthetic_rows(Leaf("a", (64, 64), dtype, kind)).max()

    assert 200 < highest("uint8", "image") <= 255
    assert 5000 < highest("uint16", "depth") <= 10_000
    assert highest("uint8", "segmentation") <= 8
    assert 0.5 < highest("float32", "depth") <= 1


def test_synthetic_lists_and_texts_change_in_length():
    points = synthetic_rows(Leaf("a", (3,), "float32", ragged=True))
    assert isinstance(points, Ragged)
    assert points.values.shape == (points.lengths.sum(), 3)
    assert len(set(points.lengths.tolist())) > 1
    words = synthetic_rows(Leaf("a", (), "text", metadata={"max_length": 5}))
    assert {len(word) for word in words} == set(range(6))
    assert {json.loads(text) is not None for text in synthetic_rows(Leaf("a", (), "json"))} == {True}


@pytest.mark.parametrize("per", ["moment", "transition"])
@pytest.mark.parametrize(
    ("storage", "shape"),
    [
        (HDF5Storage(), (7,)),
        (HDF5Storage(compression="lzf"), (7,)),
        (ZarrStorage(), (64, 48, 3)),
        (ZarrStorage(codec="zstd"), (64, 48, 3)),
        (VideoStorage(), (64, 48, 3)),
        (VideoStorage(codec="ffv1"), (64, 48, 3)),
    ],
)
def test_every_storage_can_be_tried_with_any_number_of_rows(storage, shape, per):
    leaf = Leaf("a/b", shape, "uint8", "image", per)
    rows = synthetic_rows(leaf)
    for count in (2, 3, 20):
        assert trial(storage, leaf, rows[:count]).bytes > 0
    assert trial(storage, leaf, rows).bytes <= rows[0].nbytes + 200


# Real environments

pytestmark = pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
"""Box2D's SWIG types: raised as an error inside its import, this warning ends in a segmentation fault."""


def test_real_frames_make_the_plan_of_a_real_game_true():
    ale = pytest.importorskip("ale_py")
    gym.register_envs(ale)
    with ExitStack() as stack:
        env = gym.make("ALE/Pong-v5", disable_env_checker=True)
        stack.callback(env.close)
        frames = [env.reset(seed=0)[0], *(env.step(0)[0] for _ in range(19))]
        assert not row(plan(env), "observation").exact
        found = row(plan(env, frames=frames), "observation")
        assert (found.exact, found.storage) == (True, "ZarrStorage()")
        assert found.bytes_per_step < 5000


@pytest.mark.parametrize("scale", [0.001, 1.0])
def test_depth_that_is_kept_as_steps_is_planned_with_its_loss_and_its_delay(scale):
    leaf = Leaf("depth", (48, 64), "float32", "depth")
    planned = plan([leaf], storage=layout([leaf], keys={"depth": DepthStorage(scale=scale)}))
    (row,) = planned.rows
    assert not row.exact and 0 < row.bytes_per_step < leaf.nbytes
    assert any("depth: a kill loses up to 1 frames" in note for note in planned.notes)
