// The page: sliders redraw curves, the search and the selects filter, buttons copy.
// What is drawn, and how, is as in sampling.py, curves.py and svg.py.

const POINTS = 401, STEEP = 0.01, CLOSE = 1e-9, MOST = 6000, ROUNDING = 1e-12, DRAWS = 200, DOTS = 161;
const WINDOWS = [0.2, 0.5, 2, 4, 8, 16, 32], USUAL = 2, WIDE = 8;
const WIDTH = 340, HEIGHT = 200, LEFT = 40, RIGHT = 10, TOP = 20, BOTTOM = 34, TICKS = 5;
const EXAMPLE = [0.9, -0.4, 1.6, 0.2, -1.2, 0.7, 2.2, -0.1, -0.8, 0.5, 1.1, -1.9];

function spaced(low, high, count) {
  return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
}
function finite(ys) { return ys.map((y) => (Number.isFinite(y) ? y : NaN)); }
function heightOf(ys) {
  const known = ys.filter(Number.isFinite);
  const low = Math.min(...known), high = Math.max(...known);
  return high - low > ROUNDING * Math.max(-low, high) ? high - low : 0;
}

// More points where a curve is steep, a break (NaN) where it jumps.
function sample(formula, xs, steep = STEEP) {
  let ys = finite(formula(xs));
  const close = CLOSE * (xs[xs.length - 1] - xs[0]);
  for (;;) {
    const limit = steep * heightOf(ys), middles = [];
    for (let i = 0; i + 1 < xs.length; i += 1) {
      if (limit > 0 && Math.abs(ys[i + 1] - ys[i]) > limit && xs[i + 1] - xs[i] > close) {
        middles.push(i);
      }
    }
    if (!middles.length || xs.length > MOST) break;
    const between = middles.map((i) => 0.5 * (xs[i] + xs[i + 1]));
    const values = finite(formula(between)), allX = [], allY = [];
    for (let i = 0, next = 0; i < xs.length; i += 1) {
      allX.push(xs[i]);
      allY.push(ys[i]);
      if (middles[next] === i) {
        allX.push(between[next]);
        allY.push(values[next]);
        next += 1;
      }
    }
    [xs, ys] = [allX, allY];
  }
  const limit = steep * heightOf(ys), points = [];
  xs.forEach((x, i) => {
    const jumps = i > 0 && limit > 0 && Math.abs(ys[i] - ys[i - 1]) > limit;
    if (jumps && x - xs[i - 1] <= close) points.push([x, NaN]);
    points.push([x, ys[i]]);
  });
  return points;
}
function chooseWindow(formula) {
  const sizes = spaced(Math.log(1e-4), Math.log(64), 400).map(Math.exp);
  const xs = [...sizes.map((x) => -x).reverse(), 0, ...sizes], ys = finite(formula(xs));
  const change = ys.slice(1).map((y, i) => Math.abs(y - ys[i]) || 0);
  const place = change.map((_, i) => Math.min(Math.abs(xs[i]), Math.abs(xs[i + 1])));
  const total = sum(change);
  if (total === 0) return USUAL;
  const part = (keep) => sum(change.filter((_, i) => keep(place[i])));
  for (const width of WINDOWS) {
    const isShown = part((x) => x >= 0.6 * width) <= 0.25 * total;
    if (isShown && (width >= USUAL || part((x) => x < width / 50) < 0.5 * total)) return width;
  }
  return WIDE;
}

// --- curves ------------------------------------------------------------------------------------

