"""Checkpoints: bit for bit, kept and pruned as promised, and whole whatever happens while they are written."""

import errno
import resource
import shutil
from collections import namedtuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from remem_jax.checkpoint import (
    Checkpoints,
    _system_reason,
    check_space,
    find_checkpoint,
    read_info,
    restore,
    state_bytes,
)
from remem_jax.errors import RememError
from remem_jax.rl.step import Optimizer, TrainState, init_state
from remem_jax.testing import tiny_model

FILES = {"remem.json": "{}"}


def bits(array) -> bytes:
    return np.asarray(array).tobytes()


def state_of(step: int, size: int = 4) -> dict:
    """A state whose every number says which step it is of."""
    return {"params": {"w": jnp.full(size, step, jnp.float32)}, "step": jnp.int32(step)}


def test_a_state_comes_back_bit_for_bit_in_every_dtype(tmp_path):
    patterns = np.random.default_rng(0).integers(0, 2**32, 64, dtype=np.uint32)  # NaNs, denormals, -0.0 among them
    state = {
        "float32": jnp.asarray(patterns.view(np.float32)),
        "bfloat16": jnp.asarray(patterns.view(jnp.bfloat16)).reshape(8, 16),
        "int32": jnp.asarray(patterns.view(np.int32)),
        "uint32": jnp.asarray(patterns),
        "bool": jnp.asarray(patterns % 2 == 0),
        "tuple": (jnp.float32(np.pi), {"with.dot/slash": jnp.ones((2, 3), jnp.int8)}),
    }
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    info = {"data": {"epoch": 1, "at": 40}, "seed": 7, "names": ["a", "ü"], "score": None}
    checkpoints.save(20, state, info, files={})
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), state)
    restored, found = checkpoints.restore(20, shapes)
    assert found == info == read_info(tmp_path / "run" / "checkpoints" / "20")
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for old, new in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert isinstance(new, jax.Array) and new.dtype == old.dtype and new.shape == old.shape
        assert bits(old) == bits(new)
    numpy, _ = restore(tmp_path / "run" / "checkpoints" / "20", jax.tree.map(np.asarray, state))
    assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(numpy))
    assert list(map(bits, jax.tree.leaves(numpy))) == list(map(bits, jax.tree.leaves(state)))
    checkpoints.close()


def test_the_trainers_state_comes_back_with_its_classes(tmp_path):
    state = init_state(tiny_model(seed=3, stacked=True).params, Optimizer())
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {}, files=FILES)
    restored, _ = checkpoints.restore(1, state)
    assert isinstance(restored, TrainState)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    assert list(map(bits, jax.tree.leaves(restored))) == list(map(bits, jax.tree.leaves(state)))
    # 4 bytes for each float32 of parameters and two moments, and for the three counters.
    assert state_bytes(state) == 4 * (3 * sum(x.size for x in jax.tree.leaves(state.params)) + 3)
    checkpoints.close()


def test_a_state_may_be_donated_right_after_save(tmp_path):
    add = jax.jit(lambda state: jax.tree.map(lambda x: x + jnp.ones_like(x), state), donate_argnums=0)
    checkpoints = Checkpoints(tmp_path, keep=9)
    state = state_of(0, size=2**20)
    for step in range(4):
        checkpoints.save(step, state, {}, files={})
        for _ in range(5):
            state = add(state)  # runs while the background writes
    for step in range(4):
        restored, _ = checkpoints.restore(step, state)
        assert set(np.unique(np.asarray(restored["params"]["w"]))) == {5.0 * step}
        assert restored["step"] == 5 * step
    checkpoints.close()


