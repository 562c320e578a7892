// Markdown: what models write, as elements. Raw HTML stays text.

import MarkdownIt from "./vendor/markdown-it-15.0.3.js";
import { make } from "./elements.js";

const reader = new MarkdownIt({ html: false, linkify: true });
reader.disable("image"); // nothing is loaded: an image is a link to it
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.validateLink = (target) => /^(?:https?:\/\/|mailto:)/i.test(target);

/** The element that a token begins, or is. */
function elementOf(token) {
  const element = token.type === "heading_open" ? make("div", `h ${token.tag}`) : make(token.tag, "");
  if (token.tag === "a") {
    element.href = element.title = token.attrGet("href");
    element.target = "_blank";
    element.rel = "noopener noreferrer";
  } else if (token.attrGet("start")) {
    element.start = Number(token.attrGet("start"));
  } else if (token.attrGet("style")) { // of a table's cell
    [, element.style.textAlign] = token.attrGet("style").split(":");
  }
  return element;
}

function build(tokens, top) {
  const open = [top];
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraph of an item in a tight list
    if (token.nesting < 0) open.pop();
    else if (token.nesting > 0) open.push(open.at(-1).appendChild(elementOf(token)));
    else if (token.type === "inline") build(token.children, open.at(-1));
    else if (token.tag === "code") open.at(-1).append(make(token.block ? "pre" : "code", "", token.content.replace(/\n$/, "")));
    else if (token.tag === "br") open.at(-1).append("\n");
    else if (token.tag) open.at(-1).append(elementOf(token));
    else open.at(-1).append(token.content);
  }
  return top;
}

/** The elements of a text. */
export const markdown = (text) => build(reader.parse(text, {}), document.createDocumentFragment());

const LONGEST = 5000; // characters that are read at once, within 50 ms whatever they are
const FENCE = /^ {0,3}(?:```|~~~)/gm;

/** Where the first part of a text ends that can be read by itself: after a block, or a line. */
export function endOfPart(text, from) {
  if (text.length - from <= LONGEST) return text.length;
  const part = text.slice(from, from + LONGEST);
  const fences = [...part.matchAll(FENCE)];
  const whole = fences.length % 2 ? fences.at(-1).index : part.length; // before an open block of code
  const end = [part.lastIndexOf("\n\n", whole - 1) + 2, part.lastIndexOf("\n", whole - 1) + 1, whole].find((place) => place > LONGEST / 4);
  return from + (end ?? part.length);
}
