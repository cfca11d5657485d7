"""A starting model and questions for tests of training: a policy of known habits in the words of the relay task.

The model's table says how likely a word follows another, whatever stands before, so that memories, queries, recalls,
cut memories, boxes and replies of every fault come up at known rates without any training. Its attention and
feed-forward hold small random weights: they hardly speak, but have gradients.

Axes: `V` vocabulary, `D` hidden.
"""

import dataclasses
import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from remem_jax.agent.loop import Agent, Episode
from remem_jax.config import AgentConfig, agent_json
from remem_jax.data.documents import Document
from remem_jax.data.pipeline import make_example
from remem_jax.data.records import Record
from remem_jax.data.relay_start import EOS_ID, train_tokenizer
from remem_jax.data.relay_task import PERSONS, WORDS, agent_settings
from remem_jax.model import load_model, save_model
from remem_jax.model.config import ModelConfig
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.scoring import Reward, Scores, score
from remem_jax.settings import from_mapping
from remem_jax.stored import find_checkpoint, read_arrays, stored_arrays
from remem_jax.testing import tiny_model
from remem_jax.tokenizer import Tokenizer

HIDDEN = 104  # at least V: the embedding of a word is its own axis
ANSWERS = ("LIMA", "OSLO")
END = "end"
HABITS: dict[str, dict[str, float]] = {
    "reply": {"<callback>": 0.5, "<memory>": 0.45, END: 0.05},
    "<callback>": {"home_of": 0.6, "PARIS": 0.4},
    "home_of": {"</callback>": 1.0},
    "</callback>": {"<memory>": 0.95, END: 0.05},
    "<memory>": {"home": 0.6, "LIMA": 0.2, "OSLO": 0.1, "PARIS": 0.1},
    "home": {"LIMA": 0.3, "OSLO": 0.3, "PARIS": 0.4},
    "LIMA": {"</memory>": 0.35, "home": 0.25, "}": 0.4},
    "OSLO": {"</memory>": 0.35, "home": 0.25, "}": 0.4},
    "PARIS": {"</memory>": 0.5, "home": 0.2, "home_of": 0.3},
    "</memory>": {END: 0.9, "<callback>": 0.1},
    "final": {"\\box{": 0.95, END: 0.05},
    "\\box{": {"LIMA": 0.5, "OSLO": 0.5},
    "}": {END: 1.0},
}
"""Word -> the words that follow it, with their probabilities; any other word ends the reply."""


def model_config() -> ModelConfig:
    """Two layers over the relay's words, the head apart from the embedding."""
    return ModelConfig(
        model_type="qwen2", vocab_size=len(WORDS) + 2, hidden_size=HIDDEN, intermediate_size=32, num_layers=2,
        num_heads=2, num_kv_heads=1, head_dim=8, rms_norm_eps=1e-6, rope_theta=100.0, rope_scaling=None,
        tie_embeddings=False, qkv_bias=True, o_bias=False, qk_norm=False, max_positions=512, eos_ids=(EOS_ID,),
    )  # fmt: skip


def model_params(config: ModelConfig, ids: dict[str, int]) -> dict:
    """Float32 weights, layers as a tuple; a normed embedding is `sqrt(D)` at its word's axis and 0 elsewhere."""
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    random_model = tiny_model(seed=3, family="qwen2", **fields)
    params = {name: np.array(value) for name, value in random_model.params.items() if name != "layers"}
    layers = []
    for layer in random_model.params["layers"]:
        values = {name: np.array(value) for name, value in layer.items()}
        layers.append(values | {name: np.float32(0.02) * values[name] for name in ("o", "down")})
    table = np.zeros((config.vocab_size, HIDDEN), np.float32)
    for word, at in ids.items():
        for after, share in HABITS.get(word, {END: 1.0}).items():
            table[ids.get(after, EOS_ID), at] = 9 + np.log(share)
    params["embed"] = np.eye(config.vocab_size, HIDDEN, dtype=np.float32)
    params["head"] = table / np.float32(HIDDEN**0.5)
    params["norm"] = np.ones(HIDDEN, np.float32)
    return params | {"layers": tuple(layers)}


def agent(**changes: Any) -> AgentConfig:
    """The relay's agent with memories of 2 words and replies of 9, so that some of both are cut."""
    return dataclasses.replace(agent_settings(), **{"memory_tokens": 2, "max_reply_tokens": 9, **changes})


