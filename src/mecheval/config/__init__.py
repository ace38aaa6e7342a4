"""The config of a run, its presets and its files."""

from mecheval.config.presets import PRESETS, merge, run_config
from mecheval.config.run import RunConfig

__all__ = ["PRESETS", "RunConfig", "merge", "run_config"]
