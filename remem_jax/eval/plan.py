"""What `remem eval` will do, fixed before it starts: cells, each an agent on questions of one size, and their waves.

A wave is played whole or not at all, so what is left after a kill is computed in the batches that it would have been.

Axes: `N` questions of a cell.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from remem_jax import __version__
from remem_jax.agent.api import fitted_agent
from remem_jax.agent.loop import Agent
from remem_jax.agent.prompts import LOOPLESS, load_prompts
from remem_jax.agent.reading import check_budget, encode_documents
from remem_jax.config import AgentConfig, override, read_agent_json
from remem_jax.data.built import MANIFEST, hash_file
from remem_jax.data.pipeline import open_records
from remem_jax.data.records import Record
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.eval.config import EvalConfig, agent_models, agent_settings, dataset_file
from remem_jax.model import load_model
from remem_jax.model.attention import why_not
from remem_jax.model.load import Model
from remem_jax.paths import local

_BLOCKS, _BLOCK_BYTES = 64, 2**16  # of a file of weights, read to tell it from another

Tell = Callable[[str, int, int], None]
"""What is being done, how much of it is done, of how much."""


@dataclasses.dataclass(frozen=True)
class Questions:
    """The questions of a dataset at one size."""

    dataset: str
    documents: int
    """Of a context; where questions bring their own paragraphs, the most that one has."""
    records: Sequence[Record]
    """Sorted by id, read when asked for."""
    ids: tuple[str, ...]
    path: Path
    """The file, or the folder of a built set."""


@dataclasses.dataclass(frozen=True)
class Player:
    """An agent on a model, as a line of the tables has it."""

    name: str
    """Of the line: the agent's, with the model's where it runs on several."""
    agent_name: str
    model_name: str
    agent: Agent
    """Its model has no weights yet."""
    notes: tuple[str, ...]
    """What the user should know about its settings."""


@dataclasses.dataclass(frozen=True)
class PlannedCell:
    """One player on one set of questions."""

    player: Player
    questions: Questions
    tokens: tuple[int, ...]
    """Of each question's documents, in the order of `questions`."""
    waves: tuple[tuple[int, ...], ...]
    """Questions that are read side by side, as places in `questions`."""

    @property
    def name(self) -> str:
        """For messages: who, on what."""
        return f"{self.player.name} on {self.questions.dataset}, {self.questions.documents:,} documents"

    @property
    def file(self) -> Path:
        """Of its results, below the folder of the run."""
        one, own = self.questions, self.player
        return Path("results", one.dataset, str(one.documents), f"{own.agent_name}@{own.model_name}.jsonl")

    def memory_turns(self, place: int) -> int:
        """Turns of a question before its final one."""
        return _memory_turns(self.player.agent.config, self.tokens[place])

    def turns(self, places: Sequence[int]) -> int:
        """Turns of several questions, the final ones included."""
        return sum(self.memory_turns(place) + 1 for place in places)


@dataclasses.dataclass(frozen=True)
class Plan:
    """All of a run; cells of one model stand together."""

    cells: tuple[PlannedCell, ...]
    dtype: str
    identity: dict[str, Any]
    """What the results depend on, as plain values."""


def make_plan(config: EvalConfig, cache: TokenCache | None, tell: Tell) -> Plan:
    """Open models (without weights) and questions, count tokens, check that lengths fit, and lay out the waves.

    Raises:
        RememError: a model, a file or a setting that cannot be used, named.
    """
    dtype = config.dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    if config.attention is not None and (reason := why_not(config.attention, tokens=128, dtype=jnp.dtype(dtype))):
        raise RememError(f"attention: {reason}")
    used = {name for agent in config.agents for name in agent_models(config, agent)}
    if idle := [name for name in config.models if name not in used]:
        raise RememError(f"models: expected each to be used by an agent, found {idle[0]} unused: take it out")
    models = {name: _look(config.models[name], tell) for name in config.models}
    players = [_player(config, agent, name, models[name]) for name in models for agent in config.agents
               if name in agent_models(config, agent)]  # fmt: skip
    every = _open_questions(config)
    counted: dict[tuple[str, str, str, int], tuple[int, ...]] = {}
    cells = []
    for player in players:
        form, tokenizer = player.agent.config.document_format, player.agent.model.tokenizer
        assert tokenizer is not None  # `_look` has seen it
        for questions in every:
            key = (tokenizer.fingerprint, form, questions.dataset, questions.documents)
            if key not in counted:
                counted[key] = _count_tokens(questions, tokenizer, form, cache, tell)
            waves = make_waves(player.agent.config, questions.ids, counted[key], config.questions_in_flight)
            cells.append(PlannedCell(player, questions, counted[key], waves))
    return Plan(tuple(cells), dtype, _identity(config, dtype, models, players, every))


