"""The pod scripts (launch/pod, launch/gke), run against stand-ins for gcloud, kubectl and others.

The stand-in for gcloud records its arguments and keeps a small cloud in a folder: a queued resource
with a state, and two workers, each a home folder in which it runs what `ssh --command` asks for.
"""

import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import time
from types import SimpleNamespace

import pytest
import yaml

POD = ("create", "push", "run", "logs", "stop", "resume", "delete")
GKE = ("image", "run", "logs", "delete", "xpk")
WHERE = ["--name", "run-7", "--zone", "us-west4-a"]
TYPE = ["--type", "v5litepod-16"]
# Arguments that a careless shell would change.
TRICKY = 'gs://bucket-7/my runs/it\'s $(whoami) "x" *'
TRAIN = ["--", "grpo", "--config", "configs/two words.py:smoke", "--workdir", TRICKY]
SECRET = "key-0123456789"


def formed(hosts):
  """What says that the hosts of a slice must form one run."""
  return ["--config.distributed.coordinator=auto", f"--config.distributed.processes={hosts}"]

CLOUD = r"""#!/usr/bin/env bash
tool="${0##*/}" words=("$@") all=" $* " cloud="$CLOUD"
printf '%s\0' "$tool" "$@" $'\n' >> "$cloud/calls"
value() { local w; for w in "${words[@]}"; do [[ "$w" != "$1="* ]] || echo "${w#*=}"; done; }
read -ra state 2>/dev/null < "$cloud/state"
[ ! -e "$cloud/preempted" ] || [ -z "$state" ] || state=(SUSPENDED)
case "$tool$all" in
  kubectl*" create secret "*)
    file="$(value --from-env-file)"
    stat -c %a "$file"
    cat "$file" ;;
  kubectl*" - ") cat > "$cloud/kubectl-$1" ;;
  kubectl*" get jobset "*) cat "$cloud/jobset" 2>/dev/null ;;
  "docker build "*) cat > "$cloud/context" ;;
  gcloud*" list "*acceleratorType*) cat "$cloud/type" ;;
  gcloud*" list "*)
    [ -z "$state" ] || echo "$state"
    [ ${#state[@]} -lt 2 ] || echo "${state[*]:1}" > "$cloud/state" ;;
  gcloud*" queued-resources create "*)
    cat "$cloud/next" > "$cloud/state" 2>/dev/null \
      || echo WAITING_FOR_RESOURCES PROVISIONING ACTIVE > "$cloud/state"
    value --accelerator-type > "$cloud/type"
    rm -rf "$cloud"/worker-*
    mkdir "$cloud/worker-0" "$cloud/worker-1" ;;
  gcloud*" queued-resources delete "*) rm -f "$cloud/state" "$cloud/preempted" ;;
  gcloud*)
    [ "$state" = ACTIVE ] || { echo "ERROR: the TPU VM is in state PREEMPTED" >&2; exit 1; }
    code=0 which="$(value --worker)" to="$cloud/worker-${which/all/*}"
    for HOME in $to; do
      export HOME
      cd "$HOME"
      if [ "$4" = ssh ]; then
        bash -c "$(value --command)" || code=$?
      else
        for word in "${words[@]:4}"; do
          [[ "$word" != /* ]] || cp "$word" searchjax_pod/
        done
      fi
    done
    exit $code ;;
esac
exit 0
"""

# Stands for python on the workers: makes "environments" and runs what the test asks for next.
PYTHON = """#!/usr/bin/env bash
case "$1 $2" in
  "-m venv") mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  "-m searchjax."*)
    worker="$(basename "$HOME")"
    echo run >> "$CLOUD/runs-$worker"
    printf '%s\\0' "${@:2}" > "$CLOUD/arguments-$worker"
    printf '%s' "${SERPER_KEY-unset}" > "$CLOUD/key-$worker"
    echo "training on $worker"
    read -ra outcomes < "$CLOUD/outcomes"
    outcome="${outcomes[$(wc -l < "$CLOUD/runs-$worker") - 1]}"
    case "$outcome" in
      # Once a slice: a slow worker must not take the next one.
      preempt) mkdir "$CLOUD/taken" 2>/dev/null && touch "$CLOUD/preempted"; exit 1 ;;
      hang) sleep 60 ;;
      one-fails) if [ "$worker" = worker-1 ]; then exit 5; else sleep 60; fi ;;
      *) exit "$outcome" ;;
    esac ;;
esac
"""


