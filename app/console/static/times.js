// Times as the visitor chose: as ages ("12 s ago", "in 3 min"; with data-age "12 s"), in local time
// or in UTC. Exact times carry their zone; the title has the time in both.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
const KEY = "fairline-times";
const formats = Object.fromEntries(["UTC", undefined].map((timeZone) => [timeZone ?? "local", new Intl.DateTimeFormat("en-GB", {
  timeZone, year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  hourCycle: "h23", timeZoneName: "short",
})]));

const mode = () => ({ local: "local", utc: "UTC" })[localStorage.getItem(KEY)] ?? "age";

function parts(moment, zone) {
  return Object.fromEntries(formats[zone].formatToParts(moment).map(({ type, value }) => [type, value]));
}

function exact(moment, zone) {
  const { year, month, day, hour, minute, second, timeZoneName } = parts(moment, zone);
  return `${year}-${month}-${day} ${hour}:${minute}:${second} ${timeZoneName}`;
}

function spoken(seconds, age) {
  const size = Math.abs(seconds);
  const [length, name] = UNITS.find(([length]) => size >= 2 * length) ?? UNITS[3];
  const text = `${Math.round(size / length)} ${name}`;
  if (age) return text;
  if (size < 1) return "now";
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

// What the axis of a chart shows: Plotly knows no zones. "local" shifts a time in UTC.
export function charted(text) {
  if (mode() !== "local") return text;
  const { year, month, day, hour, minute, second } = parts(new Date(text), "local");
  return `${year}-${month}-${day} ${hour}:${minute}:${second}`;
}

export const zoneOfCharts = () => (mode() === "local" ? parts(new Date(), "local").timeZoneName : "UTC");

export function showTimes() {
  const zone = mode();
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = Date.parse(time.dateTime);
    const age = "age" in time.dataset;
    const text = age || zone === "age" ? spoken((Date.now() - moment) / 1000, age) : exact(moment, zone);
    if (time.textContent !== text) time.textContent = text;
    if (!time.title || time.title.includes(" / ")) continue;
    const [utc, local] = [exact(moment, "UTC"), exact(moment, "local")];
    if (utc !== local) time.title = `${utc} / ${local}`;
  }
  for (const name of document.querySelectorAll("[data-zone]")) {
    const text = zoneOfCharts();
    if (name.textContent !== text) name.textContent = text;
  }
}

// The choice is offered where it can be remembered; ``afterwards`` draws what does not follow.
export function offerTimes(afterwards) {
  const choice = document.querySelector("[data-times]");
  if (!choice) return;
  choice.hidden = false;
  choice.querySelector("select").value = localStorage.getItem(KEY) ?? "age";
  choice.addEventListener("change", (event) => {
    localStorage.setItem(KEY, event.target.value);
    showTimes();
    afterwards();
  });
  setInterval(showTimes, 1000);
}