def test_the_newest_and_the_best_stay(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    assert (checkpoints.steps(), checkpoints.latest(), checkpoints.best()) == ([], None, None)
    kept = []
    for step, score in ((1, None), (2, 0.5), (3, float("nan")), (10, 0.5), (11, 0.4), (12, None), (13, 0.6), (14, 0.1)):
        checkpoints.save(step, state_of(step), {}, files={}, score=score)
        checkpoints.wait()
        kept.append((checkpoints.steps(), checkpoints.best()))
    assert kept == [
        ([1], None),
        ([1, 2], 2),
        ([2, 3], 2),
        ([2, 3, 10], 2),  # the first of equals
        ([2, 10, 11], 2),
        ([2, 11, 12], 2),
        ([12, 13], 13),
        ([13, 14], 13),
    ]
    checkpoints.close()
    again = Checkpoints(tmp_path, keep=1)  # scores are read from the disk
    again.save(15, state_of(15), {}, files={}, score=0.2)
    again.close()
    assert (again.steps(), again.latest(), again.best()) == ([13, 15], 15, 13)


def test_two_runs_never_write_to_one_folder(tmp_path):
    first = Checkpoints(tmp_path)
    with pytest.raises(RememError, match=r"^another run is writing to .*: wait for it, or name another directory$"):
        Checkpoints(tmp_path)
    first.close()
    Checkpoints(tmp_path).close()


def test_a_save_that_runs_does_not_touch_the_earlier_checkpoints(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in range(1, 4):
        checkpoints.save(step, state_of(step, size=2**21), {}, files={})
        before = {step - 1, step} - {0}  # the one before stays until this one is whole
        assert set(checkpoints.steps()) <= before and (step == 1 or step - 1 in checkpoints.steps())
    checkpoints.wait()
    assert checkpoints.steps() == [3]
    checkpoints.close()


def test_files_lie_in_every_checkpoint_as_they_are(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\x00\xff words")
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    files = {"a.json": '{"ü": 1}', "b.bin": b"\x01\x02", "tokenizer.json": tmp_path / "tokenizer.json"}
    checkpoints.save(5, state_of(5), {}, files=files)
    checkpoints.close()
    folder = find_checkpoint(tmp_path) / "files"
    assert {*files, "checkpoint.json"} <= {p.name for p in folder.iterdir()}
    assert (folder / "a.json").read_text(encoding="utf-8") == '{"ü": 1}'
    assert (folder / "b.bin").read_bytes() == b"\x01\x02"
    assert (folder / "tokenizer.json").read_bytes() == b"\x00\xff words"


def test_leftovers_of_a_kill_are_no_checkpoints_and_are_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(7, state_of(7), {}, files={})
    checkpoints.close()
    shutil.copytree(tmp_path / "7", tmp_path / "8.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "7", tmp_path / ".deleted-6")
    (tmp_path / "9").mkdir()  # empty, as if made by hand
    (tmp_path / "notes").mkdir()
    assert find_checkpoint(tmp_path) == tmp_path / "7"
    again = Checkpoints(tmp_path)
    assert again.steps() == [7]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["7", "9", "notes"]
    again.close()


def test_a_step_saved_again_renews_its_score_and_another_runs_step_is_refused(tmp_path):
    first = Checkpoints(tmp_path, keep=5)
    first.save(1, state_of(1), {"try": 1}, files=FILES)
    first.save(1, state_of(1), {"try": 2}, files=FILES, score=0.25)  # as when validation comes after a stop had saved
    assert (first.best(), read_info(tmp_path / "1")) == (1, {"try": 2})
    assert restore(tmp_path / "1", state_of(0))[0]["step"] == 1
    assert (tmp_path / "1" / "files" / "remem.json").read_text() == "{}"
    first.save(2, state_of(2), {}, files={})
    first.save(3, state_of(3), {}, files={})
    first.close()
    second = Checkpoints(tmp_path, keep=5)
    second.restore(1, state_of(0))
    second.save(1, state_of(1), {}, files={})
    with pytest.raises(RememError, match="holds a checkpoint of step 2 from another run: resume from it, or give"):
        second.save(2, state_of(2), {}, files={})
    second.discard_after(1)
    assert second.steps() == [1]
    second.save(2, state_of(20), {}, files={})
    assert second.restore(2, state_of(0))[0]["step"] == 20
    second.close()


def test_a_write_that_the_system_refuses_is_one_line_and_hurts_no_earlier_checkpoint(tmp_path, capfd):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1), {}, files={})
    checkpoints.wait()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        checkpoints.save(2, state_of(2, size=2**18), {}, files={})
        with pytest.raises(RememError) as error:
            checkpoints.wait()
        with pytest.raises(RememError, match="checkpoint of step 3 could not be written"):  # now as it starts
            checkpoints.save(3, state_of(3), {}, files={"large": bytes(200_000)})
            checkpoints.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(error.value) == (
        f"checkpoint of step 2 could not be written to {tmp_path}: File too large; the last complete one is step 1; "
        "make room or mend the path, then resume"
    )
    assert checkpoints.restore(1, state_of(0))[0]["step"] == 1
    checkpoints.save(4, state_of(4), {}, files={})
    checkpoints.close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1", "4"]  # the room of the failed saves is free again
    assert capfd.readouterr() == ("", "")


def test_a_full_disk_is_called_so():
    # As TensorStore reported it on a tmpfs of 8 MB.
    text = (
        'RESOURCE_EXHAUSTED: Error writing "a/0" in OCDBT database at local file "/small/2/": Failed writing: "x": '
        "Failed to write 27365376 bytes to file 11: No space left on device [os_error_code='28']"
    )
    assert _system_reason(ValueError(text)) == "the disk is full"
    assert _system_reason(OSError(errno.ENOSPC, "No space left on device")) == "the disk is full"
    assert _system_reason(OSError(errno.EROFS, "x")) == "Read-only file system"
    assert _system_reason(ValueError("another thing")) is None


def test_a_path_that_cannot_be_written_is_known_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RememError, match=r"cannot be written to .*file/checkpoints: Not a directory; name another"):
        Checkpoints(tmp_path / "file" / "checkpoints")
    with pytest.raises(RememError, match=r"cannot be written to .*file: Not a directory"):
        Checkpoints(tmp_path / "file")
    with pytest.raises(RememError, match="cannot be written to /proc/checkpoints"):
        Checkpoints("/proc/checkpoints")
    with pytest.raises(RememError, match="keep must be at least 1"):
        Checkpoints(tmp_path, keep=0)


def test_room_on_the_disk_is_counted_for_all_that_stay_and_the_one_being_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, 10**9))
    directory = tmp_path / "not" / "yet"
    assert check_space(directory, 200 * 10**6, keep=2) is None  # 0.8 GB and a fifth more fit in 1 GB
    assert check_space(directory, 240 * 10**6, keep=2) == (
        f"little room on the disk: 4 checkpoints of 240.0 MB need 960.0 MB, 1.0 GB free at {directory}"
    )
    with pytest.raises(RememError, match=r"4 checkpoints of 260.0 MB need 1.0 GB, 1.0 GB free at .*; make room"):
        check_space(directory, 260 * 10**6, keep=2)
    (tmp_path / "old").write_bytes(bytes(10**6))  # a run that goes on has some of its checkpoints already
    assert check_space(tmp_path, 250 * 10**6, keep=2) is not None


def test_saving_and_restoring_print_and_log_nothing(tmp_path, capfd, caplog):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state_of(1), {}, files={})
    checkpoints.restore(1, state_of(0))
    checkpoints.close()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []
