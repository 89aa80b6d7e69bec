// Times as ages: "12 s ago", "in 3 min"; with data-age "12 s". The exact time stays in the title.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function spoken(seconds, age) {
  const size = Math.abs(seconds);
  const [length, name] = UNITS.find(([length]) => size >= 2 * length) ?? UNITS[3];
  const text = `${Math.round(size / length)} ${name}`;
  if (age) return text;
  if (size < 1) return "now";
  return seconds >= 0 ? `${text} ago` : `in ${text}`;
}

export function showAges() {
  for (const time of document.querySelectorAll("time[datetime]:not([data-exact])")) {
    const text = spoken((Date.now() - Date.parse(time.dateTime)) / 1000, "age" in time.dataset);
    if (time.textContent !== text) time.textContent = text;
  }
}

setInterval(showAges, 1000);
