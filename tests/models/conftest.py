"""A user with an empty home, and the server of the published files."""

import threading

import pytest

from numgrad.models import weights
from numgrad.models.weights import V1, V2
from tests.models.published import NAME, Server, published


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Today's file, the older one and the second weights, of seeds 1, 2 and 3."""
    folder = tmp_path_factory.mktemp("made")
    return [published(folder, seed) for seed in (1, 2, 3)]


@pytest.fixture
def home(tmp_path, monkeypatch, made):
    """A user with an empty home, no network, and a table that has the made files."""
    for name in ("TORCH_HOME", "XDG_CACHE_HOME", "NUMGRAD_WEIGHTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", "http://127.0.0.1:1/models")  # nobody listens there
    kinds = {V1: (made[0][0], made[1][0]), V2: (made[2][0],)}
    monkeypatch.setitem(weights.PUBLISHED, NAME, kinds)
    return tmp_path


@pytest.fixture
def server(home, made, monkeypatch):
    with Server() as server:
        server.data = made[0][1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        host, port = server.server_address
        monkeypatch.setenv("NUMGRAD_WEIGHTS_URL", f"http://{host}:{port}/models/")
        yield server
        server.done.set()
        server.shutdown()
        thread.join()
