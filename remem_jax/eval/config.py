"""Settings of `remem eval`: which agents, on which models, over which questions, and how replies are drawn.

The string under a field is its documentation.
"""

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remem_jax.agent.prompts import load_prompts
from remem_jax.agent.protocol import Tags
from remem_jax.config import AGENTS, Sampling
from remem_jax.errors import RememError
from remem_jax.model.attention import BACKENDS
from remem_jax.paths import only_here
from remem_jax.settings import check_types, expand_paths, expect, expect_one_of, from_mapping

METRICS = ("exact_match", "f1", "sub_exact_match", "sub_exact_match_published")
PLACE = "{documents}"  # in a path: the number of documents
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Dataset:
    """Questions, with contexts of one or several sizes."""

    path: str
    """A folder made by `remem data build`, or a file of records; with {documents} in it, a file for each size."""
    documents: tuple[int, ...] = ()
    """Sizes of the contexts; none for one file whose questions bring their own paragraphs."""

    def __post_init__(self):
        check_types(self)
        expand_paths(self, "path")
        expect(all(n >= 1 for n in self.documents), "documents", "numbers of at least 1", self.documents)
        expect(len(set(self.documents)) == len(self.documents), "documents", "every number once", self.documents)
        if PLACE in self.path:
            expect(bool(self.documents), "documents", f"the sizes that stand for {PLACE} in the path", "none")


@dataclass(frozen=True)
class Decoding:
    """How replies are drawn; none is the model's own setting, and where it has none the paper's 0.7 and 0.95."""

    temperature: float | None = None
    """Divides the logits; 0 is greedy."""
    top_p: float | None = None
    """Smallest set of tokens with at least this probability that is drawn from; 1 is all."""
    top_k: int | None = None
    """Most probable tokens that are drawn from; 0 is all."""

    def __post_init__(self):
        check_types(self)
        Sampling(**self.given())

    def given(self) -> dict[str, Any]:
        """What is set."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}


@dataclass(frozen=True)
class EvalConfig:
    """One run of `remem eval`: agents x models x datasets x sizes."""

    out: str
    """Folder of results, tables and the picture; the same settings go on where it stands."""
    models: Mapping[str, str]
    """Name -> model: a Hugging Face directory, a .gguf file, a hub id, or smollm2."""
    agents: Mapping[str, object]
    """Name -> settings of an agent, over those of the model's remem.json, and `models`, a list of names (default all).
    `agent` is the name itself where it is one of rememr1, memagent, rule_callback, full_context, retrieval."""
    datasets: Mapping[str, Dataset]
    """Name -> questions."""
    questions: int | None = 128
    """The first so many of each dataset, sorted by id; none takes all."""
    questions_in_flight: int = 32
    """Questions that are read side by side; fixed for a folder of results, as are their groups."""
    seed: int = 0
    """Of the sampling; drawn for each question by itself, so that it does not matter what is read beside it."""
    dtype: str | None = None
    """Of weights and computation: float32 (default on CPU), bfloat16 (default elsewhere) or float16."""
    attention: str | None = None
    """Back end that reads prompts; none by platform."""
    sampling: Decoding = Decoding()
    """How replies are drawn; a `sampling` of an agent goes before."""
    metric: str = "sub_exact_match"
    """Metric of the picture and the differences: exact_match, f1, sub_exact_match or sub_exact_match_published."""
    cache: str | None = None
    """Folder of token ids, which runs may share; none is `tokens` in `out`."""

    def __post_init__(self):
        check_types(self)
        expand_paths(self, "out", "cache")
        for name in ("out", "cache"):
            if (path := getattr(self, name)) is not None:
                only_here(path, name)
        for section in ("models", "agents", "datasets"):
            names = getattr(self, section)
            expect(bool(names), section, "at least one", "none")
            for name in names:
                expect(bool(_NAME.fullmatch(name)), section, "names of letters, digits, '.', '_', '+' and '-'", name)
        expect(
            self.questions is None or self.questions >= 1, "questions", "at least 1, or none for all", self.questions
        )
        expect(self.questions_in_flight >= 1, "questions_in_flight", "at least 1", self.questions_in_flight)
        expect(0 <= self.seed < 2**32, "seed", "a number from 0 to 4294967295", self.seed)
        if self.dtype is not None:
            expect_one_of("dtype", self.dtype, ("float32", "bfloat16", "float16"))
        if self.attention is not None:
            expect_one_of("attention", self.attention, BACKENDS)
        expect_one_of("metric", self.metric, METRICS)
        for name in self.agents:
            agent_models(self, name)
            agent_settings(self, name)


def agent_models(config: EvalConfig, name: str) -> tuple[str, ...]:
    """Names of the models that an agent runs on."""
    asked = _entry(config, name).get("models")
    if asked is None:
        return tuple(config.models)
    if not isinstance(asked, list | tuple) or not asked:
        raise RememError(f"agents.{name}.models: expected a list of names of models, found {asked!r:.60}")
    for model in asked:
        if model not in config.models:
            raise RememError(f"agents.{name}.models: expected names of {', '.join(config.models)}, found {model!r}")
    return tuple(dict.fromkeys(asked))


def agent_settings(config: EvalConfig, name: str) -> dict[str, Any]:
    """What is set for an agent, by names of `AgentConfig` and `Sampling`, as `config.override` takes it.

    Raises:
        RememError: an unknown name or a value that cannot be.
    """
    settings = {key: value for key, value in _entry(config, name).items() if key != "models"}
    if name in AGENTS:
        settings.setdefault("agent", name)
    elif "agent" not in settings:
        raise RememError(f"agents.{name}: expected `agent`, one of {', '.join(AGENTS)}, as its name is none of them")
    try:
        own = settings.pop("sampling", None) or {}
        settings = config.sampling.given() | from_mapping(Decoding, own).given() | settings
        if isinstance(settings.get("tags"), Mapping):
            settings["tags"] = from_mapping(Tags, settings["tags"])
        if isinstance(settings.get("prompts"), str | Mapping):
            settings["prompts"] = load_prompts(settings["prompts"]).texts()
    except RememError as error:
        raise RememError(f"agents.{name}: {error}") from None
    return settings


def dataset_file(dataset: Dataset, documents: int | None) -> tuple[str, int | None]:
    """Path and number of documents as `data.pipeline.open_records` takes them."""
    if PLACE in dataset.path:
        return dataset.path.replace(PLACE, str(documents)), None
    return dataset.path, documents


def _entry(config: EvalConfig, name: str) -> dict[str, Any]:
    entry = config.agents[name]
    if entry is None:  # `memagent:` with nothing behind it
        return {}
    if not isinstance(entry, Mapping):
        raise RememError(f"agents.{name}: expected settings of an agent, found {entry!r:.60}")
    return dict(entry)
