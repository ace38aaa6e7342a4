// The first section: how much there is, where each mixer stores the key-value link, and the best run per setting.

function restoredText(run) {
  const found = data.runs.restored[run];
  return found ? `${found[0].replaceAll("_", " ")} ${two(found[1])}` : MISSING;
}

function verdictText(run) {
  const { label, agreement, status, layer } = data.runs;
  if (!known(label[run])) return status[run] === "done" ? "not asked" : status[run];
  const where = known(layer[run]) ? `, layer ${layer[run]}` : "";
  return `${words(label[run])}${where}` + (known(agreement[run]) ? ` (${(100 * agreement[run]).toFixed(0)} %)` : "");
}

function badge(run) {
  const label = data.runs.label[run];
  return el("span", { class: `verdict v-${known(label) ? /^[a-z_]+$/.exec(label)?.[0] ?? "other" : "none"}` }, verdictText(run));
}

function summarySection() {
  const { about, runs, summary } = data;
  const facts = [
    [count(about.runs), about.runs === 1 ? "run" : "runs"], [count(about.tasks.length), about.tasks.length === 1 ? "task" : "tasks"],
    [count(about.mixers.length), about.mixers.length === 1 ? "mixer" : "mixers"],
    [count(about.seeds), about.seeds === 1 ? "seed" : "seeds"], [duration(about.hours * 3600), "of training"],
  ];
  const rows = summary.best;
  const texts = (column) => [...new Set(rows.map((row) => column[row]))].filter(known);
  const chips = [
    { axis: "task", name: "task", values: texts(runs.task_name) }, { axis: "mixer", name: "mixer", values: texts(runs.mixer) },
    { axis: "d", name: "d_model", values: texts(runs.d_model).sort((a, b) => a - b).map(String) },
    { axis: "layers", name: "layers", values: texts(runs.n_layers).sort((a, b) => a - b).map(String) },
  ];
  let sheet = null;
  const bar = chipBar(chips, () => sheet.refill());
  const severalSeeds = about.seeds > 1;
  sheet = table({
    label: "best run per setting", rows, step: 20,
    passes: (row) => bar.has("task", runs.task_name[row]) && bar.has("mixer", runs.mixer[row])
      && bar.has("d", String(runs.d_model[row])) && bar.has("layers", String(runs.n_layers[row])),
    details: (row) => [evidence(row), meanMap(row)],
    columns: [
      { name: "mixer", value: (row) => runs.mixer_name[row] }, { name: "task", value: (row) => runs.task_name[row] },
      { name: "layers", value: (row) => runs.n_layers[row], number: true }, { name: "d", value: (row) => runs.d_model[row], number: true },
      { name: "seed", value: (row) => runs.seed[row], number: true, hidden: () => !severalSeeds },
      { name: "accuracy %", value: (row) => runs.test_accuracy[row], show: (row) => percent(runs.test_accuracy[row]), number: true },
      { name: "likelihood %", value: (row) => runs.test_likelihood[row], show: (row) => percent(runs.test_likelihood[row]), number: true },
      { name: "restored at", value: restoredText }, { name: "verdict (agreement)", value: verdictText, show: badge },
    ],
  });
  const states = Object.entries(about.statuses).map(([status, n]) => `${count(n)} ${status}`).join(", ");
  return section("summary", "Summary", [
    el("ul", { class: "facts" }, facts.map(([number, name]) => el("li", {}, el("strong", {}, number), ` ${name}`))),
    el("p", { class: "quiet" }, `Runs: ${states}. Tasks: ${about.tasks.join(", ")}. Mixers: ${about.mixers.join(", ")}.`),
    summary.charts.length ? summary.charts.map((number) => figure(number))
      : el("p", { class: "note" }, "No run has been intervened on yet, so there are no mechanisms to draw; run `mecheval intervene RUN`."),
    el("h3", {}, "Best run per setting (chosen on dev, scored on test)"),
    el("p", {}, "A setting is a task, mixer, model and seed; learning rates compete. “Restored at” is the position whose clean "
      + "activation, at the input of layer 1, restores most of the answer, with its share. Open a row for the evidence with 95 % "
      + "intervals and the whole map."),
    bar.node, sheet.node,
  ]);
}
