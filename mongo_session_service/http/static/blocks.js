// Blocks: a long list, of which only what comes near the window is drawn.
//
// It stays a flow of elements, which fold, hide and grow as they like: libraries for long
// lists put each row at a place that they have measured.

import { hasTime, soon } from "./frames.js";

const SIZE = 25; // items of a block that is drawn
const LARGEST = 1000; // items of one that is far: browsers look at all blocks before each frame
const NEAR = 1200; // px

export class Blocks {
  /** `owner.fill(box, items)` draws items; `height` is what one is likely to take. */
  constructor(place, owner, height) {
    Object.assign(this, { place, owner, height });
    this.blocks = new Map(); // by their elements
    this.altered = new Set(); // since their heights were set
    this.due = new Set(); // to be drawn
    this.observer = new IntersectionObserver((seen) => this.seen(seen), { root: place.closest(".scroll"), rootMargin: `${NEAR}px 0px` });
  }

  clear() {
    this.observer.disconnect();
    for (const box of this.blocks.keys()) box.remove();
    this.blocks.clear();
    this.altered.clear();
    this.due.clear();
    this.last = null;
  }

  /** Take items in, after the others. Those that are drawn are `isShown`. */
  add(items) {
    for (const item of items) {
      const most = this.last?.isNear ? SIZE : LARGEST;
      item.block = this.last?.items.length < most ? this.last : this.open(null);
      item.block.items.push(item);
      this.changed(item.block);
    }
  }

  first() { return this.blocks.get(this.place.firstElementChild)?.items[0]; }

  /** The item after another one, if there is one. */
  after(item) {
    const { items, box } = item.block;
    return items[items.indexOf(item) + 1] ?? this.blocks.get(box.nextElementSibling)?.items[0];
  }

  /** Take an item in before another one, if there is one. */
  insert(item, before) {
    if (!before) return this.add([item]);
    const { block } = before;
    block.items.splice(block.items.indexOf(before), 0, item);
    item.block = block;
    const most = block.isNear ? 2 * SIZE : LARGEST;
    if (block.items.length > most) this.split(block, most / 2);
    this.changed(block);
  }

  /** Move what comes after so many items of a block into one of its own. */
  split(block, count) {
    const rest = this.open(block.box.nextSibling);
    rest.items = block.items.splice(count);
    for (const item of rest.items) item.block = rest;
    this.changed(rest);
  }

  /** Have blocks in place of one that is too large to be drawn; which of them are near is to be seen. */
  divide(block) {
    const shown = [...block.items.keys()].filter((place) => block.items[place].isShown);
    if (shown.length <= 2 * SIZE) return;
    const places = shown.filter((_, nth) => nth && nth % SIZE === 0);
    for (const place of places.reverse()) this.split(block, place);
    this.observer.unobserve(block.box);
    this.observer.observe(block.box);
    block.isNear = false;
    this.changed(block);
  }

  open(next) {
    const box = document.createElement("div");
    box.className = "block";
    const block = { box, items: [], isNear: false, isStale: true };
    this.blocks.set(box, block);
    this.place.insertBefore(box, next);
    if (next === null) this.last = block;
    this.observer.observe(box);
    return block;
  }

  /** Items of a block have come, or are shown or hidden: it is drawn once all of them have. */
  changed(block) {
    if (!this.altered.size) queueMicrotask(() => this.update());
    this.altered.add(block);
    block.isStale = true;
  }

  update() {
    for (const block of this.altered) {
      this.altered.delete(block);
      const shown = block.items.filter((item) => item.isShown).length;
      block.box.hidden = shown === 0;
      if (!block.isNear && !block.box.contains(document.activeElement)) {
        block.box.replaceChildren();
        block.box.style.height = `${shown * this.height}px`;
      } else if (shown > 2 * SIZE) {
        this.divide(block);
      } else {
        this.due.add(block);
      }
    }
    this.work();
  }

  refresh() {
    for (const block of this.blocks.values()) this.changed(block);
    this.update();
  }

  /** Draw the beginning at once: the list would be blank until its place is known. */
  begin() {
    const [first] = this.blocks.values();
    if (first?.isStale) this.show(first.items[0]);
  }

  /** Draw an item now, wherever it is, and what is beside it: else that would move it later. */
  show(item) {
    this.divide(item.block);
    this.update();
    if (item.block.isStale) this.draw(item.block);
    for (const way of ["previousElementSibling", "nextElementSibling"]) {
      let { box } = item.block;
      for (let drawn = 0; drawn < SIZE && this.blocks.has(box[way]);) {
        this.divide(this.blocks.get(box[way]));
        this.update();
        box = box[way];
        const block = this.blocks.get(box);
        drawn += block.items.filter(({ isShown }) => isShown).length;
        if (block.isStale) this.draw(block);
      }
    }
  }

  seen(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const block = this.blocks.get(target);
      if (!block) continue;
      block.isNear = isIntersecting;
      this.due.delete(block);
      if (isIntersecting && block.isStale) this.changed(block);
      else if (!isIntersecting && target.firstChild && boundingClientRect.height) this.put(block, boundingClientRect.height);
    }
    this.update();
  }

  /** Put a block away that is as high as that; what was drawn is kept. */
  put(block, height) {
    if (block.box.contains(document.activeElement)) return;
    block.isStale = true;
    block.box.replaceChildren();
    block.box.style.height = `${height}px`;
  }

  /** Draw what is due: with all else that has changed, if there is time before this frame. */
  work = () => {
    for (const block of [...this.due].reverse()) { // those that came last are where one looks
      if (hasTime()) this.draw(block);
    }
    if (this.due.size) soon(this.work);
  };

  draw(block) {
    this.altered.delete(block);
    this.due.delete(block);
    block.isStale = false;
    block.box.style.height = "";
    const items = block.items.filter((item) => item.isShown);
    block.box.hidden = items.length === 0;
    this.owner.fill(block.box, items);
  }
}
