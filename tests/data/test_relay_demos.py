"""Reading practice and demonstrated turns: what they hold, what carries loss, and that training reads them."""

import json

import pytest

from remem_jax.agent.prompts import encode_blocks, load_prompts
from remem_jax.agent.protocol import parse_reply
from remem_jax.data.relay_demos import practice_lines, warm_lines
from remem_jax.data.relay_start import write_start
from remem_jax.data.relay_task import agent_settings, facts_of
from remem_jax.rl.demonstrations import read_demonstrations
from remem_jax.tokenizer import load_tokenizer


def knows_hop_1(line) -> bool:
    asked = line["question"].split()[-1]
    shown = [line.get("chunk"), line["memory_before"], line["recalled"]]
    return any(fact[:2] == ("partner", asked) for text in shown for fact in facts_of(text))


def test_practice_puts_loss_on_the_object_of_repeated_facts_only():
    for line in practice_lines(200, seed=1):
        words = [line["prompt"], *line["reply"].split()]
        weights = [0, *line["loss_weights"]]
        facts = [tuple(words[i : i + 3]) for i in range(0, 36, 3)]
        assert len(words) == len(weights) == 36 and line["ended"] is False
        assert facts_of(" ".join(words)) == list(dict.fromkeys(facts))
        repeated = [fact in facts[:i] for i, fact in enumerate(facts)]
        assert weights == [weight for again in repeated for weight in (0, 0, int(again))]
        assert 2 <= len(set(facts)) <= 4
        assert len({fact[1] for fact in set(facts)}) == len(set(facts))  # a subject leads to one object


def test_demonstrated_turns_are_valid_replies_to_all_kinds_of_turns():
    lines = warm_lines("rememr1", 2000, seed=1)
    assert len(lines) == 2000
    memory_turns = [line for line in lines if not line["final"]]
    assert all(parse_reply(line["reply"]).valid for line in memory_turns)
    assert all("chunk" not in line and "\\box{" in line["reply"] for line in lines if line["final"])
    assert 0.15 < 1 - len(memory_turns) / 2000 < 0.25
    with_query = sum(parse_reply(line["reply"]).callback is not None for line in memory_turns)
    assert 0.10 < with_query / len(memory_turns) < 0.25
    assert any(line["recalled"] for line in lines)


def test_turns_before_hop_1_are_thinned_and_the_agent_without_callbacks_never_calls():
    lines = warm_lines("memagent", 2000, seed=1)
    assert all(line["recalled"] is None and "<callback>" not in line["reply"] for line in lines)
    assert 0.25 < sum(not knows_hop_1(line) for line in lines) / 2000 < 0.45


def test_equal_seeds_give_equal_lines():
    assert list(practice_lines(20, 5)) == list(practice_lines(20, 5)) != list(practice_lines(20, 6))
    assert warm_lines("rememr1", 50, 5) == warm_lines("rememr1", 50, 5) != warm_lines("rememr1", 50, 6)


@pytest.mark.parametrize("agent", ["rememr1", "memagent"])
def test_training_reads_the_lines_and_every_turn_fits_prompt_and_reply(tmp_path, agent):
    settings = agent_settings(agent)
    write_start(tmp_path / "start", settings)
    tokenizer = load_tokenizer(tmp_path / "start")
    blocks = encode_blocks(load_prompts(settings.prompts), tokenizer, agent, settings.tags)
    lines = [*practice_lines(50), *warm_lines(agent, 500)]
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    groups = read_demonstrations(path, tokenizer, settings, blocks, 64)
    practice, turns = groups[:50], groups[50:]
    assert {len(group.replies[0].reply_ids) for group in practice} == {35}
    assert {sum(group.replies[0].weights) for group in practice} == {8, 9, 10}
    assert max(len(group.replies[0].reply_ids) for group in turns) <= settings.max_reply_tokens
    longest = max(len(group.prefix_ids) + len(group.replies[0].suffix_ids) for group in turns)
    assert longest == (26 if agent == "rememr1" else 19)
    assert all(group.replies[0].reply_ids[-1] == tokenizer.eos_ids[0] for group in turns)