function valuesOf(card, values) {
  const f = card.f[card.whole ? String(values[card.whole]) : ""];
  return (gradOut, tin, random) => {
    const result = f({ ...values, grad_out: gradOut, tin }, random);
    return Array.isArray(result) ? result : gradOut.map(() => result);
  };
}
function formulas(card, values) {
  const apply = valuesOf(card, values);
  if (card.over === "input") {
    return [(xs, random) => apply(xs.map(() => 1), xs, random)];
  }
  if (card.over === "one") return [(xs) => xs.map((x) => apply([x], [0])[0])];
  return card.sides.map((side) => (xs, random) => apply(xs, xs.map(() => side), random));
}
// Output and gradient of a Function.
function functionValues(card, values) {
  return card.f[card.whole ? String(values[card.whole]) : ""].map((f) => (xs, random) => {
    const result = f({ ...values, [card.input]: xs, grad_out: xs.map(() => 1) }, random);
    return Array.isArray(result) ? result : xs.map(() => result);
  });
}
function functionCurves(card, values) {
  const both = functionValues(card, values), kinds = ["forward", "curve c0 surrogate"];
  if (card.over === "vector") {
    const points = (ys) => ys.map((y, i) => [i, y]);
    const drawn = both.map((f, i) => ({ kind: `curve c${i}`, points: points(f(EXAMPLE, seeded(0))) }));
    return [{ kind: "unchanged", points: points(EXAMPLE) }, ...drawn];
  }
  const xs = spaced(-USUAL, USUAL, POINTS);
  return both.map((f, i) => card.random[i]
    ? drawMany(f, USUAL, kinds[i])
    : { kind: kinds[i], points: sample((at) => f(at, seeded(0)), xs) });
}
function curvesOf(card, values) {
  if (card.input) return functionCurves(card, values);
  const kind = (i) => `curve c${i} surrogate`;
  if (card.over === "vector") {
    const places = EXAMPLE.map((_, i) => i), tin = spaced(-2, 2, EXAMPLE.length);
    const after = valuesOf(card, values)(EXAMPLE, tin, seeded(0));
    return [
      { kind: "unchanged", points: places.map((x, i) => [x, EXAMPLE[i]]) },
      { kind: "curve c0", points: places.map((x, i) => [x, after[i]]) },
    ];
  }
  const isInput = card.over === "input", all = formulas(card, values);
  let width = isInput ? WIDE : USUAL;
  if (isInput && !card.random) width = chooseWindow(all[0]);
  const xs = spaced(-width, width, POINTS);
  const same = isInput ? [] : [{ kind: "unchanged", points: xs.map((x) => [x, x]) }];
  const drawn = all.map((formula, i) =>
    card.random ? drawMany(formula, width, kind(i)) : { kind: kind(i), points: sample(formula, xs) },
  );
  return [...same, ...drawn];
}
function drawMany(formula, width, kind) {
  const at = (xs, random) => xs.map((x) => formula(Array(DRAWS).fill(x), random));
  const places = spaced(-width, width, DOTS);
  const points = sample((xs) => at(xs, seeded(1)).map(mean), places, 0.25);
  const random = seeded(2), one = seeded(3);
  const drawn = at(points.map(([x]) => x), random);
  const side = (q) => drawn.map((each, i) => (Number.isNaN(points[i][1]) ? NaN : quantile(each, q)));
  const dots = formula(places, one).map((y, i) => [places[i], y]);
  return { kind, points, dots, band: [side(0.05), side(0.95)] };
}

// --- drawing -----------------------------------------------------------------------------------

