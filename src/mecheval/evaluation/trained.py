"""Evaluates a model that was trained elsewhere: any torch module from tokens to logits, or a checkpoint on disk.

Checkpoints are those of Hugging Face transformers. Nothing is fetched, and no pickle is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mecheval.analysis import judged_on, measure, score
from mecheval.config import RunConfig
from mecheval.errors import UserError, in_one_line, said
from mecheval.evaluation.layers import check_sites, sites_of
from mecheval.evaluation.probe import check_each_alone, is_close, modes_kept, tolerance
from mecheval.evaluation.result import COLUMNS, Evaluation, summarised, write_page
from mecheval.intervene.answering import Answering
from mecheval.intervene.effects import BUDGET_MB, document_slices
from mecheval.model import LM
from mecheval.report import check_page
from mecheval.store import DEFAULT_STORE, Store
from mecheval.studies import STUDIES, best_rows, study_table
from mecheval.studies.scales import MIXERS, at_block_1
from mecheval.sweep import Point
from mecheval.sweep.driver import rows_of
from mecheval.tasks import TASKS, Task, build_task

if TYPE_CHECKING:
    import pandas as pd

FEW = 5
"""Number of documents that the checks use."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
"""Files that could run code when they are loaded."""


def evaluate_model(
    model: nn.Module | str | Path, task: str | Task = "ar", *, layers: Sequence[str] | None = None,
    mixers: Sequence[str] = (), sites: Sequence[str] | None = None, n: int = 320, split: str = "test", seed: int = 0,
    name: str | None = None, compare: bool = True, store: str | Path = DEFAULT_STORE, report: str | Path | None = None,
) -> Evaluation:  # fmt: skip
    """Intervene on a trained model without training it further. See `evaluate`."""
    written = None if report is None else check_page(report)
    made = task
    if isinstance(model, str | Path):
        name = Path(model).name if name is None else name
        made = checkpoint_task(model, task) if isinstance(task, str) else task
        model = load_checkpoint(model)
    if isinstance(made, str):
        made = build_task(made)
    name = type(model).__name__ if name is None else name
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    clean = made.sample(n, split, seed).to(device)
    judged, corrupted = (batch.to(device) for batch in judged_on(made, n, split, seed))
    answering = model if isinstance(model, LM) else Answering(model)
    with modes_kept(model):
        _check(name, answering, made, clean.tokens[:FEW])
        places = sites_of(answering, layers, mixers, sites, clean.tokens[:FEW])
        width = check_sites(answering, clean.tokens[:FEW], places)
        slices = document_slices(answering, clean, BUDGET_MB)
        scores = score(answering, [clean[rows].questions() for rows in slices])
        measured = measure(answering, judged, corrupted, places.every, places.depths)
    effects, found = measured.effects, measured.verdict
    restored = effects[effects["site"] == places.middle].set_index("role")["restored"]
    row = {"mixer": name, "d": width, "accuracy": scores.accuracy, "likelihood": scores.likelihood}
    named = {reading.name: reading.role for reading in at_block_1(made.meaning)}
    row |= {name: float(restored.get(role, float("nan"))) for name, role in named.items()}
    row |= {"verdict": found.label, "agreement": found.agreement}
    title = f"{name} on {made.name} ({split}, {n} documents)"
    table = _with_others(row, made, Store(store) if compare else None)
    result = Evaluation(title, name, table, found, effects, (), written)
    if written is not None:
        write_page(result, written)
    return result


def _check(name: str, model: nn.Module, task: Task, tokens: Tensor) -> None:
    """Check a model; every mistake is reported in one line."""
    with torch.no_grad(), _tables_watched(model, tokens, task):
        try:
            logits = model(tokens)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{name} failed on tokens {tuple(tokens.shape)}: {said(error)}") from None
        if logits.ndim != 3 or logits.shape[:2] != tokens.shape:
            wanted = f"({tokens.shape[0]}, {tokens.shape[1]}, V)"
            raise UserError(
                f"{name} gives {tuple(logits.shape)} for tokens {tuple(tokens.shape)}; logits are {wanted}."
            )
        if logits.shape[-1] < task.vocab_size:
            raise UserError(f"{name} has logits of {logits.shape[-1]} tokens; {task.name} has {task.vocab_size}.")
        bad = (~logits.isfinite()).any(-1).nonzero()
        if len(bad) and logits.isnan().any():  # -inf is allowed, because it rules tokens out
            raise UserError(f"{name} gives NaN at position {int(bad[0, 1])} of document {int(bad[0, 0])}.")
        logits = _finite(logits)
        if not is_close(_finite(model(tokens)), logits):
            raise UserError(f"{name} gives two answers to the same tokens in evaluation mode.")
        check_each_alone(name, "answer", lambda some: _finite(model(some)), tokens, logits)
        _check_causal(name, model, task, tokens, logits)


