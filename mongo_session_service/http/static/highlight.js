// Highlights: words that were looked for, marked where they are shown.

const MOST = 2000;

/** Mark words below elements, under a name that the style sheet knows. */
export function highlight(name, elements, words) {
  if (!globalThis.CSS?.highlights) return;
  CSS.highlights.delete(name);
  if (!words.length) return;
  const marks = new Highlight();
  for (const element of elements) {
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (texts.nextNode() && marks.size < MOST) {
      const text = texts.currentNode.data.toLowerCase();
      if (text.length !== texts.currentNode.data.length) continue; // as of "İ"
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0 && marks.size < MOST; at = text.indexOf(word, at + word.length)) {
          const range = new Range();
          range.setStart(texts.currentNode, at);
          range.setEnd(texts.currentNode, at + word.length);
          marks.add(range);
        }
      }
    }
  }
  CSS.highlights.set(name, marks);
}
