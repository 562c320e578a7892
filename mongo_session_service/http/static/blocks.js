// Blocks: a long list, of which only what comes near the window is drawn.
//
// It stays a flow of elements, which fold, hide and grow as they like: libraries for long
// lists put each row at a place that they have measured.

const SIZE = 25;
const NEAR = 1200; // px
const PATIENCE = 4; // ms of drawing, after which a frame comes first

export class Blocks {
  /** `owner.fill(box, items)` draws items; `height` is what one is likely to take. */
  constructor(place, owner, height) {
    Object.assign(this, { place, owner, height });
    this.blocks = new Map(); // by their elements
    this.due = new Set();
    this.observer = new IntersectionObserver((seen) => this.seen(seen), { root: place.closest(".scroll"), rootMargin: `${NEAR}px 0px` });
  }

  clear() {
    this.observer.disconnect();
    for (const box of this.blocks.keys()) box.remove();
    this.blocks.clear();
    this.due.clear();
    this.last = null;
  }

  /** Take items in, after the others. Those that are drawn are `isShown`. */
  add(items) {
    const grown = new Set();
    for (const item of items) {
      item.block = this.last?.items.length < SIZE ? this.last : this.open(null);
      item.block.items.push(item);
      grown.add(item.block);
    }
    for (const block of grown) this.changed(block);
  }

  first() { return this.blocks.get(this.place.firstElementChild)?.items[0]; }

  /** Take an item in before another one, if there is one. */
  insert(item, before) {
    if (!before) return this.add([item]);
    const { block } = before;
    block.items.splice(block.items.indexOf(before), 0, item);
    item.block = block;
    if (block.items.length > 2 * SIZE) {
      const rest = this.open(block.box.nextSibling);
      rest.items = block.items.splice(SIZE);
      for (const each of rest.items) each.block = rest;
      if (block === this.last) this.last = rest;
      this.changed(rest);
    }
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

  /** Items of a block have come, or are shown or hidden. */
  changed(block) {
    const shown = block.items.filter((item) => item.isShown).length;
    block.isStale = true;
    block.box.hidden = shown === 0;
    if (block.isNear) {
      this.due.add(block);
      this.soon();
    } else {
      block.box.replaceChildren();
      block.box.style.height = `${shown * this.height}px`;
    }
  }

  refresh() {
    for (const block of this.blocks.values()) this.changed(block);
    this.work();
  }

  /** Draw the beginning at once: the list would be blank until its place is known. */
  begin() {
    for (const block of [...this.blocks.values()].slice(0, 2)) if (block.isStale) this.draw(block);
  }

  /** Draw an item now, wherever it is, and what is beside it: else that would move it later. */
  show(item) {
    if (item.block.isStale) this.draw(item.block);
    for (const way of ["previousElementSibling", "nextElementSibling"]) {
      let block = this.blocks.get(item.block.box[way]);
      for (let drawn = 0; block && drawn < SIZE; block = this.blocks.get(block.box[way])) {
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
      if (isIntersecting && block.isStale) this.due.add(block);
      else if (!isIntersecting && target.firstChild && boundingClientRect.height) this.put(block, boundingClientRect.height);
    }
    this.work();
  }

  /** Put a block away that is as high as that; what was drawn is kept. */
  put(block, height) {
    if (block.box.contains(document.activeElement)) return;
    block.isStale = true;
    block.box.replaceChildren();
    block.box.style.height = `${height}px`;
  }

  soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.work();
    });
  }

  work() {
    const end = performance.now() + PATIENCE;
    for (const block of [...this.due].reverse()) { // those that came last are where one looks
      this.draw(block);
      if (performance.now() > end) return this.soon();
    }
  }

  draw(block) {
    this.due.delete(block);
    block.isStale = false;
    block.box.style.height = "";
    this.owner.fill(block.box, block.items.filter((item) => item.isShown));
  }
}
