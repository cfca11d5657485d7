"""Decoder models: loaded, run over packed rows, saved. Public names load on first use."""

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Model": "remem_jax.model.load",
    "ModelConfig": "remem_jax.model.config",
    "load_model": "remem_jax.model.load",
    "save_model": "remem_jax.model.safetensors",
    "token_logprobs": "remem_jax.model.logprobs",
}

__all__ = ["Model", "ModelConfig", "load_model", "save_model", "token_logprobs"]

if TYPE_CHECKING:
    from remem_jax.model.config import ModelConfig
    from remem_jax.model.load import Model, load_model
    from remem_jax.model.logprobs import token_logprobs
    from remem_jax.model.safetensors import save_model


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'remem_jax.model' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
