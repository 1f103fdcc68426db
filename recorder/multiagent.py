"""ParallelRecorder: the wrapper that records a ParallelEnv of PettingZoo, all agents in one episode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.spaces import Space
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from recorder.errors import EpisodeError, MissingExtraError
from recorder.leaf import JSON
from recorder.wrapper import Recorder

try:
    from pettingzoo import ParallelEnv
    from pettingzoo.utils.wrappers import BaseParallelWrapper
except ImportError as error:
    raise MissingExtraError("pettingzoo", "pettingzoo") from error


class ParallelRecorder(BaseParallelWrapper[Any, Any, Any]):  # type: ignore[misc]  # it has no types
    """Records every episode of a ParallelEnv into a folder; takes what a Recorder takes.

    ```python
    with ParallelRecorder(env, "runs/team") as env:
        observations, infos = env.reset(seed=1)
        while env.agents:
            observations, rewards, terminations, truncations, infos = env.step(policy(observations))
    ```

    A row has the observation of each possible agent at `observation/agents/<agent>`, and at
    `observation/present/<agent>` whether it was there; what stands for those that were not is zeros, as it is for
    actions. `reward` is the sum over agents; that of each, and its flags, are in the infos, masked where it had none:
    `info/reward/<agent>`, `info/terminated/<agent>`, `info/truncated/<agent>`, `info/agents/<agent>/<key>`. The
    episode is over when no agent is left: `terminated` if none of them was truncated, else `truncated`.
    """

    def __init__(self, env: ParallelEnv[Any, Any, Any], path: Path | str, **options: Any) -> None:
        """Wrap `env`; `options` are those of a Recorder.

        Raises:
            EpisodeError: the environment does not say which agents are possible.
        """
        super().__init__(env)
        if not getattr(env, "possible_agents", None):
            raise EpisodeError(f"{env} has no possible_agents: all agents have to be known to be recorded")
        self.recorder: Recorder[Any, Any] = Recorder(Joined(env), path, **options)

    @property
    def _joined(self) -> Joined:
        joined: Any = self.recorder.unwrapped
        return joined  # type: ignore[no-any-return]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Close the episode before, reset all agents, and begin to record the next."""
        self.recorder.reset(seed=seed, options=options)
        return self._joined.returned

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Step all agents and record what they did; an action that does not fit is refused before."""
        joined = self._joined
        joined.given = actions
        self.recorder.step(joined.filled(actions, joined.actions))
        return joined.returned

    def label(self, **labels: JSON) -> None:
        """Add labels to the episode: anything JSON, until the next `reset`."""
        self.recorder.label(**labels)

    def discard(self, reason: str = "discarded") -> None:
        """Put the episode aside: nothing of it will be in the data."""
        self.recorder.discard(reason)

    def flush(self) -> None:
        """Return when every episode that is over is on disk."""
        self.recorder.flush()

    def close(self) -> None:
        """Commit everything and close the environment; may be called twice."""
        self.recorder.close()

    def __enter__(self) -> ParallelRecorder:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.recorder.__exit__(*raised)


class Joined(gym.Env[Any, Any]):
    """A ParallelEnv as one environment, whose values have a part for each possible agent."""

    _np_random: Any = NotImplemented  # not to be made: the generator, if there is one, is that of the environment

    def __init__(self, env: ParallelEnv[Any, Any, Any]) -> None:
        self.env = env
        self.agents = [str(agent) for agent in env.possible_agents]
        self.metadata = dict(getattr(env, "metadata", {}))
        self.render_mode = getattr(env, "render_mode", None)
        self.actions = {agent: env.action_space(agent) for agent in self.agents}
        self.observations = {agent: env.observation_space(agent) for agent in self.agents}
        flag: Space[Any] = spaces.Box(0, 1, (), np.bool_)
        present = dict.fromkeys(self.agents, flag)
        self.action_space = spaces.Dict(self.actions)
        self.observation_space = spaces.Dict(agents=spaces.Dict(self.observations), present=spaces.Dict(present))
        self.given: Mapping[str, Any] = {}
        self.returned: Any = None
        self._truncated = False

    @property  # type: ignore[misc]
    def np_random(self) -> Any:
        """The generator of the environment, or None."""
        return getattr(self.env.unwrapped, "np_random", None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all agents."""
        self._truncated = False
        self.returned = self.env.reset(seed=seed, options=options)
        observations, infos = self.returned
        return self._observed(observations), {"agents": infos}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step all agents with the actions that were given."""
        self.returned = self.env.step(self.given)
        observations, rewards, terminations, truncations, infos = self.returned
        self._truncated |= any(truncations.values())
        over = not self.env.agents
        info = {"agents": infos, "reward": rewards, "terminated": terminations, "truncated": truncations}
        total = float(sum(map(float, rewards.values())))
        return self._observed(observations), total, over and not self._truncated, over and self._truncated, info

    def _observed(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        present = {agent: np.bool_(agent in observations) for agent in self.agents}
        return {"agents": self.filled(observations, self.observations), "present": present}

    def filled(self, values: Mapping[str, Any], each: Mapping[str, Space[Any]]) -> dict[str, Any]:
        """Return values with zeros for agents that are not there; others than the possible ones stay, to be refused."""
        return {**{agent: zeros(each[agent]) for agent in self.agents if agent not in values}, **values}

    def render(self) -> Any:
        """Return what the environment shows."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def zeros(space: Space[Any]) -> Any:
    """Return a value of a space that holds nothing but zeros."""
    return next(iter(iterate(batch_space(space, 1), create_empty_array(space, 1))))
