"""The config of one run: the parts with their defaults and bounds, and the whole, whose hash names the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mecheval.config.sections import MOST, Data, Evaluate, Machine, Model, Optimiser, Schedule, Section
from mecheval.errors import UnknownName, UserError, parse_options, shown
from mecheval.files import run_id
from mecheval.machine import check_fits
from mecheval.mixers import MIXERS, check_options, options_of, pattern, usual_positions
from mecheval.plain import dump_yaml, load_yaml
from mecheval.tasks import TASKS, Task, build_task

if TYPE_CHECKING:  # slow to import
    from mecheval.model import LM


@dataclass(frozen=True)
class Named:
    """A task or a mixer by name, with all of its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def data(self) -> dict[str, Any]:
        """Name and options side by side, as in YAML."""
        return {"name": self.name, **self.options}


@dataclass(frozen=True)
class RunConfig:
    """The config of one run, made by `run_config` or `RunConfig.read`, which check it and fill in all defaults."""

    task: Named
    mixer: Named
    model: Model
    optimiser: Optimiser
    schedule: Schedule
    data: Data
    evaluate: Evaluate
    machine: Machine
    seed: int = 0  # seed of the initial weights and the training documents

    sections: ClassVar[dict[str, type[Section]]] = {
        "model": Model, "optimiser": Optimiser, "schedule": Schedule, "data": Data, "evaluate": Evaluate,
        "machine": Machine,
    }  # fmt: skip

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> RunConfig:
        """The config that nested plain data describes; options that are left out have their defaults."""
        for name in given:
            if name not in names():
                raise UnknownName("part of a run config", str(name), names())
        for name in ("task", "mixer"):
            if name not in given:
                raise UserError(f"a run config needs a {name}. Choices: {', '.join(_registry(name).names())}.")
        data = {name: _mapping(name, given.get(name, {})) for name in cls.sections}
        model = parse_options(Model, "model", data["model"])
        mixer = _named("mixer", given["mixer"])
        if pattern.is_pattern(mixer.name):
            layers = pattern.fill(pattern.read_pattern(mixer.name), data["model"].get("n_layers"))
            mixer = Named(pattern.pattern_name(layers), mixer.options)
            model = model.model_copy(update={"n_layers": len(layers)})
        task = _task(given["task"])
        return cls(
            task=task,
            mixer=_mixer(mixer, model, _longest(TASKS.get(task.name), task.name, json.dumps(task.options))),
            model=model if model.positions else model.model_copy(update={"positions": _usual(mixer.name)}),
            optimiser=parse_options(Optimiser, "optimiser", data["optimiser"]),
            schedule=parse_options(Schedule, "schedule", data["schedule"]),
            data=parse_options(Data, "data", _with_steps(data["data"])),
            evaluate=parse_options(Evaluate, "evaluate", data["evaluate"]),
            machine=parse_options(Machine, "machine", data["machine"]),
            seed=_seed(given.get("seed", 0)),
        )

    @classmethod
    def load(cls, path: str | Path) -> RunConfig:
        """The config in a YAML file."""
        return cls.read(load_yaml(path))

    def to_dict(self) -> dict[str, Any]:
        """The whole config as nested plain data, from which `read` makes the same config."""
        read = {name: getattr(self, name).data() for name in self.sections}
        return {"task": self.task.data(), "mixer": self.mixer.data(), **read, "seed": self.seed}

    def to_yaml(self) -> str:
        """The config as YAML."""
        return dump_yaml(self.to_dict())

    def with_rate(self, rate: float) -> RunConfig:
        """The same run with another learning rate, made ten times as fast as by `read`, for grids of thousands."""
        return replace(self, optimiser=parse_options(Optimiser, "optimiser", {**dict(self.optimiser), "lr": rate}))

    @cached_property
    def id(self) -> str:
        """The run's id: the first 12 hexadecimal digits of a hash over all fields, however they were written."""
        return run_id(self.to_dict())

    @property
    def title(self) -> str:
        """A readable title, such as ar · mamba · d 64 · lr 0.003 · seed 0."""
        parts = (self.task.name, self.mixer.name, f"d {self.model.d_model}", f"lr {self.optimiser.lr:g}")
        return " · ".join((*parts, f"seed {self.seed}"))

    def build_task(self) -> Task:
        return build_task(self.task.name, **self.task.options)

    def build_lm(self, task: Task | None = None) -> LM:
        """The model with its initial weights, on the CPU, in float32."""
        from mecheval.model import LM

        task = task or self.build_task()
        model = self.model
        self._check_size(task)
        try:
            return LM(
                task.vocab_size, model.d_model, model.n_layers, self.mixer.name, self.mixer.options, model.positions,
                max_length=task.max_tokens, seed=self.seed, canon=model.canon, mlp=model.mlp,
            )  # fmt: skip
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            raise UserError("model: there is not enough memory for it; make it smaller.") from None

    def _check_size(self, task: Task) -> None:
        """Raise an error if the model or the activations of a batch cannot fit into this machine's memory.

        Both are lower bounds. Weights: the embedding and five square matrices per block, each with a gradient and two
        moments. Activations, on the CPU: eight numbers per token and channel in every block but the last, which is
        computed only where there is loss; a large batch has documents of 128 tokens if the task has any.
        """
        d, layers, number = self.model.d_model, self.model.n_layers, 4  # bytes
        weights = task.vocab_size * d + 5 * layers * d * d
        check_fits(4 * number * weights, f"model: {layers} layers of width {d} over {task.vocab_size} tokens")
        if self.machine.device == "cpu":
            size, length = self.data.batch_size, min(task.max_tokens, 128)
            numbers = max(1, 8 * (layers - 1)) * size * length * d
            check_fits(number * numbers, f"data: batch_size={size} with {layers} layers of width {d}")

    def __hash__(self) -> int:
        return hash(self.id)


