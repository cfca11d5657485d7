"""`remem eval` at work: plays the waves that are not answered yet, writes each as it ends, and reports when all are.

Nothing that is written depends on where a run was stopped: a wave of which any line is missing is played whole again.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from remem_jax.agent.loop import Agent, Progress
from remem_jax.data.pipeline import Example, make_example
from remem_jax.data.records import Record
from remem_jax.data.token_cache import TokenCache
from remem_jax.errors import RememError
from remem_jax.eval.config import EvalConfig
from remem_jax.eval.harness import Result, evaluate, failed_result
from remem_jax.eval.plan import Plan, PlannedCell, make_plan
from remem_jax.eval.report import AnsweredCell, write_report
from remem_jax.eval.store import append_results, claim, differences, owned, stored_identity, stored_results
from remem_jax.model import load_model
from remem_jax.model.attention import not_here
from remem_jax.observe.evaluating import EvalScreen
from remem_jax.rl.stop import Stopped, StopRequest


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    answered: int
    """Questions of all cells that have a result."""
    total: int
    stopped: bool
    """By a signal, before all was answered."""
    report: str
    """The tables, for a terminal; empty where it was stopped."""


def run_evaluation(config: EvalConfig, *, quiet: bool = False) -> Outcome:
    """Everything of a configuration, or what is left of it.

    Raises:
        RememError: whatever cannot be used, before a question is asked; or a folder of other results.
    """
    out = Path(config.out)
    if config.attention is not None and (reason := not_here(config.attention)):
        raise RememError(f"attention: {reason}")
    with StopRequest() as stop, EvalScreen(quiet=quiet) as screen, owned(out):

        def tell(what: str, done: int, total: int) -> None:
            stop.check()
            screen.preparing(what, done, total)

        done: dict[Path, dict[str, Result]] = {}
        total = 0
        try:
            cache = TokenCache(Path(config.cache) if config.cache else out / "tokens")
            plan = make_plan(config, cache, tell)
            claim(out, plan.identity)
            for note in notes(plan):
                screen.note(note)
            done = {cell.file: stored_results(out / cell.file, cell.questions.ids) for cell in plan.cells}
            total = sum(len(cell.questions.ids) for cell in plan.cells)
            _answer(config, plan, out, done, cache, screen, stop)
        except Stopped:
            return Outcome(sum(map(len, done.values())), total, True, "")
        cells = [AnsweredCell(cell, _in_order(cell, done[cell.file])) for cell in plan.cells]
        return Outcome(total, total, False, write_report(config, plan, cells, out))


def notes(plan: Plan) -> list[str]:
    """What the user should know, each once."""
    players = {cell.player.name: cell.player for cell in plan.cells}
    return [f"{name}: {note}" for name, player in players.items() for note in player.notes]


def left(cells: Sequence[PlannedCell], done: Mapping[Path, Mapping[str, Result]]) -> list[tuple[PlannedCell, tuple]]:
    """Waves that lack a line, with their cells, in the order they are played."""
    return [
        (cell, wave)
        for cell in cells
        for wave in cell.waves
        if any(cell.questions.ids[place] not in done[cell.file] for place in wave)
    ]


def differs_from_stored(config: EvalConfig, plan: Plan) -> list[str]:
    """Names of what the results in the folder were made with otherwise; none where there are none."""
    old = stored_identity(Path(config.out))
    return [] if old is None else differences(old, plan.identity)


def _answer(config: EvalConfig, plan: Plan, out: Path, done, cache: TokenCache, screen: EvalScreen, stop) -> None:
    """Play what is left, a model after another; `done` gains what is written."""
    waves = left(plan.cells, done)
    screen.begin(
        questions=sum(len(cell.questions.ids) for cell in plan.cells),
        answered=sum(map(len, done.values())),
        turns=sum(cell.turns(wave) for cell, wave in waves),
    )
    for name, of_model in itertools.groupby(waves, key=lambda one: one[0].player.model_name):
        screen.loading(name)
        model = load_model(config.models[name], plan.dtype)
        agents: dict[str, Agent] = {}
        for cell, wave in of_model:
            player = cell.player
            if player.name not in agents:
                agents[player.name] = Agent(model, player.agent.config, attention=config.attention)
            results = play_wave(agents[player.name], cell, wave, config.seed, cache, screen, stop)
            new = [result for result in results if result.id not in done[cell.file]]
            append_results(out / cell.file, new)
            done[cell.file] |= {result.id: result for result in new}
            screen.answered(len(new))


def play_wave(
    agent: Agent, cell: PlannedCell, wave: Sequence[int], seed: int, cache: TokenCache | None, screen: EvalScreen, stop
) -> list[Result]:
    """Results of a wave in its own order; a question that cannot be asked fails alone."""
    asked: list[Example | Result] = [_example(agent, cell.questions.records[place], cache) for place in wave]
    examples = [one for one in asked if isinstance(one, Example)]
    screen.wave(cell.name, cell.turns(wave))

    def on_turn(progress: Progress) -> None:
        # Those who have taken all their turns wait for the longest: the wave's turns are counted, not theirs.
        screen.turn(progress.turn, progress.turns)

    answered = {}
    if examples:
        found = evaluate(
            agent, examples, seed=seed, questions_in_flight=len(examples), on_turn=on_turn, between=stop.check
        )
        answered = {result.id: result for result in found}
    return [one if isinstance(one, Result) else answered[one.record.id] for one in asked]


def _example(agent: Agent, record: Record, cache: TokenCache | None) -> Example | Result:
    tokenizer = agent.model.tokenizer
    assert tokenizer is not None
    try:
        return make_example(record, tokenizer, agent.config, agent.blocks, agent.model.config.max_positions, cache)
    except RememError as error:
        return failed_result(record.id, record.answers, str(error))


def _in_order(cell: PlannedCell, results: Mapping[str, Result]) -> list[Result]:
    return [results[name] for name in cell.questions.ids]
