"""``numgrad bench speed``: arguments, and runs from end to end with a case that takes no time."""

import html.parser
import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from numgrad.cli import main, speed
from numgrad.cli.output import UsageError
from numgrad.cli.speed import cases, fresh, high_water, measuring, page, peaks
from tests.cli import speed_server

PEAKS = {"1": {"gflops": 100.0, "gbps": 10.0, "wait": 1.0}}


def refused(argv, capsys):
    """The one line on stderr of a command that must be refused."""
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("numgrad: ") and err.count("\n") == 1
    return err


@pytest.fixture
def tiny(monkeypatch):
    """The tests' cases in the table, and the tests' server; call it with the peers' manner."""
    monkeypatch.setattr(cases, "CASES", dict(cases.CASES))
    speed_server.register()
    monkeypatch.setattr(peaks, "measure", lambda threads: PEAKS)
    monkeypatch.setattr(peaks, "load_average", lambda: 0.0)
    monkeypatch.setattr(speed, "PEERS", {"torch": (), "onnxruntime": ()})
    monkeypatch.setattr(measuring, "SAMPLE_S", 0.0)

    def use(manner=""):
        def command(library, threads):
            script = [sys.executable, str(Path(speed_server.__file__)), library, str(threads)]
            return script + [manner] * bool(manner)

        monkeypatch.setattr(measuring, "server_command", command)

    use()
    return use