@pytest.fixture(scope="module")
def checkout(repository, tmp_path_factory):
  """A small checkout under a path with a space."""
  folder = tmp_path_factory.mktemp("pods") / "my checkout"
  (folder / "configs").mkdir(parents=True)
  shutil.copytree(repository / "launch", folder / "launch")
  for name in ("setup.py", "requirements.lock", ".gitignore"):
    shutil.copy(repository / name, folder)
  (folder / "configs/two words.py").write_text("# a config\n")
  (folder / "ignored.egg-info").mkdir()
  (folder / "ignored.egg-info/x").write_text("x")
  subprocess.run(["git", "init", "-q", str(folder)], check=True)
  return folder


@pytest.fixture
def cloud(checkout, tmp_path, monkeypatch):
  """The stand-ins first on the path, and what to ask them afterwards."""
  tools = tmp_path / "tools"
  tools.mkdir()
  for name in ("gcloud", "kubectl", "xpk", "docker"):
    (tools / name).write_text(CLOUD)
  (tools / "python-of-workers").write_text(PYTHON)
  (tools / "hostname").write_text('#!/usr/bin/env bash\nbasename "$HOME"\n')
  for tool in tools.iterdir():
    tool.chmod(0o755)
  folder = tmp_path / "cloud"
  folder.mkdir()
  (folder / "outcomes").write_text("0\n")
  shutil.rmtree(checkout / "runs", ignore_errors=True)
  environment = {
    "PATH": f"{tools}:{os.environ['PATH']}", "HOME": str(tmp_path), "CLOUD": str(folder),
    "SEARCHJAX_POLL_SECONDS": "0.05", "SEARCHJAX_PYTHON": "python-of-workers",
    "SERPER_KEY": SECRET,
  }  # fmt: skip

  def launch(script, *arguments, command=None):
    words = command or ["bash", f"launch/{script}.sh", *arguments]
    return subprocess.run(
      words, cwd=checkout, env=environment, capture_output=True, text=True, timeout=60,
      check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip

  def calls():
    file = folder / "calls"
    records = file.read_text().split("\0\n\0")[:-1] if file.exists() else []
    return [record.split("\0") for record in records]

  def ready(state="ACTIVE"):
    (folder / "state").write_text(state)
    (folder / "type").write_text("v5litepod-16")
    for worker in ("worker-0", "worker-1"):
      (folder / worker).mkdir()

  yield SimpleNamespace(folder=folder, launch=launch, calls=calls, ready=ready, root=checkout)
  for pid in folder.glob("worker-*/searchjax_pod/pid"):
    subprocess.run(["kill", "-KILL", "--", f"-{pid.read_text().strip()}"], check=False)


def _verbs(cloud):
  """The interesting word of each gcloud call, without the looks at the state."""
  known = ("create", "delete", "scp", "setup", "start", "stop")
  found = (
    next((w for w in known if w in call or w in call[-1].split()), "") for call in cloud.calls()
  )
  return [verb for verb in found if verb]


@pytest.mark.parametrize("name", [f"pod/{n}" for n in POD] + [f"gke/{n}" for n in GKE])
def test_help_says_what_it_costs_and_what_it_leaves_behind(cloud, name):
  done = cloud.launch(name, "--help")
  assert done.returncode == 0 and done.stderr == ""
  assert f"bash launch/{name}.sh" in done.stdout and "#" not in done.stdout
  assert "\nCosts  " in done.stdout and "\nLeaves behind  " in done.stdout
  assert "your price" in done.stdout or name == "gke/image"
  assert not cloud.calls()


def _gke(topology="4x4", accelerator="v5e"):
  return ["--name", "run-7", "--accelerator", accelerator, "--topology", topology,
          "--image", "us-docker.pkg.dev/p-7/r/searchjax:1"]  # fmt: skip


@pytest.mark.parametrize(
  ("script", "arguments", "words"),
  [
    ("pod/create", [], "--name is needed"),
    ("pod/create", WHERE, "--type is needed"),
    ("pod/create", ["--name", "Run_7", *WHERE[2:], *TYPE], '40 small letters, digits and -'),
    ("pod/create", ["--name", "r", "--zone", "us-west4", *TYPE], 'us-west4-a, got "us-west4"'),
    ("pod/create", [*WHERE, "--type", "v5litepod-12"], "expects 1, 4, 8, 16, 32, 64, 128 or 256"),
    ("pod/create", [*WHERE, "--type", "v5p-12"], "multiple of 8"),
    ("pod/create", [*WHERE, "--type", "v5e-16"], "write v5litepod-16"),
    ("pod/create", [*WHERE, "--type", "v5p:4x8x8"], "write v5p-512, which counts cores"),
    ("pod/create", [*WHERE, "--type", "tpu7x-512"], "tpu7x is had through GKE"),
    ("pod/create", [*WHERE, *TYPE, "--spott"], 'unknown argument "--spott"'),
    ("pod/create", [*WHERE, *TYPE, "--project"], "--project needs a value"),
    ("pod/create", [*WHERE, *TYPE, "--project", "--spot"], "--project needs a value"),
    ("pod/create", [*WHERE, *TYPE, "--", "grpo"], "nothing may follow --"),
    ("pod/push", [*WHERE, "--secrets", "NO_SUCH"], "NO_SUCH, which is not set in this shell"),
    ("pod/push", [*WHERE, "--secrets", f"A={SECRET}"], "never their values"),
    ("pod/run", WHERE, 'sft, rm, grpo or evaluate, then its arguments, got ""'),
    ("pod/run", [*WHERE, "--", "ppo"], 'got "ppo"'),
    ("pod/run", [*WHERE, *TRAIN[:2], "--workdir", "w"], "grpo: --config is needed"),
    ("pod/run", [*WHERE, *TRAIN[:4]], "grpo: --workdir is needed"),
    ("pod/run", [*WHERE, *TRAIN, "--config"], "grpo: --config needs a value"),
    ("pod/run", [*WHERE, *TRAIN, "--config.seed"], "write --config.seed=VALUE"),
    ("pod/run", [*WHERE, *TRAIN, "--seed=1"], 'unknown argument "--seed=1"'),
    ("pod/run", [*WHERE, "--", "sft", "--config=no.py", "--workdir=w"], 'no config file "no.py"'),
    ("pod/run", [*WHERE, *TRAIN[:4], "--workdir=gs://b"], "expects gs://BUCKET/FOLDER"),
    ("pod/logs", [*WHERE, "--follow", "--worker", "all"], "--follow shows one worker"),
    ("pod/logs", [*WHERE, "--worker", "first"], 'a worker\'s number from 0, or all, got "first"'),
    ("pod/resume", [*WHERE, *TYPE, *TRAIN[:4], "--workdir=w"], "a new slice has empty disks"),
    ("pod/resume", [*WHERE, *TYPE, "--attempts", "0", *TRAIN], "a whole number from 1"),
    ("gke/run", [*_gke("4x8x8"), *TRAIN], 'v5e has 2 sides, such as 4x4, got "4x8x8"'),
    ("gke/run", [*_gke("4x8", "v5p"), *TRAIN], "v5p has 3 sides"),
    ("gke/run", [*_gke(accelerator="v4"), *TRAIN], "v5e, v5p, v6e or tpu7x"),
    ("gke/run", [*_gke("1x3"), "--chips-per-node=4", *TRAIN], "3 chips, not a multiple of 4"),
    ("gke/run", [*_gke(), *TRAIN[:4], "--workdir=w"], "a pod's disk goes with the pod"),
    ("gke/image", ["--image", "UPPER CASE"], "--image expects a container image"),
    ("gke/xpk", [*WHERE, "--cluster=c", "--image=i", "--type=v5e-4", *TRAIN], "as v5litepod-16"),
    ("pod/bundle", ["out.zip"], "ends in .tar.gz"),
  ],
)  # fmt: skip
def test_bad_arguments_give_one_line_and_exit_code_2_and_call_nothing(
  cloud, script, arguments, words
):
  done = cloud.launch(script, *arguments)
  assert done.returncode == 2 and done.stdout == "", done
  assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr
  assert SECRET not in done.stderr and not cloud.calls()


@pytest.mark.parametrize(
  ("kind", "chips", "runtime"),
  [("v5p-512", 256, "v2-alpha-tpuv5"), ("v5litepod-8", 8, "v2-alpha-tpuv5-lite"),
   ("v6e-256", 256, "v2-alpha-tpuv6e")],
)  # fmt: skip
def test_a_type_says_its_chips_and_its_software(cloud, kind, chips, runtime):
  done = cloud.launch("pod/create", *WHERE, "--type", kind, "--dry-run")
  assert f"# {chips} chips: they cost {chips} x hours x your price" in done.stdout
  assert f"--accelerator-type={kind} --runtime-version={runtime}\n" in done.stdout


@pytest.mark.parametrize(
  ("script", "arguments"),
  [
    ("pod/push", []),
    ("pod/run", TRAIN),
    ("pod/stop", []),
    ("pod/logs", []),
    ("pod/delete", []),
    ("gke/run", TRAIN),
    ("gke/logs", []),
    ("gke/delete", []),
    ("gke/image", []),
    ("gke/xpk", TRAIN),
  ],
)
def test_a_dry_run_is_a_script_of_the_calls_that_are_made(cloud, script, arguments):
  """It calls nothing itself, and run as a script it makes the same calls as the real thing."""
  first = {
    "gke/run": _gke(), "gke/image": _gke()[-2:], "gke/logs": WHERE[:2], "gke/delete": WHERE[:2],
    "gke/xpk": [*WHERE, *TYPE, "--cluster", "c-7", "--image", "searchjax:1"],
  }.get(script, WHERE)  # fmt: skip
  dry = cloud.launch(script, *first, "--dry-run", *arguments)
  assert dry.returncode == 0 and dry.stderr == ""
  assert not cloud.calls() and not (cloud.root / "runs").exists()
  cloud.ready()
  cloud.launch(script, command=["bash", "-c", dry.stdout])
  printed = [call for call in cloud.calls() if "list" not in call]
  (cloud.folder / "calls").unlink()
  inputs = {file.name: file.read_text() for file in cloud.folder.glob("kubectl-*")}
  shutil.rmtree(cloud.folder / "worker-0")
  shutil.rmtree(cloud.folder / "worker-1")
  cloud.ready()
  cloud.launch(script, *first, *arguments)
  assert [c for c in cloud.calls() if "list" not in c and c[1:3] != ["get", "jobset"]] == printed
  assert {file.name: file.read_text() for file in cloud.folder.glob("kubectl-*")} == inputs


def test_create_push_run_logs_delete(cloud):
  """Quoting survives, secrets reach the process and nothing else, the slice is gone at the end."""
  outputs = []

  def launch(script, *arguments):
    done = cloud.launch(script, *WHERE, *arguments)
    outputs.append(done.stdout + done.stderr)
    assert done.returncode == 0, done
    return done.stdout

  said = launch(
    "pod/create", *TYPE, "--spot", "--project", "my-project-7", "--create-flag=--network=n 7"
  )
  assert "WAITING_FOR_RESOURCES" in said and "ACTIVE" in said
  assert cloud.calls()[1] == [
    "gcloud", "compute", "tpus", "queued-resources", "create", "run-7", "--node-id=run-7",
    "--zone=us-west4-a", "--project=my-project-7", "--accelerator-type=v5litepod-16",
    "--runtime-version=v2-alpha-tpuv5-lite", "--spot", "--network=n 7",
  ]  # fmt: skip
  assert "SERPER_KEY" in launch("pod/push", "--secrets", "SERPER_KEY", "--dry-run")
  launch("pod/push", "--secrets", "SERPER_KEY")
  for worker in ("worker-0", "worker-1"):
    home = cloud.folder / worker / "searchjax_pod"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "env").stat().st_mode) == 0o600
    assert (home / "source/configs/two words.py").is_file()
    assert (home / "source/.venv/bin/python").is_file()
    assert not (home / "source/ignored.egg-info").exists()
  assert not (cloud.root / "runs/pods/run-7/env").exists()
  launch("pod/run", "--wait", *TRAIN, "--config.reward.name=a  b")
  for worker in ("worker-0", "worker-1"):
    words = (cloud.folder / f"arguments-{worker}").read_text().split("\0")[:-1]
    assert words == ["searchjax.train_grpo", *TRAIN[2:], "--config.reward.name=a  b"]
    assert (cloud.folder / f"key-{worker}").read_text() == SECRET
    log = (cloud.folder / worker / "searchjax_pod/worker.log").read_text()
    assert f"training on {worker}" in log and "exit code 0" in log
    outputs.append(log)
  said = launch("pod/logs")
  assert "worker worker-0 exit 0" in said and "worker-1: training on worker-1" in said
  assert "training on worker-1" in launch("pod/logs", "--follow", "--worker", "1")
  launch("pod/delete")
  assert "there is no such queued resource" in launch("pod/delete")
  outputs.append((cloud.folder / "calls").read_text())
  assert not any(SECRET in text for text in outputs)


