// What the functions of rules are made of: see javascript.py.
"use strict";

// An elementwise function over arrays and numbers; numbers alone give a number.
function each(f, ...given) {
  const array = given.find(Array.isArray);
  if (array === undefined) return f(...given);
  return array.map((_, i) => f(...given.map((x) => (Array.isArray(x) ? x[i] : x))));
}
function isNegative(a) { return a < 0 || Object.is(a, -0); }
function power(a, b) { return a === 1 ? 1 : a ** b; }
function clip(a, low, high) { return Math.min(Math.max(a, low), high); }
function round(a) {
  const below = Math.floor(a), past = a - below;
  if (past !== 0.5) return Math.round(a);
  return below % 2 === 0 ? below : below + 1;
}
function remainder(a, b) {
  const rest = a % b;
  return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
}
function floorDivide(a, b) {
  if (!Number.isFinite(a) && b !== 0) return NaN;
  return Math.abs(b) === Infinity ? (a !== 0 && a < 0 !== b < 0 ? -1 : 0) : Math.floor(a / b);
}
function sigmoid(a) {
  if (a >= 0) return 1 / (1 + Math.exp(-a));
  const small = Math.exp(a);
  return small / (1 + small);
}
function softplus(a) { return Math.max(a, 0) + Math.log1p(Math.exp(-Math.abs(a))); }
function logAddExp(a, b) {
  return a === b ? a + Math.LN2 : Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b)));
}
function elu(a, alpha) { return a > 0 ? a : alpha * Math.expm1(a); }
function squareplus(a, b) {
  const root = Math.hypot(a, Math.sqrt(b));
  return a >= 0 ? 0.5 * a + 0.5 * root : (0.5 * b) / (Math.abs(a) + root);
}
function gelu(a, approximate) {
  if (!approximate) return 0.5 * a * erfc(-a * Math.SQRT1_2);
  return 0.5 * a * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (a + 0.044715 * a ** 3)));
}
// Sums of positive terms near zero, a continued fraction further out: no cancellation.
function erf(a) {
  const x = Math.abs(a);
  if (!(x < 2.5)) return a !== a ? a : Math.sign(a) * (1 - erfcFar(x));
  let term = x, total = x;
  for (let n = 1; term > 1e-17 * total; n += 1) {
    term *= (2 * x * x) / (2 * n + 1);
    total += term;
  }
  return Math.sign(a) * (2 / Math.sqrt(Math.PI)) * Math.exp(-x * x) * total;
}
function erfc(a) {
  if (a >= 2.5) return erfcFar(a);
  return 1 - erf(a);
}
function erfcFar(x) {
  let fraction = x;
  for (let n = 120; n > 0; n -= 1) fraction = x + n / 2 / fraction;
  return Math.exp(-x * x) / (fraction * Math.sqrt(Math.PI));
}
function sum(xs) { return xs.reduce((one, other) => one + other, 0); }
function mean(xs) { return sum(xs) / xs.length; }
function norm(xs, order) {
  if (order === Infinity) return Math.max(...xs.map(Math.abs));
  if (order === 2) return Math.hypot(...xs);
  return sum(xs.map((x) => Math.abs(x) ** order)) ** (1 / order);
}
function variance(xs, correction) {
  const middle = mean(xs);
  return sum(xs.map((x) => (x - middle) ** 2)) / (xs.length - correction);
}
function quantile(xs, q) {
  const sorted = [...xs].sort((one, other) => one - other), place = q * (xs.length - 1);
  const below = sorted[Math.floor(place)], above = sorted[Math.ceil(place)];
  return below + (place - Math.floor(place)) * (above - below);
}
// mulberry32: a small generator with a seed. Its draws are not those of the library.
function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}
function normal(random) {
  const size = Math.sqrt(-2 * Math.log(1 - random()));
  return size * Math.cos(2 * Math.PI * random());
}
