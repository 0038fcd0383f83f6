"use strict";
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const config = {
    displaylogo: false,
    responsive: true,
    showSendToCloud: false,
    showLink: false,
    showEditInChartStudio: false,
    plotlyServerURL: "",
    typesetMath: false,
    modeBarButtonsToRemove: ["sendChartToCloud", "lasso2d", "select2d", "autoScale2d"],
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PAPER = 690; // what A4 and Letter have between margins of 12 mm
  let printing = false;
  let chosenAxis = "step";

  function colours() {
    const styles = getComputedStyle(document.documentElement);
    const one = (name) => styles.getPropertyValue(name).trim();
    if (printing) return { ink: "#000000", line: "#bbbbbb", box: "#ffffff", paper: "#ffffff" };
    return { ink: one("--ink"), line: one("--line"), box: one("--box"), paper: one("--paper") };
  }

  function axis(given, shades) {
    const own = { gridcolor: shades.line, linecolor: shades.line, zerolinecolor: shades.line, tickcolor: shades.line };
    return Object.assign(own, given);
  }

  function layout(chart) {
    const shades = colours();
    const narrow = document.documentElement.clientWidth < 640;
    const given = chart.layout;
    const made = Object.assign(
      {
        autosize: true,
        margin: { l: narrow ? 44 : 64, r: narrow ? 8 : 24, t: 36, b: 48 },
        showlegend: true,
      },
      given
    );
    if (printing) Object.assign(made, { autosize: false, width: PAPER, height: chart.height });
    made.paper_bgcolor = "rgba(0,0,0,0)";
    made.plot_bgcolor = "rgba(0,0,0,0)";
    made.font = { color: shades.ink, size: narrow ? 10 : 12, family: "system-ui, sans-serif" };
    made.hoverlabel = { bgcolor: shades.box, bordercolor: shades.line, font: { color: shades.ink } };
    made.xaxis = axis(given.xaxis, shades);
    const other = chart.axes && chart.axes[chosenAxis];
    if (other) made.xaxis = Object.assign({}, made.xaxis, { title: { text: other.title } });
    made.yaxis = axis(given.yaxis, shades);
    if (given.annotations) {
      const own = { bgcolor: shades.paper, font: { color: shades.ink, size: narrow ? 9 : 11 } };
      made.annotations = given.annotations.map((one) => Object.assign({}, one, own));
    }
    if (chart.data.length < 2 && given.showlegend === undefined) made.showlegend = false;
    return made;
  }

  // What plotly gets: the traces as they are, or over the axis that the reader has chosen.
  function data(chart) {
    const axis = chart.axes && chart.axes[chosenAxis];
    if (!axis) return chart.data;
    return chart.data.map((trace, at) =>
      axis.x[at] ? Object.assign({}, trace, { x: axis.x[at] }) : Object.assign({}, trace, { visible: false })
    );
  }

  function place(chart) {
    return document.getElementById(chart.id);
  }

  async function draw() {
    for (const chart of charts) {
      const box = place(chart);
      box.textContent = "";
      await Plotly.newPlot(box, data(chart), layout(chart), config);
    }
  }

  function recolour() {
    for (const chart of charts) Plotly.react(place(chart), data(chart), layout(chart), config);
  }

  function choose(name) {
    chosenAxis = name;
    for (const button of document.querySelectorAll("#curve-axis button")) {
      button.setAttribute("aria-pressed", String(button.dataset.axis === name));
    }
    for (const chart of charts) {
      if (chart.axes) Plotly.react(place(chart), data(chart), layout(chart), config);
    }
  }

  const choice = document.getElementById("curve-axis");
  if (choice) {
    choice.append("over ");
    for (const [name, words] of [["step", "steps"], ["wall", "wall time"], ["productive", "productive time"]]) {
      const button = document.createElement("button");
      button.type = "button";
      button.dataset.axis = name;
      button.textContent = words;
      button.setAttribute("aria-pressed", String(name === chosenAxis));
      button.addEventListener("click", () => choose(name));
      choice.append(button);
    }
    choice.hidden = false;
  }

  function value(cell) {
    if (cell === undefined) return null;
    if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
    return cell.textContent === "" ? null : cell.textContent;
  }

  function compare(one, other) {
    if (one === null || other === null) return 0;
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one).localeCompare(String(other), undefined, { numeric: true });
  }

  function sortBy(table, heads, place) {
    const down = heads[place].getAttribute("aria-sort") === "ascending";
    for (const head of heads) head.removeAttribute("aria-sort");
    heads[place].setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => [value(row.cells[place]), row]);
    const known = rows.filter((row) => row[0] !== null);
    known.sort((one, other) => compare(one[0], other[0]) * (down ? -1 : 1));
    body.append(...known.map((row) => row[1]), ...rows.filter((row) => row[0] === null).map((row) => row[1]));
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sortBy(table, heads, place));
      head.replaceChildren(button);
    });
  }

  draw().then(
    () => { document.body.dataset.ready = "yes"; },
    (error) => { document.body.dataset.ready = "no"; throw error; }
  );
  dark.addEventListener("change", recolour);
  addEventListener("beforeprint", () => { printing = true; recolour(); });
  addEventListener("afterprint", () => { printing = false; recolour(); });
})();