function makeScale(low, high, start, end) {
  const factor = (end - start) / (high - low);
  const scale = (value) => start + (value - low) * factor;
  scale.ticks = () => {
    const rough = (high - low) / TICKS, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((each) => each >= rough);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
  };
  return scale;
}
function scalesOf(curves, isVector) {
  const xs = curves.flatMap((curve) => curve.points.map(([x]) => x));
  const ys = [0, ...curves.flatMap((curve) => [
    ...curve.points.map(([, y]) => y), ...(curve.band ?? []).flat(),
    ...(curve.dots ?? []).map(([, y]) => y),
  ])].filter(Number.isFinite);
  const low = ys.reduce((a, b) => Math.min(a, b)), high = ys.reduce((a, b) => Math.max(a, b));
  const pad = 0.06 * (high - low) || 1, margin = isVector ? 0.5 : 0;
  const ends = [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))];
  return [
    makeScale(ends[0] - margin, ends[1] + margin, LEFT, WIDTH - RIGHT),
    makeScale(low - pad, high + pad, HEIGHT - BOTTOM, TOP),
  ];
}
function element(name, attributes, text = "") {
  const words = Object.entries(attributes).map(([key, value]) => ` ${key}="${value}"`);
  return `<${name}${words.join("")}>${text}</${name}>`;
}
function label(value) { return String(Number(value.toPrecision(6))).replace("-", "\u2212"); }
function drawAxes(xScale, yScale) {
  const bottom = HEIGHT - BOTTOM, right = WIDTH - RIGHT, parts = [];
  for (const tick of xScale.ticks()) {
    const x = xScale(tick).toFixed(1);
    parts.push(element("path", { class: "grid", d: `M${x} ${TOP}V${bottom}` }));
    parts.push(element("text", { class: "tick middle", x, y: bottom + 13 }, label(tick)));
  }
  for (const tick of yScale.ticks()) {
    const y = yScale(tick);
    const kind = tick === 0 ? "zero" : "grid";
    parts.push(element("path", { class: kind, d: `M${LEFT} ${y.toFixed(1)}H${right}` }));
    parts.push(element("text", { class: "tick end", x: LEFT - 5, y: y + 3 }, label(tick)));
  }
  return parts;
}
function linePath(points, xScale, yScale) {
  let path = "", run = 0;
  for (const [x, y] of points) {
    if (!Number.isFinite(y)) {
      if (run === 1) path += "h0";
      run = 0;
    } else {
      path += `${run ? "L" : "M"}${xScale(x).toFixed(1)} ${yScale(y).toFixed(1)}`;
      run += 1;
    }
  }
  return run === 1 ? `${path}h0` : path;
}
function bandPath(curve, xScale, yScale) {
  const [low, high] = curve.band, parts = [];
  let there = [], back = [];
  const close = () => {
    if (there.length) parts.push(`M${[...there, ...back.reverse()].join("L")}Z`);
    [there, back] = [[], []];
  };
  curve.points.forEach(([x, y], i) => {
    if (Number.isNaN(y)) close();
    else {
      there.push(`${xScale(x).toFixed(1)} ${yScale(low[i]).toFixed(1)}`);
      back.push(`${xScale(x).toFixed(1)} ${yScale(high[i]).toFixed(1)}`);
    }
  });
  close();
  return parts.join("");
}
function drawStems(curve, xScale, yScale) {
  const side = { unchanged: -3, "curve c1": 6 }[curve.kind] ?? 3, zero = yScale(0).toFixed(1);
  return curve.points.flatMap(([place, value]) => {
    const x = (xScale(place) + side).toFixed(1), y = yScale(value).toFixed(1);
    return [
      element("path", { class: curve.kind, d: `M${x} ${zero}V${y}` }),
      element("circle", { class: `${curve.kind} end`, cx: x, cy: y, r: 2.5 }),
    ];
  });
}
function drawCurve(curve, xScale, yScale) {
  const parts = [];
  if (curve.band) parts.push(element("path", { class: `band ${curve.kind}`, d: bandPath(curve, xScale, yScale) }));
  for (const [x, y] of curve.dots ?? []) {
    const at = { cx: xScale(x).toFixed(1), cy: yScale(y).toFixed(1) };
    parts.push(element("circle", { class: `dot ${curve.kind}`, ...at, r: 1.3 }));
  }
  parts.push(element("path", { class: curve.kind, d: linePath(curve.points, xScale, yScale) }));
  return parts;
}
// Draw a rule with these numbers; its default stays behind as a dashed line.
function draw(card, svg, values) {
  const isDefault = Object.keys(values).every((name) => values[name] === card.params[name]);
  const curves = curvesOf(card, values), [first] = curves;
  if (!isDefault && card.over === "function" && !card.random.some(Boolean)) {
    curves.unshift({ kind: "ghost", points: functionCurves(card, card.params)[1].points });
  } else if (!isDefault && !card.input && !card.random && card.over !== "vector") {
    const xs = spaced(first.points[0][0], first.points[first.points.length - 1][0], POINTS);
    const behind = formulas(card, card.params).map((formula) => sample(formula, xs));
    curves.unshift(...behind.map((points) => ({ kind: "ghost", points })));
  }
  const [xScale, yScale] = scalesOf(curves, card.over === "vector");
  const one = card.over === "vector" ? drawStems : drawCurve;
  const words = [...svg.querySelectorAll(".label")].map((each) => each.outerHTML);
  const parts = curves.flatMap((curve) => one(curve, xScale, yScale));
  svg.innerHTML = [...drawAxes(xScale, yScale), ...words, ...parts].join("");
}

// --- ranges ------------------------------------------------------------------------------------

const HOLDS = {
  ">": (a, b) => a > b, ">=": (a, b) => a >= b, "<": (a, b) => a < b, "<=": (a, b) => a <= b,
  "!=": (a, b) => a !== b,
};
// What is out of its range, as the library would say it.
function outside(card, values) {
  for (const [name, range] of Object.entries(card.ranges)) {
    for (const condition of range.split(" and ")) {
      const [sign, bound] = condition.split(" ");
      const other = Object.hasOwn(values, bound) ? values[bound] : Number(bound);
      if (HOLDS[sign] && !HOLDS[sign](values[name], other)) {
        return `${name} is ${range}: the library refuses these numbers`;
      }
    }
  }
  return "";
}
