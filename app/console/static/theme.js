// Before anything is drawn: light or dark as the visitor chose it, or else as the system has it.
document.documentElement.classList.add("scripted");
const chosen = localStorage.getItem("fairline-theme");
if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
