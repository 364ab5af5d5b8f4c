// What pages do: choose light or dark, and bring one series of a chart to the front.
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
});
