"""Demonstrations in their three forms become the rows that an agent's own turns would, or one line of error."""

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.agent.loop import Agent
from remem_jax.errors import RememError
from remem_jax.model import load_model
from remem_jax.model.packing import plain_rows
from remem_jax.model.transformer import forward
from remem_jax.observe.trajectories import scored_records, write_records
from remem_jax.rl.demonstrations import read_demonstrations
from remem_jax.rl.rows import Group
from remem_jax.rl.scoring import Reward
from remem_jax.rl.sft import weighted
from remem_jax.rl.trainer import train
from tests.relay_run import agent, arrays, lines, play, settings, without_times, word_ids, write_start


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A starting model and questions."""
    return write_start(tmp_path_factory.mktemp("demonstrations"))


@pytest.fixture(scope="module")
def player(folder) -> Agent:
    return Agent(load_model(str(folder / "start"), "float32"), agent())


def read(player: Agent, path: Path, context: int = 512) -> list[Group]:
    return read_demonstrations(path, player.model.tokenizer, player.config, player.blocks, context)


def write(folder: Path, *records: Any) -> Path:
    path = folder / "demonstrations.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


TURN = {
    "question": "home_of partner_of ANA",
    "final": False,
    "chunk": "home EVA LIMA home BEN OSLO",
    "memory_before": None,
    "recalled": "home LIMA",
    "reply": "<memory> home OSLO </memory>",
}


def ids_of(folder: Path, text: str) -> list[int]:
    known = word_ids(folder) | {"end": 1}
    return [known[word] for word in text.split()]


def test_a_turn_is_the_prompt_of_the_agent_with_the_reply_after_it(folder, player):
    (group,) = read(player, write(folder, TURN))
    assert group.prefix_ids.tolist() == ids_of(folder, "section home EVA LIMA home BEN OSLO")
    (reply,) = group.replies
    prompt = "recalled home LIMA memory none question home_of partner_of ANA reply"
    assert reply.suffix_ids.tolist() == ids_of(folder, prompt)
    assert reply.reply_ids.tolist() == ids_of(folder, "<memory> home OSLO </memory> end")
    assert reply.weights.tolist() == [1, 1, 1, 1, 1]


def test_a_final_turn_needs_no_chunk_and_a_reply_cut_at_its_limit_has_no_end(folder, player):
    turn = {"question": "home_of partner_of ANA", "final": True, "memory_before": "home LIMA", "reply": "\\box{ LIMA"}
    (group,) = read(player, write(folder, turn | {"ended": False}))
    assert group.prefix_ids.tolist() == []
    (reply,) = group.replies
    prompt = "recalled none memory home LIMA question home_of partner_of ANA final"
    assert reply.suffix_ids.tolist() == ids_of(folder, prompt)
    assert reply.reply_ids.tolist() == ids_of(folder, "\\box{ LIMA")


def test_texts_and_ids_say_the_same_as_a_turn(folder, player):
    prompt = "section home EVA LIMA home BEN OSLO recalled home LIMA memory none question home_of partner_of ANA reply"
    text = {"prompt": prompt, "reply": TURN["reply"]}
    ids = {"prefix_ids": [], "suffix_ids": ids_of(folder, prompt), "reply_ids": ids_of(folder, TURN["reply"] + " end")}
    turn, *others = read(player, write(folder, TURN, text, ids, {n: v for n, v in ids.items() if n != "prefix_ids"}))
    whole = turn.prefix_ids.tolist() + turn.replies[0].suffix_ids.tolist()
    for group in others:
        assert group.prefix_ids.tolist() == [] and group.replies[0].suffix_ids.tolist() == whole
        assert group.replies[0].reply_ids.tolist() == turn.replies[0].reply_ids.tolist()


def test_a_dumped_trajectory_trains_on_the_very_ids_that_were_prompted_and_sampled(folder):
    played = play(folder)
    records = scored_records(played.episodes, played.scores, played.answers, Reward(), played.tokenizer, step=1)
    path = write_records(folder / "dumped.jsonl", records)
    turns = [turn for group in played.episodes for episode in group for turn in episode.turns]
    assert any(turn.recalled for turn in turns) and any(turn.memory_cut for turn in turns)
    assert any(not turn.ended for turn in turns) and any(turn.final for turn in turns)
    for turn, group in zip(turns, read(played.agent, path), strict=True):
        assert turn.prefix_ids is not None and turn.suffix_ids is not None
        assert group.prefix_ids.tolist() == turn.prefix_ids.tolist()
        assert group.replies[0].suffix_ids.tolist() == turn.suffix_ids.tolist()
        assert group.replies[0].reply_ids.tolist() == turn.reply_ids.tolist()


def test_loss_weights_stand_at_their_tokens_and_decide_what_is_learnt(folder, player):
    groups = read(player, write(folder, TURN | {"loss_weights": [0, 0, 1, 3, 0]}, TURN))
    assert groups[0].replies[0].weights.tolist() == [0, 0, 1, 3, 0]
    weigh = {average: weighted(groups, average, 2.0) for average in ("state_mean", "token_mean", "constant")}
    of = {average: [g.replies[0].weights.tolist() for g in found] for average, (found, _) in weigh.items()}
    assert of["state_mean"] == [[0, 0, 0.25, 0.75, 0], [pytest.approx(0.2)] * 5]
    assert of["token_mean"] == of["constant"] == [[0, 0, 1, 3, 0], [1] * 5]
    assert {average: total for average, (_, total) in weigh.items()} == {
        "state_mean": 2,
        "token_mean": 9,
        "constant": 4,
    }


def sft(folder: Path, run: str, **changes: Any):
    shared = dict(algorithm="sft", validation__every=100, data={"train": str(folder / "demonstrations.jsonl")})
    shared |= dict(optimizer={"mini_batch": 2, "learning_rate": 0.003, "warmup": 0})
    return settings(folder, run, **shared | changes)


def test_a_warm_start_lowers_the_loss_of_the_weighted_tokens_alone(folder, player):
    # Of two words after the same one, only LIMA has weight: it wins.
    ids = {"suffix_ids": ids_of(folder, "none"), "reply_ids": ids_of(folder, "LIMA"), "loss_weights": [1.0]}
    other = {"suffix_ids": ids_of(folder, "none"), "reply_ids": ids_of(folder, "OSLO"), "loss_weights": [0.0]}
    write(folder, ids, other)
    train(sft(folder, "warm", steps=12), quiet=True)
    losses = [line["loss/total"] for line in lines(folder / "warm" / "metrics.jsonl")]
    ids = jnp.asarray([ids_of(folder, "none")], jnp.int32)
    hidden, _ = forward(player.model.params, player.model.config, plain_rows(ids, jnp.array([1])))
    logits = np.asarray(hidden[0, 0] @ player.model.params["head"].T, np.float64)
    expected = np.log(np.exp(logits).sum()) - logits[ids_of(folder, "LIMA")[0]]
    assert losses[0] == pytest.approx(expected / 2, rel=1e-4)  # the unweighted demonstration counts as one of two
    assert losses[-1] < losses[0] / 3


def test_a_warm_start_ends_early_when_the_loss_is_low_and_fails_when_it_never_is(folder, player):
    one = {"suffix_ids": ids_of(folder, "none"), "reply_ids": ids_of(folder, "LIMA")}
    write(folder, one, one)
    outcome = train(sft(folder, "early", steps=60, stop={"loss": 4.0, "window": 3}), quiet=True)
    losses = [line["loss/total"] for line in lines(folder / "early" / "metrics.jsonl")]
    means = [np.mean(losses[i - 3 : i]) for i in range(3, len(losses) + 1)]
    assert not outcome.stopped and outcome.step == len(losses) < 60
    assert means[-1] < 4.0 and all(mean >= 4.0 for mean in means[:-1])
    assert train(sft(folder, "early", steps=60, stop={"loss": 4.0, "window": 3}), quiet=True).step == outcome.step
    message = r"^stop.loss: expected a mean of 3 losses below 0.001 within 5 steps, found \d+\.\d+: raise steps"
    with pytest.raises(RememError, match=message):
        train(sft(folder, "late", steps=5, stop={"loss": 0.001, "window": 3}), quiet=True)


def test_a_warm_start_that_was_interrupted_goes_on_bit_by_bit_with_the_losses_of_its_window(folder):
    texts = [{"prompt": "none", "reply": word} for word in ("LIMA", "OSLO", "PARIS", "ROME OSLO", "LIMA LIMA")]
    write(folder, *texts)
    stop = {"loss": 7.0, "window": 5}
    whole = train(sft(folder, "at once", steps=40, stop=stop), quiet=True)
    assert 5 < whole.step < 40
    before = whole.step - 3  # the window that ends the run holds losses from either side of the interruption
    with pytest.raises(RememError, match=rf"within {before} steps"):
        train(sft(folder, "in two", steps=before, stop=stop), quiet=True)
    assert train(sft(folder, "in two", steps=40, stop=stop), quiet=True).step == whole.step
    one, two = (without_times(lines(folder / run / "metrics.jsonl")) for run in ("at once", "in two"))
    assert one == two
    ours, theirs = arrays(folder / "in two"), arrays(folder / "at once")
    for name in theirs:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"prompt": "reply"}, "field 'reply' is missing"),
        ({"reply": "LIMA"}, "field 'question' is missing: a demonstration is a turn, a prompt with a reply, or ids"),
        (TURN | {"chunk": None}, "field 'chunk' must be a text, found NoneType"),
        (TURN | {"recalled": 3}, "field 'recalled' must be a text, found int"),
        (TURN | {"final": "no"}, "field 'final' must be true or false, found 'no'"),
        (TURN | {"ended": 1}, "field 'ended' must be true or false, found 1"),
        (TURN | {"reply": "", "ended": False}, "field 'reply' must hold at least one token, found none"),
        (TURN | {"loss_weights": [1, 1]}, "field 'loss_weights' must hold 5 numbers .* found 2"),
        (TURN | {"loss_weights": [1, 1, 1, 1, -1]}, "field 'loss_weights' must hold 5 numbers of at least 0"),
        (TURN | {"loss_weights": "all"}, "field 'loss_weights' must hold 5 numbers .* found str"),
        ({"prompt": "", "reply": "LIMA"}, "expected a prompt of at least one token, found none"),
        ({"suffix_ids": [5], "reply_ids": []}, "field 'reply_ids' must be a list of ids below 99"),
        ({"suffix_ids": [5], "reply_ids": [99]}, "field 'reply_ids' must be a list of ids below 99"),
        ({"suffix_ids": [True], "reply_ids": [4]}, "field 'suffix_ids' must be a list of ids below 99"),
        ({"reply_ids": [4]}, "field 'suffix_ids' must be a list of ids below 99"),
        ({"prompt": "home " * 40, "reply": "LIMA"}, "42 tokens exceed the model's context of 40"),
        (["LIMA"], "JSON object"),
    ],
)
def test_a_fault_is_told_with_file_line_and_field(folder, player, record, message):
    path = write(folder, TURN, record)
    with pytest.raises(RememError, match=rf"^{re.escape(str(path))}.*2.*: .*{message}") as error:
        read(player, path, context=40)
    assert "\n" not in str(error.value)


def test_a_file_without_demonstrations_is_told(folder, player):
    with pytest.raises(RememError, match=r"demonstrations.jsonl: expected one demonstration a line, found none"):
        read(player, write(folder))
