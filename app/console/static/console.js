// On every page: stay up to date, show ages, draw charts, switch the theme.
import { drawCharts } from "./charts.js";
import { showAges } from "./ages.js";
import { stayLive } from "./live.js";
import { offerThemes } from "./theme-switch.js";
import { confirmForms } from "./confirm.js";

document.querySelector("nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
showAges();
offerThemes(drawCharts);
confirmForms();
drawCharts();
stayLive(() => {
  showAges();
  drawCharts();
});
