// Times as ages: "12 s ago", "in 3 min"; with data-age "12 s". The exact time stays in the title.
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function spoken(seconds, age) {
  const size = Math.abs(seconds);
  const [length, name] = UNITS.find(([length]) => size >= 2 * length) ?? UNITS[3];
  const told = `${Math.round(size / length)} ${name}`;
  if (age) return told;
  if (size < 1) return "now";
  return seconds >= 0 ? `${told} ago` : `in ${told}`;
}

export function showAges() {
  for (const time of document.querySelectorAll("time[datetime]:not([data-exact])")) {
    const told = spoken((Date.now() - Date.parse(time.dateTime)) / 1000, "age" in time.dataset);
    if (time.textContent !== told) time.textContent = told;
  }
}

setInterval(showAges, 1000);
