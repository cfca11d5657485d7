"""The launch scripts: what --dry-run prints, what is refused, and runs that start, stop and resume on a made-up gcloud.

Nothing here needs a network or an accelerator.
"""

import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "launch"
SCRIPTS = ["tpu_vm.sh", "tpu_queued.sh", "gpu.sh", "slurm.sbatch", "worker.sh"]
FILLED = {"RUN": "r1", "IMAGE": "registry/remem:tpu", "BUCKET": "b", "CONFIG": "configs/relay.yaml"}
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
    prepare = "gcloud storage cp -r 'gs://b/my data' ."
    assert printed("tpu_vm.sh", "setup", "one", "--zone", "z1", "--commit", "abc", "--prepare", prepare)[:3] == [
        "git archive --format=tar.gz --output=/scratch/remem_jax-one.tar.gz abc",
        "gcloud compute tpus tpu-vm scp /scratch/remem_jax-one.tar.gz one:remem_jax.tar.gz --zone=z1 --worker=all",
        "gcloud compute tpus tpu-vm ssh one --zone=z1 --worker=all '--command=mkdir -p remem_jax && "
        "tar -xzf remem_jax.tar.gz -C remem_jax && bash remem_jax/launch/worker.sh setup tpu'",
    ]
    last = printed("tpu_vm.sh", "setup", "one", "--zone", "z1", "--prepare", prepare)[3]
    assert shlex.split(last) == [
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "one", "--zone=z1", "--worker=all"),
        f'--command=cd remem_jax && export PATH="$PWD/.venv/bin:$PATH" && {prepare}',
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


def test_tpu_queued_rehearses_asking_starting_watching_and_deleting():
    place = ["q1", "--zone=z1", "--type=v6e-8", "--bucket=gs://b", "--run=r1", "--spot"]
    ssh = "gcloud compute tpus tpu-vm ssh q1 --zone=z1 --worker="
    worker = "bash remem_jax/launch/worker.sh"
    assert printed("tpu_queued.sh", "run", *place, "configs/relay.yaml", "steps=3") == [
        "gcloud compute tpus queued-resources create q1 --node-id=q1 --zone=z1 --accelerator-type=v6e-8 "
        "--runtime-version=v2-alpha-tpuv6e --spot",
        "gcloud compute tpus queued-resources describe q1 --zone=z1 '--format=value(state.state)'",
        f"git archive --format=tar.gz --output=/scratch/remem_jax-q1.tar.gz {HEAD}",
        "gcloud compute tpus tpu-vm scp /scratch/remem_jax-q1.tar.gz q1:remem_jax.tar.gz --zone=z1 --worker=all",
        f"{ssh}all '--command=mkdir -p remem_jax && tar -xzf remem_jax.tar.gz -C remem_jax && {worker} setup tpu'",
        f"{ssh}all '--command={worker} start r1 env JAX_COMPILATION_CACHE_DIR=gs://b/cache "
        ".venv/bin/remem train configs/relay.yaml steps=3 run_dir=gs://b/runs/r1'",
        "gcloud compute tpus tpu-vm describe q1 --zone=z1 '--format=value(state)'",
        f"{ssh}0 '--command=if [ -f remem_jax/launch/worker.sh ]; then {worker} state r1; else echo absent; fi'",
        "gcloud compute tpus queued-resources delete q1 --zone=z1 --force --quiet",
    ]
    assert printed("tpu_queued.sh", "state", "q1", "--zone=z1", "--project=p") == [
        "gcloud compute tpus queued-resources describe q1 --zone=z1 --project=p '--format=value(state.state)'"
    ]
    assert printed("tpu_queued.sh", "delete", "q1", "--zone=z1") == [
        "gcloud compute tpus queued-resources delete q1 --zone=z1 --force --quiet"
    ]


def made_up_cloud(folder: Path, requests: list[str], runs: list[str]) -> dict[str, str]:
    """A `gcloud` that answers questions about request and run from two lists and writes down all other calls."""
    (folder / "requests").write_text("\n".join(requests) + "\n")
    (folder / "runs").write_text("\n".join(runs) + "\n")
    tool = folder / "gcloud"
    tool.write_text(
        f"""#!/usr/bin/env bash
next() {{ head -n 1 "{folder}/$1"; sed -i 1d "{folder}/$1"; }}
case "$*" in
*queued-resources\\ describe*)
  answer=$(next requests)
  [ "$answer" != NOT_FOUND ] || {{ echo NOT_FOUND >&2; exit 1; }}
  echo "$answer"
  ;;
*tpu-vm\\ describe*) echo READY ;;
*worker.sh\\ state*) next runs ;;
*) echo "$3 $4 $5" >>"{folder}/calls" ;;
esac
"""
    )
    tool.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(folder)}


