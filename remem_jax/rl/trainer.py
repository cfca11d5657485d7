"""The training loop: steps of one algorithm with validation, checkpoints, metrics and resume around them.

Nothing random has a state of its own: data, sampling and shuffles are functions of (seed, step), so a checkpoint's
arrays and its step are all that a run needs to go on bit by bit as if it had never stopped.
"""

import contextlib
import dataclasses
import math
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path, PurePath

import jax
import yaml

from remem_jax import __version__
from remem_jax.checkpoint import Checkpoints, check_space, find_checkpoint, restore, state_bytes
from remem_jax.convert import convert
from remem_jax.data.pipeline import Example
from remem_jax.errors import RememError
from remem_jax.eval.harness import Result, evaluate, summary, write_results
from remem_jax.mesh import Placement, make_mesh, placement_on
from remem_jax.observe.live import TrainScreen
from remem_jax.observe.metrics import MetricWriter, append_line, open_lines, truncate_lines
from remem_jax.observe.trajectories import scored_records, write_records
from remem_jax.paths import fetch_run, run_folder, send_run, url_of
from remem_jax.processes import check_tensor_axis, leaving_alone, start, together
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.grpo import Played, grpo_step
from remem_jax.rl.memory import out_of_memory, questions_in_flight
from remem_jax.rl.setup import (
    Run,
    abstract_state,
    engine_params,
    fresh_state,
    lines_that_differ,
    model_files,
    plain,
    prepare_run,
)
from remem_jax.rl.sft import sft_step
from remem_jax.rl.step import TrainState
from remem_jax.rl.stop import Stopped, StopRequest
from remem_jax.stored import FOLDER, absolute, complete_steps, in_bucket

STEPS = {"grpo": grpo_step, "sft": sft_step}
VALIDATION_FILE, CONFIG_FILE, EXPORT = "validation.jsonl", "config.yaml", "model"


@dataclass
class Position:
    """How far a run is; with the state's arrays, all that a checkpoint holds."""

    step: int = 0
    """Steps done, which is also the position in the data."""
    best: float | None = None
    """Highest validation score so far."""
    best_step: int | None = None
    validated: int = -1
    """Step that was validated last."""
    losses: tuple[float, ...] = ()
    """The last losses, for `stop.loss`."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    """Steps done."""
    stopped: bool
    """By a signal, before its last step."""
    best: float | None
    exported: Path | None
    """The directory of exported weights."""


def train(config: TrainConfig, *, quiet: bool = False) -> Outcome:
    """Run `config` to its end, or to the safe point after a SIGTERM or Ctrl-C; all its processes call it.

    Raises:
        RememError: what cannot work is told before training where it can be known.
    """
    start(config.processes)
    with StopRequest(several=jax.distributed.is_initialized()) as stop:
        mesh = make_mesh(config.mesh)
        check_tensor_axis(mesh)
        place = placement_on(mesh)
        if place.processes > 1:
            raise RememError(f"processes: expected 1, found {place.processes}: training in several is not there yet")
        with together(place):
            check_export(config)
            checkpoints = Checkpoints(absolute(config.run_dir) / FOLDER, keep=config.checkpoint.keep, placement=place)
        with contextlib.closing(checkpoints), leaving_alone(place):
            return _train(config, checkpoints, place, stop, quiet)


def _train(config: TrainConfig, checkpoints: Checkpoints, place: Placement, stop: StopRequest, quiet: bool) -> Outcome:
    _check_shared(checkpoints.directory, place)
    with together(place):
        fetch_run(config.run_dir, FOLDER, EXPORT)
        source = resume_from(config)
        run = prepare_run(config)
    source = place.share(source and str(source))[0]
    run.in_flight = questions_in_flight(run) if config.algorithm == "grpo" else 1
    like, warning = abstract_state(run), None
    with together(place):
        if place.process == 0:
            warning = check_space(config.run_dir, state_bytes(like), keep=config.checkpoint.keep)
    notes = [*run.notes, *([warning] if warning else [])]
    state, position = _start(run, source and absolute(source), like, checkpoints, notes)
    outcome = _loop(run, state, position, checkpoints, stop, notes, quiet)
    with together(place):
        send_run(config.run_dir)
    return outcome


def _check_shared(directory: Path, place: Placement) -> None:
    """Raises RememError in all processes where one does not see in the checkpoints' folder what process 0 wrote."""
    if place.processes == 1 or in_bucket(directory):
        return
    mark = directory / f".process-0-{place.share(secrets.token_hex(4))[0]}"
    with together(place):
        if place.process == 0:
            mark.touch()
    try:
        with together(place):
            if not mark.exists():
                raise RememError(
                    "run_dir: expected a directory that all processes share, found in "
                    f"{directory} nothing of what process 0 wrote there"
                )
    finally:
        if place.process == 0:
            mark.unlink(missing_ok=True)


