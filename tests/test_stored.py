"""Checkpoints on disk: found where they are said to be, and refused by name where they don't fit."""

import jax
import jax.numpy as jnp
import pytest

from remem_jax.checkpoint import Checkpoints
from remem_jax.errors import RememError
from remem_jax.stored import find_checkpoint, read_info, restore


def state_of(step: int, size: int = 4) -> dict:
    """A state whose every number says which step it is of."""
    return {"params": {"w": jnp.full(size, step, jnp.float32)}, "step": jnp.int32(step)}


def test_what_does_not_fit_is_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"a": jnp.zeros((2, 3)), "b": {"c": jnp.int32(1)}}, {}, files={})

    def message(like) -> str:
        with pytest.raises(RememError) as error:
            checkpoints.restore(1, like)
        assert "\n" not in str(error.value)
        return str(error.value).replace(str(tmp_path), "DIR")

    end = "it belongs to another model or optimizer; resume with the settings it was made with"
    number = jax.ShapeDtypeStruct((), jnp.int32)
    good = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    assert message({"a": good, "b": {"c": number}, "d": good}) == f"checkpoint DIR/1 lacks d float32[2, 3]: {end}"
    assert message({"a": good}) == f"checkpoint DIR/1 also holds b.c int32[]: {end}"
    mended = "resume with the settings it was made with"
    assert message({"a": jax.ShapeDtypeStruct((3, 2), jnp.float32), "b": {"c": number}}) == (
        f"checkpoint DIR/1: expected a float32[3, 2], found float32[2, 3]; {mended}"
    )
    assert message({"a": jax.ShapeDtypeStruct((2, 3), jnp.bfloat16), "b": {"c": good}}) == (
        f"checkpoint DIR/1: expected a bfloat16[2, 3], found float32[2, 3] (and 1 more); {mended}"
    )
    with pytest.raises(RememError, match="2 is not a complete checkpoint"):
        checkpoints.restore(2, {"a": good})
    checkpoints.close()


def test_a_damaged_checkpoint_is_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1, 1000), {}, files={})
    checkpoints.close()
    for file in (tmp_path / "1" / "state").glob("**/d/*"):
        file.unlink()
    with pytest.raises(RememError, match=r"checkpoint .*1 can't be read: .*; take another one") as error:
        restore(tmp_path / "1", state_of(1, 1000))
    assert "\n" not in str(error.value)
    (tmp_path / "1" / "files" / "checkpoint.json").write_text("{")
    with pytest.raises(RememError, match="can't be read"):
        read_info(tmp_path / "1")


def test_a_checkpoint_is_found_from_a_run_its_folder_or_itself(tmp_path, monkeypatch):
    run = tmp_path / "run"
    checkpoints = Checkpoints(run / "checkpoints")
    with pytest.raises(RememError, match=r"run: expected a run's directory .* found no complete checkpoint in it"):
        find_checkpoint(run)
    checkpoints.save(9, state_of(9), {}, files={})
    checkpoints.wait()
    with pytest.raises(RememError, match="expected a checkpoint with a validation score, found 1 without"):
        find_checkpoint(run, best=True)
    checkpoints.save(10, state_of(10), {}, files={}, score=0.9)
    checkpoints.save(11, state_of(11), {}, files={}, score=0.8)
    checkpoints.close()
    for path in (run, run / "checkpoints", str(run)):
        assert find_checkpoint(path) == run / "checkpoints" / "11"
        assert find_checkpoint(path, best=True) == run / "checkpoints" / "10"
    assert find_checkpoint(run / "checkpoints" / "10") == run / "checkpoints" / "10"
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("run").parent == find_checkpoint("run/../run").parent == checkpoints.directory
    with pytest.raises(RememError, match="found no such directory"):
        find_checkpoint(tmp_path / "nothing")
    with pytest.raises(RememError, match="the best is one of several"):
        find_checkpoint(run / "checkpoints" / "10", best=True)
