// All runs: a table that is filtered by text; a row opens to its config, its evidence and its map.

function runLink(id) {
  return el("a", { href: "#runs", onclick: () => showRun(id) }, id.slice(0, 8));
}

let showRun = () => {};

function yamlValue(value) {
  if (Array.isArray(value)) return `[${value.map(yamlValue).join(", ")}]`;
  if (typeof value === "string") return /^[A-Za-z_][\w.@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off)$/i.test(value) ? value : JSON.stringify(value);
  if (typeof value === "number" && !Number.isInteger(value)) return String(value).replace(/^(\d+)e/, "$1.0e");
  return JSON.stringify(value ?? null);
}

function yaml(run) {
  const [base, apart] = data.runs.config.runs[run];
  const whole = { ...data.runs.config.bases[base], ...apart };
  let part = null;
  return Object.entries(whole).map(([path, value]) => {
    const dot = path.indexOf(".");
    if (dot < 0) return `${path}: ${yamlValue(value)}`;
    const head = path.slice(0, dot);
    const line = `  ${path.slice(dot + 1)}: ${yamlValue(value)}`;
    const first = head !== part;
    part = head;
    return first ? `${head}:\n${line}` : line;
  }).join("\n");
}

function runDetails(run) {
  const { message } = data.runs;
  return [
    known(message[run]) && el("p", { class: "note" }, message[run]), evidence(run), meanMap(run),
    el("h4", {}, "Config"), el("pre", { tabindex: 0 }, yaml(run)),
  ];
}

function runsSection() {
  const { runs } = data;
  const rows = runs.run.map((_, row) => row);
  const searched = rows.map((row) => ["run", "status", "task_name", "mixer_name", "label", "message"].map((name) => runs[name][row] ?? "")
    .concat(`d ${runs.d_model[row]}`, `lr ${rate(runs.lr[row])}`, `seed ${runs.seed[row]}`, words(runs.label[row])).join(" ").toLowerCase());
  let wanted = [];
  const find = el("input", { type: "search", id: "find", placeholder: "mamba atr done", oninput: () => {
    wanted = find.value.toLowerCase().split(/\s+/).filter(Boolean);
    sheet.refill();
  } });
  const score = (name, column) => ({ name, number: true, value: (row) => runs[column][row], show: (row) => percent(runs[column][row]) });
  const same = (column) => () => new Set(runs[column]).size < 2;
  const sheet = table({
    label: "all runs", rows, step: 100, marked: (row) => runs.own[row], details: runDetails, passes: (row) => wanted.every((word) => searched[row].includes(word)),
    columns: [
      { name: "run", value: (row) => runs.run[row], show: (row) => el("code", {}, runs.run[row].slice(0, 8)), main: true },
      { name: "mixer", value: (row) => runs.mixer_name[row], show: (row) => breakable(runs.mixer_name[row]), main: true },
      { name: "verdict", value: (row) => words(runs.label[row]), show: badge, main: true },
      { name: "status", value: (row) => runs.status[row] }, { name: "task", value: (row) => runs.task_name[row], hidden: same("task_name") },
      { name: "d", value: (row) => runs.d_model[row], number: true, hidden: same("d_model") },
      { name: "layers", value: (row) => runs.n_layers[row], number: true, hidden: same("n_layers") },
      { name: "lr", value: (row) => runs.lr[row], show: (row) => rate(runs.lr[row]), number: true },
      { name: "seed", value: (row) => runs.seed[row], number: true, hidden: same("seed") },
      { name: "steps", value: (row) => runs.step[row], show: (row) => count(runs.step[row]), number: true },
      score("accuracy %", "test_accuracy"), score("likelihood %", "test_likelihood"),
      { name: "seconds", value: (row) => runs.seconds[row], show: (row) => count(known(runs.seconds[row]) ? Math.round(runs.seconds[row]) : null), number: true },
    ],
  });
  showRun = (id) => {
    find.value = id;
    find.dispatchEvent(new Event("input"));
  };
  return section("runs", "All runs", [
    el("div", { class: "pick" }, el("label", { for: "find" }, "Find"), find),
    el("p", { class: "quiet" }, "Type words from any column to see the rows that contain all of them. Open a row for its evidence, its mean map and its config."), sheet.node,
  ]);
}
