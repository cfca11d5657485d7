"""A reward of one's own in place of the exact match, named in the configuration as `my_module:my_reward`.

Axes: `N` questions, `G` rollouts, `Y` gold answers.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from remem_jax.agent.loop import Episode
from remem_jax.errors import RememError

OwnReward = Callable[[Sequence[Sequence[Episode]], Sequence[Sequence[str]]], Any]
"""`(episodes [N][G], answers [N][Y]) -> numbers [N, G]`."""


def load_reward(name: str) -> OwnReward:
    """The function that `my_module:my_reward` names; modules of the working directory are found too.

    Raises RememError where the module cannot be imported or holds no such function; the configuration puts its section
    before the field.
    """
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise RememError(f"function: expected my_module:my_reward, found {name!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        told = str(error).split("\n")[0]
        raise RememError(
            f"function: cannot import {module_name} ({type(error).__name__}: {told}): start where it lies, or "
            "install it"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise RememError(f"function: expected a function {attribute} in {module_name}, found none")
    return function


def own_outcome(
    name: str, episodes: Sequence[Sequence[Episode]], answers: Sequence[Sequence[str]]
) -> Float[np.ndarray, "N G"]:
    """What the function `name` gives for a rollout batch, checked.

    Raises RememError for another shape than `[N, G]` and for values that are not finite numbers.
    """
    shape = (len(episodes), len(episodes[0]))
    try:
        values = np.asarray(load_reward(name)(episodes, answers), np.float32)
    except (TypeError, ValueError) as error:
        told = str(error).split("\n")[0]
        raise RememError(f"reward.function: {name} failed or gave no numbers: {told}") from error
    if values.shape != shape:
        raise RememError(
            f"reward.function: expected shape {shape} (questions, rollouts) from {name}, found {values.shape}"
        )
    if not np.isfinite(values).all():
        i, j = np.argwhere(~np.isfinite(values))[0]
        raise RememError(
            f"reward.function: {name} gave {values[i, j]} for question {i}, rollout {j}: give finite numbers"
        )
    return values
