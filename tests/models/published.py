"""Files of weights as they are published, in small, and a server that has them."""

import functools
import hashlib
import http.server
import threading
from pathlib import Path

import numgrad as ng
from numgrad import models

NAME = "squeezenet1_1"
ROOT = Path(__file__).parents[2]


@functools.cache
def state_of(seed, num_classes=1000):
    ng.manual_seed(seed)
    return models.squeezenet1_1(num_classes=num_classes).state_dict()


def published(tmp_path, seed, text=NAME):
    """A file's name and bytes, as a server has them: the state dict of a seed."""
    path = tmp_path / "made.safetensors"
    ng.save(state_of(seed), path)
    data = path.read_bytes()
    return f"{text}-{hashlib.sha256(data).hexdigest()[:8]}.pth", data


def same(model, seed):
    expected = state_of(seed)
    state = model.state_dict()
    assert list(state) == list(expected)
    return all((state[key] == expected[key]).all() for key in state)


def put(folder, file, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(data)
    return folder / file


# ------------------------------------------------------------------------------------- the server


class Server(http.server.ThreadingHTTPServer):
    """Serves one file, in the manner that the test asks for."""

    daemon_threads = True
    block_on_close = False
    data = b""
    manner = "whole"

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests, self.done, self.sent = [], threading.Event(), threading.Event()
        self.together = threading.Barrier(3)

    def handle_error(self, request, client_address):
        pass  # clients that hang up are what is tested


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def head(self, length, status=200, reason=None):
        self.send_response(status, reason)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def do_GET(self):
        self.close_connection = True
        server, data = self.server, self.server.data
        server.requests.append(self.path)
        getattr(self, server.manner)(server, data)

    def whole(self, server, data):
        self.head(len(data))
        self.wfile.write(data)

    def in_chunks(self, server, data):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(data), 1 << 20):
            self.chunk(data[at : at + (1 << 20)])
        self.chunk(b"")

    def together(self, server, data):
        server.together.wait(60)
        self.whole(server, data)

    def missing(self, server, data):
        self.head(9, 404, "Not \x1b[31m Found")
        self.wfile.write(b"not here\n")

    def broken(self, server, data):
        self.head(0, 500)

    def redirected_for_ever(self, server, data):
        self.send_response(302)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def truncated(self, server, data):
        self.head(len(data))
        self.wfile.write(data[: len(data) // 2])

    def truncated_chunks(self, server, data):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(data[: len(data) // 2])

    def half(self, server, data):
        self.head(None)
        self.wfile.write(data[: len(data) // 2])

    def wrong(self, server, data):
        self.head(len(data))
        self.wfile.write(data[:-1] + bytes([data[-1] ^ 1]))

    def a_page(self, server, data):
        self.head(34)
        self.wfile.write(b"<html>Please log in here.</html>\n\n")

    def empty(self, server, data):
        self.head(0)

    def endless(self, server, data):
        self.head(None)
        while not server.done.is_set():
            self.wfile.write(data)

    def enormous(self, server, data):
        self.head(1 << 40)

    def no_http(self, server, data):
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    def silent(self, server, data):
        server.done.wait(60)

    def stuck(self, server, data):
        self.head(len(data))
        self.wfile.write(data[:1000])
        server.sent.set()
        server.done.wait(60)

    def slow(self, server, data):
        self.head(len(data))
        while not server.done.wait(0.02):
            self.wfile.write(b"x")
