// What the theme leaves out. The menu's button is a label, which the keyboard does not reach.
(function () {
  for (const label of document.querySelectorAll("label.md-header__button[for=__drawer]")) {
    label.tabIndex = 0;
    label.setAttribute("role", "button");
    label.setAttribute("aria-label", "Menu");
    label.addEventListener("keydown", (event) => {
      if (event.key !== " ") return; // the theme clicks at Enter
      event.preventDefault();
      label.click();
    });
  }
  document.addEventListener("keydown", (event) => {
    const drawer = document.getElementById("__drawer");
    if (event.key === "Escape" && drawer && drawer.checked) drawer.click();
  });
})();

// The gallery within a page has the colors of the page, also after its toggle was pressed.
(function () {
  let frame = document.querySelector("iframe.gallery");
  if (!frame) return;
  function show() {
    const dark = document.body.getAttribute("data-md-color-scheme") === "slate";
    const address = `${frame.dataset.src}#theme=${dark ? "dark" : "light"}`;
    if (frame.getAttribute("src") === address) return;
    const next = frame.cloneNode(false); // a change after the # alone loads nothing
    next.setAttribute("src", address);
    frame.replaceWith(next);
    frame = next;
  }
  const observer = new MutationObserver(show);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  show();
})();