QUEUED = ["run", "q1", "--zone=z1", "--type=v6e-8", "--bucket=gs://b", "--run=r1", "--every=0", "configs/relay.yaml"]
ASK = ["queued-resources create q1"]
BEGIN = ["tpu-vm scp {}/remem_jax-q1.tar.gz", "tpu-vm ssh q1", "tpu-vm ssh q1"]
DELETE = ["queued-resources delete q1"]


def test_a_preempted_slice_is_deleted_asked_for_again_and_the_run_started_again(tmp_path):
    requests = ["NOT_FOUND", "WAITING_FOR_RESOURCES", "ACTIVE", "ACTIVE", "SUSPENDED", "NOT_FOUND", "ACTIVE", "ACTIVE"]
    cloud = made_up_cloud(tmp_path, requests, runs=["absent", "running", "absent", "0"])
    done = launch("tpu_queued.sh", *QUEUED, **cloud)
    assert done.returncode == 0, done.stderr
    begin = [text.format(tmp_path) for text in BEGIN]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [*ASK, *begin, *DELETE, *ASK, *begin, *DELETE]


def test_a_run_that_failed_leaves_the_slice_and_says_where_its_log_is(tmp_path):
    done = launch("tpu_queued.sh", *QUEUED, **made_up_cloud(tmp_path, ["ACTIVE"], runs=["1"]))
    assert done.returncode == 1 and not (tmp_path / "calls").exists()
    assert done.stderr.splitlines()[-1] == (
        "remem: error: run r1 ended with status 1; its log: launch/tpu_vm.sh logs q1 --zone=z1 --run r1"
    )


def test_a_slice_that_is_refused_three_times_is_not_asked_for_for_ever(tmp_path):
    states = ["FAILED", "NOT_FOUND", "FAILED", "NOT_FOUND", "FAILED"]
    done = launch("tpu_queued.sh", *QUEUED, **made_up_cloud(tmp_path, states, runs=[]))
    assert done.returncode == 1 and "refused three times" in done.stderr
    assert (tmp_path / "calls").read_text().splitlines() == [*DELETE, *ASK, *DELETE, *ASK, *DELETE]


def test_gpu_installs_the_extra_of_the_cuda_version_and_trains_with_its_settings():
    assert printed("gpu.sh", "setup", "--cuda", "13")[-1] == (
        "/nonexistent/.local/bin/uv pip install --quiet --python .venv/bin/python --constraint constraints/py312.txt "
        "--editable '.[cuda13]' --requirement launch/gcs.txt"
    )
    assert printed("gpu.sh", "run", "--run=r1", "configs/relay.yaml", "steps=3") == [
        "env XLA_CLIENT_MEM_FRACTION=0.9 JAX_COMPILATION_CACHE_DIR=/nonexistent/.cache/remem_jax/xla "
        ".venv/bin/remem train configs/relay.yaml steps=3 run_dir=runs/r1"
    ]
    assert printed("gpu.sh", "run", "--run=r1", "--bucket=gs://b", "--memory-fraction=.5", "configs/relay.yaml") == [
        "env XLA_CLIENT_MEM_FRACTION=.5 JAX_COMPILATION_CACHE_DIR=gs://b/cache "
        ".venv/bin/remem train configs/relay.yaml run_dir=gs://b/runs/r1"
    ]


def test_a_config_may_lie_in_a_bucket_and_is_then_not_looked_for_here():
    train = ".venv/bin/remem train gs://b/c.yaml steps=3 run_dir="
    words = ["--run=r1", "gs://b/c.yaml", "steps=3"]
    assert printed("gpu.sh", "run", *words)[-1].endswith(f"{train}runs/r1")
    assert printed("slurm.sbatch", *words)[-1].endswith(f"{train}runs/r1")
    (line,) = printed("tpu_vm.sh", "run", "one", "--zone=z1", "--bucket=gs://b", *words)
    assert f"{train}gs://b/runs/r1" in line


