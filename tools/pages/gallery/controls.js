// What is clicked, moved and typed.

function wireCard(article) {
  const card = CARDS[article.dataset.name], svg = article.querySelector("svg");
  const inputs = [...article.querySelectorAll(".sliders input")];
  if (!card || !inputs.length) return;
  const codes = [...article.querySelectorAll(".code code")].map((code) => [code, code.textContent]);
  const reset = article.querySelector(".reset"), message = article.querySelector(".outside");
  const values = { ...card.params };
  function update() {
    for (const input of inputs) {
      const moved = Number(input.value) !== Number(input.defaultValue);
      const exact = input.step === "1" ? Number(input.value) : Number(Number(input.value).toPrecision(3));
      values[input.name] = moved ? exact : card.params[input.name];
      input.closest("label").querySelector("output").textContent = label(values[input.name]);
    }
    const said = outside(card, values);
    message.textContent = said;
    message.hidden = !said;
    reset.hidden = inputs.every((input) => values[input.name] === card.params[input.name]);
    if (!said) draw(card, svg, values);
    for (const [code, text] of codes) {
      code.textContent = text.replace(/"(\w+)": [-+.\de]+/g, (found, name) =>
        name in values ? `"${name}": ${written(values[name], name === card.whole)}` : found)
        .replace(/\b(\w+)=[-+.\de]+/g, (found, name) =>
          name in values ? `${name}=${written(values[name], name === card.whole)}` : found);
    }
  }
  inputs.forEach((input) => input.addEventListener("input", update));
  reset.addEventListener("click", () => {
    inputs.forEach((input) => { input.value = input.defaultValue; });
    update();
    inputs[0].focus();
  });
}
function written(value, isWhole) {
  return isWhole || !Number.isInteger(value) ? String(value) : `${value}.0`;
}
async function copy(button) {
  const code = [...button.closest("details").querySelectorAll(".code")].find((each) => !each.hidden);
  const text = code.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected; press Ctrl+C";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

const find = (id) => document.getElementById(id);
const articles = [...document.querySelectorAll(".card")];
const texts = new Map(articles.map((each) => [each, plain(each.dataset.words)]));
function plain(text) { return text.toLowerCase().replace(/[^a-z0-9. ]+/g, ""); }
function filter() {
  const words = plain(find("search").value).split(/ +/).filter(Boolean), family = find("family").value;
  let shown = 0;
  for (const article of articles) {
    const isMeant = words.every((word) => texts.get(article).includes(word));
    article.hidden = !(isMeant && (!family || article.dataset.family === family));
    shown += !article.hidden;
  }
  for (const section of document.querySelectorAll("section")) {
    section.hidden = !section.querySelector(".card:not([hidden])");
  }
  find("count").textContent = `${shown} of ${articles.length}`;
  find("nothing").hidden = shown > 0;
  remember();
}
function showFramework() {
  for (const code of document.querySelectorAll(".code")) {
    code.hidden = code.dataset.framework !== find("framework").value;
  }
  remember();
}
function showTheme() {
  const theme = find("theme").value;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  remember();
}
// What is chosen stands in the address, to be shared: #search=atan&theme=dark
const CHOICES = ["search", "family", "framework", "theme"];
function remember() {
  const first = (id) => (id === "framework" ? "torch" : "");
  const chosen = CHOICES.filter((id) => find(id).value !== first(id)).map((id) => [id, find(id).value]);
  if (!isRead) return;
  const hash = new URLSearchParams(chosen).toString();
  if (hash || location.hash.includes("=")) history.replaceState(null, "", `#${hash}`);
}
let isRead = false;
const asked = new URLSearchParams(location.hash.slice(1));
for (const id of CHOICES) if (asked.get(id)) find(id).value = asked.get(id);
showTheme();
showFramework();
filter();
isRead = true;
find("search").addEventListener("input", filter);
find("family").addEventListener("change", filter);
find("framework").addEventListener("change", showFramework);
find("theme").addEventListener("change", showTheme);
document.addEventListener("click", (event) => {
  if (event.target.matches(".copy")) copy(event.target);
});
articles.forEach(wireCard);