def test_a_push_keeps_environment_and_runs_and_drops_what_is_gone(cloud):
  cloud.ready()
  assert cloud.launch("pod/push", *WHERE).returncode == 0
  source = cloud.folder / "worker-1/searchjax_pod/source"
  for kept in (".venv/mark", "runs/mark"):
    (source / kept).parent.mkdir(exist_ok=True)
    (source / kept).write_text("x")
  (source / "configs/removed.py").write_text("x")
  assert cloud.launch("pod/push", *WHERE).returncode == 0
  assert (source / ".venv/mark").exists() and (source / "runs/mark").exists()
  assert not (source / "configs/removed.py").exists()


def test_a_request_that_is_there_is_waited_for_and_must_be_of_the_same_type(cloud):
  cloud.ready("PROVISIONING PROVISIONING ACTIVE")
  done = cloud.launch("pod/create", *WHERE, *TYPE)
  assert done.returncode == 0 and "create" not in _verbs(cloud)
  done = cloud.launch("pod/create", *WHERE, "--type", "v6e-4")
  assert done.returncode == 2 and "run-7 is there already and is v5litepod-16" in done.stderr
  (cloud.folder / "state").write_text("FAILED")
  done = cloud.launch("pod/create", *WHERE, *TYPE)
  assert done.returncode == 1 and "run-7 is FAILED and will not become ACTIVE" in done.stderr


