"""YAML, read safely and strictly: 3e-3 is a number, and a key given twice is a mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from mecheval.errors import UserError


class _Loader(yaml.SafeLoader):
    """Safe; knows 3e-3 as a float, which YAML 1.1 takes for text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise UserError(f"line {key_node.start_mark.line + 1}: {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping that a YAML file holds."""
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold names and values (got {type(data).__name__}).")
    return data


class _Dumper(yaml.SafeDumper):
    """Safe; names below each other, lists on one line."""


_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def dump_yaml(data: dict[str, Any]) -> str:
    """`data` as YAML, in its own order."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False)
    return text
