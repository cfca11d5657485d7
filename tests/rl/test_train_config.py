"""Settings of `remem train`: the paper's values as defaults, every wrong one refused in a line that names it."""

import dataclasses
from pathlib import Path

import pytest

from remem_jax.config import AgentConfig, Sampling, agent_json
from remem_jax.errors import RememError
from remem_jax.rl.config import TrainConfig, agent_config
from remem_jax.rl.setup import learning_rate, lines_that_differ, plain
from remem_jax.settings import field_docs, from_mapping, load_config

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NEEDED = {"model": "m", "run_dir": "r", "data": {"train": "t.jsonl"}}


def made(**changes) -> TrainConfig:
    return from_mapping(TrainConfig, NEEDED | changes)


def test_the_defaults_are_those_of_the_paper():
    config = made()
    assert (config.rollout.questions, config.rollout.group, config.optimizer.mini_batch) == (128, 16, 8)
    assert (config.optimizer.learning_rate, config.optimizer.warmup, config.loss.beta) == (1e-6, 20, 0.001)
    assert (config.loss.eps_low, config.loss.eps_high, config.loss.average) == (0.2, 0.2, "state_mean")
    assert (config.reward.alpha, config.reward.normalise) == (0.8, "none")
    assert (config.rollout.temperature, config.rollout.top_p, config.rollout.top_k) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "step: expected a known setting, did you mean steps?"),
        ({"data": {"trian": "x"}}, "data.trian: expected a known setting, did you mean train?"),
        ({"data": {}}, "data.train: expected text, found nothing: set it"),
        ({"steps": 0}, "steps: expected a number of at least 1, found 0"),
        ({"steps": 2.5}, "steps: expected a whole number, found 2.5 (a number)"),
        ({"seed": 2**32}, "seed: expected a number from 0 to 4294967295, found 4294967296"),
        ({"algorithm": "ppo"}, "algorithm: expected one of grpo, sft, found 'ppo'"),
        ({"dtype": "float16"}, "dtype: expected float32, bfloat16 or none, found 'float16'"),
        ({"export": "newest"}, "export: expected one of best, last, none, found 'newest'"),
        ({"export_dtype": "int8"}, "export_dtype: expected one of float32, bfloat16, found 'int8'"),
        ({"mesh": [1, "x"]}, "mesh: expected a list of: a whole number, found (1, 'x') (a list)"),
        ({"rollout": {"group": 0}}, "rollout.group: expected a number of at least 1, found 0"),
        ({"rollout": {"questions_in_flight": 0}}, "rollout.questions_in_flight: expected a number of at least 1"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: expected a number above 0: a greedy rollout teaches"),
        ({"rollout": {"temperature": 1e-9}}, "rollout.temperature: expected 0 (greedy) or a finite number of at least"),
        ({"rollout": {"top_p": 0}}, "rollout.top_p: expected a number above 0 and at most 1, found 0"),
        ({"rollout": {"old_logprobs": "none"}}, "rollout.old_logprobs: expected one of sampler, recomputed"),
        ({"rollout": {"top_p": 0.9}}, "rollout: expected top_p 1 and top_k 0 in training, found top_p 0.9"),
        ({"rollout": {"top_k": 40}}, "set loss.importance_sampling=true, which corrects for them"),
        ({"optimizer": {"mini_batch": 3}}, "mini_batch: expected a divisor of rollout.questions = 128, found 3"),
        ({"optimizer": {"schedule": "linear"}}, "optimizer.schedule: expected one of constant, cosine"),
        ({"optimizer": {"learning_rate": -1.0}}, "learning_rate: expected a number of at least 0, found -1.0"),
        ({"optimizer": {"learning_rate": float("inf")}}, "learning_rate: expected a number of at least 0, found inf"),
        ({"optimizer": {"b2": 1.0}}, "optimizer.b2: expected a number from 0 to below 1, found 1.0"),
        ({"optimizer": {"clip_norm": 0.0}}, "optimizer.clip_norm: expected a number above 0, found 0.0"),
        ({"loss": {"importance_cap": 0}}, "loss.importance_cap: expected a number above 0, found 0"),
        ({"loss": {"average": "mean"}}, "loss.average: expected one of state_mean, token_mean, constant, found 'mean'"),
        ({"loss": {"dual_clip": 1.0}}, "loss.dual_clip: expected a number above 1, or none, found 1.0"),
        ({"loss": {"divisor": 0}}, "loss.divisor: expected a number above 0, or none, found 0"),
        ({"reward": {"alpha": 1.2}}, "reward.alpha: expected a number from 0 to 1, found 1.2"),
        ({"reward": {"normalise": "yes"}}, "reward.normalise: expected one of none, std, separate, found 'yes'"),
        ({"memory": {"token_budget": 0}}, "memory.token_budget: expected a number of at least 1, found 0"),
        ({"lora": {"rank": -1}}, "lora.rank: expected a number of at least 0, found -1"),
        ({"lora": {"targets": ["k", "kv"]}}, "lora.targets: expected one of q, k, v, o, gate, up, down, found 'kv'"),
        ({"lora": {"alpha": 0}}, "lora.alpha: expected a number above 0, found 0"),
        ({"validation": {"every": 0}}, "validation.every: expected a number of at least 1, found 0"),
        ({"checkpoint": {"keep": 0}}, "checkpoint.keep: expected a number of at least 1, found 0"),
        ({"log": {"trajectories_every": -1}}, "log.trajectories_every: expected a number of at least 0, found -1"),
        ({"stop": {"window": 0}}, "stop.window: expected a number of at least 1, found 0"),
        ({"stop": {"loss": -1}}, "stop.loss: expected a number above 0, or none, found -1"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_in_one_line_with_its_name(changes, message):
    with pytest.raises(RememError) as error:
        made(**changes)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_paths_may_begin_at_the_home_directory(monkeypatch, tmp_path):
    home = str(tmp_path)
    monkeypatch.setenv("HOME", home)
    config = made(run_dir="~/run", resume="~/old", data={"train": "~/t.jsonl", "validation": "~/v.jsonl"})
    assert (config.run_dir, config.resume) == (f"{home}/run", f"{home}/old")
    assert (config.data.train, config.data.validation) == (f"{home}/t.jsonl", f"{home}/v.jsonl")


def test_what_only_rollouts_need_is_not_asked_of_a_warm_start():
    config = made(algorithm="sft", optimizer={"mini_batch": 3}, rollout={"top_p": 0.9})
    assert config.optimizer.mini_batch == 3
    assert made(rollout={"top_p": 0.9}, loss={"importance_sampling": True}).rollout.sampling == Sampling(1.0, 0.9, 0)


def test_every_setting_is_documented():
    def documented(cls: type) -> None:
        docs = field_docs(cls)
        for field in dataclasses.fields(cls):
            assert docs.get(field.name), f"{cls.__name__}.{field.name}"
            value = field.default if field.default is not dataclasses.MISSING else None
            if dataclasses.is_dataclass(value):
                documented(type(value))

    documented(TrainConfig)
    documented(type(made().reward))
    documented(type(made().data))


def test_the_agent_is_the_models_own_with_settings_over_it(tmp_path):
    (tmp_path / "remem.json").write_text(agent_json(AgentConfig(chunk_tokens=6, memory_tokens=9)), encoding="utf-8")
    agent, trained = agent_config(made(agent={"memory_tokens": 4, "sampling": {"temperature": 0.5}}), tmp_path)
    assert trained and (agent.chunk_tokens, agent.memory_tokens) == (6, 4)
    assert agent.sampling == Sampling(0.5, 0.95, 0)
    agent, trained = agent_config(made(agent={"tags": {"memory": "notes"}}), tmp_path / "none")
    assert not trained and (agent.tags.memory, agent.tags.callback) == ("notes", "callback")
    with pytest.raises(RememError, match=r"^agent.chunk_tokens: expected a number of at least 1, found 0$"):
        agent_config(made(agent={"chunk_tokens": 0}), tmp_path)
    with pytest.raises(RememError, match=r"^agent.chunks: expected a known setting"):
        agent_config(made(agent={"chunks": 3}), tmp_path)


def test_the_rate_rises_over_the_warm_up_then_stays_or_follows_a_cosine():
    constant = made(steps=10, optimizer={"learning_rate": 8.0, "warmup": 4})
    assert [learning_rate(constant, step) for step in range(6)] == [2, 4, 6, 8, 8, 8]
    cosine = made(
        steps=9, optimizer={"learning_rate": 8.0, "warmup": 4, "schedule": "cosine", "final_learning_rate": 2.0}
    )
    assert [learning_rate(cosine, step) for step in (0, 3, 4, 6, 8)] == pytest.approx([2, 8, 8, 5, 2])
    assert learning_rate(made(optimizer={"warmup": 0}), 0) == 1e-6


def test_settings_that_changed_are_named_with_their_section():
    old, new = (
        plain(dataclasses.asdict(config)) for config in (made(), made(seed=1, loss={"beta": 0.0}, mesh=[1, 1, 1]))
    )
    assert list(lines_that_differ(old, new)) == ["loss.beta", "mesh", "seed"]
    assert list(lines_that_differ(old, plain(dataclasses.asdict(made())))) == []
    assert list(lines_that_differ({"a": 1}, {"b": 1})) == ["a", "b"]


def test_the_shipped_training_settings_load():
    files = sorted(path for path in CONFIGS.glob("*.yaml") if not path.name.startswith("eval_"))
    assert {"relay.yaml", "relay_memagent.yaml", "paper_parity_7b.yaml"} <= {path.name for path in files}
    for path in files:
        config = load_config(TrainConfig, path)
        agent_config(config, "no model here")


def test_yaml_and_overrides_are_read_together_and_a_fault_names_the_file(tmp_path):
    path = tmp_path / "train.yaml"
    path.write_text("model: m\nrun_dir: r\ndata: {train: t}\nmesh: [1, 2, 1]\nsteps: 7\n", encoding="utf-8")
    config = load_config(
        TrainConfig, path, ["steps=9", "lora.targets=[q,v]", "loss.dual_clip=3", "log.tensorboard=false"]
    )
    assert (config.steps, config.mesh, config.lora.targets) == (9, (1, 2, 1), ("q", "v"))
    assert config.loss.dual_clip == 3 and config.log.tensorboard is False
    with pytest.raises(RememError, match=r"train.yaml: steps: expected a whole number, found 'many' \(text\)"):
        load_config(TrainConfig, path, ["steps=many"])
