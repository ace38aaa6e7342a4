"""The explorer for a GPT-2 on disk: the same page, in a real browser."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from mecheval.errors import UserError
from mecheval.explore.checkpoint import of_checkpoint
from mecheval.explore.server import Server
from mecheval.explore.session import Asked

transformers = pytest.importorskip("transformers", reason="the extra `hf` brings transformers")
TASK: dict[str, Any] = {"pairs": 4, "keys": 12, "values": 12}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with random weights."""
    torch.manual_seed(0)
    path: Path = tmp_path_factory.mktemp("models") / "gpt2"
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_positions=32, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5)
    ).save_pretrained(path)
    return path


def test_a_checkpoint_is_patched_and_edited_in_the_browser(folder: Path, browser: Any) -> None:
    session = of_checkpoint(folder, "ar", TASK, 1, "test")
    start = session.start()
    first, last = "transformer.h.0.input", "transformer.h.1.output"
    given = {"clean": start["clean"], "corrupted": start["corrupted"], "patches": [[last, "query"]]}
    found = session.answer(Asked.read(given))
    assert {row["site"] for row in found["map"]["rows"]} >= {first, last}
    clean, patched = ({symbol: p for symbol, p, _ in found["answers"][name]} for name in ("clean", "patched"))
    assert patched == pytest.approx(clean, abs=1e-5)  # all that the answer is read from
    with Server(session) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        page = browser.new_page()
        try:
            page.goto(server.address)
            page.wait_for_selector("#map button")
            assert page.inner_text("#title") == "gpt2 on ar, document 1 (test)"
            before = page.inner_text("#answers div:nth-child(3)")
            page.click(f'[data-cell="{last}@query"]')
            page.wait_for_selector(f'[data-cell="{last}@query"][aria-pressed="true"]')
            after = page.inner_text("#answers div:nth-child(3)")
            assert after != before
            assert after.splitlines()[1:] == page.inner_text("#answers div:nth-child(1)").splitlines()[1:]
        finally:
            page.close()
            server.shutdown()


def test_a_mamba_on_disk(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.MambaConfig(vocab_size=40, hidden_size=16, state_size=4, num_hidden_layers=2)
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path)
    session = of_checkpoint(tmp_path, "ar", TASK, 0, "test")
    start, last = session.start(), "backbone.layers.1.output"
    given = {"clean": start["clean"], "corrupted": start["corrupted"], "patches": [[last, "query"]]}
    found = session.answer(Asked.read(given))
    assert {"backbone.layers.0.input", "backbone.layers.0.mixer.conv1d.output", last} <= {
        row["site"] for row in found["map"]["rows"]
    }
    clean, patched = ({symbol: p for symbol, p, _ in found["answers"][name]} for name in ("clean", "patched"))
    assert patched == pytest.approx(clean, abs=1e-5)


def test_a_document_that_is_not_there_is_one_line(folder: Path) -> None:
    with pytest.raises(UserError, match="there is no document -1; choose 0 to 9999"):
        of_checkpoint(folder, "ar", TASK, -1, "test")
