"""One step of multi-level GRPO: a rollout batch, its scores, and the optimizer steps it feeds (METHOD 4 to 6).

Axes: `N` questions, `T1` turns, `G` rollouts.
"""

import time
from collections.abc import Sequence

import numpy as np

from remem_jax.agent.loop import Agent, Episode, Progress
from remem_jax.agent.prompts import load_prompts
from remem_jax.data.pipeline import Example
from remem_jax.observe.live import TrainScreen
from remem_jax.rl.batch import MiniBatch, mini_batch, rescored, sampler_gap, shuffled
from remem_jax.rl.health import health_metrics
from remem_jax.rl.memory import out_of_memory
from remem_jax.rl.rewards import is_yes_no
from remem_jax.rl.scoring import Scores, score
from remem_jax.rl.setup import Run, engine_params, learning_rate
from remem_jax.rl.step import TrainState, logprobs
from remem_jax.rl.stop import StopRequest
from remem_jax.rl.update import add_up, means, optimizer_step
from remem_jax.rollout.buckets import compilations


class Played:
    """A scored rollout batch, kept for the trajectories that a run writes."""

    def __init__(self, examples: Sequence[Example], episodes: list[list[Episode]], scores: Scores):
        self.examples, self.episodes, self.scores = examples, episodes, scores

    @property
    def answers(self) -> list[tuple[str, ...]]:
        """Gold answers of each question."""
        return [example.record.answers for example in self.examples]


def grpo_step(
    run: Run, state: TrainState, step: int, screen: TrainScreen, stop: StopRequest
) -> tuple[TrainState, dict[str, float], Played]:
    """Rollout batch `step` (from 0) and its updates: the new state, metrics, and what was played.

    A stop is granted as long as nothing has been updated; it then raises `Stopped`.
    """
    began, compiled = time.perf_counter(), compilations()
    examples = run.batches[step]
    player = run.player(engine_params(run, state), run.config.rollout.sampling)
    episodes = roll_out(run, player, examples, step, screen, stop)
    rolled = time.perf_counter()
    screen.phase("scores")
    played = Played(examples, episodes, _score(run, player, examples, episodes))
    batches = [
        mini_batch(episodes, played.scores, indices, run.config.loss, run.agent)
        for indices in shuffled(len(examples), run.config.optimizer.mini_batch, run.config.seed, step)
    ]
    scored = time.perf_counter()
    stop.check()
    batches, gap = _old_and_reference(run, state, batches, screen)
    stop.check()
    rescored_at = time.perf_counter()
    state, sums, first = _update(run, state, batches, step, screen)
    done = time.perf_counter()
    tokens = sum(t.prompt_tokens + len(t.reply_ids) for group in episodes for e in group for t in e.turns)
    metrics = rollout_metrics(played) | _loss_metrics(sums, gap or first)
    metrics |= health_metrics(
        episodes,
        played.scores,
        tokenizer=run.model.tokenizer,  # pyright: ignore[reportArgumentType]
        answers=played.answers,
        prompt_texts=load_prompts(run.agent.prompts).texts().values(),
    )
    metrics |= {
        "optimizer/learning_rate": learning_rate(run.config, step),
        "optimizer/skipped": float(state.skipped),
        "run/compilations": float(compilations() - compiled),
        "time/rollout": rolled - began,
        "time/score": scored - rolled,
        "time/logprobs": rescored_at - scored,
        "time/update": done - rescored_at,
        "time/step": time.perf_counter() - began,
        "run/tokens_per_second": tokens / (done - began),
    }
    return state, metrics, played


def roll_out(
    run: Run, player: Agent, examples: Sequence[Example], step: int, screen: TrainScreen, stop: StopRequest
) -> list[list[Episode]]:
    """`[N][G]` episodes of a rollout batch, in waves of whole groups.

    Raises:
        RememError: the device is out of memory; it names what to lower.
    """
    size = run.in_flight
    waves = -(-len(examples) // size)
    finished = 0

    def on_turn(progress: Progress) -> None:
        nonlocal finished
        of = f"of wave {finished + 1}/{waves}" if waves > 1 else ""
        screen.phase("rollout turn", progress.turn, progress.turns, of)
        finished += progress.turn == progress.turns

    with out_of_memory("rollout", "rollout.questions_in_flight", size):
        return player.run(
            [example.reading for example in examples],
            rollouts=run.config.rollout.group,
            seed=run.config.seed,
            step=step,
            questions_in_flight=size,
            keep_prompts=True,
            on_turn=on_turn,
            between=stop.check,
        )


def _score(run: Run, player: Agent, examples: Sequence[Example], episodes: list[list[Episode]]) -> Scores:
    answers = [example.record.answers for example in examples]
    tokenizer = run.model.tokenizer
    assert tokenizer is not None
    return score(episodes, answers, run.config.reward, tokenizer, writes_queries=player.writes_queries)


def _old_and_reference(
    run: Run, state: TrainState, batches: list[MiniBatch], screen: TrainScreen
) -> tuple[list[MiniBatch], dict[str, float]]:
    """Recomputed old log-probabilities and those of the reference policy, where the run wants them."""
    memory, static = run.config.memory, dict(config=run.model.config, dtype=run.dtype, backend=run.config.attention)
    temperature = run.config.rollout.temperature
    gap: dict[str, float] = {}

    def pass_over(batches: list[MiniBatch], field: str, params, frozen) -> list[MiniBatch]:
        def values(rows) -> np.ndarray:
            found = logprobs(params, rows, temperature=temperature, frozen=frozen, lora_scale=run.lora_scale, **static)
            return np.asarray(found)

        found = []
        for i, batch in enumerate(batches):
            screen.phase(f"log-probs {field}", i + 1, len(batches))
            found.append(rescored(batch, values, field, token_budget=memory.token_budget, row_tokens=memory.row_tokens))
        return found

    if run.config.rollout.old_logprobs == "recomputed":
        sampled = batches
        batches = pass_over(batches, "logp_old", state.params, run.frozen)
        gap = sampler_gap(sampled, batches)
    if run.config.loss.beta > 0:
        params, frozen = (None, run.base) if run.config.lora.rank else (run.base, None)
        batches = pass_over(batches, "logp_ref", params, frozen)
    return batches, gap


def _update(run: Run, state: TrainState, batches: list[MiniBatch], step: int, screen: TrainScreen):
    """All optimizer steps of a rollout batch; the first one's metrics hold the sampler's gap."""
    rate = learning_rate(run.config, step)
    collected: list[dict[str, tuple[float, float]]] = []
    for i, batch in enumerate(batches):
        screen.phase("update", i + 1, len(batches))
        state, sums, broken = optimizer_step(run, state, batch.groups, batch.total, rate)
        if broken:
            screen.note(f"step {step + 1}, update {i + 1} skipped: gradient not finite in {', '.join(broken)}")
        collected.append(sums)
    return state, add_up(collected), means({name: collected[0][name] for name in ("gap_abs", "gap_kl")})


def _loss_metrics(sums: dict[str, tuple[float, float]], gap: dict[str, float]) -> dict[str, float]:
    values = means({name: value for name, value in sums.items() if name not in ("gap_abs", "gap_kl", "grad_norm")})
    named = {("loss/total" if name == "loss" else f"loss/{name}"): value for name, value in values.items()}
    named["optimizer/grad_norm"] = means(sums)["grad_norm"]
    return named | {f"sampler/{name}": value for name, value in gap.items()}


def rollout_metrics(played: Played) -> dict[str, float]:
    """Reward parts as means over live turns (outcome: rollouts) and what the advantages look like."""
    scores, mask = played.scores, played.scores.mask
    memory_turns = mask[:, :-1]

    def mean(values: np.ndarray, where: np.ndarray) -> float:
        return float(values[where].mean()) if where.any() else 0.0

    advantages = scores.advantages[mask]
    equal = scores.outcome.max(axis=1) == scores.outcome.min(axis=1)
    return {
        "reward/outcome": float(scores.outcome.mean()),
        "reward/memory": mean(scores.memory[:, :-1], memory_turns),
        "reward/callback": mean(scores.callback[:, :-1], memory_turns),
        "reward/format": mean(scores.format, mask),
        "reward/state": mean(scores.state, mask),
        "batch/yes_no_questions": float(np.mean([is_yes_no(answers) for answers in played.answers])),
        "advantage/mean": float(advantages.mean()),
        "advantage/std": float(advantages.std()),
        "advantage/largest": float(np.abs(advantages).max()),
        "advantage/equal_outcomes": float(equal.mean()),
    }
