"""What `remem train --dry-run` prints: the resolved settings, shapes, token budget and memory, without any weights."""

import dataclasses

import yaml

from remem_jax.checkpoint import check_space, check_writable, state_bytes
from remem_jax.rl.config import TrainConfig
from remem_jax.rl.memory import describe
from remem_jax.rl.setup import abstract_state, plain, prepare_run
from remem_jax.rl.trainer import check_export, resume_from


def preview(config: TrainConfig) -> str:
    """Settings as YAML, then what they mean for the model at hand.

    Raises RememError for whatever the run itself would refuse before its first step.
    """
    check_export(config)
    check_writable(config.run_dir)
    source = resume_from(config)
    run = prepare_run(config, weights=False)
    warning = check_space(config.run_dir, state_bytes(abstract_state(run)), keep=config.checkpoint.keep)
    notes = [*run.notes, *([warning] if warning else []), *([f"goes on from {source}"] if source else [])]
    settings = plain(dataclasses.asdict(config) | {"agent": dataclasses.asdict(run.agent)})
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return "\n".join([text, *(f"note: {note}" for note in notes), describe(run)])
