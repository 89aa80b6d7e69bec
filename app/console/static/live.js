// Keeps the parts of a page that are marked by data-live up to date.
//
// The stream is closed while the tab is hidden. A part in which somebody types is not replaced, nor
// one in which something is selected, until nothing is. Open details, the focus and how far tables are scrolled survive.
import { ofCell } from "./cell.js";

const banner = document.querySelector("[data-connection]");

function say(text, stale = false) {
  document.body.classList.toggle("stale", stale);
  if (!banner) return;
  banner.textContent = text;
  banner.hidden = !text;
}

function isTyping(part) {
  const active = document.activeElement;
  return part.contains(active) && active.matches("input:not([type=checkbox]), select, textarea");
}

const hasSelection = (part) => part.querySelector("input[type=checkbox]:checked") !== null;

function keep(part) {
  const opened = new Set([...part.querySelectorAll("details[open][id]")].map((details) => details.id));
  const focused = part.contains(document.activeElement) ? document.activeElement : null;
  const name = focused && (focused.id ? `#${CSS.escape(focused.id)}` : focused.value && `[value="${CSS.escape(focused.value)}"]`);
  const scrolled = [...part.querySelectorAll(".table")].map((box) => box.scrollLeft);
  return () => {
    part.querySelectorAll(".table").forEach((box, place) => { if (scrolled[place]) box.scrollLeft = scrolled[place]; });
    for (const details of part.querySelectorAll("details[id]")) if (opened.has(details.id)) details.open = true;
    if (name) part.querySelector(name)?.focus({ preventScroll: true });
  };
}

function place(part, html) {
  const fresh = document.createElement("template");
  fresh.innerHTML = html;
  // A chart keeps its canvas and is redrawn from the new data.
  for (const chart of fresh.content.querySelectorAll("[data-chart][id]")) {
    const drawn = document.getElementById(chart.id);
    if (!drawn || !part.contains(drawn)) continue;
    drawn.querySelector("script").textContent = chart.querySelector("script").textContent;
    drawn.setAttribute("aria-label", chart.getAttribute("aria-label") ?? "");
    chart.replaceWith(drawn);
  }
  const restore = keep(part);
  part.replaceChildren(fresh.content);
  restore();
}

export function stayLive(afterwards) {
  const events = document.body.dataset.liveEvents;
  if (!events || !document.querySelector("[data-live]")) return;
  const address = ofCell(`${events}?page=${encodeURIComponent(location.pathname + location.search)}`);
  let source = null;
  // Newest HTML by part, not shown yet while something is selected.
  const held = new Map();

  function show() {
    for (const [name, html] of held) {
      const part = document.querySelector(`[data-live="${CSS.escape(name)}"]`);
      if (part && (isTyping(part) || hasSelection(part))) continue;
      held.delete(name);
      if (part) place(part, html);
    }
    say([...held.keys()].some((name) => hasSelection(document.querySelector(`[data-live="${CSS.escape(name)}"]`)))
      ? "Updates are paused while something is selected." : "");
    afterwards();
    document.dispatchEvent(new CustomEvent("fairline:parts"));
  }

  function open() {
    if (source || document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("parts", (event) => {
      for (const [name, html] of Object.entries(JSON.parse(event.data))) held.set(name, html);
      show();
    });
    source.addEventListener("away", () => say("The database is not responding. This page may be out of date.", true));
    source.addEventListener("gone", () => {
      close();
      say("What this page shows no longer exists.", true);
    });
    source.addEventListener("open", () => say(""));
    source.addEventListener("error", () => {
      say("Connection lost. Reconnecting …", true);
      if (source?.readyState === EventSource.CLOSED) refused();
    });
  }

  // Rejected rather than lost: without access any more, reloading leads to the sign-in page.
  async function refused() {
    close();
    const answer = await fetch(address, { method: "HEAD" }).catch(() => null);
    if (answer?.status === 401 || answer?.status === 403) location.reload();
    else setTimeout(open, 5000);
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("change", () => held.size && show());
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
