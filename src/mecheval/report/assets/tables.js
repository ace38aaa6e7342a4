// Tables that sort, filter, open and grow on demand; and chips that filter tables and charts together.

const STEP = 50;
const BRIEF = 12; // largest number of rows for which no count is shown
const LONG = 24; // characters from which a cell may break its lines

// columns: [{ name, value(row), show(row)?, number?, hidden?(), main? }]; rows: plain numbers; details(row): what a row opens;
// marked(row): the reader's own. On a phone each row is a card, in which all cells but the `main` ones carry their names.
function table({ columns, rows, details = null, step = STEP, label, passes = () => true, marked = () => false }) {
  const state = { by: null, down: false, shown: step, open: new Set() };
  const head = el("tr");
  const body = el("tbody");
  const more = button("", () => { state.shown += step; fill(); }, { class: "more" });
  const status = el("p", { class: "count", role: "status" });
  const node = el("div", { class: "sheet" },
    el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
      el("table", {}, el("thead", {}, head), body)),
    el("div", { class: "under" }, status, more));
  const under = node.lastChild;

  function sorted() {
    const there = rows.filter(passes);
    if (state.by === null) return there;
    const { value } = columns[state.by];
    const sign = state.down ? -1 : 1;
    return there.map((row, place) => [row, value(row), place]).sort(([, a, i], [, b, j]) => {
      if (!known(a) || !known(b)) return known(b) - known(a) || i - j; // what is missing stands last, either way
      const order = typeof a === "string" || typeof b === "string"
        ? String(a).localeCompare(String(b), "en", { numeric: true }) : a - b;
      return sign * order || i - j;
    }).map(([row]) => row);
  }

  function heads() {
    head.replaceChildren(...(details ? [el("th", {}, el("span", { class: "unseen" }, "details"))] : []),
      ...columns.map((column, place) => {
        if (column.hidden && column.hidden()) return null;
        const on = state.by === place;
        const sort = button(column.name, () => {
          Object.assign(state, { by: place, down: on ? !state.down : Boolean(column.number), shown: step });
          fill();
          head.children[[...head.children].findIndex((th) => th.dataset.place === String(place))].firstChild.focus();
        }, { class: "sort" });
        return el("th", {
          scope: "col", class: column.number && "number", "data-place": place,
          "aria-sort": on ? (state.down ? "descending" : "ascending") : "none",
        }, sort);
      }).filter(Boolean));
  }

  function line(row) {
    const cells = columns.filter((column) => !(column.hidden && column.hidden())).map((column) => {
      const shown = column.show ? column.show(row) : shownValue(column.value(row));
      const look = column.number ? "number" : typeof shown === "string" && shown.length > LONG && "long";
      return el("td", { class: column.main ? `main ${look || ""}` : look, "data-name": column.name }, shown);
    });
    const own = marked(row) && "own";
    if (!details) return el("tr", { class: own }, cells);
    const toggle = button("", () => {
      if (!state.open.delete(row)) state.open.add(row);
      open();
    }, { class: "open", "aria-label": "details" });
    const tr = el("tr", { class: own }, el("td", {}, toggle), cells);
    let below = null;
    function open() {
      const is = state.open.has(row);
      toggle.setAttribute("aria-expanded", String(is));
      if (is && !below) {
        below = el("tr", { class: "below" }, el("td", { colspan: cells.length + 1 }, el("div", { class: "inside" }, details(row))));
        tr.after(below);
      } else if (!is && below) {
        below.remove();
        below = null;
      }
    }
    toggle.setAttribute("aria-expanded", String(state.open.has(row)));
    queueMicrotask(open);
    return tr;
  }

  function fill() {
    heads();
    const there = sorted();
    body.replaceChildren(...there.slice(0, state.shown).map(line));
    const left = there.length - state.shown;
    more.hidden = left <= 0;
    under.hidden = there.length === rows.length && rows.length <= Math.min(BRIEF, step);
    more.textContent = `Show ${Math.min(step, left)} more`;
    status.textContent = there.length === rows.length && left <= 0 ? plural(rows.length, "row")
      : `${count(Math.min(there.length, state.shown))} of ${plural(there.length, "row")}`
        + (there.length < rows.length ? ` (${count(rows.length)} without filters)` : "");
  }
  fill();
  return { node, refill() { state.shown = step; fill(); } };
}

const shownValue = (value) => (known(value) ? String(value) : MISSING);

// Chips: none pressed means all. `chips` are [{ axis, name, values }]; `tell` is called after every change.
function chipBar(chips, tell) {
  const chosen = Object.fromEntries(chips.map((chip) => [chip.axis, new Set()]));
  const reset = button("Show all", () => {
    Object.values(chosen).forEach((set) => set.clear());
    pressed();
  }, { class: "quiet", hidden: true });
  const buttons = [];

  function pressed() {
    buttons.forEach(([node, axis, value]) => node.setAttribute("aria-pressed", String(chosen[axis].has(value))));
    reset.hidden = Object.values(chosen).every((set) => set.size === 0);
    tell();
  }

  function one(chip) {
    return el("div", { class: "chips", role: "group", "aria-label": `filter by ${chip.name}` },
      el("span", { class: "axis" }, chip.name),
      chip.values.map((value) => {
        const node = button(value, () => {
          if (!chosen[chip.axis].delete(value)) chosen[chip.axis].add(value);
          pressed();
        }, { class: "chip", "aria-pressed": "false" });
        buttons.push([node, chip.axis, value]);
        return node;
      }));
  }
  const shown = chips.filter((chip) => chip.values.length > 1);
  const node = shown.length ? el("div", { class: "filters" }, shown.map(one), reset) : null;
  return { node, has: (axis, value) => !chosen[axis] || chosen[axis].size === 0 || chosen[axis].has(value), chosen };
}
