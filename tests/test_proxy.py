"""The proxy of the fault tests does what it says."""

from __future__ import annotations

import http.server
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from ckptstore.testing.proxy import Proxy

BODY = bytes(range(256)) * 4096


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_):
        """Clients that go away are what this is about."""


class Echo(http.server.BaseHTTPRequestHandler):
    seen: list[str]

    def do_GET(self):
        self.seen.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Echo.seen = []
    with Server(("127.0.0.1", 0), Echo) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield serving.server_address[1]
        serving.shutdown()
        thread.join()


def get(proxy, path="/", seconds=5.0):
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.port}{path}", timeout=seconds) as reply:
        return reply.read()


def test_it_forwards(server):
    with Proxy(server) as proxy:
        assert [get(proxy), get(proxy, "/x")] == [BODY, BODY]
        assert proxy.connections == 2
    assert Echo.seen == ["/", "/x"]


def test_it_delays(server):
    with Proxy(server, latency=0.2) as proxy:
        begun = time.monotonic()
        assert get(proxy) == BODY
        assert 0.2 <= time.monotonic() - begun < 2


def test_it_answers_instead(server):
    with Proxy(server) as proxy:
        proxy.answer = lambda data: b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n" if b"/busy" in data else None
        with pytest.raises(urllib.error.HTTPError, match="503") as caught:
            get(proxy, "/busy")
        caught.value.close()
        assert get(proxy) == BODY
    assert Echo.seen == ["/"]


def test_it_loses_a_reply(server):
    with Proxy(server) as proxy:
        proxy.lose_reply_to = lambda data: b"/lost" in data
        with pytest.raises(ConnectionResetError):
            get(proxy, "/lost")
        assert get(proxy, "/lost") == BODY
    assert Echo.seen == ["/lost", "/lost"]


def test_it_holds_and_goes_on(server):
    with Proxy(server) as proxy:
        proxy.held = True
        with pytest.raises(TimeoutError):
            get(proxy, seconds=0.2)
        assert Echo.seen == []
        proxy.held = False
        assert get(proxy) == BODY


def test_it_resets(server):
    with Proxy(server) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        time.sleep(0.1)
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
