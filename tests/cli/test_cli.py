"""The command line, called in process; the rows of `bench memory` start processes themselves."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import numgrad as ng
from numgrad import models
from numgrad.checkpoint import load
from numgrad.cli import demo, main, memory, networks
from numgrad.cli.networks import NETWORKS
from numgrad.cli.output import progress, size, table
from numgrad.kernels import store
from numgrad.kernels.cpu.vector import BYTES
from numgrad.models import DigitsMLP

ROOT = Path(__file__).parents[2]
ROW_KEYS = [
    "mode",
    "requires_grad",
    "volatile",
    "grad_fn",
    "nodes",
    "saved_tensors",
    "saved_bytes",
    "peak_bytes",
    "by_category",
    "reserved_bytes",
    "total_peak_bytes",
    "total_reserved_bytes",
    "rss_bytes",
    "ms",
]
NAMES = [
    "taped",
    "input requires_grad=False",
    "detached input",
    "parameters frozen",
    "no_grad",
    "inference_mode",
    "volatile",
]
HIDDEN = (128, 128, 128)
BATCH = 64
# The input and the output of each ReLU, which the next layer shares: float32.
SAVED_BYTES = 4 * BATCH * (64 + sum(HIDDEN))


def refused(argv, capsys):
    """The one line on stderr of a command that must be refused."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("numgrad: ") and err.endswith("\n") and err.count("\n") == 1
    return err


# ---------------------------------------------------------------------------------- bench memory


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """JSON and text of one run of `bench memory`."""
    file = tmp_path_factory.mktemp("bench") / "rows.json"
    printed = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.print", lambda *args, **kwargs: printed.append(" ".join(args)))
        patch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
        code = main(["bench", "memory", "--model", "digits-mlp", "--json", str(file)])
    assert code == 0
    return json.loads(file.read_text()), "\n".join(printed)


def test_memory_schema(bench):
    content, _ = bench
    assert list(content) == ["machine", "command", "rows"]
    machine = content["machine"]
    assert {"cpu", "cpus", "threads", "python", "numgrad", "numba", "numpy"} <= set(machine)
    assert content["command"].startswith("numgrad bench memory --model digits-mlp --json ")
    rows = content["rows"]
    assert [row["mode"] for row in rows] == NAMES
    for row in rows:
        assert list(row) == ROW_KEYS
        assert isinstance(row["requires_grad"], bool) and isinstance(row["volatile"], bool)
        counts = [row[k] for k in ("nodes", "saved_tensors", "saved_bytes", "reserved_bytes")]
        assert all(isinstance(n, int) and n >= 0 for n in counts)
        assert sum(row["by_category"].values()) == row["peak_bytes"] > 0
        assert row["ms"] > 0
        assert row["total_reserved_bytes"] <= 1.05 * row["total_peak_bytes"] + (8 << 20)
        if os.path.exists("/proc/self/clear_refs"):
            # As the pool's growth, within what pages and the interpreter add.
            apart = abs(row["rss_bytes"] - row["reserved_bytes"])
            assert apart <= 0.05 * row["reserved_bytes"] + (8 << 20)
        else:
            assert row["rss_bytes"] is None


def test_memory_flags(bench):
    flags = [(r["requires_grad"], r["volatile"], r["grad_fn"]) for r in bench[0]["rows"]]
    for requires_grad, volatile, grad_fn in flags[:3]:
        assert requires_grad and not volatile and grad_fn.endswith("Backward")
    assert flags[3:] == [(False, False, None)] * 3 + [(False, True, None)]


def test_memory_rows(bench):
    rows = bench[0]["rows"]
    counted = [(r["nodes"], r["saved_tensors"], r["saved_bytes"]) for r in rows]
    nodes = 2 * len(HIDDEN) + 1  # a linear and a ReLU each, and the last linear
    saved = 2 * len(HIDDEN) + 1  # what each linear got, and what each ReLU gave
    assert counted[:3] == [(nodes, saved, SAVED_BYTES)] * 3
    assert counted[3:] == [(0, 0, 0)] * 4
    peaks = [r["peak_bytes"] for r in rows]
    assert peaks[0] == peaks[1] == peaks[2] > peaks[3] == peaks[4] == peaks[5] == peaks[6]
    # Taped, three hidden values and one on its way are alive; else only two at a time.
    own = [r["by_category"]["activation"] + r["by_category"]["saved"] for r in rows]
    assert own == [4 * BATCH * 128 * n for n in (4, 4, 4, 2, 2, 2, 2)]
    assert [r["by_category"]["saved"] > 0 for r in rows] == [True] * 3 + [False] * 4


