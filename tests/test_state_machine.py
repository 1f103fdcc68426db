"""The recorder as a state machine, against a plain list of what it was given."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from recorder import Recorder, Recording, RowError

OBSERVATION = spaces.Dict(
    count=spaces.Box(0, 1e6, (), np.float64),
    picture=spaces.Box(0, 255, (8, 10, 3), np.uint8),
    text=spaces.Text(8),
    list=spaces.Sequence(spaces.Box(-1, 1, (2,))),
)


class Puppet(gym.Env[Any, Any]):
    """Does what the machine tells it."""

    observation_space = OBSERVATION
    action_space = spaces.Discrete(10)

    def __init__(self) -> None:
        self.count = 0
        self.next = "go"

    def observe(self) -> dict[str, Any]:
        self.count += 1
        rng = np.random.default_rng(self.count)
        return {
            "count": np.float64(self.count),
            "picture": rng.integers(0, 256, (8, 10, 3), np.uint8),
            "text": "é" * (self.count % 5),
            "list": tuple(rng.random((self.count % 3, 2), np.float32)),
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.observe(), {"reset": self.count}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation = self.observe()
        told, self.next = self.next, "go"
        if told == "raise":
            raise RuntimeError("told to")
        if told == "bad":
            observation["picture"] = observation["picture"][:4]
        info = {"half": self.count / 2} if self.count % 2 else {}
        return observation, float(action), told == "terminate", told == "truncate", info


class RecorderMachine(RuleBasedStateMachine):
    """Episodes that are over wait in `open` until something closes them."""

    @initialize(flush_every=st.sampled_from([0.0, 0.01, 10.0]))
    def start(self, flush_every: float) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.flush_every = flush_every
        self.expected: list[dict[str, Any]] = []
        self.discarded = 0
        self.open: dict[str, Any] | None = None
        self.recording = False
        self.make()

    def make(self) -> None:
        self.puppet = Puppet()
        self.env: Recorder[Any, Any] = Recorder(
            self.puppet, self.folder / "run", flush_every=self.flush_every, verbose=False
        )

    def close_episode(self, end: str) -> None:
        episode, self.open, self.recording = self.open, None, False
        if episode is not None and episode["actions"]:
            self.expected.append({**episode, "end": episode["end"] or end})

    @rule(seed=st.none() | st.integers(0, 99))
    def reset(self, seed: int | None) -> None:
        self.close_episode("reset")
        observation, _ = self.env.reset(seed=seed)
        self.open = {"observations": [observation], "actions": [], "end": "", "labels": {}, "refused": [], "calls": 0}
        self.recording = True

    @rule(action=st.integers(0, 9), told=st.sampled_from(["go"] * 8 + ["terminate", "truncate", "bad", "raise"]))
    def step(self, action: int, told: str) -> None:
        self.puppet.next = told
        episode = self.open if self.recording else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                observation = self.env.step(action)[0]
            except RuntimeError as error:
                if isinstance(error, RowError) or told != "raise":
                    raise
                if episode is not None:
                    episode["end"], self.recording = "exception", False
                return
            except RowError:
                assert episode is not None and told == "bad"
                episode["calls"] += 1
                episode["refused"].append(episode["calls"])
                return
        if episode is not None:
            assert told != "bad"
            episode["calls"] += 1
            episode["observations"].append(observation)
            episode["actions"].append(action)
            if told in ("terminate", "truncate"):
                episode["end"], self.recording = f"{told}d", False

    @precondition(lambda self: self.open is not None)
    @rule(value=st.integers() | st.text(max_size=5) | st.none())
    def label(self, value: Any) -> None:
        self.env.label(value=value)
        assert self.open is not None
        self.open["labels"]["value"] = value

    @precondition(lambda self: self.open is not None)
    @rule()
    def discard(self) -> None:
        self.env.discard()
        assert self.open is not None
        self.discarded += bool(self.open["actions"])
        self.open, self.recording = None, False

    @rule()
    def end_episode(self) -> None:
        if self.open is not None:
            self.env.end_episode()
        self.close_episode("ended")

    @rule()
    def flush(self) -> None:
        if not self.recording:
            self.close_episode("ended")
        self.env.flush()
        if self.expected:
            self.compare()

    @rule()
    def reopen(self) -> None:
        self.env.close()
        self.close_episode("closed")
        self.make()

    @invariant()
    def ids_are_known(self) -> None:
        assert (self.env.episode_id is None) == (self.open is None)

    def compare(self) -> None:
        found = list(Recording(self.folder / "run"))
        assert len(found) == len(self.expected)
        for episode, expected in zip(found, self.expected, strict=True):
            assert (episode.end, episode.labels, episode.refused) == (
                expected["end"],
                expected["labels"],
                expected["refused"],
            )
            assert episode.actions.tolist() == expected["actions"] == episode.rewards.tolist()
            observations = episode.observations
            for t, observation in enumerate(expected["observations"]):
                assert observations["count"][t] == observation["count"]
                assert observations["text"][t] == observation["text"]
                np.testing.assert_array_equal(observations["picture"][t], observation["picture"])
                np.testing.assert_array_equal(observations["list"][t], observation["list"])
            if "half" in episode.infos:
                count, half = observations["count"][1:], episode.infos["half"][1:]
                assert np.ma.getmaskarray(half).tolist() == (count % 2 == 0).tolist()
                assert np.ma.filled(half == count / 2, True).all()  # none may be there

    def teardown(self) -> None:
        if hasattr(self, "env"):
            self.env.close()
            self.close_episode("closed")
            if self.expected:
                self.compare()
                assert not any((self.folder / "run" / "staging").iterdir())
            shutil.rmtree(self.folder)


TestRecorderMachine = RecorderMachine.TestCase
TestRecorderMachine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
