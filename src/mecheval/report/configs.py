"""Configs of many runs, small: what runs of a kind share is written once, and of each run what differs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mecheval.store.bounds import name_of

Flat = dict[str, Any]
"""Path -> value: model.d_model -> 64."""


def flat(config: Mapping[str, Any]) -> Flat:
    """A config without its nesting; what is deeper than two levels stays as it is."""
    paths: Flat = {}
    for part, value in config.items():
        if isinstance(value, Mapping):
            paths |= {f"{part}.{name}": each for name, each in value.items()}
        else:
            paths[str(part)] = value
    return paths


def packed(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`bases`: whole configs, flat, of each kind of runs; `runs`: for each the number of its base, and what differs.

    Runs are of a kind if they have the same task, mixer and paths, so a base and the differences say everything.
    """
    flats = [flat(config) for config in configs]
    kinds = [(_key(each.get("task.name")), _key(each.get("mixer.name")), *each) for each in flats]
    usual = _usual(kinds, flats)
    numbers = {kind: number for number, kind in enumerate(usual)}
    runs = [[numbers[kind], _apart(each, usual[kind])] for kind, each in zip(kinds, flats, strict=True)]
    return {"bases": list(usual.values()), "runs": runs}


def task_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each run's task, with the options in which it differs from most runs of that name: atr · query sibling."""
    own = [_options(config, "task") for config in configs]
    return _told([name_of(str(options.pop("name", None))) for options in own], own, own_kind=[()] * len(own))


def mixer_names(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each run's mixer, with what sets it apart from most runs of it on that task: mamba · d_conv 2.

    Its position embeddings are among that: they change what it can do.
    """
    own = [_options(config, "mixer") for config in configs]
    names = [name_of(str(options.pop("name", None))) for options in own]
    with_positions = [
        options | {"positions": _options(config, "model").get("positions")}
        for options, config in zip(own, configs, strict=True)
    ]
    return _told(names, with_positions, own_kind=[(_options(config, "task").get("name"),) for config in configs])


def _told(names: Sequence[str], own: Sequence[Flat], own_kind: Sequence[tuple[Hashable, ...]]) -> list[str]:
    kinds = [(name, *kind) for name, kind in zip(names, own_kind, strict=True)]
    usual = _usual(kinds, own)
    told = []
    for name, kind, options in zip(names, kinds, own, strict=True):
        apart = [f"{option} {_said(value)}" for option, value in _apart(options, usual[kind]).items()]
        told.append(name_of(" · ".join([name, *apart])) if apart else name)
    return told


def _options(config: Mapping[str, Any], part: str) -> Flat:
    found = config.get(part)
    return dict(found) if isinstance(found, Mapping) else {}


def _usual(kinds: Sequence[tuple[Hashable, ...]], flats: Sequence[Flat]) -> dict[tuple[Hashable, ...], Flat]:
    """For each kind the commonest value of every path; of those that tie, the first."""
    groups: dict[tuple[Hashable, ...], list[Flat]] = defaultdict(list)
    for kind, each in zip(kinds, flats, strict=True):
        groups[kind].append(each)
    usual = {}
    for kind, group in groups.items():
        paths = dict.fromkeys(path for each in group for path in each)
        usual[kind] = {path: _commonest([each[path] for each in group if path in each]) for path in paths}
    return usual


def _commonest(values: Sequence[Any]) -> Any:
    keys = [_key(value) for value in values]
    return values[keys.index(Counter(keys).most_common(1)[0][0])]


def _apart(own: Flat, usual: Flat) -> Flat:
    return {path: value for path, value in own.items() if _key(value) != _key(usual.get(path))}


def _key(value: Any) -> Hashable:
    """What tells values apart: 1 is neither 1.0 nor true."""
    return (type(value), value) if isinstance(value, Hashable) else json.dumps(value, sort_keys=True)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
