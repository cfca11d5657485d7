"""Metric files: valid lines at once, the file of a resumed run equal to an undisturbed one, TensorBoard, W&B."""

import builtins
import json
import math
import struct
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue]

from remem_jax.errors import RememError
from remem_jax.observe.metrics import MetricWriter, append_line, open_lines, read_metrics, truncate_lines


def run(directory, steps, *, first_step=None):
    """Writes a few metrics of these steps."""
    writer = MetricWriter(directory, first_step=first_step, tensorboard=False)
    for step in steps:
        writer.write(step, {"reward/outcome": step / 3, "loss/policy": float(np.float32(0.1))})
    writer.close()


def events(directory):
    """TensorBoard's events: records of length, checksum, event, checksum."""
    found = []
    for path in sorted((directory / "tensorboard").iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += 12 + length + 4
    return found


def scalars(directory):
    return [(event.step, v.tag, v.simple_value) for event in events(directory) for v in event.summary.value]


def test_a_step_is_one_line_that_is_there_at_once_and_reads_back_exactly(tmp_path):
    writer = MetricWriter(tmp_path, tensorboard=False)
    values = {"a/x": 1 / 3, "a/y": np.float32(0.1), "b/n": 3}
    writer.write(7, values)
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 7, "a/x": 0.3333333333333333, "a/y": 0.10000000149011612, "b/n": 3.0}\n'
    )
    writer.write(8, {"a/x": 0.0})
    assert read_metrics(tmp_path) == [{"step": 7, **{k: float(v) for k, v in values.items()}}, {"step": 8, "a/x": 0.0}]
    writer.close()


def test_values_that_are_not_finite_are_null(tmp_path):
    writer = MetricWriter(tmp_path)
    writer.write(0, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0})
    writer.close()
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line, parse_constant=pytest.fail) == {"step": 0, "a": None, "b": None, "c": None, "d": 1.0}
    assert scalars(tmp_path) == [(0, "d", 1.0)]


def test_a_resumed_run_leaves_the_file_of_an_undisturbed_one(tmp_path):
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", range(6))
    run(tmp_path / "killed", range(5))  # saved after step 2, killed after step 4, in the middle of a line
    with (tmp_path / "killed" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew')
    run(tmp_path / "killed", range(3, 6), first_step=3)
    assert [p.name for p in (tmp_path / "killed").iterdir()] == ["metrics.jsonl"]
    whole, killed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "killed"))
    assert killed == whole and whole.count(b"\n") == 6


def test_lines_of_a_step_and_later_are_dropped_and_the_others_stay_byte_for_byte(tmp_path):
    path = tmp_path / "validation.jsonl"
    kept = '{"step":0,"s":"é\\u2028"}\n{"step": 4}\n'
    path.write_text(kept + '{"step": 5}\n{"step": 2}\n{"step": 11}\n', encoding="utf-8")
    truncate_lines(path, 5)
    assert path.read_text(encoding="utf-8") == kept + '{"step": 2}\n'
    before = path.stat().st_ino
    truncate_lines(path, 5)
    assert path.stat().st_ino == before  # nothing to drop, nothing rewritten
    truncate_lines(path, 0)
    assert path.read_bytes() == b""
    truncate_lines(tmp_path / "none.jsonl", 0)
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.parametrize("line", ["[1]", "{", '{"step": "4"}', '{"a": 1}'])
def test_a_line_that_is_no_record_is_named_and_the_file_stays(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n' + line + "\n")
    with pytest.raises(RememError, match=r"metrics\.jsonl line 2: expected a "):
        truncate_lines(path, 0)
    assert path.read_text() == '{"step": 0}\n' + line + "\n"


def test_a_torn_last_line_is_not_read_and_not_continued(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1, "x')
    assert read_metrics(path) == [{"step": 0}]
    run(tmp_path, [1])
    assert [line["step"] for line in read_metrics(path)] == [0, 1]
    path.write_bytes(b'{"ste')
    run(tmp_path, [1])
    assert [line["step"] for line in read_metrics(path)] == [1]


def test_missing_and_broken_metric_files_are_named(tmp_path):
    with pytest.raises(RememError, match=r"expected a metrics file, found none: give a run directory"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("12\n")
    with pytest.raises(RememError, match=r"metrics\.jsonl line 1: expected a JSON object"):
        read_metrics(tmp_path)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(RememError, match=r"none/metrics\.jsonl cannot be written: No such file or directory"):
        MetricWriter(tmp_path / "none", tensorboard=False)
    full = open_lines("/dev/full")
    with pytest.raises(RememError, match="/dev/full cannot be written: No space left on device; make room and resume"):
        append_line(full, {"step": 0})
    full.close()


def test_tensorboard_has_every_scalar_also_of_a_run_resumed_within_the_second(tmp_path):
    for step in (3, 4):
        writer = MetricWriter(tmp_path)
        writer.write(step, {"reward/outcome": step / 8, "loss/policy": -1.0})
        writer.close()
    assert sorted(scalars(tmp_path)) == [
        (3, "loss/policy", -1.0),
        (3, "reward/outcome", 0.375),
        (4, "loss/policy", -1.0),
        (4, "reward/outcome", 0.5),
    ]


def test_tensorboard_is_told_on_resume_which_steps_come_again(tmp_path):
    MetricWriter(tmp_path, first_step=2).close()
    (start,) = [event for event in events(tmp_path) if event.HasField("session_log")]
    assert start.step == 2 and start.session_log.status == start.session_log.START


def fake_wandb(calls, error=None):
    """A module that notes what is asked of it."""

    class Failed(Exception):
        pass

    def init(**settings):
        if error:
            raise Failed(error)
        calls.append(settings)
        return SimpleNamespace(
            define_metric=lambda *names, **more: calls.append((names, more)),
            log=lambda values: calls.append(values),
            finish=lambda: calls.append("finish"),
        )

    return SimpleNamespace(init=init, Error=Failed)


def test_wandb_goes_on_in_the_same_run(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb(calls))
    for step in (0, 1):
        writer = MetricWriter(tmp_path, tensorboard=False, wandb_project="relay")
        writer.write(step, {"a": 0.5, "b": math.nan})
        writer.close()
    first, second = calls[0], calls[4]
    assert first == second and first["project"] == "relay" and first["resume"] == "allow" and len(first["id"]) == 16
    assert calls[1:4] == [(("*",), {"step_metric": "step"}), {"step": 0, "a": 0.5}, "finish"]
    assert calls[6] == {"step": 1, "a": 0.5}


def test_wandb_absent_or_refusing_is_one_line(tmp_path, monkeypatch):
    imported = builtins.__import__

    def without_wandb(name, *arguments, **named):
        if name == "wandb":
            raise ImportError(name)
        return imported(name, *arguments, **named)

    monkeypatch.setattr(builtins, "__import__", without_wandb)
    with pytest.raises(RememError, match="wandb_project relay: expected the package wandb, found none: pip install"):
        MetricWriter(tmp_path, wandb_project="relay")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "wandb", fake_wandb([], error="no key\nfound"))
    with pytest.raises(RememError, match="wandb_project relay: no key found; log in, or leave it out"):
        MetricWriter(tmp_path, wandb_project="relay")
