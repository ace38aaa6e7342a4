// Light and dark: the system's choice, unless the reader makes another; paper is always light.

const theme = {
  heard: [],
  paper: false,
  get dark() {
    return !theme.paper && document.documentElement.dataset.theme === "dark";
  },
  set(dark) {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    show();
    theme.changed();
  },
  changed() {
    theme.heard.forEach((tell) => tell());
  },
};

function show() {
  document.getElementById("theme").setAttribute("aria-pressed", String(document.documentElement.dataset.theme === "dark"));
}

document.getElementById("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  try { localStorage.setItem("mecheval-theme", dark ? "dark" : "light"); } catch { /* not kept, then */ }
  theme.set(dark);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => theme.set(event.matches));
show();
