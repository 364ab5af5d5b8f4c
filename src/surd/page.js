// What pages do: choose light or dark, bring one series of a chart to the front, and tell the numbers of a picture.
"use strict";

const themes = ["auto", "light", "dark"];
const root = document.documentElement;

function remembered() {
  try { return localStorage.getItem("surd-theme") || "auto"; } catch { return "auto"; }
}

function show(theme) {
  if (theme === "auto") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", theme);
  const button = document.getElementById("theme");
  if (button) button.textContent = "colours: " + theme;
}

show(remembered());

document.addEventListener("DOMContentLoaded", () => {
  let theme = remembered();
  const button = document.getElementById("theme");
  button.hidden = false;
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    try { localStorage.setItem("surd-theme", theme); } catch { /* a page opened from a file may not store */ }
    show(theme);
  });

  for (const figure of document.querySelectorAll("figure")) {
    const drawing = figure.querySelector("svg");
    const pick = (color) => {
      drawing.classList.toggle("picking", color !== null);
      for (const group of drawing.querySelectorAll(".series"))
        group.classList.toggle("picked", group.dataset.color === color);
    };
    for (const item of figure.querySelectorAll(".legend li[data-color]")) {
      item.tabIndex = 0;
      for (const event of ["pointerenter", "focus"]) item.addEventListener(event, () => pick(item.dataset.color));
      for (const event of ["pointerleave", "blur"]) item.addEventListener(event, () => pick(null));
    }
  }

  // The number under the pointer, or at the focus, is told beneath; arrow keys lead on, to the left and right or down.
  for (const picture of document.querySelectorAll(".bars, figure:has(table.heat)")) {
    const line = picture.querySelector(".readout");
    const rest = line.textContent;
    const rows = [...picture.querySelectorAll(".bar, table.heat tbody tr")].map((row) =>
      row.matches(".bar") ? [row] : [...row.querySelectorAll("td")]);
    rows.forEach((row, y) => row.forEach((place, x) => {
      for (const event of ["pointerenter", "focus"]) place.addEventListener(event, () => { line.textContent = place.title; });
      for (const event of ["pointerleave", "blur"]) place.addEventListener(event, () => { line.textContent = rest; });
      place.addEventListener("keydown", (event) => {
        const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
        const step = steps[event.key];
        const next = step && rows[y + step[0]]?.[x + step[1]];
        if (!step) return;
        event.preventDefault();
        next?.focus();
      });
    }));
  }
});
