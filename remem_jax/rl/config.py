"""What `remem train` is set to: one frozen dataclass a section of the YAML file, checked when made.

The string under a field is its documentation. METHOD 6 and 7 have the formulas and the paper's values, which are the
defaults.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem_jax.config import AgentConfig, Sampling, read_agent_json
from remem_jax.data.pipeline import open_records
from remem_jax.data.records import Record
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.paths import local, only_here
from remem_jax.processes import Processes
from remem_jax.rl.lora import TARGETS
from remem_jax.rl.scoring import Reward
from remem_jax.settings import check_types, expand_paths, expect, expect_one_of, from_mapping

ALGORITHMS = ("grpo", "sft")
AVERAGES = ("state_mean", "token_mean", "constant")


def _at_least(config, least: float, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        expect(value is None or value >= least, name, f"a number of at least {least}", value)


def _above_0(config, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        expect(value > 0, name, "a number above 0", value)


@dataclass(frozen=True)
class Data:
    """Questions (grpo): a file of records (METHOD 9) or a folder of `remem data build`; or demonstrations (sft)."""

    train: str
    """File or folder that is trained on."""
    validation: str | None = None
    """File or folder of questions that validation answers; none is no validation."""
    documents: int | None = None
    """Documents of a context, for folders: one of the sizes that they were built with."""
    cache: str | None = "~/.cache/remem_jax/tokens"
    """Folder that keeps the ids of long documents, two or four bytes a token; none tokenises at every visit."""
    workers: int = 1
    """Threads that read and tokenise the next batch while this one trains."""
    like_lengths: int = 1
    """Batches whose questions are sorted by length together, so that a batch has questions of like length; 1: not."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "documents", "workers", "like_lengths")
        expand_paths(self, "train", "validation")
        if self.cache is not None:
            only_here(self.cache, "cache")

    @property
    def token_cache(self) -> TokenCache | None:
        """The cache as an object."""
        return None if self.cache is None else TokenCache(Path(self.cache).expanduser())

    def questions(self, path: str) -> Sequence[Record]:
        """The questions of `train` or `validation`; `documents` is for folders alone."""
        folder = local(path).is_dir()
        expect(not folder or self.documents is not None, "data.documents", f"one of the sizes of {path}", None)
        return open_records(path, self.documents if folder else None)


@dataclass(frozen=True)
class Rollout:
    """How a rollout batch is sampled."""

    questions: int = 128
    """Questions of a rollout batch, N."""
    group: int = 16
    """Rollouts of each question, G."""
    temperature: float = 1.0
    """Divides the logits in sampler and loss alike."""
    top_p: float = 1.0
    """Below 1 only with loss.importance_sampling."""
    top_k: int = 0
    """Above 0 only with loss.importance_sampling."""
    questions_in_flight: int | None = None
    """Questions of a wave; results do not depend on it. None takes what fits the memory."""
    old_logprobs: str = "sampler"
    """Log-probabilities of the old policy: the sampler's own, or recomputed by the trainer."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "questions", "group", "questions_in_flight")
        expect_one_of("old_logprobs", self.old_logprobs, ("sampler", "recomputed"))
        expect(
            0 < self.temperature < math.inf,
            "temperature",
            "a number above 0: a greedy rollout teaches nothing",
            self.temperature,
        )
        _ = self.sampling  # which checks its own values

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.top_k)


@dataclass(frozen=True)
class Loss:
    """The objective (METHOD 6)."""

    average: str = "state_mean"
    """Weight of a token: state_mean (the paper), token_mean (the published code) or constant."""
    divisor: float | None = None
    """For constant: tokens that a question counts as; none is G * (most chunks + 1) * max_reply_tokens of the batch."""
    eps_low: float = 0.2
    """Clip bound of the ratio below 1."""
    eps_high: float = 0.2
    """Clip bound of the ratio above 1."""
    dual_clip: float | None = None
    """Bound of the loss where the advantage is negative; none is off."""
    beta: float = 0.001
    """Weight of the KL estimate against the starting model; 0 needs no reference policy."""
    entropy_bonus: float = 0.0
    """Weight of the policy's entropy."""
    importance_sampling: bool = False
    """Weigh each token by min(exp(old - sampled), importance_cap): for top_p, top_k or another sampler's numerics."""
    importance_cap: float = 2.0
    """Truncation of those weights."""

    def __post_init__(self):
        check_types(self)
        expect_one_of("average", self.average, AVERAGES)
        _at_least(self, 0, "eps_low", "eps_high", "beta")
        _above_0(self, "importance_cap")
        expect(self.dual_clip is None or self.dual_clip > 1, "dual_clip", "a number above 1, or none", self.dual_clip)
        expect(self.divisor is None or self.divisor > 0, "divisor", "a number above 0, or none", self.divisor)


