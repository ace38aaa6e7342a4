// A section for each study, and one for mechanisms along training: chips, charts, table.

const AXES = { d_model: "d", n_layers: "layers", kernel_size: "kernel" };

// The signals that chips set in charts: one for each axis, null where nothing is chosen.
function signalsOf(bar, chips, rates) {
  return () => Object.fromEntries(chips.map(({ axis }) => {
    const set = bar.chosen[axis];
    if (set.size === 0) return [`f_${axis}`, null];
    const texts = axis === "lr" ? rates.filter((text) => text.split(", ").some((each) => set.has(each))) : [...set];
    return [`f_${axis}`, texts];
  }));
}

function studySection(study) {
  const mine = [];
  let sheet = null;
  const bar = chipBar(study.chips, () => {
    mine.forEach(choose);
    sheet.refill();
  });
  const signals = signalsOf(bar, study.chips, study.rates);
  const figures = study.charts.map((number) => {
    const node = figure(number, signals);
    mine.push(charts.at(-1));
    return node;
  });
  sheet = studyTable(study, bar);
  return section(`study-${study.name}`, study.question, [
    el("p", { class: "quiet" }, study.note), bar.node, figures, sheet.node,
  ], [study.name, study.figure].filter(Boolean).join(" · "), study.name);
}

function studyTable(study, bar) {
  const { axes, titles, numbers, run, status, verdict, agreement } = study.table;
  const text = (axis, row) => axes[axis].levels[axes[axis].codes[row]];
  const quantity = study.chips.find((chip) => chip.axis === "quantity");
  const left = (name) => quantity && Object.entries(quantity.columns)
    .some(([value, columns]) => columns.includes(name) && !bar.has("quantity", value));
  return table({
    label: `chosen runs of study ${study.name}`, rows: run.map((_, row) => row), step: 30,
    passes: (row) => Object.keys(axes).every((axis) => bar.has(axis, text(axis, row))),
    marked: (row) => axes.mixer && text("mixer", row).includes("@"),
    columns: [
      ...Object.keys(axes).map((axis) => ({ name: AXES[axis] || axis, value: (row) => axes[axis].codes[row], show: (row) => text(axis, row) })),
      {
        name: "verdict", value: (row) => verdict[row] ?? status[row],
        show: (row) => words(verdict[row] ?? status[row]) + (known(agreement[row]) && agreement[row] < 0.995 ? ` (${(100 * agreement[row]).toFixed(0)} %)` : ""),
      },
      ...Object.keys(numbers).map((name) => ({
        name: titles[name], number: true, value: (row) => numbers[name][row], show: (row) => percent(numbers[name][row]),
        hidden: () => left(name),
      })),
      { name: "run", value: (row) => run[row], show: (row) => runLink(run[row]) },
    ],
  });
}

function trainingSection() {
  const { training } = data;
  if (!training.charts.length) return null;
  const mine = [];
  const bar = chipBar(training.chips, () => mine.forEach(choose));
  const figures = training.charts.map((number) => {
    const node = figure(number, signalsOf(bar, training.chips, []));
    mine.push(charts.at(-1));
    return node;
  });
  const some = training.shown < training.runs ? ` Shown are ${training.shown} with several measurements after they began to recall.` : "";
  return section("training", "How the mechanism forms", [
    el("p", {}, `${plural(training.runs, "run was", "runs were")} intervened on while being trained, on dev documents.${some} `
      + "A line rises where the clean activation at that position restores the answer; the broad grey line is the accuracy."),
    bar.node, figures,
  ]);
}
