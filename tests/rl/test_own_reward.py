"""A reward of one's own: its name, what it may return, and that it takes the outcome's place."""

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from remem_jax.agent.loop import Episode, Turn
from remem_jax.agent.reading import Reading
from remem_jax.errors import RememError
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.scoring import Reward, score
from remem_jax.rl.trainer import train
from remem_jax.settings import from_mapping
from remem_jax.testing import DummyTokenizer
from tests.relay_run import lines, settings, write_start


def _episodes(*answers):
    """One question without a document; a rollout an answer."""
    one = np.zeros(1, np.float32)
    group = []
    for g, answer in enumerate(answers):
        turn = Turn(
            turn=0, final=True, prompt_tokens=1, reply_ids=one.astype(np.int32), logprobs=one, sampled_logprobs=one,
            ended=True, reply=f"\\boxed{{{answer}}}", recalled_step=-1, recalled_score=0.0, recalled=None, valid=True,
            reason="", memory=None, memory_cut=False, callback=None, dropped_words=0, seconds=0.0, lookup_seconds=0.0,
        )  # fmt: skip
        group.append(Episode(Reading("q", "who?", (1,), (), 0), g, [turn]))
    return [group]


@pytest.fixture
def module(monkeypatch):
    made = ModuleType("my_rewards")
    monkeypatch.setitem(sys.modules, "my_rewards", made)
    return made


def _score(function):
    reward = Reward(function=function, alpha=1.0)
    return score(_episodes("abc", "a"), [["a"]], reward, DummyTokenizer(), writes_queries=True)


def test_the_function_takes_the_place_of_the_exact_match(module):
    module.length = lambda episodes, answers: [[len(one.answer) for one in group] for group in episodes]
    found = _score("my_rewards:length")
    np.testing.assert_array_equal(found.outcome, [[3, 1]])
    np.testing.assert_allclose(found.advantages[0, -1], [1, -1])  # centred: 3 and 1 less 2


@pytest.mark.parametrize("name", ["my_rewards", ":f", "my_rewards:", "my rewards:f", "a..b:f"])
def test_a_name_without_module_and_function_is_refused(name):
    with pytest.raises(RememError, match="expected my_module:my_reward"):
        Reward(function=name)


def test_a_missing_module_and_a_missing_function_are_named(module):
    with pytest.raises(RememError, match="cannot import no_such_module"):
        Reward(function="no_such_module:f")
    with pytest.raises(RememError, match=r"^reward\.function: cannot import no_such_module"):
        from_mapping(TrainConfig, {"reward": {"function": "no_such_module:f"}})
    with pytest.raises(RememError, match="expected a function f in my_rewards"):
        Reward(function="my_rewards:f")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([1.0, 2.0], r"expected shape \(1, 2\).*found \(2,\)"),
        ([[1.0, float("nan")]], "question 0, rollout 1"),
        ([["x", "y"]], "gave no numbers"),
    ],
)
def test_what_the_function_returns_is_checked(module, value, told):
    module.bad = lambda episodes, answers: value
    with pytest.raises(RememError, match=told):
        _score("my_rewards:bad")


def test_a_run_trains_on_it(module, tmp_path):
    # Rollouts 0 to 3 earn 0 to 3 whatever they say: mean 1.5, and no group is without a difference.
    module.by_rollout = lambda episodes, answers: [[one.rollout for one in group] for group in episodes]
    folder = write_start(tmp_path)
    changes: dict[str, Any] = dict(reward__function="my_rewards:by_rollout", reward__alpha=1.0, steps=1)
    train(settings(folder, **changes), quiet=True)
    (line,) = lines(folder / "run" / "metrics.jsonl")
    assert line["reward/outcome"] == 1.5
    assert line["advantage/largest"] == pytest.approx(1.5)
    assert line["optimizer/grad_norm"] > 0