@pytest.mark.parametrize(
  ("outcome", "code"), [("3", 3), ("2", 2), ("one-fails", 5), ("preempt", 75)]
)
def test_the_exit_code_of_a_run_is_kept(cloud, outcome, code):
  """One worker that fails ends the others; a slice that goes away is told from a failed run."""
  cloud.ready()
  (cloud.folder / "outcomes").write_text(outcome + "\n")
  assert cloud.launch("pod/push", *WHERE).returncode == 0
  done = cloud.launch("pod/run", *WHERE, "--wait", *TRAIN)
  assert done.returncode == code, done
  if outcome == "one-fails":
    assert "worker worker-0 exit 143" in done.stdout and "worker worker-1 exit 5" in done.stdout


def test_a_run_is_joined_not_started_twice_and_can_be_stopped(cloud):
  cloud.ready()
  (cloud.folder / "outcomes").write_text("hang 0\n")
  assert cloud.launch("pod/push", *WHERE).returncode == 0
  assert cloud.launch("pod/run", *WHERE, *TRAIN).returncode == 0
  while not (cloud.folder / "arguments-worker-1").exists():
    time.sleep(0.02)
  again = cloud.launch("pod/run", *WHERE, *TRAIN)
  assert again.returncode == 0 and again.stdout.count("already running") == 2
  other = cloud.launch("pod/run", *WHERE, *TRAIN, "--config.seed=1")
  assert other.returncode == 1 and "another run is going on" in other.stderr
  assert "a run is going on" in cloud.launch("pod/push", *WHERE).stderr
  assert cloud.launch("pod/stop", *WHERE).stdout.count("stopped") == 2
  assert "worker worker-0 exit 143" in cloud.launch("pod/logs", *WHERE).stdout
  # The same command again starts it anew.
  assert cloud.launch("pod/run", *WHERE, "--wait", *TRAIN).returncode == 0
  assert (cloud.folder / "runs-worker-0").read_text() == "run\n" * 2


