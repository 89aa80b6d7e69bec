// Draws what is marked by data-chart with Plotly, which is fetched only by pages that have one.
//
// <figure data-chart="lines" id="…" aria-label="…" role="img">
//   <script type="application/json">{"series": [{"name": …, "x": […], "y": […]}], "unit": "jobs"}</script>
// </figure>
//
// Kinds: lines (over time), columns (stacked, by category or day), bars (sideways, side by side).
// Series that share their x may have it once, beside "series". Of a series, "colour" picks one of the six, "dash" draws it dashed, "fill" fills below it.
import { charted, zoneOfCharts } from "./times.js";

let loading = null;
// Plotly brings styles of a map library that no page needs and the policy forbids; it leaves them
// out where an element of this name is there already.
const MAP_STYLES = "9f215cf04c5486422605d13261cb87401f4e7763b6296af81e98efbc0130da53";

// Its script is large: everything else is there, and can be used, before it is asked for.
const loaded = document.readyState === "complete" ? Promise.resolve()
  : new Promise((resolve) => addEventListener("load", () => setTimeout(resolve), { once: true }));

function plotly() {
  if (globalThis.Plotly) return Promise.resolve(globalThis.Plotly);
  loading ??= loaded.then(() => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    document.head.append(Object.assign(document.createElement("template"), { id: MAP_STYLES }));
    script.src = document.querySelector("script[data-plotly]").dataset.plotly;
    script.onload = () => resolve(globalThis.Plotly);
    script.onerror = reject;
    document.head.append(script);
  }));
  return loading;
}

function colours() {
  // A variable holds both themes; an element has the one in force.
  const probe = document.body.appendChild(document.createElement("span"));
  const named = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = { text: named("--quiet"), line: named("--line"), surface: named("--surface"), strong: named("--text"),
    series: [1, 2, 3, 4, 5, 6].map((number) => named(`--chart-${number}`)) };
  probe.remove();
  return found;
}

function trace(kind, series, place, theme, shared) {
  const colour = theme.series[(series.colour ?? place) % theme.series.length];
  const given = series.x ?? shared;
  const x = kind === "lines" ? given.map(charted) : given;
  const common = { name: series.name, x, y: series.y, text: series.text };
  if (kind === "lines") {
    return { ...common, type: "scatter", mode: "lines", connectgaps: false, fill: series.fill ? "tozeroy" : "none",
      fillcolor: colour.replace("rgb(", "rgba(").replace(")", ", 0.13)"), line: { color: colour, width: 2, shape: "linear", dash: series.dash ? "dot" : "solid" } };
  }
  const sideways = kind === "bars";
  return { ...common, type: "bar", orientation: sideways ? "h" : "v", marker: { color: colour },
    x: sideways ? series.y : x, y: sideways ? x : series.y };
}

function layout(kind, data, theme) {
  const axis = { gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line, automargin: true, fixedrange: true, tickfont: { size: 11 } };
  const value = { ...axis, rangemode: "tozero", ticksuffix: data.suffix ?? "", title: data.unit ? { text: data.unit, font: { size: 11 } } : undefined };
  const other = kind === "lines" ? { ...axis, showgrid: false, type: "date", nticks: 6, tickangle: 0 } : { ...axis, showgrid: false, type: "category" };
  const sideways = kind === "bars";
  return {
    margin: { l: 44, r: 12, t: 8, b: 34 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "inherit", size: 12, color: theme.text }, showlegend: data.series.length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 } },
    hovermode: kind === "lines" ? "x unified" : "closest",
    hoverlabel: { bgcolor: theme.surface, bordercolor: theme.line, font: { color: theme.strong, size: 12 } },
    barmode: sideways ? "group" : "stack", bargap: 0.25,
    xaxis: sideways ? value : other, yaxis: sideways ? { ...other, autorange: "reversed" } : value,
  };
}

export async function drawCharts() {
  const charts = [...document.querySelectorAll("[data-chart]")];
  if (!charts.length) return;
  const Plotly = await plotly();
  const theme = colours();
  for (const chart of charts) {
    const source = chart.querySelector("script")?.textContent;
    const state = `${theme.strong}|${zoneOfCharts()}|${source}`;
    if (!source || chart.drawn === state) continue;
    chart.drawn = state;
    const data = JSON.parse(source);
    const kind = chart.dataset.chart;
    let canvas = chart.querySelector(".canvas");
    if (!canvas) {
      canvas = document.createElement("div");
      canvas.className = "canvas";
      chart.append(canvas);
    }
    Plotly.react(canvas, data.series.map((series, place) => trace(kind, series, place, theme, data.x)),
      layout(kind, data, theme), { displayModeBar: false, responsive: true });
  }
}
