"""``numgrad bench speed`` with the real peers, on a few small cases."""

import json
import pathlib

from numgrad.cli import main

PARTS = ("matmul/1x1000x512", "conv-d[xw]-b1/256x14-512x1x1-s2", "infer/resnet18-b1", "optim/adam")


def test_peers(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "rows.json"
    argv = ["bench", "speed", "--compare", "torch,onnxruntime", "--threads", "1"]
    argv += ["--json", str(file)]
    for pattern in PARTS:
        argv += ["--only", pattern]
    assert main(argv) == 0
    rows = json.loads(file.read_text())["rows"]
    assert len(rows) == 5
    for row in rows:
        assert set(row["peers"]) == {"torch", *["onnxruntime"] * (row["group"] == "infer")}
