// Times: of day, and how long something took.

import { Exact } from "./values.js";

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const calendar = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const isTime = (seconds) => Number.isFinite(seconds) && Math.abs(seconds) < 8e12;
export const timeOf = (value) => Number(value instanceof Exact ? value.text : value);
export const inClock = (seconds) => (isTime(seconds) ? clock.format(seconds * 1000) : "");
export const inCalendar = (seconds) => (isTime(seconds) ? calendar.format(seconds * 1000) : "at an unknown time");

export function lasted(seconds) {
  if (!(seconds >= 0) || seconds > 86400) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}
