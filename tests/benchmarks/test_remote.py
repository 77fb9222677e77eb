import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = ["save all-new", "save unchanged", "load whole", "read rows"]


@pytest.mark.slow
def test_a_small_run_measures_every_row(tmp_path, run):
    files = [f"--json={tmp_path}/all.json", f"--markdown={tmp_path}/all.md"]
    shown = run("remote", "--mib=32", "--runs=1", "--latency=0.005", *files)
    found = json.loads((tmp_path / "all.json").read_text())
    samples = found["samples"]
    for row in ROWS:
        assert row in shown
        assert samples[row].keys() == {"ckptstore", "DCP", "torch.save"}
        assert min(count for counts in samples[f"{row}: requests"].values() for count in counts) >= 1
    tools = dict.fromkeys(["ckptstore", "DCP", "torch.save"], True)
    assert found["correct"] == {"load whole": tools, "read rows": tools, "save unchanged": tools}
    assert samples["limit"].keys() == {"raw put", "raw get"}
    assert samples["save unchanged: objects"]["ckptstore"] == [1]
    assert samples["save unchanged: MB stored"]["ckptstore"][0] < 0.1 < samples["save unchanged: MB stored"]["DCP"][0]
    assert samples["read rows: requests"]["ckptstore"][0] <= 2
    assert len(found["figures"]) == 6
    assert len({line.count("|") for line in (tmp_path / "all.md").read_text().splitlines()}) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"all.json", "all.md"}


class Silent(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(204)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_):
        pass


def test_requests_from_far_away_are_counted(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.far import Far

    with ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        threading.Thread(target=server.serve_forever).start()
        with Far(server.server_port, latency=0.01) as far:
            urllib.request.urlopen(f"http://127.0.0.1:{far.port}/a").close()
            urllib.request.urlopen(f"http://127.0.0.1:{far.port}/b", data=bytes(1 << 20)).close()
            assert far.requests() == 2
            assert far.requests() == 0
        server.shutdown()
