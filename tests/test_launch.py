"""The launch scripts: what --dry-run prints, what is refused, and runs that start, stop and resume on a made-up gcloud.

Nothing here needs a network or an accelerator.
"""

import os
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = ["tpu_vm.sh", "tpu_queued.sh", "gpu.sh", "slurm.sbatch", "worker.sh"]
HEAD = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()


def launch(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess:
    """Runs a launch script from the root of the repository, away from settings of this machine."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TMPDIR": "/scratch", **variables}
    return subprocess.run(
        ["bash", f"launch/{script}", *words], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60
    )


def printed(script: str, *words: str, **variables: str) -> list[str]:
    """The commands that --dry-run prints, one a line, without comments."""
    done = launch(script, "--dry-run", *words, **variables)
    assert done.returncode == 0, done.stderr
    return [text for text in done.stdout.splitlines() if not text.startswith("#")]


def refused(script: str, *words: str) -> str:
    """The message of a script that refuses its arguments as the command does: one line, status 2, nothing else."""
    done = launch(script, *words)
    assert done.returncode == 2 and done.stdout == "", (words, done)
    assert done.stderr.startswith("remem: error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.removeprefix("remem: error: ").strip()


def test_tpu_vm_creates_a_slice_with_the_image_of_its_type():
    images = {
        "v6e-64": "v2-alpha-tpuv6e",
        "v5p-128": "v2-alpha-tpuv5",
        "v5litepod-8": "v2-alpha-tpuv5-lite",
        "v4-8": "tpu-ubuntu2204-base",
    }
    create = "gcloud compute tpus tpu-vm create one --zone=z1 --accelerator-type={} --version={}"
    for kind, image in images.items():
        assert printed("tpu_vm.sh", "create", "one", "--zone", "z1", "--type", kind) == [create.format(kind, image)]
    assert printed(
        "tpu_vm.sh", "create", "one", "--zone=z1", "--type=tpu9", "--runtime=r9", "--project=p", "--spot"
    ) == [
        "gcloud compute tpus tpu-vm create one --zone=z1 --project=p --accelerator-type=tpu9 --version=r9 --spot",
    ]


def test_tpu_vm_sends_a_commit_to_all_workers_and_installs_it():
    assert printed("tpu_vm.sh", "setup", "one", "--zone", "z1", "--commit", "abc") == [
        "git archive --format=tar.gz --output=/scratch/remem_jax-one.tar.gz abc",
        "gcloud compute tpus tpu-vm scp /scratch/remem_jax-one.tar.gz one:remem_jax.tar.gz --zone=z1 --worker=all",
        "gcloud compute tpus tpu-vm ssh one --zone=z1 --worker=all '--command=mkdir -p remem_jax && "
        "tar -xzf remem_jax.tar.gz -C remem_jax && bash remem_jax/launch/worker.sh setup tpu'",
    ]


def test_settings_with_spaces_and_quotes_reach_every_worker_as_they_were_given():
    setting = "data.train=my 'own' $HOME/train.jsonl"
    (command,) = printed(
        "tpu_vm.sh", "run", "one", "--zone=z1", "--bucket=gs://b/", "--run=r1", "configs/relay.yaml", setting
    )
    words = shlex.split(command)
    assert words[:-1] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "one", "--zone=z1", "--worker=all"]
    assert shlex.split(words[-1].removeprefix("--command=")) == [
        *("bash", "remem_jax/launch/worker.sh", "start", "r1", "env", "JAX_COMPILATION_CACHE_DIR=gs://b/cache"),
        *(".venv/bin/remem", "train", "configs/relay.yaml", setting, "run_dir=gs://b/runs/r1"),
    ]


def test_a_run_dir_among_the_settings_replaces_the_one_in_the_bucket():
    place = ["run", "one", "--zone=z1", "--bucket=gs://b", "--run=r1", "configs/relay.yaml"]
    (command,) = printed("tpu_vm.sh", *place, "run_dir=elsewhere")
    assert command == (
        "gcloud compute tpus tpu-vm ssh one --zone=z1 --worker=all '--command=bash remem_jax/launch/worker.sh start r1 "
        "env JAX_COMPILATION_CACHE_DIR=gs://b/cache .venv/bin/remem train configs/relay.yaml run_dir=elsewhere'"
    )


def test_tpu_vm_follows_stops_and_deletes():
    ssh = "gcloud compute tpus tpu-vm ssh one --zone=z1 --worker="
    place = ["one", "--zone=z1"]
    worker = "bash remem_jax/launch/worker.sh"
    assert printed("tpu_vm.sh", "logs", *place, "--run=r1", "--worker=3") == [f"{ssh}3 '--command={worker} log r1'"]
    assert printed("tpu_vm.sh", "stop", *place, "--run=r1") == [f"{ssh}all '--command={worker} stop r1'"]
    assert printed("tpu_vm.sh", "state", *place, "--run=r1") == [
        f"{ssh}0 '--command=if [ -f remem_jax/launch/worker.sh ]; then {worker} state r1; else echo absent; fi'"
    ]
    assert printed("tpu_vm.sh", "delete", *place) == ["gcloud compute tpus tpu-vm delete one --zone=z1 --quiet"]
