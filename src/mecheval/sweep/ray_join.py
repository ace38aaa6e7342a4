"""Joining a Ray cluster, or starting a private Ray that only this machine and this user can reach.

Ray executes whatever it is sent. A cluster should therefore require a token (`RAY_AUTH_MODE=token`, Ray 2.52 and
later). A Ray that is started here gets a new token and listens only on the loopback interface.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from mecheval.errors import UserError
from mecheval.sweep.local import python_path

CONNECT_SECONDS = 5.0
"""Seconds to wait for an answer from the head of a cluster."""
HEAD_SECONDS, HEAD_TRIES = 1.0, 3
"""Seconds between two checks that the head still listens, and number of them that fail before it counts as gone."""
ADDRESS = re.compile(r"(?P<host>[^/\s]+):(?P<port>\d+)")
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""If 0, Ray listens on the loopback interface, as it does by default on systems where it does not support clusters."""
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray sends no usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # suppresses a warning about a future change
}
"""Environment variables that keep Ray quiet."""


class HeadGone(UserError):
    """The head of the cluster has died, without which nothing of the cluster works."""


class Connection:
    """The connection of this process to the cluster at `address` (see `RayEngine`)."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        self._joined = False
        self._before: dict[str, str | None] = {}

    def join(self) -> None:
        """Connect, unless this process is already connected. Of Ray's messages, only those about safety are shown."""
        ray = import_ray()
        if ray.is_initialized():
            return
        _check_address(self.address)
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("ray._private.authentication").setLevel(logging.WARNING)
        own = self.address is None
        if own:
            private = {MODE: "token", TOKEN: secrets.token_hex(32), TOKEN_PATH: None, LOOPBACK: "0"}
            self._before = set_variables({**private, "PYTHONPATH": python_path() or None})
        try:
            with _handlers_kept(), _loopback_if(own):
                ray.init(
                    "local" if own else self.address, include_dashboard=False if own else None, log_to_driver=False,
                    logging_level=logging.ERROR, job_config=_job_config(),
                )  # fmt: skip
        except Exception as error:
            self._forget()
            where = "start Ray here" if own else f"join the Ray cluster at {self.address}"
            hint = "" if own else f" (if it asks for a token: {MODE}=token, and the token in {TOKEN})"
            raise UserError(f"cannot {where}: {last_line(error)}{hint}") from None
        except BaseException:
            self._forget()
            raise
        self._joined = True
        self._head = ray.get_runtime_context().gcs_address
        self._failed, self._next = 0, 0.0
        self._guard = _guard() if own else None

    def leave(self) -> None:
        """Disconnect, if `join` has connected; without a head, this cannot be done before the process ends."""
        if self._joined:
            self._joined = False
            if self._failed < HEAD_TRIES:
                with _handlers_kept():
                    import_ray().shutdown()
            else:
                atexit.register(_end_without_ray)
            if self._guard is not None:
                self._guard.communicate()
            self._forget()

    def check_head(self) -> None:
        """Raise an error if the head of the cluster is gone; this asks it only every `HEAD_SECONDS`."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + HEAD_SECONDS
        self._failed = 0 if answers(self._head) else self._failed + 1
        if self._failed >= HEAD_TRIES:
            raise HeadGone(
                f"the head of the Ray cluster at {self._head} is gone; finished runs and checkpoints are kept. "
                "Start the cluster and the same command again."
            )

    def warning(self) -> str:
        """A one-line warning if the cluster is unsafe; empty if it requires a token."""
        if self.address is None or _asks_for_token(import_ray().get_runtime_context().gcs_address):
            return ""
        risk = "anyone who can reach it over the network can execute programs on all of its machines"
        return f"the Ray cluster at {self.address} requires no token: {risk}; start it with {MODE}=token."

    def _forget(self) -> None:
        """Restore the environment, because another cluster has another token."""
        if self._before:
            set_variables(self._before)
            self._before = {}


def import_ray() -> ModuleType:
    """Ray, or an error that says how to install it."""
    try:
        import ray
        import ray.exceptions
    except ImportError:
        raise UserError("Ray is not installed; `pip install 'mecheval[ray]'`.") from None
    return ray


def last_line(error: BaseException) -> str:
    """The last line of an error, which for an error in a task says what went wrong."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].strip()


def _end_without_ray() -> None:
    """End this process, which has failed, before Ray's own clean-up waits for a head that is gone."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(2)


def answers(address: str) -> bool:
    """Whether something listens at `host:port`."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _guard() -> subprocess.Popen[bytes]:
    """A program that ends what is left of a private Ray as soon as this process is gone, even by a kill."""
    from ray._private import worker

    own: Any = worker._global_node  # that this process has just started
    program = Path(__file__).with_name("ray_guard.py")
    command = [sys.executable, "-I", "-S", str(program), own.session_name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def _asks_for_token(head: str) -> bool:
    """Whether the head of a cluster refuses requests without a token."""
    try:
        import grpc
    except ImportError:  # then it is only known whether this process sends a token
        return os.environ.get(MODE, "").lower() == "token"
    with grpc.insecure_channel(head) as channel:
        try:
            channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")(b"", timeout=CONNECT_SECONDS)
        except grpc.RpcError:
            return True
    return False


def _job_config() -> Any:
    """A job configuration that keeps the driver's working folder off the import path.

    Ray puts that folder first on the path of all workers unless the job has a working folder of its own, so every node
    would execute a file called torch.py that happens to be there.
    """
    from ray.job_config import JobConfig

    class NoFolder(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            return True

    return NoFolder()


def set_variables(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables (None removes one), make Ray read them, and return their previous values."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    return before


@contextmanager
def _loopback_if(own: bool) -> Iterator[None]:
    """If `own`, make Ray use the loopback address in this context, even if Ray has already read its environment."""
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = before and not own
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def _check_address(address: str | None) -> None:
    """Check that the head answers: if it does not, Ray waits for minutes and then ends the process."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in (None, "auto"):
        return
    found = ADDRESS.fullmatch(address)
    if not found:
        raise UserError(f"the address of a Ray cluster is auto or host:port, like 10.0.0.5:6379 (got {address!r}).")
    try:
        socket.create_connection((found["host"], int(found["port"])), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        why = f"{error}; `ray start --head` on that machine starts one."
        raise UserError(f"cannot join the Ray cluster at {address}: {why}") from None


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM afterwards, because Ray installs its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
