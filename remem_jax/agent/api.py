"""An agent in two lines of Python: `load_agent(path).answer(question, documents)`; the command line uses the same."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from remem_jax.agent.loop import Agent, Episode, Progress, Turn
from remem_jax.agent.prompts import LOOPLESS, load_prompts
from remem_jax.agent.protocol import Tags
from remem_jax.agent.reading import Reading, fit_lengths, prepare
from remem_jax.config import AgentConfig, override, read_agent_json
from remem_jax.data.documents import Document, read_documents
from remem_jax.errors import RememError
from remem_jax.model import load_model
from remem_jax.model.attention import BACKENDS, not_here
from remem_jax.model.hub import resolve_model
from remem_jax.model.load import Model

LENGTHS = ("chunk_tokens", "memory_tokens", "max_reply_tokens")


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an agent answered and how it came there; prints as its text, shows its turns in a notebook."""

    question: str
    text: str | None
    """The answer in the last complete box of the final reply; None where there is none."""
    turns: tuple[Turn, ...]
    """Every turn, the final one last."""
    tokens_read: int
    """Document tokens that the agent has read."""
    cut_tokens: int
    """Document tokens that it was not shown: beyond `max_chunks`, or cut by an agent without a loop."""

    def __str__(self) -> str:
        return "(no answer)" if self.text is None else self.text

    def _repr_html_(self) -> str:
        from remem_jax.observe.snippet import trajectory_html
        from remem_jax.observe.stories import as_trajectory

        return trajectory_html(as_trajectory(self))

    @property
    def seconds(self) -> float:
        """Wall time of its turns; questions of a batch share theirs."""
        return sum(turn.seconds for turn in self.turns)

    @property
    def lookup_seconds(self) -> float:
        """Part of `seconds` spent on look-up."""
        return sum(turn.lookup_seconds for turn in self.turns)

    @property
    def invalid_turns(self) -> int:
        """Memory turns whose reply broke the format, so that the memory stayed."""
        return sum(not turn.valid for turn in self.turns if not turn.final)

    def summary(self) -> dict[str, Any]:
        """Plain values, one JSON object a question."""
        return {
            "question": self.question,
            "answer": self.text,
            "final_reply": self.turns[-1].reply,
            "turns": len(self.turns),
            "tokens_read": self.tokens_read,
            "cut_tokens": self.cut_tokens,
            "seconds": round(self.seconds, 3),
            "lookup_seconds": round(self.lookup_seconds, 6),
            "invalid_turns": self.invalid_turns,
            "callbacks": sum(bool(turn.callback) for turn in self.turns),
            "recalled_turns": sum(turn.recalled_step >= 0 for turn in self.turns),
            "reply_tokens": sum(len(turn.reply_ids) for turn in self.turns),
            "truncated_replies": sum(not turn.ended for turn in self.turns),
            "memory": self.turns[-1].memory,
        }


@dataclasses.dataclass(frozen=True)
class LoadedAgent:
    """A model with an agent's settings, ready to answer."""

    agent: Agent
    notes: tuple[str, ...]
    """What the user should know: settings that differ from the model's own, lengths fitted to its context."""

    @property
    def config(self) -> AgentConfig:
        """The agent's settings."""
        return self.agent.config

    def answer(self, question: str, documents: Any, *, seed: int = 0) -> Answer:
        """Read `documents` and answer.

        Args:
            documents: a path, `Document`, mapping with `title` and `text`, or a list of these.
            seed: of the sampling; equal seeds give equal answers.
        """
        return self.answer_all([question], documents, seed=seed)[0]

    def answer_all(
        self,
        questions: Sequence[str],
        documents: Any,
        *,
        seed: int = 0,
        questions_in_flight: int = 8,
        on_turn: Callable[[Progress], None] | None = None,
    ) -> list[Answer]:
        """Several questions over one reading plan, in a batch."""
        readings = self.readings(questions, documents)
        episodes = self.agent.run(readings, seed=seed, questions_in_flight=questions_in_flight, on_turn=on_turn)
        return [answer_of(of_question[0]) for of_question in episodes]

    def memory_turns(self, reading: Reading) -> int:
        """Turns before the final one."""
        return 0 if self.config.agent in LOOPLESS else len(reading.chunks)

    def readings(self, questions: Sequence[str], documents: Any) -> list[Reading]:
        """Questions with their tokenised chunks, checked against the model's context."""
        model = self.agent.model
        named = [(f"question {i}: {text}", text) for i, text in enumerate(questions)]
        return prepare(
            model.tokenizer, self.config, self.agent.blocks, model.config.max_positions, named, as_documents(documents)
        )


