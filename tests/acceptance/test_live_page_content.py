"""The live page's content: Markdown, images, long values, searches and filters."""

from __future__ import annotations

import struct
import zlib

import pytest
from google.adk.events import Event, EventActions
from google.adk.events.event_actions import EventCompaction
from google.adk.sessions import Session
from google.genai import types
from playwright.async_api import Page, expect
from support.live_pages import KEY, of, say

from mongo_session_service import MongoSessionService

ANSWER = """# Order **1099**

It has been *shipped*, see `track()`, [the page](https://example.com/a_b_c) and
https://example.com/x.

- apples
  - ripe
- pears

3. third

| day | sun |
|-----|----:|
| Mon | 3 h |

> quoted

```js
alert("<b>");
```"""

HOSTILE = """<img src=x onerror='window.hacked=1'>

[click](javascript:window.hacked=1) [data](data:text/html,<script>1</script>)
![remote](http://127.0.0.1:1/pixel.png) [**x**](JaVaScRiPt:window.hacked=1)

| <script>window.hacked=1</script> | b |
|---|---|
| <iframe srcdoc="<script>window.hacked=1</script>"> | `<svg onload=1>` |"""


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + _crc(checked)

    rows = (b"\0" + b"\xe0\x20\x20" * width) * height
    size = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


async def append(
    service: MongoSessionService, session: Session, *parts: object
) -> None:
    content = types.Content(role="model", parts=list(parts))  # type: ignore[arg-type]
    await service.append_event(session, Event(author="agent", content=content))


