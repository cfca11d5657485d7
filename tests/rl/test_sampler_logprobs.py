"""What is trained on is what was sampled: its ids, its log-probabilities, whatever happened on the way.

Axes: `N` questions, `G` rollouts.
"""

import importlib

import numpy as np
import pytest

from remem_jax.model.load import stack_layers
from remem_jax.rl.batch import mini_batch, rescored
from remem_jax.rl.config import Loss
from remem_jax.rl.step import logprobs
from tests.relay_run import Played, play, write_start


@pytest.fixture(scope="module")
def played(tmp_path_factory) -> tuple[Played, int]:
    """Rollouts in which the batch shrank, and how often it did."""
    folder = write_start(tmp_path_factory.mktemp("sampler"))
    generate = importlib.import_module("remem_jax.rollout.generate")  # the package has a function of this name
    compact, shrunk = generate._compact, []

    def counted(*arguments):
        shrunk.append(arguments)
        return compact(*arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(generate, "_compact", counted)
        return play(folder, max_reply_tokens=16), len(shrunk)  # 16: from which limit batches shrink


def test_recomputed_log_probs_equal_the_samplers_after_recall_compaction_and_truncation(played):
    rollouts, shrunk = played
    model, config = rollouts.agent.model, rollouts.agent.config
    turns = [turn for group in rollouts.episodes for episode in group for turn in episode.turns]
    assert shrunk and any(turn.recalled for turn in turns) and any(not turn.ended for turn in turns)
    assert any(turn.memory_cut for turn in turns) and len({len(turn.reply_ids) for turn in turns}) > 4
    batch = mini_batch(rollouts.episodes, rollouts.scores, np.arange(2), Loss(), config)
    params = stack_layers(model.params)

    def of_rows(rows):
        return np.asarray(logprobs(params, rows, config=model.config, temperature=1.0))

    for budget in (2048, 64):
        again = rescored(batch, of_rows, "logp_ref", token_budget=budget, row_tokens=None)
        replies = [reply for group in again.groups for reply in group.replies]
        assert len(replies) == len(turns)
        for reply in replies:
            assert reply.logp_ref is not None and reply.logp_old is not None
            assert reply.logp_ref.shape == reply.reply_ids.shape
            np.testing.assert_allclose(reply.logp_ref, reply.logp_old, atol=1e-4)


def test_the_ids_of_every_group_are_those_that_were_sampled(played):
    rollouts, _ = played
    encode, config = rollouts.tokenizer.encode, rollouts.agent.config
    groups = iter(mini_batch(rollouts.episodes, rollouts.scores, np.array([1, 0]), Loss(), config).groups)
    cues = {False: encode("reply"), True: encode("final")}
    for of_question in (rollouts.episodes[1], rollouts.episodes[0]):
        for members in zip(*(episode.turns for episode in of_question), strict=True):
            group = next(groups)
            for turn, reply in zip(members, group.replies, strict=True):
                assert reply.reply_ids is turn.reply_ids and reply.logp_old is turn.logprobs
                assert turn.ended == (turn.reply_ids[-1] == rollouts.tokenizer.eos_ids[0])
                prompt = [*group.prefix_ids.tolist(), *reply.suffix_ids.tolist()]
                assert len(prompt) == turn.prompt_tokens and prompt[-1:] == cues[turn.final]
                if not turn.final:  # the chunk stands in the prefix, word for word
                    chunk = of_question[0].reading.chunks[turn.turn].tolist()
                    assert group.prefix_ids.tolist()[-len(chunk) :] == chunk
    assert next(groups, None) is None
