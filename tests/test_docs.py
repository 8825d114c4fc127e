"""README.md and docs/: examples run; messages, tables and quoted sources are as they stand."""

import doctest
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest

import numgrad as ng
import numgrad.kernels.scalar as s
from numgrad.cli import memory, parser
from numgrad.kernels import store

ROOT = Path(__file__).parents[1]
README, ERRORS, ONE_OP = (
    (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/errors.md", "docs/one-op.md")
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)


def blocks(text, *languages):
    """``(language, body)`` of the fenced blocks, in order."""
    return [(m[1], m[2]) for m in BLOCK.finditer(text) if not languages or m[1] in languages]


def joined(text):
    return " ".join(text.split())


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Examples write to a folder of their own and change no setting for good."""
    monkeypatch.chdir(tmp_path)
    threads = ng.get_num_threads()
    yield
    ng.set_num_threads(threads)


# ----------------------------------------------------------------------------------------- README


@pytest.mark.parametrize("index", range(6))
def test_readme_example(index, capsys):
    ng.manual_seed(0)
    body = blocks(README, "python")[index][1]
    namespace = {"__name__": "example"}
    exec(compile(body, "README.md", "exec"), namespace)
    out = capsys.readouterr().out
    if index == 0:
        assert len([line for line in body.splitlines() if line]) <= 15
        assert float(out.split()[-1]) > 0.95
        assert namespace["out"].volatile and namespace["out"].grad_fn is None
    elif index == 1:
        x = ng.tensor([-1.0, 3.0], dtype=ng.float64, requires_grad=True)
        (g,) = ng.autograd.grad(namespace["squared_relu"](x).sum(), x, create_graph=True)
        (h,) = ng.autograd.grad(g.sum(), x)
        assert (g.tolist(), h.tolist()) == ([0, 6], [0, 2])
    elif index == 3:
        assert "61,706 of 61,706 parameters require a gradient" in out
    elif index == 4:
        scores = ng.randn(4, 100, requires_grad=True)
        with ng.memory.track() as loss_alone:
            namespace["loss"] = ng.nn.functional.cross_entropy(scores, namespace["labels"])
        assert out.startswith(f"{4 * 512 * 4 + loss_alone.saved_bytes} bytes kept")
    elif index == 5:
        assert namespace["state"]["step"] == 7 and os.listdir() == ["training.pth"]
    else:
        # The input, which the caller holds too, and the results of relu and exp: 64 × 500 floats.
        assert out.startswith(f"3 nodes keep {3 * 64 * 500 * 4} bytes; peak ")


def test_readme_has_all_its_examples():
    assert len(blocks(README, "python")) == 6


def test_readme_commands():
    """Commands in the text are ones that the parser, or the Makefile, knows."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = [line for _, body in blocks(README, "sh") for line in body.splitlines()]
    inline = re.findall(r"`((?:numgrad|make) [^`]+)`", README)
    checked = 0
    for line in lines + inline:
        words = line.partition("#")[0].split()
        if words[:1] == ["numgrad"]:
            assert parser().parse_args(words[1:]).run, line
            checked += 1
        elif words[:1] == ["make"]:
            for target in words[1:]:
                assert re.search(rf"^{target}:", makefile, re.M), line
            checked += 1
    assert checked >= 8


def test_readme_table(capsys, monkeypatch):
    """The first table, which depends on no machine, is the one that is printed now."""
    monkeypatch.setattr(memory, "REPEATS", 1)
    monkeypatch.setattr(memory, "SECONDS", 0.0)
    rows = [memory.measure(mode, "resnet18", 8, 224) for mode in memory.MODES]
    memory.show(rows, "resnet18", 8, 224)
    printed = capsys.readouterr().out.split("\n\n")
    (shown,) = [body for _, body in blocks(README, "text") if body.startswith("resnet18")]
    shown = shown.split("\n\n")
    assert shown[0].splitlines() == printed[0].splitlines()
    # Below it how far apart three counts were, which differs by machine.
    figures = re.compile(r"[\d.]+ (B|KiB|MiB) (apart|above)")
    assert figures.sub("", shown[2]).split() == figures.sub("", printed[2]).split()
    # The second differs by machine, threads and load; not in its first column and its heads.
    assert len(shown[1].splitlines()) == len(printed[1].splitlines())
    for a, b in zip(shown[1].splitlines(), printed[1].splitlines()):
        assert a.split("  ")[0] == b.split("  ")[0]


@pytest.mark.parametrize("page", ["README.md", *sorted(p.name for p in (ROOT / "docs").iterdir())])
def test_links(page):
    path = ROOT / page if page == "README.md" else ROOT / "docs" / page
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


# ----------------------------------------------------------------------------------------- errors


def entries():
    """``(title, blocks)`` of each ### entry of the page."""
    found = []
    for part in re.split(r"^### ", ERRORS, flags=re.M)[1:]:
        title, _, text = part.partition("\n")
        found.append((title, blocks(text)))
    return found


SETUP = blocks(ERRORS, "python")[0][1]
ENTRIES = entries()


def run_python(body, namespace):
    """The message that code ends in, as the page writes it; None if it ends well."""
    try:
        exec(compile(body, "errors.md", "exec"), namespace)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_shell(body, tmp_path):
    """The last line that a script writes to stderr; None if it ends well."""
    python = f'"{sys.executable}"'
    functions = (
        f'set -e; python() {{ {python} "$@"; }}; numgrad() {{ {python} -m numgrad "$@"; }}\n'
    )
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        ["bash", "-c", functions + body],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    return done.stderr.strip().splitlines()[-1] if done.returncode else None


def fits(expected, message):
    pattern = ".*".join(re.escape(part) for part in joined(expected).split("..."))
    return re.fullmatch(pattern, joined(message), re.S) is not None


@pytest.mark.parametrize("title", [title for title, _ in ENTRIES])
def test_error(title, tmp_path):
    ((bad, text, good),) = [found for name, found in ENTRIES if name == title]
    assert text[0] == "text" and bad[0] == good[0] in ("python", "sh")
    namespace = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if bad[0] == "python":
            exec(SETUP, namespace)
            message, after = run_python(bad[1], namespace), run_python(good[1], namespace)
        else:
            message, after = run_shell(bad[1], tmp_path), run_shell(good[1], tmp_path)
    assert message is not None, "the example raises nothing"
    assert fits(text[1], message), f"{message} (tools/errors_page.py puts it into the page)"
    assert after is None, "the way out fails"


def test_error_titles_differ():
    titles = [title for title, _ in ENTRIES]
    assert len(titles) == len(set(titles)) > 60


def test_errors_page_names_every_class():
    """Each exception and warning class that numgrad defines has its row."""
    defined = set()
    for path in (ROOT / "numgrad").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        defined |= set(re.findall(r"^class (\w+(?:Error|Warning))\b", source, re.M))
    defined -= {"UsageError"}  # never leaves the command line
    assert {"GradError", "CheckpointError"} <= defined
    rows = set(re.findall(r"^\| `(\w+)`", ERRORS, re.M))
    assert defined <= rows


@pytest.mark.parametrize("row", re.findall(r"^\| `(\w+)` \| (`.+?) \|", ERRORS, re.M))
def test_errors_page_bases(row):
    from numgrad.checkpoint import CheckpointError
    from numgrad.data.pictures import PictureError
    from numgrad.graph.errors import DeviceError, DtypeError, GradError, RangeError, ShapeError
    from numgrad.kernels.cuda.runtime import NoDeviceError
    from numgrad.kernels.store import StoreWarning
    from numgrad.models import DownloadError
    from numgrad.nn import StateDictError

    known = (
        CheckpointError,
        DeviceError,
        DownloadError,
        DtypeError,
        GradError,
        NoDeviceError,
        NotImplementedError,
        PictureError,
        RangeError,
        ShapeError,
        StateDictError,
        StoreWarning,
    )
    (cls,) = [c for c in known if c.__name__ == row[0]]
    assert {base.__name__ for base in cls.__bases__} == set(re.findall(r"`(\w+)`", row[1]))


def test_planted_wrong_message():
    assert fits("A: b ... c", "A: b\n  and\nc") and fits("A: (b)", "A: (b)")
    assert not fits("A: b", "A: b c") and not fits("A: b", "B: b")
    assert run_python("1 / 0", {}) == "ZeroDivisionError: division by zero"
    assert run_python("1", {}) is None


# ----------------------------------------------------------------------------------------- one op


def marked(kind):
    """``(marker's argument, chunks)`` of the blocks of one-op.md below a marker of a kind."""
    found = re.findall(rf"^<!-- {kind}:? (.+?) -->\n```python\n(.*?)^```$", ONE_OP, re.M | re.S)
    return [(what, [c.strip("\n") for c in body.split("…\n")]) for what, body in found]


def in_order(chunks, text):
    """The first chunk that does not follow the others in ``text``; None if all do."""
    at = 0
    for chunk in chunks:
        place = text.find(chunk, at)
        if place < 0:
            return chunk
        at = place + len(chunk)
    return None


def test_one_op_quotes_sources():
    quoted = marked("in")
    assert len(quoted) >= 5
    for file, chunks in quoted:
        text = (ROOT / file).read_text(encoding="utf-8")
        dedented = textwrap.dedent(text)
        missing = in_order([textwrap.indent(c, "") for c in chunks], dedented)
        assert missing is None, f"{file} has not:\n{missing}"


def test_one_op_quotes_kernels(monkeypatch):
    texts = {}
    generated = store.generated

    def keep(text, signature):
        texts[text.splitlines()[0].strip('"')] = text
        return generated(text, signature)

    monkeypatch.setattr(store, "generated", keep)

    @ng.elementwise(dx=ng.sigmoid.rules[0].function, dtype="floating")
    def sigmoid(x):
        return s.sigmoid(x)

    x = ng.tensor([0.5, -1.0], requires_grad=True)
    sigmoid(x).sum().backward()
    emitted = marked("emitted")
    assert len(emitted) == 2
    for title, chunks in emitted:
        missing = in_order(chunks, texts[title])
        assert missing is None, f"the kernel of {title} has not:\n{missing}"


@pytest.mark.parametrize("page", ["docs/one-op.md"])
def test_doctests(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    session = "\n".join(body for _, body in blocks(text, "pycon"))
    test = doctest.DocTestParser().get_doctest(session, {}, page, page, 0)
    assert len(test.examples) > 20
    lines = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=lines.append)
    assert runner.failures == 0, "".join(lines)


def test_planted_wrong_quote():
    assert in_order(["a\nb", "d"], "x\na\nb\nc\nd") is None
    assert in_order(["d", "a"], "a\nd") == "a"
    assert in_order(["a\nc"], "a\nb\nc") == "a\nc"
