// Values: JSON as it is stored, exactly, and as a tree that unfolds.

import { button, copy, make, plural } from "./elements.js";

/** A number that JavaScript would show as another one: 2**53 + 1, or 1.0. */
export class Exact {
  constructor(text) { this.text = text; }
  toJSON() { return JSON.rawJSON ? JSON.rawJSON(this.text) : Number(this.text); }
}

// Without these no number of a text can look otherwise in JavaScript. Ids have them as well, but not after such a sign.
const MAY_DIFFER = /[:,[]\s*(?:-0|-?\d*(?:\d{16}|\.\d*(?:\d{16}|0(?!\d))|\.?\d*[eE]))/;

export function parse(text) {
  if (!MAY_DIFFER.test(text)) return JSON.parse(text); // which is several times faster
  return JSON.parse(text, (_, value, context) =>
    typeof value === "number" && context && context.source !== String(value)
      ? new Exact(context.source) : value);
}

export const isTree = (value) => typeof value === "object" && value !== null && !(value instanceof Exact);
export const sizeOf = (tree) => (Array.isArray(tree) ? tree.length : Object.keys(tree).length);
export const same = (one, other) => one === other || JSON.stringify(one) === JSON.stringify(other);
export const pretty = (value) => JSON.stringify(value, null, 2);

function kindOf(value) {
  if (typeof value === "string") return "string";
  return typeof value === "number" || value instanceof Exact ? "number" : "other";
}

export function literal(value) {
  if (value instanceof Exact) return value.text;
  return typeof value === "string" ? JSON.stringify(value) : String(value);
}

/** A value in a few words, however large it is. */
export function sketch(value, room = 90) {
  if (!isTree(value)) {
    const text = literal(typeof value === "string" ? value.slice(0, room + 1) : value);
    return text.length > room ? `${text.slice(0, room)}…` : text;
  }
  const isList = Array.isArray(value);
  let text = "";
  let left = sizeOf(value);
  for (const name in value) {
    if (!Object.hasOwn(value, name)) continue;
    const spare = room - text.length;
    if (spare < 8) break;
    const separator = text ? ", " : "";
    text += `${separator}${isList ? "" : `${name.slice(0, 40)}: `}${sketch(value[name], Math.min(spare, 36))}`;
    left -= 1;
  }
  if (left) text += `${text ? ", " : ""}… ${left} more`;
  return isList ? `[${text}]` : `{${text}}`;
}

const LONG = 160;
const AT_ONCE = 200;

/** Every word in a value that somebody may look for. */
export function words(value, found) {
  if (isTree(value)) {
    for (const [name, each] of Object.entries(value)) {
      if (!Array.isArray(value)) found.push(name);
      words(each, found);
    }
  } else if (value !== null) {
    found.push(value instanceof Exact ? value.text : String(value).slice(0, 20000));
  }
  return found;
}

/** The words of a search, of which a text must have each. */
export const wordsOf = (text) => text.toLowerCase().split(/\s+/).filter(Boolean);

/** What a tree holds that has the words in its path or in itself, with that path. */
export function find(value, path, wanted, found = []) {
  for (const [name, each] of Object.entries(value)) {
    const place = [...path, name];
    if (isTree(each) && sizeOf(each)) {
      find(each, place, wanted, found);
    } else {
      const text = `${inWords(place)}\n${isTree(each) ? "" : literal(each)}`.toLowerCase();
      if (wanted.every((word) => text.includes(word))) found.push([place, each]);
    }
  }
  return found;
}

/** What was found, each under its whole path. */
export function matches(found) {
  const box = make("div", "kids");
  for (const [path, value] of found.slice(0, AT_ONCE)) box.append(branch(inWords(path), value, path, new Set()));
  const left = found.length - AT_ONCE;
  const words = found.length ? left > 0 && `${plural(left, "match").replace(/s$/, "es")} more` : "Nothing matches.";
  if (words) box.append(make("div", "what", words));
  return box;
}

// What a line of a tree shows, for the two buttons that follow the pointer.
const lines = new WeakMap();

const inWords = (path) => path.map((name, place) => {
  if (/^[A-Za-z_]\w*$/.test(name)) return place ? `.${name}` : name;
  return /^\d+$/.test(name) && place ? `[${name}]` : `${place ? "" : "state"}[${JSON.stringify(name)}]`;
}).join("");

let pointed = null;
const picks = make("span", "picks",
  pick("value", "Copy this value", ({ value }) => copy(isTree(value) ? pretty(value) : value instanceof Exact ? value.text : String(value), "Value")),
  pick("path", "Copy the path of this value", ({ path }) => copy(inWords(path), "Path")));

function pick(name, title, act) {
  // Its label is in the style sheet: a line is named by what it shows.
  const made = button("", title, (click) => {
    click.preventDefault();
    click.stopPropagation();
    act(pointed);
  });
  made.setAttribute("aria-label", title);
  made.dataset.label = name;
  return made;
}

for (const kind of ["mouseover", "focusin"]) {
  document.addEventListener(kind, ({ target }) => {
    const line = target.closest?.(".leaf, .tree > summary");
    if (!line || !lines.has(line) || pointed === lines.get(line)) return;
    pointed = lines.get(line);
    // A summary is a control itself, which may not hold others: they come next to it.
    const tree = line.matches("summary") ? line.parentNode : null;
    picks.style.top = `${tree && !tree.open ? tree.offsetTop : 0}px`;
    if (!tree) line.append(picks);
    else if (tree.open) line.after(picks);
    else tree.after(picks);
  });
}

/**
 * A value under its name; what differs from `old` is marked.
 *
 * Children are made when they are first seen. `opened` holds the paths that are unfolded,
 * so that a new value is shown as far as the old one was.
 */
export function branch(name, value, path, opened, old = value, isMarked = false) {
  const label = name === null ? [] : [make("span", "key", name), make("span", "colon", ": ")];
  const isLong = typeof value === "string" && (value.length > LONG || value.includes("\n"));
  const isFull = isTree(value) && sizeOf(value) > 0;
  if (!isLong && !isFull) {
    const text = isTree(value) ? (Array.isArray(value) ? "[]" : "{}") : literal(value);
    const leaf = make("div", "leaf", ...label, make("span", `v ${isTree(value) ? "other" : kindOf(value)}`, text));
    if (isMarked) leaf.lastChild.classList.add("touched");
    lines.set(leaf, { value, path });
    return leaf;
  }
  const summary = make("summary", "", ...label);
  if (isFull) {
    const size = sizeOf(value);
    summary.append(make("span", "colon", Array.isArray(value) ? `[${size}] ` : `{${size}} `));
    summary.append(make("span", "sketch", sketch(value, 52)));
  } else {
    summary.append(make("span", "v string sketch", sketch(value, 52)));
    summary.append(make("span", "colon", `  ${plural(value.length, "character")}`));
  }
  if (isMarked) summary.lastChild.classList.add("touched");
  lines.set(summary, { value, path });
  const tree = make("details", "tree", summary);
  const id = JSON.stringify(path);
  let isGrown = false;
  const grow = () => {
    if (isGrown) return;
    isGrown = true;
    tree.append(isFull ? children(value, path, opened, old) : make("div", "whole", value));
  };
  if (opened.has(id)) {
    tree.open = true;
    grow();
  }
  tree.addEventListener("toggle", () => {
    if (!tree.isConnected) return;
    if (tree.open) opened.add(id); else opened.delete(id);
    if (tree.open) grow();
  });
  return tree;
}

export function children(value, path, opened, old) {
  const box = make("div", "kids");
  const names = Object.keys(value);
  const before = isTree(old) ? old : {};
  const show = (from) => {
    for (const name of names.slice(from, from + AT_ONCE)) {
      const was = Object.hasOwn(before, name) ? before[name] : undefined;
      const isMarked = before !== value && !same(was, value[name]);
      box.append(branch(name, value[name], [...path, name], opened, was, isMarked));
    }
    const left = names.length - from - AT_ONCE;
    if (left > 0) {
      const more = button(`${plural(left, "more")}`.replace(/s$/, ""), "Show more", () => {
        more.remove();
        show(from + AT_ONCE);
      });
      more.className = "more";
      box.append(more);
    }
  };
  show(0);
  return box;
}
