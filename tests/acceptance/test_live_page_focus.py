"""What has the focus on the live page keeps it while its card is drawn again."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

TIMELINE = """
  async () => {
    // No block is known to be near the window before the test says so.
    let report;
    window.IntersectionObserver = class {
      constructor(seen) { report ??= seen; }
      observe() {}
      unobserve() {}
      disconnect() {}
    };
    const { Timeline } = await import("./static/timeline.js");
    document.getElementById("session").hidden = false;
    const timeline = new Timeline();
    Object.assign(timeline, { onSelect: () => {}, versionsAt: () => null });
    const change = (revision, { turn = "a", ...event } = {}) => {
      const parts = [{ text: `text ${revision}` }];
      const it = { author: "agent", invocationId: turn, content: { parts }, ...event };
      const change = { revision, event: it, state_delta: { n: 1 }, time: revision };
      return [change, JSON.stringify(change)];
    };
    Object.assign(window, {
      timeline,
      add: (...args) => timeline.add(...change(...args), false),
      prepend: (...args) => timeline.prepend(...change(...args)),
      call: (kind, name) => ({ content: { parts: [{ [kind]: { id: "1", name } }] } }),
      show: () => {
        timeline.joinEarlier();
        for (const item of timeline.events) timeline.blocks.show(item);
      },
      near: () => report([...timeline.blocks.blocks].map(([target]) =>
        ({ target, isIntersecting: true, boundingClientRect: {} }))),
    });
  }
"""

BUTTON = ".event[data-revision='90'] .chip"
WAYS = {
    "its card is drawn anew": (
        "add(90); show(); near(); document.querySelector('.event').focus()",
        ".event [title^='Copy']",
        "timeline.redrawAt(new Set([90]))",
    ),
    "its card has the focus": (
        "add(90); show(); near()",
        ".event",
        "timeline.onSelect = null; timeline.redrawAt(new Set([90]))",
    ),
    "an earlier event comes before it is known to be near": (
        "add(90); show()",
        BUTTON,
        "prepend(89)",
    ),
    "its card is moved to another block": (
        "add(90); show(); near()",
        BUTTON,
        "for (let n = 89; n > 30; n--) prepend(n)",
    ),
    "its block is divided once it is known to be near": (
        "add(90); show()",
        BUTTON,
        "for (let n = 89; n > 0; n--) prepend(n); queueMicrotask(near)",
    ),
    "a turn is unfolded whose heading moves to another block": (
        """
        for (let n = 1; n < 41; n++) add(n);
        add(41, { turn: 'b' });
        timeline.end(0);
        show();
        timeline.turns[1].head.firstChild.click();
        for (let n = 42; n < 140; n++) add(n, { turn: 'b' });
        near();
        """,
        "[title$='Invocation b']",
        "timeline.turns[1].head.firstChild.click()",
    ),
    "its call is found": (
        "add(90, call('functionResponse', 'find')); show(); near()",
        BUTTON,
        "prepend(80, call('functionCall', 'find')); prepend(79, { turn: 'b' })",
    ),
    "its call is answered": (
        """
        add(89, call('functionCall', 'find'));
        show();
        near();
        timeline.unfold(timeline.events[0]);
        const call_ = document.querySelector('details');
        await new Promise((done) => { call_.ontoggle = done; });
        """,
        "[title='Copy the Arguments as JSON']",
        "add(90, call('functionResponse', 'find'))",
    ),
}


@pytest.mark.parametrize(("before", "focused", "act"), WAYS.values(), ids=WAYS)
async def test_what_has_the_focus_keeps_it(
    page: Page, url: str, before: str, focused: str, act: str
) -> None:
    """However its card comes to be drawn again, or elsewhere."""
    await page.goto(url)
    await page.evaluate(TIMELINE)
    focus = f'document.querySelector("{focused}").focus()'
    await page.evaluate(f"async () => {{ {before}; {focus}; }}")
    element = page.locator(focused)
    await expect(element).to_be_focused(timeout=3000)
    drawn = "requestAnimationFrame(() => setTimeout(resolve))"
    await page.evaluate(
        f"() => new Promise((resolve) => {{ {act}; setTimeout(() => {drawn}); }})"
    )
    await expect(element).to_be_focused(timeout=3000)
