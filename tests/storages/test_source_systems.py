"""What the systems before this one did with storages works here: by default, by kind, by key, reloaded, read at random.

And where they cut text, dropped keys, swallowed typos or broadcast shapes, a row or an option is refused, or kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import recorder
from recorder import (
    CommitOptions,
    DepthStorage,
    HDF5Storage,
    ImageFileStorage,
    LayoutError,
    MetadataError,
    NpzStorage,
    Recording,
    RecordingWriter,
    RowError,
    VideoStorage,
    ZarrStorage,
    annotate,
    layout,
)
from recorder.metadata.vocabulary import depth_metadata, image_metadata, proprio_metadata
from recorder.storages.base import Storage
from recorder.testing import assert_rows
from recorder.writing.capacity import Capacity

pytest.importorskip("pyarrow")

BARE = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (130, 140, 3), np.uint8),
        "wrist": spaces.Box(0, 255, (48, 64, 3), np.uint8),
        "depth": spaces.Box(0, 10, (24, 32), np.float32),
        "arm": spaces.Dict(
            {"joints": spaces.Box(-3, 3, (7,), np.float32), "gripper": spaces.Box(0, 1, (), np.float64)}
        ),
        "a/b": spaces.Box(-1, 1, (2,), np.float32),
        "task": spaces.Text(12, charset="abc déé\U0001f916"),
        "mode": spaces.Discrete(5),
        "flags": spaces.MultiBinary(3),
        "points": spaces.Sequence(spaces.Box(-1, 1, (3,), np.float32), stack=True),
    }
)

SPACE = annotate(
    BARE,
    {
        "camera": image_metadata(fps=30, source="front"),
        "wrist": image_metadata(format="bgr", fps=15),
        "depth": depth_metadata(units="m", fps=10),
        "arm/joints": proprio_metadata(names=list("abcdefg"), units="rad", frame="base"),
    },
)

EPISODES, ROWS = 5, 40


def row(i: int) -> dict[str, Any]:
    """Return row `i` of all, with something of its own in each leaf."""
    slope = np.add.outer(np.arange(130), np.arange(140))[..., None] // 3 + np.array([0, 20, 40])
    return {
        "camera": np.clip(slope + i % 50, 0, 255).astype(np.uint8),
        "wrist": np.full((48, 64, 3), (i % 250, 10, 200), np.uint8),
        "depth": np.full((24, 32), 0.5 + i / 100, np.float32),
        "arm": {"joints": np.full(7, i / 7, np.float32), "gripper": np.float64(i / 3)},
        "a/b": np.array([i, -i], np.float32),
        "task": ["", "abc", "dé\U0001f916"][i % 3],
        "mode": np.int64(i % 5),
        "flags": np.array([i % 2, i // 2 % 2, 1], np.int8),
        "points": np.full((i % 4, 3), i, np.float32),
    }


CHOICES: dict[str, dict[str, Any]] = {
    "by default": {},
    "Parquet by default": {"default": "ParquetStorage"},
    "npz by default": {"default": "NpzStorage"},
    "by kind": {"default": "ParquetStorage", "kinds": {"image": ImageFileStorage(), "depth": DepthStorage()}},
    "by key": {
        "default": "ParquetStorage",
        "keys": {
            "camera": VideoStorage(codec="h264rgb"),
            "w*": ImageFileStorage("webp"),
            "arm/*": HDF5Storage("gzip"),
            "arm/gripper": None,
            "depth": ZarrStorage(),
        },
    },
    "with options": {"options": {"image": {"crf": 10}, "camera": {"keyframe_every": 5}}},
}


def chosen(choice: str) -> Storage:
    """Return the layout of a choice."""
    made = dict(CHOICES[choice])
    if "default" in made:
        made["default"] = getattr(recorder, made["default"])()
    return layout(SPACE, **made)


@pytest.fixture(scope="module", params=CHOICES)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Record episodes in two sittings, and reload them."""
    path = tmp_path_factory.mktemp("run")
    for sitting in range(2):
        with RecordingWriter(path, SPACE, storage=chosen(request.param)) as writer:
            for episode in range(sitting * 3, [3, EPISODES][sitting]):
                writer.begin()
                for i in range(ROWS):
                    writer.append(row(episode * ROWS + i))
                writer.commit()
    return Recording(path)


def test_all_rows_come_back_read_at_random(recorded: Recording) -> None:
    assert len(recorded) == EPISODES and recorded.steps == EPISODES * ROWS
    storage, generator = recorded.schema.storage, np.random.default_rng(0)
    expected = [row(i) for i in range(EPISODES * ROWS)]
    for episode in generator.permutation(EPISODES):
        picked = generator.integers(0, ROWS, 12)
        values = [expected[episode * ROWS + i] for i in picked]
        for path in (path for path in recorded.leaves if path.split("/")[0] != "digest"):
            leaf = recorded.leaves[path]
            found = recorded[int(episode)].columns[path][picked]
            wanted = [_at(value, path) for value in values]
            if leaf.ragged or leaf.dtype == "text":
                assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True)), path
            else:
                assert_rows(leaf, found, np.stack(wanted), _bound(storage.of(leaf), leaf))


def _at(value: Mapping[str, Any], path: str) -> Any:
    for part in path.split("/"):
        value = value[part.replace("%2F", "/")]
    return value


