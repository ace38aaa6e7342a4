"""Evidence as bytes, so that it can be kept with a run: a compressed .npz file without pickles.

Likelihoods are kept as logarithms in single precision, in which a model gives them, so nothing is lost.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from mecheval.intervene.gather import Evidence
from mecheval.intervene.mechanism import Cell, Depths
from mecheval.sites import Kind, Site
from mecheval.types import Corruption, Direction, Meaning

Floats = NDArray[np.float64]
MOST_BYTES = 100_000_000
"""Largest size of what is unpacked; evidence on 320 documents has about 100,000 bytes."""
NO_DISTANCE = -(2**31)
"""Stands for a distance where there is none."""


class _Depths(BaseModel):
    model_config = ConfigDict(extra="forbid")

    boundaries: tuple[str, ...]
    inside: tuple[tuple[str, ...], ...]
    layers: tuple[str, ...]
    ends: tuple[str, ...]


class _Meaning(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str
    value: str | None
    query: str
    places: tuple[str, ...]


class _About(BaseModel):
    """Everything about evidence that is no array."""

    model_config = ConfigDict(extra="forbid")

    cells: tuple[tuple[str, str, Corruption, Direction], ...]
    sites: dict[str, tuple[int | None, str, Kind]]
    corruptions: tuple[str, ...]
    given: int
    depths: _Depths
    inner: str | None
    meaning: _Meaning
    ahead: int | None
    searched: int | None


def packed(evidence: Evidence) -> bytes:
    """The same evidence gives the same bytes."""
    about = {
        "cells": evidence.cells,
        "sites": {name: (site.block, site.part, site.kind) for name, site in evidence.sites.items()},
        "corruptions": tuple(evidence.corrupted),
        **{name: getattr(evidence, name) for name in ("given", "inner", "ahead", "searched")},
        "depths": asdict(evidence.depths),
        "meaning": asdict(evidence.meaning),
    }
    found, hits, guess, lost = evidence.apart
    none = np.full(evidence.n, NO_DISTANCE)
    file = io.BytesIO()
    np.savez_compressed(
        file,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        original=_logs(evidence.original),
        corrupted=_logs(np.stack(list(evidence.corrupted.values()))),
        edited=_logs(evidence.edited),
        chance=evidence.chance,
        index=evidence.index,
        distance=none if evidence.distance is None else evidence.distance,
        apart=_logs(np.stack([found, lost])),
        apart_hits=hits.astype(np.uint8),
        apart_chance=guess,
    )
    return file.getvalue()


def unpacked(content: bytes) -> Evidence:
    """The evidence in these bytes, or a ValueError if they are something else."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            parts: dict[str, Any] = dict(file)
        about = _About.model_validate_json(parts["about"].tobytes())
        original, corrupted, edited = (_likelihoods(parts[name]) for name in ("original", "corrupted", "edited"))
        (found, lost), hits, guess = _likelihoods(parts["apart"]), parts["apart_hits"], parts["apart_chance"]
        apart = np.stack([found, hits.astype(float), guess.astype(float), lost])
        shapes = (corrupted.shape, edited.shape, parts["chance"].shape, parts["index"].shape, parts["distance"].shape)
    except (OSError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(str(error)) from None
    n = len(original)
    if shapes != ((len(about.corruptions), n), (len(about.cells), n), (n,), (n,), (n,)):
        raise ValueError("its arrays do not fit together")
    distance = parts["distance"].astype(np.int64)
    return Evidence(
        tuple(Cell(*cell) for cell in about.cells),
        {name: Site(*site, name) for name, site in about.sites.items()},
        original,
        dict(zip(about.corruptions, corrupted, strict=True)),
        edited,
        parts["chance"].astype(float),
        parts["index"].astype(np.int64),
        about.given,
        Depths(**dict(about.depths)),
        about.inner,
        apart,
        Meaning(**dict(about.meaning)),
        None if (distance == NO_DISTANCE).any() else distance,
        about.ahead,
        about.searched,
    )


def _logs(likelihoods: Floats) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.log(likelihoods).astype(np.float32)


def _likelihoods(logs: NDArray[Any]) -> Floats:
    likelihoods: Floats = np.exp(logs.astype(np.float64))
    return likelihoods
