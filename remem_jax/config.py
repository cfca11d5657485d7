"""What an agent is set to, as frozen dataclasses checked when made, and the `remem.json` that travels with a model.

The string under a field is its documentation.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remem_jax import __version__
from remem_jax.agent.protocol import Tags
from remem_jax.errors import RememError
from remem_jax.settings import (
    check_types,
    expect,
    expect_one_of,
    from_mapping,
    kind_of,
    load_config,
    nearest,
    one_line,
    settings_of,
)

__all__ = [
    "AGENTS",
    "AGENT_FILE",
    "CANDIDATES",
    "PROMPT_ORDERS",
    "AgentConfig",
    "Sampling",
    "load_config",
    "override",
    "read_agent_json",
    "write_agent_json",
]

AGENTS = ("rememr1", "memagent", "rule_callback", "full_context", "retrieval")
PROMPT_ORDERS = ("section_last", "section_first", "document_first", "question_last")
CANDIDATES = ("not_current", "all")
DOCUMENT_FORMATS = ("numbered", "plain")

AGENT_FILE = "remem.json"
AGENT_FILE_VERSION = 1


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn; hashable, so it can be static under jit."""

    temperature: float = 0.7
    """Divides the logits; 0 is greedy."""
    top_p: float = 0.95
    """Only the smallest set of tokens with at least this probability is drawn from; 1 is all."""
    top_k: int = 0
    """Only this many of the most probable tokens are drawn from; 0 is all."""

    def __post_init__(self):
        check_types(self)
        usable = self.temperature == 0 or 0.01 <= self.temperature < math.inf
        expect(usable, "temperature", "0 (greedy) or a finite number of at least 0.01", self.temperature)
        expect(0 < self.top_p <= 1, "top_p", "a number above 0 and at most 1", self.top_p)
        expect(self.top_k >= 0, "top_k", "a number of at least 0", self.top_k)


@dataclass(frozen=True)
class AgentConfig:
    """How an agent reads and answers. It travels with trained weights as `remem.json`."""

    agent: str = "rememr1"
    """rememr1, memagent, rule_callback, full_context or retrieval."""
    prompt_order: str = "section_first"
    """Where the chunk stands in the prompt: section_first, section_last (the paper's), document_first or
    question_last."""
    candidates: str = "not_current"
    """Which memories a callback may find: not_current (all but the one now shown) or all."""
    document_format: str = "numbered"
    """How documents become one text: numbered (Document i:, title, text) or plain (their texts, one a line)."""
    tags: Tags = dataclasses.field(default_factory=Tags)
    """The marks of a reply: thinking, callback, memory."""
    chunk_tokens: int = 5000
    """Tokens of the document read in one turn."""
    memory_tokens: int = 2048
    """Tokens a memory is cut to."""
    question_tokens: int = 2048
    """Tokens a question may have."""
    max_reply_tokens: int = 2048
    """Tokens a reply may have."""
    retrieval_paragraphs: int = 8
    """Paragraphs that the agent retrieval puts into its one prompt."""
    max_chunks: int | None = None
    """Read at most this many chunks and report what was cut; none reads all."""
    prompts: Mapping[str, str] | None = None
    """Prompt texts by file name, in place of the built-in ones."""
    sampling: Sampling = Sampling()
    """How the reply is drawn: temperature, top_p, top_k."""

    def __post_init__(self):
        check_types(self)
        expect_one_of("agent", self.agent, AGENTS)
        expect_one_of("prompt_order", self.prompt_order, PROMPT_ORDERS)
        expect_one_of("candidates", self.candidates, CANDIDATES)
        expect_one_of("document_format", self.document_format, DOCUMENT_FORMATS)
        for name in ("chunk_tokens", "memory_tokens", "question_tokens", "max_reply_tokens", "retrieval_paragraphs"):
            expect(getattr(self, name) >= 1, name, "a number of at least 1", getattr(self, name))
        if self.max_chunks is not None:
            expect(self.max_chunks >= 1, "max_chunks", "a number of at least 1, or none", self.max_chunks)


def write_agent_json(directory: str | Path, config: AgentConfig) -> Path:
    """Writes `remem.json` beside a model's weights, in one step; returns its path."""
    path = Path(directory) / AGENT_FILE
    part = path.with_suffix(".json.part")
    part.write_text(agent_json(config), encoding="utf-8")
    os.replace(part, path)
    return path


def agent_json(config: AgentConfig) -> str:
    """The text of `remem.json`."""
    values = {"version": AGENT_FILE_VERSION, "written_by": f"remem_jax {__version__}", **dataclasses.asdict(config)}
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_agent_json(path: str | Path) -> AgentConfig | None:
    """The settings that travel with the model at `path` (its directory, or a `remem.json` itself); None without any.

    Raises RememError for a file that isn't JSON, was written for a newer format, or holds unknown keys or bad values.
    """
    path = Path(path)
    file = path if path.name == AGENT_FILE else path / AGENT_FILE
    if not file.is_file():
        return None
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RememError(f"{file}: expected JSON, found: {one_line(error)}") from None
    if not isinstance(values, dict):
        raise RememError(f"{file}: expected a JSON object, found {kind_of(values)}")
    version = values.pop("version", None)
    values.pop("written_by", None)
    if version != AGENT_FILE_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > AGENT_FILE_VERSION
        advice = "update remem_jax" if newer else f'write "version": {AGENT_FILE_VERSION} into it'
        found = "none" if version is None else repr(version)
        raise RememError(f"{file}: expected version {AGENT_FILE_VERSION}, found {found}: {advice}")
    try:
        return from_mapping(AgentConfig, values)
    except RememError as error:
        raise RememError(f"{file}: {error}") from None


def override(config: AgentConfig, **changes: Any) -> tuple[AgentConfig, list[str]]:
    """`config` with `changes`, and at most one warning line that names every value that now differs.

    Names are those of AgentConfig, or of Sampling (`temperature=0.0`); None means not given. Print the warning where
    `config` came from a model's `remem.json`: wrong tags or lengths silently destroy a trained agent.
    """
    known = [*settings_of(AgentConfig), *settings_of(Sampling)]
    before, after, differing = config, config, []
    for name, value in changes.items():
        if name not in known:
            raise RememError(f"{name}: expected a known setting, {nearest(name, known)}")
        if value is None:
            continue
        if name in settings_of(Sampling):
            old = getattr(before.sampling, name)
            after = dataclasses.replace(after, sampling=dataclasses.replace(after.sampling, **{name: value}))
        else:
            old = getattr(before, name)
            after = dataclasses.replace(after, **{name: value})
        if old != value:
            differing.append(name if name in ("prompts", "tags") else f"{name} {value} (not {old})")
    if not differing:
        return after, []
    return after, [f"other settings than the model's {AGENT_FILE}: {', '.join(differing)}; a trained agent may suffer"]
