"""Sends a notice to one destination, by the standard library; the only module that does so.

No error raised here holds an address.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess  # noqa: TID251  # a command of the user's that takes notices
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from hpckit.model.failure import signal_name
from hpckit.model.settings import VARIABLE, UserNotice
from hpckit.operations.notices.addresses import build_apprise_sender
from hpckit.planning.notices import (
    Destination,
    Transport,
    WebRequest,
    build_notice_web_request,
    notice_to_json,
)


class DeliveryError(Exception):
    """A destination did not take a notice; the message says why, and not where it is."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: another host has no business with the notice."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return no request."""


def deliver(destination: Destination, notice: UserNotice, environ: Mapping[str, str], limit_s: float) -> None:
    """Send a notice; raises DeliveryError. A slow web server may take longer than the limit."""
    match destination.transport:
        case Transport.command:
            _send_through_command(destination.words, notice, environ, limit_s)
        case Transport.apprise:
            _send_through_apprise(destination, notice)
        case Transport.ntfy | Transport.web_hook:
            _post_web_request(build_notice_web_request(destination, notice), limit_s)


def _post_web_request(request: WebRequest, limit_s: float) -> None:
    asked = urllib.request.Request(  # noqa: S310  # its scheme is http or https
        request.url, data=request.body, headers=dict(request.headers), method="POST"
    )
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        opener.open(asked, timeout=limit_s).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise DeliveryError(f"the server answered {error.code}") from None
    except urllib.error.URLError as error:
        raise DeliveryError(_describe_delivery_error(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DeliveryError(_describe_delivery_error(error)) from None


def _describe_delivery_error(error: object) -> str:
    """Return what went wrong, in the system's words alone: others may quote an address."""
    text = error.strerror if isinstance(error, OSError) else None
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return text or type(error).__name__


def _send_through_command(
    words: tuple[str, ...], notice: UserNotice, environ: Mapping[str, str], limit_s: float
) -> None:
    variables = {name: value for name, value in environ.items() if name != VARIABLE}
    try:
        process = subprocess.Popen(
            words,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,  # but in our session: others are of orphans, which a supervisor ends
        )
    except (OSError, ValueError) as error:
        raise DeliveryError(f"the command cannot be started: {_describe_delivery_error(error)}") from None
    try:
        process.communicate(json.dumps(notice_to_json(notice)).encode() + b"\n", timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise DeliveryError("the command did not end in time") from None
    finally:
        # Nothing that it started may outlive it: it might hold the run's job.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode < 0:
        raise DeliveryError(f"the command was ended by {signal_name(-process.returncode)}")
    if process.returncode:
        raise DeliveryError(f"the command ended with {process.returncode}")


def _send_through_apprise(destination: Destination, notice: UserNotice) -> None:
    try:
        sent = build_apprise_sender(destination).notify(title=notice.title, body=notice.text)
    except Exception as error:  # noqa: BLE001  # a library of plugins
        raise DeliveryError(f"apprise failed: {type(error).__name__}") from None
    if not sent:
        raise DeliveryError("apprise could not send it")