def test_resume_goes_on_after_a_preemption(cloud):
  (cloud.folder / "outcomes").write_text("preempt 0\n")
  done = cloud.launch("pod/resume", *WHERE, *TYPE, "--spot", "--secrets", "SERPER_KEY", *TRAIN)
  assert done.returncode == 0, done
  once = ["create", "scp", "setup", "start"]
  assert _verbs(cloud) == [*once, "delete", *once]
  creates = [call for call in cloud.calls() if "create" in call]
  assert creates[0] == creates[1] and "--spot" in creates[1]
  words = (cloud.folder / "arguments-worker-0").read_text().split("\0")[:-1]
  assert words == ["searchjax.train_grpo", *formed(4), *TRAIN[2:]]
  assert (cloud.folder / "key-worker-1").read_text() == SECRET
  assert SECRET not in done.stdout + done.stderr + (cloud.folder / "calls").read_text()
  assert "ends the costs" in done.stdout and "state" in os.listdir(cloud.folder)


@pytest.mark.parametrize(
  ("outcomes", "code", "runs", "words"),
  [("1 1 0", 1, 2, "gave up after 2 attempts"), ("1 0", 0, 2, ""), ("2 0", 2, 1, "bad input")],
)
def test_resume_tries_failures_again_up_to_its_limit_but_not_bad_input(
  cloud, outcomes, code, runs, words
):
  cloud.ready()
  (cloud.folder / "outcomes").write_text(outcomes + "\n")
  done = cloud.launch("pod/resume", *WHERE, *TYPE, "--attempts", "2", *TRAIN)
  assert done.returncode == code and words in done.stderr, done
  assert (cloud.folder / "runs-worker-1").read_text() == "run\n" * runs
  # A slice that is there is neither deleted nor made anew.
  assert not {"create", "delete"} & set(_verbs(cloud))