def test_memory_text(bench):
    lines = bench[1].splitlines()
    assert max(map(len, lines)) <= 100
    for name in NAMES:  # once in each of the two tables
        assert sum(line.startswith(name + "  ") for line in lines) == 2
    assert lines[-3:] == list(memory.EXPLANATION)
    assert any(line.startswith("Peak reserved is at most") for line in lines)
    kept = next(line for line in lines if line.startswith("taped"))
    assert kept.split()[-2:] == [str(SAVED_BYTES // 1024), "KiB"]


def test_memory_other_batch(capsys):
    argv = ["bench", "memory", "--model", "digits-mlp"]
    assert main([*argv, "--batch", "3", "--row", "taped"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["saved_bytes"] == SAVED_BYTES // BATCH * 3
    # More than there are digits: they are repeated.
    assert main([*argv, "--batch", "2000", "--row", "volatile"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 0


def test_memory_complains(bench, capsys):
    rows = json.loads(json.dumps(bench[0]["rows"]))
    assert memory.complain(rows) == 0
    rows[6]["nodes"] = 1
    rows[1]["saved_bytes"] -= 4
    assert memory.complain(rows) == 1
    rows[2]["rss_bytes"] = rows[2]["reserved_bytes"] + (9 << 20)
    rows[3]["total_reserved_bytes"] = 2 * rows[3]["total_peak_bytes"] + (8 << 20)
    assert memory.complain(rows) == 1
    err = capsys.readouterr().err
    assert "detached input: RSS grew by 9" in err and "parameters frozen: " in err
    assert "volatile keeps 1 nodes" in err
    assert f"input requires_grad=False keeps {SAVED_BYTES - 4} saved_bytes" in err


@pytest.mark.parametrize("model", ["digits-conv", "lenet"])
def test_memory_finds_no_fault(model, capsys):
    rows = [memory.measure(mode, model, 2, NETWORKS[model].size) for mode in memory.MODES]
    for row in rows:  # this process is not the row's own
        row["rss_bytes"] = None
        row["total_reserved_bytes"] = row["total_peak_bytes"]
    assert memory.complain(rows) == 0
    rows[1]["nodes"] = rows[0]["nodes"] + 1
    assert memory.complain(rows) == 1
    assert "input requires_grad=False makes" in capsys.readouterr().err


def test_memory_on_a_busy_machine(monkeypatch, capsys, bench):
    monkeypatch.setattr(memory, "measure_all", lambda model, batch, pixels: bench[0]["rows"])
    for busy, said in ((0.0, False), (1000.0, True)):
        monkeypatch.setattr(os, "getloadavg", lambda busy=busy: (busy, busy, busy), raising=False)
        assert main(["bench", "memory", "--model", "digits-mlp"]) == 0
        assert ("load average was 1000.0" in capsys.readouterr().out) == said


def test_memory_of_a_convnet(capsys):
    """The default model, at another size: rows that record, and one that does not."""
    argv = ["bench", "memory", "--batch", "1", "--size", "64"]
    found = {}
    for mode in ("taped", "volatile"):
        assert main([*argv, "--row", mode]) == 0
        found[mode] = json.loads(capsys.readouterr().out)
    taped, volatile = found["taped"], found["volatile"]
    assert taped["nodes"] > 60 and taped["saved_bytes"] > 1 << 20
    assert (volatile["nodes"], volatile["saved_tensors"], volatile["saved_bytes"]) == (0, 0, 0)
    assert volatile["peak_bytes"] < taped["peak_bytes"]
    assert memory.settle("resnet18", None, None) == (8, 224)


def test_all_networks_are_known():
    assert models.names() == list(networks.IMAGENET)
    for name in models.names():
        assert networks.maker(name) is getattr(models, name) and NETWORKS[name].size == 224


LARGE = {"resnet18", "resnet101", "resnet152"}  # or alike, as all of VGG are but one


@pytest.mark.parametrize(
    "model",
    [n for n in NETWORKS if n not in LARGE and (n == "vgg11_bn" or not n.startswith("vgg"))],
)
def test_networks(model):
    least = 64 if model == "alexnet" else 32
    batch, size = memory.settle(model, 2, least if NETWORKS[model].size == 224 else None)
    network, x = memory.make(model, batch, size)
    with ng.no_grad():
        out = network(x)
    assert not network.training and out.shape[0] == 2


def test_fixed_sizes(capsys):
    for model, only in (("digits-mlp", 8), ("digits-conv", 8), ("lenet", 28)):
        argv = ["bench", "memory", "--model", model, "--size", "32"]
        err = refused(argv, capsys)
        assert f"--size: {model} takes pictures of {only} × {only} only, got 32" in err


def test_memory_without_proc(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "Path", lambda name: tmp_path / "none" / name.lstrip("/"))
    row = memory.measure("no_grad", "digits-mlp", 2)
    assert row["rss_bytes"] is None and row["nodes"] == 0


def test_row_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(memory, "MODES", ("no such mode",))
    assert "no such mode" in refused(["bench", "memory"], capsys)


# ------------------------------------------------------------------------------------------- demo


def test_demo(tmp_path, monkeypatch, capsys, bench):
    monkeypatch.setattr(memory, "measure_all", lambda model, batch: bench[0]["rows"])
    model, report = tmp_path / "model.safetensors", tmp_path / "demo.json"
    argv = ["demo", "digits", "--epochs", "5", "--batch", "32", "--lr", "2e-3", "--seed", "1"]
    assert main([*argv, "--save", str(model), "--json", str(report)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^epoch 5/5  loss 0\.\d+", out, re.M)
    assert f"saved to {model}" in out and "outputs identical" in out
    assert "volatile=True, grad_fn=None, 0 nodes, 0 B saved" in out
    assert all(line in out for line in memory.EXPLANATION)

    content = json.loads(report.read_text())
    assert list(content) == ["machine", "command", "training", "rows"]
    training = content["training"]
    assert (training["epochs"], training["batch"], training["seed"]) == (5, 32, 1)
    assert training["reloaded_identical"] is True
    assert training["test_accuracy"] > 0.9
    assert f"test accuracy {training['test_accuracy']:.2%}" in out

    other = DigitsMLP(dropout=0.5)
    other.load_state_dict(load(model))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.json", "model.safetensors"]


def test_demo_convnet(tmp_path, monkeypatch, capsys, bench):
    monkeypatch.setattr(memory, "measure_all", lambda model, batch: bench[0]["rows"])
    report = tmp_path / "demo.json"
    monkeypatch.setitem(demo.EPOCHS, "conv", 4)
    argv = ["demo", "digits", "--model", "conv", "--json", str(report)]
    assert main(argv) == 0
    assert "outputs identical" in capsys.readouterr().out
    training = json.loads(report.read_text())["training"]
    assert (
        training["model"] == "conv" and training["epochs"] == 4 and training["test_accuracy"] > 0.95
    )


def test_demo_same_seed_same_model(tmp_path, monkeypatch, capsys, bench):
    monkeypatch.setattr(memory, "measure_all", lambda model, batch: bench[0]["rows"])
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        assert main(["demo", "digits", "--epochs", "1", "--seed", "3", "--save", name]) == 0
    assert main(["demo", "digits", "--epochs", "1", "--seed", "4", "--save", "c"]) == 0
    assert Path("a").read_bytes() == Path("b").read_bytes() != Path("c").read_bytes()
    assert main(["demo", "digits", "--epochs", "1"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", "c"]


# -------------------------------------------------------------------------------------------- env


def test_env_json(capsys):
    (ng.ones(3) * 2).sum()
    assert main(["env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["numgrad"] == ng.__version__
    assert found["instruction_set"] in BYTES
    assert found["threads"] == ng.get_num_threads()
    assert found["threading_layer"] in ("omp", "tbb", "workqueue")
    kernels = found["kernels"]
    assert Path(kernels["folder"]).is_dir()
    assert kernels["generated"] > 0 and kernels["bytes"] > 0


def test_env_text(capsys):
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [re.split(r"  +", line)[0] for line in lines]
    assert names[:5] == ["numgrad", "python", "numba", "llvmlite", "numpy"]
    assert {"cpu", "features", "matmul kernel", "threads", "kernel folder"} <= set(names)
    columns = {re.match(r"\S+(?: \S+)*  +", line).end() for line in lines}
    assert len(columns) == 1


def test_clear_kernels(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMGRAD_CACHE", str(tmp_path))
    own = Path(store.describe()["folder"])
    assert own.parent == tmp_path
    (own / "generated").mkdir(parents=True)
    (own / "generated" / "k_0.py").write_bytes(b"x" * 2048)
    other = tmp_path / "numba-0.67.0-py310-some_cpu-0123abcd"
    other.mkdir()
    mine = tmp_path / "numba-notes"  # not ours
    mine.mkdir()
    (mine / "kept").write_text("kept")
    (tmp_path / "numba-0.67.0-py310-x-01234567").write_text("a file")

    assert main(["env", "--clear-kernels"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert sorted(out) == sorted(
        [f"removed {own}: 1 files, 2 KiB", f"removed {other}: 0 files, 0 B"]
    )
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["numba-0.67.0-py310-x-01234567", "numba-notes"]
    assert (mine / "kept").read_text() == "kept"

    assert main(["env", "--clear-kernels", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": []}


def test_clear_kernels_of_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUMGRAD_CACHE", str(tmp_path / "none"))
    assert main(["env", "--clear-kernels"]) == 0
    assert capsys.readouterr().out == f"nothing to remove in {tmp_path / 'none'}\n"


# ------------------------------------------------------------------------------------------ usage


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"numgrad {ng.__version__}\n"


def test_python_m():
    done = subprocess.run(
        [sys.executable, "-m", "numgrad", "--version"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"numgrad {ng.__version__}\n", "")


@pytest.mark.parametrize("argv", [["--help"], ["demo", "digits", "--help"], ["bench", "--help"]])
def test_help(argv, capsys):
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: numgrad") and "--row" not in out


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "required: COMMAND"),
        (["frob"], "invalid choice: 'frob'"),
        (["bench"], "required: KIND"),
        (["demo"], "required: DEMO"),
        (["bench", "memory", "--model", "resnet"], "invalid choice: 'resnet'"),
        (["bench", "memory", "--size", "0"], "expected a positive integer, got '0'"),
        (["demo", "digits", "--model", "cnn"], "invalid choice: 'cnn'"),
        (["bench", "memory", "--batch", "0"], "expected a positive integer, got '0'"),
        (["bench", "memory", "--batch", "1.5"], "expected a positive integer, got '1.5'"),
        (["bench", "memory", "--json"], "--json: expected one argument"),
        (["bench", "memory", "--rows"], "unrecognized arguments: --rows"),
        (["demo", "digits", "--epochs", "-3"], "expected a positive integer, got '-3'"),
        (["demo", "digits", "--lr", "nan"], "expected a positive number, got 'nan'"),
        (["demo", "digits", "--lr", "fast"], "expected a positive number, got 'fast'"),
        (["demo", "digits", "--seed", "4294967296"], "expected an integer from 0"),
        (["env", "--yaml"], "unrecognized arguments: --yaml"),
        (["env", "more"], "unrecognized arguments: more"),
        (["convert", "a", "b", "c"], "unrecognized arguments: c"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, list) else "",
)
def test_bad_arguments(argv, says, capsys):
    err = refused(argv, capsys)
    assert says in err and "--help" in err


@pytest.mark.parametrize("option", ["--json", "--save"])
def test_bad_files(option, tmp_path, capsys):
    argv = ["demo", "digits", option]
    assert "existing folder" in refused([*argv, str(tmp_path / "none" / "file")], capsys)
    assert "expected a file" in refused([*argv, str(tmp_path)], capsys)
    assert list(tmp_path.iterdir()) == []


def test_bad_environment():
    done = subprocess.run(
        [sys.executable, "-m", "numgrad", "env"],
        cwd=ROOT,
        env={**os.environ, "NUMGRAD_NUM_THREADS": "many"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("numgrad: NUMGRAD_NUM_THREADS: ")
    assert done.stderr.count("\n") == 1 and "'many'" in done.stderr


def test_interrupt(monkeypatch, capsys):
    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(memory, "measure_all", stop)
    assert main(["bench", "memory"]) == 130
    assert capsys.readouterr().err == "numgrad: interrupted\n"


SHELL = {
    "stderr closed": ("classify none.png --json 2>&-", 2, True),
    "stdout closed": ("classify none.png >&-", 2, False),
    "both closed": ("inspect none.pth >&- 2>&-", 2, False),
    "stderr full": ("inspect none.pth 2>/dev/full", 2, False),
    "stdout full": ("env >/dev/full", 2, False),
    "help, full": ("--help >/dev/full", 2, False),
}


@pytest.mark.parametrize("case", SHELL)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="has no /dev/full")
def test_streams_that_take_nothing(case, tmp_path):
    """No traceback, the exit status that was meant, and errors never on stdout."""
    words, status, json_alone = SHELL[case]
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m numgrad {words}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMGRAD_WEIGHTS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "Traceback" in done.stderr) == (status, False)
    assert done.stderr.count("\n") == ("2>" not in words)
    if json_alone:
        assert json.loads(done.stdout)["failed"] == 1
    else:
        assert done.stdout == ""


def test_a_terminal_of_few_characters(tmp_path):
    ng.save({"w ä": ng.ones(2, 3)}, tmp_path / "コ.pth")
    done = subprocess.run(
        [sys.executable, "-m", "numgrad", "inspect", "コ.pth"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("?.pth\n") and "\nw ?  " in done.stdout


def test_no_memory(monkeypatch, capsys):
    def fail(*args):
        raise MemoryError

    monkeypatch.setattr(memory, "measure_all", fail)
    assert main(["bench", "memory"]) == 2
    assert capsys.readouterr().err.startswith("numgrad: not enough memory; take a smaller --batch")


# ----------------------------------------------------------------------------------------- output


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (114688, "112 KiB"),
        (274841, "268 KiB"),
        (3 << 20, "3 MiB"),
        (5 << 40, "5 TiB"),
        (5 << 50, "5120 TiB"),
        (None, "-"),
    ],
)
def test_size(nbytes, text):
    assert size(nbytes) == text


def test_table(capsys):
    table(("", "two\nlines", "n"), [("a", "1", "22"), ("long name", "333333", "4")], title="T")
    assert capsys.readouterr().out.splitlines() == [
        "T",
        "              two",
        "            lines   n",
        "---------  ------  --",
        "a               1  22",
        "long name  333333   4",
    ]


@pytest.mark.parametrize("steps", [1, 3, 25])
def test_progress(steps, capsys):
    for i, say in progress("epoch", steps):
        say(f"loss {i}")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert lines[-1] == f"epoch {steps}/{steps}  loss {steps - 1}"


def test_progress_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr("numgrad.cli.output._rich", lambda: True)
    seen = []
    for i, say in progress("epoch", 3):
        say(f"loss {i}")
        seen.append(i)
    assert seen == [0, 1, 2]
    assert "3/3 loss 2" in capsys.readouterr().out


def test_table_rich(monkeypatch, capsys):
    pytest.importorskip("rich")
    monkeypatch.setattr("numgrad.cli.output._rich", lambda: True)
    rows = [("a", "1"), ("b", "22")]
    table(("", "n"), rows, title="T")
    wide = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in wide] == ["T", "n", "─" * 5, "a   1", "b  22"]
    # A terminal that is too narrow gets the plain text, which it may wrap as it likes.
    monkeypatch.setenv("COLUMNS", "4")
    table(("", "n"), rows)
    assert "-  --" in capsys.readouterr().out
