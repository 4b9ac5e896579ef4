// Readers choose whose federation they see, and which methods; how the numbers were made is printed, too.
for (const section of document.querySelectorAll(".experiment")) {
  const choices = section.querySelectorAll("select.federation");
  for (const choice of choices) {
    choice.addEventListener("change", () => {
      const name = choice.options[choice.selectedIndex].textContent;
      for (const other of choices) other.value = choice.value;
      const shown = choice.closest(".exhibit");
      let focus = choice;
      for (const exhibit of section.querySelectorAll("[data-federation]")) {
        exhibit.hidden = exhibit.dataset.federation !== name;
        // The select that was used goes away with its exhibit: its counterpart takes over.
        if (shown && !exhibit.hidden && exhibit.dataset.view === shown.dataset.view) focus = exhibit.querySelector("select");
      }
      for (const [root, show] of explorers) if (section.contains(root)) show(Number(choice.value));
      focus.focus();
    });
  }
  for (const button of section.querySelectorAll("[data-method]")) {
    button.addEventListener("click", () => {
      const pressed = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(pressed));
      const exhibit = button.closest(".exhibit");
      for (const part of exhibit.querySelectorAll(`[id*="-method-${button.dataset.method}-"]`)) part.classList.toggle("away", !pressed);
    });
  }
}

let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll(".made details:not([open])")];
  for (const element of closed) element.open = true;
});
addEventListener("afterprint", () => {
  for (const element of closed) element.open = false;
});
