// Readers choose the federation and the methods to see; printing opens the details on how the numbers were computed.
for (const section of document.querySelectorAll(".experiment")) {
  const choices = section.querySelectorAll("select.federation");
  for (const choice of choices) {
    choice.addEventListener("change", () => {
      const name = choice.options[choice.selectedIndex].textContent;
      for (const other of choices) other.value = choice.value;
      const current = choice.closest(".exhibit");
      let focus = choice;
      for (const exhibit of section.querySelectorAll("[data-federation]")) {
        exhibit.hidden = exhibit.dataset.federation !== name;
        // The select in use is hidden with its exhibit, so its counterpart gets the focus.
        if (current && !exhibit.hidden && exhibit.dataset.view === current.dataset.view) focus = exhibit.querySelector("select");
      }
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
