// On every page: stay up to date, show times, draw charts, switch the theme.
import { nameCell } from "./cell.js";
import { drawCharts } from "./charts.js";
import { offerTimes, showTimes } from "./times.js";
import { fitTables, watchTables } from "./tables.js";
import { stayLive } from "./live.js";
import { offerThemes } from "./theme-switch.js";
import { confirmForms } from "./confirm.js";

document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
showTimes();
offerThemes(drawCharts);
offerTimes(drawCharts);
nameCell();
confirmForms();
watchTables();
drawCharts();
stayLive(() => {
  showTimes();
  fitTables();
  drawCharts();
});