def test_resume_without_capacity_asks_again_and_gives_up(cloud):
  (cloud.folder / "next").write_text("WAITING_FOR_RESOURCES FAILED")
  done = cloud.launch("pod/resume", *WHERE, *TYPE, "--attempts", "2", *TRAIN)
  assert done.returncode == 1 and "may still be there and cost" in done.stderr
  assert _verbs(cloud) == ["create", "delete", "create"]


@pytest.mark.parametrize(
  ("accelerator", "topology", "more", "hosts", "chips", "label"),
  [
    ("v5e", "2x2", [], 1, 4, "tpu-v5-lite-podslice"),
    ("v5e", "16x16", [], 64, 4, "tpu-v5-lite-podslice"),
    ("v6e", "2x4", ["--chips-per-node", "8"], 1, 8, "tpu-v6e-slice"),
    ("v5p", "4x8x8", [], 64, 4, "tpu-v5p-slice"),
    ("tpu7x", "4x8x8", [], 64, 4, "tpu7x"),
  ],
)
def test_the_jobset_has_one_pod_a_host(cloud, accelerator, topology, more, hosts, chips, label):
  more = [*more, "--spot", "--queue", "q-7", "--service-account", "writer", "--namespace", "ns-7",
          "--max-restarts", "3", "--secrets", "SERPER_KEY"]  # fmt: skip
  done = cloud.launch("gke/run", *_gke(topology, accelerator), *more, *TRAIN)
  assert done.returncode == 0, done
  assert f"{hosts * chips} chips: they cost" in done.stdout
  jobset = yaml.safe_load((cloud.folder / "kubectl-create").read_text())
  assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
  assert jobset["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q-7"}
  assert jobset["spec"]["failurePolicy"]["maxRestarts"] == 3
  [job] = jobset["spec"]["replicatedJobs"]
  job = job["template"]["spec"]
  assert job["parallelism"] == job["completions"] == hosts and job["backoffLimit"] == 0
  assert job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [2]
  pod = job["template"]["spec"]
  assert pod["restartPolicy"] == "Never" and pod["serviceAccountName"] == "writer"
  assert pod["nodeSelector"] == {
    "cloud.google.com/gke-tpu-accelerator": label, "cloud.google.com/gke-tpu-topology": topology,
    "cloud.google.com/gke-spot": "true",
  }  # fmt: skip
  [container] = pod["containers"]
  assert container["resources"]["limits"] == {"google.com/tpu": chips}
  assert container["command"] == ["/searchjax/.venv/bin/python", "-m", "searchjax.train_grpo"]
  # Kubernetes turns $$( into $( and would read $(NAME) as a variable.
  assert container["args"] == [
    word.replace("$(", "$$(") for word in [*formed(hosts), *TRAIN[2:]]
  ]
  assert container["envFrom"] == [{"secretRef": {"name": "run-7-env"}}]
  assert (cloud.folder / "kubectl-apply").read_text() == f"600\nSERPER_KEY={SECRET}\n"
  assert not (cloud.root / "runs/pods/run-7/env").exists()
  manifest = (cloud.folder / "kubectl-create").read_text()
  assert SECRET not in done.stdout + done.stderr + manifest + (cloud.folder / "calls").read_text()