def check_export(config: TrainConfig) -> None:
    """Raises RememError where the export at the end would replace the model that the run starts from."""
    names = (config.run_dir + f"/{EXPORT}", config.model)
    export, model = (PurePath(name) if url_of(name) else absolute(name).resolve() for name in names)
    if config.export != "none" and model.is_relative_to(export):
        raise RememError(
            f"model: {config.model} is where the run exports its own model to: give another run_dir, or export=none"
        )


def resume_from(config: TrainConfig) -> Path | None:
    """The checkpoint that the run goes on from, None for a fresh start.

    A path to another run's checkpoint is where the run begins; once it has checkpoints it goes on from its own, so that
    the same command goes on after every stop. A path to one of its own goes back to that.
    """
    folder = absolute(config.run_dir) / FOLDER
    latest = max(complete_steps(folder), default=None) if folder.is_dir() else None
    if config.resume == "never" and latest is not None:
        raise RememError(
            f"resume: {config.run_dir} holds a run of {latest} steps already: give a new run_dir, remove the old one, "
            "or go on with it by resume=auto"
        )
    if config.resume not in ("auto", "never"):
        named = find_checkpoint(config.resume)
        if latest is None or named.parent == folder:
            return named
    return None if latest is None else folder / str(latest)


def _start(run: Run, source: Path | None, like, checkpoints: Checkpoints, notes: list[str]):
    """State and position to go on from; files of the run are cut back to that step."""
    config = dataclasses.asdict(run.config)
    if source is None:
        state, position = fresh_state(run), Position()
        _write_start(run, position)
        return state, position
    if source.parent == checkpoints.directory:
        state, info = checkpoints.restore(int(source.name), like)
        checkpoints.discard_after(int(source.name))
    else:
        state, info = restore(source, like)
        info |= {"validated": -1, "best": None, "best_step": None}  # this run has none of its checkpoints
    ignored = ("resume", "run_dir", "steps", "log", "processes")
    changed = [name for name in lines_that_differ(info["config"], plain(config)) if name.split(".")[0] not in ignored]
    if changed:
        notes.append(f"settings changed since the checkpoint: {', '.join(changed)}")
    position = Position(
        **{name: info[name] for name in ("step", "best", "best_step", "validated")}, losses=tuple(info["losses"])
    )
    notes.append(f"resumed after step {position.step} from {source}")
    _write_start(run, position)
    return state, position


def _write_start(run: Run, position: Position) -> None:
    directory, config, place = run_folder(run.config.run_dir), run.config, placement_on(run.mesh)
    config = dataclasses.replace(config, processes=dataclasses.replace(config.processes, index=None))
    text = yaml.safe_dump(plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)
    with together(place):
        if place.process == 0:
            truncate_lines(directory / VALIDATION_FILE, position.step + 1)
            (directory / CONFIG_FILE).write_text(
                f"# remem_jax {__version__}; go on: remem train THIS\n{text}", encoding="utf-8"
            )


def _loop(
    run: Run, state: TrainState, position: Position, checkpoints: Checkpoints, stop: StopRequest, notes, quiet: bool
) -> Outcome:
    config, place = run.config, placement_on(run.mesh)
    quiet = quiet or place.process > 0
    with together(place):
        opened = _open_writer(config, position) if place.process == 0 else contextlib.nullcontext()
    stopped = False
    with opened as writer, TrainScreen(config.steps, done=position.step, quiet=quiet) as screen:
        for note in notes:
            screen.note(note)
        try:
            if position.validated != position.step:  # before training, or where a stop came in between
                _validate_and_save(run, state, position, checkpoints, screen, stop)
            while position.step < config.steps and not _low_enough(run, position):
                stop.check()
                state, metrics, played = STEPS[config.algorithm](run, state, position.step, screen, stop)
                position.step += 1
                position.losses = (*position.losses, metrics["loss/total"])[-config.stop.window :]
                _write_step(run, writer, position.step, metrics, played)
                screen.step(position.step, metrics)
                _validate_and_save(run, state, position, checkpoints, screen, stop)
        except Stopped:
            stopped = True
        screen.phase("waiting for the checkpoint")
        checkpoints.wait()
        if checkpoints.latest() != position.step:
            _save(run, state, position, checkpoints, screen)
            checkpoints.wait()
        if stopped:
            return Outcome(position.step, True, position.best, None)
        _check_loss(run, position)
        exported = _export(run, checkpoints, screen)
    return Outcome(position.step, False, position.best, exported)


def _open_writer(config: TrainConfig, position: Position):
    return contextlib.closing(
        MetricWriter(
            run_folder(config.run_dir),
            first_step=position.step + 1,
            tensorboard=config.log.tensorboard,
            wandb_project=config.log.wandb_project,
        )
    )


def _validate_and_save(run, state, position: Position, checkpoints, screen, stop) -> None:
    """Validation and checkpoint, where it is time for them."""
    config, last = run.config, position.step == run.config.steps or _low_enough(run, position)
    score = None
    if run.validation and (last or position.step % config.validation.every == 0):
        score = _validate(run, state, position, screen, stop)
    if score is not None or position.step % config.checkpoint.every == 0:
        _save(run, state, position, checkpoints, screen, score)


def _save(run, state, position: Position, checkpoints, screen, score: float | None = None) -> None:
    if position.step == 0:
        return  # nothing has been learnt: a fresh start is the same
    screen.phase("saving")
    info = {**dataclasses.asdict(position), "config": plain(dataclasses.asdict(run.config))}
    if run.config.lora.rank:
        info |= {
            "base": url_of(run.config.model) or str(run.model.path),
            "lora": plain(dataclasses.asdict(run.config.lora)),
        }
    checkpoints.save(position.step, state, info, files=model_files(run), score=score)
    with together(placement_on(run.mesh)):
        send_run(run.config.run_dir)


def _validate(run: Run, state, position: Position, screen, stop) -> float | None:
    """Scores of the validation questions, written and shown; the exact match, None without questions."""
    if not run.validation:
        return None
    began, place = time.perf_counter(), placement_on(run.mesh)
    with out_of_memory("validation", "rollout.questions_in_flight", run.in_flight):
        results = evaluate(
            run.player(engine_params(run, state)),
            _own_questions(run.validation, place),
            seed=(run.config.seed + 1) % 2**32,
            questions_in_flight=run.in_flight * run.config.rollout.group,
            on_turn=lambda progress: screen.phase("validation turn", progress.turn, progress.turns),
            between=stop.check,
        )
    results = _of_all_processes(run, results)
    scores = summary(results)
    directory, name = run_folder(run.config.run_dir), f"step_{position.step:06}.jsonl"
    with together(place):
        if place.process == 0:
            truncate_lines(directory / VALIDATION_FILE, position.step)
            with contextlib.closing(open_lines(directory / VALIDATION_FILE)) as file:
                append_line(file, {"step": position.step, **_finite(scores), "seconds": time.perf_counter() - began})
            (directory / "validation").mkdir(exist_ok=True)
            write_results(directory / "validation" / name, results)
    screen.validation(position.step, {name: scores[name] for name in ("exact_match", "f1", "n")})
    score, position.validated = scores["exact_match"], position.step
    if position.step > 0 and (position.best is None or score > position.best):  # step 0 is not saved
        position.best, position.best_step = score, position.step
    return score