def test_worker_setup_pins_the_python_and_the_installer():
    assert printed("worker.sh", "setup", "tpu") == [
        "env PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user uv==0.13.8",
        "/nonexistent/.local/bin/uv venv --quiet --allow-existing --python 3.12 .venv",
        "/nonexistent/.local/bin/uv pip install --quiet --python .venv/bin/python "
        "--constraint constraints/py312.txt --editable '.[tpu]' --requirement launch/gcs.txt",
    ]


def test_a_task_of_slurm_gets_all_gpus_of_its_node_or_its_own():
    start = (
        "srun --kill-on-bad-exit=1 env XLA_CLIENT_MEM_FRACTION=0.9 JAX_COMPILATION_CACHE_DIR=gs://b/cache "
        "{}.venv/bin/remem train configs/relay.yaml run_dir=gs://b/runs/r1"
    )
    words = ["--run=r1", "--bucket=gs://b", "configs/relay.yaml"]
    node = printed("slurm.sbatch", *words, SLURM_GPUS_ON_NODE="4", SLURM_NTASKS_PER_NODE="1")
    assert node == [start.format("JAX_LOCAL_DEVICE_IDS=0,1,2,3 ")]
    assert printed("slurm.sbatch", *words, SLURM_GPUS_ON_NODE="4", SLURM_NTASKS_PER_NODE="4") == [start.format("")]
    wrong = launch("slurm.sbatch", *words, SLURM_GPUS_ON_NODE="4", SLURM_NTASKS_PER_NODE="2")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1


def test_slurm_saves_and_queues_the_job_again_when_it_is_told_to_stop(tmp_path):
    for name, text in (
        ("srun", f"trap 'touch {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/started; sleep 30 & wait"),
        ("scontrol", f'echo "$*" >{tmp_path}/scontrol'),
    ):
        (tmp_path / f"{name}.calls").touch()
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}
    command = ["bash", "launch/slurm.sbatch", "--run=r1", "configs/relay.yaml"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL) as job:
        wait_for((tmp_path / "started").exists)
        job.terminate()
        assert job.wait(timeout=20) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"


