// Tables on narrow screens. Those marked by class "stacks" show each row as a block: every cell
// gets the name of its column, and keeps the role that another display would take from it. Whatever
// still has to be scrolled sideways says so: data-cut names the sides where something is hidden.
const ROLES = [["thead, tbody, tfoot", "rowgroup"], ["tr", "row"], ["thead th", "columnheader"], ["tbody th", "rowheader"], ["td", "cell"]];

function labelOf(head) {
  return head.querySelector(".hidden-text, .visually-hidden") ? "" : head.textContent.replace(/[▲▼↕]/gu, "").trim();
}

function label(table) {
  table.setAttribute("role", "table");
  for (const [selector, role] of ROLES) for (const part of table.querySelectorAll(selector)) part.setAttribute("role", role);
  const labels = [...table.querySelectorAll("thead th")].map(labelOf);
  for (const row of table.querySelectorAll("tbody tr")) {
    [...row.cells].forEach((cell, place) => {
      if (cell.tagName === "TD" && labels[place]) cell.dataset.label = labels[place];
      cell.classList.toggle("nothing", ["–", ""].includes(cell.textContent.trim()) && !cell.querySelector("input, button, svg"));
    });
  }
}

function mark(box) {
  const hidden = box.scrollWidth - box.clientWidth;
  const sides = [box.scrollLeft > 1 && "left", box.scrollLeft < hidden - 1 && "right"].filter(Boolean).join(" ");
  if ((box.dataset.cut ?? "") !== sides) box.dataset.cut = sides;
}

const boxes = () => document.querySelectorAll(".table, .top nav");

export function fitTables() {
  for (const table of document.querySelectorAll("table.stacks")) label(table);
  boxes().forEach(mark);
}

export function watchTables() {
  document.addEventListener("scroll", (event) => event.target.matches?.(".table, .top nav") && mark(event.target), { capture: true, passive: true });
  addEventListener("resize", () => boxes().forEach(mark));
  // A filter that fills the screen of a phone is closed until somebody wants it.
  if (matchMedia("(max-width: 40rem)").matches) for (const filter of document.querySelectorAll("details[data-close-narrow]")) filter.open = false;
  fitTables();
}
