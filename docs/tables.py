"""The tables of published results in README.md and docs, written anew from the results that come with the package.

    python docs/tables.py          # after `mecheval results add`, or a change of a built-in mixer

A page shows the table `TABLES[NAME]` between `<!-- table NAME -->` and `<!-- end -->`; tests/test_docs.py checks that
it is what the results say. The sizes of the built-in mixers, which `mecheval list mixers` shows, are written with them.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mecheval.cli.show.lists import MEASURED, measure
from mecheval.cli.standings import TITLES
from mecheval.figures.heatmap import label
from mecheval.figures.mixers import mixers, name_of
from mecheval.mixers import BUILT_IN
from mecheval.paper import Compared, Judged, claims_frame, compare_studies, counted
from mecheval.paper.agreement import agreement as agreement_of_scales
from mecheval.paper.agreement import beside as beside_scales
from mecheval.paper.agreement import early, laptop
from mecheval.paper.arms import NEW, SAME
from mecheval.paper.judging import spreads_said
from mecheval.paper.limits import RESTORED, USUAL
from mecheval.paper.numbers import PUBLISHED, published
from mecheval.paper.picture import DRAWN, picture
from mecheval.paper.plan import standings as plan_standings
from mecheval.paper.standings import WIDTHS, panels, standings
from mecheval.store import RESULTS, Store
from mecheval.studies import PAPER, STUDIES, StudyTable, seeds_in, study_points, study_table
from mecheval.studies.axes import ordered, plain, say
from mecheval.studies.early_ends import replayed
from mecheval.studies.placing import NOUNS
from mecheval.studies.table import GAP
from mecheval.training.early import GUESSING, REACHED, SETTLED

if TYPE_CHECKING:
    import pandas as pd

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?s)(<!-- table ([\w-]+) -->\n)(.*?)(<!-- end -->)")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
"""Learning rates that the plan may reach, also where the study itself has fewer."""
SHOWN = {**GAP, "restored_key": "at key", "restored_value": "at value", "restored_query": "at query"}
"""The likelihoods of figures 3, 4a, 7 and 8, and their heads."""
NAMES = {
    "attention": "attention", "base_conv": "BaseConv", "based": "Based", "delta_net": "DeltaNet", "h3": "H3",
    "hyena": "Hyena", "mamba": "Mamba",
}  # fmt: skip
"""How prose writes the mixers."""
HEADS = {
    "d_model": "width",
    "lr": "rate",
    "n_layers": "layers",
    "kernel_size": "kernel",
    "d_conv": "kernel",
    "recipe": "trained",
}
VERDICTS = {"conv_association": "short convolution", "direct_retrieval": "direct retrieval", "not_learnt": "not learnt"}
TASKS = {"ar": "pairs", "atr": "trees"}
NONE = "–"
DISTANCES = Path(__file__).parent / "results" / "distance.csv"
SPLIT = ROOT / "benchmarks" / "between_split.csv"
NEAR = ("1", "2", "3")
"""Distances that enough documents have."""


def filled(text: str) -> str:
    """The page with its tables as they are now."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{TABLES[block[2]]()}\n{block[4]}", text)


@cache
def finished(study: str, rates: Sequence[float] = ()) -> StudyTable:
    """The published runs of a study at the paper's scale; at any of these rates, or at the study's own."""
    store = Store(RESULTS)
    points = study_points(STUDIES[study], "paper", seeds_in(STUDIES[study], "paper", store), rates=rates)
    table = study_table(STUDIES[study], points, store)
    return replace(table, frame=table.frame[table.frame["status"] != "missing"])


def beside(study: str, axis: str) -> str:
    """The likelihoods of our best runs / the paper's."""
    theirs = dict(list(published(study).groupby(["d_model", axis])))
    table, shown = finished(study).best(), PUBLISHED[study].quantities
    rows = []
    for (width, value), runs in settings(table.frame, "d_model", axis):
        both = zip(likelihoods(runs, shown), likelihoods(theirs[width, value], shown), strict=True)
        rows.append([about(axis, value, width, runs), *(" / ".join(pair) for pair in both)])
    titles = [table.titles[name].removeprefix("restored ") for name in shown]
    return markdown([f"{HEADS.get(axis, axis)}, width", *titles], rows)


