"""What `remem train --dry-run` prints: the resolved settings, shapes, token budget and memory, without any weights."""

import dataclasses

import yaml

from remem_jax.rl.config import TrainConfig
from remem_jax.rl.memory import describe
from remem_jax.rl.setup import plain, prepare_run


def preview(config: TrainConfig) -> str:
    """Settings as YAML, then what they mean for the model at hand.

    Raises RememError for whatever the run itself would refuse before its first step.
    """
    run = prepare_run(config, weights=False)
    settings = plain(dataclasses.asdict(config) | {"agent": dataclasses.asdict(run.agent)})
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    return "\n".join([text, *(f"note: {note}" for note in run.notes), describe(run)])
