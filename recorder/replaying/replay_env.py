"""ReplayEnv: an environment that plays recorded episodes back, without the simulator; and a vector of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recorder.episode import Episode, Step
from recorder.errors import DivergedError, EpisodeError
from recorder.preview import cameras, shown
from recorder.recording import Recording
from recorder.replaying.comparing import largest_difference, parted

FPS = 30
"""Frames a second where the recording does not name them."""


class ReplayEnv(gym.Env[Any, Any]):
    """Plays recorded episodes back, whatever the actions are: to test a training loop, or to look at one.

    Each `reset` goes on to the next episode, and from the last to the first. `reset(seed=s)` plays the episode that was
    recorded with that seed, else it begins with the first again; `reset(options={"episode": 3})` plays the one at
    that position, or with that id. Where a recording ends without a terminal state the last step is `truncated`.
    """

    def __init__(
        self,
        recording: Recording | Path | str,
        episodes: Sequence[int | str] | None = None,
        *,
        strict: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Prepare to play; the files of an episode are opened when it is its turn.

        Args:
            recording: the recording, which stays open, or its folder.
            episodes: positions or ids, in the order in which they are played; all if not given.
            strict: raise where an action is not the recorded one, or a seed is not that of an episode.
            render_mode: None, or `rgb_array`: the recorded frames, else the first camera.

        Raises:
            EpisodeError: there are no episodes, they are no series of steps, or there is nothing to render.
        """
        self._recording = recording if isinstance(recording, Recording) else Recording(recording)
        self._order = list(range(len(self._recording)) if episodes is None else episodes)
        if self._recording.schema.rows != "episode" or not self._order:
            what = "no episodes" if self._recording.schema.rows == "episode" else "rows that are no series of steps"
            raise EpisodeError(f"{self._recording} has {what}: there is nothing to play")
        self.observation_space = self._recording.observation_space
        self.action_space = self._recording.action_space
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": self._recording.fps or FPS}
        self.render_mode = render_mode
        self._strict = strict
        self._next = 0
        self._episode: Episode | None = None
        self._steps: Iterator[Step] = iter(())
        self._row = 0
        if render_mode is not None:
            self._pictured(self._recording[self._order[0]])

    @property
    def episode(self) -> Episode:
        """The episode that is played.

        Raises:
            ResetNeeded: none is yet.
        """
        if self._episode is None:
            raise ResetNeeded("call reset() before step() or render()")
        return self._episode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin to play the next episode, or that of a seed or of the option `episode`.

        Raises:
            DivergedError: with `strict`, no episode was recorded with that seed.
        """
        super().reset(seed=seed)
        if seed is not None:
            self._next = self._seeded(seed)
        which: int | str = self._order[self._next % len(self._order)]
        if options is not None and "episode" in options:
            which = options["episode"]
        else:
            self._next += 1
        self._episode = episode = self._recording[which]
        self._steps, self._row = iter(episode), 0
        (observation,), (info,) = episode.values("observation", 0, 1), episode.info_values(0, 1)
        return observation, info

    def _seeded(self, seed: int) -> int:
        """Return where in the order the episode of a seed is; that of another seed is the first."""
        for place, which in enumerate(self._order):
            if self._seed_of(which) == seed:
                return place
        if self._strict:
            raise DivergedError(f"no episode that is played was recorded with the seed {seed}")
        return 0

    def _seed_of(self, which: int | str) -> int | None:
        return self._recording.note(which).seed if isinstance(which, int) else self._recording[which].seed

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return what was recorded at the next step.

        Raises:
            DivergedError: with `strict`, the action is not the recorded one.
            ResetNeeded: the episode is over, or none has begun.
        """
        episode = self.episode
        step = next(self._steps, None)
        if step is None:
            raise ResetNeeded(f"episode {episode.id} has no more than {len(episode)} steps: call reset()")
        if self._strict:
            self._compare(step, action)
        self._row = step.number
        over = step.number == len(episode) and not step.terminated
        return step.next_observation, float(step.reward), step.terminated, step.truncated or over, step.info

    def _compare(self, step: Step, action: Any) -> None:
        node = self.episode.schema.nodes["action"]
        for (leaf, recorded), (_, given) in zip(parted(node, step.action), parted(node, action), strict=True):
            if (error := largest_difference(recorded, given)) > 0:
                raise DivergedError(
                    f"step {step.number} of episode {self.episode.id}: {leaf.path} is {given!r:.80}, recorded was "
                    f"{recorded!r:.80}; they differ by {error:g}, and with strict=True only what was recorded is played"
                )

    def render(self) -> Any:
        """Return the picture of this moment as RGB (H, W, 3), or None without a render mode."""
        if self.render_mode is None:
            return None
        column = self.episode.columns[self._pictured(self.episode)]
        return shown(column[[self._row]], column.leaf).pictures[0].copy()

    def _pictured(self, episode: Episode) -> str:
        """Return the path of what is shown of an episode."""
        if self.render_mode != "rgb_array":
            raise EpisodeError(f"render_mode={self.render_mode!r} is neither None nor 'rgb_array'")
        paths = [path for path in cameras(episode) if episode.columns[path].leaf.per == "moment"]
        if not paths:
            raise EpisodeError(f"episode {episode.id} has no pictures; its leaves are {', '.join(episode.columns)}")
        return "render" if "render" in paths else paths[0]


class ReplayVectorEnv(SyncVectorEnv):
    """Plays the episodes of a recording back in several environments at once: i, i + n, i + 2n, … in the i-th of n."""

    def __init__(
        self,
        recording: Recording | Path | str,
        num_envs: int,
        *,
        episodes: Sequence[int | str] | None = None,
        strict: bool = False,
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        """Deal the episodes out to `num_envs` environments; the other arguments are those of `ReplayEnv`.

        Raises:
            EpisodeError: there are fewer episodes than environments.
        """
        opened = recording if isinstance(recording, Recording) else Recording(recording)
        order = list(range(len(opened)) if episodes is None else episodes)
        if len(order) < num_envs:
            raise EpisodeError(f"{num_envs} environments need as many episodes to play, there are {len(order)}")
        make = partial(ReplayEnv, opened, strict=strict, render_mode=render_mode)
        super().__init__([partial(make, order[i::num_envs]) for i in range(num_envs)], autoreset_mode=autoreset_mode)
