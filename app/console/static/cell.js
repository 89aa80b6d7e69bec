// Forms and streams of a page name the cell that it shows: the cookie may be that of another tab.
export function ofCell(address) {
  const cell = document.body.dataset.cell;
  if (!cell) return address;
  const named = new URL(address, location.href);
  named.searchParams.set("shown", cell);
  return named.href;
}

// Not by their properties: a field may have the name of one.
function name(element, attribute) {
  if (element?.hasAttribute(attribute)) element.setAttribute(attribute, ofCell(element.getAttribute(attribute)));
}

export function nameCell() {
  document.addEventListener("submit", ({ target, submitter }) => {
    if (target.getAttribute("method")?.toLowerCase() !== "post") return;
    name(target, "action");
    name(submitter, "formaction");
  }, true);
}