def restored(study: str, axis: str, **only: Any) -> str:
    """The best run of every setting: how well it recalls, and where an activation of layer 1's input restores it."""
    rows = []
    for (width, value), runs in settings(finished(study).best().where(**only).frame, "d_model", axis):
        verdicts = ", ".join(dict.fromkeys(VERDICTS.get(verdict, verdict) for verdict in runs["verdict"]))
        accuracy = percent(runs["test_accuracy"].mean())
        rows.append([about(axis, value, width, runs), accuracy, *likelihoods(runs, SHOWN), verdicts])
    return markdown([f"{HEADS.get(axis, axis)}, width", "accuracy", *SHOWN.values(), "verdict"], rows)


def about(axis: str, value: Any, width: int, runs: pd.DataFrame) -> str:
    """A setting in words."""
    seeds = f" ({len(runs)} seeds)" if len(runs) > 1 else ""
    return f"{named(axis, value)}, {width}{seeds}"


def likelihoods(runs: pd.DataFrame, shown: Iterable[str]) -> list[str]:
    """The means over seeds in %, bold where each of the runs has learnt and is restored."""
    gap = runs["original"] - runs["corrupted"]
    texts = []
    for name in shown:
        share = (runs[name] - runs["corrupted"]) / gap
        bold = name not in GAP and bool(((gap > USUAL.lost) & (share >= RESTORED)).all())
        texts.append(f"**{percent(runs[name].mean())}**" if bold else percent(runs[name].mean()))
    return texts


def accuracies(study: str, *axes: str, **only: Any) -> str:
    """The test accuracy of every run: a row for each setting, a column for each learning rate."""
    frame = finished(study, RATES).where(**only).frame
    chosen = set(finished(study).best().frame["run"])
    rates = sorted(set(frame["lr"]))
    rows = []
    for values, runs in settings(frame, *axes):
        seeds = {rate: group.sort_values("seed") for rate, group in runs.groupby("lr")}
        cells = [", ".join(accuracy(run, chosen) for run in seeds[rate].itertuples()) if rate in seeds else NONE
                 for rate in rates]  # fmt: skip
        rows.append([", ".join(named(axis, value) for axis, value in zip(axes, values, strict=True)), *cells])
    return markdown([", ".join(HEADS.get(axis, axis) for axis in axes), *(say("lr", rate) for rate in rates)], rows)


def by_distance() -> str:
    """What pretrained models of trees restore before layer 1, by the distance from key to value (docs/distance.py)."""
    import pandas as pd

    found = pd.read_csv(DISTANCES, dtype={"distance": str})
    found = found[found["distance"].isin(NEAR)]
    rows = []
    for name in sorted(set(found["model"]), key=lambda name: (int(name.rpartition("-")[2]), name)):
        _, mixer, width = name.split("-")
        shares = {row.distance: (row.key, row.between, row.query) for row in found[found["model"] == name].itertuples()}
        cells = [" / ".join(map(bold_share, shares[each])) if each in shares else NONE for each in NEAR]
        rows.append([f"{NAMES[mixer]}, {width}", *cells])
    return markdown(["mixer, width", *(f"distance {each}" for each in NEAR)], rows)


def early_ends() -> str:
    """What the rule of `evaluate.early` would have done to the published runs, by task and width."""
    rows = []
    for task in ("ar", "atr"):
        for width, runs in replayed(task).groupby("d_model"):
            guessing, others = runs[runs["why"] == GUESSING], runs[runs["why"].isin((SETTLED, REACHED))]
            lost = others["accuracy"] - others["early"]
            best = f"{percent(guessing['accuracy'].max())}" if len(guessing) else NONE
            above = int((guessing["accuracy"] > 2 * guessing["guess"]).sum())
            points = f"{100 * lost.mean():+.1f} / {100 * lost.max():+.1f}" if len(others) else NONE
            cells = [len(runs), len(guessing), above, best, len(others), points]
            rows.append(
                [f"{NOUNS[task]}, {width}", *map(str, cells), percent(1 - (runs["step"] / runs["steps"]).mean())]
            )
    heads = ("guessing", "later twice that", "best of them", "settled or solved", "points lost", "steps saved")
    return markdown(["task, width", "runs", *heads], rows)