def answer_of(episode: Episode) -> Answer:
    """The answer of a finished episode."""
    reading = episode.reading
    read = sum(len(chunk) for chunk in reading.chunks)
    return Answer(reading.question, episode.answer, tuple(episode.turns), read, reading.cut_tokens)


def as_documents(documents: Any) -> list[Document]:
    """Documents of paths, `Document`s, mappings with `title` and `text`, or a list of these."""
    if isinstance(documents, str | Path | Document | Mapping):
        documents = [documents]
    if not isinstance(documents, list | tuple):
        raise RememError(
            f"documents: expected paths, Documents or mappings with title and text, found {documents!r:.60}"
        )
    found: list[Document] = []
    for item in documents:
        if isinstance(item, Document):
            found.append(item)
        elif isinstance(item, Mapping):
            if not isinstance(item.get("text"), str):
                raise RememError(f"a document needs the field text, found {', '.join(map(str, item)) or 'nothing'}")
            found.append(Document(str(item.get("title", "")), item["text"]))
        elif isinstance(item, str | Path):
            found += read_documents([item])
        else:
            raise RememError(f"a document is a path, a Document or a mapping with title and text, found {item!r:.60}")
    return found


def load_agent(
    path: str | Path,
    *,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    attention: str | None = None,
    prompts: str | Path | None = None,
    weights: bool = True,
    **settings: Any,
) -> LoadedAgent:
    """Load a model and the agent that its `remem.json` describes, or the default one.

    Args:
        path: model directory, `.gguf` file or hub id, or `smollm2`.
        dtype: of weights and computation; default float32 on CPU and bfloat16 elsewhere.
        attention: back end that reads prompts: blocked, dense, splash or cudnn; default by platform.
        prompts: a folder of prompt texts in place of the built-in or the model's own ones.
        weights: False loads only the configuration and the tokenizer, to look at prompts.
        settings: fields of `AgentConfig` and `Sampling`, as `chunk_tokens=1000`, `temperature=0.0`,
            `tags={"memory": None}`.

    Lengths that are not given and that no `remem.json` sets are halved until they fit the model's context.
    """
    if isinstance(settings.get("tags"), Mapping):
        settings["tags"] = Tags(**settings["tags"])
    if attention is not None and attention not in BACKENDS:
        raise RememError(f"attention must be one of {', '.join(BACKENDS)}, found {attention}")
    if weights and attention is not None and (reason := not_here(attention)):
        raise RememError(f"attention: {reason}")
    if prompts is not None:
        settings["prompts"] = load_prompts(prompts).texts()
    root = resolve_model(path)
    trained = read_agent_json(root)
    config, warnings = override(trained or AgentConfig(), **settings)  # before the weights, which take their time
    dtype = dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    model = load_model(root, dtype, weights=weights)
    if model.tokenizer is None:
        raise RememError(f"{path} holds no tokenizer: put tokenizer.json or tokenizer.model beside the weights")
    return fitted_agent(model, config, trained is not None, settings, attention, warnings)


def fitted_agent(
    model: Model,
    config: AgentConfig,
    trained: bool,
    given: Mapping[str, Any],
    attention: str | None = None,
    warnings: Sequence[str] = (),
) -> LoadedAgent:
    """An agent with `config`; where no `remem.json` set its lengths, those not `given` are fitted to the context."""
    agent = Agent(model, config, attention=attention)
    if trained:
        return LoadedAgent(agent, tuple(warnings))
    keep = {name for name in LENGTHS if given.get(name) is not None}
    fitted, note = fit_lengths(config, agent.blocks, model.config.max_positions, keep=keep)
    return LoadedAgent(Agent(model, fitted, attention=attention), (note,) if note else ())
