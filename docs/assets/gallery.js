// The gallery within a page has the colors of the page, also after its toggle was pressed.
(function () {
  const frame = document.querySelector("iframe.gallery");
  if (!frame) return;
  const page = frame.dataset.src;
  let shown = frame;
  function show() {
    const dark = document.body.getAttribute("data-md-color-scheme") === "slate";
    const address = `${page}#theme=${dark ? "dark" : "light"}`;
    if (shown.getAttribute("src") === address) return;
    const next = frame.cloneNode(false); // a change after the # alone loads nothing
    next.setAttribute("src", address);
    shown.replaceWith(next);
    shown = next;
  }
  const observer = new MutationObserver(show);
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-md-color-scheme"] });
  show();
})();