def held_out() -> str:
    """With held-out combinations, dev / test: accuracies, and what clean activations add to the likelihood."""
    rows = []
    for (mixer,), runs in settings(finished("atr_holdout").best().where(d_model=32).frame, "mixer"):
        pairs = [("dev_accuracy", "test_accuracy")]
        pairs += [(f"dev_attribution_{role}", f"attribution_{role}") for role in ("key", "value", "query")]
        cells = (" / ".join(percent(runs[column].mean()) for column in pair) for pair in pairs)
        rows.append([about("mixer", mixer, 32, runs), *cells])
    return markdown(["mixer, width", "accuracy", "at key", "at value", "at query"], rows)


def bold_share(share: float) -> str:
    """A restored share, bold where the activation carries the association."""
    return f"**{label(share)}**" if share >= RESTORED else label(share)


def recipes() -> str:
    """The likelihoods of Mamba by the way in which it was trained, beside the paper's."""
    frame = finished("recipes", RATES).where(mixer="mamba").frame
    theirs = {(row.d_model, row.lr): row.original for row in published("ar_mamba_inside").itertuples()}
    trained, rows = ordered("recipe", frame["recipe"]), []
    for (width, rate), runs in settings(frame, "d_model", "lr"):
        seeds = {recipe: group.sort_values("seed")["original"] for recipe, group in runs.groupby("recipe")}
        cells = [", ".join(map(percent, seeds.get(recipe, ()))) or NONE for recipe in trained]
        rows.append([str(width), say("lr", rate), *cells, percent(theirs[width, rate])])
    return markdown(["width", "rate", *(say("recipe", recipe) for recipe in trained), "the paper"], rows)


@cache
def stand() -> pd.DataFrame:
    """How every mixer stands in the published results at the paper's size."""
    return standings(Store(RESULTS), "paper")


def every_mixer() -> str:
    """Every mixer and hybrid at the widths of the picture: pairs, then trees."""
    frame = stand()
    frame = frame[(frame["option"] == "") & frame["d_model"].isin(WIDTHS)]
    rows = []
    for (width, mixer), own in settings(frame, "d_model", "mixer"):
        by_task = {row["task"]: row for row in own.to_dict("records")}
        cells, about = [], []
        for task in ("ar", "atr"):
            row = by_task.get(task)
            cells += [NONE] * 3 if row is None else [within(row, "likelihood"), percent(row["accuracy"]), where(row)]
            about.append(NONE if row is None else f"{row['seeds']} at {row['lr']}")
        rows.append([f"{name_of(mixer)}, {width}", *cells, " / ".join(about)])
    heads = [
        f"{task}: {head}" for task in ("pairs", "trees") for head in ("likelihood [95 %]", "accuracy", "mechanism")
    ]
    return markdown(["mixer, width", *heads, "seeds, rate"], rows)


def where(row: Mapping[str, Any]) -> str:
    """The verdicts, and where a clean activation restores most, with its share."""
    verdicts = row["verdicts"]
    for label_, words in VERDICTS.items():
        verdicts = verdicts.replace(label_, words)
    return (
        verdicts if row["share"] != row["share"] else f"{verdicts}; {row['restored_at']} {within(row, 'share', 1, 2)}"
    )


def within(row: Mapping[str, Any], name: str, scale: float = 100, digits: int = 1) -> str:
    """A number with its interval."""
    value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
    if value != value:
        return NONE
    ends = f" [{scale * low:.{digits}f}, {scale * high:.{digits}f}]" if low == low else ""
    return f"{scale * value:.{digits}f}{ends}"


def scales() -> str:
    """How far the scale laptop agrees with the paper's size."""
    rows = []
    for row in agreement_of_scales(laptop(), stand()).to_dict("records"):
        rates = [
            f"{row[f'{name}_hits']} of {row[f'{name}_of']}"
            + (f", {within(row, name, digits=0)} %" if row[f"{name}_of"] else "")
            for name in ("recalls", "stored")
        ]
        rows.append(
            [
                TASKS[row["task"]],
                str(row["d_model"]),
                row["group"],
                str(row["settings"]),
                within(row, "correlation", 1, 2),
                *rates,
            ]
        )
    return markdown(
        ["task", "width", "settings", "number", "correlation of likelihoods", "who recalls", "where it is stored"], rows
    )


