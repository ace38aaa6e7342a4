"""The explorer: what it computes, whom it refuses, and the page in a real browser."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import mecheval as me
from mecheval.errors import UserError
from mecheval.explore.server import Server, doorway
from mecheval.explore.session import Asked, Session
from mecheval.model.handmade import handmade


@pytest.fixture(scope="module")
def session() -> Session:
    """Induction by hand on one document in which all roles stand apart."""
    task = me.build_task("ar", pairs=4, keys=16, values=16)
    many = task.sample(20, "test")
    row = next(i for i in range(20) if many.roles["next_key"][i] != many.roles["divider"][i])
    clean = many[row : row + 1]
    return Session(handmade("induction", task), task, clean, task.corrupt(clean), "hand-set")


@pytest.fixture(scope="module")
def server(session: Session) -> Iterator[Server]:
    with Server(session) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def asked(session: Session, **changed: Any) -> dict[str, Any]:
    start = session.start()
    return {"clean": start["clean"], "corrupted": start["corrupted"], "patches": [], **changed}


def right(answers: list[tuple[str, float, bool]]) -> tuple[str, float]:
    return next((symbol, p) for symbol, p, is_right in answers if is_right)


def test_patches_and_edits_change_the_answer(session: Session) -> None:
    start = session.start()
    plain = session.answer(Asked.read(asked(session)))
    assert right(plain["answers"]["clean"])[1] > 0.9
    assert right(plain["answers"]["patched"])[1] < 0.1
    assert plain["verdict"].startswith("induction")
    shares = {row["site"]: row["shares"] for row in plain["map"]["rows"]}
    assert shares["blocks.1.input"]["value"] == pytest.approx(1, abs=0.01)
    patched = session.answer(Asked.read(asked(session, patches=[["blocks.1.input", "value"]])))
    assert right(patched["answers"]["patched"])[1] > 0.9
    back = session.answer(Asked.read(asked(session, patches=[["blocks.1.input", "value"]], direction="destroy")))
    assert right(back["answers"]["patched"])[1] < 0.1
    words, [value] = list(start["clean"]), start["roles"]["value"]
    words[value] = next(symbol for symbol in start["symbols"] if symbol.startswith("v") and symbol not in words)
    other = session.answer(Asked.read(asked(session, clean=words)))
    assert right(other["answers"]["clean"])[0] == words[value]
    assert right(other["answers"]["clean"])[1] > 0.9
    assert other["verdict"].startswith("induction")
    without = session.answer(Asked.read(asked(session, corrupted=words)))  # which differs at the value alone
    assert without["verdict"].startswith("none")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "wants lists"),
        ({"clean": ["BOS"]}, "wants lists"),
        ({"clean": ["BOS"], "corrupted": [], "patches": []}, "tokens"),
        ({"clean": ["?"] * 11, "corrupted": ["?"] * 11, "patches": []}, "unknown token"),
        ({"clean": [], "corrupted": [], "patches": [["a"]]}, "pairs of a site and a role"),
        ({"clean": [], "corrupted": [], "patches": [], "direction": "up"}, "Choices: restore, destroy"),
    ],
)
def test_nonsense_is_one_line(session: Session, given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        session.answer(Asked.read(given))


def request(
    server: Server, path: str, headers: dict[str, str] | None = None, body: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request("GET" if body is None else "POST", path, body, headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_only_its_reader_is_answered(server: Server, session: Session) -> None:
    assert server.server_address[0] == "127.0.0.1"
    home = f"/{server.token}/"
    own, body = f"127.0.0.1:{server.server_port}", json.dumps(asked(session))
    assert request(server, home)[0] == 200
    assert request(server, f"{home}answer", body=body)[0] == 200
    assert request(server, f"{home}answer", {"Origin": f"http://{own}"}, body)[0] == 200
    for path in ("/", "/start", "/answer", "/wrong/start", f"/{server.token}x/start"):
        assert request(server, path)[0] == 403
    for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
        status, said = request(server, f"{home}start", {"Host": host})
        assert status == 403
        assert "symbols" not in said
    assert request(server, f"{home}answer", {"Origin": "http://evil.example"}, body)[0] == 403
    assert request(server, f"{home}page.py")[0] == 404
    assert request(server, f"{home}../server.py")[0] == 404
    assert request(server, f"{home}answer", body="{")[0] == 400
    assert request(server, f"{home}answer", body="[" * 100_000)[0] == 400
    assert request(server, f"{home}answer", {"Content-Length": "9" * 12}, "")[0] == 400
    assert json.loads(request(server, f"{home}answer", body="{}")[1])["error"].startswith("the explorer wants")


def test_a_browser_is_not_started_with_the_token(server: Server) -> None:
    with doorway(server.address) as url:
        assert server.token not in url
        page = Path(url.removeprefix("file://"))
        assert f'url={server.address}"' in page.read_text()
        assert page.parent.stat().st_mode & 0o077 == 0
    assert not page.parent.exists()


def test_two_hundred_requests_at_once_are_all_answered(session: Session) -> None:
    with Server(session) as server, ExitStack() as stack:
        asking = [
            stack.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=5))
            for _ in range(200)
        ]  # before one of them is accepted
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        for each in asking:
            each.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert all(each.recv(12) == b"HTTP/1.0 403" for each in asking)
        server.shutdown()


def test_the_first_answer_is_prepared_before_anybody_asks(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[Asked] = []
    monkeypatch.setattr(session, "answer", lambda asked: answered.append(asked) or {})  # type: ignore[func-returns-value]
    with Server(session) as server:
        server.warm.join(timeout=30)
        assert [list(each.clean) for each in answered] == [session.start()["clean"]]


def test_the_page(server: Server, browser: Any) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright for the tests of the page")
    problems: list[str] = []
    requests: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(30_000)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    with doorway(server.address) as url:
        page.goto(url)
        page.wait_for_url(server.address)
    page.wait_for_selector("#map button")
    assert page.inner_text("#verdict").startswith("induction")
    page.click('[data-cell="blocks.1.input@value"]')
    page.wait_for_selector('[data-cell="blocks.1.input@value"][aria-pressed="true"]')
    assert "✓" in page.inner_text("#answers div:nth-child(3) li:nth-child(1)")
    cell = page.locator('#clean input[aria-label*="key"]').first
    cell.fill("<b>nonsense</b>")
    cell.press("Enter")
    sync_api.expect(page.locator("#problem")).to_contain_text("unknown token '<b>", timeout=30_000)
    assert page.locator("#problem b").count() == 0  # it is text
    cell.fill("k1")
    cell.press("Enter")
    sync_api.expect(page.locator("#problem")).to_be_empty(timeout=30_000)
    page.close()
    assert problems == []
    assert all(url.startswith(server.address) or url.endswith("/favicon.ico") for url in requests[1:])