def _own_questions(examples: list[Example], place: Placement) -> list[Example]:
    """Every `P`-th question; a process with one less than others plays the first too, as all do the same at once."""
    own = examples[place.process :: place.processes]
    return own if len(own) == -(-len(examples) // place.processes) else [*own, examples[0]]


def _of_all_processes(run: Run, own: list[Result]) -> list[Result]:
    """The results of `_own_questions` of all processes, in the order of the questions."""
    place = placement_on(run.mesh)
    if place.processes == 1:
        return own
    shares = place.share([result.to_dict() for result in own])
    in_order = [result for row in zip(*shares, strict=True) for result in row][: len(run.validation)]
    return [Result(**{**result, "answers": tuple(result["answers"])}) for result in in_order]


def _finite(values: dict[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _write_step(run: Run, writer: MetricWriter | None, step: int, metrics, played: Played | None) -> None:
    """Metrics and sample trajectories of a step, by process 0."""
    place, every = placement_on(run.mesh), run.config.log.trajectories_every
    records = None
    if played is not None and every > 0 and (step == 1 or step % every == 0):
        records = [record for part in place.share(_trajectories(run, played, place, step)) for record in part]
    with together(place):
        if writer is not None:
            writer.write(step, metrics)
            if records is not None:
                write_records(run_folder(run.config.run_dir) / "trajectories" / f"step_{step:06}.jsonl", records)


def _trajectories(run: Run, played: Played, place: Placement, step: int) -> list[dict]:
    """Lines of those of the batch's first questions that this process played."""
    count = max(run.config.log.trajectories_questions - place.process * len(played.episodes), 0)
    tokenizer = run.model.tokenizer
    assert tokenizer is not None
    return list(
        scored_records(
            played.episodes[:count],
            _first(played, count),
            played.answers[:count],
            run.config.reward,
            tokenizer,
            step=step,
        )
    )


def _first(played: Played, count: int):
    return dataclasses.replace(
        played.scores, **{f.name: getattr(played.scores, f.name)[:count] for f in dataclasses.fields(played.scores)}
    )


def _low_enough(run: Run, position: Position) -> bool:
    stop = run.config.stop
    full = stop.loss is not None and len(position.losses) == stop.window
    return bool(full and sum(position.losses) / stop.window < stop.loss)  # pyright: ignore[reportOperatorIssue]


def _check_loss(run: Run, position: Position) -> None:
    stop = run.config.stop
    if stop.loss is not None and not _low_enough(run, position):
        mean = sum(position.losses) / max(len(position.losses), 1)
        raise RememError(
            f"stop.loss: expected a mean of {stop.window} losses below {stop.loss} within {run.config.steps} steps, "
            f"found {mean:.3f}: raise steps, or try another seed"
        )


def _export(run: Run, checkpoints: Checkpoints, screen: TrainScreen) -> Path | None:
    if run.config.export == "none":
        return None
    screen.phase("exporting")
    target, place = run_folder(run.config.run_dir) / EXPORT, placement_on(run.mesh)
    best = run.config.export == "best" and checkpoints.best() is not None
    with together(place):
        if place.process == 0 and target.exists():
            shutil.rmtree(target)
        exported = convert(run.config.run_dir, target, dtype=run.config.export_dtype, best=best)
    return absolute(run.config.run_dir) / EXPORT if url_of(run.config.run_dir) else exported