async def test_markdown_is_set(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Headings, emphasis, lists, tables, quotes, code and links look like it."""
    await append(service, session, types.Part(text=ANSWER))
    await page.goto(of(url))
    text = page.locator(".event .text")
    await expect(text.locator(".h1")).to_have_text("Order 1099")
    for selector, shown in {
        ".h1 strong": "1099",
        "p em": "shipped",
        "p code": "track()",
        "ul > li > ul > li": "ripe",
        "ul > li:nth-child(2)": "pears",
        "ol[start='3'] > li": "third",
        "th:first-child": "day",
        "td:last-child": "3 h",
        "blockquote": "quoted",
        "pre": 'alert("<b>");',
    }.items():
        await expect(text.locator(selector)).to_have_text(shown)
    await expect(text.locator("td:last-child")).to_have_css("text-align", "right")
    links = text.locator("a")
    await expect(links).to_have_text(["the page", "https://example.com/x"])
    await expect(links.first).to_have_attribute("href", "https://example.com/a_b_c")
    await expect(links.first).to_have_attribute("rel", "noopener noreferrer")


async def test_markdown_makes_no_markup_of_its_own(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """HTML is text, and no link runs a script or loads anything."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    await append(service, session, types.Part(text=HOSTILE))
    await page.goto(of(url))
    text = page.locator(".event .text")
    await expect(text).to_contain_text("<img src=x onerror='window.hacked=1'>")
    await expect(text).to_contain_text("[click](javascript:window.hacked=1)")
    await expect(text.locator("th").first).to_contain_text("<script>window.hacked")

    hrefs = await text.locator("a").evaluate_all("all => all.map(a => a.href)")
    assert hrefs == ["http://127.0.0.1:1/pixel.png"]
    assert await text.locator("img, script, iframe, svg").count() == 0
    assert await page.evaluate("window.hacked ?? null") is None
    assert not [each for each in asked if not each.startswith(url)]


@pytest.mark.parametrize("seed", ["**a ", "[", "`a", "> ", "- ", "|-\n", "_a *b ", "#"])
async def test_no_text_is_slow_to_read(
    page: Page, url: str, service: MongoSessionService, session: Session, seed: str
) -> None:
    """A text that begins a rule thousands of times is drawn at once."""
    await append(service, session, types.Part(text=seed * (49_000 // len(seed))))
    await say(service, session, "the end")

    await page.goto(of(url))

    await expect(page.locator(".event .text").last).to_have_text("the end")


async def test_an_image_is_shown_within_bounds(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """It is as wide as the event at most; what is no image is named instead."""
    data = {
        "image/png": png(3000, 2000),
        "image/svg+xml": b"<svg xmlns='http://www.w3.org/2000/svg' onload='hacked()'/>",
        "image/jpeg": b"no picture",
    }
    blobs = [types.Blob(mime_type=kind, data=each) for kind, each in data.items()]
    await append(service, session, *(types.Part(inline_data=each) for each in blobs))
    await page.set_viewport_size({"width": 390, "height": 844})
    await page.goto(of(url))

    picture = page.locator(".event img")
    await expect(picture).to_have_count(1)
    await expect(picture).to_have_attribute(
        "alt", f"image/png, {len(png(3000, 2000)):,} bytes"
    )
    await expect(picture).to_have_js_property("naturalWidth", 3000)
    box = await picture.bounding_box()
    assert box is not None
    assert 0 < box["width"] < 340
    assert box["height"] <= 322
    await expect(page.locator(".event .tag")).to_contain_text(
        ["image/svg+xml", "image/jpeg"]
    )


async def test_a_long_result_shows_its_size_and_can_be_copied(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Folded, it is a line; unfolded, the whole, one value or a path is copied."""
    call = types.FunctionCall(id="c", name="find", args={"q": "x"})
    response = {"rows": [{"name": f"n{n}", "text": "y" * 300} for n in range(250)]}
    answer = types.FunctionResponse(id="c", name="find", response=response)
    await append(service, session, types.Part(function_call=call))
    await append(service, session, types.Part(function_response=answer))
    await page.goto(of(url))
    card = page.locator("details.call")
    await expect(card.locator(".result")).to_contain_text("→ {rows: [")
    await card.locator("summary").first.click()
    await expect(card.locator(".what").last).to_contain_text(" characters")

    await card.get_by_text("rows", exact=True).click()
    await card.get_by_text("2", exact=True).click()
    line = card.locator(".leaf").filter(has_text="n2").last
    await line.hover()
    await line.get_by_role("button", name="Copy this value").click()
    assert await page.evaluate("navigator.clipboard.readText()") == "n2"
    await line.get_by_role("button", name="Copy the path").click()
    copied = await page.evaluate("navigator.clipboard.readText()")
    assert copied == "response.rows[2].name"
    await card.get_by_title("Copy the Result as JSON").click()
    assert len(await page.evaluate("navigator.clipboard.readText()")) > 75_000


async def test_a_result_can_be_searched(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """What has the words is shown under its path, and marked; then the tree again."""
    rows = [
        {"name": f"n{n}", "city": "Turin" if n % 100 else "Rome"} for n in range(300)
    ]
    call = types.FunctionCall(id="c", name="find", args={"q": "x"})
    answer = types.FunctionResponse(id="c", name="find", response={"rows": rows})
    await append(service, session, types.Part(function_call=call))
    await append(service, session, types.Part(function_response=answer))
    await page.goto(of(url))
    card = page.locator("details.call")
    await card.locator("summary").first.click()

    await page.get_by_label("Find in the Result").fill("rome city")
    found = card.locator(".inside > div").last.locator(".leaf .key")
    await expect(found).to_have_text(
        [f"response.rows[{n}].city" for n in (0, 100, 200)]
    )
    marked = "[...CSS.highlights.get('result') ?? []].map(String)"
    assert await page.evaluate(marked) == ["city", "Rome"] * 3
    await page.get_by_label("Find in the Result").fill("turin")
    await expect(found).to_have_count(200)
    await expect(card.locator(".kids > .what")).to_have_text("97 matches more")
    await page.get_by_label("Find in the Result").fill("nowhere")
    await expect(card.locator(".kids > .what")).to_have_text("Nothing matches.")
    await page.get_by_label("Find in the Result").fill("")
    await expect(card.get_by_text("rows", exact=True)).to_be_visible()
    assert await page.get_by_label("Find in the Arguments").count() == 0


async def test_summaries_and_rewinds_are_no_empty_events(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """ADK notes both in events of the user, which have no content."""
    asked = Event(author="user", invocation_id="i-1", content=types.UserContent("Hi"))
    await service.append_event(session, asked)
    summary = types.ModelContent("They met.")
    for actions in (
        EventActions(
            compaction=EventCompaction(
                start_timestamp=1, end_timestamp=2, compacted_content=summary
            )
        ),
        EventActions(rewind_before_invocation_id="i-3"),
    ):
        event = Event(author="user", invocation_id=Event.new_id(), actions=actions)
        await service.append_event(session, event)
    await page.goto(of(url))

    first, second = (page.locator(f'[data-revision="{each}"]') for each in "23")
    await expect(first.locator(".tag")).to_have_text("summary")
    await expect(first.locator(".text")).to_have_text("They met.")
    await expect(second.locator(".tag")).to_have_text("rewinds")
    await expect(page.locator(".turn").first.locator(".event")).to_have_count(2)
    await page.locator("#filter").fill("met")
    await expect(page.locator("#event-count")).to_have_text("1 of 3")


async def test_what_was_spoken_is_shown_and_found(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """It is beside the content of an event, as is what a node has put out."""
    said = Event(author="user", output={"city": "Turin"})
    said.input_transcription = types.Transcription(text="I live in Lisbon")
    await service.append_event(session, said)
    await page.goto(of(url))

    event = page.locator('[data-revision="1"]')
    await expect(event.locator(".tag")).to_have_text("spoken")
    await expect(event.locator(".text")).to_have_text("I live in Lisbon")
    await expect(event.locator("pre")).to_contain_text("Turin")
    await page.locator("#filter").fill("rome")
    await expect(event).to_be_hidden()
    await page.locator("#filter").fill("lisbon")
    await expect(event).to_be_visible()


async def test_events_are_filtered_by_author_tool_error_and_key(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Words that match are marked."""
    await say(service, session, "one rainy day", city="Rome")
    call = types.Part.from_function_call(name="find", args={})
    await append(service, session, call)
    await service.append_event(session, Event(author="critic", error_code="SAFETY"))
    await page.goto(of(url))
    await expect(page.locator(".event")).to_have_count(3)
    choice = page.locator("#filter-by")
    for option, revision in {
        "critic": "3",
        "find": "2",
        "errors": "3",
        "city": "1",
    }.items():
        await choice.select_option(label=option)
        shown = page.locator(".event:visible")
        await expect(shown).to_have_count(1)
        await expect(shown).to_have_attribute("data-revision", revision)
        await expect(page.locator("#event-count")).to_have_text("1 of 3")

    await choice.select_option(label="All")
    await expect(page.locator("#event-count")).to_have_text("3")
    await page.locator("#filter").fill("rainy")
    await expect(page.locator("#event-count")).to_have_text("1 of 3")
    marked = "[...CSS.highlights.get('event') ?? []].map(String).join()"
    assert await page.evaluate(marked) == "rainy"
    await page.keyboard.press("Escape")
    await expect(page.locator("#event-count")).to_have_text("3")
    assert await page.evaluate(marked) == ""


async def test_the_state_can_be_searched(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """Keys that have the words stay, also as they change, and the words are marked."""
    await say(service, session, "x", cart={"items": [{"kind": "Apple"}]}, sky="blue")
    await page.goto(of(url))
    rows = page.locator("#state .row:visible")
    await expect(rows).to_have_count(4)
    await page.get_by_label("Find in the state").fill("apple")
    await expect(rows).to_have_count(1)
    await expect(rows).to_have_attribute("data-key", "cart")
    marked = "[...CSS.highlights.get('state') ?? []].map(String)"
    assert await page.evaluate(marked) == ["Apple"]
    await rows.locator("summary").first.click()
    await rows.get_by_text("items", exact=True).click()

    await say(service, session, "y", sky="apple green")

    await expect(rows).to_have_count(2)


async def test_the_page_marks_a_trimmed_session(
    page: Page, url: str, service: MongoSessionService, session: Session
) -> None:
    """It does not look new, nor as if events were lost."""
    for number in range(2):
        await say(service, session, f"Answer {number}")
    await service.trim_session(**KEY, older_than=1e-9)
    await page.goto(of(url))
    await expect(page.locator("#events-empty")).to_contain_text("were trimmed")

    await say(service, session, "Answer 2")

    await expect(page.locator(".note")).to_have_text("The first 2 events were trimmed.")
    await expect(page.locator(".note.bad")).to_have_count(0)