def before_the_end() -> str:
    """How well published runs rank before their end, on the half of the settings on which a scale is chosen."""
    with SPLIT.open(encoding="utf-8", newline="") as file:
        among = [row["setting"] for row in csv.DictReader(file) if row["half"] == "choose"]
    rows = []
    for row in early(Store(RESULTS), among).to_dict("records"):
        rows.append([TASKS[row["task"]], f"{row['step']:,}", str(row["settings"]), within(row, "correlation", 1, 2)])
    return markdown(["task", "step", "settings", "correlation with the likelihood at the end"], rows)


def by_scale() -> str:
    """Every setting at scale laptop and at the paper's size, width 32."""
    pairs = beside_scales(laptop(), stand())
    rows = []
    for row in pairs[pairs["d_model"] == 32].to_dict("records"):
        said = [VERDICTS.get(row[name], row[name]) for name in ("verdict_small", "verdict")]
        said = [f"**{each}**" if said[0] != said[1] else each for each in said]
        name = " · ".join(filter(None, (name_of(row["mixer"]), row["option"])))
        rows.append(
            [TASKS[row["task"]], name, percent(row["likelihood_small"]), said[0], percent(row["likelihood"]), said[1]]
        )
    return markdown(["task", "setting", "laptop: likelihood", "mechanism", "paper: likelihood", "mechanism"], rows)


@cache
def compared() -> dict[str, Compared]:
    """Every study of the paper beside it, as `mecheval compare all --scale paper` has them by the published results."""
    return {one.table.study.name: one for one in compare_studies(PAPER, Store(RESULTS), "paper")}


def judged() -> list[Judged]:
    """Every claim of the paper."""
    return [claim for one in compared().values() for claim in one.claims]


def claims(*columns: str) -> str:
    """The claims that were tested, and how many have which outcome."""
    frame = claims_frame(judged(), *columns)
    spreads = {task: spread for one in compared().values() for task, spread in one.spreads.items()}
    table = markdown(list(frame), frame.to_numpy().tolist())
    return f"{table}\n{counted(judged())} {spreads_said(spreads)}\n"


def arms() -> str:
    """Both orders of documents beside the paper: how far each is from its numbers, by setting, and what that says."""
    parts = []
    for one in (compared()[name] for name in PUBLISHED):
        rows, found = [], one.arms
        assert found is not None
        for row in found.settings.to_dict("records"):
            rate = [say("lr", row["lr"])] if "lr" in row else ["best"]
            closed = percent(row["closed"]) if row["closed"] == row["closed"] else NONE
            rows.append(
                [f"{NAMES[row['mixer']]}, {row['d_model']}", *rate, percent(row[SAME]), percent(row[NEW]), closed]
            )
        heads = [f"figure {one.table.study.figure}: mixer, width", "rate", SAME, NEW, "gap closed, %"]
        parts.append(f"{markdown(heads, rows)}\n{found.said}\n")
    return "\n".join(parts)


def arms_said() -> str:
    """What the two orders of documents say about the paper's runs."""
    found = ((one.table.study.figure, one.arms) for one in map(compared().__getitem__, PUBLISHED))
    return "".join(f"- Figure {figure}: {both.said}\n" for figure, both in found if both is not None)


def agreement() -> str:
    """How many numbers of figures 3 and 5 agree with the paper's."""
    found = (compared()[name] for name in PUBLISHED)
    return "".join(f"- Figure {one.table.study.figure}: {one.comparison.agreement}\n" for one in found)


def planned() -> str:
    """The steps of the plan, those with runs left by their value for claims."""
    rows = []
    for each in plan_standings([*compared().values()], Store(RESULTS)):
        value = f"{each.value:.2f}" if each.left else NONE
        done = f"{each.runs - len(each.left)} of {each.runs}"
        rows.append([value, f"`{each.step.study}`", each.step.why, each.step.added, done, f"{each.hours:.1f}"])
    return markdown(["claims an hour", "study", "what for", "planned on", "runs done", "hours left"], rows)


def waiting() -> str:
    """The claims that were not tested, and the settings that they wait for."""
    return "".join(f"- {one.says} {one.needs}.\n" for one in judged() if one.outcome == "not tested")