def _check_causal(name: str, model: nn.Module, task: Task, tokens: Tensor, logits: Tensor) -> None:
    length = tokens.shape[1]
    for t in sorted({1, length // 2, length - 1}):
        changed = tokens.clone()
        changed[:, t] = (changed[:, t] + 1) % task.vocab_size
        moved = (_finite(model(changed)) - logits)[:, :t].abs().amax((0, 2))
        s = int(moved.argmax())
        if float(moved[s]) > tolerance(logits):
            raise UserError(
                f"{name} is not causal: changing the token at position {t} changes the logits at position {s} by "
                f"{float(moved[s]):.2g}, so it could read the answer from the future. Give it a causal mask."
            )


def _finite(logits: Tensor) -> Tensor:
    """Logits for comparisons, without tokens that are ruled out by -inf."""
    return logits.nan_to_num(neginf=0.0, posinf=0.0)


@contextmanager
def _tables_watched(model: nn.Module, tokens: Tensor, task: Task) -> Iterator[None]:
    """Raise an error for a token beyond the embedding before it is looked up, which would end the process on a GPU."""

    def watch(path: str) -> Any:
        def look(table: nn.Embedding, arguments: tuple[Any, ...]) -> None:
            index = arguments[0] if arguments else None
            if not isinstance(index, Tensor) or not index.numel() or int(index.max()) < table.num_embeddings:
                return
            rows = f"{path} has {table.num_embeddings} rows"
            if index.shape == tokens.shape and torch.equal(index.to(tokens), tokens):
                raise UserError(f"the vocabulary is too small: {rows}, and {task.name} has {task.vocab_size} tokens.")
            length = f"documents of {task.name} have up to {task.max_tokens} tokens"
            raise UserError(f"{rows} and is asked for row {int(index.max())}; {length}.")

        return look

    tables = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(watch(path)) for path, table in tables]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _with_others(row: dict[str, Any], task: Task, store: Store | None) -> pd.DataFrame:
    """The model's row, then the best run of each built-in mixer that the store has on exactly this task."""
    import pandas as pd

    own = pd.DataFrame([row], columns=list(COLUMNS))
    points = [] if store is None else [Point({}, config) for config in _as_they_are(task, store)]
    if store is None or not points:
        return own
    study = replace(STUDIES["ar"], readings=at_block_1(task.meaning))
    best = best_rows(study_table(study, points, store).frame, ["mixer"]).sort_values("mixer")
    return pd.concat([own, summarised(best)], ignore_index=True)


def _as_they_are(task: Task, store: Store) -> list[RunConfig]:
    """Finished runs on this task with two layers of a built-in mixer and its default options."""
    wanted = {"name": task.name, **task.options.model_dump(mode="json")}
    found = []
    for row in rows_of(store):
        if row["status"] != "done" or row["mixer"] not in MIXERS or row["config"]["task"] != wanted:
            continue
        plain = {**row["config"], "mixer": row["mixer"], "model": {"d_model": row["d_model"]}}
        config = RunConfig.read(plain)
        if config.id == row["run"]:
            found.append(config)
    return found


def load_checkpoint(path: str | Path) -> nn.Module:
    """The language model in a folder that `save_pretrained` wrote, in single precision and evaluation mode."""
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}; a checkpoint is a folder with config.json and *.safetensors.")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is not a Hugging Face checkpoint: it has no config.json.")
    if not any(folder.glob("*.safetensors")):
        pickled = sorted(file.name for kind in PICKLES for file in folder.glob(kind))
        has = f"only pickles ({', '.join(pickled[:3])}), which are not read" if pickled else "no weights"
        raise UserError(f"{folder} has {has}; save the model again with save_pretrained, as safetensors.")
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        raise UserError("checkpoints need transformers: pip install 'mecheval[hf]'.") from None
    with _quietly():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype=torch.float32,
                output_loading_info=True,
            )  # fmt: skip
        except Exception as error:  # libraries raise errors of many kinds
            raise UserError(f"cannot load {folder}: {in_one_line(error)[:300]}") from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(f"{folder} is not a complete language model: it has no weights for {', '.join(missing[:3])}.")
    model.config.use_cache = False  # so that an answer depends only on its document
    loaded: nn.Module = model.eval()
    return loaded


def checkpoint_task(path: str | Path, task: str, options: Mapping[str, Any] | None = None) -> Task:
    """A task by name; a task with an option `tokenizer` uses the tokenizer of the checkpoint."""
    given = dict(options or {})
    if "tokenizer" in TASKS.get(task).Options.model_fields:
        given.setdefault("tokenizer", str(path))
    return build_task(task, **given)


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress progress bars and warnings of transformers while the context lasts."""
    logging: Any = import_module("transformers.utils.logging")
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
