// The first section: two pictures of the mixers by mechanism, and the best run per setting.

const UNFILTERED = 16; // rows that need no chips to choose among them

function restoredText(run) {
  const found = data.runs.restored[run];
  return found ? `${found[0].replaceAll("_", " ")} ${two(found[1])}` : MISSING;
}

function verdictText(run) {
  const { label, status, layer } = data.runs;
  if (!known(label[run])) return status[run] === "done" ? "not asked" : status[run];
  return `${words(label[run])}${known(layer[run]) ? `, layer ${layer[run]}` : ""}`;
}

function badge(run) {
  const label = data.runs.label[run];
  return el("span", { class: `verdict v-${known(label) ? /^[a-z_]+$/.exec(label)?.[0] ?? "other" : "none"}` }, verdictText(run));
}

// A run that `evaluate.early` ended says so in its message, which stands among its details.
function endedEarly(row) {
  const { message, step, steps } = data.runs;
  return known(message[row]) && step[row] < steps[row];
}

// The finding of each task, on top of the page; the bar above has the title.
function findingText() {
  const { findings } = data.summary;
  if (!findings.length) return el("h1", {}, data.title);
  return el("h1", {}, findings.map(({ task, text, rows }) => el("span", { class: "finding" }, findings.length > 1 && !rows ? `${task}: ${text}` : text)));
}

// A custom mixer among the published ones: the table, and what it takes to read it.
function placedTable({ task, heads, rows, own, notes }) {
  const numeric = (place) => rows.every((row) => /^[\d.,–() *-]*$/.test(row[place]));
  return [
    el("h3", {}, `${task[0].toUpperCase()}${task.slice(1)}`),
    table({
      label: task, rows: rows.map((_, row) => row), marked: (row) => own[row],
      columns: heads.map((name, place) => ({ name, value: (row) => rows[row][place], main: place < 2, number: numeric(place) })),
    }).node,
    notes.map((text) => el("p", { class: "quiet" }, text)),
  ];
}

function summarySection() {
  const { about, runs, summary } = data;
  const rows = summary.best;
  const texts = (column) => [...new Set(rows.map((row) => column[row]))].filter(known);
  const several = (column) => () => texts(column).length < 2;
  const chips = [
    { axis: "task", name: "task", values: texts(runs.task_name) }, { axis: "mixer", name: "mixer", values: texts(runs.mixer) },
    { axis: "d", name: "d_model", values: texts(runs.d_model).sort((a, b) => a - b).map(String) },
    { axis: "layers", name: "layers", values: texts(runs.n_layers).sort((a, b) => a - b).map(String) },
  ].map((chip) => (rows.length > UNFILTERED ? chip : { ...chip, values: [] }));
  let sheet = null;
  const bar = chipBar(chips, () => sheet.refill());
  const score = (name, column) => ({ name, value: (row) => runs[column][row], show: (row) => percent(runs[column][row]), number: true });
  sheet = table({
    label: "best run per setting", rows, step: 20, marked: (row) => runs.own[row],
    passes: (row) => bar.has("task", runs.task_name[row]) && bar.has("mixer", runs.mixer[row])
      && bar.has("d", String(runs.d_model[row])) && bar.has("layers", String(runs.n_layers[row])),
    details: (row) => [evidence(row), meanMap(row)],
    columns: [
      { name: "mixer", value: (row) => runs.mixer_name[row], show: (row) => breakable(runs.mixer_name[row]), main: true },
      { name: "verdict", value: verdictText, show: badge, main: true },
      score("accuracy %", "test_accuracy"), score("chance %", "chance"), score("likelihood %", "test_likelihood"),
      { name: "restored at", value: restoredText },
      { name: "steps", value: (row) => runs.step[row], number: true, hidden: () => !rows.some(endedEarly),
        show: (row) => (endedEarly(row) ? `${count(runs.step[row])} of ${count(runs.steps[row])}` : count(runs.step[row])) },
      { name: "agreement %", value: (row) => runs.agreement[row], show: (row) => (known(runs.agreement[row]) ? (100 * runs.agreement[row]).toFixed(0) : MISSING), number: true },
      { name: "task", value: (row) => runs.task_name[row], hidden: several(runs.task_name) },
      { name: "layers", value: (row) => runs.n_layers[row], number: true, hidden: several(runs.n_layers) },
      { name: "d", value: (row) => runs.d_model[row], number: true, hidden: several(runs.d_model) },
      { name: "seed", value: (row) => runs.seed[row], number: true, hidden: () => about.seeds < 2 },
    ],
  });
  return section("summary", "How each mixer recalls", [
    summary.findings.filter(({ rows: placed }) => placed).map(placedTable),
    summary.findings.length ? el("div", { class: "pair" }, summary.charts.map((number) => figure(number)))
      : el("p", { class: "note" }, "No run has been intervened on yet, so there are no mechanisms to draw; run `mecheval intervene RUN`."),
    bar.node, sheet.node,
    el("p", { class: "quiet" }, "A row is the best run of a setting, chosen on dev and scored on test. Chance is what the best guess "
      + "without recall achieves. “Restored at” is the position whose clean activation, at the input of layer 1, restores most of the "
      + "answer, with its share; agreement is the share of bootstrap resamples with the same verdict. Open a row for the evidence with "
      + "95 % intervals and the whole map."),
  ]);
}

// Every mixer by its likelihood on pairs and on trees, where runs of both are there.
function mixersSection() {
  const { charts } = data.mixers;
  return charts.length ? section("mixers", "Every mixer, on pairs and on trees", charts.map((number) => figure(number))) : null;
}
