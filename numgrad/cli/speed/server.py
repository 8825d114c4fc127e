"""A process with one library and one count of threads, which runs cases when it is told to.

``python -m numgrad.cli.speed.server LIBRARY THREADS`` reads one JSON request a line and answers
each with one line. Between them it waits for input, so that its threads sleep:

======================================== ========================================================
``{"do": "make", "case", "variant"}``    ``{"id"}``: the case is ready to run
``{"do": "check", "id", "file"}``        ``{}``: the result of its first calls is in the .npy file
``{"do": "run", "id", "loops"}``         ``{"seconds"}``: of each call
``{"do": "drop"}``                       ``{}``: all cases are forgotten
======================================== ========================================================

What goes wrong is answered with ``{"error"}``.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import numpy as np

from . import cases
from .kit import Kit


class Server:
    """The cases of one process by number."""

    def __init__(self, library: str, threads: int) -> None:
        self.library, self.threads = library, threads
        self.made: list[tuple[cases.Case, Callable[[], Any]]] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request says."""
        what = request["do"]
        if what == "make":
            case = cases.find(request["case"])
            self.made.append((case, self.build(case, request.get("variant", ""))))
            return {"id": len(self.made) - 1}
        if what == "drop":
            self.made.clear()
            gc.collect()
            return {}
        case, call = self.made[request["id"]]
        if what == "check":
            results = [flat(call()) for _ in range(case.calls)]
            np.save(request["file"], np.concatenate(results))
            return {}
        return {"seconds": timed(call, request["loops"])}

    def build(self, case: cases.Case, variant: str) -> Callable[[], Any]:
        """A function that computes the case, its result realised."""
        if self.library == "onnxruntime":
            from .networks import PICTURE, onnx_forward

            numbers = Kit("numgrad", case.full_name)
            return onnx_forward(numbers.array(case.onnx_batch, 3, PICTURE, PICTURE), self.threads)
        kit = Kit(self.library, case.full_name, variant)
        kit.t.set_num_threads(self.threads)
        call = case.build(kit)
        if self.library != "numgrad":
            return call
        realize = kit.t.realize

        def realised() -> Any:
            out = call()
            if isinstance(out, (tuple, list)):
                realize(*out)
            else:
                realize(out)
            return out

        return realised


def flat(out: Any) -> np.ndarray:
    """The numbers of a result, or of several, in a row."""
    if isinstance(out, (tuple, list)):
        return np.concatenate([flat(one) for one in out])
    if not isinstance(out, np.ndarray):
        out = out.detach().numpy()
    return np.array(out, np.float32, order="C", ndmin=1).ravel()


def timed(call: Callable[[], Any], loops: int) -> list[float]:
    """Seconds of each of so many calls, each result dropped within its time."""
    found = []
    for _ in range(loops):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def serve(server: Server, requests: TextIO, answers: TextIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        try:
            reply = server.answer(json.loads(line))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(reply), file=answers, flush=True)


def main() -> None:
    """Serve on the process's own stdin and stdout, which what a library prints cannot reach."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(Server(sys.argv[1], int(sys.argv[2])), sys.stdin, answers)


if __name__ == "__main__":
    main()
