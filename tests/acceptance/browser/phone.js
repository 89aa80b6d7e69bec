{
  // Cells, buttons and fields that lie over each other, as text.
  overlapping() {
    const found = [];
    const visible = (one) => one.checkVisibility() && one.getClientRects().length > 0;
    const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
    const compare = (all) => {
      const those = [...all].filter(visible).slice(0, 60);
      for (const [place, one] of those.entries()) {
        for (const other of those.slice(place + 1)) {
          if (one.contains(other) || other.contains(one)) continue;
          if (!meet(one.getBoundingClientRect(), other.getBoundingClientRect())) continue;
          found.push(`${one.outerHTML.slice(0, 90)} | ${other.outerHTML.slice(0, 90)}`);
        }
      }
    };
    for (const row of document.querySelectorAll("main tr")) compare(row.cells);
    for (const box of document.querySelectorAll("main form, .top, .bar, .head")) {
      compare(box.querySelectorAll("button, a, input:not([type=hidden]), select, textarea"));
    }
    return found.slice(0, 5);
  },

  // Buttons, links and fields that cannot be touched: beside the screen, or below something else.
  // What is in a box that scrolls is left aside.
  unreachable() {
    const found = [];
    const scrolls = (box) => box && box.scrollWidth > box.clientWidth + 1;
    const kinds = "button, a, select, textarea, input:not([type=hidden])";
    for (const one of [...document.querySelectorAll(`main :is(${kinds})`)].slice(0, 150)) {
      if (!one.checkVisibility() || one.closest("svg, .canvas")) continue;
      if (scrolls(one.closest(".table"))) continue;
      one.scrollIntoView({ block: "center" });
      const [line] = one.getClientRects();
      if (!line) continue;
      const there = document.elementFromPoint(line.left + line.width / 2, line.top + line.height / 2);
      const own = !there || one.contains(there) || there.contains(one);
      if (line.right > innerWidth + 1 || line.left < -1) found.push(`beside: ${one.outerHTML.slice(0, 120)}`);
      else if (!own) found.push(`below ${there.outerHTML.slice(0, 60)}: ${one.outerHTML.slice(0, 120)}`);
    }
    scrollTo(0, 0);
    return found.slice(0, 5);
  },

  // Boxes that have to be scrolled sideways without a sign of it, and tables that should not.
  silent() {
    return [...document.querySelectorAll(".table, .top nav")].flatMap((box) => {
      const name = box.getAttribute("aria-label") ?? box.outerHTML.slice(0, 90);
      if (box.scrollWidth <= box.clientWidth + 1) return [];
      if (box.querySelector("table.stacks")) return [`scrolls: ${name}`];
      const told = box.dataset.cut && getComputedStyle(box).boxShadow.includes("inset");
      return told ? [] : [`silent: ${name}`];
    });
  },
}