@dataclass(frozen=True)
class Optimiser:
    """AdamW on float32 master weights, its rate and its batches."""

    learning_rate: float = 1e-6
    """The rate after warm-up."""
    warmup: int = 20
    """Steps over which the rate rises to it; a step of grpo is a rollout batch."""
    schedule: str = "constant"
    """After warm-up: constant, or cosine down to final_learning_rate at the last step."""
    final_learning_rate: float = 0.0
    """Where the cosine ends."""
    mini_batch: int = 8
    """Questions (grpo) or demonstrations (sft) of one optimizer step."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.999
    """Decay of the second moment."""
    eps: float = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled, on every parameter."""
    clip_norm: float = 1.0
    """Global norm that gradients are scaled down to."""

    def __post_init__(self):
        check_types(self)
        expect_one_of("schedule", self.schedule, ("constant", "cosine"))
        for name in ("learning_rate", "final_learning_rate", "weight_decay"):
            value = getattr(self, name)
            expect(0 <= value < math.inf, name, "a number of at least 0", value)
        for name in ("b1", "b2"):
            expect(0 <= getattr(self, name) < 1, name, "a number from 0 to below 1", getattr(self, name))
        _above_0(self, "eps", "clip_norm")
        _at_least(self, 0, "warmup")
        _at_least(self, 1, "mini_batch")


@dataclass(frozen=True)
class Memory:
    """How much goes through the device at a time; the loss does not depend on it."""

    token_budget: int = 16384
    """Padded tokens of a micro-batch: lower it when an update runs out of memory."""
    row_tokens: int | None = None
    """Longest packed row; a group beyond it repeats its prefix. None is the token budget. Small models: short rows."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "token_budget", "row_tokens")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters in place of full weights."""

    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: float = 16.0
    """The adapters' output is multiplied by alpha / rank."""
    targets: tuple[str, ...] = TARGETS
    """Matrices that get an adapter: some of q, k, v, o, gate, up, down."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 0, "rank")
        _above_0(self, "alpha")
        for target in self.targets:
            expect_one_of("targets", target, TARGETS)
        expect(bool(self.targets), "targets", f"some of {', '.join(TARGETS)}", self.targets)


@dataclass(frozen=True)
class Validation:
    """Answers to `data.validation` before training, every so many steps and at the end."""

    every: int = 10
    """Steps between two validations."""
    questions: int | None = None
    """Only the first so many; none is all."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "every", "questions")


@dataclass(frozen=True)
class Checkpointing:
    """When training state is saved; the best of the validated ones is kept too."""

    every: int = 10
    """Steps between two checkpoints; one is saved at the end and after a validation that is the best so far."""
    keep: int = 2
    """Newest checkpoints that stay."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "every", "keep")


@dataclass(frozen=True)
class Stop:
    """For sft: training ends early once the loss is low, and fails where it never gets there."""

    loss: float | None = None
    """Stop when the mean of `window` losses is below it; not reached by the last step is an error. None: all steps."""
    window: int = 50
    """Steps of that mean."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 1, "window")
        expect(self.loss is None or self.loss > 0, "loss", "a number above 0, or none", self.loss)


@dataclass(frozen=True)
class Log:
    """What a run writes beside its checkpoints."""

    tensorboard: bool = True
    """Also write TensorBoard files."""
    wandb_project: str | None = None
    """Also write to this project of Weights & Biases."""
    trajectories_every: int = 10
    """Steps between two files of sample trajectories; 0 writes none."""
    trajectories_questions: int = 4
    """Questions in such a file, with all their rollouts."""

    def __post_init__(self):
        check_types(self)
        _at_least(self, 0, "trajectories_every")
        _at_least(self, 1, "trajectories_questions")


