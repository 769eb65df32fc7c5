/** Light or dark: the system's, until the button says otherwise. */

import { byId } from "./dom.js";

const KEPT = "t5gemma2-theme";
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");

const shown = () => root.dataset.theme ?? (dark.matches ? "dark" : "light");

function label() {
  const other = shown() === "dark" ? "light" : "dark";
  byId("theme").textContent = other === "dark" ? "Dark" : "Light";
  byId("theme").setAttribute("aria-label", `Use the ${other} theme`);
}

export function begin() {
  const kept = localStorage.getItem(KEPT);
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  byId("theme").addEventListener("click", () => {
    root.dataset.theme = shown() === "dark" ? "light" : "dark";
    localStorage.setItem(KEPT, root.dataset.theme);
    label();
  });
  dark.addEventListener("change", label);
  label();
}
