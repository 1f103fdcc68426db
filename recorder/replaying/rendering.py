"""Rendering a replay: what the environment shows while an episode is made again, as a video with captions."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from recorder.episode import Episode
from recorder.errors import EpisodeError
from recorder.filming import Film, captioned, in_numbers
from recorder.preview import Picture
from recorder.rebuilding import environment_of
from recorder.replaying.driving import Moment
from recorder.replaying.many import Task
from recorder.replaying.replay import replay_in
from recorder.replaying.report import ReplayReport

FPS = 30.0
"""Frames a second where the environment does not name them."""


class ReplayFilm:
    """Films an environment, moment by moment; each frame says the step, the reward, their sum and the action."""

    def __init__(self, film: Film, env: gym.Env[Any, Any], episode: Episode) -> None:
        """Prepare to film.

        Raises:
            EpisodeError: the environment was not made to render pictures.
        """
        if env.render_mode != "rgb_array":
            raise EpisodeError(
                f"a video needs an environment with render_mode='rgb_array', this one has {env.render_mode!r}; of its "
                f"kind there are {env.metadata.get('render_modes')}"
            )
        self._film = film
        self._env = env
        self._steps = len(episode)
        self._total = 0.0

    def __call__(self, moment: Moment) -> None:
        """Add the frame of a moment."""
        self._total += float(moment.reward or 0)
        self._film.add(captioned(self._frame(), self._caption(moment)))

    def _frame(self) -> Picture:
        frame: Any = np.asarray(self._env.render())
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
            raise EpisodeError(f"env.render() is to give RGB, uint8 (H, W, 3), got {frame.dtype} {frame.shape}")
        picture: Picture = frame
        return picture

    def _caption(self, moment: Moment) -> list[str]:
        line = f"step {moment.step} of {self._steps}"
        if not moment.step:
            return [line, "", ""]
        over = "  terminated" if moment.terminated else "  truncated" if moment.truncated else ""
        outcome = f"reward {float(moment.reward):.4g}  return {self._total:.6g}{over}"
        return [line, outcome, f"action {in_numbers(moment.action)}"]


def replay_rendered(
    task: Task, which: int | str, path: Path | None, *, fps: float | None = None, overwrite: bool = False
) -> ReplayReport:
    """Replay an episode and film it into an MP4 file, or, without one, show it in the environment's own window.

    Raises:
        ExistsError: the file is there already and may not be overwritten.
        EpisodeError: the environment does not render so.
    """
    episode = task.recording[which]
    with ExitStack() as stack:
        film = None
        if path is not None:  # before anything is made, say that the file is there
            rate = fps or task.recording.fps or FPS
            film = stack.enter_context(Film(path, rate, overwrite=overwrite))
        env = environment_of(
            episode.environment,
            f"episode {episode.id}",
            task.make_env,
            skip_unrebuildable=task.skip_unrebuildable,
            render_mode="human" if film is None else "rgb_array",
        )
        stack.callback(env.close)
        if film is None and env.render_mode != "human":
            raise EpisodeError(f"{env} has no window: its render_mode is {env.render_mode!r}, not 'human'")
        watch = None if film is None else ReplayFilm(film, env, episode)
        skipped = task.skip_unrebuildable and task.make_env is None
        return replay_in(
            env, episode, mode=task.mode, tolerance=task.tolerance, states=task.states, skipped=skipped, watch=watch
        )
