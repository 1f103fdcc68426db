"""The command line: what each command says and does, for people and for programs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import imagecodecs
import numpy as np
import pytest
from gymnasium import spaces

from recorder import Recorder, Recording, RecordingWriter, StepSpace, __version__
from recorder.cli import main, summing
from recorder.cli.printing import Heading, cell, columns_of, facts, table
from recorder.statistics import spans

COMMANDS = ("record", "plan", "info", "list", "show", "follow", "verify", "recover", "stats")

ENVIRONMENTS = """
    import ctypes
    import pathlib
    import time

    import gymnasium
    import numpy as np

    class Talker(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(4)

        def __init__(self, length=3, pause=0.0, breaks_at=None, info=None):
            ctypes.CDLL(None).puts(b"said in C")
            print("said in Python")
            self.length, self.pause, self.breaks_at, self.info = length, pause, breaks_at, info
            self.resets = 0

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            self.resets += 1
            if self.resets == 3:
                pathlib.Path("third").touch()
            return np.zeros(2, np.float32), {"steps": 0}

        def step(self, action):
            time.sleep(self.pause)
            self.steps += 1
            if self.steps == self.breaks_at:
                raise ZeroDivisionError("the simulator\\nis gone")
            info = {"steps": self.steps} | ({"simulator": object()} if self.info else {})
            return np.full(2, 0.1, np.float32), 1.0, self.steps == self.length, False, info

    gymnasium.register("Talker-v0", Talker)
"""

POLICIES = """
    def three(observation):
        return 3

    def steps(observation, info):
        return info["steps"] % 4

    def shape(observation, scale=1):
        return observation.shape[0] * scale

    def fails(observation):
        raise ValueError("no idea")

    def wrong(a, b, c):
        return 0

    number = 3
"""


class Answer(NamedTuple):
    out: str
    err: str

    @property
    def json(self) -> Any:
        return strict(self.out)


def strict(text: str) -> Any:
    """Read strict JSON: one value, no NaN and no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


Run = Callable[..., Answer]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process and return what it printed."""
    monkeypatch.setattr(sys, "path", sys.path[:])

    def call(*arguments: object, code: int = 0) -> Answer:
        capsys.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        return Answer(*capsys.readouterr())

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Go to a folder with environments and policies."""
    (tmp_path / "cli_environments.py").write_text(textwrap.dedent(ENVIRONMENTS))
    (tmp_path / "cli_policies.py").write_text(textwrap.dedent(POLICIES))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("cli_environments", "cli_policies"):
        sys.modules.pop(name, None)
    gym.registry.pop("Talker-v0", None)


@pytest.fixture(scope="module")
def cart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of three episodes."""
    path = tmp_path_factory.mktemp("recordings") / "cart"
    arguments = ["CartPole-v1", "--episodes", "3", "--to", str(path), "--seed", "0", "--label", "task=go"]
    assert main(["record", *arguments]) == 0
    return path


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of pictures."""
    path = tmp_path_factory.mktemp("recordings") / "car"
    assert main(["record", "CarRacing-v3", "--to", str(path), "--seed", "0", "--max-steps", "12"]) == 0
    return path


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "recorder", *map(str, arguments)]


