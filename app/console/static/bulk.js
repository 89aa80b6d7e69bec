// Many jobs at once: those selected in a list, or all that match a filter, batch by batch.
import { ofCell } from "./cell.js";

const numbers = new Intl.NumberFormat("en");

function watchSelection(form) {
  const status = form.querySelector("[data-selected]");
  const boxes = () => [...form.querySelectorAll("input[name=id]")];
  function update() {
    const selected = boxes().filter((box) => box.checked).length;
    status.textContent = selected ? `${selected} selected` : "";
    for (const button of form.querySelectorAll("button[name=action]")) button.disabled = !selected;
    const all = form.querySelector("[data-select-all]");
    if (all) all.checked = selected > 0 && selected === boxes().length;
  }
  form.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) {
      for (const box of boxes()) box.checked = event.target.checked;
    }
    update();
  });
  document.addEventListener("fairline:parts", update);
  addEventListener("pageshow", update);
  update();
}

function batches(form) {
  const button = form.querySelector("button:not([type=button])");
  const stop = form.querySelector("[data-bulk-stop]");
  const status = form.querySelector("[data-bulk-status]");
  const progress = form.querySelector("[data-bulk-progress]");
  const bar = progress.querySelector("progress");
  // Not form.action: that is its field of this name.
  const address = ofCell(form.getAttribute("action"));
  const sums = { done: 0, asked: 0, later: 0, skipped: 0 };
  let stopped = false;

  function say(state) {
    const parts = [`${numbers.format(sums.done)} ${form.dataset.past}`];
    if (sums.asked) parts.push(`${numbers.format(sums.asked)} running jobs being stopped`);
    if (sums.later) parts.push(`${numbers.format(sums.later)} to follow as fast as the limits of their tenants allow`);
    if (sums.skipped) parts.push(`${numbers.format(sums.skipped)} skipped`);
    status.textContent = `${state} ${parts.join(", ")}.`;
  }

  async function batch() {
    const answer = await fetch(address, {
      method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" },
    });
    if (!answer.ok) throw new Error(`the server returned ${answer.status}`);
    return answer.json();
  }

  async function run() {
    stopped = false;
    button.disabled = true;
    stop.hidden = progress.hidden = false;
    if ("atLeast" in form.dataset) bar.removeAttribute("value");
    try {
      for (let more = true; more && !stopped;) {
        const result = await batch();
        for (const name of Object.keys(sums)) sums[name] += result[name];
        more = result.more;
        if (more) form.elements.cursor.value = result.cursor;
        if (!("atLeast" in form.dataset)) bar.value = sums.done + sums.asked + sums.later + sums.skipped;
        say(more ? "So far:" : "Done:");
        if (!more) {
          bar.max = bar.value = 1;
          button.hidden = true;
        }
      }
      if (stopped && !button.hidden) say("Stopped:");
    } catch (error) {
      say(`Interrupted (${error.message}). The result of the last batch is unknown; press again to continue. Before it:`);
    }
    stop.hidden = true;
    button.disabled = false;
  }

  stop.addEventListener("click", () => (stopped = true));
  form.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    event.preventDefault();
    run();
  });
}

for (const form of document.querySelectorAll("form[data-selection]")) watchSelection(form);
for (const form of document.querySelectorAll("form[data-bulk]")) batches(form);
