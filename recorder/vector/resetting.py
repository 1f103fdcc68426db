"""Resetting: how sub-environments reset, as their environment says it and as it behaves; and what they end with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate
from numpy.typing import NDArray

from recorder.leaf import Leaf
from recorder.spaces.structure import Node
from recorder.vector.batching import fitted_rows
from recorder.vector.environments import levels
from recorder.vector.events import Finals
from recorder.vector.infos import FINAL_OBSERVATION

Mask = NDArray[np.bool_]


class Resetting:
    """The mode in which sub-environments are reset; what the environment does counts more than what it says."""

    def __init__(self, env: VectorEnv[Any, Any, Any], mode: AutoresetMode) -> None:
        """Take the mode that is said."""
        self.mode = mode
        self._env = env
        self._plain = len(levels(env)) == 1
        self._reported = False

    def meet_final(self) -> None:
        """Take note of a final observation in the infos, which only an environment that resets at once has."""
        if self.mode != AutoresetMode.SAME_STEP:
            self._report("an episode ended with its final observation in the infos, as with SameStep; recorded so")
            self.mode = AutoresetMode.SAME_STEP

    def check_step(self, rewards: Any, done: Mask, ended: Mask) -> None:
        """Report it where a step that is to be a reset, for those that `ended`, gives a reward or an end.

        Wrappers may change rewards, so they are looked at without any only.
        """
        if self.mode == AutoresetMode.NEXT_STEP and (done[ended].any() or (self._plain and rewards[ended].any())):
            self._report("the step after the end of an episode was none that resets: it gave a reward or an end")

    def _report(self, what: str) -> None:
        if not self._reported:
            warnings.warn(
                f"{self._env} says autoreset_mode={self.mode.value}, but {what}; pass autoreset_mode= to "
                f"VectorRecorder to say how it resets",
                stacklevel=6,
            )
        self._reported = True


def final_observation(infos: Any) -> Any:
    """Return the final observations that infos have, as they come, or None."""
    if isinstance(infos, dict):
        return infos.get(FINAL_OBSERVATION)
    if not isinstance(infos, list) or not any(FINAL_OBSERVATION in info for info in infos):
        return None
    return [info.get(FINAL_OBSERVATION) for info in infos]


def finals_of(
    lanes: Sequence[int], final: Any, env: VectorEnv[Any, Any, Any], node: Node, leaves: Mapping[str, Leaf]
) -> Finals:
    """Return the final observations of sub-environments that were reset at once."""
    values = _by_lane(final, env.observation_space, env.num_envs)
    missing = frozenset(lane for lane in lanes if values is None or values[lane] is None)
    there = [lane for lane in lanes if lane not in missing]
    rows = fitted_rows(node, leaves, [values[lane] for lane in there] if values else [])
    return Finals(there, rows, missing)


def _by_lane(final: Any, space: Space[Any], lanes: int) -> Sequence[Any] | None:
    """Return final observations one by one: they come as an array of objects, as a list, or as a batch."""
    if final is None:
        return None
    if isinstance(final, list) or (isinstance(final, np.ndarray) and final.dtype == object):
        return list(final) if len(final) == lanes else None
    return list(iterate(space, final))