@dataclass(frozen=True)
class TrainConfig:
    """One run of `remem train`."""

    model: str
    """Starting weights: a Hugging Face directory, a .gguf file or a hub id."""
    data: Data
    """Files of questions or demonstrations."""
    run_dir: str
    """Checkpoints, metrics, trajectories and the exported model go here."""
    algorithm: str = "grpo"
    """grpo (multi-level GRPO) or sft (warm start on demonstrations)."""
    steps: int = 200
    """Rollout batches (grpo) or optimizer steps (sft)."""
    seed: int = 0
    """Of everything random: order of the data, sampling, fresh adapters."""
    resume: str = "auto"
    """auto: go on from the run's newest checkpoint; never: refuse a run that has one; a path: go on from that one."""
    dtype: str | None = None
    """Of computation and caches: float32 (default on CPU) or bfloat16 (default elsewhere). Masters are float32."""
    attention: str | None = None
    """Back end of packed attention; none by platform."""
    mesh: tuple[int, ...] = (1, -1, 1)
    """Devices along data, fsdp, tensor; -1 is what is left."""
    processes: Processes = dataclasses.field(default_factory=Processes)
    """How several processes find each other."""
    export: str = "best"
    """Weights written to run_dir/model at the end: best (by validation, else the last), last or none."""
    export_dtype: str = "float32"
    """Of those weights: float32 or bfloat16."""
    agent: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Fields of the agent's settings, over those of the model's remem.json where it has one."""
    rollout: Rollout = Rollout()
    """How rollouts are sampled."""
    reward: Reward = dataclasses.field(default_factory=Reward)
    """Rewards and advantages."""
    loss: Loss = Loss()
    """The objective."""
    optimizer: Optimiser = Optimiser()
    """AdamW, its rate, its batches."""
    memory: Memory = Memory()
    """Sizes of micro-batches."""
    lora: Lora = Lora()
    """Low-rank adapters."""
    validation: Validation = Validation()
    """When validation runs."""
    checkpoint: Checkpointing = Checkpointing()
    """When state is saved."""
    stop: Stop = Stop()
    """When sft ends early."""
    log: Log = Log()
    """Metrics and trajectories."""

    def __post_init__(self):
        check_types(self)
        expect_one_of("algorithm", self.algorithm, ALGORITHMS)
        expect_one_of("export", self.export, ("best", "last", "none"))
        expect_one_of("export_dtype", self.export_dtype, ("float32", "bfloat16"))
        expect(self.dtype in (None, "float32", "bfloat16"), "dtype", "float32, bfloat16 or none", self.dtype)
        _at_least(self, 1, "steps")
        expect(0 <= self.seed < 2**32, "seed", "a number from 0 to 4294967295", self.seed)
        expand_paths(self, "run_dir", "resume")
        if self.algorithm == "grpo":
            self._check_grpo()

    def _check_grpo(self):
        cut = self.rollout.top_p < 1 or self.rollout.top_k > 0
        if cut and not self.loss.importance_sampling:
            raise RememError(
                f"rollout: expected top_p 1 and top_k 0 in training, found top_p {self.rollout.top_p} and top_k "
                f"{self.rollout.top_k}: set loss.importance_sampling=true, which corrects for them"
            )
        if self.rollout.questions % self.optimizer.mini_batch:
            raise RememError(
                f"optimizer.mini_batch: expected a divisor of rollout.questions = {self.rollout.questions}, found "
                f"{self.optimizer.mini_batch}"
            )


def agent_config(config: TrainConfig, model_path) -> tuple[AgentConfig, bool]:
    """The agent of a run: the model's `remem.json`, or the defaults, with the settings under `agent` over it.

    Returns whether the model had a `remem.json`. Raises RememError for unknown names and wrong values.
    """
    trained = read_agent_json(model_path)
    base: dict[str, Any] = dataclasses.asdict(trained or AgentConfig())
    for name, value in config.agent.items():
        if isinstance(value, Mapping) and name in ("tags", "sampling"):
            base[name] = {**base[name], **value}
        else:
            base[name] = value
    try:
        return from_mapping(AgentConfig, base), trained is not None
    except RememError as error:
        raise RememError(f"agent.{error}") from None
