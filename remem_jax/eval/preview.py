"""What `remem eval --dry-run` prints: the settings, then every cell with its questions, tokens, chunks and turns."""

import dataclasses
from collections.abc import Sequence

import yaml

from remem_jax.eval.config import EvalConfig
from remem_jax.eval.harness import history_bytes
from remem_jax.eval.plan import Plan, PlannedCell, make_plan
from remem_jax.eval.report import aligned
from remem_jax.eval.runner import differs_from_stored, notes
from remem_jax.rl.setup import plain

HEAD = ["", "dataset", "documents", "questions", "tokens", "a question", "chunks", "turns", "waves", "history kB"]


def preview(config: EvalConfig) -> str:
    """The plan in words; nothing is written and no weights are read.

    Raises:
        RememError: whatever the run itself would refuse before its first question.
    """
    plan = make_plan(config, None, lambda what, done, total: None)
    settings = yaml.safe_dump(plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)
    total = sum(cell.turns(range(len(cell.tokens))) for cell in plan.cells)
    told = [f"note: {note}" for note in notes(plan)]
    if differing := differs_from_stored(config, plan):
        told.append(f"{config.out} holds results made with other {', '.join(differing)}: a run would be refused")
    last = f"{len(plan.cells)} cells, {sum(len(cell.tokens) for cell in plan.cells):,} questions, {total:,} turns"
    return "\n".join([settings, *_players(plan), *told, "", aligned([HEAD, *map(_row, plan.cells)]), last])


def _players(plan: Plan) -> Sequence[str]:
    """A line an agent on a model: what it is set to."""
    lines = []
    for player in {cell.player.name: cell.player for cell in plan.cells}.values():
        agent = player.agent.config
        drawn = agent.sampling
        lines.append(
            f"{player.name}: agent {agent.agent} on {player.model_name}, order {agent.prompt_order}, chunk "
            f"{agent.chunk_tokens:,}, memory {agent.memory_tokens:,}, reply {agent.max_reply_tokens:,} tokens, "
            f"temperature {drawn.temperature:g}, top_p {drawn.top_p:g}; context "
            f"{player.agent.model.config.max_positions:,}; {plan.dtype}"
        )
    return lines


def _row(cell: PlannedCell) -> list[str]:
    count = len(cell.tokens)
    chunks = [cell.memory_turns(place) for place in range(count)]
    most, loop = max(chunks), any(chunks)
    size = history_bytes(most, cell.player.agent.config.memory_tokens) / 1e3 if loop else 0.0
    span = f"{min(chunks)}" if min(chunks) == most else f"{min(chunks)} to {most}"
    return [
        cell.player.name,
        cell.questions.dataset,
        f"{cell.questions.documents:,}",
        f"{count:,}",
        f"{sum(cell.tokens):,}",
        f"{sum(cell.tokens) / count:,.0f}",
        span,
        f"{sum(chunks) + count:,}",
        f"{len(cell.waves):,}",
        f"{size:,.1f}",
    ]