# --------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--compare", "jax"], "expected any of torch,onnxruntime, got 'jax'"),
        (["--compare", ""], "got ''"),
        (["--threads", "0"], "expected a positive integer, got '0'"),
        (["--threads", "1,two"], "expected a positive integer, got 'two'"),
        (["--threads", "99999"], "--threads: expected at most"),
        (["--only", "nothing*"], "--only: expected a pattern that fits a case, got 'nothing*'"),
        (["--json", "none/rows.json"], "expected a file in an existing folder"),
        (["--html", "."], "expected a file, got the folder"),
        (["--json", "a", "--html", "a"], "expected another file than --json"),
        (["--html", "a.svg", "--markdown", "a.md"], "expected another file than --html, got a.svg"),
        (["--markdown", "a.svg"], "expected another file than --markdown, got a.svg"),
        (["more"], "unrecognized arguments: more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_arguments(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert says in refused(["bench", "speed", *words], capsys)
    assert list(tmp_path.iterdir()) == []


def test_missing_peer(monkeypatch, capsys):
    monkeypatch.setattr(speed, "PEERS", {"torch": ("a_module_that_is_not_there",)})
    err = refused(["bench", "speed", "--compare", "torch"], capsys)
    assert "expected an installed a_module_that_is_not_there" in err and "[compare]" in err


def test_markdown_without_a_place(tmp_path, capsys):
    file = tmp_path / "notes.md"
    file.write_text("# Notes\n")
    assert "add them" in refused(["bench", "speed", "--markdown", str(file)], capsys)
    assert file.read_text() == "# Notes\n"


def test_plots_that_are_those_of_something_else(tmp_path, capsys):
    """Those that the Markdown file shows are replaced."""
    file, plots = tmp_path / "notes.md", tmp_path / "notes.svg"
    plots.write_text("mine")
    for text in (None, f"{page.BEGIN}\n{page.END}\n"):
        if text is not None:
            file.write_text(text)
        err = refused(["bench", "speed", "--markdown", str(file)], capsys)
        assert f"expected no {plots} but what {file} shows" in err
    assert plots.read_text() == "mine"
    file.write_text(f"{page.BEGIN}\n{page._shows(plots)}\n{page.END}\n")
    page.check_markdown(str(file))


def test_list(capsys):
    assert main(["bench", "speed", "--list", "--only", "matmul/*-T*", "--only", "cold"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "matmul/512x512x512-TN",
        "matmul/512x512x512-TT",
        "cold/inference",
        "cold/training",
    ]
    assert main(["bench", "speed", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == cases.names() and len(set(listed)) == len(listed)


# ------------------------------------------------------------------------------------- end to end


class Tags(html.parser.HTMLParser):
    """The names of all elements, and whether each is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)
        assert not {"src", "href"} & dict(attrs).keys()

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_run(tiny, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["bench", "speed", "--compare", "torch", "--threads", "1", "--only", "tiny"]
    argv += ["--json", "rows.json", "--html", "page.html", "--markdown", "bench.md"]
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 100
    assert "1 of 2, 0 s: tiny, 1 thread" in err
    assert "1 thread: 100 GFLOP/s of multiply-adds, 10.0 GB/s of a triad" in out
    assert re.search(r"^add( ~)? .*\d\.\d\d +1\.00 ", out, re.M)  # on one thread 1.25 is not asked

    content = json.loads(Path("rows.json").read_text())
    assert list(content)[:2] == ["machine", "command"]
    assert content["command"].startswith("numgrad bench speed --compare torch --threads 1 ")
    assert content["peaks"] == PEAKS and content["busy"] == ""
    add, wordy = content["rows"]
    assert [(t["library"], t["variant"]) for t in add["times"]] == [
        ("numgrad", ""),
        ("torch", ""),
        ("torch", "channels last"),
    ]
    assert [len(t["samples_ms"]) for t in add["times"]] == [7, 7, 7]
    assert add["errors"] == {"torch": 0.0, "torch channels last": 0.0}
    faster = min(t["ms"] for t in add["times"][1:])
    assert add["ratio"] == pytest.approx(faster / add["ms"])
    assert (add["asked"], wordy["asked"]) == (1.0, None)

    tags = Tags()
    tags.feed(Path("page.html").read_text())
    assert tags.open == [] and {"table", "svg", "h2"} <= set(tags.seen)
    assert "script" not in tags.seen

    text = Path("bench.md").read_text()
    assert text.startswith(page.BEGIN) and text.endswith(page.END + "\n")
    assert "](bench.svg)" in text and "| add" in text
    bars = ElementTree.parse("bench.svg").getroot().iter("{http://www.w3.org/2000/svg}rect")
    assert len(list(bars)) >= 2


def test_markdown_keeps_what_stands_around(tiny, tmp_path, capsys):
    file = tmp_path / "bench.md"
    file.write_text(f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nBelow\n")
    argv = ["bench", "speed", "--threads", "1", "--only", "tiny/add", "--markdown", str(file)]
    assert main(argv) == 0
    text = file.read_text()
    assert text.startswith(f"# Title\n\n{page.BEGIN}\n\n") and text.endswith("\n\nBelow\n")
    assert "old" not in text and "| add" in text
    assert "PyTorch" not in capsys.readouterr().out.partition("ratio:")[0]  # nothing to compare


def test_results_that_differ(tiny, tmp_path, capsys):
    tiny("liar")
    file = tmp_path / "rows.json"
    argv = ["bench", "speed", "--threads", "1", "--only", "tiny", "--json", str(file)]
    assert main([*argv, "--compare", "torch"]) == 1
    err = capsys.readouterr().err
    assert "tiny/add: the result differs from that of torch by " in err
    assert json.loads(file.read_text())["rows"] == []  # nothing was timed
    assert main(argv) == 0  # ours alone


def test_process_that_ends(tiny, capsys):
    tiny("dead")
    argv = ["bench", "speed", "--threads", "1", "--only", "tiny", "--compare", "torch"]
    assert main(argv) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err == "numgrad: bench speed: the process of torch of tiny/add: out of order"


def test_busy(tiny, monkeypatch, capsys):
    monkeypatch.setattr(peaks, "load_average", lambda: 99.0)
    assert main(["bench", "speed", "--threads", "1", "--only", "tiny/add"]) == 0
    out, err = capsys.readouterr()
    assert "warning: the load average was 99.00 before" in err and "the load average" in out


def test_scaling_and_cold_rows(tiny, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(speed, "available_cpus", lambda: 2)
    monkeypatch.setattr(cases, "SCALING", {"scaling/tiny": ("tiny/add", 1.8)})
    monkeypatch.setattr(
        fresh,
        "cold",
        lambda training, threads: {"seconds": 16.0, "kernels": 7, "compiling_seconds": 2.0},
    )
    file = tmp_path / "rows.json"
    argv = ["bench", "speed", "--only", "scaling/tiny", "--only", "cold", "--json", str(file)]
    assert main(argv) == 0
    out = capsys.readouterr().out
    rows = json.loads(file.read_text())["rows"]
    assert [(r["kind"], r["name"], r["threads"]) for r in rows] == [
        ("scaling", "tiny", 2),
        ("cold", "inference", 2),
        ("cold", "training", 2),
    ]
    assert [t["threads"] for t in rows[0]["times"]] == [1, 2]
    assert re.search(r"^inference +> 16\.0 +<= 15 +7 +2\.0$", out, re.M)
    assert re.search(r"^training +16\.0 +<= 30 ", out, re.M)


MODES = {
    "inference": {"peak": 100 << 20, "derived": 90 << 20, "model": 45 << 20},
    "forward": {"peak": 300 << 20},
}


@pytest.mark.parametrize("compare", [[], ["--compare", "torch"]])
def test_memory_rows(compare, tiny, monkeypatch, capsys, tmp_path):
    def measure(library, mode, variant=""):
        if mode == "backward":
            raise UsageError("this system does not tell")
        wanted = {"": 200 << 20, "channels last": 400 << 20}
        return MODES[mode] if library == "numgrad" else {"peak": wanted[variant]}

    monkeypatch.setattr(high_water, "measure", measure)
    file = tmp_path / "rows.json"
    argv = ["bench", "speed", "--threads", "1", "--only", "memory", "--json", str(file)]
    assert main([*argv, *compare]) == 0
    out, err = capsys.readouterr()
    assert max(map(len, out.splitlines())) <= 100
    assert "this system does not tell" in err
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 3 and rows[0]["share"] == (0.5 if compare else None)
    theirs, ratios = ("200 MiB", "1.50") if compare else ("-", "-")
    assert re.search(
        rf"^taped-forward +{'> ' * bool(compare)}300 MiB +{theirs} +{ratios} ", out, re.M
    )
    assert re.search(r"^derived-weights +> 90 MiB .*2\.00  <= 1\.70 of the model$", out, re.M)
    assert re.search(r"^volatile-forward +100 MiB .*<= 212 MiB$", out, re.M)


def test_peaks():
    """Kernels run on any share of the threads; how fast is nothing that a test can say."""
    found = peaks.multiply_adds(1)
    assert found[0] > 0 and found[1] > 0


def test_busy_by_waiting():
    assert peaks.busy(PEAKS, 0.0) == "" == peaks.busy(PEAKS, None)
    waiting = {"1": {**PEAKS["1"], "wait": 1.5}}
    assert "waited 50% of its time" in peaks.busy(waiting, 0.0)