def summary() -> str:
    """What holds, what does not, and how much is open."""
    parts = []
    for outcome, head in (
        ("reproduced", "What holds, as far as there are runs"),
        ("contradicted", "What does not"),
        ("inconclusive", "Open"),
    ):
        own = [one for one in judged() if one.outcome == outcome]
        if outcome == "inconclusive":
            lenient = sum(one.lenient == "reproduced" for one in own)
            parts.append(f"**{head}.** {len(own)} claims that our runs do not decide yet, and "
                         f"{sum(one.outcome == 'not tested' for one in judged())} that wait for runs. Of the former, "
                         f"{lenient} hold if it is enough that most of their parts do.\n")  # fmt: skip
        else:
            parts.append(f"**{head}** ({len(own)}):\n\n" + "".join(f"- {one.says} *({one.rests})*\n" for one in own))
    return "\n".join(parts)


def accuracy(run: Any, chosen: set[str]) -> str:
    """The test accuracy of a run in %, bold if it was chosen; a run that diverged has none."""
    if run.status != "done":
        return str(run.status)
    return f"**{percent(run.test_accuracy)}**" if run.run in chosen else percent(run.test_accuracy)


def settings(frame: pd.DataFrame, *axes: str) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """The rows by their values of the axes, in the order of tables."""
    order = {axis: ordered(axis, frame[axis]) for axis in axes}
    groups = dict(list(frame.groupby(list(axes))))
    places = {values: [order[axis].index(plain(value)) for axis, value in zip(axes, values, strict=True)]
              for values in groups}  # fmt: skip
    return sorted(groups.items(), key=lambda group: places[group[0]])


def named(axis: str, value: Any) -> str:
    """A value of an axis as prose writes it."""
    return NAMES.get(value, value) if axis == "mixer" else str(value) if axis == "n_layers" else say(axis, value)


def percent(fraction: float) -> str:
    """A fraction in %, without the sign."""
    return f"{100 * fraction:.1f}" if fraction == fraction else NONE


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (heads, ["---"] * len(heads), *rows))


TABLES: dict[str, Callable[[], str]] = {
    "figure-3": lambda: beside("ar", "mixer"),
    "figure-3-rates": lambda: accuracies("ar", "mixer", "d_model"),
    "figure-4a": lambda: restored("ar_mamba_conv", "d_conv"),
    "figure-4a-rates": lambda: accuracies("ar_mamba_conv", "d_conv", "d_model"),
    "figure-4b-rates": lambda: accuracies("ar_based_conv", "kernel_size", "d_model"),
    "figure-5": lambda: beside("ar_mamba_inside", "lr"),
    "figure-7": lambda: restored("atr", "mixer"),
    "figure-7-rates": lambda: accuracies("atr", "mixer", "d_model"),
    "figure-8": lambda: restored("atr_mamba_conv", "d_conv"),
    "figure-8-rates": lambda: accuracies("atr_mamba_conv", "d_conv", "d_model"),
    "by-distance": by_distance,
    "early-ends": early_ends,
    "figure-10": held_out,
    "figure-11-rates": lambda: accuracies("one_layer", "mixer", "n_layers", task="ar", d_model=32),
    "recipes": recipes,
    "every-mixer": every_mixer,
    "scales": scales,
    "before-the-end": before_the_end,
    "scales-settings": by_scale,
    "claims-count": lambda: f"{counted(judged())}\n",
    "all-claims": claims,
    "claims-that-wait": waiting,
    "summary": summary,
    "arms": arms,
    "arms-said": arms_said,
    "agreement": agreement,
    "plan": planned,
}
"""The tables by name."""


def sizes() -> str:
    """What `mecheval list mixers` says of the built-in mixers, as JSON."""
    return json.dumps({name: measure(name) for name in BUILT_IN}, indent=1) + "\n"


def main() -> None:
    """Write all tables anew, and draw the pictures of figures 3 and 7 and of every mixer."""
    Path(str(MEASURED)).write_text(sizes(), encoding="utf-8")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        if (now := filled(text)) != text:
            page.write_text(now, encoding="utf-8")
            print(f"{page.relative_to(ROOT)} has new tables")
    for name in DRAWN:
        picture(compared()[name]).save(ROOT / f"docs/figures/{name}-paper.svg")
    mixers(panels(stand(), "paper"), TITLES["paper"]).save(ROOT / "docs/figures/mixers.svg")


if __name__ == "__main__":
    main()
