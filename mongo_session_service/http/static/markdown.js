// Markdown: the few rules that answers of models use. Raw HTML stays text.

import { make } from "./elements.js";

const LONGEST = 50_000; // characters
const MOST = 2_000; // lines
const DEEPEST = 6;

// Each repetition is bounded, or ends at its own delimiter: no text is slow to read.
const INLINE = new RegExp([
  "(?<ticks>`{1,3})(?<code>[^`]{1,2000}?)\\k<ticks>",
  "\\*\\*(?=\\S)(?<strong>[^*]{1,2000}?)\\*\\*",
  "~~(?=\\S)(?<del>[^~]{1,2000}?)~~",
  "(?<![\\w*])\\*(?=\\S)(?<em>[^*\\n]{1,1000}?)\\*(?![\\w*])",
  "(?<![\\w_])_(?=\\S)(?<em2>[^_\\n]{1,1000}?)_(?![\\w_])",
  "!?\\[(?<label>[^\\]\\n]{0,500})\\]\\((?<target>[^\\s()]{1,2000})\\)",
  "(?<url>https?://[^\\s<>()\"'`*]{1,2000})",
].join("|"), "g");

function link(label, target) {
  if (!/^(?:https?:\/\/|mailto:)/i.test(target)) return null;
  const element = make("a", "", label);
  element.href = target;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  element.title = target;
  return element;
}

function inline(text, depth = 0) {
  if (depth > DEEPEST) return [text];
  const made = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    const { code, strong, del, em, em2, label, target, url } = found.groups;
    let element = null;
    if (code !== undefined) element = make("code", "", code);
    else if (strong !== undefined) element = make("strong", "", ...inline(strong, depth + 1));
    else if (del !== undefined) element = make("del", "", ...inline(del, depth + 1));
    else if (em !== undefined || em2 !== undefined) element = make("em", "", ...inline(em ?? em2, depth + 1));
    else if (target !== undefined) element = link(label || target, target);
    else element = link(url, url);
    if (element === null) continue;
    made.push(text.slice(from, found.index), element);
    from = found.index + found[0].length;
  }
  made.push(text.slice(from));
  return made.filter((each) => each !== "");
}

const FENCE = /^ {0,3}(```+|~~~+)/;
const HEADING = /^ {0,3}(#{1,6}) +(.*?)(?: +#+)?$/;
const ITEM = /^( *)(?:[-*+]|(\d{1,9})[.)]) +(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const RULE = /^ {0,3}(?:-[ -]*-[ -]*-|\*[ *]*\*[ *]*\*|_[ _]*_[ _]*_)[ ]*$/;
const DASHES = /^[ |:-]*-[ |:-]*$/;

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
const isTable = (lines, at) => lines[at].includes("|") && DASHES.test(lines[at + 1] ?? "") && lines[at + 1].includes("|");
const begins = (lines, at) => !lines[at].trim() || [FENCE, HEADING, ITEM, QUOTE, RULE].some((rule) => rule.test(lines[at])) || isTable(lines, at);

class Reader {
  constructor(lines, depth) {
    this.lines = lines;
    this.depth = depth;
    this.at = 0;
    this.made = [];
  }

  read() {
    while (this.at < this.lines.length) this.block(this.lines[this.at]);
    return this.made;
  }

  /** The lines from here on that a test holds for. */
  while(test) {
    const from = this.at;
    while (this.at < this.lines.length && test(this.lines[this.at], this.at - from)) this.at += 1;
    return this.lines.slice(from, this.at);
  }

  block(line) {
    const heading = HEADING.exec(line);
    if (!line.trim()) this.at += 1;
    else if (FENCE.test(line)) this.code(FENCE.exec(line)[1]);
    else if (heading) this.add(make("div", `h h${heading[1].length}`, ...inline(heading[2])), 1);
    else if (RULE.test(line)) this.add(make("hr", ""), 1);
    else if (QUOTE.test(line) && this.depth < DEEPEST) this.quote();
    else if (ITEM.test(line) && this.depth < DEEPEST) this.list();
    else if (isTable(this.lines, this.at)) this.table();
    else this.add(make("p", "", ...inline(this.while((_, nth) => nth === 0 || !begins(this.lines, this.at)).join("\n"))));
  }

  add(element, lines = 0) {
    this.made.push(element);
    this.at += lines;
  }

  code(fence) {
    this.at += 1;
    const inside = this.while((line) => !line.trimStart().startsWith(fence));
    this.add(make("pre", "", inside.join("\n")), 1);
  }

  quote() {
    const inside = this.while((line) => QUOTE.test(line)).map((line) => line.replace(QUOTE, ""));
    this.add(make("blockquote", "", ...new Reader(inside, this.depth + 1).read()));
  }

  list() {
    const [, indent, number] = ITEM.exec(this.lines[this.at]);
    const list = make(number === undefined ? "ul" : "ol", "");
    if (number !== undefined) list.start = Number(number);
    const isNext = (line) => {
      const item = ITEM.exec(line);
      return item && item[1].length <= indent.length && (item[2] === undefined) === (number === undefined);
    };
    while (this.at < this.lines.length && isNext(this.lines[this.at])) {
      const first = ITEM.exec(this.lines[this.at])[3];
      this.at += 1;
      const rest = this.while((line) => line.startsWith(`${indent} `) && line.trim());
      const inside = [first, ...rest.map((line) => line.slice(indent.length + 2 - (line[indent.length + 1] === " " ? 0 : 1)))];
      list.append(make("li", "", ...new Reader(inside, this.depth + 1).read()));
    }
    this.add(list);
  }

  table() {
    const row = (tag, line) => make("tr", "", ...cells(line).map((cell) => make(tag, "", ...inline(cell))));
    const [head, , ...rest] = this.while((line, nth) => nth === 1 || line.includes("|"));
    this.add(make("table", "", make("thead", "", row("th", head)), make("tbody", "", ...rest.map((line) => row("td", line)))));
  }
}

/** Elements for a text in Markdown; for one that is very long, the text as it is. */
export function markdown(text) {
  const lines = text.length > LONGEST ? [] : text.replace(/\r\n?/g, "\n").split("\n");
  if (lines.length === 0 || lines.length > MOST) return [make("p", "", text)];
  return new Reader(lines, 0).read();
}