class TestRecord:
    def test_it_says_what_it_made_and_where(self, run: Run, tmp_path: Path) -> None:
        answer = run("record", "CartPole-v1", "--episodes", 2, "--to", tmp_path / "a b", "--seed", 3)
        first, second = Recording(tmp_path / "a b")
        lines = answer.out.splitlines()
        assert re.fullmatch(rf"recorded   2 episodes, {len(first) + len(second)} steps, [\d.]+ kB", lines[0])
        assert lines[1] == "ended      terminated 2"
        assert lines[2].startswith(f"return     {min(first.return_, second.return_):g} to ")
        assert lines[3] == f"recording  {tmp_path}/a b, now 2 episodes"
        assert lines[4] == f"look       recorder list '{tmp_path}/a b'"

    def test_its_progress_bar_is_quiet_where_there_is_no_terminal(self, run: Run, tmp_path: Path) -> None:
        assert run("record", "CartPole-v1", "--to", tmp_path / "cart").err == ""

    def test_its_json_is_what_is_on_disk(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "lake"
        run("record", "FrozenLake-v1", "--to", path, "--seed", 1)
        said = run("record", "FrozenLake-v1", "--to", path, "--seed", 1, "--episodes", 2, "--json").json
        recording = Recording(path)
        assert said["path"] == str(path) and said["in_all"] == 3 == len(recording)
        assert said["episodes"] == 2 and said["steps"] == sum(map(len, recording[1:]))
        assert said["ends"] == {"terminated": 2} and said["return"]["max"] == max(e.return_ for e in recording[1:])
        newest = recording.shards[-1]
        assert said["bytes"] == sum((newest.path / name).stat().st_size for name in newest.manifest.files)

    def test_a_seed_makes_the_same_episodes_again(self, run: Run, tmp_path: Path) -> None:
        for name in ("one", "two"):
            run("record", "CartPole-v1", "--episodes", 2, "--to", tmp_path / name, "--seed", 7)
        for one, two in zip(Recording(tmp_path / "one"), Recording(tmp_path / "two"), strict=True):
            np.testing.assert_array_equal(one.observations, two.observations)
            np.testing.assert_array_equal(one.actions, two.actions)
        assert [episode.seed for episode in Recording(tmp_path / "one")] == [7, 8]

    def test_a_policy_of_the_current_folder_is_given_the_observation_and_the_info_if_it_takes_it(
        self, run: Run, here: Path
    ) -> None:
        expected = {"three": [3, 3, 3], "steps": [0, 1, 2], "shape": [2, 2, 2]}
        for name, actions in expected.items():
            run("record", "cli_environments:Talker-v0", "--to", name, "--policy", f"cli_policies:{name}")
            (episode,) = Recording(here / name)
            assert episode.actions.tolist() == actions
            assert Recording(here / name).metadata == {"policy": f"cli_policies:{name}"}

    @pytest.mark.parametrize(
        ("policy", "code", "message"),
        [
            ("three", 2, "'three' is neither random, human, sb3:file.zip nor module:function"),
            ("nowhere:three", 1, "No module named 'nowhere'; the current folder is searched too"),
            ("cli_policies:thre", 1, "cli_policies has no function 'thre', did you mean 'three'?"),
            ("cli_policies:number", 1, "has no function 'number'"),
            ("cli_policies:wrong", 1, "takes (observation) or (observation, info), not (a, b, c)"),
            ("cli_policies:fails", 1, "raised ValueError: no idea"),
        ],
    )
    def test_what_is_wrong_with_a_policy_is_said_in_one_line(
        self, run: Run, here: Path, policy: str, code: int, message: str
    ) -> None:
        answer = run("record", "CartPole-v1", "--to", "x", "--policy", policy, code=code)
        assert message in answer.err and answer.err.count("\n") == 1 and not answer.out
        assert not (here / "x").exists()

    def test_labels_are_json_or_text(self, run: Run, tmp_path: Path) -> None:
        labels = ["success=true", "task=pick the cup", "score=1.5", "note=a=b", "limit=NaN"]
        arguments = [part for label in labels for part in ("--label", label)]
        run("record", "CartPole-v1", "--to", tmp_path / "cart", *arguments)
        (episode,) = Recording(tmp_path / "cart")
        assert episode.labels == {
            "success": True,
            "task": "pick the cup",
            "score": 1.5,
            "note": "a=b",
            "limit": "NaN",
        }

    def test_arguments_and_steps_are_those_of_the_environment(self, run: Run, tmp_path: Path) -> None:
        arguments = ("--kwargs", '{"map_name": "8x8"}', "--max-steps", 2, "--seed", 0)
        run("record", "FrozenLake-v1", "--to", tmp_path / "lake", *arguments)
        recording = Recording(tmp_path / "lake")
        assert recording.observation_space == spaces.Discrete(64)
        assert recording.spec is not None and recording.spec.max_episode_steps == 2
        assert (len(recording[0]), recording[0].end) == (2, "truncated")

    def test_what_the_environment_renders_is_kept_if_asked(self, run: Run, tmp_path: Path) -> None:
        run("record", "FrozenLake-v1", "--to", tmp_path / "lake", "--render", "--seed", 0, "--max-steps", 3)
        (episode,) = Recording(tmp_path / "lake")
        assert episode.renders.shape == (len(episode) + 1, 256, 256, 3)

    def test_what_to_do_with_an_existing_recording_is_said(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "cart"
        for existing, code, episodes in (
            ("refuse", 0, 1),
            ("append", 0, 2),
            ("refuse", 1, 2),
            ("replace", 0, 1),
        ):
            run("record", "CartPole-v1", "--to", path, "--existing", existing, code=code)
            assert len(Recording(path)) == episodes
        assert "observation: Discrete here, Box" in run("record", "FrozenLake-v1", "--to", path, code=1).err

    def test_what_an_environment_prints_is_not_on_stdout(self, here: Path) -> None:
        arguments = ("record", "cli_environments:Talker-v0", "--to", "talk", "--json")
        done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60)
        assert strict(done.stdout)["episodes"] == 1
        assert sorted(done.stderr.splitlines()) == ["said in C", "said in Python"]

    def test_infos_that_hold_no_data_are_named(self, run: Run, here: Path) -> None:
        arguments = ("record", "cli_environments:Talker-v0", "--kwargs", '{"info": true}', "--to", "talk")
        assert "not kept   info/simulator (object)\n" in run(*arguments).out
        assert run(*arguments, "--json").json["unkept"] == {"info/simulator": "object"}

    def test_an_environment_that_raises_leaves_what_was_recorded(self, run: Run, here: Path) -> None:
        arguments = ("record", "cli_environments:Talker-v0", "--kwargs", '{"breaks_at": 3}', "--to", "talk")
        answer = run(*arguments, code=1)
        assert answer.out.startswith("recorded   1 episode, 2 steps") and "exception 1" in answer.out
        assert answer.err.endswith("recorder: ZeroDivisionError: the simulator; is gone\n")
        assert [(len(episode), episode.end) for episode in Recording(here / "talk")] == [(2, "exception")]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("CartPol-v1",), "Did you mean: `CartPole`? If a package brings it"),
            (("nowhere:CartPole-v1",), "No module named 'nowhere'"),
            (("CartPole-v1", "--kwargs", '{"wheels": 4}'), "unexpected keyword argument 'wheels'"),
            (("CartPole-v1", "--render", "--kwargs", '{"render_mode": "human"}'), "render_mode='rgb_array'"),
        ],
    )
    def test_an_environment_that_cannot_be_made_is_said_in_one_line(
        self, run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
    ) -> None:
        answer = run("record", *arguments, "--to", tmp_path / "x", code=1)
        assert message in answer.err and answer.err.count("\n") == 1 and not answer.out

    def test_ctrl_c_keeps_the_episodes_so_far_and_the_running_one(self, here: Path) -> None:
        arguments = ("--kwargs", '{"pause": 0.01, "length": 5}', "--episodes", 10_000, "--json")
        process = subprocess.Popen(
            command("record", "cli_environments:Talker-v0", "--to", "talk", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until((here / "third").exists, process)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
        recording = Recording(here / "talk")
        assert process.returncode == 130 and err.endswith("recorder: interrupted\n") and "Traceback" not in err
        assert strict(out)["episodes"] == len(recording)
        assert [episode.end for episode in recording][:2] == ["terminated", "terminated"]
        assert all(len(episode) == 5 or episode.end == "interrupted" for episode in recording)


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while not ready():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)


class TestPlan:
    def test_it_says_what_is_kept_how_and_why(self, run: Run) -> None:
        lines = run("plan", "CartPole-v1").out.splitlines()
        assert lines[0].split()[:5] == ["leaf", "shape", "dtype", "kind", "kept"]
        assert re.match(r"observation +\(4,\) +float32 +state +HDF5Storage\(\) +exact +16 ", lines[1])
        assert lines[7].startswith("total") and any(line.startswith("- ") for line in lines[8:])

    def test_it_can_be_measured_on_what_the_environment_shows(self, run: Run) -> None:
        said = run("plan", "CarRacing-v3", "--steps", 8, "--json").json
        (camera,) = (row for row in said["rows"] if row["path"] == "observation")
        assert camera["shape"] == [96, 96, 3] and camera["exact"] and 0 < camera["bytes_per_step"] < 96 * 96 * 3
        assert any("given rows of observation" in note for note in said["notes"])


class TestInfo:
    def test_its_json_says_what_the_recording_says(self, run: Run, cart: Path) -> None:
        recording, said = Recording(cart), run("info", cart, "--json").json
        files = [path for path in (cart / "shards").rglob("*") if path.is_file() and path.name != "shard.json"]
        assert (said["episodes"], said["steps"]) == (3, recording.steps)
        assert said["bytes"] == sum(path.stat().st_size for path in files)
        assert said["ends"] == {"terminated": 3} and said["metadata"] == {"policy": "random"}
        assert said["environment"]["id"] == "CartPole-v1" and said["fps"] == 50 and said["not_rebuildable"] == []
        assert said["return"]["mean"] == pytest.approx(np.mean([episode.return_ for episode in recording]))
        assert said["versions"]["numpy"] == np.__version__
        assert [leaf["path"] for leaf in said["leaves"]] == list(recording.leaves)
        assert said["leaves"][0]["storage"] == "HDF5Storage()" and said["leaves"][0]["exact"]
        assert [writer["writer"] for writer in said["writers"]] == [recording[0].id.split("-")[0]]

    def test_it_has_a_table_of_leaves(self, run: Run, car: Path) -> None:
        out = run("info", car).out
        assert re.search(r"^environment  CarRacing-v3$", out, re.M) and re.search(r"^steps +12$", out, re.M)
        assert re.search(r"^observation +image +\(96, 96, 3\) +uint8 +steps \+ 1 +ZarrStorage\(\) +exact$", out, re.M)

    def test_a_recording_without_episodes_has_nothing_to_sum(self, run: Run, tmp_path: Path) -> None:
        env = gym.make("CartPole-v1")
        with Recorder(env, tmp_path, keep_if=lambda episode: False, trash=0, verbose=False) as recorder:
            recorder.reset()
            recorder.step(recorder.action_space.sample())
        said = run("info", tmp_path, "--json").json
        assert (said["episodes"], said["bytes"], said["return"], said["environment"]) == (0, 0, None, None)
        assert run("info", tmp_path).out.startswith("recording ")
        assert run("list", tmp_path, "--json").json["episodes"] == []
        assert run("list", tmp_path).out.split() == [
            "position",
            "id",
            "steps",
            "end",
            "return",
            "seed",
            "labels",
        ]
        assert "0 episodes" in run("show", tmp_path, 0, code=1).err


class TestList:
    def test_it_has_a_row_for_each_episode(self, run: Run, cart: Path) -> None:
        title, *rows = run("list", cart).out.splitlines()
        assert title.split() == ["position", "id", "steps", "end", "return", "seed", "labels"]
        for i, (row, episode) in enumerate(zip(rows, Recording(cart), strict=True)):
            values = [
                str(i),
                episode.id,
                str(len(episode)),
                "terminated",
                f"{episode.return_:g}",
                str(i),
                "task=go",
            ]
            assert row.split() == values

    def test_columns_of_numbers_end_below_their_titles(self, run: Run, cart: Path) -> None:
        lines = run("list", cart).out.splitlines()
        for name in ("position", "steps", "return"):
            end = lines[0].index(name) + len(name)
            assert all(line[end - 1] != " " and line[end : end + 2].strip() == "" for line in lines)

    def test_it_can_be_sorted_and_cut(self, run: Run, cart: Path) -> None:
        returns = [episode.return_ for episode in Recording(cart)]
        said = run("list", cart, "--sort", "return", "--descending", "--limit", 2, "--json").json
        assert [episode["return"] for episode in said["episodes"]] == sorted(returns, reverse=True)[:2]
        assert said["more"] == 1
        assert run("list", cart, "--limit", 1).out.endswith("\n2 more; --limit 0 lists all\n")

    def test_unknown_seeds_and_returns_are_last(self, run: Run, tmp_path: Path) -> None:
        space = StepSpace(spaces.Discrete(3), spaces.Discrete(2))
        with RecordingWriter(tmp_path, space) as writer:
            for seed, reward in ((None, np.nan), (2**70, -np.inf), (5, 1.0)):
                writer.begin(seed=seed)
                writer.append({"observation": 0})
                step = {"action": 1, "reward": reward, "terminated": True, "truncated": False}
                writer.append({"observation": 1, **step})
                writer.commit()
        seeds = [episode["seed"] for episode in run("list", tmp_path, "--sort", "seed", "--json").json["episodes"]]
        assert seeds == [5, str(2**70), None]
        rows = run("list", tmp_path, "--sort", "return", "--json").json["episodes"]
        assert [episode["return"] for episode in rows] == ["-inf", 1.0, "nan"]

    def test_a_pipe_is_given_all_rows_in_full(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "cart"
        run(
            "record",
            "CartPole-v1",
            "--episodes",
            60,
            "--max-steps",
            1,
            "--to",
            path,
            "--label",
            f"note={'x' * 300}",
        )
        lines = run("list", path).out.splitlines()
        assert len(lines) == 61 and all(line.endswith("x" * 300) for line in lines[1:])
        shown = on_terminal(72, "list", path).splitlines()
        assert len(shown) == 52 and shown[-1] == "10 more; --limit 0 lists all"
        assert max(map(len, shown)) <= 72 and shown[1].endswith("xx…")


def on_terminal(width: int, *arguments: object) -> str:
    """Run a command on a terminal of that width and return what it shows, which has no codes for colours."""
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(command(*arguments), stdout=inner, env=environment) as process:
        os.close(inner)
        text = b""
        while part := read_terminal(outer):
            text += part
        assert process.wait(60) == 0
    os.close(outer)
    assert b"\x1b" not in text
    return text.decode().replace("\r\n", "\n")


def read_terminal(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # how Linux says that nobody writes any more
        return b""


class TestShow:
    def test_numbers_of_each_leaf_are_those_of_its_rows(self, run: Run, car: Path) -> None:
        (episode,), said = Recording(car), run("show", car, 0, "--json").json
        assert (said["id"], said["steps"], said["end"], said["seed"]) == (episode.id, 12, "truncated", 0)
        leaves = {leaf["path"]: leaf for leaf in said["leaves"]}
        assert list(leaves) == list(episode.columns)
        for path, column in episode.columns.items():
            rows, leaf = column[:], leaves[path]
            assert (leaf["rows"], leaf["shape"], leaf["dtype"]) == (
                len(rows),
                list(rows.shape[1:]),
                str(rows.dtype),
            )
            assert (leaf["min"], leaf["max"]) == (rows.min(), rows.max())
            assert leaf["mean"] == pytest.approx(rows.mean(dtype=np.float64))
        out = run("show", car, episode.id).out
        assert re.search(r"^observation +13  \(96, 96, 3\)  uint8 +0 +[\d.]+ +\d+$", out, re.M)

    def test_texts_and_numbers_that_are_missing_or_not_finite_are_counted(self, run: Run, tmp_path: Path) -> None:
        space = spaces.Dict(
            {
                "word": spaces.Text(9),
                "x": spaces.Box(-np.inf, np.inf, (2,), np.float64),
                "list": spaces.Sequence(spaces.Discrete(9), stack=True),
            }
        )
        with RecordingWriter(tmp_path, space) as writer:
            writer.begin()
            for word, x, items in (("a", (1, np.nan), [4]), ("b", (np.inf, 2), []), ("a", (3, 4), [1, 2])):
                writer.append({"word": word, "x": np.array(x, np.float64), "list": np.array(items, np.int64)})
            writer.commit()
        leaves = {leaf["path"]: leaf for leaf in run("show", tmp_path, 0, "--json").json["leaves"]}
        assert leaves["word"]["distinct"] == 2 and leaves["word"]["min"] is None
        assert (leaves["x"]["min"], leaves["x"]["max"], leaves["x"]["nan"]) == (1.0, "inf", 1)
        assert (leaves["list"]["lengths"], leaves["list"]["mean"]) == ([0, 2], pytest.approx(7 / 3))
        out = run("show", tmp_path, 0).out
        assert re.search(r"^word .* 2 different$", out, re.M) and re.search(r"^x .* 1 NaN$", out, re.M)
        assert re.search(r"^list +3  \(n,\) .* n from 0 to 2$", out, re.M)

    def test_a_column_is_summed_up_in_blocks(self, cart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        column = Recording(cart)[0].columns["observation"]
        whole = summing.sum_up(column)
        monkeypatch.setattr(spans, "BLOCK_ROWS", 3)
        assert {len(rows) for rows in spans.blocks(column, 0, len(column))} <= {1, 2, 3}
        assert summing.sum_up(column) == pytest.approx(whole)

    def test_infos_that_are_absent_from_some_rows_are_counted(self, run: Run, tmp_path: Path) -> None:
        path = tmp_path / "grid"
        run("record", "minigrid:MiniGrid-Empty-5x5-v0", "--to", path, "--seed", 0, "--max-steps", 4)
        leaves = {leaf["path"]: leaf for leaf in run("show", path, 0, "--json").json["leaves"]}
        assert leaves["observation/image"]["shape"] == [7, 7, 3] and leaves["observation/mission"]["distinct"] == 1
        run(
            "record",
            "Taxi-v4" if "Taxi-v4" in gym.registry else "Taxi-v3",
            "--to",
            tmp_path / "taxi",
            "--max-steps",
            4,
        )
        leaves = {leaf["path"]: leaf for leaf in run("show", tmp_path / "taxi", 0, "--json").json["leaves"]}
        assert "absent" not in leaves["info/action_mask"] and leaves["info/action_mask"]["max"] == 1

    def test_an_episode_is_found_by_position_and_by_id(self, run: Run, cart: Path) -> None:
        ids = [episode.id for episode in Recording(cart)]
        for name, i in ((0, 0), (-1, 2), ("-3", 0), (ids[1], 1)):
            assert run("show", cart, name, "--step", 1, "--json").json["step"] == 1
            assert run("show", cart, name, "--json").json["id"] == ids[i]
        assert "episode 3 of a recording of 3 episodes" in run("show", cart, 3, code=1).err
        assert "no episode has the id 'x'" in run("show", cart, "x", code=1).err

    def test_a_step_has_what_was_there_before_and_after(self, run: Run, cart: Path) -> None:
        episode = Recording(cart)[1]
        for k, name in ((1, 1), (len(episode), len(episode)), (len(episode), -1)):
            said, step = run("show", cart, 1, "--step", name, "--json").json, episode[k]
            assert said["step"] == k and said["observation"] == step.observation.tolist()
            assert said["next_observation"] == step.next_observation.tolist()
            assert (said["action"], said["reward"], said["terminated"]) == (
                step.action,
                step.reward,
                step.terminated,
            )
        for name in (0, len(episode) + 1, -len(episode) - 1):
            answer = run("show", cart, 1, "--step", name, code=1)
            assert f"has no step {name}, but 1 to {len(episode)}" in answer.err

    def test_a_step_has_the_infos_that_came_with_it(self, run: Run, tmp_path: Path) -> None:
        infos: list[dict[str, Any]] = [{}, {"lives": 3, "plan": [1, [2, 3]]}, {"text": "a\x1bb"}, {"far": np.inf}]
        with RecordingWriter(tmp_path, StepSpace(spaces.Discrete(3), spaces.Discrete(2))) as writer:
            writer.begin()
            for k, info in enumerate(infos):
                step = {"action": 1, "reward": 0.0, "terminated": k == 3, "truncated": False} if k else {}
                writer.append({"observation": 1, "info": info, **step})
            writer.commit()
        for k, values in ((1, {"lives": 3, "plan": [1, [2, 3]]}), (2, {"text": "a\x1bb"}), (3, {"far": "inf"})):
            said = run("show", tmp_path, 0, "--step", k, "--json").json
            assert {path: value for path, value in said.items() if path.startswith("info/")} == {
                f"info/{name}": value for name, value in values.items()
            }
        assert "info/text         a\\x1bb\n" in run("show", tmp_path, 0, "--step", 2).out
        assert "absent from 3 rows" in run("show", tmp_path, 0).out
        assert re.search(r"^info/lives +other +\(\) +int64 +some ", run("info", tmp_path).out, re.M)

    def test_a_step_shows_pictures_in_short_to_people_and_in_full_to_programs(self, run: Run, car: Path) -> None:
        frame = Recording(car)[0].observations[4]
        assert run("show", car, 0, "--step", 4, "--json").json["next_observation"] == frame.tolist()
        line = f"next_observation  uint8 (96, 96, 3), {frame.min()} to {frame.max()}\n"
        assert line in run("show", car, 0, "--step", 4).out

    def test_a_contact_sheet_holds_the_frames_of_the_episode(self, run: Run, car: Path, tmp_path: Path) -> None:
        answer = run("show", car, 0, "--frames", tmp_path / "car.png", "--count", 3)
        assert f"frames  {tmp_path / 'car.png'}\n" in answer.out
        sheet = imagecodecs.imread(tmp_path / "car.png")
        frames = Recording(car)[0].observations[[0, 6, 12]].repeat(2, axis=1).repeat(2, axis=2)
        found = np.lib.stride_tricks.sliding_window_view(sheet, (192, 192, 3))[..., 0, :, :, :]
        for frame in frames:
            assert any(
                (found[y, x] == frame).all() for y, x in np.argwhere((sheet[:-191, :-191] == frame[0, 0]).all(-1))
            )

    def test_a_picture_is_not_replaced_unasked(self, run: Run, car: Path, tmp_path: Path) -> None:
        path = tmp_path / "car.png"
        path.write_text("mine")
        assert "--overwrite" in run("show", car, 0, "--frames", path, code=1).err
        assert path.read_text() == "mine"
        assert run("show", car, 0, "--frames", path, "--overwrite", "--json").json["frames"] == str(path)
        assert path.read_bytes().startswith(b"\x89PNG")

    def test_an_episode_without_pictures_has_no_contact_sheet(self, run: Run, cart: Path, tmp_path: Path) -> None:
        assert "has no pictures" in run("show", cart, 0, "--frames", tmp_path / "x.png", code=1).err
        assert not (tmp_path / "x.png").exists()


class TestEveryCommand:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_its_help_has_an_example(self, run: Run, name: str) -> None:
        out = run(name, "--help").out
        assert "Usage: recorder" in out and f"    recorder {name} " in out and "--json" in out and "\x1b" not in out

    def test_the_help_names_them_all(self, run: Run) -> None:
        out = run("--help").out
        assert all(re.search(rf"^  {name} .*\.$", out, re.M) for name in COMMANDS)
        assert run(code=2).err == out

    def test_the_version_is_that_of_the_package(self, run: Run) -> None:
        assert run("--version").out == f"recorder {__version__}\n"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("lst",), "No such command 'lst'"),
            (("list",), "Missing argument 'PATH'"),
            (("list", ".", "--sort", "colour"), "'colour' is not one of"),
            (("record", "CartPole-v1"), "Missing option '--to'"),
            (("record", "CartPole-v1", "--to", "x", "--episodes", "0"), "Invalid value for '--episodes'"),
            (("record", "CartPole-v1", "--to", "x", "--kwargs", "{a"), "'{a' is not JSON"),
            (("record", "CartPole-v1", "--to", "x", "--kwargs", "[1]"), "'[1]' is no JSON object"),
            (("record", "CartPole-v1", "--to", "x", "--label", "a"), "'a' is not name=value"),
            (("show", ".", "0", "--fraems", "x"), "unexpected extra argument"),
        ],
    )
    def test_wrong_usage_is_said_in_one_line(self, run: Run, arguments: tuple[str, ...], message: str) -> None:
        answer = run(*arguments, code=2)
        assert message in answer.err and answer.err.startswith("recorder: ") and answer.err.count("\n") == 1
        assert answer.out == "" and "--help says more" in answer.err

    @pytest.mark.parametrize("arguments", [("info",), ("list",), ("show", "0")])
    def test_a_folder_that_is_no_recording_is_said_in_one_line(
        self, run: Run, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        for path in (tmp_path, tmp_path / "nowhere"):
            answer = run(arguments[0], path, *arguments[1:], code=1)
            assert answer == ("", f"recorder: {path} is no recording: it has no recording.json\n")

    def test_a_traceback_is_shown_on_request(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("RECORDER_TRACEBACK", "1")
        with pytest.raises(FileNotFoundError):
            main(["info", str(tmp_path)])

    def test_a_reader_that_goes_away_is_no_error(self, cart: Path) -> None:
        process = subprocess.Popen(command("list", cart), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
        process.stderr.close()

    def test_a_disk_that_is_full_is_an_error(self, cart: Path) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command("list", cart), stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (1, "recorder: [Errno 28] No space left on device\n")

    def test_the_shell_completes_commands_and_options(self) -> None:
        asked = {"_RECORDER_COMPLETE": "complete_bash", "COMP_WORDS": "recorder list --so", "COMP_CWORD": "2"}
        environment = {**os.environ, **asked}
        done = subprocess.run(command(), env=environment, capture_output=True, text=True, timeout=60)
        assert (done.stdout.split(), done.stderr) == (["--sort"], "")


class TestText:
    def test_wide_letters_and_marks_are_aligned(self) -> None:
        assert columns_of("杯子") == 4 and columns_of("e\u0301") == 1
        text = table([Heading("task"), Heading("n", number=True)], [("杯子", 1), ("cup", 20)])
        assert text == "task   n\n杯子   1\ncup   20"

    def test_only_text_is_cut_to_fit(self) -> None:
        columns = [Heading("number", number=True), Heading("text"), Heading("more")]
        text = table(columns, [(10**30, "x" * 40, "y" * 20)], 75)
        assert text.splitlines()[1] == f"{10**30:,}  {'x' * 14}…  {'y' * 14}…"

    def test_codes_that_would_change_a_terminal_are_visible(self) -> None:
        assert cell("\x1b[31mred\nline") == r"\x1b[31mred\nline"
        assert facts({"a": {"k\n": "v"}, "bc": None}) == r"a  k\n=v"