def wait_for(condition, seconds: float = 20.0) -> None:
    """Returns once `condition()` holds; fails after a while."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_run_in_the_background_can_be_told_running_stopped_complete_and_failed(tmp_path):
    def worker(*words: str) -> str:
        done = launch("worker.sh", *words, REMEM_RUNS=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert worker("state", "r1") == "absent"
    worker("start", "r1", "bash", "-c", "trap 'echo saved; exit 0' TERM; echo \"$0\"; sleep 30 & wait", "two words")
    wait_for(lambda: "two words" in (tmp_path / "r1" / "log").read_text())
    assert worker("state", "r1") == "running"
    again = launch("worker.sh", "start", "r1", "true", REMEM_RUNS=str(tmp_path))
    assert again.returncode == 2 and "is running here" in again.stderr
    # Saved and ended with status 0, but not complete.
    assert worker("stop", "r1") == "stopped"
    assert (tmp_path / "r1" / "log").read_text() == "two words\nsaved\n"
    for status in ("0", "3"):
        worker("start", "r1", "bash", "-c", f"exit {status}")
        wait_for(lambda: worker("state", "r1") != "running")
        assert worker("state", "r1") == status


def test_exec_tells_a_stop_from_the_end():
    assert launch("worker.sh", "exec", "true").returncode == 0
    assert launch("worker.sh", "exec", "bash", "-c", "exit 5").returncode == 5
    script = "trap 'exit 0' TERM; echo up; sleep 30 & wait"
    command = ["bash", "launch/worker.sh", "exec", "bash", "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as pod:
        assert pod.stdout is not None and pod.stdout.readline() == "up\n"
        pod.terminate()
        assert pod.wait(timeout=20) == 143


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_shows_a_usage_and_every_option(script):
    done = launch(script, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert f"launch/{script}" in done.stdout and "#" not in done.stdout
    named = re.search(r"^parse '([^']*)' '?([^'\"]*)", (LAUNCH / script).read_text(), flags=re.MULTILINE)
    options = f"{named.group(1)} {named.group(2)} dry-run help".split() if named else ["dry-run", "help"]
    assert [name for name in options if f"--{name}" not in done.stdout] == []


def test_bad_and_missing_arguments_are_refused_in_one_line():
    place = ["one", "--zone=z1"]
    run = ["run", *place, "--bucket=gs://b", "--run=r1"]
    relay = "configs/relay.yaml"
    cases = [
        (("tpu_vm.sh",), "expected create, setup, run, logs, state, stop or delete, found ''"),
        (("tpu_vm.sh", "create"), "expected the name of the slice after create"),
        (("tpu_vm.sh", "create", "one"), "expected --zone, found none; give one such as"),
        (("tpu_vm.sh", "create", *place), "expected --type, found none"),
        (("tpu_vm.sh", "create", *place, "--type=v5e-8"), "expected --type v5litepod-8"),
        (("tpu_vm.sh", "create", *place, "--type=h100"), "expected --type such as v5litepod-8"),
        (("tpu_vm.sh", "create", "one", "--zone"), "expected a value after --zone, found nothing"),
        (("tpu_vm.sh", "create", "one", "--zone", "--spot"), "expected a value after --zone, found --spot"),
        (("tpu_vm.sh", "create", *place, "--tpye=v6e-8"), "option --tpye=v6e-8 is unknown here"),
        (("tpu_vm.sh", "delete", *place, "two"), "expected nothing after delete one, found 'two'"),
        (("tpu_vm.sh", "logs", *place), "expected --run, found none"),
        (("tpu_vm.sh", "logs", *place, "--run=a b"), "expected --run of letters, digits"),
        (("tpu_vm.sh", "run", *place, "--run=r1", relay), "expected --bucket, found none"),
        (("tpu_vm.sh", "run", *place, "--run=r1", "--bucket=b", relay), "expected --bucket as gs://NAME, found 'b'"),
        (("tpu_vm.sh", *run), "expected CONFIG [key=value ...]"),
        (("tpu_vm.sh", *run, "steps=3"), "expected CONFIG before the settings, found 'steps=3'"),
        (("tpu_vm.sh", *run, "configs/absent.yaml"), "expected CONFIG as a file of this repository"),
        (("tpu_vm.sh", *run, relay, "steps"), "expected a setting as key=value, found 'steps'"),
        (("tpu_queued.sh", *run, relay), "expected --type, found none"),
        (("tpu_queued.sh", *run, "--type=v6e-8", "--every=x", relay), "expected --every as a number of seconds"),
        (("tpu_queued.sh", *run, "--type=v6e-8", "--spot", "--reserved", relay), "expected --spot or --reserved"),
        (("gpu.sh", "train"), "expected setup or run, found 'train'"),
        (("gpu.sh", "setup", "--cuda=11"), "expected --cuda 12 or 13, found '11'"),
        (("gpu.sh", "run", relay), "expected --run, found none"),
        (("gpu.sh", "run", "--run=r1", "--memory-fraction=90", relay), "expected --memory-fraction between 0 and 1"),
        (("slurm.sbatch", relay), "expected --run, found none"),
        (("worker.sh", "setup", "gpu"), "expected the extra tpu, cuda12 or cuda13, found 'gpu'"),
        (("worker.sh", "state"), "expected the name of a run after state"),
        (("worker.sh", "state", "../r1"), "expected --run of letters, digits"),
        (("worker.sh", "start", "r1"), "expected a command after the run's name"),
        (("worker.sh", "begin"), "expected setup, start, state, log, stop or exec, found 'begin'"),
    ]
    for words, message in cases:
        assert refused(*words).startswith(message), words


def test_a_missing_tool_is_named_with_what_to_do(tmp_path):
    for name in ("bash", "dirname", "git"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}")
    for script, tool, words in (
        ("tpu_vm.sh", "gcloud", ["delete", "one", "--zone=z1"]),
        ("tpu_queued.sh", "gcloud", ["delete", "one", "--zone=z1"]),
    ):
        done = launch(script, *words, PATH=str(tmp_path))
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert done.stderr.startswith(f"remem: error: expected the command {tool}, found none")


def test_shellcheck_finds_nothing():
    tool = Path(sys.executable).parent / "shellcheck"
    scripts = sorted(str(path.relative_to(ROOT)) for path in [*LAUNCH.glob("*.sh"), LAUNCH / "slurm.sbatch"])
    assert len(scripts) == 6
    done = subprocess.run([tool, "--external-sources", *scripts], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stdout


def jobset() -> dict:
    """The JobSet with its four variables filled in as the comment at its top does."""
    text = (LAUNCH / "gke_jobset.yaml").read_text()
    for name, value in FILLED.items():
        text = text.replace("${" + name + "}", value)
    return yaml.safe_load(text)


def test_the_jobset_has_the_fields_that_its_controller_and_jobs_need():
    found = jobset()
    assert "$" not in str(found)
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert found["metadata"]["name"] == "r1"
    (slices,) = found["spec"]["replicatedJobs"]
    job = slices["template"]["spec"]
    assert re.fullmatch(r"[a-z0-9-]+", slices["name"]) and slices["replicas"] == 1
    # One pod a machine, all at once, and none tried again by itself: the whole set restarts.
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] and job["backoffLimit"] == 0
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule == {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    policy = found["spec"]["failurePolicy"]
    assert policy["maxRestarts"] == 3 and policy["rules"] == [
        {"action": "RestartJobSetAndIgnoreMaxRestarts", "onJobFailureReasons": ["PodFailurePolicy"]}
    ]
    pod = job["template"]["spec"]
    # Jobs with a podFailurePolicy must have this one.
    assert pod["restartPolicy"] == "Never"


def test_the_jobset_asks_for_as_many_chips_as_its_topology_has_and_trains_as_the_scripts_do():
    job = jobset()["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "8x8",
    }
    assert job["completions"] * container["resources"]["limits"]["google.com/tpu"] == 8 * 8
    assert container["image"] == "registry/remem:tpu"
    assert container["command"] == ["bash", "launch/worker.sh", "exec"]
    assert container["args"] == ["remem", "train", "configs/relay.yaml", "run_dir=gs://b/runs/r1"]
    assert container["env"] == [{"name": "JAX_COMPILATION_CACHE_DIR", "value": "gs://b/cache"}]


def test_the_table_of_slices_in_the_jobset_multiplies_out():
    rows = re.findall(
        r"^# +v\w+, (\d+) chips? +\S+ +([\dx]+) +(\d+) +(\d+)$", (LAUNCH / "gke_jobset.yaml").read_text(), re.M
    )
    assert len(rows) == 5
    for chips, topology, each, machines in rows:
        sides = [int(side) for side in topology.split("x")]
        product = 1
        for side in sides:
            product *= side
        assert product == int(chips) == int(each) * int(machines)


@pytest.mark.parametrize("name", ["Dockerfile.tpu", "Dockerfile.gpu"])
def test_dockerfiles_copy_what_exists_and_install_pinned_versions(name):
    text = (LAUNCH / name).read_text()
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.*)$", text, flags=re.MULTILINE)]
    sources = [source for line in copied for source in line]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    python = re.search(r"^FROM python:3\.(\d+)-slim$", text, flags=re.MULTILINE)
    assert python and f"constraints/py3{python.group(1)}.txt" in sources
    (install,) = re.findall(r"pip install (.*)$", text, flags=re.MULTILINE)
    assert f"--constraint constraints/py3{python.group(1)}.txt" in install
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (extra,) = re.findall(r'"\.\[(.*)\]"', install)
    assert all(extra.replace("${CUDA}", cuda) in extras for cuda in ("12", "13"))
    # Nothing is installed but our own package, in versions of the constraints, and the pinned access to buckets.
    assert "==" not in text and "--requirement launch/gcs.txt" in install
    assert re.fullmatch(r"gcsfs==[0-9.]+\n", (LAUNCH / "gcs.txt").read_text())
    # What a container runs reads these at once.
    assert {"remem_jax", "configs", "launch/common.sh", "launch/worker.sh"} <= set(sources)


def test_the_readme_names_every_file_and_only_configs_that_exist():
    text = (LAUNCH / "README.md").read_text()
    files = {f"launch/{path.name}" for path in LAUNCH.iterdir()} - {"launch/README.md"}
    assert sorted(name for name in files if name not in text) == []
    named = set(re.findall(r"configs/[\w.]+\.yaml", text))
    assert named and [name for name in named if not (ROOT / name).is_file()] == []
