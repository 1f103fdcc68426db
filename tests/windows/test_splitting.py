"""Episodes for training and for validation, and fewer of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.errors import WindowError
from recorder.windows.splitting import downsample_episodes, split_episodes


@given(st.integers(0, 200), st.floats(0, 1), st.integers(0, 1000))
def test_each_episode_is_in_one_of_the_two(episodes: int, share: float, seed: int) -> None:
    training, validation = split_episodes(episodes, share, seed)
    assert len(training) == episodes and (training ^ validation).all()
    assert abs(validation.sum() - episodes * share) <= 1
    if episodes > 1 and 0 < share < 1:
        assert training.any() and validation.any()


def test_another_seed_gives_another_split_and_the_same_seed_the_same() -> None:
    splits = [split_episodes(100, 0.3, seed)[1].tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]


def test_hardly_an_episode_changes_sides_when_some_are_added() -> None:
    before, after = split_episodes(1000, 0.1)[1], split_episodes(1010, 0.1)[1][:1000]
    assert (before != after).sum() <= 3


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 1000))
def test_fewer_episodes_are_some_of_the_more_ones(mask: list[bool], a: int, b: int, seed: int) -> None:
    few, many = (downsample_episodes(np.array(mask, bool), most, seed) for most in sorted((a, b)))
    assert few.sum() == min(min(a, b), sum(mask)) and many.sum() == min(max(a, b), sum(mask))
    assert not (few & ~many).any() and not (many & ~np.array(mask, bool)).any()


def test_shares_and_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(WindowError, match=r"validation=1\.5"):
        split_episodes(3, 1.5)
    with pytest.raises(WindowError, match="most=-1"):
        downsample_episodes(np.ones(3, bool), -1)
    with pytest.raises(WindowError, match="episodes=-1"):
        split_episodes(-1, 0.5)
    with pytest.raises(WindowError, match="seed=-1"):
        split_episodes(3, 0.5, seed=-1)
    with pytest.raises(WindowError, match="mask is int64"):
        downsample_episodes(np.ones(3, np.int64), 1)  # type: ignore[arg-type]
