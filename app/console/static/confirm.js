// Forms that ask before they are sent: <form data-confirm="Cancel 12 jobs?">.
export function confirmForms() {
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
}