def make_questions(count: int, seed: int) -> list[Record]:
    """Questions over 6 or 8 facts, three or four chunks; the answer is one of two places."""
    chance = random.Random(seed)
    records = []
    for i in range(count):
        persons = chance.sample(PERSONS, (6, 8)[i % 2])
        places = [chance.choice((*ANSWERS, "PARIS")) for _ in persons]
        documents = tuple(Document(f"fact {n}", f"home {a} {b}") for n, (a, b) in enumerate(zip(persons, places)))
        answer, asked = ANSWERS[i // 2 % 2], persons[0]
        records.append(Record(f"q{seed}-{i}", f"home_of partner_of {asked}", (answer,), ("fact 0",), documents))
    return records


def write_records(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(dataclasses.asdict(record)) + "\n" for record in records), encoding="utf-8")
    return path


def write_start(folder: Path) -> Path:
    """`folder` with `start` (the model), `train.jsonl` (5 questions) and `validation.jsonl` (4)."""
    tokenizer = train_tokenizer()
    (folder / "tokenizer.model").write_bytes(tokenizer)
    ids = word_ids(folder)
    config = model_config()
    files: dict[str, bytes | Path] = {"tokenizer.model": tokenizer, "remem.json": agent_json(agent()).encode()}
    save_model(folder / "start", config, model_params(config, ids), extra_files=files)
    write_records(folder / "train.jsonl", make_questions(5, seed=1))
    write_records(folder / "validation.jsonl", make_questions(8, seed=2)[::2])
    return folder


def word_ids(folder: Path) -> dict[str, int]:
    """Id of each word of the task: every word is one token."""
    import sentencepiece

    encode = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).encode
    return {word: encode(word)[0] for word in WORDS}


def settings(folder: Path, run: str = "run", **changes: Any) -> TrainConfig:
    """A run of 2 questions and 4 rollouts a batch, two updates a step; `changes` as `rollout__group=8` or `steps=3`."""
    values: dict[str, Any] = {
        "model": str(folder / "start"),
        "run_dir": str(folder / run),
        "steps": 6,
        "data": {"train": str(folder / "train.jsonl"), "validation": str(folder / "validation.jsonl")},
        "rollout": {"questions": 2, "group": 4},
        "optimizer": {"mini_batch": 1, "learning_rate": 0.0002, "warmup": 2},
        "memory": {"token_budget": 2048},
        "validation": {"every": 3},
        "checkpoint": {"every": 2},
        "log": {"tensorboard": False, "trajectories_every": 3},
        "export": "none",
    }
    for name, value in changes.items():
        section, _, field = name.partition("__")
        if field:
            values.setdefault(section, {})[field] = value
        else:
            values[section] = value
    return from_mapping(TrainConfig, values)


@dataclass(frozen=True)
class Played:
    """Scored rollouts of an agent on its first questions, prompts kept."""

    agent: Agent
    tokenizer: Tokenizer
    answers: list[tuple[str, ...]]
    episodes: list[list[Episode]]
    scores: Scores


def play(folder: Path, *, seed: int = 3, **changes: Any) -> Played:
    """Two questions with four rollouts each; `changes` to the agent's settings."""
    model = load_model(str(folder / "start"), "float32")
    assert model.tokenizer is not None
    player, records = Agent(model, agent(**changes)), make_questions(2, seed=1)
    fixed = (model.tokenizer, player.config, player.blocks, model.config.max_positions)
    readings = [make_example(record, *fixed).reading for record in records]
    episodes = player.run(readings, rollouts=4, seed=seed, keep_prompts=True)
    answers = [record.answers for record in records]
    scores = score(episodes, answers, Reward(), model.tokenizer, writes_queries=True)
    return Played(player, model.tokenizer, answers, episodes, scores)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines without what no two runs share: seconds, tokens a second, compilations."""
    timed = ("time/", "run/tokens_per_second", "run/compilations", "seconds", "lookup_seconds")
    return [{name: value for name, value in line.items() if not name.startswith(timed)} for line in records]


def arrays(run: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """Every array of a run's newest checkpoint (or of a step): parameters, moments, counts."""
    path = find_checkpoint(run) if step is None else run / "checkpoints" / str(step)
    return read_arrays(path, {n: np.empty(a.shape, a.dtype) for n, a in stored_arrays(path).items()})


def assert_same_run(one: Path, other: Path) -> None:
    """Arrays of the newest checkpoints, metrics and validation lines are equal, bit by bit."""
    a, b = arrays(one), arrays(other)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)
    for file in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(lines(one / file)) == without_times(lines(other / file))