def names() -> list[str]:
    """The parts of a config."""
    return [part.name for part in fields(RunConfig)]


def _registry(kind: str) -> Any:
    return TASKS if kind == "task" else MIXERS


def _mapping(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise UserError(f"{name}: must be a mapping of names to values (got {shown(given)}).")
    return {str(key): value for key, value in given.items()}


def _named(kind: str, given: Any) -> Named:
    """Parse `ar`, or {name: ar, pairs: 8}; the layers of a hybrid are given as a pattern or a list."""
    options = {"name": given} if isinstance(given, str | list) else _mapping(kind, given)
    name = options.pop("name", None)
    name = pattern.as_pattern(name) if kind == "mixer" else name
    if not isinstance(name, str):
        raise UserError(f"{kind}.name is missing. Choices: {', '.join(_registry(kind).names())}.")
    return Named(name, options)


def _task(given: Any) -> Named:
    """The task with all of its options."""
    named = _named("task", given)
    options = parse_options(TASKS.get(named.name).Options, named.name, dict(named.options))
    return Named(named.name, options.model_dump(mode="json"))


@lru_cache
def _longest(task: type[Task], name: str, options: str) -> int:
    """The length in tokens of the longest document of a task; its options are given as JSON.

    It is cached, because building a task may take a while (a grammar is analysed), and grids need it for every run.
    """
    return build_task(name, **json.loads(options)).max_tokens


def _mixer(named: Named, model: Model, longest: int) -> Named:
    """The mixer with all of its options; in a hybrid, they are prefixed with the mixer's name: mamba.d_conv."""
    kinds = pattern.mixers_of(named.name)
    given = pattern.split_options({kind: pattern.option_names(kind) for kind in kinds}, named.options)
    found = {kind: _with_options(kind, given[kind], model, longest) for kind in kinds}
    if len(kinds) == 1:
        return Named(named.name, found[kinds[0]])
    return Named(named.name, {f"{kind}.{name}": value for kind in kinds for name, value in found[kind].items()})


def _with_options(name: str, given: Mapping[str, Any], model: Model, longest: int) -> dict[str, Any]:
    """All options of one mixer.

    Filters with a fixed length cover the task's longest document unless the config says otherwise.
    """
    declared = options_of(name)
    known = {} if declared is None else declared.model_fields
    fitting = {"l_max": max(known["l_max"].default, longest)} if "l_max" in known else {}
    if model.positions == "rotary" and "rotary" in known:
        fitting["rotary"] = True
    return check_options(name, {**fitting, **given})


def _usual(mixer: str) -> str:
    """The default position embeddings of a model: learned if one of its mixers uses them."""
    usual = {usual_positions(kind) for kind in pattern.mixers_of(mixer)}
    return "learned" if "learned" in usual else "none"


def _seed(given: Any) -> int:
    if type(given) is not int or not 0 <= given < 1 << 63:
        raise UserError(f"seed: must be a whole number from 0 to 2**63 - 1 (got {shown(given)}).")
    return given


def _with_steps(given: dict[str, Any]) -> dict[str, Any]:
    """Convert epochs into steps, so that a config has only one form."""
    epochs = given.pop("epochs", None)
    if epochs is None:
        if "steps" not in given:
            raise UserError("data: give steps or epochs.")
        return given
    if "steps" in given:
        raise UserError("data: give steps or epochs, not both.")
    draft = parse_options(Data, "data", {**given, "steps": 1})
    if draft.documents is None:
        raise UserError("data.epochs: a stream of fresh documents has no epochs; give steps.")
    if isinstance(epochs, bool) or not isinstance(epochs, int | float) or not 0 < epochs <= MOST:
        raise UserError(f"data.epochs: must be a positive number of at most {MOST:g} (got {shown(epochs)}).")
    return {**given, "steps": max(1, round(epochs * draft.documents / draft.batch_size))}
