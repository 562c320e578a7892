// Elements: they are made here, and text is set as text. Nothing that comes from the
// server is ever markup.

export const $ = (id) => document.getElementById(id);

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function button(label, title, onClick) {
  const element = make("button", "", label);
  element.type = "button";
  element.title = title;
  element.addEventListener("click", onClick);
  return element;
}

/** Have exactly these children, in this order; those that stay keep the focus. */
export function arrange(parent, children) {
  const wanted = new Set(children);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  children.forEach((child, place) => {
    if (parent.children[place] !== child) parent.insertBefore(child, parent.children[place] ?? null);
  });
}

/** Have an element flash, once more if it still does: a style of another name begins anew. */
export function flash(element) {
  element.classList.add("flash");
  element.classList.toggle("again");
}

export const counted = new Intl.NumberFormat("en");
export const plural = (count, noun) => `${counted.format(count)} ${noun}${count === 1 ? "" : "s"}`;

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = make("textarea", "unseen");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy"); // the one way on a page that is not served securely
    area.remove();
  }
  toast(`${what} copied`);
}

let toasting = 0;
export function toast(text) {
  const announcement = $("announcement");
  announcement.textContent = text;
  const status = $("status");
  status.dataset.shown ??= status.textContent;
  status.textContent = text;
  clearTimeout(toasting);
  toasting = setTimeout(() => {
    status.textContent = status.dataset.shown;
    delete status.dataset.shown;
  }, 1400);
}
