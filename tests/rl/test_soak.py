"""Two hundred tiny steps: nothing piles up on the device or the host, nothing is compiled once all shapes were seen."""

import gc
import os
from pathlib import Path
from typing import Any

import jax

from remem_jax.rl import trainer
from remem_jax.rl.trainer import train
from tests.relay_run import lines, make_questions, settings, write_records, write_start

EPOCH = 20  # steps


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_two_hundred_steps_leave_memory_where_it_was_and_compile_nothing_new(tmp_path, monkeypatch):
    write_start(tmp_path)
    # All of three chunks, and too few rollouts for a batch to shrink: every step has the same shapes.
    data = write_records(tmp_path / "even.jsonl", make_questions(4 * EPOCH, seed=4)[::2])
    seen: list[tuple[int, int, int]] = []
    taken = 0
    step = trainer.STEPS["grpo"]

    def measured(*arguments):
        nonlocal taken
        result = step(*arguments)
        taken += 1
        if taken % 10 == 0:
            gc.collect()
            arrays = jax.live_arrays()
            seen.append((len(arrays), sum(array.nbytes for array in arrays), resident_bytes()))
        return result

    monkeypatch.setitem(trainer.STEPS, "grpo", measured)
    changes: dict[str, Any] = dict(data={"train": str(data)}, rollout={"questions": 2, "group": 2}, loss__beta=0.0)
    train(settings(tmp_path, steps=200, checkpoint__every=25, log__tensorboard=True, **changes), quiet=True)
    assert taken == 200 and len(seen) == 20
    for kind in (0, 1):  # count and bytes of the arrays on the device
        values = [value[kind] for value in seen]
        assert max(values[6:]) <= max(values[:6]), values
    assert seen[-1][2] - seen[5][2] < 2**24, [value[2] >> 20 for value in seen]
    compiled = [line["run/compilations"] for line in lines(tmp_path / "run" / "metrics.jsonl")]
    assert compiled[0] > 0 and sum(compiled[EPOCH:]) == 0, compiled
