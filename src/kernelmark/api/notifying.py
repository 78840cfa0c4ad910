"""Send messages: to a webhook that accepts Slack's JSON, and as mail by sendmail."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from email.message import EmailMessage

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.reason import Reason
from kernelmark.host.processes import last_line, run_child

_TIMEOUT_S = 30.0
_TRIES = 3
_MOST_LETTERS = 3000  # Slack truncates longer text blocks


class NotSent(KernelmarkError):
    """A message that could not be sent."""


def post_webhook(url: str, text: str, *, wait: Callable[[float], None] = time.sleep) -> None:
    """POST `{"text": …}`, which Slack, Mattermost, Discord (/slack) and Teams workflows take."""
    if not url.startswith(("https://", "http://")):
        raise NotSent(Reason("webhook-address"), hint="check it")
    shown = text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 2]} …"
    request = urllib.request.Request(
        url,
        data=json.dumps({"text": shown}).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    for attempt in range(1, _TRIES + 1):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            failed = f"status {error.code}"
            if error.code < 500:  # another attempt would fail too
                break
        except (OSError, ValueError) as error:
            failed = str(getattr(error, "reason", error))
        if attempt < _TRIES:
            wait(2.0**attempt)
    # The address is a secret: anyone who knows it can post.
    raise NotSent(Reason("webhook-failed", error=failed), hint="check its address")


def send_mail(
    program: str, sender: str, recipients: Sequence[str], subject: str, text: str
) -> None:
    """Hand a message to sendmail, which queues it."""
    message = EmailMessage()
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Subject"] = " ".join(subject.split())[:200]
    message.set_content(text)
    try:
        done = run_child([program, "-t", "-i"], input=bytes(message), timeout_s=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotSent(
            Reason(
                "mail-not-started",
                program=program,
                error=getattr(error, "strerror", None) or str(error),
            ),
            hint="notify.sendmail names another program",
        ) from None
    if done.returncode:
        why = last_line(done.stderr) or f"code {done.returncode}"
        raise NotSent(Reason("program-failed", program=program, error=why))
