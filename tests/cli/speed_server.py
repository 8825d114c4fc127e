"""A server for the tests of ``bench speed``: as the real one, with a case of its own.

As ``torch`` it is numgrad under another name; ``liar`` answers with other numbers, ``dead`` ends
before it answers. Usage: ``python speed_server.py LIBRARY THREADS [liar|dead]``.
"""

import sys

from numgrad.cli.speed import cases, server

TINY = cases.Case(
    "tiny",
    "add",
    lambda kit: (lambda x, y: lambda: x + y)(kit.tensor(3, 4), kit.tensor(3, 4)),
    flops=12,
    asked=1.25,
    variants=cases.LAYOUTS,
)
WORDY = cases.Case("tiny", "wordy", TINY.build, nbytes=12 * 12)


class FakeServer(server.Server):
    def __init__(self, library, threads, manner=""):
        super().__init__("numgrad", threads)
        self.manner = manner if library != "numgrad" else ""

    def build(self, case, variant):
        if self.manner == "dead":
            sys.exit("out of order")
        print("what a library prints is no answer")
        call = super().build(case, "")
        return (lambda: call() + 1) if self.manner == "liar" else call


def register():
    """Put the tests' cases into the table."""
    cases.CASES.update({case.full_name: case for case in (TINY, WORDY)})


if __name__ == "__main__":
    register()
    made = FakeServer
    server.Server = lambda library, threads: made(library, threads, *sys.argv[3:])
    server.main()
