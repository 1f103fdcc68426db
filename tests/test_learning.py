"""Learning on a recorded environment: the loops of CleanRL and Stable-Baselines3 run as they do on the bare one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from recorder import Episode, Recorder, Recording


def make_env(path: Path | None) -> gym.Env[Any, Any]:
    """Make an environment as CleanRL's scripts do, with one line more to record it."""
    env = gym.make("CartPole-v1")
    if path is not None:
        env = Recorder(env, path, verbose=False, about={"algorithm": "linear policy gradient"})
    return RecordEpisodeStatistics(env)


def learn(path: Path | None, mode: AutoresetMode, steps: int = 300) -> tuple[Any, list[float]]:
    """Learn a linear policy by the gradient of the log probability; return its weights and all returns."""
    envs = SyncVectorEnv([partial(make_env, path)] * 4, autoreset_mode=mode)
    generator = np.random.default_rng(1)
    weights = np.zeros(4)
    returns: list[float] = []
    observations, _ = envs.reset(seed=1)
    for _ in range(steps):
        right = 1 / (1 + np.exp(-observations @ weights))
        actions = (generator.random(4) < right).astype(np.int64)
        following, rewards, *_, infos = envs.step(actions)
        weights += 0.01 * ((rewards * (actions - right)) @ observations)
        ended = infos.get("final_info", infos)
        if "episode" in ended:
            returns += ended["episode"]["r"][ended["_episode"]].tolist()
        observations = following
    envs.close()
    return weights, returns


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_loop_of_cleanrl_learns_the_same_and_every_episode_is_recorded(tmp_path: Path, mode: AutoresetMode) -> None:
    bare_weights, bare_returns = learn(None, mode)
    weights, returns = learn(tmp_path, mode)
    assert (weights.tolist(), returns) == (bare_weights.tolist(), bare_returns)
    found = Recording(tmp_path)
    finished = [episode for episode in found if episode.end in ("terminated", "truncated")]
    assert sorted(episode.return_ for episode in finished) == sorted(returns)
    assert sorted(episode.seed for episode in found if episode.seed is not None) == [1, 2, 3, 4]
    assert all(len(episode.observations) == len(episode.actions) + 1 for episode in found)
    assert found.metadata == {"algorithm": "linear policy gradient"}


def replays(episode: Episode) -> bool:
    """Whether the actions of an episode make its observations again, from its seed or generator."""
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=episode.seed)
    if episode.seed is None:
        env.np_random.bit_generator.state = episode.generator
        env.reset()
    steps = [env.step(action)[0] for action in episode.actions]
    return bool(np.array_equal(steps, episode.observations[1:]))


@pytest.mark.sb3
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
class TestStableBaselines3:
    def test_its_checker_accepts_a_recorded_environment(self, tmp_path: Path) -> None:
        checker = pytest.importorskip("stable_baselines3.common.env_checker")
        with Recorder(gym.make("CartPole-v1"), tmp_path, verbose=False) as env:
            checker.check_env(env)

    def test_ppo_learns_the_same_and_every_step_is_recorded(self, tmp_path: Path) -> None:
        algorithms = pytest.importorskip("stable_baselines3")
        weights = []
        for path in (None, tmp_path):
            env: gym.Env[Any, Any] = gym.make("CartPole-v1")
            if path is not None:
                env = Recorder(env, path, verbose=False)
            model = algorithms.PPO("MlpPolicy", env, n_steps=128, batch_size=64, seed=0, device="cpu")
            model.learn(512)
            weights.append(np.concatenate([value.detach().numpy().ravel() for value in model.policy.parameters()]))
            returns = [episode["r"] for episode in model.ep_info_buffer]
            model.get_env().close()
        np.testing.assert_array_equal(*weights)
        found = Recording(tmp_path)
        assert found.steps == 512
        assert [episode.return_ for episode in found if episode.end != "closed"] == returns
        assert all(replays(episode) for episode in found)

    def test_a2c_learns_in_several_environments_at_once(self, tmp_path: Path) -> None:
        algorithms = pytest.importorskip("stable_baselines3")
        vectors = pytest.importorskip("stable_baselines3.common.env_util")
        envs = vectors.make_vec_env(
            "Pendulum-v1", 2, seed=3, wrapper_class=Recorder, wrapper_kwargs={"path": tmp_path, "verbose": False}
        )
        algorithms.A2C("MlpPolicy", envs, device="cpu").learn(410)
        envs.close()
        found = Recording(tmp_path)
        assert found.steps == 410
        assert sorted(len(episode) for episode in found) == [5, 5, 200, 200]
        assert sorted(episode.seed for episode in found if episode.seed is not None) == [3, 4]