def _bound(storage: Storage, leaf: recorder.Leaf) -> float:
    return 0.0 if storage.exact(leaf) else 0.000_51 if isinstance(storage, DepthStorage) else 3.0


def test_metadata_are_stored_and_come_back_with_the_space(recorded: Recording) -> None:
    assert recorded.space["wrist"].metadata == {"kind": "image", "format": "bgr", "layout": "HWC", "fps": 15}
    assert recorded.leaves["arm/joints"].metadata["names"] == list("abcdefg")
    assert recorded.leaves["depth"].metadata["units"] == "m"
    assert recorded.space == SPACE


def test_each_leaf_is_where_it_was_sent() -> None:
    def of(choice: str) -> Callable[[str], str]:
        storage = chosen(choice)
        return lambda path: type(storage.of(recorder.Leaf(path))).__name__  # type: ignore[attr-defined]

    assert [of("by default")(path) for path in ("camera", "wrist", "task")] == [
        "VideoStorage",
        "ZarrStorage",
        "HDF5Storage",
    ]
    assert [of("by kind")(path) for path in ("wrist", "depth", "task")] == [
        "ImageFileStorage",
        "DepthStorage",
        "ParquetStorage",
    ]
    assert [of("by key")(path) for path in ("arm/joints", "arm/gripper", "a%2Fb", "depth")] == [
        "HDF5Storage",
        "ParquetStorage",
        "ParquetStorage",
        "ZarrStorage",
    ]


@pytest.mark.parametrize("choice", ["by default", "Parquet by default", "by key"])
def test_a_capacity_smaller_than_the_data_keeps_the_newest_whole_episodes(tmp_path: Path, choice: str) -> None:
    options = CommitOptions(capacity=Capacity(steps=2 * ROWS))
    with RecordingWriter(tmp_path / "run", SPACE, storage=chosen(choice), options=options) as writer:
        for episode in range(EPISODES):
            writer.begin()
            for i in range(ROWS):
                writer.append(row(episode * ROWS + i))
            writer.commit()
            writer.flush()
    left = Recording(tmp_path / "run")
    assert [len(episode) for episode in left] == [ROWS, ROWS]
    assert left[0].columns["a%2Fb"][0].tolist() == [3 * ROWS, -3 * ROWS]
    assert left[-1].columns["task"][-1] == row(EPISODES * ROWS - 1)["task"]


def test_cameras_of_several_sizes_and_rates_lie_in_one_recording(tmp_path: Path) -> None:
    import av

    both = layout(SPACE, kinds={"image": VideoStorage(codec="ffv1")})
    with RecordingWriter(tmp_path / "run", SPACE, storage=both) as writer:
        writer.begin()
        for i in range(6):
            writer.append(row(i))
        writer.commit()
    found = {}
    for file in (tmp_path / "run").glob("shards/*/*/000000.mp4"):
        with av.open(file) as video:
            stream = video.streams.video[0]
            found[file.parent.name] = (stream.width, stream.height, stream.average_rate)
    assert found == {"camera": (140, 130, 30), "wrist": (64, 48, 15)}


@pytest.mark.parametrize("default", [HDF5Storage(), NpzStorage(), recorder.ParquetStorage()], ids=lambda s: s.id)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "abc abc abc d"}, "at most 12 characters, got 13"),
        ({"camera": np.zeros((3, 130, 140), np.uint8)}, "camera"),
        ({"a/b": np.zeros(1, np.float32)}, r"shape \(2,\), got \(1,\)"),
        ({"arm": {"joints": np.zeros((1, 7)), "gripper": 0.0}}, r"shape \(7,\), got \(1, 7\)"),
        ({"mode": 3.7}, "mode"),
        ({"wrist": np.full((48, 64, 3), 0.5)}, "wrist"),
        ({"tsak": "abc"}, "tsak"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_was_cut_cast_or_broadcast_is_refused(
    tmp_path: Path, default: Storage, change: dict[str, Any], message: str
) -> None:
    with RecordingWriter(tmp_path / "run", SPACE, storage=layout(SPACE, default=default)) as writer:
        writer.begin()
        writer.append(row(0))
        with pytest.raises(RowError, match=message):
            writer.append({**row(1), **change})
        writer.append(row(2))
        writer.commit()
    episode = Recording(tmp_path / "run")[0]
    assert [len(column) for column in episode.columns.values()] == [2] * len(episode.columns)
    assert episode.columns["a%2Fb"][:].tolist() == [[0, 0], [2, -2]], "a key with a slash is kept"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: layout(SPACE, keys={"camrea": ZarrStorage()}), LayoutError, "did you mean 'camera'"),
        (lambda: layout(SPACE, kinds={"imgae": ZarrStorage()}), LayoutError, "did you mean 'image'"),
        (lambda: layout(SPACE, options={"image": {"crff": 3}}), LayoutError, "did you mean 'crf'"),
        (lambda: layout(SPACE, options={"camera": {"codec": "h265"}}), LayoutError, "one of h264"),
        (lambda: annotate(SPACE, {"camrea": {}}), MetadataError, "did you mean 'camera'"),
        (lambda: image_metadata(format="rbg"), MetadataError, "did you mean 'rgb'"),
        (lambda: recorder.ParquetStorage(compression="snapy").check([]), LayoutError, "snappy"),
    ],
)
def test_what_was_swallowed_is_refused_with_the_nearest_word(
    make: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()
