"""From a space to disk and back: every space, shape and dtype through a Recorder, by every storage that takes it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import OrderedDict
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cameras import camera_env, camera_rows, check_camera_rows
from environments import CountingEnv, ScriptEnv, roll
from gymnasium import spaces
from hypothesis import given, settings
from spaces import BOXES, DRAWABLE, facts, nested_spaces

from recorder import (
    DamagedError,
    DictStorage,
    Episode,
    HDF5Storage,
    MismatchError,
    Recorder,
    Recording,
    RowError,
    VideoStorage,
    ZarrStorage,
    layout,
)
from recorder.storages.base import Storage


def record(path: Path, inner: gym.Env[Any, Any], episodes: int = 1, **options: Any) -> Episode:
    """Record an environment, and return the last episode."""
    with Recorder(inner, path, **{"verbose": False, **options}) as env:
        roll(env, episodes)
    return Recording(path)[-1]


def record_rows(path: Path, space: spaces.Space[Any], rows: Sequence[Any], **options: Any) -> Episode:
    return record(path, ScriptEnv(space, list(rows)), **options)


def storage_of(path: Path, leaf: str = "observation") -> Storage:
    found = Recording(path)
    return found.schema.storage.of(found.leaves[leaf])


def values(episode: Episode) -> list[Any]:
    """Return the observations of an episode one by one, as the environment gave them."""
    return [episode[1].observation, *(step.next_observation for step in episode)]


def same(found: Any, given: Any) -> bool:
    """Whether a value came back: the same structure and dtypes, in the byte order of this machine."""
    match given:
        case None | str():
            return bool(found == given)
        case dict():
            return list(found) == list(given) and all(same(found[key], given[key]) for key in given)
        case tuple() | list():
            return len(found) == len(given) and all(map(same, found, given))
    one, other = np.asarray(found), np.asarray(given)
    equal = np.array_equal(one, other, equal_nan=other.dtype.kind == "f")
    return equal and one.dtype == other.dtype.newbyteorder("=")


class SamplingEnv(gym.Env[Any, Any]):
    """Draws its observations from a space, and notes what it gave and was given."""

    def __init__(self, space: spaces.Space[Any], steps: int = 4) -> None:
        self.observation_space = space
        self.action_space = space
        self.length = steps
        self.given: list[Any] = []
        self.taken: list[Any] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.given, self.taken = [self.observation_space.sample()], []
        return self.given[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(self.observation_space.sample())
        self.taken.append(action)
        return self.given[-1], 0.0, len(self.taken) == self.length, False, {}


def check_samples(path: Path, space: spaces.Space[Any]) -> None:
    space.seed(7)
    inner = SamplingEnv(space)
    episode = record(path, inner, 2)
    assert same(values(episode), inner.given)
    assert same([step.action for step in episode], inner.taken)


@pytest.mark.parametrize("space", [space for space in DRAWABLE if space.id != "box-picture"])  # that one is lossy
def test_samples_of_every_space_come_back_equal_as_observations_and_actions(
    tmp_path: Path, space: spaces.Space[Any]
) -> None:
    check_samples(tmp_path, space)
    found = Recording(tmp_path)
    assert facts(found.observation_space) == facts(found.action_space) == facts(space)


@given(space=nested_spaces)
@settings(max_examples=15)
def test_samples_of_any_nested_space_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, space: spaces.Space[Any]
) -> None:
    try:
        space.seed(7)
        space.sample()
    except (ValueError, OverflowError, MemoryError):
        return  # Gymnasium cannot draw from it
    check_samples(tmp_path_factory.mktemp("run"), space)


@pytest.mark.parametrize("space", [box for box in BOXES if box.id in ("box-int64", "box-int64-each", "box-uint64")])
def test_the_largest_and_smallest_numbers_come_back(tmp_path: Path, space: spaces.Box[Any]) -> None:
    rows = [space.low, space.high, space.low]
    np.testing.assert_array_equal(record_rows(tmp_path, space, rows).observations, rows)


PICTURES = [(2, 64, 64), (4, 84, 84), (84, 84, 4), (64, 64, 1), (64, 64, 2), (64, 64, 4), (3, 96, 96), (96, 96, 3)]


@pytest.mark.parametrize("shape", [*PICTURES, (3, 200, 200), (200, 200, 4), (200, 200, 1), (200, 200)])
def test_pictures_and_stacks_of_any_shape_are_exact_by_default(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, *shape), np.uint8)
    found = record_rows(tmp_path, spaces.Box(0, 255, shape, np.uint8), rows).observations
    assert (found.shape, found.dtype) == (rows.shape, np.uint8)
    np.testing.assert_array_equal(found, rows)
    assert storage_of(tmp_path) == ZarrStorage()


@pytest.mark.parametrize(("side", "high"), [(64, 255), (64, 19), (200, 255), (200, 19)])
def test_labels_in_three_channels_are_exact_whatever_their_space_says(tmp_path: Path, side: int, high: int) -> None:
    rows = np.random.default_rng(0).integers(0, 20, (5, side, side, 3), np.uint8)
    episode = record_rows(tmp_path, spaces.Box(0, high, (side, side, 3), np.uint8), rows)
    np.testing.assert_array_equal(episode.observations, rows)


def test_numbers_of_objects_and_depth_in_millimetres_and_metres_are_exact(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    metres = generator.random((48, 64), np.float32)
    metres[::7] = np.inf  # no return
    metres[3, 3] = np.nan
    space = spaces.Dict(
        objects=spaces.Box(0, 10, (7, 7, 3), np.uint8),
        depth=spaces.Box(0, 65535, (48, 64), np.uint16),
        metres=spaces.Box(0, np.inf, (48, 64)),
    )
    row = {
        "objects": generator.integers(0, 11, (7, 7, 3), np.uint8),
        "depth": generator.integers(0, 65536, (48, 64), np.uint16),
        "metres": metres,
    }
    found = record_rows(tmp_path, space, [row] * 3).observations
    for name, value in row.items():
        assert found[name][2].tobytes() == value.tobytes()


def test_keys_that_look_alike_are_different_leaves(tmp_path: Path) -> None:
    keys = ("a/b", "a.b", "a b", "é", "*", "A B", "%2F", "e\u0301", "", "..", "a\x00b", "type", "x" * 300)
    inner = {key: spaces.Discrete(20) for key in keys}
    space = spaces.Dict(OrderedDict(**inner, a=spaces.Dict(b=spaces.Discrete(20))))
    row = {**{key: k for k, key in enumerate(keys)}, "a": {"b": 19}}
    episode = record_rows(tmp_path, space, [row] * 3)
    assert episode[2].observation == row
    assert list(episode.observations) == list(space.spaces)
    paths = [path for path in Recording(tmp_path).leaves if path.startswith("observation/")]
    assert len({path.casefold() for path in paths}) == len(keys) + 1
    assert Recording(tmp_path).observation_space == space


@pytest.mark.parametrize("text", ["", "é", "日本語", "🙂" * 5, "\x00", "a\x00b", "\n\t", "\u202eabc", "ab\ud800"])
def test_text_in_any_script_comes_back(tmp_path: Path, text: str) -> None:
    space = spaces.Dict(text=spaces.Text(9, min_length=0), list=spaces.Sequence(spaces.Text(9, min_length=0)))
    row = {"text": text, "list": (text, "", text)}
    episode = record_rows(tmp_path, space, [row, {"text": "", "list": ()}, row])
    assert values(episode) == [row, {"text": "", "list": ()}, row]


STORAGES = [None, HDF5Storage(), HDF5Storage("lzf"), HDF5Storage("gzip"), ZarrStorage(codec="zstd"), ZarrStorage()]


@pytest.mark.parametrize("storage", STORAGES, ids=str)
@pytest.mark.parametrize("small", [True, False])
def test_the_rule_for_dtypes_is_the_same_for_every_storage(
    tmp_path: Path, storage: Storage | None, small: bool
) -> None:
    """The first row decides; a later one of another dtype is cast where that is exact, and refused where it is not."""
    shape = (2,) if small else (40, 50)
    rows = [np.full(shape, 0.1), np.full(shape, 1, np.int32), np.full(shape, 0.5, np.float32), np.full(shape, 0.1 + 1j)]
    inner = ScriptEnv(spaces.Box(-9, 9, shape, np.float32), [*rows, rows[0]])
    chosen = None if storage is None else DictStorage({"observation": storage}, HDF5Storage())
    with Recorder(inner, tmp_path, storage=chosen, verbose=False) as env:
        env.reset()
        env.step(0)
        env.step(0)
        with pytest.raises(RowError, match="'observation' is float64, got complex128"):
            env.step(0)
        env.step(0)
    column = Recording(tmp_path)[0].columns["observation"]
    assert column.dtype == np.float64
    np.testing.assert_array_equal(column[:], np.float64([rows[0], rows[1], rows[2], rows[0]]))


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float64"]
)
@pytest.mark.parametrize("storage", [HDF5Storage(), ZarrStorage()], ids=str)
def test_arrays_of_every_dtype_come_back_bit_for_bit(tmp_path: Path, dtype: str, storage: Storage) -> None:
    kind = np.dtype(dtype)
    data = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, (4, 60 * kind.itemsize), np.uint8)
    rows = data.view(kind).reshape(4, 6, 10)
    space = spaces.Box(0, 1, (6, 10), kind)
    found = record_rows(tmp_path, space, rows, storage=DictStorage({"observation": storage}, HDF5Storage()))
    assert found.observations.tobytes() == rows.tobytes()
    assert found.observations.dtype == kind


RAGGED = {
    "sequence": spaces.Sequence(spaces.Box(-1, 1, (3,))),
    "sequence of pictures": spaces.Sequence(spaces.Box(0, 255, (20, 20, 3), np.uint8)),
    "graph": spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2,))),
    "one of": spaces.OneOf([spaces.Discrete(5), spaces.Box(0, 255, (32, 32, 3), np.uint8)]),
    "tuple of pictures": spaces.Tuple([spaces.Box(0, 255, size, np.uint8) for size in ((40, 40, 3), (64, 32, 4))]),
}


@pytest.mark.parametrize("name", RAGGED)
def test_rows_of_changing_length_come_back_over_many_episodes_and_flushes(tmp_path: Path, name: str) -> None:
    space = RAGGED[name]
    space.seed(3)
    given: list[list[Any]] = []
    with Recorder(SamplingEnv(space, 9), tmp_path, verbose=False) as env:
        for k in range(4):
            roll(env)
            given.append(env.unwrapped.given)  # type: ignore[attr-defined]
            if k % 2:
                env.flush()
    assert same([values(episode) for episode in Recording(tmp_path)], given)


class Mystery(spaces.Space[Any]):
    """A space that nobody knows."""

    def __init__(self) -> None:
        super().__init__((2,), np.float32)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return {"x": self.np_random.random(2).astype(np.float32), "n": int(self.np_random.integers(9))}

    def contains(self, x: Any) -> bool:
        return isinstance(x, dict)


def test_an_unknown_space_is_kept_by_what_its_samples_are(tmp_path: Path) -> None:
    space = Mystery()
    space.seed(1)
    rows = [space.sample() for _ in range(4)]
    episode = record_rows(tmp_path, space, rows)
    assert [observation["n"] for observation in values(episode)] == [row["n"] for row in rows]
    np.testing.assert_array_equal(episode.observations["x"], [row["x"] for row in rows])


def test_six_hundred_leaves_are_kept(tmp_path: Path) -> None:
    space = spaces.Dict({f"k{i:03d}": spaces.Box(0, 9, (2,)) for i in range(600)})
    rows = [{name: np.full(2, t, np.float32) for name in space} for t in range(4)]
    found = record_rows(tmp_path, space, rows).observations
    assert all(found[name][:, 0].tolist() == [0, 1, 2, 3] for name in space)


class TestVideo:
    @pytest.mark.parametrize("shape", [(641, 481), (101, 101), (1, 1), (97, 95), (128, 129)])
    @pytest.mark.parametrize("codec", ["h264", "ffv1", "h264rgb"])
    def test_pictures_of_odd_sizes_have_their_size_again(
        self, tmp_path: Path, codec: str, shape: tuple[int, int]
    ) -> None:
        y, x = np.mgrid[: shape[0], : shape[1]]
        rows = np.stack([np.stack([x + t, y, x // 2 + y // 2], -1) for t in range(3)]).astype(np.uint8)
        metadata = {"observation": {"kind": "image"}}
        storage = DictStorage({"observation": VideoStorage(codec=codec)}, HDF5Storage())
        space = spaces.Box(0, 255, (*shape, 3), np.uint8)
        found = record_rows(tmp_path, space, rows, metadata=metadata, storage=storage).observations
        assert (found.shape, found.dtype) == (rows.shape, np.uint8)
        if codec != "h264":
            np.testing.assert_array_equal(found, rows)

    @pytest.mark.parametrize("count", [2, 11, 31, 121])
    def test_an_episode_of_any_length_has_as_many_frames_as_rows(self, tmp_path: Path, count: int) -> None:
        ramp = np.arange(128 * 160, dtype=np.uint8).reshape(128, 160)
        rows = [np.stack([ramp + 2 * t, ramp.T.reshape(128, 160), ramp // 2], -1) for t in range(count)]
        space = spaces.Box(0, 255, (128, 160, 3), np.uint8)
        episode = record_rows(
            tmp_path, space, rows, storage=layout(ScriptEnv(space, rows), kinds={"image": VideoStorage()})
        )
        assert len(list(tmp_path.rglob("*.mp4"))) == 1
        assert len(episode.columns["observation"]) == count
        assert episode.columns["observation"][[count - 1, 0]].shape == (2, 128, 160, 3)

    def test_a_black_first_frame_is_no_reason_for_loss(self, tmp_path: Path) -> None:
        rows = np.random.default_rng(0).integers(0, 256, (4, 128, 128, 3), np.uint8)
        rows[0] = 0
        episode = record_rows(tmp_path, spaces.Box(0, 255, (128, 128, 3), np.uint8), rows)
        np.testing.assert_array_equal(episode.observations, rows)

    def test_grey_cameras_are_kept_in_every_form(self, tmp_path: Path) -> None:
        rows = np.random.default_rng(0).integers(0, 256, (4, 141, 129, 1), np.uint8)
        space = spaces.Box(0, 255, (141, 129, 1), np.uint8)
        for codec in ("ffv1", "h264"):
            storage = DictStorage({"observation": VideoStorage(codec=codec)}, HDF5Storage())
            found = record_rows(tmp_path / codec, space, rows, storage=storage).observations
            assert found.shape == rows.shape
        flat = record_rows(tmp_path / "flat", spaces.Box(0, 255, (141, 129), np.uint8), rows[..., 0])
        np.testing.assert_array_equal(flat.observations, rows[..., 0])


HAS_ENTRY_POINT = any(point.name == "imagecodecs_webp" for point in entry_points(group="zarr.codecs"))


class TestFiles:
    def run_alone(self, text: str, path: Path) -> None:
        """Run Python that does not import this package."""
        code = textwrap.dedent(text) + "\nassert 'recorder' not in sys.modules or webp"
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=100)
        assert (done.returncode, done.stderr) == (0, "")

    def test_tables_and_chunks_open_without_this_package(self, tmp_path: Path) -> None:
        rows = camera_rows(6)
        record(tmp_path / "run", camera_env(rows), 2)
        np.savez(tmp_path / "rows.npz", depth=[r["depth"] for r in rows], joints=[r["joints"] for r in rows])
        text = """
            import pathlib, sys, h5py, numpy, zarr
            webp = False
            folder = pathlib.Path(sys.argv[1])
            (shard,) = (folder / "run/shards").iterdir()
            rows = numpy.load(folder / "rows.npz")
            with h5py.File(shard / "data.h5") as file:
                assert (file["observation/joints"][6:] == rows["joints"]).all()
                assert file["observation/note"].asstr()[8] == "éé"
                assert file["%lengths/observation/points"][:6].tolist() == [0, 1, 2, 3, 0, 1]
                assert file["action"].shape == (10,) and file["terminated"][:].sum() == 2
            with h5py.File(shard / "episodes.h5") as file:
                assert file["transitions"][:].tolist() == [5, 5]
                assert file["end"][0] == b"terminated"
            depth = zarr.open_array(shard / "observation/depth.zarr", mode="r")
            assert (depth[:6] == rows["depth"]).all() and depth.shape == (12, 48, 64)
            """
        self.run_alone(text, tmp_path)

    @pytest.mark.skipif(not HAS_ENTRY_POINT, reason="this package was installed before it had the entry point")
    def test_webp_opens_with_zarr_alone(self, tmp_path: Path) -> None:
        rows = camera_rows(6)
        record(tmp_path / "run", camera_env(rows))
        np.save(tmp_path / "rows.npy", [row["wrist"] for row in rows])
        text = """
            import pathlib, sys, numpy, zarr
            webp = True
            folder = pathlib.Path(sys.argv[1])
            (shard,) = (folder / "run/shards").iterdir()
            wrist = zarr.open_array(shard / "observation/wrist.zarr", mode="r")
            assert (wrist[:] == numpy.load(folder / "rows.npy")).all()
            """
        self.run_alone(text, tmp_path)

    def test_a_camera_file_that_is_cut_or_gone_is_named_and_the_rest_reads(self, tmp_path: Path) -> None:
        rows = camera_rows(6)
        with Recorder(camera_env(rows), tmp_path, flush_every=0, verbose=False) as env:
            roll(env, 3)
        first, second, _ = (shard.path for shard in Recording(tmp_path).shards)
        (video,) = first.rglob("*.mp4")
        video.write_bytes(video.read_bytes()[:-100])
        next(second.rglob("wrist.zarr/c*")).write_bytes(b"")
        found = Recording(tmp_path)
        ids = found.table()["id"]
        with pytest.raises(DamagedError, match=rf"episode {ids[0]}: .*{video.name} has"):
            found[0].columns["observation/front"]
        with pytest.raises(DamagedError, match=rf"episode {ids[1]}: .*wrist.zarr/c.* has 0 bytes"):
            found[1].columns["observation/wrist"]
        check_camera_rows(found[2], rows)
        video.unlink()
        with pytest.raises(DamagedError, match="is missing"):
            Recording(tmp_path)[0].columns["observation/front"]

    def test_a_reader_may_hold_an_episode_while_the_next_are_written(self, tmp_path: Path) -> None:
        rows = camera_rows(6)
        with Recorder(camera_env(rows), tmp_path, flush_every=0, verbose=False) as env:
            roll(env)
            env.flush()
            held = Recording(tmp_path)[0]
            held.columns["observation/front"][3]
            for _ in range(3):
                roll(env)
                check_camera_rows(held, rows)
        assert len(Recording(tmp_path)) == 4

    def test_a_second_episode_without_a_key_or_of_another_dtype_is_refused_and_the_first_stays(
        self, tmp_path: Path
    ) -> None:
        space = spaces.Dict(joints=spaces.Box(-9, 9, (2,)), grip=spaces.Discrete(3))
        good = {"joints": np.float32([0.1, 0.2]), "grip": 1}
        record_rows(tmp_path, space, [good] * 3)
        for bad, message in (
            ({"joints": good["joints"]}, r"lacks \['grip'\]"),
            ({**good, "joints": np.float64([0.1, 0.2])}, "'observation/joints' is float32, got float64"),
        ):
            env = Recorder(ScriptEnv(space, [bad] * 3), tmp_path, verbose=False)
            with pytest.raises(RowError, match=message):
                env.reset()
            env.close()
        (episode,) = Recording(tmp_path)
        np.testing.assert_array_equal(episode.observations["joints"], [good["joints"]] * 3)

    def test_a_camera_is_not_appended_in_another_storage_that_was_named(self, tmp_path: Path) -> None:
        rows = camera_rows(4)
        record(tmp_path, camera_env(rows))
        with pytest.raises(MismatchError, match="observation/front: kept as"):
            Recorder(camera_env(rows), tmp_path, storage=layout(camera_env(rows), kinds={"image": ZarrStorage()}))

    def test_an_empty_recording_is_one(self, tmp_path: Path) -> None:
        with Recorder(CountingEnv(3), tmp_path, trash=0, verbose=False) as env:
            roll(env)
            env.discard()
        found = Recording(tmp_path)
        assert (len(found), found.steps, list(found), found[:]) == (0, 0, [], [])
        assert found.table()["id"].shape == (0,)
        assert repr(found).endswith("0 episodes, 0 steps>")
