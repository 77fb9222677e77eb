import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import ckptstore
from ckptstore.operations.session import LEASE_SECONDS

ROOT = Path(__file__).parents[2]
EXAMPLES, README = ROOT / "examples", ROOT / "README.md"
PATIENCE = 150


def run(name, folder):
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, folder], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def masked(text):
    """Without what differs from run to run and from machine to machine."""
    return re.sub(r"[+-]?\d+(\.\d+)?", "#", re.sub(r"\[.*\]", "[…]", text)).strip()


def numbers(pattern, output):
    found = re.search(pattern, output)
    assert found, output
    return [float(number) for number in found.groups()]


def stored_once_the_killed_writer_is_fenced(store):
    """Bytes; what a commit relied on that was killed on its way stays until its lease ends."""
    end = time.monotonic() + LEASE_SECONDS + 10
    while store.stats().stored_bytes >= 0.75 * store.stats().logical_bytes and time.monotonic() < end:
        time.sleep(2)
        store.gc(grace=0)
    return store.stats().stored_bytes


@pytest.mark.slow
def test_quickstart(tmp_path):
    output = run("quickstart.py", tmp_path / "store")
    assert 20 <= numbers(r"SIGKILL after step (\d+)", output)[0] <= 60
    assert "differences to the undisturbed run at step 60: 0" in output
    assert "verified, every byte" in output
    shown = re.search(r"<!-- output of quickstart -->\n```text\n(.*?)```", README.read_text(), re.DOTALL)
    assert shown
    assert masked(output) == masked(shown[1])
    with ckptstore.open(tmp_path / "store", run="killed", create=False) as store:
        state, straight = store.checkout(60), store.checkout("straight@60")
        assert state["model"]["head.weight"] is state["model"]["embedding.weight"]
        assert all(value.equal(straight["model"][key]) for key, value in state["model"].items())
        assert store.steps()[-2:] == [55, 60]
        assert stored_once_the_killed_writer_is_fenced(store) < 0.75 * store.stats().logical_bytes


@pytest.mark.slow
def test_finetune_frozen(tmp_path):
    output = run("finetune_frozen.py", tmp_path / "store")
    shares = [float(share) for share in re.findall(r"([\d.]+)% of the first", output)]
    assert len(shares) == 6
    assert max(shares) < 5
    assert "differences to the undisturbed run at step 30: 0" in output
    with ckptstore.open(tmp_path / "store", run="straight", create=False) as store:
        base = store.checkout("base@20")["model"]
        tuned, killed = store.checkout(30)["model"], store.checkout("killed@30")["model"]
        assert all(tuned[f"backbone.{key}"].equal(value) for key, value in base.items())
        assert all(killed[key].equal(value) for key, value in tuned.items())


@pytest.mark.slow
def test_preemptible_train(tmp_path):
    output = run("preemptible_train.py", tmp_path / "store")
    stops = re.findall(r"SIGTERM after step (\d+), last commit at step (\d+)", output)
    assert len(stops) == 2
    assert all(int(sent) < int(last) < 60 for sent, last in stops)
    assert "differences to the undisturbed run at step 60: 0" in output
    with ckptstore.open(tmp_path / "store", run="preempted", create=False) as store:
        assert {50, 60} <= set(store.steps())
        assert store.verify().ok


@pytest.mark.slow
@pytest.mark.crash
def test_huggingface_trainer(tmp_path):
    output = run("huggingface_trainer.py", tmp_path / "store")
    assert 16 <= numbers(r"SIGKILL after step 18, last commit at step (\d+)", output)[0] <= 28
    assert "differences to the undisturbed run at step 30: 0" in output
    with ckptstore.open(tmp_path / "store", run="killed", create=False) as store:
        assert store.steps() == [4, 8, 12, 16, 20, 24, 28, 30]
        assert json.loads(store.read(30, "trainer"))["global_step"] == 30
        assert store.verify().ok


@pytest.mark.slow
def test_a_finished_training_of_huggingface_is_left_as_it_is(tmp_path):
    """Trainer itself takes one more step when it is to go on from the last one within an epoch."""
    code = "import sys, huggingface_trainer as it; it.STEPS = 6; [it.train(sys.argv[1], 'short') for _ in range(2)]"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, cwd=EXAMPLES, check=False)
    assert done.returncode == 0, done.stderr
    with ckptstore.open(tmp_path, run="short", create=False) as store:
        assert store.steps() == [4, 6]


@pytest.mark.slow
def test_lightning_removes_what_is_tagged_or_gone_without_an_error(tmp_path):
    code = "import sys, ckptstore, lightning_train as it; io = it.StoreIO(ckptstore.open(sys.argv[1]))"
    code += "; [io.remove_checkpoint(path) for path in ('tagged', 'kept', 'gone')]"
    with ckptstore.open(tmp_path) as store:
        for step, path in enumerate(("tagged", "kept", "other")):
            store.commit({"x": step}, step=step, metadata={"path": path})
        store.tag("best", 0)
        done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, cwd=EXAMPLES, check=False)
        assert done.returncode == 0, done.stderr
        assert store.steps() == [0, 2]


@pytest.mark.slow
@pytest.mark.crash
def test_lightning_train(tmp_path):
    output = run("lightning_train.py", tmp_path / "store")
    assert numbers(r"SIGKILL in epoch 3, last commit at step (\d+)", output)[0] in {16, 24}
    assert "differences to the undisturbed run: 0" in output
    with ckptstore.open(tmp_path / "store", run="killed", create=False) as store:
        assert store.steps() == [8, 16, 24, 32, 40]
        assert store.verify().ok


@pytest.mark.slow
@pytest.mark.crash
def test_lightning_with_two_processes(tmp_path):
    for epochs, kept in [(2, [4, 8]), (4, [12, 16])]:
        assert sorted(train_in_two(tmp_path / "store", epochs)) == [f"rank {rank}: {kept[1]}" for rank in range(2)]
        with ckptstore.open(tmp_path / "store", run="ranks", create=False) as store:
            assert store.steps() == kept
            assert store.checkout("latest")["global_step"] == kept[1]
            assert store.verify().ok


def train_in_two(folder, epochs):
    """What both tell of themselves at the end. Lightning lets no SIGTERM end them, so that a hang ends with SIGKILL."""
    command = [sys.executable, str(Path(__file__).with_name("lightning_ranks.py")), folder, str(epochs)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, output
    return re.findall(r"rank \d: \d+", output)


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize(("name", "ranks"), [("fsdp2_train.py", 4), ("ddp_train.py", 2)])
def test_distributed_trainings(tmp_path, name, ranks):
    output = run(name, tmp_path / "store")
    assert "one of 2 ranks killed after step 6, last commit at step 4" in output
    assert f"elastic: {ranks} ranks, to step 12" in output
    assert "differences to the straight run at step 12: 0" in output
    assert "the same at every step: True" in output
    with ckptstore.open(tmp_path / "store", run="elastic", create=False) as store:
        assert store.steps() == [4, 8, 12]
        losses = store.read(12, "losses")
        assert losses[-1] < losses[0] - 1
        assert store.read("straight@12", "losses") == losses
        assert len(losses) == 12
        assert store.verify().ok
