// A session's stream, read by fetch: with a token, which EventSource cannot send.
export async function follow(url, getToken, on) {
  let place;
  for (;;) {
    const headers = { authorization: `Bearer ${await getToken()}` };
    if (place) headers["last-event-id"] = place;
    const response = await fetch(url, { headers }).catch(() => null);
    if (response && response.status < 500) {
      if (!response.ok) return response.json(); // not allowed, or gone
      let text = "";
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read().catch(() => ({ done: true }));
        if (done) break;
        const frames = (text + value).split("\n\n");
        text = frames.pop(); // the rest has not come yet
        for (const frame of frames) {
          const lines = frame.split("\n").map((line) => line.split(/: (.*)/s));
          const { id, event, data } = Object.fromEntries(lines);
          place = id ?? place;
          if (data) on(event, JSON.parse(data));
        }
      }
    }
    await new Promise((again) => setTimeout(again, 2000));
  }
}