def test_a_plain_jobset_has_no_extras_and_a_present_one_is_not_replaced(cloud):
  assert cloud.launch("gke/run", *_gke(), *TRAIN).returncode == 0
  jobset = yaml.safe_load((cloud.folder / "kubectl-create").read_text())
  pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
  assert "labels" not in jobset["metadata"] and "serviceAccountName" not in pod
  assert set(pod["nodeSelector"]) == {
    "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology",
  }  # fmt: skip
  assert "envFrom" not in pod["containers"][0] and len(pod["tolerations"]) == 1
  (cloud.folder / "jobset").write_text("jobset.jobset.x-k8s.io/run-7\n")
  (cloud.folder / "kubectl-create").unlink()
  done = cloud.launch("gke/run", *_gke(), *TRAIN)
  assert done.returncode == 1 and "run-7 is there already" in done.stderr
  assert not (cloud.folder / "kubectl-create").exists()


def test_xpk_gets_one_command_that_a_shell_reads_back(cloud):
  done = cloud.launch(
    "gke/xpk", *WHERE, "--cluster=c-7", "--image=searchjax:1", "--type=tpu7x-4x8x8", *TRAIN
  )
  assert done.returncode == 0
  [call] = cloud.calls()
  assert call[:3] == ["xpk", "workload", "create"]
  for word in ("--workload=run-7", "--cluster=c-7", "--tpu-type=tpu7x-4x8x8", "--max-restarts=10",
               "--docker-image=searchjax:1", "--zone=us-west4-a"):  # fmt: skip
    assert word in call
  assert shlex.split(call[-1].partition("=")[2]) == [
    "cd", "/searchjax", "&&", ".venv/bin/python", "-m", "searchjax.train_grpo", *formed(64),
    *TRAIN[2:],
  ]  # fmt: skip


@pytest.mark.parametrize(
  ("kind", "hosts"), [("v5litepod-8", 1), ("v6e-4", 1), ("v5litepod-16", 4), ("v5p-512", 64)]
)
def test_a_run_is_told_how_many_hosts_must_form_it(cloud, kind, hosts):
  done = cloud.launch("pod/run", *WHERE, "--type", kind, "--dry-run", *TRAIN)
  said = shlex.split(done.stdout.splitlines()[0])[-1].removeprefix("--command=")
  assert shlex.split(said)[-len(TRAIN) :] == [*formed(hosts), *TRAIN[2:]]


def test_hosts_that_do_not_share_a_disk_need_a_bucket(cloud):
  done = cloud.launch("pod/run", *WHERE, *TYPE, *TRAIN[:4], "--workdir=w")
  assert done.returncode == 2 and "do not see each other's disks" in done.stderr


def test_the_image_is_built_from_the_files_git_knows(cloud):
  done = cloud.launch("gke/image", *_gke()[-2:])
  assert done.returncode == 0 and [call[1] for call in cloud.calls()] == ["build", "push"]
  listed = subprocess.run(
    ["tar", "-tzf", str(cloud.folder / "context")], capture_output=True, text=True, check=True
  ).stdout.splitlines()
  assert {"launch/gke/Dockerfile", "launch/environment.sh", "configs/two words.py"} <= set(listed)
  assert not any(name.startswith(("runs/", "ignored")) for name in listed)


def test_the_scripts_are_shellcheck_clean(repository):
  shellcheck = shutil.which("shellcheck")
  if shellcheck is None:
    pytest.skip("no shellcheck on the path")
  scripts = sorted(
    str(path.relative_to(repository)) for path in pathlib.Path(repository, "launch").rglob("*.sh")
  )
  assert len(scripts) >= len(POD) + len(GKE) + 3
  done = subprocess.run(
    [shellcheck, *scripts], cwd=repository, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout
