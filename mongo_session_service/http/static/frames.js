// Frames: what the page has to do, a little of it before each frame, so that nothing freezes.

const PATIENCE = 10; // ms

const due = new Set();
let frame = null;
let end = 0;

/** Whether there is time left before this frame. */
export const hasTime = () => performance.now() < end;

/** Do something before the next frame, or a later one if others take the time. */
export function soon(work) {
  due.add(work);
  frame ??= requestAnimationFrame(run);
}

function run() {
  end = performance.now() + PATIENCE;
  try {
    for (const work of due) {
      due.delete(work);
      work();
      if (!hasTime()) break;
    }
  } finally {
    frame = due.size ? requestAnimationFrame(run) : null;
  }
}
