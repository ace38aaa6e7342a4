"""Runs by their configs: the setting of a run, and names of tasks and mixers that say in what runs differ."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mecheval.store.bounds import name_of

Config = Mapping[str, Any]
SETTING = ("task", "mixer", "model", "seed")
"""Parts of a config that runs share between which the best learning rate is chosen."""


def setting_of(run: str, config: Config) -> str:
    """What a run has in common with those that differ only in their learning rate; a run without config is alone."""
    return json.dumps([config.get(part) for part in SETTING], sort_keys=True) if config else run


def task_names(names: Sequence[str | None], configs: Sequence[Config]) -> list[str]:
    """Each task with the options in which a run differs from most runs of it: atr · query sibling."""
    return _named(names, [()] * len(configs), [options(config, "task") for config in configs])


def mixer_names(names: Sequence[str | None], configs: Sequence[Config], *, all_same: bool = False) -> list[str]:
    """Each mixer with the options in which a run differs from most runs of it on that task: mamba · d_conv 2.

    Position embeddings count as an option, because they change what a mixer can do. With `all_same`, an option is left
    out only where all these runs have the same value.
    """
    own = [options(each, "mixer") | {"positions": options(each, "model").get("positions")} for each in configs]
    return _named(names, [(options(config, "task").get("name"),) for config in configs], own, all_same)


def options(config: Config, part: str) -> dict[str, Any]:
    """A part of a config; empty where a damaged config has none."""
    found = config.get(part)
    return dict(found) if isinstance(found, Mapping) else {}


def usual_values(
    kinds: Sequence[tuple[Hashable, ...]], every: Sequence[Config], *, all_same: bool = False
) -> dict[tuple[Hashable, ...], dict[str, Any]]:
    """For each kind of run, the commonest value of every option, the first of those that tie.

    With `all_same`, only options that all runs of the kind have, with the same value.
    """
    groups: dict[tuple[Hashable, ...], list[Config]] = defaultdict(list)
    for kind, each in zip(kinds, every, strict=True):
        groups[kind].append(each)
    usual: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    for kind, group in groups.items():
        usual[kind] = {}
        for option in dict.fromkeys(option for each in group for option in each):
            values = [each[option] for each in group if option in each]
            counts = Counter(map(_key, values)).most_common()
            if not all_same or counts[0][1] == len(group):
                usual[kind][option] = next(value for value in values if _key(value) == counts[0][0])
    return usual


def apart(own: Config, usual: Config) -> dict[str, Any]:
    """The options whose values are not the usual ones."""
    return {option: value for option, value in own.items() if option not in usual or _key(value) != _key(usual[option])}


def _named(
    names: Sequence[str | None], kinds: Sequence[tuple[Hashable, ...]], own: Sequence[Config], all_same: bool = False
) -> list[str]:
    kinds = [(name, *kind) for name, kind in zip(names, kinds, strict=True)]
    usual = usual_values(kinds, own, all_same=all_same)
    named = []
    for name, kind, each in zip(names, kinds, own, strict=True):
        others = [f"{option} {_said(value)}" for option, value in apart(each, usual[kind]).items() if option != "name"]
        named.append(name_of(" · ".join([name or "?", *others])) if others else name or "?")
    return named


def _key(value: Any) -> Hashable:
    """What distinguishes values: 1 is neither 1.0 nor true."""
    return (type(value), value) if isinstance(value, Hashable) else json.dumps(value, sort_keys=True)


def _said(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_said, value))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
