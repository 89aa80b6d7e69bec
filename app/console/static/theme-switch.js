// The button that switches between light and dark; ``afterwards`` draws what does not follow by itself.
export function offerThemes(afterwards) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => afterwards());
  const button = document.querySelector("[data-theme-switch]");
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("fairline-theme", root.dataset.theme);
    afterwards();
  });
}
