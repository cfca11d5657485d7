"""Train, evaluate and use memory agents that read documents far longer than the context window.

The public names below load on first use, so that `import remem_jax` costs nothing and starts no accelerator.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AgentConfig": "remem_jax.config",
    "RememError": "remem_jax.errors",
    "Sampling": "remem_jax.config",
    "load_agent": "remem_jax.agent.api",
    "load_model": "remem_jax.model",
    "load_tokenizer": "remem_jax.tokenizer",
    "token_logprobs": "remem_jax.model",
}

__all__ = ["AgentConfig", "RememError", "Sampling", "load_agent", "load_model", "load_tokenizer", "token_logprobs"]

if TYPE_CHECKING:
    from remem_jax.agent.api import load_agent
    from remem_jax.config import AgentConfig, Sampling
    from remem_jax.errors import RememError
    from remem_jax.model import load_model, token_logprobs
    from remem_jax.tokenizer import load_tokenizer


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'remem_jax' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