def make_waves(
    agent: AgentConfig, ids: Sequence[str], tokens: Sequence[int], questions_in_flight: int
) -> tuple[tuple[int, ...], ...]:
    """Places of questions, `questions_in_flight` at a time, by the number of their turns, then by id."""
    order = sorted(range(len(ids)), key=lambda i: (_memory_turns(agent, tokens[i]), ids[i]))
    return tuple(tuple(order[i : i + questions_in_flight]) for i in range(0, len(order), questions_in_flight))


def _memory_turns(agent: AgentConfig, tokens: int) -> int:
    if agent.agent in LOOPLESS:
        return 0
    chunks = -(-tokens // agent.chunk_tokens)
    return chunks if agent.max_chunks is None else min(chunks, agent.max_chunks)


def _look(path: str, tell: Tell) -> Model:
    """A model's configuration and tokenizer."""
    tell(f"looking at {path}", 0, 0)
    model = load_model(path, weights=False)
    if model.tokenizer is None:
        raise RememError(f"{path} holds no tokenizer: put tokenizer.json or tokenizer.model beside the weights")
    return model


def _player(config: EvalConfig, name: str, model_name: str, model: Model) -> Player:
    shown = name if len(agent_models(config, name)) == 1 else f"{name}@{model_name}"
    given, trained = agent_settings(config, name), read_agent_json(model.path)
    try:
        settings, warnings = override(trained or AgentConfig(), **given)
        loaded = fitted_agent(model, settings, trained is not None, given, config.attention, warnings)
        check_budget(loaded.config, loaded.agent.blocks, model.config.max_positions, 1)
    except RememError as error:
        raise RememError(f"agents.{name}, model {model_name}: {error}") from None
    return Player(shown, name, model_name, loaded.agent, loaded.notes)


def _open_questions(config: EvalConfig) -> list[Questions]:
    """Every dataset at every size, its first questions by id."""
    found = []
    for name, dataset in config.datasets.items():
        for documents in sorted(dataset.documents) or [None]:
            path, size = dataset_file(dataset, documents)
            try:
                records = open_records(path, size)
            except RememError as error:
                raise RememError(f"datasets.{name}: {error}") from None
            if isinstance(records, list):  # a built set is sorted by id, and is not read here
                records = sorted(records, key=lambda record: record.id)
                documents = documents or max(len(record.paragraphs) for record in records)
            assert documents is not None  # a folder without sizes was refused
            chosen = records[: config.questions]
            found.append(Questions(name, documents, chosen, tuple(record.id for record in chosen), local(path)))
    return found


def _count_tokens(questions: Questions, tokenizer, form: str, cache: TokenCache | None, tell: Tell) -> tuple[int, ...]:
    """Tokens of every question's documents; a cache then holds their ids."""
    counts = []
    for i, record in enumerate(questions.records):
        tell(f"counting tokens of {questions.dataset}, {questions.documents:,} documents", i, len(questions.records))
        counts.append(len(encode_documents(tokenizer, record.paragraphs, form, cache)))
    return tuple(counts)


def _identity(config: EvalConfig, dtype: str, models, players: Sequence[Player], every: Sequence[Questions]) -> dict:
    """What the results depend on. Within `models`, `agents` and `data` each entry stands for itself."""
    hashed: dict[Path, str] = {}
    for one in every:
        if one.path not in hashed:
            hashed[one.path] = hash_file(one.path / MANIFEST if one.path.is_dir() else one.path)
    values = {
        "written_by": f"remem_jax {__version__}",
        "platform": jax.default_backend(),
        "dtype": dtype,
        "attention": config.attention,
        "seed": config.seed,
        "questions": config.questions,
        "questions_in_flight": config.questions_in_flight,
        "models": {name: model_identity(model) for name, model in models.items()},
        "agents": {f"{one.agent_name}@{one.model_name}": _settings(one.agent.config) for one in players},
        "data": {f"{one.dataset}/{one.documents}": hashed[one.path] for one in every},
    }
    return json.loads(json.dumps(values))  # lists for tuples, as in the file


def _settings(agent: AgentConfig) -> dict[str, Any]:
    """An agent's settings with all its prompt texts, also those that come with this version."""
    return dataclasses.asdict(agent) | {"prompts": load_prompts(agent.prompts).texts()}


def model_identity(model: Model) -> str:
    """Hexadecimal digest of what a model computes: configuration, tokenizer, and samples of each file of weights.

    A file's size, its beginning with the names of all tensors, and blocks from all over it are read, since the whole of
    a large one takes minutes. Other training changes every tensor.
    """
    assert model.tokenizer is not None
    digest = hashlib.sha256(f"{model.config}\n{model.tokenizer.fingerprint}\n".encode())
    weights = (".safetensors", ".gguf")
    files = [model.path] if model.path.is_file() else sorted(p for p in model.path.iterdir() if p.suffix in weights)
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name if model.path.is_dir() else ''} {size}\n".encode())
            for block in range(_BLOCKS):
                file.seek(block * max(size - _BLOCK_BYTES, 0) // max(_BLOCKS - 1, 1))
                digest.update(file.read(_BLOCK_BYTES))
    return digest.hexdigest()
