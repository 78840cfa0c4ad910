"""Messages: what is posted and mailed, and what happens when nobody takes them."""

from __future__ import annotations

import http.server
import json
import threading

import pytest

from kernelmark.api.nightly import NotSent, post_webhook, send_mail
from kernelmark_dev.raising import raises_code


@pytest.fixture
def server():
    """A web server that answers with the statuses it is given, and keeps what it got."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.got.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(self.statuses.pop(0) if self.statuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    Handler.statuses, Handler.got = [], []
    made = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    Handler.url = f"http://127.0.0.1:{made.server_port}/hook"
    yield Handler
    made.shutdown()
    made.server_close()
    thread.join()


def test_a_webhook_gets_the_text_as_slack_wants_it(server):
    post_webhook(server.url, "*night*: 1 of 3 kernels got slower")
    assert server.got == [("application/json", {"text": "*night*: 1 of 3 kernels got slower"})]


def test_a_long_text_is_cut(server):
    post_webhook(server.url, "x" * 10_000)
    assert len(server.got[0][1]["text"]) == 3000


def test_a_server_in_trouble_is_asked_again_and_a_refusal_is_not(server):
    waits: list[float] = []
    server.statuses = [503, 502]
    post_webhook(server.url, "text", wait=waits.append)
    assert len(server.got) == 3
    assert len(waits) == 2
    server.statuses = [404]
    with raises_code(NotSent, "webhook-failed", error="status 404") as caught:
        post_webhook(server.url, "text", wait=waits.append)
    assert len(server.got) == 4
    assert server.url not in str(caught.value), "the address is a secret"


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x", "nonsense", "file:///etc/passwd"])
def test_what_cannot_be_reached(url):
    with pytest.raises(NotSent):
        post_webhook(url, "text", wait=lambda seconds: None)


def test_mail_goes_to_sendmail(tmp_path):
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    send_mail(str(program), "a@example.com", ["b@example.com", "c@x.org"], "slower\nBcc: x", "µs")
    assert (tmp_path / "words").read_text() == "-t -i\n"
    head = (tmp_path / "mail").read_text()
    assert "To: b@example.com, c@x.org" in head
    assert "Subject: slower Bcc: x" in head, "no header can be slipped in"


def test_mail_that_cannot_be_sent(tmp_path):
    with raises_code(NotSent, "mail-not-started", program=str(tmp_path / "none")):
        send_mail(str(tmp_path / "none"), "a@x.org", ["b@x.org"], "s", "t")
    program = tmp_path / "sendmail"
    program.write_text("#!/bin/sh\necho no queue >&2; exit 3\n")
    program.chmod(0o755)
    with raises_code(NotSent, "program-failed", program=str(program), error="no queue"):
        send_mail(str(program), "a@x.org", ["b@x.org"], "s", "t")
